"""Schedules that an earlier process stored: found again, and refused where they do not fit."""

from __future__ import annotations

import math
import pickle
import struct
from dataclasses import replace
from enum import Enum
from typing import Any, get_args
from uuid import uuid4

import numpy as np
import pytest
from tests.planning import forget

from ferrule import Tensor, TinyJit
from ferrule.base.config import Context
from ferrule.dtype import dtypes
from ferrule.fusion import _plan, _plans, make_schedule
from ferrule.fusion.plans import plan_cache
from ferrule.fusion.plans.execution_plan import ExecutionPlan, Place, Step
from ferrule.fusion.plans.graph_key import KeyedGraph
from ferrule.fusion.plans.plan_key import GraphForm
from ferrule.ir.expr import Variable
from ferrule.ir.shape.view import View
from ferrule.ir.target import detect_cpu
from ferrule.ops import BinaryOps, LazyOp, LoadOps, Op, UnaryOps

Array = np.ndarray[Any, Any]
TARGET = detect_cpu()
MANY = (0,) * plan_cache.MIN_PARTS
X = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)


def network(x: Tensor) -> Tensor:
    """Enough nodes to be stored."""
    for factor in range(1, 4):
        x = (x * factor).softmax(1) + x.tanh() - x.mean(0)
    return x


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list to which each plan adds. Nothing is known from before, in memory or on disk."""
    forget()  # the writes of tests before this one, too, which a captured call would plan
    made: list[None] = []

    def counted(*args: Any) -> Any:
        made.append(None)
        return _plan(*args)

    monkeypatch.setattr("ferrule.fusion._plan", counted)
    code = f"the code of {uuid4()}"  # no address: another list had it, in a test before this one
    monkeypatch.setattr(plan_cache, "_code", lambda: code)
    return made


def test_another_process_does_not_plan_again(plans: list[None]) -> None:
    x = Tensor(X).realize()
    first = network(x).numpy()
    assert len(plans) == 1
    _plans.clear()
    np.testing.assert_array_equal(network(x).numpy(), first)
    assert len(plans) == 1


def test_other_code_plans_again(plans: list[None], monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(X).realize()
    first = network(x).numpy()
    _plans.clear()
    code = f"other code, of {uuid4()}"
    monkeypatch.setattr(plan_cache, "_code", lambda: code)
    np.testing.assert_array_equal(network(x).numpy(), first)
    assert len(plans) == 2


def test_an_entry_that_cannot_be_read_is_replaced(
    plans: list[None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = Tensor(X).realize()
    first = network(x).numpy()
    _plans.clear()
    good = plan_cache.diskcache.get
    monkeypatch.setattr(plan_cache.diskcache, "get", lambda *where: good(*where)[:-9])  # type: ignore
    with Context(DEBUG=1):
        np.testing.assert_array_equal(network(x).numpy(), first)
    assert len(plans) == 2
    assert "a stored schedule is not used: not a plan: " in capsys.readouterr().out


def test_a_captured_call_finds_the_schedule_of_a_plain_one(plans: list[None]) -> None:
    whole = Tensor(X).realize()
    plain = network(whole).numpy()
    _plans.clear()
    jitted = TinyJit(lambda x: network(x).realize())
    for _ in range(3):
        np.testing.assert_array_equal(jitted(whole).numpy(), plain)
    assert len(plans) == 1


def test_what_was_lazy_before_the_first_call_is_not_planned_in_another_form(
    plans: list[None],
) -> None:
    weight, x = Tensor(X) * 2, Tensor(X) + 1
    jitted = TinyJit(lambda x: network(x * weight).realize())
    jitted(x)
    first = len(plans)
    jitted(x)
    assert len(plans) == first


def test_small_graphs_are_not_stored(plans: list[None]) -> None:
    for _ in range(2):
        _plans.clear()
        np.testing.assert_array_equal((Tensor(X) + 1).numpy(), X + 1)
    assert len(plans) == 2


# *** keys ***


def test_what_differs_has_another_key() -> None:
    nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    others: list[Any] = [
        *(0, False, None, 0.0, -0.0, 1, True, 1.0, math.nan, nan, "0", "None", (), ((),), (0,)),
        *((0, 0), BinaryOps.ADD, UnaryOps.EXP2, LoadOps.EMPTY, dtypes.float32, "float32"),
        *(View.create((2, 3)), View.create((3, 2)), View.create((2, 3), offset=1), (2, 3)),
    ]
    keys = {plan_cache.key_of(TARGET, (*MANY, other)) for other in others}
    assert None not in keys
    assert len(keys) == len(others)
    other_target = replace(TARGET, max_threads=TARGET.max_threads + 1)
    assert plan_cache.key_of(other_target, MANY) != plan_cache.key_of(TARGET, MANY)


def test_what_has_no_text_has_no_key() -> None:
    n = Variable("n", 1, 5)
    for part in (n, n + 1, (0, (n,)), View.create((n,)), object(), 1j, np.float32(1)):
        assert plan_cache.key_of(TARGET, (*MANY, part)) is None
    assert plan_cache.key_of(TARGET, MANY[1:]) is None


# *** bytes ***


def plan_of(value: Tensor) -> ExecutionPlan:
    graph = KeyedGraph([value.lazydata]).graph()
    assert GraphForm(graph, detect_cpu()).key is not None
    return _plan(graph, TARGET)[0]


def test_a_plan_comes_back_from_its_bytes() -> None:
    x = Tensor(X).realize()
    plan = plan_of(network(x) @ network(x).T)
    again = plan_cache.from_bytes(plan_cache.to_bytes(plan))
    assert again == plan
    assert [step.ast.key for step in again.steps] == [step.ast.key for step in plan.steps]


def test_plans_of_pythons_that_pickle_members_by_getattr(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_name(member: Enum, protocol: Any) -> Any:
        return getattr, (type(member), member.name)

    for kind in get_args(Op):  # as some releases of Python 3.11 have it
        monkeypatch.setattr(kind, "__reduce_ex__", by_name)
    plan = plan_of(network(Tensor(X).realize()))
    assert b"getattr" in pickle.dumps(LoadOps.EMPTY)
    assert plan_cache.from_bytes(plan_cache.to_bytes(plan)) == plan


def test_keys_of_kernels_are_stored_with_them() -> None:
    ast = LazyOp(LoadOps.EMPTY, (), ("a kernel that nothing else has",))
    key = ast.key
    entry = plan_cache.to_bytes(ExecutionPlan((), (), (Step(ast, (), 1, ()),), ()))
    del ast
    (step,) = plan_cache.from_bytes(entry).steps
    assert step.ast._key == key


def test_deep_kernels_need_no_deep_stack() -> None:
    ast = LazyOp(LoadOps.EMPTY, ())
    for _ in range(5000):
        ast = LazyOp(UnaryOps.EXP2, (ast,))
    place = Place("CPU", dtypes.float32, 1)
    plan = ExecutionPlan((place,), (("CPU", 64),), (Step(ast, (0,), 1, ()),), ((0, 0),))
    again = plan_cache.from_bytes(plan_cache.to_bytes(plan))
    assert again.steps[0].ast is ast
    assert again == plan


class Harm:
    def __reduce__(self) -> Any:
        return print, ("harm",)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"nonsense",
        pickle.dumps(None),
        pickle.dumps((1, 2)),
        pickle.dumps(([], [(0, "key", (), 1)], [], (), ())),
        pickle.dumps(([(BinaryOps.ADD, (7,), None)], [], [], (), ())),
        pickle.dumps(([], [], [("CPU",)], (), ())),
        pickle.dumps(([(Harm(), (), None)], [], [], (), ())),
    ],
)
def test_anything_else_is_refused(entry: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not a plan: "):
        plan_cache.from_bytes(entry)
    assert capsys.readouterr().out == ""


def test_make_schedule_gives_equal_kernels_from_disk(plans: list[None]) -> None:
    x = Tensor(X).realize()
    value = network(x)
    first = make_schedule([value.lazydata]).items
    _plans.clear()
    second = make_schedule([value.lazydata]).items
    assert [item.ast for item in first] == [item.ast for item in second]
    assert len(plans) == 1
