"""Examples of arguments: new values of the kinds that a call's signature tells of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from ferrule.base.records import dataclass
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, Variable, as_expr
from ferrule.jit.inputs import with_values
from ferrule.jit.report.signature import (
    ArrayPart,
    DictPart,
    ListPart,
    ObjectPart,
    RecordPart,
    Signature,
    SlicePart,
    TensorPart,
    value_of,
)
from ferrule.tensor import Tensor


@final
@dataclass(frozen=True)
class Examples:
    """Makes arguments like those of a call: floats are random numbers, other tensors are zeros.

    Zeros are good as indices, too. All that is no tensor is as it was in the call.
    """

    objects: Sequence[object]
    """The objects in the call's arguments."""
    sizes: Mapping[Variable, int]
    """The values of the variables in the call."""

    def arguments(self, signature: Signature) -> tuple[list[Any], dict[str, Any]]:
        """The arguments by position, and those by keyword.

        Raises `TypeError` for a subclass of a container with attributes of its own.
        """
        _, args, keywords, values, _, _ = signature
        named = zip(keywords, self._all(values), strict=True)
        return self._all(args), dict(named)

    def _all(self, parts: Iterable[Any]) -> list[Any]:
        return [self._one(part) for part in parts]

    def _one(self, part: Any) -> Any:
        match part:
            case TensorPart():
                return self._tensor(part)
            case ListPart():
                kind, items, others = part
                _check(kind, others)
                made = self._all(items)
                return kind(*made) if hasattr(kind, "_fields") else kind(made)
            case DictPart():
                kind, keys, items, others = part
                _check(kind, others)
                return kind(zip(map(value_of, keys), self._all(items), strict=True))
            case RecordPart():
                kind, items, others = part
                _check(kind, others)
                record = object.__new__(kind)
                for field, item in zip(dataclasses.fields(kind), self._all(items), strict=True):
                    object.__setattr__(record, field.name, item)
                return record
            case SlicePart():
                return slice(*self._all(part[1:]))
            case ArrayPart():
                kind, dtype, shape, contents = part
                if not isinstance(contents, bytes):
                    array = np.empty(shape, dtype)
                    array[...] = self._one(contents)
                else:
                    array = np.frombuffer(contents, dtype).reshape(shape).copy()
                return array if issubclass(kind, np.ndarray) else array[()]
            case ObjectPart():
                return next(one for one in self.objects if id(one) == part[1])
            case Expr():
                return with_values(part, self.sizes)
            case _:
                return value_of(part)

    def _tensor(self, part: TensorPart) -> Tensor:
        shape, dtype, device, is_leaf, *_, gradient = part
        most = [as_expr(size).max for size in shape]
        numbers = np.zeros(most, dtype.np)
        if dtypes.is_float(dtype):
            numbers[...] = np.random.default_rng(0).standard_normal(most)
        tensor = Tensor(numbers, device=device)
        if tuple(most) != shape:
            tensor = tensor.shrink([(0, size) for size in with_values(shape, self.sizes)])
        if is_leaf:
            tensor.requires_grad = True
        if gradient is not None:
            tensor.grad = self._tensor(gradient)
        return tensor


def _check(kind: type, others: Any) -> None:
    if others != ():
        raise TypeError(
            f"an argument is a {kind.__name__}, a container with attributes of its own, of which "
            "no example can be made; give arguments"
        )
