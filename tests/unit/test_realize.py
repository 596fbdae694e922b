"""Running schedules: what is prepared when, copies, and what is left after an error."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit
from ferrule.autograd import GradientError
from ferrule.base.config import Context
from ferrule.device import Buffer, Device, Interpreted
from ferrule.device.runner import JITRunner, observer
from ferrule.dtype import dtypes
from ferrule.engine.realize import realize, run
from ferrule.helpers import GlobalCounters
from ferrule.ir.buffer import LRUAllocator
from ferrule.ir.expr import Variable
from ferrule.ir.lazy import Handle, LazyBuffer
from ferrule.ops import BinaryOps, LazyOp, ReduceOps, UnaryOps
from ferrule.schedule import create_schedule


def from_array(array: np.ndarray[Any, Any], device: str = "NUMPY") -> LazyBuffer:
    return LazyBuffer.from_buffer(Buffer.fromCPU(device, array), array.shape)


def to_array(node: LazyBuffer) -> np.ndarray[Any, Any]:
    assert node.realized is not None
    return node.realized.toCPU().reshape(node.shape)


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_realising_gives_each_node_a_buffer() -> None:
    x = from_array(X)
    nodes = [x.e(UnaryOps.NEG), x.permute((1, 0)), LazyBuffer.const(2, dtypes.int8, (3,), "NUMPY")]
    realize(nodes)
    for node, expected in zip(nodes, [-X, X.T, np.full(3, 2)], strict=True):
        np.testing.assert_array_equal(to_array(node), expected)
        assert node.srcs == ()


def test_what_is_realised_does_not_run_again() -> None:
    node = from_array(X).e(UnaryOps.NEG)
    realize([node, node])
    before = GlobalCounters.kernel_count
    realize([node])
    assert GlobalCounters.kernel_count == before


def test_an_intermediate_result_that_is_held_is_kept() -> None:
    x = from_array(X)
    total = Handle(x.r(ReduceOps.SUM, (0, 1)).contiguous())
    realize([total.node.expand((3, 4)).e(BinaryOps.MUL, x)])
    assert total.node.realized is not None


def test_a_value_on_another_device_is_copied() -> None:
    node = from_array(X).e(UnaryOps.NEG).copy_to("CPU")
    realize([node])
    assert node.realized is not None
    assert node.realized.device == "CPU"
    np.testing.assert_array_equal(to_array(node), -X)


def test_all_kernels_are_prepared_before_the_first_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device["NUMPY"]
    assert isinstance(device, Interpreted)
    prepared: list[LazyOp] = []
    started: list[int] = []
    original = device.prepare

    def prepare(asts: Sequence[LazyOp]) -> Mapping[LazyOp, JITRunner]:
        prepared.extend(asts)
        return original(asts)

    def watch(*_: object) -> None:
        started.append(len(prepared))

    monkeypatch.setattr(device, "prepare", prepare)
    token = observer.set(watch)
    x = from_array(X)
    try:
        realize([x.r(ReduceOps.SUM, (0,)).contiguous().r(ReduceOps.MAX, (1,))])
    finally:
        observer.reset(token)
    assert len(prepared) == 2
    assert started == [2, 2]


def test_running_a_created_schedule_by_hand() -> None:
    node = from_array(X).e(UnaryOps.NEG)
    items = create_schedule([node])
    assert node.realized is items[0].out
    run(items)
    np.testing.assert_array_equal(to_array(node), -X)


def test_variables_have_their_values() -> None:
    n = Variable("n", 1, 3)
    part = from_array(X).shrink(((0, n.bind(2)), (0, 4)))
    total = part.e(UnaryOps.NEG).r(ReduceOps.SUM, (0, 1))
    realize([total])
    assert to_array(total).item() == -X[:2].sum()


class Failing(JITRunner):
    """A runner that does not work."""

    def __call__(self, *_: Any, **__: Any) -> float | None:
        raise RuntimeError("no paper")


def test_after_an_error_the_graph_is_as_before() -> None:
    x = from_array(X).e(UnaryOps.NEG)
    node = LazyBuffer.custom(Failing(), [x], (3, 4), dtypes.float32, "NUMPY")
    with pytest.raises(RuntimeError, match="no paper"):
        realize([node])
    assert node.realized is None
    assert node.srcs == (x,)
    realize([x])
    np.testing.assert_array_equal(to_array(x), -X)


def test_out_of_memory_names_the_largest_values() -> None:
    with Context(FERRULE_MEMORY_LIMIT=1 << 20):
        x = from_array(np.ones((1000, 4), np.float32), "CPU")
        wide = x.reshape((1000, 1, 4)).expand((1000, 1000, 4)).contiguous()
        with pytest.raises(MemoryError, match=r"15\.3 MiB asked for") as caught:
            realize([wide])
    shown = "The largest values to be stored: (1000, 1000, 4) dtypes.float32 (15.3 MiB)"
    assert caught.value.__notes__ == [shown]


def test_writes_that_nobody_reads_are_done_along() -> None:
    kept, other = Tensor([1.0, 2.0]).realize(), Tensor([1.0]) + 1
    for _ in range(3):
        kept += 1
    other.realize()
    assert kept.lazydata.realized is not None
    assert kept.tolist() == [4.0, 5.0]


def test_versions_without_memory_get_some() -> None:
    """Each keeps alive what it is made of."""
    average, expected = Tensor.zeros(2), np.zeros(2)
    for step in range(10):
        expected = expected * 0.5 + [step, 1]
        average.assign(average * 0.5 + Tensor([float(step), 1.0]))
        (Tensor([1.0]) + 1).realize()
    assert average.lazydata.realized is not None
    np.testing.assert_allclose(average.numpy(), expected, rtol=1e-6)


def test_a_write_that_raises_is_no_error_of_others() -> None:
    bad = Tensor([[1.0, 2.0], [2.0, 1.0]])
    kept, other = Tensor.zeros(2, 2).contiguous().realize(), Tensor([1.0]) + 1
    kept.assign(bad.cholesky())
    assert other.tolist() == [2.0]
    with pytest.raises(np.linalg.LinAlgError):
        kept.numpy()


# *** writes that raise ***


def too_large() -> Tensor:
    """A number that takes 4 MiB to compute."""
    row = Tensor(np.ones((1, 1024), np.float32)).realize()
    return (row.reshape(1024, 1) * row).contiguous().sum()


def raises(read: Callable[[], object]) -> bool:
    """Whether something takes more than 1 MiB."""
    allocator = Device["CPU"].allocator
    assert isinstance(allocator, LRUAllocator)
    allocator.free_cache()
    with Context(FERRULE_MEMORY_LIMIT=allocator.used + (1 << 20)):
        try:
            read()
        except MemoryError:
            return True
    return False


BIG = 1 << 20  # what `too_large` computes


def test_a_write_that_raises_is_withdrawn() -> None:
    x = Tensor([1.0, 2.0]).realize()
    x.assign(x + too_large())
    assert raises(x.numpy)
    assert x.tolist() == [1, 2]
    x += 1
    assert x.tolist() == [2, 3]


def test_writes_to_what_never_was_in_memory_are_withdrawn() -> None:
    zeros, sums = Tensor.zeros(2), Tensor([1.0]) + Tensor([2.0])
    zeros.assign(zeros + too_large())
    sums += too_large()
    assert raises(zeros.numpy)
    assert raises(sums.numpy)
    assert zeros.tolist() == [0, 0]
    assert sums.tolist() == [3]


def test_views_read_what_was_there_before() -> None:
    x = Tensor.zeros(4).contiguous().realize()
    part = x[1:3]
    x[0] = 5
    part += too_large()
    assert raises(part.numpy)
    assert x.tolist() == [5, 0, 0, 0]
    assert part.tolist() == [0, 0]


def test_the_writes_before_the_one_that_raises_are_done() -> None:
    x = Tensor([1.0]).realize()
    x += 1
    x += too_large()
    assert raises(x.numpy)
    assert x.tolist() == [2]


def test_what_is_made_of_a_write_that_raises() -> None:
    """Another write is withdrawn with it. A tensor is not: it is what it was said to be."""
    x, y = Tensor([1.0]).realize(), Tensor([10.0]).realize()
    x += too_large()
    y += x
    z = x * 2
    assert raises(x.numpy)
    assert x.tolist() == [1]
    assert y.tolist() == [10]
    x += 1
    assert raises(z.numpy)
    assert z.tolist() == [2 * (BIG + 1)]
    assert x.tolist() == [2]


def test_what_is_computed_together_is_written_together() -> None:
    x, y = Tensor([1.0]).realize(), Tensor([10.0]).realize()
    x += 1
    y += too_large()
    assert raises(lambda: Tensor.realize(x, y))
    assert x.tolist() == [1]
    assert y.tolist() == [10]
    x += 1
    y += x
    assert raises(lambda: Tensor.realize(too_large(), x, y))
    assert x.tolist() == [2]  # it was not a write that raised
    assert y.tolist() == [12]


def test_a_value_that_raises_withdraws_no_write() -> None:
    x = Tensor([1.0]).realize()
    x += 1
    assert raises(lambda: (x * too_large()).numpy())
    assert x.lazydata.realized is not None
    assert x.tolist() == [2]


def test_a_write_that_takes_too_much_is_no_error_of_others() -> None:
    x, y = Tensor([1.0]).realize(), Tensor([10.0]).realize()
    x += too_large()
    y += 1
    for _ in range(3):
        assert not raises(lambda: (Tensor([1.0]) + 1).numpy())
    assert y.lazydata.realized is not None
    assert y.tolist() == [11]
    assert x.tolist() == [1 + BIG]  # there is room for it now


def test_gradients_go_back_with_the_write() -> None:
    w = Tensor([1.0], requires_grad=True)
    kept, gone = w * 2, w * 3
    kept.assign(kept * too_large())
    gone.realize().assign(w * 5 * too_large())
    assert raises(kept.numpy)
    assert raises(gone.numpy)
    kept.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [2]
    assert gone.tolist() == [3]
    with pytest.raises(GradientError, match="whose write raised an error"):
        gone.sum().backward()


def test_a_kernel_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor([1.0]).realize()
    x += 1
    with monkeypatch.context() as patch:
        patch.setattr(Device[x.device], "prepare", Failing())
        with pytest.raises(RuntimeError, match="no paper"):
            x.numpy()
    assert x.tolist() == [1]


def test_an_interrupt_leaves_writes_to_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor([1.0]).realize()
    x += 1

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Device[x.device], "prepare", interrupt)
        with pytest.raises(KeyboardInterrupt):
            x.numpy()
    assert x.tolist() == [2]


def test_an_error_that_a_captured_function_catches() -> None:
    w = Tensor([1.0]).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        w.assign(w + x)
        try:
            (x.reshape(1, 1).expand(2, 2) * Tensor([[1.0, 2.0], [2.0, 1.0]])).cholesky().realize()
        except np.linalg.LinAlgError:
            w.assign(w + 10)
        return (w * 1).realize()

    found = [step(Tensor([float(x)]).realize()).item() for x in (1, 1, 0, 1)]
    assert found == [12, 23, 33, 44]
