"""`Opt`, the data that names a scheduling primitive and its arguments, and how they are applied.

An `Opt` prints, hashes, goes to JSON and back; `apply_opts` replays a tuple of them. Nests and
ranges are named by stable paths (`out0`, `sum0`; `i0.1`, `r0.2`; a split range `r` becomes `r.o`
and `r.i`). The primitives themselves, pure functions `Kernel -> Kernel`, are in `primitives/`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

from ferrule.base.records import dataclass
from ferrule.codegen.kernel import Kernel
from ferrule.codegen.primitives.editing import ScheduleError
from ferrule.codegen.primitives.kinds import bind, parallel, transpose, unroll, vectorize
from ferrule.codegen.primitives.loops import fuse, limit, reorder, reverse, segment, skip, split
from ferrule.codegen.primitives.memory import (
    axes,
    nontemporal,
    overwrite,
    pad,
    pipeline,
    prefetch,
    reuse,
    stage,
    swizzle,
)
from ferrule.codegen.primitives.nests import (
    accumulate,
    compute_at,
    enter,
    expand_reduce,
    group,
    merge,
    partition,
    recompute,
    stage_row,
)
from ferrule.codegen.primitives.products import tensorize
from ferrule.codegen.primitives.reduce_fusion import fuse_reduces
from ferrule.codegen.primitives.scans import prefix, scan
from ferrule.codegen.wellformed import verify

__all__ = ["PRIMITIVES", "Opt", "ScheduleError", "apply_opts"]


@dataclass(frozen=True)
class Opt:
    """One application of a primitive: its name and its literal arguments.

    >>> Opt("split", ("out0", "i0.1", 16, "mask"))
    split('out0', 'i0.1', 16, 'mask')
    """

    primitive: str
    args: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.primitive}({', '.join(map(repr, self.args))})"

    def to_json(self) -> str:
        """The opt as JSON text."""
        return json.dumps([self.primitive, *self.args])

    @staticmethod
    def from_json(text: str) -> Opt:
        """The opt that `to_json` wrote."""
        primitive, *args = json.loads(text)
        return Opt(primitive, tuple(tuple(a) if isinstance(a, list) else a for a in args))


def apply_opts(kernel: Kernel, opts: Sequence[Opt]) -> Kernel:
    """The kernel with every opt applied in turn.

    Raises:
        ScheduleError: one is unknown, or not legal.
    """
    for opt in opts:
        primitive = PRIMITIVES.get(_present_name(opt.primitive))
        if primitive is None:
            raise ScheduleError(
                f"unknown primitive {opt.primitive}; known are {sorted(PRIMITIVES)}"
            )
        kernel = primitive(kernel, *opt.args)
    verify(kernel)
    return kernel


def _present_name(name: str) -> str:
    """The name of a primitive; a former one is taken with a warning."""
    present = _FORMER_NAMES.get(name)
    if present is None:
        return name
    warnings.warn(
        f"the primitive {name} is {present} now; its old name will be gone in the next version",
        DeprecationWarning,
        stacklevel=3,
    )
    return present


_FORMER_NAMES: Final = {
    "keep": "stage_row",
    "run_along": "fuse_reduces",
    "write_out": "expand_reduce",
}
PRIMITIVES: Final[dict[str, Callable[..., Kernel]]] = {
    "accumulate": accumulate,
    "axes": axes,
    "bind": bind,
    "compute_at": compute_at,
    "enter": enter,
    "expand_reduce": expand_reduce,
    "fuse": fuse,
    "fuse_reduces": fuse_reduces,
    "group": group,
    "limit": limit,
    "merge": merge,
    "nontemporal": nontemporal,
    "overwrite": overwrite,
    "pad": pad,
    "parallel": parallel,
    "partition": partition,
    "pipeline": pipeline,
    "prefetch": prefetch,
    "prefix": prefix,
    "recompute": recompute,
    "reorder": reorder,
    "reuse": reuse,
    "reverse": reverse,
    "scan": scan,
    "segment": segment,
    "skip": skip,
    "split": split,
    "stage": stage,
    "stage_row": stage_row,
    "swizzle": swizzle,
    "tensorize": tensorize,
    "transpose": transpose,
    "unroll": unroll,
    "vectorize": vectorize,
}
