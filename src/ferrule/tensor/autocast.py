"""Automatic mixed precision: the types that operations compute in, inside a block of `autocast`.

One table says for each method of tensors, and for layers that are more than their methods, what
becomes of operands of float32, bfloat16 and float16. What it does not list computes as ever, and
mixed operands are promoted. The body of a listed operation runs as outside of the block: it has the
operands, and so the result, that it would have if they were cast by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from functools import wraps
from typing import Any, Final, Self, TypeAlias, TypeVar, cast, final

from ferrule.base.containers import mapped
from ferrule.base.enums import Enum
from ferrule.base.threadstate import ThreadState, this_thread
from ferrule.device import Device, DeviceUnavailableError
from ferrule.ir.dtype import DType, DTypeError, dtypes
from ferrule.tensor.base import Tensor
from ferrule.tensor.data import DTypeLike, to_dtype

F = TypeVar("F", bound=Callable[..., Any])
Modes: TypeAlias = tuple[tuple[str | None, DType | None], ...]
"""The low precision of each kind of devices, None for those that are not named; None is off."""


@final
class Policy(Enum):
    """What an operation does with operands of float32, bfloat16 and float16."""

    LOW = "in the low precision of the block"
    WIDE = "in float32"
    INSIDE = "in float32, with a result of the first operand's type"


_LOW = """
    matmul dot rmatmul mm mv bmm addmm addmv baddbmm addbmm addr multi_dot chain_matmul inner
    vdot vecdot tensordot bilinear linear einsum conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d prelu scaled_dot_product_attention
"""
_WIDE = """
    exp exp2 expm1 log log2 log10 log1p pow rpow rtruediv reciprocal rsqrt acos asin cosh sinh
    tan erfinv softplus sum nansum prod nanprod average nanvar nanstd trapezoid
    cumulative_trapezoid cumsum cumprod logsumexp logcumsumexp softmax log_softmax softmin norm
    vector_norm matrix_norm normalize renorm dist pdist cdist layernorm layer_norm rmsnorm
    rms_norm group_norm cosine_similarity pairwise_distance cross_entropy
    sparse_categorical_crossentropy nll_loss binary_cross_entropy binary_crossentropy
    binary_cross_entropy_with_logits binary_crossentropy_logits kl_div poisson_nll_loss
    gaussian_nll_loss mse_loss l1_loss smooth_l1_loss huber_loss cosine_embedding_loss
    triplet_margin_loss triplet_margin_with_distance_loss margin_ranking_loss
    hinge_embedding_loss soft_margin_loss multi_margin_loss multilabel_margin_loss
    multilabel_soft_margin_loss ctc_loss det slogdet logdet inv pinv pinverse solve
    solve_triangular triangular_solve tensorsolve tensorinv cholesky cholesky_solve
    cholesky_inverse qr svd svdvals eigh eigvalsh eig eigvals matrix_exp matrix_power lstsq
    matrix_rank cond trace quantile nanquantile percentile
"""
_INSIDE = """
    batchnorm batch_norm instance_norm local_response_norm BatchNorm InstanceNorm
"""
POLICIES: Final = {
    name: policy
    for policy, names in (
        (Policy.LOW, _LOW),
        (Policy.WIDE, _WIDE),
        (Policy.INSIDE, _INSIDE),
    )
    for name in names.split()
}
"""The policies of methods of tensors, and of layers, by name."""

_NARROW: Final = frozenset({dtypes.float16, dtypes.bfloat16})
_CAST: Final = _NARROW | {dtypes.float32}


def autocasting(function: F) -> F:
    """A function that follows its policy, if the table has one for its name."""
    policy = POLICIES.get(function.__name__)
    if policy is None:
        return function

    @wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        state = this_thread.state
        if state.autocast is None:
            return function(*args, **kwargs)
        return call_by(policy, state, function, args, kwargs)

    return cast(F, method)


def call_by(
    policy: Policy,
    state: ThreadState,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a function as a policy says, in a thread that is inside of a block of `autocast`."""
    modes: Modes = state.autocast
    first: list[DType] = []

    def adapted(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in _CAST:
            return value
        low = _low_precision(modes, value.device)
        if low is None:
            return value
        first.append(value.dtype)
        if policy is Policy.LOW:
            return value.cast(low)
        return value.cast(dtypes.float32) if value.dtype in _NARROW else value

    args, kwargs = mapped((args, kwargs), adapted)
    state.autocast = None
    try:
        result = function(*args, **kwargs)
    finally:
        state.autocast = modes
    if policy is Policy.INSIDE and first:
        return result.cast(first[0])
    return result


def _low_precision(modes: Modes, device: str) -> DType | None:
    kind = device.partition(":")[0]
    found = dict(modes)
    return found[kind] if kind in found else found.get(None)


def _kind(device: str) -> str:
    try:
        return Device.known(device).partition(":")[0]
    except DeviceUnavailableError:  # a program for several machines names it on each of them
        return Device.canonicalize(device).partition(":")[0]


def autocast_modes() -> Modes | None:
    """What blocks of `autocast` around make of operands; for `autocast_as`."""
    modes: Modes | None = this_thread.state.autocast
    return modes


@contextmanager
def autocast_as(modes: Modes | None) -> Iterator[None]:
    """A block in which operations cast as where `modes` were taken."""
    state = this_thread.state
    before, state.autocast = state.autocast, modes
    try:
        yield
    finally:
        state.autocast = before


@final
class autocast(ContextDecorator):
    """A block, or a decorator, in which products compute in a type of 16 bits.

    Matrix products, convolutions and attention cast their operands to `dtype`, bfloat16 or float16.
    Softmax, losses, norms, sums, exponentials, logarithms and powers cast them to float32. All else
    computes in the types that arrive, and results take the wider one of mixed operands. float64,
    integers and types of 8 bits are never cast. Gradients have the types of their tensors, so
    weights stay float32.

    `device_type` names the devices that the block is for, such as "cpu"; None is all. `dtype` is
    bfloat16 unless given, for CUDA float16. Blocks nest, an inner one may turn it off by `enabled`,
    and other threads do not see it. `cache_enabled` changes nothing: casts of one weight are one
    node of the graph anyway.

    Raises `DTypeError` for another type, `UnknownDeviceError` for a device that there is not.

    >>> import ferrule
    >>> from ferrule import Tensor, dtypes
    >>> x, w = Tensor.ones(2, 3), Tensor.ones(3, 2)
    >>> with ferrule.autocast(dtype=dtypes.bfloat16):
    ...     y = x @ w
    ...     z = y.softmax(-1)
    >>> y.dtype, z.dtype
    (dtypes.bfloat16, dtypes.float32)
    """

    def __init__(
        self,
        device_type: str | None = None,
        dtype: DTypeLike | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        kind = None if device_type is None else _kind(device_type)
        usual = dtypes.float16 if kind == "CUDA" else dtypes.bfloat16
        chosen = usual if dtype is None else to_dtype(dtype)
        if chosen not in _NARROW:
            raise DTypeError(f"[autocast] the low precision is bfloat16 or float16, not {chosen}")
        self._mode = kind, chosen if enabled else None
        self._before: dict[ThreadState, list[Modes | None]] = {}
        """For each thread that is inside: what held around it. A decorated function has one of
        these for all calls."""

    def __enter__(self) -> Self:
        state = this_thread.state
        self._before.setdefault(state, []).append(state.autocast)
        kind, _ = self._mode
        others = () if kind is None else dict(state.autocast or ()).items()
        modes = (*[mode for mode in others if mode[0] != kind], self._mode)
        state.autocast = modes if any(low for _, low in modes) else None
        return self

    def __exit__(self, *_: object) -> None:
        state = this_thread.state
        before = self._before[state]
        state.autocast = before.pop()
        if not before:
            del self._before[state]
