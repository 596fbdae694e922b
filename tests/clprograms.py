"""Programs as OpenCL C, run by whatever device there is, and CUDA C, compiled for GPUs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from ferrule.codegen.interpret import extent
from ferrule.codegen.uops import UOp, UOps
from ferrule.renderer.c.dialect import CUDA, OPENCL, symbol
from ferrule.renderer.c.style import cuda_renderer, opencl_renderer
from tests import gpus
from tests.programs import Array

GPU = replace(gpus.GPU, block_threads=1024, index_bits=64)


@cache
def opencl() -> Any:
    """(the module, a context, a queue) of the first device."""
    module = pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    try:
        context = module.Context([module.get_platforms()[0].get_devices()[0]])
    except (module.Error, IndexError) as error:
        pytest.skip(f"no OpenCL device: {error}")
    return module, context, module.CommandQueue(context)


def run_as_opencl(
    uops: Sequence[UOp], buffers: Sequence[Array], values: Sequence[int] = ()
) -> list[Array]:
    """The buffers after a run."""
    cl, context, queue = opencl()
    source = opencl_renderer(GPU).render("kernel.a", uops)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a compiler that says anything at all
        program = cl.Program(context, source).build(list(OPENCL.flags))
    kernel = getattr(program, symbol("kernel.a"))
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    handles = [cl.Buffer(context, flags, hostbuf=buffer.view(np.uint8)) for buffer in buffers]
    threads = next(u.arg for u in uops if u.op is UOps.EXTENT) or 1
    blocks = extent(uops, values, len(buffers))
    kernel(queue, (blocks * threads,), (threads,), *handles, *(np.int32(v) for v in values))
    found = [np.empty_like(buffer) for buffer in buffers]
    for array, handle in zip(found, handles, strict=True):
        cl.enqueue_copy(queue, array.view(np.uint8), handle)
    return found


def compile_as_cuda(uops: Sequence[UOp], architecture: str, options: Sequence[str] = ()) -> bytes:
    """The machine code of a program for a GPU, by the compiler that CUDA has at run time.

    Of an architecture such as compute_90 it is PTX, an assembly language.
    """
    nvrtc = gpus.nvrtc_bindings()
    source = cuda_renderer(GPU).render("kernel.a", uops)
    try:
        error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    except (ImportError, OSError, RuntimeError) as problem:
        pytest.skip(f"NVRTC is not installed: {problem}")
    flags = [f"--gpu-architecture={architecture}", *CUDA.flags, *options]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode() + source
    if architecture.startswith("compute"):
        code = bytearray(nvrtc.nvrtcGetPTXSize(program)[1])
        nvrtc.nvrtcGetPTX(program, code)
    else:
        code = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
        nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(program)
    return bytes(code)
