"""Tensors like another one, from files and buffers, spaced by powers, drawn by chance."""

import pathlib
from array import array
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, dtypes


def test_like_another(device: str) -> None:
    x = Tensor(np.zeros((2, 3), np.int16))
    for made in (x.new_zeros(4), x.new_ones((2, 2)), x.new_full((1,), 3), x.new_empty(2)):
        assert (made.dtype, made.device) == (dtypes.int16, device)
    assert x.empty_like().shape == x.randint_like(5).shape == (2, 3)
    assert x.empty_like(dtype="float32").dtype is dtypes.float32
    assert x.randint_like(3, 4).tolist() == [[3] * 3] * 2
    assert Tensor([1.0]).randint_like(7, 8).tolist() == [7.0]
    assert x.new_tensor([1.9]).tolist() == [1]
    assert x.fill(Tensor(2)).tolist() == [[2] * 3] * 2
    assert Tensor.scalar_tensor(2).shape == ()


def test_filling_in_place(device: str) -> None:
    x = Tensor(np.arange(6).reshape(2, 3))
    x[0].fill_(7)
    x[:, 1].zero_()
    x[1, ::2].copy_(Tensor([8.5, 9.5]))
    assert x.tolist() == [[7, 0, 7], [8, 0, 9]]


def test_buffers(device: str) -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert Tensor(numbers.data).tolist() == numbers.tolist()
    assert Tensor(numbers.data).dtype is dtypes.float32
    assert Tensor(array("h", [1, -2])).dtype is dtypes.int16
    assert Tensor(array("d", [1.5])).tolist() == [1.5]
    assert Tensor(b"\x01\x02").tolist() == Tensor(memoryview(b"\x01\x02")).tolist() == [1, 2]


def test_files(device: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "numbers"
    numbers = np.arange(10, dtype=np.float64)
    numbers.tofile(path)
    assert Tensor.from_file(path, dtype="float64").tolist() == numbers.tolist()
    x = Tensor.from_file(str(path), 3, dtypes.float64, offset=16)
    x += 1
    assert x.tolist() == [3, 4, 5]
    assert np.fromfile(path).tolist() == numbers.tolist()
    assert Tensor(np.memmap(path, np.float64, "r")).sum().item() == 45
    with pytest.raises(ValueError, match=r"size|length|multiple"):
        Tensor.from_file(path, 1000, "float64")


def test_sequences(device: str) -> None:
    expected = np.logspace(-2, 3, 11, dtype=np.float32)
    np.testing.assert_allclose(Tensor.logspace(-2, 3, 11).numpy(), expected, rtol=2e-7)
    assert Tensor.logspace(0, 4, 5, base=2).tolist() == [1, 2, 4, 8, 16]
    assert Tensor.logspace(0, 4, 5, dtype="int32").tolist() == [1, 10, 100, 1000, 10000]
    assert Tensor.logspace(1, 2, 0).shape == (0,)
    for shape in ((3, 4, -1), (4, 3, 0), (2, 2, 5), (0, 2, 0)):
        assert Tensor.tri(*shape).tolist() == np.tri(*shape).tolist()
    options: dict[str, Any] = {"start": 1, "end": 3, "step": 1}
    assert Tensor.arange(**options).tolist() == [1, 2]
    for steps in (1, 2, 7, 1000):
        line = Tensor.linspace(-0.1, 0.7, steps).numpy()
        assert line[0] == np.float32(-0.1)
        assert steps == 1 or line[-1] == np.float32(0.7)
    with pytest.raises(TypeError, match=r"\[arange\] where to stop is missing"):
        Tensor.arange()


@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_meshgrid_of_a_list(device: str, indexing: Any) -> None:
    vectors = [np.arange(2), np.arange(3), np.arange(4)]
    grids = Tensor.meshgrid([Tensor(v) for v in vectors], indexing=indexing)
    for mine, theirs in zip(grids, np.meshgrid(*vectors, indexing=indexing), strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)


def test_bernoulli(device: str) -> None:
    Tensor.manual_seed(1)
    drawn = Tensor.full((20_000,), 0.3).bernoulli().numpy()
    assert set(drawn.tolist()) == {0.0, 1.0}
    assert abs(drawn.mean() - 0.3) < 0.02
    assert Tensor([0.0, 1.0, 1.0]).bernoulli(1.0).tolist() == [1, 1, 1]
    assert Tensor([5, 6]).bernoulli(0.0).tolist() == [0, 0]


def test_multinomial(device: str) -> None:
    Tensor.manual_seed(2)
    weights = Tensor([[0.0, 1.0, 3.0, 0.0], [2.0, 0.0, 0.0, 2.0]])
    drawn = weights.multinomial(4000, replacement=True).numpy()
    assert set(drawn[0].tolist()) == {1, 2}
    assert set(drawn[1].tolist()) == {0, 3}
    assert abs((drawn[0] == 2).mean() - 0.75) < 0.04
    each = Tensor.ones(200, 5).multinomial(5).numpy()
    assert (np.sort(each, 1) == np.arange(5)).all()
    assert {tuple(row) for row in each[:, :1].tolist()} == {(n,) for n in range(5)}
    both = weights.multinomial(2).numpy()
    assert np.sort(both, 1).tolist() == [[1, 2], [0, 3]]
    assert weights[0].multinomial(1).shape == (1,)
    many = weights.repeat(2000, 1).multinomial(1).numpy().reshape(2000, 2)
    assert set(many[:, 0].tolist()) == {1, 2}
    assert abs((many[:, 0] == 2).mean() - 0.75) < 0.05
    assert set(many[:, 1].tolist()) == {0, 3}


def test_what_has_no_weight_is_not_drawn_by_the_least_number(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensor, "rand", Tensor.zeros)
    weights = Tensor([0.0, 2.0, 0.0, 1.0])
    assert weights.multinomial(3, replacement=True).tolist() == [1, 1, 1]
    assert weights.multinomial(1).tolist() == [1]
