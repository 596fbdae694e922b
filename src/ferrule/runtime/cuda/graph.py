"""A batch of captured kernels as one CUDA graph: a replay is one launch.

The graph is built once, with the dependencies of the kernels' buffers. A replay changes the parts
that differ from the replay before: addresses of inputs, values of variables, and sizes that depend
on these. One graph has the kernels of several GPUs, and the copies between them: its edges are the
events by which they wait for each other.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, final

from ferrule.base.config import config
from ferrule.device import BufferCopy, CompiledASTRunner, JITRunner
from ferrule.device.capture import (
    GraphException,
    GraphExecutor,
    JitItem,
    get_jc_idxs_with_updatable_launch_dims,
    get_jc_idxs_with_updatable_var_vals,
)
from ferrule.ir.buffer import Buffer
from ferrule.ir.dependence import Dependencies
from ferrule.ir.expr import Variable
from ferrule.runtime.cuda.driver import GPU, CUDAError, Timer, bindings, check
from ferrule.runtime.cuda.memory import CUDAMemory, allow_access, wait_for
from ferrule.runtime.cuda.program import Arguments, CUDAProgram

_MAX_COPY_BYTES = 2**31 - 1  # CU_DEVICE_ATTRIBUTE_MAX_PITCH of all GPUs


@final
class _Step:
    """One item: a node of the graph, its last settings, and the addresses that it uses."""

    def __init__(self, item: JitItem) -> None:
        self.runner: Any = item.prg
        self.gpu = _gpu_of(item)
        """The GPU that runs the kernel, or that a copy goes to."""
        self.addresses = [_address(buffer) for buffer in item.rawbufs]
        self.nbytes = item.rawbufs[0].nbytes if item.rawbufs and item.rawbufs[0] else 0
        self.is_kernel = isinstance(item.prg, CompiledASTRunner)
        self.is_enabled = True
        self.arguments: Arguments | None = None
        """The memory that the driver takes a kernel's arguments from; None for a copy."""
        self.node: Any = None
        self.params: Any = None
        self.function: Any = None
        self.shared_bytes = _shared_bytes(item.prg)

    def values(self, var_vals: dict[Any, int]) -> list[int]:
        """The values of the kernel's variables."""
        return [*self.runner.fixed, *[v.infer(var_vals) for v in self.runner.vars]]


def _address(buffer: Buffer | None) -> int:
    return 0 if buffer is None or buffer._buf is None else int(buffer._buf.address)


@final
class CUDAGraph(GraphExecutor):
    """The items of `jit_cache`, ready to be replayed with other inputs and other values.

    If an item uses one of `input_rawbuffers`, each call replaces it by its own input of that
    number. All other buffers are those of the items, which the graph keeps alive. Inputs may share
    memory with each other, or with those buffers, only if they did when the graph was built.

    Raises `GraphException` if an item is neither a kernel of a GPU nor a copy between them, or if
    the driver does not accept the graph.
    """

    spans_devices = True

    def __init__(
        self,
        jit_cache: list[JitItem],
        input_rawbuffers: Sequence[Buffer],
        var_vals: dict[Any, int],
    ) -> None:
        super().__init__(jit_cache, input_rawbuffers)
        # Weakly, as a graph must not keep the memory that it was captured with.
        self._captured_with = [weakref.ref(buffer) for buffer in input_rawbuffers]
        self.var_vals = var_vals
        self._steps = [_Step(item) for item in jit_cache]
        gpus = list(dict.fromkeys([step.gpu for step in self._steps]))
        if not gpus:
            raise GraphException("CUDAGraph: there are no items")
        self._gpu, self._others = gpus[0], gpus[1:]
        for step, arguments in zip(self._steps, self.encode_args_info(), strict=True):
            step.arguments = arguments
        self._note_uses(self.replaced)
        self._last: list[int] | None = self._values(input_rawbuffers, var_vals)
        """The addresses and values that the graph is set to; None while they change."""
        try:
            self._build(var_vals)
        except CUDAError as error:
            raise GraphException(f"CUDAGraph: {error}") from error

    @property
    def input_rawbuffers(self) -> list[Buffer | None]:
        """The inputs that the graph was made with; None in place of those that are gone."""
        return [buffer() for buffer in self._captured_with]

    def _note_uses(self, replaced: dict[tuple[int, int], int]) -> None:
        """Record the steps that each input, and the variables, take part in."""
        self._inputs = sorted(set(replaced.values()))
        self._uses = [
            [(self._steps[j], i) for (j, i), number in replaced.items() if number == wanted]
            for wanted in self._inputs
        ]
        with_values = {
            *get_jc_idxs_with_updatable_var_vals(self.jit_cache),
            *get_jc_idxs_with_updatable_launch_dims(self.jit_cache),
        }
        self._with_values = [self._steps[j] for j in sorted(with_values)]
        found = [v for step in self._with_values for v in _variables(step.runner)]
        self._variables = list(dict.fromkeys(found))

    # *** building ***

    def _build(self, var_vals: dict[Any, int]) -> None:
        self._gpu.activate()
        self._active = self._gpu
        self._graph = self.graph_create()
        weakref.finalize(self, self._gpu.release, partial(bindings().cuGraphDestroy, self._graph))
        dependencies = Dependencies()
        for step, item in zip(self._steps, self.jit_cache, strict=True):
            after = [self._steps[k].node for k in dependencies.add(item.accesses())]
            self._activate(step.gpu)
            arguments = step.arguments
            if arguments is None:
                step.params = self._copy_params(step)
                step.node = self._add_copy_node(after, step)
                continue
            grid, block = self._prepare(step, arguments, var_vals)
            step.params = self.build_kernel_node_params(
                step.runner.program, _at_least_one(grid), block, arguments.pointer
            )
            step.params.func = step.function = self._function(step)
            step.params.sharedMemBytes = step.shared_bytes
            step.node = self.graph_add_kernel_node(self._graph, after, step.params)
        self._activate(self._gpu)
        self._exec = self.graph_instantiate(self._graph)
        programs = [getattr(step.runner, "program", None) for step in self._steps]
        weakref.finalize(self, _destroy_executable, self._gpu, self._exec, programs)
        for step in self._steps:
            if step.is_kernel:
                self._enable(step, min(_launch_dims(step.runner, var_vals)[0]) > 0)

    def _activate(self, gpu: GPU) -> None:
        """Make a GPU the current one, if another one of the graph is."""
        if gpu is not self._active:
            gpu.activate()
            self._active = gpu

    def encode_args_info(self) -> tuple[Arguments | None, ...]:
        """For each item the memory that the driver takes its arguments from; None for a copy."""
        programs = [getattr(item.prg, "program", None) for item in self.jit_cache]
        return tuple(
            program.new_arguments() if isinstance(program, CUDAProgram) else None
            for program in programs
        )

    def graph_create(self) -> Any:
        """A new graph of the driver's, without nodes."""
        return check(bindings().cuGraphCreate(0), "a new graph")

    def build_kernel_node_params(
        self,
        prg: CUDAProgram,
        global_size: Sequence[int],
        local_size: Sequence[int],
        c_kernel_config: int,
    ) -> Any:
        """The driver's description of a launch; `c_kernel_config` is `Arguments.pointer`."""
        params = bindings().CUDA_KERNEL_NODE_PARAMS()
        params.func = prg.function([])
        params.kernelParams = c_kernel_config
        params.sharedMemBytes = 0
        self.set_kernel_node_launch_dims(params, global_size, local_size)
        return params

    def graph_add_kernel_node(
        self, graph: Any, c_deps: Sequence[Any] | None, c_node_params: Any
    ) -> Any:
        """A new node of `graph` that runs after the nodes `c_deps`, if there are any."""
        deps = list(c_deps or ())
        added = bindings().cuGraphAddKernelNode(graph, deps, len(deps), c_node_params)
        return check(added, "a kernel's node")

    def graph_instantiate(self, graph: Any) -> Any:
        """The executable form of `graph`."""
        return check(bindings().cuGraphInstantiate(graph, 0), "making a graph executable")

    def set_kernel_node_launch_dims(
        self, node: Any, global_size: Sequence[int], local_size: Sequence[int]
    ) -> None:
        """Puts a launch's sizes into its description: blocks, and threads of a block."""
        node.gridDimX, node.gridDimY, node.gridDimZ = global_size
        node.blockDimX, node.blockDimY, node.blockDimZ = local_size

    def _copy_params(self, step: _Step) -> Any:
        driver = bindings()
        dest, src = step.addresses
        params = driver.CUDA_MEMCPY3D()
        params.srcMemoryType = params.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        params.dstDevice, params.srcDevice = driver.CUdeviceptr(dest), driver.CUdeviceptr(src)
        params.WidthInBytes = params.srcPitch = params.dstPitch = step.nbytes
        params.srcHeight = params.dstHeight = params.Height = params.Depth = 1
        return params

    def _add_copy_node(self, after: list[Any], step: _Step) -> Any:
        args = (self._graph, after, len(after), step.params, step.gpu.context)
        added = bindings().cuGraphAddMemcpyNode(*args)
        return check(added, "a copy's node")

    def _function(self, step: _Step) -> Any:
        return step.runner.program.function(step.addresses, step.shared_bytes)

    def _prepare(
        self, step: _Step, arguments: Arguments, var_vals: dict[Any, int]
    ) -> tuple[list[int], list[int]]:
        """Fill in the arguments; the launch's sizes."""
        values = step.values(var_vals)
        program = step.runner.program
        program.check_arguments(len(step.addresses), len(values))
        grid, block = _launch_dims(step.runner, var_vals)
        program.check_launch(grid, block)
        arguments.fill(step.addresses, values)
        return grid, block

    # *** replaying ***

    def _values(self, input_rawbuffers: Sequence[Buffer], var_vals: dict[Any, int]) -> list[int]:
        values: list[int] = []
        for number in self._inputs:
            memory = input_rawbuffers[number]._buf
            values.append(0 if memory is None else memory.address)
        for variable in self._variables:
            values.append(variable.infer(var_vals))
        return values

    def _update(self, values: list[int], var_vals: dict[Any, int]) -> None:
        """Set the graph to the addresses and values of a replay."""
        last, self._last = self._last, None
        changed: dict[_Step, None] = {}
        for k, uses in enumerate(self._uses):
            if last is None or last[k] != values[k]:
                for step, i in uses:
                    step.addresses[i] = values[k]
                    changed[step] = None
        n = len(self._uses)
        if self._with_values and (last is None or last[n:] != values[n:]):
            for step in self._with_values:
                changed.pop(step, None)
                self._set_values(step, var_vals)
        for step in changed:
            self._set_addresses(step)
        self._last = values

    def _set_values(self, step: _Step, var_vals: dict[Any, int]) -> None:
        """Set a kernel's node to these values, and to the step's addresses."""
        self._activate(step.gpu)
        assert step.arguments is not None, "a copy has no variables"
        grid, block = self._prepare(step, step.arguments, var_vals)
        self.set_kernel_node_launch_dims(step.params, _at_least_one(grid), block)
        self._set_kernel(step)
        self._enable(step, min(grid) > 0)

    def _set_addresses(self, step: _Step) -> None:
        """Set a node to the step's addresses."""
        self._activate(step.gpu)
        if step.arguments is not None:
            step.arguments.fill_addresses(step.addresses)
            self._set_kernel(step)
            return
        step.params = self._copy_params(step)
        args = (self._exec, step.node, step.params, step.gpu.context)
        check(bindings().cuGraphExecMemcpyNodeSetParams(*args), "changing a copy in a graph")

    def _set_kernel(self, step: _Step) -> None:
        function = self._function(step)
        if function is not step.function:
            step.params.func = step.function = function
        self.graph_exec_kernel_node_set_params(self._exec, step.node, step.params)

    def _enable(self, step: _Step, enabled: bool) -> None:
        """Enable or disable a node: the driver has no launch of zero blocks."""
        if enabled != step.is_enabled:
            args = (self._exec, step.node, int(enabled))
            check(bindings().cuGraphNodeSetEnabled(*args), "switching a node of a graph")
            step.is_enabled = enabled

    def graph_exec_kernel_node_set_params(self, *args: Any) -> Any:
        """Changes a launch in the executable graph: (executable, node, description)."""
        result = bindings().cuGraphExecKernelNodeSetParams(*args)
        return check(result, "changing a kernel in a graph")

    def graph_launch(self, *args: Any, wait: bool = False) -> float | None:
        """Queues a run of the graph: (executable, stream). Gives the seconds it took if `wait`."""
        timer = Timer(self._gpu) if wait else None
        check(bindings().cuGraphLaunch(*args), self.name)
        return timer.seconds() if timer is not None else None

    def replay(
        self, input_rawbuffers: Sequence[Buffer], var_vals: dict[Any, int], wait: bool = False
    ) -> float | None:
        """Queues all items, and gives the seconds they took if `wait`."""
        wait = wait or config().DEBUG >= 2
        if self.inside:
            raise self.reentered()
        self.inside = True
        try:
            for other in self._others:
                wait_for(self._gpu, other)
            self._gpu.activate()
            self._active = self._gpu
            values = self._values(input_rawbuffers, var_vals)
            if values != self._last:
                self._update(values, var_vals)
                self._activate(self._gpu)
            seconds = self.graph_launch(self._exec, self._gpu.stream, wait=wait)
            for other in self._others:
                wait_for(other, self._gpu)
        finally:
            self.inside = False
        self.count(len(input_rawbuffers), var_vals, seconds)
        return seconds


def _destroy_executable(gpu: GPU, executable: Any, programs: list[Any]) -> None:
    """Destroy an executable graph after its last run. The argument keeps the code loaded until
    here.
    """
    del programs
    gpu.release(partial(bindings().cuGraphExecDestroy, executable))


def _at_least_one(sizes: Sequence[int]) -> list[int]:
    return [max(size, 1) for size in sizes]


def _launch_dims(
    runner: CompiledASTRunner, var_vals: dict[Any, int]
) -> tuple[list[int], list[int]]:
    """The number of blocks, and of threads of a block."""
    grid, block = runner.launch_dims(var_vals)
    return grid or [1, 1, 1], block or [1, 1, 1]


def _shared_bytes(runner: JITRunner) -> int:
    options: dict[str, int] = getattr(runner, "runtime_args", {})
    return options.get("shared_bytes", 0)


def _variables(runner: JITRunner) -> Iterable[Variable]:
    """The variables that a kernel's arguments and its launch depend on."""
    sizes = [*(getattr(runner, "global_size", None) or []), *runner.vars]
    return [v for size in sizes if not isinstance(size, int) for v in size.vars()]


def _gpu_of(item: JitItem) -> GPU:
    runner: Any = item.prg
    if isinstance(runner, CompiledASTRunner) and isinstance(runner.program, CUDAProgram):
        return runner.program.gpu
    if isinstance(runner, BufferCopy):
        dest, src = [None if buffer is None else buffer._buf for buffer in item.rawbufs]
        if isinstance(dest, CUDAMemory) and isinstance(src, CUDAMemory):
            if dest.nbytes != src.nbytes or dest.overlaps(src):
                raise GraphException(
                    f"CUDAGraph: a copy of {src.nbytes} bytes to {dest.nbytes} bytes that overlap "
                    "or are not as many"
                )
            if not 0 < src.nbytes <= _MAX_COPY_BYTES:
                raise GraphException(
                    f"CUDAGraph: a copy of {src.nbytes} bytes; the driver copies 1 to "
                    f"{_MAX_COPY_BYTES} in a graph"
                )
            if dest.gpu is not src.gpu:
                allow_access(dest.gpu, src.gpu)
            return dest.gpu
    name = runner.name or type(runner).__name__
    raise GraphException(f"CUDAGraph: {name} is neither a kernel of a GPU nor a copy between them")
