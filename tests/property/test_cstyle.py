"""Any program in C is what the interpreter does: registers, lanes and loops in any order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cprograms import needs_compiler, run_as_c
from tests.programs import I64, Builder, sample

from ferrule.codegen.uops import UOp, UOps
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp

T = TypeVar("T")
KINDS = [dtypes.float32, dtypes.int32, I64, dtypes.uint8]
OPS = [ExprOp.ADD, ExprOp.SUB, ExprOp.MUL, ExprOp.MAX, ExprOp.NEG, ExprOp.MULACC]
SIZE = 16


class Program:
    """A program being drawn: what is known in each open block, and the registers."""

    def __init__(self, draw: Callable[[st.SearchStrategy[T]], T]) -> None:
        self.draw = draw
        self.b = Builder()
        self.inputs = [self.b.param(i, kind) for i, kind in enumerate(KINDS)]
        self.out = self.b.param(len(KINDS), dtypes.float32)
        self.known: list[list[UOp]] = [[]]
        self.registers: list[list[UOp]] = [[]]
        self.stores = 0

    def pick(self, options: list[T]) -> T:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def value(self, dtype: DType, lanes: int) -> UOp:
        """A value that is known here, or a new one."""
        fitting = [u for us in self.known for u in us if (u.dtype, u.lanes) == (dtype, lanes)]
        if fitting and self.draw(st.booleans()):
            return self.pick(fitting)
        place = self.b.const(self.draw(st.integers(0, SIZE - lanes)))
        return self.keep(self.b.load(self.inputs[KINDS.index(dtype)], place, lanes))

    def keep(self, u: UOp) -> UOp:
        self.known[-1].append(u)
        return u

    def step(self, depth: int) -> None:
        steps = [self.alu, self.alu, self.cast, self.shuffle, self.reduce, self.register]
        steps += [self.read, self.write, self.exchange, self.exchange, self.store]
        if depth:
            self.pick([*steps, lambda: self.block(depth - 1)])()
        else:
            self.pick(steps)()

    def alu(self) -> None:
        dtype, lanes, op = self.pick(KINDS), self.pick([1, 2, 4]), self.pick(OPS)
        count = {ExprOp.NEG: 1, ExprOp.MULACC: 3}.get(op, 2)
        made = self.keep(self.b.alu(op, *(self.value(dtype, lanes) for _ in range(count))))
        if self.draw(st.booleans()):
            less = self.b.alu(ExprOp.CMPLT, made, self.value(dtype, lanes))
            self.keep(self.b.alu(ExprOp.WHERE, less, made, self.value(dtype, lanes)))

    def cast(self) -> None:
        source, lanes = self.pick([k for k in KINDS if not dtypes.is_float(k)]), self.pick([1, 2])
        x = self.value(source, lanes)
        self.keep(self.b.add(UOps.CAST, self.pick(KINDS), lanes, (x,)))

    def shuffle(self) -> None:
        dtype = self.pick(KINDS)
        x = self.value(dtype, 2)
        way = self.pick([(1, 0), (0, 0, 1, 1), (1, 0, 0, 1)])
        self.keep(self.b.add(UOps.SHUFFLE, dtype, len(way), (x,), way))
        self.keep(self.b.add(UOps.EXTRACT, dtype, 1, (x,), 1))

    def reduce(self) -> None:
        dtype = self.pick(KINDS)
        op = self.pick([ExprOp.ADD, ExprOp.MAX])
        self.keep(self.b.add(UOps.HREDUCE, dtype, 1, (self.value(dtype, 4),), op))

    def register(self) -> None:
        dtype, lanes = self.pick(KINDS), self.pick([1, 2, 4])
        first = self.value(dtype, lanes)
        self.registers[-1].append(self.b.add(UOps.REG, dtype, lanes, (first,), "r"))

    def any_register(self) -> UOp | None:
        every = [r for rs in self.registers for r in rs]
        return self.pick(every) if every else None

    def read(self) -> None:
        register = self.any_register()
        if register is not None:
            self.keep(self.b.add(UOps.GET, register.dtype, register.lanes, (register,)))

    def write(self) -> None:
        register = self.any_register()
        if register is not None and register.dtype is not None:
            new = self.value(register.dtype, register.lanes)
            self.b.add(UOps.SET, src=(register, new))

    def exchange(self) -> None:
        """A register gets a new value, and the old one, or what was made of it, is stored."""
        register = self.any_register()
        if register is None or register.dtype is None:
            return
        dtype, lanes = register.dtype, register.lanes
        x = self.b.add(UOps.GET, dtype, lanes, (register,))
        if lanes == 2 and self.draw(st.booleans()):
            x = self.b.add(UOps.SHUFFLE, dtype, lanes, (x,), (1, 0))
        if self.draw(st.booleans()):
            x = self.b.alu(ExprOp.ADD, x, self.value(dtype, lanes))
        new = x if self.draw(st.booleans()) else self.value(dtype, lanes)
        self.b.add(UOps.SET, src=(register, new))
        if self.draw(st.booleans()):
            self.store_value(x)

    def store(self) -> None:
        self.store_value(self.value(self.pick(KINDS), self.pick([1, 2, 4])))

    def store_value(self, x: UOp) -> None:
        lanes = x.lanes
        if x.dtype is not dtypes.float32:
            x = self.b.add(UOps.CAST, dtypes.float32, lanes, (x,))
        mask = None
        if self.draw(st.booleans()):
            mask = self.b.alu(ExprOp.CMPLT, self.value(I64, lanes), self.value(I64, lanes))
        self.b.store(self.out, self.b.const(self.stores % 8 * 4), x, mask)
        self.stores += 1

    def block(self, depth: int) -> None:
        """A loop, or a condition, with its own values and registers."""
        if self.draw(st.booleans()):
            count = self.draw(st.integers(0, 3))
            opened = self.b.loop(self.b.const(0), self.b.const(count))
            inside = [opened]
        else:
            less = self.b.alu(ExprOp.CMPLT, self.value(I64, 1), self.value(I64, 1))
            opened, inside = self.b.add(UOps.IF, src=(less,)), []
        self.known.append(inside)
        self.registers.append([])
        for _ in range(self.draw(st.integers(1, 8))):
            self.step(depth)
        self.known.pop()
        self.registers.pop()
        self.b.end(opened)


@st.composite
def programs(draw: Callable[[st.SearchStrategy[T]], T]) -> list[UOp]:
    program = Program(draw)
    for _ in range(draw(st.integers(5, 25))):
        program.step(2)
    for us in (program.known[0][-4:], program.registers[0]):
        for u in us:
            x = u if u.op is not UOps.REG else program.b.add(UOps.GET, u.dtype, u.lanes, (u,))
            if x.dtype is dtypes.float32:
                program.b.store(program.out, program.b.const(program.stores % 8 * 4), x)
                program.stores += 1
    return program.b.uops


@needs_compiler
@settings(max_examples=30)
@given(programs())
def test_random_programs(uops: list[UOp]) -> None:
    inputs = [sample(kind, SIZE, seed) for seed, kind in enumerate(KINDS)]
    inputs[0][~np.isfinite(inputs[0])] = math.pi
    run_as_c(uops, [*inputs, np.zeros(32, np.float32)])
