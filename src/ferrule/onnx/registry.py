"""The table of rules: what an operator of ONNX computes, from a version on.

A rule is a function. Its positional parameters are the operator's inputs, in their order, its
keyword parameters are the attributes, under their names, with the defaults of the standard. Inputs
that may be left out have the default None. An input that is annotated with `Host` is an array that
is known on the host. A keyword parameter whose default is a named tuple takes the attributes that
are its fields, which several operators share. A keyword parameter `n_outputs` tells how many
outputs are wanted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from ferrule.onnx.values import Host

Rule = TypeVar("Rule", bound=Callable[..., Any])


class Entry(NamedTuple):
    """A rule, and what its signature says."""

    function: Callable[..., Any]
    since: int
    inputs: tuple[str, ...]
    """The annotations of the inputs, in order; the last one stands for all others in `variadic`."""
    variadic: bool
    attributes: frozenset[str]
    required: frozenset[str]
    """The attributes without a default."""
    groups: tuple[tuple[str, type[Any]], ...]
    """The keyword parameters that take several attributes, and the named tuples of these."""
    wants_count: bool
    """Whether the rule asks for the number of outputs."""
    by_reference: bool = False
    """Whether ONNX's reference implementation computes it, on the host."""

    def annotation(self, position: int) -> str:
        """What an input is annotated with; empty beyond the last input."""
        if position < len(self.inputs):
            return self.inputs[position]
        return self.inputs[-1] if self.variadic else ""

    def is_host(self, position: int) -> bool:
        """Whether an input is needed on the host."""
        return "Host" in self.annotation(position)

    def arguments(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments for the attributes of a node."""
        arguments = dict(attributes)
        for name, group in self.groups:
            fields = {f: arguments.pop(f) for f in group._fields if f in arguments}
            arguments[name] = group(**fields)
        return arguments

    def is_scale(self, position: int) -> bool:
        """Whether an input is a scale of quantised numbers."""
        return "Scale" in self.annotation(position)

    def is_statistic(self, position: int) -> bool:
        """Whether no gradient is wanted of an input."""
        return "Statistic" in self.annotation(position)


_RULES: Final[dict[tuple[str, str], list[Entry]]] = {}


def rule(operator: str, since: int = 1, domain: str = "") -> Callable[[Rule], Rule]:
    """Enter a function into the table, for an operator from a version of its domain on."""

    def enter(function: Rule) -> Rule:
        entries = _RULES.setdefault((domain, operator), [])
        entries.append(_entry(function, since))
        entries.sort(key=lambda entry: entry.since)
        return function

    return enter


def _entry(function: Callable[..., Any], since: int) -> Entry:
    parameters = inspect.signature(function).parameters.values()
    inputs = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "n_outputs"]
    groups = tuple((p.name, type(p.default)) for p in named if hasattr(p.default, "_fields"))
    attributes = {p.name for p in named}.difference(name for name, _ in groups)
    return Entry(
        function,
        since,
        tuple(str(p.annotation) for p in inputs),
        bool(inputs) and inputs[-1].kind is inspect.Parameter.VAR_POSITIONAL,
        frozenset(attributes.union(*(group._fields for _, group in groups))),
        frozenset(p.name for p in named if p.default is p.empty),
        groups,
        any(p.name == "n_outputs" for p in parameters),
    )


def _by_reference(*inputs: Host, **attributes: Any) -> None:
    raise AssertionError("the node runs it")


def on_host(operator: str, since: int) -> None:
    """Let ONNX's reference implementation compute an operator, on the host."""
    entry = _entry(_by_reference, since)._replace(by_reference=True)
    _RULES.setdefault(("", operator), []).append(entry)


def entry_for(operator: str, version: int, domain: str = "") -> Entry | None:
    """The rule of an operator in a version of its domain; None if there is none."""
    fitting = [e for e in _RULES.get((domain, operator), ()) if e.since <= version]
    return fitting[-1] if fitting else None


def operators() -> list[tuple[str, str, int]]:
    """The domain, name and first version of each rule."""
    return [(*key, entry.since) for key, entries in sorted(_RULES.items()) for entry in entries]
