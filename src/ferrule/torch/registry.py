"""The table of rules: what an operator of PyTorch computes, as a function of tensors.

A rule takes what the operator takes, under its names and with its defaults, but for what says where
memory is (device, layout, memory format): that is left out. Data types are ferrule's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

Rule = TypeVar("Rule", bound=Callable[..., Any])

_RULES: Final[dict[str, Callable[..., Any]]] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """A decorator: the function computes what these operators of PyTorch compute.

    It takes the operator's arguments, with tensors and data types of ferrule, and returns a tensor,
    or a tuple of them. Names are PyTorch's, `namespace::operator.overload`. The namespace is `aten`
    unless it is given, and the overload `default`. With it, programs can have operators of one's
    own, or of another library:

    >>> import ferrule.torch
    >>> @ferrule.torch.rule("mine::scaled_sum")
    ... def scaled_sum(x, factor):
    ...     return x.sum() * factor

    Raises `ValueError` for an operator that has a rule.
    """

    def enter(function: Rule) -> Rule:
        for operator in operators:
            enter_rule(operator, function)
        return function

    return enter


def enter_rule(operator: str, function: Callable[..., Any]) -> None:
    """Enter a rule for one operator."""
    namespace, _, name = operator.rpartition("::")
    key = f"{namespace or 'aten'}.{name}" + ("" if "." in name else ".default")
    if key in _RULES:
        raise ValueError(f"[rule] the operator {key} has a rule")
    _RULES[key] = function


def rule_for(operator: str) -> Callable[..., Any] | None:
    """The rule of an operator such as `aten.add.Tensor`; None if there is none."""
    return _RULES.get(operator)


def operators() -> list[str]:
    """The names of all operators that have a rule, for real or for complex numbers."""
    return sorted(
        {
            f"aten.{name.removeprefix('complex.')}" if name.startswith("complex.") else name
            for name in _RULES
        }
    )
