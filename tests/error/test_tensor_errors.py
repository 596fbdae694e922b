"""Every message that a mistake with tensors can bring: the thing, the reason, the way out."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule.autograd import GradientError
from ferrule.base.config import Context
from ferrule.device import UnknownDeviceError
from ferrule.dtype import DTypeError, dtypes
from ferrule.ir.expr import Variable
from ferrule.ir.lazy import DeviceMismatchError
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor


@pytest.fixture(autouse=True)
def _numpy_device() -> Iterator[None]:
    with Context(FERRULE_DEVICE="NUMPY"):
        yield


def zeros(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor.zeros(*shape, dtype=dtype, device="NUMPY").contiguous()


def leaf() -> Tensor:
    return Tensor([1.0, 2.0], requires_grad=True, device="NUMPY")


def write(target: Tensor, key: Any, value: Any) -> None:
    target[key] = value


def update(function: str, target: Tensor, value: Any) -> Any:
    return getattr(target, function)(value)


N = Variable("n", 1, 9)
CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # making
    (
        lambda: Tensor([[1, 2], [3]]),
        ShapeError,
        "[Tensor] the list is ragged: data[0] has shape (2,), data[1] has (1,); pad the shorter",
    ),
    (
        lambda: Tensor([[[1], [2, 3]]]),
        ShapeError,
        "the list is ragged: data[0][0] has shape (1,), data[0][1] has (2,)",
    ),
    (lambda: Tensor(object()), TypeError, "[Tensor] cannot be made of object; pass a number"),
    (lambda: Tensor(["a"]), TypeError, "[Tensor] a list may hold numbers only, found str"),
    (lambda: Tensor([zeros(2)]), TypeError, "for a list of tensors use Tensor.stack(*tensors)"),
    (lambda: Tensor([1 << 40]), OverflowError, "1099511627776 does not fit dtypes.int32"),
    (
        lambda: Tensor([300], dtype="uint8"),
        OverflowError,
        "300 does not fit dtypes.uint8 (0 to 255)",
    ),
    (lambda: Tensor(np.zeros(2, complex)), DTypeError, "'complex128' has no ferrule dtype"),
    (
        lambda: Tensor([np.ones(2), np.ones(3)]),
        ShapeError,
        "[Tensor] the list is ragged: data[0] has shape (2,), data[1] has (3,); pad the",
    ),
    (lambda: Tensor([1, None]), TypeError, "a list may hold numbers only, found NoneType"),
    (lambda: zeros(2).pad(1), TypeError, "two amounts for each axis; for all of shape (2,): (1,"),
    (lambda: f"{zeros(2):.2f}", TypeError, "[format] '.2f' is for one number, not a tensor of"),
    (lambda: zeros(2) + Path(), TypeError, "[add] pathlib.PosixPath is no operand; use a tensor"),
    (lambda: Tensor([1], dtype="flaot32"), DTypeError, "did you mean float32"),
    (lambda: Tensor([1], dtype=float), DTypeError, "is no dtype; use one of ferrule's"),
    (lambda: Tensor([1], dtype=np.complex64), DTypeError, "'complex64' has no ferrule dtype"),
    (lambda: Tensor([1], device="GPU7"), UnknownDeviceError, "no device is called 'GPU7'"),
    (lambda: Tensor([1], device=3), TypeError, "3 is no device; pass its name"),
    (lambda: zeros(2, -1), ShapeError, "[zeros] the shape (2, -1) has a negative size"),
    (lambda: Tensor.zeros(2.5), TypeError, "[zeros] a size is a whole number, not 2.5"),
    (lambda: Tensor.arange(0, 5, 0), ValueError, "[arange] step is 0"),
    (lambda: Tensor.linspace(0, 1, -1), ShapeError, "[linspace] the number of steps is at least 0"),
    (lambda: Tensor.eye(-1), ShapeError, "[eye] the shape (-1, -1) has a negative size"),
    (lambda: Tensor.rand(2, dtype="int32"), DTypeError, "[rand] gives floats, not dtypes.int32"),
    (lambda: Tensor.randn(2, dtype="bool"), DTypeError, "[randn] gives floats, not dtypes.bool"),
    (lambda: Tensor.randint(2, dtype="float"), DTypeError, "[randint] gives integers, not"),
    (lambda: Tensor.randint(2, low=5, high=5), ValueError, "[randint] low 5 is not below high 5"),
    (lambda: Tensor.randint(2, high=999, dtype="int8"), OverflowError, "0 to 998 do not fit"),
    (lambda: zeros(2).one_hot(3), DTypeError, "[one_hot] class indices are integers, not"),
    (lambda: zeros(2).tril(), ShapeError, "[tril] shape (2,) has less than two axes"),
    (
        lambda: zeros(2).meshgrid(indexing="no"),
        ValueError,
        "[meshgrid] indexing 'no' is not one of",
    ),
    # reading
    (
        lambda: zeros(2, 3).item(),
        ShapeError,
        "[item] a tensor of shape (2, 3) is not one element; use .tolist() or .numpy()",
    ),
    (lambda: bool(zeros(2)), TypeError, "[bool] the truth of a tensor of shape (2,) is not one"),
    (lambda: len(zeros()), TypeError, "[len] a tensor without axes has no length"),
    (lambda: iter(zeros()), TypeError, "[iter] a tensor without axes cannot be iterated"),
    (lambda: [1][zeros()], TypeError, "[index] a tensor of dtypes.float32 is no index"),
    (lambda: zeros(2).bfloat16().data(), DTypeError, "has no memoryview format; cast it to"),
    (
        lambda: zeros(2, 9).shrink((None, (0, N))).numpy(),
        ShapeError,
        "[numpy] the size n is symbolic, and n has no value; use variable.bind(value)",
    ),
    # arithmetic
    (
        lambda: zeros(2, 3) + zeros(4),
        ShapeError,
        "[add] the shapes (2, 3) and (4,) do not broadcast: aligned at the right, sizes must be "
        "equal or 1; reshape one of them, for example by .unsqueeze(axis)",
    ),
    (lambda: zeros(2) < zeros(3), ShapeError, "[<] the shapes (2,) and (3,) do not broadcast"),
    (
        lambda: zeros(2) * zeros(2).to("CPU"),
        DeviceMismatchError,
        "[mul] one tensor is on NUMPY, the other on CPU; move one of them first: x.to('NUMPY')",
    ),
    (lambda: zeros(2) + "a", TypeError, "[add] str is no operand; use a tensor, a Python number"),
    (lambda: Tensor([math.nan], dtype="int32"), OverflowError, "nan does not fit dtypes.int32"),
    (lambda: Tensor.full((2,), math.inf, dtype="int8"), OverflowError, "inf does not fit dtypes."),
    (lambda: write(Tensor([1, 2]), 0, 1e10), OverflowError, "10000000000.0 does not fit dtypes."),
    (lambda: Tensor([1]).masked_fill(True, -math.inf), OverflowError, "-inf does not fit dtypes."),
    (lambda: zeros(2, dtype="int8") + 300, OverflowError, "300 does not fit dtypes.int8"),
    (lambda: -zeros(2, dtype="bool"), DTypeError, "[neg] is not defined for bool; use ~"),
    (lambda: zeros(2, dtype="bool") - True, DTypeError, "[sub] is not defined for bool; use ^"),
    (lambda: zeros(2, dtype="bool") // True, DTypeError, "[floordiv] is not defined for bool"),
    (lambda: zeros(2, dtype="bool") % True, DTypeError, "[mod] is not defined for bool"),
    (lambda: zeros(2) & 1, DTypeError, "[&] is defined for integers and bools, not dtypes.float32"),
    (lambda: zeros(2, dtype="bool") << True, DTypeError, "[<<] is defined for integers, not"),
    (lambda: ~zeros(2), DTypeError, "[~] is defined for integers and bools, not dtypes.float32"),
    (
        lambda: zeros(2, dtype="int32") ** -1,
        ValueError,
        "[pow] a tensor of dtypes.int32 to the power -1 is no integer; cast it to a float first",
    ),
    (lambda: zeros(2).clamp(), ValueError, "[clamp] neither min nor max is given"),
    (lambda: zeros(2).bitcast("int64"), DTypeError, "[bitcast] dtypes.float32 and dtypes.int64"),
    (lambda: leaf().bitcast("int32"), GradientError, "[bitcast] has no gradient; use x.detach()"),
    (
        lambda: zeros(2).gelu("fast"),
        ValueError,
        "[gelu] approximate 'fast' is not one of 'tanh', 'none'",
    ),
    # writing
    (
        lambda: update("__iadd__", zeros(2, dtype="int32"), 1.5),
        DTypeError,
        "[+=] a result of dtypes.float32 does not go into a tensor of dtypes.int32; "
        "write x = x + y instead",
    ),
    (
        lambda: update("__iadd__", zeros(2), zeros(3, 2)),
        ShapeError,
        "[+=] a result of shape (3, 2) does not go into a tensor of shape (2,)",
    ),
    (
        lambda: zeros(2).assign(zeros(3)),
        ShapeError,
        "[assign] a value of shape (3,) does not broadcast to (2,)",
    ),
    (
        lambda: zeros(2).assign(zeros(2).to("CPU")),
        DeviceMismatchError,
        "[assign] the tensor is on NUMPY, the value on CPU; move it first: value.to('NUMPY')",
    ),
    (
        lambda: write(zeros(2, 3), 0, zeros(2)),
        ShapeError,
        "[setitem] a value of shape (2,) does not broadcast to (3,)",
    ),
    (
        lambda: zeros(1).expand(3).assign([1, 2, 3]),
        ShapeError,
        "share one place in memory, because it was expanded; write to a copy: x.contiguous()",
    ),
    # indexing
    (lambda: zeros(2)[5], IndexError, "[index] 5 is out of range for axis 0 of shape (2,), whose"),
    (lambda: zeros(2, 3)[:, [0, 3]], IndexError, "[index] 3 is out of range for axis 1 of shape"),
    (lambda: zeros(2)[0, 0], IndexError, "[index] 2 indices for shape (2,), which has 1 axes"),
    (lambda: zeros(2)[..., ...], IndexError, "[index] an index may hold one Ellipsis (...) only"),
    (lambda: zeros(2)["a"], IndexError, "[index] str is no index; use integers, slices, None"),
    (lambda: zeros(2)[1.0], IndexError, "[index] float is no index"),
    (lambda: zeros(2)[::1.5], TypeError, "[index] a slice has whole numbers or None, not 1.5;"),
    (lambda: zeros(2)["a":], TypeError, "[index] a slice has whole numbers or None, not 'a';"),
    (lambda: write(zeros(2), slice(0, 0.5), 1), TypeError, "[index] a slice has whole numbers"),
    (lambda: zeros(2)[::0], ValueError, "[index] the step of the slice on axis 0 is 0"),
    (lambda: zeros(2)[[0.5]], IndexError, "[index] positions on axis 0 are integers or bools"),
    (lambda: zeros(2)[zeros(1)], DTypeError, "[index] positions are integers, not dtypes.float32"),
    (
        lambda: zeros(2)[np.array([True, False, True])],
        IndexError,
        "[index] a mask of shape (3,) does not fit the sizes (2,) of shape (2,)",
    ),
    (
        lambda: write(zeros(2), Tensor([True]), 1.0),
        IndexError,
        "[setitem] a mask of shape (1,) does not fit shape (2,)",
    ),
    (
        lambda: zeros(2, 9).shrink((None, (0, N.bind(3))))[:, ::2],
        ShapeError,
        "takes slices of step 1 only, not 2",
    ),
    (
        lambda: zeros(2, 3).gather(0, Tensor([0])),
        ShapeError,
        "[gather] an index of shape (1,) does not fit a tensor of shape (2, 3): it needs as many",
    ),
    (
        lambda: zeros(2, 3).scatter(1, Tensor([[0, 1]]), zeros(1, 1)),
        ShapeError,
        "[scatter] a source of shape (1, 1) is smaller than the index, (1, 2)",
    ),
    (
        lambda: zeros(2).scatter(0, Tensor([0]), 1.0, reduce="max"),
        ValueError,
        "[scatter] reduce 'max' is not one of None, 'add'",
    ),
    (
        lambda: zeros(2, 3).take_along_dim(Tensor([0]), 1),
        ShapeError,
        "[take_along_dim] an index of shape (1,) needs as many axes as the tensor of shape (2, 3)",
    ),
    (
        lambda: zeros(2).scatter_reduce(0, Tensor([0]), zeros(1), "median"),
        ValueError,
        "[scatter_reduce] reduce 'median' is not one of 'sum', 'prod', 'mean', 'amax', 'amin'",
    ),
    (
        lambda: zeros(2, 3).index_add(1, [0, 2], zeros(2, 3)),
        ShapeError,
        "2 positions on axis 1 of shape (2, 3) need a source of shape (2, 2), not (2, 3)",
    ),
    (lambda: zeros(2).index_fill(0, [2], 1), IndexError, "[index] 2 is out of range for axis 0"),
    (
        lambda: zeros(2).masked_scatter(zeros(2), zeros(2)),
        DTypeError,
        "[masked_scatter] the mask holds bools, not dtypes.float32; compare it, as in x != 0",
    ),
    (lambda: zeros(2, 3).select(1, 3), IndexError, "[select] 3 is out of range for axis 1 of"),
    (
        lambda: zeros(2).multinomial(3),
        ShapeError,
        "[multinomial] 3 samples of 2 classes; draw at least one, and more than there are with",
    ),
    (
        lambda: zeros(2, 3).hsplit(2),
        ShapeError,
        "[hsplit] axis 1 of shape (2, 3) does not split into 2 equal parts; use tensor_split",
    ),
    (lambda: zeros(2).block_diag(1), TypeError, "[block_diag] int is no tensor; make it one with"),
    (lambda: zeros(2, 2).multi_dot([1]), TypeError, "[multi_dot] int is no tensor; make it one"),
    (lambda: zeros(2).chain_matmul(None), TypeError, "[chain_matmul] NoneType is no tensor; make"),
    (lambda: zeros(2).rearrange(1), TypeError, "[rearrange] the pattern is a string such as 'b h"),
    (lambda: Tensor(1.0).cross(zeros(3)), ShapeError, "[cross] axis -1 of the shapes () and (3,)"),
    (
        lambda: zeros(9, 2)[: N.bind(3)].corrcoef(),
        ShapeError,
        "[diagonal] the size n=3 is symbolic",
    ),
    (lambda: zeros(3).gradient(1), TypeError, "[gradient] the target 1 is no tensor"),
    (lambda: Tensor.cat([]), ShapeError, "[cat] there are no tensors to join; give one at least"),
    (
        lambda: zeros(2).repeat_interleave([1, 2, 3]),
        ShapeError,
        "repeats are one count of at least 0 for each of the 2 elements of axis 0, not [1, 2, 3]",
    ),
    # movement
    (
        lambda: zeros(2, 3).reshape(4, 2),
        ShapeError,
        "[reshape] (4, 2) does not fit a tensor of shape (2, 3), which has 6 elements",
    ),
    (lambda: zeros(2, 3).reshape(-1, -1), ShapeError, "[reshape] only one size of (-1, -1) may be"),
    (lambda: zeros(2, 3).reshape(-2, 3), ShapeError, "[reshape] (-2, 3) has a negative size"),
    (lambda: zeros(2, 3).reshape(4, -1), ShapeError, "[reshape] (4, -1) does not fit a tensor"),
    (
        lambda: zeros(2, 3).reshape(2, N.bind(2)),
        ShapeError,
        "does not fit a tensor of shape (2, 3) with the values bound now",
    ),
    (
        lambda: zeros(N.bind(2), 3).mode(0),
        ShapeError,
        "[sort] the size n=2 is symbolic, and a known one is needed here; take a part of known",
    ),
    (
        lambda: zeros(2, 3).permute(0, 0),
        ShapeError,
        "[permute] (0, 0) is no order of the 2 axes of shape (2, 3); name each axis once",
    ),
    (
        lambda: zeros(2, 3).sum(2),
        ShapeError,
        "[sum] axis 2 is out of range for shape (2, 3), whose axes are -2 to 1",
    ),
    (lambda: zeros().sum(1), ShapeError, "[sum] axis 1: a tensor without axes has none"),
    (lambda: zeros(2, 3).sum((0, -2)), ShapeError, "[sum] the axes (0, -2) of shape (2, 3) repeat"),
    (
        lambda: zeros(2, 3).expand(4, 3),
        ShapeError,
        "[expand] shape (2, 3) does not expand to (4, 3)",
    ),
    (lambda: zeros(2, 3).expand(3), ShapeError, "[expand] (3,) has fewer axes than shape (2, 3)"),
    (
        lambda: zeros(2).unsqueeze(3),
        ShapeError,
        "[unsqueeze] axis 3 is out of range for a new axis",
    ),
    (lambda: zeros(2, 3).flatten(1, 0), ShapeError, "[flatten] axis 0 is before axis 1; swap them"),
    (
        lambda: zeros(2, 3).movedim((0, 1), 0),
        ShapeError,
        "[movedim] [0, 1] and [0] differ in length",
    ),
    (
        lambda: zeros(2).shrink(((0, 3),)),
        ShapeError,
        "[shrink] (0, 3) is no part of an axis of size",
    ),
    (lambda: zeros(2).shrink(()), ShapeError, "[shrink] 0 ranges for the 1 axes of shape (2,)"),
    (lambda: zeros(2).pad((1,)), ShapeError, "[pad] a flat tuple of 1 amounts does not fit"),
    (
        lambda: zeros(2).pad(((1, 1), None)),
        ShapeError,
        "[pad] 2 pairs for the 1 axes of shape (2,)",
    ),
    (
        lambda: zeros(2).pad((1, 1), mode="no"),
        ValueError,
        "[pad] mode 'no' is not one of 'constant'",
    ),
    (
        lambda: zeros(2).pad((2, 0), mode="reflect"),
        ShapeError,
        "[pad] mode 'reflect' can add at most 1 on an axis of size 2, not 2",
    ),
    (lambda: zeros(2, 3).cat(zeros(2, 4)), ShapeError, "[cat] the shapes (2, 3) and (2, 4) differ"),
    (lambda: zeros(2).cat(3), TypeError, "[cat] int is no tensor; make it one with Tensor(...)"),
    (lambda: zeros(2).stack(zeros(3)), ShapeError, "[stack] the shapes (2,) and (3,) differ"),
    (lambda: zeros(5).split(0), ShapeError, "[split] the size of a part is at least 1, not 0"),
    (lambda: zeros(5).split([6, -1]), ShapeError, "[shrink] (0, 6) is no part of an axis of size"),
    (
        lambda: zeros(5).split([2, 2]),
        ShapeError,
        "[split] the sizes [2, 2] add up to 4, and axis 0",
    ),
    (lambda: zeros(5).chunk(0), ShapeError, "[chunk] the number of chunks is at least 1, not 0"),
    (lambda: zeros(2, 2).repeat(2), ShapeError, "[repeat] (2,) has fewer counts than shape (2, 2)"),
    (lambda: zeros(2).roll((1, 2)), ShapeError, "[roll] several shifts need as many dims"),
    (lambda: zeros(2).roll((1, 2), 0), ShapeError, "[roll] 2 shifts for 1 dims"),
    (
        lambda: zeros(2).unfold(0, 3, 1),
        ShapeError,
        "[unfold] windows of 3 elements, 1 apart, do not",
    ),
    (
        lambda: zeros(9).shrink(((0, N.bind(3)),)).split(2),
        ShapeError,
        "[split] the size n=3 is symbolic, and a known one is needed here",
    ),
    # products and layers
    (
        lambda: zeros(2, 3) @ zeros(2, 3),
        ShapeError,
        "[matmul] (2, 3) @ (2, 3): the last axis of the left, of size 3, and the last but one axis "
        "of the right, of size 2, must be equal; transpose one of them",
    ),
    (lambda: zeros(2) @ zeros(3), ShapeError, "[matmul] (2,) @ (3,): the last axis of the left"),
    (lambda: zeros(2) @ 3, ShapeError, "[matmul] (2,) @ (): a number has no axis to sum over"),
    (
        lambda: zeros(2, 3, 4) @ zeros(3, 4, 5),
        ShapeError,
        "[matmul] the shapes (2,) and (3,) do not broadcast",
    ),
    (lambda: Tensor.einsum("ij,jk", zeros(2, 2)), ShapeError, "names 2 operands, and 1 are given"),
    (lambda: Tensor.einsum("i", zeros(2, 2)), ShapeError, "'i' does not name the 2 axes of shape"),
    (lambda: Tensor.einsum("i->j", zeros(2)), ShapeError, "the result 'j' needs letters of the"),
    (
        lambda: Tensor.einsum("i,i", zeros(2), zeros(3)),
        ShapeError,
        "[einsum] 'i' stands for two sizes: 2 and 3",
    ),
    (lambda: Tensor.einsum("ii", zeros(2, 3)), ShapeError, "[einsum] 'i' stands for two sizes"),
    (lambda: Tensor.einsum("i2", zeros(2, 3)), ShapeError, "[einsum] 'i2': '2' is no axis; a term"),
    (
        lambda: Tensor.einsum(zeros(2), [0], zeros(2), [99]),
        TypeError,
        "[einsum] [99] does not name axes: after each operand comes a list of numbers from 0 to 51",
    ),
    (
        lambda: zeros(1, 3, 5, 5).conv2d(zeros(4, 2, 3, 3)),
        ShapeError,
        "[conv2d] 3 channels of an input of shape (1, 3, 5, 5) do not fit filters of shape "
        "(4, 2, 3, 3) in 1 groups",
    ),
    (
        lambda: zeros(5, 5).conv2d(zeros(4, 3, 3, 3)),
        ShapeError,
        "[conv2d] an input of shape (5, 5) and filters of shape (4, 3, 3, 3) need a channel axis",
    ),
    (
        lambda: zeros(1, 1, 2, 2).conv2d(zeros(1, 1, 3, 3)),
        ShapeError,
        "[conv2d] a kernel of (3, 3) reaches over 3 elements, and the padded input (2, 2) has 2",
    ),
    (
        lambda: zeros(1, 1, 4, 4).conv2d(zeros(1, 1, 3, 3), stride=(1, 2, 3)),
        ShapeError,
        "[conv2d] stride (1, 2, 3) needs one number, or one for each of 2 axes",
    ),
    (
        lambda: zeros(1, 1, 4, 4).conv2d(zeros(1, 1, 3, 3), padding=(1, 2, 3)),
        ShapeError,
        "[conv2d] padding (1, 2, 3) needs one number, one for each of 2 axes",
    ),
    (
        lambda: zeros(1, 1, 4, 4).conv2d(zeros(1, 1, 3, 3), stride=0),
        ShapeError,
        "[conv2d] kernel (3, 3), stride (0, 0) and dilation (1, 1) must be at least 1",
    ),
    (
        lambda: zeros(1, 3, 4, 4).conv_transpose2d(zeros(2, 3, 3, 3)),
        ShapeError,
        "[conv_transpose2d] 3 channels of shape (1, 3, 4, 4) do not fit filters of shape",
    ),
    (
        lambda: zeros(3).max_pool2d(),
        ShapeError,
        "[max_pool2d] shape (3,) has fewer axes than kernel",
    ),
    (lambda: zeros(1, 1).max_pool2d(), ShapeError, "[max_pool2d] a kernel of (2, 2) does not fit"),
    (
        lambda: zeros(1, 1, 4, 4).conv2d(zeros(1, 1, 3, 3), padding="full"),
        ValueError,
        "[conv2d] padding is numbers, 'valid' or 'same', not 'full'",
    ),
    (
        lambda: zeros(1, 1, 4, 4).conv2d(zeros(1, 1, 3, 3), stride=2, padding="same"),
        ValueError,
        "[conv2d] padding='same' is for a stride of 1, not (2, 2); give numbers",
    ),
    (
        lambda: zeros(1, 1, 4).conv1d(zeros(1, 1, 3, 3)),
        ShapeError,
        "[conv1d] filters of shape (1, 1, 3, 3) have 2 spatial axes after",
    ),
    (
        lambda: zeros(1, 1, 2, 2).conv_transpose2d(zeros(1, 1, 1, 1), padding=1),
        ShapeError,
        "[conv_transpose2d] padding (1, 1) cuts everything from a result of (2, 2)",
    ),
    (
        lambda: zeros(4).avg_pool1d(2, divisor_override=0),
        ValueError,
        "[avg_pool1d] divisor_override must not be 0",
    ),
    (
        lambda: zeros(4).max_unpool1d(zeros(3, dtype="int32"), 2),
        ShapeError,
        "[max_unpool1d] indices of shape (3,) must have the shape of the elements, (4,)",
    ),
    (lambda: zeros(4, 4).im2col(2), ShapeError, "[im2col] shape (4, 4) is not (batch, channels"),
    (
        lambda: zeros(1, 4, 3).fold((2, 2), 2),
        ShapeError,
        "[fold] columns of shape (1, 4, 3) do not fit: for an output of (2, 2) and windows of "
        "(2, 2) they are (batch, channels * 4, 1)",
    ),
    (
        lambda: zeros(4).adaptive_avg_pool2d(1),
        ShapeError,
        "[adaptive_avg_pool2d] shape (4,) has fewer than 2 axes",
    ),
    (
        lambda: zeros(4, 4).adaptive_max_pool2d((1, 2, 3)),
        ShapeError,
        "[adaptive_max_pool2d] output_size (1, 2, 3) needs one number, or one or None for each",
    ),
    (
        lambda: zeros(4, 0).adaptive_max_pool2d(1),
        ShapeError,
        "[adaptive_max_pool2d] an axis of shape (4, 0) has no elements to pool",
    ),
    (lambda: zeros(1, 1, 4).interpolate(), ValueError, "[interpolate] give size or scale_factor"),
    (
        lambda: zeros(1, 1, 4).interpolate(2, mode="lanczos"),
        ValueError,
        "[interpolate] mode 'lanczos' is not one of 'nearest', 'nearest-exact', 'linear'",
    ),
    (
        lambda: zeros(1, 1, 4).interpolate(2, align_corners=True),
        ValueError,
        "[interpolate] align_corners is not for mode 'nearest'",
    ),
    (
        lambda: zeros(1, 1, 4).interpolate(0),
        ShapeError,
        "[interpolate] the sizes (4,) cannot become (0,): all must be at least 1",
    ),
    (
        lambda: zeros(4).interpolate(3),
        ShapeError,
        "[interpolate] shape (4,) has no 1 axes to resize behind (batch, channels)",
    ),
    (
        lambda: zeros(1, 1, 4, 4).grid_sample(zeros(1, 2, 2, 3)),
        ShapeError,
        "[grid_sample] an image of shape (1, 1, 4, 4) needs a grid of shape (batch, …, 2)",
    ),
    (
        lambda: zeros(1, 1, 4, 4).grid_sample(zeros(1, 2, 2, 2), "cubic"),
        ValueError,
        "[grid_sample] mode 'cubic' is not one of 'bilinear', 'nearest', 'bicubic'",
    ),
    (
        lambda: zeros(1, 2, 3).affine_grid((1, 1, 2)),
        ShapeError,
        "[affine_grid] matrices of shape (1, 2, 3) and a size of (1, 1, 2)",
    ),
    (
        lambda: zeros(3, 2, 2).pixel_shuffle(2),
        ShapeError,
        "[pixel_shuffle] shape (3, 2, 2) with a factor of 2: the last three axes must divide by",
    ),
    (
        lambda: zeros(1, 3).channel_shuffle(2),
        ShapeError,
        "[channel_shuffle] axis 1 of shape (1, 3) must divide by 2 groups",
    ),
    (
        lambda: zeros(2, 3).layer_norm(4),
        ShapeError,
        "[layer_norm] normalized_shape (4,) must be the last sizes of shape (2, 3)",
    ),
    (
        lambda: zeros(2, 3).layer_norm(3, zeros(2)),
        ShapeError,
        "[layer_norm] a weight, bias or statistic of shape (2,) does not fit (3,)",
    ),
    (
        lambda: zeros(1, 3).batch_norm(None, None, training=True),
        ValueError,
        "[batch_norm] shape (1, 3) has one element in each channel, whose variance is 0",
    ),
    (
        lambda: zeros(2, 3).instance_norm(),
        ShapeError,
        "[instance_norm] shape (2, 3) is not (batch, channels, …)",
    ),
    (
        lambda: zeros(2, 3, 4).instance_norm(use_input_stats=False),
        ValueError,
        "[instance_norm] without use_input_stats it needs running_mean and running_var",
    ),
    (
        lambda: zeros(2, 3).group_norm(2),
        ShapeError,
        "[group_norm] the channels, axis 1 of shape (2, 3), must divide by 2 groups",
    ),
    (
        lambda: zeros(2, 3).local_response_norm(2),
        ShapeError,
        "[local_response_norm] 2 channels of shape (2, 3)",
    ),
    (
        lambda: zeros(3).dropout2d(),
        ShapeError,
        "[dropout2d] shape (3,) is not (batch, channels) and 2 more",
    ),
    (
        lambda: zeros(3, dtype="int32").embedding(zeros(3)),
        ShapeError,
        "[embedding] a table has rows and columns, and (3,) is none",
    ),
    (
        lambda: zeros(3, 2, 2).scaled_dot_product_attention(
            zeros(2, 2, 2), zeros(2, 2, 2), enable_gqa=True
        ),
        ShapeError,
        "[scaled_dot_product_attention] 3 heads of queries do not divide into 2 groups",
    ),
    (lambda: zeros(2).dropout(1.5), ValueError, "[dropout] the probability is between 0 and 1"),
    (
        lambda: zeros(2, 2).scaled_dot_product_attention(
            zeros(2, 2), zeros(2, 2), zeros(2, 2), is_causal=True
        ),
        ValueError,
        "a mask and is_causal exclude each other",
    ),
    (
        lambda: zeros(2, 3).cross_entropy(zeros(3, dtype="int32")),
        ShapeError,
        "[cross_entropy] class indices of shape (3,) do not fit scores of shape (2, 3)",
    ),
    (
        lambda: zeros(2, 3).sparse_categorical_crossentropy(zeros(2)),
        DTypeError,
        "[sparse_categorical_crossentropy] class indices are integers, not dtypes.float32",
    ),
    (lambda: zeros().cross_entropy(zeros()), ShapeError, "[cross_entropy] scores need an axis"),
    (lambda: zeros().nll_loss(zeros()), ShapeError, "[nll_loss] scores need an axis"),
    (
        lambda: zeros(2).mse_loss(0, "average"),
        ValueError,
        "[mse_loss] reduction 'average' is not one of 'mean', 'sum', 'none'",
    ),
    (
        lambda: zeros(2, 3).cross_entropy(zeros(2, dtype="int32"), weight=zeros(2)),
        ShapeError,
        "[cross_entropy] a weight of shape (2,) must be one number for each of the 3 classes",
    ),
    (lambda: zeros(2).huber_loss(0, delta=0), ValueError, "[huber_loss] delta is more than 0"),
    (lambda: zeros(2).smooth_l1_loss(0, beta=-1), ValueError, "[smooth_l1_loss] beta is at least"),
    (
        lambda: zeros(2, 3).multi_margin_loss(zeros(3, dtype="int32")),
        ShapeError,
        "[multi_margin_loss] targets of shape (3,) do not fit scores of shape (2, 3)",
    ),
    (lambda: zeros(3).pdist(), ShapeError, "[pdist] a matrix of rows is needed, not shape (3,)"),
    (
        lambda: zeros(3).ctc_loss(zeros(1, dtype="int32"), 3, 1),
        ShapeError,
        "[ctc_loss] log-probabilities are floats (time, batch, classes), or without the batch",
    ),
    (
        lambda: zeros(4, 2, 3).ctc_loss(zeros(2, 1, dtype="int32"), [4, 4], [1, 1], blank=3),
        ShapeError,
        "[ctc_loss] shape (4, 2, 3) needs a step in time, and the blank, 3, among its 3 classes",
    ),
    (
        lambda: zeros(4, 2, 3).ctc_loss(zeros(2, 1, dtype="int32"), [4], [1, 1]),
        ShapeError,
        "[ctc_loss] (1,) lengths for a batch of 2; give one for each",
    ),
    (
        lambda: zeros(4, 2, 3).ctc_loss(zeros(3, 1, dtype="int32"), [4, 4], [1, 1]),
        ShapeError,
        "[ctc_loss] targets of shape (3, 1) are neither (2, labels) nor all labels one after",
    ),
    # gradients
    (
        lambda: zeros(2).requires_grad_().int().requires_grad_(),
        DTypeError,
        "[requires_grad] only floats have gradients, not dtypes.int32; cast it first",
    ),
    (
        lambda: setattr(leaf() * 2, "requires_grad", False),
        GradientError,
        "[requires_grad] a result of tensors that require a gradient requires one too; use",
    ),
    (
        lambda: zeros(2).sum().backward(),
        GradientError,
        "[backward] this tensor of shape () does not depend on one that requires a gradient",
    ),
    (
        lambda: (leaf() * 2).backward(),
        ShapeError,
        "[backward] a tensor of shape (2,) is not one element; reduce it first",
    ),
    (
        lambda: (leaf() * 2).backward(zeros(3)),
        ShapeError,
        "[backward] a gradient of shape (3,) does not fit a tensor of shape (2,)",
    ),
    (
        lambda: leaf().sum().gradient(zeros(2)),
        GradientError,
        "[gradient] target 0, of shape (2,), does not require a gradient",
    ),
    (
        lambda: leaf().sum().gradient(leaf()),
        GradientError,
        "[gradient] the tensor does not depend on target 0, of shape (2,); its gradient would be",
    ),
    (
        lambda: setattr(leaf(), "grad", zeros(3)),
        ShapeError,
        "[grad] a gradient of shape (3,) does not fit a tensor of shape (2,)",
    ),
    (lambda: setattr(leaf(), "grad", 3), TypeError, "[grad] a gradient is a Tensor or None, not"),
    (
        lambda: update("__iadd__", leaf(), 1),
        GradientError,
        "[+=] a tensor that requires a gradient, of shape (2,), is not written in place while "
        "gradients are recorded; do it under Tensor.no_grad(), or on x.detach()",
    ),
    (lambda: write(leaf(), 0, 1.0), GradientError, "[setitem] a tensor that requires a gradient"),
    (lambda: write(leaf()[1:], 0, 1.0), GradientError, "[setitem] a tensor that requires a"),
    (lambda: leaf().assign(leaf()), GradientError, "[assign] a tensor that requires a gradient"),
    (
        lambda: write(leaf().detach(), 0, leaf()[0]),
        GradientError,
        "[setitem] a value that needs a gradient cannot be written through a detached tensor",
    ),
    (
        lambda: zeros(2, 3).T.view(4),
        ShapeError,
        "[view] (4,) does not fit a tensor of shape (3, 2)",
    ),
    (
        lambda: zeros(2).reshape(2, None),
        ShapeError,
        "[reshape] None in (2, None) keeps no axis of shape (2,)",
    ),
    # names
    (lambda: ferrule.Tensr, AttributeError, "ferrule has no attribute 'Tensr'; its names are"),
]


@pytest.mark.parametrize(("action", "kind", "text"), CASES, ids=[case[2][:60] for case in CASES])
def test_message(action: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        action()


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_extremes_of_nothing(name: str) -> None:
    text = f"[{name}] axis 1 of shape (2, 0) has no elements, so it has no {name}; pad it first"
    with pytest.raises(ShapeError, match=re.escape(text)):
        getattr(zeros(2, 0), name)(1)


def test_errors_are_pythons_too() -> None:
    assert issubclass(ShapeError, ValueError)
    assert issubclass(DTypeError, TypeError)
    assert issubclass(DeviceMismatchError, ValueError)
    assert issubclass(UnknownDeviceError, ModuleNotFoundError)
    assert issubclass(GradientError, RuntimeError)
    assert dtypes.max(dtypes.float32) == math.inf
