"""The device CL, with OpenCL C written by hand: memory, programs, launches, graphs."""

import gc
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")

from ferrule.base.config import Context  # noqa: E402
from ferrule.codegen.interpret import interpret  # noqa: E402
from ferrule.codegen.uops import UOp, UOps  # noqa: E402
from ferrule.device import (  # noqa: E402
    BufferCopy,
    CompiledASTRunner,
    CompileError,
    Device,
    DeviceIndexError,
    DeviceUnavailableError,
    GlobalCounters,
    RunnerError,
)
from ferrule.device.capture import GraphException, JitItem  # noqa: E402
from ferrule.dtype import dtypes  # noqa: E402
from ferrule.fusion import make_schedule  # noqa: E402
from ferrule.ir.buffer import Buffer, allocators  # noqa: E402
from ferrule.ir.expr import ExprOp, Variable, sint  # noqa: E402
from ferrule.ir.shape.shapetracker import ShapeTracker  # noqa: E402
from ferrule.ir.target import Target  # noqa: E402
from ferrule.ops import BinaryOps, BufferOps, LazyOp, MemBuffer  # noqa: E402
from ferrule.renderer.c.style import opencl_renderer  # noqa: E402
from ferrule.runtime.opencl import (  # noqa: E402
    CLDevice,
    device,
    driver,
)
from ferrule.runtime.opencl import graph as graph_module  # noqa: E402
from ferrule.runtime.opencl.driver import Accelerator, open_accelerator, target_of  # noqa: E402
from ferrule.runtime.opencl.graph import CLGraph  # noqa: E402
from ferrule.runtime.opencl.memory import CLAllocator, CLMemory  # noqa: E402
from ferrule.runtime.opencl.program import CLCompiler, CLProgram, unpack_library  # noqa: E402
from ferrule.tensor import Tensor  # noqa: E402

THREADS = 64
SIZE = 4 * THREADS

ADD = """
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void add(__global float *o, __global const float *a, __global const float *b) {
    const int i = get_group_id(0) * 64 + get_local_id(0);
    o[i] = a[i] + b[i];
}
"""
# Elements of a block in reverse, times a variable: local memory and a barrier.
REVERSE = """
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void reverse(__global int *o, __global const int *a, int n) {
    __local int s[64];
    const int t = get_local_id(0);
    s[t] = a[get_group_id(0) * 64 + t];
    barrier(CLK_LOCAL_MEM_FENCE);
    o[get_group_id(0) * 64 + t] = s[63 - t] * n;
}
"""
# Says by its value which of its two forms ran.
FORMS = """
__kernel void forms(__global float *o, __global const float *a) {
#ifdef FERRULE_UNALIGNED
    o[get_group_id(0)] = a[get_group_id(0)] + 1000.0f;
#else
    o[get_group_id(0)] = a[get_group_id(0)];
#endif
}
"""


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    try:
        return open_accelerator(0)
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture
def allocator(accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch) -> CLAllocator:
    """Memory without the rest of the device."""
    made = CLAllocator(accelerator)
    monkeypatch.setitem(allocators, "CL", made)
    return made


@pytest.fixture(scope="module")
def compiler(accelerator: Accelerator) -> CLCompiler:
    return CLCompiler(accelerator)


def program(compiler: CLCompiler, name: str, source: str) -> CLProgram:
    return CLProgram(compiler, name, compiler.compile_cached(source))


def buffer(values: Any, dtype: Any = np.float32) -> Buffer:
    array = np.ascontiguousarray(values, dtype)
    made = Buffer("CL", array.size, dtypes.from_np(array.dtype))
    return made.copyin(array.data.cast("B"))


def empty(size: int) -> Buffer:
    return Buffer("CL", size, dtypes.float32)


def numbers(start: int = 0) -> Buffer:
    return buffer(np.arange(start, start + SIZE))


# *** memory ***


@pytest.mark.usefixtures("allocator")
def test_bytes_go_in_and_come_out() -> None:
    source = np.random.default_rng(0).integers(0, 256, 12345, np.uint8)
    made = Buffer("CL", source.size, dtypes.uint8).copyin(memoryview(source.tobytes()))
    assert made._buf.address % 64 == 0
    assert np.array_equal(made.toCPU(), source)
    out = bytearray(source.size)
    made.copyout(memoryview(out))
    assert bytes(out) == source.tobytes()


@pytest.mark.usefixtures("allocator")
def test_a_view_starts_at_any_element_and_keeps_its_memory() -> None:
    base = numbers()
    part = base.view(3, 5)
    assert part._buf.address == base._buf.address + 12
    part.copyin(np.arange(5, dtype=np.float32).data.cast("B"))
    assert base.toCPU()[:10].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 8, 9]
    nested = part.view(1, 2)
    del base, part
    gc.collect()
    assert nested.toCPU().tolist() == [1, 2]


def test_freed_blocks_are_used_again(allocator: CLAllocator) -> None:
    first = allocator.alloc(4096)
    address = first.address
    allocator.free(first, 4096)
    assert allocator.cached == 4096
    assert allocator.alloc(4096).address == address
    with Context(LRU=0):
        allocator.free(allocator.alloc(8192), 8192)
    assert allocator.cached == 0


def test_a_block_that_is_too_large_names_the_sizes(accelerator: Accelerator) -> None:
    allocator = CLAllocator(accelerator)
    allocator._budget = 1 << 62
    with pytest.raises(MemoryError, match=r"64.0 TiB asked for.*gives at most .*iB a block"):
        allocator.alloc(1 << 46)


def test_what_the_driver_refuses_is_a_memory_error(
    allocator: CLAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise cl.MemoryError("clSVMAlloc failed: OUT_OF_RESOURCES")

    kept = allocator.alloc(1024)
    allocator.free(kept, 1024)
    monkeypatch.setattr(cl, "SVMAllocation", refuse)
    with pytest.raises(MemoryError, match=r"gives no 2.0 KiB: clSVMAlloc failed"):
        allocator.alloc(2048)
    assert allocator.cached == 0  # what was kept went back before the second try


# *** programs ***


@pytest.mark.usefixtures("allocator")
def test_blocks_of_threads_share_memory(compiler: CLCompiler) -> None:
    reverse = program(compiler, "reverse", REVERSE)
    out = buffer(np.zeros(SIZE), np.int32)
    given = buffer(np.arange(SIZE), np.int32)
    sizes = {"global_size": [4, 1, 1], "local_size": [THREADS, 1, 1]}
    handles = (out._buf, given._buf)
    assert reverse(*handles, vals=(-3,), **sizes) is None
    expected = np.arange(SIZE).reshape(4, THREADS)[:, ::-1].reshape(-1)
    assert np.array_equal(out.toCPU(), expected * -3)
    seconds = reverse(*handles, vals=(7,), wait=True, **sizes)
    assert seconds is not None
    assert 0 < seconds < 10
    assert np.array_equal(out.toCPU(), expected * 7)


@pytest.mark.usefixtures("allocator")
@pytest.mark.parametrize(("count", "step"), [(64, 1), (4, 2), (8, 8)])
def test_values_of_several_threads_are_combined(
    compiler: CLCompiler, accelerator: Accelerator, count: int, step: int
) -> None:
    one = UOp(UOps.CONST, dtypes.int64, arg=1)
    thread = UOp(UOps.THREAD, dtypes.int64)
    out, given = (UOp(UOps.PARAM, dtypes.float32, arg=slot) for slot in range(2))
    own = UOp(UOps.LOAD, dtypes.float32, 1, (given, thread))
    across = UOp(UOps.ACROSS, dtypes.float32, 1, (own,), (ExprOp.ADD, count, step))
    uops = [one, UOp(UOps.EXTENT, src=(one,), arg=THREADS), thread, out, given, own, across]
    uops.append(UOp(UOps.STORE, src=(out, thread, across)))
    values = np.random.default_rng(0).standard_normal(THREADS).astype(np.float32)
    expected = np.zeros(THREADS, np.float32)
    interpret(uops, [expected, values])
    source = opencl_renderer(target_of(accelerator.device)).render("across", uops)
    sums = program(compiler, "across", source)
    result = buffer(np.zeros(THREADS))
    sizes = {"global_size": [1, 1, 1], "local_size": [THREADS, 1, 1]}
    sums(result._buf, buffer(values)._buf, **sizes)
    assert np.array_equal(result.toCPU(), expected)


@pytest.mark.usefixtures("allocator")
def test_a_grid_of_no_blocks_runs_nothing(compiler: CLCompiler) -> None:
    out, a, b = buffer(np.full(SIZE, 5)), numbers(), numbers()
    add = program(compiler, "add", ADD)
    handles = [x._buf for x in (out, a, b)]
    assert add(*handles, global_size=[0, 1, 1], local_size=[64, 1, 1], wait=True) == 0
    assert np.array_equal(out.toCPU(), np.full(SIZE, 5))


@pytest.mark.usefixtures("allocator")
def test_a_second_form_runs_where_an_address_is_not_aligned(compiler: CLCompiler) -> None:
    forms = program(compiler, "forms", FORMS)
    out, given = buffer(np.zeros(8)), buffer(np.arange(8))
    for start in (0, 4, 1, 0, 3):
        forms(out._buf, given.view(start, 4)._buf, global_size=[4, 1, 1])
        expected = np.arange(start, start + 4) + (1000 if start % 4 else 0)
        assert out.toCPU()[:4].tolist() == expected.tolist()


def test_only_programs_of_two_forms_carry_their_source(compiler: CLCompiler) -> None:
    assert unpack_library(compiler.compile_cached(FORMS))[1] == FORMS
    assert unpack_library(compiler.compile_cached(ADD))[1] == ""
    assert "a binary of" in compiler.disassemble(compiler.compile_cached(ADD))


def test_what_does_not_compile(compiler: CLCompiler) -> None:
    broken = ADD.replace("a[i] +", "no_such_name +")
    with pytest.raises(CompileError, match=r"(?s)kernel add: .* code: .*no_such_name"):
        compiler.compile(broken)


@pytest.mark.usefixtures("allocator")
@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_a_value_of_more_than_32_bits(compiler: CLCompiler, value: int) -> None:
    reverse = program(compiler, "reverse", REVERSE)
    given = buffer(np.zeros(SIZE), np.int32)
    with pytest.raises(RunnerError, match=f"kernel reverse: {value} does not fit"):
        reverse(given._buf, given._buf, vals=(value,))


@pytest.mark.usefixtures("allocator")
def test_a_launch_that_the_device_refuses(compiler: CLCompiler) -> None:
    forms = program(compiler, "forms", FORMS)
    given = numbers()
    with pytest.raises(RunnerError, match=r"kernel forms: .* does not run 2 blocks of 1048576 thr"):
        forms(given._buf, given._buf, global_size=[2, 1, 1], local_size=[1 << 20, 1, 1])


@pytest.mark.usefixtures("allocator")
def test_threads_may_run_one_program_at_once(compiler: CLCompiler) -> None:
    reverse = program(compiler, "reverse", REVERSE)
    given = buffer(np.ones(SIZE), np.int32)
    outs = [buffer(np.zeros(SIZE), np.int32) for _ in range(4)]

    def run(k: int) -> None:
        for _ in range(200):
            reverse(
                *(outs[k]._buf, given._buf),
                vals=(k,),
                global_size=[4, 1, 1],
                local_size=[THREADS, 1, 1],
            )

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [set(out.toCPU().tolist()) for out in outs] == [{0}, {1}, {2}, {3}]


# *** devices ***


def test_the_target(accelerator: Accelerator) -> None:
    target = target_of(accelerator.device)
    assert (target.vector_bytes, target.index_bits, target.warp) == (16, 32, 1)
    assert 2 <= target.block_threads <= 256
    assert target.shared_bytes == accelerator.device.local_mem_size
    assert Target.from_json(target.to_json()) == target


@pytest.mark.usefixtures("accelerator")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(OSError, match="CL:99 is not there; the OpenCL devices are"):
        open_accelerator(99)


def test_no_device_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> list[Any]:
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(cl, "get_platforms", none)
    with pytest.raises(OSError, match=r"no OpenCL device is there; .* pocl-opencl-icd"):
        driver.all_devices()


class _Device:
    """A device that has no more than it is asked for here."""

    name = "Old"
    max_work_group_size = 1
    svm_capabilities = 1


def test_devices_that_lack_something() -> None:
    with pytest.raises(OSError, match="Old runs one thread a block"):
        driver._check(_Device())
    without = type("_Without", (_Device,), {"svm_capabilities": 0})
    with pytest.raises(OSError, match="Old has no shared virtual memory"):
        driver._check(without())


def test_devices_by_name(accelerator: Accelerator) -> None:
    found = Device["CL"]
    assert isinstance(found, CLDevice)
    assert Device["cl:0"] is found
    assert found.linearizer_opts == target_of(accelerator.device)
    found.synchronize()
    with pytest.raises(DeviceIndexError, match="no device CL:99: the OpenCL devices are"):
        Device["CL:99"]
    with pytest.raises(DeviceIndexError, match="no device CL:GPU: after the colon comes a number"):
        Device["CL:GPU"]


def test_without_pyopencl_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    for module in [name for name in sys.modules if re.match(r"ferrule\.runtime.*opencl", name)]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(DeviceUnavailableError, match=r"CL:7 .* pip install 'ferrule\[opencl\]'"):
        Device["CL:7"]


@pytest.mark.usefixtures("accelerator")
def test_kernels_come_from_the_disk_cache_with_their_launch(tmp_path: Path) -> None:
    st = ShapeTracker.from_shape((1000,))
    x = LazyOp(BufferOps.LOAD, (), MemBuffer(1, dtypes.float32, st))
    ast = LazyOp(BinaryOps.ADD, (x, x))
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        for is_first in (True, False):
            runner = device("CL").get_runner(ast)
            assert bool(runner.prg) == is_first
            given, out = Buffer.fromCPU("CL", np.arange(1000, dtype=np.float32)), empty(1000)
            runner.exec([out, given])
            assert np.array_equal(out.toCPU(), 2 * np.arange(1000))


# *** graphs ***


def runner(compiler: CLCompiler, source: str, name: str, *variables: Variable) -> CompiledASTRunner:
    blocks: sint = variables[0] if variables else SIZE // THREADS
    made = CompiledASTRunner(None, name, source, [blocks], [THREADS])
    made.device = "CL"
    made.program = program(compiler, name, source)
    made.vars = variables
    return made


def chain(add: CompiledASTRunner, x: Buffer, y: Buffer, length: int) -> list[JitItem]:
    """x + y, + y, and so on: each item needs the one before."""
    items = []
    last = x
    for _ in range(length):
        out = buffer(np.zeros(SIZE))
        items.append(JitItem(add, [out, last, y]))
        last = out
    return items


def result_of(items: list[JitItem]) -> np.ndarray:
    last = items[-1].rawbufs[0]
    assert last is not None
    return last.toCPU()


@pytest.fixture(params=["command buffers", "launches"])
def commands(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With command buffers and without them, whatever the platform has."""
    if request.param == "launches":
        monkeypatch.setattr(graph_module, "_functions", lambda device: None)
    return request.param


@pytest.mark.usefixtures("allocator", "commands")
def test_a_graph_does_what_its_items_do_for_any_inputs(compiler: CLCompiler) -> None:
    x, y = numbers(), numbers(5)
    items = chain(runner(compiler, ADD, "add"), x, y, 10)
    graph = CLGraph(items, [x, y], {})
    others = [numbers(start) for start in (1, 2, 300)]
    # The same inputs again and again are recorded; then come others, and the first ones again.
    calls = [(x, y)] * 4 + [(others[0], y)] * 3 + [(others[1], others[2])] + [(x, y)] * 2
    for a, b in calls:
        assert graph([a, b], {}) is None
        assert np.array_equal(result_of(items), a.toCPU() + 10 * b.toCPU())


@pytest.mark.usefixtures("allocator")
def test_equal_calls_are_recorded(compiler: CLCompiler, accelerator: Accelerator) -> None:
    if graph_module._functions(accelerator.device) is None:
        pytest.skip(f"{accelerator.device.name} has no command buffers")
    x, y = numbers(), numbers(5)
    graph = CLGraph(chain(runner(compiler, ADD, "add"), x, y, 3), [x, y], {})
    recorded = []
    for inputs in ([x, y], [x, y], [x, y], [y, x], [y, x]):
        graph(inputs, {})
        recorded.append(graph._recorded)
    assert recorded[0] is recorded[3] is None
    assert recorded[1] is recorded[2] is not None
    assert recorded[4] not in (None, recorded[1])


@pytest.mark.usefixtures("allocator", "commands")
def test_variables_and_sizes_change_from_call_to_call(compiler: CLCompiler) -> None:
    n = Variable("n", 0, 4)
    out, given = buffer(np.zeros(SIZE), np.int32), buffer(np.ones(SIZE), np.int32)
    items = [JitItem(runner(compiler, REVERSE, "reverse", n), [out, given])]
    graph = CLGraph(items, [given], {n: 4})
    for value in (4, 4, 2, 2, 0, 0, 3):
        out.copyin(np.zeros(SIZE, np.int32).data.cast("B"))
        graph([given], {n: value})
        expected = np.where(np.arange(SIZE) < value * THREADS, value, 0)
        assert np.array_equal(out.toCPU(), expected)


@pytest.mark.usefixtures("allocator", "commands")
def test_inputs_that_are_views_and_an_output_that_is_an_input(compiler: CLCompiler) -> None:
    base = buffer(np.arange(SIZE + 8))
    x, total = base.view(0, SIZE), buffer(np.zeros(SIZE))
    items = [JitItem(runner(compiler, ADD, "add"), [total, total, x])]
    graph = CLGraph(items, [total, x], {})
    for start in (0, 0, 1, 1, 8):
        graph([total, base.view(start, SIZE)], {})
    assert np.array_equal(total.toCPU(), 5 * np.arange(SIZE) + 10)


@pytest.mark.usefixtures("allocator", "commands")
def test_a_graph_in_the_statistics(
    compiler: CLCompiler, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = numbers(), numbers()
    graph = CLGraph(chain(runner(compiler, ADD, "add"), x, y, 7), [x, y], {})
    before = GlobalCounters.kernel_count
    seconds = graph([x, y], {}, wait=True)
    assert seconds is not None
    assert 0 < seconds < 10
    assert GlobalCounters.kernel_count == before + 7
    with Context(DEBUG=2):
        graph([x, y], {}, jit=True)
    assert "<batch of 7>" in capsys.readouterr().out


@pytest.mark.usefixtures("allocator")
def test_a_graph_keeps_its_buffers_and_not_its_inputs(compiler: CLCompiler) -> None:
    x, y = numbers(), numbers(5)
    items = chain(runner(compiler, ADD, "add"), x, y, 2)
    graph = CLGraph(items, [x, y], {})
    x_count, y_count = len(gc.get_referrers(x)), len(gc.get_referrers(y))
    for item in items:
        item.rawbufs = [None if b is x or b is y else b for b in item.rawbufs]
    last = items[-1].rawbufs[0]
    del items
    graph([x, y], {})
    assert last is not None
    assert np.array_equal(last.toCPU(), x.toCPU() + 2 * y.toCPU())
    assert len(gc.get_referrers(x)) < x_count
    assert len(gc.get_referrers(y)) < y_count


@pytest.mark.usefixtures("allocator")
def test_what_is_no_kernel_of_the_device(compiler: CLCompiler) -> None:
    x, y = numbers(), numbers()
    copy = BufferCopy("CL", x.nbytes, "CL")
    with pytest.raises(GraphException, match=r"CLGraph: copy 1.0 KiB, CL <- CL is no kernel of CL"):
        CLGraph([JitItem(copy, [x, y])], [x], {})
    other = runner(compiler, ADD, "add")
    other.device = "CL:1"
    items = [JitItem(runner(compiler, ADD, "add"), [x, x, y]), JitItem(other, [x, x, y])]
    with pytest.raises(GraphException, match=r"kernels of several devices: \['CL', 'CL:1'\]"):
        CLGraph(items, [x], {})


def test_memory_says_where_it_is(allocator: CLAllocator) -> None:
    block = allocator.alloc(256)
    part = block.part(100, 20)
    assert isinstance(part, CLMemory)
    assert (part.address - block.address, part.nbytes) == (100, 20)
    assert (part.pointer.svm_ptr, part.pointer.size) == (part.address, 20)


@pytest.mark.usefixtures("accelerator")
def test_attention_is_one_kernel_without_its_scores_in_memory() -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((2, 64, 32)).astype(np.float32) for _ in range(3)]
    query, key, value = (Tensor(x, device="CL").realize() for x in arrays)
    # A name for the scores or the weights would keep them in memory in any case.
    found = (query @ key.transpose(-1, -2)).softmax(-1) @ value
    (item,) = make_schedule([found.lazydata]).items
    assert sum(node.op is BufferOps.STAGE for node in item.ast.toposort()) == 3
    assert {buffer.size for buffer in item.buffers} == {2 * 64 * 32}
    scores = arrays[0] @ arrays[1].swapaxes(1, 2)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    expected = powers / powers.sum(-1, keepdims=True) @ arrays[2]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("accelerator")
def test_a_chain_that_no_block_of_threads_can_go_along_has_no_stages() -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((2, 64, 32)).astype(np.float32) for _ in range(3)]
    query, key, value = (Tensor(x, device="CL").realize() for x in arrays)
    scores = query @ key.transpose(-1, -2)
    found = (scores.exp() - scores.exp().mean(-1, keepdim=True)).relu() @ value
    del scores
    items = make_schedule([found.lazydata]).items
    assert not any(n.op is BufferOps.STAGE for item in items for n in item.ast.toposort())
    powers = np.exp(arrays[0] @ arrays[1].swapaxes(1, 2))
    expected = np.maximum(powers - powers.mean(-1, keepdims=True), 0) @ arrays[2]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)
