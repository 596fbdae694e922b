"""Results of a replay share memory with arguments, and with one another, as in a plain call."""

from collections.abc import Callable
from copy import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ferrule.autograd import GradientError
from ferrule.helpers import GlobalCounters
from ferrule.ir.expr import Variable
from ferrule.jit import TinyJit
from ferrule.tensor import Tensor

pytestmark = pytest.mark.usefixtures("device")


def _flipped(x: Tensor) -> tuple[Tensor, ...]:
    return x.flip(0), (x * 2).realize()


def _parts_of_an_argument(x: Tensor) -> tuple[Tensor, ...]:
    return x[1:3], x.reshape(2, 2).T, x.detach(), x.detach()[2]


def _parts_of_one_value(x: Tensor) -> tuple[Tensor, ...]:
    y = (x * 2).contiguous()
    return y[1:3], y.reshape(2, 2), y.detach(), y


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    return tuple((x + 1).chunk(2))


def _parts_of_data(x: Tensor) -> tuple[Tensor, ...]:
    y = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    return y[1:3], y.flip(0), y, (x + y).realize()


def _parts_under_no_grad(x: Tensor) -> tuple[Tensor, ...]:
    with Tensor.no_grad():
        return x[1:], x.flip(0)[:2]


@pytest.mark.parametrize(
    "function",
    [
        _flipped,
        _parts_of_an_argument,
        _parts_of_one_value,
        _chunks,
        _parts_of_data,
        _parts_under_no_grad,
    ],
)
@pytest.mark.parametrize("given", ["memory", "a part", "a view"])
def test_results_share_memory_as_those_of_the_plain_function_do(
    function: Callable[[Tensor], tuple[Tensor, ...]], given: str
) -> None:
    runs: list[int] = []

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, ...]:
        runs.append(0)
        return function(x)

    for call in range(6):
        seen = []
        for run in (function, step):
            whole = Tensor(np.arange(8, dtype=np.float32) + call).realize()
            x = {"memory": whole[:4].clone(), "a part": whole[call % 3 :][:4]}.get(
                given, whole[::2]
            )
            results = run(x.realize())
            wrote = [*results, x]
            for number, tensor in enumerate(wrote):
                tensor.assign(tensor * 10 + number)
            seen.append([tensor.numpy() for tensor in [*wrote, whole]])
        for expected, found in zip(*seen, strict=True):
            np.testing.assert_array_equal(found, expected)
    assert len(runs) == (3 if given == "a part" else 2)


@pytest.mark.parametrize("given", ["memory", "a part", "a view"])
def test_a_view_of_a_captured_argument_left_in_an_attribute_shares_its_memory(given: str) -> None:
    kept = SimpleNamespace(last=Tensor([0.0]).realize())

    @TinyJit
    def step(x: Tensor) -> Tensor:
        kept.last = x[1:3]
        return (x * 2).realize()

    for call in range(5):
        whole = (Tensor.arange(6).float() * (call + 1)).realize()
        x = {"memory": whole, "a part": whole[call % 3 :][:3]}.get(given, whole[::2])
        step(x)
        x.assign(x * 10)
        np.testing.assert_array_equal(kept.last.numpy(), x.numpy()[1:3])


@pytest.mark.parametrize("apart", ["sources", "movements"])
def test_views_of_arguments_that_are_views_are_told_apart(apart: str) -> None:
    @TinyJit
    def step(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return y.detach(), z.detach(), x.detach(), (x + y + z).realize()

    for call in range(5):
        whole = (Tensor.arange(8).float() + call).realize()
        x, y, z = {
            "sources": (whole[:4], whole.flip(0)[:4], whole[4:]),
            "movements": (whole[:4], whole[2:6], whole[4:]),
        }[apart]
        results = step(x, y, z)
        for tensor, source in zip(results, (y, z, x), strict=False):
            np.testing.assert_array_equal(tensor.numpy(), source.numpy())
        whole.assign(whole * 3)
        for tensor, source in zip(results, (y, z, x), strict=False):
            np.testing.assert_array_equal(tensor.numpy(), source.numpy())


def test_a_small_part_that_a_replay_returns_does_not_hold_the_whole_in_memory() -> None:
    @TinyJit
    def first(x: Tensor) -> Tensor:
        return (x * 2).contiguous()[:1]

    x = Tensor.ones(1 << 20).realize()
    for _ in range(3):
        first(x)
    before = GlobalCounters.mem_used
    results = [first(x) for _ in range(4)]
    assert GlobalCounters.mem_used - before < 1 << 20
    assert [result.item() for result in results] == [2.0] * 4


def test_views_of_symbolic_size_have_the_size_and_the_memory_of_the_call() -> None:
    @TinyJit
    def head(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        n = y.shape[0]
        return x.shrink(((0, n),)), x.shrink(((8 - n, 8),)).flip(0), (y * 2).realize()

    whole = Tensor.arange(8).float().realize()
    other = Tensor.arange(8).float().realize()
    for call, size in enumerate((3, 5, 2, 7, 4)):
        n = Variable("n", 1, 8).bind(size)
        first, last, doubled = head(whole, other.shrink(((0, n),)))
        np.testing.assert_array_equal(doubled.numpy(), 2 * np.arange(size))
        whole.assign(Tensor.arange(8).float() + call)
        np.testing.assert_array_equal(first.numpy(), np.arange(8)[:size] + call)
        np.testing.assert_array_equal(last.numpy(), np.arange(8)[: 7 - size : -1] + call)


def test_parts_of_memory_from_outside_are_those_of_the_call() -> None:
    """A replay would return the part that the captured call returned."""
    whole = Tensor.arange(8).float().realize()
    fixed = whole[: Variable("n", 1, 8).bind(2)]

    @TinyJit
    def parts(n: Any) -> tuple[Tensor, ...]:
        return whole[:n], whole[n - 1].reshape(1), whole[:n] + 1, fixed

    for size in (3, 5, 2, 8, 5):
        head, last, more, same = parts(Variable("n", 1, 8).bind(size))
        assert head.tolist() == list(range(size))
        assert last.tolist() == [size - 1]
        assert more.tolist() == list(range(1, size + 1))
        assert same is fixed
        head.assign(head + 1)
        whole[:size] = whole[:size] - 1
    assert whole.tolist() == list(range(8))

    @TinyJit
    def old_and_new(n: Any) -> tuple[Tensor, Tensor]:
        return fixed, whole[:n].sum()

    for size in (3, 5, 2, 8):
        assert old_and_new(Variable("n", 1, 8).bind(size))[1].item() == sum(range(size))
    assert old_and_new.jit_cache


def test_a_view_whose_size_the_function_binds_itself_has_that_size() -> None:
    @TinyJit
    def head(x: Tensor) -> tuple[Tensor, Tensor]:
        n = Variable("n", 1, 8).bind(3)
        return x.shrink(((0, n),)), (x * 2).realize()

    for call in range(4):
        x = (Tensor.arange(8).float() + call).realize()
        np.testing.assert_array_equal(head(x)[0].numpy(), np.arange(3) + call)


def test_gradients_flow_through_a_view_that_a_replay_returns() -> None:
    @TinyJit
    def rows(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[1:], x.detach()[1:]

    for _ in range(4):
        x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
        view, detached = rows(x)
        (view * 5).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0.0, 5.0, 5.0]
        assert view.requires_grad
        assert not detached.requires_grad


def _under_no_grad(x: Tensor) -> Tensor:
    with Tensor.no_grad():
        return x[1:]


@pytest.mark.parametrize(
    "function",
    [
        _under_no_grad,
        lambda x: x[1:].detach()[:2],
        lambda x: x.detach()[1:][:2],
        lambda x: x.detach().requires_grad_(),
        lambda x: x[1:].detach().requires_grad_(),
        lambda x: x.detach().requires_grad_()[1:].detach(),
        lambda x: (x * 3).detach().requires_grad_(),
        lambda x: x[1:][:2],
    ],
)
def test_gradients_stop_in_a_view_of_a_replay_where_they_do_in_a_plain_one(
    function: Callable[[Tensor], Tensor],
) -> None:
    step = TinyJit(lambda x: (function(x), (x * 2).realize()))
    for _ in range(4):
        seen = []
        for run in (lambda x: (function(x), None), step):
            x = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()
            view = run(x)[0]
            needs = view.requires_grad
            if needs:
                (view * 5).sum().backward()
            found = [None if one.grad is None else one.grad.tolist() for one in (x, view)]
            seen.append((needs, view.numpy().tolist(), found))
        assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("function", "is_detached"),
    [(copy, False), (copy, True), (lambda x: copy(x)[1:], False), (lambda x: x[1:], True)],
)
def test_gradients_flow_through_views_of_what_is_no_leaf_or_was_detached_before(
    function: Callable[[Tensor], Tensor], is_detached: bool
) -> None:
    step = TinyJit(lambda x: (function(x), (x * 2).realize()))
    for _ in range(4):
        seen = []
        for run in (lambda x: (function(x), None), step):
            weight = Tensor([1.0, 2.0, 3.0], requires_grad=True)
            x = weight.detach().requires_grad_() if is_detached else (weight * 2).realize()
            view = run(x)[0]
            assert view is not x
            (view * 5).sum().backward()
            leaves = (weight, x, view)
            seen.append([None if leaf.grad is None else leaf.grad.tolist() for leaf in leaves])
        assert seen[0] == seen[1]


def test_a_leaf_that_a_replay_returns_may_be_in_the_memory_of_an_argument() -> None:
    step = TinyJit(lambda x: (x.detach().requires_grad_(), (x * 2).realize()))
    for _ in range(4):
        x = Tensor([1.0, 2.0, 3.0]).realize()
        leaf = step(x)[0]
        x.assign(x * 3)
        assert leaf.tolist() == [3.0, 6.0, 9.0]


def test_a_gradient_that_arrives_at_a_result_of_a_replay_is_an_error() -> None:
    weight, other = (Tensor([2.0, 3.0], requires_grad=True).realize() for _ in range(2))

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, ...]:
        own = x.detach().requires_grad_()
        return (x * weight).realize(), (x * weight.detach()).realize(), own[1:], (own * 1).detach()

    for call in range(4):
        results = step(Tensor([1.0, 2.0]).realize())
        assert [result.requires_grad for result in results] == [True, None, True, None]
        (results[1] + other).sum().backward()
        if call < 2:
            (results[0] + other).sum().backward()
            continue
        with pytest.raises(GradientError, match="captured function"):
            (results[0] + other).sum().backward()
    assert weight.grad is not None
    assert other.grad is not None
    assert (weight.grad.tolist(), other.grad.tolist()) == ([2.0, 4.0], [6.0, 6.0])


def _added_up(weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    (weight * x).sum().backward()
    assert weight.grad is not None
    return weight.grad[1:], weight.grad.detach(), weight.grad.sum().realize()


def _read(weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    assert weight.grad is not None
    return weight.grad.flip(0), (weight.grad * x).sum().realize()


def _let_go(weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    assert weight.grad is not None
    left = weight.grad.detach()
    weight.grad = None
    return left[1:], (left * x).realize()


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("function", [_added_up, _read, _let_go])
def test_views_of_a_gradient_that_a_captured_function_finds_are_of_that_of_the_call(
    function: Callable[[Tensor, Tensor], tuple[Tensor, ...]], held: bool
) -> None:
    runs: list[float] = []
    found: list[list[list[object]]] = []
    for is_captured in (False, True):
        weight = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()
        settings = SimpleNamespace(scale=1.0)

        def step(
            x: Tensor, weight: Tensor = weight, settings: SimpleNamespace = settings
        ) -> tuple[Tensor, ...]:
            runs.append(0)
            return function(weight, x * settings.scale)

        run = TinyJit(step) if is_captured else step
        runs.clear()
        seen: list[list[object]] = []
        for call in range(10):
            settings.scale = 1.0 if call < 5 else 2.0  # captured again, with what is known then
            gradient = Tensor([10.0 * call, 1.0 * call, 2.0]).realize()
            weight.grad = gradient
            if not held:
                del gradient
            results = run(Tensor([1.0, 2.0, 3.0 * call]).realize())
            before = [tensor.tolist() for tensor in results]
            written = gradient if held else results[0]
            written.assign(written * 3)
            seen.append([*before, *[tensor.tolist() for tensor in results]])
        found.append(seen)
    assert found[0] == found[1]
    assert len(runs) == 3


@pytest.mark.parametrize("found", [False, True])
def test_a_copy_that_still_shares_memory_is_no_alias(found: bool) -> None:
    """A write to one of the two leaves the other alone; to one tensor given twice it does not."""
    seen = []
    for is_captured in (False, True):
        state = Tensor([1.0, 2.0, 3.0]).realize()

        def step(x: Tensor, y: Tensor | None = None, state: Tensor = state) -> Tensor:
            written = state if y is None else y
            written[1:] = x[:2]
            return x + 0

        run = TinyJit(step) if is_captured else step
        results: list[list[float]] = []
        for call in range(12):
            target = Tensor([1.0 * call, 2.0, 3.0]).realize()
            whole = state if found else target
            x = whole if call % 3 == 0 or call > 9 else whole.clone()
            result = run(x) if found else run(x, target)
            results += [result.tolist(), x.tolist(), whole.tolist()]
        seen.append(results)
    assert seen[0] == seen[1]


def test_an_argument_is_what_a_view_that_was_computed_is_of() -> None:
    """Its values are in a second place then, and the view is read anew in the captured call."""
    base = Tensor([1.0, 2.0, 3.0]).realize()
    view = base.flip(0)
    assert view.tolist() == [3, 2, 1]
    add = TinyJit(lambda x: x + view * 10)
    for call in range(6):
        x = base if call < 3 else Tensor([1.0 * call, 2.0, 3.0]).realize()
        assert add(x).tolist() == [x[0].item() + 30, 22, 13]


def test_a_parameter_made_of_an_argument_that_is_reached_keeps_its_gradient() -> None:
    """In a call that is captured, where another tensor stands for the argument, as in others."""
    state = Tensor([1.0, 2.0]).realize()
    kept = SimpleNamespace()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        kept.copy = x.detach().requires_grad_()
        (kept.copy * x).sum().backward()
        kept.items = [x]  # so there is no replay
        return state * 2

    for _ in range(4):
        step(state)
        assert kept.copy.requires_grad
        assert kept.copy.grad.tolist() == [1, 2]
        with Tensor.no_grad():
            state.assign(state * 1)
            kept.copy.assign(kept.copy * 1)
        assert kept.items[0] is not None


_COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "a copy": lambda x: x.clone(),
    "what is the same number": lambda x: x * 1,
    "a part of one": lambda x: (x * 1)[:1],
    "turned": lambda x: x.clone().flip(0),
}


@pytest.mark.parametrize("name", _COPIES)
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("detached", [False, True])
def test_a_copy_of_an_argument_that_is_reached_is_written_apart(
    name: str, kept: bool, detached: bool
) -> None:
    """Whichever of the two is written to, in whichever of the calls it was made."""
    state = SimpleNamespace(held=None, copy=None)

    def step(x: Tensor) -> Tensor:
        state.held = x
        made = _COPIES[name](x)
        if kept:
            state.copy = made
        return made

    captured = TinyJit(step)
    for to_copy in (True, False):
        for call in range(5):
            given = Tensor([1.0 + call, 2.0]).realize() if state.held is None else state.held
            given = given.detach() if detached else given
            before = given.numpy().copy()
            made = captured(given)
            expected = _COPIES[name](Tensor(before)).numpy()
            written = made if to_copy else given
            written.assign(Tensor.ones(*written.shape) * (10 + call)).realize()
            left = given if to_copy else made
            np.testing.assert_array_equal(left.numpy(), before if to_copy else expected)
            np.testing.assert_array_equal(written.numpy(), np.full(written.shape, 10 + call))


def test_what_a_view_that_was_left_is_of_has_the_argument_of_the_call() -> None:
    """The view's own values are read first; only then does somebody write to the argument."""

    class Model:
        kept = Tensor([1.0, 2.0]).realize()
        doubled: Tensor

    @TinyJit
    def f(x: Tensor) -> Tensor:
        model.doubled = (x * 2).flip(0)
        return x

    model = Model()
    model.doubled = Tensor([0.0, 0.0]).realize()
    f(Tensor([3.0, 4.0]).realize())
    same = f(model.kept)  # captured, with an argument that it can also reach
    assert model.doubled.tolist() == [4.0, 2.0]
    same.assign(Tensor([5.0, 6.0])).realize()
    assert model.doubled.tolist() == [4.0, 2.0]
    again = model.doubled
    assert f(again).tolist() == [4.0, 2.0]
    assert again.tolist() == [4.0, 2.0]
    assert model.doubled.tolist() == [4.0, 8.0]


def test_an_array_that_shares_memory_is_not_written_over(device: str) -> None:
    w = Tensor(np.arange(4, dtype=np.float32)).realize()

    @TinyJit
    def add(x: Tensor) -> None:
        w.assign(w + x)

    arrays: list[tuple[Any, Any]] = []
    for call in range(6):
        if call > 2:
            arrays.append((w.numpy(copy=False), w.numpy()))
        add(Tensor([1.0, 2.0, 3.0, 4.0]))
        for array, expected in arrays:
            np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(w.numpy(), np.arange(4) + 6 * np.arange(1, 5))


def _is_changed(model: SimpleNamespace, x: Tensor) -> Tensor:
    model.state += 1
    return model.state + x


def _is_read(model: SimpleNamespace, x: Tensor) -> Tensor:
    return model.state * 1 + x * 0


def _is_replaced(model: SimpleNamespace, x: Tensor) -> Tensor:
    model.state = model.state * 0.5 + x
    return model.state


@pytest.mark.parametrize("step", [_is_read, _is_changed, _is_replaced])
@pytest.mark.parametrize("aliased", [(0, 1), (1,), (2,), (1, 3)])
def test_a_state_of_an_object_that_is_given_may_be_an_argument_too(
    step: Callable[[SimpleNamespace, Tensor], Tensor], aliased: tuple[int, ...]
) -> None:
    def results(function: Callable[[SimpleNamespace, Tensor], Tensor]) -> list[Any]:
        model = SimpleNamespace(state=Tensor([1.0, 2.0]).realize())
        found = []
        for call in range(6):
            x = model.state if call in aliased else Tensor([10.0 + call, 20.0]).realize()
            found += [function(model, x).tolist(), model.state.tolist()]
        return found

    assert results(TinyJit(step)) == results(step)


def _whole(x: Tensor) -> Tensor:
    return x


def _turned(x: Tensor) -> Tensor:
    return x.T


@pytest.mark.parametrize("view", [_whole, _turned])
@pytest.mark.parametrize("part", [False, True])
def test_a_copy_of_an_argument_is_written_to_and_the_argument_is_reached_too(
    view: Callable[[Tensor], Tensor], part: bool
) -> None:
    """What stands in for the argument has its memory, which is none of the copy's."""
    given = [Tensor([[1.0, 2.0], [3.0, 4.0]]).realize(), Tensor([0.0]).realize()]

    @TinyJit
    def step(x: Tensor) -> Tensor:
        copied = view(x).clone()
        if part:
            copied[0] = 7
        else:
            copied *= -1
        given[1] = copied
        return x + 1

    changed = [[7.0, 7.0], [3.0, 4.0]] if part else [[-1.0, -2.0], [-3.0, -4.0]]
    for _ in range(4):
        assert step(view(given[0])).tolist() == view(Tensor([[2.0, 3.0], [4.0, 5.0]])).tolist()
        assert given[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert given[1].tolist() == changed


def test_a_copy_of_a_part_that_is_given_is_written_to() -> None:
    data = Tensor([float(i) for i in range(12)]).realize()

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        copied = x.clone()
        copied[1:3] = 0
        return copied, x + 1

    for start in (0, 4, 8, 2, 6):
        copied, more = step(data[start : start + 4])
        assert copied.tolist() == [start, 0, 0, start + 3]
        assert more.tolist() == [start + i + 1 for i in range(4)]
    assert data.tolist() == list(range(12))


def _is_assigned(x: Tensor, y: Tensor) -> None:
    x.assign(y)


def _is_multiplied(x: Tensor, y: Tensor) -> None:
    x *= (y.shape[0] == 2) - (y.shape[0] == 3)


@pytest.mark.parametrize("write", [_is_assigned, _is_multiplied])
def test_the_first_call_writes_what_is_there_already(
    write: Callable[[Tensor, Tensor], None],
) -> None:
    """The function writes to its argument all the same, which it can reach by itself."""

    def results(jit: Callable[..., Any]) -> list[Any]:
        state, other = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
        longer = Tensor([3.0, 4.0, 5.0]).realize() if write is not _is_assigned else other

        @jit
        def step(x: Tensor, y: Tensor) -> Tensor:
            write(x, y)
            return state + other

        given = [(state, state), (other, state), (state, longer), (state, other), (state, longer)]
        return [[step(x, y).tolist(), state.tolist(), other.tolist()] for x, y in given]

    assert results(TinyJit) == results(lambda function: function)


def _as_a_whole(x: Tensor, y: Tensor) -> None:
    x.assign(y.T)


def _a_part(x: Tensor, y: Tensor) -> None:
    x[:1] = y.T[:1]


@pytest.mark.parametrize("write", [_as_a_whole, _a_part])
@pytest.mark.parametrize("replaced", ["x", "y"])
def test_what_is_written_is_there_already_and_then_is_not(
    write: Callable[[Tensor, Tensor], None], replaced: str
) -> None:
    """A write that runs no kernel depends on where both tensors are all the same."""

    def results(jit: Callable[..., Any]) -> list[Any]:
        state = {"x": Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()}
        state["y"] = state["x"].T

        @jit
        def step() -> None:
            write(state["x"], state["y"])

        found = []
        for call in range(5):
            if call > 1:
                state[replaced] = (Tensor([[5.0, 6.0], [7.0, 8.0]]) * call).realize()
            step()
            found += [state["x"].tolist(), state["y"].tolist()]
        return found

    assert results(TinyJit) == results(lambda function: function)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("how", ["dropped", "added to", "read", "written"])
def test_a_gradient_is_left_in_the_memory_of_an_argument(how: str, same: bool) -> None:
    """That of the call before, which the argument shares its memory with, makes way for it."""
    batches = [np.arange(4, dtype=np.float32) + call for call in range(2)]
    found: list[list[Any]] = []
    runs: list[int] = []
    for captured in (False, True):
        weight = Tensor(np.ones(4, np.float32), requires_grad=True).realize()
        seen: list[Any] = []

        def step(x: Tensor, weight: Tensor = weight, captured: bool = captured) -> Tensor:
            if captured:
                runs.append(0)
            before = weight.grad.sum() if how == "read" and weight.grad is not None else 0.0
            if how == "written" and weight.grad is not None:
                weight.grad.add_(1)
            if how != "added to":
                weight.grad = None
            total = (weight * x).sum()
            total.backward()
            assert weight.grad is not None
            weight.assign(weight.detach() - weight.grad * 0.5)
            return (total + before).realize()

        run = TinyJit(step) if captured else step
        given = [Tensor(batch).realize() for batch in batches]
        for call in range(7):
            x = given[0 if same else call % 2]
            total = run(x)
            assert weight.grad is not None
            seen += [total.item(), weight.tolist(), weight.grad.tolist(), x.tolist()]
        found.append(seen)
    assert found[0] == found[1]
    if how == "dropped":
        assert len(runs) == 2


def test_intermediate_results_of_one_realize_after_another_are_kept_apart() -> None:
    """They share memory in a replay, even where a device may run their kernels at once."""

    def sums(x: Tensor) -> list[Tensor]:
        parts = [(x + k).contiguous() for k in range(4)]
        return [((part @ part).contiguous() @ part + k).realize() for k, part in enumerate(parts)]

    run = TinyJit(sums)
    for call in range(4):
        array = np.arange(64, dtype=np.float32).reshape(8, 8) % 5 + call
        for k, result in enumerate(run(Tensor(array).realize())):
            expected = np.linalg.matrix_power(array + k, 3) + k
            np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("moves", [False, True])
def test_a_detached_alias_of_a_result_stays_detached(is_first: bool, moves: bool) -> None:
    @TinyJit
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x.requires_grad_() * 2
        off = y.detach()[1:] if moves else y.detach()
        return (off, y) if is_first else (y, off)

    for number in range(4):
        results = f(Tensor([number, 1.0, 2.0]))
        on, off = results[::-1] if is_first else results
        assert [on.requires_grad, off.requires_grad] == [True, None]
        on[1] = 7
        assert off.tolist()[0 if moves else 1] == 7
