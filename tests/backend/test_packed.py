"""Packed sequences: beside each sequence alone; captured with other lengths; errors."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, nn
from ferrule.nn.utils import rnn

X = np.random.default_rng(0).standard_normal((7, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_each_sequence_is_as_it_is_alone(name: str) -> None:
    model = getattr(nn, name)(4, 5, num_layers=2, bidirectional=True)
    lengths = [3, 7, 1]
    padding = X.copy()
    for place, length in enumerate(lengths):
        padding[length:, place] = math.nan  # which nothing may depend on
    x = Tensor(padding, requires_grad=True)
    out, last = model(rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))
    out, found = rnn.pad_packed_sequence(out)
    assert found.tolist() == lengths
    hidden = last[0] if name == "LSTM" else last
    for place, length in enumerate(lengths):
        alone, end = model(Tensor(X[:length, place]))
        np.testing.assert_allclose(out.numpy()[:length, place], alone.numpy(), rtol=1e-4, atol=1e-5)
        assert not out.numpy()[length:, place].any()
        exact = end[0] if name == "LSTM" else end
        np.testing.assert_allclose(hidden.numpy()[:, place], exact.numpy(), rtol=1e-4, atol=1e-5)
    out.square().sum().backward()
    assert x.grad is not None
    for place, length in enumerate(lengths):
        assert np.isfinite(x.grad.numpy()[:, place]).all()
        assert not x.grad.numpy()[length:, place].any()


def test_a_captured_function_takes_other_lengths() -> None:
    model = nn.LSTM(4, 5, bidirectional=True)
    x = Tensor(X).realize()

    def compute(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        out, (hidden, _) = model(rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))
        return rnn.pad_packed_sequence(out)[0].realize(), hidden.realize()

    step = TinyJit(compute)
    for lengths in ([7, 7, 7], [1, 2, 3], [7, 1, 4], [5, 5, 2]):
        found = step(x, Tensor(lengths).realize())
        exact = compute(x, Tensor(lengths))
        for one, other in zip(found, exact, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)
    assert len(step._replays) == 1


def test_packed_sequences_go_through_a_captured_function() -> None:
    model = nn.GRU(4, 5)

    @TinyJit
    def step(packed: rnn.PackedSequence) -> Tensor:
        out, _ = model(packed)
        return rnn.pad_packed_sequence(out, padding_value=-1.0)[0].realize()

    for lengths in ([2, 3, 7], [1, 1, 5], [7, 6, 5], [2, 2, 2]):
        given = rnn.PackedSequence.of(Tensor(X).realize(), Tensor(lengths).realize())
        exact = rnn.pad_packed_sequence(model(given)[0], padding_value=-1.0)[0]
        np.testing.assert_allclose(step(given).numpy(), exact.numpy(), rtol=1e-4, atol=1e-5)


ERRORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: rnn.pack_padded_sequence(Tensor(X), [1, 2, 3]), "grow; sort the sequences"),
    (lambda: rnn.pack_padded_sequence(Tensor(X), [8, 2, 1]), "not all between 1 and 7"),
    (lambda: rnn.pack_padded_sequence(Tensor(X), [3, 2, 0]), "not all between 1 and 7"),
    (lambda: rnn.pack_padded_sequence(Tensor(X), [3, 2]), "not one for each of 3 sequences"),
    (lambda: rnn.pack_padded_sequence(Tensor(X), Tensor([3, 2])), "for 3 sequences"),
    (lambda: rnn.pad_packed_sequence(Tensor(X)), "Tensor is no PackedSequence"),  # type: ignore[arg-type]
    (lambda: rnn.PackedSequence(Tensor(X), [2, 1]), "data has 7 rows"),
    (lambda: rnn.pad_sequence([]), "there are no sequences"),
    (
        lambda: rnn.pad_packed_sequence(
            rnn.pack_padded_sequence(Tensor(X), [7, 2, 1]), total_length=3
        ),
        "total_length 3 is less than",
    ),
    (lambda: nn.GRU(5, 2)(rnn.pack_padded_sequence(Tensor(X), [7, 2, 1])), "GRU: expected"),
    (lambda: nn.GRU(4, 2)([1.0]), r"\[GRU\] x has to be a tensor"),  # type: ignore[call-overload]
]


@pytest.mark.parametrize(("call", "text"), ERRORS, ids=[text for _, text in ERRORS])
def test_errors(call: Callable[[], Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        call()
