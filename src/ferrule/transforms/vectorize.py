"""`vmap`: from a function of one example to a function of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from ferrule.autograd import TracedValue, is_recording, transforming
from ferrule.base.callbacks import call_back
from ferrule.base.containers import filled, leaves, mapped, matching
from ferrule.base.helpers import check_function
from ferrule.engine.random import Words, drawn_by
from ferrule.ir.expr import sint
from ferrule.ir.shape.view import ShapeError, same
from ferrule.tensor import Tensor
from ferrule.tensor.cell import StorageRef, watch_writes
from ferrule.tensor.keywords import with_synonyms
from ferrule.transforms.batching import Batch, VmapError
from ferrule.transforms.trace import as_tensor

Axes = Any
"""An axis, None, or containers of them."""


@with_synonyms
def vmap(
    function: Callable[..., Any],
    in_axes: Axes = 0,
    out_axes: Axes = 0,
    randomness: Literal["different", "same", "error"] = "different",
) -> Callable[..., Any]:
    """The function that calls `function` on each part of its arguments, and stacks the results.

    The results are those of a loop, computed as one batch: `function` runs once, on tensors without
    the mapped axis. `in_axes` names the mapped axis of each argument: one number for all arguments,
    or a tuple with an entry for each. An entry of None passes the argument whole; a container of
    numbers names the axes in an argument that is such a container. `out_axes` names the position of
    the axis in the results, in the same way. Keyword arguments are passed whole.

    In the function random numbers differ from lane to lane; they are equal with `randomness`
    "same", and drawing raises with "error". In-place writes to mapped arguments stay inside.
    Functions on the host run lane by lane. `in_dims`, `out_dims` are synonyms of `in_axes`,
    `out_axes`.

    Raises `ShapeError` if the sizes of the mapped axes differ, `VmapError` if the function reads
    the values of a mapped tensor, or writes one to a tensor from outside.

    >>> import ferrule
    >>> x = ferrule.Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> ferrule.vmap(lambda row: row.flip(0) / row.sum(), in_axes=1)(x).tolist()
    [[0.75, 0.25], [0.6666666865348816, 0.3333333432674408]]
    """
    check_function(function, "vmap")
    if randomness not in ("different", "same", "error"):
        raise ValueError(f'[vmap] randomness is "different", "same" or "error", not {randomness!r}')

    @functools.wraps(function)
    def over_all(*args: Any, **kwargs: Any) -> Any:
        form = mapped(args, as_tensor)
        values = list(leaves(form))
        lanes, fronts = _lanes(values, _axes_of(in_axes, form))
        with watch_writes() as before, transforming(is_recording()), _drawing(lanes, randomness):
            entered = [
                leaf if front is None else Tensor._wrap(lanes.enter(front))
                for leaf, front in zip(values, fronts, strict=True)
            ]
            result = call_back(function, *filled(form, iter(entered)), **kwargs)
        _check_writes(lanes, before)
        return _stacked(lanes, result, out_axes)

    return over_all


def _drawing(lanes: Batch, randomness: str) -> AbstractContextManager[None]:
    """A block in which random numbers are drawn as `randomness` says."""
    if randomness == "different":
        return lanes.drawing()
    return drawn_by(_refuse) if randomness == "error" else nullcontext()


def _refuse(shape: Sequence[sint], device: str) -> Words:
    raise VmapError(
        f"[vmap] the function draws random numbers, of shape {tuple(shape)}, which "
        'randomness="error" forbids; choose "different" or "same"'
    )


def _check_writes(lanes: Batch, before: Mapping[StorageRef, TracedValue]) -> None:
    """Withdraw writes of mapped values to memory from outside, and raise if there were any."""
    for cell, old in before.items():
        if lanes.mapped(cell.value.node):
            cell.restore(old)
            raise VmapError(
                f"[vmap] the function writes a mapped value to a tensor from outside, of shape "
                f"{old.shape}, which cannot hold one for each lane; return the value"
            )


def _axes_of(axes: Axes, form: tuple[Any, ...]) -> list[int | None]:
    """The axis of each leaf of the arguments, in order; None for a leaf that is passed whole."""
    if isinstance(axes, list):
        axes = tuple(axes)
    if isinstance(axes, tuple) and len(axes) != len(form):
        raise ValueError(
            f"[vmap] in_axes={axes} has {len(axes)} axes, and the function was called with "
            f"{len(form)} positional arguments; give one for each, None for what is not mapped"
        )
    found = matching(axes, form, "[vmap] in_axes", prefix=True)
    for axis in found:
        if axis is not None and type(axis) is not int:
            raise ValueError(f"[vmap] in_axes holds {axis!r}; axes are integers, or None")
    return found


def _lanes(
    leaves_in: Sequence[Any], axes: Sequence[int | None]
) -> tuple[Batch, list[TracedValue | None]]:
    """The lanes, and each mapped leaf with the mapped axis in front."""
    fronts: list[TracedValue | None] = []
    sizes: list[tuple[sint, Tensor, int]] = []
    for leaf, axis in zip(leaves_in, axes, strict=True):
        if axis is None or not isinstance(leaf, Tensor):
            fronts.append(None)
            continue
        value = leaf._read()
        if not -len(value.shape) <= axis < len(value.shape):
            raise ShapeError(
                f"[vmap] in_axes: axis {axis} is out of range for an argument of shape "
                f"{value.shape}; pass it whole with in_axes None in its place"
            )
        sizes.append((value.shape[axis], leaf, axis))
        fronts.append(_moved(value, axis % len(value.shape), 0))
    if not sizes:
        raise ValueError(
            "[vmap] no argument has a mapped axis: give a tensor, and an axis for it in in_axes"
        )
    size, tensor, axis = sizes[0]
    for other, leaf, place in sizes[1:]:
        if not same(size, other):
            raise ShapeError(
                f"[vmap] the mapped axes differ in size: axis {axis} of shape {tensor.shape} has "
                f"{size}, axis {place} of shape {leaf.shape} has {other}"
            )
    return Batch(size), fronts


def _moved(value: TracedValue, source: int, place: int) -> TracedValue:
    """The value with one axis moved to another position."""
    order = [axis for axis in range(len(value.shape)) if axis != source]
    order.insert(place, source)
    return value if order == sorted(order) else value.permute(order)


def _stacked(lanes: Batch, result: Any, out_axes: Axes) -> Any:
    """The results for all lanes, in the containers of the results for one."""
    found = list(leaves(result))
    axes = matching(out_axes, result, "[vmap] out_axes", prefix=True)
    for leaf in found:
        if leaf is not None and not isinstance(leaf, Tensor):
            raise VmapError(
                f"[vmap] the mapped function returned {leaf!r:.40} ({type(leaf).__name__}); it "
                "returns tensors, or None, in tuples, lists and dicts"
            )
    tensors = [leaf for leaf in found if leaf is not None]
    wide = iter(lanes.leave([tensor._read() for tensor in tensors]))
    placed = [
        None if leaf is None else _placed(next(wide), axis)
        for leaf, axis in zip(found, axes, strict=True)
    ]
    return filled(result, iter(placed))


def _placed(value: TracedValue, axis: Any) -> Tensor:
    rank = len(value.shape)
    if type(axis) is not int or not -rank <= axis < rank:
        raise ShapeError(
            f"[vmap] out_axes: {axis} is no place for the mapped axis in a result of "
            f"{rank} axes; use {-rank} to {rank - 1}"
        )
    return Tensor._wrap(_moved(value, 0, axis % rank))
