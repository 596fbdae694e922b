"""Which kernels there are for values that are joined from others, and where they store."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.gpus import GPU
from tests.planning import Work

from ferrule import Tensor, TinyJit, Variable, nn
from ferrule.engine.realize import run
from ferrule.fusion import _plan, make_schedule
from ferrule.fusion.plans.graph_key import KeyedGraph
from ferrule.ir.buffer import Buffer
from ferrule.ops import BinaryOps, LazyOp, ScheduleItem

Array = np.ndarray[Any, Any]


def tensor(*shape: int, seed: int = 0) -> Tensor:
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor(array).realize()


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    """Products of many sizes have one kernel for all, which adds up in another order."""
    Work.forget()


def product(rows: int, columns: int, seed: int = 0) -> Tensor:
    """Something that a kernel of its own stores."""
    return tensor(rows, 2048, seed=seed) @ tensor(2048, columns, seed=seed + 50)


def computed(*tensors: Tensor) -> tuple[list[ScheduleItem], list[Array]]:
    """The kernels that compute tensors, and what is in these then."""
    gc.collect()  # what something refers to has memory of its own
    schedule = make_schedule([whole.lazydata for whole in tensors])
    run(schedule.items)
    schedule.commit()
    return schedule.items, [whole.numpy() for whole in tensors]


def span(buffer: Buffer) -> tuple[int, int, int]:
    return buffer.base.serial, buffer.byte_offset, buffer.byte_offset + buffer.nbytes


def asts(items: Sequence[ScheduleItem]) -> set[LazyOp]:
    return {item.ast for item in items}


def test_pieces_that_kernels_store_are_stored_where_they_belong() -> None:
    parts = [product(4, 8, seed).numpy() for seed in range(3)]
    items, (array,) = computed(Tensor.cat([product(4, 8, seed) for seed in range(3)]))
    assert len(items) == 3
    assert len(asts(items)) == 1
    assert len({item.out.base.serial for item in items}) == 1
    assert sorted(item.out.byte_offset for item in items) == [0, 128, 256]
    np.testing.assert_array_equal(array, np.concatenate(parts))


@pytest.mark.parametrize("epilogue", ["none", "bias", "bias and relu", "norm"])
def test_contractions_are_stored_where_they_belong_with_their_epilogues(epilogue: str) -> None:
    image, row = tensor(1, 64, 24, 24), tensor(32, seed=9).reshape(1, 32, 1, 1)

    def layer(taps: int) -> Tensor:
        weight = tensor(32, 64, taps, taps, seed=taps)
        found = image.conv2d(weight, padding=taps // 2)
        if epilogue == "norm":
            return ((found - row) / (row * row + 1).sqrt() * row + row).relu()
        found = found if epilogue == "none" else found + row
        return found.relu() if epilogue == "bias and relu" else found

    parts = [layer(taps).numpy() for taps in (1, 3)]
    items, (array,) = computed(layer(1).cat(layer(3), dim=1))
    assert len(items) == 2
    assert array == pytest.approx(np.concatenate(parts, axis=1), rel=1e-5, abs=1e-5)


def test_pieces_may_lie_across_the_memory() -> None:
    parts = [product(4, 8, seed).numpy() for seed in range(2)]
    items, (array,) = computed(product(4, 8, 0).cat(product(4, 8, 1), dim=1))
    assert len(items) == 2
    # Rows of 16 elements: the last one ends with the piece.
    offsets = {item.out.byte_offset: item.out.size for item in items}
    assert offsets == {0: 16 * 3 + 8, 32: 16 * 3 + 8}
    np.testing.assert_array_equal(array, np.concatenate(parts, 1))


def test_no_piece_is_stored_by_columns() -> None:
    items, (array,) = computed(Tensor.stack([product(4, 8, 0), product(4, 8, 1)], dim=-1))
    assert len(items) == 3
    np.testing.assert_array_equal(array[..., 1], product(4, 8, 1).numpy())


def test_pieces_of_pieces() -> None:
    parts = [product(4, 8, 0).numpy(), product(4, 8, 1).numpy()]
    expected = np.concatenate([np.concatenate(parts, 1), product(4, 16, 2).numpy()])
    inner = product(4, 8, 0).cat(product(4, 8, 1), dim=1).contiguous()
    nested = inner.cat(product(4, 16, 2))
    del inner
    items, (array,) = computed(nested)
    assert len(items) == 3
    assert len({item.out.base.serial for item in items}) == 1
    np.testing.assert_allclose(array, expected, rtol=0, atol=1e-3)  # sums of the second size


def test_what_reads_a_piece_reads_a_part_of_the_whole() -> None:
    first = product(32, 32, 0)
    second = first @ tensor(32, 32, seed=9)
    whole = first.cat(second)
    del first, second
    items, (array,) = computed(whole)
    assert len(items) == 2
    assert span(items[0].out) in [span(buffer) for buffer in items[1].inputs]
    assert items[0].out.base is items[1].out.base
    expected = product(32, 32, 0).numpy()
    np.testing.assert_array_equal(array[:32], expected)
    np.testing.assert_allclose(array[32:], expected @ tensor(32, 32, seed=9).numpy(), rtol=1e-3)


def test_other_pieces_get_kernels_of_their_own() -> None:
    beside = tensor(16, 32, seed=3)
    items, (array,) = computed(Tensor.cat([product(32, 32), beside.exp(), Tensor.ones(1, 32)]))
    assert len(items) == 2  # small ones are one kernel
    starts = sorted(out.byte_offset for item in items for out in item.outputs)
    assert starts == [0, 4 * 32 * 32, 4 * 48 * 32]
    np.testing.assert_array_equal(array[:32], product(32, 32).numpy())
    np.testing.assert_allclose(array[32:48], np.exp(beside.numpy()), rtol=1e-6)
    np.testing.assert_array_equal(array[48], np.ones(32))


def test_a_small_piece_does_not_have_the_whole_wait_in_memory() -> None:
    items, (array,) = computed(product(4, 8).cat(tensor(5, 8, seed=3) * 2))
    assert [item.out.size for item in items] == [32, 72]
    np.testing.assert_array_equal(array[4:], tensor(5, 8, seed=3).numpy() * 2)


def test_one_value_as_two_pieces() -> None:
    piece = product(32, 32)
    whole = piece.cat(piece)
    del piece
    items, (array,) = computed(whole)
    assert len(items) == 2
    assert items[0].out.base is items[1].out.base
    np.testing.assert_array_equal(array[:32], array[32:])
    np.testing.assert_array_equal(array[:32], product(32, 32).numpy())


def test_wholes_of_one_form_are_apart() -> None:
    wholes = [product(32, 32, i).cat(product(32, 32, i + 1)) for i in (0, 2)]
    items, arrays = computed(*wholes)
    assert len(items) == 4
    for i, array in zip((0, 2), arrays, strict=True):
        np.testing.assert_array_equal(array[32:], product(32, 32, i + 1).numpy())


@pytest.mark.parametrize("start", [16, 32, 40])
def test_padded_values_that_overlap_or_leave_gaps(start: int) -> None:
    above, below = ((0, 40), (0, 0)), ((start, 40 - start), (0, 0))
    inside = Tensor.ones(32, 32, dtype="bool").pad(above)
    whole = inside.where(product(32, 32, 0).pad(above), product(32, 32, 1).pad(below))
    _, (array,) = computed(whole)
    expected = np.pad(product(32, 32, 1).numpy(), below)
    expected[:32] = product(32, 32, 0).numpy()
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("kind", ["elsewhere", "of some", "a corner"])
def test_what_looks_like_joined_values_and_is_none(kind: str) -> None:
    above, below = ((0, 32), (0, 0)), ((32, 0), (0, 0))
    inside = np.ones((32, 32), bool)
    place = above
    if kind == "elsewhere":
        place = (16, 16), (0, 0)
    elif kind == "of some":
        inside = tensor(32, 32).numpy() > 0
    else:
        above = place = (0, 32), (0, 32)
        below = (32, 0), (32, 0)
    is_one = kind != "of some"
    condition = Tensor.ones(32, 32, dtype="bool") if is_one else Tensor(inside).realize()
    whole = condition.pad(place).where(product(32, 32, 0).pad(above), product(32, 32, 1).pad(below))
    first, second = (product(32, 32, seed).numpy() for seed in range(2))
    expected = np.where(np.pad(inside, place), np.pad(first, above), np.pad(second, below))
    np.testing.assert_array_equal(computed(whole)[1][0], expected)


def test_one_piece_of_two_values() -> None:
    pieces = [product(32, 32, seed) for seed in range(3)]
    wholes = pieces[0].cat(pieces[1]), pieces[2].cat(pieces[0])
    del pieces
    items, arrays = computed(*wholes)
    assert len(items) == 4  # the shared piece is stored once, and copied once
    expected = [product(32, 32, seed).numpy() for seed in range(3)]
    np.testing.assert_array_equal(arrays[0], np.concatenate([expected[0], expected[1]]))
    np.testing.assert_array_equal(arrays[1], np.concatenate([expected[2], expected[0]]))


def test_what_an_element_wise_kernel_stores_it_stores_in_all_wholes() -> None:
    x = tensor(32, 32)
    first, second, third = ((x * scale).contiguous() for scale in (2, 3, 5))
    wholes = first.cat(second, dim=1), first.cat(third, dim=1)
    del first, second, third
    items, arrays = computed(*wholes)
    assert len(items) == 1
    assert len({out.base.serial for out in items[0].outputs}) == 2
    for scale, array in zip((3, 5), arrays, strict=True):
        expected = np.concatenate([x.numpy() * 2, x.numpy() * scale], 1)
        np.testing.assert_array_equal(array, expected)


def test_what_is_needed_later_is_stored_in_a_whole_as_well() -> None:
    x = tensor(32, 32)
    first = (x * 2).contiguous()
    items, (whole, array) = computed(first.cat((x * 3).contiguous()), first)
    assert len(items) == 1
    np.testing.assert_array_equal(array, x.numpy() * 2)
    np.testing.assert_array_equal(whole, np.concatenate([x.numpy() * 2, x.numpy() * 3]))


def test_a_step_of_training_has_no_kernel_that_only_joins() -> None:
    """Two gates of a GRU are parts of what is given, and of what is kept."""
    cell = nn.GRUCell(16, 128)
    parameters = nn.state.get_parameters(cell)
    for parameter in parameters:
        parameter.requires_grad_().realize()
    counts = []
    for steps in (4, 5):
        state, states = Tensor.zeros(8, 128), []
        for step in tensor(steps, 8, 16):
            state = cell(step, state)
            states.append(state)
        (Tensor.stack(states) ** 2).mean().backward()
        schedule = make_schedule([x.grad.lazydata for x in parameters if x.grad is not None])
        counts.append(len(schedule.items))
        for parameter in parameters:
            parameter.grad = None
    # Forwards two products and the gates; backwards the gates, and products for the state and both
    # weights.
    assert counts[1] - counts[0] == 7


def test_a_piece_that_is_needed_later_has_memory_of_its_own() -> None:
    piece = product(32, 32)
    doubled = piece * 2
    whole = piece.cat(product(32, 32, 1)).realize()
    del piece
    assert whole.lazydata.realized is not None
    whole[:32] = 0
    whole.realize()
    np.testing.assert_array_equal(doubled.numpy(), product(32, 32).numpy() * 2)


def test_many_pieces_whose_chain_is_cut() -> None:
    items, (array,) = computed(Tensor.cat([product(4, 8, seed) for seed in range(40)]))
    assert len(items) == 40
    assert len(asts(items)) == 1
    np.testing.assert_array_equal(array[156:], product(4, 8, 39).numpy())


def test_what_is_written_to_is_no_place_for_pieces() -> None:
    state = tensor(12, 8, seed=4).clone().realize()
    before = state.numpy().copy()
    state.assign(state[4:].cat(product(4, 8)))
    np.testing.assert_array_equal(state.numpy()[:8], before[4:])
    np.testing.assert_array_equal(state.numpy()[8:], product(4, 8).numpy())


def test_what_is_written_over_is_no_piece() -> None:
    piece = product(32, 32).contiguous()
    whole = piece.cat(product(32, 32, 1))
    piece[:1] = 0
    before = product(32, 32).numpy()
    _, (array, changed) = computed(whole, piece)
    np.testing.assert_array_equal(array[:32], before)
    np.testing.assert_array_equal(changed, np.concatenate([np.zeros((1, 32)), before[1:]]))


def test_a_whole_that_gets_elements_by_index_has_no_pieces_in_it() -> None:
    piece = product(32, 32)
    whole = piece.cat(product(32, 32, 1))
    added = whole.index_add(0, Tensor([3]), Tensor.ones(1, 32))
    reader = piece @ tensor(32, 32, seed=9)
    del piece, whole
    _, (array, found) = computed(added, reader)
    first, second = product(32, 32).numpy(), product(32, 32, 1).numpy()
    expected = np.concatenate([first, second])
    expected[3] += 1
    np.testing.assert_allclose(array, expected, rtol=1e-6)
    np.testing.assert_allclose(found, first @ tensor(32, 32, seed=9).numpy(), atol=1e-2)


def test_what_gets_elements_by_index_is_no_piece() -> None:
    piece = product(32, 32)
    whole = piece.cat(product(32, 32, 1))
    added = piece.index_add(0, Tensor([3]), Tensor.ones(1, 32))
    del piece
    before = product(32, 32).numpy()
    _, (array, changed) = computed(whole, added)
    np.testing.assert_array_equal(array[:32], before)
    np.testing.assert_allclose(changed[3], before[3] + 1, rtol=1e-6)


def test_what_a_function_of_the_host_reads_is_no_piece() -> None:
    piece = product(32, 32)
    whole = piece.cat(product(32, 32, 1), dim=1)
    values = piece.svdvals()
    del piece
    expected = product(32, 32).numpy()
    _, (array, found) = computed(whole, values)
    np.testing.assert_array_equal(array[:, :32], expected)
    np.testing.assert_allclose(found, np.linalg.svd(expected, compute_uv=False), rtol=1e-3)


@pytest.mark.parametrize("columns", [7, 8])
def test_parts_begin_at_whole_vectors_where_threads_of_a_block_load_them(columns: int) -> None:
    pieces = [product(5, columns, 0), product(5, columns, 1)]
    node = pieces[0].cat(pieces[1], dim=1).lazydata
    del pieces
    plan, _ = _plan(KeyedGraph([node]).graph(), GPU)
    found = []
    for step in plan.steps:
        view = step.ast.arg.st.view
        assert view.strides[:2] == (2 * columns, 1)
        found.append((plan.places[step.places[0]].offset, view.offset))
    assert sorted(found) == [(0, 0), (columns - columns % 4, columns % 4)]


def test_rows_of_what_a_kernel_stores_have_one_kernel() -> None:
    """Also of what is padded or turned round, and whatever the number of rows."""
    rows = product(32, 32)
    parts = [rows[i].sum() + rows[i + 1].flip(0) for i in range(2, 20, 3)]
    items, arrays = computed(*[part.contiguous() for part in parts])
    assert len({item.ast for item in items}) <= 3
    expected = rows.numpy()
    for i, array in zip(range(2, 20, 3), arrays, strict=True):
        np.testing.assert_allclose(array, expected[i].sum() + expected[i + 1][::-1], atol=1e-3)


def test_rows_of_symbolic_size_have_one_kernel() -> None:
    layer = nn.LSTM(8, 16)
    found = []
    for steps in (6, 12):
        x = tensor(steps, 6, 8)
        count = Variable("n", 1, 6).bind(4)
        hidden, _ = layer(x.shrink(((0, steps), (0, count), (0, 8))))
        items, (array,) = computed(hidden.sum(1))
        del hidden
        np.testing.assert_allclose(array, layer(x[:, :4])[0].sum(1).numpy(), rtol=1e-5, atol=1e-6)
        found.append(len(asts(items)))
    assert found[1] <= found[0] + 1  # more than 8 steps are joined by another kernel


# *** in replays ***


def test_replays_put_pieces_into_new_memory() -> None:
    weight = tensor(2048, 32)

    @TinyJit
    def joined(x: Tensor) -> tuple[Tensor, Tensor]:
        first = x @ weight
        second = first.relu() @ weight[:32]
        return first.cat(second), second.cat(first, dim=1) + 1

    results = []
    for seed in range(5):
        x = tensor(32, 2048, seed=seed)
        results.append((x, joined(x)))
    assert joined.cnt == 5
    assert joined.jit_cache
    for x, (whole, other) in results:
        first = x.numpy().astype(np.float64) @ weight.numpy().astype(np.float64)
        second = np.maximum(first, 0) @ weight.numpy()[:32]
        np.testing.assert_allclose(whole.numpy(), np.concatenate([first, second]), atol=1e-2)
        expected = np.concatenate([second, first], 1) + 1
        np.testing.assert_allclose(other.numpy(), expected, atol=1e-2)


def test_replays_may_read_parts_of_their_results() -> None:
    weight = tensor(2048, 32)

    @TinyJit
    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x @ weight
        return whole, (whole[8:16] @ weight[:32]).contiguous()

    for seed in range(4):
        x = tensor(32, 2048, seed=seed)
        whole, part = parts(x)
        expected = whole.numpy()[8:16].astype(np.float64) @ weight.numpy()[:32]
        np.testing.assert_allclose(part.numpy(), expected, rtol=1e-4, atol=1e-3)
    assert parts.jit_cache


# *** gradients of parts ***


def ops_of(gradient: Tensor) -> set[Any]:
    return {node.op for node in KeyedGraph([gradient.lazydata]).graph().order}


def test_gradients_of_all_parts_are_joined() -> None:
    x = tensor(6, 4).requires_grad_()
    total = sum([(part * scale).sum() for scale, part in enumerate(x.chunk(3), 1)], Tensor(0.0))
    assert isinstance(total, Tensor)
    total.backward()
    assert x.grad is not None
    assert BinaryOps.ADD not in ops_of(x.grad)
    np.testing.assert_array_equal(x.grad.numpy()[:, 0], [1, 1, 2, 2, 3, 3])


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 2), (2, 5)],  # a gap at the end
        [(1, 2), (2, 6)],  # and at the start
        [(0, 2), (3, 6)],  # and between
        [(0, 3), (2, 6)],  # overlapping
        [(0, 2), (0, 2), (2, 6)],
        [(0, 6), (0, 3), (3, 6)],  # the whole as well
        [(3, 6), (0, 3)],
        [(2, 3)],
    ],
)
def test_gradients_of_some_parts(spans: list[tuple[int, int]]) -> None:
    x = tensor(6, 4).requires_grad_()
    expected = np.zeros((6, 4))
    total = Tensor(0.0)
    for scale, (start, stop) in enumerate(spans, 2):
        total = total + (x[start:stop] ** scale).sum()
        expected[start:stop] += scale * x.numpy()[start:stop].astype(np.float64) ** (scale - 1)
    total.backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_gradients_of_parts() -> None:
    x = tensor(6, 4).requires_grad_()
    first, second = x.chunk(2, 1)
    total = (first**3).sum() + (second**2 * first).sum()
    (gradient,) = total.gradient(x, create_graph=True)
    (again,) = (gradient**2).sum().gradient(x)
    a, b = (part.astype(np.float64) for part in np.split(x.numpy(), 2, 1))
    to_first, to_second = 3 * a**2 + b**2, 2 * a * b
    expected = [2 * to_first * 6 * a + 2 * to_second * 2 * b]
    expected += [2 * to_first * 2 * b + 2 * to_second * 2 * a]
    np.testing.assert_allclose(again.numpy(), np.concatenate(expected, 1), rtol=1e-4, atol=1e-4)
