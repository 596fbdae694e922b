"""Makes a program that shows a finding smaller, as long as it shows it."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ferrule import Context
from tests.fuzz.check import Finding, check
from tests.fuzz.given import NAMES
from tests.fuzz.program import (
    Program,
    Source,
    assigned,
    is_object,
    loaded,
    parsed,
    written,
)
from tests.fuzz.ways import Way

Show = Callable[[Program, Way | None], Finding | None]


def alike(finding: Finding, other: Finding | None) -> bool:
    """True if two findings are probably one: wrong numbers, or the same error at the same place."""
    if other is None or other.kind != finding.kind:
        return False
    return finding.kind == "wrong" or other.where == finding.where


def shows(program: Program, way: Way | None) -> Finding | None:
    """The finding that a program makes in a way."""
    try:
        return check(program, [] if way is None else [way])
    except Exception:
        return None


def shrink(finding: Finding, seconds: float = 60.0, show: Show = shows) -> Finding:
    """A smaller program with the same finding; the same one if none was found in time."""
    until = time.monotonic() + seconds
    best = finding
    progress = True
    while progress and time.monotonic() < until:
        progress = False
        for program, way in candidates(best):
            if time.monotonic() > until:
                break
            found = show(program, way)
            if alike(finding, found):
                assert found is not None
                best, progress = found, True
                break
    return best


def candidates(finding: Finding) -> Iterator[tuple[Program, Way | None]]:
    """Programs and ways that are a little simpler, the bold steps first."""
    program, way = finding.program, finding.way
    for smaller in _fewer_parts(program):
        yield smaller.without_unused(), way
    if way is not None:
        for simpler in way.simpler():
            yield program, simpler
    for smaller in _simpler_statements(program):
        yield smaller.without_unused(), way
    for smaller in _simpler_sources(program):
        yield smaller, way


def _fewer_parts(program: Program) -> Iterator[Program]:
    if program.wanted:
        yield replace(program, wanted=())
        if len(program.wanted) > 1:
            for name in program.wanted:
                yield replace(program, wanted=(name,))
    if len(program.results) > 1:
        for name in program.results:
            yield replace(program, results=(name,))
    for calls in (1, 2, 3):
        if calls < program.calls:
            yield replace(program, calls=calls)
    count = len(program.body)
    for place in range(count):  # what is made early, and nothing after it
        for name in assigned(program.body[place]):
            if place < count - 1:
                yield replace(program, body=program.body[: place + 1], results=(name,))
    for place in reversed(range(count)):
        body = program.body[:place] + program.body[place + 1 :]
        names = assigned(program.body[place])
        used = {name for line in body for name in loaded(line)} | set(program.results)
        if not used & set(names):
            yield replace(program, body=body)
    for source in program.states:
        if is_object(source.name):
            continue
        sources = tuple(
            replace(s, is_state=False) if s.name == source.name else s for s in program.sources
        )
        yield replace(program, sources=sources)


def _simpler_statements(program: Program) -> Iterator[Program]:
    for place, line in enumerate(program.body):
        names = assigned(line)
        if len(names) == 1 and written(line) is None:
            for other in filter(lambda name: not is_object(name), loaded(line)):
                yield _renamed(program, place, names[0], other)
        for text in _simpler_text(line):
            body = (*program.body[:place], text, *program.body[place + 1 :])
            yield replace(program, body=body)


def _renamed(program: Program, place: int, name: str, other: str) -> Program:
    """The program without a statement, whose result is one of its operands instead."""
    body = tuple(_rename(line, name, other) for line in program.body[place + 1 :])
    results = tuple(dict.fromkeys(other if n == name else n for n in program.results))
    return replace(program, body=program.body[:place] + body, results=results)


def _rename(line: str, name: str, other: str) -> str:
    tree = ast.parse(line)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            node.id = other
    return ast.unparse(tree)


def _simpler_text(line: str) -> Iterator[str]:
    """A statement with one argument less, or one constant simpler."""
    tree = parsed(line)
    for place, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.Call):
            for number in range(len(node.keywords)):
                yield _edited(line, place, lambda n, k=number: n.keywords.pop(k))
        elif isinstance(node, ast.Tuple | ast.List) and len(node.elts) > 1:
            for number in range(len(node.elts)):
                yield _edited(line, place, lambda n, k=number: n.elts.pop(k))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            for simple in (0, 1):
                if node.value not in (0, 1) and not isinstance(node.value, bool):
                    yield _edited(line, place, lambda n, v=simple: setattr(n, "value", v))
        elif isinstance(node, ast.Slice) and node.step is not None:
            yield _edited(line, place, lambda n: setattr(n, "step", None))


def _edited(line: str, place: int, edit: Callable[[ast.AST], object]) -> str:
    tree = ast.parse(line)
    edit(list(ast.walk(tree.body[0]))[place])
    return ast.unparse(tree)


def _simpler_sources(program: Program) -> Iterator[Program]:
    for place, source in enumerate(program.sources):
        for made in _simpler_made(program, source):
            sources = list(program.sources)
            sources[place] = replace(source, made=made)
            yield replace(program, sources=tuple(sources))


def _simpler_made(program: Program, source: Source) -> Iterator[str]:
    """Other contents, as a list, where they are few; smaller shapes where they are many."""
    if is_object(source.name):
        yield from _simpler_text(source.made)
        return
    names = {**NAMES, "rng": program.rng(-1 if source.is_state else 0), "call": 0}
    with Context(FERRULE_DEVICE="NUMPY"):
        tensor = eval(source.made, names)
        array = tensor.numpy()
    dtype = tensor.dtype.name
    kind = "" if dtype in ("float32", "int32", "bool") else f', dtype="{dtype}"'
    is_list = "rng" not in source.made and "np." not in source.made
    if array.size <= 32 and not is_list and np.isfinite(array.astype(float)).all():
        yield f"Tensor({array.tolist()}{kind})"
    elif not is_list:
        call = ast.parse(source.made, mode="eval")
        for node in ast.walk(call):
            if isinstance(node, ast.Tuple) and all(isinstance(e, ast.Constant) for e in node.elts):
                yield from _smaller_shapes(source.made, ast.unparse(node), node)
    if is_list and array.size and np.isfinite(array.astype(float)).all():
        flat = array.reshape(-1)
        for simple in (1, 0):
            for at in range(flat.size):
                if flat[at] not in (0, 1):
                    changed = flat.copy()
                    changed[at] = simple
                    yield f"Tensor({changed.reshape(array.shape).tolist()}{kind})"


def _smaller_shapes(made: str, text: str, node: ast.Tuple) -> Iterator[str]:
    sizes = [int(element.value) for element in node.elts if isinstance(element, ast.Constant)]
    for axis, size in enumerate(sizes):
        for smaller in dict.fromkeys((1, 2, 3, size // 2, size - 1)):
            if 0 < smaller < size:
                shape = (*sizes[:axis], smaller, *sizes[axis + 1 :])
                yield made.replace(text, str(shape))
