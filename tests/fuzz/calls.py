"""Statements of one kind, as the generator draws them: can it draw any that is accepted?"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ferrule import Context, Tensor
from tests.fuzz.check import Finding
from tests.fuzz.drawing import NothingFitsError
from tests.fuzz.generate import Generator
from tests.fuzz.layers import parts
from tests.fuzz.numpys import DiffersError
from tests.fuzz.program import Program, assigned
from tests.fuzz.reference import Oracle, UndefinedError
from tests.fuzz.surface import Method

# Public methods that programs may call, but of which no accepted call is ever drawn.
UNREACHED = {
    "masked_scatter_": "needs as many values as the mask; masked_scatter has a recipe",
}
TRIES = 240
"""For a call that is accepted."""
CALLS_EACH = 6
"""Of one generator: what is drawn for a call is there for the next, so that shapes vary."""


def accepted(method: Method, tries: int, least: int = 1, oracle: Oracle | None = None) -> int:
    """How many calls of a method are accepted, of so many; it stops at `least`.

    An oracle is asked about each of them.
    """
    if method.lacking:
        return 0
    return accepted_statements(lambda generator: generator.call(method), tries, least, oracle)


def calls_in(line: str, method: Method) -> Iterator[tuple[ast.expr, dict[str, ast.expr]]]:
    """The calls of a method in a line: what it is called on, and its arguments by name."""
    names = [parameter.name for parameter in method.parameters]
    for node in ast.walk(ast.parse(line)):
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr == method.name:
            assert isinstance(node, ast.Call)
            words = {word.arg: word.value for word in node.keywords if word.arg}
            yield function.value, {**dict(zip(names, node.args, strict=False)), **words}


def refused(method: Method) -> Finding | None:
    """The finding that all calls of a method raise: an error of each alone may be the caller's."""
    if method.name in UNREACHED or accepted(method, TRIES):
        return None
    said = f"of {TRIES} calls, none is accepted"
    return Finding("error", Program((), (), ()), None, f"refuses all: {method.name}", said)


def accepted_statements(
    drawn: Callable[[Generator], str | None],
    tries: int,
    least: int = 1,
    oracle: Oracle | None = None,
) -> int:
    """How many statements of a kind are accepted, of so many; it stops at `least`."""
    found = 0
    for number in range(-(-tries // CALLS_EACH)):
        generator = Generator(0, number)
        with Context(FERRULE_DEVICE="NUMPY"):
            generator.start()
            generator.machine.oracle = oracle
            for _ in range(CALLS_EACH):
                found += accepts(generator, drawn)
                if found >= least:
                    return found
    return found


def accepts(generator: Generator, drawn: Callable[[Generator], str | None]) -> bool:
    """True if one is drawn and does what it should: it gives a tensor, or writes to one."""
    before = dict(generator.draw.values)
    try:
        line = drawn(generator)
        if line is None:
            return False
        generator.machine.run(line)
        generator.check_results(line)
    except (NothingFitsError, UndefinedError):
        generator.draw.values = before
        return False
    except DiffersError:
        raise
    except Exception:
        return False
    values = [generator.machine.values[name] for name in assigned(line)]
    return not values or any(isinstance(v, Tensor) for v in parts(values))
