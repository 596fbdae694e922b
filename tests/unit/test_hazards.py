"""Kernels that read and write the same memory run in an order that keeps the values apart."""

from typing import Any

import numpy as np
import pytest

from ferrule import Tensor
from ferrule.dtype import dtypes
from ferrule.engine.realize import realize
from ferrule.fusion import make_schedule
from ferrule.ir.buffer import Buffer
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.storage import Storage
from ferrule.ops import BinaryOps, ReduceOps

Array = np.ndarray[Any, Any]
SIZE = 1000


def numbers(size: int, start: int = 0) -> Array:
    return np.arange(start, start + size, dtype=np.float32)


def two_parts(array: Array, distance: int) -> tuple[LazyBuffer, LazyBuffer]:
    """Two leaves in one memory that share all but `distance` elements at an end."""
    base = Buffer.fromCPU("CPU", array)
    size = array.size - distance
    first, second = [base.view(start, size) for start in (0, distance)]
    return LazyBuffer.from_buffer(first, (size,)), LazyBuffer.from_buffer(second, (size,))


def doubled(node: LazyBuffer) -> LazyBuffer:
    return node.e(BinaryOps.ADD, node)


def to_array(node: LazyBuffer) -> Array:
    assert node.realized is not None
    return node.realized.toCPU().reshape(node.shape)


@pytest.mark.parametrize("backwards", [False, True])
def test_who_reads_a_part_of_memory_runs_before_who_writes_to_another_that_overlaps(
    backwards: bool,
) -> None:
    array = numbers(SIZE)
    read, written = two_parts(array.copy(), 1)[:: -1 if backwards else 1]
    size = SIZE - 1
    total = read.r(ReduceOps.SUM, (0,))
    storage = Storage(written)
    del written
    storage.write(LazyBuffer.const(2.0, dtypes.float32, (size,), "CPU"))
    realize([storage.node, total])
    expected = array[1:] if backwards else array[:-1]
    np.testing.assert_allclose(to_array(total), expected.sum(keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(to_array(storage.node), np.full(size, 2))


@pytest.mark.parametrize("backwards", [False, True])
def test_what_overlaps_at_another_place_is_not_read_where_it_is_written(backwards: bool) -> None:
    for distance in (SIZE // 2, 1):  # the same kernels, but for what is in the same place
        array = numbers(SIZE)
        read, written = two_parts(array.copy(), distance)[:: -1 if backwards else 1]
        storage = Storage(written)
        del written
        storage.write(doubled(read))
        realize([storage.node])
        expected = array[distance:] if backwards else array[:-distance]
        np.testing.assert_array_equal(to_array(storage.node), 2 * expected)


def test_parts_that_touch_are_no_reason_for_a_plan_of_their_own() -> None:
    """Whether parts of one memory overlap is known to a plan that is used again."""
    for distance in (SIZE, SIZE // 2, 1, SIZE):
        array = numbers(2 * SIZE)
        base = Buffer.fromCPU("CPU", array.copy())
        read, written = [
            LazyBuffer.from_buffer(base.view(start, SIZE), (SIZE,)) for start in (0, distance)
        ]
        storage = Storage(written)
        del written
        storage.write(doubled(read))
        del read
        realize([storage.node])
        np.testing.assert_array_equal(to_array(storage.node), 2 * array[:SIZE])


def test_a_part_is_written_after_the_whole_was_computed() -> None:
    a, b = Tensor(numbers(64).reshape(8, 8)).realize(), Tensor(numbers(8)).realize()
    early = (b * 3).contiguous()
    total = early.sum()
    x = (a @ a).relu()
    x[1] = early
    del early
    Tensor.realize(total, x)
    expected = a.numpy() @ a.numpy()
    expected[1] = numbers(8) * 3
    np.testing.assert_allclose(x.numpy(), expected)
    assert total.item() == 84


def test_several_writes_in_a_row_stay_in_place() -> None:
    x = Tensor(numbers(8)).realize()
    memory = x._cell.value.node.realized
    x += 1
    x *= 2
    x += 1
    x.realize()
    assert x._cell.value.node.realized is memory
    np.testing.assert_array_equal(x.numpy(), (numbers(8) + 1) * 2 + 1)


def test_a_version_that_is_replaced_as_a_whole_is_not_computed() -> None:
    x = Tensor(numbers(8)).realize()
    x[1:3] = Tensor(numbers(8)).sum()
    x.assign(Tensor(numbers(8, 5)).realize() * 2)
    assert len(make_schedule([x._cell.value.node]).items) == 1
    np.testing.assert_array_equal(x.numpy(), numbers(8, 5) * 2)


def test_who_reads_what_a_replaced_version_was_made_of_reads_the_old_contents() -> None:
    x = Tensor(numbers(8)).realize()
    held = x[:2] * 2
    x[:2] = held
    x.assign(Tensor(numbers(8, 5)).realize() + 1)
    x.realize()
    np.testing.assert_array_equal(x.numpy(), numbers(8, 6))
    np.testing.assert_array_equal(held.numpy(), [0, 2])


@pytest.mark.parametrize("asked_for", [False, True])
def test_elements_put_in_are_a_value_for_others_too(asked_for: bool) -> None:
    x = Tensor(numbers(8)).realize()
    added = x.index_add(0, Tensor([1, 3]), Tensor([10.0, 20.0]))
    x.assign(added)
    Tensor.realize(*([x, added] if asked_for else [x]))
    expected = numbers(8)
    expected[[1, 3]] += 10, 20
    np.testing.assert_array_equal(x.numpy(), expected)
    x += 1
    x.realize()
    np.testing.assert_array_equal(added.numpy(), expected)


def test_elements_put_into_another_part_of_the_same_memory() -> None:
    array = numbers(2 * SIZE)
    x = Tensor(array).realize()
    for start in (0, 1, SIZE // 2, SIZE):
        before = x.numpy()
        x[:SIZE] = x[start : start + SIZE].index_add(0, Tensor([1, 3]), Tensor([10.0, 20.0]))
        expected = before.copy()
        expected[:SIZE] = before[start : start + SIZE]
        expected[[1, 3]] += 10, 20
        np.testing.assert_array_equal(x.numpy(), expected)


def test_kernels_that_become_one_do_not_wait_for_each_other() -> None:
    """`a` could be one with `d`, and `b` with `c`; but not both."""
    x, u = Tensor(numbers(8)).realize(), Tensor(numbers(8, 3)).realize()
    y, z = [Tensor(numbers(8, start), device="NUMPY").realize() for start in (1, 2)]
    a = x + 1
    b = y + a.sum().to("NUMPY")
    c = z * 2
    d = u + c.sum().to(x.device)
    Tensor.realize(a, b, c, d)
    np.testing.assert_array_equal(b.numpy(), numbers(8, 1) + numbers(8, 1).sum())
    np.testing.assert_array_equal(d.numpy(), numbers(8, 3) + numbers(8, 2).sum() * 2)


def test_two_results_of_a_kernel_of_which_the_other_needs_what_the_one_is_written_over() -> None:
    """`b` and the last `a` are computed together; a version of `a` in between is made of `b`."""
    array = np.arange(18).reshape(3, 6)
    a, b = Tensor(array).realize(), Tensor(0 * array).realize()
    joined = a.cat(a * 2, dim=0).contiguous()
    b.assign(joined[0:3].flip(0))
    a[0:2] = b[1:3].flip(0)
    product = a * b
    a.assign(b - 1)
    schedule = make_schedule([tensor._cell.value.node for tensor in (product, a, b)])
    assert not schedule.plan.arenas, "no version is computed beside its memory"
    del schedule
    Tensor.realize(product, a, b)
    turned, between = array[::-1], array.copy()
    between[:2] = turned[1:][::-1]
    assert np.array_equal(product.numpy(), between * turned)
    assert np.array_equal(a.numpy(), turned - 1)
    assert np.array_equal(b.numpy(), turned)


@pytest.mark.parametrize("order", ["zwac", "acwz", "awcz"])
def test_a_version_is_written_over_one_further_back_where_that_between_comes_later(
    order: str,
) -> None:
    """`w` and the last `a` are computed together; the first `a` is made of `w`, and before it."""
    array = numbers(18).reshape(3, 6)
    a, c = [Tensor(array + i).realize() for i in (0, 2)]
    v = (a * 3).contiguous()
    w = (v + 1).contiguous()
    a.assign((w * 2 + w).contiguous())
    z = a + v
    a[0:1] = (w - c)[0:1]
    c.assign((a * 2 + c).contiguous())
    a.assign(w * 3)
    tensors = {"z": z, "w": w, "a": a, "c": c}
    Tensor.realize(*[tensors[name] for name in order])
    between = array * 9 + 3
    between[0] = array[0] * 2 - 1
    np.testing.assert_array_equal(z.numpy(), array * 12 + 3)
    np.testing.assert_array_equal(c.numpy(), between * 2 + array + 2)
    np.testing.assert_array_equal(a.numpy(), array * 9 + 3)
