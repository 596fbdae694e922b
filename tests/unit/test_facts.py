"""What the disk cache keeps of a kernel beside its program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ferrule import Tensor
from ferrule.base.config import Context
from ferrule.device import Compiled, Device
from ferrule.dtype import dtypes
from ferrule.ir.expr import Variable
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.shape.view import View
from ferrule.ir.statistics import KernelStatistics
from ferrule.ops import BinaryOps, BufferOps, LazyOp, MemBuffer, ReduceOps
from ferrule.schedule import create_schedule

FLOAT = dtypes.float32


def load(idx: int, view: View) -> LazyOp:
    return LazyOp(BufferOps.LOAD, (), MemBuffer(idx, FLOAT, ShapeTracker(view)))


def test_what_a_kernel_touches() -> None:
    part = load(1, View.create((4, 3), (5, 1), 2))
    added = LazyOp(BinaryOps.ADD, (part, load(3, View.create((4, 3)))))
    total = LazyOp(ReduceOps.SUM, (added,), (4, 1))
    ast = LazyOp(BufferOps.STORE, (total,), MemBuffer(0, FLOAT, ShapeTracker.from_shape((4, 1))))
    facts = KernelStatistics.of(ast)
    assert facts.writes == {0}
    assert facts.reads == {1, 3}
    # From 2, three rows of 5 further, two elements further, and that one.
    assert dict(facts.least_bytes) == {0: 16, 1: 4 * (2 + 3 * 5 + 2 + 1), 3: 48}
    assert facts.op_estimate == 24
    assert facts.mem_estimate == 16 + 48 + 48
    assert KernelStatistics.from_json(facts.to_json()) == facts


def test_a_tree_without_a_store_writes_to_the_first_buffer() -> None:
    facts = KernelStatistics.of(load(1, View.create((4,))))
    assert (facts.writes, facts.reads) == ({0}, {1})


def test_symbolic_facts_have_no_text() -> None:
    n = Variable("n", 1, 5)
    facts = KernelStatistics.of(load(1, View.create((n,))))
    assert facts.vars == (n,)
    assert facts.to_json() == ""


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1, 2, 3, 4, 5]", '[1, 2, ["x"], [], []]'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the facts of a kernel"):
        KernelStatistics.from_json(text)


def test_a_runner_from_disk_knows_what_its_kernel_says(tmp_path: Path) -> None:
    device = Device["CPU"]
    assert isinstance(device, Compiled)
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        x = Tensor(np.ones((7, 3), np.float32)).realize()
        (item,) = create_schedule([(x.exp().sum(1) * 1.75).lazydata])
        first = device.get_runner(item.ast)
        del device._runners[item.ast]
        second = device.get_runner(item.ast)
    assert second is not first
    assert second.facts == first.facts == KernelStatistics.of(item.ast)
    assert second.prg == ""  # it came from the disk
    assert (second.writes, second.reads) == (first.writes, first.reads)
