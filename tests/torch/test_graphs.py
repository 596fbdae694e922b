"""Graphs of PyTorch with branches and loops, with operators of others, and their ways back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit

torch = pytest.importorskip("torch")

import ferrule.torch  # noqa: E402
from ferrule.torch import TorchError, from_exported  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch, about its own functions
LIMITS: Any = {"rtol": 1e-5, "atol": 1e-5}


class Choice(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x * 2, (x,))


class While(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        from torch._higher_order_ops.while_loop import while_loop

        def going(trip: Any, y: Any) -> Any:
            return y.abs().sum() < 100

        def trip(trip: Any, y: Any) -> Any:
            return trip + 1, y * 1.5 + x

        return while_loop(going, trip, (torch.tensor(0), x * 0.5))


class Scan(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        from torch._higher_order_ops.scan import scan

        return scan(lambda c, row: (c * 0.9 + row, c - row), torch.zeros(4), x, dim=0)


class Map(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        from torch._higher_order_ops.map import map as mapped

        return mapped(lambda row, other: row.cumsum(0) + other.sum(), x, x * 2)


@pytest.mark.parametrize("kind", [Choice, While, Scan, Map])
def test_branches_and_loops_are_the_same(kind: Any) -> None:
    torch.manual_seed(0)
    theirs = kind()
    x = torch.randn(3, 4)
    mine = from_exported(torch.export.export(theirs, (x,)))
    captured = TinyJit(lambda x: mine(x))
    for given in (x, -x, x * 3, -x * 0.1):
        wanted = theirs(given)
        for found in (mine(given.numpy()), captured(Tensor(given.numpy()))):
            pairs = (
                zip(found, wanted, strict=True)
                if isinstance(wanted, tuple | list)
                else [(found, wanted)]
            )
            for one, other in pairs:
                np.testing.assert_allclose(one.numpy(), other.detach().numpy(), **LIMITS)


def test_a_branch_has_a_gradient() -> None:
    torch.manual_seed(0)
    theirs = Choice()
    x = torch.ones(3, 4)
    mine = from_exported(torch.export.export(theirs, (x,)))
    theirs(x).square().sum().backward()
    mine(x.numpy()).square().sum().backward()
    gradients: dict[str, Any] = {name: one.grad for name, one in mine.named_parameters()}
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(gradients[name].numpy(), parameter.grad.numpy(), **LIMITS)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3])
def test_bags_train_under_the_backend(mode: str, padding: int | None) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    bag = torch.nn.EmbeddingBag(6, 4, mode=mode, padding_idx=padding)
    compiled = torch.compile(bag, backend=ferrule.torch.compiling.backend)
    words, starts = torch.tensor([0, 3, 3, 5, 1, 1, 2, 3]), torch.tensor([0, 2, 2, 6])
    gradients = []
    for model in (bag, compiled):
        bag.zero_grad()
        model(words, starts).square().sum().backward()
        gradients.append(bag.weight.grad.clone())
    assert gradients[0].abs().sum() > 0
    np.testing.assert_allclose(gradients[1].numpy(), gradients[0].numpy(), **LIMITS)


def test_weights_of_words_in_bags_have_a_gradient() -> None:
    torch._dynamo.reset()
    bag = torch.nn.EmbeddingBag(6, 4, mode="sum", padding_idx=3)
    compiled = torch.compile(bag, backend=ferrule.torch.compiling.backend)
    words, starts = torch.tensor([0, 3, 5, 1]), torch.tensor([0, 2])
    gradients = []
    for model in (bag, compiled):
        weights = torch.arange(1.0, 5.0, requires_grad=True)
        model(words, starts, weights).square().sum().backward()
        gradients.append(weights.grad)
    np.testing.assert_allclose(gradients[1].numpy(), gradients[0].numpy(), **LIMITS)


def test_groups_of_rows_have_their_own_matrices() -> None:
    from ferrule.torch.registry import rule_for

    rows, matrices = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32)
    grouped: Any = rule_for("aten._grouped_mm.default")
    ends = np.array([3, 3, 7, 8], np.int32)
    found = grouped(Tensor(rows), Tensor(matrices).reshape(4, 8, 2), Tensor(ends))
    starts = [0, *ends[:-1]]
    wanted = np.concatenate(
        [rows[a:b] @ one for a, b, one in zip(starts, ends, matrices.reshape(4, 8, 2), strict=True)]
    )
    np.testing.assert_allclose(found.numpy(), wanted, **LIMITS)
    with pytest.raises(TorchError, match="three"):
        grouped(Tensor(rows), Tensor(rows), Tensor(ends))


def test_an_operator_of_ones_own_has_a_rule() -> None:
    library = torch.library.Library("ferrule_tests", "FRAGMENT")
    library.define("scaled_sum(Tensor x, float factor) -> Tensor")
    library.impl("scaled_sum", lambda x, factor: x.sum() * factor, "CompositeExplicitAutograd")
    torch.library.register_fake("ferrule_tests::scaled_sum", lambda x, factor: x.new_empty(()))

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.ops.ferrule_tests.scaled_sum(x * 2, 0.5)

    program = torch.export.export(Net(), (torch.ones(3),))
    with pytest.raises(TorchError, match=r"operator ferrule_tests\.scaled_sum\.default"):
        from_exported(program)
    ferrule.torch.rule("ferrule_tests::scaled_sum")(lambda x, factor: x.sum() * factor)
    assert from_exported(program)(np.ones(3, np.float32)).item() == 3.0
    with pytest.raises(ValueError, match="has a rule"):
        ferrule.torch.rule("ferrule_tests::scaled_sum")(lambda x, factor: x)


def test_histograms_are_the_same() -> None:
    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.histc(x, 5, -1, 1)

    x = torch.randn(50)
    mine = from_exported(torch.export.export(Net(), (x,)))
    np.testing.assert_array_equal(mine(x.numpy()).numpy(), Net()(x).numpy())
