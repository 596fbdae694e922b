"""A backend for the library einops: `einops.rearrange(x, "b c -> c b")` takes tensors of ferrule.

einops has no registry. It looks through the subclasses of its own class `AbstractBackend`, so that
a backend can only be made once einops is imported; `imports.py` waits for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferrule.tensor import Tensor

_registered: dict[str, type] = {}
"""einops finds subclasses through weak references."""


class Backend:
    """The operations that einops composes its functions of."""

    # einops makes a backend only after a module of this name is imported.
    framework_name = "ferrule.tensor"

    def __init__(self) -> None:
        from ferrule.tensor import Tensor

        self.Tensor = Tensor

    def is_appropriate_type(self, tensor: object) -> bool:
        """True for ferrule's tensors."""
        return isinstance(tensor, self.Tensor)

    def from_numpy(self, x: Any) -> Tensor:
        """A tensor of an array."""
        return self.Tensor(x)

    def to_numpy(self, x: Tensor) -> Any:
        """The array of a tensor."""
        return x.numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        """The integers from `start` to below `stop`."""
        return self.Tensor.arange(start, stop)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """The axes in another order."""
        return x.permute(*axes)

    def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
        """A reduction by name, such as "mean", over some axes."""
        result: Tensor = getattr(x, operation)(tuple(axes))
        return result

    def stack_on_zeroth_dimension(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of one shape along a new first axis."""
        return self.Tensor.stack(*tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        """A new axis of size 1."""
        return x.unsqueeze(new_position)

    def add_axes(self, x: Tensor, n_axes: int, pos2len: Mapping[int, int]) -> Tensor:
        """New axes of given sizes, along which values repeat; a view."""
        for place in pos2len:
            x = x.unsqueeze(place)
        return x.expand([pos2len.get(axis, -1) for axis in range(n_axes)])

    def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
        """Copies of a tensor side by side."""
        return x.repeat(*repeats)

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Tensors joined along an axis."""
        return self.Tensor.cat(*tensors, dim=axis)

    def is_float_type(self, x: Tensor) -> bool:
        """True for floats: einops takes means of nothing else."""
        return x.is_floating_point()

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        """Einstein's sum convention."""
        return self.Tensor.einsum(pattern, *x)


def register(backends: ModuleType) -> None:
    """Makes the backend known to einops, whose module `einops._backends` is given."""
    base: type | None = getattr(backends, "AbstractBackend", None)
    if base is None:  # einops has changed, and says itself that it does not know a tensor
        return
    _registered[backends.__name__] = type("FerruleBackend", (Backend, base), {})
