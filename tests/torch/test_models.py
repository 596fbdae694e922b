"""Models of PyTorch under `ferrule.torch`: the same results, gradients and statistics."""

from __future__ import annotations

import copy
import operator
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Tensor, TinyJit, nn
from ferrule.nn.state import get_state_dict, load_state_dict

torch = pytest.importorskip("torch")

from tests.torch.models import EXAMPLES, GPT, Bags, Bert, Example, ResNet  # noqa: E402

import ferrule.torch  # noqa: E402
from ferrule.torch import TorchError, from_exported  # noqa: E402
from ferrule.torch.compiling import backend  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch, about its own functions
LIMITS = {"rtol": 1e-4, "atol": 1e-4}


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in flat(part)]
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in flat(part)]
    return [value]


def exported(model: Any, inputs: Any) -> Any:
    batch = torch.export.Dim("batch", min=2, max=64)
    sizes = tuple({0: batch} for _ in inputs)
    return torch.export.export(model, inputs, dynamic_shapes=sizes)


def arrays(inputs: Any) -> list[Any]:
    return [Tensor(value.numpy()) for value in inputs]


def assert_same(mine: Any, theirs: Any) -> None:
    found, wanted = flat(mine), flat(theirs)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), **LIMITS)


def loss_of(results: Any) -> Any:
    """A number to differentiate, of the results that are floats."""
    total: Any = 0.0
    for place, result in enumerate(flat(results)):
        if result.is_floating_point():
            total = total + (result * (result + place + 0.5)).mean()
    return total


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.model.__name__)
def test_a_model_computes_the_same_for_any_batch(example: Example) -> None:
    torch.manual_seed(0)
    theirs = example.model().eval()
    mine = from_exported(exported(theirs, example.inputs(3)))
    captured = TinyJit(lambda *inputs: mine(*inputs))
    for batch in (3, 3, 3, 2, 5, 2):
        inputs = example.inputs(batch)
        wanted = theirs(*inputs)
        assert_same(captured(*arrays(inputs)), wanted)
        assert_same(mine(*[value.numpy() for value in inputs]), wanted)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.model.__name__)
def test_a_model_trains_the_same(example: Example) -> None:
    """Gradients of all parameters, and what training changes in buffers."""
    torch.manual_seed(0)
    theirs = example.model().train()
    mine = from_exported(exported(copy.deepcopy(theirs), example.inputs(3)))
    for batch in (3, 4):
        inputs = example.inputs(batch)
        wanted, found = theirs(*inputs), mine(*arrays(inputs))
        assert_same(found, wanted)
        loss_of(wanted).backward()
        loss_of(found).backward()
    tensors = get_state_dict(mine)
    assert {*tensors} == {*theirs.state_dict()}
    for name, parameter in theirs.named_parameters():
        assert tensors[name].requires_grad
        if parameter.grad is not None:
            grad = tensors[name].grad
            assert grad is not None, name
            np.testing.assert_allclose(grad.numpy(), parameter.grad.numpy(), **LIMITS)
    for name, buffer in theirs.named_buffers():
        if name in tensors:
            assert not tensors[name].requires_grad
            np.testing.assert_allclose(tensors[name].numpy(), buffer.numpy(), **LIMITS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.model.__name__)
def test_pytorch_compiles_a_model_with_the_backend(example: Example) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    theirs = example.model().train()
    compiled = torch.compile(copy.deepcopy(theirs), backend="ferrule")
    for batch in (3, 3):
        inputs = example.inputs(batch)
        wanted, found = theirs(*inputs), compiled(*inputs)
        for one, other in zip(flat(found), flat(wanted), strict=True):
            np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), **LIMITS)
        loss_of(wanted).backward()
        loss_of(found).backward()
    for mine, other in zip(compiled.parameters(), theirs.parameters(), strict=True):
        if other.grad is not None:
            np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), **LIMITS)
    for mine, other in zip(compiled.buffers(), theirs.buffers(), strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), **LIMITS)
    theirs.eval()
    compiled.eval()
    with torch.no_grad():
        for one, other in zip(flat(compiled(*inputs)), flat(theirs(*inputs)), strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), **LIMITS)


def test_bags_of_words_are_the_same() -> None:
    torch.manual_seed(0)
    theirs = Bags().eval()
    words, starts = torch.randint(0, 40, (11,)), torch.tensor([0, 4, 6])
    mine = from_exported(torch.export.export(theirs, (words, starts)))
    assert_same(mine(words.numpy(), starts.numpy()), theirs(words, starts))
    loss_of(theirs(words, starts)).backward()
    loss_of(mine(words.numpy(), starts.numpy())).backward()
    tensors = get_state_dict(mine)
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(tensors[name].grad.numpy(), parameter.grad.numpy(), **LIMITS)


def test_parameters_share_the_memory_of_pytorch() -> None:
    theirs = torch.nn.Linear(3, 2)
    mine = from_exported(torch.export.export(theirs, (torch.ones(1, 3),)))
    with torch.no_grad():
        theirs.weight.fill_(2.0)
        theirs.bias.zero_()
    assert mine(np.ones((1, 3), np.float32)).tolist() == [[6.0, 6.0]]


def test_tied_weights_are_one_tensor() -> None:
    mine = from_exported(torch.export.export(GPT(), (torch.zeros(2, 9, dtype=torch.long),)))
    tensors = get_state_dict(mine)
    assert tensors["words.weight"] is tensors["head.weight"]


def test_optional_and_named_inputs() -> None:
    theirs = Bert().eval()
    words, mask = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)
    program = torch.export.export(theirs, (words,), {"mask": mask, "kinds": mask})
    mine = from_exported(program)
    given = {"kinds": mask.numpy(), "mask": mask.numpy()}
    assert_same(mine(words.numpy(), **given), theirs(words, mask, mask))
    with pytest.raises(TorchError, match=r"names \['mask'\]; they must be \['mask', 'kinds'\]"):
        mine(words.numpy(), mask=mask.numpy())
    with pytest.raises(TorchError, match=r"has the shape \(2, 4\).* it must be \(2, 5\)"):
        mine(words.numpy()[:, :4], **given)
    with pytest.raises(TorchError, match=r"dtype dtypes\.int32"):
        mine(words.numpy().astype(np.int32), **given)


def test_inputs_that_a_program_writes_are_written() -> None:
    class Writes(torch.nn.Module):
        def forward(self, x: Any, total: Any) -> Any:
            total.add_(x.sum())
            return total * 2

    program = torch.export.export(Writes(), (torch.ones(3), torch.zeros(1)))
    x, total = Tensor([1.0, 2.0, 3.0]), Tensor([4.0]).realize()
    assert from_exported(program)(x, total).tolist() == [20.0]
    assert total.tolist() == [10.0]


def test_sizes_are_computed_in_each_call() -> None:
    class Sizes(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            n = x.shape[0]
            return torch.arange(n) * (2 * n + 1) // 3, x[: n // 2].sum(), n - 1

    n = 2 * torch.export.Dim("n", min=2)
    mine = from_exported(torch.export.export(Sizes(), (torch.ones(6),), dynamic_shapes=({0: n},)))
    for size in (4, 10):
        x = np.arange(size, dtype=np.float32)
        for one, other in zip(mine(x), Sizes()(torch.tensor(x)), strict=True):
            assert (one if isinstance(one, int) else one.tolist()) == (
                other if isinstance(other, int) else other.tolist()
            )


def test_all_operators_without_a_rule_are_listed() -> None:
    class Values(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.fft.rfft(x).tanh().abs(), torch.linalg.eigvalsh(x)

    program = torch.export.export(Values(), (torch.ones(4, 4),))
    with pytest.raises(TorchError) as caught:
        from_exported(program)
    for name in ("aten.tanh.default on complex numbers", "aten._linalg_eigh.default"):
        assert name in str(caught.value)
    with pytest.raises(Exception, match=r"aten\._linalg_eigh"):
        torch.compile(Values(), backend="ferrule")(torch.ones(4, 4))


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(TypeError, match=r"torch\.export\.export"):
        from_exported(torch.nn.Linear(2, 2))


def test_a_loaded_model_is_trained_under_capture() -> None:
    torch.manual_seed(0)
    example = Example(ResNet, ((0, 3, 16, 16),))
    theirs = ResNet().train()
    mine = from_exported(exported(copy.deepcopy(theirs), example.inputs(4)))
    parameters = [t for t in get_state_dict(mine).values() if t.requires_grad]
    optimizer = nn.optim.SGD(parameters, lr=0.05)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.05)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(mine(x))
        loss.backward()
        optimizer.step()
        return loss.realize()

    for batch in (4, 4, 4, 4, 6):
        (x,) = example.inputs(batch)
        reference.zero_grad()
        loss = loss_of(theirs(x))
        loss.backward()
        reference.step()
        np.testing.assert_allclose(step(Tensor(x.numpy())).item(), loss.item(), **LIMITS)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(get_state_dict(mine)[name].numpy(), value.numpy(), **LIMITS)


def test_a_state_is_loaded_under_pytorchs_names() -> None:
    mine = from_exported(exported(ResNet().eval(), (torch.ones(3, 3, 24, 24),)))
    other = ResNet().eval()
    load_state_dict(mine, {name: value.numpy() for name, value in other.state_dict().items()})
    x = torch.randn(2, 3, 24, 24)
    assert_same(mine(x.numpy()), other(x))


def test_gradients_with_respect_to_inputs() -> None:
    theirs = EXAMPLES[0].model().eval()
    (x,) = EXAMPLES[0].inputs(2)
    mine = from_exported(exported(theirs, (x,)))
    slope = ferrule.grad(lambda value: loss_of(mine(value)))(Tensor(x.numpy()))
    leaf = x.clone().requires_grad_(True)
    loss_of(theirs(leaf)).backward()
    np.testing.assert_allclose(slope.numpy(), leaf.grad.numpy(), **LIMITS)


def test_core_operators_have_rules_but_for_few() -> None:
    """Memory of another size is another tensor."""
    from ferrule.torch.registry import operators

    core = set()
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if space == "aten" else None
        operator = getattr(packet, schema.overload_name or "default", None)
        if operator is not None and torch.Tag.core in operator.tags:
            core.add(str(operator))
    assert core - {*operators()} == {"aten.resize_.default"}


def test_rules_are_of_operators_that_exist() -> None:
    from ferrule.torch.registry import operators

    for name in operators():
        operator.attrgetter(name if name[0] == "a" else name.removesuffix(".default"))(torch.ops)


def test_the_backend_sees_what_pytorch_writes() -> None:
    theirs = torch.nn.Linear(4, 4)
    torch._dynamo.reset()
    compiled = torch.compile(theirs, backend=backend)
    x = torch.ones(2, 4)
    with torch.no_grad():
        for _ in range(5):
            np.testing.assert_allclose(compiled(x).numpy(), theirs(x).numpy(), **LIMITS)
            theirs.weight.mul_(1.5)
            theirs.bias.add_(1)


def test_results_may_be_written_to() -> None:
    """By PyTorch, in place: no later call sees it."""
    torch._dynamo.reset()

    def function(x: Any) -> Any:
        return x + 1, torch.arange(4), torch.full((), 3.0), x.sum()

    compiled = torch.compile(function, backend="ferrule")
    x = torch.ones(4)
    for _ in range(5):
        for found, wanted in zip(compiled(x), function(x), strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted.numpy())
            found.add_(7)
        x.add_(1)


def test_a_capture_sees_what_pytorch_writes_to_large_weights() -> None:
    theirs = torch.nn.Linear(512, 512)
    mine = from_exported(torch.export.export(theirs, (torch.ones(64, 512),)))
    captured = TinyJit(lambda x: mine(x))
    x = torch.randn(64, 512)
    for _ in range(6):
        assert_same(captured(Tensor(x.numpy())), theirs(x))
        with torch.no_grad():
            theirs.weight.mul_(1.5)
