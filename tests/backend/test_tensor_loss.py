"""Losses by PyTorch's names against their formulas in NumPy."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule import grad, hessian, jvp, vmap
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor

RNG = np.random.default_rng(31)
A, B, C = (RNG.normal(size=(4, 5)) for _ in range(3))
CHANCES = RNG.uniform(0.05, 0.95, size=(4, 5))
TARGETS = RNG.uniform(0.05, 0.95, size=(4, 5))
SIGNS = RNG.choice([-1.0, 1.0], size=(4, 5))
WEIGHT = RNG.uniform(0.5, 2, size=5)
Array = np.ndarray[Any, Any]


def positive(a: Array) -> Array:
    return np.maximum(a, 0)


def cosine(a: Array, b: Array) -> Array:
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.asarray((a * b).sum(-1) / lengths)


def softplus(a: Array) -> Array:
    return np.logaddexp(0, a)


def huber(a: Array, b: Array, delta: float) -> Array:
    size = np.abs(a - b)
    return np.where(size > delta, delta * (size - delta / 2), size**2 / 2)


def multi_margin(scores: Array, labels: Array, power: int, margin: float) -> Array:
    rows = np.arange(len(labels))
    short = positive(margin - scores[rows, labels][:, None] + scores) ** power
    short[rows, labels] = 0
    return np.asarray(short.mean(1))


def multilabel_margin(scores: Array, labels: Array) -> Array:
    """By loops over right and wrong classes."""
    losses = np.zeros(len(scores))
    for row, (own, wanted) in enumerate(zip(scores, labels, strict=True)):
        stop = list(wanted).index(-1) if -1 in wanted else len(wanted)
        right = set(wanted[:stop])
        for i in right:
            losses[row] += sum(max(0, 1 - own[i] + own[j]) for j in set(range(len(own))) - right)
    return losses / scores.shape[1]


LABELS = np.array([1, 0, 4, 1])
LISTED = np.array([[2, 0, -1, 1, 1], [-1, 3, 2, 1, 0], [4, 3, 2, 1, 0], [1, -1, -1, -1, -1]])
# The call, its arrays, and the losses that it gives without a reduction.
CASES: dict[str, tuple[Callable[..., Tensor], tuple[Array, ...], Array]] = {
    "binary_cross_entropy": (
        lambda x, y, w, **k: x.binary_cross_entropy(y, w, **k),
        (CHANCES, TARGETS, WEIGHT),
        -(TARGETS * np.log(CHANCES) + (1 - TARGETS) * np.log(1 - CHANCES)) * WEIGHT,
    ),
    "binary_cross_entropy_with_logits": (
        lambda x, y, p, **k: x.binary_cross_entropy_with_logits(y, pos_weight=p, **k),
        (A, TARGETS, WEIGHT),
        TARGETS * softplus(-A) * WEIGHT + (1 - TARGETS) * softplus(A),
    ),
    "kl_div": (
        lambda x, y, **k: x.kl_div(y, **k),
        (np.log(CHANCES), TARGETS),
        TARGETS * np.log(TARGETS / CHANCES),
    ),
    "kl_div of logarithms": (
        lambda x, y, **k: x.kl_div(y, log_target=True, **k),
        (np.log(CHANCES), np.log(TARGETS)),
        TARGETS * np.log(TARGETS / CHANCES),
    ),
    "poisson_nll_loss": (
        lambda x, y, **k: x.poisson_nll_loss(y, **k),
        (A, CHANCES),
        np.exp(A) - CHANCES * A,
    ),
    "poisson_nll_loss in full": (
        lambda x, y, **k: x.poisson_nll_loss(y, False, True, eps=0.0, **k),
        (CHANCES, CHANCES * 9 + 1),
        CHANCES
        - (CHANCES * 9 + 1) * np.log(CHANCES / (CHANCES * 9 + 1))
        - (CHANCES * 9 + 1)
        + np.log(2 * np.pi * (CHANCES * 9 + 1)) / 2,
    ),
    "gaussian_nll_loss": (
        lambda x, y, v, **k: x.gaussian_nll_loss(y, v, full=True, **k),
        (A, B, CHANCES[:, 0]),
        0.5 * (np.log(2 * np.pi * CHANCES[:, :1]) + (A - B) ** 2 / CHANCES[:, :1]),
    ),
    "smooth_l1_loss": (
        lambda x, y, **k: x.smooth_l1_loss(y, beta=0.7, **k),
        (A, B),
        huber(A, B, 0.7) / 0.7,
    ),
    "huber_loss": (lambda x, y, **k: x.huber_loss(y, delta=0.7, **k), (A, B), huber(A, B, 0.7)),
    "cosine_embedding_loss": (
        lambda x, y, **k: x.cosine_embedding_loss(y, Tensor([1, -1, 1, -1]), 0.1, **k),
        (A, A + B),
        np.where([1, 0, 1, 0], 1 - cosine(A, A + B), positive(cosine(A, A + B) - 0.1)),
    ),
    "triplet_margin_loss": (
        lambda x, y, z, **k: x.triplet_margin_loss(y, z, 2.0, 3, 0.0, **k),
        (A, B, C),
        positive(np.linalg.norm(A - B, 3, 1) - np.linalg.norm(A - C, 3, 1) + 2),
    ),
    "triplet_margin_loss with swap": (
        lambda x, y, z, **k: x.triplet_margin_with_distance_loss(
            y, z, lambda a, b: (a - b).abs().sum(-1), 2.0, True, **k
        ),
        (A, B, C),
        positive(np.abs(A - B).sum(1) - np.minimum(np.abs(A - C).sum(1), np.abs(B - C).sum(1)) + 2),
    ),
    "margin_ranking_loss": (
        lambda x, y, **k: x.margin_ranking_loss(y, Tensor(SIGNS), 0.3, **k),
        (A, B),
        positive(0.3 - SIGNS * (A - B)),
    ),
    "hinge_embedding_loss": (
        lambda x, **k: x.hinge_embedding_loss(Tensor(SIGNS), 0.4, **k),
        (A,),
        np.where(SIGNS == 1, A, positive(0.4 - A)),
    ),
    "soft_margin_loss": (
        lambda x, **k: x.soft_margin_loss(Tensor(SIGNS), **k),
        (A,),
        softplus(-SIGNS * A),
    ),
    "multi_margin_loss": (
        lambda x, w, **k: x.multi_margin_loss(Tensor(LABELS), 2, 0.8, w, **k),
        (A, WEIGHT),
        multi_margin(A, LABELS, 2, 0.8) * WEIGHT[LABELS],
    ),
    "multilabel_margin_loss": (
        lambda x, **k: x.multilabel_margin_loss(Tensor(LISTED), **k),
        (A,),
        multilabel_margin(A, LISTED),
    ),
    "multilabel_soft_margin_loss": (
        lambda x, y, **k: x.multilabel_soft_margin_loss(y, **k),
        (A, TARGETS),
        (TARGETS * softplus(-A) + (1 - TARGETS) * softplus(A)).mean(1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_loss(device: str, name: str) -> None:
    function, arrays, expected = CASES[name]
    given = [Tensor(array) for array in arrays]
    found = function(*given, reduction="none")
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)
    assert function(*given, reduction="sum").item() == pytest.approx(expected.sum(), rel=1e-9)
    assert function(*given).item() == pytest.approx(expected.mean(), rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_loss(name: str) -> None:
    function, arrays, _ = CASES[name]
    assert_gradients(lambda *given: function(*given, reduction="none"), *arrays, tolerance=1e-5)


# *** classes ***


def log_softmax(a: Array, axis: int) -> Array:
    return np.asarray(a - np.log(np.exp(a).sum(axis, keepdims=True)))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_with_weights(device: str, smoothing: float) -> None:
    scores, labels = RNG.normal(size=(4, 5, 3)), RNG.integers(0, 5, (4, 3))
    labels[0, 1] = 2
    logs, own = log_softmax(scores, 1), WEIGHT.reshape(1, 5, 1)
    factor = WEIGHT[labels]
    right = -np.take_along_axis(logs, labels[:, None], 1)[:, 0] * factor
    losses = right * (1 - smoothing) - (logs * own).mean(1) * smoothing
    x, y, w = Tensor(scores), Tensor(labels), Tensor(WEIGHT)
    options: dict[str, Any] = {"weight": w, "label_smoothing": smoothing}
    found = x.cross_entropy(y, **options)
    assert found.item() == pytest.approx(losses.sum() / factor.sum(), rel=1e-10)
    np.testing.assert_allclose(x.cross_entropy(y, "none", **options).numpy(), losses, rtol=1e-10)
    counted = labels != 2
    found = x.cross_entropy(y, ignore_index=2, **options)
    expected = losses[counted].sum() / factor[counted].sum()
    assert found.item() == pytest.approx(expected, rel=1e-10)
    # PyTorch's order: the weight behind the target.
    same = x.cross_entropy(y, w)
    assert same.item() == pytest.approx(right.sum() / factor.sum(), rel=1e-10)
    chances = np.moveaxis(np.eye(5)[labels], -1, 1) * 0.5 + 0.1
    smooth = chances * (1 - smoothing) + smoothing / 5
    expected = -(logs * smooth * own).sum(1)
    found = x.cross_entropy(Tensor(chances), "none", **options)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("wrong", [5, -1])
def test_a_label_that_is_no_class(device: str, wrong: int) -> None:
    """A number that looks right would hide that labels begin at 1, say."""
    scores = Tensor(RNG.normal(size=(3, 5)))
    losses = scores.cross_entropy(Tensor([0, wrong, -100]), "none").numpy()
    assert losses[0] > 0
    assert np.isnan(losses[1])
    assert losses[2] == 0
    assert math.isnan(scores.cross_entropy(Tensor([0, wrong, 2])).item())
    assert math.isnan(scores.log_softmax(1).nll_loss(Tensor([0, wrong, 2])).item())
    found = scores.cross_entropy(Tensor([0, wrong, 2]), ignore_index=wrong)
    kept = Tensor(scores.numpy()[[0, 2]]).cross_entropy(Tensor([0, 2]))
    assert found.item() == pytest.approx(kept.item())


class Labelled:
    """Scores (rows, classes, more) with labels, and what their loss and its slope should be."""

    def __init__(self, smoothing: float, weighted: bool, rows: int = 4, classes: int = 5) -> None:
        self.scores = RNG.normal(size=(rows, classes, 3)) * 3
        self.labels = RNG.integers(0, classes, (rows, 3))
        self.labels[0, 0] = self.labels[1, 2] = -7  # the index to be ignored
        self.weight = RNG.uniform(0.5, 2, size=classes)
        used = self.labels >= 0
        logs = log_softmax(self.scores, 1)
        factors = self.weight if weighted else np.ones(classes)
        hot = np.moveaxis(np.eye(classes)[np.where(used, self.labels, 0)], -1, 1)
        wanted = (hot * (1 - smoothing) + smoothing / classes) * factors.reshape(1, -1, 1)
        self.losses = np.where(used, -(logs * wanted).sum(1), 0)
        self.slopes = (np.exp(logs) * wanted.sum(1, keepdims=True) - wanted) * used[:, None]
        self.counted = np.where(used, factors[self.labels * used], 0).sum()
        self.options: dict[str, Any] = {"ignore_index": -7, "label_smoothing": smoothing}
        if weighted:
            self.options["weight"] = Tensor(self.weight)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [5, 5000])
def test_slope_of_cross_entropy(
    device: str, smoothing: float, weighted: bool, classes: int
) -> None:
    case = Labelled(smoothing, weighted, classes=classes)
    x = Tensor(case.scores, requires_grad=True)
    losses = x.cross_entropy(Tensor(case.labels), "none", **case.options)
    np.testing.assert_allclose(losses.numpy(), case.losses, rtol=1e-9)
    factors = RNG.normal(size=case.losses.shape)
    losses.backward(Tensor(factors))
    assert x.grad is not None
    expected = case.slopes * factors[:, None]
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-8, atol=1e-12)
    y = Tensor(case.scores, requires_grad=True)
    loss = y.cross_entropy(Tensor(case.labels), **case.options)
    loss.backward()
    assert loss.item() == pytest.approx(case.losses.sum() / case.counted, rel=1e-9)
    assert y.grad is not None
    expected = case.slopes / case.counted
    np.testing.assert_allclose(y.grad.numpy(), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("labels", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_cross_entropy_of_any_dtype(device: str, name: str, labels: str) -> None:
    case = Labelled(0.0, False)
    wanted = Tensor(case.labels % 5, dtype=labels)
    x = Tensor(case.scores, dtype=name, requires_grad=True)
    losses = x.cross_entropy(wanted, "none")
    losses.backward(losses.ones_like())
    assert x.grad is not None
    assert (losses.dtype, x.grad.dtype) == (x.dtype, x.dtype)
    logs = log_softmax(x.detach().cast("float64").numpy(), 1)
    error = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6}[name]
    expected = -np.take_along_axis(logs, case.labels[:, None] % 5, 1)[:, 0]
    np.testing.assert_allclose(losses.cast("float64").numpy(), expected, rtol=error, atol=1e-6)
    hot = np.moveaxis(np.eye(5)[case.labels % 5], -1, 1)
    slopes = np.exp(logs) - hot
    np.testing.assert_allclose(x.grad.cast("float64").numpy(), slopes, rtol=error, atol=1e-6)


def test_cross_entropy_of_large_and_impossible_scores(device: str) -> None:
    x = Tensor([[1e6, 1e6 + 1], [0.0, -math.inf]], dtype="float32", requires_grad=True)
    losses = x.cross_entropy(Tensor([0, 1]), "none")
    assert losses.tolist() == pytest.approx([math.log1p(math.e), math.inf], rel=1e-6)
    losses.backward(losses.ones_like())
    assert x.grad is not None
    share = 1 / (1 + math.e)
    np.testing.assert_allclose(x.grad.numpy(), [[share - 1, 1 - share], [1, -1]], rtol=1e-6)
    # What does not count has no part in the slope, whatever its scores are.
    rows = Tensor([[0.0, -math.inf], [3.0, 4.0]], requires_grad=True)
    rows.cross_entropy(Tensor([-100, 0])).backward()
    assert rows.grad is not None
    np.testing.assert_allclose(rows.grad.numpy(), [[0, 0], [share - 1, 1 - share]], rtol=1e-6)


def test_slope_of_log_likelihood(device: str) -> None:
    case = Labelled(0.0, True)
    logs = Tensor(log_softmax(case.scores, 1), requires_grad=True)
    weight = Tensor(case.weight, requires_grad=True)
    losses = logs.nll_loss(Tensor(case.labels), weight, ignore_index=-7, reduction="none")
    np.testing.assert_allclose(losses.numpy(), case.losses, rtol=1e-9)
    losses.sum().backward()
    expected = np.zeros(case.scores.shape)
    own = np.zeros(5)
    for row, label in np.ndenumerate(case.labels):
        if 0 <= label < 5:
            expected[row[0], label, row[1]] = -case.weight[label]
            own[label] -= log_softmax(case.scores, 1)[row[0], label, row[1]]
    assert logs.grad is not None
    assert weight.grad is not None
    np.testing.assert_allclose(logs.grad.numpy(), expected)
    np.testing.assert_allclose(weight.grad.numpy(), own, rtol=1e-9)


def test_no_rows_and_one_row(device: str) -> None:
    empty = Tensor.zeros(0, 3, requires_grad=True)
    losses = empty.cross_entropy(Tensor.zeros(0, dtype="int32"), "none")
    assert losses.shape == (0,)
    losses.sum().backward()
    assert empty.grad is not None
    assert empty.grad.shape == (0, 3)
    assert Tensor([0.0, 0.0]).cross_entropy(Tensor(1)).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_transformations_of_cross_entropy(device: str, smoothing: float) -> None:
    scores, labels = RNG.normal(size=(4, 5)), Tensor(LABELS)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return x.cross_entropy(y, label_smoothing=smoothing)

    chances = np.exp(log_softmax(scores, 1))
    found = hessian(loss)(Tensor(scores[0]), labels[0])
    expected = np.diag(chances[0]) - np.outer(chances[0], chances[0])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8, atol=1e-12)
    wanted = np.eye(5)[LABELS] * (1 - smoothing) + smoothing / 5
    slopes = vmap(grad(loss))(Tensor(scores), labels)
    np.testing.assert_allclose(slopes.numpy(), chances - wanted, rtol=1e-8, atol=1e-12)
    along = RNG.normal(size=(4, 5))
    _, pushed = jvp(lambda x: loss(x, labels), (Tensor(scores),), (Tensor(along),))
    assert pushed.item() == pytest.approx(((chances - wanted) * along).sum() / 4, rel=1e-8)


def test_reductions_and_limits(device: str) -> None:
    x, y, w = Tensor(A), Tensor(B), Tensor(CHANCES)
    expected = ((A - B) ** 2 * CHANCES).sum() / CHANCES.sum()
    assert x.mse_loss(y, weight=w).item() == pytest.approx(expected, rel=1e-10)
    assert x.l1_loss(y).item() == x.smooth_l1_loss(y, beta=0).item()
    total = x.log_softmax(-1).kl_div(w, "batchmean").item()
    assert total == pytest.approx(x.log_softmax(-1).kl_div(w, "sum").item() / 4, rel=1e-12)
    sure = Tensor([0.0, 1.0, 1.0], requires_grad=True)
    wrong = sure.binary_cross_entropy(Tensor([1.0, 0.0, 1.0]), reduction="none")
    assert wrong.tolist() == [100, 100, 0]
    wrong.sum().backward()
    assert sure.grad is not None
    np.testing.assert_allclose(sure.grad.numpy(), [-1e12, 1e12, 0], rtol=1e-6)
    assert Tensor([-1.0]).kl_div(Tensor([0.0])).item() == 0
    # A variance below eps counts as eps, and its gradient goes on.
    var = Tensor([0.0], requires_grad=True)
    loss = Tensor([0.0]).gaussian_nll_loss(Tensor([1.0]), var, eps=0.5)
    assert loss.item() == pytest.approx((math.log(0.5) + 2) / 2, rel=1e-6)
    loss.backward()
    assert var.grad is not None
    assert var.grad.item() == pytest.approx(0.5 * (1 / 0.5 - 1 / 0.25))


def test_similarity_and_distances(device: str) -> None:
    x, y = Tensor(A), Tensor(B)
    np.testing.assert_allclose(x.cosine_similarity(y).numpy(), cosine(A, B), rtol=1e-10)
    wide = Tensor(A[:, None]).cosine_similarity(Tensor(B[None]), dim=-1)
    np.testing.assert_allclose(wide.numpy(), cosine(A[:, None], B[None]), rtol=1e-10)
    assert Tensor([[0.0, 0.0]]).cosine_similarity(Tensor([[1.0, 1.0]])).item() == 0
    expected = np.linalg.norm(A - B + 1e-6, axis=1, keepdims=True)
    found = x.pairwise_distance(y, keepdim=True)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)
    rows, columns = np.triu_indices(4, 1)
    expected = np.abs(A[rows] - A[columns]).sum(1)
    np.testing.assert_allclose(x.pdist(1).numpy(), expected, rtol=1e-10)
    assert_gradients(lambda a, b: a.cosine_similarity(b), A, B)


FITTING_LOSSES = [
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "poisson_nll_loss",
]


@pytest.mark.parametrize("name", FITTING_LOSSES)
def test_predictions_are_not_compared_each_with_each(name: str) -> None:
    """(N, 1) against (N,) was a mean over N * N differences, without a word."""
    chances = np.array([0.25, 0.5, 0.75])
    column, row = Tensor(chances.reshape(3, 1)), Tensor(chances)
    loss = getattr(Tensor, name)
    text = rf"\[{name}\] a target of shape \(3,\) does not fit predictions of shape \(3, 1\): "
    with pytest.raises(ShapeError, match=text + r".* to \(3, 3\); write target\.reshape\(3, 1\)"):
        loss(column, row)
    with pytest.raises(ShapeError, match=r"target of shape \(3, 1\) does not fit"):
        loss(row, column)
    with pytest.raises(ShapeError, match=r"write x\.expand\(3,\) if that is meant"):
        loss(row[:1], row)
    if name != "kl_div":
        with pytest.raises(ShapeError, match=r"a target of shape \(3,\) does not fit"):
            loss(column, chances)
    # One target for many predictions, and one prediction of a number for many targets, are fine.
    pairs = Tensor(np.stack([chances, chances]))
    expected = np.asarray(loss(pairs, pairs, reduction="none").numpy())
    np.testing.assert_array_equal(loss(pairs, row, reduction="none").numpy(), expected)
    assert loss(pairs, row[0], reduction="none").shape == (2, 3)
    assert loss(row[0], row, reduction="none").shape == (3,)


def test_a_normal_likelihood_has_one_prediction_for_each_target() -> None:
    with pytest.raises(ShapeError, match=r"\[gaussian_nll_loss\] a target of shape \(3,\)"):
        Tensor.ones(3, 1).gaussian_nll_loss(Tensor.ones(3), 1.0)


@pytest.mark.parametrize("name", ["smooth_l1_loss", "huber_loss", "mse_loss"])
def test_losses_have_curvature_where_nothing_is_lost(device: str, name: str) -> None:
    def loss(x: Tensor) -> Tensor:
        found: Tensor = getattr(x, name)(Tensor([1.0, 1.0, 1.0]), reduction="sum")
        return found

    curvature = grad(lambda x: grad(loss)(x).sum())(Tensor([1.0, 1.25, 4.0])).tolist()
    assert curvature == ([2, 2, 2] if name == "mse_loss" else [1, 1, 0])
