"""Each rule of `ferrule.torch` against PyTorch's operator: results, dtypes and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from ferrule import Tensor

torch = pytest.importorskip("torch")

from ferrule.torch.graph import graph_of as graph_of  # noqa: E402 - it enters the rules
from ferrule.torch.registry import rule_for  # noqa: E402
from ferrule.torch.values import dtype_of, shared  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch, about its own functions

F32, F64, F16, I64, I32, U8, BOOL = (
    *(torch.float32, torch.float64, torch.float16, torch.int64, torch.int32),
    *(torch.uint8, torch.bool),
)


def f(*shape: int, low: float = -2.0, high: float = 2.0, dtype: Any = F32) -> Any:
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    return (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)


def i(*shape: int, low: int = -5, high: int = 6, dtype: Any = I64) -> Any:
    generator = torch.Generator().manual_seed(sum(shape) + 2)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def b(*shape: int) -> Any:
    return i(*shape, low=0, high=2).bool()


class Case(NamedTuple):
    """A call of an operator: PyTorch's name for it, and its arguments."""

    operator: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    slopes: bool

    def __str__(self) -> str:
        shapes = ",".join(str(shown(argument)) for argument in self.args)
        named = ",".join(f"{name}={shown(value)}" for name, value in self.kwargs.items())
        return f"{self.operator}({shapes}{',' * bool(named)}{named})".replace(" ", "")


def shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}"
    return [shown(part) for part in value] if isinstance(value, list) else value


def case(operator: str, *args: Any, slopes: bool = True, **kwargs: Any) -> Case:
    return Case(operator, args, kwargs, slopes)


def elementwise() -> Iterator[Case]:
    for name, low, high in (
        *(("acos", -0.9, 0.9), ("acosh", 1.1, 4.0), ("asin", -0.9, 0.9), ("asinh", -3.0, 3.0)),
        *(("atan", -3.0, 3.0), ("atanh", -0.9, 0.9), ("cos", -3.0, 3.0), ("cosh", -2.0, 2.0)),
        *(("erf", -2.0, 2.0), ("erfc", -2.0, 2.0), ("erfinv", -0.9, 0.9), ("exp", -2.0, 2.0)),
        *(("exp2", -2.0, 2.0), ("expm1", -1.0, 1.0), ("log", 0.1, 4.0), ("log10", 0.1, 4.0)),
        *(("log1p", -0.5, 3.0), ("log2", 0.1, 4.0), ("reciprocal", 0.5, 2.0), ("sinc", 0.1, 2.0)),
        *(("rsqrt", 0.5, 2.0), ("sigmoid", -3.0, 3.0), ("sin", -3.0, 3.0), ("sinh", -2.0, 2.0)),
        *(("sqrt", 0.1, 2.0), ("tan", -1.0, 1.0), ("tanh", -2.0, 2.0), ("lgamma", 0.5, 3.0)),
        *(("digamma", 0.5, 3.0), ("deg2rad", -9.0, 9.0), ("rad2deg", -9.0, 9.0)),
    ):
        yield case(name, f(3, 4, low=low, high=high))
        yield case(name, f(4, low=low, high=high, dtype=F64))
        yield case(name, f(5, low=low, high=high, dtype=F16))
        if low < 1 < high:
            yield case(name, i(4, low=1, high=2, dtype=I32))
    for name in ("abs", "neg", "sign", "relu", "square", "sgn"):
        yield from (case(name, x) for x in (f(3, 4), i(5), i(5, dtype=I32), f(4, dtype=F16)))
    for name in ("ceil", "floor", "round", "trunc", "frac"):
        yield case(name, f(3, 4))
    for name in ("ceil", "floor", "round", "trunc"):
        yield case(name, i(4))
    special = torch.tensor([1.0, float("inf"), float("-inf"), float("nan"), -0.0, 0.0])
    for name in ("isnan", "isinf", "isfinite", "logical_not", "signbit", "isposinf", "isneginf"):
        yield case(name, special)
    yield case("nan_to_num", special, slopes=False)
    yield case("nan_to_num", special, 1.0, 2.0, -2.0, slopes=False)
    yield case("round.decimals", f(4), decimals=1)
    yield from (case("logit", f(4, low=0.1, high=0.9)), case("logit", f(4, low=0, high=1), 0.2))
    yield from (case("bitwise_not", x) for x in (i(4), b(4), i(4, low=0, dtype=U8)))
    for name in ("silu", "mish", "hardswish", "selu", "elu", "gelu", "hardtanh"):
        yield from (case(name, f(3, 4)), case(name, f(4, dtype=F64)))
    yield case("hardsigmoid", f(3, 4))  # PyTorch's slopes are of float32, whatever the dtype
    yield case("relu6", f(4, low=-3, high=9), slopes=False)
    yield from (case("elu", f(4), 0.5, 1.5, 2.0), case("gelu", f(4), approximate="tanh"))
    yield from (case("leaky_relu", f(4)), case("leaky_relu", f(4), 0.3), case("softplus", f(4)))
    yield from (case("softplus", f(4), 2.0, 1.0), case("hardtanh", f(4), -0.5, 0.7))
    yield from (case("prelu", f(2, 3, 4), f(3)), case("_prelu_kernel", f(2, 3), f(1)))
    yield from (case("threshold", f(5), 0.3, 7.0), case("hardtanh", i(5), -1, 2))
    yield case("threshold_backward", f(5), f(5), 0.3, slopes=False)
    yield case("log_sigmoid_forward", f(5), slopes=False)
    yield case("tanh_backward", f(5), f(5), slopes=False)
    yield case("sigmoid_backward", f(5), f(5), slopes=False)


def binary() -> Iterator[Case]:
    floats, whole = (f(3, 4), f(4), f(dtype=F64), f(4, dtype=F16)), (i(3, 4), i(4, dtype=I32))
    small = i(4, low=1, dtype=U8)
    for name in ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"):
        for x, y in (
            *((floats[0], floats[1]), (floats[0], floats[2]), (floats[1], floats[3])),
            *((whole[0], whole[1]), (whole[1], small), (floats[3], whole[0]), (i(), floats[3])),
            *((floats[3], i()), (small, i()), (small, f()), (i(4, low=1), f(dtype=F64))),
        ):
            yield case(name, x, y + 7 if name == "div.Tensor" else y)
    yield from (case("add.Tensor", b(4), b(3, 4)), case("mul.Tensor", b(4), b(3, 4)))
    yield from (case("add.Tensor", b(4), i(4)), case("mul.Tensor", b(4), f(4)))
    yield from (case("add.Tensor", f(4), f(4), alpha=2), case("sub.Tensor", i(4), i(4), alpha=3))
    for name in ("add.Scalar", "sub.Scalar", "mul.Scalar", "div.Scalar"):
        for x in (f(4), f(4, dtype=F16), i(4, dtype=I32), small, f(), i()):
            yield from (case(name, x, 2), case(name, x, 2.5))
    yield from (
        case("add.Scalar", b(4), 2),
        case("mul.Scalar", b(4), 2.5),
        case("rsub.Scalar", i(4), 3),
    )
    yield case("rsub.Tensor", f(4), i(4))
    for mode in (None, "trunc", "floor"):
        yield case("div.Tensor_mode", f(4), f(4) + 5, rounding_mode=mode)
        yield case("div.Tensor_mode", i(4), i(4, low=1), rounding_mode=mode)
        yield from (case("div.Scalar_mode", i(6), y, rounding_mode=mode) for y in (3, -2, 1.5))
    yield from (
        case("floor_divide", i(6), i(6, low=1)),
        case("floor_divide.Scalar", f(6), 0.7, slopes=False),
    )
    for name in ("fmod", "remainder"):
        yield from (
            case(f"{name}.Tensor", f(6), f(6) + 5),
            case(f"{name}.Tensor", i(6), i(6, low=1)),
        )
        yield from (case(f"{name}.Scalar", f(6), 0.7), case(f"{name}.Scalar", i(6), -3))
    yield case("remainder.Scalar_Tensor", 7, i(6, low=1))
    positive = f(4, low=0.5)
    yield from (
        case("pow.Tensor_Tensor", positive, f(4)),
        case("pow.Tensor_Tensor", i(4), i(4, low=0)),
    )
    yield from (case("pow.Tensor_Scalar", positive, e) for e in (2, 3, 0.5, -1, -1.5, 0))
    yield from (case("pow.Tensor_Scalar", i(4), e) for e in (2, 0, 1.0))
    yield from (
        case("pow.Scalar", 2, f(4)),
        case("pow.Scalar", 2, i(4, low=0)),
        case("pow.Scalar", 1.5, i(4)),
    )
    for name in ("atan2", "hypot", "copysign.Tensor"):
        yield from (case(name, f(4), f(3, 4)), case(name, f(4, dtype=F16), f(4)))
    yield from (
        case("logaddexp", f(4), f(3, 4)),
        case("logaddexp2", f(4), f(4)),
        case("nextafter", f(4), f(4)),
    )
    yield case("xlogy.Tensor", f(4), f(4, low=0.5))
    for name in ("maximum", "minimum"):
        yield from (case(name, f(4), f(3, 4)), case(name, i(4), f(4)), case(name, b(4), b(4)))
    yield from (
        case("clamp", f(5), -0.5, 0.5),
        case("clamp", f(5), None, 0.5),
        case("clamp", i(5), -1.5, 2),
    )
    yield from (
        case("clamp.Tensor", f(5), f(5) - 1, f(5) + 1),
        case("clamp.Tensor", i(5), None, f(5)),
    )
    yield from (case("clamp_min", f(5), 0.5), case("clamp_max", i(5), 1))
    yield from (
        case("addcmul", f(4), f(4), f(4), value=2),
        case("addcdiv", f(4), f(4), f(4) + 5, value=2),
    )
    yield from (case("lerp.Scalar", f(4), f(4), 0.3), case("lerp.Tensor", f(4), f(4), f(4)))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield from (case(f"{name}.Tensor", i(9), i(3, 9)), case(f"{name}.Tensor", i(9), f(9)))
        yield from (
            case(f"{name}.Scalar", i(9, dtype=I32), y) for y in (1, 0.5, 1 << 40, -(1 << 40))
        )
        yield from (case(f"{name}.Scalar", small, -1), case(f"{name}.Scalar", f(9), 0.5))
        yield case(f"{name}.Scalar", b(9), 1)
    for name in ("logical_and", "logical_or", "logical_xor"):
        yield from (case(name, b(4), b(3, 4)), case(name, i(4), f(4)))
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield from (
            case(f"{name}.Tensor", i(4), i(4, dtype=I32)),
            case(f"{name}.Tensor", b(4), b(4)),
        )
        yield from (case(f"{name}.Scalar", i(4), 3), case(f"{name}.Scalar", b(4), True))
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        yield from (
            case(f"{name}.Tensor", i(4), i(4, low=0)),
            case(f"{name}.Tensor_Scalar", i(4), 2),
        )
    yield from (case("where.self", b(4), f(3, 4), f(4)), case("where.self", b(4), f(4), i(4)))
    yield case("where.ScalarOther", b(4), f(4), 2.5)
    yield case("where.Scalar", b(4), 1, 2)
    yield from (
        case("masked_fill.Scalar", f(3, 4), b(4), 2),
        case("masked_fill.Tensor", f(4), b(4), f()),
    )
    for name in ("alias", "clone", "contiguous"):
        yield case(name, f(4))
    for target in (F64, F16, I32, BOOL, U8):
        yield from (
            case("_to_copy", i(4, low=0), dtype=target),
            case("to.dtype", f(4, low=0), target),
        )
    yield from (case("copy", f(3, 4), i(4), slopes=False), case("_local_scalar_dense", i()))


def reductions() -> Iterator[Case]:
    x = f(3, 4, 5)
    for name in ("sum.dim_IntList", "mean.dim"):
        for dims in ([0], [-1, 0], None, []):
            yield from (case(name, x, dims), case(name, x, dims, True))
        yield case(name, x, [1], dtype=F64)
    yield from (case("sum", v) for v in (x, i(3, 4), b(4), i(4, dtype=I32), f(4, dtype=F16), f()))
    yield from (case("sum", i(4), dtype=F32), case("mean", x), case("mean", i(4), dtype=F32))
    yield from (
        case("prod", f(4)),
        case("prod", i(4)),
        case("prod.dim_int", x, 1),
        case("prod.dim_int", x, -1, True),
    )
    for name in ("amax", "amin"):
        yield from (case(name, x, [0, 2]), case(name, x, [], True), case(name, i(3, 4), [1], True))
    for name in ("max", "min"):
        yield from (case(name, x), case(name, i(4)))
        yield from (
            case(f"{name}.dim", x, 1),
            case(f"{name}.dim", x, -1, True),
            case(f"{name}.dim", f(), 0),
        )
    for name in ("argmax", "argmin"):
        yield from (
            case(name, x),
            case(name, x, 1),
            case(name, x, -1, True),
            case(name, i(3, 4), 0),
        )
    for name in ("any", "all"):
        yield from (case(name, b(3, 4)), case(name, f(4)), case(name, i(4, low=0, dtype=U8)))
        yield from (case(f"{name}.dim", b(3, 4), 1, True), case(f"{name}.dims", b(3, 4, 5), [0, 2]))
    yield from (case("var.correction", x, [1]), case("var.correction", x, None, correction=0))
    yield from (
        case("var.correction", x, [0, 1], correction=2, keepdim=True),
        case("var.dim", x, [1], False),
    )
    yield from (
        case("var.dim", x, [1, 2], True, True),
        case("var", x),
        case("std.correction", x, [1]),
    )
    yield from (case("var_mean.correction", x, [1], keepdim=True), case("logsumexp", x, [1, 2]))
    yield from (case("linalg_vector_norm", x, p, [1]) for p in (1, 2, float("inf")))
    yield from (case("cumsum", x, 1), case("cumsum", i(4, dtype=I32), 0), case("cumsum", f(), 0))
    yield from (
        case("cumsum", b(5), 0, dtype=F32),
        case("cumprod", x, -1),
        case("logcumsumexp", x, 1),
    )
    yield from (case("cummax", x, 1), case("cummin", x, 0))
    yield from (case("sort", x), case("sort", x, 1, True), case("sort.stable", i(9), stable=True))
    yield from (
        case("sort", f()),
        case("argsort", x, 1),
        case("topk", x, 2),
        case("topk", x, 3, 1, False),
    )
    for name in ("_softmax", "_log_softmax"):
        yield from (
            case(name, x, 1, False),
            case(name, f(), 0, False),
            case(name, f(4, dtype=F64), 0, False),
        )
    for name in ("softmax.int", "log_softmax.int"):
        yield from (case(name, x, -1), case(name, i(4), 0, F32))
    for name in ("_softmax_backward_data", "_log_softmax_backward_data"):
        yield case(name, f(3, 4), f(3, 4, low=0, high=1), 1, F32, slopes=False)


def shapes() -> Iterator[Case]:
    x = f(2, 3, 4)
    yield from (
        case("sym_size.int", x, 1),
        case("sym_numel", x),
        case("sym_stride.int", x, 0),
        case("sym_storage_offset", x),
    )
    yield from (case("full", [2, 3], v) for v in (1, 2.5, True))
    yield from (
        case("full", [], 3, dtype=F64),
        case("full_like", x, 2),
        case("full_like", i(3), 200, dtype=U8),
    )
    yield from (
        case("zeros", [2]),
        case("ones", [2], dtype=I32),
        case("zeros_like", x),
        case("ones_like", x, dtype=I64),
    )
    yield from (case("new_zeros", x, [2]), case("new_ones", i(2), [2]), case("new_full", x, [2], 3))
    yield from (
        case("fill.Scalar", x, 2, slopes=False),
        case("fill.Tensor", x, f()),
        case("scalar_tensor", 3, dtype=I64),
        case("scalar_tensor", 2),
    )
    yield from (
        case("arange", 5),
        case("arange.start", 2, 5),
        case("arange.start_step", 1, 9, 3),
        case("arange.start_step", 0.5, 2.0, 0.25),
    )
    yield from (
        case("arange.start_step", 0, 5, 1, dtype=F32),
        case("arange.start_step", 5, 0, -2),
        case("linspace", 0, 1, 5),
    )
    yield from (case("eye", 3), case("eye.m", 2, 3, dtype=I64))
    yield from (case("view", x, [6, -1]), case("reshape", x, [24]), case("_unsafe_view", x, [4, 6]))
    yield from (
        case("expand", f(1, 3), [2, -1]),
        case("expand", f(3), [4, 2, 3]),
        case("permute", x, [2, 0, -2]),
    )
    yield from (
        case("transpose.int", x, 0, -1),
        case("t", f(2, 3)),
        case("t", f(3)),
        case("squeeze.dim", f(1, 3, 1), 0),
    )
    yield from (
        case("squeeze.dims", f(1, 3, 1), [0, 1]),
        case("squeeze", f(1, 3, 1)),
        case("squeeze.dim", f(), 0),
    )
    yield from (
        case("unsqueeze", x, -1),
        case("unsqueeze", f(), 0),
        case("repeat", f(2, 3), [2, 1, 3]),
    )
    yield from (
        case("cat", [x, f(2, 5, 4)], 1),
        case("cat", [f(3), i(2)]),
        case("cat", [f(0), f(2, 3)], 1),
    )
    yield from (
        case("stack", [f(3), f(3)], -1),
        case("split_with_sizes", x, [1, 2], 1),
        case("split.Tensor", x, 3, -1),
    )
    yield from (
        case("unbind.int", x, 1),
        case("flip", x, [0, -1]),
        case("roll", x, [1], [2]),
        case("roll", x, [5]),
        case("roll", x, [1, -1], [0, 2]),
    )
    yield from (
        case("diagonal", f(3, 4), 1),
        case("diagonal", x, -1, 1, 2),
        case("tril", f(3, 4)),
        case("triu", x, 1),
    )
    yield from (
        case("unfold", f(2, 9), 1, 4, 2),
        case("pixel_shuffle", f(1, 8, 2, 3), 2),
        case("pixel_unshuffle", f(1, 2, 4, 6), 2),
    )
    yield from (
        case("as_strided", f(12), [3, 2], [4, 1]),
        case("as_strided", f(12), [3, 4], [2, 1], 1),
    )
    yield from (
        case("constant_pad_nd", x, [1, 2]),
        case("constant_pad_nd", x, [1, 2, 0, 1], 2.5),
        case("constant_pad_nd", x, [-1, 2]),
        case("constant_pad_nd", i(3), [1, 1], 7),
    )
    yield from (
        case("reflection_pad1d", x, [1, 2]),
        case("reflection_pad2d", f(1, 2, 4, 5), [1, 2, 0, 1]),
        case("reflection_pad3d", f(1, 1, 3, 4, 5), [1, 2, 0, 1, 1, 2]),
    )
    yield from (
        case("replication_pad1d", x, [1, 2]),
        case("replication_pad2d", f(1, 2, 4, 5), [1, 2, 0, 1]),
        case("replication_pad3d", f(1, 1, 3, 4, 5), [1, 2, 0, 1, 1, 2]),
    )
    yield from (case("pad", x, [1, 1], "circular"), case("pad", x, [1, 1], "constant", 2.0))


def indexing() -> Iterator[Case]:
    x = f(4, 5, 6)
    rows = torch.tensor([0, 3, 3, -1])
    yield from (
        case("slice.Tensor", x, 1, *bounds)
        for bounds in ((), (1, 4), (-3, None), (0, 99, 2), (4, 2), (None, -1))
    )
    yield from (case("select.int", x, 1, 2), case("select.int", x, -1, -2))
    yield from (
        case("slice_scatter", x, f(4, 2, 6), 1, 1, 3),
        case("slice_scatter", x, f(2, 5, 6), 0, 0, 4, 2),
    )
    yield from (case("select_scatter", x, f(4, 6), 1, -2), case("diagonal_scatter", f(3, 4), f(3)))
    yield from (
        case("index.Tensor", x, [rows]),
        case("index.Tensor", x, [None, rows]),
        case("index.Tensor", x, [rows, None, rows]),
    )
    yield from (
        case("index.Tensor", x, [rows.reshape(2, 2), torch.tensor([1, 2])]),
        case("index.Tensor", x, [b(4)]),
        case("index.Tensor", x, [None, b(5, 6)]),
    )
    for add in (False, True):
        yield case("index_put", x, [rows[:3] if add else torch.tensor([2, 0, 1])], f(3, 5, 6), add)
        yield case("index_put", x, [None, torch.tensor([2, 0])], f(4, 2, 6), add)
    yield from (
        case("index_put", x, [b(4, 5, 6)], f()),
        case("index_select", x, 1, torch.tensor([4, 0, 0])),
    )
    yield from (
        case("index_add", x, 0, torch.tensor([1, 1]), f(2, 5, 6), alpha=2),
        case("index_copy", x, 0, torch.tensor([1, 2]), f(2, 5, 6)),
    )
    yield case("index_fill.int_Scalar", x, 0, torch.tensor([1, 2]), 3)
    places = i(3, 5, 6, low=0, high=4)
    once = torch.stack(
        [torch.randperm(4, generator=torch.Generator().manual_seed(k))[:2] for k in range(6)], 1
    )
    yield from (
        case("gather", x, 0, places),
        case("scatter.src", f(4, 6), 0, once, f(2, 6)),
        case("scatter.value", f(4, 6), 0, once, 2),
    )
    yield from (
        case("scatter_add", x, 0, places, f(3, 5, 6)),
        case("scatter.reduce", f(4, 6), 0, once, f(2, 6), reduce="multiply", slopes=False),
    )
    for kind in ("sum", "prod", "mean", "amax", "amin"):
        for include in (True, False):
            yield case("scatter_reduce.two", x, 0, places, f(3, 5, 6), kind, include_self=include)
    yield from (
        case("masked_scatter", f(3, 4), b(3, 4), f(12)),
        case("masked_select", f(3, 4), b(3, 4)),
        case("nonzero", i(3, 4)),
        case("nonzero", b(5)),
    )
    yield case("nonzero_static", b(5), size=4)
    yield from (
        case("searchsorted.Tensor", torch.tensor([1.0, 2.0, 3.0]), f(5)),
        case("bucketize.Tensor", f(5), torch.tensor([0.0, 1.0]), right=True),
    )
    table, words = f(7, 3), i(2, 5, low=0, high=7)
    yield from (case("embedding", table, words), case("embedding", table, words, 2))
    yield from (
        case("embedding_dense_backward", f(2, 5, 3), words, 7, 2, s, slopes=False)
        for s in (False, True)
    )
    flat, starts = i(9, low=0, high=7), torch.tensor([0, 2, 6])
    for mode in (0, 1, 2):
        yield case("_embedding_bag", table, flat, starts, False, mode, slopes=False)
    yield case("_embedding_bag", table, flat, starts, False, 0, False, f(9), slopes=False)


def networks() -> Iterator[Case]:
    yield from (
        case("mm", f(3, 4), f(4, 5)),
        case("bmm", f(2, 3, 4), f(2, 4, 5)),
        case("matmul", f(2, 3, 4), f(4)),
    )
    yield from (
        case("mv", f(3, 4), f(4)),
        case("dot", f(4), f(4)),
        case("mm", i(3, 4), i(4, 5)),
        case("einsum", "ij,jk", [f(2, 3), f(3, 4)]),
    )
    yield from (
        case("addmm", f(5), f(3, 4), f(4, 5)),
        case("addmm", f(3, 5), f(3, 4), f(4, 5), beta=2, alpha=3),
        case("addmm", f(5), f(3, 4), f(4, 5), beta=0),
    )
    yield from (
        case("baddbmm", f(2, 3, 5), f(2, 3, 4), f(2, 4, 5), alpha=2),
        case("addmv", f(3), f(3, 4), f(4)),
    )
    yield from (case("linear", f(2, 3, 4), f(5, 4), f(5)), case("linear", f(4), f(5, 4)))
    image, one = f(2, 4, 8, 8), [1, 1]
    yield case("convolution", image, f(6, 4, 3, 3), f(6), one, one, one, False, [0, 0], 1)
    yield case("convolution", image, f(6, 2, 3, 3), None, [2, 2], [1, 0], [2, 1], False, [0, 0], 2)
    yield case("convolution", image, f(4, 3, 3, 3), f(6), [2, 2], one, one, True, one, 2)
    yield case("convolution", f(2, 3, 9), f(4, 3, 3), f(4), [2], [1], [1], False, [0], 1)
    yield case(
        "convolution", f(1, 2, 5, 6, 7), f(3, 2, 2, 2, 2), f(3), [1], [0], [1], False, [0], 1
    )
    yield from (
        case("conv1d", f(2, 3, 9), f(4, 3, 3), f(4), [2], [1]),
        case("conv2d", image, f(6, 4, 3, 3), None, [1], [1]),
        case("conv2d.padding", image, f(6, 4, 3, 3), None, [1], "same"),
    )
    yield from (
        case("conv3d", f(1, 2, 5, 6, 7), f(3, 2, 2, 2, 2)),
        case("conv_transpose1d", f(2, 3, 5), f(3, 4, 3), f(4), [2]),
        case("conv_transpose2d.input", image, f(4, 3, 3, 3), None, [2], [1], [1]),
    )
    yield case(
        "convolution_backward",
        f(2, 6, 8, 8),
        image,
        f(6, 4, 3, 3),
        [6],
        one,
        one,
        one,
        False,
        [0, 0],
        1,
        [True, True, True],
        slopes=False,
    )
    yield case(
        "convolution_backward",
        f(2, 6, 16, 16),
        image,
        f(4, 3, 3, 3),
        [6],
        [2, 2],
        one,
        one,
        True,
        one,
        2,
        [True, True, False],
        slopes=False,
    )
    yield from (
        case("im2col", image, [3, 2], [1, 2], [1, 0], [2, 1]),
        case("col2im", f(2, 16, 16), [8, 8], [2, 2], one, [0, 0], [2, 2]),
    )
    yield from (
        case("_cdist_forward", f(3, 4), f(5, 4), p, None, slopes=p == 2) for p in (1.0, 2.0, 3.0)
    )
    yield case("_pdist_forward", f(4, 3), 2.0, slopes=False)


def layers() -> Iterator[Case]:
    image, one = f(2, 4, 8, 8), [1, 1]
    c = f(4, low=0.5)
    yield case(
        "_native_batch_norm_legit_no_training", image, c, f(4), f(4), c, 0.1, 1e-5, slopes=False
    )
    yield case(
        "_native_batch_norm_legit_functional",
        image,
        c,
        f(4),
        f(4),
        c,
        True,
        0.1,
        1e-5,
        slopes=False,
    )
    yield case("_native_batch_norm_legit", image, c, f(4), f(4), c, True, 0.1, 1e-5, slopes=False)
    yield case("native_batch_norm", image, c, f(4), f(4), c, True, 0.1, 1e-5, slopes=False)
    yield case("_native_batch_norm_legit.no_stats", image, c, f(4), True, 0.1, 1e-5)
    for train in (True, False):
        yield case(
            "native_batch_norm_backward",
            image,
            f(2, 4, 8, 8, low=-3),
            c,
            f(4),
            c,
            f(4) / 9,
            c,
            train,
            1e-5,
            [True, True, True],
            slopes=False,
        )
    yield from (
        case("native_layer_norm", f(2, 3, 8), [8], f(8), f(8), 1e-5),
        case("native_layer_norm", image, [8, 8], None, None, 1e-5),
        case("layer_norm", f(2, 8), [8], f(8)),
    )
    normal = torch.native_layer_norm(f(2, 3, 8), [8], None, None, 1e-5)
    yield case(
        "native_layer_norm_backward",
        f(2, 3, 8, low=-3),
        f(2, 3, 8),
        [8],
        *normal[1:],
        f(8),
        f(8),
        [True, True, True],
        slopes=False,
    )
    yield from (
        case("native_group_norm", image, c, f(4), 2, 4, 64, 2, 1e-5),
        case("group_norm", image, 2, c, f(4)),
        case("rms_norm", f(2, 8), [8], f(8), 1e-5),
    )
    groups = torch.native_group_norm(image, None, None, 2, 4, 64, 2, 1e-5)
    yield case(
        "native_group_norm_backward",
        f(2, 4, 8, 8, low=-3),
        image,
        *groups[1:],
        c,
        2,
        4,
        64,
        2,
        [True, True, True],
        slopes=False,
    )
    for kernel, settings in (
        ([2, 2], ()),
        ([3], ([2], [1])),
        ([3, 2], ([1, 2], [1, 1], one, True)),
    ):
        yield case("max_pool2d_with_indices", image, kernel, *settings)
    yield case("max_pool3d_with_indices", f(1, 2, 4, 4, 4), [2])
    pooled = torch.ops.aten.max_pool2d_with_indices(image, [2, 2], [2, 2])
    yield case(
        "max_pool2d_with_indices_backward",
        f(2, 4, 4, 4),
        image,
        [2, 2],
        [2, 2],
        [0, 0],
        one,
        False,
        pooled[1],
        slopes=False,
    )
    for settings in (
        ([2, 2],),
        ([3], [2], [1]),
        ([3], [2], [1], True, False),
        ([3, 2], [2, 1], [1, 1], False, True, 5),
    ):
        yield case("avg_pool2d", image, *settings)
    yield from (
        case("avg_pool1d", f(2, 3, 8), [2]),
        case("avg_pool3d", f(1, 2, 4, 4, 4), [2], [2], [1]),
    )
    yield case(
        "avg_pool2d_backward",
        f(2, 4, 4, 4),
        image,
        [2, 2],
        [2, 2],
        [0, 0],
        False,
        True,
        None,
        slopes=False,
    )
    yield from (
        case("_adaptive_avg_pool2d", image, [3, 5]),
        case("_adaptive_avg_pool3d", f(1, 2, 4, 5, 6), [2, 3, 4]),
        case("adaptive_avg_pool1d", f(2, 3, 8), [3]),
    )
    yield from (
        case("_adaptive_avg_pool2d_backward", f(2, 4, 3, 5), image, slopes=False),
        case("adaptive_max_pool2d", image, [3, 5]),
        case("adaptive_max_pool3d", f(1, 2, 4, 5, 6), [2, 3, 4]),
    )
    for align in (False, True):
        yield from (
            case("upsample_bilinear2d.vec", image, [13, 5], align, None),
            case("upsample_bilinear2d.vec", image, None, align, [2.0, 1.5]),
        )
        yield from (
            case("upsample_bicubic2d.vec", image, [13, 5], align, None),
            case("upsample_linear1d.vec", f(2, 3, 8), [13], align, None),
        )
    yield from (
        case("upsample_nearest2d.vec", image, [13, 5], None),
        case("upsample_nearest2d.vec", image, None, [2.0, 1.5]),
        case("upsample_nearest1d.vec", f(2, 3, 8), [13], None),
    )
    yield case(
        "upsample_nearest2d_backward",
        f(2, 4, 16, 16),
        [16, 16],
        [2, 4, 8, 8],
        2.0,
        2.0,
        slopes=False,
    )
    yield case(
        "upsample_bilinear2d_backward",
        f(2, 4, 16, 16),
        [16, 16],
        [2, 4, 8, 8],
        False,
        None,
        None,
        slopes=False,
    )
    for how in ((0, 0, False), (0, 1, True), (1, 2, False), (2, 0, False)):
        yield case("grid_sampler_2d", image, f(2, 5, 6, 2, low=-1.2, high=1.2), *how)
    q, k, v = f(2, 3, 5, 8), f(2, 3, 7, 8), f(2, 3, 7, 8) + 1
    yield from (
        case("scaled_dot_product_attention", q, k, v),
        case("scaled_dot_product_attention", q, k, v, f(5, 7)),
        case("scaled_dot_product_attention", q, q, q, None, 0.0, True, scale=0.3),
    )
    yield case("scaled_dot_product_attention", q, k, v, torch.ones(5, 7).tril(2).bool())
    yield case(
        "scaled_dot_product_attention", f(1, 4, 5, 8), f(1, 2, 5, 8), f(1, 2, 5, 8), enable_gqa=True
    )
    for causal in (False, True):
        out = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, causal)
        yield case(
            "_scaled_dot_product_flash_attention_for_cpu", q, q, q, 0.0, causal, slopes=False
        )
        yield case(
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            f(2, 3, 5, 8) + 1,
            q,
            q,
            q,
            *out,
            0.0,
            causal,
            slopes=False,
        )
    yield case("native_dropout", f(4), 0.0, True)
    yield case("native_dropout", f(4), 0.5, False)
    yield case("native_dropout_backward", f(4), b(4), 2.0, slopes=False)


CASES = [*elementwise(), *binary(), *reductions(), *shapes(), *indexing(), *networks(), *layers()]


def theirs(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def converted(value: Any, made: list[tuple[Any, Tensor]]) -> Any:
    """Arguments as a graph has them for a rule; `made` takes the pairs that want gradients."""
    if isinstance(value, torch.Tensor):
        tensor = Tensor(shared(value.detach().clone()).numpy())
        if value.requires_grad:
            tensor.requires_grad_(True)
            made.append((value, tensor))
        return tensor
    if isinstance(value, list | tuple):
        return tuple(converted(part, made) for part in value)
    return dtype_of(value) if isinstance(value, torch.dtype) else value


def wanting(value: Any) -> Any:
    """Fresh tensors, of which floats want gradients."""
    if isinstance(value, torch.Tensor):
        return value.clone().requires_grad_(value.is_floating_point())
    return [wanting(part) for part in value] if isinstance(value, list) else value


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def tolerance(dtype: Any) -> dict[str, float]:
    return {F64: {"rtol": 1e-9, "atol": 1e-9}, F16: {"rtol": 4e-3, "atol": 4e-3}}.get(
        dtype, {"rtol": 2e-5, "atol": 2e-5}
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_computes_what_pytorch_does(case: Case) -> None:
    function = rule_for(
        "aten." + (case.operator if "." in case.operator else f"{case.operator}.default")
    )
    assert function is not None
    made: list[tuple[Any, Tensor]] = []
    args = (
        wanting(list(case.args))
        if case.slopes
        else [v.clone() if isinstance(v, torch.Tensor) else v for v in case.args]
    )
    mine_args = [converted(value, made) for value in args]
    mine_kwargs = {name: converted(value, made) for name, value in case.kwargs.items()}
    with torch.enable_grad() if case.slopes else torch.no_grad():
        wanted = listed(theirs(case.operator)(*args, **case.kwargs))
    found = listed(function(*mine_args, **mine_kwargs))
    if case.operator.startswith("_embedding_bag"):
        wanted, found = wanted[:1], found[:1]  # the others are PyTorch's own notes
    if case.operator.startswith("native_dropout"):
        wanted, found = wanted[:1], found[:1]
    if case.operator == "_native_batch_norm_legit_no_training":
        wanted, found = wanted[:1], found[:1]
    assert len(found) == len(wanted)
    for mine, their in zip(found, wanted, strict=True):
        if not isinstance(their, torch.Tensor):
            assert mine == their
            continue
        assert mine.dtype is dtype_of(their.dtype)
        assert mine.shape == tuple(their.shape)
        np.testing.assert_allclose(
            mine.detach().numpy(), their.detach().numpy(), **tolerance(their.dtype)
        )
    assert_same_slopes(found, wanted, made)


def assert_same_slopes(found: list[Any], wanted: list[Any], made: list[tuple[Any, Tensor]]) -> None:
    """Gradients of the results, each element times another number, for all arguments."""
    loss, their_loss = Tensor(0.0), torch.tensor(0.0)
    some = False
    for mine, their in zip(found, wanted, strict=True):
        if isinstance(their, torch.Tensor) and their.requires_grad:
            slope = f(*their.shape, low=0.5, high=1.5)
            their_loss = their_loss + (their.float() * slope).sum()
            loss = loss + (mine.float() * Tensor(slope.numpy())).sum()
            some = True
    if not some:
        return
    their_loss.backward()
    if loss.requires_grad:
        loss.backward()
    for their, mine in made:
        if their.grad is None:
            assert mine.grad is None or not mine.grad.numpy().any()
            continue
        exact = their.grad.numpy(force=True)
        slope = np.zeros_like(exact) if mine.grad is None else mine.grad.numpy()
        limits = {name: 5 * limit for name, limit in tolerance(their.dtype).items()}
        np.testing.assert_allclose(slope, exact, **limits)
