"""A program as data: sources of values, statements on them, and results; printed as plain code.

A program is a function `step` of some argument tensors that may also read and write state tensors,
called several times with new data. All of its parts are Python text of a restricted form, so that
what is printed is what ran, and a printed program can be read back.

Sources that are no tensors have names that say what they are: `m0` is a model, `t0` one in training
mode, whose calls write to it or draw by chance, and `o0` an optimiser.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.fuzz.given import NAMES, header


@dataclass(frozen=True)
class Source:
    """A starting value of a program: its name, and an expression of `rng` that makes it.

    It is a tensor, a model, or an optimiser of models before it.
    """

    name: str
    made: str
    """For example `Tensor(rng(0).integers(-6, 7, (3, 4)) / 2, dtype="float32")`."""
    is_state: bool = False
    """Made once and kept over calls; others are arguments, made anew for each call."""


@dataclass(frozen=True)
class Program:
    """Statements on sources, whose results are compared between ways to run them."""

    sources: tuple[Source, ...]
    body: tuple[str, ...]
    """One statement each: an assignment, a write, or a call in place."""
    results: tuple[str, ...]
    seed: int = 0
    calls: int = 1
    wanted: tuple[str, ...] = ()
    """Arguments to differentiate by, if any: the gradient of the weighted sum of all results."""

    @property
    def arguments(self) -> tuple[Source, ...]:
        return tuple(source for source in self.sources if not source.is_state)

    @property
    def states(self) -> tuple[Source, ...]:
        return tuple(source for source in self.sources if source.is_state)

    @property
    def writes(self) -> bool:
        """True if a statement may write to a tensor that another name shares."""
        return any(is_write(line) for line in self.body)

    @property
    def writes_to_copies(self) -> bool:
        """True if a statement may write to what is a view of one layout and a copy of another."""
        return self.writes and any(not _MAY_COPY.isdisjoint(methods(line)) for line in self.body)

    @property
    def squeezes(self) -> bool:
        """True if a statement leaves out axes of size 1: a variable is not known to be 1."""
        return any("squeeze" in methods(line) for line in self.body)

    @property
    def trains(self) -> bool:
        """True if a statement steps an optimiser."""
        return any(is_optimizer(name) for line in self.body for name in loaded(line))

    @property
    def is_random(self) -> bool:
        """True if a statement may draw by chance."""
        return any(is_random(line) for line in self.body)

    def rng(self, call: int) -> Callable[[int], np.random.Generator]:
        """The generators that make the arguments of a call; -1 is for the state."""
        return lambda salt: np.random.default_rng([self.seed, call + 1, salt])

    def text(self, title: str = "") -> str:
        """Plain code that runs as it is."""
        lines = [f'"""{title}"""\n'] if title else []
        code = " ".join([*(source.made for source in self.sources), *self.body])
        lines += [*header(set(re.findall(r"\w+", code))), f"seed = {self.seed}"]
        if self.states:
            lines.append("rng = lambda salt: np.random.default_rng([seed, 0, salt])")
        lines += [f"{source.name} = {source.made}" for source in self.states]
        lines += ["Tensor.manual_seed(seed)"] if self.is_random else []
        lines += ["", "", "def arguments(call):"]
        lines += ["    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])"]
        lines += [f"    {source.name} = {source.made}" for source in self.arguments]
        lines += [f"    return {tuple_text(s.name for s in self.arguments)}"]
        lines += ["", "", self.step_text().rstrip()]
        if self.wanted:
            lines += ["", "", f"wanted = {tuple_text(map(repr, self.wanted))}"]
        lines += ["", "", f"for call in range({self.calls}):"]
        lines += ["    for result in step(*arguments(call)):", "        print(result.numpy())"]
        return "\n".join(lines) + "\n"

    def step_text(self, extra: dict[int, list[str]] | None = None, name: str = "step") -> str:
        """The function, with lines of `extra` after the statement of that number."""
        extra = {} if extra is None else extra
        lines = [f"def {name}({', '.join(s.name for s in self.arguments)}):"]
        states = {source.name for source in self.states}
        updated = [line for line in self.body if isinstance(parsed(line), ast.AugAssign)]
        rebound = sorted({str(written(line)) for line in updated} & states)
        lines += [f"    global {', '.join(rebound)}"] if rebound else []
        for place, statement in enumerate(self.body):
            lines.append(f"    {statement}")
            lines += [f"    {line}" for line in extra.get(place, [])]
        return "\n".join([*lines, f"    return {tuple_text(self.results)}"]) + "\n"

    def without_unused(self) -> Program:
        """The program less what none of its results, writes and gradients needs."""
        needed = {*self.results}
        kept: list[str] = []
        for line in reversed(self.body):
            if is_write(line) or needed & set(assigned(line)):
                kept.append(line)
                needed |= set(loaded(line))
        for source in reversed(self.sources):  # an optimiser needs its models
            if source.name in needed:
                needed |= set(loaded(source.made))
        sources = tuple(s for s in self.sources if s.name in needed or s.name in self.wanted)
        return replace(self, body=tuple(reversed(kept)), sources=sources)


def words(text: str) -> frozenset[str]:
    """The words of a text, for tables of names."""
    return frozenset(text.split())


def tuple_text(parts: Iterable[str]) -> str:
    found = list(parts)
    return f"({found[0]},)" if len(found) == 1 else f"({', '.join(found)})"


@functools.lru_cache(100_000)
def parsed(line: str) -> ast.stmt:
    (statement,) = ast.parse(line).body
    return statement


@functools.lru_cache(100_000)
def compiled(line: str) -> Any:
    return compile(line, "<statement>", "exec")


@functools.lru_cache(100_000)
def assigned(line: str) -> tuple[str, ...]:
    """The names that a statement binds."""
    statement = parsed(line)
    if not isinstance(statement, ast.Assign):
        return ()
    names = [n for target in statement.targets for n in ast.walk(target)]
    return tuple(n.id for n in names if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


# Views where the layout in memory allows it, and copies elsewhere.
_MAY_COPY = words("reshape reshape_as view view_as flatten unflatten ravel rearrange meshgrid")
GIVEN = {*NAMES, "rng", "call", "slice", "int", "float", "bool", "tuple", "list", "len"}
CHANCE = words(
    """rand rand_like randn randn_like randint randint_like randperm uniform uniform_ normal normal_
    glorot_uniform kaiming_normal kaiming_uniform scaled_uniform multinomial bernoulli bernoulli_
    exponential_ gumbel_softmax rrelu dropout dropout1d dropout2d dropout3d alpha_dropout"""
)
"""Methods that draw by chance."""


def is_object(name: str) -> bool:
    """True for the name of a source that is no tensor."""
    return re.fullmatch(r"[mto]\d+", name) is not None


def is_optimizer(name: str) -> bool:
    return is_object(name) and name[0] == "o"


def is_changed(name: str) -> bool:
    """True for the name of an object that statements change."""
    return is_object(name) and name[0] != "m"


@functools.lru_cache(100_000)
def is_random(line: str) -> bool:
    """True if a statement may draw by chance."""
    trained = [name for name in loaded(line) if is_changed(name) and not is_optimizer(name)]
    return bool(trained) or not CHANCE.isdisjoint(methods(line))


@functools.lru_cache(100_000)
def loaded(line: str) -> tuple[str, ...]:
    """The names of tensors that a statement reads or writes, without those that it binds."""
    found = [n for n in ast.walk(parsed(line)) if isinstance(n, ast.Name)]
    bound = {*assigned(line), *(n.arg for n in ast.walk(parsed(line)) if isinstance(n, ast.arg))}
    bound |= {n.id for n in found if isinstance(n.ctx, ast.Store)}
    augmented = parsed(line)
    names = [n.id for n in found if n.id not in GIVEN and n.id not in bound]
    if isinstance(augmented, ast.AugAssign) and isinstance(augmented.target, ast.Name):
        names.append(augmented.target.id)
    return tuple(dict.fromkeys(names))


@functools.lru_cache(100_000)
def methods(line: str) -> tuple[str, ...]:
    """The attributes and operators that a statement uses, in order of the text."""
    found = []
    for node in ast.walk(parsed(line)):
        if isinstance(node, ast.Attribute):
            found.append(node.attr)
        elif isinstance(node, ast.BinOp | ast.UnaryOp | ast.AugAssign):
            found.append(type(node.op).__name__)
        elif isinstance(node, ast.Compare):
            found += [type(op).__name__ for op in node.ops]
        elif isinstance(node, ast.Subscript):
            found.append("setitem" if isinstance(node.ctx, ast.Store) else "getitem")
    return tuple(found)


@functools.lru_cache(100_000)
def is_write(line: str) -> bool:
    """True if a statement changes a tensor that was there before."""
    statement = parsed(line)
    if isinstance(statement, ast.AugAssign):
        return True
    if isinstance(statement, ast.Assign):
        return (
            any(isinstance(target, ast.Subscript) for target in statement.targets)
            or any(map(is_changed, loaded(line)))
            or any(
                name == "assign" or (name.endswith("_") and not name.startswith("_"))
                for name in methods(line)
            )
        )
    return True


@functools.lru_cache(100_000)
def written(line: str) -> str | None:
    """The name of the tensor, or of the object, that a statement writes to."""
    statement = parsed(line)
    changed = [name for name in loaded(line) if is_changed(name)]
    if changed:
        return changed[0]
    node: Any = None
    if isinstance(statement, ast.AugAssign):
        node = statement.target
    elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        node = statement.targets[0]
    elif is_write(line) and isinstance(statement, ast.Expr | ast.Assign):
        node = statement.value
    while node is not None and not isinstance(node, ast.Name):
        node = getattr(node, "value", None) or getattr(node, "func", None)
    return node.id if node is not None else None


def read_program(text: str) -> Program:
    """The program that `Program.text` printed; a file of the corpus may have been written by hand.

    Raises `ValueError` if something else is in it.
    """
    module = ast.parse(text)
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    if "step" not in functions or "arguments" not in functions:
        raise ValueError("a program has functions `arguments(call)` and `step(...)`")
    sources = [
        Source(name, made)
        for name, made in _assignments(functions["arguments"].body)
        if name != "rng"
    ]
    top = dict(_assignments(module.body))
    wanted = ast.literal_eval(top.pop("wanted", "()"))
    seed = ast.literal_eval(top.pop("seed", "0"))
    sources += [Source(name, made, True) for name, made in top.items() if name != "rng"]
    step = [line for line in functions["step"].body if not isinstance(line, ast.Global)]
    calls = re.search(r"for call in range\((\d+)\)", text)
    last = step[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        raise ValueError("`step` has to end with the return of its results")
    results = [ast.unparse(n) for n in getattr(last.value, "elts", [last.value])]
    return Program(
        sources=tuple(sources),
        body=tuple(ast.unparse(line) for line in step[:-1]),
        results=tuple(results),
        seed=seed,
        calls=int(calls[1]) if calls else 1,
        wanted=tuple(wanted),
    )


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, ast.unparse(node.value)
