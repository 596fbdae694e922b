"""What linear algebra says of shapes that do not fit."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ferrule.base.config import Context
from ferrule.dtype import DTypeError
from ferrule.ir.expr import Variable
from ferrule.ir.shape.view import ShapeError
from ferrule.tensor import Tensor


@pytest.fixture(autouse=True)
def _numpy_device() -> Iterator[None]:
    with Context(FERRULE_DEVICE="NUMPY"):
        yield


def zeros(*shape: int) -> Tensor:
    return Tensor.zeros(*shape, device="NUMPY").contiguous()


CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: zeros(2, 3, 4).mm(zeros(4, 2)),
        ShapeError,
        "[mm] takes tensors of 2 and 2 axes, not of shapes (2, 3, 4) and (4, 2); reshape them, or "
        "use matmul, which takes any",
    ),
    (lambda: zeros(2, 3).mv(zeros(3, 1)), ShapeError, "[mv] takes tensors of 2 and 1 axes, not"),
    (
        lambda: zeros(1, 2, 3).bmm(zeros(4, 3, 2)),
        ShapeError,
        "[bmm] batches of 1 and 4 matrices differ; expand one of them, or use matmul",
    ),
    (lambda: zeros(2).addmm(zeros(2), zeros(2)), ShapeError, "[addmm] takes tensors of 2 and 2"),
    (lambda: zeros(2).addr(zeros(2), zeros(2, 1)), ShapeError, "[addr] takes tensors of 1 and 1"),
    (
        lambda: zeros(3).multi_dot(zeros(3), zeros(3)),
        ShapeError,
        "[multi_dot] takes tensors of 2 axes, not of shapes (3,); reshape them",
    ),
    (
        lambda: zeros(3, 3, 3).multi_dot(zeros(3)),
        ShapeError,
        "[multi_dot] takes matrices, and vectors at the ends, not the shapes (3, 3, 3) and (3,)",
    ),
    (
        lambda: zeros(2, 2).cross(zeros(2, 2)),
        ShapeError,
        "[cross] axis -1 of the shapes (2, 2) and (2, 2) must have 3 elements; for plane vectors",
    ),
    (
        lambda: zeros(2, 3).tensordot(zeros(2, 3), 1),
        ShapeError,
        "[tensordot] the axes (1,) of shape (2, 3) and (0,) of shape (2, 3) do not pair: as many",
    ),
    (
        lambda: zeros(2, 3).tensordot(zeros(2, 3), 3),
        ShapeError,
        "[tensordot] 3 axes of the shapes (2, 3) and (2, 3) cannot be paired; give 0 to",
    ),
    (lambda: zeros(3).inner(zeros(2)), ShapeError, "[inner] the axes (0,) of shape (3,) and (0,)"),
    (lambda: zeros(1).vdot(zeros(2)), ShapeError, "[vdot] the axes (0,) of shape (1,) and (0,)"),
    (lambda: zeros(2, 2, 2).diag(), ShapeError, "[diag] takes a vector or a matrix, not shape"),
    (lambda: zeros().diag_embed(), ShapeError, "[diag_embed] a tensor without axes has none to"),
    (
        lambda: zeros(2).diag_embed(0, 1, -1),
        ShapeError,
        "[diag_embed] the axes 1 and -1 are the same; give two",
    ),
    (lambda: zeros(2).trace(), ShapeError, "[trace] shape (2,) has less than two axes"),
    (lambda: zeros(2, 2).trace(0, 1, 1), ShapeError, "[trace] the axes 1 and 1 are the same"),
    (
        lambda: zeros(2, 2, 2).block_diag(),
        ShapeError,
        "[block_diag] takes matrices, not shape (2, 2, 2); take them apart with unbind",
    ),
    (lambda: zeros(2).vander(-1), ShapeError, "[vander] the number of powers is at least 0, not"),
    (lambda: zeros(2).det(), ShapeError, "[det] takes matrices, with at least two axes, not shape"),
    (
        lambda: zeros(2, 3).inv(),
        ShapeError,
        "[inv] takes square matrices, not shape (2, 3); use lstsq, pinv or svd for others",
    ),
    (
        lambda: zeros(2, 2).solve(zeros(3, 1)),
        ShapeError,
        "[solve] matrices of shape (2, 2) and right sides of shape (3, 1) do not fit: they need",
    ),
    (
        lambda: zeros(2, 2, 2).solve(zeros(3, 2, 1)),
        ShapeError,
        "[solve] the shapes (2,) and (3,) do not broadcast",
    ),
    (lambda: zeros(2, 2).eigh("X"), ValueError, "[eigh] UPLO is 'L' or 'U', for the triangle to"),
    (
        lambda: zeros(2, 2).eig(),
        DTypeError,
        "[eig] eigenvalues of general matrices are complex, and there is no complex dtype; use",
    ),
    (lambda: zeros(2, 2).qr("full"), ValueError, "[qr] mode 'full' is not one of 'reduced', 'comp"),
    (
        lambda: zeros(2, 2).matrix_norm("no"),
        ValueError,
        "[matrix_norm] ord 'no' is not one of 'fro', 'nuc', 1, -1, 2, -2, inf, -inf",
    ),
    (lambda: zeros(2, 2).matrix_norm(2, (0, 0)), ShapeError, "[matrix_norm] the axes (0, 0) are"),
    (
        lambda: zeros(2, 3).tensorinv(1),
        ShapeError,
        "[tensorinv] the sizes of shape (2, 3) before axis 1 and from there on have different",
    ),
    (
        lambda: zeros(2, 3).tensorsolve(zeros(2)),
        ShapeError,
        "[tensorsolve] as many elements as B of shape (2,) are needed in the first 1 axes of shape",
    ),
    (
        lambda: zeros(2, 2).pinv("a"),
        TypeError,
        "[pinv] limits are numbers or tensors, not str",
    ),
    (
        lambda: zeros(3, 3).shrink(((0, 3), (0, Variable("n", 1, 3).bind(3)))).svd(),
        ShapeError,
        "[svd] the size n=3 is symbolic, and a known one is needed here",
    ),
    (
        lambda: zeros(2, 3).rearrange("a b"),
        ShapeError,
        "[rearrange] 'a b': one '->' is needed, as in 'b (h w) -> b h w'",
    ),
    (
        lambda: zeros(2, 3).rearrange("a b c -> c b a"),
        ShapeError,
        "[rearrange] 'a b c -> c b a': the left side has 3 axes, and shape (2, 3) has 2; name",
    ),
    (
        lambda: zeros(2, 3).rearrange("a b -> a"),
        ShapeError,
        "[rearrange] 'a b -> a': 'b' is on one side only; use reduce to drop axes, and repeat to",
    ),
    (lambda: zeros(4, 3).rearrange("(a b) c -> a b c"), ShapeError, "the sizes of 'a' and 'b' do"),
    (
        lambda: zeros(4, 3).rearrange("(a b) c -> a b c", a=3),
        ShapeError,
        "(a b) does not fit the axis of size 4 in shape (4, 3): the sizes given make 3",
    ),
    (lambda: zeros(4).rearrange("a -> a", b=2), ShapeError, "there is no axis 'b', whose size is"),
    (lambda: zeros(4).rearrange("a -> a", a=-4), ShapeError, "the size of 'a' is a whole number,"),
    (lambda: zeros(4).rearrange("a a -> a a"), ShapeError, "'a' is twice on one side"),
    (lambda: zeros(4).rearrange("(a -> a"), ShapeError, "a parenthesis is not closed"),
    (lambda: zeros(4).rearrange("((a)) -> a"), ShapeError, "parentheses do not match, or are"),
    (lambda: zeros(4).rearrange("a+ -> a"), ShapeError, "'+' is no axis; write names, numbers"),
    (lambda: zeros(4).rearrange("a -> a ..."), ShapeError, "'...' is on the right only; write it"),
    (lambda: zeros(4).rearrange("(...) -> ..."), ShapeError, "'...' in a group cannot be taken"),
    (
        lambda: zeros(4).reduce("a -> a b", "sum"),
        ShapeError,
        "'b' is on the right only; use",
    ),
    (
        lambda: zeros(4).reduce("a ->", "std"),
        ValueError,
        "[reduce] reduction 'std' is not one of 'sum', 'mean', 'max', 'min', 'prod', 'any', 'all'",
    ),
    (lambda: zeros(4).repeat("a -> b"), ShapeError, "'a' is on the left only; use reduce to drop"),
    (lambda: zeros(4).repeat("a -> a b"), ShapeError, "the size of 'b' is not known; give it: b=2"),
    (
        lambda: zeros(4).repeat(2, c=3),
        TypeError,
        "[repeat] sizes of axes, such as 'c', go with a pattern: x.repeat('h w -> h w c', c=3)",
    ),
    (lambda: zeros(2).cdist(zeros(2, 2)), ShapeError, "[cdist] the shapes (2,) and (2, 2) need"),
]


@pytest.mark.parametrize(("action", "kind", "text"), CASES, ids=[case[2][:60] for case in CASES])
def test_message(action: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        action()
