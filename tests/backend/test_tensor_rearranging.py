"""Axes by name: patterns against what reshape and transpose of NumPy give."""

from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gradients import assert_gradients

from ferrule import Context, Tensor, Variable
from ferrule.engine.realize import realize

RNG = np.random.default_rng(4)
X = RNG.normal(size=(2, 6, 3))
Case: TypeAlias = tuple[list[int], list[int], list[int]]
APART = X.reshape(2, 3, 2, 3)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("pattern", "sizes", "expected"),
    [
        ("b (h w) c -> b h w c", {"h": 3}, APART),
        (
            "b (h w) c->w (c b) h",
            {"w": 2},
            X.reshape(2, 3, 2, 3).transpose(2, 3, 0, 1).reshape(2, 6, 3),
        ),
        ("... c -> c ...", {}, np.moveaxis(X, -1, 0)),
        ("b ... -> (b ...)", {}, X.reshape(-1)),
        ("b ... c -> c (... b)", {}, X.transpose(2, 1, 0).reshape(3, 12)),
        ("a b c -> a 1 b () (c 1)", {}, X[:, None, :, None]),
        ("(b 1) a c -> a c b", {}, X.transpose(1, 2, 0)),
        ("b (h w two) c -> b h w two c", {"h": 3, "w": 1}, X.reshape(2, 3, 1, 2, 3)),
    ],
)
def test_rearrange(pattern: str, sizes: dict[str, int], expected: Any) -> None:
    np.testing.assert_array_equal(Tensor(X).rearrange(pattern, **sizes).numpy(), expected)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod"])
def test_reduce(name: str) -> None:
    found = Tensor(X).reduce("b (h 2) c -> c b 1", name)
    expected = getattr(X.reshape(2, 3, 2, 3), name)((1, 2)).T[..., None]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(Tensor(X).reduce("... ->", name).numpy(), getattr(X, name)(), 1e-10)
    same = Tensor(X).reduce("a b c -> c b a", reduction=name)
    np.testing.assert_array_equal(same.numpy(), X.transpose(2, 1, 0))


@pytest.mark.usefixtures("device")
def test_reductions_of_ones_own() -> None:
    found = Tensor(X).reduce("b h c -> c", lambda x, axes: x.std(axes))
    np.testing.assert_allclose(found.numpy(), X.std((0, 1), ddof=1), rtol=1e-12)
    assert Tensor([[True, False]]).reduce("a b -> a", "any").tolist() == [True]


@pytest.mark.usefixtures("device")
def test_repeat() -> None:
    x = Tensor(X)
    np.testing.assert_array_equal(x.repeat("a b c -> a (2 b) c").numpy(), np.tile(X, (1, 2, 1)))
    np.testing.assert_array_equal(
        x.repeat("a ... -> a k ...", k=2).numpy(), X[:, None].repeat(2, 1)
    )
    np.testing.assert_array_equal(x.repeat("a b c -> a (b 3) c").numpy(), X.repeat(3, 1))
    np.testing.assert_array_equal(x.repeat(2, 1, 1, 1).numpy(), np.tile(X, (2, 1, 1, 1)))
    assert x.repeat("a b c -> a b c 0").shape == (2, 6, 3, 0)


@st.composite
def orders(draw: st.DrawFn) -> Case:
    """Sizes, an order of the axes, and where groups end in it."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    order = draw(st.permutations(range(len(sizes))))
    cuts = draw(st.sets(st.integers(1, len(sizes))))
    return sizes, list(order), sorted(cuts | {len(sizes)})


@given(orders())
def test_any_order_and_grouping_there_and_back(
    case: tuple[list[int], list[int], list[int]],
) -> None:
    sizes, order, cuts = case
    names = [f"n{axis}" for axis in order]
    starts = [0, *cuts[:-1]]
    groups = [f"({' '.join(names[a:b])})" for a, b in zip(starts, cuts, strict=True)]
    apart = " ".join(f"n{axis}" for axis in range(len(sizes)))
    array = np.arange(np.prod(sizes)).reshape(sizes)
    with Context(FERRULE_DEVICE="NUMPY"):
        x = Tensor(array).rearrange(f"{apart} -> {' '.join(groups)}")
        parts = array.transpose(order)
        shape = [int(np.prod(parts.shape[a:b])) for a, b in zip(starts, cuts, strict=True)]
        np.testing.assert_array_equal(x.numpy(), parts.reshape(shape))
        given_sizes = {f"n{axis}": size for axis, size in enumerate(sizes)}
        back = x.rearrange(f"{' '.join(groups)} -> {apart}", **given_sizes)
        np.testing.assert_array_equal(back.numpy(), array)


def test_views_share_memory_and_symbolic_sizes_pass() -> None:
    x = Tensor([[1, 2], [3, 4]])
    x.rearrange("a b -> b a")[0] = 7
    assert x.tolist() == [[7, 2], [7, 4]]
    n = Variable("n", 1, 4).bind(2)
    part = Tensor(np.arange(12.0).reshape(4, 3)).shrink(((0, n), None))
    assert part.rearrange("n c -> c n").reduce("c n -> c", "sum").tolist() == [3.0, 5.0, 7.0]


def test_gradients() -> None:
    with Context(FERRULE_DEVICE="NUMPY"):
        assert_gradients(lambda x: x.rearrange("a (b c) d -> (d a) c b", b=2), X)
        assert_gradients(lambda x: x.reduce("a (b 2) d -> d a", "max"), X)
        assert_gradients(lambda x: x.repeat("a b c -> b (a 2) c"), X)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("size", [8, 16, 33, 64])
def test_several_sums_with_turned_matrices_in_one_schedule(size: int) -> None:
    arrays = np.random.default_rng(0).standard_normal((5, size, size)).astype(np.float32)
    a, b, c, d, e = (Tensor(array).realize() for array in arrays)
    results = [a + b.T, c * d.T, (e.T - a) * b]
    realize([result.lazydata for result in results])
    expected = [
        arrays[0] + arrays[1].T,
        arrays[2] * arrays[3].T,
        (arrays[4].T - arrays[0]) * arrays[1],
    ]
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)
