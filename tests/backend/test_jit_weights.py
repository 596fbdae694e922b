"""Captured functions read weights from packed copies; whoever writes to a weight is seen."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule import Tensor, TinyJit, nn
from ferrule.base.config import Context
from ferrule.device import Compiled
from ferrule.helpers import GlobalCounters
from ferrule.ir.buffer import Buffer
from ferrule.nn.optim import SGD
from ferrule.nn.state import get_state_dict, load_state_dict
from ferrule.ops import LazyOp

Array = np.ndarray[Any, Any]
ROWS, TERMS, COLUMNS = 48, 128, 192
X = np.random.default_rng(0).standard_normal((ROWS, TERMS)).astype(np.float32)


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Product:
    """`x @ w.T`, captured, with a weight that it reaches by itself, and NumPy's answer."""

    def __init__(self, seed: int = 1) -> None:
        self.expected = numbers(seed, COLUMNS, TERMS)
        self.weight = Tensor(self.expected).realize()
        self.x = Tensor(X).realize()
        self.run = TinyJit(lambda x: (x @ self.weight.transpose()).realize())

    def check(self, calls: int = 4) -> None:
        """Each call's result is right."""
        wanted = X @ self.expected.T
        for _ in range(calls):
            np.testing.assert_allclose(self.run(self.x).numpy(), wanted, rtol=2e-4, atol=2e-3)

    def kernels(self) -> int:
        """How many kernels the next call runs."""
        before = GlobalCounters.kernel_count
        self.run(self.x)
        return GlobalCounters.kernel_count - before


@pytest.fixture
def product() -> Product:
    """One whose weight is packed by now."""
    found = Product()
    assert [found.kernels() for _ in range(5)] == [1, 1, 2, 1, 1]
    return found


def assign(p: Product, value: Array) -> None:
    p.weight.assign(Tensor(value)).realize()


def assign_lazily(p: Product, value: Array) -> None:
    p.weight.assign(Tensor(value))


def set_rows(p: Product, value: Array) -> None:
    p.weight[:] = Tensor(value)


def add(p: Product, value: Array) -> None:
    p.weight += Tensor(value) - p.weight


def write_to_a_view(p: Product, value: Array) -> None:
    p.weight.reshape(-1).assign(Tensor(value.reshape(-1))).realize()


def write_in_another_replay(p: Product, value: Array) -> None:
    write = TinyJit(lambda v: p.weight.assign(v).realize())
    for number in (3.0, 2.0, 1.0):
        write(Tensor(value * number).realize())


def write_to_an_argument(p: Product, value: Array) -> None:
    write = TinyJit(lambda w, v: w.assign(v).realize())
    for number in (3.0, 2.0, 1.0):
        write(p.weight, Tensor(value * number).realize())


def memory(p: Product) -> Buffer:
    buffer = p.weight.realize().lazydata.realized
    assert buffer is not None
    return buffer


def copy_in(p: Product, value: Array) -> None:
    memory(p).copyin(value.data)


def copy_into_a_part(p: Product, value: Array) -> None:
    buffer = memory(p)
    buffer.view(0, buffer.size).copyin(value.data)


def step_of_an_optimizer(p: Product, value: Array) -> None:
    p.weight.requires_grad_()
    p.weight.grad = p.weight.detach() - Tensor(value)
    SGD([p.weight], lr=1.0).step()
    p.weight.grad = None
    p.weight.requires_grad_(False)


def put_another_tensor(p: Product, value: Array) -> None:
    p.weight = Tensor(value).realize()


def copy_from_another_device(p: Product, value: Array) -> None:
    p.weight.assign(Tensor(value, device="NUMPY").to(p.weight.device)).realize()


WRITES: list[Callable[[Product, Array], None]] = [
    assign,
    assign_lazily,
    set_rows,
    add,
    write_to_a_view,
    write_in_another_replay,
    write_to_an_argument,
    copy_in,
    copy_into_a_part,
    step_of_an_optimizer,
    put_another_tensor,
    copy_from_another_device,
]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_a_write_is_seen_by_the_next_replay(write: Callable[[Product, Array], None]) -> None:
    product = Product()
    product.check()
    for seed in (5, 6):
        product.expected = numbers(seed, COLUMNS, TERMS)
        write(product, product.expected)
        product.check()


@pytest.mark.parametrize("given", [False, True])
def test_what_a_replay_writes_is_seen_by_the_next_replay(product: Product, given: bool) -> None:
    def step(weight: Tensor) -> None:
        (weight if given else product.weight).assign(product.weight * 2 + 1)

    captured = TinyJit(step)
    for _ in range(4):
        captured(product.weight)
        product.expected = product.expected * 2 + 1
        product.check(2)


def test_a_weight_is_packed_again_only_when_it_stays_as_it_is(product: Product) -> None:
    for seed in range(3):
        assign(product, numbers(seed, COLUMNS, TERMS))
        assert product.kernels() == 1  # packs inside
    assert [product.kernels() for _ in range(3)] == [2, 1, 1]


def test_a_read_of_the_result_is_no_write(product: Product) -> None:
    for _ in range(3):
        product.run(product.x).numpy()
    assert product.kernels() == 1


def test_arrays_that_share_the_memory_may_change_it(product: Product) -> None:
    """They are read-only, but libraries exist that do not care."""
    array = np.asarray(product.weight)
    product.check(2)
    ctypes.c_float.from_address(array.ctypes.data).value = 64.0
    product.expected[0, 0] = 64.0
    product.check()
    ctypes.c_float.from_address(array.ctypes.data).value = -64.0
    product.expected[0, 0] = -64.0
    del array
    product.check()
    assert [product.kernels() for _ in range(2)] == [1, 1]


def test_borrowed_weights_are_read_in_every_replay() -> None:
    product = Product()
    product.weight = Tensor.from_numpy(product.expected)
    for number in range(5):
        product.expected[0] = number
        product.check(1)


def test_what_the_function_writes_is_not_packed() -> None:
    weight = Tensor(numbers(1, COLUMNS, TERMS)).realize()
    expected = numbers(1, COLUMNS, TERMS)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        out = x @ weight.transpose()
        weight.assign(weight * 0.5)
        return out.realize(weight)

    x = Tensor(X).realize()
    for _ in range(6):
        np.testing.assert_allclose(step(x).numpy(), X @ expected.T, rtol=2e-4, atol=2e-3)
        expected = expected * np.float32(0.5)


def test_arguments_are_not_packed() -> None:
    run = TinyJit(lambda x, w: (x @ w.transpose()).realize())
    x, w = Tensor(X).realize(), Tensor(numbers(1, COLUMNS, TERMS)).realize()
    for _ in range(5):
        before = GlobalCounters.kernel_count
        run(x, w)
        assert GlobalCounters.kernel_count == before + 1


def test_one_copy_serves_all_kernels_that_read_a_weight_alike() -> None:
    weight = Tensor(numbers(1, TERMS, TERMS)).realize()
    run = TinyJit(lambda x: (((x @ weight.T).tanh() @ weight.T).tanh() @ weight.T).realize())
    x = Tensor(X).realize()
    counts = []
    for _ in range(4):
        before = GlobalCounters.kernel_count
        found = run(x)
        counts.append(GlobalCounters.kernel_count - before)
    assert counts == [3, 3, 4, 3]
    matrix = numbers(1, TERMS, TERMS).T
    wanted = np.tanh(np.tanh(X @ matrix) @ matrix) @ matrix
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-3, atol=1e-2)


def test_functions_share_copies(product: Product) -> None:
    """One function for arguments of two shapes, and another function."""
    other = TinyJit(lambda x: (x @ product.weight.T).tanh().realize())
    tall = Tensor(np.concatenate([X, X])).realize()
    wanted = X @ product.expected.T
    counts = []
    for run in (product.run, other):
        for _ in range(4):
            before = GlobalCounters.kernel_count
            found = run(tall)
            counts.append(GlobalCounters.kernel_count - before)
    assert counts == [1, 2, 1, 1, 1, 1, 1, 1], "kernels for any length have a copy of their own"
    np.testing.assert_allclose(found.numpy()[:ROWS], np.tanh(wanted), rtol=2e-4, atol=2e-3)
    product.expected = numbers(9, COLUMNS, TERMS)
    assign(product, product.expected)
    product.check()


def test_copies_go_with_the_functions_that_read_them() -> None:
    gc.collect()
    before = GlobalCounters.mem_used
    product = Product()
    product.check()
    assert GlobalCounters.mem_used >= before + 2 * 4 * COLUMNS * TERMS
    del product
    gc.collect()
    assert GlobalCounters.mem_used == before


def test_replays_with_and_without_packed_weights_have_the_same_bits() -> None:
    model = nn.Sequential(
        nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 144, 40)
    )
    run = TinyJit(lambda x: model(x).realize())
    x = Tensor(numbers(3, 2, 8, 12, 12)).realize()
    found = [run(x).numpy() for _ in range(5)]
    for other in found:
        np.testing.assert_array_equal(other, found[0])
    state = {name: value * 2 for name, value in get_state_dict(model).items()}
    load_state_dict(model, state)
    plain = model(x).numpy()
    for _ in range(4):
        np.testing.assert_array_equal(run(x).numpy(), plain)


def test_without_memory_for_copies_weights_are_packed_in_every_replay() -> None:
    with Context(FERRULE_MEMORY_LIMIT=GlobalCounters.mem_used + (400 << 10)):
        product = Product()
        product.check(3)
        assert [product.kernels() for _ in range(3)] == [1, 1, 1]


def test_items_that_are_replayed_one_by_one_read_packed_weights_too() -> None:
    with Context(JIT=2):
        product = Product()
        assert [product.kernels() for _ in range(4)] == [1, 1, 2, 1]
        product.check()


def test_threads_that_call_one_function_see_all_writes(product: Product) -> None:
    wrong: list[float] = []

    def call() -> None:
        for _ in range(20):
            found = product.run(product.x).numpy()
            wrong.append(float(np.abs(found - X @ product.expected.T).max()))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 60
    assert max(wrong) < 1e-2


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from(["call", "call", "hold", "let go", *WRITES]), max_size=14))
def test_any_order_of_writes_and_calls(steps: list[Any]) -> None:
    product = Product()
    held: list[Array] = []
    for number, step in enumerate(steps):
        if step == "call":
            product.check(1)
        elif step == "hold":
            held.append(np.asarray(product.weight))
        elif step == "let go":
            held.clear()
        else:
            product.expected = numbers(number, COLUMNS, TERMS)
            step(product, product.expected)
    product.check(2)


@pytest.mark.parametrize("images", [1, 8])
def test_schedules_of_packed_filters_know_that_they_are_constant(
    images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[frozenset[int]] = []
    linearizer = Compiled.get_linearizer

    def noting(device: Compiled, ast: LazyOp, constants: frozenset[int] = frozenset()) -> Any:
        asked.append(constants)
        return linearizer(device, ast, constants)

    monkeypatch.setattr(Compiled, "get_linearizer", noting)
    layer = nn.Conv2d(16, 160 + images, 3, padding=1, bias=False)  # a kernel of this test alone
    layer.weight.realize()
    x = Tensor(numbers(0, images, 16, 14, 14)).realize()
    run = TinyJit(lambda x: layer(x).realize())
    plain = layer(x).numpy()
    for _ in range(4):
        np.testing.assert_array_equal(run(x).numpy(), plain)
    assert frozenset({2}) in asked
