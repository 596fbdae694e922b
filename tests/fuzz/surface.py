"""Methods that programs may call, found in the public surface, with makers of arguments by name.

A method added to `Tensor` is fuzzed as soon as its parameters have usual names: `axis`,
`keepdim`, `other`, ... `tests/fuzz/test_surface.py` holds which methods no program calls, and why.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

from ferrule import Tensor
from ferrule.dtype import dtypes
from tests.fuzz.drawing import FLOATS, INTS, Drawing, NothingFitsError
from tests.fuzz.program import CHANCE, words
from tests.fuzz.recipes import RECIPES

Maker = Callable[[Drawing, Tensor], str]

# Never called by a program, each with the reason.
LEFT_OUT = {
    "allclose item tolist numpy data tobytes cpu is_nonzero equal": "gives no tensor",
    "size stride storage_offset numel nelement ndimension dim element_size": "gives no tensor",
    "is_contiguous is_floating_point broadcast_shapes": "gives no tensor",
    " ".join(CHANCE): "draws by chance: chances.py draws them as statements of their own kind",
    "empty empty_like new_empty": "has any values",
    "manual_seed get_rng_state set_rng_state train no_grad enable_grad autocast": "sets a mode",
    "backward gradient register_hook retain_grad zero_grad requires_grad_": (
        "is what the machine differentiates by"
    ),
    "from_dlpack from_file from_numpy frombuffer to_device to shard": "takes what is no tensor",
    "eig eigvals": "always raises",
    "replace realize": "is how the machine runs programs",
    "sequential triplet_margin_with_distance_loss": "takes functions",
    "nonzero argwhere masked_select unique unique_consecutive": "its shape depends on values",
}
_OUT = {name: reason for names, reason in LEFT_OUT.items() for name in names.split()}


def bool_(draw: Drawing, x: Tensor) -> str:
    return draw.choice(["True", "False"])


def among(*choices: str) -> Maker:
    return lambda draw, x: draw.choice(choices)


def axis(draw: Drawing, x: Tensor) -> str:
    return str(draw.axis(x))


def axes(draw: Drawing, x: Tensor) -> str:
    return draw.axes(x)


def operand(draw: Drawing, x: Tensor) -> str:
    return draw.operand(x)


def tensor(draw: Drawing, x: Tensor) -> str:
    return draw.operand(x, 0)


def like(draw: Drawing, x: Tensor) -> str:
    return draw.like(x)


def integer(low: int, high: int) -> Maker:
    return lambda draw, x: str(draw.integer(low, high))


def dtype(draw: Drawing, x: Tensor) -> str:
    return f'"{draw.dtype()}"'


def wide(draw: Drawing, x: Tensor) -> str:
    return f'"{draw.choice(FLOATS[2:] if dtypes.is_float(x.dtype) else (*INTS[4:], "float32"))}"'


def number(draw: Drawing, x: Tensor) -> str:
    return draw.number(x.dtype)


def shape_of_same_size(draw: Drawing, x: Tensor) -> str:
    shape = list(draw.factors(math.prod(x.shape), draw.integer(1, 4)))
    if shape and math.prod(x.shape) and draw.chance(0.25):
        shape[draw.integer(0, len(shape) - 1)] = -1
    return ", ".join(map(str, shape)) if draw.chance(0.5) else str(tuple(shape))


def wider_shape(draw: Drawing, x: Tensor) -> str:
    shape = [draw.integer(1, 4) if n == 1 and draw.chance(0.7) else n for n in x.shape]
    extra = [draw.integer(1, 3) for _ in range(draw.integer(0, 2))]
    return str(tuple(extra + shape))


def any_shape(draw: Drawing, x: Tensor) -> str:
    return str(draw.shape())


def permutation(draw: Drawing, x: Tensor) -> str:
    return str(tuple(draw.rng.sample(range(x.ndim), x.ndim)))


def some_axes(draw: Drawing, x: Tensor) -> str:
    return str(tuple(draw.rng.sample(range(x.ndim), draw.integer(0, x.ndim))))


def pads(draw: Drawing, x: Tensor) -> str:
    low = -1 if draw.chance(0.15) else 0
    pairs = [(draw.integer(low, 2), draw.integer(low, 2)) for _ in x.shape]
    if draw.chance(0.5):
        return str(tuple(pairs))
    flat = [n for pair in reversed(pairs[draw.integer(0, x.ndim) :]) for n in pair]
    return str(tuple(flat))


def shrunk(draw: Drawing, x: Tensor) -> str:
    pairs = []
    for size in x.shape:
        start = draw.integer(0, size)
        pairs.append(None if draw.chance(0.2) else (start, draw.integer(start, size)))
    return str(tuple(pairs))


def repeats(draw: Drawing, x: Tensor) -> str:
    count = x.ndim + (draw.chance(0.2))
    return ", ".join(str(draw.choice([1, 1, 2, 3])) for _ in range(count)) or "2"


def index(draw: Drawing, x: Tensor) -> str:
    """Positions for methods that take an axis: drawn for the smallest, so that they always fit."""
    if not x.ndim:
        raise NothingFitsError
    size = min(x.shape)
    kept = tuple(draw.integer(min(1, n), n) for n in x.shape)
    return draw.index(kept, size)


def line_index(draw: Drawing, x: Tensor) -> str:
    if not x.ndim:
        raise NothingFitsError
    return draw.index((draw.integer(1, 4),), min(x.shape))


def joined(draw: Drawing, x: Tensor) -> str:
    # Kernels that store several pieces in the place of their whole are limited in number.
    count = draw.integer(7, 16) if draw.chance(0.05) else draw.integer(1, 2)
    return ", ".join(draw.like(x) for _ in range(count))


def matrix_right(draw: Drawing, x: Tensor) -> str:
    """The right operand of a product of matrices."""
    if not x.ndim:
        raise NothingFitsError
    inner = x.shape[-1]
    fits = draw.fitting(
        lambda y: y.ndim in (1, 2) and y.shape[max(y.ndim - 2, 0)] == inner and y.dtype == x.dtype
    )
    if fits and draw.chance(0.6):
        return draw.choice(fits)
    shape = (inner,) if draw.chance(0.25) else (inner, draw.size())
    return draw.fresh(shape, x.dtype.name)


def sizes_of_split(draw: Drawing, x: Tensor) -> str:
    return str(draw.integer(1, 3))


def kernel(draw: Drawing, x: Tensor) -> str:
    return str(draw.integer(1, 3))


def last_sizes(draw: Drawing, x: Tensor) -> str:
    return str(tuple(x.shape[draw.integer(0, max(x.ndim - 1, 0)) :]))


def weights_of_last(draw: Drawing, x: Tensor) -> str:
    """A positive number for each place of the last axis."""
    return f"({draw.fresh(tuple(x.shape[-1:]), 'float32')}.abs() + 0.5)"


def counts_of_last(draw: Drawing, x: Tensor) -> str:
    return draw.index(tuple(x.shape[-1:]), 4)


def reduction(draw: Drawing, x: Tensor) -> str:
    return draw.choice(["'mean'", "'sum'", "'none'"])


NORMS = among("1", "2", "3", "0", "0.5", "np.inf", "np.inf", "-np.inf")


# By the name of the parameter; "method.parameter" goes before.
MAKERS: dict[str, Maker] = {
    "axis": axes,
    "axes": some_axes,
    "dim": axis,
    "dims": some_axes,
    "axis0": axis,
    "axis1": axis,
    "dim0": axis,
    "dim1": axis,
    "dim2": axis,
    "start_dim": axis,
    "end_dim": axis,
    "source": axis,
    "destination": axis,
    "keepdim": bool_,
    "other": operand,
    "alpha": number,
    "beta": number,
    "value": number,
    "min": number,
    "max": number,
    "dtype": wide,
    "shape": shape_of_same_size,
    "padding": pads,
    "arg": shrunk,
    "repeats": repeats,
    "reps": repeats,
    "index": index,
    "indices": index,
    "mask": lambda draw, x: draw.mask(x.shape),
    "others": joined,
    "offset": integer(-2, 2),
    "diagonal": integer(-2, 2),
    "shifts": integer(-3, 3),
    "k": integer(0, 3),
    "n": integer(0, 3),
    "descending": bool_,
    "stable": bool_,
    "largest": bool_,
    "sorted": bool_,
    "right": bool_,
    "correction": integer(0, 2),
    "decimals": integer(0, 1),
    "chunks": sizes_of_split,
    "sizes": sizes_of_split,
    "size": integer(1, 3),
    "step": integer(1, 3),
    "start": integer(0, 1),
    "length": integer(0, 2),
    "mat2": matrix_right,
    "vec": matrix_right,
    "vec2": like,
    "weight": operand,
    "end": operand,
    "target": operand,
    "values": operand,
    "src": like,
    "tensor1": tensor,
    "tensor2": tensor,
    "input": operand,
    "reduction": reduction,
    "kernel_size": kernel,
    "num_classes": integer(7, 9),
    "fill_value": number,
    "test_elements": tensor,
    "p": among("1", "2"),
    "ord": among("1", "2"),
    "dist.p": NORMS,
    "cdist.p": NORMS,
    "rounding_mode": among("None", "'trunc'", "'floor'"),
    "equal_nan": bool_,
    "invert": bool_,
    "reduce.reduction": among("'sum'", "'max'", "'mean'"),
    "where.input": operand,
    "expand.shape": wider_shape,
    "broadcast_to.shape": wider_shape,
    "permute.axes": permutation,
    "flip.axes": some_axes,
    "index_select.index": line_index,
    "take.index": line_index,
    "argmax.axis": axis,
    "argmin.axis": axis,
    "cumsum.axis": axis,
    "cumprod.axis": axis,
    "cummax.axis": axis,
    "cummin.axis": axis,
    "logcumsumexp.axis": axis,
    "sort.axis": axis,
    "argsort.axis": axis,
    "topk.axis": axis,
    "median.axis": axis,
    "mode.axis": axis,
    "kthvalue.axis": axis,
    "softmax.axis": axis,
    "log_softmax.axis": axis,
    "softmin.axis": axis,
    "diff.axis": axis,
    "matmul.other": matrix_right,
    "dot.other": matrix_right,
    "cast.dtype": dtype,
    "astype.dtype": dtype,
    "squeeze.dim": axis,
    "rot90.dims": lambda draw, x: (
        str(tuple(draw.rng.sample(range(x.ndim), 2))) if x.ndim > 1 else "(0, 1)"
    ),
    "scatter.src": lambda draw, x: draw.like(x),
    "index_fill.index": line_index,
    "index_fill_.index": line_index,
    "select.index": integer(-1, 0),
    "unflatten.sizes": lambda draw, x: "(-1, 1)",
    # Of parameters that need not be given.
    "weights": like,
    "pos_weight": like,
    "per_sample_weights": like,
    "prepend": like,
    "append": like,
    "bias": operand,
    "align_corners": bool_,
    "approximate": among("'none'", "'tanh'"),
    "base": among("2", "3"),
    "bins": integer(2, 5),
    "delta": among("0.5", "2"),
    "dilation": integer(1, 2),
    "divisor_override": integer(1, 3),
    "dx": among("0.5", "2"),
    "eps": among("0.25", "1e-5"),
    "gamma": among("1", "2"),
    "ignore_index": integer(0, 2),
    "indexing": among("'ij'", "'xy'"),
    "interpolation": among("'linear'", "'lower'", "'higher'", "'nearest'", "'midpoint'"),
    "label_smoothing": among("0.1", "0.5"),
    "lambd": among("1", "0.25"),
    "margin": among("0.5", "1"),
    "max_val": among("1.5", "2"),
    "min_val": among("-1.5", "0"),
    "nan": number,
    "neg_slope": among("0.25", "-0.5"),
    "neginf": number,
    "output_padding": integer(0, 1),
    "padding_mode": among("'zeros'", "'border'", "'reflection'"),
    "posinf": number,
    "scale": among("0.5", "2"),
    "scale_factor": among("1", "2", "0.5", "1.5"),
    "side": among("'left'", "'right'"),
    "stride": integer(1, 3),
    "unbiased": bool_,
    "N": integer(0, 5),
    "UPLO": among("'L'", "'U'"),
    "aweights": weights_of_last,
    "fweights": counts_of_last,
    "m": integer(0, 4),
    "minlength": integer(0, 9),
    "out_int32": bool_,
    "padding_idx": integer(0, 2),
    "r": integer(1, 3),
    "range": among("(-1, 1)", "(0.0, 2.5)"),
    "scatter.reduce": among("'add'", "'multiply'"),
    "scatter_reduce.reduce": among("'sum'", "'prod'", "'mean'", "'amax'", "'amin'"),
    "some": bool_,
    "threshold": among("0.5", "2"),
    "rms_norm.normalized_shape": last_sizes,
    "trapezoid.x": like,
    "trapz.x": like,
    "cumulative_trapezoid.x": like,
    "isclose.atol": among("0.5", "0"),
    "isclose.rtol": among("0.5", "0.1"),
    "linspace.dtype": among("'float32'", "'float64'"),
    "logspace.dtype": among("'float32'", "'float64'"),
    "tril_indices.dtype": among("'int32'", "'uint8'"),
    "triu_indices.dtype": among("'int32'", "'uint8'"),
    "embedding_bag.mode": among("'sum'", "'mean'", "'max'"),
    "pad.mode": among("'constant'", "'reflect'", "'replicate'", "'circular'"),
    "interpolate.mode": among("'nearest'", "'nearest-exact'", "'bilinear'", "'bicubic'", "'area'"),
    "upsample.mode": among("'nearest'", "'linear'", "'bilinear'"),
    "full.shape": any_shape,
    "zeros.shape": any_shape,
    "ones.shape": any_shape,
}


# Those of them that go with the calls of recipes, whatever these have drawn.
OPTIONS = words(
    """align_corners alpha base beta ceil_mode count_include_pad dilation divisor_override dtype
    eps full ignore_index include_self interpolation keepdim label_smoothing left margin
    minlength mode offset out_int32 output_padding padding_idx padding_mode reduce reduction
    right scale some stride transpose unitriangular UPLO upper"""
)

# Never given to a method, each with the reason.
UNDRAWN = {
    "cdist.compute_mode lstsq.driver qr.mode": "a name that changes nothing, or of another result",
    "lstsq.rcond pinverse.rcond pinv.atol pinv.rtol matrix_rank.atol matrix_rank.rtol": (
        "says what is 0, where results jump"
    ),
    "matrix_rank.tol": "says what is 0, where results jump",
    "scaled_dot_product_attention.dropout_p": "draws by chance",
    "batch_norm.momentum instance_norm.momentum instancenorm.momentum": "is for statistics alone",
    "instance_norm.running_mean instance_norm.running_var": "layers.py draws layers with them",
    "instancenorm.running_mean instancenorm.running_var": "layers.py draws layers with them",
    "batchnorm.axis": "is where the statistics of a recipe belong",
    "embedding.scale_grad_by_freq embedding_bag.scale_grad_by_freq": (
        "gives what is no derivative, by definition"
    ),
    "embedding.max_norm embedding.norm_type": "writes to the operand",
    "embedding_bag.max_norm embedding_bag.norm_type": "writes to the operand",
    "embedding_bag.offsets embedding_bag.include_last_offset": (
        "goes with an index of one axis; layers.py draws it"
    ),
    "repeat_interleave.output_size": "has to be what it is anyway",
    "max_unpool1d.output_size max_unpool2d.output_size max_unpool3d.output_size": "as above",
    "max_unpool1d.padding max_unpool2d.padding max_unpool3d.padding": "as above",
    "adaptive_max_pool1d.return_indices adaptive_max_pool2d.return_indices": "gives two tensors",
    "adaptive_max_pool3d.return_indices max_pool1d.return_indices": "gives two tensors",
    "max_pool2d.return_indices max_pool3d.return_indices": "gives two tensors",
    "searchsorted.sorter": "has to sort the sequence",
    "ctc_loss.blank": "is a class that no target of a recipe has",
    "diagonal_scatter.dim1 diagonal_scatter.dim2": "are the axes of a matrix, which has two",
    "interpolate.size upsample.size": "goes in place of a factor",
    "upsample_bilinear.size upsample_nearest.size": "goes in place of a factor",
    "interpolate.recompute_scale_factor": "changes factors that a recipe does not draw",
    "tensorinv.ind": "goes with a shape that a recipe does not draw",
    "fold.padding": "goes with a shape that a recipe does not draw",
}


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: inspect._ParameterKind
    required: bool
    annotation: str


@dataclass(frozen=True)
class Method:
    name: str
    parameters: tuple[Parameter, ...]
    on_tensor: bool

    @functools.cached_property
    def lacking(self) -> list[str]:
        """Required parameters for which there is no maker."""
        if self.name in RECIPES:
            return []
        return [p.name for p in self.parameters if p.required and self.maker(p) is None]

    def maker(self, parameter: Parameter) -> Maker | None:
        named = MAKERS.get(f"{self.name}.{parameter.name}")
        if named is None and self.name.endswith("_"):
            named = MAKERS.get(f"{self.name[:-1]}.{parameter.name}")
        if named is None:
            named = MAKERS.get(parameter.name)
        if named is axes and parameter.annotation == "int":
            return axis
        if named is None and parameter.annotation in ("Operand", "Tensor"):
            return tensor
        if named is None and parameter.annotation == "bool":
            return bool_
        return named

    @property
    def in_place(self) -> bool:
        return self.name.endswith("_")

    def call(self, draw: Drawing, x: Tensor, receiver: str) -> str:
        """A call of the method, as text."""
        return f"{receiver}.{self.name}({', '.join(self.arguments(draw, x))})"

    def arguments(self, draw: Drawing, x: Tensor) -> list[str]:
        args: list[str] = []
        for parameter in self.parameters:
            maker = self.maker(parameter)
            several = parameter.kind is inspect.Parameter.VAR_POSITIONAL
            if several and maker is not None:
                text = maker(draw, x)
                if text:
                    args.append(text)
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD or maker is None:
                continue
            elif parameter.required and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                args.append(maker(draw, x))
            elif parameter.required or draw.chance(0.4):
                args.append(f"{parameter.name}={maker(draw, x)}")
        return args


def with_options(draw: Drawing, name: str, text: str) -> str:
    """The call of a method by its recipe, perhaps with arguments more that need not be given."""
    if not text.endswith(")"):
        return text
    (method,) = [method for method in methods() if method.name == name]
    x = next(iter(draw.values.values()))
    more = []
    for parameter in method.parameters:
        maker = method.maker(parameter)
        is_given = f"{parameter.name}=" in text or parameter.required
        if maker is not None and parameter.name in OPTIONS and not is_given and draw.chance(0.15):
            more.append(f"{parameter.name}={maker(draw, x)}")
    return f"{text[:-1]}{', ' if more and not text.endswith('()') else ''}{', '.join(more)})"


def unavailable(name: str) -> str | None:
    """The reason why programs do not call a method; None if they may."""
    return _OUT.get(name)


@functools.cache
def methods() -> tuple[Method, ...]:
    """All public methods that programs may call."""
    found = []
    for name in dir(Tensor):
        member = inspect.getattr_static(Tensor, name)
        if name.startswith("_") or name in _OUT or isinstance(member, type):
            continue
        if not callable(getattr(Tensor, name)):
            continue
        found.append(_method(name, member))
    return tuple(found)


def _method(name: str, member: object) -> Method:
    signature = inspect.signature(getattr(Tensor, name))
    on_tensor = not isinstance(member, classmethod | staticmethod)
    return Method(name, parameters_of(signature), on_tensor)


def parameters_of(signature: inspect.Signature) -> tuple[Parameter, ...]:
    """The parameters for which arguments may be drawn."""
    empty = inspect.Parameter.empty
    return tuple(
        Parameter(
            p.name,
            p.kind,
            p.default is empty and p.kind is not inspect.Parameter.VAR_KEYWORD,
            "" if p.annotation is empty else str(p.annotation),
        )
        for p in signature.parameters.values()
        if p.name != "self" and p.name not in ("device", "requires_grad")
    )
