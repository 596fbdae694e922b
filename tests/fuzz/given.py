"""Names that all programs know, and functions that a printed program has in it if it uses them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

import ferrule
from ferrule import Tensor, nn


def filled(model: Any, rng: np.random.Generator) -> Any:
    """A model with small numbers as its parameters, of which sums and products are exact."""
    for tensor in nn.state.get_parameters(model):
        if tensor.requires_grad:
            numbers = rng.integers(-4, 5, tensor.shape) / 4
            with Tensor.no_grad():
                tensor.assign(Tensor(numbers, dtype=tensor.dtype))
    return model


def update(optimizer: Any, loss: Tensor, change: Callable[..., Any] | None = None) -> None:
    """A step of training; `change` may clip the gradients of the parameters."""
    optimizer.zero_grad()
    loss.backward()
    if change is not None:
        change([p for group in optimizer.param_groups for p in group["params"]])
    optimizer.step()


FUNCTIONS: tuple[Callable[..., Any], ...] = (filled, update)
NAMES: dict[str, Any] = {
    "np": np,
    "Tensor": Tensor,
    "ferrule": ferrule,
    "nn": nn,
    **{function.__name__: function for function in FUNCTIONS},
}


def header(words: set[str]) -> list[str]:
    """The imports of a program in which these words are, and the functions that it uses."""
    used = [function for function in FUNCTIONS if function.__name__ in words]
    has_nn = "nn" in words or bool(used)
    lines = ["import numpy as np\n"]
    lines += ["import ferrule"] if "ferrule" in words else []
    lines += ["from ferrule import Tensor, nn\n" if has_nn else "from ferrule import Tensor\n"]
    return [*lines, "", *(f"{_plain(function)}\n" for function in used)] if used else lines


def _plain(function: Callable[..., Any]) -> str:
    """The source of a function, without annotations, which would need more imports."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    _, _, body = inspect.getsource(function).partition(":\n")
    return f"def {function.__name__}{inspect.Signature(bare)}:\n{body}"


def tensors_of(value: Any) -> dict[str, Tensor]:
    """The tensors of a model or an optimiser by their names; a tensor has the empty name."""
    if isinstance(value, Tensor):
        return {"": value}
    return {name: x for name, x in nn.state.get_state_dict(value).items() if "params" not in name}
