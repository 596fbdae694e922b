"""Tensors that a captured function replaces: a replay reads what the call before it left."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ferrule import nn
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor

pytestmark = pytest.mark.usefixtures("device")

State = SimpleNamespace


def _numbers(*numbers: float) -> Tensor:
    return Tensor(np.array(numbers, np.float32)).realize()


def _attribute(state: State, x: Tensor) -> Tensor:
    state.h = state.h * 0.5 + x
    return state.h * 2


def _returned(state: State, x: Tensor) -> Tensor:
    state.h = state.h * 0.5 + x
    found: Tensor = state.h
    return found


def _a_view_of_the_old_one(state: State, x: Tensor) -> Tensor:
    old: Tensor = state.h[::-1]
    state.h = state.h * 0.5 + x
    return old


def _only_returned(state: State, x: Tensor) -> Tensor:
    old: Tensor = state.h.detach()
    state.h = x * 2
    return old


def _only_returned_as_a_part(state: State, x: Tensor) -> Tensor:
    old: Tensor = state.h[1:]
    state.h = (x * 2).flip(0)
    return old


def _argument(state: State, x: Tensor) -> Tensor:
    before, state.h = state.h, x
    return x - before


def _detached(state: State, x: Tensor) -> Tensor:
    state.h = (state.h * 0.5 + x * state.weight).detach()
    return state.h * 2


def _trained(state: State, x: Tensor) -> Tensor:
    state.weight.grad = None
    new = state.h * state.weight + x
    new.sum().backward()
    state.h = new.detach()
    assert state.weight.grad is not None
    return state.weight.grad


def _on_the_tape(state: State, x: Tensor) -> Tensor:
    state.h = state.h * state.weight + x
    return state.h.sum()


def _swapped(state: State, x: Tensor) -> Tensor:
    state.h, state.other = state.other, state.h * 0.5 + x
    return state.h + state.other * 2


def _in_place_then_replaced(state: State, x: Tensor) -> Tensor:
    state.h[1:] = x[1:]
    state.h = state.h * 0.5 + 1
    return state.h * 2


def _list(state: State, x: Tensor) -> Tensor:
    state.items[0] = state.items[0] * 0.5 + x
    return state.items[0] * 2


def _dict(state: State, x: Tensor) -> Tensor:
    state.table["h"] = state.table["h"] * 0.5 + x
    return state.table["h"] * 2


def _pair(state: State, x: Tensor) -> Tensor:
    h, (c, d) = state.pair
    state.pair = (h * 0.5 + c, (d + x, h))
    return h + c * 2


def _half_of_a_pair(state: State, x: Tensor) -> Tensor:
    state.pair = (state.pair[1][0], (state.pair[0] + x, state.pair[1][1]))
    return state.pair[0] * 2


FUNCTIONS = [
    _attribute,
    _returned,
    _a_view_of_the_old_one,
    _only_returned,
    _only_returned_as_a_part,
    _argument,
    _detached,
    _trained,
    _on_the_tape,
    _swapped,
    _in_place_then_replaced,
    _list,
    _dict,
    _pair,
    _half_of_a_pair,
]


def _start() -> State:
    return State(
        h=_numbers(1, 2, 3),
        other=_numbers(4, 5, 6),
        weight=_numbers(0.5, 1, 2).requires_grad_(),
        items=[_numbers(1, 2, 3)],
        table={"h": _numbers(1, 2, 3)},
        pair=(_numbers(1, 2, 3), (_numbers(4, 5, 6), _numbers(7, 8, 9))),
    )


def _set(state: State, h: Tensor) -> None:
    state.h = state.items[0] = state.table["h"] = h
    state.pair = (h, (h + 1, h + 2))


def _all(state: State) -> list[Any]:
    h, (c, d) = state.pair
    tensors = [state.h, state.other, *state.items, *state.table.values(), h, c, d]
    return [tensor.tolist() for tensor in tensors]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_state_that_is_replaced(function: Callable[[State, Tensor], Tensor]) -> None:
    """With what others keep of it, write to it and put there in between."""
    found: list[list[Any]] = []
    runs: list[int] = []
    for is_captured in (False, True):
        state = _start()

        def step(x: Tensor, state: State = state) -> Tensor:
            runs.append(0)
            return function(state, x)

        run = TinyJit(step) if is_captured else step
        runs.clear()
        seen: list[Any] = []
        kept: list[Tensor] = []
        for call in range(16):
            kept += [state.h, state.pair[0], state.h * 3]
            result = run(_numbers(call, 1, -call))
            seen.append([result.tolist(), *_all(state)])
            kept += [result, state.h.detach()[1:]]
            if call == 9:
                _set(state, _numbers(call, call, call))
            if call == 11:
                _set(state, Tensor.zeros(3))
            if call in (9, 13):
                with Tensor.no_grad():
                    state.h.assign(state.h * 2 + 1)
        found.append([*seen, *[tensor.tolist() for tensor in kept]])
    assert found[0] == found[1]
    # A view whose values are computed one by one is no input.
    assert len(runs) < 12 or function is _only_returned_as_a_part


def test_replays_are_all_that_a_recurrent_model_needs() -> None:
    class Model:
        def __init__(self) -> None:
            self.cell = nn.LSTMCell(3, 4)
            self.state = (Tensor.zeros(2, 4), Tensor.zeros(2, 4))

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            runs.append(0)
            self.state = self.cell(x, self.state)
            return self.state[0] + 0

    runs: list[int] = []
    Tensor.manual_seed(3)
    model = Model()
    plain = (Tensor.zeros(2, 4), Tensor.zeros(2, 4))
    for call in range(12):
        x = Tensor(np.random.default_rng(call).normal(size=(2, 3)).astype(np.float32)).realize()
        plain = model.cell(x, plain)
        np.testing.assert_allclose(model.step(x).numpy(), plain[0].numpy(), rtol=1e-5)
    assert len(runs) <= 4


def test_a_state_in_a_variable_of_an_enclosing_function() -> None:
    total = _numbers(0.0)
    runs: list[int] = []

    @TinyJit
    def add(x: Tensor) -> Tensor:
        nonlocal total
        runs.append(0)
        total = total + x
        return total * 2

    for call in range(6):
        assert add(_numbers(1.0)).tolist() == [2.0 * call + 2]
        assert total.tolist() == [call + 1.0]
    assert len(runs) == 2


@pytest.mark.parametrize("other", ["the tensor", "a view", "a copy", "the tuple"])
def test_what_else_is_in_the_memory_of_a_state_stays(other: str) -> None:
    """The function reads it in another place, where there is no other after the call."""
    found = []
    for is_captured in (False, True):
        state = _start()
        if other == "the tuple":
            state.kept = state.pair
        else:
            h = state.h
            state.kept = {"the tensor": h, "a view": h[1:], "a copy": h.clone()}[other]

        def step(x: Tensor, state: State = state) -> tuple[Tensor, Tensor]:
            state.h = state.h * 0.5 + x.sum()
            state.pair = (state.pair[0] + x, state.pair[1])
            kept = state.kept[0] if isinstance(state.kept, tuple) else state.kept
            return kept * 2, state.h + state.pair[0]

        run = TinyJit(step) if is_captured else step
        found.append([[t.tolist() for t in run(_numbers(call, 1, 2))] for call in range(8)])
    assert found[0] == found[1]


@pytest.mark.parametrize("other", ["a view", "a copy"])
def test_what_else_is_in_the_memory_of_a_gradient_stays(other: str) -> None:
    found = []
    for is_captured in (False, True):
        weight = _numbers(1, 2, 3).requires_grad_()
        weight.grad = gradient = _numbers(1, 1, 1)
        kept = gradient[1:] if other == "a view" else gradient.clone()

        def step(x: Tensor, weight: Tensor = weight, kept: Tensor = kept) -> tuple[Tensor, Tensor]:
            (weight * x).sum().backward()
            assert weight.grad is not None
            return weight.grad * 2, kept * 2

        run = TinyJit(step) if is_captured else step
        seen = []
        for call in range(8):
            if call > 3:
                weight.grad = _numbers(call, call, call)
            seen.append([tensor.tolist() for tensor in run(_numbers(call, 1, 2))])
        found.append(seen)
    assert found[0] == found[1]


def test_a_write_to_a_view_that_was_computed_by_itself() -> None:
    """Its values are in a second place then, which is not the memory that it is a view of."""

    @TinyJit
    def halve(x: Tensor) -> Tensor:
        x.assign(x * 0.5)
        return x + 1

    for call in range(8):
        whole = _numbers(2, 4, 6 + call)
        x = whole.flip(0) if call > 2 else whole
        before = x.tolist()
        assert halve(x).tolist() == [number / 2 + 1 for number in before]
        assert x.tolist() == [number / 2 for number in before]
        assert whole.tolist() == [1, 2, 3 + call / 2]


def test_a_state_of_a_function_that_is_in_no_module() -> None:
    """Such as one that a program writes: it is looked into as others are."""
    space: dict[str, Any] = {"state": _start(), "factor": 1.0}
    text = "def step(x):\n    state.h = state.h * 0.5 + x * factor\n    return state.h * 2\n"
    exec(text, space)
    step = TinyJit(space["step"])
    expected = np.array([1, 2, 3], np.float32)
    for call in range(8):
        space["factor"] = float(call // 4)
        expected = expected * 0.5 + space["factor"]
        np.testing.assert_array_equal(step(_numbers(1, 1, 1)).numpy(), expected * 2)


@pytest.mark.parametrize("flips", [1, 2])
def test_a_view_whose_values_alone_were_computed_is_written_to(flips: int) -> None:
    """What it is a view of is not in memory before: that write was lost in replays."""
    view = _numbers(1, 2, 3) * 2
    for _ in range(flips):
        view = view.flip(0)
    first = view.tolist()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        view.assign(x * 0.25 + view)
        return x * 1

    expected = np.array(first, np.float32)
    for call in range(6):
        step(_numbers(4, call, 8))
        expected += np.array([1, call / 4, 2], np.float32)
        np.testing.assert_array_equal(view.numpy(), expected)


@pytest.mark.parametrize("other", ["detach", "flip"])
@pytest.mark.parametrize("at", [{1}, {0, 1, 2}, {1, 3}, {0, 2, 4, 6}])
def test_two_states_are_one_number_at_first(other: str, at: set[int]) -> None:
    """Both get the same memory in the call that is captured; what they become does not share it."""
    kept = SimpleNamespace()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        kept.h = kept.h + x
        return kept.h + kept.g * 2

    for call in range(8):
        if call in at:
            kept.h = Tensor.full((4,), float(call))
            kept.g = kept.h.detach() if other == "detach" else kept.h.flip(0)
        elif call == 0:
            kept.h, kept.g = Tensor.zeros(4), Tensor.ones(4)
        if call in at or call == 0:
            h, g = float(kept.h.numpy()[0]), float(kept.g.numpy()[0])
        h += call + 1
        assert step(_numbers(*[call + 1] * 4)).tolist() == [h + 2 * g] * 4
        assert kept.g.tolist() == [g] * 4


def test_a_backward_pass_goes_through_a_state_on_the_tape() -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()
    kept = SimpleNamespace(h=Tensor([0.0, 0.0]).realize())

    @TinyJit
    def step(x: Tensor) -> Tensor:
        kept.h = kept.h + weight + x
        weight.grad = None
        kept.h.sum().backward()
        assert weight.grad is not None
        return weight.grad

    for call in range(1, 7):
        assert step(Tensor([1.0, 1.0]).realize()).tolist() == [call, call]


@pytest.mark.parametrize("shared", ["x", ".x", "x.", "..x"])
def test_a_state_of_two_tensors_has_an_argument_in_it(shared: str) -> None:
    kept = SimpleNamespace()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        h, c = kept.state
        h += 1
        kept.state = h * 2, c + x
        return x + h

    for call in range(9):
        is_shared = shared[call % len(shared)] == "x"
        x = _numbers(call, call)
        kept.state = (x if is_shared else _numbers(5, 5)), _numbers(1, 2)
        h = call + 1 if is_shared else 6
        now = call + is_shared
        assert step(x).tolist() == [now + h] * 2
        assert x.tolist() == [now] * 2
        assert [part.tolist() for part in kept.state] == [[2 * h] * 2, [1 + now, 2 + now]]


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_layer_that_is_frozen_between_calls(is_frozen: bool) -> None:
    """By its flag alone, and thawed later: replays went on as captured."""
    weight, bias = _numbers(1, 2), _numbers(0.5, 0.5)
    for tensor in (weight, bias):
        tensor.requires_grad_(True)
    bias.requires_grad_(not is_frozen)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        weight.grad = bias.grad = None
        loss = (weight * x + bias).square().sum()
        loss.backward()
        with Tensor.no_grad():
            for tensor in (weight, bias):
                if tensor.grad is not None:
                    tensor.assign(tensor - tensor.grad * 0.125)
        return loss

    x = np.array([1, -2], np.float32)
    w, b = np.array([1, 2], np.float32), np.array([0.5, 0.5], np.float32)
    for call in range(9):
        if call in (4, 7):
            is_frozen = not is_frozen
            bias.requires_grad_(not is_frozen)
        slope = 2 * (w * x + b)
        assert step(Tensor(x)).item() == (slope * slope / 4).sum()
        w -= slope * x * np.float32(0.125)
        b -= slope * np.float32(0 if is_frozen else 0.125)
        np.testing.assert_array_equal(weight.numpy(), w)
        np.testing.assert_array_equal(bias.numpy(), b)
        assert (bias.grad is None) == is_frozen


@pytest.mark.parametrize("how", ["copy", "lazy", "array", "view"])
def test_contents_that_are_held_after_several_replays_are_kept(how: str) -> None:
    """Replays look at all memory at once as long as nothing has happened to it."""
    states = [Tensor(np.full(4, k, np.float32)).realize() for k in range(3)]

    @TinyJit
    def step(x: Tensor) -> Tensor:
        for state in states:
            state += x
        return x * 2

    one = Tensor(np.ones(4, np.float32)).realize()
    for turn in range(9):
        expected = states[1].numpy() + 0
        held: Any = None
        if turn in (5, 6, 8):
            held = {
                "copy": lambda: states[1].clone(),
                "lazy": lambda: states[1] + 0.0,
                "array": lambda: states[1].numpy(copy=False),
                "view": lambda: states[1][1:],
            }[how]()
            if how == "view":
                held.realize()
        step(one)
        for k, state in enumerate(states):
            np.testing.assert_array_equal(state.numpy(), np.full(4, k + turn + 1, np.float32))
        if held is not None:
            now = held if how == "array" else held.numpy()
            np.testing.assert_array_equal(now, expected[1:] + 1 if how == "view" else expected)


@pytest.mark.parametrize("written", [True, False])
def test_a_state_that_is_in_the_memory_of_what_the_function_uses_from_now_on(written: bool) -> None:
    class Model:
        def __init__(self) -> None:
            self.weight, self.state = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()

        def __call__(self, x: Tensor) -> Tensor:
            if written:
                self.weight.assign(self.weight + x)
            result = self.state * 2 + self.weight
            self.state = self.state * 0.5 + x
            return result

    x, plain, model = Tensor([1.0, 1.0]).realize(), Model(), Model()
    captured = TinyJit(model)
    for number in range(12):
        if number in (4, 8):
            for each in (plain, model):
                each.state = each.weight if number == 4 else each.weight.detach()
        assert captured(x).tolist() == plain(x).tolist()
        assert model.weight.tolist() == plain.weight.tolist()
        assert model.state.tolist() == plain.state.tolist()
    assert captured.jit_cache


@dataclass
class _Pair:
    a: Any
    b: Any


def _swap_fields(pair: _Pair, x: Tensor) -> Tensor:
    pair.a, pair.b = pair.b, pair.a
    return pair.a + x


def _swap_items(items: list[Tensor], x: Tensor) -> Tensor:
    items[0], items[1] = items[1], items[0]
    return items[0] + x


def _swap_values(values: dict[str, Tensor], x: Tensor) -> Tensor:
    values["a"], values["b"] = values["b"], values["a"]
    return values["a"] + x


def _repeat(items: list[Tensor], x: Tensor) -> Tensor:
    items[0] = items[1]
    return items[0] + x


def _remove(values: dict[str, Tensor], x: Tensor) -> Tensor:
    values.pop("a")
    return values["b"] + x


def _wrap(values: dict[str, Any], x: Tensor) -> Tensor:
    values["a"] = (values["b"], [values["a"]])
    return values["b"] + x


def _keep_gradient(items: list[Any], x: Tensor) -> Tensor:
    (items[0] * x).sum().backward()
    items[1] = items[0].grad
    return x + 1


def _listed(contents: Any) -> Any:
    if isinstance(contents, Tensor):
        return contents.tolist()
    if isinstance(contents, _Pair):
        contents = vars(contents)
    return [_listed(part) for part in getattr(contents, "values", contents.__iter__)()]


def _dict(a: Tensor, b: Tensor) -> dict[str, Tensor]:
    return {"a": a, "b": b}


def _list(a: Tensor, b: Tensor) -> list[Tensor]:
    return [a, b]


@pytest.mark.parametrize(
    ("make", "step"),
    [
        (_Pair, _swap_fields),
        (_list, _swap_items),
        (_dict, _swap_values),
        (_list, _repeat),
        (_dict, _remove),
        (_dict, _wrap),
        (_list, _keep_gradient),
    ],
)
@pytest.mark.parametrize("has_stand_in", [False, True])
def test_tensors_move_in_containers_that_are_given(
    make: Callable[[Tensor, Tensor], Any], step: Callable[[Any, Tensor], Tensor], has_stand_in: bool
) -> None:
    def results(is_captured: bool) -> list[Any]:
        reached = SimpleNamespace(tensor=None)

        def plain(container: Any, x: Tensor) -> Tensor:
            assert has_stand_in == (reached.tensor is not None)
            return step(container, x)

        function = TinyJit(plain) if is_captured else plain
        found = []
        for call in range(5):
            a, b = _numbers(1).requires_grad_(step is _keep_gradient), _numbers(2)
            container = make(a, b)
            if has_stand_in:
                reached.tensor = b
            result = function(container, _numbers(call))
            found += [result.tolist(), _listed(container)]
        return found

    assert results(is_captured=True) == results(is_captured=False)


def _fill_given(given: dict[str, Tensor], kept: dict[str, Tensor], x: Tensor) -> Tensor:
    given["a"] = x * 2
    return kept["a"] * 1


def _fill_kept(given: dict[str, Tensor], kept: dict[str, Tensor], x: Tensor) -> Tensor:
    kept["a"] = x * 2
    return given["a"] * 1


def _swap_both(given: dict[str, Tensor], kept: dict[str, Tensor], x: Tensor) -> Tensor:
    given["b"] = x + 1
    given["a"], kept["b"] = kept["b"], given["a"]
    return given["a"] + x


@pytest.mark.parametrize("step", [_fill_given, _fill_kept, _swap_both])
@pytest.mark.parametrize("same", [(1,), (1, 2), (3,), (4, 5), (2, 4)])
def test_a_container_that_is_given_may_be_one_that_is_reached(
    step: Callable[[Any, Any, Tensor], Tensor], same: tuple[int, ...]
) -> None:
    def results(is_captured: bool) -> list[Any]:
        kept = _dict(_numbers(1), _numbers(2))
        other = _dict(_numbers(3), _numbers(4))

        def plain(given: dict[str, Tensor], x: Tensor) -> Tensor:
            return step(given, kept, x)

        function = TinyJit(plain) if is_captured else plain
        found = []
        for call in range(7):
            result = function(kept if call in same else other, _numbers(call))
            found += [result.tolist(), _listed(kept), _listed(other)]
        return found

    assert results(is_captured=True) == results(is_captured=False)


def _exchange(box: State, x: Tensor) -> Tensor:
    one, other = box.one, box.other
    one.w.assign(one.h * 0.25)
    one.h = x
    one.w, other.w = other.w, one.w
    return x


@pytest.mark.parametrize(
    "calls",
    [
        "0 new, 1 new, 0 last, 0 new, 1 new, 0 w, 0 new",
        "0 new, 0 new, 1 last, 1 new, 0 new, 1 w, 1 new",
        "1 new, 0 new, 1 last, 1 new, 0 last, 1 w, 0 w, 1 new",
    ],
)
def test_a_tensor_of_a_state_out_of_reach_is_that_of_one_in_reach(calls: str) -> None:
    def results(function: Callable[[State, Tensor], Tensor]) -> list[Any]:
        models = [State(w=_numbers(11 + i), h=_numbers(13 + i)) for i in range(2)]
        box = State(other=State(w=_numbers(15)))
        last, found = _numbers(0), []
        for number, call in enumerate(calls.split(", ")):
            model, argument = call.split()
            box.one = models[int(model)]
            x = {"new": _numbers(20 + number), "last": last, "w": box.one.w}[argument]
            last = function(box, x)
            tensors = [box.other.w, *[t for m in models for t in (m.w, m.h)]]
            found.append([tensor.item() for tensor in tensors])
        return found

    assert results(TinyJit(_exchange)) == results(_exchange)
