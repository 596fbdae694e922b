"""Devices: their parts, the way from a kernel to a runner, and the choice of the default.

`Device["CPU"]` opens a device at first use. A compiled device is a record of parts (`Compiled`); an
interpreted one has a function for each op (`Interpreted`). Both turn an AST into a `JITRunner`, and
every run goes through `JITRunner.exec`, where a capture can watch.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import copy_context
from copy import copy
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import ferrule.base.diskcache as diskcache
from ferrule.base.config import config
from ferrule.base.fingerprint import fingerprint, source_files
from ferrule.base.helpers import GlobalCounters, no_attribute, not_a_function
from ferrule.codegen.launch import Launch
from ferrule.device.compiler import CompileError, Compiler, NoCompiler, no_kernels, no_runtime
from ferrule.device.interpreted import Interpreted
from ferrule.device.runner import (
    BufferCopy,
    CompiledASTRunner,
    InterpretedASTRunner,
    JITRunner,
    RunnerError,
    observer,
    update_stats,
)
from ferrule.ir.buffer import Allocator, Buffer, LRUAllocator, allocators
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.lazyop import LazyOp
from ferrule.ir.statistics import KernelStatistics
from ferrule.ir.target import Target, allowed

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ferrule.codegen.linearizer import Linearizer
    from ferrule.device.autotune.tuner import Tuner
    from ferrule.device.autotune.tuning_cache import TunedSchedule
    from ferrule.device.compile_crew import Crew, Question

__all__ = [
    "Allocator",
    "Buffer",
    "BufferCopy",
    "CompileError",
    "Compiled",
    "CompiledASTRunner",
    "Compiler",
    "Device",
    "DeviceIndexError",
    "DeviceUnavailableError",
    "GlobalCounters",
    "Interpreted",
    "InterpretedASTRunner",
    "JITRunner",
    "LRUAllocator",
    "RunnerError",
    "UnknownDeviceError",
    "observer",
    "update_stats",
]

not_a_function(__name__, "a device is its name: Tensor([1.0], device='CPU'), x.to('CUDA')")


class UnknownDeviceError(ModuleNotFoundError):
    """No device has this name."""


class DeviceUnavailableError(RuntimeError):
    """The device is known, but cannot be opened here."""


class DeviceIndexError(DeviceUnavailableError):
    """There are fewer devices of this kind than the index in the name says."""


def index_of(name: str, count: int, reason: str) -> int:
    """The index in the name of one of `count` devices of a kind: 0 for CPU, 1 for CPU:1.

    Raises `DeviceIndexError` for any other name; `reason` says why there are so many.

    >>> index_of("CPU", 8, "FERRULE_CPU_DEVICES is 8"), index_of("CPU:1", 2, "there are 2")
    (0, 1)
    """
    kind, colon, rest = name.partition(":")
    if not colon:
        return 0
    if not rest.isdecimal() or rest != str(int(rest)):
        raise DeviceIndexError(
            f"there is no device {name}: after the colon comes a number, as in {kind}:1"
        )
    if int(rest) >= count:
        raise DeviceIndexError(f"there is no device {name}: {reason}")
    return int(rest)


def virtual_index(name: str) -> int:
    """The index in the name of a device that is this machine's processor, CPU or NUMPY.

    Raises `DeviceIndexError` if it is not below `FERRULE_CPU_DEVICES`.
    """
    count = config().FERRULE_CPU_DEVICES
    return index_of(name, count, f"the setting FERRULE_CPU_DEVICES is {count}")


# *** which device ***

# An edge upward (docs/layout.md, Layers): devices are loaded by name, at first use.
_TABLE = {
    "CPU": "ferrule.runtime.cpu:device",
    "NUMPY": "ferrule.runtime.numpy:device",
    "CUDA": "ferrule.runtime.cuda:device",
    "CL": "ferrule.runtime.opencl:device",
}
# The function that runs in a process for trial runs of kernels is loaded by name, too,
_TRIAL_WORKER = "ferrule.device.autotune.worker:serve"
# and the module that runs in processes which make kernels,
_COMPILE_WORKER = "ferrule.device.compile_worker"
# and so are names that are documented in this module.
_DOCUMENTED_HERE = {"CPUProgram": "ferrule.runtime.cpu:CPUProgram"}
_ENTRY_POINTS = "ferrule.devices"


@final
class _Devices:
    """All devices by name; see `Device`."""

    def __init__(self) -> None:
        self._opened: dict[str, Compiled | Interpreted] = {}
        self._canonical: dict[str, str] = {}
        self._registered: dict[str, Callable[[str], Compiled | Interpreted]] = {}
        self.defaults: dict[str | None, str] = {}
        """The default devices that were looked up before, by `FERRULE_DEVICE` (None: not set)."""

    def __getitem__(self, name: str) -> Compiled | Interpreted:
        """The device called `name`, opened at first use.

        Raises `UnknownDeviceError` (a `ModuleNotFoundError`) for a name that is not known, and
        `DeviceUnavailableError` where the device cannot be opened on this machine.
        """
        device = self._opened.get(name)
        return self._open(self.canonicalize(name)) if device is None else device

    def canonicalize(self, name: str | None) -> str:
        """The canonical spelling of a device's name; None is the default device.

        >>> Device.canonicalize("numpy:0"), Device.canonicalize("disk:/tmp/x")
        ('NUMPY', 'DISK:/tmp/x')
        """
        if name is None:
            return self.DEFAULT
        known = self._canonical.get(name)
        if known is None:
            if not isinstance(name, str):
                raise TypeError(f"{name!r} is no device; pass its name, such as 'CPU', or None")
            kind, colon, rest = name.partition(":")
            known = kind.upper() + (colon + rest if rest not in ("", "0") else "")
            self._canonical[name] = known
        return known

    def register(self, name: str, opener: Callable[[str], Compiled | Interpreted]) -> None:
        """Make a device known in this process: `opener(name)` opens it, at first use.

        An installed package makes its devices known in all processes, by entry points of the group
        `ferrule.devices`. Raises `ValueError` for the name of a device of ferrule itself.
        """
        if name.upper() in _TABLE:
            raise ValueError(f"{name!r} is a device of ferrule; register yours by another name")
        self._registered[name.upper()] = opener

    def registered(self, name: str) -> Callable[[str], Compiled | Interpreted] | None:
        """The opener of a device that was registered in this process; None for all others."""
        return self._registered.get(self.canonicalize(name).partition(":")[0])

    def names(self) -> list[str]:
        """The known devices, whether they can be opened here or not."""
        return list(self._loaders())

    def _loaders(self) -> dict[str, Callable[[], Callable[[str], Compiled | Interpreted]]]:
        """A loader of the opener of each known device."""
        # Not needed for our own devices, and slow to import.
        from importlib.metadata import entry_points

        others = {point.name.upper(): point.load for point in entry_points(group=_ENTRY_POINTS)}
        return others | self._here()

    def _here(self) -> dict[str, Callable[[], Callable[[str], Compiled | Interpreted]]]:
        """The loaders of devices that are known without a look at installed packages."""
        registered = {name: partial(_itself, opener) for name, opener in self._registered.items()}
        return registered | _own_loaders()

    def _open(self, name: str) -> Compiled | Interpreted:
        if name in self._opened:
            return self._opened[name]
        kind = name.partition(":")[0]
        loaders = self._here()
        if kind not in loaders:
            loaders = self._loaders()
        if kind not in loaders:
            is_type = isinstance(getattr(dtypes, name.lower(), None), DType)
            hint = f"; x.cast({name.lower()!r}) converts to that type" if is_type else ""
            raise UnknownDeviceError(
                f"no device is called {name!r}; the known devices are {', '.join(sorted(loaders))}"
                f"{hint}"
            )
        try:
            device: Compiled | Interpreted = loaders[kind]()(name)
        except (ImportError, OSError) as error:
            raise DeviceUnavailableError(f"device {name} cannot be opened: {error}") from error
        # Several threads may open one at once: all take that of the first.
        opened = self._opened.setdefault(name, device)
        allocators[name] = opened.allocator
        if opened is device and config().DEBUG >= 1:
            print(f"opened device {name}")
        return opened

    @property
    def DEFAULT(self) -> str:
        """The device of tensors for which none is named.

        It is the one assigned here, else `FERRULE_DEVICE`, else the first of CPU and NUMPY that
        opens.
        """
        configured = config().FERRULE_DEVICE
        default = self.defaults.get(configured)
        if default is None:
            default = self._first_that_opens() if configured is None else self.known(configured)
            self.defaults[configured] = default
        return default

    @DEFAULT.setter
    def DEFAULT(self, name: str) -> None:
        self.defaults[config().FERRULE_DEVICE] = self.known(name)

    def known(self, name: str) -> str:
        """The canonical spelling of a device's name; opens the device.

        Raises `UnknownDeviceError` and `DeviceUnavailableError` as `Device[name]` does.
        """
        canonical = self.canonicalize(name)
        self._open(canonical)
        return canonical

    def _first_that_opens(self) -> str:
        reasons = []
        for name in _TABLE:
            try:
                self._open(name)
                return name
            except DeviceUnavailableError as error:
                reasons.append(str(error))
                if config().DEBUG >= 1:
                    print(error)
        raise DeviceUnavailableError("; ".join(reasons))


def _itself(opener: Callable[..., Any]) -> Callable[..., Any]:
    return opener


def _own_loaders() -> dict[str, Callable[[], Any]]:
    return {name: _loader(path) for name, path in _TABLE.items()}


def _loader(path: str) -> Callable[[], Any]:
    """A function that imports `module:attribute`."""

    def load() -> Any:
        module, _, attribute = path.partition(":")
        return getattr(import_module(module), attribute)

    return load


def __getattr__(name: str) -> Any:
    if name in _DOCUMENTED_HERE:
        return _loader(_DOCUMENTED_HERE[name])()
    raise no_attribute(__name__, name, __all__)


def _open_allocator(name: str) -> Allocator:
    return Device[name].allocator


Device = _Devices()
allocators.opener = _open_allocator


# *** compiled devices ***


# The code that decides the program of a kernel, besides its AST, its target and its compiler.
_CODEGEN = (
    "base/records",
    "ir/dtype",
    "ir/speeds",
    "ir/target",
    "ir/fits",
    "ir/expr",
    "base/enums",
    "base/interning",
    "ir/shape",
    "ir/op_table",
    "ir/lazyop",
    "ir/statistics",
    "codegen",
    "renderer",
)
_KERNEL_TABLE = "kernel-2"


@cache
def codegen_fingerprint() -> str:
    """A digest of the code that turns an AST into source; the disk cache must not outlive it."""
    return fingerprint(codegen_files())


def codegen_files() -> list[Path]:
    """The files of the code that turns an AST into source."""
    return source_files(_CODEGEN)


@cache
def _crew() -> Crew:
    """The processes that make kernels for this one."""
    from ferrule.device.compile_crew import Crew

    return Crew(_COMPILE_WORKER)


class Compiled:
    """A device that runs compiled kernels: an allocator, a renderer, a compiler, a program loader.

    `runtime(name, lib)` gives a program to be called as `program(*handles, vals=(), wait=False)`;
    `graph` is None, or called as `graph(jit_cache, input_rawbuffers, var_vals)`, and `loop` is None
    or called as `loop(steps, condition)`, which gives None or what runs these `LoopStep`s;
    `row_function` is None, or gives the program of a function of rows by its name. A device whose
    renderer, compiler and runtime are None only holds memory: tensors can be copied there and back.

    `twin` is None, or a device that runs the same programs: then kernels are made for that one, and
    both run them.
    """

    tuned: ClassVar[int] = 0
    """The number of times that a kernel got another program, on any device."""

    def __init__(
        self,
        device: str,
        allocator: Allocator,
        renderer: Any,
        compiler: Compiler | None,
        runtime: Callable[[str, bytes], Any] | None,
        graph: Callable[..., Any] | None = None,
        loop: Callable[..., Any] | None = None,
        row_function: Callable[[str], Any] | None = None,
        twin: Compiled | None = None,
    ) -> None:
        self.device = device
        self.allocator = allocator
        self.renderer = renderer
        self.compiler = NoCompiler(device) if compiler is None else compiler
        self.runtime = no_runtime(device) if runtime is None else runtime
        self.graph = graph
        self.loop = loop
        self.row_function = row_function
        self.twin = twin
        # Kernels differ where products may be rounded to tf32.
        self._runners_by: defaultdict[bool, dict[LazyOp, CompiledASTRunner]] = defaultdict(dict)
        self._winners_by: defaultdict[bool, dict[LazyOp, TunedSchedule | None]] = defaultdict(dict)

    @property
    def _runners(self) -> dict[LazyOp, CompiledASTRunner]:
        return self._runners_by[bool(config().ALLOW_TF32) and self.linearizer_opts.allows_tf32]

    @property
    def _winners(self) -> dict[LazyOp, TunedSchedule | None]:
        return self._winners_by[bool(config().ALLOW_TF32) and self.linearizer_opts.allows_tf32]

    @property
    def linearizer_opts(self) -> Target:
        """The target of code generation for the device, by the settings in force.

        Raises `CompileError` for a device without a renderer.
        """
        if self.renderer is None:
            raise no_kernels(self.device, "renderer")
        target: Target = self.renderer.target
        return allowed(target)

    def synchronize(self) -> None:
        """Wait for all work queued on the device; a device without a queue need not define it."""

    def get_linearizer(self, ast: LazyOp, constants: Set[int] = frozenset()) -> Linearizer:
        """A handle on the kernel of `ast`, its schedule chosen for this device: one that a search
        found, or else the heuristic's. Copies of the buffers `constants` will be made beforehand.
        """
        # Imported here: a process that finds its kernels in the disk cache needs no code
        # generation.
        from ferrule.codegen.linearizer import Linearizer

        if config().BEAM:
            self._search([ast])
        winner = self.winner(ast)
        if winner is not None:
            # An earlier process stored it: no fault in it may raise here.
            try:
                return Linearizer(ast, self.linearizer_opts, winner.opts)
            except Exception as error:
                self._distrust(ast, error)
        return Linearizer(ast, self.linearizer_opts, constants=constants)

    def _distrust(self, ast: LazyOp, error: Exception) -> None:
        """Forget a winner that cannot be applied."""
        from ferrule.device.autotune.tuning_cache import TuningWarning

        self._winners[ast] = None
        text = f"a tuned schedule is not used: {type(error).__name__}: {error}"
        warnings.warn(text, TuningWarning, stacklevel=2)

    def winner(self, ast: LazyOp) -> TunedSchedule | None:
        """The result of a search for the kernel's schedule, of this process or an earlier one.

        None if there was no search.
        """
        if self.twin is not None:
            return self.twin.winner(ast)
        if ast not in self._winners and self.compiler.cachekey is not None:
            from ferrule.device.autotune import tuning_cache

            key = self.cache_key(ast)
            self._winners.update((ast, found) for found in tuning_cache.load([key]).values())
        return self._winners.get(ast)

    def _search(self, asts: Sequence[LazyOp]) -> None:
        """Search for the schedules of kernels for which there was no search so far."""
        if all(self._winners.get(ast) is not None for ast in asts):
            return
        from ferrule.device.autotune import tuner

        with tuner.search_lock, self.tuner() as search:
            for ast in asts:
                if self._winners.get(ast) is not None:
                    continue
                # A runner may be older than the schedule that another process found.
                self._runners.pop(ast, None)
                if self.winner(ast) is None:
                    found = search.tune(ast, config().BEAM_SECONDS, config().BEAM)
                    self.adopt(ast, found)

    def tuner(self) -> Tuner:
        """A searcher for schedules of this device's kernels, to be used in a `with` block."""
        from ferrule.device.autotune.tuner import Tuner

        opener = Device.registered(self.device)
        return Tuner(self.device, self.renderer, _TRIAL_WORKER, opener)

    def adopt(self, ast: LazyOp, winner: TunedSchedule) -> None:
        """Makes the result of a search the schedule of a kernel, now and in later processes."""
        if self.twin is not None:
            self.twin.adopt(ast, winner)
            return
        before = self.winner(ast)
        if winner.after == 0 and before is not None:
            return
        self._winners[ast] = winner
        if self.compiler.cachekey is not None and winner.after > 0:
            from ferrule.device.autotune import tuning_cache

            tuning_cache.store(self.cache_key(ast), winner)
        if winner.gained or (before is not None and before.gained):
            Compiled.tuned += 1
            from ferrule.codegen.linearizer import Linearizer

            k = Linearizer(ast, self.linearizer_opts, winner.opts)
            self._remember(ast, self.to_program(k))

    def to_program(self, k: Linearizer) -> CompiledASTRunner:
        """Linearizes, renders, compiles and loads a kernel."""
        runner = self._without_program(k)
        return self._with_program(runner, self.compiler.compile_cached(runner.prg))

    def _without_program(self, k: Linearizer) -> CompiledASTRunner:
        """The runner of a kernel that is yet to be compiled."""
        k.linearize()
        source: str = self.renderer.render(k.name, k.uops)
        _show_kernel(k, source)
        return _runner_of(k.ast, k.name, source, k.launch)

    def _with_program(self, runner: CompiledASTRunner, lib: bytes) -> CompiledASTRunner:
        self.load(runner, lib)
        if config().DEBUG >= 7:
            print(self.compiler.disassemble(lib))
        return runner

    def get_runner(self, ast: LazyOp) -> CompiledASTRunner:
        """The runner of `ast`, made once.

        Across processes its program comes from the disk cache.
        """
        if self.twin is not None:
            return self._shared([ast])[ast]
        if config().BEAM:
            self._search([ast])
        runner = self._runners.get(ast)
        if runner is None:
            self._take_from_cache([ast])
            runner = self._runners.get(ast) or self._compile(ast)
        return runner

    def prepare(self, asts: Sequence[LazyOp]) -> Mapping[LazyOp, CompiledASTRunner]:
        """Makes the runners of all `asts` that have none yet, and gives those of all kernels.

        Worker processes make some of them, if there are many. Else one is compiled while the next
        one is lowered.
        """
        if self.twin is not None:
            return self._shared(asts)
        if config().BEAM:
            self._search(asts)
        known = self._runners
        missing = [ast for ast in asts if ast not in known]
        if missing:
            self._make(list(dict.fromkeys(missing)))
        return known

    def _shared(self, asts: Sequence[LazyOp]) -> Mapping[LazyOp, CompiledASTRunner]:
        """Runners of the twin's programs for this device; its searches replace programs."""
        assert self.twin is not None
        made, known = self.twin.prepare(asts), self._runners
        for ast in asts:
            runner = known.get(ast)
            if runner is None or runner.program is not made[ast].program:
                known[ast] = copy(made[ast])
                known[ast].device = self.device
        return known

    def _make(self, asts: Sequence[LazyOp]) -> None:
        self._take_from_cache(asts)
        missing = [ast for ast in asts if ast not in self._runners]
        if len(missing) < 2:
            for ast in missing:
                self.get_runner(ast)
        elif not self._make_with_workers(missing):
            self._make_with_threads(missing)

    def _make_with_workers(self, asts: Sequence[LazyOp]) -> bool:
        """Make the runners of kernels in several processes; False, with nothing done, if that gains
        nothing.
        """
        if not self.compiler.is_portable or config().DEBUG >= 3:
            return False
        # The largest first, so that none has long to wait for the others' last ones.
        asts = sorted(asts, key=lambda ast: len(ast.toposort()), reverse=True)
        found = _crew().share(
            len(asts), self._questions(asts), lambda number: self._compile(asts[number])
        )
        if found is None:
            return False
        for number, entry in found.items():
            ast = asts[number]
            stored = _from_entry(ast, entry)
            if stored is None:
                self._compile(ast)
            else:
                self.load(*stored)
                self._remember(ast, stored[0])
        return True

    def _questions(self, asts: Sequence[LazyOp]) -> Callable[[int], Question]:
        """The question for a worker by the kernel's number."""
        from ferrule.device.compile_crew import Question, tools_of

        tools = tools_of(self.renderer, self.compiler, self.linearizer_opts)
        winners = [self.winner(ast) for ast in asts]

        def question(number: int) -> Question:
            winner = winners[number]
            return Question.of(tools, asts[number], None if winner is None else winner.opts)

        return question

    def _make_with_threads(self, missing: Sequence[LazyOp]) -> None:
        # Nothing else of a kernel is kept until it is compiled: its code is many objects.
        started: list[tuple[LazyOp, CompiledASTRunner, Future[bytes]]] = []
        with self.compiling() as begin:
            for ast in missing:
                runner = self._without_program(self.get_linearizer(ast))
                started.append((ast, runner, begin(runner.prg)))
        for ast, runner, lib in started:
            self._remember(ast, self._with_program(runner, lib.result()))

    @contextmanager
    def compiling(self) -> Iterator[Callable[[str], Future[bytes]]]:
        """A block with a function that begins to compile a source on another thread.

        That thread has the settings of this one. The end of the block waits for all of them.
        """
        from concurrent.futures import ThreadPoolExecutor  # slow to import

        def begin(source: str) -> Future[bytes]:
            return threads.submit(copy_context().run, self.compiler.compile_cached, source)

        with ThreadPoolExecutor(config().FERRULE_NUM_THREADS, "ferrule-compile") as threads:
            yield begin

    def cache_key(self, ast: LazyOp) -> str:
        """The key of a kernel's program in the disk cache: all that decides the program."""
        parts = (ast.key, self.linearizer_opts.key, self.compiler.cachekey)
        return f"{parts} {codegen_fingerprint()}"

    def _take_from_cache(self, asts: Sequence[LazyOp]) -> None:
        """Load the runners that the disk cache has; none if their sources are to be shown."""
        if self.compiler.cachekey is None or config().DEBUG >= 3 or not asts:
            return
        keys = {self.cache_key(ast): ast for ast in asts}
        for key, entry in diskcache.get_many(_KERNEL_TABLE, list(keys)).items():
            stored = _from_entry(keys[key], entry)
            if stored is not None:
                self.load(*stored)
                self._runners[keys[key]] = stored[0]

    def load(self, runner: CompiledASTRunner, lib: bytes) -> None:
        """Give a runner its program."""
        runner.device = self.device
        runner.lib = lib
        runner.program = self.runtime(runner.name, lib)

    def _compile(self, ast: LazyOp) -> CompiledASTRunner:
        return self._remember(ast, self.to_program(self.get_linearizer(ast)))

    def _remember(self, ast: LazyOp, runner: CompiledASTRunner) -> CompiledASTRunner:
        """Keep a runner, and its program on disk."""
        self._runners[ast] = runner
        if self.compiler.cachekey is not None:
            diskcache.put(_KERNEL_TABLE, self.cache_key(ast), _entry(runner))
        return runner


def _runner_of(
    ast: LazyOp,
    name: str,
    source: str,
    launch: Launch | None,
    facts: KernelStatistics | None = None,
) -> CompiledASTRunner:
    """A runner without a program; `launch` is None for devices without blocks of threads."""
    if launch is None:
        return CompiledASTRunner(ast, name, source, facts=facts)
    asked = {"shared_bytes": launch.shared_bytes} if launch.shared_bytes else None
    return CompiledASTRunner(ast, name, source, [launch.blocks], [launch.threads], asked, facts)


def entry_of(k: Linearizer, renderer: Any, compiler: Compiler) -> bytes:
    """The disk cache's entry of a kernel, which is linearized, rendered and compiled."""
    k.linearize()
    runner = _runner_of(k.ast, k.name, renderer.render(k.name, k.uops), k.launch)
    runner.lib = compiler.compile(runner.prg)
    return _entry(runner)


def _entry(runner: CompiledASTRunner) -> bytes:
    """The disk cache's entry of a runner: its name, its launch, its facts and its program.

    The launch is empty on processors, and the facts are if they are symbolic.
    """
    launch = ""
    if runner.global_size is not None and runner.local_size is not None:
        (threads,) = [size for size in runner.local_size if isinstance(size, int)]
        shared_bytes = runner.runtime_args.get("shared_bytes", 0)
        launch = Launch(runner.global_size[0], threads, shared_bytes).to_json()
    facts = "" if runner.facts is None else runner.facts.to_json()
    return b"\0".join((runner.name.encode(), launch.encode(), facts.encode(), runner.lib))


def _from_entry(ast: LazyOp, entry: bytes) -> tuple[CompiledASTRunner, bytes] | None:
    """The runner and the program of an entry of the disk cache; None if it is malformed."""
    try:
        start, text, facts_text, lib = entry.split(b"\0", 3)
        name = start.decode()
        launch = Launch.from_json(text.decode(), ast.vars()) if text else None
        facts = KernelStatistics.from_json(facts_text.decode()) if facts_text else None
    except ValueError:
        return None
    return _runner_of(ast, name, "", launch, facts), lib


def _show_kernel(k: Linearizer, source: str) -> None:
    debug = config().DEBUG
    if debug >= 3:
        print(f"{k.name}:\n{k.ast}", *k.candidates, f"opts: {k.opts}", sep="\n")
    if debug >= 5:
        print(k)
    if debug >= 6:
        print(k.program())
    if debug >= 4:
        print(source)
