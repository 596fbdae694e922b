"""Draws programs: statement after statement, each of which the reference accepts."""

from __future__ import annotations

import itertools
import random
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ferrule import Context, Tensor
from ferrule.dtype import dtypes
from ferrule.errors import GradientError, LinalgError
from tests.fuzz import beyond, reached, surface
from tests.fuzz.aliases import Aliases
from tests.fuzz.beyond import Beyond
from tests.fuzz.check import Finding, differing, error_finding, is_internal
from tests.fuzz.contractions import LIMITS, Contractions
from tests.fuzz.drawing import LARGE, SMALL, Drawing, NothingFitsError
from tests.fuzz.layers import parts
from tests.fuzz.layouts import Chain
from tests.fuzz.numpys import DiffersError, NumpyOracle
from tests.fuzz.program import (
    CHANCE,
    Program,
    Source,
    assigned,
    is_write,
    loaded,
    methods,
    tuple_text,
    words,
    written,
)
from tests.fuzz.recipes import RECIPES
from tests.fuzz.reference import Machine, UndefinedError, evaluate

BINARY = ("+", "-", "*", "+", "-", "*", "/", "//", "%", "&", "|", "^", "<", "<=", ">", "==", "!=")
UPDATES = ("+=", "-=", "*=")
# Names of methods that are drawn more often, since what they do meets most rules of the compiler.
STRUCTURAL = sorted(
    words(
        """sum max min pad permute reshape expand flip cumsum argmax shrink stack cat where prod any
    all diagonal repeat roll unfold gather clamp maximum minimum cast contiguous split chunk
    matmul softmax mean sort index_select take squeeze unsqueeze flatten transpose relu abs
    square masked_fill scatter_add scatter tril triu one_hot unflatten"""
    )
)
DOMAINS = (".sigmoid()", ".tanh()", ".abs()", ".square() + 1")
"""Calls that map numbers into the domain of functions: (0, 1), (-1, 1), above 0, above 1."""
VIEWS = (
    *("key", "key", "one", "T", "permute", "reshape", "flip", "pad", "pad", "expand", "expand"),
    *("unfold", "unfold", "diagonal"),
)
MOST_VIEWS = 4
"""In one statement."""
ASIDES = 3
"""Statements for each program that are compared with NumPy's and then forgotten."""
CHAINS = 12
"""Chains of movements for each program, that are compared with NumPy's."""
ARBITRARY = words("eigh svd lstsq")
"""Their parts are not determined, or are functions of symmetric matrices only."""
MOST_PARTS = 4
"""Of what one call gives, such as the pieces of a split: how many get a name each."""


def _share_of_nan(tensor: Tensor) -> float:
    array = tensor.detach().numpy()
    wide = array.astype(np.float64) if array.dtype.kind not in "iub" else np.zeros(1)
    return float(np.isnan(wide).mean()) if wide.size else 0.0


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and dtypes.is_float(value.dtype)


def _nested(results: Sequence[Any], names: Iterator[str]) -> str:
    """Names in the place of all parts of a result."""
    found = [_nested(x, names) if isinstance(x, tuple | list) else next(names) for x in results]
    return tuple_text(found)


def _runs(program: Program) -> bool:
    """True if the first call of a program raises nothing; its state has other data than before."""
    try:
        evaluate(replace(program, calls=1))
    except Exception:
        return False
    return True


class Generator:
    """Draws one program from a seed and a number."""

    def __init__(
        self, seed: int, index: int, size: str = "small", focus: str = "", salt: str = ""
    ) -> None:
        self.rng = random.Random(f"{salt}{seed}:{index}")
        self.number = self.rng.getrandbits(30)
        self.focus = focus
        limits = LARGE if size == "large" else SMALL
        self.draw = Drawing(self.rng, LIMITS if focus == "contractions" else limits, focus)
        # Of a few methods, those that treat NaN in a way of their own are soon met.
        self.draw.special = self.rng.random() < (0.35 if focus.endswith(".py") else 0.15)
        self.machine = Machine()
        self.sources: list[Source] = []
        self.body: list[str] = []
        self.finding: Finding | None = None
        self.rejected: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.draw.make = self.make
        self.rngs = Program((), (), (), self.number).rng(0)
        self.beyond = Beyond(self.draw, self.machine.values)
        self.special = self.special_statements()
        self.kind = self.kind_beyond()
        shares = {"writes": 1.0, "aliases": 1.0, "contractions": 0.0, "gradients": 0.15}
        self.writes = self.rng.random() < shares.get(focus, 0.3)

    def special_statements(self) -> Aliases | Contractions | None:
        """The generator of all statements, for the foci that have one of their own."""
        if self.focus == "aliases":
            return Aliases(self.draw, self.new_name)
        return Contractions(self.draw, self.new_name) if self.focus == "contractions" else None

    def kind_beyond(self) -> str:
        """The kind of statements beyond methods and operators in the program, or ""."""
        if self.focus in beyond.KINDS:
            return self.focus
        is_plain = self.special is not None or self.focus.endswith(".py")
        if is_plain or self.rng.random() > beyond.SHARE:
            return ""
        (kind,) = self.rng.choices([*beyond.WEIGHTS], [*beyond.WEIGHTS.values()])
        return kind

    def make(self, source: Source) -> Any:
        try:
            return self.machine.add(source, self.rngs)
        except Exception as error:  # of a model whose settings do not go together
            if is_internal(error):
                program = Program((*self.sources, source), (), (), self.number)
                self.finding = error_finding(error, program, None)
            raise NothingFitsError from error

    def program(self) -> Program | None:
        """The program; None if `finding` has what went wrong on the way, or nothing was drawn."""
        with Context(FERRULE_DEVICE="NUMPY"):
            self.start()
            least = 5 if self.kind == "training" else 2
            wanted = self.rng.randint(least, self.draw.limits.statements)
            for _ in range(wanted * 6):
                if len(self.body) >= wanted or self.finding is not None:
                    break
                self.statement()
            if self.finding is None:
                self.asides()
        if not self.body or self.finding is not None:
            return None
        return self.finished()

    def asides(self) -> None:
        """Does views of views that are no part of the program, for NumPy to compare with its own.

        They take little time, and a mistake in the views is one in all ways to run a program.
        """
        self.machine.oracle = NumpyOracle()
        for _ in range(ASIDES):
            try:
                line = self.views()
                self.machine.run(line)
            except (NothingFitsError, UndefinedError):
                continue
            except DiffersError as error:
                self.finding = differing(error, self.aside(line))
                return
            except Exception as error:
                if is_internal(error):
                    self.finding = error_finding(error, self.aside(line), None)
                    return
        self.layouts()

    def layouts(self) -> None:
        """Compares chains of movements with NumPy's, without any statement."""
        for _ in range(CHAINS):
            chain = Chain(self.rng)
            try:
                chain.run()
            except Exception as error:
                # All that is drawn can be done, so that whatever is raised is a mistake.
                text = "".join(traceback.format_exception(error)[-2:])
                self.finding = Finding("wrong", Program((), (), ()), None, "layouts", text)
                return

    def aside(self, line: str) -> Program:
        """The program that ends with a statement."""
        body = (*self.body, line)
        return Program(tuple(self.sources), body, assigned(line), self.number).without_unused()

    def start(self) -> None:
        Tensor.manual_seed(self.number)
        if self.special is not None:
            self.special.sources()
            self.sources += self.draw.pending
            self.draw.pending.clear()
            return
        shapes = [self.draw.shape() for _ in range(self.rng.randint(1, 2))]
        if self.rng.random() < 0.1:
            self.draw.varied = self.rng.choice([n for shape in shapes for n in shape] or [0])
        for shape in shapes:
            # With nothing to differentiate by, programs have no gradients.
            is_float = self.rng.random() < {"gradients": 0.8, "dtypes": 0.0}.get(self.focus, 0.3)
            self.draw.fresh(shape, "float32" if is_float else self.draw.dtype())
        self.sources += self.draw.pending
        self.draw.pending.clear()

    def statement(self) -> None:
        """Draws a statement, does it, and keeps it if it is accepted."""
        before = dict(self.draw.values)
        try:
            line = self.drawn()
        except NothingFitsError:
            self.forget(before)
            return
        if line is None:
            self.forget(before)
            return
        try:
            lines = self.done(line)
            self.check_results(lines[-1])
        except (NothingFitsError, UndefinedError):
            self.forget(before)
            self.remake(line)
            return
        except Exception as error:
            self.rejected[self.name_of(line)] += 1
            if is_internal(error):
                self.body.append(line)
                sources = (*self.sources, *self.draw.pending)
                program = Program(sources, tuple(self.body), (), self.number)
                self.finding = error_finding(error, program, None)
            self.forget(before)
            return
        self.accepted[self.name_of(line)] += 1
        self.sources += self.draw.pending
        self.draw.pending.clear()
        self.body += lines
        for name in (name for line in lines for name in assigned(line)):
            value = self.machine.values[name]
            if isinstance(value, Tensor):
                self.draw.values[name] = value

    def done(self, line: str) -> list[str]:
        """Does a statement, or what is like it and gives more to compare; says what it did."""
        self.machine.run(line)
        names = assigned(line)
        if len(names) != 1:
            return [line]
        result = self.machine.values[names[0]]
        if isinstance(result, tuple | list):
            return [self.unpacked(line, names[0], result)]
        if isinstance(result, Tensor) and self.rng.random() < 0.8:
            return self.in_domain(line, result)
        return [line]

    def unpacked(self, line: str, name: str, results: Sequence[Any]) -> str:
        """The statement with a name for each of the tensors that it gives."""
        if not ARBITRARY.isdisjoint(methods(line)):
            return line
        flat = [*parts(results)]
        if not 1 <= len(flat) <= MOST_PARTS or any(not isinstance(x, Tensor) and x for x in flat):
            return line
        names = [name, *(self.new_name() for _ in flat[1:])]
        line = f"{_nested(results, iter(names))[1:-1]} = {line.partition(' = ')[2]}"
        self.do(line)
        return line

    def do(self, line: str) -> None:
        self.machine.run(line)

    def in_domain(self, line: str, result: Tensor) -> list[str]:
        """The statement, behind one that brings the tensor to where a function is defined."""
        found = re.match(r"(v\d+) = (\w+)\.(\w+)\(", line)
        if found is None or found[2] not in self.draw.values or is_write(line):
            return [line]
        whole = self.draw.values[found[2]]
        if _share_of_nan(result) <= _share_of_nan(whole):
            return [line]
        name = self.new_name()
        other = f"{found[1]} = {name}.{line[found.start(3) :]}"
        for domain in self.rng.sample(DOMAINS, len(DOMAINS)):
            inner = f"{name} = {found[2]}{domain}"
            try:
                self.machine.run(inner)
                self.machine.run(other)
            except (TypeError, ValueError, RuntimeError):
                continue
            if _share_of_nan(self.machine.values[found[1]]) <= _share_of_nan(whole):
                return [inner, other]
        self.machine.run(line)
        return [line]

    def remake(self, line: str) -> None:
        """Takes back a write that was done and is not to stay: everything is done again."""
        if not is_write(line):
            return
        self.machine = Machine()
        self.beyond.values = self.machine.values
        Tensor.manual_seed(self.number)
        kept = self.draw.values
        for source in self.sources:
            self.machine.add(source, self.rngs)
        for statement in self.body:
            self.machine.run(statement)
        self.draw.values = {name: self.machine.values[name] for name in kept}

    def check_results(self, line: str) -> None:
        for name in assigned(line):
            value = self.machine.values[name]
            if isinstance(value, Tensor) and value.numel() > self.draw.limits.most:
                raise NothingFitsError

    def forget(self, before: dict[str, Tensor]) -> None:
        self.draw.values = before
        for source in self.draw.pending:
            self.beyond.inputs.pop(source.name, None)
        self.draw.pending.clear()

    @staticmethod
    def name_of(line: str) -> str:
        found = re.findall(r"\.(\w+)\(", line)
        return found[0] if found else "operator"

    def new_name(self) -> str:
        self.draw.count += 1
        return f"v{self.draw.count}"

    # -- kinds of statements ---------------------------------------------------------------------

    def drawn(self) -> str | None:
        if self.special is not None:
            return self.special.statement()
        kinds: list[tuple[int, Callable[[], str | None]]] = [
            (16, self.method),
            (16, self.structural),
            (14, self.binary),
            (3, self.unary),
            (8, self.view),
            (6, self.views),
            (2, self.pieces),
            (5, self.element),
            (4, self.positions),
            (5, self.recipe),
        ]
        if self.kind:
            # A step of training needs statements before it.
            kinds += [(120 if self.kind == "training" else 50, self.other)]
        if self.writes:
            kinds += [(10, self.write), (6, self.update), (3, self.assign), (3, self.in_place)]
        if self.focus == "views":
            kinds += [(25, self.view), (30, self.views), (5, self.pieces)]
            kinds += [(20, self.element), (20, self.structural)]
        if self.focus.endswith(".py"):
            kinds += [(60, self.method)]
        if self.focus == "gradients":  # most rules of gradients are of one method each
            kinds += [(30, self.method), (10, self.recipe)]
        kind = self.draw.weighted(kinds)
        return kind()

    def method(self) -> str | None:
        known = reached.methods_in(self.focus) if self.focus.endswith(".py") else surface.methods()
        found = [m for m in known if not m.in_place]
        return self.call(self.rng.choice(found)) if found else None

    def other(self) -> str:
        text = beyond.KINDS[self.kind](self.beyond)
        is_call = text.startswith("update(") or text.endswith(".step()")
        return text if is_call else f"{self.new_name()} = {text}"

    def recipe(self) -> str:
        return self.by_recipe(self.rng.choice([*RECIPES]))

    def by_recipe(self, name: str) -> str:
        call = surface.with_options(self.draw, name, RECIPES[name](self.draw))
        return f"{self.new_name()} = {call}"

    def structural(self) -> str | None:
        name = self.rng.choice(STRUCTURAL)
        (method,) = [m for m in surface.methods() if m.name == name]
        return self.call(method)

    def call(self, method: surface.Method) -> str | None:
        if method.lacking:
            return None
        if method.name in RECIPES:
            return self.by_recipe(method.name)
        name = self.draw.pick()
        x = self.draw.values[name]
        if method.name == "where":
            name = self.draw.mask(x.shape)
        text = method.call(self.draw, x, name if method.on_tensor else "Tensor")
        return f"{self.new_name()} = {text}"

    def binary(self) -> str:
        name = self.draw.pick()
        x = self.draw.values[name]
        other = self.draw.operand(x)
        op = self.rng.choice(BINARY)
        if op in "&|^" and dtypes.is_float(x.dtype):
            op = "*"
        sides = [name, other]
        if self.rng.random() < 0.3:
            sides.reverse()
        return f"{self.new_name()} = {sides[0]} {op} {sides[1]}"

    def unary(self) -> str:
        name = self.draw.pick()
        whole = not dtypes.is_float(self.draw.values[name].dtype)
        return f"{self.new_name()} = {self.rng.choice(['-', '~' if whole else '-'])}{name}"

    def view(self) -> str:
        name = self.draw.pick()
        return f"{self.new_name()} = {self.viewed(name, self.draw.values[name])}"

    def viewed(self, text: str, x: Tensor) -> str:
        """An expression for a view of a tensor that an expression gives."""
        kind = self.rng.choice(VIEWS)
        if kind == "key":
            return f"{text}[{self.draw.key(x)}]"
        if kind == "T":
            return f"{text}.T"
        if kind == "one" and x.ndim and all(x.shape):
            return f"{text}[{self.draw.one(x)}]"
        if kind == "pad":
            return f"{text}.pad({surface.pads(self.draw, x)})"
        if kind == "flip":
            return f"{text}.flip({surface.some_axes(self.draw, x)})"
        if kind == "unfold" and x.ndim and all(x.shape):
            return f"{text}.unfold({self.draw.windows(x)})"
        if kind == "diagonal" and x.ndim > 1:
            return f"{text}.diagonal({self.draw.integer(-1, 1)}, {self.draw.two_axes(x)})"
        name = kind if kind in ("permute", "expand") else "reshape"
        (method,) = [m for m in surface.methods() if m.name == name]
        return method.call(self.draw, x, text)

    def views(self) -> str:
        """Views of views, of memory or of what is computed on the way, none of them by itself."""
        name = self.draw.pick(lambda x: x.ndim > 0 and all(x.shape))
        x = self.draw.values[name]
        text = name
        if self.rng.random() < 0.4:
            text = f"({self.changed(name, x)})"
        for _ in range(self.rng.randint(2, MOST_VIEWS)):
            text = self.viewed(text, x)
            try:
                x = eval(text, {**self.machine.values, **self.draw.values})
            except Exception:
                break  # it is looked into where the statement is done
            if x.numel() > self.draw.limits.most:
                raise NothingFitsError
        return f"{self.new_name()} = {self.changed(text, x) if self.rng.random() < 0.3 else text}"

    def changed(self, text: str, x: Tensor) -> str:
        """An expression for other elements in the places of a tensor's."""
        if x.dtype is dtypes.bool:
            return f"~{text}"
        return f"{text} {self.rng.choice('+*')} {self.draw.number(x.dtype)}"

    def pieces(self) -> str:
        """Two or three parts along an axis, that may lie side by side, and may leave some out."""
        name = self.draw.pick(lambda x: max(x.shape, default=0) > 1)
        x = self.draw.values[name]
        axis = self.rng.choice([axis for axis, size in enumerate(x.shape) if size > 1])
        size = int(x.shape[axis])
        count = self.rng.randint(2, min(4, size + 1))
        places = [0, *sorted(self.rng.sample(range(1, size), count - 2)), size]
        spans = [*itertools.pairwise(places)]
        if len(spans) > 2 and self.rng.random() < 0.6:
            spans.pop(self.rng.randrange(len(spans)))
        keys = [f"{':, ' * axis}{start}:{stop}" for start, stop in spans]
        names = [self.new_name() for _ in keys]
        return f"{', '.join(names)}{',' if len(names) == 1 else ''} = " + tuple_text(
            f"{name}[{key}]" for key in keys
        )

    def element(self) -> str:
        """A single element of anything, often with more done to it at once."""
        name = self.draw.pick(lambda x: all(x.shape) and x.ndim > 0)
        x = self.draw.values[name]
        key = ", ".join(str(self.rng.randint(-size, size - 1)) for size in x.shape)
        more = self.rng.choice(["", "", f" + {self.draw.number(x.dtype)}", " * 2", ".reshape(1)"])
        return f"{self.new_name()} = {name}[{key}]{more}"

    def positions(self) -> str:
        name = self.draw.pick()
        return f"{self.new_name()} = {name}[{self.draw.positions(self.draw.values[name])}]"

    def target(self) -> str:
        return self.draw.pick(lambda x: True)

    def write(self) -> str:
        name = self.target()
        x = self.draw.values[name]
        if x.ndim and 0 not in x.shape and self.rng.random() < 0.3:
            key = self.draw.positions(x)
        else:
            key = self.draw.key(x)
        indices: dict[str, Any] = {**self.machine.values, **self.draw.values}
        part = eval(f"{name}[{key}]", indices)
        return f"{name}[{key}] = {self.draw.operand(part)}"

    def update(self) -> str:
        name = self.target()
        x = self.draw.values[name]
        op = self.rng.choice(UPDATES)
        if self.rng.random() < 0.5:
            return f"{name} {op} {self.draw.operand(x)}"
        key = self.draw.key(x)
        part = eval(f"{name}[{key}]", {**self.machine.values, **self.draw.values})
        return f"{name}[{key}] {op} {self.draw.operand(part)}"

    def assign(self) -> str:
        name = self.target()
        return f"{name}.assign({self.draw.like(self.draw.values[name])})"

    def in_place(self) -> str | None:
        method = self.rng.choice([m for m in surface.methods() if m.in_place])
        if method.lacking:
            return None
        name = self.target()
        return method.call(self.draw, self.draw.values[name], name)

    # -- the whole -------------------------------------------------------------------------------

    def finished(self) -> Program | None:
        made = [n for line in self.body for n in assigned(line)]
        names = [n for n in made if isinstance(self.machine.values[n], Tensor)]
        names = list(dict.fromkeys(names)) or [source.name for source in self.sources[:1]]
        read = {n for line in self.body for n in loaded(line)}
        ends = [n for n in names if n not in read]
        most = 4 if self.focus == "aliases" else 2
        more = self.rng.sample(names, min(len(names), self.rng.randint(0, most)))
        results = list(dict.fromkeys([*ends[-4:], *more, names[-1]]))
        counts = {"jit": [2, 3, 5], "contractions": [1, 1, 3]}
        calls = self.rng.choice(counts.get(self.focus, [1, 3, 5]))
        sources = tuple(
            replace(
                source,
                is_state=source.is_state
                or (
                    "call" not in source.made and self.rng.random() < (0.4 if self.writes else 0.15)
                ),
            )
            for source in self.sources
        )
        program = Program(sources, tuple(self.body), tuple(results), self.number, calls)
        program = program.without_unused()
        program = self.with_gradients(program)
        try:
            expected = evaluate(program, shorten=True)
        except Exception as error:
            if is_internal(error):
                self.finding = error_finding(error, program, None)
            return None
        return replace(program, calls=len(expected.calls))

    def with_gradients(self, program: Program) -> Program:
        shares = {"gradients": 1.0, "aliases": 0.2, "contractions": 0.3}
        share = shares.get(self.focus, 0.55)
        # A leaf that is written as a whole, perhaps by another name, keeps its place on the tape,
        # unlike in a function.
        whole = {"assign", *CHANCE}
        targets = [str(written(line)) for line in program.body if whole & {*methods(line)}]
        assigned_to = {n for t in targets for n in self.machine.related.get(t, ())}
        floats = tuple(
            source.name
            for source in program.arguments
            if source.name not in assigned_to
            and dtypes.is_float(self.draw.values[source.name].dtype)
            and self.draw.values[source.name].dtype.bits > 8
        )
        if not floats or program.trains or self.rng.random() > share:
            return program
        derived = replace(program, wanted=floats)
        try:
            evaluate(replace(derived, calls=1))
        except (GradientError, LinalgError):  # not defined, or not for such numbers
            return program
        except Exception as error:
            # If it runs without gradients, a rule for one of its statements failed.
            if not isinstance(error, UndefinedError | MemoryError) and _runs(program):
                self.finding = error_finding(error, derived, None)
            return program
        return derived
