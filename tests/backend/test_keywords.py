"""Parameters under the names that NumPy and PyTorch give them."""

import pytest

from ferrule import Tensor


def test_either_name_of_an_axis() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 5.0]])
    assert x.sum(dim=0).tolist() == x.sum(axis=0).tolist() == [4.0, 7.0]
    assert x.var(axis=1, ddof=0, keepdims=True).tolist() == [[0.25], [1.0]]
    assert Tensor.stack(x, x, axis=1).shape == (2, 2, 2)
    assert x.softmax(dim=-1).shape == (2, 2)
    assert x.squeeze(axis=0).shape == (2, 2)


def test_two_names_at_once_are_an_error() -> None:
    with pytest.raises(TypeError, match=r"\[sum\] 'dim' is another name of 'axis'; give one"):
        Tensor([1.0]).sum(axis=0, dim=0)
    with pytest.raises(TypeError, match=r"\[sum\] 'dims' is another name of 'axis'; give one"):
        Tensor([1.0]).sum(dim=0, dims=0)


def test_an_unknown_keyword_names_the_method() -> None:
    with pytest.raises(TypeError, match=r"sum\(\) got an unexpected keyword argument 'along'"):
        Tensor([1.0]).sum(along=0)  # type: ignore[call-arg]
