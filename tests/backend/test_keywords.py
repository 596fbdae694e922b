"""Parameters under the names that NumPy and PyTorch give them."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import ferrule
from ferrule import Tensor, nn
from ferrule.nn import optim


def any_tensor(x: Tensor) -> Any:
    """For names of parameters that no annotation has."""
    return x


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
    message = r"\[sum\] got an unexpected keyword argument 'along'; it takes axis, keepdim, dtype$"
    with pytest.raises(TypeError, match=message):
        Tensor([1.0]).sum(along=0)  # type: ignore[call-arg]


def test_what_may_be_several_arguments_is_one_by_its_name() -> None:
    x = any_tensor(Tensor.arange(6).reshape(2, 3))
    assert x.reshape(shape=(3, 2)).shape == x.view(size=(3, 2)).shape == (3, 2)
    assert x.permute(dims=(1, 0)).shape == x.permute(axes=(1, 0)).shape == (3, 2)
    assert x.tile(dims=(2, 1)).shape == x.repeat(repeats=(2, 1)).shape == (4, 3)
    assert x[:1].expand(size=(4, 3)).shape == (4, 3)
    assert x.flip(dims=[0]).tolist() == x.flip(0).tolist()
    make: Any = Tensor
    for function in (make.zeros, make.ones, make.rand, make.randn, make.empty):
        assert function(size=(2, 3)).shape == function(shape=(2, 3)).shape == (2, 3)
    assert make.randint(low=0, high=5, size=(2,)).shape == (2,)
    assert make.normal(mean=1, std=0, size=(2,)).tolist() == [1, 1]
    with pytest.raises(TypeError, match=r"\[reshape\] 'shape' is there already, by place"):
        x.reshape(3, 2, shape=(3, 2))
    # Names in a pattern are its own.
    assert x.repeat("h w -> h w repeats", repeats=2).shape == (2, 3, 2)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda x: x.sum(keep_dim=True), "[sum] got an unexpected keyword argument 'keep_dim'; did "
         "you mean keepdim? It takes axis, keepdim, dtype"),
        (lambda x: x.dropout(rate=0.5), "[dropout] got an unexpected keyword argument 'rate'; it "
         "takes p, training"),
        (lambda x: x.add(x, out=x), "write the result with assign: y.assign(x); it takes other"),
        (lambda x: Tensor([1], dtypes=3), "Tensor got an unexpected keyword argument 'dtypes'; did "
         "you mean dtype? It takes data, device, dtype, requires_grad"),
        (lambda x: Tensor.zeros(2, dtyp=3), "did you mean dtype? It takes device, dtype, requires"),
        (lambda x: x.relu(2), "Tensor.relu() takes 1 positional argument but 2 were given"),
        (lambda x: nn.Linear(2, 2, biass=False), "Linear got an unexpected keyword argument "
         "'biass'; did you mean bias? It takes in_features, out_features, bias, dtype, device"),
        (lambda x: nn.Conv2d(3, 4), "Conv2d(in_channels, out_channels, kernel_size, stride=1, pad"),
        (lambda x: nn.Linear(2, 2, False, "CPU"), "device=None): too many positional arguments"),
        (lambda x: nn.MaxPool2d(2, stide=1), "MaxPool2d got an unexpected keyword argument"),
        (lambda x: optim.SGD([x], learning_rate=1), "argument 'learning_rate'; its name is lr; it "
         "takes params, lr, momentum"),
        (lambda x: optim.Adam(lr=1), "Adam(params, lr=0.001, betas=(0.9, 0.999), eps=1e-08, "),
        (lambda x: optim.lr_scheduler.StepLR(optim.SGD([x]), step=1), "StepLR got an unexpected "
         "keyword argument 'step'; did you mean step_size?"),
        (lambda x: optim.lr_scheduler.ReduceLROnPlateau(optim.SGD([x]), tol=1), "ReduceLROnPlateau "
         "got an unexpected keyword argument 'tol'; it takes optimizer, mode, factor"),
        (lambda x: nn.utils.clip_grad_norm_(x, maxnorm=1), "did you mean max_norm? It takes param"),
        (lambda x: ferrule.grad(Tensor.sum, argnum=0), "grad got an unexpected keyword argument "
         "'argnum'; did you mean argnums? It takes function, argnums, has_aux"),
        (lambda x: ferrule.vmap(Tensor.sum, in_axis=0), "[vmap] got an unexpected keyword"),
        (lambda x: ferrule.TinyJit(Tensor.sum, prune=True), "'prune'; it takes fxn"),
    ],
)  # fmt: skip
def test_what_a_call_could_have_been(use: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        use(Tensor([1.0]))


def test_a_function_that_fails_inside_is_not_misunderstood() -> None:
    """Its own mistakes are no mistakes of the call."""

    def wrong(x: Tensor) -> Tensor:
        return x.sum(0, False, None, 3)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match=r"^Tensor\.sum\(\) takes from 1 to 4 positional"):
        ferrule.vjp(wrong, Tensor([1.0]))
