"""The call graph of methods: the modules whose code each one runs, and its derivative rules.

Both are read off the code, by following the names in each function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from ferrule import Tensor
from ferrule.autograd import Rule
from tests.fuzz.namespaces import Function, functions, member_of
from tests.fuzz.surface import Method, methods

PLACES = ("ferrule.tensor.", "ferrule.fft", "ferrule.signal")
"""The modules that are looked through."""


@functools.cache
def methods_in(file: str) -> tuple[Method, ...]:
    """The methods that may run code of a file, such as `tensor/math/pairs.py`; all if none does."""
    found = [method for method in reaching(file) if not isinstance(method, Function)]
    return tuple(found) or methods()


@functools.cache
def reaching(file: str) -> tuple[Method, ...]:
    """The methods, and the functions of other namespaces, that may run code of a file."""
    return tuple(m for m in (*methods(), *_outside()) if module_of(file) in _reached(m).modules)


@functools.cache
def _outside() -> tuple[Function, ...]:
    return tuple(f for f in functions() if f.path.startswith(("ferrule.fft.", "ferrule.signal.")))


def module_of(file: str) -> str:
    return "ferrule." + file.removesuffix(".py").replace("/", ".")


@dataclass(frozen=True)
class Ruled:
    """A rule of derivatives, and the methods and functions that have it on their way."""

    rule: Rule
    methods: tuple[Method, ...]
    chances: tuple[float, ...]
    """Of the methods: the fewer rules one has, the more likely this one is what it is about."""

    @property
    def size(self) -> float:
        """The weight of a rule: one with many branches has to be tested more often."""
        size: float = len(self.rule.reverse.__code__.co_code) ** 0.6
        return size


@functools.cache
def rules() -> tuple[Ruled, ...]:
    """All rules of what methods do, but for those of single primitives."""
    found: dict[int, tuple[Rule, list[tuple[Method, float]]]] = {}
    for method in (*methods(), *_outside()):
        if method.in_place or method.lacking:
            continue
        reached = _reached(method).rules
        for rule in reached:
            _, pairs = found.setdefault(id(rule), (rule, []))
            pairs.append((method, 1 / len(reached)))
    return tuple(
        Ruled(rule, tuple(m for m, _ in pairs), tuple(chance for _, chance in pairs))
        for rule, pairs in found.values()
    )


@functools.cache
def rules_in(file: str) -> tuple[Ruled, ...]:
    """The rules written in a file, or else those of the methods that run its code; all if none."""
    here = [ruled for ruled in rules() if ruled.rule.reverse.__module__ == module_of(file)]
    around = [ruled for ruled in rules() if {*ruled.methods} & {*reaching(file)}]
    return tuple(here or around) or rules()


@dataclass(frozen=True)
class Reached:
    modules: frozenset[str]
    rules: tuple[Rule, ...]


def _reached(method: Method) -> Reached:
    """The modules of the functions that a method calls by their names, and the rules in these."""
    is_function = isinstance(method, Function)
    member: Any = member_of(method) if is_function else getattr(Tensor, method.name)
    left: list[Any] = [inspect.unwrap(getattr(member, "__func__", member))]
    seen: set[Any] = set()
    found: dict[int, Rule] = {}
    while left:
        function = left.pop()
        if not inspect.isfunction(function) or function in seen:
            continue
        if not (function.__module__ or "").startswith(PLACES):
            continue
        seen.add(function)
        for value in _named_in(function):
            if isinstance(value, Rule):
                found[id(value)] = value
                left += [value.reverse]
            elif isinstance(value, type):
                left += [] if issubclass(Tensor, value) else vars(value).values()
            else:
                left += [value, *getattr(value, "__dict__", {}).values()]
    return Reached(frozenset(f.__module__ for f in seen), tuple(found.values()))


def _named_in(function: Any) -> Iterator[Any]:
    """The objects that a function names (functions, rules, classes), and those in its closure."""
    for cell in function.__closure__ or ():
        yield cell.cell_contents
    names = [*_names_in(function.__code__)]
    for name in names:
        known = function.__globals__.get(name)
        if known is None and name.startswith("_"):
            known = getattr(Tensor, name, None)
        if isinstance(known, ModuleType):
            yield from _parts_of(known, names)
        elif known is not None:
            yield known


def _parts_of(module: ModuleType, names: Sequence[str]) -> Iterator[Any]:
    """The contents of a module that are among these names."""
    for name in names:
        if name in vars(module):
            yield vars(module)[name]


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
