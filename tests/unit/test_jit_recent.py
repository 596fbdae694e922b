"""A call that is like the one before is replayed unread, and one that is not gives its own result.

Each case is a function, arguments that it is given until it is replayed, and then others.
"""

import gc
import math
import weakref
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ferrule.dtype import dtypes
from ferrule.engine.realize import realize
from ferrule.ir.expr import Variable
from ferrule.jit import TinyJit
from ferrule.jit.inputs import read_arguments
from ferrule.tensor import Tensor

Call = tuple[tuple[Any, ...], dict[str, Any]]
Pair = namedtuple("Pair", "x y")
POSITION, OTHER = Variable("position", 0, 3), Variable("other", 0, 3)


@dataclass
class Record:
    x: Tensor
    factor: float


class Model:
    def __init__(self, factor: float) -> None:
        self.factor = factor


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def tensor(*shape: int, start: int = 1) -> Tensor:
    size = math.prod(shape)
    return Tensor(np.arange(start, start + size, dtype=np.float32).reshape(shape)).realize()


def leaf(start: int) -> Tensor:
    return Tensor(np.arange(start, start + 4, dtype=np.float32), requires_grad=True).realize()


def scaled(x: Tensor, factor: Any) -> Tensor:
    return x * 7 if factor is None else x * factor


def weighted(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 + y


def total(parts: Any) -> Tensor:
    values = parts.values() if isinstance(parts, dict) else parts
    result = Tensor.zeros(4)
    for number, part in enumerate(values):
        result = result + part * (number + 1)
    return result


def signed_zero(x: Tensor, number: Any) -> Tensor:
    return x * math.copysign(3.0, number)


def chosen(x: Tensor, flags: Any) -> Tensor:
    bools = sum(type(flag).__name__ == "bool" for flag in flags)
    result: Tensor = x + bools + sum(flags)
    return result


def read(x: Tensor, position: Any) -> Tensor:
    return x[position] + 1


def of_record(record: Record) -> Tensor:
    return record.x * record.factor


def of_model(x: Tensor, model: Model) -> Tensor:
    return x * model.factor


def of_array(x: Tensor, array: Any) -> Tensor:
    return x * float(array[0])


A, B, C = (tensor(4, start=start) for start in (1, 20, 300))
SQUARE = tensor(4, 4)
LONG = tensor(8)
MODEL = Model(3.0)
RECORD = Record(A, 2.0)

UNREAD: dict[str, tuple[Callable[..., Tensor], Call, Call]] = {
    "the same": (weighted, call(A, B), call(A, B)),
    "others": (weighted, call(A, B), call(B, C)),
    "an int": (scaled, call(A, 3), call(B, 3)),
    "a float": (scaled, call(A, 0.1), call(B, float("0.1"))),
    "None": (scaled, call(A, None), call(B, None)),
    "the same NaN": (scaled, call(A, math.nan), call(B, math.nan)),
    "by keyword": (weighted, call(A, y=B), call(C, y=A)),
    "a transposed view": (weighted, call(SQUARE.T, SQUARE.T), call(SQUARE.T, SQUARE.T)),
    "a row": (weighted, call(SQUARE[1], A), call(SQUARE[1], B)),
    "a row of another": (weighted, call(SQUARE[1], A), call(tensor(4, 4, start=50)[1], A)),
    "a view of two": (scaled, call(SQUARE[1].reshape(2, 2), 2), call(SQUARE[1].reshape(2, 2), 2)),
    "lists": (total, call([A, B]), call([C, B])),
    "a tuple in a list": (lambda x: weighted(*x[0]), call([(A, B)]), call([(B, A)])),
    "dicts": (total, call({"a": A, "b": B}), call({"a": B, "b": C})),
    "a named tuple": (total, call(Pair(A, B)), call(Pair(B, A))),
    "a leaf": (scaled, call(leaf(1), 2), call(leaf(5), 2)),
    "a variable": (read, call(SQUARE, POSITION.bind(1)), call(SQUARE, POSITION.bind(3))),
    "an object": (of_model, call(A, MODEL), call(B, MODEL)),
}

READ: dict[str, tuple[Callable[..., Tensor], Call, Call]] = {
    "another int": (scaled, call(A, 3), call(A, 4)),
    "an int that is a float": (scaled, call(A, 3), call(A, 3.0)),
    "another sign of zero": (signed_zero, call(A, 0.0), call(A, -0.0)),
    "True and 1": (chosen, call(A, [True]), call(A, [1])),
    "keywords in another order": (weighted, call(x=A, y=B), call(y=A, x=B)),
    "keywords as positions": (weighted, call(A, y=B), call(A, B)),
    "a keyword more": (lambda x, y=2: x * y, call(A), call(A, y=3)),
    "an argument more": (lambda *xs: total(xs), call(A, B), call(A, B, C)),
    "an argument less": (lambda *xs: total(xs), call(A, B), call(A)),
    "the whole, not transposed": (weighted, call(SQUARE.T, A), call(SQUARE, A)),
    "transposed, not the whole": (weighted, call(SQUARE, A), call(SQUARE.T, A)),
    "another shape": (scaled, call(SQUARE[1], 2), call(SQUARE[1].reshape(2, 2), 2)),
    "another dtype": (weighted, call(A, B), call(A, B.cast(dtypes.int32).realize())),
    "not in memory": (weighted, call(A, B), call(A, B + 1)),
    "a constant": (weighted, call(A, B), call(A, Tensor.full((4,), 2.0))),
    "twice the same": (weighted, call(A, B), call(A, A)),
    "twice the same before": (weighted, call(A, A), call(A, B)),
    "parts of one memory": (weighted, call(LONG[:4], A), call(LONG[:4], LONG[4:])),
    "off the tape": (scaled, call(leaf(1), 2), call(A, 2)),
    "on the tape": (scaled, call(A, 2), call(leaf(1), 2)),
    "detached": (scaled, call(leaf(1), 2), call(leaf(1).detach(), 2)),
    "a longer list": (total, call([A, B]), call([A, B, C])),
    "a tuple, not a list": (total, call([A, B]), call((A, B))),
    "a plain tuple": (total, call(Pair(A, B)), call((B, A))),
    "other keys": (total, call({"a": A, "b": B}), call({"a": A, "c": B})),
    "keys in another order": (total, call({"a": A, "b": B}), call({"b": B, "a": A})),
    "a number, not a variable": (read, call(SQUARE, POSITION.bind(1)), call(SQUARE, 2)),
    "a variable, not a number": (read, call(SQUARE, 2), call(SQUARE, POSITION.bind(1))),
    "another variable": (read, call(SQUARE, POSITION.bind(1)), call(SQUARE, OTHER.bind(2))),
    "another object": (of_model, call(A, MODEL), call(A, Model(5.0))),
    "a record": (of_record, call(RECORD), call(Record(A, 3.0))),
    "a symbolic part": (
        lambda x, position: x + 1,
        call(SQUARE[POSITION.bind(1)], POSITION.bind(1)),
        call(SQUARE[POSITION.bind(2)], POSITION.bind(2)),
    ),
    "a symbolic part alone": (
        lambda x: x + 1,
        call(SQUARE[POSITION.bind(1)]),
        call(SQUARE[POSITION.bind(2)]),
    ),
}


def captured(
    function: Callable[..., Tensor], first: Call, monkeypatch: pytest.MonkeyPatch
) -> tuple[TinyJit[Tensor], list[int]]:
    """The function, replayed with its first arguments, and what grows with each signature read."""
    jit = TinyJit(function)
    for _ in range(4):
        jit(*first[0], **first[1])
    reads: list[int] = []

    def counted(*given: Any) -> Any:
        reads.append(1)
        return read_arguments(*given)

    monkeypatch.setattr("ferrule.jit.read_arguments", counted)
    return jit, reads


def check(jit: TinyJit[Tensor], function: Callable[..., Tensor], given: Call) -> None:
    result = jit(*given[0], **given[1])
    np.testing.assert_array_equal(result.numpy(), function(*given[0], **given[1]).numpy())


@pytest.mark.parametrize("case", UNREAD)
def test_a_call_like_the_one_before_is_not_read(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, first, then = UNREAD[case]
    jit, reads = captured(function, first, monkeypatch)
    for given in (first, then, first):
        check(jit, function, given)
    assert not reads


@pytest.mark.parametrize("case", READ)
def test_a_call_unlike_the_one_before_is_read(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, first, then = READ[case]
    jit, reads = captured(function, first, monkeypatch)
    check(jit, function, then)
    assert reads
    for given in (first, then, then, first):
        check(jit, function, given)


def test_contents_that_change_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    array, record, numbers = np.array([2.0]), Record(A, 2.0), [2.0]
    for function, given in (
        (of_array, call(A, array)),
        (of_record, call(record)),
        (lambda x, numbers: x * numbers[0], call(A, numbers)),
    ):
        array[0] = record.factor = numbers[0] = 2.0
        jit, _ = captured(function, given, monkeypatch)
        array[0] = record.factor = numbers[0] = 5.0
        check(jit, function, given)


def test_training_and_recording_are_part_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        return x * (3 if Tensor.training else 2)

    jit, _ = captured(function, call(A), monkeypatch)
    monkeypatch.setattr(Tensor, "training", True)
    check(jit, function, call(A))
    weight = leaf(1)
    jit, reads = captured(lambda x: x * 2, call(weight), monkeypatch)
    with Tensor.no_grad():
        jit(weight)
    assert reads


def test_an_argument_that_got_a_gradient_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = leaf(1)
    jit, reads = captured(scaled, call(weight, 2), monkeypatch)
    (weight * weight).sum().backward()
    check(jit, scaled, call(weight, 2))
    assert reads


def test_a_tensor_that_needs_a_gradient_now_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = tensor(4)
    jit, reads = captured(scaled, call(weight, 2), monkeypatch)
    weight.requires_grad = True
    check(jit, scaled, call(weight, 2))
    assert reads


def test_parts_that_are_copied_are_copied_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tensor(8, 4)
    jit, _ = captured(scaled, call(data[:2], 2), monkeypatch)
    for start in (2, 4, 4, 4, 0, 0):
        check(jit, scaled, call(data[start : start + 2], 2))
    data.assign(data + 1)
    check(jit, scaled, call(data[:2], 2))


def test_a_view_that_was_computed_is_no_longer_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    view = tensor(4, 4).T
    jit, _ = captured(scaled, call(view, 2), monkeypatch)
    realize([view.lazydata.contiguous()])
    check(jit, scaled, call(view, 2))
    view.realize()
    check(jit, scaled, call(view, 2))


def test_a_view_sees_what_was_written_to_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tensor(4, 4)
    row = whole[1]
    jit, _ = captured(scaled, call(row, 2), monkeypatch)
    for value in (7.0, 8.0):
        whole[1] = value
        check(jit, scaled, call(row, 2))
        whole.assign(whole + 1)
        check(jit, scaled, call(whole[1], 2))


def test_what_the_function_reaches_is_no_argument_like_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = tensor(4)

    def step(x: Tensor) -> Tensor:
        state.assign(state + x)
        return state * 2

    jit, reads = captured(step, call(A), monkeypatch)
    before = state.numpy().copy()
    np.testing.assert_array_equal(jit(state.reshape(2, 2).reshape(4)).numpy(), before * 4)
    assert reads


def test_a_variable_with_two_values_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor, a: Any, b: Any) -> Tensor:
        return x[a] + x[b]

    jit, _ = captured(function, call(SQUARE, POSITION.bind(1), POSITION.bind(1)), monkeypatch)
    with pytest.raises(ValueError, match="position is 1 in one argument and 2 in another"):
        jit(SQUARE, POSITION.bind(1), POSITION.bind(2))
    check(jit, function, call(SQUARE, POSITION.bind(2), POSITION.bind(2)))


def test_neither_tensors_nor_their_memory_are_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tensor(4, 4)
    jit, reads = captured(total, call([whole[1], whole[2]]), monkeypatch)
    jit([whole[1], whole[2]])
    assert not reads
    memory = whole.lazydata.realized
    assert memory is not None
    gone = weakref.ref(memory)
    del memory, whole
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "part",
    [
        lambda x, i: x[i],
        lambda x, i: x[i : i + 2],
        lambda x, i: x[i : i + 1],
        lambda x, i: x[:, i],
        lambda x, i: x[:, i : i + 2],
        lambda x, i: x[i : i + 2, :3],
        lambda x, i: x[i, 1],
        lambda x, i: x[i : i + 2].reshape(-1),
        lambda x, i: x[i::4],
        lambda x, i: x[i : i + 2].permute(2, 1, 0),
        lambda x, i: x[i : i + 2][:, 1:3],
    ],
)
def test_parts_that_slide(part: Callable[[Tensor, int], Tensor]) -> None:
    data = tensor(8, 8, 3)
    jit = TinyJit(scaled)
    for i in (0, 1, 2, 3, 3, 5, 4, 0):
        check(jit, scaled, call(part(data, i % 4), 2))
    whole = data[0:8]
    check(jit, scaled, call(whole, 2))
