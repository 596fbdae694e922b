"""What a captured function finds, or is given, and what becomes of that: replays see it."""

import array
import enum
import math
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.replays import Capture, replayed_like_plain, results, tensor

from ferrule.base.config import Context
from ferrule.dtype import dtypes
from ferrule.tensor import Tensor

scale = 2.0


# *** containers ***


def a_deque_of_tensors(capture: Capture) -> Iterator[Any]:
    found = deque([tensor(1), tensor(2)], maxlen=2)
    f = capture(lambda x: x * found[0] + sum(found))
    yield from results(f, {5: lambda: found.append(tensor(7)), 8: lambda: found.rotate()})


def a_deque_that_the_function_adds_to(capture: Capture) -> Iterator[Any]:
    found = deque([tensor(1), tensor(2)], maxlen=2)

    @capture
    def f(x: Tensor) -> Tensor:
        found.append(x * 2)
        return found[0] * 10 + found[1]

    yield from results(f, {})


def a_deque_of_numbers(capture: Capture) -> Iterator[Any]:
    found = deque([1.0, 2.0], maxlen=2)
    f = capture(lambda x: x * found[0] + sum(found))
    yield from results(f, {5: lambda: found.append(7.0)})


def bytes_that_change(capture: Capture) -> Iterator[Any]:
    data, numbers = bytearray([1, 2]), array.array("d", [3.0])
    view = memoryview(data)
    f = capture(lambda x: x * data[0] + numbers[0] * view[1])
    yield from results(
        f,
        {
            4: lambda: data.__setitem__(0, 5),
            6: lambda: numbers.__setitem__(0, 7.0),
            8: lambda: data.__setitem__(1, 9),
        },
    )


def an_array_of_objects(capture: Capture) -> Iterator[Any]:
    found = np.array([[1.0], 2.0], dtype=object)
    f = capture(lambda x: x * found[0][0] + found[1])
    yield from results(
        f, {4: lambda: found[0].__setitem__(0, 5.0), 7: lambda: found.__setitem__(1, 8.0)}
    )


def the_order_of_a_dict(capture: Capture) -> Iterator[Any]:
    found = {"a": tensor(1), "b": tensor(2)}

    @capture
    def f(x: Tensor) -> Tensor:
        for value in found.values():
            x = x * 2 + value
        return x

    yield from results(f, {5: lambda: found.__setitem__("a", found.pop("a"))})


# *** classes and modules ***


def a_tensor_of_a_class(capture: Capture) -> Iterator[Any]:
    class Base:
        weight = tensor(1)

    class Model(Base):
        def __call__(self, x: Tensor) -> Tensor:
            return x + self.weight

    model = Model()
    f = capture(lambda x: model(x))
    yield from results(
        f,
        {
            4: lambda: setattr(Base, "weight", tensor(5)),
            8: lambda: setattr(model, "weight", tensor(9)),
        },
    )


def a_number_that_a_class_inherits(capture: Capture) -> Iterator[Any]:
    class Base:
        rate = 1.0

    class Model(Base):
        pass

    f = capture(lambda x: x * Model.rate)
    yield from results(
        f, {4: lambda: setattr(Base, "rate", 3.0), 8: lambda: setattr(Model, "rate", 5.0)}
    )


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


def what_an_object_hides_of_its_class(capture: Capture) -> Iterator[Any]:
    class Model:
        colour = Colour.RED

        def forward(self, x: Tensor) -> Tensor:
            return x * self.colour.value

    model = Model()
    f = capture(lambda x: model.forward(x))
    yield from results(
        f,
        {
            4: lambda: setattr(model, "colour", Colour.GREEN),
            7: lambda: setattr(model, "forward", lambda x: x * 5),
        },
    )


def what_a_descriptor_keeps(capture: Capture) -> Iterator[Any]:
    class Twice:
        def __get__(self, owner: Any, kind: Any = None) -> float:
            return float(owner.__dict__["_rate"]) * 2

    class Model:
        rate = Twice()

    model = Model()
    model.__dict__["_rate"] = 1.0
    f = capture(lambda x: x * model.rate)
    yield from results(f, {4: lambda: model.__dict__.__setitem__("_rate", 3.0)})


def a_module_in_a_module(capture: Capture) -> Iterator[Any]:
    package, module = types.ModuleType("package"), types.ModuleType("package.module")
    vars(package)["module"] = module
    vars(module).update(weight=tensor(1), rate=2.0)
    space = {"package": package, "__name__": "program"}
    exec("def f(x): return x * package.module.rate + package.module.weight", space)
    yield from results(
        capture(space["f"]),  # type: ignore[arg-type]
        {
            4: lambda: setattr(module, "weight", tensor(5)),
            7: lambda: setattr(module, "rate", 3.0),
        },
    )


def a_module_in_a_closure(capture: Capture) -> Iterator[Any]:
    module = types.ModuleType("settings")
    vars(module)["weight"] = tensor(1)
    f = capture(lambda x: x + module.weight)
    yield from results(f, {4: lambda: setattr(module, "weight", tensor(5))})


def what_a_function_imports(capture: Capture) -> Iterator[Any]:
    package, module = types.ModuleType("models"), types.ModuleType("models.settings")
    vars(package)["settings"] = module
    vars(module).update(weight=tensor(1), bias=0.5)
    more = types.ModuleType("models.more")  # which is no attribute of the package
    vars(more)["rate"] = 2.0
    names = {"models": package, "models.settings": module, "models.more": more}
    sys.modules.update(names)
    space: dict[str, Any] = {"__name__": "models.steps", "__package__": "models"}
    text = """
def f(x):
    import models.settings
    from . import settings
    from .more import rate
    return x * rate + models.settings.weight + settings.bias
"""
    exec(text, space)
    try:
        yield from results(
            capture(space["f"]),
            {
                4: lambda: setattr(module, "weight", tensor(5)),
                6: lambda: setattr(more, "rate", 3.0),
                8: lambda: setattr(module, "bias", 4.0),
            },
        )
    finally:
        for name in names:
            del sys.modules[name]


def code_that_is_replaced(capture: Capture) -> Iterator[Any]:
    """As tools do that load a module again while the program runs."""

    def helper(x: Tensor) -> Tensor:
        return x * 2

    def other(x: Tensor) -> Tensor:
        return x * 5

    f = capture(lambda x: helper(x))
    yield from results(f, {4: lambda: setattr(helper, "__code__", other.__code__)})


def methods_of_a_class_made_of_a_text(capture: Capture) -> Iterator[Any]:
    space: dict[str, Any] = {"__name__": "program"}
    text = """
class Model:
    def __init__(self): self.fields = {"rate": 2.0}; self.factor = 3.0; self.rows = [0.5]
    def __call__(self, x): return x * self.factor
    def __getattr__(self, name):
        if name.startswith("_"): raise AttributeError(name)
        return self.fields[name]
    def __getitem__(self, i): return self.rows[i]
model = Model()
def f(x): return model(x) + model.rate + model[0]
"""
    exec(text, space)
    model = space["model"]
    yield from results(
        capture(space["f"]),
        {
            4: lambda: setattr(model, "factor", 7.0),
            6: lambda: model.fields.update(rate=9.0),
            8: lambda: model.rows.__setitem__(0, 4.0),
        },
    )


def what_is_above_in_classes(capture: Capture) -> Iterator[Any]:
    class Kind(type):
        rate = 2.0

    class Base(metaclass=Kind):
        weight = tensor(1)

        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * type(self).rate + Model.weight

    f = capture(Model().forward)
    yield from results(
        f,
        {
            4: lambda: setattr(Base, "forward", lambda self, x: x * 5),
            6: lambda: setattr(Kind, "rate", 3.0),
            8: lambda: setattr(Model, "weight", tensor(7)),
        },
    )


def a_pattern_of_a_class(capture: Capture) -> Iterator[Any]:
    class Setting:
        __match_args__ = ("rate",)

        def __init__(self) -> None:
            self.rate = 1.0

    setting = Setting()

    @capture
    def f(x: Tensor) -> Tensor:
        match setting:
            case Setting(1.0):
                return x * 2
            case _:
                return x * 3

    yield from results(f, {4: lambda: setattr(setting, "rate", 5.0)})


# *** what a tensor is, besides its contents ***


def the_shape_of_a_tensor(capture: Capture) -> Iterator[Any]:
    found = {"a": tensor(1, 2)}
    f = capture(lambda x: x * found["a"].shape[0])
    yield from results(f, {4: lambda: found.__setitem__("a", tensor(1, 2, 3))})


def the_type_of_a_tensor(capture: Capture) -> Iterator[Any]:
    class Model:
        weight = tensor(1, 2)

    model = Model()
    model.weight = tensor(1, 2)
    f = capture(lambda x: x.cast(model.weight.dtype) * 2)
    yield from results(f, {4: lambda: setattr(model, "weight", Tensor([True, False]).realize())})


def the_shape_of_a_state(capture: Capture) -> Iterator[Any]:
    class Model:
        def __init__(self) -> None:
            self.state = tensor(1)

        def __call__(self, x: Tensor) -> Tensor:
            count = self.state.shape[0]
            self.state = Tensor.ones(min(count + 1, 5))
            return x * count

    yield from results(capture(Model()), {})


# *** names that are put together, references, contexts ***


class Settings:
    rate_0 = 2.0

    def __init__(self) -> None:
        self.rate_1 = 3.0


def an_attribute_whose_name_is_put_together(capture: Capture) -> Iterator[Any]:
    settings = Settings()
    f = capture(lambda x: x * getattr(settings, f"rate_{len(x.shape)}"))
    yield from results(f, {4: lambda: setattr(settings, "rate_1", 5.0)})


def attributes_by_names_in_a_list(capture: Capture) -> Iterator[Any]:
    settings = Settings()
    f = capture(lambda x: sum((x * getattr(settings, name, 0.0) for name in ("rate_1",)), x))
    yield from results(f, {4: lambda: setattr(settings, "rate_1", 5.0)})


def attributes_that_are_missing(capture: Capture) -> Iterator[Any]:
    settings: Any = Settings()
    f = capture(lambda x: x * (3 if hasattr(settings, "mask") else 2) * getattr(settings, "p", 1))
    yield from results(
        f, {4: lambda: setattr(settings, "mask", None), 7: lambda: setattr(settings, "p", 5.0)}
    )


def the_shape_of_an_array(capture: Capture) -> Iterator[Any]:
    found = np.arange(6.0)
    f = capture(lambda x: x * found.shape[0] + found.ndim)
    yield from results(f, {4: lambda: found.resize((2, 3), refcheck=False)})


def a_place_that_is_emptied(capture: Capture) -> Iterator[Any]:
    settings: Any = Settings()
    settings.cache = None

    @capture
    def f(x: Tensor) -> Tensor:
        settings.cache = None
        return x * 2

    for number in range(10):
        if number == 5:
            settings.cache = tensor(1)
        yield f(tensor(number)).tolist(), settings.cache


def all_attributes(capture: Capture) -> Iterator[Any]:
    first, second = Settings(), Settings()
    f = capture(lambda x: x * sum(vars(first).values()) + sum(second.__dict__.values()))
    yield from results(
        f,
        {
            4: lambda: setattr(first, "rate_1", 5.0),
            7: lambda: setattr(second, "rate_1", 6.0),
            9: lambda: setattr(second, "rate_2", 7.0),
        },
    )


def what_is_behind_a_weak_reference(capture: Capture) -> Iterator[Any]:
    settings = Settings()
    vars(settings)["weight"] = tensor(3)
    reference: Any = weakref.ref(settings)
    f = capture(lambda x: x * reference().rate_1 + reference().weight)
    yield from results(
        f,
        {
            4: lambda: setattr(settings, "rate_1", 5.0),
            7: lambda: setattr(settings, "weight", tensor(6)),
        },
    )


def a_variable_of_a_context(capture: Capture) -> Iterator[Any]:
    rate: ContextVar[float] = ContextVar("rate", default=1.0)
    weight: ContextVar[Tensor] = ContextVar("weight")
    weight.set(tensor(2))
    f = capture(lambda x: x * rate.get() + weight.get())
    yield from results(f, {4: lambda: rate.set(5.0), 7: lambda: weight.set(tensor(6))})


# *** settings of the process ***


def the_default_type(capture: Capture) -> Iterator[Any]:
    f = capture(lambda x: x + Tensor.full((1,), 1.5))
    before = dtypes.default_float
    try:
        for number in range(10):
            if number == 5:
                dtypes.default_float = dtypes.float64
            result = f(Tensor([number]))
            yield result.dtype, result.tolist()
    finally:
        dtypes.default_float = before


def the_default_device(capture: Capture) -> Iterator[Any]:
    f = capture(lambda: Tensor([1.0, 2.0]) * 2)
    for device in ("CPU", "CPU", "CPU", "NUMPY", "NUMPY", "NUMPY", "CPU"):
        with Context(FERRULE_DEVICE=device):
            yield f().device


# *** arguments ***


@dataclass
class Layer:
    weight: Tensor
    power = 1

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight * scale**self.power


class Pair(NamedTuple):
    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight * scale + self.bias


class Weights(list[Tensor]):
    rate = 2.0


class ByAttribute(dict[str, Tensor]):
    def __getattr__(self, name: str) -> Tensor:
        return self[name] * scale


def change_scale(value: float) -> None:
    global scale
    scale = value


def code_of_what_it_is_given(capture: Capture) -> Iterator[Any]:
    f = capture(lambda x, layer: layer(x))
    g = capture(lambda x, weights: x * weights.w)
    try:
        for number in range(12):
            if number % 4 == 3:
                change_scale(number)
            if number == 9:
                Layer.power = 2
            x, weight = tensor(number), tensor(3)
            yield f(x, Layer(weight)).tolist(), f(x, Pair(weight, x)).tolist()
            yield g(x, ByAttribute(w=weight)).tolist()
    finally:
        change_scale(2.0)
        Layer.power = 1


def attributes_beside_the_fields(capture: Capture) -> Iterator[Any]:
    f = capture(lambda layer: layer.weight * layer.factor)
    layer: Any = Layer(tensor(3))
    layer.factor = 2.0
    for number in range(14):
        if number > 4:
            layer.factor = float(number)
        if number > 6:
            layer = Layer(tensor(number))
            layer.factor = -float(number)
        if number > 9:
            layer.factor = tensor(number)
        yield f(layer).tolist()


def attributes_of_a_list(capture: Capture) -> Iterator[Any]:
    f = capture(lambda weights: weights[0] * weights.rate)
    for number in range(12):
        weights = Weights([tensor(number)])
        if 3 < number < 8:
            weights.rate = number
        yield f(weights).tolist()


def keys_that_are_equal(capture: Capture) -> Iterator[Any]:
    f = capture(lambda found: sum(key * value for key, value in found.items()))
    g = capture(lambda found: [value / Tensor([key]) for key, value in found.items()])
    for key in (1, 1, 1, 1.0, 1.0, True, True, (1), 2.5):
        result = f({key: Tensor([3])})
        yield result.dtype, result.tolist()
    for key in (0.0, 0.0, 0.0, -0.0, -0.0):
        yield g({key: tensor(1)})[0].tolist()


def numbers_that_are_equal(capture: Capture) -> Iterator[Any]:
    f = capture(lambda x, number: x * math.copysign(1.0, number.imag))
    for number in (0j, 0j, 0j, complex(0.0, -0.0), complex(0.0, -0.0), 0j):
        yield f(tensor(2), number).tolist()
    f = capture(lambda x, numbers: x * numbers.stop)
    for numbers in (range(0, 3, 2), range(0, 3, 2), range(0, 3, 2), range(0, 4, 2)):
        yield f(tensor(2), numbers).tolist()


def names_of_arguments(capture: Capture) -> Iterator[Any]:
    f = capture(lambda x, y=None, *more, **named: x * 2 if y is None else x - y)
    g = capture(lambda **named: sum(len(name) * value for name, value in named.items()))
    for _ in range(4):
        x, y = tensor(5), tensor(3)
        yield f(x, y=y).tolist(), f(x, z=y).tolist(), f(x, y).tolist(), f(x, y, y).tolist()
        yield [g(**{name: x, "other": y}).tolist() for name in ("a", "bc", "z")]


def slices(capture: Capture) -> Iterator[Any]:
    f = capture(lambda x, part: x[part] * 2)
    for part in [slice(0, 2)] * 4 + [slice(1, 3)] * 4 + [slice(None, None, 2)] * 3:
        yield f(tensor(1, 2, 3, 4), part).tolist()
        yield f(tensor(1, 2, 3, 4), (part,)).tolist()


def arrays_of_objects_and_records(capture: Capture) -> Iterator[Any]:
    f = capture(lambda x, found: x * found[0][0])
    objects = np.array([[1.0], 2], dtype=object)
    for number in range(8):
        if number > 3:
            objects[0][0] = float(number)
        yield f(tensor(2), objects).tolist()
    g = capture(lambda x, found: x * found["a"][0].item())
    for names in ("ab", "ab", "ab", "ba", "ba", "ab"):
        kind = np.dtype([(names[0], "f8"), (names[1], "f8")])
        yield g(tensor(2), np.array([(1.0, 5.0)], dtype=kind)).tolist()


CASES = [
    *(a_deque_of_tensors, a_deque_that_the_function_adds_to, a_deque_of_numbers),
    *(bytes_that_change, an_array_of_objects, the_order_of_a_dict, a_tensor_of_a_class),
    *(a_number_that_a_class_inherits, what_an_object_hides_of_its_class),
    *(what_a_descriptor_keeps, a_module_in_a_module, a_module_in_a_closure),
    *(what_a_function_imports, code_that_is_replaced, an_attribute_whose_name_is_put_together),
    *(what_is_above_in_classes, a_pattern_of_a_class, the_shape_of_a_tensor),
    methods_of_a_class_made_of_a_text,
    *(the_type_of_a_tensor, the_shape_of_a_state, attributes_that_are_missing),
    *(the_shape_of_an_array, a_place_that_is_emptied),
    *(attributes_by_names_in_a_list, all_attributes, what_is_behind_a_weak_reference),
    *(a_variable_of_a_context, the_default_type, the_default_device, code_of_what_it_is_given),
    *(attributes_beside_the_fields, attributes_of_a_list, keys_that_are_equal),
    *(numbers_that_are_equal, names_of_arguments, slices, arrays_of_objects_and_records),
]
_ALWAYS_PLAIN = {a_deque_that_the_function_adds_to}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_replays_see_what_plain_calls_see(case: Callable[[Capture], Iterator[Any]]) -> None:
    captured = replayed_like_plain(case)
    assert case in _ALWAYS_PLAIN or all(jit.jit_cache for jit in captured)
