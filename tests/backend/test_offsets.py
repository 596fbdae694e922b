"""Parts that begin elsewhere in each step are planned a few times, and then have one kernel."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.planning import Work

from ferrule import Tensor, TinyJit, Variable
from ferrule.codegen.policy import part_alignment
from ferrule.fusion import target_of
from ferrule.fusion.dynamic.families import ENOUGH_ALIKE as _ENOUGH
from ferrule.fusion.dynamic.families import _families
from ferrule.fusion.dynamic.offsets import stand_in
from ferrule.fusion.dynamic.parameters import integers_of
from ferrule.fusion.plans.graph_key import KeyedGraph

Array = np.ndarray[Any, Any]

PLACES = [(0, 0), (8, 8), (3, 5), (5, 3), (1, 8), (7, 0), (2, 2), (6, 4), (4, 1), (0, 7)]
IMAGES = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
FILTERS = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)


def crop(x: Any, i: int, j: int) -> Any:
    """8 x 8 elements of all images."""
    return x[:, :, i : i + 8, j : j + 8]


def forms(device: str, starts: Sequence[int]) -> list[int]:
    """By what parts of float32 that begin there are told apart: their distance from the multiples
    at which threads load vectors, where a device has such threads.
    """
    multiple = part_alignment(target_of(device)) // 4
    return [start % max(1, multiple) for start in starts]


def kernels_by(kinds: Sequence[int], kernels: Sequence[Any]) -> dict[int, set[Any]]:
    """Which sets of kernels ran for each kind."""
    found: dict[int, set[Any]] = {}
    for kind, kernel in zip(kinds, kernels, strict=True):
        found.setdefault(kind, set()).add(kernel)
    return found


def assert_like(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def gradient_of(x: Tensor) -> Tensor:
    weight = Tensor(FILTERS, requires_grad=True)
    (x.conv2d(weight, padding=1) ** 2).sum().backward()
    assert weight.grad is not None
    return weight.grad


USES: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x + 1,
    "a sum": lambda x: x.sum((2, 3)),
    "normalised": lambda x: (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True),
    "convolved": lambda x: x.conv2d(Tensor(FILTERS)),
    "convolved with padding": lambda x: x.conv2d(Tensor(FILTERS), padding=1).relu(),
    "a gradient": gradient_of,
    "flipped": lambda x: x.flip((3,)).conv2d(Tensor(FILTERS), padding=1),
    "every second one, from the end": lambda x: x[:, :, ::-2, ::2].exp(),
    "transposed": lambda x: x.permute(3, 2, 0, 1).softmax(0),
    "in another shape": lambda x: x.reshape(6, 64) @ x.reshape(6, 64).transpose(0, 1),
    "a part of a part": lambda x: x[:, 1, 2:5, 1:].cumsum(1),
    "pooled": lambda x: x.max_pool2d(2),
    "two parts": lambda x: x[:, :, :4] * x[:, :, 4:],
}


@pytest.mark.parametrize("name", USES)
def test_kernels_are_given_parts_of_memory(device: str, name: str, work: Work) -> None:
    x = Tensor(IMAGES).realize()
    use = USES[name]
    expected = [use(Tensor(crop(IMAGES, i, j)).realize()).numpy() for i, j in PLACES]
    work.forget()  # what is cut from images is not to be taken for smaller ones
    work.plans = 0
    kernels = []
    for (i, j), wanted in zip(PLACES, expected, strict=True):
        work.kernels.clear()
        assert_like(use(crop(x, i, j)).numpy(), wanted)
        kernels.append(frozenset(work.kernels))
    kinds = forms(device, [j for _, j in PLACES])
    later = kernels_by(kinds[_ENOUGH:], kernels[_ENOUGH:])
    assert all(len(found) == 1 for found in later.values())
    if name != "two parts":  # which of one leaf are told apart later
        assert all(len(found) == 1 for found in kernels_by(kinds, kernels).values())
    a_plan = len(kernels[0]) if name == "a gradient" else 1
    assert work.plans <= (_ENOUGH + len(later)) * a_plan


def padded(x: Tensor, i: int, j: int) -> Tensor:
    return x.pad(((0, 0), (0, 0), (4, 4), (4, 4)))[:, :, i : i + 16, j : j + 16]


def erased(x: Tensor, i: int, j: int) -> Tensor:
    y = x * 2
    y[:, :, i : i + 8, j : j + 8] = 0
    return y


def doubled(x: Tensor, i: int, j: int) -> Tensor:
    y = x * 2
    y[:, :, i : i + 8, j : j + 8] *= 3
    return y


MOVES: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "a crop of what is padded": padded,
    "a crop of a sum": lambda x, i, j: crop(x.cumsum(3), i, j),
    "padded elsewhere": lambda x, i, j: x.pad(((0, 0), (0, 0), (i, 8 - i), (j, 8 - j))),
    "a written part": erased,
    "a part in place": doubled,
    "both": lambda x, i, j: crop(padded(x, 8 - j, i), i, j) + crop(x, j, i),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("is_convolved", [False, True])
def test_other_offsets_are_variables(
    device: str, name: str, is_convolved: bool, work: Work
) -> None:
    x = Tensor(IMAGES).realize()

    def use(i: int, j: int) -> Tensor:
        moved = MOVES[name](x, i, j)
        return moved.conv2d(Tensor(FILTERS), padding=1) if is_convolved else moved.contiguous()

    expected = []
    for i, j in PLACES:
        _families.clear()  # nothing is known to change
        expected.append(use(i, j).numpy())
    work.forget()
    work.plans = 0
    kernels = []
    for (i, j), wanted in zip(PLACES, expected, strict=True):
        work.kernels.clear()
        assert_like(use(i, j).numpy(), wanted)
        kernels.append(frozenset(work.kernels))
    has_part = name == "both"  # beside what is padded: a crop of memory, with the places swapped
    kinds = forms(device, [i if has_part else 0 for i, _ in PLACES])
    later = kernels_by(kinds[_ENOUGH:], kernels[_ENOUGH:])
    assert all(len(found) == 1 for found in later.values())
    assert work.plans == _ENOUGH + len(later)


def test_rows_of_what_is_padded_at_a_variable(device: str) -> None:
    x = Tensor(IMAGES[0, 0, :3, :4]).realize().pad(((2, 2), (2, 2)))
    array = np.pad(IMAGES[0, 0, :3, :4], 2)
    for row in range(7):
        place = Variable("place", 0, 6).bind(row)
        part = x[place : place + 1]
        np.testing.assert_array_equal(part.reshape(2, 4).numpy(), array[row].reshape(2, 4))
        expected = np.broadcast_to(array[row], (5, 8))
        np.testing.assert_array_equal(part.expand(5, 8).numpy(), expected)
        np.testing.assert_array_equal(x[:, place].reshape(7, 1).numpy()[:, 0], array[:, row])


def test_memory_that_is_written_meanwhile_is_no_part(device: str) -> None:
    _families.clear()
    x, array = Tensor(np.arange(40, dtype=np.float32)).realize(), np.arange(40, dtype=np.float32)
    for i in range(12):
        x[i : i + 8] = x[i + 3 : i + 11] + x[20 - i : 28 - i]
        array[i : i + 8] = array[i + 3 : i + 11] + array[20 - i : 28 - i]
        np.testing.assert_array_equal(x.numpy(), array)


def test_a_cache_that_is_written_to_at_the_next_place(device: str, work: Work) -> None:
    """Memory that exists is written to and read as a whole: a token after the other is decoded."""
    _families.clear()
    cache, array = Tensor.zeros(2, 30, 8).realize(), np.zeros((2, 30, 8), np.float32)
    rows = np.random.default_rng(0).standard_normal((30, 2, 8)).astype(np.float32)
    work.plans = 0
    for place, row in enumerate(rows[:12]):
        work.kernels.clear()
        cache[:, place] = Tensor(row) * 2
        array[:, place] = row * 2
        assert_like((cache * cache).sum(2).softmax(1).numpy(), softmax((array**2).sum(2)))
        assert_like(cache.numpy(), array)
    assert work.plans <= _ENOUGH + 3


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_a_part_in_place_is_written_once(device: str, work: Work) -> None:
    x, y = Tensor.zeros(40).realize(), Tensor.ones(8).realize()
    for i in range(9):
        work.kernels.clear()
        x[i : i + 8] += y
        x.realize()
        assert len(work.kernels) == 1
    assert x.tolist() == [*range(1, 9), *range(8, 0, -1), *[0] * 24]


def test_rows_that_are_moved_in_their_own_memory(device: str) -> None:
    """The places overlap only once the graph's form is known."""
    _families.clear()
    x, array = Tensor(np.arange(64, dtype=np.float32)).realize(), np.arange(64, dtype=np.float32)
    for source, place in [(0, 30), (1, 33), (2, 31), (3, 40), (4, 35), (5, 37), (8, 6), (7, 9)]:
        x[place : place + 8] = x[source : source + 8].flip(0) + x[source + 1 : source + 9]
        array[place : place + 8] = array[source : source + 8][::-1] + array[source + 1 : source + 9]
        np.testing.assert_array_equal(x.numpy(), array)


def test_a_part_of_memory_that_is_turned_round(device: str) -> None:
    _families.clear()
    x = Tensor(IMAGES).realize().flip((2, 3))
    for i, j in PLACES:
        found = crop(x, i, j).conv2d(Tensor(FILTERS), padding=1).numpy()
        expected = Tensor(crop(IMAGES[:, :, ::-1, ::-1], i, j).copy())
        assert_like(found, expected.conv2d(Tensor(FILTERS), padding=1).numpy())


def test_a_value_on_the_way_that_somebody_holds_is_kept(device: str, work: Work) -> None:
    x = Tensor(IMAGES).realize()
    for i, j in PLACES:
        held = crop(x, i, j).sin().tanh().gelu().sin().exp().tanh().cos()
        (held * 2).sum().realize()
        work.kernels.clear()
        held.numpy()
        assert not work.kernels


def test_a_captured_function_with_two_parts_of_what_is_padded(device: str) -> None:
    _families.clear()
    x = Tensor(IMAGES).realize()
    y = np.pad(IMAGES, ((0, 0), (0, 0), (4, 4), (4, 4)))

    @TinyJit
    def moved(start: int) -> tuple[Tensor, Tensor]:
        return padded(x, start, 1).exp().realize(), padded(x, 1, start + 1).exp().realize()

    for i, j in PLACES:
        padded(x, i, j).exp().realize()
    for start in (2, 3, 2, 3, 2, 3):
        first, second = moved(start)
        assert_like(first.numpy(), np.exp(y[:, :, start : start + 16, 1:17]))
        assert_like(second.numpy(), np.exp(y[:, :, 1:17, start + 1 : start + 17]))


def test_whoever_holds_a_part_has_its_old_elements_after_a_write(device: str) -> None:
    _families.clear()
    x, array = Tensor(np.arange(40, dtype=np.float32)).realize(), np.arange(40, dtype=np.float32)
    for i in range(10):
        held = x[i : i + 8] + 0.5
        part = x[i : i + 8]
        np.testing.assert_array_equal((part * 2).numpy(), array[i : i + 8] * 2)
        x += 1
        x.realize()
        np.testing.assert_array_equal(held.numpy(), array[i : i + 8] + 0.5)
        array += 1
        np.testing.assert_array_equal(part.numpy(), array[i : i + 8])


def test_a_part_is_read_beside_what_is_written_to_its_memory(device: str) -> None:
    """Its reader runs after the write: neither it nor a kernel of its own part may come first."""
    _families.clear()
    x, array = Tensor(np.arange(40, dtype=np.float32)).realize(), np.arange(40, dtype=np.float32)
    for i in range(10):
        part = x[i : i + 8].clone()
        x.assign(x.flip(0) + 1)
        found = (part * x[:8]).realize()
        expected = array[i : i + 8]
        array = array[::-1] + 1
        np.testing.assert_array_equal(found.numpy(), expected * array[:8])
        np.testing.assert_array_equal(x.numpy(), array)


def test_an_old_version_that_is_larger_to_compute_than_to_keep_is_kept(device: str) -> None:
    _families.clear()
    y = np.arange(40, dtype=np.float32) * 10
    x, array = Tensor(np.arange(40, dtype=np.float32)).realize(), np.arange(40, dtype=np.float32)
    others = Tensor(y).realize()
    for i in range(10):
        held = x.reshape(1, 40).expand(64, 40) + 0.5
        expected = np.broadcast_to(array + np.float32(0.5), (64, 40))
        x[i : i + 8] = others[i : i + 8] + 1
        array[i : i + 8] = y[i : i + 8] + 1
        np.testing.assert_array_equal(x.numpy(), array)
        np.testing.assert_array_equal(held.numpy(), expected)


def test_a_captured_function_keeps_its_part(device: str, work: Work) -> None:
    x = Tensor(IMAGES).realize()

    @TinyJit
    def convolved(i: int, j: int) -> Tensor:
        return crop(x, i, j).conv2d(Tensor(FILTERS), padding=1)

    @TinyJit
    def moved(i: int, j: int) -> Tensor:
        return padded(x, i, j).exp()

    y = np.pad(IMAGES, ((0, 0), (0, 0), (4, 4), (4, 4)))
    expected = [
        Tensor(crop(IMAGES, i, j)).conv2d(Tensor(FILTERS), padding=1).numpy() for i, j in PLACES
    ]
    for _ in range(3):
        for (i, j), wanted in zip(PLACES, expected, strict=True):
            assert_like(convolved(i, j).numpy(), wanted)
            assert_like(moved(i, j).numpy(), np.exp(y[:, :, i : i + 16, j : j + 16]))
    x.assign(Tensor(-IMAGES)).realize()
    assert_like(moved(3, 5).numpy(), np.exp(-y[:, :, 3:19, 5:21]))
    assert_like(convolved(3, 5).numpy(), -expected[2])


def test_parts_begin_at_multiples(device: str) -> None:
    x = Tensor(np.arange(50, dtype=np.float32)).realize()
    for start in range(1, 9):
        graph = KeyedGraph([(x[start : start + 8][::-1] * 2).lazydata]).graph()
        assert [node.op.name for node in graph.everything if integers_of(node)[1]] == ["SHRINK"]
        found = stand_in(graph, (), (0,), 16, may_vary=True)
        assert found is not None
        (leaf,) = found.graph.parts
        assert leaf.realized is not None
        assert leaf.realized.byte_offset == start * 4 // 16 * 16
        assert leaf.realized.size == 8 + start % 4


def _put_rows(cache: Tensor, row: Tensor, place: Any) -> Tensor:
    cache[place : place + 1] = row
    cache[:, place] = cache[:, 0] + 1.0
    return (cache * 2).sum(0).realize()


@pytest.mark.parametrize("captured", [False, True])
def test_writes_at_the_place_that_a_variable_says(device: str, captured: bool) -> None:
    step = TinyJit(_put_rows) if captured else _put_rows
    cache = Tensor.zeros(8, 8, device=device).contiguous().realize()
    expected = np.zeros((8, 8), np.float32)
    variable = Variable("place", 0, 7)
    for call in range(6):
        place = call * 3 % 8
        row = (Tensor.ones(1, 8, device=device) * (call + 1)).realize()
        total = step(cache, row, variable.bind(place))
        expected[place] = call + 1
        expected[:, place] = expected[:, 0] + 1
        np.testing.assert_array_equal(cache.numpy(), expected)
        np.testing.assert_array_equal(total.numpy(), 2 * expected.sum(0))
