"""Index signatures: where and how often a kernel would evaluate a node, counted before lowering.

A `Space` is the index space of one kernel, or of several of one shape. Its ranges are numbered: one
for each axis of the output, and one for each axis that a fused reduce combines. A *component* is
a number for one entry of an index tuple. It stands for "some function of these ranges", and equal
numbers are equal functions. A *signature* is a tuple of components, one for each axis of the node:
the index at which the kernel wants the node. Movement ops turn the signature of their result into
that of their source.

The range of a reduce opens inside all loops that the reduce's own value depends on. So a value at
components with the ranges R is evaluated once for each iteration of R and of the loops around R:
`evals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import Any, TypeAlias, final

from ferrule.ir.expr import as_int, sint
from ferrule.ir.lazy import LazyBuffer
from ferrule.ir.lazyop import LoadOps, MovementOps, ReduceOps

Signature: TypeAlias = tuple[int, ...]
Digits: TypeAlias = tuple[tuple[int, sint], ...]

# Ranges from which on a space takes no further kernel. Sets of ranges are integers with one bit for
# each, which are fast up to 64 bits.
_MAX_RANGES = 64
ZERO = 0
"""The component of an axis with one element; other constant indices have numbers of their own."""
_LAST = 1
"""The component of a window's axis under a running total, which adds only the last element."""


@lru_cache(maxsize=4096)
def axis_groups(
    shape: tuple[sint, ...], source: tuple[sint, ...]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """The smallest groups of axes of `shape` and of `source` that cover the same elements."""
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    ours = [axis for axis, size in enumerate(shape) if size != 1]
    theirs = [axis for axis, size in enumerate(source) if size != 1]
    i = j = 0
    while i < len(ours) and j < len(theirs):
        first, begin = i, j
        left, right = shape[ours[i]], source[theirs[j]]
        i, j = i + 1, j + 1
        while left != right and (i < len(ours) or j < len(theirs)):
            behind = _upper(left) <= _upper(right)
            if i < len(ours) and (behind or j == len(theirs)):
                left = as_int(left * shape[ours[i]])
                i += 1
            else:
                right = as_int(right * source[theirs[j]])
                j += 1
        groups.append((tuple(ours[first:i]), tuple(theirs[begin:j])))
    return tuple(groups)


def _upper(size: sint) -> int:
    return size if isinstance(size, int) else size.max


@final
class Space:
    """The ranges and index components of one kernel."""

    def __init__(self, shape: Sequence[sint]) -> None:
        self._sizes: list[int] = []
        self._around: list[int] = []  # for each range, the ranges whose loops are around it
        self._masks: list[int] = [0, 0]  # for each component, its ranges, as bits
        self._keys: list[Any] = [None, None]
        self._ids: dict[Any, int] = {}
        self._evals: dict[int, int] = {0: 1}
        self._closures: dict[int, int] = {0: 0}
        self.identity: Signature = tuple([self.new_range(size, 0) for size in shape])
        self.outputs = (1 << len(self._sizes)) - 1
        self.size = self.evals(self.outputs)
        self.digits = self.digits_of(self.identity, tuple(shape))

    @property
    def has_room(self) -> bool:
        """True if another kernel of the same shape may use this space, too."""
        return len(self._sizes) < _MAX_RANGES

    # -- ranges ----------------------------------------------------------------------------------

    def new_range(self, size: sint, around: int) -> int:
        """The component of a fresh range, inside the loops of the ranges `around`."""
        if size == 1:
            return ZERO
        bit = len(self._sizes)
        self._sizes.append(_upper(size))
        self._around.append(self.closure(around))
        return self._component(("range", bit), 1 << bit)

    def ranges(self, signature: Signature) -> int:
        """The ranges that an index depends on, as bits."""
        mask = 0
        for component in signature:
            mask |= self._masks[component]
        return mask

    def is_range(self, component: int) -> bool:
        """True if a component is a range, and no other function of ranges."""
        key = self._keys[component]
        return key is not None and key[0] == "range"

    def is_inner_range(self, component: int) -> bool:
        """True if a component is a range that a reduce of the kernel combines over."""
        return self.is_range(component) and not self._masks[component] & self.outputs

    def is_in_order(self, component: int) -> bool:
        """True if the loops of one range, or of adjacent ones, visit an axis from first to last."""
        key = self._keys[component]
        if key is None or key[0] not in ("merge", "split"):
            return key is None or key[0] == "range"
        parts = [self._keys[part] for part, _ in key[1]]
        if any(part is None or part[0] != "range" for part in parts):
            return False
        bits = [part[1] for part in parts]
        together = bits == list(range(bits[0], bits[0] + len(bits)))
        return together and (key[0] == "merge" or len(bits) == 1)

    def closure(self, ranges: int) -> int:
        """`ranges` and all ranges whose loops are around theirs."""
        found = self._closures.get(ranges)
        if found is None:
            found = rest = ranges
            while rest:
                low = rest & -rest
                found |= self._around[low.bit_length() - 1]
                rest ^= low
            self._closures[ranges] = found
        return found

    def evals(self, ranges: int) -> int:
        """The number of evaluations of a value that depends on `ranges`."""
        count = self._evals.get(ranges)
        if count is None:
            count = 1
            rest = self.closure(ranges)
            while rest:
                low = rest & -rest
                count *= self._sizes[low.bit_length() - 1]
                rest ^= low
            self._evals[ranges] = count
        return count

    def evals_at(self, signature: Signature) -> int:
        """The number of evaluations of a value at an index."""
        count = self.evals(self.ranges(signature))
        for component in signature:
            count = -(-count // self._skipped(component))
        return count

    def _skipped(self, component: int) -> int:
        """The stride of an UNWINDOW whose windows leave no gaps; 1 for other components.

        A place meets only each `stride`-th element of the windows (one phase), so that lowering
        leaves the other evaluations out.
        """
        name, components = self._unshifted(component)
        if not isinstance(name, tuple) or name[0] is not MovementOps.UNWINDOW:
            return 1
        _, _, stride, dilation = name[1]
        places, elements = (self._unshifted(c) for c in components)
        if places[0] != "range" or elements[0] != "range" or gcd(stride, dilation) != 1:
            return 1
        size = self._sizes[elements[1]]
        return int(stride) if size >= stride else 1

    def _unshifted(self, component: int) -> Any:
        """The name and the parts of a component's key, without an offset."""
        key = self._keys[component]
        while key is not None and isinstance(key[0], tuple) and key[0][0] == "shift":
            key = self._keys[key[1][0]]
        return (None, ()) if key is None else key[:2]

    # -- components ------------------------------------------------------------------------------

    def _component(self, key: Any, mask: int) -> int:
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._masks)
            self._masks.append(mask)
            self._keys.append(key)
        return found

    def _function(self, name: Any, *components: int) -> int:
        """The component of a function of components; equal arguments give the same number."""
        mask = 0
        for component in components:
            mask |= self._masks[component]
        return self._component((name, components), mask)

    def _shift(self, component: int, offset: sint) -> int:
        key = self._keys[component]
        if key is not None and isinstance(key[0], tuple) and key[0][0] == "shift":
            offset = as_int(offset + key[0][1])
            component = key[1][0]
        if offset == 0:
            return component
        return self._function(("shift", offset), component)

    def digits_of(self, signature: Signature, shape: Sequence[sint]) -> Digits:
        """The digits of an index that is written as one number, the most significant first."""
        digits: list[tuple[int, sint]] = []
        for component, size in zip(signature, shape, strict=True):
            if size != 1:
                digits.extend(self._digits(component, size))
        return tuple(digits)

    def _digits(self, component: int, size: sint) -> Digits:
        key = self._keys[component]
        if key is not None and key[0] == "merge" and key[2] == size:
            digits: Digits = key[1]
            return digits
        return ((component, size),)

    def _merge(self, digits: Sequence[tuple[int, sint]], size: sint) -> int:
        digits = self._rejoined(tuple(digits))
        if len(digits) == 1:
            return digits[0][0]
        mask = self.ranges(tuple([component for component, _ in digits]))
        return self._component(("merge", digits, size), mask)

    def _rejoined(self, digits: Digits) -> Digits:
        """The digits with all parts of a split, in order, replaced by the digits before it."""
        key = self._keys[digits[0][0]] if digits else None
        if key is None or key[0] != "split":
            return digits
        whole, sizes = key[1], key[2]
        parts = [(component, size) for component, size in digits[: len(sizes)]]
        wanted = [(self._split_part(whole, sizes, place), n) for place, n in enumerate(sizes)]
        return (*whole, *digits[len(sizes) :]) if parts == wanted else digits

    def _split_part(self, whole: Digits, sizes: tuple[sint, ...], place: int) -> int:
        mask = self.ranges(tuple([component for component, _ in whole]))
        return self._component(("split", whole, sizes, place), mask)

    def _split(self, whole: Digits, sizes: tuple[sint, ...]) -> list[int]:
        """The components of axes of `sizes`, none of them 1, that count through `whole`."""
        out: list[int] = []
        rest = list(whole)
        for size in reversed(sizes):
            taken: list[tuple[int, sint]] = []
            product: sint = 1
            while rest and product != size and _upper(product) < _upper(size):
                digit = rest.pop()
                taken.insert(0, digit)
                product = as_int(product * digit[1])
            if product != size:
                return [self._split_part(whole, sizes, place) for place in range(len(sizes))]
            out.insert(0, self._merge(taken, size))
        return out

    # -- movements -------------------------------------------------------------------------------

    def source_signature(
        self, node: LazyBuffer, signature: Signature, place: int, runs: bool = False
    ) -> Signature:
        """The index of source number `place`, if `node` is wanted at `signature`.

        A running total that `runs` adds one element to the total before it.
        """
        op = node.op
        if isinstance(op, MovementOps):
            return self._moved(node, signature, place)
        if isinstance(op, ReduceOps) and op is not ReduceOps.SCATTER:
            return (*signature[:-1], _LAST) if runs else self._reduced(node, signature)
        return signature

    def _reduced(self, node: LazyBuffer, signature: Signature) -> Signature:
        """Fresh ranges for the reduced axes, for each index at which the reduce is wanted."""
        around = self.ranges(signature)
        body = node.srcs[0].shape
        return tuple(
            [
                component if size == whole else self.new_range(whole, around)
                for component, size, whole in zip(signature, node.shape, body, strict=True)
            ]
        )

    def _moved(self, node: LazyBuffer, signature: Signature, place: int) -> Signature:
        arg = node.arg
        source = node.srcs[0]
        match node.op:
            case MovementOps.RESHAPE:
                return self._reshaped(node, signature)
            case MovementOps.PERMUTE:
                out = [ZERO] * len(signature)
                for component, axis in zip(signature, arg, strict=True):
                    out[axis] = component
                return tuple(out)
            case MovementOps.EXPAND:
                pairs = zip(signature, source.shape, strict=True)
                return tuple([ZERO if size == 1 else component for component, size in pairs])
            case MovementOps.SHRINK:
                starts = [start for start, _ in arg]
                return self._shifted(signature, starts, source)
            case MovementOps.PAD:
                return self._shifted(signature, [as_int(-before) for before, _ in arg], source)
            case MovementOps.STRIDE:
                return tuple(
                    [
                        component if step == 1 else self._function(("step", step, size), component)
                        for component, step, size in zip(signature, arg, source.shape, strict=True)
                    ]
                )
            case MovementOps.WINDOW | MovementOps.UNWINDOW:
                axis, size = arg[:2]
                if signature[-1] == _LAST:
                    moved = self._shift(signature[axis], size - 1)
                else:
                    moved = self._function((node.op, arg), signature[axis], signature[-1])
                keep = len(source.shape) - len(signature)
                kept = signature[: len(signature) + keep]
                return (*kept[:axis], moved, *kept[axis + 1 :])
            case MovementOps.GATHER:
                if place == 1:
                    return signature
                taken = self._function(("gather", node.srcs[1].serial), *signature)
                return (*signature[:arg], taken, *signature[arg + 1 :])
            case _:
                axes = range(len(source.shape))
                return tuple([self._function((node.op, arg, axis), *signature) for axis in axes])

    def _shifted(
        self, signature: Signature, offsets: Sequence[sint], source: LazyBuffer
    ) -> Signature:
        return tuple(
            [
                ZERO if size == 1 else self._shift(component, offset)
                for component, offset, size in zip(signature, offsets, source.shape, strict=True)
            ]
        )

    def _reshaped(self, node: LazyBuffer, signature: Signature) -> Signature:
        shape, source = node.shape, node.srcs[0].shape
        out = [ZERO] * len(source)
        for ours, theirs in axis_groups(shape, source):
            if len(ours) == len(theirs) == 1:
                out[theirs[0]] = signature[ours[0]]
                continue
            digits: list[tuple[int, sint]] = []
            for axis in ours:
                digits.extend(self._digits(signature[axis], shape[axis]))
            sizes = tuple([source[axis] for axis in theirs])
            parts = self._split(self._rejoined(tuple(digits)), sizes)
            for axis, component in zip(theirs, parts, strict=True):
                out[axis] = component
        return tuple(out)


def ranges_shape(node: LazyBuffer) -> tuple[sint, ...]:
    """The shape that the kernel of a root loops over: for a SCATTER the shape of its source."""
    return node.srcs[0].shape if node.op is ReduceOps.SCATTER else node.shape


def is_pass_through(node: LazyBuffer) -> bool:
    """True if a root has the value of its source, at the same index."""
    return node.op in (LoadOps.ASSIGN, LoadOps.CONTIGUOUS)
