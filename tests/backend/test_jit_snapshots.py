"""Each way in which an object can change is noticed by the next call of a captured function.

A replay compares places, classes and sizes all at once. Each case is a function, and a change that
happens when it has been replayed a few times.
"""

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.replays import tensor

from ferrule import Tensor, TinyJit

Body = Callable[[Tensor], Tensor]
Case = Callable[[], tuple[Body, Callable[[], object]]]
CASES: list[Case] = []


def case(function: Case) -> Case:
    CASES.append(function)
    return function


class Part:
    """An object whose attributes are its own, or those of the class."""

    scale: float = 2.0
    offset: float = 1.0

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Equal(Part):
    """One that claims to be equal to anything, and may not be asked."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")


class Slotted:
    __slots__ = ("offset",)

    def __init__(self, offset: float) -> None:
        self.offset = offset


def parts(kind: type[Part] = Part) -> list[Part]:
    """Objects of a class of their own, which a case may change."""
    own = type("Own", (kind,), {"scale": 2.0, "offset": 1.0})
    return [own(offset=float(number)) for number in range(5)]


def of_all(objects: list[Any]) -> Body:
    """A function that reads attributes of all objects, in their order."""

    def body(x: Tensor) -> Tensor:
        for number, part in enumerate(objects):
            x = x * part.scale + part.offset * (number + 1)
        return x

    return body


# *** attributes ***


@case
def an_attribute_is_replaced() -> tuple[Body, Callable[[], object]]:
    objects = parts()
    return of_all(objects), lambda: setattr(objects[3], "offset", 7.0)


@case
def an_attribute_is_replaced_by_an_equal_one_of_another_type() -> tuple[Body, Callable[[], object]]:
    part = Part(offset=1)
    return (
        lambda x: x + (5.0 if type(part.offset) is bool else 1.0),
        lambda: setattr(part, "offset", True),
    )


@case
def an_attribute_is_deleted() -> tuple[Body, Callable[[], object]]:
    objects = parts()
    return of_all(objects), lambda: delattr(objects[3], "offset")


@case
def an_attribute_hides_that_of_the_class() -> tuple[Body, Callable[[], object]]:
    objects = parts()
    return of_all(objects), lambda: setattr(objects[3], "scale", 3.0)


@case
def an_attribute_takes_the_place_of_another() -> tuple[Body, Callable[[], object]]:
    objects = parts()

    def change() -> None:
        vars(objects[3])["scale"] = vars(objects[3]).pop("offset")

    return of_all(objects), change


@case
def an_attribute_moves_to_the_next_object() -> tuple[Body, Callable[[], object]]:
    objects = [Part(scale=3.0, offset=4.0), Part(scale=3.0)]
    return of_all(objects), lambda: setattr(objects[1], "offset", vars(objects[0]).pop("offset"))


@case
def all_attributes_are_replaced_at_once() -> tuple[Body, Callable[[], object]]:
    objects = parts()
    return of_all(objects), lambda: setattr(objects[3], "__dict__", {"offset": 9.0})


@case
def all_attributes_are_replaced_where_there_were_none() -> tuple[Body, Callable[[], object]]:
    part = Part()
    return lambda x: x * part.scale, lambda: setattr(part, "__dict__", {"scale": 9.0})


@case
def all_attributes_of_an_object_that_no_place_holds_are_replaced() -> tuple[
    Body, Callable[[], object]
]:
    part = Part(offset=3.0)
    scaled = functools.partial(lambda part, x: x * part.scale + part.offset, part)
    return scaled, lambda: setattr(part, "__dict__", {"offset": 4.0})


@case
def all_attributes_of_a_function_are_replaced() -> tuple[Body, Callable[[], object]]:
    def scale() -> float:
        return 2.0

    vars(scale)["offset"] = 1.0
    named: Any = scale
    return lambda x: x * named() + named.offset, lambda: setattr(scale, "__dict__", {"offset": 4.0})


@case
def all_attributes_of_a_partial_function_are_replaced() -> tuple[Body, Callable[[], object]]:
    scaled: Any = functools.partial(lambda scale, x: x * scale, 2.0)
    scaled.offset = 1.0
    return lambda x: scaled(x) + scaled.offset, lambda: setattr(scaled, "__dict__", {"offset": 4.0})


@case
def an_attribute_of_a_partial_function_is_replaced() -> tuple[Body, Callable[[], object]]:
    scaled: Any = functools.partial(lambda scale, x: x * scale, 2.0)
    scaled.offset = 1.0
    return lambda x: scaled(x) + scaled.offset, lambda: setattr(scaled, "offset", 4.0)


@case
def an_attribute_of_the_class_of_a_tuple_is_replaced() -> tuple[Body, Callable[[], object]]:
    pair: Any = type("Own", (tuple,), {"scale": 2.0})((1.0, 3.0))
    return lambda x: x * pair.scale + pair[0], lambda: setattr(type(pair), "scale", 4.0)


@case
def an_attribute_of_a_tuple_is_replaced() -> tuple[Body, Callable[[], object]]:
    pair: Any = type("Own", (tuple,), {"scale": 2.0})((1.0, 3.0))
    return lambda x: x * pair.scale + pair[0], lambda: setattr(pair, "scale", 4.0)


@case
def all_attributes_are_others_with_the_same_tensor() -> tuple[Body, Callable[[], object]]:
    weight = tensor(2.0, 3.0)
    part: Any = Part(weight=weight)
    return lambda x: x * part.weight + part.scale, lambda: setattr(
        part, "__dict__", {"weight": weight, "scale": 5.0}
    )


@case
def an_attribute_of_the_class_is_replaced() -> tuple[Body, Callable[[], object]]:
    objects = parts()
    return of_all(objects), lambda: setattr(type(objects[0]), "scale", 3.0)


@case
def a_property_hides_an_attribute() -> tuple[Body, Callable[[], object]]:
    objects = parts()
    return of_all(objects), lambda: setattr(type(objects[0]), "offset", property(lambda self: 6.0))


@case
def a_property_is_replaced() -> tuple[Body, Callable[[], object]]:
    kind = type("Own", (Part,), {"scale": property(lambda self: self.offset)})
    part = kind(offset=3.0)
    return lambda x: x * part.scale, lambda: setattr(
        kind, "scale", property(lambda self: self.offset + 1)
    )


@case
def an_attribute_that_a_property_reads_is_replaced() -> tuple[Body, Callable[[], object]]:
    part = type("Own", (Part,), {"scale": property(lambda self: self.offset)})(offset=3.0)
    return lambda x: x * part.scale, lambda: setattr(part, "offset", 4.0)


@case
def a_slot_is_filled_anew() -> tuple[Body, Callable[[], object]]:
    objects = [Slotted(float(number)) for number in range(5)]
    return (
        lambda x: x + sum([part.offset * 3 for part in objects]),
        lambda: setattr(objects[3], "offset", 7.0),
    )


@case
def a_slot_is_emptied() -> tuple[Body, Callable[[], object]]:
    objects = [Slotted(float(number)) for number in range(5)]
    return (
        lambda x: x + sum([getattr(part, "offset", 20.0) for part in objects]),
        lambda: delattr(objects[3], "offset"),
    )


@case
def an_object_gets_another_class() -> tuple[Body, Callable[[], object]]:
    objects = parts()
    other = type("Other", (Part,), {"scale": 4.0})
    return of_all(objects), lambda: setattr(objects[3], "__class__", other)


@case
def an_object_that_no_place_holds_gets_another_class() -> tuple[Body, Callable[[], object]]:
    part = Part(offset=3.0)
    other = type("Other", (Part,), {"scale": 4.0})
    scaled = functools.partial(lambda part, x: x * part.scale + part.offset, part)
    return scaled, lambda: setattr(part, "__class__", other)


# *** containers ***


@case
def an_item_is_replaced_by_one_that_claims_to_be_equal() -> tuple[Body, Callable[[], object]]:
    objects = parts(Equal)
    return of_all(objects), lambda: objects.__setitem__(3, Equal(offset=8.0))


@case
def an_attribute_is_replaced_by_one_that_claims_to_be_equal() -> tuple[Body, Callable[[], object]]:
    part: Any = Part(inner=Equal(offset=2.0))
    return lambda x: x + part.inner.offset, lambda: setattr(part, "inner", Equal(offset=8.0))


@case
def items_change_places() -> tuple[Body, Callable[[], object]]:
    objects = parts()
    return of_all(objects), objects.reverse


@case
def an_item_is_added() -> tuple[Body, Callable[[], object]]:
    objects = parts()
    return of_all(objects), lambda: objects.append(Part())


@case
def an_item_is_removed() -> tuple[Body, Callable[[], object]]:
    objects = parts()
    return of_all(objects), objects.pop


@case
def an_item_moves_to_the_next_list() -> tuple[Body, Callable[[], object]]:
    lists = [parts(), parts()]

    def body(x: Tensor) -> Tensor:
        for number, objects in enumerate(lists):
            for part in objects:
                x = x * part.scale + part.offset * (number + 1)
        return x

    return body, lambda: lists[1].insert(0, lists[0].pop())


@case
def items_of_a_deque_change_places() -> tuple[Body, Callable[[], object]]:
    objects = deque(parts())
    return of_all(objects), lambda: objects.rotate(1)  # type: ignore[arg-type]


@case
def the_order_of_a_dict_changes() -> tuple[Body, Callable[[], object]]:
    known = {"a": 2.0, "b": 3.0}

    def body(x: Tensor) -> Tensor:
        for value in known.values():
            x = x * value + 1.0
        return x

    return body, lambda: known.update(a=known.pop("a"))


@case
def a_key_of_a_dict_is_another_one() -> tuple[Body, Callable[[], object]]:
    known = {"a": 2.0}
    return (
        lambda x: x * known.get("a", 5.0) + known.get("b", 0.0),
        lambda: known.update(b=known.pop("a")),
    )


@case
def an_item_of_a_class_derived_from_dict_is_replaced() -> tuple[Body, Callable[[], object]]:
    known = type("Own", (dict,), {})(a=2.0, b=3.0)
    return lambda x: x * known["a"] + known["b"], lambda: known.update(b=4.0)


@case
def a_key_that_was_missing_is_there() -> tuple[Body, Callable[[], object]]:
    known = {"a": 2.0, "c": 1.0}
    return lambda x: x * known["a"] + known.get("b", 0.0), lambda: known.update(b=5.0)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "gradients change elsewhere"])
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_change_is_noticed(make: Case, elsewhere: bool) -> None:
    body, change = make()
    runs = 0
    other = tensor(1.0, 2.0).requires_grad_()

    def counted(x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        return body(x)

    captured = TinyJit(counted)

    def check(number: int) -> None:
        if elsewhere:  # then replays look at tensors, too, as those of training steps do
            other.grad = tensor(number, 2)
        x = tensor(number, 1)
        np.testing.assert_array_equal(captured(x).numpy(), body(x).numpy())

    for number in range(6):
        check(number)
    assert runs == 2, "it was not replayed, so nothing was compared"
    change()
    for number in range(4):
        check(number)
    assert runs > 2


@pytest.mark.parametrize("change", ["shape", "dtype"])
def test_the_kind_of_a_tensor_changes_in_a_training_step(change: str) -> None:
    """Its place still holds it, and the step sets gradients in each call."""
    weight, known = tensor(1.0, 2.0).requires_grad_(), tensor(1.0, 2.0, 3.0)
    runs = 0

    @TinyJit
    def step(x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        scale = known.shape[0] * known.dtype.itemsize
        weight.grad = None
        loss = (weight * x * scale).sum()
        loss.backward()
        return loss.realize()

    for number in range(10):
        if number == 6:
            assert runs == 2
            known.replace(tensor(1.0) if change == "shape" else known.half().realize())
        scale = known.shape[0] * known.dtype.itemsize
        assert step(tensor(number, 1)).item() == scale * (number + 2)
        assert weight.grad is not None
        assert weight.grad.tolist() == [scale * number, scale]
