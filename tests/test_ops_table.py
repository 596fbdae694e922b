"""Each op has a rule in each interpretation of programs, and a missing one is named."""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ferrule.autograd.rules import RULES
from ferrule.codegen.elementwise import LOWERED
from ferrule.codegen.kernel import MONOIDS
from ferrule.ir import op_table
from ferrule.ir.op_table import ELEMENTWISE, FORMS, MOVEMENTS, OPS, REDUCED, Takes
from ferrule.ir.shape.movement import Form
from ferrule.ops import (
    BinaryOps,
    BufferOps,
    FunctionOps,
    LoadOps,
    MovementOps,
    Op,
    ReduceOps,
    TernaryOps,
    UnaryOps,
)
from ferrule.runtime.numpy import FUNCTIONS

COMPUTING: list[Op] = [*UnaryOps, *BinaryOps, *TernaryOps]
IN_KERNELS: list[Op] = [*COMPUTING, *ReduceOps, *MovementOps, *BufferOps]
ON_TAPES: list[Op] = [*COMPUTING, *ReduceOps, *MovementOps, *FunctionOps, *LoadOps]
OF_INTEGERS = {op for op, row in ELEMENTWISE.items() if row.takes in (Takes.INTEGERS, Takes.BITS)}
FLAT = {op for op, row in ELEMENTWISE.items() if row.flat}


@dataclass(frozen=True)
class Interpretation:
    """One way in which programs are taken apart op by op."""

    name: str
    file: str
    """Where its rules are."""
    ops: Collection[Op]
    rules: Collection[Op]
    without: dict[Op, str] = field(default_factory=dict)
    """The ops that need no rule, each with the reason."""

    def lacking(self) -> list[str]:
        """What is missing, and where it belongs."""
        return [
            f"{op} has no rule for {self.name}; add it to src/ferrule/{self.file}"
            for op in self.ops
            if op not in self.rules and op not in self.without
        ]


def _is_batched(form: Form) -> bool:
    return type(form).batched is not Form.batched


def interpretations() -> dict[str, Interpretation]:
    """All of them, with the rules that there are now."""
    found = [
        Interpretation("shapes and dtypes", "ir/op_table.py", IN_KERNELS, OPS),
        Interpretation(
            "lowering to scalars",
            "codegen/elementwise.py",
            COMPUTING,
            LOWERED,
            {UnaryOps.CAST: "depends on its argument"},
        ),
        Interpretation(
            "loops that combine values",
            "ir/op_table.py",
            [*ReduceOps],
            [op for op, row in REDUCED.items() if row.name in MONOIDS],
            {ReduceOps.SCATTER: "is only ever the root of a kernel, which codegen/lower.py makes"},
        ),
        Interpretation(
            "indices",
            "ir/shape/movement.py",
            [*MovementOps],
            [op for op, row in MOVEMENTS.items() if row.index is not None],
            {MovementOps.GATHER: "has an index that another operand gives"},
        ),
        Interpretation(
            "derivatives",
            "autograd/rules.py",
            ON_TAPES,
            RULES,
            {
                **dict.fromkeys(OF_INTEGERS, "computes with integers"),
                **dict.fromkeys(FLAT, "has the derivative 0"),
                MovementOps.AS_STRIDED: "is made by the scheduler alone",
                FunctionOps.STEPS: "is recorded with a rule of the function",
                LoadOps.EMPTY: "is a leaf",
                LoadOps.CONST: "is a leaf",
                LoadOps.CUSTOM: "is recorded with a rule of its maker",
                LoadOps.TEMPLATE: "is recorded with a rule of its maker",
                LoadOps.RESULT: "is recorded with a rule of its maker",
            },
        ),
        Interpretation(
            "mapping over an axis",
            "ir/shape/movement.py",
            [ReduceOps.SCATTER, *MovementOps],
            [op for op, form in FORMS.items() if op not in REDUCED and _is_batched(form)],
        ),
        Interpretation(
            "NUMPY",
            "runtime/numpy.py",
            [*IN_KERNELS, LoadOps.CONTIGUOUS],
            FUNCTIONS,
            {BufferOps.SINK: "only holds several stores together"},
        ),
    ]
    return {each.name: each for each in found}


@pytest.mark.parametrize("name", interpretations())
def test_each_op_has_a_rule(name: str) -> None:
    lacking = interpretations()[name].lacking()
    assert not lacking, "\n".join(lacking)


@pytest.mark.parametrize("name", interpretations())
def test_what_needs_no_rule_has_none(name: str) -> None:
    interpretation = interpretations()[name]
    assert not [op for op in interpretation.without if op in interpretation.rules]
    assert not [op for op in interpretation.rules if op not in interpretation.ops]


MISSING: dict[str, tuple[MutableMapping[Any, Any], Op, dict[str, Any]]] = {
    "shapes and dtypes": (OPS, BinaryOps.SHL, {}),
    "lowering to scalars": (LOWERED, UnaryOps.SQRT, {}),
    "loops that combine values": (REDUCED, ReduceOps.PROD, {}),
    "indices": (MOVEMENTS, MovementOps.STRIDE, {"index": None}),
    "derivatives": (RULES, MovementOps.WINDOW, {}),
    "mapping over an axis": (FORMS, MovementOps.PAD, {}),
    "NUMPY": (FUNCTIONS, TernaryOps.MULACC, {}),
}


@pytest.mark.parametrize("name", interpretations())
def test_a_missing_rule_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, op, changed = MISSING[name]
    if changed:
        monkeypatch.setitem(rules, op, replace(rules[op], **changed))
    else:
        monkeypatch.delitem(rules, op)
    interpretation = interpretations()[name]
    assert interpretation.lacking() == [
        f"{op} has no rule for {name}; add it to src/ferrule/{interpretation.file}"
    ]


def test_each_reduce_and_scatter_combines_in_one_way() -> None:
    rows = op_table.COMBINATIONS.values()
    assert {row.reduce for row in rows} - {None} == set(ReduceOps) - {ReduceOps.SCATTER}
    assert len(op_table.SCATTERED) == len({row.scatter for row in rows} - {None})
    for row in rows:
        assert row.bools is None or op_table.COMBINATIONS[row.bools].expr is not None
        assert row.reduce is None or (row.binary is not None and row.expr is not None)
