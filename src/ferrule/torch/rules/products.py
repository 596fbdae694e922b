"""Products of matrices, convolutions, patches of images, and distances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrule.ir.dtype import DType
from ferrule.tensor import Tensor
from ferrule.torch.registry import enter_rule, rule
from ferrule.torch.values import Number, TorchError, pairs
from ferrule.transforms.derivatives import vjp


@rule("mm", "bmm", "matmul", "mv", "dot")
def matmul(self: Tensor, mat2: Tensor) -> Tensor:
    return self @ mat2


@rule("addmm", "baddbmm", "addmv")
def addmm(
    self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    product = mat1 @ mat2
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product  # even where the tensor has NaN
    return product + (self if beta == 1 else self * beta)


@rule("_grouped_mm")
def grouped_mm(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    """Each group of rows, which end at `offs`, times its own matrix, as experts compute."""
    if self.ndim == 3 and mat2.ndim == 3:
        product = self @ mat2
    elif self.ndim == 2 and mat2.ndim == 3 and offs is not None:
        rows = Tensor.arange(self.shape[0], dtype=offs.dtype)
        group = (rows.unsqueeze(1) >= offs).sum(1).clamp(max=mat2.shape[0] - 1)
        product = (self.unsqueeze(1) @ mat2[group]).squeeze(1)
    else:
        raise TorchError(
            f"_grouped_mm of {self.ndim} by {mat2.ndim} axes is not supported; the second operand "
            "has three, a matrix for each group"
        )
    summed = product if bias is None else product + bias
    return summed.cast(out_dtype or self.dtype)


@rule("linear")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = input @ (weight.transpose(0, 1) if weight.ndim == 2 else weight)
    return product if bias is None else product + bias


@rule("einsum")
def einsum(equation: str, tensors: Sequence[Tensor], *, path: Any = None) -> Tensor:
    return Tensor.einsum(equation, *tensors)


# -- convolutions --------------------------------------------------------------------------------

_PLAIN = (Tensor.conv1d, Tensor.conv2d, Tensor.conv3d)
_TRANSPOSED = (Tensor.conv_transpose1d, Tensor.conv_transpose2d, Tensor.conv_transpose3d)


@rule("convolution", "_convolution")
def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *ignored: bool,
) -> Tensor:
    count = weight.ndim - 2
    steps, edges, gaps = (pairs(each, count) for each in (stride, padding, dilation))
    if not transposed:
        return _PLAIN[count - 1](input, weight, bias, steps, edges, gaps, groups)
    more = pairs(output_padding, count)
    return _TRANSPOSED[count - 1](input, weight, bias, steps, edges, more, groups, gaps)


def _enter_convolutions() -> None:
    for count in (1, 2, 3):
        one = (1,) * count

        def plain(
            input: Tensor,
            weight: Tensor,
            bias: Tensor | None = None,
            stride: Sequence[int] = one,
            padding: Sequence[int] | str = (0,),
            dilation: Sequence[int] = one,
            groups: int = 1,
            count: int = count,
        ) -> Tensor:
            edges = padding if isinstance(padding, str) else pairs(padding, count)
            steps, gaps = pairs(stride, count), pairs(dilation, count)
            return _PLAIN[count - 1](input, weight, bias, steps, edges, gaps, groups)

        def transposed(
            input: Tensor,
            weight: Tensor,
            bias: Tensor | None = None,
            stride: Sequence[int] = one,
            padding: Sequence[int] = (0,),
            output_padding: Sequence[int] = (0,),
            groups: int = 1,
            dilation: Sequence[int] = one,
        ) -> Tensor:
            settings = (stride, padding, dilation, True, output_padding, groups)
            return convolution(input, weight, bias, *settings)

        enter_rule(f"conv{count}d", plain)
        enter_rule(f"conv{count}d.padding", plain)
        name = "input" if count > 1 else "default"
        enter_rule(f"conv_transpose{count}d.{name}", transposed)


_enter_convolutions()


@rule("convolution_backward")
def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    *settings: Any,
) -> tuple[Tensor | None, ...]:
    *how, output_mask = settings
    _, pull = vjp(lambda x, w: convolution(x, w, None, *how), input, weight)
    slopes: list[Tensor | None] = list(pull(grad_output))
    axes = (0, *range(2, grad_output.ndim))
    slopes.append(grad_output.sum(axes) if output_mask[2] else None)
    return tuple(
        slope if wanted else None for slope, wanted in zip(slopes, output_mask, strict=True)
    )


# -- patches -------------------------------------------------------------------------------------


@rule("im2col")
def im2col(
    self: Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    return self.im2col(*(pairs(each, 2) for each in (kernel_size, dilation, padding, stride)))


@rule("col2im")
def col2im(
    self: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    settings = (output_size, kernel_size, dilation, padding, stride)
    return self.fold(*(pairs(each, 2) for each in settings))


# -- distances -----------------------------------------------------------------------------------


@rule("_cdist_forward", "cdist")
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    return x1.cdist(x2, p)


@rule("_pdist_forward")
def pdist(self: Tensor, p: float = 2.0) -> Tensor:
    return self.pdist(p)
