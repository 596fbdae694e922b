"""The messages of reductions, scans, sorting and statistics."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from ferrule.dtype import DTypeError
from ferrule.ir.expr import Variable
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor


def zeros(*shape: int) -> Tensor:
    return Tensor.zeros(*shape, device="NUMPY").contiguous()


N = Variable("n", 1, 9)
CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: zeros(2).mean(dtype="int32"),
        DTypeError,
        "[mean] gives floats, not dtypes.int32; cast the result instead",
    ),
    (
        lambda: zeros(2, 3).sum_to_size(2),
        ShapeError,
        "[sum_to_size] the shapes (2, 3) and (2,) do not broadcast",
    ),
    (
        lambda: zeros(2, 1).sum_to_size(2, 3),
        ShapeError,
        "[sum_to_size] (2, 3) does not broadcast to shape (2, 1); give its sizes, or 1 where a sum",
    ),
    (
        lambda: zeros(3).var(correction=1, unbiased=True),
        ValueError,
        "[var] correction=1 and unbiased=True say the same thing twice; give one of them",
    ),
    (lambda: zeros(2).cumprod(1), ShapeError, "[cumprod] axis 1 is out of range for shape (2,)"),
    (lambda: zeros().cummax(1), ShapeError, "[cummax] axis 1: a tensor without axes has none"),
    (
        lambda: zeros(2, 0).norm(math.inf, 1),
        ShapeError,
        "[norm] axis 1 of shape (2, 0) has no elements, so it has no norm; pad it first",
    ),
    # sorting
    (lambda: zeros(2).sort(1), ShapeError, "[sort] axis 1 is out of range for shape (2,)"),
    (
        lambda: zeros(2, 3).topk(4),
        ShapeError,
        "[topk] k is from 0 to 3, the size of axis -1, not 4",
    ),
    (
        lambda: zeros(2, 3).kthvalue(0, 0),
        ShapeError,
        "[kthvalue] k is from 1 to 2, the size of axis 0, not 0",
    ),
    (
        lambda: zeros(2, 0).median(1),
        ShapeError,
        "[median] axis 1 of shape (2, 0) has no elements, so it has no median; pad it first",
    ),
    (lambda: zeros(3, 0).mode(), ShapeError, "[mode] axis 1 of shape (3, 0) has no elements"),
    (lambda: zeros(3).quantile(1.5), ValueError, "[quantile] q is from 0 to 1, not 1.5"),
    (lambda: zeros(3).quantile(zeros(1, 2)), ShapeError, "[quantile] q of shape (1, 2) has more"),
    (
        lambda: zeros(3).cast("int32").quantile(0.5),
        DTypeError,
        "[quantile] is defined for floats, not dtypes.int32; cast it first",
    ),
    (
        lambda: zeros(3).nanquantile(0.5, interpolation="cubic"),
        ValueError,
        "[nanquantile] interpolation 'cubic' is not one of 'linear', 'lower', 'higher'",
    ),
    (
        lambda: zeros(9).double()[: N.bind(3)].argsort(),
        ShapeError,
        "[argsort] the size n=3 is symbolic, and a known one is needed here",
    ),
    # searching and counting
    (
        lambda: zeros().searchsorted(1.0),
        ShapeError,
        "[searchsorted] a sorted sequence has an axis; this tensor has none",
    ),
    (
        lambda: zeros(2, 3).searchsorted(zeros(3, 3)),
        ShapeError,
        "[searchsorted] values of shape (3, 3) do not fit a sequence of shape (2, 3): all axes but",
    ),
    (
        lambda: zeros(3).searchsorted(zeros(1), sorter=zeros(2)),
        ShapeError,
        "[searchsorted] a sorter of shape (2,) does not fit a sequence of shape (3,)",
    ),
    (
        lambda: zeros(3).searchsorted(zeros(1), side="middle"),
        ValueError,
        "[searchsorted] side 'middle' is not one of None, 'left', 'right'",
    ),
    (
        lambda: zeros(3).searchsorted(zeros(1), right=True, side="left"),
        ValueError,
        "[searchsorted] right=True and side='left' contradict; give one of them",
    ),
    (
        lambda: zeros(3).bucketize(zeros(1, 2)),
        ShapeError,
        "[bucketize] boundaries are a vector, not of shape (1, 2)",
    ),
    (
        lambda: zeros(3).bincount(),
        DTypeError,
        "[bincount] counts a vector of integers, not a dtypes.float32 tensor of shape (3,); cast",
    ),
    (
        lambda: (zeros(3).cast("int32") - 2).bincount(),
        ValueError,
        "[bincount] counts numbers from 0 on; the smallest here is -2",
    ),
    (
        lambda: zeros(3).cast("int32").bincount(zeros(2)),
        ShapeError,
        "[bincount] weights of shape (2,) for numbers of shape (3,); give one for each",
    ),
    (
        lambda: zeros(3).histc(0),
        ValueError,
        "[histc] the number of bins is at least 1, not 0",
    ),
    (
        lambda: zeros(3).histogram(2, (1.0, 0.0)),
        ValueError,
        "[histogram] the range from 1.0 to 0.0 has no inside",
    ),
    (
        lambda: zeros(3).histogram(zeros(2, 2)),
        ShapeError,
        "[histogram] edges are a vector, not of shape (2, 2)",
    ),
    (
        lambda: zeros(3).histogram(2, weight=zeros(2)),
        ShapeError,
        "[histogram] weights of shape (2,) for 3 elements; give one for each",
    ),
    # differences and covariances
    (lambda: zeros().diff(), ShapeError, "[diff] a tensor without axes has no neighbours"),
    (lambda: zeros(3).diff(-1), ValueError, "[diff] n is how many times to take differences, not"),
    (
        lambda: zeros(2, 3).trapezoid(zeros(2)),
        ShapeError,
        "[trapezoid] points x of shape (2,) do not fit axis -1 of shape (2, 3); give one for each",
    ),
    (lambda: zeros(1, 2, 3).cov(), ShapeError, "[cov] a matrix or a vector is needed, not shape"),
    (lambda: zeros(1, 2, 3).corrcoef(), ShapeError, "[corrcoef] a matrix or a vector is needed"),
    (
        lambda: zeros(2, 3).cov(fweights=zeros(3)),
        DTypeError,
        "[cov] fweights are counts, integers, not dtypes.float32",
    ),
    (
        lambda: zeros(2, 3).cov(aweights=zeros(2)),
        ShapeError,
        "[cov] aweights of shape (2,) do not fit 3 observations; give one for each",
    ),
    (lambda: zeros(2).norm("max"), ValueError, "[norm] p is a number, 'fro', 'nuc' or None, not"),
    (
        lambda: zeros(2, 3, 4).norm("nuc"),
        ShapeError,
        "[norm] 'nuc' is of matrices, in two axes, not 3: (0, 1, 2)",
    ),
]


@pytest.mark.parametrize(("action", "kind", "text"), CASES, ids=[case[2][:60] for case in CASES])
def test_message(action: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        action()
