"""What `DEBUG=1` says of calls of captured functions: a line for each that is no plain replay."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ferrule.base.config import Context
from ferrule.device import Device
from ferrule.dtype import dtypes
from ferrule.ir.expr import Variable
from ferrule.ir.lazyop import MovementOps
from ferrule.jit import TinyJit
from ferrule.jit.inputs import read_arguments
from ferrule.jit.numbers import form
from ferrule.jit.report.signature import Parameters, Part, Signature, TensorPart, shown
from ferrule.tensor import Tensor

RATE = 1.0


@dataclass
class Config:
    rate: float = 0.1
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    names: dict[str, float] = field(default_factory=lambda: {"first": 1.0})


class OtherConfig(Config):
    pass


class Model:
    def __init__(self) -> None:
        self.rate = 0.1
        self.config = Config()
        self.table = np.ones(3, np.float32)
        self.weight = Tensor([1.0, 2.0, 3.0]).realize().requires_grad_()
        self.state = Tensor([0.0]).realize()

    @TinyJit
    def step(self, x: Tensor, k: int = 1, *rest: Any, **kw: Any) -> Tensor:
        scale = self.rate * self.config.rate * self.config.names["first"] * RATE * k
        return (x * scale + sum(self.config.sizes) + Tensor(self.table)).realize()

    @TinyJit
    def train(self, x: Tensor) -> Tensor:
        loss = (x * self.weight).sum()
        loss.backward()
        return loss.realize()


@pytest.fixture(autouse=True)
def printing() -> Iterator[None]:
    with Context(DEBUG=1):
        yield


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """A function that gives the lines about captured functions since its last call."""

    def lines() -> list[str]:
        printed = capsys.readouterr().out.splitlines()
        return [line.partition(": ")[2] for line in printed if line.startswith("TinyJit ")]

    return lines


def tensor(*shape: int) -> Tensor:
    return Tensor.ones(*shape).contiguous().realize()


FIRST = "run plainly because it is the first call; the next one is captured"


def test_each_call_that_is_no_plain_replay_has_one_line(said: Callable[[], list[str]]) -> None:
    model = Model()
    for _ in range(5):
        model.step(tensor(3))
    assert said() == [FIRST, "captured 1 kernel"]
    model.step(tensor(2, 3))
    assert said() == ["captured again because x.shape (3,) -> (2, 3) (1 kernel)"]
    model.step(tensor(2, 3))
    model.step(tensor(3))
    assert said() == []


def changed_shape(model: Model, x: Tensor) -> None:
    model.step(tensor(2, 3), 1, [x], mask=x)


def changed_dtype(model: Model, x: Tensor) -> None:
    model.step(x.cast(dtypes.float16).realize(), 1, [x], mask=x)


def requires_a_gradient(model: Model, x: Tensor) -> None:
    model.step(tensor(3).requires_grad_(), 1, [x], mask=x)


def is_a_part(model: Model, x: Tensor) -> None:
    whole = tensor(6)
    model.step(whole[3:], 1, [x], mask=x)


def has_a_gradient(model: Model, x: Tensor) -> None:
    y = tensor(3)
    y.grad = tensor(3)
    model.step(y, 1, [x], mask=x)


def shares_memory(model: Model, x: Tensor) -> None:
    model.step(x, 1, [x], mask=x)


def another_number(model: Model, x: Tensor) -> None:
    model.step(tensor(3), 2, [x], mask=x)


def another_item(model: Model, x: Tensor) -> None:
    model.step(tensor(3), 1, [tensor(2)], mask=x)


def a_longer_list(model: Model, x: Tensor) -> None:
    model.step(tensor(3), 1, [x, 5], mask=x)


def another_keyword(model: Model, x: Tensor) -> None:
    model.step(tensor(3), 1, [x], mask=tensor(2, 3))


def another_kind(model: Model, x: Tensor) -> None:
    model.step(tensor(3), 1, {"a": x}, mask=x)


def training(model: Model, x: Tensor) -> None:
    with Tensor.train():
        model.step(tensor(3), 1, [x], mask=x)


def not_recording(model: Model, x: Tensor) -> None:
    with Tensor.no_grad():
        model.step(tensor(3), 1, [x], mask=x)


def another_default_dtype(model: Model, x: Tensor) -> None:
    before = dtypes.default_float
    dtypes.default_float = dtypes.float16
    try:
        model.step(tensor(3).cast(dtypes.float32).realize(), 1, [x], mask=x)
    finally:
        dtypes.default_float = before


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (changed_shape, "x.shape (3,) -> (2, 3)"),
        (changed_dtype, "x.dtype dtypes.float32 -> dtypes.float16"),
        (requires_a_gradient, "x.requires_grad False -> True"),
        (is_a_part, "x's view of its memory all of it -> shrink ((3, 6),)"),
        (has_a_gradient, "x.grad None -> tensor of shape (3,)"),
        (shares_memory, "rest[0][0] shares memory with x now"),
        (another_number, "k 1 -> 2"),
        (another_item, "rest[0][0].shape (3,) -> (2,)"),
        (a_longer_list, "rest[0][1] nothing -> 5"),
        (another_keyword, "kw['mask'].shape (3,) -> (2, 3)"),
        (another_kind, "rest[0] list -> dict"),
        (training, "Tensor.training False -> True"),
        (not_recording, "recording of gradients True -> False"),
        (another_default_dtype, "dtypes.default_float dtypes.float32 -> dtypes.float16"),
    ],
)
def test_what_changed_in_the_arguments_has_its_name(
    call: Callable[[Model, Tensor], None], text: str, said: Callable[[], list[str]]
) -> None:
    model, x = Model(), tensor(3)
    for _ in range(3):
        model.step(tensor(3), 1, [x], mask=x)
    said()
    call(model, x)
    (line,) = said()
    assert line.startswith("captured again because ")
    assert text in line


def test_devices_have_their_names(said: Callable[[], list[str]]) -> None:
    @TinyJit
    def double(x: Tensor) -> Tensor:
        return x * 2

    on_other = tensor(3).to("NUMPY").realize()
    for _ in range(3):
        double(tensor(3))
    said()
    double(on_other)
    assert said() == ["captured again because x.device CPU -> NUMPY (1 kernel)"]
    before = Device.DEFAULT
    try:
        Device.DEFAULT = "NUMPY"
        double(on_other)
    finally:
        Device.DEFAULT = before
    assert said() == ["captured again because Device.DEFAULT CPU -> NUMPY (1 kernel)"]


def rate(model: Model) -> None:
    model.rate = 0.05


def rate_of_another_object(model: Model) -> None:
    model.config.rate = 0.05


def item_of_a_list(model: Model) -> None:
    model.config.sizes[1] = 7


def length_of_a_list(model: Model) -> None:
    model.config.sizes.append(3)


def item_of_a_dict(model: Model) -> None:
    model.config.names["first"] = 2.0


def variable_of_the_module(model: Model) -> None:
    globals()["RATE"] = 2.0


def contents_of_an_array(model: Model) -> None:
    model.table[0] = 5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (rate, "self.rate 0.1 -> 0.05"),
        (rate_of_another_object, "self.config.rate 0.1 -> 0.05"),
        (item_of_a_list, "self.config.sizes[1] 2 -> 7"),
        (length_of_a_list, "the length of self.config.sizes 2 -> 3"),
        (item_of_a_dict, "self.config.names['first'] 1.0 -> 2.0"),
        (variable_of_the_module, "RATE 1.0 -> 2.0"),
        (contents_of_an_array, "self.table has other contents"),
    ],
)
def test_numbers_from_outside_are_named_as_the_code_writes_them(
    change: Callable[[Model], None], text: str, said: Callable[[], list[str]]
) -> None:
    model = Model()
    for _ in range(3):
        model.step(tensor(3))
    said()
    try:
        change(model)
        model.step(tensor(3))
    finally:
        globals()["RATE"] = 1.0
    (line,) = said()
    assert line.startswith(f"captured again because {text}")


def test_numbers_of_an_argument_and_of_an_enclosing_function(
    said: Callable[[], list[str]],
) -> None:
    factor = 2.0

    @TinyJit
    def scaled(config: Config, x: Tensor, *, model: Model) -> Tensor:
        return x * (factor * model.rate)

    model = Model()
    for _ in range(3):
        scaled(Config(), tensor(3), model=model)
    said()
    factor = 3.0
    for _ in range(2):
        scaled(Config(), tensor(3), model=model)
    model.rate = 1.0
    for _ in range(2):
        scaled(Config(), tensor(3), model=model)
    for _ in range(2):
        scaled(Config(2.0), tensor(3), model=model)
    scaled(Config(2.0), tensor(3), model=Model())
    assert said() == [
        "captured again because factor 2.0 -> 3.0 (1 kernel)",
        "captured again because model.rate 0.1 -> 1.0 (1 kernel)",
        "captured again because config.rate 0.1 -> 2.0 (1 kernel)",
        "captured again because model is another Model (1 kernel)",
    ]


def test_a_gradient_that_is_there_or_not(said: Callable[[], list[str]]) -> None:
    model = Model()
    for _ in range(4):
        model.train(tensor(3))
    said()
    model.weight.grad = None
    model.train(tensor(3))
    (line,) = said()
    assert line.startswith("captured again because self.weight.grad tensor of shape (3,) -> None")


def test_arguments_of_a_function_without_a_signature(said: Callable[[], list[str]]) -> None:
    class Hidden:
        __signature__ = "none"

        def __call__(self, x: Tensor, **kw: Any) -> Tensor:
            return x * 2

    hidden = TinyJit(Hidden())
    for _ in range(3):
        hidden(tensor(3), mask=tensor(2))
    said()
    hidden(tensor(4), mask=tensor(3))
    (line,) = said()
    assert "args[0].shape (3,) -> (4,), kwargs['mask'].shape (2,) -> (3,)" in line


def test_a_reason_for_running_plainly_is_given_once(said: Callable[[], list[str]]) -> None:
    @TinyJit
    def noisy(x: Tensor) -> Tensor:
        return x * random.random()

    for _ in range(20):
        noisy(tensor(3))
    first, why, rest = said()
    assert first == FIRST
    assert why.startswith("run plainly because it calls Random.random")
    assert rest.startswith("run plainly because 3 captures in a row gave no replay")
    noisy.reset()
    noisy(tensor(3))
    assert said() == [FIRST]


def test_a_number_that_changes_in_every_call_is_named(said: Callable[[], list[str]]) -> None:
    model = Model()
    for number in range(30):
        model.rate = float(number)
        model.step(tensor(3))
    lines = said()
    assert lines[2] == "captured again because self.rate 1.0 -> 2.0 (1 kernel)"
    last = lines[-1]
    assert last.startswith("run plainly because 2 replays were never used")
    assert last.endswith("(changed: self.rate 2.0 -> 3.0)")


def test_a_value_that_does_not_fit_is_told(said: Callable[[], list[str]]) -> None:
    n = Variable("n", 1, 5)

    @TinyJit
    def part(x: Tensor, size: Any) -> Tensor:
        return x[:2] if size < 4 else x[2:]

    for value in (1, 2, 3, 4, 4):
        part(tensor(4), n.bind(value))
    *_, line = said()
    assert line.startswith("run plainly because n=4 does not fit the captured call")


def test_calls_that_are_passed_on_say_so(said: Callable[[], list[str]]) -> None:
    @TinyJit
    def inner(x: Tensor) -> Tensor:
        return x * 2

    @TinyJit
    def outer(x: Tensor) -> Tensor:
        return inner(x) + 1

    with Context(JIT=0):
        inner(tensor(3))
        inner(tensor(3))
    assert said() == ["run plainly because JIT is 0"]
    for _ in range(3):
        outer(tensor(3))
    lines = said()
    assert "run plainly because it is called by a captured function" in "\n".join(lines)


# *** every part of a signature has a name ***


def changed_once(part: Any, is_tensor: bool = False) -> Iterator[Any]:
    """The part with one leaf in it replaced, for each leaf at any depth."""
    if is_tensor and type(part) is tuple:  # a shape, or the movements of a view
        yield part[1:] or ((MovementOps.PERMUTE, (1, 0)),)
    elif not isinstance(part, tuple) or (
        part and type(part) is tuple and isinstance(part[0], type)
    ):
        yield OtherConfig if isinstance(part, type) else "another"
    else:
        for number, item in enumerate(part):
            for other in changed_once(item, isinstance(part, TensorPart)):
                yield type(part)((*part[:number], other, *part[number + 1 :]))


class Derived(dict[str, Any]):
    pass


def everything() -> Signature:
    """A signature that has all kinds of parts."""
    x, y = tensor(2, 3), tensor(4).requires_grad_()
    y.grad = tensor(4)
    derived = Derived(a=1)
    derived.extra = 3  # type: ignore[attr-defined]
    objects = np.array([1, "text"], dtype=object)
    values: Sequence[Any] = (
        *(x, x[1:], x.reshape(6), y, [1.5, "text", None], (2j, b"bytes"), {"key": x, 3: 4}),
        *(derived, Config(), slice(1, x, 2), np.ones(2), np.float16(3), objects, Model, range(3)),
    )
    named = {"mask": x, "other": Variable("n", 1, 4).bind(2)}
    serials = {x._cell.value.node.realized.base.serial: {x._cell}}  # type: ignore[union-attr]
    found = read_arguments(values, named, serials, exact=True).key  # type: ignore[arg-type]
    assert isinstance(found, Signature)
    return found


def test_every_part_of_a_signature_has_a_name() -> None:
    signature = everything()
    settings, args, names, values, shared, reached = signature
    assert shared
    assert reached
    # Tensors are counted, and so found by name, in these two.
    other_sharing = [shared[1:], ((*shared[0][:2], shared[0][0]), *shared[1:])]
    other_reach = [(*row[:1], *other) for row in reached[:1] for other in changed_once(row[1:])]
    changed = [
        *[(other, *signature[1:]) for other in changed_once(settings)],
        *[(settings, other, *signature[2:]) for other in changed_once(args)],
        (settings, args, names[::-1], values[::-1], shared, reached),
        *[(settings, args, names, other, shared, reached) for other in changed_once(values)],
        *[(settings, args, names, values, other, reached) for other in other_sharing],
        *[(*signature[:5], (other, *reached[1:])) for other in other_reach],
    ]
    assert len(changed) > 100
    for parts in changed:
        assert signature.changes(Signature(parts), Parameters()), parts


def test_parts_are_told_apart_by_their_names() -> None:
    def names(part: Any, name: str) -> Iterator[str]:
        if isinstance(part, Part):
            for label, item in part.named(name):
                yield from names(item, label)
        else:
            yield name

    parameters = Parameters(lambda a, b: None)
    found = [n for name, part in everything().arguments(parameters) for n in names(part, name)]
    assert len(found) == len(set(found)) > 100
    assert {"a.shape", "b.dtype", "args[1].requires_grad", "kwargs['mask'].device"} <= {*found}


@pytest.mark.parametrize(
    "value",
    [1, True, 1.5, -0.0, float("nan"), 2j, "text", b"bytes", None, range(2, 7), slice(1, None)],
)
def test_the_value_behind_a_leaf_is_shown(value: object) -> None:
    assert shown(form(value)) == repr(value)
    assert shown(form((value, 1))) == f"({value!r}, 1)"
