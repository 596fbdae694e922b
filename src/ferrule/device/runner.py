"""Runners, which run on buffers: those of kernels and of copies, and the statistics of runs.

Every run goes through `JITRunner.exec`, where a capture can watch (`observer`). `ferrule.device`
re-exports all public names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Final, TypeAlias, final

from ferrule.base.config import config
from ferrule.base.helpers import GlobalCounters, ansi_length, colored
from ferrule.base.records import dataclass
from ferrule.base.threadstate import Slot, this_thread
from ferrule.ir.buffer import Buffer, allocators, readable_bytes
from ferrule.ir.expr import Expr, Variable, as_expr, sint
from ferrule.ir.lazyop import LazyOp
from ferrule.ir.statistics import KernelStatistics


class RunnerError(ValueError):
    """A runner was given buffers or values that do not fit its kernel."""


# *** statistics of runs ***


def _stats_line(
    title: str, colour: str | None, buf_count: int, ops: int, mem: int, et: float | None
) -> str:
    """One line for a run; see `update_stats`."""
    padding = " " * max(0, 38 - ansi_length(title))
    count = f"{GlobalCounters.kernel_count:4d}"
    number = colored(count, colour) if colour else count
    used = f"mem {GlobalCounters.mem_used / 1e9:5.2f} GB"
    line = f"{number} {title}{padding} arg {buf_count:3d} {used}"
    if et is None:
        return line
    milliseconds = f"{et * 1e3:9.2f}ms"
    shown = colored(milliseconds, "yellow") if et > 0.01 else milliseconds
    rate = f"({ops / et / 1e9:8.2f} GFLOPS, {mem / et / 1e9:7.2f} GB/s)" if et > 0 else ""
    return f"{line} tm {shown}/{GlobalCounters.time_sum_s * 1e3:9.2f}ms {rate}"


def update_stats(
    name: str,
    op_estimate: sint,
    mem_estimate: sint,
    var_vals: dict[Variable, int] | None,
    et: float | None,
    buf_count: int,
    jit: bool = False,
    num_kernels: int = 1,
    lra: dict[str, Any] | None = None,
    device: str = "",
    first_run: bool = False,
) -> None:
    """Add a run to `GlobalCounters`, and print a line for it if `DEBUG` is at least 2.

    The line: device, running count (green: first run, magenta: replay), name, number of buffers,
    memory in use. If the time `et` is known: the time of this run and of all, GFLOPS and GB/s.
    `lra` holds launch sizes, if any.
    """
    values: Mapping[Any, int] = var_vals or {}
    ops = op_estimate.infer(values) if isinstance(op_estimate, Expr) else op_estimate
    mem = mem_estimate.infer(values) if isinstance(mem_estimate, Expr) else mem_estimate
    GlobalCounters.add(num_kernels, ops, mem)
    if et is not None:
        GlobalCounters.time_sum_s += et
    if config().DEBUG >= 2:
        colour = "magenta" if jit else "green" if first_run else None
        sizes = "" if not lra else f" {lra.get('global_size')} {lra.get('local_size')}"
        line = _stats_line(f"{name}{sizes}", colour, buf_count, ops, mem, et)
        print(f"*** {device:7s} {line}")


# *** runners ***

Observer: TypeAlias = "Callable[[JITRunner, Sequence[Buffer], dict[Variable, int]], float | None]"

# Called in place of each run in this thread, and runs it; a capture puts itself here.
observer: Slot[Observer] = Slot("observer")

# In a capture: memory made in it has a serial number above this one. Replays replace it by other
# memory, whole buffers at a time.
watched_since: Slot[int] = Slot("watched_since")


def is_divisible(buffer: Buffer) -> bool:
    """True if a kernel may be given a part of a buffer in its place.

    False for buffers made in a capture, which replays replace as a whole.
    """
    since = this_thread.state.watched_since
    return since is None or (buffer.base is buffer and buffer.serial <= since)


class JITRunner:
    """Something that runs on buffers and can be captured. A subclass defines `__call__`."""

    device: str = ""
    name: str = ""
    op_estimate: sint = 0
    mem_estimate: sint = 0
    vars: tuple[Variable, ...] = ()
    writes: frozenset[int] = frozenset({0})
    """The positions of the buffers that a run writes."""
    reads: frozenset[int] | None = None
    """The positions of the buffers that a run reads; None: all that it does not write."""
    may_raise: bool = True
    """True if a run may raise an error after it has begun, as functions of the host may."""
    n_results: int = 0
    """The number of results of a run with several; 0 for a run that is its result."""
    is_pure: bool = False
    """True if equal inputs give equal results, so that graphs with it may be equal."""
    family: Hashable = None
    """What runners have in common that differ in `integers` alone; they find other sizes from that
    of their first buffer. None: a runner is for the sizes that it was made for."""
    integers: tuple[int, ...] = ()
    """The sizes and offsets by which runners of a family differ."""

    def access(self, position: int) -> tuple[bool, bool]:
        """Two flags: True if a run reads the buffer at a position, and if it writes it."""
        writes = position in self.writes
        return (not writes if self.reads is None else position in self.reads), writes

    def with_integers(self, integers: Sequence[sint]) -> JITRunner | None:
        """The runner of the family with other integers; None if its shapes may not fit then."""
        raise NotImplementedError(f"{type(self).__name__} is of no family")

    def at(self, var_vals: Mapping[Any, int]) -> JITRunner:
        """The runner with these values of its variables in each run."""
        if self.vars:
            raise NotImplementedError(f"{type(self).__name__} does not define at")
        return self

    def sized(self, size: int) -> JITRunner:
        """The runner of a kernel for any number of elements, its only variable, with this one."""
        raise NotImplementedError(f"{type(self).__name__} is no kernel")

    def costs(self, size: int, var_vals: Mapping[Any, int]) -> tuple[int, int]:
        """The operations and the bytes of a run whose first buffer has so many elements."""
        ops, mem = as_expr(self.op_estimate), as_expr(self.mem_estimate)
        return ops.infer(var_vals), mem.infer(var_vals)

    def exec(
        self, rawbufs: Sequence[Buffer], var_vals: dict[Variable, int] | None = None
    ) -> float | None:
        """Run on `rawbufs`, outputs first, with values for the variables; a capture records it.

        Returns the seconds it took, if that was measured.
        """
        values = {} if var_vals is None else var_vals
        watching = this_thread.state.observer
        try:
            if watching is None:
                return self(rawbufs, values)
            taken: float | None = watching(self, rawbufs, values)
            return taken
        finally:
            # Counted afterwards, and after an interrupt, too: earlier looks at versions are void.
            for position in self.writes:
                if position < len(rawbufs):
                    rawbufs[position].note_write()

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Run; `wait` measures the time, `jit` marks a replay in the statistics."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")


def _values(variables: Iterable[Variable], var_vals: Mapping[Any, int]) -> tuple[int, ...]:
    return tuple([variable.infer(var_vals) for variable in variables])


_MAX_CACHED_VALUES: Final = 64
"""Values of a kernel's variables for which `_Sized` is kept. Not measured."""


@final
@dataclass(frozen=True)
class _Sized:
    """The facts that depend on the sizes of a run: its cost, and the least sizes of its buffers."""

    ops: int
    mem: int
    least_bytes: tuple[tuple[int, int], ...]


class ASTRunner(JITRunner):
    """The base of the runners of kernels, with the statistics of their AST.

    `facts` are the statistics, if they are known; None: they are found.
    """

    may_raise = False

    def __init__(
        self, ast: LazyOp | None, name: str, facts: KernelStatistics | None = None
    ) -> None:
        self.ast = ast
        self.name = name
        self.facts = KernelStatistics.of(ast) if facts is None and ast is not None else facts
        self._needed = 0
        self._least_bytes: tuple[tuple[int, int], ...] = ()
        self._sized: dict[tuple[int, ...], _Sized] = {}
        self.fixed: tuple[int, ...] = ()
        """The values of the AST's variables, if they are the same in each run; `vars` is empty."""
        self.is_general = False
        """True if the kernel is for any length, and slower than one for the length in `fixed`."""
        if self.facts is not None:
            self.op_estimate = self.facts.op_estimate
            self.mem_estimate = self.facts.mem_estimate
            self.vars = self.facts.vars
            self.writes = self.facts.writes
            self.reads = self.facts.reads
            self._needed = 1 + max(self.writes | self.reads)
            self._least_bytes = self.facts.least_bytes

    def at(self, var_vals: Mapping[Any, int]) -> ASTRunner:
        """The runner of the same kernel with these values of its variables in each run."""
        if not self.vars:
            return self
        runner = copy(self)
        runner.fixed = _values(self.vars, var_vals)
        sized = self._sized_for(var_vals)
        runner.op_estimate, runner.mem_estimate = sized.ops, sized.mem
        runner._least_bytes = (*self._least_bytes, *sized.least_bytes)
        runner.vars = ()
        runner.is_general = True
        return runner

    def sized(self, size: int) -> ASTRunner:
        """The runner of a kernel for any number of elements, its only variable, with this one."""
        runner = self.at(dict.fromkeys(self.vars, size))
        runner.is_general = False
        return runner

    def _at(self, values: tuple[int, ...]) -> _Sized | None:
        """The facts for these values of the variables; None without variables.

        They are cached, since finding them takes as long as launching the kernel.
        """
        if not values or self.facts is None:
            return None
        found = self._sized.get(values)
        if found is None:
            if len(self._sized) >= _MAX_CACHED_VALUES:
                self._sized.clear()
            found = self._sized[values] = self._sized_for(dict(zip(self.vars, values, strict=True)))
        return found

    def _sized_for(self, var_vals: Mapping[Any, int]) -> _Sized:
        assert self.facts is not None
        least = [
            (position, end.infer(var_vals))
            for position, end, elements in self.facts.least_symbolic
            if as_expr(elements).infer(var_vals) > 0
        ]
        ops, mem = as_expr(self.op_estimate), as_expr(self.mem_estimate)
        return _Sized(ops.infer(var_vals), mem.infer(var_vals), tuple(least))

    def _check_buffers(self, rawbufs: Sequence[Buffer], sized: _Sized | None) -> None:
        # More buffers are as wrong as fewer: the variables' values follow them.
        if len(rawbufs) != self._needed and self._needed:
            raise RunnerError(
                f"kernel {self.name} takes {self._needed} buffers, got {len(rawbufs)}"
            )
        for position, least in self._least_bytes:
            if rawbufs[position].nbytes < least:
                raise self._too_small(rawbufs[position], position, least)
        if sized is not None:
            for position, least in sized.least_bytes:
                if rawbufs[position].nbytes < least:
                    raise self._too_small(rawbufs[position], position, least)

    def _too_small(self, buffer: Buffer, position: int, least: int) -> RunnerError:
        return RunnerError(
            f"kernel {self.name} needs {least} bytes in buffer {position}, but {buffer} has "
            f"{buffer.nbytes}; allocate it larger"
        )


class CompiledASTRunner(ASTRunner):
    """A compiled kernel. `prg` is its source, empty if the disk cache or a worker had the program.

    `global_size` and `local_size` may hold symbolic sizes; `runtime_args` go to the program at each
    call. The maker of the runner sets `device`, `lib` and `program`.
    """

    def __init__(
        self,
        ast: LazyOp | None,
        name: str,
        prg: str,
        global_size: list[sint] | None = None,
        local_size: list[sint] | None = None,
        runtime_args: dict[str, Any] | None = None,
        facts: KernelStatistics | None = None,
    ) -> None:
        super().__init__(ast, name, facts)
        self.prg = prg
        self.global_size = global_size
        self.local_size = local_size
        self.runtime_args = runtime_args or {}
        self.lib = b""
        self.program: Any = None
        self._fresh = True

    def at(self, var_vals: Mapping[Any, int]) -> ASTRunner:
        """The runner of the same kernel with these values of its variables in each run."""
        runner = super().at(var_vals)
        if runner is not self and self.global_size is not None:
            assert isinstance(runner, CompiledASTRunner)
            blocks, threads = self.launch_dims(var_vals)
            runner.global_size = None if blocks is None else [*blocks]
            runner.local_size = None if threads is None else [*threads]
        return runner

    def launch_dims(self, var_vals: Mapping[Any, int]) -> tuple[list[int] | None, list[int] | None]:
        """The global and the local size, padded to three, with the variables' values put in."""
        return _launch_size(self.global_size, var_vals), _launch_size(self.local_size, var_vals)

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Run the program.

        Raises `RunnerError` for too few or too many buffers, or one that is too small, `KeyError`
        for a missing variable, `ValueError` for a value outside its bounds.
        """
        if self.program is None:
            raise RunnerError(
                f"kernel {self.name} has no program; Device[...].to_program(k) and get_runner(ast) "
                "make runners that have one"
            )
        vals = _values(self.vars, var_vals) if self.vars else self.fixed
        sized = self._at(vals) if self.vars else None
        self._check_buffers(rawbufs, sized)
        wait = wait or config().DEBUG >= 2
        sizes = self._launch_args(var_vals) if self.global_size is not None else {}
        handles = [buffer._buf for buffer in rawbufs]
        seconds: float | None = self.program(
            *handles, vals=vals, wait=wait, **sizes, **self.runtime_args
        )
        update_stats(
            self.name,
            self.op_estimate if sized is None else sized.ops,
            self.mem_estimate if sized is None else sized.mem,
            var_vals,
            seconds,
            len(rawbufs),
            jit=jit,
            lra=sizes,
            device=self.device,
            first_run=self._fresh,
        )
        self._fresh = False
        return seconds

    def _launch_args(self, var_vals: Mapping[Any, int]) -> dict[str, list[int]]:
        sizes = zip(("global_size", "local_size"), self.launch_dims(var_vals), strict=True)
        return {name: size for name, size in sizes if size is not None}


def _launch_size(sizes: Sequence[sint] | None, var_vals: Mapping[Any, int]) -> list[int] | None:
    if sizes is None:
        return None
    known = [size if isinstance(size, int) else size.infer(var_vals) for size in sizes]
    return known + [1] * (3 - len(known))


@final
class RowFunction(CompiledASTRunner):
    """A native function of each row of uint64 numbers, which `program` has.

    It writes `width` numbers for a row of `size` of them, and behind these it has `2 *
    size` of scratch memory. The program gets the number of rows, `size`, `width` and `values`.
    """

    is_pure = True

    def __init__(
        self, program: Any, name: str, device: str, rows: int, size: int, width: int, *values: int
    ) -> None:
        super().__init__(None, f"{name}_{rows}_{size}", "")
        self.program = program
        self.function = name
        self.device = device
        self.size = size
        self.width = width
        self.values = values
        self.fixed = (rows, size, width, *values)
        self.mem_estimate = 8 * rows * (size + width)

    @property
    def stride(self) -> int:
        """The numbers of a row of the result, those of scratch memory too."""
        return self.width + 2 * self.size


class InterpretedASTRunner(ASTRunner):
    """A kernel as one Python function `fxn(handles, var_vals)`."""

    def __init__(self, ast: LazyOp, fxn: Callable[..., Any]) -> None:
        super().__init__(ast, f"interpret_{ast.key[:8]}")
        self.fxn = fxn
        self._variables = self.vars

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Run the function.

        Raises `RunnerError` for too few or too many buffers, or one that is too small, `KeyError`
        for a missing variable, `ValueError` for a value outside its bounds.
        """
        numbers = _values(self.vars, var_vals) if self.vars else self.fixed
        values = dict(zip(self._variables, numbers, strict=True))
        sized = self._at(numbers) if self.vars else None
        self._check_buffers(rawbufs, sized)
        start = time.perf_counter()
        self.fxn([buffer._buf for buffer in rawbufs], values)
        seconds = time.perf_counter() - start
        update_stats(
            self.name,
            self.op_estimate if sized is None else sized.ops,
            self.mem_estimate if sized is None else sized.mem,
            var_vals,
            seconds,
            len(rawbufs),
            jit=jit,
            device=self.device,
        )
        return seconds


# *** copies ***


class BufferCopy(JITRunner):
    """Copies the second buffer into the first, from any device to any other."""

    may_raise = False
    op_estimate: sint = 0

    def __init__(self, device: str, nbytes: int, source: str) -> None:
        self.device = device
        self.name = f"copy {readable_bytes(nbytes)}, {device} <- {source}"
        self.mem_estimate = nbytes

    def __call__(
        self,
        rawbufs: Sequence[Buffer],
        var_vals: dict[Variable, int],
        wait: bool = False,
        jit: bool = False,
    ) -> float | None:
        """Copy; raises `RunnerError` if the buffers' sizes or dtypes differ."""
        if len(rawbufs) != 2:
            raise RunnerError(f"{self.name}: takes 2 buffers, got {len(rawbufs)}")
        dest, src = rawbufs
        if dest.size != src.size or dest.dtype is not src.dtype:
            raise RunnerError(f"copy of {src} to {dest}: size and dtype must agree")
        start = time.perf_counter()
        _copy(dest, src)
        seconds = time.perf_counter() - start
        update_stats(
            colored(self.name, "yellow"),
            0,
            self.mem_estimate,
            var_vals,
            seconds,
            2,
            jit=jit,
            device=self.device,
        )
        return seconds


def _copy(dest: Buffer, src: Buffer) -> None:
    """Copy the contents. The host sees none of them, so that a capture allows it."""
    if dest.size == 0:
        return
    to, origin = allocators[dest.device], allocators[src.device]
    if type(to) is type(origin) and hasattr(to, "transfer"):
        to.transfer(dest._buf, src._buf)
        return
    readable = getattr(origin, "as_buffer", None)
    if readable is not None:
        dest.copyin(readable(src._buf))
        return
    writable = getattr(to, "as_buffer", None)
    if writable is not None:
        origin.copyout(writable(dest._buf).cast("B"), src._buf)
        return
    contents = memoryview(bytearray(src.nbytes))
    origin.copyout(contents, src._buf)
    dest.copyin(contents)
