"""NumPy as an oracle for single statements, which shares no code with ferrule.

All ways to run a program share the front end and the views, so a mistake there is the same in all.
Statements that NumPy can do are therefore done by it as well: operators, indexing, movements,
reductions, and element-wise functions that have one name in both. It computes in float64, from the
operands that ferrule had; what it has no counterpart for is left alone.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ferrule import Tensor, dtypes
from tests.fuzz.program import parsed, words

Array = np.ndarray[Any, Any]

_PLAIN: Final = words(
    """bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64"""
)
_TOLERANCE: Final = {8: 1e-9, 4: 3e-5, 2: 3e-2}
_LARGEST: Final = 2.0**40
# Above this, functions of angles and powers of e differ by much for little.
_LARGEST_ARGUMENT: Final = 50.0


compared: Final = Counter[bool]()
"""How many statements NumPy did, and how many it could not do."""


class UnknownError(Exception):
    """NumPy has no counterpart, or means something else."""


class DiffersError(Exception):
    """A statement does not give what NumPy gives."""


def compare_with_numpy(values: Mapping[str, Any], line: str) -> None:
    """Raises `DiffersError` if a statement, done just now, gave another value than NumPy's."""
    statement = parsed(line) if line else None
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return
    found = values.get(statement.targets[0].id)
    if not isinstance(found, Tensor) or not _is_plain(found):
        return
    oracle = _Oracle(values)
    try:
        with np.errstate(all="ignore"):
            expected = np.asarray(oracle.value(statement.value))
    except Exception:  # whatever it is, NumPy cannot say what the statement means
        compared[False] += 1
        return
    compared[True] += 1
    _compare(line, expected, found, oracle)


def _compare(line: str, expected: Array, found: Tensor, oracle: _Oracle) -> None:
    array = found.detach().numpy()
    wide = expected.astype(np.float64)
    largest = np.abs(wide).max(initial=0)
    if not np.isfinite(wide).all() or largest > min(_LARGEST, float(dtypes.max(found.dtype))):
        return
    if wide.size and not dtypes.is_float(found.dtype) and wide.min() < dtypes.min(found.dtype):
        return  # it wraps around
    if expected.shape != array.shape:
        raise DiffersError(f"{line}\nNumPy gives shape {expected.shape}, ferrule {array.shape}")
    room = 0.0
    if dtypes.is_float(found.dtype):
        room = _TOLERANCE[min(found.dtype.itemsize, oracle.itemsize)]
        room *= max(largest, oracle.magnitude)
    if not np.all(np.abs(array.astype(np.float64) - wide) <= room):
        raise DiffersError(f"{line}\nNumPy    {expected}\nferrule  {array}")


def _is_plain(tensor: Tensor) -> bool:
    """True for a dtype that NumPy has itself, and not by ml_dtypes."""
    return tensor.dtype.name in _PLAIN


class _Oracle:
    """Evaluates an expression over the present values of tensors."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.magnitude = 1.0
        """The largest partial result that there may be."""
        self.itemsize = 8
        """Of the narrowest float among the operands; integers count as float32, which `/` gives."""

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                return self._operand(self.values[name])
            case ast.Constant(value=bool() | int() | float() as number):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._binary(_BINARY[type(op)], self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return _COMPARE[type(op)](self.value(left), self.value(right))
            case ast.Subscript(value=whole, slice=index):
                return self.value(whole)[self._index(index)]
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args, keywords=words):
                return self._call(name, owner, args, words)
        raise UnknownError

    def _operand(self, tensor: Any) -> Array:
        if not isinstance(tensor, Tensor) or not _is_plain(tensor):
            raise UnknownError
        array = tensor.detach().numpy()
        if array.dtype == np.bool_:
            return array
        wide = array.astype(np.float64)
        if not np.isfinite(wide).all() or np.abs(wide).max(initial=0) > _LARGEST:
            raise UnknownError
        is_float = dtypes.is_float(tensor.dtype)
        self.itemsize = min(self.itemsize, tensor.dtype.itemsize if is_float else 4)
        self.magnitude = max(self.magnitude, float(np.abs(wide).max(initial=0)))
        return wide

    def _number(self, node: ast.expr) -> Any:
        found = self.value(node)
        if isinstance(found, np.ndarray) and found.dtype == np.bool_:
            raise UnknownError
        return found

    def _binary(self, op: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        if any(isinstance(x, bool) or getattr(x, "dtype", None) == np.bool_ for x in (a, b)):
            raise UnknownError
        if op is np.matmul:
            terms = a.shape[-1] if a.ndim else 1
            self.magnitude = max(1.0, terms * np.abs(a).max(initial=0) * np.abs(b).max(initial=0))
        return op(a, b)

    def _index(self, node: ast.expr) -> Any:
        match node:
            case ast.Tuple(elts=parts):
                return tuple([self._index(part) for part in parts])
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*[x and ast.literal_eval(x) for x in (lower, upper, step)])
            case ast.Name(id=name):
                tensor = self.values[name]
                if not isinstance(tensor, Tensor):
                    raise UnknownError
                return tensor.detach().numpy()
        return ast.literal_eval(node)

    def _call(
        self, name: str, owner: ast.expr, args: list[ast.expr], words: list[ast.keyword]
    ) -> Any:
        x = self.value(owner)
        if name in _UFUNCS:
            return self._function(name, [x, *map(self.value, args)], words)
        given = [ast.literal_eval(arg) for arg in args]
        named = {str(word.arg): ast.literal_eval(word.value) for word in words}
        if name in _REDUCES:
            self.magnitude *= max(x.size, 1)
            return _reduce(_REDUCES[name], x, given, named)
        if name in _MOVES and not named:
            return _MOVES[name](x, *given)
        raise UnknownError

    def _function(self, name: str, operands: list[Any], words: list[ast.keyword]) -> Any:
        function, is_wild = _UFUNCS[name]
        if words or len(operands) != function.nin:
            raise UnknownError
        if is_wild and self.magnitude > _LARGEST_ARGUMENT:
            raise UnknownError
        if any(getattr(x, "dtype", None) == np.bool_ for x in operands):
            raise UnknownError
        return function(*operands)


_BINARY: Final[Mapping[Any, Callable[[Any, Any], Any]]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.MatMult: np.matmul,
}
_COMPARE: Final[Mapping[Any, Callable[[Any, Any], Any]]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_TAME = """abs absolute neg=negative square floor ceil trunc sign maximum minimum add sub=subtract
    mul=multiply subtract multiply less less_equal greater greater_equal lt=less le=less_equal
    gt=greater ge=greater_equal eq=equal ne=not_equal fmax fmin isnan isinf isfinite"""
_WILD = "sin cos exp exp2 expm1 tanh sinh cosh arctan atan=arctan arcsinh asinh=arcsinh"


def _functions(text: str, is_wild: bool) -> dict[str, tuple[np.ufunc, bool]]:
    pairs = [word.partition("=") for word in text.split()]
    return {ours: (getattr(np, theirs or ours), is_wild) for ours, _, theirs in pairs}


_UFUNCS: Final = _functions(_TAME, False) | _functions(_WILD, True)
_REDUCES: Final[Mapping[str, Callable[..., Any]]] = {
    "sum": np.sum,
    "prod": np.prod,
    "mean": np.mean,
    "max": np.max,
    "amax": np.max,
    "min": np.min,
    "amin": np.min,
    "any": np.any,
    "all": np.all,
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
}


def _reduce(
    function: Callable[..., Any], x: Array, given: list[Any], named: dict[str, Any]
) -> Array:
    """With an axis, or several, and keepdim; running totals are of the first axis by default."""
    axis = named.pop("axis", named.pop("dim", given[0] if given else None))
    keep = named.pop("keepdim", named.pop("keepdims", given[1] if len(given) > 1 else False))
    if named or len(given) > 2 or isinstance(axis, bool):
        raise UnknownError
    if function in (np.cumsum, np.cumprod):
        if keep or x.ndim == 0:
            raise UnknownError
        return np.asarray(function(x, 0 if axis is None else axis))
    if axis is not None and not isinstance(axis, int):
        axis = tuple(axis)
    return np.asarray(function(x, axis=axis, keepdims=bool(keep)))


def _sizes(given: tuple[Any, ...]) -> tuple[int, ...]:
    if len(given) == 1 and isinstance(given[0], tuple | list):
        return tuple(given[0])
    return given


def _expanded(x: Array, *given: Any) -> Array:
    sizes = _sizes(given)
    own = (1,) * (len(sizes) - x.ndim) + x.shape
    return np.broadcast_to(x, [n if m == -1 else m for n, m in zip(own, sizes, strict=True)])


_MOVES: Final[Mapping[str, Callable[..., Any]]] = {
    "reshape": lambda x, *sizes: x.reshape(_sizes(sizes)),
    "permute": lambda x, *axes: x.transpose(_sizes(axes)),
    "transpose": lambda x, a, b: np.swapaxes(x, a, b),
    "swapaxes": np.swapaxes,
    "movedim": np.moveaxis,
    "flip": lambda x, *axes: np.flip(x, _sizes(axes)),
    "roll": lambda x, shift, axis: np.roll(x, shift, axis),
    "expand": _expanded,
    "repeat": lambda x, *times: np.tile(x, _sizes(times)),
    "unsqueeze": np.expand_dims,
    "flatten": lambda x: x.reshape(-1),
    "ravel": lambda x: x.reshape(-1),
    "tril": lambda x, k=0: np.tril(x, k),
    "triu": lambda x, k=0: np.triu(x, k),
    "diagonal": lambda x, k=0, a=0, b=1: np.diagonal(x, k, a, b),
    "narrow": lambda x, axis, start, n: np.take(x, range(start, start + n), axis),
    "clone": lambda x: x,
    "contiguous": lambda x: x,
    "detach": lambda x: x,
}
