"""Fourier transforms, and what else is done to complex numbers, as pairs of real numbers.

There are no complex tensors: a value that is complex in PyTorch is a `Pairs` between these rules,
which are chosen for nodes that take or give complex numbers. It can enter and leave a program as
real numbers only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ferrule import fft
from ferrule.tensor import Tensor
from ferrule.torch.registry import rule, rule_for


class Pairs(NamedTuple):
    """Complex numbers: the last axis has the real and the imaginary part."""

    tensor: Tensor

    @property
    def ndim(self) -> int:
        """The number of axes of complex numbers."""
        return self.tensor.ndim - 1

    @property
    def real(self) -> Tensor:
        """The real parts."""
        return self.tensor[..., 0]

    @property
    def imag(self) -> Tensor:
        """The imaginary parts."""
        return self.tensor[..., 1]


Operand: TypeAlias = Pairs | Tensor | float

_FORWARD: Final = ("backward", "ortho", "forward")
_INVERSE: Final = ("forward", "ortho", "backward")
"""The names of scales by 1, by the root of the size, and by the size."""


def _pairs(real: Tensor, imag: Tensor) -> Pairs:
    return Pairs(Tensor.stack(real, imag, dim=-1))


def _of_real(x: Tensor) -> Pairs:
    return _pairs(x, x.full_like(0))


# *** transforms ***


@rule("complex::_fft_r2c")
def fft_r2c(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Pairs:
    if not onesided:
        return fft_c2c(_of_real(x), dim, normalization, True)
    *others, last = [axis % x.ndim for axis in dim]
    half = Pairs(fft.rfft(x, dim=last, norm=_FORWARD[normalization]))
    return fft_c2c(half, others, normalization, True)


@rule("complex::_fft_c2c")
def fft_c2c(z: Pairs, dim: Sequence[int], normalization: int, forward: bool) -> Pairs:
    names = _FORWARD if forward else _INVERSE
    transform = fft.fft if forward else fft.ifft
    found = z.tensor
    for axis in dim:
        found = transform(found, dim=axis % z.ndim, norm=names[normalization])
    return Pairs(found)


@rule("complex::_fft_c2r")
def fft_c2r(z: Pairs, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    *others, last = [axis % z.ndim for axis in dim]
    half = fft_c2c(z, others, normalization, False)
    return fft.irfft(half.tensor, last_dim_size, dim=last, norm=_INVERSE[normalization])


# *** parts ***


@rule("complex::view_as_real")
def view_as_real(z: Pairs) -> Tensor:
    return z.tensor


@rule("complex::view_as_complex")
def view_as_complex(x: Tensor) -> Pairs:
    return Pairs(x)


@rule("complex::complex")
def complex_of(real: Tensor, imag: Tensor) -> Pairs:
    return _pairs(*Tensor.broadcast_tensors(real, imag))


@rule("complex::polar")
def polar(abs: Tensor, angle: Tensor) -> Pairs:
    return _pairs(abs * angle.cos(), abs * angle.sin())


@rule("complex::real")
def real(z: Pairs) -> Tensor:
    return z.real


@rule("complex::imag")
def imag(z: Pairs) -> Tensor:
    return z.imag


@rule("complex::abs")
def absolute(z: Pairs) -> Tensor:
    return z.real.hypot(z.imag)


@rule("complex::sgn")
def sgn(z: Pairs) -> Pairs:
    size = absolute(z)
    return _scaled(z, (size == 0).where(0.0, 1 / size))


@rule("complex::angle")
def angle(z: Pairs) -> Tensor:
    return z.imag.atan2(z.real)


@rule("complex::_conj", "complex::_conj_physical", "complex::conj_physical")
def conj(z: Pairs) -> Pairs:
    return _pairs(z.real, -z.imag)


@rule("complex::_to_copy")
def to_copy(x: Operand, *, dtype: Any = None, **about: Any) -> Pairs:
    z = x if isinstance(x, Pairs) else _of_real(x)  # type: ignore[arg-type]
    return z if dtype is None else Pairs(z.tensor.cast(dtype))


# *** arithmetic ***


@rule("complex::neg")
def neg(z: Pairs) -> Pairs:
    return Pairs(-z.tensor)


def _scaled(z: Pairs, factor: Tensor | float) -> Pairs:
    """Products with real numbers."""
    return Pairs(z.tensor * (factor.unsqueeze(-1) if isinstance(factor, Tensor) else factor))


@rule("complex::mul.Tensor", "complex::mul.Scalar")
def mul(a: Operand, b: Operand) -> Pairs:
    if not isinstance(a, Pairs):
        a, b = b, a
    assert isinstance(a, Pairs), "an operand is complex"
    if not isinstance(b, Pairs):
        return _scaled(a, b)
    return _pairs(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


@rule("complex::div.Tensor", "complex::div.Scalar")
def div(a: Operand, b: Operand) -> Pairs:
    if not isinstance(b, Pairs):
        assert isinstance(a, Pairs), "an operand is complex"
        return _scaled(a, 1 / b)
    size = b.real.square() + b.imag.square()
    return _scaled(mul(a, conj(b)), 1 / size)


def _sum(a: Operand, b: Operand, factor: float) -> Pairs:
    if isinstance(a, Pairs) and isinstance(b, Pairs):
        return Pairs(a.tensor + b.tensor * factor)
    if isinstance(b, Pairs):
        return complex_of(a + b.real * factor, b.imag * factor)
    assert isinstance(a, Pairs), "an operand is complex"
    return complex_of(a.real + b * factor, a.imag)


@rule("complex::add.Tensor", "complex::add.Scalar")
def add(a: Operand, b: Operand, alpha: float = 1) -> Pairs:
    return _sum(a, b, alpha)


@rule("complex::sub.Tensor", "complex::sub.Scalar")
def sub(a: Operand, b: Operand, alpha: float = 1) -> Pairs:
    return _sum(a, b, -alpha)


@rule("complex::rsub.Scalar")
def rsub(z: Pairs, other: float, alpha: float = 1) -> Pairs:
    return _sum(other, z, -alpha)


@rule("complex::pow.Tensor_Scalar")
def pow_scalar(z: Pairs, exponent: float) -> Pairs:
    if exponent == 2:
        return mul(z, z)
    return polar(absolute(z) ** exponent, angle(z) * exponent)


@rule("complex::exp")
def exp(z: Pairs) -> Pairs:
    return polar(z.real.exp(), z.imag)


# *** movements, and sums along axes: the same as of real numbers, with one axis more ***


def _axis_of(place: int) -> Callable[[Pairs, list[Any]], None]:
    """A change of arguments after which the axis, or the axes, count from the front."""

    def change(z: Pairs, args: list[Any]) -> None:
        if place == len(args):
            args.append(0)
        given = args[place]
        is_one = isinstance(given, int)
        args[place] = given % z.ndim if is_one else tuple(axis % z.ndim for axis in given)

    return change


def _reduced(z: Pairs, args: list[Any]) -> None:
    """All axes but that of pairs, where none are given."""
    given = args[0] if args else ()
    args[:1] = [tuple(axis % z.ndim for axis in given) or tuple(range(z.ndim))]


def _with_pair_axis(z: Pairs, args: list[Any]) -> None:
    """Adds the axis of pairs to a shape."""
    args[0] = (*args[0], 2)


def _with_pair_place(z: Pairs, args: list[Any]) -> None:
    """Adds the axis of pairs to an order of axes."""
    args[0] = (*(axis % z.ndim for axis in args[0]), z.ndim)


def _unsqueezed(z: Pairs, args: list[Any]) -> None:
    args[0] %= z.ndim + 1


def _two_axes(z: Pairs, args: list[Any]) -> None:
    args[:2] = [axis % z.ndim for axis in args[:2]]


def _unchanged(z: Pairs, args: list[Any]) -> None:
    pass


_MOVEMENTS: Final[dict[str, Callable[[Pairs, list[Any]], None]]] = {
    "view.default": _with_pair_axis,
    "_unsafe_view.default": _with_pair_axis,
    "reshape.default": _with_pair_axis,
    "expand.default": _with_pair_axis,
    "permute.default": _with_pair_place,
    "transpose.int": _two_axes,
    "unsqueeze.default": _unsqueezed,
    "squeeze.dim": _axis_of(0),
    "squeeze.dims": _axis_of(0),
    "select.int": _axis_of(0),
    "slice.Tensor": _axis_of(0),
    "flip.default": _axis_of(0),
    "sum.dim_IntList": _reduced,
    "mean.dim": _reduced,
    "roll.default": _axis_of(1),
    "slice_scatter.default": _axis_of(1),
    "select_scatter.default": _axis_of(1),
    "new_zeros.default": _with_pair_axis,
    "zeros_like.default": _unchanged,
    "copy.default": _unchanged,
    "clone.default": _unchanged,
    "alias.default": _unchanged,
    "detach.default": _unchanged,
}


def _enter(name: str, change: Callable[[Pairs, list[Any]], None]) -> None:
    of_real = rule_for(f"aten.{name}")
    assert of_real is not None, f"real numbers have a rule for {name}"

    @rule(f"complex::{name}")
    def moved(z: Pairs, *args: Any, **kwargs: Any) -> Pairs:
        changed = [one.tensor if isinstance(one, Pairs) else one for one in args]
        change(z, changed)
        return Pairs(of_real(z.tensor, *changed, **kwargs))


for _name, _change in _MOVEMENTS.items():
    _enter(_name, _change)


@rule("complex::sum")
def sum_all(z: Pairs) -> Pairs:
    return Pairs(z.tensor.sum(tuple(range(z.ndim))))


@rule("complex::cat")
def cat(tensors: Sequence[Operand], dim: int = 0) -> Pairs:
    made = [one if isinstance(one, Pairs) else _of_real(one) for one in tensors]  # type: ignore[arg-type]
    return Pairs(Tensor.cat(*[one.tensor for one in made], dim=dim % made[0].ndim))
