"""CUDA C to machine code, by the real compiler: it needs no GPU."""

import pytest

from ferrule.device import CompileError
from ferrule.runtime.cuda import compiler as cuda_compiler
from ferrule.runtime.cuda.compiler import (
    NVRTC,
    UNALIGNED,
    CUDACompiler,
    pack_program,
    unpack_program,
)

KERNEL = """
extern "C" __global__ void __launch_bounds__(128) block_sum(float* out, const float* a) {
  __shared__ float of_warp[4];
  float sum = a[blockIdx.x * 128 + threadIdx.x];
  for (int distance = 16; distance; distance /= 2)
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = of_warp[0] + of_warp[1] + of_warp[2] + of_warp[3];
}"""
VECTORS = """
extern "C" __global__ void quads(float* out, const float* a) {
#ifndef FERRULE_UNALIGNED
  ((float4*)out)[threadIdx.x] = ((const float4*)a)[threadIdx.x];
#else
  for (int k = 0; k < 4; k++) out[4 * threadIdx.x + k] = a[4 * threadIdx.x + k];
#endif
}"""


def nvrtc() -> NVRTC:
    try:
        return NVRTC()
    except (ImportError, OSError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_it_compiles(arch: str) -> None:
    compiler = CUDACompiler(arch, nvrtc())
    lib = compiler.compile(KERNEL)
    assert lib.startswith(b"\x7fELF")
    assert b"block_sum" in lib
    assert unpack_program(lib) == (lib, None)
    assert compiler.compile(KERNEL) == lib


def test_code_for_addresses_that_are_no_multiples_of_16() -> None:
    compiler = CUDACompiler("sm_90a", nvrtc())
    cubin, source = unpack_program(compiler.compile(VECTORS))
    assert source == VECTORS
    other = compiler.unaligned().compile(VECTORS)
    assert other.startswith(b"\x7fELF")
    assert other != cubin


def test_those_are_moved_one_by_one() -> None:
    compiler = CUDACompiler("sm_90a", nvrtc())
    try:
        cuda_compiler._nvdisasm()
    except CompileError as error:
        pytest.skip(str(error))
    other = compiler.unaligned().compile(VECTORS)
    listing = compiler.disassemble(compiler.compile(VECTORS))
    assert "STG.E.128" in listing
    assert "STG.E.128" not in compiler.disassemble(other)


MANY_VALUES = """
extern "C" __global__ void __launch_bounds__(128BLOCKS) reversed(float* out, const float* a) {
  float x[144];
  #pragma unroll
  for (int i = 0; i < 144; i++) x[i] = a[i * 128 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 144; i++) out[i * 128 + threadIdx.x] = x[143 - i];
}"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("blocks", ["", ", 4"])
def test_what_spills_for_the_sake_of_many_blocks_has_fewer(arch: str, blocks: str) -> None:
    compiler = nvrtc()
    used = compiler.resources(MANY_VALUES.replace("BLOCKS", blocks), arch)
    assert used.spilled_bytes == 0
    assert 128 < used.registers <= 168
    at_once = cuda_compiler._resources(
        compiler._compile(MANY_VALUES.replace("BLOCKS", ", 4"), arch, cuda_compiler._FLAGS)[1]
    )
    assert at_once is not None
    assert at_once.spilled_bytes > 0


def test_headers_are_found() -> None:
    source = '#include <cuda_fp16.h>\nextern "C" __global__ void k(__half* x) { *x = *x + *x; }'
    assert CUDACompiler("sm_80", nvrtc()).compile(source).startswith(b"\x7fELF")


def test_what_it_does_not_accept() -> None:
    compiler = CUDACompiler("sm_80", nvrtc())
    with pytest.raises(CompileError, match=r"nvrtc-.* for sm_80: NVRTC_ERROR_COMPILATION") as error:
        compiler.compile('extern "C" __global__ void k(float* x) { *x = y; }')
    assert 'identifier "y" is undefined' in str(error.value)
    message = (
        r"it compiles for sm_75,(.|\n)* another NVRTC for this GPU\n.*invalid value for --gpu-ar"
    )
    with pytest.raises(CompileError, match=message):
        CUDACompiler("sm_1", nvrtc()).compile(KERNEL)


@pytest.mark.parametrize(
    ("packages", "version"),
    [
        ({"cuda-bindings": "13.0.3", "nvidia-cuda-nvrtc": "13.0.88"}, "13.0.88"),
        # Those of both, as a PyTorch for CUDA 12 brings them: the bindings load what is theirs.
        (
            {
                "cuda-bindings": "12.9.4",
                "nvidia-cuda-nvrtc": "13.0.88",
                "nvidia-cuda-nvrtc-cu12": "12.8.93",
            },
            "12.8.93",
        ),
        ({"cuda-bindings": "12.9.4", "nvidia-cuda-nvrtc": "13.0.88"}, "loaded"),
        ({"cuda-bindings": "14.0.0", "nvidia-cuda-nvrtc": "13.0.88"}, "loaded"),
        ({}, "loaded"),
    ],
)
def test_which_compiler_it_is(
    packages: dict[str, str], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version_of(name: str) -> str:
        if name not in packages:
            raise cuda_compiler.metadata.PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(cuda_compiler.metadata, "version", version_of)
    monkeypatch.setattr(cuda_compiler, "_loaded_version", lambda: "loaded")
    assert NVRTC().version == f"nvrtc-{version}"


class Toolchain:
    """Compiles nothing."""

    def __init__(self, version: str) -> None:
        self.version = version

    def build(self, source: str, arch: str, options: object) -> bytes:
        return b"code"


def test_the_key_of_the_cache() -> None:
    """Whatever changes what comes out changes the key."""
    compilers = [
        CUDACompiler("sm_80", Toolchain("1")),
        CUDACompiler("sm_90a", Toolchain("1")),
        CUDACompiler("sm_80", Toolchain("2")),
        CUDACompiler("sm_80", Toolchain("1")).unaligned(),
    ]
    assert len({compiler.cachekey for compiler in compilers}) == 4
    assert CUDACompiler("sm_80", Toolchain("1")).cachekey == compilers[0].cachekey


def test_the_source_comes_along_where_it_may_be_needed() -> None:
    compiler = CUDACompiler("sm_80", Toolchain("1"))
    assert compiler.compile("no vectors") == b"code"
    assert compiler.compile(f"#ifdef {UNALIGNED}") == pack_program(b"code", f"#ifdef {UNALIGNED}")
    assert compiler.unaligned().compile(f"#ifdef {UNALIGNED}") == b"code"
    for cubin, source in ((b"\x7fELF\0", "π"), (b"", ""), (b"x" * 1000, "y" * 1000)):
        assert unpack_program(pack_program(cubin, source)) == (cubin, source)


def test_without_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compiler.shutil, "which", lambda name: None)
    monkeypatch.setattr(cuda_compiler, "_packaged", lambda name: None)
    with pytest.raises(CompileError, match="pip install nvidia-cuda-nvdisasm, or print less with"):
        CUDACompiler("sm_80", Toolchain("1")).disassemble(b"code")
