"""Chains of movements are what NumPy makes of them, and planted mistakes are found."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ferrule.fusion import views
from ferrule.ir.expr import TRUE
from ferrule.ir.op_table import MOVEMENTS
from ferrule.ir.shape.view import View
from ferrule.ops import MovementOps
from tests.fuzz.generate import Generator
from tests.fuzz.layouts import Chain, WrongLayoutError


def run(count: int) -> Counter[str]:
    """Does so many chains; says how often each movement was drawn."""
    done: Counter[str] = Counter()
    for number in range(count):
        chain = Chain(random.Random(number))
        chain.run()
        done.update(text.split()[0] for text in chain.done)
    return done


def test_all_movements_are_drawn() -> None:
    done = run(500)
    assert {op.name for op in MovementOps if op is not MovementOps.GATHER} <= set(done)
    assert done["copy"] < sum(done.values()) / 4


def _without_mask(right: Callable[..., Any]) -> Callable[..., Any]:
    def window(view: View, *rest: Any) -> Any:
        return right(View(view.shape, view.strides, view.offset), *rest)

    return window


def _not_inverted(right: Callable[..., Any]) -> Callable[..., Any]:
    def unmoved(node: Any, view: View) -> Any:
        if node.op is MovementOps.PERMUTE:
            return node.srcs[0], view.permute(node.arg)
        return right(node, view)

    return unmoved


def _seen_when_repeated(right: Callable[..., Any]) -> Callable[..., Any]:
    def expand(view: View, shape: Any) -> View:
        whole = right(view, shape)
        pairs = zip(whole.shape, view.shape, whole.valid_ranges, strict=True)
        mask = tuple((0, n) if old == 1 else seen for n, old, seen in pairs)
        return View(whole.shape, whole.strides, whole.offset, mask)

    return expand


def _open_at_the_end(right: Callable[..., Any]) -> Callable[..., Any]:
    def pad(idx: Any, arg: Any, source: Any) -> Any:
        inner, _ = right(idx, arg, source)
        return inner, right(idx, [(before, 0) for before, _ in arg], source)[1]

    return pad


MISTAKES: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "a window sees what a mask hides": (MovementOps.WINDOW, "view", _without_mask),
    "a permutation is undone by itself": (None, "unmoved", _not_inverted),
    "a hidden element is seen when it is repeated": (View, "expand", _seen_when_repeated),
    "what is padded has no end": (MovementOps.PAD, "index", _open_at_the_end),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, wrong = MISTAKES[name]
    if owner is None:
        monkeypatch.setattr(f"tests.fuzz.layouts.{attribute}", wrong(getattr(views, attribute)))
    elif isinstance(owner, MovementOps):
        row = MOVEMENTS[owner]
        changed = {attribute: wrong(getattr(row, attribute))}
        monkeypatch.setitem(MOVEMENTS, owner, replace(row, **changed))
    else:
        monkeypatch.setattr(owner, attribute, wrong(getattr(owner, attribute)))
    with pytest.raises(WrongLayoutError):
        run(3000)


def test_a_program_has_chains_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(MOVEMENTS[MovementOps.PERMUTE], index=lambda idx, axes, source: (idx, TRUE))
    monkeypatch.setitem(MOVEMENTS, MovementOps.PERMUTE, row)
    found = []
    for index in range(20):
        generator = Generator(3, index)
        generator.layouts()
        found.append(generator.finding)
    (finding, *_) = [each for each in found if each is not None]
    assert finding.where == "layouts"
    assert "PERMUTE" in finding.detail
    assert finding.text()
