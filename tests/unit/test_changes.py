"""What captured functions have to notice of tensors is counted, and what they need not is not."""

from collections.abc import Callable

import pytest

from ferrule.base.changes import changes
from ferrule.nn.optim import SGD
from ferrule.tensor import Tensor


def parameter() -> Tensor:
    return Tensor([1.0, 2.0]).realize().requires_grad_()


def written(x: Tensor) -> None:
    with Tensor.no_grad():
        x.assign(x * 2)


def a_part(x: Tensor) -> None:
    with Tensor.no_grad():
        x[0] = 5.0


def stepped(x: Tensor) -> None:
    optimizer = SGD([x], lr=0.1)
    x.grad = Tensor([1.0, 1.0])
    before = changes.count
    with Tensor.train():
        optimizer.step()
    assert changes.count > before


def added_to(x: Tensor) -> None:
    (x * 3).sum().backward()


NOTICED: list[Callable[[Tensor], object]] = [
    *(written, a_part, stepped, added_to),
    lambda x: x.replace(Tensor([3.0, 4.0])),
    lambda x: x.detach().assign(Tensor([3.0, 4.0])),
    lambda x: x.requires_grad_(False),
    lambda x: setattr(x, "requires_grad", None),
    lambda x: setattr(x, "grad", Tensor([1.0, 1.0])),
    lambda x: x.zero_grad(),
    lambda x: x.register_hook(lambda gradient: gradient),
]


@pytest.mark.parametrize("number", range(len(NOTICED)))
def test_a_change_of_a_tensor_counts(number: int) -> None:
    x = parameter()
    before = changes.count
    NOTICED[number](x)
    assert changes.count > before


def test_a_tensor_that_begins_to_collect_a_gradient_counts() -> None:
    x = Tensor([1.0, 2.0]).realize()
    before = changes.count
    x.requires_grad_()
    assert changes.count > before


def test_the_end_of_a_hook_counts() -> None:
    x = parameter()
    handle = x.register_hook(lambda gradient: gradient)
    before = changes.count
    handle.remove()
    assert changes.count > before


def test_new_tensors_and_reads_do_not_count() -> None:
    x = parameter()
    before = changes.count
    y = (x.detach() * 2 + 1).realize()
    assert y.tolist() == [3.0, 5.0]
    assert Tensor([1.0])[0].item() == 1.0
    assert changes.count == before
