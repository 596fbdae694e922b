"""Names that a function loads, read from its bytecode: they bound what it can read from outside."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, final

from ferrule.base.records import dataclass

_ADDING = frozenset({"append", "extend", "insert", "add", "update", "clear", "discard"})
"""Methods of lists, dicts and sets that change the contents without reading them."""
_BY_TEXT = frozenset({"getattr", "hasattr", "attrgetter"})
"""Functions that look up an attribute by a string."""
_OF_ALL = frozenset({"vars", "globals", "__dict__"})
"""Names that give code access to attributes that it does not name."""
_METHOD_FLAG = 1 if sys.version_info >= (3, 12) else 0
_SCOPES = ("GLOBAL", "GLOBALS", "NAME", "DEREF")
_STORES = frozenset({"STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_NAME"})


@final
@dataclass(frozen=True)
class Names:
    """The names that code loads, by their use.

    A counter, as in `n += 1`, does not count as a load. Replays do not count, and that gives no
    wrong result as long as nothing else reads the counter.
    """

    read: frozenset[str]
    """The names whose values may be read."""
    called: frozenset[str]
    """The names that are only called, as methods."""
    added_to: frozenset[str]
    """The names of containers that are only added to, or whose items only count."""
    stored: frozenset[str] = frozenset()
    """The variables and attributes that are assigned; they need not be loaded."""
    unknown: bool = False
    """True if the code computes names at run time: it may then read any attribute."""
    asked: frozenset[str] = frozenset()
    """The attributes that the code looks up by a constant string, as `hasattr` does."""

    def everything(self) -> frozenset[str]:
        """All the names."""
        return self.read | self.called | self.added_to

    def __or__(self, other: Names) -> Names:
        return Names(
            self.read | other.read,
            self.called | other.called,
            self.added_to | other.added_to,
            self.stored | other.stored,
            self.unknown or other.unknown,
            self.asked | other.asked,
        )


NO_NAMES = Names(frozenset(), frozenset(), frozenset())


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> tuple[Names, Names]:
    """The variables and the attributes that code loads, including the functions defined in it."""
    instructions = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    variables = _found(instructions, _is_variable)
    attributes = _found(instructions, _is_attribute)
    stored = frozenset(step.argval for step in instructions if step.opname in _STORES)
    texts = _texts(instructions)
    loaded = variables.everything() | attributes.everything()
    # A class pattern reads the attributes that the class names in `__match_args__`.
    matches = any(step.opname == "MATCH_CLASS" for step in instructions)
    unknown = None in texts or matches or not loaded.isdisjoint(_OF_ALL)
    asked = frozenset(text for text in texts if text is not None)
    attributes |= Names(asked, frozenset(), frozenset(), stored, unknown, asked)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more_variables, more_attributes = names_of(inner)
            variables, attributes = variables | more_variables, attributes | more_attributes
    return variables, attributes


@functools.lru_cache(maxsize=4096)
def names_of_parameters(code: types.CodeType) -> Names:
    """The parameters that code loads, including the functions defined in it."""
    instructions = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    single = [step for step in instructions if not isinstance(step.argval, tuple)]
    several = [step.argval for step in instructions if isinstance(step.argval, tuple)]
    # One instruction may load several variables; all of them count as read.
    read = frozenset(name for names in several for name in names if isinstance(name, str))
    return _found(single, _is_local) | names_of(code)[0] | Names(read, frozenset(), frozenset())


@functools.lru_cache(maxsize=4096)
def imports_of(code: types.CodeType) -> tuple[tuple[int, str], ...]:
    """The imports of code and of the functions defined in it: `(level, module name)`.

    Level 0 is an absolute import, 1 is relative to the package of the code, and so on outwards.
    """
    found: list[tuple[int, str]] = []
    constants: list[Any] = []
    for step in dis.get_instructions(code):
        if step.opname in _CONSTANTS:
            constants.append(step.argval)
        elif step.opname == "IMPORT_NAME":
            found.append((constants[-2], step.argval))
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return (*found, *[one for part in inner for one in imports_of(part)])


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


def _texts(instructions: Sequence[dis.Instruction]) -> set[str | None]:
    """The names that `getattr` and the like look up; None among them means: not a constant."""
    found: set[str | None] = set()
    for number, step in enumerate(instructions):
        if (_is_variable(step) or _is_attribute(step)) and step.argval in _BY_TEXT:
            found.add(_text(instructions[number + 1 :]))
    return found


def _text(after: Sequence[dis.Instruction]) -> str | None:
    """The constant string that `getattr` or the like is called with; None if there is none.

    `after` are the instructions after the load of the function. The string is only found if it is
    a constant right after a name.
    """
    place = next((n for n, step in enumerate(after) if not _is_part_of_name(step)), len(after))
    end = next((n for n in range(place, len(after)) if "CALL" in after[n].opname), None)
    if end is None or after[place].opname != "LOAD_CONST":
        return None
    text, others = after[place].argval, after[place + 1 : end]
    are_loaded = all(step.opname in _CONSTANTS or _is_part_of_name(step) for step in others)
    # The default for a missing attribute is one more argument of the call. The pieces of a string
    # that is put together are no arguments, so the count below does not fit then.
    values = [step for step in others if not _is_attribute(step)]
    is_text = isinstance(text, str) and are_loaded
    first = 1 if place == 0 else 2
    return text if is_text and after[end].arg == first + len(values) else None


def _is_part_of_name(step: dis.Instruction) -> bool:
    return step.opname == "PUSH_NULL" or (
        step.opname.startswith("LOAD_") and step.opname not in _CONSTANTS
    )


def _is_variable(step: dis.Instruction) -> bool:
    return step.opname.startswith("LOAD_") and step.opname.endswith(_SCOPES)


def _is_local(step: dis.Instruction) -> bool:
    return step.opname.startswith("LOAD_FAST")


def _is_attribute(step: dis.Instruction) -> bool:
    if step.opname == "IMPORT_FROM":
        return True
    return step.opname.startswith("LOAD_") and ("ATTR" in step.opname or _is_method(step))


def _is_method(step: dis.Instruction) -> bool:
    if step.opname == "LOAD_ATTR":
        return bool((step.arg or 0) & _METHOD_FLAG)
    return step.opname == "LOAD_METHOD"


def _is_count(name: str, after: Sequence[dis.Instruction]) -> bool:
    """True if the loaded variable is only counted up, as in `n += 1`."""
    steps = [step for step in after if step.opname != "SWAP"]
    return (
        len(steps) >= 3
        and steps[0].opname in _CONSTANTS
        and steps[1].opname == "BINARY_OP"
        and steps[2].opname.startswith("STORE_")
        and steps[2].argval == name
    )


def _is_addition(after: Sequence[dis.Instruction]) -> bool:
    """True if a container is only added to, as in `log.append(x)`, or counts, as in `n[0] += 1`.

    Neither reads its contents.
    """
    if after and _is_method(after[0]) and after[0].argval in _ADDING:
        return True
    kinds = [_kind_of(step) for step in after if step.opname != "SWAP"]
    return kinds[: len(_COUNT_OF_ITEM)] == _COUNT_OF_ITEM


_COUNT_OF_ITEM = ["constant", "copy", "copy", "item", "constant", "add", "store"]
_CONSTANTS = ("LOAD_CONST", "LOAD_SMALL_INT")
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
