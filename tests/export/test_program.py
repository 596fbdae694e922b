"""Exported programs compute the same bits as the replays that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Tensor, TinyJit, Variable, nn
from ferrule.export import ExportError, exported_program
from ferrule.export.interpret import Instance
from ferrule.export.program import ALIGNMENT, BlockKind, Copy
from tests.export.programs import Net, rand


@pytest.mark.parametrize("packed", [True, False])
def test_a_network_gives_the_replays_bits(packed: bool) -> None:
    Tensor.manual_seed(0)
    net = Net(28, (8, 16))
    for parameter in nn.state.get_parameters(net):
        parameter.requires_grad = False

    @TinyJit
    def classify(x: Tensor) -> tuple[Tensor, Tensor]:
        y = net(x)
        return y.softmax(-1).realize(), y.argmax(-1).realize()

    x = rand(16, 1, 28, 28)
    for _ in range(4):
        wanted = [y.numpy() for y in classify(Tensor(x))]
    program = exported_program(classify, packed=packed)
    assert [(one.name, one.shape) for one in program.arguments] == [("x", (16, 1, 28, 28))]
    assert [one.name for one in program.results] == ["result.0", "result.1"]
    assert not list(program.of_kind(BlockKind.STATE))
    instance = Instance(program)
    instance.arguments["x"][:] = x
    instance.run()
    for result, expected in zip(instance.results.values(), wanted, strict=True):
        if packed:
            assert result.tobytes() == expected.tobytes()
        else:
            np.testing.assert_allclose(result, expected, rtol=1e-5)
    names = {block.name for _, block in program.of_kind(BlockKind.CONSTANT)}
    assert {"net.c1.bias", "net.l1.bias"} <= names


def test_a_training_step_keeps_parameters_and_the_optimizer_as_state() -> None:
    Tensor.manual_seed(0)
    net = Net(28, (8, 16))
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=1e-3)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = net(x).dropout(0.1).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
        return loss.realize()

    x, y = rand(8, 1, 28, 28), np.arange(8, dtype=np.int32)
    for _ in range(4):
        step(Tensor(x), Tensor(y))
    program = exported_program(step)
    instance = Instance(program)
    assert {"net.c1.weight", "net.l1.bias", "random_numbers"} <= instance.states.keys()
    instance.arguments["x"][:], instance.arguments["y"][:] = x, y
    losses = []
    for _ in range(3):
        instance.run()
        losses.append(instance.results["result"].copy())
    assert losses[0] != losses[1]
    for loss in losses:
        assert step(Tensor(x), Tensor(y)).numpy().tobytes() == loss.tobytes()
    assert instance.states["net.c1.weight"].tobytes() == net.c1.weight.numpy().tobytes()
    gradient = net.c1.weight.grad
    assert gradient is not None
    assert instance.states["net.c1.weight.grad"].tobytes() == gradient.numpy().tobytes()


def test_gradients_are_added_to_those_that_are_there() -> None:
    w = Tensor(rand(3, 4), requires_grad=True)

    @TinyJit
    def accumulate(x: Tensor) -> Tensor:
        loss = (x @ w).square().sum()
        loss.backward()
        return loss.realize()

    x = rand(5, 3, seed=1)
    for _ in range(4):
        accumulate(Tensor(x))
    instance = Instance(exported_program(accumulate))
    instance.arguments["x"][:] = x
    for _ in range(2):
        instance.run()
        accumulate(Tensor(x))
    assert w.grad is not None
    assert instance.states["w.grad"].tobytes() == w.grad.numpy().tobytes()


def test_a_state_that_the_function_replaces_is_read_by_the_next_call() -> None:
    class Filter:
        def __init__(self) -> None:
            self.now, self.before = Tensor(rand(4)), Tensor(rand(4, seed=1))

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            y = self.now * 0.5 + self.before * 0.25 + x
            self.before = self.now
            self.now = y.realize()
            return y

    one = Filter()
    for number in range(4):
        one.step(Tensor(rand(4, seed=number)))
    instance = Instance(exported_program(one.step))
    for number in range(3):
        instance.arguments["x"][:] = rand(4, seed=number)
        instance.run()
        wanted = one.step(Tensor(rand(4, seed=number))).numpy()
        assert instance.results["result"].tobytes() == wanted.tobytes()
    assert instance.states["before"].tobytes() == one.before.numpy().tobytes()


def test_sizes_are_variables_with_bounds() -> None:
    w = Tensor(rand(8, 3))
    n = Variable("n", 1, 10)

    @TinyJit
    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x @ w).relu()
        return y.realize(), y.sum(0).realize()

    whole = rand(10, 8, seed=2)
    for number in (3, 4, 5, 6):
        total(Tensor(whole)[: n.bind(number)])
    program = exported_program(total)
    assert program.variables == (n,)
    assert program.arguments[0].shape == (n, 8)
    assert program.arguments[0].capacity == (10, 8)
    instance = Instance(program)
    instance.arguments["x"][:] = whole
    for number in (1, 7, 10):
        instance.run({n: number})
        wanted, sums = total(Tensor(whole)[: n.bind(number)])
        got = instance.array(program.results[0], {n: number})
        assert got.shape == (number, 3)
        assert got.tobytes() == np.ascontiguousarray(wanted.numpy()).tobytes()
        assert instance.results["result.1"].tobytes() == sums.numpy().tobytes()
    with pytest.raises(ValueError, match="n"):
        instance.run({n: 11})
    with pytest.raises(ValueError, match="n has no value"):
        instance.run()


def test_a_cache_is_state_that_a_variable_says_where_to_write() -> None:
    position = Variable("position", 0, 7)
    cache = Tensor.zeros(8, 4).contiguous().realize()

    @TinyJit
    def generate(x: Tensor, at: Variable) -> Tensor:
        cache[at : at + 1] = x
        return (cache[: at + 1] @ x.reshape(4, 1)).sum().realize()

    for number in range(4):
        generate(Tensor(rand(1, 4, seed=number)), position.bind(number))
    program = exported_program(generate)
    instance = Instance(program)
    for number in range(4, 8):
        x = rand(1, 4, seed=number)
        instance.arguments["x"][:] = x
        instance.run({position: number})
        wanted = generate(Tensor(x), position.bind(number)).numpy()
        assert instance.results["result"].tobytes() == wanted.tobytes()
    assert instance.states["cache"].tobytes() == cache.numpy().tobytes()


def test_results_may_be_arguments_states_and_views() -> None:
    w = Tensor(rand(3, 4))

    @TinyJit
    def mixed(x: Tensor) -> dict[str, object]:
        y = (x + 1).realize()
        w.assign(w + 1).realize()
        return {"x": x, "y": y, "turned": y.T, "w": w, "none": None}

    x = rand(3, 4, seed=3)
    for _ in range(4):
        mixed(Tensor(x))
    program = exported_program(mixed)
    assert program.template == {"x": 0, "y": 1, "turned": 2, "w": 3, "none": None}
    instance = Instance(program)
    instance.arguments["x"][:] = x
    instance.run()
    wanted = mixed(Tensor(x))
    for name in ("x", "y", "turned", "w"):
        tensor = wanted[name]
        assert isinstance(tensor, Tensor)
        np.testing.assert_array_equal(instance.results[f"result.{name}"], tensor.numpy())


def test_what_cannot_be_exported_is_listed_with_its_lines() -> None:
    @TinyJit
    def decomposes(x: Tensor) -> Tensor:
        return (x.inverse() + x.svd()[1]).realize()

    with pytest.raises(ExportError, match="has no replay to export"):
        exported_program(decomposes)
    for _ in range(3):
        decomposes(Tensor(rand(3, 3, seed=1)))
    with pytest.raises(ExportError, match=r"host inv \(.*test_program\.py.*; host svd \("):
        exported_program(decomposes)


def test_arguments_that_share_memory_are_refused() -> None:
    @TinyJit
    def add(x: Tensor, y: Tensor) -> Tensor:
        return (x + y).realize()

    x = Tensor(rand(4))
    for _ in range(3):
        add(x, x)
    with pytest.raises(ExportError, match="y and x share memory"):
        exported_program(add)


def test_values_with_disjoint_lives_share_scratch_memory() -> None:
    ws = [Tensor(rand(64, 64, seed=number)) for number in range(8)]

    @TinyJit
    def deep(x: Tensor) -> Tensor:
        for w in ws:
            x = (x @ w).relu()
        return x.realize()

    for _ in range(3):
        deep(Tensor(rand(64, 64)))
    assert exported_program(deep).nbytes(BlockKind.SCRATCH) <= 3 * 64 * 64 * 4


def test_weights_are_in_a_program_once() -> None:
    layers = [nn.Linear(512, 512, bias=False) for _ in range(3)]
    for layer in layers:
        layer.weight.requires_grad = False

    @TinyJit
    def deep(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x).relu()
        return x.realize()

    for _ in range(4):
        deep(Tensor(rand(128, 512)))
    packed, plain = exported_program(deep), exported_program(deep, packed=False)
    assert any(block.name == "packed layers.0.weight" for block in packed.blocks)
    assert packed.nbytes(BlockKind.CONSTANT) == plain.nbytes(BlockKind.CONSTANT) == 3 << 20


@pytest.mark.parametrize("width", [8, 256])
def test_loops_over_rows_give_the_replays_bits(width: int) -> None:
    Tensor.manual_seed(0)
    lstm = nn.LSTM(width, width)
    for parameter in nn.state.get_parameters(lstm):
        parameter.requires_grad = False

    @TinyJit
    def recurrent(x: Tensor) -> tuple[Tensor, Tensor]:
        y, (h, _) = lstm(x)
        return y.realize(), h.realize()

    x = rand(7, 32, width)
    for _ in range(4):
        wanted = [y.numpy() for y in recurrent(Tensor(x))]
    for packed in (True, False):
        program = exported_program(recurrent, packed=packed)
        assert packed or all(kernel.ast is not None for kernel in program.kernels)
        instance = Instance(program)
        instance.arguments["x"][:] = x
        instance.run()
        for result, expected in zip(instance.results.values(), wanted, strict=True):
            assert result.tobytes() == expected.tobytes()


def test_loops_are_trained() -> None:
    Tensor.manual_seed(0)
    gru = nn.GRU(4, 8)
    optimizer = nn.optim.SGD(nn.state.get_parameters(gru), lr=0.1)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = gru(x)[0].square().mean()
            loss.backward()
            optimizer.step()
        return loss.realize()

    x = rand(5, 3, 4)
    for _ in range(4):
        step(Tensor(x))
    instance = Instance(exported_program(step))
    instance.arguments["x"][:] = x
    for _ in range(2):
        instance.run()
        assert step(Tensor(x)).numpy().tobytes() == instance.results["result"].tobytes()


@pytest.mark.parametrize("start", [0.5, 100.0, 1e6])
def test_loops_end_by_their_condition(start: float) -> None:
    """After no trip, after as many as the values ask for, and after the most that are allowed."""

    @TinyJit
    def halve(x: Tensor) -> tuple[Tensor, Tensor]:
        found = ferrule.while_loop(
            lambda state: (state[0] > 1).any(),
            lambda state: (state[0] / 2, state[1] + 1),
            (x, Tensor(0)),
            max_trips=9,
        )
        return found[0].realize(), found[1].realize()

    for _ in range(3):
        halve(Tensor([100.0]))
    instance = Instance(exported_program(halve))
    instance.arguments["x"][:] = start
    instance.run()
    trips = {0.5: 0, 100.0: 7, 1e6: 9}[start]
    assert instance.results["result.0"] == np.float32(start) / 2**trips
    assert instance.results["result.1"] == trips


def test_what_a_loop_cannot_have_is_listed() -> None:
    @TinyJit
    def inverted(x: Tensor) -> Tensor:
        return ferrule.scan(lambda c, row: (c @ row.inverse(), None), Tensor.eye(3), x)[0].realize()

    for number in range(3):
        inverted(Tensor(rand(2, 3, 3, seed=number)))
    with pytest.raises(ExportError, match=r"host inv \(.*test_program\.py"):
        exported_program(inverted)


def test_places_that_change_their_tensors_are_swapped_at_once() -> None:
    """Each copy at the end reads what was there before any of them."""

    class Pair:
        def __init__(self) -> None:
            self.a, self.b = Tensor(rand(4)), Tensor(rand(4, seed=1))

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            y = (self.a - self.b * 2 + x).realize()
            self.a, self.b = self.b, self.a
            return y

    pair = Pair()
    for number in range(4):
        pair.step(Tensor(rand(4, seed=number)))
    program = exported_program(pair.step)
    aside = [
        step.to.offset
        for step in program.steps
        if isinstance(step, Copy) and program.blocks[step.to.block].kind is BlockKind.SCRATCH
    ]
    assert aside == [0, ALIGNMENT], "each begins at a line of the cache"
    instance = Instance(program)
    for number in range(3):
        instance.arguments["x"][:] = rand(4, seed=number)
        instance.run()
        wanted = pair.step(Tensor(rand(4, seed=number))).numpy()
        assert instance.results["result"].tobytes() == wanted.tobytes()
    assert instance.states["a"].tobytes() == pair.a.numpy().tobytes()
    assert instance.states["b"].tobytes() == pair.b.numpy().tobytes()


def test_parts_of_memory_are_read_where_they_are() -> None:
    """Weights and states that are slices of a larger tensor, and an argument that is one."""
    whole, cache = Tensor(rand(6, 4)), Tensor(rand(6, 4, seed=1)).realize()
    low, high, last = whole[:2], whole[2:4], cache[4:]

    @TinyJit
    def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cache[2:4] = x
        return (x * low + high).realize(), last, high

    x = rand(2, 4, seed=2)
    for _ in range(4):
        wanted = [one.numpy() for one in parts(Tensor(x))]
    instance = Instance(exported_program(parts))
    instance.arguments["x"][:] = x
    instance.run()
    for found, expected in zip(instance.results.values(), wanted, strict=True):
        assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_results_that_are_constants_are_copies() -> None:
    """Callers may write to them."""
    w = Tensor(rand(4)).realize()

    @TinyJit
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * w).realize(), w

    for _ in range(3):
        both(Tensor(rand(4)))
    program = exported_program(both)
    blocks = [program.blocks[one.cell.block].kind for one in program.results]
    assert blocks == [BlockKind.RESULT, BlockKind.RESULT]
    instance = Instance(program)
    instance.arguments["x"][:] = rand(4)
    for _ in range(2):
        instance.run()
        assert instance.results["result.1"].tobytes() == w.numpy().tobytes()
        instance.results["result.1"][:] = 7
    assert w.numpy().tobytes() == rand(4).tobytes()


def test_arguments_that_no_strides_describe_are_refused() -> None:
    step = TinyJit(lambda x: (x + 1).realize())
    for number in range(3):
        step(Tensor(rand(4, seed=number)).realize().pad(((1, 1),)))
    with pytest.raises(ExportError, match="x is a view that sizes and strides alone"):
        exported_program(step)


MOVES: dict[str, Callable[[Any], Any]] = {
    "transposed, then cut": lambda x: x.T[1:3, :2],
    "cut, then transposed": lambda x: x[1:, 1:3].T,
    "turned around, then transposed": lambda x: (
        (x[::-1] if isinstance(x, np.ndarray) else x.flip(0)).T
    ),
    "other axes, then transposed": lambda x: x.reshape(2, 6).T,
}


@pytest.mark.parametrize("moves", MOVES)
@pytest.mark.parametrize("place", ["argument", "constant", "state", "result"])
def test_several_movements_are_one_view(moves: str, place: str) -> None:
    """Of memory in an argument, a weight, a state or a result."""
    move, whole = MOVES[moves], rand(3, 4)
    kept = Tensor(whole).realize()
    view = move(kept)

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 2).realize()
        if place == "state":
            kept.assign(kept + 1).realize()
        return y, (move(y) if place == "result" else view)

    given = move if place == "argument" else lambda x: x
    for _ in range(4):
        wanted = [one.numpy() for one in step(given(Tensor(whole).realize()))]
    program = exported_program(step)
    instance = Instance(program)
    instance.arguments["x"][:] = given(whole)
    for _ in range(place == "state"):
        wanted = [one.numpy() for one in step(Tensor(whole))]
    instance.run()
    for found, expected in zip(instance.results.values(), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
    (argument,) = program.arguments
    strides = given(whole).strides if place == "argument" else whole.strides
    assert argument.strides == tuple([step // 4 for step in strides])
    if place == "argument":
        start = given(whole).__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        assert argument.cell.offset == start


def test_gradients_of_another_kind_than_in_the_capture_are_refused() -> None:
    w = Tensor(rand(3), requires_grad=True)

    @TinyJit
    def accumulate(x: Tensor) -> Tensor:
        return (x * w).sum().backward().realize()

    for _ in range(4):
        accumulate(Tensor(rand(3)))
    w.grad = None
    with pytest.raises(ExportError, match="of another kind now than in the captured call"):
        exported_program(accumulate)


def test_one_value_in_two_places_is_two_states() -> None:
    class Keep:
        @TinyJit
        def step(self, x: Tensor) -> None:
            self.first = (x + 1).realize()
            self.second = self.first

    keep = Keep()
    for _ in range(4):
        keep.step(Tensor(rand(3)))
    program = exported_program(keep.step)
    assert [one.name for one in program.effects] == ["first", "second"]
    assert len({one.cell.block for one in program.effects}) == 2
    instance = Instance(program)
    instance.arguments["x"][:] = rand(3)
    instance.run()
    for state in instance.states.values():
        np.testing.assert_array_equal(state, rand(3) + 1)
