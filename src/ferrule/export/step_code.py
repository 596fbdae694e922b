"""The steps of an exported program as LLVM IR: sizes, loops, and addresses of memory in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from ferrule.export.program import Cell, Copy, ExportError, Kernel, Loop, Move, Step
from ferrule.ir.expr import Expr, ExprOp, Variable, as_expr, toposort

_ANY_NUMBER: Final = (1 << 63) - 1  # trips


class Lines:
    """A function on its way: lines, with new names for values."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

    def value(self, text: str) -> str:
        """The name of a new value."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Adds an instruction without a value."""
        self.lines.append(f"  {text}")

    def at(self, base: str, offset: int) -> str:
        """An address behind another one."""
        if not offset:
            return base
        return self.value(f"getelementptr i8, ptr {base}, i64 {offset}")

    def label(self) -> str:
        """A new name for a place of the function."""
        self._count += 1
        return f"go{self._count}"

    def place(self, label: str) -> None:
        """Ends what came so far; the label is here."""
        self.lines.append(f"{label}:")

    def leave_if(self, condition: str, error: int) -> None:
        """Returns the error if the condition holds."""
        label = self.label()
        self.do(f"br i1 {condition}, label %error{error}, label %{label}")
        self.place(label)


_BINARY: Final = {
    ExprOp.ADD: "add",
    ExprOp.SUB: "sub",
    ExprOp.MUL: "mul",
    ExprOp.TDIV: "sdiv",
    ExprOp.TMOD: "srem",
}
_FLOORED: Final = (ExprOp.IDIV, ExprOp.MOD)
_EXTREMES: Final = {ExprOp.MIN: "slt", ExprOp.MAX: "sgt"}


def expression(code: Lines, node: Expr, values: Mapping[Variable, str]) -> str:
    """The value of an integer expression of the variables."""
    names: dict[Expr, str] = {}
    for one in toposort([node]):
        inputs = [names[source] for source in one.src]
        if isinstance(one, Variable):
            names[one] = values[one]
        elif one.op is ExprOp.CONST:
            names[one] = str(int(one.arg))
        elif one.op in _BINARY:
            names[one] = code.value(f"{_BINARY[one.op]} i64 {', '.join(inputs)}")
        elif one.op is ExprOp.NEG:
            names[one] = code.value(f"sub i64 0, {inputs[0]}")
        elif one.op in _FLOORED:
            names[one] = _floored(code, inputs[0], inputs[1], one.op is ExprOp.MOD)
        elif one.op in _EXTREMES:
            first = code.value(f"icmp {_EXTREMES[one.op]} i64 {', '.join(inputs)}")
            names[one] = code.value(f"select i1 {first}, i64 {inputs[0]}, i64 {inputs[1]}")
        elif one.op is ExprOp.CMPLT:
            names[one] = code.value(f"icmp slt i64 {', '.join(inputs)}")
        elif one.op is ExprOp.WHERE:
            condition, yes, no = inputs
            names[one] = code.value(f"select i1 {condition}, i64 {yes}, i64 {no}")
        else:
            raise ExportError(f"a size is {node}, and exported programs do not compute {one.op}")
    return names[node]


def _floored(code: Lines, a: str, b: str, is_rest: bool) -> str:
    """The quotient, or the rest, of a division that rounds down, by a positive number."""
    quotient, left = code.value(f"sdiv i64 {a}, {b}"), code.value(f"srem i64 {a}, {b}")
    below = code.value(f"icmp slt i64 {left}, 0")
    if is_rest:
        more = code.value(f"add i64 {left}, {b}")
        return code.value(f"select i1 {below}, i64 {more}, i64 {left}")
    less = code.value(f"sub i64 {quotient}, 1")
    return code.value(f"select i1 {below}, i64 {less}, i64 {quotient}")


class StepCode(ABC):
    """Writes steps to the lines of a function. A subclass says where memory is, and calls kernels.

    `values` are the values of the variables.
    """

    def __init__(self, code: Lines, values: Mapping[Variable, str]) -> None:
        self.code = code
        self.values = values
        self.loops = 0
        """The number of loops so far: each has a slot for the number of its trip."""
        self._trips: list[tuple[str, str]] = []
        """The trip and the number of trips of each loop around."""

    @abstractmethod
    def first(self, cell: Cell) -> str:
        """The address of a cell without its moves."""

    @abstractmethod
    def kernel(self, kernel: Kernel) -> None:
        """Runs a kernel."""

    @abstractmethod
    def copy(self, to: str, source: str, nbytes: int) -> None:
        """Copies bytes between addresses."""

    def slots(self) -> str:
        """The instructions at the beginning of the function."""
        return "".join([f"  %trip{number} = alloca i64\n" for number in range(self.loops)])

    def run(self, steps: Sequence[Step]) -> None:
        """Adds steps."""
        for step in steps:
            if isinstance(step, Loop):
                self._loop(step)
            elif isinstance(step, Copy):
                self.copy(self.address(step.to), self.address(step.source), step.to.nbytes)
            else:
                self.kernel(step)

    def address(self, cell: Cell) -> str:
        """The address of a cell in the present trips."""
        found = self.first(cell)
        for move in cell.moves:
            behind = self._moved(move, *self._trips[move.depth])
            found = self.code.value(f"getelementptr i8, ptr {found}, i64 {behind}")
        return found

    def _moved(self, move: Move, trip: str, trips: str) -> str:
        """The bytes of a move in a trip."""
        code, number = self.code, trip
        if move.backwards:
            last = code.value(f"sub i64 {trips}, 1")
            number = code.value(f"sub i64 {last}, {trip}")
        moved = code.value(f"mul i64 {number}, {move.stride}")
        if not move.other:
            return moved
        turned = code.value(f"add i64 {trip}, {move.phase}")
        turn = code.value(f"and i64 {turned}, 1")
        other = code.value(f"mul i64 {turn}, {move.other}")
        return code.value(f"add i64 {moved}, {other}")

    def _loop(self, loop: Loop) -> None:
        code = self.code
        trips, slot = self._number_of_trips(loop), f"%trip{self.loops}"
        self.loops += 1
        head, body, end = code.label(), code.label(), code.label()
        self._trips.append(("0", trips))
        self.run(loop.before)
        code.do(f"store i64 0, ptr {slot}")
        code.do(f"br label %{head}")
        code.place(head)
        trip = code.value(f"load i64, ptr {slot}")
        more = code.value(f"icmp slt i64 {trip}, {trips}")
        code.do(f"br i1 {more}, label %{body}, label %{end}")
        code.place(body)
        self._trips[-1] = trip, trips
        self.run(loop.body)
        following = code.value(f"add i64 {trip}, 1")
        code.do(f"store i64 {following}, ptr {slot}")
        if loop.condition is None:
            code.do(f"br label %{head}")
        else:
            goes_on = self._is_true(loop.condition)
            code.do(f"br i1 {goes_on}, label %{head}, label %{end}")
        code.place(end)
        made = code.value(f"load i64, ptr {slot}")
        self._trips[-1] = made, trips
        self.run(loop.after)
        self._trips.pop()
        if loop.counted is not None:
            few = code.value(f"trunc i64 {made} to i32")
            code.do(f"store i32 {few}, ptr {self.address(loop.counted)}")

    def _number_of_trips(self, loop: Loop) -> str:
        code = self.code
        trips = str(_ANY_NUMBER)
        if loop.most is not None:
            trips = expression(code, as_expr(loop.most), self.values)
        if loop.count is not None:
            given = code.value(f"load i32, ptr {self.address(loop.count)}")
            count = code.value(f"sext i32 {given} to i64")
            is_less = code.value(f"icmp slt i64 {count}, {trips}")
            trips = code.value(f"select i1 {is_less}, i64 {count}, i64 {trips}")
        if loop.start is not None:
            trips = code.value(f"select i1 {self._is_true(loop.start)}, i64 {trips}, i64 0")
        return trips

    def _is_true(self, cell: Cell) -> str:
        """The bool in a cell."""
        found = self.code.value(f"load i8, ptr {self.address(cell)}")
        return self.code.value(f"icmp ne i8 {found}, 0")
