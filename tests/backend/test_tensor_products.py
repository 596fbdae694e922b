"""Products by their names, diagonals and blocks, against NumPy."""

from typing import Any

import numpy as np
import pytest
from tests.gradients import assert_gradients

from ferrule.dtype import dtypes
from ferrule.fusion import make_schedule
from ferrule.helpers import GlobalCounters
from ferrule.ir.shape.view import ShapeError
from ferrule.ops import UnaryOps
from ferrule.tensor import Tensor

pytestmark = pytest.mark.usefixtures("device")
RNG = np.random.default_rng(5)
Array = np.ndarray[Any, Any]


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape)


def close(found: Tensor, expected: Any) -> None:
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11, atol=1e-12)


def test_products_of_matrices_and_batches() -> None:
    a, b, v = normal(3, 4), normal(4, 5), normal(4)
    close(Tensor(a).mm(Tensor(b)), a @ b)
    close(Tensor(a).mv(Tensor(v)), a @ v)
    x, y = normal(6, 3, 4), normal(6, 4, 5)
    close(Tensor(x).bmm(Tensor(y)), x @ y)


@pytest.mark.parametrize(("rows", "columns"), [(40, 30), (70, 1100), (300, 70)])
def test_products_of_a_matrix_with_itself(rows: int, columns: int) -> None:
    x = RNG.integers(-9, 10, (rows, columns)).astype(np.float32)
    a = Tensor(x)
    np.testing.assert_array_equal((a @ a.T).numpy(), x @ x.T)
    np.testing.assert_array_equal((a.T @ a).numpy(), x.T @ x)


def test_sums_with_products() -> None:
    a, b, c, v = normal(3, 4), normal(4, 5), normal(5), normal(4)
    x, y, w = normal(6, 3, 4), normal(6, 4, 5), normal(3)
    m, n = Tensor(a), Tensor(b)
    close(Tensor(c).addmm(m, n, beta=2, alpha=0.5), 2 * c + 0.5 * (a @ b))
    close(Tensor(w).addmv(m, Tensor(v), alpha=-1), w - a @ v)
    close(Tensor(c).baddbmm(Tensor(x), Tensor(y), beta=3), 3 * c + x @ y)
    close(Tensor(c).addbmm(Tensor(x), Tensor(y)), c + (x @ y).sum(0))
    close(Tensor(c).addr(Tensor(w), Tensor(c), alpha=2), c + 2 * np.outer(w, c))


def test_what_counts_with_beta_zero() -> None:
    nothing = Tensor([float("nan")])
    assert nothing.addmm(Tensor([[2.0]]), Tensor([[3.0]]), beta=0).tolist() == [[6.0]]
    for beta in (0, 1):  # and shapes are what they are with any other
        wide = Tensor.zeros(3, 2).addmv(Tensor([[1.0, 2.0]]), Tensor([3.0, 4.0]), beta=beta)
        assert wide.tolist() == [[11.0, 11.0]] * 3
        with pytest.raises(ShapeError, match="do not broadcast"):
            Tensor.zeros(5, 7).addmm(Tensor.ones(3, 2), Tensor.ones(2, 3), beta=beta)


def test_narrow_sums_round_once() -> None:
    a, b, c = (normal(*n).astype(np.float16) for n in ((20, 30), (30, 10), (20, 10)))
    found = Tensor(c).addmm(Tensor(a), Tensor(b), alpha=0.3)
    wide = c + np.float32(0.3) * (a.astype(np.float32) @ b.astype(np.float32))
    assert found.dtype is dtypes.float16
    np.testing.assert_allclose(found.numpy(), wide, rtol=2**-11 * 1.01, atol=1e-6)


def test_products_of_vectors() -> None:
    a, b, c = normal(2, 3, 4), normal(5, 4), normal(4)
    close(Tensor(a).inner(Tensor(b)), np.inner(a, b))
    close(Tensor(a).inner(Tensor(2.5)), a * 2.5)
    close(Tensor(c).vdot(Tensor(b[0])), np.vdot(c, b[0]))
    close(Tensor(a).vecdot(Tensor(c)), np.linalg.vecdot(a, c))
    close(Tensor(a).vecdot(Tensor(a[0, :, :1]), dim=1), (a * a[0, :, :1]).sum(1))
    close(Tensor(c).ger(Tensor(b[1])), np.outer(c, b[1]))
    small = Tensor([100, 100], dtype="int8")
    assert small.vecdot(small).dtype is dtypes.int8
    assert small.vecdot(small).item() == np.int8(np.array(20000).astype(np.int8))


def test_cross() -> None:
    a, b = normal(2, 4, 3), normal(4, 3)
    close(Tensor(a).cross(Tensor(b)), np.cross(a, b))
    close(Tensor(a.T).cross(Tensor(b.T[..., None]), dim=0), np.cross(a.T, b.T[..., None], axis=0))


@pytest.mark.parametrize(
    ("first", "second"), [((2, 3), (4, 5)), ((2,), (3, 2)), ((2, 3, 2), (2, 2)), ((), (3,))]
)
def test_kron(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = normal(*first), normal(*second)
    close(Tensor(a).kron(Tensor(b)), np.kron(a, b))


@pytest.mark.parametrize(
    ("first", "second", "dims"),
    [
        ((2, 3, 4), (3, 4, 5), 2),
        ((2, 3), (4,), 0),
        ((2, 3, 4), (4, 5, 2), ([0, -1], [2, 0])),
        ((2, 3), (3, 2), (1, 0)),
        ((2, 0), (0, 3), 1),
    ],
)
def test_tensordot(first: tuple[int, ...], second: tuple[int, ...], dims: Any) -> None:
    a, b = normal(*first), normal(*second)
    close(Tensor(a).tensordot(Tensor(b), dims), np.tensordot(a, b, dims))
    close(Tensor(a).tensordot(Tensor(b), axes=dims), np.tensordot(a, b, dims))


def test_multi_dot_takes_the_cheap_order() -> None:
    arrays = [normal(*n).astype(np.float32) for n in ((8,), (8, 300), (300, 8), (8, 300), (300,))]
    expected = np.linalg.multi_dot([array.astype(np.float64) for array in arrays])
    tensors = [Tensor(array).realize() for array in arrays]
    GlobalCounters.reset()
    found = Tensor.multi_dot(tensors).item()
    assert GlobalCounters.global_ops < 3 * 4 * 8 * 300
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    close(Tensor.chain_matmul(Tensor(arrays[1]), Tensor(arrays[2])).double() * 0, np.zeros((8, 8)))


@pytest.mark.parametrize("offset", [-4, -2, 0, 1, 3])
def test_diagonals(offset: int) -> None:
    line, matrix, cube = normal(3), normal(4, 3), normal(2, 4, 3)
    close(Tensor(line).diag(offset), np.diag(line, offset))
    close(Tensor(matrix).diag(offset), np.diag(matrix, offset))
    close(Tensor(matrix).diagflat(offset), np.diagflat(matrix, offset))
    close(Tensor(matrix).trace(offset), np.trace(matrix, offset))
    close(Tensor(cube).trace(offset, 2, 0), np.trace(cube, offset, 2, 0))
    embedded = np.stack([np.diag(row, offset) for row in matrix])
    close(Tensor(matrix).diag_embed(offset), embedded)
    close(Tensor(matrix).diag_embed(offset, 0, 2), np.moveaxis(embedded, (1, 2), (0, 2)))


def test_traces_of_integers_do_not_overflow() -> None:
    assert Tensor.full((4, 4), 100, dtype="int8").trace().item() == 400


def test_block_diag() -> None:
    a, b, c = normal(2, 3), normal(2), normal()
    expected = np.zeros((4, 6))
    expected[:2, :3], expected[2, 3:5], expected[3, 5] = a, b, c
    close(Tensor.block_diag(Tensor(a), Tensor(b), Tensor(c)), expected)
    close(Tensor.block_diag([Tensor(a), Tensor(b), Tensor(c)]), expected)
    assert Tensor.block_diag(Tensor.zeros(0, 2), Tensor.ones(1, 1)).tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("count", [None, 0, 1, 2, 9])
def test_vander(count: int | None) -> None:
    x = np.array([0.0, -1.5, 2.0])
    close(Tensor(x).vander(count), np.vander(x, count))
    close(Tensor(x).vander(count, increasing=True), np.vander(x, count, True))


@pytest.mark.parametrize(("rows", "columns", "offset"), [(3, 4, 0), (4, 2, -1), (2, 5, 2)])
def test_positions_of_triangles(rows: int, columns: int, offset: int) -> None:
    low, high = (
        Tensor.tril_indices(rows, columns, offset),
        Tensor.triu_indices(rows, columns, offset),
    )
    np.testing.assert_array_equal(low.numpy(), np.tril_indices(rows, offset, columns))
    np.testing.assert_array_equal(high.numpy(), np.triu_indices(rows, offset, columns))
    assert low.dtype is dtypes.int32


@pytest.mark.parametrize("p", [0, 1, 2, 3, float("inf")])
def test_cdist(p: float) -> None:
    a, b = normal(2, 3, 4), normal(5, 4)
    apart = a[:, :, None] - b
    close(Tensor(a).cdist(Tensor(b), p), np.linalg.norm(apart, p, -1))


def test_the_gradient_of_no_distance_is_zero() -> None:
    x = Tensor([[1.0, 2.0], [4.0, 6.0]], requires_grad=True)
    for p in (1, 2, 3, float("inf")):
        (found,) = x.cdist(x.detach(), p).sum().gradient(x)
        assert np.isfinite(found.numpy()).all()
    (found,) = x.cdist(x.detach()).sum().gradient(x)
    np.testing.assert_allclose(found.numpy(), [[-0.6, -0.8], [0.6, 0.8]], rtol=1e-6)


def test_gradients_of_distances_have_them_in_common() -> None:
    x, y = [Tensor.randn(20, 4).realize().requires_grad_() for _ in range(2)]
    found = x.cdist(y)
    gradients = found.square().sum().gradient(x, y)
    items = make_schedule([found.lazydata, *[part.lazydata for part in gradients]]).items
    assert len(items) == 3
    roots = [item for item in items for node in item.ast.toposort() if node.op is UnaryOps.SQRT]
    assert len(roots) == 1


def test_gradients_of_products() -> None:
    a, b, c = normal(2, 3), normal(3, 2), normal(2, 2)
    assert_gradients(lambda x, y, z: z.addmm(x, y, beta=2, alpha=3), a, b, c)
    assert_gradients(lambda x, y: x.cross(y.T), a, b)
    assert_gradients(lambda x, y: x.kron(y), a, b)
    assert_gradients(lambda x, y: x.tensordot(y, ([0], [1])), a, b)
    assert_gradients(lambda x, y, z: Tensor.multi_dot(x, y, z), a, b, c)
    assert_gradients(lambda x: x.diag(1), a)
    assert_gradients(lambda x: x.diag_embed(-1), a)
    assert_gradients(lambda x, y: Tensor.block_diag(x, y), a, b)
    assert_gradients(lambda x: x.vander(4), a)
    assert_gradients(lambda x, y: x.cdist(y.T), a, b)
