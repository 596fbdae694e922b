"""Replays that are compared with plain calls: `JIT=3`, and `TinyJit(check=n)`."""

from __future__ import annotations

import copy
import decimal
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any

import numpy as np
import pytest
from tests.planning import forget
from tests.replays import Call, tensor

import ferrule.jit as jit_module
from ferrule import nn
from ferrule.autograd import is_training
from ferrule.base.config import Context
from ferrule.device import Device
from ferrule.errors import JitError, LinalgError
from ferrule.ir.expr import Variable
from ferrule.jit import TinyJit
from ferrule.jit.batch import Batch
from ferrule.tensor import Tensor
from ferrule.transforms import grad, vmap

pytestmark = pytest.mark.usefixtures("device")

Made = Callable[[Call], TinyJit[Any]]
"""A way to capture a function so that all its replays are checked."""


@contextmanager
def _by_setting() -> Iterator[Made]:
    with Context(JIT=3):
        yield TinyJit


@contextmanager
def _by_argument() -> Iterator[Made]:
    yield TinyJit(check=1)


@pytest.fixture(params=[_by_setting, _by_argument], ids=["JIT=3", "check=1"])
def checked(request: pytest.FixtureRequest) -> Iterator[Made]:
    with request.param() as made:
        yield made


@pytest.fixture
def no_setting() -> Iterator[None]:
    """Nothing is checked unless it says so, whatever the environment has."""
    with Context(JIT=1):
        yield


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was checked, in order."""
    found: list[Any] = []
    check = jit_module.call_checked

    def noted(*args: Any) -> Any:
        found.append(args[0])
        return check(*args)

    monkeypatch.setattr(jit_module, "call_checked", noted)
    return found


# *** captures that are stale, by what docs/design/capture.md says is not seen ***


LARGE = np.full(1 << 19, 2.0)


class Settings:
    scale = 2.0


def _of_a_large_array(made: Made) -> tuple[TinyJit[Any], Callable[[], object]]:
    LARGE[0] = 2.0

    def scaled(x: Tensor) -> Tensor:
        return x * float(LARGE[0])

    return made(scaled), lambda: LARGE.__setitem__(0, 3.0)


def _a_branch_on_a_large_array(made: Made) -> tuple[TinyJit[Any], Callable[[], object]]:
    LARGE[0] = 2.0

    def scaled(x: Tensor) -> Tensor:
        if LARGE[0] > 2:
            return x * 3
        return x + 1

    return made(scaled), lambda: LARGE.__setitem__(0, 3.0)


def _an_attribute_without_a_name(made: Made) -> tuple[TinyJit[Any], Callable[[], object]]:
    settings = Settings()
    space: dict[str, Any] = {"settings": settings}
    exec("def scaled(x):\n    return x * getattr(settings, ''.join(['sc', 'ale']))", space)
    return made(space["scaled"]), lambda: setattr(settings, "scale", 3.0)


def _the_precision_of_decimals(made: Made) -> tuple[TinyJit[Any], Callable[[], object]]:
    context = decimal.Context(prec=9)
    decimal.setcontext(context)

    def scaled(x: Tensor) -> Tensor:
        return x * float(decimal.Decimal(1) / decimal.Decimal(3))

    return made(scaled), lambda: setattr(context, "prec", 2)


STALE = [
    _of_a_large_array,
    _a_branch_on_a_large_array,
    _an_attribute_without_a_name,
    _the_precision_of_decimals,
]


@pytest.mark.parametrize("case", STALE, ids=lambda case: case.__name__)
def test_stale_captures_are_found(case: Any, checked: Made) -> None:
    f, change = case(checked)
    for number in range(5):
        f(tensor(number, 1))
    expected = f.fxn(tensor(1, 2))
    assert f(tensor(1, 2)).tolist() == expected.tolist()
    change()
    with pytest.raises(JitError, match=r"a replay of .*scaled differs from a plain call") as raised:
        f(tensor(1, 2))
    assert "result differs in " in str(raised.value)
    # It is captured anew, and right.
    expected = f.fxn(tensor(1, 2)).tolist()
    for _ in range(3):
        assert f(tensor(1, 2)).tolist() == expected


@pytest.mark.usefixtures("no_setting")
@pytest.mark.parametrize("case", STALE, ids=lambda case: case.__name__)
def test_stale_captures_stay_stale_without_a_check(case: Any) -> None:
    """If one is found some day, it is no case for the tests above any more."""
    f, change = case(TinyJit)
    before = [f(tensor(1, 2)).tolist() for _ in range(4)][-1]
    change()
    assert f(tensor(1, 2)).tolist() == before != f.fxn(tensor(1, 2)).tolist()


def test_the_error_names_function_result_and_line(checked: Made) -> None:
    f, change = _of_a_large_array(checked)
    for number in range(3):
        f(tensor(number, 1))
    change()
    with pytest.raises(JitError) as raised:
        f(tensor(1, 4))
    first = f.fxn.__code__.co_firstlineno
    assert str(raised.value) == (
        f"{__file__}:{first}: a replay of {f.fxn.__qualname__} differs from a plain call in the "
        "same state: result differs in 2 of 2 elements by up to 4, first at [0]: 2.0 in the replay "
        f"and 3.0 in the plain call; {__file__}:{first + 1} (return x * float(LARGE[0])) gives 3.0 "
        "to ferrule, and gave 2.0 in the captured call; pass it as an argument, or keep it in a "
        "tensor"
    )


def test_the_line_where_calls_part() -> None:
    f, change = _a_branch_on_a_large_array(TinyJit(check=1))
    for number in range(3):
        f(tensor(number, 1))
    change()
    with pytest.raises(JitError) as raised:
        f(tensor(1, 4))
    assert (
        f"(return x + 1), the plain call at {__file__}:{f.fxn.__code__.co_firstlineno + 2} "
        "(return x * 3); pass what decides that as an argument" in str(raised.value)
    )


@pytest.mark.usefixtures("no_setting")
def test_what_was_captured_without_checks_is_found() -> None:
    """The constants in its kernels tell which number it is."""
    forget()  # or a number that changed in an earlier test would be an argument of the kernels
    f, change = _of_a_large_array(TinyJit)
    for number in range(4):
        f(tensor(number, 1))
    change()
    with Context(JIT=3), pytest.raises(JitError) as raised:
        f(tensor(1, 4))
    line = f.fxn.__code__.co_firstlineno + 1
    assert "the replay computes with 2.0, the plain call with 3.0, given at" in str(raised.value)
    assert f"{__file__}:{line} (return x * float(LARGE[0]))" in str(raised.value)


def test_data_of_a_large_array(checked: Made) -> None:
    data = np.full(1 << 19, 2.0)

    @checked
    def f(x: Tensor) -> list[Tensor]:
        return [x, x + Tensor(data[:2].tolist())]

    for number in range(3):
        f(tensor(number, 1))
    data[1] = 5
    # Data of the host beside a large array: a function that is not captured.
    assert f(tensor(1, 1))[1].tolist() == [3, 6]


def test_a_plain_call_that_raises(checked: Made) -> None:
    LARGE[0] = 2.0

    @checked
    def f(x: Tensor) -> Tensor:
        if LARGE[0] > 2:
            raise KeyError("too large")
        return x + 1

    for number in range(3):
        f(tensor(number, 1))
    LARGE[0] = 3.0
    with pytest.raises(
        JitError, match="gives a result where a plain call raises KeyError"
    ) as found:
        f(tensor(1, 1))
    assert isinstance(found.value.__cause__, KeyError)


# *** functions with a state ***


def _arguments_in_place() -> Iterator[Any]:
    x, y = tensor(1, 2), tensor(3, 4)

    def f(x: Tensor, y: Tensor) -> Tensor:
        x.assign(x * 2)
        y[1:] = x[:1]
        return x + y

    yield f
    yield lambda f, _: [f(x, y), x, y]


def _a_list_of_arguments() -> Iterator[Any]:
    parts = [tensor(1, 2), tensor(3, 4)]

    def f(parts: list[Tensor]) -> dict[str, Tensor]:
        parts[0].assign(parts[0] + parts[1])
        return {"sum": parts[0] + 1, "same": parts[1]}

    yield f
    yield lambda f, _: [f(parts), *parts]


def _a_state() -> Iterator[Any]:
    class Model:
        h = tensor(0, 0)
        pair = (tensor(1, 1), tensor(2, 2))

        def step(self, x: Tensor) -> Tensor:
            self.h = (self.h + x).tanh()
            self.pair = (self.pair[1], self.h * 2)
            return self.h.sum()

    model = Model()
    yield model.step
    yield lambda f, number: [f(tensor(number, 1)), model.h, *model.pair]


def _a_state_of_the_module() -> Iterator[Any]:
    cells = {"h": tensor(0, 0), "count": tensor(0)}

    def f(x: Tensor) -> Tensor:
        cells["h"] = cells["h"] * 0.5 + x
        cells["count"] += 1
        return cells["h"].max()

    yield f
    yield lambda f, number: [f(tensor(number, 1)), *cells.values()]


def _gradients_that_add_up() -> Iterator[Any]:
    weight = Tensor(np.array([1.0, 2.0], np.float32), requires_grad=True)

    def f(x: Tensor) -> Tensor:
        loss = (weight * x).square().sum()
        loss.backward()
        return loss.detach()

    yield f

    def call(f: Call, number: int) -> Any:
        if number % 5 == 4:
            weight.grad = None
        return [f(tensor(number, 1)), weight.grad]

    yield call


def _gradients_of_arguments() -> Iterator[Any]:
    def f(x: Tensor, weight: Tensor) -> Tensor:
        loss = (weight * x).square().sum()
        loss.backward()
        return loss.detach()

    yield f

    def call(f: Call, number: int) -> Any:
        weight = Tensor(np.array([1.0, number], np.float32), requires_grad=True)
        return [f(tensor(number, 1), weight), weight.grad]

    yield call


def _a_training_step() -> Iterator[Any]:
    Tensor.manual_seed(3)
    model = nn.Sequential(
        *(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 2))
    )
    optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=0.01)

    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            assert is_training()
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
        return loss.detach()

    yield step
    yield lambda f, number: [
        *[
            f(Tensor(np.full((3, 4), number, np.float32).cumsum(0).astype(np.float32))),
            Tensor.rand(2),
        ],
        *nn.state.get_parameters(model),
    ]


def _random_numbers() -> Iterator[Any]:
    Tensor.manual_seed(5)

    def f(x: Tensor) -> list[Tensor]:
        return [x + Tensor.rand(2), Tensor.randn(3), Tensor.randint(4, high=9)]

    yield f
    yield lambda f, number: [f(tensor(number, 1)), Tensor.rand(1)]


def _one_in_the_other() -> Iterator[Any]:
    total = tensor(0, 0)

    @TinyJit
    def inner(x: Tensor) -> Tensor:
        total.assign(total + x)
        return x * 2

    def outer(x: Tensor) -> Tensor:
        return inner(x) + inner(x + 1)

    yield outer
    yield lambda f, number: [f(tensor(number, 1)), inner(tensor(1, number)), total]


def _variables() -> Iterator[Any]:
    size = Variable("size", 1, 8)
    data = Tensor(np.arange(8, dtype=np.float32)).realize()

    def f(n: Any) -> Tensor:
        return (data[:n] * 2).sum() + n

    yield f
    yield lambda f, number: f(size.bind(1 + number % 7))


def _transformed() -> Iterator[Any]:
    weight = tensor(2, 3)

    def f(x: Tensor) -> Tensor:
        return (x * weight).square().sum()

    yield f
    yield lambda f, number: [
        *[f(tensor(number, 1)), grad(f)(tensor(number, 1))],
        vmap(f)(Tensor(np.ones((3, 2), np.float32)) * number),
    ]


def _gradients_inside() -> Iterator[Any]:
    def f(x: Tensor) -> list[Tensor]:
        return [grad(lambda x: (x**3).sum())(x), vmap(lambda row: row / row.sum())(x.reshape(2, 1))]

    yield f
    yield lambda f, number: f(tensor(number, 1))


def _views() -> Iterator[Any]:
    table = Tensor(np.arange(12, dtype=np.float32).reshape(4, 3)).realize()

    def f(x: Tensor) -> Any:
        x[0] = 7
        return x.flip(0), table.T, (x * 2).chunk(2), x, table[1:2]

    yield f
    yield lambda f, number: f(tensor(number, 1))


def _batches() -> Iterator[Any]:
    data = Tensor(np.linspace(-3, 2, 60, dtype=np.float32).reshape(20, 3)).realize()

    def f(batch: Tensor) -> Tensor:
        return batch.softmax(1).sum(0)

    yield f
    yield lambda f, number: f(data[number : number + 5])


def _of_the_host() -> Iterator[Any]:
    def f(x: Tensor) -> Any:
        return x.sort()[0], (x.reshape(2, 1) @ x.reshape(1, 2) + Tensor.eye(2)).cholesky()

    yield f
    yield lambda f, number: f(tensor(number, 1))


def _constants() -> Iterator[Any]:
    def f(x: Tensor) -> Any:
        return [Tensor.ones(2), None, (x * 0 + 2, Tensor.arange(3))]

    yield f
    yield lambda f, number: f(tensor(number, 1))


def _no_numbers_but_bits() -> Iterator[Any]:
    def f(x: Tensor) -> Any:
        return [x / x, -x, (x > 1), x.cast("bfloat16"), x[:0], x.cast("int8")]

    yield f
    yield lambda f, number: f(tensor(number - 3, 0))


STATES = [
    *(_arguments_in_place, _a_list_of_arguments, _a_state, _a_state_of_the_module),
    *(_gradients_that_add_up, _gradients_of_arguments, _a_training_step, _random_numbers),
    *(_one_in_the_other, _variables, _transformed, _gradients_inside, _views, _batches),
    *(_of_the_host, _constants, _no_numbers_but_bits),
]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return None if value is None else (value.dtype, value.numpy().tobytes())


@pytest.mark.parametrize("case", STATES, ids=lambda case: case.__name__)
def test_all_kinds_of_states_pass(case: Any, checked: Made, checks: list[Any]) -> None:
    function, call = case()
    expected = [_plain(call(function, number)) for number in range(12)]
    function, call = case()
    f = checked(function)
    assert [_plain(call(f, number)) for number in range(12)] == expected
    of_inner = [one for one in checks if getattr(one, "__name__", "") == "inner"]
    assert len(checks) - len(of_inner) >= 8, "most calls are replays"


def test_a_check_does_not_make_it_capture_again(monkeypatch: pytest.MonkeyPatch) -> None:
    captures: list[int] = []
    capture = jit_module.capture_call

    def noted(*args: Any) -> Any:
        captures.append(1)
        return capture(*args)

    monkeypatch.setattr(jit_module, "capture_call", noted)
    counts = []
    for jit in (1, 3):
        with Context(JIT=jit):
            for case in (_a_training_step, _a_state, _arguments_in_place, _gradients_that_add_up):
                function, call = case()
                f = TinyJit(function)
                captures.clear()
                for number in range(12):
                    call(f, number)
                counts.append(len(captures))
    assert counts[:4] == counts[4:]


def test_side_effects_happen_once_in_each_call(checked: Made) -> None:
    log: list[int] = []

    @checked
    def f(x: Tensor) -> Tensor:
        log.append(1)
        return x + 1

    for number in range(6):
        assert f(tensor(number, 0)).tolist() == [number + 1, 1]
        assert len(log) == number + 1
    assert f.cnt == 6
    assert f.ret is not None
    assert f.ret.tolist() == [6, 1]


def test_a_function_of_the_host_that_raises(checked: Made, checks: list[Any]) -> None:
    total = tensor(0)

    @checked
    def f(x: Tensor) -> Tensor:
        total.assign(total + 1)
        return x.cholesky() + total

    good = Tensor(np.eye(2, dtype=np.float32)).realize()
    for number in range(4):
        assert f(good).tolist() == [[number + 2, number + 1], [number + 1, number + 2]]
    with pytest.raises(LinalgError):
        f(-good)
    before = total.item()
    assert f(good)[1, 0].item() == before + 1
    assert len(checks) == 4


def test_results_keep_their_tape(checked: Made) -> None:
    """They are those of a plain call, which a gradient may go through."""
    weight = Tensor(np.array([1.0, 2.0], np.float32), requires_grad=True)

    @checked
    def f(x: Tensor) -> Tensor:
        return (x * weight).sum()

    for number in range(5):
        weight.grad = None
        f(tensor(number, 1)).backward()
        assert weight.grad is not None
        assert weight.grad.tolist() == [number, 1]


def test_threads_that_draw_at_the_same_time(checked: Made) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        @checked
        def f(x: Tensor) -> Tensor:
            return x + Tensor.rand(2) * 0

        try:
            for number in range(20):
                assert f(tensor(number, 1)).tolist() == [number, 1]
                Tensor.rand(3).realize()
        except BaseException as error:
            failures.append(error)

    settings = Context(JIT=3) if checked is TinyJit else Context()

    def with_settings() -> None:
        with settings:  # a thread starts with the process's settings
            work()

    threads = [Thread(target=with_settings) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_lock_of_the_program_in_the_function(checked: Made) -> None:
    """Another thread computes while it has that lock."""
    lock = Lock()
    total = tensor(0)

    @checked
    def f(x: Tensor) -> Tensor:
        with lock:
            return x + 1

    def work() -> None:
        for _ in range(200):
            with lock:
                total.assign(total + 1).realize()

    thread = Thread(target=work)
    thread.start()
    for number in range(30):
        assert f(tensor(number)).tolist() == [number + 1]
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "write",
    [lambda w: w.assign(w * 2).realize(), lambda w: w.assign(w * 2)],
    ids=["computed there", "computed here"],
)
def test_another_thread_writes_while_the_function_runs(
    write: Callable[[Tensor], Tensor], checked: Made, checks: list[Any]
) -> None:
    """The comparison says nothing then."""
    weight = tensor(1, 2)

    @checked
    def f(x: Tensor) -> Tensor:
        if LARGE[0] > 2:  # the array is too large for a capture to see that it changes
            thread = Thread(target=write, args=(weight,))
            thread.start()
            thread.join()
        return x * weight

    LARGE[0] = 2.0
    for number in range(4):
        assert f(tensor(number, 1)).tolist() == [number, 2]
    LARGE[0] = 3.0
    assert f(tensor(3, 1)).tolist() == [6, 4]
    LARGE[0] = 2.0
    assert len(checks) == 3
    assert f(tensor(3, 1)).tolist() == [6, 4]


# *** faults that are planted in replays ***


def _harmed(monkeypatch: pytest.MonkeyPatch, choose: Callable[[list[Any]], Any]) -> None:
    """Makes replays write a wrong number: to the first element of the buffer that is chosen."""
    run = Batch.run

    def wrong(self: Batch, buffers: list[Any], var_vals: Any) -> None:
        run(self, buffers, var_vals)
        buffer = choose(buffers)
        values = buffer.copied((buffer.size,))
        values[0] += 1
        buffer.copyin(values.view(np.uint8).data)

    monkeypatch.setattr(Batch, "run", wrong)


def test_a_wrong_result(monkeypatch: pytest.MonkeyPatch, checked: Made) -> None:
    @checked
    def f(x: Tensor) -> dict[str, Any]:
        return {"a": x + 1, "b": [x * 2]}

    for number in range(3):
        f(tensor(number, 1))
    with monkeypatch.context() as patch:
        _harmed(patch, lambda buffers: buffers[-1])
        with pytest.raises(JitError) as raised:
            f(tensor(3, 4))
    message = str(raised.value)
    assert "result['b'][0] differs in 1 of 2 elements by up to 1, first at [0]: 7.0" in message
    assert "so a kernel or its memory is at fault" in message
    assert f(tensor(3, 4))["b"][0].tolist() == [6, 8]


def test_a_wrong_argument(monkeypatch: pytest.MonkeyPatch, checked: Made) -> None:
    @checked
    def f(x: Tensor, *, data: list[Tensor]) -> None:
        data[0].assign(data[0] + x)

    data = [tensor(0, 0)]
    for number in range(3):
        f(tensor(number, 1), data=data)
    with monkeypatch.context() as patch:
        _harmed(patch, lambda buffers: buffers[1])
        with pytest.raises(JitError, match=r"data\[0\] differs in 1 of 2 elements"):
            f(tensor(3, 1), data=data)
    assert data[0].tolist() == [6, 4]


def test_a_wrong_state(monkeypatch: pytest.MonkeyPatch, checked: Made) -> None:
    class Model:
        def __init__(self) -> None:
            self.layers = [nn.Linear(2, 1, bias=False)]
            self.h = tensor(0)

        def step(self, x: Tensor) -> None:
            self.layers[0].weight.grad = None
            self.h = self.layers[0](x).detach()
            self.layers[0](x).sum().backward()

    model = Model()
    f = checked(model.step)
    weight = model.layers[0].weight
    found = set()
    for place in (-1, -2):
        for number in range(4):
            f(tensor(number, 1))
        with monkeypatch.context() as patch:
            _harmed(patch, lambda buffers, place=place: buffers[place])
            with pytest.raises(JitError) as raised:
                f(tensor(3, 1))
        found.add(str(raised.value).partition("same state: ")[2].partition(" differs")[0])
        assert weight.grad is not None
        assert weight.grad.tolist() == [[3, 1]], "the state is that of the plain call"
    assert found == {"self.layers[0].weight.grad", "self.h"}


def test_a_wrong_parameter(monkeypatch: pytest.MonkeyPatch, checked: Made) -> None:
    weights = {"scale": tensor(1, 1)}

    @checked
    def f(x: Tensor) -> Tensor:
        weights["scale"].assign(weights["scale"] + x)
        return x + 1

    for number in range(3):
        f(tensor(number, 1))
    memory = weights["scale"].lazydata.realized
    with monkeypatch.context() as patch:
        _harmed(patch, lambda _: memory)
        with pytest.raises(
            JitError, match=r"weights\['scale'\] differs in 1 of 2 elements by up to"
        ):
            f(tensor(3, 1))
    assert weights["scale"].tolist() == [7, 5]


# *** which replays are checked ***


@pytest.mark.usefixtures("no_setting")
def test_one_replay_in_n_is_checked(checks: list[Any]) -> None:
    """The first of each capture, and then every n-th, on the fast path as well."""

    @TinyJit(check=3)
    def f(x: Tensor) -> Tensor:
        return x + 1

    when: list[int] = []
    for number in range(12):
        before = len(checks)
        assert f(tensor(number, 1)).tolist() == [number + 1, 2]
        when += [number] * (len(checks) - before)
    assert when == [2, 5, 8, 11]
    checks.clear()
    for number in range(5):
        f(tensor(number, 1, 1))
    assert len(checks) == 2, "another signature: its first replay, and its fourth"
    f.reset()
    checks.clear()
    for number in range(6):
        f(tensor(number, 1))
    assert len(checks) == 2


@pytest.mark.usefixtures("no_setting")
def test_no_check_by_default(checks: list[Any]) -> None:
    f, g = TinyJit(lambda x: x + 1), TinyJit(lambda x: x + 1, check=0)
    for number in range(6):
        f(tensor(number))
        g(tensor(number))
    assert not checks
    with Context(JIT=3):
        f(tensor(1))
    assert len(checks) == 1, "a context checks what was captured before"
    f(tensor(1))
    assert len(checks) == 1


def test_plain_calls_are_not_checked(checks: list[Any]) -> None:
    f = TinyJit(lambda x: x + 1, check=1)
    with Context(JIT=0):
        for number in range(6):
            f(tensor(number))
    assert not checks


@pytest.mark.usefixtures("no_setting")
def test_ways_to_ask_for_it(checks: list[Any]) -> None:
    class Model:
        @TinyJit(check=1)
        def step(self, x: Tensor) -> Tensor:
            return x + 1

    first, second = Model(), Model()
    for model in (first, second):
        for number in range(4):
            model.step(tensor(number))
    assert len(checks) == 4
    assert [jit.check for jit in (first.step, TinyJit(abs, 2), TinyJit(abs))] == [1, 2, 0]
    assert copy.copy(TinyJit(_successor, check=4)).check == 4
    assert pickle.loads(pickle.dumps(TinyJit(_successor, check=4))).check == 4


def _successor(x: Tensor) -> Tensor:
    return x + 1


@pytest.mark.parametrize(("check", "error"), [(-1, ValueError), (1.5, TypeError), ("a", TypeError)])
def test_what_check_may_be(check: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"\[TinyJit\] check is"):
        TinyJit(_successor, check=check)


def test_checked_replays_are_those_of_jit_1(device: str) -> None:
    with Context(JIT=3):
        f = TinyJit(lambda x: (x + 1).realize() * 2)
        for number in range(4):
            f(tensor(number))
    assert len(f.jit_cache) == (1 if Device[device].graph is not None else 2)
