"""Sequences of another length in each step are planned a few times, and then have one plan."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden.test_golden import TARGET
from tests.planning import Work

import ferrule.fusion
from ferrule import Context, Tensor, TinyJit, Variable
from ferrule.autograd import TracedValue
from ferrule.codegen.heuristic import choose
from ferrule.codegen.lower import lower
from ferrule.fusion import make_schedule
from ferrule.fusion.dynamic import lengths
from ferrule.fusion.dynamic.families import ENOUGH_SIZES as _ENOUGH
from ferrule.fusion.dynamic.laws import MOST_LENGTHS
from ferrule.fusion.dynamic.laws import laws_of as _laws
from ferrule.fusion.graph import Graph
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import Length
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.shape.view import ShapeError
from ferrule.nn.state import safe_load, safe_save

Array = np.ndarray[Any, Any]

LENGTHS = [3, 11, 6, 9, 30, 4, 17, 31, 5]
ROWS = np.random.default_rng(0).standard_normal((2, 150, 6)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)


def assert_like(found: Array, expected: Array) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def attended(x: Array) -> Array:
    return softmax(x @ x.swapaxes(-1, -2) / np.sqrt(x.shape[-1]), -1) @ x


def normalised(x: Any) -> Any:
    middle = x - x.mean(1, keepdims=True)
    return middle / ((middle * middle).mean(1, keepdims=True) + 1e-5) ** 0.5


def gradient_of(x: Tensor) -> Tensor:
    y = x.detach()
    y.requires_grad = True
    (y.softmax(1) * y).sum().backward()
    assert y.grad is not None
    return y.grad


def gradient(x: Array) -> Array:
    s = softmax(x, 1)
    return s * (1 + x - (s * x).sum(1, keepdims=True))


USES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "as it is": (lambda x: x + 1, lambda x: x + 1),
    "a sum along it": (lambda x: x.sum(1), lambda x: x.sum(1)),
    "a sum of each": (lambda x: x.sum(2), lambda x: x.sum(2)),
    "a mean of all": (lambda x: x.mean(), lambda x: x.mean()),
    "normalised": (lambda x: normalised(x), normalised),
    "softmax along it": (lambda x: x.softmax(1), lambda x: softmax(x, 1)),
    "softmax of each": (lambda x: x.softmax(2), lambda x: softmax(x, 2)),
    "times weights": (lambda x: x @ Tensor(WEIGHTS), lambda x: x @ WEIGHTS),
    "squared": (lambda x: x.transpose(1, 2) @ x, lambda x: x.transpose(0, 2, 1) @ x),
    "attention": (lambda x: x.scaled_dot_product_attention(x, x), attended),
    "flattened": (lambda x: x.reshape(-1) * 2, lambda x: x.reshape(-1) * 2),
    "turned": (lambda x: x.permute(2, 1, 0).exp(), lambda x: np.exp(x.transpose(2, 1, 0))),
    "from the end": (lambda x: x.flip(1).contiguous(), lambda x: x[:, ::-1]),
    "running totals": (lambda x: x.cumsum(1), lambda x: x.cumsum(1)),
    "totals of each": (lambda x: x.cumsum(2), lambda x: x.cumsum(2)),
    "the largest": (lambda x: x.argmax(1), lambda x: x.argmax(1)),
    "one more": (lambda x: x.cat(x[:, :1], dim=1), lambda x: np.concatenate([x, x[:, :1]], 1)),
    "twice": (lambda x: x.cat(x, dim=0), lambda x: np.concatenate([x, x], 0)),
    "without the first": (lambda x: x[:, 1:] - x[:, :-1], lambda x: x[:, 1:] - x[:, :-1]),
    # A part of memory that begins at a fixed place, and ends where the memory ends, or before.
    "but for the first seven": (
        lambda x: x.reshape(-1)[7:] * 2,
        lambda x: x.reshape(-1)[7:] * 2,
    ),
    "five of them": (lambda x: x.reshape(-1)[7:12] * 2, lambda x: x.reshape(-1)[7:12] * 2),
    "padded to 160": (
        lambda x: x.pad(((0, 0), (0, 160 - x.shape[1]), (0, 0))),
        lambda x: np.pad(x, ((0, 0), (0, 160 - x.shape[1]), (0, 0))),
    ),
    "places": (
        lambda x: x + Tensor.arange(x.shape[1]).reshape(1, -1, 1),
        lambda x: x + np.arange(x.shape[1]).reshape(1, -1, 1),
    ),
    "a gradient": (gradient_of, gradient),
}


def _has_long_scans(device: str) -> bool:
    return device != "NUMPY" and ferrule.fusion.target_of(device).block_threads == 1


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("name", USES)
def test_any_length_has_the_same_kernels(device: str, name: str, is_part: bool, work: Work) -> None:
    use, expected = USES[name]
    x = Tensor(ROWS).realize()
    kernels = []
    for n in LENGTHS:
        work.kernels.clear()
        part = np.ascontiguousarray(ROWS[:, :n])
        found = use(x[:, :n] if is_part else Tensor(part).realize()).numpy()
        assert_like(found, np.asarray(expected(part)))
        kernels.append(frozenset(work.kernels))
    if name == "running totals" and not _has_long_scans(device):
        return  # these are by blocks, whose number is no law of the length
    assert len(set(kernels[_ENOUGH:])) == 1
    assert work.plans <= 2 * (_ENOUGH + 1)  # a gradient may be two schedules


def attended_causally(x: Array) -> Array:
    scores = x @ x.swapaxes(-1, -2) / np.sqrt(x.shape[-1])
    return softmax(np.where(np.tril(np.ones(scores.shape[-2:])), scores, -np.inf), -1) @ x


ATTENDED = np.random.default_rng(3).standard_normal((36, 130, 8)).astype(np.float32)


def attention_at(n: int, is_causal: bool) -> Tensor:
    q = Tensor(np.ascontiguousarray(ATTENDED[:, :n])).realize()
    return q.scaled_dot_product_attention(q, q, is_causal=is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_is_one_kernel_for_any_length(device: str, is_causal: bool, work: Work) -> None:
    """As it is for one; at the bounds, and with blocks and tiles that are full or have one row."""
    expected = attended_causally if is_causal else attended
    for n in (40, 57, 60):
        make_schedule([attention_at(n, is_causal).lazydata])
    for n in (33, 31, 64, 3, 16, 17, 49):
        found = attention_at(n, is_causal).numpy()
        assert_like(found, expected(ATTENDED[:, :n]))
    if device != "NUMPY":
        (kernel,) = work.kernels
        assert kernel.vars()


def test_the_gradient_of_attention_for_any_length(device: str, work: Work) -> None:
    """With sums that blocks add to memory, whose places are products of lengths."""
    for n in (70, 75, 81, 65, 128, 97):
        q, k = (Tensor(ATTENDED[i : i + 32, :n].copy(), requires_grad=True) for i in (0, 4))
        weights = Tensor(ATTENDED[2:34, :n, ::-1].copy())
        (q.scaled_dot_product_attention(k, k, is_causal=True) * weights).sum().backward()
        assert q.grad is not None
        assert k.grad is not None
        if n in (70, 75, 81):
            make_schedule([q.grad.lazydata, k.grad.lazydata])
            continue
        Tensor.realize(q.grad, k.grad)
        for found, expected in zip((q.grad, k.grad), _attention_gradients(n), strict=True):
            assert_like(found.numpy(), expected)
    assert device != "CPU" or all(ast.vars() for ast in work.kernels)


def _attention_gradients(n: int) -> tuple[Array, Array]:
    """Of queries, and of what is both keys and values."""
    q, k, weights = ATTENDED[:32, :n], ATTENDED[4:36, :n], ATTENDED[2:34, :n, ::-1]
    scale = 1 / np.sqrt(np.float32(8))
    scores = q @ k.swapaxes(1, 2) * scale
    powers = softmax(np.where(np.tril(np.ones((n, n))), scores, -np.inf), 2)
    slopes = weights @ k.swapaxes(1, 2)
    slopes = powers * (slopes - (slopes * powers).sum(2, keepdims=True)) * scale
    return slopes @ k, slopes.swapaxes(1, 2) @ q + powers.swapaxes(1, 2) @ weights


def test_attention_of_any_length_has_the_schedule_of_one(work: Work) -> None:
    """Its blocks, its tiles, and the tiles that a causal mask leaves out."""
    schedules = []
    with Context(FERRULE_DEVICE="CPU"):
        for n in (60, 52, 44, 63):
            schedule = make_schedule([attention_at(n, is_causal=True).lazydata])
            ((_, (kernel,)),) = schedule.plan.kernels.items()
            opts = choose(lower(kernel, "attention"), TARGET)
            schedules.append([(opt.primitive, opt.args[0]) for opt in opts])
    assert kernel.vars()
    assert schedules[-1] == schedules[0]
    assert {("limit", "sum4"), ("limit", "sum0")} < set(schedules[0])


LONG = np.random.default_rng(4).standard_normal(270_000).astype(np.float32)


@pytest.mark.parametrize(
    ("columns", "planned", "lengths"),
    [
        (1, (200_101, 200_202, 200_303), (200_440, 262_143, 200_007)),
        (90, (17_011, 17_044, 17_093), (17_120, 23_999, 17_026)),
    ],
)
def test_sums_in_parts_of_any_length(
    device: str, columns: int, planned: tuple[int, ...], lengths: tuple[int, ...], work: Work
) -> None:
    """As many parts, and what they leave over, which is a length of its own."""
    values = np.resize(LONG, (max(lengths), columns))

    def rows(n: int) -> Tensor:
        return Tensor(values[:n].copy()).realize()

    for n in planned:
        make_schedule([rows(n).sum(0).lazydata])
    for n in lengths:
        work.kernels.clear()
        expected = values[:n].astype(np.float64).sum(0)
        np.testing.assert_allclose(rows(n).sum(0).numpy(), expected, rtol=1e-4, atol=1e-2)
        assert [bool(ast.vars()) for ast in work.kernels] == [True, True]


@pytest.mark.parametrize("lengths", [[70, 100, 128, 65], [3, 64, 65, 128, 129, 149]])
def test_a_bound_is_no_more_than_twice_a_length(
    device: str, lengths: list[int], work: Work
) -> None:
    x = Tensor(ROWS).realize()
    for n in range(7, 7 + _ENOUGH):
        x[:, :n].softmax(1).numpy()
    for n in lengths:
        assert_like(x[:, :n].softmax(1).numpy(), softmax(ROWS[:, :n], 1))
    ends = {max(n - 1, 63).bit_length() for n in (7, *lengths)}
    assert work.plans == 1 + len(ends)


def test_a_cache_that_grows(device: str, work: Work) -> None:
    rng = np.random.default_rng(2)
    tokens = rng.standard_normal((24, 1, 1, 6)).astype(np.float32)
    keys = Tensor(tokens[0]).realize()
    array = tokens[0]
    compiled = []
    for token in tokens[1:]:
        work.kernels.clear()
        new = Tensor(token).realize()
        keys = keys.cat(new, dim=1)
        result = new.scaled_dot_product_attention(keys, keys)
        Tensor.realize(result, keys)
        array = np.concatenate([array, token], 1)
        assert_like(keys.numpy(), array)
        scores = softmax(token @ array.swapaxes(1, 2) / np.sqrt(6), -1)
        assert_like(result.numpy(), scores @ array)
        compiled.append(frozenset(work.kernels))
    # A cache of one element is of another form: what has one element can be repeated.
    assert len(set(compiled[_ENOUGH + 1 :])) == 1
    assert work.plans == _ENOUGH + 1


def test_a_cache_that_is_written_to(device: str, work: Work) -> None:
    cache, array = Tensor.zeros(40, 6).contiguous().realize(), np.zeros((40, 6), np.float32)
    kernels = []
    for n in range(1, 40):
        work.kernels.clear()
        row = ROWS[0, n : n + 1]
        cache[n : n + 1] = Tensor(row).realize() * 2
        array[n] = row * 2
        weights = cache[: n + 1].softmax(0)
        Tensor.realize(weights, cache)
        assert_like(weights.numpy(), softmax(array[: n + 1], 0))
        assert_like(cache.numpy(), array)
        kernels.append(frozenset(work.kernels))
    assert len(set(kernels[_ENOUGH:])) <= 2


def test_a_negative_stride_is_no_length(device: str, work: Work) -> None:
    values = np.arange(5, dtype=np.float32)
    for n in LENGTHS:
        x, array = Tensor(ROWS.reshape(-1)[: 5 * n]).realize(), ROWS.reshape(-1)[: 5 * n].copy()
        x[::-n] = Tensor(values).realize()
        array[::-n] = values
        np.testing.assert_array_equal(x.numpy(), array)
    assert work.kernels
    assert not any(ast.vars() for ast in work.kernels)


def test_elements_chosen_by_a_condition(device: str, work: Work) -> None:
    x = Tensor(ROWS[0].reshape(-1)).realize()
    array = ROWS[0].reshape(-1)
    for limit in np.linspace(0.5, 1.5, 12).tolist():
        chosen = x[x > limit]
        assert_like((chosen * 2).mean().numpy(), np.float32((array[array > limit] * 2).mean()))
    # The number that they are divided by is another one each time, and so in memory.
    kernels = {ast for ast in work.kernels if ast.vars()}
    assert kernels
    assert work.plans < 24


def test_what_was_computed_is_as_large_as_it_looks(device: str) -> None:
    Work.forget()
    x = Tensor(ROWS).realize()
    for n in LENGTHS:
        held = x[:, :n] * 2
        total = held.sum((0, 1))
        Tensor.realize(held, total)
        assert held.lazydata.realized is not None
        assert held.lazydata.realized.size == 2 * n * 6
        assert_like(held.reshape(-1).numpy(), 2 * ROWS[:, :n].reshape(-1))
        assert_like((held[1, -1] + total).numpy(), 2 * ROWS[1, n - 1] + 2 * ROWS[:, :n].sum((0, 1)))


def test_a_value_that_is_held_but_not_asked_for(device: str) -> None:
    Work.forget()
    x = Tensor(ROWS).realize()
    for n in LENGTHS:
        held = x[:, :n].sin().tanh().exp().sin().tanh().exp().sin().tanh().exp()
        assert_like((held * 2).sum(1).numpy(), 2 * held.numpy().sum(1))


def test_two_lengths(device: str, work: Work) -> None:
    x, y = Tensor(ROWS).realize(), Tensor(ROWS[0]).realize()
    pairs = [(5, 9), (11, 4), (20, 8), (7, 30), (40, 3), (8, 8), (3, 41), (22, 21)]
    for n, k in pairs:
        scores = x[:, :n] @ y[:k].transpose(0, 1)
        joined = x[0, :n].cat(y[:k] * 2)
        Tensor.realize(scores, joined)
        assert_like(scores.numpy(), ROWS[:, :n] @ ROWS[0, :k].T)
        assert_like(joined.numpy(), np.concatenate([ROWS[0, :n], ROWS[0, :k] * 2]))
    # Where both are equal they may be one: that is a form of its own.
    assert work.plans <= _ENOUGH + 2


def test_a_window_of_any_length_anywhere(device: str, work: Work) -> None:
    x = Tensor(ROWS[0]).realize()
    places = [(0, 5), (3, 9), (40, 20), (11, 7), (60, 33), (2, 12), (100, 50), (77, 31)]
    for start, n in places:
        part = x[start : start + n]
        assert_like(
            (part - part.mean(0)).numpy(),
            ROWS[0, start : start + n] - ROWS[0, start : start + n].mean(0),
        )
    assert work.plans <= _ENOUGH + 3


def test_rolled(device: str, work: Work) -> None:
    x = Tensor(ROWS[0, :50]).realize()
    for n in (3, 9, 20, 4, 41, 17, 33, 8):
        assert_like((x.roll(n, 0) * 2).numpy(), np.roll(ROWS[0, :50], n, 0) * 2)
    assert work.plans <= _ENOUGH + 2


def test_sizes_without_a_law_have_kernels_of_their_own(device: str) -> None:
    Work.forget()
    rng = np.random.default_rng(3)
    for _ in range(8):
        shape = tuple(rng.integers(2, 9, 5).tolist())
        array = rng.standard_normal(shape).astype(np.float32)
        found = Tensor(array).realize().reshape(shape[0] * shape[1], -1).sum(1)
        assert_like(found.numpy(), array.reshape(shape[0] * shape[1], -1).sum(1))


def test_a_law_that_does_not_hold(device: str, work: Work) -> None:
    x = Tensor(ROWS[0]).realize()
    for n in (3, 7, 5, 9, 20, 6, 40, 12, 30, 8):
        least = max(n, 10) + 1  # with those below 10 it looks as if it were one number
        found = x[:n].softmax(0).sum() + x[:least].exp()
        assert_like(found.numpy(), softmax(ROWS[0, :n], 0).sum() + np.exp(ROWS[0, :least]))
    assert work.plans <= _ENOUGH + 5


def test_a_number_that_changes_later(device: str, work: Work) -> None:
    x = Tensor(ROWS[0]).realize()
    for call, n in enumerate([3, 11, 6, 9, 30, 4, 17, 31, 5, 12]):
        factor = 2.0 if call < 6 else float(call)
        assert_like((x[:n] * factor).numpy(), ROWS[0, :n] * factor)
    assert work.plans <= _ENOUGH + 3


def test_a_length_that_comes_often_has_kernels_of_its_own(
    device: str, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferrule.fusion.dynamic.lengths._uses_worth_a_plan", lambda *_: _OFTEN)
    x = Tensor(ROWS).realize()
    for n in LENGTHS:
        x[:, :n].softmax(1).numpy()
    planned = work.plans
    symbolic = []
    for _ in range(_OFTEN + 3):
        work.kernels.clear()
        x[:, :13].softmax(1).numpy()
        symbolic.append(any(ast.vars() for ast in work.kernels))
        x[:, :21].softmax(1).numpy()  # others in between make no difference
    assert symbolic == [True] * _OFTEN + [False] * 3
    assert work.plans == planned + 2


_OFTEN = 10


LARGE: dict[str, Callable[[Tensor], Tensor]] = {
    "a value": lambda x: x.expand(x.shape[0], 1000) * 2 + x,
    "a kernel": lambda x: (x.expand(x.shape[0], 60) @ Tensor.ones(60, 200).contiguous()).sum(1),
}


@pytest.mark.parametrize("is_soon_done", [False, True])
@pytest.mark.parametrize("name", LARGE)
def test_what_is_large_has_kernels_of_its_own(
    device: str, name: str, is_soon_done: bool, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the device has done it before a kernel would be compiled."""
    monkeypatch.setattr(lengths, "_MOST_BYTES", 1 << 18)
    monkeypatch.setattr(lengths, "_MOST_OPERATIONS", 1 << 20)
    for limit in ("_STORE_SECONDS", "_KERNEL_SECONDS"):
        monkeypatch.setattr(lengths, limit, 1.0 if is_soon_done else 0.0)
    for n in (90, 97, 92, 101, 95):
        x = Tensor(np.ones((n, 1), np.float32)).realize()
        expected = 3 if name == "a value" else 60 * 200
        assert (LARGE[name](x).numpy() == expected).all()
    assert work.kernels
    assert any(ast.vars() for ast in work.kernels) == is_soon_done


def test_targets_have_plans_of_their_own(
    device: str, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Tensor(ROWS).realize()
    target = ferrule.fusion.target_of(device)
    for n in LENGTHS:
        x[:, :n].softmax(1).numpy()
    other = replace(target, l2_bytes=2 * target.l2_bytes)
    monkeypatch.setattr("ferrule.fusion.target_of", lambda device: other)
    planned = work.plans
    for n in LENGTHS[_ENOUGH:]:
        assert_like((x[:, :n]).softmax(1).numpy(), softmax(ROWS[:, :n], 1))
    assert work.plans == planned + 1


def test_values_from_files_have_no_family(device: str, tmp_path: Path) -> None:
    arrays = {str(n): np.arange(n, dtype=np.float32) for n in LENGTHS}
    safe_save({name: Tensor(array) for name, array in arrays.items()}, tmp_path / "x.safetensors")
    for name, tensor in safe_load(tmp_path / "x.safetensors").items():
        np.testing.assert_array_equal((tensor * 2).numpy(), arrays[name] * 2)
    for name, tensor in safe_load(tmp_path / "x.safetensors").items():
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


def test_a_copy_is_not_written_where_the_original_is(device: str) -> None:
    """The original has been written to: its memory is that of its later versions, too."""
    Work.forget()
    for n in LENGTHS:
        x = Tensor(ROWS[0, :n]).realize()
        x[0] = 3
        memory = x.realize().lazydata.realized
        y = x.clone()
        y[1:] = 7
        assert_like(y.numpy(), np.repeat([[3.0], [7.0]], [1, n - 1], 0).repeat(6, 1))
        assert_like(x.numpy(), np.concatenate([np.full((1, 6), 3), ROWS[0, 1:n]]))
        assert x.lazydata.realized is memory


def test_memories_that_overlap_at_some_lengths(device: str) -> None:
    """What is in a part of memory is never in the plan of any length: its neighbour may be read."""
    Work.forget()
    values = np.arange(64, dtype=np.float32)
    for n in (3, 5, 7, 9, 30, 40):
        memory = Buffer.fromCPU(device, values)
        source, target = (LazyBuffer.from_buffer(memory.view(start, n), (n,)) for start in (0, 10))
        flipped = Tensor._wrap(TracedValue(source)).flip(0)
        written = Tensor._wrap(TracedValue(target)).assign(flipped * 2)
        assert_like(written.numpy(), 2 * values[:n][::-1])


def test_products_with_large_weights(device: str, work: Work) -> None:
    x, weights = Tensor(ROWS[0]).realize(), Tensor.ones(6, 300, 1000).contiguous().realize()
    for n in LENGTHS:
        found = x[:n, :1].expand(n, 300) @ weights[0]
        assert_like(found.numpy(), np.repeat(300 * ROWS[0, :n, :1], 1000, 1))
    assert work.plans == _ENOUGH + 1  # one of them that of the weights


def test_copies_to_another_device(device: str) -> None:
    Work.forget()
    other = "NUMPY" if device == "CPU" else "CPU"
    x, row = Tensor(ROWS).realize(), Tensor(ROWS[0, 0], device=other).realize()
    for n in LENGTHS:
        here = x[:, :n] + (row * 2).to(device)
        assert_like(here.numpy(), ROWS[:, :n] + 2 * ROWS[0, 0])
        there = ((x[:, :n] * 2).to(other) + 1).sum(1)
        assert_like(there.numpy(), (ROWS[:, :n] * 2 + 1).sum(1))
        doubled = (x[:, :n] * 2).to(other).realize()
        assert_like(doubled.numpy(), ROWS[:, :n] * 2)


def test_large_memory_that_is_no_length_does_not_matter(device: str, work: Work) -> None:
    table = Tensor.zeros(1 << 24, 2).contiguous().realize()
    for n in LENGTHS:
        assert (table[:n] + 1).sum().item() == 2 * n
    assert work.plans == _ENOUGH + 1  # one of them that of the table


def test_a_captured_function_is_captured_for_each_length(device: str) -> None:
    Work.forget()
    x = Tensor(ROWS).realize()

    @TinyJit
    def step(part: Tensor) -> Tensor:
        return part.softmax(1)

    for _ in range(3):
        for n in LENGTHS:
            assert_like(step(x[:, :n].contiguous().realize()).numpy(), softmax(ROWS[:, :n], 1))


def test_random_numbers_are_those_of_one_length(device: str) -> None:
    def numbers() -> list[Array]:
        Tensor.manual_seed(5)
        return [(Tensor.rand(2, n) * 2 + Tensor.randn(n)).numpy() for n in LENGTHS]

    Work.forget()
    some = numbers()
    for found, n in zip(some, LENGTHS, strict=True):
        Work.forget()
        assert found.shape == (2, n)
    again = []
    Tensor.manual_seed(5)
    for n in LENGTHS:
        Work.forget()
        again.append((Tensor.rand(2, n) * 2 + Tensor.randn(n)).numpy())
    for found, expected in zip(some, again, strict=True):
        assert_like(found, expected)


def test_a_users_variable_of_the_same_name_is_another(device: str) -> None:
    Work.forget()
    variable = Variable("length0", 1, 64)
    assert variable is not Length("length0", 1, 64)
    assert variable.arg != Length("length1", 1, 64).arg
    x = Tensor(ROWS).realize()
    for n in LENGTHS:
        assert_like((x[:, :n] + 1).numpy(), ROWS[:, :n] + 1)
        bound = variable.bind(n)
        total = (x[:, :bound] + 1).realize().sum(1)
        assert_like(total.numpy(), (ROWS[:, :n] + 1).sum(1))


def test_running_totals_beside_a_variable(device: str) -> None:
    x = Tensor(ROWS[0]).realize()
    for n in (4, 17, 100):
        bound = Variable("n", 1, 150).bind(n)
        found = x[:bound].cumsum(1).sum(0)
        assert_like(found.numpy(), ROWS[0, :n].cumsum(1).sum(0))


def test_without_a_plan_for_any_length_there_is_one_for_each(
    device: str, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where symbols do not show that shapes fit: that is found out once."""
    x = Tensor(ROWS).realize()
    tried = []

    def plan(graph: Graph, *args: Any) -> Any:
        if graph.symbolic:
            tried.append(graph)
            raise ShapeError("the sizes are not known")
        return planned(graph, *args)

    planned = ferrule.fusion._plan
    monkeypatch.setattr("ferrule.fusion._plan", plan)
    for n in LENGTHS:
        assert_like((x[:, :n] + 1).numpy(), ROWS[:, :n] + 1)
    assert len(tried) == 1
    assert work.plans == len(LENGTHS)


def test_laws() -> None:
    samples = [
        (t, 7, t + 1, 4 * t * s, 64 * t, s, t + s, 60 - t, t * t, 64 * s + t)
        for t, s in [(5, 9), (8, 3), (13, 21)]
    ]
    found = _laws(samples)
    assert found is not None
    lengths, laws = found
    assert len(lengths) == 2
    assert 1 not in laws
    for t, s in [(30, 2), (4, 44)]:
        row = (t, 7, t + 1, 4 * t * s, 64 * t, s, t + s, 60 - t, t * t, 64 * s + t)
        values = [row[place] for place in lengths]
        assert all(laws[place].of(values) == row[place] for place in laws)


def test_too_many_lengths_have_no_law() -> None:
    rng = np.random.default_rng(4)
    assert _laws(rng.integers(2, 1000, (4, 2 * MOST_LENGTHS)).tolist()) is None
