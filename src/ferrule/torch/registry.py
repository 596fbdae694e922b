"""The table of rules: what an operator of ATen, PyTorch's library, computes, as a function.

A rule takes what the operator takes, under its names and with its defaults, but for what says where
memory is (device, layout, memory format): that is left out. Data types are ferrule's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

Rule = TypeVar("Rule", bound=Callable[..., Any])

_RULES: Final[dict[str, Callable[..., Any]]] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Enter a function into the table; `relu` is short for `aten.relu.default`."""

    def enter(function: Rule) -> Rule:
        for operator in operators:
            enter_rule(operator, function)
        return function

    return enter


def enter_rule(operator: str, function: Callable[..., Any]) -> None:
    """Enter a rule for one operator."""
    name = operator if "." in operator else f"{operator}.default"
    assert f"aten.{name}" not in _RULES, f"{name} has two rules"
    _RULES[f"aten.{name}"] = function


def rule_for(operator: str) -> Callable[..., Any] | None:
    """The rule of an operator such as `aten.add.Tensor`; None if there is none."""
    return _RULES.get(operator)


def operators() -> list[str]:
    """The names of all operators that have a rule."""
    return sorted(_RULES)
