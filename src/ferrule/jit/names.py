"""Names that a function loads, read from its source: they bound what it can read from outside.

Where there is no source, as of code that was typed or made by `exec`, all names of the code count
as read.
"""

from __future__ import annotations

import ast
import functools
import linecache
import types
from collections.abc import Iterator
from itertools import chain
from string import Formatter
from threading import RLock
from typing import Final, TypeAlias, final

from ferrule.base.records import dataclass

_ADDING = frozenset({"append", "extend", "insert", "add", "update", "clear", "discard"})
"""Methods of lists, dicts and sets that change the contents without reading them."""
_BY_TEXT = frozenset({"getattr", "hasattr", "attrgetter"})
"""Functions that look up an attribute by a string."""
_OF_ALL = frozenset({"vars", "globals", "__dict__"})
"""Names that give code access to attributes that it does not name."""
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@final
@dataclass(frozen=True)
class Names:
    """The names that code loads, by their use.

    A counter, as in `n += 1`, does not count as a load. Replays do not count, and that gives no
    wrong result as long as nothing else reads the counter.
    """

    read: frozenset[str] = frozenset()
    """The names whose values may be read."""
    called: frozenset[str] = frozenset()
    """The names that are only called, as methods."""
    added_to: frozenset[str] = frozenset()
    """The names of containers that are only added to."""
    counted: frozenset[str] = frozenset()
    """The names of containers whose items only count, as in `counts[key] += 1`."""
    stored: frozenset[str] = frozenset()
    """The variables and attributes that are assigned; they need not be loaded."""
    unknown: bool = False
    """True if the code computes names at run time: it may then read any attribute."""
    asked: frozenset[str] = frozenset()
    """The attributes that the code looks up by a constant string, as `hasattr` does."""
    tells_apart: bool = False
    """True if the code may tell objects apart that are equal: `x is y`, `x in objects`, `id(x)`."""

    def everything(self) -> frozenset[str]:
        """All the names."""
        return self.read | self.called | self.added_to | self.counted

    def __or__(self, other: Names) -> Names:
        return Names(
            self.read | other.read,
            self.called | other.called,
            self.added_to | other.added_to,
            self.counted | other.counted,
            self.stored | other.stored,
            self.unknown or other.unknown,
            self.asked | other.asked,
            self.tells_apart or other.tells_apart,
        )


NO_NAMES: Final = Names()


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> tuple[Names, Names]:
    """The variables and the attributes that code loads, including the functions defined in it.

    Its own parameters are among the variables.
    """
    sources = _sources_of(code)
    if sources is None:
        every = frozenset(_every_name(code))
        unknown = not every.isdisjoint(_OF_ALL)
        known = Names(every, stored=every, unknown=unknown, tells_apart=True)
        return known, known
    loads = _Loads()
    for source in sources:
        loads.visit_whole(source)
    variables, attributes = loads.variables.names(), loads.attributes.names()
    # Others, too: names of private attributes have the class's in front, and a file may have been
    # edited since it was imported.
    both = variables | attributes
    others = frozenset(global_names(code)) - both.everything() - both.stored
    read = Names(others)
    return variables | read, attributes | read


@functools.lru_cache(maxsize=4096)
def imports_of(code: types.CodeType) -> tuple[tuple[int, str], ...]:
    """The imports of code and of the functions defined in it: `(level, module name)`.

    Level 0 is an absolute import, 1 is relative to the package of the code, and so on outwards.
    """
    sources = _sources_of(code)
    if sources is None:  # any name may be a module's
        named = [name for name in _every_name(code) if name.replace(".", "").isidentifier()]
        return tuple([(level, name) for name in ["", *named] for level in (0, 1)])
    found: list[tuple[int, str]] = []
    for node in chain.from_iterable(map(ast.walk, sources)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or ""))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def is_procedure(code: types.CodeType) -> bool:
    """True for code that returns nothing, as its source tells."""
    sources = _sources_of(code)
    return sources is not None and all(map(_returns_nothing, sources))


def _returns_nothing(function: _Function) -> bool:
    if not isinstance(function, ast.FunctionDef):
        return False
    waiting: list[ast.AST] = list(function.body)
    for node in waiting:  # the list grows meanwhile
        gives = isinstance(node, ast.Return) and node.value is not None
        if gives or isinstance(node, ast.Yield | ast.YieldFrom):
            return False
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return True


def global_names(code: types.CodeType) -> Iterator[str]:
    """The globals, attributes and modules that code names, and the functions defined inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant)


def _every_name(code: types.CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_freevars, *code.co_cellvars, *code.co_varnames)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _every_name(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


# *** the source of code ***


def _sources_of(code: types.CodeType) -> list[_Function] | None:
    """The functions in the source that code may be; None if there is none.

    Several lambdas may begin in one line.
    """
    lines = linecache.getlines(code.co_filename)
    by_line = _functions_in("".join(lines)) if lines else {}
    found = by_line.get((code.co_firstlineno, code.co_name))
    return found or None


_parsing: Final = RLock()
"""Python 3.11 may raise SystemError where two threads parse at once (cpython issue 106905)."""


@functools.lru_cache(maxsize=64)
def _functions_in(text: str) -> dict[tuple[int, str], list[_Function]]:
    """The functions in a text by their first line, decorators included, and their names."""
    try:
        with _parsing:
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    found: dict[tuple[int, str], list[_Function]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            found.setdefault((node.lineno, "<lambda>"), []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *[part.lineno for part in node.decorator_list]])
            found.setdefault((first, node.name), []).append(node)
    return found


@final
class _Uses:
    """The names of one kind, as they are found."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.called: set[str] = set()
        self.added_to: set[str] = set()
        self.counted: set[str] = set()
        self.stored: set[str] = set()
        self.asked: set[str] = set()
        self.unknown = False
        self.tells_apart = False

    def names(self) -> Names:
        return Names(
            frozenset(self.read),
            frozenset(self.called),
            frozenset(self.added_to),
            frozenset(self.counted),
            frozenset(self.stored),
            self.unknown,
            frozenset(self.asked),
            self.tells_apart,
        )


@final
class _Loads(ast.NodeVisitor):
    """The variables and the attributes that a function loads."""

    def __init__(self) -> None:
        self.variables = _Uses()
        self.attributes = _Uses()

    def visit_whole(self, function: _Function) -> None:
        """Visit the body of a function; its defaults and decorators ran when it was defined."""
        body = function.body
        for part in body if isinstance(body, list) else [body]:
            self.visit(part)

    def visit_Name(self, node: ast.Name) -> None:
        self._use(node, "read" if isinstance(node.ctx, ast.Load) else "stored")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._use(node, "read" if isinstance(node.ctx, ast.Load) else "stored")
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Attribute):
            self._use(function, "called")
            self._visit_container(function.value, "added_to" if function.attr in _ADDING else "")
            if function.attr == "format":
                self._look_into_format(function.value)
        else:
            self.visit(function)
        name = getattr(function, "attr", getattr(function, "id", None))
        if name in _BY_TEXT:
            self._look_up(node)
        for part in (*node.args, *node.keywords):
            self.visit(part)

    def _look_into_format(self, text: ast.expr) -> None:
        """Note the attributes in a text such as "{0.rate}"; a computed text may have any."""
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            self.attributes.unknown = True
            return
        for _, field, _, _ in Formatter().parse(text.value):
            self.attributes.read.update((field or "").replace("[", ".").split(".")[1:])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        target = node.target
        if isinstance(target, ast.Subscript):
            is_count = isinstance(node.value, ast.Constant)
            self._visit_container(target.value, "counted" if is_count else "")
            self.visit(target.slice)
        else:
            if not isinstance(node.value, ast.Constant):
                self._use(target, "read")
            self.visit(target)
        self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for number, operator in enumerate(node.ops):
            sides = operands[number : number + 2]
            is_by_identity = isinstance(operator, ast.Is | ast.IsNot | ast.In | ast.NotIn)
            if is_by_identity and not any([isinstance(side, ast.Constant) for side in sides]):
                self.attributes.tells_apart = True
        self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        # Positional patterns read the attributes that the class names in `__match_args__`.
        self.attributes.unknown |= bool(node.patterns)
        self.attributes.read.update(node.kwd_attrs)
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.attributes.read.update([alias.name for alias in node.names])

    def _visit_container(self, node: ast.expr, how: str) -> None:
        """Notes how a container is used, if its contents are not read."""
        if how and isinstance(node, ast.Name | ast.Attribute):
            self._use(node, how)
            if isinstance(node, ast.Attribute):
                self.visit(node.value)
        else:
            self.visit(node)

    def _use(self, node: ast.Name | ast.Attribute, how: str) -> None:
        name = node.id if isinstance(node, ast.Name) else node.attr
        uses = self.variables if isinstance(node, ast.Name) else self.attributes
        getattr(uses, how).add(name)
        if how == "stored":  # where it is an attribute or a variable makes no difference
            self.attributes.stored.add(name)
        self.attributes.unknown |= name in _OF_ALL
        self.attributes.tells_apart |= name == "id"

    def _look_up(self, call: ast.Call) -> None:
        """Note the attribute that `getattr` or the like looks up; the names may be anything."""
        place = 0 if getattr(call.func, "id", getattr(call.func, "attr", "")) == "attrgetter" else 1
        part = call.args[place] if len(call.args) > place else None
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            for name in part.value.split("."):
                self.attributes.asked.add(name)
                self.attributes.read.add(name)
        else:
            self.attributes.unknown = True
