"""The plan cache on disk: plans that an earlier process made for the same graph.

Planning a network's training step takes eight times as long as reading the plan. A plan is found
by the form of the graph, the target, and the planning code. Entries come from this code alone, and
the disk cache checks that they are whole; anything else counts as missing.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Hashable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

from ferrule.base import diskcache
from ferrule.base.config import config
from ferrule.base.fingerprint import fingerprint, source_files
from ferrule.device import codegen_files, codegen_fingerprint
from ferrule.fusion.plans.execution_plan import ExecutionPlan, Place, Step
from ferrule.ir.dtype import DType, dtype_from_name
from ferrule.ir.expr import Variable
from ferrule.ir.lazyop import ConstBuffer, LazyOp, MemBuffer, Op
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import View
from ferrule.ir.steps import Steps
from ferrule.ir.target import Target

MIN_PARTS: Final = 32
"""Parts of a form, about one for each node, from which on a plan is stored. A smaller graph is
planned in less time than a query takes (2026-11-22)."""

_TABLE: Final = "schedule"
# The modules that decide a plan, besides those that turn its ASTs into kernels.
_PLANNING: Final = (
    "base/helpers",
    "device/memory_planner",
    "device/runner",
    "fusion",
    "ir/buffer",
    "ir/constant_folding",
    "ir/dependence",
    "ir/lazy",
    "ir/node",
    "ir/simplify",
    "ir/steps",
    "ir/storage",
    "ir/target",
)

_Row: TypeAlias = tuple[Any, tuple[int, ...], Any]
"""A node of an AST: its op, the numbers of its sources, its argument."""


def planning_files() -> list[Path]:
    """The files of the code that plans depend on."""
    return [*codegen_files(), *source_files(_PLANNING)]


@cache
def _code() -> str:
    """A digest of the code that plans depend on."""
    return f"{codegen_fingerprint()} {fingerprint(source_files(_PLANNING))}"


def key_of(target: Target, form: tuple[Hashable, ...]) -> str | None:
    """The key of a graph's plan on disk; None for symbolic and small graphs, which have none."""
    if len(form) < MIN_PARTS:
        return None
    try:
        shown = _text(form)
    except TypeError:
        return None
    skipped = ",".join(sorted(config().FERRULE_SKIP))
    return f"{shown} {target.key} {skipped} {_code()}"


def _text(value: Any) -> str:
    """A part of a form as text; different parts have different texts.

    Raises `TypeError` for a symbolic expression or an object of the user's, which have no text.
    """
    kind = type(value)
    if kind is tuple:
        # Most parts are ints, which need no call.
        parts = [str(part) if type(part) is int else _text(part) for part in value]
        return f"({','.join(parts)})"
    if kind is int or kind is bool or value is None:
        return str(value)
    if kind is float:
        return struct.pack("<d", value).hex() + "f"  # each NaN is another
    if kind is str or kind is bytes:
        return repr(value)
    if kind is DType:
        return str(value.name)
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"
    if kind is Steps:
        return f"Steps{_text(value.form)}"
    if kind is View:
        return "View" + _text((value.shape, value.strides, value.offset, value.mask))
    raise TypeError(f"{kind.__name__} has no text that stands for it")


# *** plans as bytes ***


def load(key: str) -> ExecutionPlan | None:
    """The plan that was stored under `key`; None if there is none that can be read."""
    entry = diskcache.get(_TABLE, key)
    if entry is None:
        return None
    try:
        return from_bytes(entry)
    except ValueError as error:
        if config().DEBUG >= 1:
            print(f"a stored schedule is not used: {error}")
        return None


def store(key: str, plan: ExecutionPlan) -> None:
    """Keep a plan for later processes."""
    diskcache.put(_TABLE, key, to_bytes(plan))


def to_bytes(plan: ExecutionPlan) -> bytes:
    """The bytes of a plan whose steps have no variables, to be kept on disk."""
    # Nodes in order rather than trees: pickling a deep tree would need as deep a stack.
    numbers: dict[LazyOp, int] = {}
    for step in plan.steps:
        assert not step.variables, "values of variables are not stored"
        for node in step.ast.toposort():
            numbers.setdefault(node, len(numbers))
    rows: list[_Row] = [
        (node.op, tuple([numbers[source] for source in node.src]), node.arg) for node in numbers
    ]
    steps = [
        (numbers[step.ast], step.ast.key, step.places, step.outputs, step.node, step.size)
        for step in plan.steps
    ]
    places = [(p.device, p.dtype, p.size, p.node, p.arena, p.offset, p.whole) for p in plan.places]
    written = io.BytesIO()
    _Writer(written, 5).dump((rows, steps, places, plan.arenas, plan.results))
    return written.getvalue()


def from_bytes(entry: bytes) -> ExecutionPlan:
    """The plan that `to_bytes` was given. Raises `ValueError` for bytes that hold none."""
    try:
        rows, stored, places, arenas, results = _Reader(io.BytesIO(entry)).load()
        nodes: list[LazyOp] = []
        for op, sources, arg in rows:
            nodes.append(LazyOp(op, tuple([nodes[source] for source in sources]), arg))
        steps = []
        for number, key, used, outputs, node, size in stored:
            ast = nodes[number]
            ast.set_key(key)
            steps.append(Step(ast, used, outputs, (), node, size))
        return ExecutionPlan(
            tuple([Place(*place) for place in places]), arenas, tuple(steps), results
        )
    except _MALFORMED as error:
        raise ValueError(f"not a plan: {type(error).__name__}: {error}") from error


_MALFORMED: Final = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
)


_PARTS: Final[Mapping[tuple[str, str], Any]] = {
    (part.__module__, part.__name__): part
    for part in (
        *get_args(Op),
        MemBuffer,
        ConstBuffer,
        ShapeTracker,
        View,
        dtype_from_name,
        Variable,
    )
}


class _Writer(pickle.Pickler):
    """Writes an op as a call of its type; some Pythons would write one of `getattr`."""

    def reducer_override(self, obj: Any) -> Any:
        return (type(obj), (obj.value,)) if isinstance(obj, Enum) else NotImplemented


class _Reader(pickle.Unpickler):
    """Reads the types that ASTs are made of, and refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        found = _PARTS.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a plan")
        return found
