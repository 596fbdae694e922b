"""Several devices of a kind in one process: names, copies, gradients, captured functions."""

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, nn
from ferrule.base.config import Context, config
from ferrule.device import Compiled, Device, DeviceIndexError, GlobalCounters
from ferrule.device.capture import GraphExecutor
from ferrule.errors import DeviceMismatchError, UnknownDeviceError
from ferrule.nn.optim import SGD, AdamW, NAdam

Array = np.ndarray[Any, Any]
N_DEVICES = 4


def of_kind(kind: str) -> list[str]:
    """The first devices of a kind."""
    found = [kind]
    try:
        for index in range(1, N_DEVICES):
            found.append(Device.known(f"{kind}:{index}"))
    except DeviceIndexError:
        pass
    return found


@pytest.fixture
def devices(device: str) -> list[str]:
    """The first devices of the kind under test; at least two."""
    found = of_kind(device)
    if len(found) == 1:
        pytest.skip(f"there is one device {device}")
    return found


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def graphs_of(function: TinyJit[Any]) -> list[Any]:
    return [item.prg for item in function.jit_cache if isinstance(item.prg, GraphExecutor)]


# *** names ***


@pytest.mark.parametrize("kind", ["CPU", "NUMPY"])
def test_a_name_is_a_kind_and_an_index(kind: str) -> None:
    assert Device[f"{kind}:0"] is Device[kind] is Device[kind.lower()]
    assert Device[f"{kind}:1"] is Device[f"{kind.lower()}:1"] is not Device[kind]
    x = Tensor([1.0, 2.0], device=f"{kind.lower()}:3")
    assert x.device == (x * 2).device == f"{kind}:3"
    assert Device[f"{kind}:3"].device == f"{kind}:3"


@pytest.mark.parametrize("kind", ["CPU", "NUMPY"])
def test_an_index_that_is_not_there(kind: str) -> None:
    text = f"there is no device {kind}:8: the setting FERRULE_CPU_DEVICES is 8"
    for make in (lambda name: Device[name], lambda name: Tensor([1.0], device=name)):
        with pytest.raises(DeviceIndexError, match=text):
            make(f"{kind}:8")
    with pytest.raises(DeviceIndexError, match=text):
        Tensor([1.0]).to(f"{kind}:8")
    with Context(FERRULE_CPU_DEVICES=12):
        assert Tensor([1.0], device=f"{kind}:11").device == f"{kind}:11"
    for name in ("x", "01", "-1", "1.5", "1:1"):
        with pytest.raises(DeviceIndexError, match="after the colon comes a number"):
            Device[f"{kind}:{name}"]
    with pytest.raises(UnknownDeviceError):
        Device["ABACUS:1"]


@pytest.mark.parametrize("kind", ["CPU", "NUMPY"])
def test_any_device_may_be_the_default(kind: str) -> None:
    with Context(FERRULE_DEVICE=f"{kind.lower()}:2"):
        assert Device.DEFAULT == f"{kind}:2"
        assert Tensor([1.0]).device == Tensor.rand(3).device == f"{kind}:2"
        assert Tensor([1.0], device=kind).to().device == f"{kind}:2"


def test_devices_of_one_processor_share_their_programs() -> None:
    first, second = Device["CPU"], Device["CPU:5"]
    assert isinstance(first, Compiled)
    assert isinstance(second, Compiled)
    x = numbers(7, 11)
    here, there = [(Tensor(x, device=name) * 3 + 1).realize() for name in ("CPU", "CPU:5")]
    np.testing.assert_array_equal(here.numpy(), there.numpy())
    asts = list(second._runners)
    assert asts
    for ast in asts:
        one, other = first.get_runner(ast), second.get_runner(ast)
        assert one.program is other.program
        assert (one.device, other.device) == ("CPU", "CPU:5")


# *** copies ***


def test_operands_are_on_one_device(devices: list[str]) -> None:
    a, b = [Tensor([1.0, 2.0], device=name) for name in devices[:2]]
    text = rf"one tensor is on {devices[0]}, the other on {devices[1]}.*\.to\("
    for operation in (lambda: a + b, lambda: a @ b, lambda: a.cat(b), lambda: a.where(b, a)):
        with pytest.raises(DeviceMismatchError, match=r"on .*; "):
            operation()
    with pytest.raises(DeviceMismatchError, match=text):
        a * b


def test_a_copy_is_a_node(devices: list[str]) -> None:
    """It is lazy, counted as a kernel, and keeps what it was made of."""
    first, second = devices[:2]
    x = Tensor(numbers(5, 3), device=first).realize()
    before = x.numpy().copy()
    moved = x.T.to(second)
    x.assign(x * 0)
    x.realize()
    GlobalCounters.reset()
    np.testing.assert_array_equal(moved.numpy(), before.T)
    np.testing.assert_array_equal(x.numpy(), before * 0)
    y = Tensor(numbers(16), device=first).realize()
    GlobalCounters.reset()
    z = y.to(second).realize()
    assert GlobalCounters.kernel_count == 1
    assert GlobalCounters.global_mem == y.numpy().nbytes
    assert z.device == second
    assert y.to(second).to(first).device == first


def test_copies_between_processors_are_copies_of_memory() -> None:
    """No object of Python has the bytes in between."""
    x = Tensor(numbers(1 << 20), device="CPU").realize()
    for name in ("CPU:1", "CPU:2"):
        tracemalloc.start()
        try:
            y = x.to(name).realize()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < x.numpy().nbytes // 4
        np.testing.assert_array_equal(y.numpy(), x.numpy())


def test_a_gradient_crosses_devices_and_back(devices: list[str]) -> None:
    first, second = devices[:2]
    a, b = numbers(4, 5), numbers(5, 6, seed=1)
    x = Tensor(a, device=first, requires_grad=True)
    w = Tensor(b, device=second, requires_grad=True)
    hidden = x.to(second) @ w
    (hidden.to(first) * x.sum()).sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    assert (x.grad.device, w.grad.device) == (first, second)
    total, product = a.sum(), (a @ b).sum()
    expected = np.broadcast_to(b.sum(1), a.shape) * total + product
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=2e-3, atol=1e-3)
    expected = np.broadcast_to(a.sum(0)[:, None], b.shape) * total
    np.testing.assert_allclose(w.grad.numpy(), expected, rtol=2e-3, atol=1e-3)


# *** random numbers ***


def test_a_seed_gives_the_same_numbers_on_any_device(devices: list[str]) -> None:
    draws = []
    for name in devices:
        Tensor.manual_seed(5)
        first = Tensor.rand(7, device=name).numpy()
        draws.append((first, Tensor.rand(7, device=name).numpy()))
    for first, second in draws[1:]:
        np.testing.assert_array_equal(first, draws[0][0])
        np.testing.assert_array_equal(second, draws[0][1])
    # Each device counts its own draws.
    Tensor.manual_seed(5)
    mixed = [Tensor.rand(7, device=name).numpy() for name in devices[:2] for _ in range(2)]
    for number, one in enumerate(mixed):
        np.testing.assert_array_equal(one, draws[0][number % 2])


# *** captured functions ***


def test_one_captured_function_over_several_devices(devices: list[str]) -> None:
    first, second = devices[:2]

    @TinyJit
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        there = (x * 2 + 1).to(second) + y
        return (there * 3).to(first), there.sum()

    for number in range(5):
        a, b = numbers(8, seed=number), numbers(8, seed=number + 100)
        out, total = step(Tensor(a, device=first), Tensor(b, device=second))
        assert (out.device, total.device) == (first, second)
        np.testing.assert_allclose(out.numpy(), (a * 2 + 1 + b) * 3, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(total.item(), (a * 2 + 1 + b).sum(), rtol=1e-4)
    graph = getattr(Device[first], "graph", None)
    if graph is not None and graph.spans_devices:
        # All of it is one call of the device.
        assert len(step.jit_cache) == 1
        assert len(graphs_of(step)) == 1
    # The same function with its tensors on other devices is another call.
    a, b = numbers(8, seed=7), numbers(8, seed=8)
    for _ in range(3):
        out, _ = step(Tensor(a, device=second), Tensor(b, device=second))
        np.testing.assert_allclose(out.numpy(), (a * 2 + 1 + b) * 3, rtol=1e-5, atol=1e-5)


def test_devices_of_two_kinds_in_one_captured_function() -> None:
    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        return ((x + 1).to("NUMPY:1") * y.to("NUMPY:1")).to("CPU:2").exp()

    for number in range(4):
        a, b = numbers(6, seed=number), numbers(6, seed=number + 9)
        out = step(Tensor(a, device="CPU"), Tensor(b, device="CPU:2"))
        np.testing.assert_allclose(out.numpy(), np.exp((a + 1) * b), rtol=1e-5)


OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda params: SGD(params, lr=0.1, momentum=0.9),
    lambda params: AdamW(params, lr=0.01, amsgrad=True),
    lambda params: NAdam(params, lr=0.01),
]


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["SGD", "AdamW", "NAdam"])
def test_state_on_several_devices(make: Callable[[Any], Any], devices: list[str]) -> None:
    """Parameters, buffers and counters of each device are found, and written in place."""
    first, second = devices[:2]

    def pipeline(captured: bool) -> list[Any]:
        Tensor.manual_seed(1)
        with Context(FERRULE_DEVICE=first):
            one = nn.Linear(6, 5)
        with Context(FERRULE_DEVICE=second):
            two = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 1))
        optimizer = make([*one.parameters(), *two.parameters()])

        def train(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = ((two(one(x).relu().to(second)) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.realize()

        call: Callable[..., Tensor] = TinyJit(train) if captured else train
        losses = []
        with Tensor.train():
            for number in range(6):
                x = Tensor(numbers(9, 6, seed=number), device=first)
                y = Tensor(numbers(9, 1, seed=number + 50), device=second)
                losses.append(call(x, y).item())
        state = {**one.state_dict(), **{f"two.{k}": v for k, v in two.state_dict().items()}}
        assert {value.device for value in state.values()} == {first, second}
        return [losses, *[value.numpy() for value in state.values()]]

    for got, expected in zip(pipeline(True), pipeline(False), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_memory_that_arguments_share(devices: list[str]) -> None:
    """A write to one device's memory waits for the copies that read it."""
    first, second = devices[:2]

    @TinyJit
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        before = y.to(second)
        x.assign(x * 2)
        return before.realize(), x.to(second).realize()

    for number in range(6):
        a = numbers(10, seed=number)
        x = Tensor(a.copy(), device=first).realize()
        y = x[2:8] if number % 2 else Tensor(a[2:8].copy(), device=first)
        before, after = step(x, y)
        np.testing.assert_array_equal(before.numpy(), a[2:8])
        np.testing.assert_array_equal(after.numpy(), a * 2)
        np.testing.assert_array_equal(x.numpy(), a * 2)


def test_results_and_arguments_on_any_device(devices: list[str]) -> None:
    """A result may be an argument of the next call; earlier ones keep their values."""
    first, second = devices[:2]

    @TinyJit
    def swap(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (y.to(first) + 1).realize(), (x.to(second) * 2).realize()

    x, y = Tensor(numbers(5), device=first), Tensor(numbers(5, seed=1), device=second)
    a, b = x.numpy(), y.numpy()
    kept = []
    for _ in range(6):
        x, y = swap(x, y)
        a, b = b + 1, a * 2
        kept.append((x, y, a, b))
    for x, y, a, b in kept:
        np.testing.assert_array_equal(x.numpy(), a)
        np.testing.assert_array_equal(y.numpy(), b)


def test_random_numbers_of_several_devices_in_replays(devices: list[str]) -> None:
    first, second = devices[:2]

    def draw(x: Tensor) -> tuple[Tensor, Tensor]:
        here = Tensor.rand(4, device=first) + x
        there = Tensor.rand(4, device=second) + x.to(second)
        return here.realize(), there.realize()

    drawn = []
    for call in (draw, TinyJit(draw)):
        Tensor.manual_seed(3)
        x = Tensor([1.0, 2.0, 3.0, 4.0], device=first)
        drawn.append([value.numpy() for _ in range(5) for value in call(x)])
    np.testing.assert_array_equal(drawn[0], drawn[1])


def program(seed: int) -> Callable[[list[Tensor], list[str]], list[Tensor]]:
    """A random function of three matrices, each step of it on one of some devices."""
    generator = random.Random(seed)
    steps = [
        (generator.randrange(6), generator.random(), generator.random(), generator.randrange(99))
        for _ in range(generator.randrange(4, 20))
    ]

    def run(values: list[Tensor], devices: list[str]) -> list[Tensor]:
        values = list(values)
        for kind, a, b, place in steps:
            device = devices[place % len(devices)]
            source = values[int(a * len(values))]
            x, y = source.to(device), values[int(b * len(values))].to(device)
            if kind == 0:
                result = (x + y) * 0.5
            elif kind == 1:
                result = (x @ y) * 0.1
            elif kind == 2:
                result = x * 0.5 + y.sum(0, keepdim=True) * 0.01
            elif kind == 3:
                result = x.T - y.flip(0)
            elif kind == 4:
                result = x.cat(y, dim=1)[:, 2 : 2 + x.shape[1]]
            else:
                result = x * 0.9
                source.assign(source * 0.5)
            values.append(result)
        return [value.realize() for value in values[-3:]] + values[:3]

    return run


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_on_several_devices(seed: int, n_threads: int, devices: list[str]) -> None:
    run = program(seed)
    captured = TinyJit(run)
    with Context(FERRULE_NUM_THREADS=n_threads):
        for call in range(4):
            arrays = [numbers(6, 6, seed=10 * call + k) for k in range(3)]
            expected = run([Tensor(a.copy(), device="NUMPY") for a in arrays], ["NUMPY"])
            there = [
                Tensor(a.copy(), device=devices[k % len(devices)]) for k, a in enumerate(arrays)
            ]
            got = (run if call == 0 else captured)(there, devices)
            for value, wanted in zip(got, expected, strict=True):
                np.testing.assert_allclose(value.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_plans_of_several_devices_run_as_one_call() -> None:
    """Without a capture as well, from their second run on."""
    for number in range(4):
        a = numbers(8, seed=number)
        x = Tensor(a, device="CPU").realize()
        out = ((x + 1).to("CPU:1") * 2 + 1).realize()
        np.testing.assert_allclose(out.numpy(), (a + 1) * 2 + 1, rtol=1e-6)
    assert config().DEBUG == 0
