"""Random programs of captured calls, writes, views and lazy readers give what the plain ones do."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replays import readers_looked_for

from ferrule.base.config import Context
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor

SIZE = 4
STATES = 2

Instruction = tuple[Any, ...]


def fresh(value: float) -> Tensor:
    return Tensor(np.arange(SIZE, dtype=np.float32) + value)


@dataclass
class World:
    """Some state, and a function on it that does `body`."""

    body: list[Instruction]
    returned: list[int]
    states: list[Tensor] = field(default_factory=lambda: [fresh(i + 1) for i in range(STATES)])
    kept: Tensor = field(default_factory=lambda: fresh(9))

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values = [x, y, *self.states]
        for instruction in self.body:
            self.do(instruction, values)
        return tuple(values[i % len(values)] for i in self.returned)

    def do(self, instruction: Instruction, values: list[Tensor]) -> None:
        op, i, j = instruction
        a, b = values[i % len(values)], values[j % len(values)]
        state = j % STATES
        if op == "add":
            values.append(a + b)
        elif op == "halve":
            values.append(a * 0.5 + 1)
        elif op == "copy":
            values.append(a.clone())
        elif op == "run":
            values.append((a - b * 0.25).realize())
        elif op == "flip":
            values.append(a[::-1])
        elif op == "write":
            self.states[state].assign(a * 0.5)
        elif op == "write part":
            self.states[state][1:3] = a[2:4]
        elif op == "write argument":
            values[j % 2].assign(a * 0.5 - 1)
        elif op == "keep":
            self.kept = a
        elif op == "kept":
            values.append(self.kept * 0.5)
        elif op == "replace":
            self.states[state] = a + 1


BODY = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("add", "halve", "run", "flip", "copy", "write", "write part"),
                *("write argument", "keep", "kept", "replace"),
            ]
        ),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=6,
)
BETWEEN = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("call", "call", "call", "call state", "call twice the same", "feed back"),
                *(
                    "call a view",
                    "call a part",
                    "call parts",
                    "call every third",
                    "write",
                    "lazy",
                    "copy",
                    "share",
                    "replace",
                    "call lazily",
                    "read kept",
                ),
            ]
        ),
        st.integers(0, 9),
    ),
    min_size=4,
    max_size=12,
)


def play(
    body: list[Instruction], returned: list[int], script: list[tuple[str, int]], captured: bool
) -> list[Any]:
    """Everything that can be seen from outside."""
    world = World(body, returned)
    step = TinyJit(world.step) if captured else world.step
    seen: list[Any] = []
    late: list[Any] = []
    last = fresh(0)
    data = Tensor(np.arange(3 * SIZE, dtype=np.float32)).realize()
    for number, (action, i) in enumerate(script):
        state = world.states[i % STATES]
        x, y = fresh(number), fresh(-number)
        arguments = {
            "call": (x, y),
            "call state": (state, y),
            "call twice the same": (x, x),
            "feed back": (last, y),
            "call a view": (Tensor.cat(x, y)[2:6], y),
            "call a part": (data[i % 8 : i % 8 + SIZE], y),
            "call parts": (data[i % 8 : i % 8 + SIZE], data[SIZE : 2 * SIZE]),
            "call every third": (data[i % 3 :: 3], data[SIZE : 2 * SIZE]),
            "call lazily": (x * 2, y.exp2() * 0),
        }.get(action)
        if arguments is not None:
            results = step(*arguments)
            late.extend(results)
            last = results[0]
            seen.append(last.tolist())
        elif action == "write":
            state.assign(x)
        elif action == "lazy":
            late.append(state * 3)
        elif action == "copy":
            late.append(state.clone())
        elif action == "share":
            late.append(state.numpy(copy=False))
        elif action == "replace":
            world.states[i % STATES] = x
        elif action == "read kept":
            seen.append(world.kept.tolist())
    seen.extend(value.tolist() for value in [*late, *world.states, world.kept, data])
    return seen


@settings(max_examples=150)
@given(BODY, st.lists(st.integers(0, 9), min_size=1, max_size=3), BETWEEN)
def test_captured_programs_equal_plain_ones(
    body: list[Instruction], returned: list[int], script: list[tuple[str, int]]
) -> None:
    with Context(FERRULE_DEVICE="NUMPY"), readers_looked_for():
        plain = play(body, returned, script, captured=False)
        assert play(body, returned, script, captured=True) == plain


# *** gradients ***

ENDS = ("nothing", "none", "zeros", "zero in place", "half")
GRADIENT_SCRIPT = st.lists(
    st.sampled_from(
        [
            *("add", "add", "add", "add", "update", "update", *ENDS),
            *("anew", "view", "share", "copy", "lazy", "keep", "read", "add kept"),
        ]
    ),
    min_size=4,
    max_size=14,
)


@dataclass
class Trained:
    """Two parameters, and functions that add to their gradients and use them."""

    end: str
    a: Tensor = field(default_factory=lambda: fresh(1).requires_grad_())
    b: Tensor = field(default_factory=lambda: fresh(2).requires_grad_())
    kept: Tensor = field(default_factory=lambda: fresh(9))

    def add(self, x: Tensor) -> Tensor:
        return (self.a * x + (self.b * 2 + 1) * x).sum().backward()

    def add_kept(self, x: Tensor) -> Tensor:
        (self.a * x).sum().backward()
        return self.kept * 2

    def update(self) -> Tensor | None:
        total = None
        with Tensor.no_grad():
            for tensor in (self.a, self.b):
                if tensor.grad is not None:
                    total = tensor.grad * 3 if total is None else total + tensor.grad
                    tensor.assign(tensor - tensor.grad * 0.5)
                    self.finish(tensor, self.end)
        return total

    def finish(self, tensor: Tensor, end: str) -> None:
        if end == "none":
            tensor.grad = None
        elif end == "zeros":
            tensor.grad = tensor.zeros_like()
        elif tensor.grad is not None and end != "nothing":
            tensor.grad.assign(tensor.grad * (0.5 if end == "half" else 0))


def train(end: str, script: list[str], captured: bool) -> list[Any]:
    """Everything that can be seen of gradients from outside."""
    model = Trained(end)
    add, add_kept, update = model.add, model.add_kept, model.update
    if captured:
        add, add_kept, update = TinyJit(add), TinyJit(add_kept), TinyJit(update)
    late: list[Tensor] = []
    seen: list[Any] = []
    for number, action in enumerate([*script, *script]):
        a, b = model.a, model.b
        if action == "add":
            seen.append(add(fresh(number)).tolist())
        elif action == "add kept":
            seen.append(add_kept(fresh(number)).tolist())
        elif action == "update":
            total = update()
            seen.append(total if total is None else total.tolist())
        elif action in ENDS:
            model.finish(a, action)
        elif action == "anew":
            b.grad = fresh(number)
        elif action == "view":
            a.grad = Tensor.cat(fresh(number), fresh(1))[1 : SIZE + 1]
        elif action == "share":
            b.grad = a.grad
        elif a.grad is not None and action == "copy":
            late.append(a.grad.clone())
        elif b.grad is not None and action == "lazy":
            late.append(b.grad * 3)
        elif a.grad is not None and action == "keep":
            model.kept = a.grad
        elif action == "read":
            seen.append([None if x.grad is None else x.grad.tolist() for x in (a, b)])
    found = [*late, model.a, model.b, model.kept, model.a.grad, model.b.grad]
    return [*seen, *[None if value is None else value.tolist() for value in found]]


@settings(max_examples=100)
@given(st.sampled_from(ENDS), GRADIENT_SCRIPT)
def test_gradients_in_captured_programs_equal_plain_ones(end: str, script: list[str]) -> None:
    with Context(FERRULE_DEVICE="NUMPY"), readers_looked_for():
        assert train(end, script, captured=True) == train(end, script, captured=False)
