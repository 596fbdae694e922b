"""Devices by name, the parts of a compiled device, runners, statistics, interpreted kernels."""

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gpus import TENSOR
from tests.kernels import matmul, store

import ferrule.device
import ferrule.runtime.numpy as numpy_device
from ferrule.base import diskcache
from ferrule.base.config import Context, config
from ferrule.codegen.intrinsics import MMA_TF32
from ferrule.device import (
    Allocator,
    Compiled,
    CompiledASTRunner,
    CompileError,
    Compiler,
    Device,
    GlobalCounters,
    Interpreted,
    InterpretedASTRunner,
    JITRunner,
    LRUAllocator,
    codegen_fingerprint,
    observer,
    update_stats,
)
from ferrule.device.autotune.tuning_cache import TunedSchedule
from ferrule.device.runner import BufferCopy, RunnerError
from ferrule.dtype import dtypes
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Variable
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import View
from ferrule.ir.target import Target, detect_cpu
from ferrule.ops import BinaryOps, BufferOps, LazyOp, MemBuffer, OpError, ReduceOps, UnaryOps
from ferrule.runtime.cpu import CPUProgram
from ferrule.tensor import Tensor

FLOAT = dtypes.float32


def load(idx: int, *shape: int) -> LazyOp:
    st = ShapeTracker.from_shape(shape)
    return LazyOp(BufferOps.LOAD, (), MemBuffer(idx, dtypes.float32, st))


def add(size: int = 4) -> LazyOp:
    return LazyOp(BinaryOps.ADD, (load(1, size), load(2, size)))


def buffers(*arrays: Any) -> list[Buffer]:
    return [Buffer.fromCPU("NUMPY", np.array(array, np.float32)) for array in arrays]


# *** names ***


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("cpu", "CPU"),
        ("Numpy:0", "NUMPY"),
        ("cuda:1", "CUDA:1"),
        ("disk:/dev/shm/test", "DISK:/dev/shm/test"),
        ("disk:000.txt", "DISK:000.txt"),
        ("disk:a:0", "DISK:a:0"),
        ("gpu:00", "GPU:00"),
    ],
)
def test_canonicalize(name: str, canonical: str) -> None:
    assert Device.canonicalize(name) == canonical
    assert Device.canonicalize(canonical) == canonical


def test_one_device_under_all_its_spellings() -> None:
    assert Device["numpy"] is Device["NUMPY:0"] is Device["NUMPY"]


@pytest.fixture
def default() -> Iterator[None]:
    """Forgets which default was chosen, before and after."""
    saved = dict(Device.defaults)
    Device.defaults.clear()
    yield
    Device.defaults.clear()
    Device.defaults.update(saved)


@pytest.mark.usefixtures("default")
def test_the_default_device() -> None:
    with Context(FERRULE_DEVICE="numpy"):
        assert Device.DEFAULT == "NUMPY"
        assert Device.canonicalize(None) == "NUMPY"
        Device.DEFAULT = "cpu:0"
        assert Device.DEFAULT == "CPU"
        with Context(FERRULE_DEVICE="NUMPY"):
            assert Device.DEFAULT == "NUMPY"
    if config().FERRULE_DEVICE is None:
        assert Device.DEFAULT == "CPU"
        Device.DEFAULT = "NUMPY"
        assert Device.DEFAULT == "NUMPY"


@pytest.mark.usefixtures("default")
def test_the_next_device_is_the_default_where_the_first_does_not_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {"BROKEN": "ferrule_no_such_module:device", "NUMPY": "ferrule.runtime.numpy:device"}
    monkeypatch.setattr(ferrule.device, "_TABLE", table)
    if config().FERRULE_DEVICE is None:
        assert Device.DEFAULT == "NUMPY"


def test_devices_of_third_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "mine"

        def load(self) -> Any:
            return lambda name: Interpreted(numpy_device.NumpyAllocator(), {}, name)

    def found(group: str) -> Sequence[Point]:
        assert group == "ferrule.devices"
        return [Point()]

    monkeypatch.setattr("importlib.metadata.entry_points", found)
    assert "MINE" in Device.names()
    device = Device["mine:3"]
    assert device.device == "MINE:3"
    assert Buffer("MINE:3", 2, dtypes.float32).size == 2


def test_the_documented_names_are_here() -> None:
    assert issubclass(LRUAllocator, Allocator)
    assert issubclass(InterpretedASTRunner, JITRunner)
    assert issubclass(CompiledASTRunner, JITRunner)
    assert Interpreted.codegen is None
    assert Interpreted.graph is None
    assert Device["NUMPY"].synchronize() is None  # type: ignore[func-returns-value]
    assert ferrule.device.CPUProgram is CPUProgram
    with pytest.raises(AttributeError, match="no attribute 'Compilers'; did you mean Compiler"):
        _ = ferrule.device.Compilers


class Plain(Allocator):
    """Memory of the host."""

    def _alloc(self, size: int) -> bytearray:
        return bytearray(size)

    def copyin(self, dest: bytearray, src: memoryview) -> None:
        dest[:] = src

    def copyout(self, dest: memoryview, src: bytearray) -> None:
        dest[:] = src


def test_a_device_that_only_holds_memory() -> None:
    def opened(name: str) -> Compiled:
        return Compiled(name, Plain(), None, None, None)

    Device.register("MEMORY", opened)
    there = Tensor([1.0, 2.0]).to("MEMORY")
    assert there.tolist() == [1, 2]
    assert (there.to("NUMPY") + 1).tolist() == [2, 3]
    device = Device["MEMORY"]
    assert isinstance(device, Compiled)
    device.synchronize()
    reasons: list[Callable[[], object]] = [
        lambda: device.get_runner(add()),
        lambda: device.prepare([add()]),
        lambda: device.get_linearizer(add()),
        lambda: device.linearizer_opts,
        (there + 1).realize,
    ]
    for reason in reasons:
        with pytest.raises(CompileError, match="device MEMORY has no renderer: it holds memory"):
            reason()
    renders = Compiled("RENDERS", Plain(), Renderer(), None, None)
    with pytest.raises(CompileError, match="device RENDERS has no compiler"):
        renders.get_runner(add())
    compiles = Compiled("COMPILES", Plain(), Renderer(), Upper(), None)
    with pytest.raises(CompileError, match="device COMPILES has no runtime"):
        compiles.get_runner(add())


def test_an_op_without_a_function() -> None:
    functions = {BinaryOps.ADD: np.add, BufferOps.LOAD: np.copy}
    device = Interpreted(Plain(), functions, "SOME")
    message = "SOME has no function for BufferOps.STORE; its fxn_for_op has BinaryOps.ADD, Buffer"
    with pytest.raises(OpError, match=message):
        device.get_runner(add())


# *** a compiled device of simple parts ***


class Upper(Compiler):
    """The 'machine code' of a kernel is its source in capitals."""

    compiled: int = 0

    def compile(self, src: str) -> bytes:
        self.compiled += 1
        return src.upper().encode()


class Program:
    """Adds, whatever the source; keeps what it was called with."""

    def __init__(self, name: str, lib: bytes) -> None:
        self.name = name
        self.lib = lib
        self.calls: list[dict[str, Any]] = []

    def __call__(
        self, *bufs: Any, vals: Any = (), wait: bool = False, **sizes: Any
    ) -> float | None:
        self.calls.append({"vals": vals, "wait": wait, **sizes})
        out, *given = [buf.view(np.float32) for buf in bufs]
        out[:] = np.sum(given, axis=0)
        return 0.5 if wait else None


class Renderer:
    target: Target = detect_cpu()

    def render(self, name: str, uops: list[Any]) -> str:
        return f"kernel {name}: {len(uops)}"


class BlockRenderer:
    """For a device whose kernels are launched on blocks of threads."""

    target: Target = replace(detect_cpu(), block_threads=8, max_threads=4)
    render = Renderer.render


def simple_device(cachekey: str | None = None) -> Compiled:
    allocator = numpy_device.NumpyAllocator()
    return Compiled("SIMPLE", allocator, Renderer(), Upper(cachekey), Program)


def test_from_ast_to_program() -> None:
    device = simple_device()
    assert device.linearizer_opts is Renderer.target
    k = device.get_linearizer(add())
    runner = device.to_program(k)
    assert runner.name == k.name
    assert runner.prg == f"kernel {k.name}: {len(k.uops)}"
    assert runner.lib == runner.prg.upper().encode()
    out, a, b = buffers([0] * 4, [1, 2, 3, 4], [10, 20, 30, 40])
    assert runner.exec([out, a, b]) is None
    assert out.toCPU().tolist() == [11, 22, 33, 44]
    assert (runner.op_estimate, runner.mem_estimate, runner.device) == (4, 48, "SIMPLE")
    assert (runner.writes, runner.reads) == ({0}, {1, 2})


def test_a_runner_is_made_once_for_an_ast() -> None:
    device = simple_device()
    runner = device.get_runner(add())
    assert device.get_runner(add()) is runner
    assert device.get_runner(add(5)) is not runner
    compiler = device.compiler
    assert isinstance(compiler, Upper)
    assert compiler.compiled == 2
    device.prepare([add(), add(5), add(6), add(7)])
    assert compiler.compiled == 4
    device.prepare([add(6), add(7)])
    assert compiler.compiled == 4


def test_kernels_come_from_the_disk_cache(tmp_path: Path) -> None:
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        first = simple_device("test-1").get_runner(add())
        again = simple_device("test-1")
        runner = again.get_runner(add())
        assert (runner.name, runner.lib, runner.prg) == (first.name, first.lib, "")
        assert again.compiler.compiled == 0  # type: ignore[attr-defined]
        other = simple_device("test-2")
        other.get_runner(add())
        assert other.compiler.compiled == 1  # type: ignore[attr-defined]
        with Context(DEBUG=3):
            assert simple_device("test-1").get_runner(add()).prg == first.prg


class MatrixRenderer:
    """For a device with warps that multiply matrices."""

    target: Target = TENSOR
    render = Renderer.render


def test_where_products_may_be_rounded_kernels_are_others(tmp_path: Path) -> None:
    """In memory, on disk, and among what searches found."""
    ast = store(matmul(load(1, 1024, 1024), load(2, 1024, 1024)))
    parts = numpy_device.NumpyAllocator(), MatrixRenderer(), Upper("matrices"), Program
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        device = Compiled("MATRICES", *parts)
        exact = device.get_runner(ast)
        exact_key = device.cache_key(ast)
        device.adopt(ast, TunedSchedule(device.get_linearizer(ast).opts, 2.0, 1.0))
        with Context(ALLOW_TF32=1):
            assert device.linearizer_opts == TENSOR.with_tf32
            assert device.cache_key(ast) != exact_key
            assert device.winner(ast) is None
            rounded = device.get_runner(ast)
            assert rounded.lib != exact.lib
            assert device.get_runner(ast) is rounded
            tensorized = [o for o in device.get_linearizer(ast).opts if o.primitive == "tensorize"]
            assert [o.args[-1] for o in tensorized] == [MMA_TF32.name]
            tried = device.tuner().tune(ast, 0.0, 1)
            assert tried.opts == device.get_linearizer(ast).opts
        assert device.get_runner(ast).lib == exact.lib
        assert device.cache_key(ast) == exact_key
        for allowed, runner in ((1, rounded), (0, exact)):
            with Context(ALLOW_TF32=allowed):
                again = Compiled("MATRICES", *parts).get_runner(ast)
                assert (again.lib, again.prg) == (runner.lib, "")


def test_where_there_is_no_instruction_for_tf32_nothing_is_another() -> None:
    device = simple_device("simple")
    runner, key = device.get_runner(add()), device.cache_key(add())
    with Context(ALLOW_TF32=1):
        assert device.linearizer_opts is Renderer.target
        assert device.get_runner(add()) is runner
        assert device.cache_key(add()) == key


def _symbolic_add() -> LazyOp:
    n = Variable("n", 1, 1 << 20)
    st = ShapeTracker(View.create((n, 64), (64, 1)))
    loads = [LazyOp(BufferOps.LOAD, (), MemBuffer(i, dtypes.float32, st)) for i in (1, 2)]
    return LazyOp(BinaryOps.ADD, tuple(loads))


def test_launch_sizes_come_from_the_disk_cache_too(tmp_path: Path) -> None:
    parts = numpy_device.NumpyAllocator(), BlockRenderer(), Upper("blocks"), Program
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        for ast in (add(1 << 16), _symbolic_add()):
            first = Compiled("BLOCKS", *parts).get_runner(ast)
            assert first.prg
            runner = Compiled("BLOCKS", *parts).get_runner(ast)
            assert runner.prg == ""
            assert runner.lib == first.lib
            assert runner.global_size == first.global_size
            assert runner.local_size == first.local_size
            assert runner.launch_dims({n: 3 for n in ast.vars()})[0] is not None


@pytest.mark.parametrize(
    "entry", [b"", b"name", b"name\0lib", b"name\0no launch\0lib", b"\xff\0\0"]
)
def test_an_entry_that_is_malformed_is_not_there(
    entry: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_many(table: str, keys: Sequence[str]) -> dict[str, bytes]:
        return dict.fromkeys(keys, entry) if table == ferrule.device._KERNEL_TABLE else {}

    monkeypatch.setattr(ferrule.base.diskcache, "get_many", get_many)
    assert simple_device("malformed").get_runner(add()).prg


def test_compile_cached(tmp_path: Path) -> None:
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        for cachekey, compiled in ((None, 2), ("key", 1)):
            compiler = Upper(cachekey)
            assert compiler.compile_cached("abc") == compiler.compile_cached("abc") == b"ABC"
            assert compiler.compiled == compiled
        assert Upper("other").compile_cached("abc") == b"ABC"


def test_the_fingerprint_is_of_the_code() -> None:
    assert len(codegen_fingerprint()) == 16
    assert codegen_fingerprint() == codegen_fingerprint()


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=4):
        runner = simple_device().get_runner(add())
    printed = capsys.readouterr().out
    assert runner.prg in printed
    assert "ADD(%0, %1)" in printed
    assert "opts: " in printed


# *** runners ***


def test_launch_sizes_and_variables() -> None:
    n, m = Variable("n", 1, 10), Variable("m", 1, 10)
    st = ShapeTracker(View.create((n, 4), (4, 1)))
    x = LazyOp(BufferOps.LOAD, (), MemBuffer(1, dtypes.float32, st))
    ast = x.shrink(((0, 1), (0, m)))
    runner = CompiledASTRunner(ast, "kernel", "source", [n, 2], [m * 2], {"shared": 5})
    runner.program = Program("kernel", b"")
    assert runner.vars == (m, n)
    assert runner.launch_dims({n: 3, m: 4}) == ([3, 2, 1], [8, 1, 1])
    out, given = buffers([0.0] * 40, [[1.0] * 4] * 10)
    with Context(DEBUG=2):
        assert runner([out, given], {n: 3, m: 4}) == 0.5
    assert runner.program.calls[-1] == {
        "vals": (4, 3),
        "wait": True,
        "global_size": [3, 2, 1],
        "local_size": [8, 1, 1],
        "shared": 5,
    }
    with pytest.raises(KeyError, match="variable m has no value"):
        runner.exec([out, given], {n: 3})
    with pytest.raises(ValueError, match="variable m cannot be 11: it goes from 1 to 10"):
        runner.exec([out, given], {n: 3, m: 11})


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
def test_buffers_are_as_large_as_the_variables_need(device: str) -> None:
    n = Variable("n", 0, 8)
    st = ShapeTracker(View.create((n, 2), (1, 8)))
    negated = LazyOp(UnaryOps.NEG, (LazyOp(BufferOps.LOAD, (), MemBuffer(1, FLOAT, st)),))
    store = MemBuffer(0, FLOAT, ShapeTracker.from_shape((n, 2)))
    runner = Device[device].get_runner(LazyOp(BufferOps.STORE, (negated,), store))
    out, given = Buffer(device, 6, FLOAT), Buffer(device, 11, FLOAT)
    given.copyin(memoryview(np.arange(11, dtype=np.float32)))
    runner.exec([out, given], {n: 3})
    assert out.toCPU().tolist() == [0, -8, -1, -9, -2, -10]
    with pytest.raises(RunnerError, match=r"needs 48 bytes in buffer 1, but .* has 44; allocate"):
        runner.exec([out, given], {n: 4})
    with pytest.raises(RunnerError, match=r"needs 32 bytes in buffer 0, but .* has 24"):
        runner.exec([out, Buffer(device, 12, FLOAT)], {n: 4})
    runner.exec([Buffer(device, 0, FLOAT), Buffer(device, 0, FLOAT)], {n: 0})
    counted = []
    for value in (3, 2, 3):  # what is known of a value is not that of another
        before = GlobalCounters.global_ops
        runner.exec([out, given], {n: value})
        counted.append(GlobalCounters.global_ops - before)
    assert counted == [6, 4, 6]


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
def test_a_runner_takes_buffers_without_elements(device: str) -> None:
    nothing = LazyOp(BufferOps.LOAD, (), MemBuffer(1, FLOAT, ShapeTracker.from_shape((0, 3))))
    total = LazyOp(ReduceOps.SUM, (nothing,), (1, 3))
    out = Buffer.fromCPU(device, np.ones(3, np.float32))
    Device[device].get_runner(total).exec([out, Buffer(device, 0, FLOAT)])
    assert out.toCPU().tolist() == [0, 0, 0]
    negated = LazyOp(UnaryOps.NEG, (nothing,))
    Device[device].get_runner(negated).exec([Buffer(device, 0, FLOAT), Buffer(device, 0, FLOAT)])


def test_a_runner_without_a_program() -> None:
    runner = CompiledASTRunner(None, "kernel", "source")
    with pytest.raises(RunnerError, match="kernel kernel has no program; "):
        runner.exec([])


def test_an_observer_runs_instead() -> None:
    seen: list[Any] = []

    def watch(runner: JITRunner, rawbufs: Sequence[Buffer], var_vals: Any) -> float | None:
        seen.append((runner, list(rawbufs), var_vals))
        return runner(rawbufs, var_vals)

    runner = Device["NUMPY"].get_runner(add())
    given = buffers([0] * 4, [1] * 4, [2] * 4)
    token = observer.set(watch)
    try:
        assert runner.exec(given) is not None
    finally:
        observer.reset(token)
    runner.exec(given)
    assert seen == [(runner, given, {})]
    assert given[0].toCPU().tolist() == [3] * 4


def test_copies() -> None:
    source = Buffer.fromCPU("NUMPY", np.arange(4, dtype=np.float32))
    dest = Buffer("CPU", 4, dtypes.float32)
    seconds = BufferCopy("CPU", 16, "NUMPY").exec([dest, source])
    assert seconds is not None
    assert dest.toCPU().tolist() == [0, 1, 2, 3]
    with pytest.raises(RunnerError, match="copy 16 bytes, CPU <- NUMPY: takes 2 buffers, got 1"):
        BufferCopy("CPU", 16, "NUMPY").exec([dest])


# *** statistics ***


def test_counters() -> None:
    GlobalCounters.reset()
    n = Variable("n", 1, 10)
    update_stats("a", 10, 20, None, 0.5, 2)
    update_stats("b", n * 2, n + 1, {n: 4}, None, 3, jit=True, num_kernels=5)
    counters = GlobalCounters
    assert (counters.kernel_count, counters.global_ops, counters.global_mem) == (6, 18, 25)
    assert counters.time_sum_s == 0.5


def test_estimates_may_be_numbers_of_any_kind() -> None:
    GlobalCounters.reset()
    n = Variable("n", 1, 9)
    update_stats("kernel", np.int64(3), n * 2, {n: 4}, np.float64(0.5), 2)
    update_stats("kernel", 1.0, 2, None, None, 2)  # type: ignore[arg-type]
    assert GlobalCounters.global_ops == 4
    assert GlobalCounters.global_mem == 10
    assert GlobalCounters.time_sum_s == 0.5


def test_the_line_for_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    GlobalCounters.reset()
    update_stats("silent", 1, 1, None, 0.1, 2)
    with Context(DEBUG=2):
        update_stats("kernel", 4_000_000, 2_000_000, None, 0.002, 3, device="CPU", first_run=True)
        update_stats("batch", 1, 1, None, 0.02, 3, jit=True, lra={"global_size": [4, 1, 1]})
        update_stats("plain", 1, 1, None, None, 3)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("*** CPU     \x1b[32m   2\x1b[0m kernel")
    assert "arg   3" in first
    assert "2.00ms/   102.00ms (    2.00 GFLOPS,    1.00 GB/s)" in first
    assert "\x1b[35m   3\x1b[0m batch [4, 1, 1] None" in second
    assert "\x1b[33m    20.00ms\x1b[0m" in second
    assert " tm " not in third
    assert "\x1b" not in third


# *** interpreted kernels ***


def test_an_interpreted_device_of_plain_functions() -> None:
    functions = {
        BinaryOps.ADD: operator.add,
        BufferOps.LOAD: lambda handle, arg: handle.view(arg.dtype.np),
        BufferOps.STORE: lambda value, handle, arg: np.copyto(handle.view(arg.dtype.np), value),
    }
    device = Interpreted(numpy_device.NumpyAllocator(), functions)
    out, a, b = buffers([0, 0, 0, 0], [1, 2, 3, 4], [1, 1, 1, 1])
    device.get_runner(add()).exec([out, a, b])
    assert out.toCPU().tolist() == [2, 3, 4, 5]


def test_fused_functions_and_shared_nodes() -> None:
    calls: list[str] = []

    def named(name: str, function: Any) -> Any:
        def run(*args: Any) -> Any:
            calls.append(name)
            return function(*args)

        return run

    numpy_functions = Device["NUMPY"].fxn_for_op  # type: ignore[union-attr]
    functions = {op: named(op.name, function) for op, function in numpy_functions.items()}
    fused = {(ReduceOps.SUM, BinaryOps.MUL): named("dot", lambda a, b, shape: (a * b).sum(0)[None])}
    device = Interpreted(numpy_device.NumpyAllocator(), functions, "NUMPY", fused)
    product = LazyOp(BinaryOps.MUL, (load(1, 4), load(2, 4)))
    total = LazyOp(ReduceOps.SUM, (product,), (1,))
    out, a, b = buffers([0], [1, 2, 3, 4], [1, 1, 1, 1])
    device.get_runner(total).exec([out, a, b])
    assert out.toCPU().tolist() == [10]
    assert calls == ["LOAD", "LOAD", "dot", "STORE"]
    calls.clear()
    both = LazyOp(BinaryOps.ADD, (total, product.shrink(((0, 1),))))
    device.get_runner(both).exec([out, a, b])
    assert out.toCPU().tolist() == [11]
    assert calls.count("MUL") == 1
    assert "dot" not in calls


def test_no_warnings_leak() -> None:
    x = Buffer.fromCPU("NUMPY", np.array([0.0, -1.0, 3e38, np.inf], np.float32))
    out = Buffer("NUMPY", 4, dtypes.float32)
    value = load(1, 4)
    for op in (BinaryOps.DIV, BinaryOps.MUL, BinaryOps.SUB, BinaryOps.MOD):
        Device["NUMPY"].get_runner(LazyOp(op, (value, value))).exec([out, x])


def test_threads_that_compile_go_by_the_settings_of_the_block(tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {}

    class Noting(Compiler):
        def compile(self, src: str) -> bytes:
            name = threading.current_thread().name
            seen.setdefault(config().FERRULE_CACHE_DIR, []).append(name)
            return src.encode()

    device = simple_device()
    device.compiler = Noting("noting")
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        device.prepare([add(5), add(6), add(7)])
        # A program and what a runner is made of, for each.
        assert diskcache.usage()[0] == 6
    assert list(seen) == [str(tmp_path)]
    assert len(seen[str(tmp_path)]) == 3
    assert all(name.startswith("ferrule-compile") for name in seen[str(tmp_path)])
