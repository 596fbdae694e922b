"""Texts of tensors: NumPy's layout of the values that are there, and nothing is computed for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ferrule import GlobalCounters, Tensor, TinyJit, Variable, dtypes, grad, scan, vmap


@contextmanager
def no_kernel() -> Iterator[None]:
    before = GlobalCounters.kernel_count
    yield
    assert GlobalCounters.kernel_count == before


def text(values: Any, dtype: str, device: str, more: str = "") -> str:
    shown = np.array2string(np.asarray(values), separator=", ", prefix="Tensor(")
    return f"Tensor({shown}{more}, dtype=dtypes.{dtype}, device={device!r})"


VALUES = {
    "float32": [[1.0, 2.5], [-3.0, 1e-8]],
    "float64": [1.0, 1 / 3, np.inf, np.nan],
    "float16": [1.5, -2.0],
    "int8": [[-1, 100]],
    "uint64": [2**64 - 1, 0],
    "bool": [True, False],
}


@pytest.mark.parametrize("dtype", VALUES)
def test_values_are_shown_as_numpy_shows_them(dtype: str, device: str) -> None:
    array = np.array(VALUES[dtype], dtype)
    x = Tensor(array)
    assert repr(x) == str(x) == text(array, dtype, device)


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float8_e5m2])
def test_types_that_numpy_lacks_are_shown(dtype: Any) -> None:
    shown = repr(Tensor([1.5, -2.0], dtype=dtype).realize())
    assert shown.startswith(f"Tensor([1.5, -2], dtype={dtype}, ")


def test_a_text_of_a_small_tensor_makes_it_again(device: str) -> None:
    x = Tensor([[1.5, 2.0], [3.0, -1.0]])
    made = eval(repr(x))
    assert made.tolist() == x.tolist()
    assert (made.dtype, made.device) == (x.dtype, x.device)


def test_views_are_shown_without_a_copy(device: str) -> None:
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    x = Tensor(array).realize()
    views = [
        (x.T, array.T),
        (x[1], array[1]),
        (x[:, ::-1, 1:3], array[:, ::-1, 1:3]),
        (x[0, 0].expand(2, 4), np.broadcast_to(array[0, 0], (2, 4))),
        (x.reshape(4, 6), array.reshape(4, 6)),
        (x[1, 2, 3], array[1, 2, 3]),
    ]
    for view, expected in views:
        with no_kernel():
            assert repr(view) == text(expected, "int32", device)


def test_large_tensors_are_summarised_with_their_shape(device: str) -> None:
    array = np.arange(2000, dtype=np.int32)
    shown = repr(Tensor(array))
    assert shown == text(array, "int32", device, ", shape=(2000,)")
    assert len(shown) < 150
    with np.printoptions(threshold=10):
        assert "..., " in repr(Tensor(array[:20]))
    assert repr(Tensor.zeros(0, 3)) == text([], "float32", device, ", shape=(0, 3)")


def test_constants_and_numbers_are_shown(device: str) -> None:
    with no_kernel():
        assert repr(Tensor.ones(2)) == text(np.ones(2, np.float32), "float32", device)
        assert repr(Tensor(2.5)) == text(np.float32(2.5), "float32", device)
    assert f"{Tensor([1.0, 2.0]).sum():.3f}" == "3.000"


def test_nothing_is_computed_for_a_text(device: str) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True).realize()
    y = x * 2
    with no_kernel():
        assert repr(y) == f"<Tensor (2,) dtypes.float32 on {device}, lazy MUL, requires_grad=True>"
        assert repr(y[:1]).startswith(f"<Tensor (1,) dtypes.float32 on {device}, lazy ")
    assert y.lazydata.realized is None
    assert repr(y.realize()).endswith(", requires_grad=True)")
    assert repr(y.detach()).startswith("Tensor([2., 4.], dtype")


def test_a_pending_write_is_not_shown_as_done(device: str) -> None:
    x = Tensor([1.0, 2.0]).realize()
    x[0] = x[1] * 3
    assert "lazy" in repr(x)
    assert repr(x.realize()) == text(np.array([6.0, 2.0], np.float32), "float32", device)


def test_a_text_leaves_writes_in_place(device: str) -> None:
    x = Tensor.zeros(64).contiguous().realize()
    memory = x.lazydata.realized
    for _ in range(3):
        repr(x)
        repr(x[:3])
        x += 1
        x.realize()
    assert x.lazydata.realized is memory
    assert x.tolist() == [3.0] * 64


def test_texts_inside_transformations() -> None:
    shown: list[str] = []

    def noted(x: Tensor) -> Tensor:
        shown.extend([repr(x), repr(x + 1)])
        return x

    x = Tensor([1.0, 2.0]).realize()
    assert vmap(lambda row: noted(row) * 2)(x).tolist() == [2.0, 4.0]
    assert grad(lambda x: (noted(x) * 2).sum())(x).tolist() == [2.0, 2.0]
    total, _ = scan(lambda carry, row: (noted(carry) + row, row), Tensor(0.0), x)
    assert total.item() == 3.0
    assert all(text.startswith(("<Tensor", "Tensor(")) for text in shown)


def test_texts_inside_a_capture() -> None:
    shown: list[str] = []

    @TinyJit
    def step(x: Tensor) -> Tensor:
        shown.append(repr(x))
        return (x * 2).realize()

    for number in range(4):
        assert step(Tensor([float(number)]).realize()).tolist() == [2.0 * number]
    assert shown[0].startswith("Tensor([0.]")
    assert any("realized" in line for line in shown)


def test_a_length_that_changes_is_no_array() -> None:
    n = Variable("n", 1, 8).bind(3)
    x = Tensor(np.arange(8.0)).realize()[:n]
    assert repr(x).startswith("<Tensor (n")


def test_notebooks_get_escaped_text(device: str) -> None:
    lazy: Any = Tensor([1.0]) + 1
    assert (
        lazy._repr_html_() == f"<pre>{repr(lazy).replace('<', '&lt;').replace('>', '&gt;')}</pre>"
    )
    x: Any = Tensor([1.0])
    assert x._repr_html_() == f"<pre>{x!r}</pre>"
