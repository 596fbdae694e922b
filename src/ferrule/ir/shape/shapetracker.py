"""`ShapeTracker`: the layout of a realised buffer under the name that users of kernels know.

It holds one `View`. A movement that no single View describes raises `ShapeError`: it stays a node
of the graph, or the buffer is copied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from ferrule.base.records import dataclass
from ferrule.ir.expr import Expr, Variable, sint, unbind
from ferrule.ir.shape.view import Mask, Shape, ShapeError, View

_NO_VIEW: Final = "strides cannot say it; make a contiguous copy first"


@final
@dataclass(frozen=True)
class ShapeTracker:
    """The places of a shaped tensor's elements in a flat buffer; immutable.

    >>> st = ShapeTracker.from_shape((2, 3)).permute((1, 0))
    >>> st.shape, st.view.strides, st.contiguous
    ((3, 2), (1, 3), False)
    """

    view: View

    @staticmethod
    def from_shape(shape: Sequence[sint]) -> ShapeTracker:
        """A dense, row-major buffer; raises `ShapeError` for a negative size."""
        return ShapeTracker(View.create(shape))

    # -- properties ------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """The size of each axis."""
        return self.view.shape

    @property
    def views(self) -> tuple[View, ...]:
        """The views, the innermost first: always one."""
        return (self.view,)

    @property
    def contiguous(self) -> bool:
        """True for a whole dense buffer, row-major from its start."""
        return self.view.contiguous

    def real_size(self) -> sint:
        """The number of different elements of the buffer that it touches, at most."""
        return self.view.real_size

    def size(self) -> sint:
        """The number of elements of the shape."""
        return self.view.size

    def index(self, idxs: Sequence[Expr]) -> tuple[Expr, Expr]:
        """The offset of the element at `idxs`, and the condition under which it is there."""
        return self.view.index(idxs)

    def vars(self) -> list[Variable]:
        """The variables in it, those of bound ones included, sorted by name."""
        symbolic = [size for size in self._sizes() if isinstance(size, Expr)]
        found = {variable for size in symbolic for variable in size.vars()}
        unbound = {variable for variable in found if isinstance(variable, Variable)}
        return sorted(unbound, key=lambda variable: variable.name)

    def unbind(self) -> tuple[ShapeTracker, dict[Variable, int]]:
        """The same without bound values, and the values.

        Raises ValueError if one variable has two values.
        """
        values: dict[Variable, int] = {}

        def free(size: sint) -> sint:
            found, bound = unbind(size)
            for variable, value in bound.items():
                if values.setdefault(variable, value) != value:
                    raise ShapeError(
                        f"variable {variable.name} is {values[variable]} and {value} in {self}; "
                        "use one value, or two variables"
                    )
            return found

        view = self.view
        mask = view.mask and tuple((free(start), free(stop)) for start, stop in view.mask)
        shape, strides = tuple(map(free, view.shape)), tuple(map(free, view.strides))
        return ShapeTracker(View(shape, strides, free(view.offset), mask)), values

    def _sizes(self) -> list[sint]:
        mask: Mask = self.view.mask or ()
        bounds = [bound for pair in mask for bound in pair]
        return [*self.view.shape, *self.view.strides, self.view.offset, *bounds]

    # -- movement --------------------------------------------------------------------------------

    def reshape(self, shape: Sequence[sint]) -> ShapeTracker:
        """The same elements in row-major order under another shape.

        Raises `ShapeError` if the number of elements differs, or strides cannot say it.
        """
        view = self.view.reshape(shape)
        if view is None:
            raise ShapeError(f"reshape({tuple(shape)}) of {self.view}: {_NO_VIEW}")
        return ShapeTracker(view)

    def permute(self, axes: Sequence[int]) -> ShapeTracker:
        """Axis `i` of the result is axis `axes[i]` of this."""
        return ShapeTracker(self.view.permute(axes))

    def expand(self, shape: Sequence[sint]) -> ShapeTracker:
        """Axes of size 1 repeat."""
        return ShapeTracker(self.view.expand(shape))

    def pad(self, arg: Sequence[tuple[sint, sint]]) -> ShapeTracker:
        """`(before, after)` zeros are added on each axis."""
        return ShapeTracker(self.view.pad(arg))

    def shrink(self, arg: Sequence[tuple[sint, sint]]) -> ShapeTracker:
        """The elements `start` to `stop - 1` of each axis."""
        return ShapeTracker(self.view.shrink(arg))

    def stride(self, arg: Sequence[int]) -> ShapeTracker:
        """Every `arg`-th element of each axis; a negative multiplier starts from the end."""
        return ShapeTracker(self.view.stride(arg))
