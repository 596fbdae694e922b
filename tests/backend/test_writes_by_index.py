"""Writes to a few places of much memory touch these places, and nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, dtypes
from ferrule.device import GlobalCounters

Array = np.ndarray[Any, Any]
ROWS = 5000
COLUMNS = 20
WHOLE = ROWS * COLUMNS * 4

WRITES: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "setitem": lambda b, i, v: b.__setitem__(i, v),
    "a number": lambda b, i, v: b.__setitem__(i, 3),
    "an element each": lambda b, i, v: b.__setitem__((i, i % COLUMNS), v[:, 0]),
    "of columns": lambda b, i, v: b.__setitem__((slice(None, None, 500), i % COLUMNS), 2),
    "of a part": lambda b, i, v: b[10:-3].__setitem__(i, v),
    "of some columns": lambda b, i, v: b[:, 2:10].__setitem__(i, v[:, :8]),
    "turned": lambda b, i, v: b.T[::-1].__setitem__((slice(None), i), v.T),
    "of parts": lambda b, i, v: b.reshape(50, 100, 20).__setitem__((i % 50, i % 100), v),
    "between": lambda b, i, v: b.reshape(50, 100, 20).__setitem__(
        (i % 50, slice(None), i % 20), v[:, :1].expand(-1, 100)
    ),
    "scatter_": lambda b, i, v: b.scatter_(0, i.reshape(-1, 1).expand(*v.shape) % 9, v),
    "scatter_add_": lambda b, i, v: b.scatter_add_(0, i.reshape(-1, 1).expand(*v.shape) % 9, v),
    "fewer columns": lambda b, i, v: b.scatter_(0, i.reshape(-1, 1) % ROWS, v),
    "index_add_": lambda b, i, v: b.index_add_(0, i, v, alpha=2),
    "index_copy_": lambda b, i, v: b.index_copy_(0, i, v),
    "index_fill_": lambda b, i, v: b.index_fill_(0, i, 7),
    "index_put_": lambda b, i, v: b.index_put_((i,), v),
    "index_put_, added": lambda b, i, v: b.index_put_((i,), v, accumulate=True),
    "amax": lambda b, i, v: b.scatter_reduce_(0, i.reshape(-1, 1).expand(*v.shape) % 9, v, "amax"),
    "amin": lambda b, i, v: b.scatter_reduce_(0, i.reshape(-1, 1).expand(*v.shape) % 9, v, "amin"),
    "prod": lambda b, i, v: b.scatter_reduce_(0, i.reshape(-1, 1).expand(*v.shape) % 9, v, "prod"),
}


def made(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    b = Tensor(rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)).contiguous().realize()
    i = Tensor(rng.integers(-100, 100, 16).astype(np.int32)).realize()
    v = Tensor(rng.standard_normal((16, COLUMNS)).astype(np.float32)).realize()
    return b, i, v


def work(function: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """How many kernels run while a function does, and the bytes that they read and write."""
    GlobalCounters.reset()
    function(*args)
    return GlobalCounters.kernel_count, GlobalCounters.global_mem


@pytest.mark.parametrize("name", WRITES)
def test_a_write_by_index_touches_what_it_writes(device: str, name: str) -> None:
    b, i, v = made()
    before = GlobalCounters.mem_used

    def write() -> None:
        WRITES[name](b, i, v)
        b.realize()

    kernels, nbytes = work(write)
    # Positions that take long to compute are computed before.
    assert kernels == (2 if name == "between" else 1)
    assert nbytes < WHOLE // 10
    assert GlobalCounters.mem_used - before < WHOLE // 10


@pytest.mark.parametrize("name", WRITES)
def test_a_write_by_index_writes_what_it_would_to_a_copy(device: str, name: str) -> None:
    """What else reads the old version keeps it."""
    b, i, v = made(1)
    copy = b.clone().realize()
    expected = b.numpy().copy()
    WRITES[name](copy, i, v)
    before = b[::100] + 1
    WRITES[name](b, i, v)
    after = b[::100] + 1
    np.testing.assert_array_equal(before.numpy(), expected[::100] + 1)
    np.testing.assert_array_equal(b.numpy(), copy.numpy())
    np.testing.assert_array_equal(after.numpy(), copy.numpy()[::100] + 1)
    assert not np.array_equal(copy.numpy(), expected)


@pytest.mark.parametrize("name", ["setitem", "of a part", "index_add_", "between"])
def test_replays_write_in_place(device: str, name: str) -> None:
    b, _, _ = made(2)
    expected = Tensor(b.numpy())

    @TinyJit
    def step(i: Tensor, v: Tensor) -> Tensor:
        WRITES[name](b, i, v)
        return b[:16].sum().realize()

    for seed in range(5):
        _, i, v = made(seed)
        kernels, nbytes = work(step, i, v)
        assert kernels <= (4 if seed == 1 else 3)  # a capture copies data of the host for replays
        assert nbytes < WHOLE // 10
        WRITES[name](expected, i, v)
        np.testing.assert_array_equal(b.numpy(), expected.numpy())


def test_several_writes_are_a_kernel_each(device: str) -> None:
    b, i, v = made()
    expected = b.numpy().copy()
    places = i.numpy()

    def write() -> None:
        b[i] = v
        b.index_add_(0, i + 1, v)
        b[i] = b[i + 1] + 1
        b[[3, 5]] = b[[5, 3]]
        b.realize()

    kernels, nbytes = work(write)
    assert kernels == 6
    assert nbytes < 2.1 * WHOLE  # a read by index counts as one of all
    expected[places] = v.numpy()
    np.add.at(expected, places + 1, v.numpy())
    expected[places] = expected[places + 1] + 1
    expected[[3, 5]] = expected[[5, 3]]
    np.testing.assert_array_equal(b.numpy(), expected)


def test_what_is_written_all_over_first_is_written_in_place(device: str) -> None:
    b, i, v = made()
    expected = b.numpy() + 1
    expected[i.numpy()] = v.numpy()

    def write() -> None:
        nonlocal b
        b += 1
        b[i] = v
        b.realize()

    kernels, nbytes = work(write)
    assert kernels == 2
    assert nbytes < 2.1 * WHOLE
    np.testing.assert_array_equal(b.numpy(), expected)


def test_a_copy_with_elements_put_in_is_one_pass(device: str) -> None:
    b, i, v = made()
    for function in (
        lambda: b.index_add(0, i, v),
        lambda: (b + 1).index_copy(0, i, v),
        lambda: b.index_put((i,), v),
        lambda: b.index_copy(0, i, v).index_fill(0, i, 2).index_add(0, i, v),
    ):
        results = []
        kernels, nbytes = work(lambda: results.append(function().realize()))  # noqa: B023
        assert kernels <= 3
        assert nbytes < 2.1 * WHOLE


@pytest.mark.parametrize("case", ["used", "held", "asked for"])
def test_what_else_needs_the_result_gets_it(device: str, case: str) -> None:
    b, i, v = made()
    expected = b.numpy().copy()
    np.add.at(expected, i.numpy(), v.numpy())
    result = b.index_add(0, i, v)
    b.assign(result)
    if case == "used":
        other = result * 2
        del result
        b.realize(other)
        np.testing.assert_array_equal(other.numpy(), expected * 2)
    elif case == "held":
        b.realize()
        b += 1
        np.testing.assert_array_equal(result.numpy(), expected)
        expected += 1
    else:
        b.realize(result)
        np.testing.assert_array_equal(result.numpy(), expected)
    np.testing.assert_array_equal(b.numpy(), expected)


def test_what_handed_out_memory_is_not_written(device: str) -> None:
    b, i, v = made()
    seen = b.numpy(copy=False)
    before = seen.copy()
    b[i] = v
    expected = before.copy()
    expected[i.numpy()] = v.numpy()
    np.testing.assert_array_equal(b.numpy(), expected)
    np.testing.assert_array_equal(seen, before)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "float16", "bfloat16", "int64"])
def test_any_dtype_is_written_in_place(device: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2, (300, 7))
    new = rng.integers(0, 2, (40, 7))
    places = rng.integers(-300, 300, 40)
    b = Tensor(base).cast(dtype).contiguous().realize()
    index, values = Tensor(places).realize(), Tensor(new).cast(dtype).realize()
    kernels, _ = work(lambda: b.__setitem__(index, values) or b.realize())
    assert kernels == 1
    base[places] = new
    np.testing.assert_array_equal(b.cast("int64").numpy(), base)
    if dtype != "bool":
        b.index_add_(0, index, values)
        np.add.at(base, places, new)
        np.testing.assert_array_equal(b.cast("int64").numpy(), base)
    b.scatter_reduce_(0, index.reshape(-1, 1).expand(40, 7) % 300, values, "amin")
    np.minimum.at(base, places, new)
    np.testing.assert_array_equal(b.cast("int64").numpy(), base)


def test_gradients_flow_around_what_is_written(device: str) -> None:
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((6, 3)).astype(np.float32), requires_grad=True)
    v = Tensor(rng.standard_normal((4, 3)).astype(np.float32), requires_grad=True)
    weight = rng.standard_normal((6, 3)).astype(np.float32)
    index = np.array([1, -2, 1, 3])
    for places in (index, Tensor(index)):
        x.grad = v.grad = None
        y = x * 1
        y[places] = v
        (y * Tensor(weight)).sum().backward()
        kept = weight.copy()
        kept[index] = 0
        given = weight[index].copy()
        given[0] = 0  # the third element is written after it
        assert x.grad is not None
        assert v.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), kept)
        np.testing.assert_array_equal(v.grad.numpy(), given)


def test_parts_beside_positions_are_put_in_too(device: str) -> None:
    """Integers and slices, which `index_put` takes beside positions."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 9, (4, 3, 5, 2))
    for key in (
        (0, Ellipsis, [1, 0, 1]),
        (slice(1, 3), [1, 2, 1]),
        ([3, 0, 3], slice(None, None, -2), [4, 0, 4]),
        (slice(None), [1, 2, 1], 2, [0, 1, 0]),
        (1, [1, 2, 1], slice(1, 4), [0, 1, 0]),
        ([[1], [2]], slice(1, 3), slice(0, 0), [0, 1, 0]),
        ([1, 3, 1], None, 2, [0, 1, 0]),
        (2, slice(0, 2)),
    ):
        mine = tuple(Tensor(part) if isinstance(part, list) else part for part in key)
        values = rng.integers(0, 9, base[key].shape)
        for accumulate in (False, True) if None not in key else ():
            expected = base.copy()
            if accumulate:
                np.add.at(expected, key, values)
            else:
                expected[key] = values
            found = Tensor(base).index_put(mine, Tensor(values), accumulate)
            np.testing.assert_array_equal(found.numpy(), expected)
        written = Tensor(base)
        written[mine] = Tensor(values)
        expected = base.copy()
        expected[key] = values
        np.testing.assert_array_equal(written.numpy(), expected)


def test_a_position_out_of_range_writes_nowhere(device: str) -> None:
    b = Tensor.zeros(5, dtype=dtypes.int32).contiguous().realize()
    b[Tensor([5, -6, 4, -1, 100])] = Tensor([1, 2, 3, 4, 5])
    assert b.tolist() == [0, 0, 0, 0, 4]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": lambda x: (x - 2).exp(),
    "log": lambda x: (x + 1).log() * 2,
    "sin": lambda x: x.sin() * 3 + 3,
    "log10": lambda x: (x * 500 + 1).log10(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_floats_say_where_to_write(device: str, name: str) -> None:
    x = Tensor([0.1, 0.9, 2.2, 3.3])
    values = Tensor([1.0, 2.0, 4.0, 8.0])
    positions = FUNCTIONS[name](x).floor().int()
    expected = np.zeros(12, np.float32)
    for i, value in zip(positions.tolist(), [1, 2, 4, 8], strict=True):
        expected[i] += value
    again = FUNCTIONS[name](x).floor().int()  # part of the kernel that writes
    np.testing.assert_array_equal(Tensor.zeros(12).scatter_add(0, again, values).numpy(), expected)


def _product(device: str) -> tuple[Tensor, Array]:
    """4,096 elements that no kernel computes as it goes along, and what they are."""
    x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    left, right = Tensor(x, device=device).realize(), Tensor(x.T.copy(), device=device).realize()
    return (left @ right).reshape(-1), (x @ x.T).reshape(-1)


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_added_to_an_intermediate_result_may_be_made_of_it(
    device: str, turned: bool
) -> None:
    """It is added in place: all that is read elsewhere has to be read before."""
    product, expected = _product(device)
    places = np.arange(4000) + 7
    added = product.flip(0) if turned else product
    found = product.scatter_add(0, Tensor(places, device=device).realize(), added[:4000] * 2)
    del product, added
    more = (expected[::-1] if turned else expected)[:4000] * 2
    expected = expected.copy()
    expected[places] += more
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-3)


def test_two_writes_by_index_begin_with_one_intermediate_result(device: str) -> None:
    """Only one of them can be where that is."""
    product, expected = _product(device)
    added = np.random.default_rng(1).standard_normal(4000).astype(np.float32)
    values = Tensor(added, device=device).realize()
    places = [np.arange(4000) + 7, np.arange(4000)]
    indices = [Tensor(place, device=device).realize() for place in places]
    found = [product.index_add(0, index, values) for index in indices]
    del product
    Tensor.realize(*found)
    for tensor, place in zip(found, places, strict=True):
        wanted = expected.copy()
        wanted[place] += added
        np.testing.assert_allclose(tensor.numpy(), wanted, rtol=1e-4, atol=1e-3)
