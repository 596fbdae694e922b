"""NumPy as an oracle for single statements, which shares no code with ferrule.

All ways to run a program share the front end and the views, so a mistake there is the same in all.
Statements that NumPy can do are therefore done by it as well: operators, indexing, and methods that
the tables of `numpy_functions.py` and its neighbours have a counterpart for. It computes in
float64, from the operands that ferrule had; what it has no counterpart for is left alone.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ferrule import Tensor, dtypes
from tests.fuzz.numpy_functions import (
    AGGREGATES,
    ELEMENTS,
    EXACT,
    FUNCTIONS,
    PRODUCTS,
    REDUCTIONS,
    UFUNCS,
    Scaled,
    aggregate,
    as_integers,
    only_if,
    transform,
)
from tests.fuzz.numpy_indexing import FOLDS, MOVES
from tests.fuzz.numpy_layers import LAYERS, SIZES
from tests.fuzz.numpy_linalg import CHAINS, DECOMPOSITIONS, MATRICES
from tests.fuzz.numpy_order import CHOICES, COUNTS, PICKED, QUANTILES
from tests.fuzz.numpy_special import INTEGERS, NUMBERS, SKIPPING, SPECIAL
from tests.fuzz.program import parsed, words, written

Array = np.ndarray[Any, Any]

_PLAIN: Final = words(
    """bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64"""
)
_TOLERANCE: Final = {8: 1e-9, 4: 3e-5, 2: 3e-2}
# Of each element, for one function whose operands are what both have.
_TOLERANCE_OF_ONE: Final = {8: 1e-14, 4: 1e-6, 2: 2e-3}
_LARGEST: Final = 2.0**40
# Several results may be large together, as those of `meshgrid` are, and are not computed so far.
_MOST_ELEMENTS: Final = 2**20
# Above this, functions of angles and powers of e differ by much for little.
_LARGEST_ARGUMENT: Final = 50.0


OF_FLOATS: Final = {**MATRICES, **QUANTILES, **LAYERS, **SPECIAL, **SKIPPING}
"""Counterparts for tensors of floats; integers may have other rules, as a division has."""
OF_NUMBERS: Final = {**CHOICES, **COUNTS, **CHAINS, **FOLDS}
"""Counterparts for all tensors but those of bools."""
OF_ALL: Final = {**FUNCTIONS, **MOVES, **SIZES}
PARTS: Final = {**DECOMPOSITIONS, **PICKED}
"""Functions whose results are right if they go together: they need not be the same as NumPy's."""
_EXACT: Final = frozenset().union(
    EXACT, CHOICES, MOVES, SIZES, PICKED, words("nanmax nanmin hardshrink frexp")
)

compared: Final = Counter[bool]()
"""Counts of the statements that NumPy could do (True) and could not do (False)."""


class UnknownError(Exception):
    """NumPy has no counterpart, or means something else."""


class DiffersError(Exception):
    """A statement does not give what NumPy gives."""


class NumpyOracle:
    """Does each statement with NumPy too; raises `DiffersError` where results are not the same."""

    def __init__(self) -> None:
        self.written: tuple[str, Array, _Oracle] | None = None
        """The target of a statement that writes, and its expected contents afterwards."""

    def before(self, values: Mapping[str, Any], line: str) -> None:
        """Notes what a statement that writes is about to make of its target."""
        self.written = None
        name = written(line)
        if name is None or not isinstance(values.get(name), Tensor):
            return
        oracle = _Oracle(values)
        expected = _done(lambda: np.asarray(oracle.write(parsed(line), name)))
        if expected is not None:
            self.written = name, expected, oracle

    def after(self, values: Mapping[str, Any], line: str) -> None:
        """Compares what a statement made, or wrote to, with NumPy's."""
        if self.written is not None:
            name, expected, oracle = self.written
            compared[True] += 1
            _compare(line, expected, values[name].detach().numpy(), oracle)
            return
        statement = parsed(line)
        if not isinstance(statement, ast.Assign):
            return
        found = [*_leaves(_bound(statement.targets[0], values))]
        if not found or not all(isinstance(x, Tensor) for x in found):
            return
        if sum(math.prod(x.shape) for x in found) > _MOST_ELEMENTS:
            return
        asked = _dtype_asked(statement.value)
        if asked is not None and len(found) == 1 and found[0].dtype.name != asked:
            raise DiffersError(f"{line}\nasked for {asked}, ferrule gives {found[0].dtype.name}")
        if not all(_is_plain(x) for x in found):
            return
        oracle = _Oracle(values)
        arrays = [x.detach().numpy() for x in found]
        if _done(lambda: statement.value.func.attr) in PARTS:
            _compare_parts(line, statement.value, arrays, oracle)
            return
        result = _done(lambda: [*map(np.asarray, _leaves(oracle.value(statement.value)))])
        compared[result is not None] += 1
        if result is not None:
            _compare_all(line, result, arrays, oracle)


def _bound(target: ast.expr, values: Mapping[str, Any]) -> Any:
    """The value of a statement's target, which may be several names."""
    if isinstance(target, ast.Tuple | ast.List):
        return [_bound(part, values) for part in target.elts]
    return values.get(target.id) if isinstance(target, ast.Name) else None


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _dtype_asked(call: ast.expr) -> str | None:
    """The name of the dtype that a call is asked to give, by the keyword of all functions."""
    words = call.keywords if isinstance(call, ast.Call) else []
    given = [word.value for word in words if word.arg == "dtype"]
    return given[0].value if given and isinstance(given[0], ast.Constant) else None


def _done(work: Callable[[], Any]) -> Any:
    """The result of NumPy; None if it cannot do the statement."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()
    except Exception:  # whatever it is, the statement means something else to NumPy, or nothing
        return None


def _compare_all(
    line: str, expected: Sequence[Array], found: Sequence[Array], oracle: _Oracle
) -> None:
    if len(expected) != len(found):
        raise DiffersError(f"{line}\nNumPy gives {len(expected)} results, ferrule {len(found)}")
    for one, other in zip(expected, found, strict=True):
        _compare(line, one, other, oracle)


def _compare_parts(line: str, call: ast.expr, found: Sequence[Array], oracle: _Oracle) -> None:
    """Compares what several results make together with what they should make."""
    checks = _done(lambda: oracle.checks(call, found))
    compared[checks is not None] += 1
    while checks is not None and (pair := _done(lambda: _next(line, checks))) is not None:
        if isinstance(pair, DiffersError):
            raise pair
        expected, made = pair
        _compare(line, np.asarray(expected), np.asarray(made).astype(found[0].dtype), oracle)


def _next(line: str, checks: Iterator[tuple[Any, Any]]) -> Any:
    """The next pair; what is wrong if the parts do not even fit together, as positions out of range
    do not.
    """
    try:
        return next(checks, None)
    except np.linalg.LinAlgError:
        return None
    except (IndexError, ValueError) as error:
        return DiffersError(f"{line}\nNumPy cannot put the results together: {error}")


def _compare(line: str, expected: Array, array: Array, oracle: _Oracle) -> None:
    wide = expected.astype(np.float64)
    largest = np.abs(wide).max(initial=0, where=np.isfinite(wide))
    if not _can_hold(array.dtype, wide, largest):
        return
    if expected.shape != array.shape:
        raise DiffersError(f"{line}\nNumPy gives shape {expected.shape}, ferrule {array.shape}")
    room: Any = 0.0
    itemsize = min(array.dtype.itemsize, oracle.itemsize)
    if array.dtype.kind == "f" and oracle.is_exact:
        wide = wide.astype(array.dtype).astype(np.float64)
    elif array.dtype.kind == "f" and oracle.is_one_function:
        room = _TOLERANCE_OF_ONE[itemsize] * np.abs(wide) + float(np.finfo(array.dtype).tiny)
    elif array.dtype.kind == "f":
        room = _TOLERANCE[itemsize]
        room *= max(largest, oracle.magnitude)
    with np.errstate(invalid="ignore"):
        near = np.abs(array.astype(np.float64) - wide) <= room
    if not np.all(near | ~np.isfinite(wide)):
        raise DiffersError(f"{line}\nNumPy    {expected}\nferrule  {array}")


def _can_hold(dtype: np.dtype[Any], wide: Array, largest: float) -> bool:
    """True if numbers neither wrap around nor lose what makes them comparable in a dtype."""
    if dtype.kind == "f":
        return largest <= min(_LARGEST, float(np.finfo(dtype).max))
    if not np.isfinite(wide).all() or largest > _LARGEST:
        return False
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(np.all(wide == np.trunc(wide)) and np.all((wide >= least) & (wide <= most)))


def _is_plain(tensor: Tensor) -> bool:
    """True for a dtype that NumPy has itself, and not by ml_dtypes."""
    return tensor.dtype.name in _PLAIN


def _overlaps(tensor: Tensor) -> bool:
    """True if elements of a view share memory, as after `expand`: all of them are written then."""
    places = np.zeros((), np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places[..., None] + np.arange(size) * stride
    return bool(np.unique(places).size < places.size)


class _Oracle:
    """Evaluates an expression over the present values of tensors."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.magnitude = 1.0
        """The largest partial result that there may be."""
        self.itemsize = 8
        """Of the narrowest float among the operands; integers count as float32, which `/` gives."""
        self.is_exact = True
        """False where a result is rounded, and not an operand's element as it is."""
        self.operations = 0
        self.is_one_function = False
        """True for a function of operands as they are, which is right to a few last places."""
        self.most = math.inf
        """The limit of the narrowest integer dtype of the operands: larger results may wrap."""
        self.kinds: set[str] = set()
        """Of the dtypes of operands, as NumPy calls them: "f", "i", "u", "b"."""
        self.may_be_nan = False
        """True where operands may hold NaN."""

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                return self._operand(self.values[name])
            case ast.Constant(value=bool() | int() | float() as number):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand)
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return np.invert(as_integers(self.value(operand)))
            case ast.Attribute(value=ast.Name(id="np"), attr="inf"):
                return math.inf
            case ast.Attribute(value=owner, attr="T"):
                return self.value(owner).T
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._binary(_BINARY[type(op)], self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return _COMPARE[type(op)](self.value(left), self.value(right))
            case ast.Subscript(value=owner, slice=index):
                return self.value(owner)[self._index(index)]
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args, keywords=words):
                return self._call(name, owner, args, words)
        raise UnknownError

    def _operand(self, tensor: Any) -> Array:
        if not isinstance(tensor, Tensor) or not _is_plain(tensor):
            raise UnknownError
        array = tensor.detach().numpy()
        self.kinds.add(array.dtype.kind)
        if array.dtype == np.bool_:
            return array
        wide = array.astype(np.float64)
        known = wide[~np.isnan(wide)] if self.may_be_nan else wide
        if not np.isfinite(known).all() or np.abs(known).max(initial=0) > _LARGEST:
            raise UnknownError
        is_float = dtypes.is_float(tensor.dtype)
        if not is_float:
            self.most = min(self.most, float(dtypes.max(tensor.dtype)))
        self.itemsize = min(self.itemsize, tensor.dtype.itemsize if is_float else 4)
        self.magnitude = max(self.magnitude, float(np.abs(known).max(initial=0)))
        return wide

    def _number(self, node: ast.expr) -> Any:
        found = self.value(node)
        if isinstance(found, np.ndarray) and found.dtype == np.bool_:
            raise UnknownError
        return found

    def _binary(self, op: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        self.is_exact = False
        self.operations += 1
        are_bools = [isinstance(x, bool) or getattr(x, "dtype", None) == np.bool_ for x in (a, b)]
        if op in _BITS:
            if any(are_bools) and not all(are_bools):
                raise UnknownError
            return op(as_integers(a), as_integers(b))
        if any(are_bools):
            raise UnknownError
        if op is np.matmul:
            terms = a.shape[-1] if a.ndim else 1
            self.magnitude = max(1.0, terms * np.abs(a).max(initial=0) * np.abs(b).max(initial=0))
        result = op(a, b)
        if np.abs(result).max(initial=0) > self.most:
            raise UnknownError
        return result

    def write(self, statement: ast.stmt, name: str) -> Any:
        """The target after `x[key] = y`, `x[key] += y`, `x += y` or `x.add_(y)`."""
        if _overlaps(self.values[name]):
            raise UnknownError
        target = np.array(self.value(ast.Name(name)))
        match statement:
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(), slice=key)], value=value):
                target[self._index(key)] = self.value(value)
            case ast.AugAssign(target=ast.Name(), op=op, value=value):
                target = self._binary(_BINARY[type(op)], target, self.value(value))
            case ast.AugAssign(target=ast.Subscript(value=ast.Name(), slice=key), op=op):
                place = self._index(key)
                added = self.value(statement.value)
                target[place] = self._binary(_BINARY[type(op)], target[place], added)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method)) as call):
                if not isinstance(owner, ast.Name):
                    raise UnknownError
                target = self._call(method.removesuffix("_"), owner, call.args, call.keywords)
            case _:
                raise UnknownError
        shape = self.values[name].shape
        return np.broadcast_to(target, shape)

    def _index(self, node: ast.expr) -> Any:
        match node:
            case ast.Tuple(elts=parts):
                return tuple([self._index(part) for part in parts])
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*[x and self._index(x) for x in (lower, upper, step)])
            case ast.Call(func=ast.Attribute(value=ast.Name(id="np")), args=[number]):
                return self._index(number)
            case ast.Name(id=name):
                tensor = self.values[name]
                if not isinstance(tensor, Tensor):
                    raise UnknownError
                return tensor.detach().numpy()
        return ast.literal_eval(node)

    def _call(
        self, name: str, owner: ast.expr, args: list[ast.expr], words: list[ast.keyword]
    ) -> Any:
        self.operations += 1
        if isinstance(owner, ast.Name) and owner.id == "Tensor":
            return self._made(name, args, words)
        if ast.unparse(owner) == "ferrule.fft":
            return self._transformed(name, args, words)
        x, function = self._receiver(name, owner)
        if name in UFUNCS:
            return self._function(name, [x, *map(self.value, args)], words)
        given, named = self._arguments(args, words)
        if name in AGGREGATES:
            self.magnitude *= max(x.size, 1)
            return aggregate(AGGREGATES[name], x, given, named)
        if name in ELEMENTS and name not in _OF_BOOLS:
            self._refuse_bools(x, *given, *named.values())
        if name in REDUCTIONS or name in LAYERS or name in SKIPPING:
            self._refuse_bools(x)
            self.magnitude = max(self.magnitude, 1.0) ** 2 * max(x.size, 1)
        elif name in PRODUCTS:
            self._refuse_bools(x)
            self.magnitude = max(self.magnitude, 1.0) ** (len(given) + 1) * max(x.size, 1)
        if name in OF_FLOATS:
            named.pop("dtype", None)
        if named.get("reduce") is not None or named.get("accumulate"):
            self._refuse_bools(x)
            self.is_exact = False
        if function in INTEGERS.values():
            only_if(self.kinds <= {"i", "u"})
            only_if(all(isinstance(y, int | np.ndarray) for y in given) and not named)
        found = function(x, *given, **named)
        if isinstance(found, Scaled):
            self.magnitude = found.magnitude
            return found.value
        if name in MATRICES:
            self.magnitude = max(1.0, *(np.abs(part).max(initial=0) for part in _leaves(found)))
        return found

    def _receiver(self, name: str, owner: ast.expr) -> tuple[Any, Callable[..., Any]]:
        """The tensor that has a method, and the counterpart for tensors of such a dtype."""
        self.may_be_nan = isinstance(owner, ast.Name) and name.startswith("nan") and name in _SKIP
        x = self.value(owner)
        self.may_be_nan = False
        self.is_exact = self.is_exact and name in _EXACT
        if self.kinds == {"f"} and name in OF_FLOATS:
            return x, OF_FLOATS[name]
        if self.kinds <= {"i", "u"} and name in {**INTEGERS, "bincount": None}:
            return x, {**COUNTS, **INTEGERS}[name]
        if name in OF_NUMBERS:
            self._refuse_bools(x)
            return x, OF_NUMBERS[name]
        if name in UFUNCS or name in AGGREGATES:
            return x, UnknownError
        return x, OF_ALL[name]

    def _arguments(
        self, args: Sequence[ast.expr], words: Sequence[ast.keyword]
    ) -> tuple[list[Any], dict[str, Any]]:
        given = [self._argument(arg) for arg in args]
        return given, {str(word.arg): self._argument(word.value) for word in words}

    def checks(self, call: Any, found: Sequence[Array]) -> Iterator[tuple[Array, Array]]:
        """Pairs of what should be and what is, for a function that gives parts."""
        name = call.func.attr
        x = self.value(call.func.value)
        self._refuse_bools(x)
        only_if(name in PICKED or self.kinds == {"f"})
        self.is_exact = self.is_exact and name in _EXACT
        given, named = self._arguments(call.args, call.keywords)
        self.magnitude *= max(1, *x.shape[-1:])
        wide = [part.astype(np.float64) for part in found]
        return iter(PARTS[name](x, wide, *given, **named))

    def _made(self, name: str, args: list[ast.expr], words: list[ast.keyword]) -> Any:
        """The result of a function whose first argument is no tensor."""
        self.is_exact = False
        given, named = self._arguments(args, words)
        named.pop("dtype", None)
        if name == "einsum":
            sizes = [float(np.abs(x).max(initial=0)) for x in given[1:]]
            self.magnitude = max(1.0, math.prod(sizes)) * max(1, *(x.size for x in given[1:]))
            return np.einsum(*given)
        return NUMBERS[name](*given, **named)

    def _transformed(self, name: str, args: list[ast.expr], words: list[ast.keyword]) -> Any:
        """The Fourier transform of a tensor."""
        x = self._number(args[0])
        self.is_exact = False
        self.magnitude *= math.sqrt(max(x.size, 1))
        return transform(name, x, *self._arguments(args[1:], words))

    def _argument(self, node: ast.expr) -> Any:
        """A number, sizes, a text or None as it is; tensors as arrays."""
        try:
            return ast.literal_eval(node)
        except ValueError:
            if isinstance(node, ast.Tuple | ast.List):
                return [self._argument(part) for part in node.elts]
            return self.value(node)

    @staticmethod
    def _refuse_bools(*operands: Any) -> None:
        if any(isinstance(x, bool) or getattr(x, "dtype", None) == np.bool_ for x in operands):
            raise UnknownError

    def _function(self, name: str, operands: list[Any], words: list[ast.keyword]) -> Any:
        function, is_wild = UFUNCS[name]
        if words or len(operands) != function.nin:
            raise UnknownError
        if is_wild and self.magnitude > _LARGEST_ARGUMENT:
            raise UnknownError
        if any(getattr(x, "dtype", None) == np.bool_ for x in operands):
            raise UnknownError
        self.is_one_function = self.operations == 1
        return function(*operands)


_BINARY: Final[Mapping[Any, Callable[[Any, Any], Any]]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.MatMult: np.matmul,
    ast.Div: np.divide,
    ast.BitAnd: np.bitwise_and,
    ast.BitOr: np.bitwise_or,
    ast.BitXor: np.bitwise_xor,
}
_BITS: Final = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
_OF_BOOLS: Final = words(
    """where masked_fill logical_and logical_or logical_xor logical_not bitwise_and bitwise_or
    bitwise_xor not_equal"""
)
_SKIP: Final = {*SKIPPING, "nanquantile"}
_COMPARE: Final[Mapping[Any, Callable[[Any, Any], Any]]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
