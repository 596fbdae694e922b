"""The reference: each statement of a program is computed at once, on NUMPY, with its exactness.

A value is exact if all its elements, and all numbers that it was computed from, are small multiples
of a power of two: then every order of evaluation gives the same bits. Other values are compared
within a tolerance, and doubtful ones with noisy evaluations in float64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from ferrule import Context, Tensor, nn
from ferrule.dtype import dtypes
from ferrule.errors import GradientError
from tests.fuzz.given import NAMES, tensors_of
from tests.fuzz.program import (
    Program,
    Source,
    assigned,
    compiled,
    is_object,
    loaded,
    methods,
    words,
    written,
)

Array = np.ndarray[Any, Any]

# Functions that devices may round differently, even where the true result is a small number.
INEXACT = words(
    """
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 arcsin arccos arctan
    arctan2 sinh cosh tanh asinh acosh atanh arcsinh arccosh arctanh erf erfc erfcx erfinv lgamma
    digamma polygamma zeta mvlgamma multigammaln sigmoid expit logsigmoid logit softplus mish silu
    swish gelu quick_gelu elu selu celu tanhshrink softmax log_softmax softmin logsumexp logaddexp
    logaddexp2 logcumsumexp hypot i0 i0e i1 i1e sinc entr xlogy xlog1py ndtr ndtri log_ndtr rsqrt
    sqrt cbrt reciprocal pow power float_power Pow Div div divide true_divide mean var std var_mean
    std_mean nanmean nanvar nanstd average norm vector_norm matrix_norm normalize cosine_similarity
    layernorm layer_norm batchnorm batch_norm groupnorm group_norm instancenorm instance_norm
    rmsnorm rms_norm local_response_norm cross_entropy nll_loss binary_cross_entropy kl_div
    det inv inverse solve cholesky qr svd eigh lstsq pinv pinverse matrix_exp corrcoef cov slogdet
    logdet cdist pdist dist pairwise_distance scaled_dot_product_attention deg2rad rad2deg degrees
    radians angle prelu leaky_relu hardsigmoid hardswish softsign quantile nanquantile percentile
    median nanmedian trapezoid trapz cumulative_trapezoid interpolate grid_sample upsample
    lerp smooth_l1 huber linspace logspace histc histogram ldexp Mod remainder fmod FloorDiv
    floor_divide floordiv mod renorm bilinear stft tensorinv tensorsolve triangular_solve
    solve_triangular cholesky_solve cholesky_inverse cond matrix_rank svdvals eigvalsh nextafter
    isclose ctc_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
    soft_margin_loss poisson_nll_loss gaussian_nll_loss triplet_margin_loss cosine_embedding_loss
    hinge_embedding_loss margin_ranking_loss binary_cross_entropy_with_logits binary_crossentropy
    binary_crossentropy_logits sparse_categorical_crossentropy
    """
)
_POWERS = words("prod cumprod nanprod pow power Pow matrix_power chain_matmul vander")
_CASTS = words(
    """cast astype type_as byte char short int long assign copy_ setitem fill fill_ full_like full
    new_full masked_fill masked_fill_ index_put index_put_ one_hot bincount histc prod sum cumsum
    cumprod"""
)
_PRODUCTS = words("prod cumprod nanprod")
_SIGNS = words("signbit copysign bitcast view")
# Layers that sum up and multiply what they are given.
EXACT_LAYERS = words(
    """Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
    Embedding ReLU ReLU6 Hardtanh Threshold Identity Flatten Unflatten MaxPool1d MaxPool2d MaxPool3d
    ZeroPad1d ZeroPad2d ZeroPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d Fold Unfold
    ReplicationPad1d ReplicationPad2d ReplicationPad3d CircularPad1d CircularPad2d CircularPad3d
    ConstantPad1d ConstantPad2d ConstantPad3d PixelShuffle PixelUnshuffle ChannelShuffle"""
)
# Decimal digits that a product may have before float32 overflows, or underflows, on the way.
_MOST_DIGITS = 30


class UndefinedError(Exception):
    """A statement whose result is not defined, such as a cast of NaN to an integer."""


@dataclass(frozen=True)
class Known:
    """The exactness of a value."""

    exact: bool
    grain: int
    """All elements are multiples of 2 ** -grain."""
    largest: float

    @staticmethod
    def of(array: Array, exact: bool = True) -> Known:
        if array.dtype.kind in "iub":
            largest = float(np.abs(array.astype(np.float64)).max(initial=0))
            return Known(exact, 0, largest)
        finite = array.astype(np.float64)
        finite = np.abs(finite[np.isfinite(finite)])
        largest = float(finite.max(initial=0))
        for grain in (0, 1, 2, 4, 8, 12):
            scaled = finite * 2.0**grain
            if np.array_equal(scaled, np.trunc(scaled)):
                return Known(exact, grain, largest)
        return Known(False, 0, largest)


def mantissa(kind: Any) -> int:
    return {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}.get(kind.name, 3)


def is_float(array: Array) -> bool:
    return array.dtype.kind not in "iub"


def _known(value: Any, exact: bool = True) -> Known:
    """The exactness of a tensor, or of all tensors of a model or an optimiser."""
    parts = [Known.of(x.detach().numpy(), exact) for x in tensors_of(value).values()]
    return Known(
        all(part.exact for part in parts) and exact,
        max((part.grain for part in parts), default=0),
        max((part.largest for part in parts), default=0.0),
    )


class Oracle(Protocol):
    """Something that knows what statements mean, and raises where they gave something else."""

    def before(self, values: Mapping[str, Any], line: str) -> None: ...

    def after(self, values: Mapping[str, Any], line: str) -> None: ...


class Machine:
    """Runs statements one by one on NUMPY, and keeps what is known of each value."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = dict(NAMES)
        self.known: dict[str, Known] = {}
        self.related: dict[str, set[str]] = {}
        self.after: Callable[[Machine, str], None] | None = None
        """Called after each statement."""
        self.oracle: Oracle | None = None
        """Asked around each statement."""

    def add(self, source: Source, rng: Callable[[int], np.random.Generator], call: int = 0) -> Any:
        self.values.update(rng=rng, call=call)
        value = eval(source.made, self.values)
        self.values[source.name] = value
        self.known[source.name] = _known(value)
        self.related[source.name] = {source.name}
        if is_object(source.name):
            self.relate(source.name, [name for name in loaded(source.made) if name in self.known])
        return value

    def run(self, line: str) -> None:
        """Does a statement; raises what it raises, or `UndefinedError`."""
        operands = [name for name in loaded(line) if name in self.known]
        before = [self.known[name] for name in operands]
        if written(line) is not None or not _CASTS.isdisjoint(methods(line)):
            self.check_casts(line, operands)
        if not (_PRODUCTS | _SIGNS).isdisjoint(methods(line)):
            self.check_order_and_signs(line, operands)
        if "ferrule.fft." in line or "ferrule.signal." in line:
            self.check_finite(line, operands)
        if self.oracle is not None:
            self.oracle.before(self.values, line)
        exec(compiled(line), self.values)
        results = [name for name in assigned(line) if isinstance(self.values[name], Tensor)]
        target = written(line)
        for name in results:
            self.values[name].realize()
        if target is not None and target in self.values:
            for tensor in tensors_of(self.values[target]).values():
                tensor.realize()
        exact = all(known.exact for known in before) and self.is_exact(line, operands)
        for name in results:
            self.learn(line, name, operands, before, exact)
        if target is not None:
            self.learn_write(line, target, operands, before, exact)
        if self.oracle is not None:
            self.oracle.after(self.values, line)
        if self.after is not None:
            self.after(self, line)

    def is_exact(self, line: str, operands: Sequence[str]) -> bool:
        """True if small exact operands of a statement can only give exact results."""
        if not INEXACT.isdisjoint(methods(line)) or _uses_functions(line):
            return False
        layers = {name for name in methods(line) if name[:1].isupper() and hasattr(nn, name)}
        layers |= {type(self.values[name]).__name__ for name in operands if is_object(name)}
        return layers <= EXACT_LAYERS

    def learn(
        self, line: str, name: str, operands: Sequence[str], before: Sequence[Known], exact: bool
    ) -> None:
        array = self.values[name].detach().numpy()
        if is_float(array):
            exact = exact and self.fits(line, operands, before, array)
        self.known[name] = Known.of(array, exact)
        self.related.setdefault(name, {name})
        self.relate(name, operands)

    def relate(self, name: str, others: Sequence[str]) -> None:
        """Names that may share memory: all that a value was made from, directly or not."""
        group = set(self.related.get(name, {name}))
        for other in others:
            group |= self.related.get(other, {other})
        for member in group:
            self.related[member] = group

    def learn_write(
        self, line: str, target: str, operands: Sequence[str], before: Sequence[Known], exact: bool
    ) -> None:
        if is_object(target):
            fine = False
        else:
            self.relate(target, operands)
            array = self.values[target].detach().numpy()
            fine = exact and (not is_float(array) or self.fits(line, operands, before, array))
        for name in self.related[target]:
            value = self.values.get(name)
            if isinstance(value, Tensor) or is_object(name):
                kept = self.known[name].exact and fine if name in self.known else fine
                self.known[name] = _known(value, kept)

    def fits(
        self, line: str, operands: Sequence[str], before: Sequence[Known], array: Array
    ) -> bool:
        """True if no partial result of the statement can have needed more bits than there are.

        A result that is finer than products of all operands can be was rounded.
        """
        tensors = [x for name in operands for x in tensors_of(self.values[name]).values()]
        count = max([array.size, 1, *(math.prod(tensor.shape) for tensor in tensors)])
        factors = [max(known.largest, 1.0) * 2.0**known.grain for known in before]
        constants = [float(n) for n in re.findall(r"(?<![\w\[])\d+\.?\d*(?![\w\]])", line)]
        factors += [max(c, 1.0) * 4 for c in constants if c]
        bits = math.log2(math.prod(factors) or 1.0) if factors else 0.0
        finest = sum(known.grain for known in before) + 2 * len(constants)
        if not _POWERS.isdisjoint(methods(line)):
            bits *= count
            finest *= count
        if Known.of(array).grain > finest:
            return False
        kinds = [tensor.dtype.np for tensor in tensors if dtypes.is_float(tensor.dtype)]
        room = min([mantissa(array.dtype), *(mantissa(np.dtype(kind)) for kind in kinds)])
        used = methods(line)
        sums = max(1, used.count("MatMult")) * math.log2(count)
        return (bits + sums) * 2 ** used.count("square") <= room

    def check_casts(self, line: str, operands: Sequence[str]) -> None:
        """Raises `UndefinedError` if numbers that integers cannot hold may become integers."""
        for name in operands:
            value = self.values[name]
            if isinstance(value, Tensor) and dtypes.is_float(value.dtype):
                array = value.detach().numpy().astype(np.float64)
                fine = np.isfinite(array).all() and np.abs(array).max(initial=0) < 100
                if not fine and _may_give_integers(line, self.values, operands):
                    raise UndefinedError(line)

    def check_finite(self, line: str, operands: Sequence[str]) -> None:
        """Raises `UndefinedError` for infinities that are multiplied by zeros in one order only."""
        for name in operands:
            value = self.values[name]
            if not isinstance(value, Tensor) or not dtypes.is_float(value.dtype):
                continue
            if not np.isfinite(value.detach().numpy().astype(np.float64)).all():
                raise UndefinedError(line)

    def check_order_and_signs(self, line: str, operands: Sequence[str]) -> None:
        """Raises `UndefinedError` for a product that may overflow in one order and not in another,
        and for the sign of a NaN that was computed.
        """
        for name in operands:
            value = self.values[name]
            if not isinstance(value, Tensor):
                continue
            array = np.abs(value.detach().numpy().astype(np.float64))
            is_computed = name in self.known and not self.known[name].exact
            if is_computed and np.isnan(array).any() and not _SIGNS.isdisjoint(methods(line)):
                raise UndefinedError(line)
            sizes = array[(array > 0) & np.isfinite(array)]
            digits = np.log10(sizes)
            most = max(digits[digits > 0].sum(), -digits[digits < 0].sum())
            rounds = dtypes.is_float(value.dtype) or "float" in line  # integers wrap around
            if rounds and not _PRODUCTS.isdisjoint(methods(line)) and most > _MOST_DIGITS:
                raise UndefinedError(line)


def _uses_functions(line: str) -> bool:
    """True if a statement calls a function of the package, such as `ferrule.fft.rfft`."""
    return "ferrule." in line


def _may_give_integers(line: str, values: dict[str, Any], operands: Sequence[str]) -> bool:
    if any(word in line for word in ("int", "byte", "char", "short", "long", "type_as", "bool")):
        return True
    tensors = [values[name] for name in operands if isinstance(values[name], Tensor)]
    return any(dtypes.is_int(tensor.dtype) for tensor in tensors)


# -- a whole program -----------------------------------------------------------------------------


@dataclass
class Outcome:
    """The outcome of a run: the results, the gradients and the final state of each call."""

    calls: list[list[Array]] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    """Names of the tensors of the state after the last call."""

    def labels(self, program: Program) -> list[str]:
        """Names of what a call gave; an optimiser has more tensors after its first step."""
        names = [*program.results, *(f"{name}.grad" for name in program.wanted)]
        return [*names, *self.states]

    def add(
        self,
        arrays: Sequence[Array],
        program: Program,
        values: Mapping[str, Any],
        handed: bool = False,
    ) -> None:
        """Adds what a call gave, and the state after it; `handed` is that of `to_array`."""
        tensors = state_of(program, values)
        self.states = list(tensors)
        self.calls.append([*arrays, *[to_array(x, handed) for x in tensors.values()]])


def to_array(tensor: Tensor, handed: bool = False) -> Array:
    """The contents of a tensor: a copy, or with `handed` an array in the tensor's own memory."""
    array = tensor.detach().numpy(copy=not handed)
    fixed = all(isinstance(size, int) for size in tensor.shape)
    same = array.shape == tensor.shape or not fixed
    assert same, f"shape {tensor.shape}, and in memory {array.shape}"
    assert array.dtype == tensor.dtype.np, f"dtype {tensor.dtype}, and in memory {array.dtype}"
    return array


def state_of(program: Program, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a program's state by name, each once: models share theirs with optimisers."""
    found: dict[int, tuple[str, Tensor]] = {}
    for source in program.states:
        for name, tensor in tensors_of(values[source.name]).items():
            found.setdefault(id(tensor), (f"{source.name}.{name}".rstrip("."), tensor))
    return dict(found.values())


@dataclass
class Expected(Outcome):
    exact: list[list[bool]] = field(default_factory=list)


def total(results: Sequence[Tensor]) -> Tensor | None:
    """A number of all results that are floats, to differentiate."""
    parts = []
    for place, result in enumerate(results):
        if dtypes.is_float(result.dtype) and result.dtype.bits > 8:
            parts.append((result.cast(wider(result)) * (weights(result.shape) - place)).sum())
    return None if not parts else sum(parts[1:], parts[0])


def weights(shape: Sequence[Any]) -> Tensor:
    """Small integers, also for shapes with variables in them."""
    places = Tensor(0)
    for axis, size in enumerate(reversed(shape)):
        steps = Tensor.arange(size if isinstance(size, int) else size.max)
        if not isinstance(size, int):
            steps = steps[:size]
        places = places + (steps * (axis + 1)).reshape(size, *[1] * axis)
    return places % 5 - 1


def wider(result: Tensor) -> str:
    return "float64" if result.dtype is dtypes.float64 else "float32"


def gradients(results: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of `total`; zeros where nothing depends on a tensor."""
    number = total(results)
    if number is None or not number.requires_grad:
        return [x.detach() * 0 for x in wanted]
    try:
        return list(number.gradient(*wanted))
    except GradientError:  # it does not depend on all of them
        return [_gradient(number, x) for x in wanted]


def _gradient(number: Tensor, x: Tensor) -> Tensor:
    try:
        return number.gradient(x)[0]
    except GradientError as error:
        if "does not depend" not in str(error):
            raise
        return x.detach() * 0


def evaluate(
    program: Program,
    after: Callable[[Machine, str], None] | None = None,
    shorten: bool = False,
    oracle: Oracle | None = None,
) -> Expected:
    """The expected outcome of a program, computed on NUMPY.

    With `shorten`, calls after the first that fail or are undefined end the program silently.
    """
    with Context(FERRULE_DEVICE="NUMPY"):
        machine = Machine()
        for source in program.states:
            machine.add(source, program.rng(-1))
        if program.is_random:
            Tensor.manual_seed(program.seed)
        machine.after, machine.oracle = after, oracle
        expected = Expected()
        for call in range(program.calls):
            try:
                _evaluate_call(program, machine, call, expected)
            except Exception:
                if shorten and call:
                    break
                raise
        return expected


def _evaluate_call(program: Program, machine: Machine, call: int, expected: Expected) -> None:
    rng = program.rng(call)
    for source in program.arguments:
        value = machine.add(source, rng, call)
        if source.name in program.wanted:
            value.requires_grad_()
    if machine.after is not None:
        machine.after(machine, "")
    for line in program.body:
        machine.run(line)
    results = [machine.values[name] for name in program.results]
    arrays = [to_array(result) for result in results]
    exact = [machine.known[name].exact for name in program.results]
    if program.wanted:
        found = gradients(results, [machine.values[name] for name in program.wanted])
        arrays += [to_array(gradient) for gradient in found]
        exact += [False] * len(found)
    expected.add(arrays, program, machine.values)
    states = (name.partition(".")[0] for name in expected.states)
    expected.exact.append([*exact, *(machine.known[name].exact for name in states)])


# -- noise ---------------------------------------------------------------------------------------

_NARROW = re.compile(r"\b(float32|float16|bfloat16)\b")
_NARROW_DTYPE = re.compile(r"dtype=[\"'](float32|float16|bfloat16)[\"']")
_METHODS = re.compile(r"\.(half|bfloat16|float)\(\)")


def widened(program: Program) -> Program:
    """The program in float64."""

    def wide(text: str) -> str:
        return _NARROW.sub("float64", _METHODS.sub(".double()", text))

    sources = tuple(
        source if "np.float32" in source.made else replace(source, made=wide(source.made))
        for source in program.sources
    )
    sources = tuple(replace(s, made=_NARROW_DTYPE.sub('dtype="float64"', s.made)) for s in sources)
    return replace(program, sources=sources, body=tuple(wide(line) for line in program.body))


def noisy(program: Program, seed: int, everything: bool, amplitude: float) -> Expected:
    """The program in float64, each value that is not exact multiplied by nearly 1.

    With `everything` set, so are the exact operands of what is not exact.
    """
    rng = np.random.default_rng(seed)
    doubtful = _doubtful(program) if everything else set()

    def disturb(machine: Machine, line: str) -> None:
        names = assigned(line) if line else [source.name for source in program.arguments]
        for name in names:
            value = machine.values.get(name)
            if not isinstance(value, Tensor) or not dtypes.is_float(value.dtype):
                continue
            if not machine.known[name].exact or name in doubtful:
                factor = 1 + amplitude * rng.uniform(-1, 1, value.shape)
                if rng.random() < 0.5:  # sums that cancel are 0 in another order
                    factor = np.where(_is_rounding(value, amplitude), 0.0, factor)
                if not line:
                    value.assign(value.detach() * Tensor(factor))
                elif program.writes:
                    try:
                        value.assign(value * Tensor(factor))
                    except (RuntimeError, ValueError, TypeError):
                        continue
                else:
                    machine.values[name] = value * Tensor(factor)
                machine.known[name] = replace(machine.known[name], exact=False)

    return evaluate(widened(program), disturb)


def _is_rounding(value: Tensor, amplitude: float) -> Array:
    """True for elements that are as small as the rounding of the largest."""
    sizes = np.abs(value.detach().numpy().astype(np.float64))
    largest = sizes.max(initial=0, where=np.isfinite(sizes))
    found: Array = sizes <= 8 * amplitude * largest
    return found


def _doubtful(program: Program) -> set[str]:
    """Operands of statements whose results are not exact."""
    found: set[str] = set()

    def note(machine: Machine, line: str) -> None:
        if line and any(not machine.known[n].exact for n in assigned(line) if n in machine.known):
            found.update(loaded(line))

    evaluate(program, note)
    return found
