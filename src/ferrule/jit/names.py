"""Which names a function loads: what it can read of the world outside, told from its bytecode."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import final

from ferrule.records import dataclass

_ADDING = frozenset({"append", "extend", "insert", "add", "update", "clear", "discard"})
"""Methods of lists, dicts and sets that tell nothing of what is in these."""
_BY_TEXT = frozenset({"getattr", "hasattr", "vars", "globals", "attrgetter"})
"""Functions that find attributes by a text."""
_METHOD_FLAG = 1 if sys.version_info >= (3, 12) else 0
_SCOPES = ("GLOBAL", "GLOBALS", "NAME", "DEREF")
_STORES = frozenset({"STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_NAME"})


@final
@dataclass(frozen=True)
class Names:
    """The names that code loads, by what it may do with them.

    Code that only counts, as `n += 1` does, loads nothing: that counts no more in a replay is no
    wrong number, as long as nothing else reads it.
    """

    read: frozenset[str]
    """Whatever is there may be looked at."""
    called: frozenset[str]
    """They are called as methods, and no more."""
    added_to: frozenset[str]
    """A list, dict or set there is added to, or an item of it is counted up, and no more."""
    stored: frozenset[str] = frozenset()
    """Variables and attributes that are set; these need not be loaded."""

    def everything(self) -> frozenset[str]:
        """All the names."""
        return self.read | self.called | self.added_to

    def __or__(self, other: Names) -> Names:
        return Names(
            self.read | other.read,
            self.called | other.called,
            self.added_to | other.added_to,
            self.stored | other.stored,
        )


NO_NAMES = Names(frozenset(), frozenset(), frozenset())


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> tuple[Names, Names]:
    """The variables and the attributes that code loads, or functions defined in it."""
    instructions = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    variables = _found(instructions, _is_variable)
    attributes = _found(instructions, _is_attribute)
    stored = frozenset(step.argval for step in instructions if step.opname in _STORES)
    attributes |= Names(frozenset(), frozenset(), frozenset(), stored)
    if not variables.read.isdisjoint(_BY_TEXT):
        texts = frozenset(value for value in code.co_consts if isinstance(value, str))
        attributes |= Names(texts, frozenset(), frozenset())
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more_variables, more_attributes = names_of(inner)
            variables, attributes = variables | more_variables, attributes | more_attributes
    return variables, attributes


@functools.lru_cache(maxsize=4096)
def names_of_parameters(code: types.CodeType) -> Names:
    """The parameters that code loads, or functions defined in it."""
    instructions = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    single = [step for step in instructions if not isinstance(step.argval, tuple)]
    several = [step.argval for step in instructions if isinstance(step.argval, tuple)]
    # One instruction may load several variables, each of them to be looked at.
    read = frozenset(name for names in several for name in names if isinstance(name, str))
    return _found(single, _is_local) | names_of(code)[0] | Names(read, frozenset(), frozenset())


def _found(
    instructions: Sequence[dis.Instruction], is_load: Callable[[dis.Instruction], bool]
) -> Names:
    read: set[str] = set()
    called: set[str] = set()
    added_to: set[str] = set()
    for number, step in enumerate(instructions):
        after = instructions[number + 1 : number + 5]
        if not is_load(step):
            continue
        if _is_method(step):
            called.add(step.argval)
        elif _is_addition(instructions[number + 1 : number + 11]):
            added_to.add(step.argval)
        elif not _is_count(step.argval, after):
            read.add(step.argval)
    return Names(frozenset(read), frozenset(called), frozenset(added_to))


def _is_variable(step: dis.Instruction) -> bool:
    return step.opname.startswith("LOAD_") and step.opname.endswith(_SCOPES)


def _is_local(step: dis.Instruction) -> bool:
    return step.opname.startswith("LOAD_FAST")


def _is_attribute(step: dis.Instruction) -> bool:
    return step.opname.startswith("LOAD_") and ("ATTR" in step.opname or _is_method(step))


def _is_method(step: dis.Instruction) -> bool:
    if step.opname == "LOAD_ATTR":
        return bool((step.arg or 0) & _METHOD_FLAG)
    return step.opname == "LOAD_METHOD"


def _is_count(name: str, after: Sequence[dis.Instruction]) -> bool:
    """Whether what was loaded goes back to where it was, with a constant added or the like."""
    steps = [step for step in after if step.opname != "SWAP"]
    return (
        len(steps) >= 3
        and steps[0].opname in ("LOAD_CONST", "LOAD_SMALL_INT")
        and steps[1].opname == "BINARY_OP"
        and steps[2].opname.startswith("STORE_")
        and steps[2].argval == name
    )


def _is_addition(after: Sequence[dis.Instruction]) -> bool:
    """Whether what was loaded is added to, as in `log.append(x)`, or an item of it is counted up,
    as in `n[0] += 1`; it is not looked at then.
    """
    if after and _is_method(after[0]) and after[0].argval in _ADDING:
        return True
    kinds = [_kind_of(step) for step in after if step.opname != "SWAP"]
    return kinds[: len(_COUNT_OF_ITEM)] == _COUNT_OF_ITEM


_COUNT_OF_ITEM = ["constant", "copy", "copy", "item", "constant", "add", "store"]
_KINDS = {
    "LOAD_CONST": "constant",
    "LOAD_SMALL_INT": "constant",
    "COPY": "copy",
    "BINARY_SUBSCR": "item",
    "STORE_SUBSCR": "store",
}


def _kind_of(step: dis.Instruction) -> str:
    if step.opname == "BINARY_OP":
        return "item" if step.argrepr == "[]" else "add"
    return _KINDS.get(step.opname, "")
