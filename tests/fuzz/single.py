"""Programs of one statement, whose derivatives are compared with differences.

In a whole program, corners and undefined values hide most rules. Here the probability of each rule
follows from its length, and tensors are small with few different numbers, so that several axes,
zeros and ties are common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrule import Context, Tensor
from ferrule.autograd import GradNode, Rule
from ferrule.autograd.tape import GradEdge
from ferrule.dtype import dtypes
from ferrule.errors import GradientError, LinalgError
from tests.fuzz import namespaces, reached
from tests.fuzz.check import Finding, check_derivative, error_finding
from tests.fuzz.drawing import Limits, NothingFitsError
from tests.fuzz.generate import Generator
from tests.fuzz.layers import parts
from tests.fuzz.program import Program, assigned, compiled, is_write, loaded
from tests.fuzz.surface import Method, methods
from tests.fuzz.ways import Way

STATEMENTS = 2
"""For each program."""
TRIES = 6
"""At drawing a statement of floats to differentiate."""
RULE_TRIES = 12
"""At drawing a call with a certain rule."""
FORWARDS = 0.15
"""The probability that forward derivatives are checked too."""
SECOND = 0.3
"""The probability that the gradient itself is differentiated."""
SECOND_IN_FOCUS = 0.5
"""The same with a focus on a file: rules have other ways where their own results are recorded."""
LIMITS = Limits(elements=40, most=200)
RANKS = (0, 1, 1, 2, 2, 2, 2, 3, 3, 4)
SIZES = (1, 2, 2, 2, 3, 3, 3, 4, 5)
NUMBERS = (
    *("[-1.0, 0.0, 1.0, 2.0]", "[-1.0, 0.0, 1.0, 2.0]", "[0.0, 0.5, 2.0]"),
    *("[-0.5, 0.25, 0.75]", "[0.25, 0.5, 0.75]", "[1.5, 2.0, 3.0]", ""),
)
"""The lists of numbers that tensors are drawn from; "" leaves it to `Drawing`."""
ONE_SOURCE = 0.3
"""The probability that derivatives leave out one of several operands."""
PRIMITIVE = (
    *("maximum", "minimum", "fmax", "fmin", "fmod", "fmod", "max", "max", "min", "amax", "amin"),
    *("prod", "prod", "prod", "sum", "mean", "where", "clamp", "lerp", "addcmul", "div"),
    *("gather", "scatter", "scatter_add", "index_select", "take_along_axis", "take"),
    *("expand", "flip", "roll", "pad", "repeat", "unfold", "diagonal", "permute", "movedim"),
    *("cat", "cat", "stack", "split", "chunk", "reciprocal", "sqrt", "exp2", "log2", "sin", "atan"),
    *("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "avg_pool2d", "max_pool2d"),
)
"""Methods that are little more than one primitive each, or a few; some more often than others."""


VIEWED = 0.15
"""The probability of a view in the place of one of these: parts, every second element, flips."""


class Single(Generator):
    """Draws and differentiates statements, each on tensors of its own."""

    def __init__(self, seed: int, index: int, focus: str = "") -> None:
        super().__init__(seed, index, salt="single:")
        self.file = focus if focus.endswith(".py") else ""
        """Whose rules are drawn, if any file is given."""
        self.second = SECOND_IN_FOCUS if self.file else SECOND
        self.draw.limits = LIMITS
        self.draw.special = False
        self.draw.literals = 0.1
        self.copied = ""
        """The statement that makes what a write is to."""

    def statements(self) -> Finding | None:
        """The first finding of `STATEMENTS` of them."""
        with Context(FERRULE_DEVICE="NUMPY"):
            for _ in range(STATEMENTS):
                self.derived()
                if self.finding is not None:
                    break
        return self.finding

    def derived(self) -> None:
        """Compares the derivative of one statement with differences."""
        program = None
        for _ in range(TRIES):
            if program is None and self.finding is None:
                program = self.one_statement()
        if program is None:
            return
        way = Way(derivative="second" if self.rng.random() < self.second else "differences")
        # A second derivative of what is linear is 0: rules of its rule are seen forwards only.
        is_linear = any("ferrule." in line for line in program.body)
        forwards = is_linear or self.rng.random() < FORWARDS
        try:
            self.finding = check_derivative(program, way, forwards)
        except (GradientError, LinalgError):  # not defined, or not for such numbers
            return
        except Exception as error:  # the statement was accepted, so that a rule is wrong
            self.finding = error_finding(error, program, way)

    def one_statement(self) -> Program | None:
        """A program of one statement, all of whose results have names; None if none was drawn."""
        self.start()
        try:
            lines = self.lines()
            for line in lines:
                self.do(line)
            name, *more = assigned(lines[0])
            result = self.machine.values[name]
            if not more and isinstance(result, tuple | list):
                lines = (self.unpacked(lines[0], name, result),)
            return self.alone(lines)
        except Exception:  # not for such operands; as statements of programs they are looked into
            return None

    def do(self, line: str) -> None:
        """Does a statement, of which nothing is computed yet."""
        exec(compiled(line), self.machine.values)

    def start(self) -> None:
        """Two tensors of one shape, behind one that broadcasts to it: late ones are likelier."""
        self.draw.values.clear()
        self.draw.pending.clear()
        self.draw.numbers = self.rng.choice(NUMBERS)
        shape = [self.rng.choice(SIZES) for _ in range(self.rng.choice(RANKS))]
        if self.rng.random() < 0.3:
            shape = [shape[0]] * len(shape) if shape else shape
        while len(shape) > 2 and shape[0] * shape[1] * shape[2] > LIMITS.elements:
            shape.pop()
        for sizes in (self.draw.smaller(tuple(shape)), shape, shape):
            self.draw.fresh(sizes, "float32")

    def lines(self) -> tuple[str, ...]:
        """The statement, behind a copy of what it writes to."""
        kinds: list[tuple[int, Callable[[], str | None]]] = [
            (50, self.ruled),
            (90 if self.file.startswith("autograd/") else 18, self.primitive),
            (5, self.method),
            (4, self.recipe),
            (5, self.binary),
            (5, self.views),
            (6, self.pieces),
            (3, self.positions),
            (2, self.function),
            (7, self.put),
        ]
        line = self.draw.weighted(kinds)()
        if line is None:
            raise NothingFitsError
        return (self.copied, line) if is_write(line) else (line,)

    def ruled(self) -> str | None:
        """A call of what has a rule of its own for its derivative, with that rule if it can be."""
        known = reached.rules_in(self.file) if self.file else reached.rules()
        (ruled,) = self.rng.choices(known, [rule.size for rule in known])
        line: str | None = None
        for _ in range(RULE_TRIES):
            (method,) = self.rng.choices(ruled.methods, ruled.chances)
            line = self.called(method)
            if line is not None and self.has_rule(line, ruled.rule):
                break
        return line

    def called(self, method: Method) -> str | None:
        if isinstance(method, namespaces.Function):
            return f"{self.new_name()} = {namespaces.call(self.draw, method)}"
        return self.call(method)

    def has_rule(self, line: str, rule: Rule) -> bool:
        """True if a rule is on the tape of a statement, which need not be accepted."""
        names = dict(self.machine.values)
        for name in loaded(line):
            x = self.draw.values[name]
            if dtypes.is_float(x.dtype):
                names[name] = x.detach().requires_grad_()
        try:
            exec(compiled(line), names)
        except Exception:  # not for such operands
            return False
        results = parts([names[name] for name in assigned(line)])
        return any(isinstance(x, Tensor) and _on_tape(x._read().edge, rule) for x in results)

    def primitive(self) -> str | None:
        if self.rng.random() < VIEWED:
            return self.view()
        name = self.rng.choice(PRIMITIVE)
        (method,) = [method for method in methods() if method.name == name]
        return self.call(method)

    def function(self) -> str:
        function = self.rng.choice([f for f in namespaces.functions() if not f.lacking])
        return f"{self.new_name()} = {namespaces.call(self.draw, function)}"

    def put(self) -> str | None:
        """A write to a part of a tensor, or to elements of it by index, or to all of it."""
        made = self.new_name()
        self.copied = f"{made} = {self.rng.choice([*self.draw.values])} * 2"
        self.do(self.copied)
        self.draw.values[made] = self.machine.values[made]
        return self.rng.choice([self.write, self.write, self.update, self.in_place])()

    def target(self) -> str:
        """The target of a write: the copy of a source, because sources are leaves."""
        (name,) = assigned(self.copied)
        return name

    def alone(self, lines: Sequence[str]) -> Program | None:
        """The program of these lines, to differentiate; None if they are of no float."""
        program = self.program_of(lines)
        floats = [s.name for s in program.sources if _is_wide_float(self.draw.values[s.name])]
        results = [self.machine.values[name] for name in program.results]
        if not floats or not any(dtypes.is_float(result.dtype) for result in results):
            return None
        if len(floats) > 1 and self.rng.random() < ONE_SOURCE:
            floats.remove(self.rng.choice(floats))
        return Program(
            program.sources, program.body, program.results, program.seed, 1, tuple(floats)
        )

    def program_of(self, lines: Sequence[str]) -> Program:
        made = {source.name: source for source in self.draw.pending}
        names = dict.fromkeys(name for line in lines for name in loaded(line) if name in made)
        number = self.rng.getrandbits(30)
        sources = tuple(made[name] for name in names)
        return Program(sources, tuple(lines), assigned(lines[0]), number)


def _on_tape(edge: GradEdge | None, rule: Rule) -> bool:
    """True if a rule is one of those that lead to an edge."""
    left, seen = [edge], set()
    while left:
        entry = left.pop()
        if isinstance(entry, GradNode) and entry not in seen:
            if entry.rule is rule:
                return True
            seen.add(entry)
            left += entry.parents
    return False


def _is_wide_float(x: Tensor) -> bool:
    return dtypes.is_float(x.dtype) and x.dtype.bits > 8
