"""Public architectures as `torch.export` gives them: the same outputs and the same gradients."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.torch.architectures import MADE  # noqa: E402

import ferrule.torch  # noqa: E402
from ferrule import Tensor  # noqa: E402
from ferrule.torch.registry import rule_for  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, about their own functions

_EXPERTS = "transformers::grouped_mm_fallback"  # an operator of transformers' own


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    elif hasattr(value, "shape"):
        yield value


def _close(found: Any, wanted: Any, of: str, least: float = 1e-6) -> None:
    """Both are the same to 1e-4 of the largest element, or of `least`."""
    one, other = found.detach().numpy(), wanted.detach().numpy()
    assert one.shape == other.shape, of
    scale = max(np.abs(other).max(initial=0), least)
    np.testing.assert_allclose(one / scale, other / scale, rtol=0, atol=1e-4, err_msg=of)


def _loss(results: Any, constant: Callable[[Any], Any]) -> Any:
    """A number to differentiate: floats times numbers without a pattern.

    A sum of squares would not do: of what a layer has normalised it is the same for all weights.
    """
    rng = np.random.default_rng(0)
    floats = [leaf for leaf in _leaves(results) if leaf.is_floating_point()]
    weights = [rng.standard_normal(leaf.shape).astype(np.float32) for leaf in floats]
    parts = [(leaf * constant(one)).sum() for leaf, one in zip(floats, weights, strict=True)]
    return sum(parts[1:], parts[0])


@pytest.fixture(scope="module", autouse=True)
def torchvision() -> None:
    """Import torchvision, as both other libraries do where it is installed.

    One that is made for GPUs cannot load its own operators beside a PyTorch that is not, and
    describes them all the same, which fails. The architectures here need none of them.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    described = torch.library.register_fake

    def register(operator: Any, *others: Any, **options: Any) -> Any:
        known = torch._C._dispatch_has_kernel(str(operator))
        return described(operator, *others, **options) if known else lambda function: function

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.library, "register_fake", register)
        importlib.import_module("torchvision")


@pytest.mark.parametrize("name", MADE)
def test_an_architecture_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = name.split("-")[0] if "-" in name else "transformers"
    pytest.importorskip(library)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    theirs, given = MADE[name]()
    theirs.eval()
    with torch.no_grad():
        _enliven(theirs)
    args, kwargs = (tuple(given.values()), {}) if library != "transformers" else ((), given)
    program = torch.export.export(theirs, args, kwargs, strict=False)
    if rule_for(_EXPERTS.replace("::", ".") + ".default") is None:
        experts: Any = rule_for("aten._grouped_mm.default")
        ferrule.torch.rule(_EXPERTS)(lambda input, weight, offs: experts(input, weight, offs))
    mine = ferrule.torch.from_exported(program)
    found, wanted = mine(*args, **kwargs), theirs(*args, **kwargs)
    for place, (one, other) in enumerate(zip(_leaves(found), _leaves(wanted), strict=True)):
        _close(one, other, f"output {place}")
    _loss(found, Tensor).backward()
    _loss(wanted, torch.from_numpy).backward()
    gradients: dict[str, Any] = {
        place: one.grad for place, one in mine.named_parameters() if one.grad is not None
    }
    trained = {place: one.grad for place, one in theirs.named_parameters() if one.grad is not None}
    assert gradients.keys() >= trained.keys()
    # Some gradients would be 0 but for rounding, as of a bias that a softmax does not see.
    least = 1e-2 * max(float(one.abs().max()) for one in trained.values())
    for place, gradient in trained.items():
        _close(gradients[place], gradient, f"the gradient of {place}", least)


def _enliven(model: Any) -> None:
    """Give normalisation statistics and scales that are not those of a new layer."""
    for layer in model.modules():
        if getattr(layer, "running_var", None) is not None:
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
