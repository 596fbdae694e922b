"""Sizes that vary, on the host: arrays of objects, which are whole numbers and expressions.

The nodes that compute with sizes take such arrays where the result is the same for all values of
the variables; elsewhere present values are taken, which a capture notes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import Expr, as_expr, as_int, minimum, sint
from ferrule.tensor import Tensor

Array = npt.NDArray[Any]


def sizes_of(sizes: Sequence[sint]) -> Array:
    """Sizes as an array, one of int64 unless some of them vary."""
    return settled(_array(sizes, (len(sizes),)))


def settled(array: Any) -> Array:
    """Objects as an array of int64, if none of them varies."""
    if not isinstance(array, np.ndarray):  # a number, which NumPy takes out of its array
        array = _array([array], ())
    if array.dtype != object or any(isinstance(one, Expr | None) for one in array.flat):
        found: Array = array
        return found
    kind = bool if array.size and isinstance(array.flat[0], bool) else np.int64
    plain: Array = array.astype(kind)
    return plain


def varies(array: Array) -> bool:
    """Whether an array has expressions."""
    return array.dtype == object


def present(array: Array) -> Array:
    """The present values."""
    return array.astype(np.int64) if varies(array) else array


def as_numbers(array: Array) -> Tensor:
    """An array with expressions as a tensor, which follows the variables."""
    numbers = [Tensor.full((1,), as_int(one), dtype=dtypes.int64) for one in array.flat]
    return Tensor.cat(*numbers).reshape(*array.shape)


def _array(values: Sequence[Any], shape: tuple[int, ...]) -> Array:
    """An array of objects; those that NumPy is given to convert would be read by it."""
    chosen = np.frompyfunc(values.__getitem__, 1, 1)(np.arange(len(values)))
    array: Array = chosen.reshape(shape)
    return array


# Operators

_MOVES: Final = {
    "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze",
    "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
"""Operators whose implementation in the onnx package moves objects as well."""
LONG: Final = {"ConstantOfShape", "Expand", "Range", "Tile"}
"""Operators whose results have as many elements as their inputs say."""


def takes(operator: str, arrays: Sequence[Array | None], attributes: Mapping[str, Any]) -> bool:
    """Whether an operator computes with sizes that vary."""
    if operator == "Cast":
        return bool(attributes["to"] == 7)  # int64
    if operator in _MOVES:
        # Positions and shapes are plain numbers; what is joined may be expressions.
        others = () if operator == "Concat" else arrays[1:]
        return not any(other is not None and varies(other) for other in others)
    return operator in _COMPUTE or operator == "Where"


def moves(operator: str) -> bool:
    """Whether an operator only moves elements."""
    return operator in _MOVES


def moved(
    operator: str, run: Callable[..., Sequence[Any]], arrays: Sequence[Array | None]
) -> list[Array]:
    """The results of an operator that moves elements, found by moving their numbers."""
    count = len(arrays) if operator == "Concat" else 1
    sources = [_objects(array) for array in arrays[:count] if array is not None]
    elements = np.concatenate([source.reshape(-1) for source in sources])
    numbers, first = [], 0
    for source in sources:
        numbers.append(np.arange(first, first + source.size).reshape(source.shape))
        first += source.size
    return [settled(elements[places]) for places in run(*numbers, *arrays[count:])]


def computed(operator: str, arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Array | None:
    """The result of an operator that takes expressions; None if it depends on their values."""
    if operator == "Cast":
        return arrays[0]
    if operator == "Where":
        return None if varies(arrays[0]) else settled(np.where(*arrays))
    if operator == "ReduceProd":
        given = attributes.get("axes", ()) if len(arrays) == 1 else arrays[1]
        axes = tuple(map(int, given))
        if not axes and attributes.get("noop_with_empty_axes"):
            return arrays[0]
        keeps = bool(attributes.get("keepdims", 1))
        return settled(np.prod(arrays[0], axis=axes or None, keepdims=keeps))
    function = np.frompyfunc(_COMPUTE[operator], min(len(arrays), 2), 1)
    found = settled(function(*[_objects(array) for array in arrays[:2]]))
    for array in arrays[2:]:
        found = settled(function(_objects(found), _objects(array)))
    return None if any(one is None for one in found.flat) else found


def _objects(array: Array) -> Array:
    return array if varies(array) else array.astype(object)


def _floor(a: sint, b: sint) -> sint | None:
    """The quotient; ONNX rounds towards 0, so neither may be below 0."""
    if as_expr(a).min < 0 or as_expr(b).min <= 0:
        return None
    return as_int(as_expr(a) // b)


def _modulo(a: sint, b: sint) -> sint | None:
    return None if as_expr(b).min <= 0 else as_int(as_expr(a) % b)


def _least(a: sint, b: sint) -> sint:
    return as_int(minimum(a, b))


def _greatest(a: sint, b: sint) -> sint:
    return as_int(-minimum(-as_expr(a), -as_expr(b)))


def _is_less(a: sint, b: sint) -> bool | None:
    low, high = (as_expr(a) - b).bounds()
    return True if high < 0 else False if low >= 0 else None


def _is_equal(a: sint, b: sint) -> bool | None:
    low, high = (as_expr(a) - b).bounds()
    return True if low == high == 0 else False if low > 0 or high < 0 else None


def _denied(value: bool | None) -> bool | None:
    return None if value is None else not value


_COMPUTE: Final[Mapping[str, Callable[..., Any]]] = {
    "Add": lambda a, b: as_int(as_expr(a) + b),
    "Sub": lambda a, b: as_int(as_expr(a) - b),
    "Mul": lambda a, b: as_int(as_expr(a) * b),
    "Neg": lambda a: as_int(-as_expr(a)),
    "Div": _floor,
    "Mod": _modulo,
    "Min": _least,
    "Max": _greatest,
    "Equal": _is_equal,
    "Less": _is_less,
    "Greater": lambda a, b: _is_less(b, a),
    "LessOrEqual": lambda a, b: _denied(_is_less(b, a)),
    "GreaterOrEqual": lambda a, b: _denied(_is_less(a, b)),
    "ReduceProd": lambda a, b: as_int(as_expr(a) * b),
}
