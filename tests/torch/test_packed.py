"""Packed sequences beside PyTorch's: parts, results of recurrent layers, and gradients."""

from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, dtypes, nn
from ferrule.nn.state import get_state_dict, load_state_dict
from ferrule.nn.utils import rnn

torch = pytest.importorskip("torch")
theirs = torch.nn.utils.rnn

RNG = np.random.default_rng(2)
X = RNG.standard_normal((6, 4, 3))
SORTED, MIXED = [6, 4, 4, 1], [2, 6, 1, 5]


def assert_same(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one.numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-9)


def packed(lengths: list[int], batch_first: bool = False) -> tuple[Any, Any, Tensor, Any]:
    x = X.transpose(1, 0, 2).copy() if batch_first else X
    mine, other = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    settings = {"batch_first": batch_first, "enforce_sorted": lengths == SORTED}
    one = rnn.pack_padded_sequence(mine, lengths, **settings)
    return one, theirs.pack_padded_sequence(other, lengths, **settings), mine, other


@pytest.mark.parametrize("lengths", [SORTED, MIXED, [3, 2, 2, 1]])
def test_parts(lengths: list[int]) -> None:
    one, other, _, _ = packed(lengths)
    if lengths != [3, 2, 2, 1]:
        assert one.batch_sizes.tolist() == other.batch_sizes.tolist()
    assert_same(one.data, other.data)
    assert_same(rnn.pad_packed_sequence(one)[0], theirs.pad_packed_sequence(other)[0])
    again = rnn.PackedSequence(one.data, one.batch_sizes, other.sorted_indices)
    mine = rnn.pad_packed_sequence(again, True, -2.0, 8)
    reference = theirs.pad_packed_sequence(other, True, -2.0, 8)
    assert_same(mine[0], reference[0])
    assert mine[1].tolist() == reference[1].tolist() == lengths
    back = theirs.PackedSequence(other.data, other.batch_sizes, None, other.unsorted_indices)
    mine_back = rnn.PackedSequence(one.data, one.batch_sizes, None, one.unsorted_indices)
    assert_same(mine_back.data, back.data)


@pytest.mark.parametrize("lengths", [SORTED, MIXED])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("RNN", {"nonlinearity": "relu"}),
        ("GRU", {"bidirectional": True}),
        ("LSTM", {"num_layers": 2, "bidirectional": True}),
        ("LSTM", {"proj_size": 2, "num_layers": 2}),
    ],
)
@pytest.mark.parametrize("with_states", [True, False])
def test_recurrent_layers(
    name: str, settings: dict[str, Any], batch_first: bool, lengths: list[int], with_states: bool
) -> None:
    torch.manual_seed(1)
    reference = getattr(torch.nn, name)(3, 5, batch_first=batch_first, **settings).double()
    mine = getattr(nn, name)(3, 5, batch_first=batch_first, dtype=dtypes.float64, **settings)
    load_state_dict(mine, {k: v.numpy() for k, v in reference.state_dict().items()})
    one, other, x, y = packed(lengths, batch_first)
    states, references = None, None
    if with_states:
        count = settings.get("num_layers", 1) * (2 if settings.get("bidirectional") else 1)
        sizes = [settings.get("proj_size", 5), 5][: 2 if name == "LSTM" else 1]
        arrays = [RNG.standard_normal((count, 4, size)) for size in sizes]
        states = tuple(map(Tensor, arrays)) if name == "LSTM" else Tensor(arrays[0])
        wrapped = tuple(map(torch.tensor, arrays))
        references = wrapped if name == "LSTM" else wrapped[0]
    found, last = mine(one, states)
    exact, final = reference(other, references)
    pairs = list(zip(*[p if name == "LSTM" else (p,) for p in (last, final)], strict=True))
    padded = rnn.pad_packed_sequence(found, batch_first, 0.5)[0]
    pairs.append((padded, theirs.pad_packed_sequence(exact, batch_first, 0.5)[0]))
    pairs.append((found.data, exact.data))
    loss, total = Tensor(0.0), torch.tensor(0.0)
    for place, (one, other) in enumerate(pairs):
        assert_same(one, other)
        slope = np.random.default_rng(place).standard_normal(tuple(other.shape))
        loss, total = (
            loss + (one * Tensor(slope)).sum(),
            total + (other * torch.tensor(slope)).sum(),
        )
    loss.backward()
    total.backward()
    assert_same(x.grad, y.grad)
    parameters = get_state_dict(mine)
    for key, value in reference.named_parameters():
        assert_same(parameters[key].grad, value.grad)


def test_lists_of_sequences() -> None:
    arrays = [RNG.standard_normal((size, 2)) for size in (2, 5, 3)]
    mine, reference = [Tensor(a) for a in arrays], [torch.tensor(a) for a in arrays]
    for settings in (
        {},
        {"batch_first": True, "padding_value": 3.0},
        {"padding_side": "left", "batch_first": True},
    ):
        assert_same(rnn.pad_sequence(mine, **settings), theirs.pad_sequence(reference, **settings))
    one, other = rnn.pack_sequence(mine, False), theirs.pack_sequence(reference, False)
    assert_same(one.data, other.data)
    for first, second in zip(rnn.unpack_sequence(one), reference, strict=True):
        assert_same(first, second)
    padded = rnn.pad_sequence(mine)
    for first, second in zip(rnn.unpad_sequence(padded, Tensor([2, 5, 3])), arrays, strict=True):
        np.testing.assert_array_equal(first.numpy(), second)
