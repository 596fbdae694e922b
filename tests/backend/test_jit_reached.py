"""What a captured function reaches by other ways than names of values, and what it asks C for."""

import abc
import functools
import gc
import inspect
import pathlib
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.replays import Capture, replayed_like_plain, results, tensor

from ferrule import Tensor


class Base:
    """A class with members of all kinds."""

    @staticmethod
    def static() -> float:
        return 1.0

    @classmethod
    def of_class(cls) -> float:
        return 1.0

    @property
    def asked(self) -> float:
        return 1.0


class Derived(Base):
    """A class that inherits them."""


class Numbers(list[float]):
    """A list with an attribute."""

    factor = 1.0


class Named(dict[str, float]):
    """A dict that makes up what is missing."""

    factor = 1.0

    def __missing__(self, key: str) -> float:
        return self.factor


class Scaled(Tensor):
    """A tensor with an attribute."""

    factor: float


def members(name: str, new: Any, kind: type) -> Callable[[Capture], Iterator[Any]]:
    """A function that reads a member, before and after a class gets another one."""

    def case(capture: Capture) -> Iterator[Any]:
        old = vars(kind).get(name)
        it = Derived()

        @capture
        def f(x: Tensor) -> Tensor:
            found = getattr(it, "static"), getattr(it, "of_class"), it.asked  # noqa: B009
            return x * (found[0]() + found[1]() + found[2])

        try:
            yield from results(f, {4: lambda: setattr(kind, name, new)})
        finally:
            delattr(kind, name) if old is None else setattr(kind, name, old)

    case.__name__ = f"{name}_of_{kind.__name__}"
    return case


def an_attribute_of_a_list(capture: Capture) -> Iterator[Any]:
    values = Numbers([1.0])
    f = capture(lambda x: x * values.factor * values[0])
    yield from results(f, {4: lambda: setattr(values, "factor", 3.0)})


def an_attribute_of_a_dict(capture: Capture) -> Iterator[Any]:
    values = Named()
    f = capture(lambda x: x * values["missing"])
    yield from results(f, {4: lambda: setattr(values, "factor", 3.0)})


def an_attribute_of_a_tensor(capture: Capture) -> Iterator[Any]:
    weight = Scaled([2.0]).realize()
    weight.factor = 1.0
    f = capture(lambda x: x * weight * weight.factor)
    yield from results(f, {4: lambda: setattr(weight, "factor", 3.0)})


def a_method_for_another_type(capture: Capture) -> Iterator[Any]:
    class Chooser:
        @functools.singledispatchmethod
        def factor(self, value: Any) -> float:
            return 1.0

    chooser = Chooser()
    method: Any = vars(Chooser)["factor"]
    f = capture(lambda x: x * chooser.factor(3))
    yield from results(f, {4: lambda: method.register(int, lambda self, value: 3.0)})


def a_class_that_is_registered(capture: Capture) -> Iterator[Any]:
    class Abstract(abc.ABC):  # noqa: B024
        pass

    class Other:
        pass

    other = Other()
    f = capture(lambda x: x * (2 if isinstance(other, Abstract) else 3))
    yield from results(f, {4: lambda: Abstract.register(Other)})


def a_lock_that_is_held(capture: Capture) -> Iterator[Any]:
    lock = threading.Lock()
    f = capture(lambda x: x * (2 if lock.locked() else 3))
    yield from results(f, {4: lock.acquire, 8: lock.release})


def a_limit_of_the_interpreter(capture: Capture) -> Iterator[Any]:
    limit = sys.getrecursionlimit()
    f = capture(lambda x: x * (sys.getrecursionlimit() - limit))
    try:
        yield from results(f, {4: lambda: sys.setrecursionlimit(limit + 1)})
    finally:
        sys.setrecursionlimit(limit)


def the_garbage_collector(capture: Capture) -> Iterator[Any]:
    f = capture(lambda x: x * (2 if gc.isenabled() else 3))
    try:
        yield from results(f, {4: gc.disable, 8: gc.enable})
    finally:
        gc.enable()


def an_identity(capture: Capture) -> Iterator[Any]:
    weights = {"now": tensor(1.0)}
    first = weights["now"]
    f = capture(lambda x: x * (2 if weights["now"] is first else 3))
    yield from results(f, {4: lambda: weights.update(now=tensor(1.0))})


def a_gradient_that_is_there(capture: Capture) -> Iterator[Any]:
    weight = tensor(1.0)
    weight.requires_grad = True
    f = capture(lambda x: x * (2 if weight.grad is None else 3))

    def change(gradient: Tensor | None) -> None:
        weight.grad = gradient

    yield from results(
        f, {n: lambda n=n: change(tensor(1.0) if n % 2 else None) for n in (3, 6, 7, 8)}
    )


def a_mapping(capture: Capture) -> Iterator[Any]:
    found = {"a": 1.0, "b": [1.0]}
    mapping: Any = types.MappingProxyType(found)
    f = capture(lambda x: x * mapping["a"] * mapping["b"][0])
    yield from results(f, {4: lambda: found.update(a=2.0), 8: lambda: found.update(b=[3.0])})


RATE = 1.0


def a_global_of_a_frame(capture: Capture) -> Iterator[Any]:
    f = capture(lambda x: x * inspect.currentframe().f_globals["RATE"])  # type: ignore[union-attr]
    try:
        yield from results(f, {4: lambda: globals().update(RATE=3.0)})
    finally:
        globals().update(RATE=1.0)


def a_file_that_is_there(capture: Capture) -> Iterator[Any]:
    path = pathlib.Path(f"of-{threading.get_ident()}")
    f = capture(lambda x: x * (2 if path.exists() else 3))
    try:
        yield from results(f, {4: path.touch, 8: path.unlink})
    finally:
        path.unlink(missing_ok=True)


CAPTURED = [
    members("static", staticmethod(lambda: 3.0), Base),
    members("static", staticmethod(lambda: 3.0), Derived),
    members("of_class", classmethod(lambda cls: 3.0), Base),
    members("of_class", classmethod(lambda cls: 3.0), Derived),
    members("asked", property(lambda self: 3.0), Base),
    members("asked", property(lambda self: 3.0), Derived),
    *(an_attribute_of_a_list, an_attribute_of_a_dict, an_attribute_of_a_tensor),
    *(a_method_for_another_type, a_class_that_is_registered, a_lock_that_is_held),
    *(
        a_limit_of_the_interpreter,
        the_garbage_collector,
        an_identity,
        a_gradient_that_is_there,
        a_mapping,
    ),
]
PLAIN = [a_global_of_a_frame, a_file_that_is_there]


@pytest.mark.parametrize("case", [*CAPTURED, *PLAIN], ids=lambda case: case.__name__)
def test_replays_see_what_plain_calls_see(
    case: Callable[[Capture], Iterator[Any]], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    captured = replayed_like_plain(case)
    assert all([bool(jit.jit_cache) is (case in CAPTURED) for jit in captured])


Reads = Callable[[Tensor], Tensor]


def in_keys(weight: Tensor) -> Reads:
    scales = {weight: 1.0}
    return lambda x: x + next(iter(scales))


def in_weak_keys(weight: Tensor) -> Reads:
    scales = weakref.WeakKeyDictionary({weight: 1.0})
    return lambda x: x + next(iter(scales))


def in_weak_values(weight: Tensor) -> Reads:
    weights = weakref.WeakValueDictionary({"w": weight})
    return lambda x: x + weights["w"]


def in_a_weak_set(weight: Tensor) -> Reads:
    weights = weakref.WeakSet([weight])
    return lambda x: x + next(iter(weights))


def in_a_set_in_a_tuple(weight: Tensor) -> Reads:
    weights = ({weight},)
    return lambda x: x + next(iter(weights[0]))


def behind_a_weak_reference(weight: Tensor) -> Reads:
    reference: Callable[[], Any] = weakref.ref(weight)
    return lambda x: x + reference()


def in_an_array_of_objects(weight: Tensor) -> Reads:
    weights = np.empty(1, object)
    weights[0] = weight
    return lambda x: x + weights[0]


def in_an_exception(weight: Tensor) -> Reads:
    error = ValueError(weight)
    return lambda x: x + error.args[0]


def in_a_cache(weight: Tensor) -> Reads:
    found = functools.cache(lambda: weight)
    return lambda x: x + found()


def in_a_bound_method(weight: Tensor) -> Reads:
    add = weight.add
    return lambda x: add(x)


def as_the_parent_of_a_view(weight: Tensor) -> Reads:
    view: Any = weight[:1]
    return lambda x: x + view._parent


_WAYS = (
    *(in_keys, in_weak_keys, in_weak_values, in_a_weak_set, in_a_set_in_a_tuple, in_a_cache),
    *(behind_a_weak_reference, in_an_array_of_objects, in_an_exception, in_a_bound_method),
    *(as_the_parent_of_a_view,),
)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("way", _WAYS)
def test_ways_to_a_tensor(way: Callable[[Tensor], Reads], is_shared: bool) -> None:
    """It is watched, whether or not another tensor has its memory."""

    def case(capture: Capture) -> Iterator[Any]:
        weight = tensor(2, 3)
        copy = weight.clone() if is_shared else None
        f = capture(way(weight))
        yield from results(f, {4: lambda: weight.add_(1), 8: lambda: weight.assign(weight * 2)})
        yield None if copy is None else copy.tolist()

    (captured,) = replayed_like_plain(case)
    assert captured.jit_cache
