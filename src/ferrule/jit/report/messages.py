"""Messages: the lines that `DEBUG=1` prints for calls of captured functions that are no replays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from ferrule.base.config import config
from ferrule.ir.expr import Variable
from ferrule.jit.places import Place
from ferrule.jit.replay import Replay
from ferrule.jit.report.signature import Parameters, Signature, objects_below
from ferrule.jit.report.ways import Ways

_MAX_CHANGES = 3  # differences in one line


@final
class Messages:
    """The lines about one captured function: one for each call that is no plain replay.

    A reason for running plainly is given once: most such functions run plainly in every call.
    """

    def __init__(self, name: object) -> None:
        self.name = name
        self.last_plain = -1, "it was not called"
        """The number of the last call that ran plainly, and the reason."""
        self._said: set[str] = set()

    def captured(self, kernels: int, reasons: Callable[[], Sequence[str]]) -> None:
        """A call was captured; `reasons` gives what the last replay was not good for."""
        if config().DEBUG >= 1:
            count = f"{kernels} kernel" if kernels == 1 else f"{kernels} kernels"
            why = _listed(reasons())
            self._print(f"captured again because {why} ({count})" if why else f"captured {count}")

    def plain(
        self, call: int, reason: str, changes: Callable[[], Sequence[str]] | None = None
    ) -> None:
        """A call ran plainly; `changes` gives what differs from the call before."""
        self.last_plain = call, reason
        if config().DEBUG < 1:
            return
        key = re.sub(r"\d+", "0", reason)  # counters are others in each call
        if key not in self._said:
            self._said.add(key)
            found = "" if changes is None else _listed(changes())
            self._print(f"run plainly because {reason}" + (f" (changed: {found})" if found else ""))

    def _print(self, text: str) -> None:
        print(f"TinyJit {self.name}: {text}")


def _listed(reasons: Sequence[str]) -> str:
    more = len(reasons) - _MAX_CHANGES
    return ", ".join(reasons[:_MAX_CHANGES]) + (f", and {more} more" if more > 0 else "")


def changes(
    old: Sequence[Any], new: Sequence[Any], replay: Replay | None, function: Callable[..., Any]
) -> list[str]:
    """What differs between the signature `old` of a replay and that of a later call.

    Both are complete, or the new one has the arguments alone (`TinyJit._find`). The first kind of
    difference is given: in arguments, or in numbers, or in gradients and states.
    """
    signature = new if isinstance(new, Signature) else new[0]
    parameters = Parameters(function)
    found: list[str] = old[0].changes(signature, parameters) if old else []
    if found or replay is None or new is signature or not old:
        return found
    ways = ways_of(function, signature, parameters, replay)
    return replay.numbers.changes(ways.to) or _changes_of_inputs(old, new, replay, ways)


def failure(problem: str, replay: Replay, key: Sequence[Any], function: Any) -> list[str]:
    """The reasons why a replay with the signature `key` has a `problem`, with names if it can."""
    ways = ways_of(function, key[0], Parameters(function), replay)
    return replay.numbers.changes(ways.to) or [problem]


def ways_of(
    function: Callable[..., Any], signature: Signature, parameters: Parameters, replay: Replay
) -> Ways:
    """The ways from a function's code, and from the objects among its arguments."""
    alive = {id(value): value for value in replay.objects}
    given = [
        (name, alive[number])
        for argument, part in signature.arguments(parameters)
        for name, number in objects_below(argument, part)
        if number in alive
    ]
    return Ways(function, given)


def _changes_of_inputs(
    old: Sequence[Any], new: Sequence[Any], replay: Replay, ways: Ways
) -> list[str]:
    """The gradients and states that are there now, or of another kind."""
    if old[2] != new[2]:
        return ["other gradients or states are in use"]
    spots = [*replay.found.used, *replay.found.others]
    return [
        f"{way_to_spot(spot, ways)} {_kind(then)} -> {_kind(now)}"
        for spot, then, now in zip(spots, old[3], new[3], strict=True)
        if then != now
    ]


def way_to_spot(spot: Any, ways: Ways) -> str:
    """The way to a state or a gradient; see `FoundInputs`."""
    if isinstance(spot, Place):
        return ways.to(spot) or str(spot.key)
    parameter = spot()
    way = None if parameter is None else ways.to(parameter)
    return f"{way or 'a parameter'}.grad"


def _kind(kind: Any) -> str:
    """What `FoundInputs.add_to` notes of a state or a gradient, in words."""
    if kind is None or kind is True:
        return "None"
    if kind is False or isinstance(kind, str):
        return "a tensor" if kind is False else kind
    return " and ".join([f"tensor of shape {one[0]}" for one in kind[1:]])


def out_of_range(replay: Replay, var_vals: Mapping[Variable, int]) -> str:
    """The reason to run a call whose variables have values that a replay cannot take."""
    now = ", ".join([f"{variable.name}={value}" for variable, value in var_vals.items()])
    needed = " and ".join([f"{spare} >= 0" for spare in replay.unfit(var_vals)])
    return (
        f"{now} does not fit the captured call, which found that {needed}; give the variable "
        "bounds in which that holds"
    )
