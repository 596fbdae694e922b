"""The loss of unaligned labels against the sum over all paths, one by one."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule.helpers import GlobalCounters
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor

RNG = np.random.default_rng(41)
TIME, BATCH, CLASSES = 4, 3, 3


def collapsed(path: tuple[int, ...], blank: int) -> list[int]:
    """The labels that a path stands for: repeats count once, blanks not at all."""
    return [label for label, _ in itertools.groupby(path) if label != blank]


def loss_of(logs: np.ndarray, labels: list[int], blank: int) -> float:
    """By the probability of every path over (time, classes)."""
    total = 0.0
    for path in itertools.product(range(logs.shape[1]), repeat=len(logs)):
        if collapsed(path, blank) == labels:
            total += math.exp(sum(row[label] for row, label in zip(logs, path, strict=True)))
    return -math.log(total) if total else math.inf


def scores() -> np.ndarray:
    raw = RNG.normal(size=(TIME, BATCH, CLASSES))
    return np.asarray(raw - np.log(np.exp(raw).sum(-1, keepdims=True)))


LOGS = scores()


@pytest.mark.parametrize("blank", [0, 2])
def test_loss_of_all_alignments(device: str, blank: int) -> None:
    one, two = [label for label in range(CLASSES) if label != blank]
    targets = np.array([[one, two, 9], [one, one, 9], [two, -1, -1]])
    inputs, lengths = (4, 3, 2), (2, 2, 0)
    expected = [
        loss_of(LOGS[:steps, n], list(targets[n, :count]), blank)
        for n, (steps, count) in enumerate(zip(inputs, lengths, strict=True))
    ]
    x = Tensor(LOGS)
    each = x.ctc_loss(Tensor(targets), inputs, lengths, blank, "none")
    np.testing.assert_allclose(each.numpy(), expected, rtol=1e-10)
    given = (Tensor(np.array(inputs)), Tensor(np.array(lengths)))
    total = x.ctc_loss(Tensor(targets), *given, blank, "sum")
    assert total.item() == pytest.approx(sum(expected), rel=1e-10)
    mean = np.mean([loss / max(n, 1) for loss, n in zip(expected, lengths, strict=True)])
    assert x.ctc_loss(Tensor(targets), *given, blank).item() == pytest.approx(mean, rel=1e-10)
    # The labels of all sequences one after the other.
    flat = Tensor(np.array([one, two, one, one]))
    for counts in (lengths, given[1]):
        again = x.ctc_loss(flat, inputs, counts, blank, "none")
        np.testing.assert_array_equal(again.numpy(), each.numpy())
    single = Tensor(LOGS[:, 1]).ctc_loss(Tensor(targets[1]), 3, 2, blank, "none")
    assert single.shape == ()
    assert single.item() == pytest.approx(expected[1], rel=1e-10)


def test_labels_that_do_not_fit(device: str) -> None:
    """Two equal labels need a blank between them."""
    x = Tensor(LOGS[:2], requires_grad=True)
    targets = Tensor([[1, 1], [1, 2], [2, 1]])
    losses = x.ctc_loss(targets, [2, 2, 2], [2, 2, 2], reduction="none")
    assert losses.numpy()[0] == math.inf
    kept = x.ctc_loss(targets, [2, 2, 2], [2, 2, 2], reduction="none", zero_infinity=True)
    np.testing.assert_array_equal(kept.numpy(), [0, *losses.numpy()[1:]])
    kept.sum().backward()
    assert x.grad is not None
    slopes = x.grad.numpy()
    assert np.isfinite(slopes).all()
    assert (slopes[:, 0] == 0).all()
    assert (slopes[:, 1:] != 0).any()


def test_gradients() -> None:
    targets, lengths = Tensor([[1, 2], [2, 2], [1, 0]]), (2, 2, 1)

    def loss(x: Tensor) -> Tensor:
        return x.ctc_loss(targets, (4, 4, 2), lengths, reduction="none")

    assert_gradients(loss, LOGS, tolerance=1e-5)


def test_impossible_classes() -> None:
    logs = LOGS.copy()
    logs[:, :, 1] = -np.inf
    x = Tensor(logs, requires_grad=True)
    losses = x.ctc_loss(Tensor([[1], [2], [2]]), (4, 4, 4), (1, 1, 1), reduction="none")
    assert losses.numpy()[0] == math.inf
    assert losses.numpy()[1] == pytest.approx(loss_of(logs[:, 1], [2], 0), rel=1e-10)
    losses[1:].sum().backward()
    assert x.grad is not None
    assert np.isfinite(x.grad.numpy()).all()


def test_in_captured_programs_and_off_the_host(device: str) -> None:
    targets = Tensor([[1, 2], [2, 2], [1, 0]])

    @TinyJit
    def step(x: Tensor, counts: Tensor) -> Tensor:
        return x.ctc_loss(targets, (4, 4, 4), counts, reduction="none").realize()

    before = GlobalCounters.host_calls
    for lengths in ((2, 2, 1), (1, 2, 2), (0, 1, 1), (2, 1, 0)):
        logs = scores()
        counts: Any = Tensor(np.array(lengths, np.int32)).realize()
        found = step(Tensor(logs).realize(), counts).numpy()
        plain = Tensor(logs).ctc_loss(targets, (4, 4, 4), lengths, reduction="none")
        np.testing.assert_allclose(found, plain.numpy(), rtol=1e-12)
    assert GlobalCounters.host_calls == before
