"""Values of several lanes in C: vectors of gcc and clang, and arrays for other compilers.

Every operation is a function that the file defines, with a name such as `add_f32x16`. Its body is
one operation on vectors, or a loop over the lanes. A value of bools is a mask: integers of 32 bits,
-1 for true. `-DNO_VECTORS` gives the arrays to all compilers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.renderer.arithmetic import Step, conversion, meaning
from ferrule.renderer.base import STORAGE_ONLY
from ferrule.renderer.c import prelude as cprelude
from ferrule.renderer.c.alu import OPERATIONS, Arithmetic, alu, atom, cast
from ferrule.renderer.c.dialect import memory_type, type_of
from ferrule.renderer.c.prelude import Helper, Prelude, either

HEADER: Final = """\
/* A value of several lanes, such as an `f32x8`, is a vector of gcc or clang, and an array for other
   compilers. A mask has -1 in each lane that is true. */
#if (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)) && !defined(NO_VECTORS)
#define HAS_VECTORS
#define VECTOR(type, count) __attribute__((vector_size(count * sizeof(type)))) type
#define LANES(...) {__VA_ARGS__}
#define LANE(vector, i) (vector)[i]
#else
#define VECTOR(type, count) struct { type lane[count]; }
#define LANES(...) {{__VA_ARGS__}}
#define LANE(vector, i) (vector).lane[i]
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wtautological-compare" /* a NaN is not equal to itself */
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif
#if defined(__GNUC__) && !defined(__clang__)
/* gcc makes vectors of loops, but not of what is left of a loop that it has unrolled before. */
#pragma GCC diagnostic ignored "-Wpsabi" /* no vector leaves this file */
#define EACH_LANE(count) _Pragma("GCC unroll 1") for (i32 i = 0; i < count; i++)
#else
#define EACH_LANE(count) for (i32 i = 0; i < count; i++)
#endif"""

_VECTORS: Final = "defined(HAS_VECTORS)"
_NAMES: Final = {"float": "f32", "double": "f64"}
_MASK: Final = "i32"
BY_CONSTANT: Final = frozenset(
    {ExprOp.IDIV, ExprOp.MOD, ExprOp.TDIV, ExprOp.TMOD, ExprOp.SHL, ExprOp.SHR}
)
"""Operations that are faster with a constant right operand."""
_SIGNED: Final = frozenset({ExprOp.IDIV, ExprOp.MOD})
_OPERATORS: Final = {
    ExprOp.ADD: "a + b",
    ExprOp.SUB: "a - b",
    ExprOp.MUL: "a * b",
    ExprOp.NEG: "-a",
    ExprOp.FDIV: "a / b",
    ExprOp.AND: "a & b",
    ExprOp.OR: "a | b",
    ExprOp.XOR: "a ^ b",
    ExprOp.NOT: "~a",
}
_OF_MASKS: Final = {
    ExprOp.CMPLT: "~a & b",
    ExprOp.CMPNE: "a ^ b",
    ExprOp.WHERE: "(a & b) | (~a & c)",
}
_COMPARED: Final = {ExprOp.CMPLT: "a < b", ExprOp.CMPNE: "a != b"}
_EXTREMA: Final = frozenset({ExprOp.MAX, ExprOp.MIN})


def vector_type(prelude: Prelude, dtype: DType, lanes: int) -> str:
    """The type of a value of several lanes."""
    return _vector(prelude, _lane_type(dtype), lanes)


def _lane_type(dtype: DType) -> str:
    return _MASK if dtype is dtypes.bool else type_of(dtype)


def _vector(prelude: Prelude, kind: str, lanes: int) -> str:
    name = f"{_NAMES.get(kind, kind)}x{lanes}"
    array = f"struct {{ {kind} lane[{lanes}]; }}"
    of = f"VECTOR({kind}, {lanes})" if _is_vector(prelude, kind, lanes) else array
    union = f"typedef union {{ {name} all; {kind} lane[{lanes}]; }} {name}_lanes;"
    prelude.parts.setdefault(name, f"typedef {of} {name};\n{union}")
    return name


def _is_vector(prelude: Prelude, kind: str, lanes: int) -> bool:
    """False if no register holds such a value: gcc warns of larger vectors as parameters."""
    return lanes & (lanes - 1) == 0 and lanes * _bits(kind) <= 8 * prelude.vector_bytes


def _are_vectors(prelude: Prelude, dtypes_of: Iterable[DType], lanes: int) -> bool:
    return all(_is_vector(prelude, _lane_type(dtype), lanes) for dtype in dtypes_of)


def _bits(kind: str) -> int:
    return {"float": 32, "double": 64}.get(kind) or int(kind[1:])


def _in(dtype: DType, text: str) -> str:
    """A lane as a scalar."""
    return f"({text} != 0)" if dtype is dtypes.bool else text


def _out(dtype: DType, text: str) -> str:
    """A scalar as a lane."""
    return f"-({text})" if dtype is dtypes.bool else text


def _loop(result: str, lanes: int, element: str, given: Mapping[str, str]) -> str:
    """The statements that compute each lane from those of `given` vectors, with their types."""
    named = "".join(f"const {of}_lanes {name}s = {{{name}}};\n" for name, of in given.items())
    loop = f"EACH_LANE({lanes}) r.lane[i] = {element};"
    return f"{named}{result}_lanes r;\n{loop}\nreturn r.all;"


def _lane_of(name: str) -> str:
    return f"{name}s.lane[i]"


def lane(prelude: Prelude, dtype: DType, lanes: int, value: str, number: int | str) -> str:
    """One lane of a value."""
    is_vector = _is_vector(prelude, _lane_type(dtype), lanes)
    return _in(dtype, f"LANE({value}, {number})" if is_vector else f"{value}.lane[{number}]")


def _list(prelude: Prelude, dtype: DType, values: Sequence[str]) -> str:
    kind, lanes = vector_type(prelude, dtype, len(values)), ", ".join(values)
    is_vector = _is_vector(prelude, _lane_type(dtype), len(values))
    return f"({kind})LANES({lanes})" if is_vector else f"({kind}){{{{{lanes}}}}}"


def splat(prelude: Prelude, dtype: DType, lanes: int, value: str) -> str:
    """The same scalar in all lanes."""
    kind, result = type_of(dtype), vector_type(prelude, dtype, lanes)
    x = "-x" if dtype is dtypes.bool else "x"
    body = f"return {_list(prelude, dtype, [x] * lanes)};"
    return prelude.call(
        Helper(f"splat_{_label(prelude, dtype, lanes)}", result, f"{kind} x", body), value
    )


def listed(prelude: Prelude, dtype: DType, values: Sequence[str]) -> str:
    """A value with these lanes."""
    return _list(prelude, dtype, [_out(dtype, value) for value in values])


def numbers(prelude: Prelude, dtype: DType, lanes: int) -> str:
    """The numbers of the lanes, of an integer dtype."""
    result = vector_type(prelude, dtype, lanes)
    body = f"return {_list(prelude, dtype, list(map(str, range(lanes))))};"
    return prelude.call(Helper(f"numbers_{result}", result, "void", body))


def shuffled(
    prelude: Prelude, dtype: DType, source: int, order: Sequence[int], values: Sequence[str]
) -> str:
    """Chosen lanes of one or two values of `source` lanes."""
    of, result = (vector_type(prelude, dtype, n) for n in (source, len(order)))
    names = ("a", "b")[: len(values)]
    kind = _lane_type(dtype)
    is_vector = _is_vector(prelude, kind, source) and _is_vector(prelude, kind, len(order))
    access = "LANE({}, {})" if _is_vector(prelude, kind, source) else "{}.lane[{}]"
    chosen = [access.format(names[number // source], number % source) for number in order]
    body = f"return {_list(prelude, dtype, chosen)};"
    if is_vector:
        numbers = ", ".join(map(str, order))
        whole = f"return __builtin_shufflevector(a, {names[-1]}, {numbers});"
        body = either(_VECTORS, whole, otherwise=body)
    number = prelude.shuffles.setdefault((of, tuple(order), len(values)), len(prelude.shuffles))
    parameters = ", ".join(f"{of} {name}" for name in names)
    return prelude.call(Helper(f"shuffle{number}_{result}", result, parameters, body), *values)


# -- arithmetic ------------------------------------------------------------------------------------


def operation(
    t: Arithmetic,
    op: ExprOp,
    lanes: int,
    kinds: Sequence[DType],
    result: DType,
    operands: Sequence[str],
    constant: str | None = None,
) -> str:
    """An operation on each lane, of operands of some dtypes.

    `constant` is the right operand of one of `BY_CONSTANT`, if that is one number.
    """
    prelude, kind = t.prelude, _lane_type(t.dtype)
    op = op if op is ExprOp.DOT else meaning(op, t.dtype, OPERATIONS)
    given = vector_type(prelude, result, lanes)
    types = [vector_type(prelude, dtype, lanes) for dtype in kinds]
    texts = [_in(d, _lane_of(x)) for d, x in zip(kinds, "abc", strict=False)]
    name = f"{op.name.lower()}_{_label(prelude, t.dtype, lanes)}"
    name = f"positive_{name}" if op in _SIGNED and t.not_negative else name
    if constant is not None:
        types, texts = types[:1], [texts[0], constant]
        name = f"{name}_by_{''.join(re.findall('[0-9]+', constant.replace('u64', '')))}"
    parameters = dict(zip("abc", types, strict=False))
    if op is ExprOp.DOT:
        element = prelude.call(cprelude.dot(prelude, *map(type_of, kinds)), *texts)
    elif op in _EXTREMA and t.dtype is not dtypes.bool:
        better, chosen = _extremum(op, t.is_real, *texts)
        element = f"{better} ? {chosen[0]} : {chosen[1]}"
    else:
        element = alu(op, t, texts)
    body = _loop(given, lanes, _out(result, element), parameters)
    are_vectors = constant is None and _are_vectors(prelude, [*kinds, result], lanes)
    if are_vectors and op is ExprOp.MULACC and t.is_real:
        # Clang makes one instruction of this, and gcc of the loop.
        fused = "#pragma STDC FP_CONTRACT ON\nreturn a * b + c;"
        body = either(f"{_VECTORS} && defined(__clang__)", fused, otherwise=body)
    elif are_vectors and (whole := _whole(t, op, kind, lanes)) is not None:
        body = either(_VECTORS, whole, otherwise=body)
    listed = ", ".join(f"{of} {x}" for x, of in parameters.items())
    return prelude.call(Helper(name, given, listed, body), *operands)


def _label(prelude: Prelude, dtype: DType, lanes: int) -> str:
    """The name of a type in those of functions."""
    of = vector_type(prelude, dtype, lanes)
    return of if dtype is not dtypes.bool else f"mask_x{lanes}"


def _extremum(op: ExprOp, is_real: bool, a: str, b: str) -> tuple[str, tuple[str, str]]:
    """MAX or MIN: the condition to take `b`, and both. NaN is taken if either is."""
    better = f"{a} < {b}" if op is ExprOp.MAX else f"{b} < {a}"
    return f"(({better}) | ({b} != {b}))" if is_real else better, (b, a)


def _whole(t: Arithmetic, op: ExprOp, kind: str, lanes: int) -> str | None:
    """The statements of an operation on vectors; None: there is no such operation."""
    prelude, value = t.prelude, _vector(t.prelude, kind, lanes)
    found = _OPERATORS.get(op)
    if t.dtype is dtypes.bool:
        found = _OF_MASKS.get(op, found)
        return found and f"return {found};"
    if op in _COMPARED:
        return f"return {_as_mask(prelude, kind, lanes, _COMPARED[op])};"
    if op is ExprOp.WHERE:
        return _chosen(prelude, kind, lanes, _resized(prelude, 32, kind, lanes, "a"), ("b", "c"))
    if op in _EXTREMA:
        return _chosen(prelude, kind, lanes, *_extremum(op, t.is_real, "a", "b"))
    if found is None or t.is_real or kind.startswith("u"):
        return found and f"return {found};"
    unsigned = _vector(prelude, f"u{kind[1:]}", lanes)  # which wraps
    wrapped = re.sub(r"\b([ab])\b", rf"({unsigned})\1", found)
    return f"return ({value})({wrapped});"


def _chosen(prelude: Prelude, kind: str, lanes: int, mask: str, values: Sequence[str]) -> str:
    """The statements that give the first vector where a mask is true, else the second."""
    value, wide = (_vector(prelude, k, lanes) for k in (kind, f"i{_bits(kind)}"))
    a, b = (f"({wide}){x}" for x in values)
    return f"const {wide} m = ({wide})({mask});\nreturn ({value})((m & {a}) | (~m & {b}));"


def _resized(prelude: Prelude, bits: int, kind: str, lanes: int, mask: str) -> str:
    """A mask of some bits as one of another type's."""
    wide = _vector(prelude, f"i{_bits(kind)}", lanes)
    return mask if _bits(kind) == bits else f"__builtin_convertvector({mask}, {wide})"


def _as_mask(prelude: Prelude, kind: str, lanes: int, compared: str) -> str:
    return _resized(prelude, _bits(kind), _MASK, lanes, compared)


def converted(prelude: Prelude, source: DType, target: DType, lanes: int, x: str) -> str:
    """The value in another dtype."""
    steps = [step for step, _ in conversion(source, target)]
    if not steps:
        return x
    of, result = (vector_type(prelude, dtype, lanes) for dtype in (source, target))
    element = cast(prelude, source, target, _in(source, _lane_of("x")))
    body = _loop(result, lanes, _out(target, element), {"x": of})
    if steps == [Step.CONVERT] and _are_vectors(prelude, [source, target], lanes):
        body = either(_VECTORS, f"return __builtin_convertvector(x, {result});", otherwise=body)
    names = [
        d.name if d in STORAGE_ONLY else _NAMES.get(type_of(d), type_of(d))
        for d in (target, source)
    ]
    name = f"{names[0]}_of_{names[1]}_x{lanes}"
    return prelude.call(Helper(name, result, f"{of} x", body), x)


def same_bits(prelude: Prelude, source: DType, target: DType, lanes: int, x: str) -> str:
    """The bits of each lane as another dtype of the same width."""
    of, result = (vector_type(prelude, dtype, lanes) for dtype in (source, target))
    body = f"{result} r;\nmemcpy(&r, &x, sizeof r);\nreturn r;"
    return prelude.call(Helper(f"{result}_of_bits_of_{of}", result, f"{of} x", body), x)


# -- memory ----------------------------------------------------------------------------------------


def load(
    prelude: Prelude,
    dtype: DType,
    lanes: int,
    place: str,
    index: tuple[DType, str] | None = None,
    mask: str | None = None,
    count: str | None = None,
) -> str:
    """The elements from a place on, or those with numbers; of a mask, or the first ones.

    The lanes without an element are 0.
    """
    kind, result = memory_type(dtype), vector_type(prelude, dtype, lanes)
    is_whole = index is None and mask is None and dtype is not dtypes.bool
    name, parameters, operands = _access("load", "gather", prelude, lanes, index, mask, count)
    given = _given(prelude, lanes, index, mask)
    element = f"p[{_lane_of('index')}]" if index else "p[i]"
    element = f"{element} != 0" if dtype is dtypes.bool else element
    element = atom(_out(dtype, element))
    if count is not None:
        body = _first(
            f"{result} r;\nmemset(&r, 0, sizeof r);",
            f"memcpy(&r, p, SIZE * sizeof({kind}));",
            lanes,
        )
        body += "\nreturn r;"
    elif is_whole:
        body = f"{result} r;\nmemcpy(&r, p, sizeof r);\nreturn r;"
    else:
        element = f"{_lane_of('mask')} ? {element} : 0" if mask else element
        body = _loop(result, lanes, element, given)
    of = _label(prelude, dtype, lanes)
    helper = Helper(f"{name}_{of}{_of_index(index)}", result, f"const {kind} *p{parameters}", body)
    return prelude.call(helper, place, *operands)


def store(
    prelude: Prelude,
    dtype: DType,
    lanes: int,
    place: str,
    value: str,
    index: tuple[DType, str] | None = None,
    mask: str | None = None,
    count: str | None = None,
) -> str:
    """The call that stores the lanes, as `load` loads them."""
    kind, of = memory_type(dtype), vector_type(prelude, dtype, lanes)
    name, parameters, operands = _access("store", "scatter", prelude, lanes, index, mask, count)
    given = _given(prelude, lanes, index, mask) | {"x": of}
    where = f"p[{_lane_of('index')}]" if index else "p[i]"
    guard = f"if ({_lane_of('mask')}) " if mask else ""
    if count is not None:
        body = _first("", f"memcpy(p, &x, SIZE * sizeof({kind}));", lanes).strip()
    elif index is None and mask is None and dtype is not dtypes.bool:
        body = "memcpy(p, &x, sizeof x);"
    else:
        named = "".join(
            f"const {type}_lanes {name}s = {{{name}}};\n" for name, type in given.items()
        )
        body = f"{named}EACH_LANE({lanes}) {guard}{where} = {_in(dtype, _lane_of('x'))};"
    label = _label(prelude, dtype, lanes)
    helper = Helper(
        f"{name}_{label}{_of_index(index)}", "void", f"{kind} *p, {of} x{parameters}", body
    )
    return prelude.call(helper, place, value, *operands)


def _given(
    prelude: Prelude, lanes: int, index: tuple[DType, str] | None, mask: str | None
) -> dict[str, str]:
    """The vectors of an access beside its value, with their types."""
    given = {} if index is None else {"index": vector_type(prelude, index[0], lanes)}
    return given if mask is None else given | {"mask": _vector(prelude, _MASK, lanes)}


def _of_index(index: tuple[DType, str] | None) -> str:
    return f"_{type_of(index[0])}" if index else ""


def _first(begin: str, copy: str, lanes: int) -> str:
    size = f"(size_t)(count < {lanes} ? count : {lanes})"
    return f"{begin}\nif (count > 0) {copy.replace('SIZE', size)}"


def _access(
    near: str,
    far: str,
    prelude: Prelude,
    lanes: int,
    index: tuple[DType, str] | None,
    mask: str | None,
    count: str | None,
) -> tuple[str, str, list[str]]:
    """The name of an access, its further parameters, and their operands."""
    name, parameters, operands = near, "", []
    if index is not None:
        name = far
        parameters += f", {vector_type(prelude, index[0], lanes)} index"
        operands.append(index[1])
    if mask is not None:
        name += "_if"
        parameters += f", {_vector(prelude, _MASK, lanes)} mask"
        operands.append(mask)
    if count is not None:
        name += "_first"
        parameters += ", i64 count"
        operands.append(count)
    return name, parameters, operands
