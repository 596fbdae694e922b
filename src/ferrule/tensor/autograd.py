"""Gradients of tensors: `.grad`, `backward`, `gradient`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, Self, final
from weakref import WeakKeyDictionary, ref

from ferrule.autograd import (
    GradEdge,
    GradientError,
    Leaf,
    Rule,
    Shape,
    TracedValue,
    no_grad,
    record,
)
from ferrule.autograd.backward import Hook, hooks, pull_back
from ferrule.base.callbacks import call_back
from ferrule.base.changes import changes
from ferrule.ir.shape.view import ShapeError, prod_sint
from ferrule.ir.storage import turn
from ferrule.tensor.base import Tensor
from ferrule.tensor.keywords import method

_CONTIGUOUS = Rule(lambda grad, _: (grad.contiguous(),))
_CLONE = Rule(lambda grad, _: (grad,))
_numbers = count()
_retaining: Final[WeakKeyDictionary[GradEdge, list[ref[Tensor]]]] = WeakKeyDictionary()
"""By the edge at which a gradient arrives, the tensors that keep it though they are no leaves."""


@final
class HookHandle:
    """The result of `Tensor.register_hook`: `remove()` or a `with` block ends the hook."""

    __slots__ = ("_edge", "_number")

    def __init__(self, edge: GradEdge, number: int) -> None:
        self._edge = ref(edge)
        self._number = number

    def remove(self) -> None:
        """End the hook; a second call changes nothing."""
        edge = self._edge()
        found = None if edge is None else hooks.get(edge)
        if edge is None or found is None:
            return
        found.pop(self._number, None)
        if not found:
            del hooks[edge]
        changes.count += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


@method
def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    """Sets `requires_grad`, and returns the tensor.

    >>> from ferrule import Tensor
    >>> Tensor([1.0]).requires_grad_().requires_grad
    True
    """
    self.requires_grad = requires_grad
    return self


@method
def zero_grad(self: Tensor) -> None:
    """Forgets the gradient.

    >>> from ferrule import Tensor
    >>> x = Tensor([1.0], requires_grad=True)
    >>> x.sum().backward().zero_grad()
    >>> x.zero_grad()
    >>> x.grad is None
    True
    """
    self._grad = None
    changes.count += 1


@method
def detach(self: Tensor) -> Tensor:
    """The same memory off the tape: operations on it are not recorded.

    >>> from ferrule import Tensor
    >>> (Tensor([1.0], requires_grad=True).detach() * 2).requires_grad
    >>>
    """
    tensor = self._same_handle()
    tensor._detached = True
    tensor._note_whole()
    return tensor


@method
def clone(self: Tensor) -> Tensor:
    """The same elements in memory of its own; gradients flow through.

    >>> from ferrule import Tensor
    >>> x = Tensor([1, 2])
    >>> y = x.clone()
    >>> y[0] = 5
    >>> x.tolist()
    [1, 2]
    """
    value = self._read()
    if value.node.owns_memory:
        self._cell.own()  # else the copy, if it is written first, would keep the memory
    return self._wrap(record("clone", _CLONE, (value,), value.node, None))


@method
def contiguous(self: Tensor) -> Tensor:
    """The same elements in memory of its own, row-major; later operations do not fuse with it.

    >>> from ferrule import Tensor
    >>> Tensor([[1, 2], [3, 4]]).T.contiguous().tolist()
    [[1, 3], [2, 4]]
    """
    return self._wrap(self._read().contiguous())


@method
def contiguous_backward(self: Tensor) -> Tensor:
    """The same elements, as a copy whose gradient gets memory of its own before it flows on.

    >>> from ferrule import Tensor
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> loss = (x.contiguous_backward() * 3).sum().backward()
    >>> x.grad.tolist()
    [3.0, 3.0]
    """
    value = self._read()
    return self._wrap(record("contiguous_backward", _CONTIGUOUS, (value,), value.node, None))


@method
def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> Tensor:
    """Adds the gradients of this tensor to `.grad` of all tensors below that require one.

    `gradient` is this tensor's own; for one element the default is 1. The tape below is freed
    unless `retain_graph`. With `create_graph`, which retains it too, the gradients can be
    differentiated again. `inputs` are the only tensors whose `.grad` changes, if given; results
    of operations may be among them.

    Raises `GradientError` if nothing was recorded, or it was freed before.

    >>> from ferrule import Tensor
    >>> x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> _ = (x * x).sum().backward()
    >>> x.grad.tolist()
    [2.0, 4.0, 6.0]
    """
    value = self._read()
    if value.edge is None:
        raise GradientError(
            f"[backward] this tensor of shape {self._shape} does not depend on one that "
            "requires a gradient; make the parameters with requires_grad=True, and compute "
            "outside Tensor.no_grad(); a function captured by TinyJit calls backward() itself"
        )
    seed = _seed(self, gradient, "backward")
    retain = create_graph if retain_graph is None else retain_graph
    owners = None if inputs is None else _by_edge(inputs)
    found = pull_back(
        [value], [seed], owners, retain=retain, create_graph=create_graph, kept=_retaining
    )
    for edge, grad in found.items():
        for tensor in _owners(edge) if owners is None else owners[edge]:
            if isinstance(tensor, Tensor):
                _accumulate(tensor, grad)
    return self


@method
def register_hook(self: Tensor, hook: Callable[[Any], Tensor | None]) -> HookHandle:
    """Calls `hook(gradient)` once a backward pass has this tensor's whole gradient; what it
    returns, or else its argument, is the gradient from there on. `remove()` of the result ends
    that.

    The hook belongs to the value that the tensor has now. Hooks run in the order in which they
    were registered. In a captured function what a hook computes is replayed, the hook itself
    is not called again; one more or less on a parameter is captured anew.

    Raises `GradientError` for a tensor that does not require a gradient.

    >>> from ferrule import Tensor
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> y = x * 3
    >>> handle = y.register_hook(lambda grad: grad.clamp(-1, 1))
    >>> _ = (y * 10).sum().backward()
    >>> x.grad.tolist()
    [3.0, 3.0]
    """
    edge = _required_edge(self, "register_hook")
    shape, wrap = self._shape, self._wrap

    def run(grad: TracedValue) -> TracedValue:
        given = wrap(grad)
        found = call_back(hook, given)
        if found is None:
            found = given
        if not isinstance(found, Tensor):
            raise TypeError(f"[register_hook] a hook returns a Tensor or None, not {found!r}")
        if found._shape != shape:
            raise ShapeError(
                f"[register_hook] a hook returned a gradient of shape {found._shape} for a "
                f"tensor of shape {shape}"
            )
        return found._read().cast(grad.dtype)

    number = next(_numbers)
    hooks.setdefault(edge, {})[number] = Hook(run, hook)
    changes.count += 1
    return HookHandle(edge, number)


@method
def retain_grad(self: Tensor) -> None:
    """From now on `backward` adds to the `.grad` of this tensor too, though it is the result of
    operations. For a leaf, which has its gradient anyway, this changes nothing.

    Raises `GradientError` for a tensor that does not require a gradient.

    >>> from ferrule import Tensor
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> y = x * 3
    >>> y.retain_grad()
    >>> _ = (y * y).sum().backward()
    >>> y.grad.tolist()
    [6.0, 12.0]
    """
    edge = _required_edge(self, "retain_grad")
    if not self.retains_grad and not isinstance(edge, Leaf):
        _retaining.setdefault(edge, []).append(ref(self))


def _required_edge(self: Tensor, what: str) -> GradEdge:
    edge = self._read().edge
    if edge is None:
        raise GradientError(
            f"[{what}] this tensor of shape {self._shape} does not require a gradient; make it "
            "with requires_grad=True, or compute it from one that does"
        )
    return edge


def _accumulate(self: Tensor, grad: TracedValue) -> None:
    before = self._grad
    if before is None or grad.edge is not None:
        self._grad = self._wrap(grad if before is None else before._read() + grad)
        changes.count += 1
        return
    with no_grad(), turn:
        before._store(before._read() + grad, "backward")


def _seed(self: Tensor, gradient: Tensor | None, what: str) -> TracedValue:
    value = self._read()
    if gradient is not None:
        if gradient._shape != value.shape:
            raise ShapeError(
                f"[{what}] a gradient of shape {gradient._shape} does not fit a tensor of "
                f"shape {value.shape}"
            )
        return gradient._read().cast(value.dtype)
    if prod_sint(self._shape) != 1:
        raise ShapeError(
            f"[{what}] a tensor of shape {self._shape} is not one element; reduce it first, "
            "for example by .sum(), or pass the gradient of this tensor"
        )
    return value.full(1)


@method
def gradient(
    self: Tensor,
    *targets: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool = True,
    create_graph: bool = False,
) -> list[Tensor]:
    """The gradients of this tensor with respect to the targets; no `.grad` is changed.

    A target is any tensor that this one was computed from, and that requires a gradient. With
    `create_graph` the gradients can be differentiated again.

    Raises `GradientError` for a target that this tensor does not depend on.

    >>> from ferrule import Tensor
    >>> x = Tensor([3.0], requires_grad=True)
    >>> (g,) = (x * x * x).gradient(x, create_graph=True)
    >>> g.item(), g.gradient(x)[0].item()
    (27.0, 18.0)
    """
    value = self._read()
    for target in targets:
        if not isinstance(target, Tensor):
            raise TypeError(f"[gradient] the target {target!r:.60} is no tensor")
    edges = [target._read().edge for target in targets]
    wanted = [edge for edge in edges if edge is not None]
    seed = _seed(self, gradient, "gradient")
    found = pull_back([value], [seed], wanted, retain=retain_graph, create_graph=create_graph)
    return [
        self._wrap(_found(found, edge, position, target._shape))
        for position, (edge, target) in enumerate(zip(edges, targets, strict=True))
    ]


def check_gradient(self: Tensor, value: object) -> None:
    """Raises for what cannot be the `.grad` of a tensor."""
    if value is None:
        return
    if not isinstance(value, Tensor):
        raise TypeError(f"[grad] a gradient is a Tensor or None, not {type(value)}")
    if value._shape != self._shape:
        raise ShapeError(
            f"[grad] a gradient of shape {value._shape} does not fit a tensor of shape "
            f"{self._shape}"
        )


def retains_grad(self: Tensor) -> bool:
    """True if a tensor is no leaf and keeps its gradient all the same."""
    edge = self._read().edge
    return edge is not None and any(tensor() is self for tensor in _retaining.get(edge, ()))


def _owners(edge: GradEdge) -> list[object]:
    """The tensors whose `.grad` a gradient is added to."""
    if isinstance(edge, Leaf):
        return [edge.owner()]
    return [tensor() for tensor in _retaining.get(edge, ())]


def _by_edge(inputs: Tensor | Sequence[Tensor]) -> dict[GradEdge, list[Tensor]]:
    """The tensors by the edge at which their gradient arrives."""
    found: dict[GradEdge, list[Tensor]] = {}
    given = [inputs] if isinstance(inputs, Tensor) else inputs
    for position, tensor in enumerate(given):
        edge = tensor._read().edge
        if edge is None:
            raise GradientError(
                f"[backward] input {position}, of shape {tensor._shape}, does not require a "
                "gradient; make it with requires_grad=True before computing with it"
            )
        found.setdefault(edge, []).append(tensor)
    return found


def _found(
    found: dict[GradEdge, TracedValue], edge: GradEdge | None, position: int, shape: Shape
) -> TracedValue:
    if edge is None:
        raise GradientError(
            f"[gradient] target {position}, of shape {shape}, does not require a gradient; "
            "make it with requires_grad=True before computing with it"
        )
    if edge not in found:
        raise GradientError(
            f"[gradient] the tensor does not depend on target {position}, of shape {shape}; "
            "its gradient would be zeros: use Tensor.zeros_like(target)"
        )
    return found[edge]
