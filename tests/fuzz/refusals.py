"""`python -m tests.fuzz.refusals --write`: notes which kinds of calls each method accepts.

An error of one call alone may be the caller's: arguments are drawn, and not all go together. But
where most programs have an accepted call of a kind, as of `diag` on a matrix, and now hardly one
of several has, the method refuses what it took. `accepted.txt` has the kinds of each method.
"""

from __future__ import annotations

import argparse
import ast
import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from ferrule import Context
from tests.fuzz.calls import UNREACHED, accepts, calls_in
from tests.fuzz.check import Finding
from tests.fuzz.generate import Generator
from tests.fuzz.program import Program
from tests.fuzz.reached import methods_in
from tests.fuzz.surface import Method, methods

TABLE = Path(__file__).with_name("accepted.txt")
SHARE = 0.15
"""Of the programs, beside which a method is looked at."""
SHARE_IN_FOCUS = 0.6
"""The same with a focus on a file, of whose methods it is one."""
CALLS_EACH = 2
"""Of one program: what is drawn for a call is there for the next, so that shapes vary."""
PROGRAMS, ENOUGH = 24, 5
"""Programs that a method is looked at in, and those of them that have to have a kind of call."""
NOTED_PROGRAMS, NOTED_ENOUGH, NOTED_SHARE = 100, 16, 0.94
"""For the table: programs, those that have a kind of call, and the share where one is accepted."""


def kinds(line: str, method: Method, generator: Generator) -> set[str]:
    """The kinds that a call is of: the axes of its tensor, and the sort of each argument."""
    found: set[str] = set()
    for tensor, arguments in calls_in(line, method):
        if isinstance(tensor, ast.Name) and tensor.id in generator.draw.values:
            found.add(f"{generator.draw.values[tensor.id].ndim}-d")
        found |= {f"{name}={_sort(given)}" for name, given in arguments.items()}
    return found


def _sort(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        return type(node.value).__name__ if is_number else repr(node.value)
    if isinstance(node, ast.UnaryOp):
        return _sort(node.operand)
    return "several" if isinstance(node, ast.Tuple | ast.List) else "tensor"


def outcomes(method: Method, programs: Iterable[int], seed: int = 0) -> Iterator[tuple[str, bool]]:
    """The kinds of calls in some programs; True for those of which one is accepted there."""
    for number in programs:
        generator = Generator(seed, number)
        outcome: dict[str, bool] = {}
        with Context(FERRULE_DEVICE="NUMPY"):
            generator.start()
            for _ in range(CALLS_EACH):
                drawn: list[str] = []

                def call(generator: Generator, drawn: list[str] = drawn) -> str | None:
                    line = generator.call(method)
                    drawn.append(line or "")
                    return line

                is_accepted = accepts(generator, call)
                for kind in kinds(drawn[0], method, generator) if drawn else ():
                    outcome[kind] = outcome.get(kind, False) or is_accepted
        yield from outcome.items()


@functools.cache
def table() -> dict[str, frozenset[str]]:
    """The kinds of calls that each method is known to accept."""
    lines = [line.split() for line in TABLE.read_text().splitlines()]
    return {name: frozenset(known) for name, *known in lines}


def finding(seed: int, index: int, focus: str) -> Finding | None:
    """The finding that a method refuses a kind of calls, looked for beside a share of programs."""
    rng = Random(f"refusals:{seed}:{index}")
    is_file = focus.endswith(".py")
    if rng.random() > (SHARE_IN_FOCUS if is_file else SHARE):
        return None
    method = rng.choice(methods_in(focus) if is_file else methods())
    refused = refusals(method, [rng.randrange(1 << 30) for _ in range(PROGRAMS)])
    if not refused:
        return None
    detail = f"{method.name} refuses all calls of a kind that it took: {', '.join(refused)}"
    return Finding("error", Program((), (), ()), None, f"refuses: {method.name}", detail)


def refusals(method: Method, programs: Iterable[int]) -> list[str]:
    """The kinds of a method's calls of which several programs have some, but mostly none accepted.

    One in three may be accepted beyond `ENOUGH`: a size of 1 is often a case of its own.
    """
    asked, accepted = counted(method, programs)
    known = table().get(method.name, frozenset())
    return sorted(k for k in known if accepted[k] <= (asked[k] - ENOUGH) // 3)


def counted(method: Method, programs: Iterable[int]) -> tuple[Counter[str], Counter[str]]:
    """In how many programs there are calls of each kind, and accepted ones."""
    found = list(outcomes(method, programs))
    return Counter(k for k, _ in found), Counter(k for k, is_accepted in found if is_accepted)


def noted(method: Method) -> list[str]:
    """The kinds of calls that a method mostly accepts."""
    asked, accepted = counted(method, range(NOTED_PROGRAMS))
    return sorted(
        kind
        for kind, count in asked.items()
        if count >= NOTED_ENOUGH and accepted[kind] >= NOTED_SHARE * count
    )


def called() -> list[Method]:
    """The methods that programs call."""
    return [m for m in methods() if not m.lacking and m.name not in UNREACHED]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.refusals", description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    lines = [" ".join([method.name, *noted(method)]) for method in called()]
    TABLE.write_text("".join(f"{line}\n" for line in lines))
