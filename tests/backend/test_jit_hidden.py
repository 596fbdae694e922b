"""States that a captured function reads where no closure, global or attribute shows them."""

import builtins
import collections
import contextlib
import cProfile
import dataclasses
import functools
import gc
import importlib
import io
import itertools
import logging
import operator
import os
import queue
import random
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.replays import Capture, replayed_like_plain, results, tensor

from ferrule import Tensor, TinyJit, nn
from ferrule.ir.shape.view import ShapeError

ROOT = Path(__file__).parents[2]

K = 1.0
PLACES = itertools.count()


class Bag:
    """An object with any attributes."""

    k: float
    step: int

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@dataclasses.dataclass
class Settings:
    factor: float = 2.0


def set_global(value: float) -> None:
    globals()["K"] = value


# *** run plainly: the state is nowhere in Python ***


def a_queue(capture: Capture) -> Iterator[Any]:
    found: queue.Queue[float] = queue.Queue()
    for number in range(50):
        found.put(float(number))
    yield from results(capture(lambda x: x * found.get()), {})


def pythons_random_numbers(capture: Capture) -> Iterator[Any]:
    random.seed(0)
    yield from results(capture(lambda x: x * random.random()), {})


def a_shuffle(capture: Capture) -> Iterator[Any]:
    random.seed(0)

    @capture
    def f(x: Tensor) -> Tensor:
        order = [1.0, 2.0, 3.0]
        random.shuffle(order)
        return x * order[0]

    yield from results(f, {})


def numpys_random_numbers(capture: Capture) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    yield from results(capture(lambda x: x * float(rng.random())), {})


def numpys_global_random_numbers(capture: Capture) -> Iterator[Any]:
    np.random.seed(0)
    yield from results(capture(lambda x: x * float(np.random.rand())), {})


def an_iterator(capture: Capture) -> Iterator[Any]:
    count = itertools.count()
    yield from results(capture(lambda x: x * next(count)), {})


def a_loop_over_an_iterator(capture: Capture) -> Iterator[Any]:
    numbers = iter(range(100))

    @capture
    def f(x: Tensor) -> Tensor:
        for number in numbers:
            x = x * number
            break
        return x

    yield from results(f, {})


def a_generator(capture: Capture) -> Iterator[Any]:
    numbers = (float(number) for number in range(100))
    yield from results(capture(lambda x: x * next(numbers)), {})


def a_file(capture: Capture) -> Iterator[Any]:
    file = io.StringIO("\n".join(map(str, range(50))))
    yield from results(capture(lambda x: x * float(file.readline())), {})


def all_globals(capture: Capture) -> Iterator[Any]:
    set_global(1.0)
    f = capture(lambda x: x * globals()["K"])
    yield from results(f, {4: lambda: set_global(2.0), 7: lambda: set_global(3.0)})


def variables_of_a_thread(capture: Capture) -> Iterator[Any]:
    found = threading.local()
    found.k = 2.0
    f = capture(lambda x: x * getattr(found, "k", 5.0))
    yield from results(f, {})
    others: list[Any] = []
    thread = threading.Thread(target=lambda: others.append(f(tensor(3, 1)).tolist()))
    thread.start()
    thread.join()
    yield others


def a_proxy(capture: Capture) -> Iterator[Any]:
    bag = Bag(k=2.0)
    proxy = weakref.proxy(bag)
    yield from results(capture(lambda x: x * proxy.k), {5: lambda: setattr(bag, "k", 3.0)})


def an_attribute_getter(capture: Capture) -> Iterator[Any]:
    bag, get = Bag(k=2.0), operator.attrgetter("k")
    yield from results(capture(lambda x: x * get(bag)), {5: lambda: setattr(bag, "k", 3.0)})


def views_of_a_dict(capture: Capture) -> Iterator[Any]:
    found = {"a": 1.0}
    values = found.values()
    f = capture(lambda x: x * sum(values))
    yield from results(f, {5: lambda: found.update(a=2.0), 8: lambda: found.update(b=2.0)})


# *** captured, and captured again when it changes ***


def layers_that_are_added(capture: Capture) -> Iterator[Any]:
    layers = nn.Sequential(lambda x: x * 2)
    f = capture(lambda x: layers(x))
    more = [lambda x: x + 1, lambda x: x * 5]
    yield from results(f, {4: lambda: layers.append(more[0]), 8: lambda: layers.extend(more[1:])})


def the_order_of_keywords(capture: Capture) -> Iterator[Any]:
    @capture
    def f(x: Tensor, **factors: float) -> Tensor:
        for name, value in factors.items():
            x = x * value if name == "a" else x + value
        return x

    for call in range(9):
        if call < 4 or call > 6:
            yield f(tensor(2, 1), a=2.0, b=3.0).tolist()
        else:
            yield f(tensor(2, 1), b=3.0, a=2.0).tolist()


def a_weak_reference_that_dies(capture: Capture) -> Iterator[Any]:
    bags = [Bag(k=2.0)]
    reference = weakref.ref(bags[0])

    @capture
    def f(x: Tensor) -> Tensor:
        found = reference()
        return x * (9.0 if found is None else found.k)

    yield from results(f, {5: bags.clear})


def the_level_of_a_logger(capture: Capture) -> Iterator[Any]:
    logger = logging.getLogger(f"ferrule.{next(PLACES)}")
    logger.setLevel(logging.ERROR)
    f = capture(lambda x: x * 2 if logger.isEnabledFor(logging.INFO) else x * 3)
    yield from results(f, {5: lambda: logger.setLevel(logging.INFO)})


def a_function_for_another_type(capture: Capture) -> Iterator[Any]:
    @functools.singledispatch
    def factor(_: object) -> float:
        return 2.0

    f = capture(lambda x: x * factor(3))
    yield from results(f, {5: lambda: factor.register(int)(lambda _: 7.0)})


def attributes_that_a_class_makes_up(capture: Capture) -> Iterator[Any]:
    class MadeUp:
        def __getattribute__(self, name: str) -> Any:
            return K

    set_global(1.0)
    made_up = MadeUp()
    yield from results(capture(lambda x: x * made_up.k), {5: lambda: set_global(4.0)})


def builtin_names(capture: Capture) -> Iterator[Any]:
    vars(builtins)["FACTOR"] = 2.0
    f = capture(lambda x: x * FACTOR)  # type: ignore[name-defined]  # noqa: F821
    try:
        yield from results(f, {5: lambda: vars(builtins).update(FACTOR=3.0)})
    finally:
        del vars(builtins)["FACTOR"]


def a_global_that_hides_a_builtin_name(capture: Capture) -> Iterator[Any]:
    f = capture(lambda x: x * max(2, 3))
    try:
        yield from results(f, {5: lambda: globals().update(max=min)})
    finally:
        globals().pop("max", None)


def modules_by_name(capture: Capture) -> Iterator[Any]:
    module = types.ModuleType("settings_of_a_test")
    vars(module)["K"] = 1.0
    sys.modules[module.__name__] = module
    f = capture(lambda x: x * sys.modules["settings_of_a_test"].K)
    try:
        yield from results(f, {5: lambda: setattr(module, "K", 2.0)})
    finally:
        del sys.modules[module.__name__]


def modules_that_are_imported_by_name(capture: Capture) -> Iterator[Any]:
    module = types.ModuleType("settings_of_a_test")
    vars(module)["K"] = 1.0
    sys.modules[module.__name__] = module
    f = capture(lambda x: x * importlib.import_module("settings_of_a_test").K)
    try:
        yield from results(f, {5: lambda: setattr(module, "K", 3.0)})
    finally:
        del sys.modules[module.__name__]


def the_environment(capture: Capture) -> Iterator[Any]:
    environ = os.environ  # noqa: TID251  # a program's own variable
    environ["FACTOR"] = "1"
    f = capture(lambda x: x * float(os.environ["FACTOR"]))  # noqa: TID251
    try:
        yield from results(f, {5: lambda: environ.update(FACTOR="2")})
    finally:
        del environ["FACTOR"]


def a_method_of_tensors(capture: Capture) -> Iterator[Any]:
    plain = Tensor.relu
    f = capture(lambda x: (x - 2).relu())
    try:
        yield from results(f, {5: lambda: setattr(Tensor, "relu", lambda x: x * 100)})
    finally:
        setattr(Tensor, "relu", plain)  # noqa: B010


def the_call_of_a_layer(capture: Capture) -> Iterator[Any]:
    Tensor.manual_seed(0)
    layer, plain = nn.Linear(2, 2), nn.Linear.__call__
    f = capture(lambda x: layer(x))
    try:
        yield from results(f, {5: lambda: setattr(nn.Linear, "__call__", lambda _, x: x * 100)})
    finally:
        setattr(nn.Linear, "__call__", plain)  # noqa: B010


def the_call_of_a_derived_layer(capture: Capture) -> Iterator[Any]:
    class Derived(nn.Linear):
        pass

    Tensor.manual_seed(0)
    layer = Derived(2, 2)
    f = capture(lambda x: layer(x))
    yield from results(f, {5: lambda: setattr(Derived, "__call__", lambda _, x: x * 100)})


def a_text_that_is_evaluated(capture: Capture) -> Iterator[Any]:
    set_global(1.0)
    yield from results(capture(lambda x: x * eval("K")), {5: lambda: set_global(2.0)})


def defaults_that_are_replaced(capture: Capture) -> Iterator[Any]:
    def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
        return x * factor

    f = capture(lambda x: scaled(x))
    yield from results(f, {5: lambda: setattr(scaled, "__defaults__", (7.0,))})


def the_class_of_an_object(capture: Capture) -> Iterator[Any]:
    class First:
        k = 1.0

    class Second:
        k = 5.0

    found = First()
    f = capture(lambda x: x * found.k)
    yield from results(f, {5: lambda: setattr(found, "__class__", Second)})


def the_attributes_of_a_tuple(capture: Capture) -> Iterator[Any]:
    class Pair(tuple[int, ...]):
        k = 1.0

    found = Pair((1, 2))
    found.k = 2.0
    f = capture(lambda x: x * found.k)
    yield from results(f, {5: lambda: setattr(found, "__dict__", {"k": 5.0})})


def several_dicts_as_one(capture: Capture) -> Iterator[Any]:
    found = {"a": 1.0}
    whole = collections.ChainMap({}, found)
    yield from results(capture(lambda x: x * whole["a"]), {5: lambda: found.update(a=2.0)})


def attributes_of_a_number(capture: Capture) -> Iterator[Any]:
    class Number(float):
        factor = 1.0

    number = Number(2.0)
    f = capture(lambda x: x * number.factor)
    yield from results(f, {5: lambda: setattr(number, "factor", 3.0)})


def a_private_attribute(capture: Capture) -> Iterator[Any]:
    class Private:
        def __init__(self) -> None:
            self.__k = 1.0

        def change(self) -> None:
            self.__k = 5.0

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.__k

    found = Private()
    yield from results(capture(found), {5: found.change})


def fields_as_a_dict(capture: Capture) -> Iterator[Any]:
    found = Settings()
    f = capture(lambda x: x * dataclasses.asdict(found)["factor"])
    g = capture(lambda x: x * float("{.factor}".format(found)))  # noqa: UP032
    yield from results(f, {5: lambda: setattr(found, "factor", 3.0)})
    yield from results(g, {5: lambda: setattr(found, "factor", 4.0)})


def what_a_function_without_a_result_leaves(capture: Capture) -> Iterator[Any]:
    found = Settings()

    def fill(values: list[float]) -> None:
        values.append(found.factor)

    @capture
    def f(x: Tensor) -> Tensor:
        values: list[float] = []
        fill(values)
        return x * values[0]

    yield from results(f, {5: lambda: setattr(found, "factor", 3.0)})


def an_error_that_a_function_raises(capture: Capture) -> Iterator[Any]:
    found = Settings()

    def check() -> None:
        if found.factor > 4:
            raise ValueError("too much")

    @capture
    def f(x: Tensor) -> Tensor:
        try:
            check()
        except ValueError:
            return x * 5
        return x * 2

    yield from results(f, {5: lambda: setattr(found, "factor", 5.0)})


def a_cached_function(capture: Capture) -> Iterator[Any]:
    values = [1.0]

    @functools.lru_cache
    def factor() -> float:
        return values[0]

    def change() -> None:
        values[0] = 5.0
        factor.cache_clear()

    yield from results(capture(lambda x: x * factor()), {5: change})


def keywords_of_a_partial(capture: Capture) -> Iterator[Any]:
    scaled = functools.partial(lambda x, factor: x * factor, factor=2.0)
    f = capture(lambda x: scaled(x))
    yield from results(f, {5: lambda: scaled.keywords.update(factor=3.0)})


# *** captured: nothing of it is in the result ***


def a_clock_and_a_report(capture: Capture) -> Iterator[Any]:
    logger = logging.getLogger(f"ferrule.{next(PLACES)}")

    @capture
    def f(x: Tensor) -> Tensor:
        begin = time.perf_counter()
        y = (x * 2).realize()
        with contextlib.redirect_stdout(None):
            print("done")
        logger.debug("it took %s", time.perf_counter() - begin)
        return y

    yield from results(f, {})


EITHER = [modules_by_name, modules_that_are_imported_by_name]
"""Captured or not by what else the modules of Python have, such as files."""
PLAIN = [
    *(a_queue, pythons_random_numbers, a_shuffle, numpys_random_numbers),
    *(numpys_global_random_numbers, an_iterator, a_loop_over_an_iterator, a_generator, a_file),
    *(all_globals, variables_of_a_thread, a_proxy, an_attribute_getter, views_of_a_dict),
]
CAPTURED = [
    *(layers_that_are_added, the_order_of_keywords, a_weak_reference_that_dies),
    *(the_level_of_a_logger, a_function_for_another_type, attributes_that_a_class_makes_up),
    *(builtin_names, a_global_that_hides_a_builtin_name, the_environment),
    *(a_method_of_tensors, the_call_of_a_layer, the_call_of_a_derived_layer),
    *(a_text_that_is_evaluated, defaults_that_are_replaced, the_class_of_an_object),
    the_attributes_of_a_tuple,
    *(several_dicts_as_one, attributes_of_a_number, a_cached_function),
    *(a_private_attribute, fields_as_a_dict, what_a_function_without_a_result_leaves),
    *(an_error_that_a_function_raises, keywords_of_a_partial, a_clock_and_a_report),
]


@pytest.mark.parametrize("case", [*PLAIN, *CAPTURED], ids=lambda case: case.__name__)
def test_replays_see_what_plain_calls_see(case: Callable[[Capture], Iterator[Any]]) -> None:
    captured = replayed_like_plain(case)
    assert captured
    assert all([bool(jit.jit_cache) == (case in CAPTURED) for jit in captured])


@pytest.mark.parametrize("case", EITHER, ids=lambda case: case.__name__)
def test_replays_see_all_modules(case: Callable[[Capture], Iterator[Any]]) -> None:
    """In a process of its own: pytest's modules reach all tests, which takes minutes to walk."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        f"from tests.backend.test_jit_hidden import {case.__name__} as case, replayed_like_plain\n"
        "assert replayed_like_plain(case)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_time_is_that_of_each_call() -> None:
    begin = time.perf_counter()

    @TinyJit
    def elapsed(x: Tensor) -> Tensor:
        return x * (time.perf_counter() - begin)

    found = [elapsed(tensor(1)).item() for _ in range(8)]
    assert len(set(found)) == len(found)
    assert not elapsed.jit_cache


def test_a_profile_goes_on_after_a_capture() -> None:
    def after() -> int:
        return 1

    profile, captured = cProfile.Profile(), TinyJit(lambda x: x * 2)
    profile.enable()
    for _ in range(3):
        captured(tensor(1))
    after()
    profile.disable()
    assert captured.jit_cache
    assert any([getattr(entry.code, "co_name", "") == "after" for entry in profile.getstats()])
    events: list[str] = []

    def see(_frame: types.FrameType, event: str, _arg: object) -> None:
        events.append(event)

    captured.reset()
    sys.setprofile(see)
    try:
        for _ in range(3):
            captured(tensor(1))
        assert sys.getprofile() is see
    finally:
        sys.setprofile(None)
    assert events


def test_a_proxy_of_what_is_gone_is_an_error_of_the_function_alone() -> None:
    bag = Bag(k=2.0)
    held = Bag(proxy=weakref.proxy(bag))
    f = TinyJit(lambda x, first: x * (held.proxy.k if first else 3.0))
    assert [f(tensor(1), True).item() for _ in range(3)] == [2.0] * 3
    del bag
    assert [f(tensor(1), False).item() for _ in range(3)] == [3.0] * 3
    with pytest.raises(ReferenceError):
        f(tensor(1), True)


def test_random_numbers_of_the_first_call_alone_prevent_no_capture() -> None:
    weights: list[float] = []

    @TinyJit
    def f(x: Tensor) -> Tensor:
        if not weights:
            weights.append(random.random())
        return x * weights[0]

    found = [f(tensor(1)).item() for _ in range(5)]
    assert f.jit_cache
    assert len(set(found)) == 1


def test_what_this_package_runs_for_itself_is_not_compared() -> None:
    weight = tensor(2)
    f = TinyJit(lambda x: [(x * weight + 1).gelu()])
    for _ in range(3):
        f(tensor(1))
    ((numbers, _),) = f._outside.values()
    assert {place.key for place, _ in numbers.path} <= {"gelu", "__mul__", "__add__", "weight"}


RATE = 1.0


def _rate() -> float:
    return RATE


@pytest.mark.parametrize("keeps", [False, True])
def test_code_that_runs_while_an_error_is_handled(
    keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Exception] = []

    @TinyJit
    def f(x: Tensor) -> Tensor:
        try:
            x.reshape(7)
        except ShapeError as error:
            kept.append(error) if keeps else None
            rate = 1.0 if keeps else _rate()
        return x * (_rate() if keeps else rate)

    x = Tensor([1.0, 2.0]).realize()
    assert [f(x).tolist() for _ in range(4)] == [[1.0, 2.0]] * 4
    monkeypatch.setattr(sys.modules[__name__], "RATE", 3.0)
    assert f(x).tolist() == [3.0, 6.0]


COLLECTIONS = 0


def _count(phase: str, info: dict[str, int]) -> None:
    global COLLECTIONS
    COLLECTIONS = COLLECTIONS + 1


def test_what_the_garbage_collector_runs_is_no_part_of_a_function() -> None:
    @TinyJit
    def f(x: Tensor) -> Tensor:
        gc.collect(0)
        return x * 2

    gc.callbacks.append(_count)
    try:
        for n in range(6):
            assert f(Tensor([float(n)])).tolist() == [2.0 * n]
            gc.collect(0)
    finally:
        gc.callbacks.remove(_count)
    assert [replay.runs for replay in f._replays.values()] == [4]


def test_garbage_is_collected_at_any_time_while_code_is_watched() -> None:
    threshold = gc.get_threshold()
    gc.set_threshold(5, 2, 2)
    try:
        for _ in range(20):
            layer = nn.Linear(2, 2)
            optimizer = nn.optim.SGD([layer.weight, layer.bias], lr=0.05)

            def step(x: Tensor, layer: Any = layer, optimizer: Any = optimizer) -> Tensor:
                with Tensor.train():
                    optimizer.zero_grad()
                    loss = layer(x).square().mean()
                    loss.backward()
                    optimizer.step()
                    return loss.realize()

            captured = TinyJit(step)
            losses = [captured(Tensor([1.0, 2.0])).item() for _ in range(4)]
            assert losses == sorted(losses, reverse=True)
    finally:
        gc.set_threshold(*threshold)


def test_a_tensor_that_gets_other_memory_while_a_view_keeps_its_own() -> None:
    weight = Tensor([2.0, 2.0]).realize()
    view = weight[:1]
    captured = TinyJit(lambda x: (x * weight).realize())
    x = Tensor([1.0, 3.0]).realize()
    assert [captured(x).tolist() for _ in range(3)] == [[2.0, 6.0]] * 3
    weight.replace(Tensor([5.0, 5.0]).realize())
    assert [captured(x).tolist() for _ in range(3)] == [[5.0, 15.0]] * 3
    assert view.tolist() == [2.0]


def test_an_attribute_whose_object_moves_to_another_name() -> None:
    bag, rates = Bag(k={"a": 2.0}), {"a": 3.0}

    def rate() -> dict[str, float]:
        return getattr(bag, "k", rates)

    captured = TinyJit(lambda x: (x * rate()["a"]).realize())
    assert [captured(Tensor([1.0]).realize()).tolist() for _ in range(3)] == [[2.0]] * 3
    vars(bag)["other"] = vars(bag).pop("k")
    assert captured(Tensor([1.0]).realize()).tolist() == [3.0]


@pytest.mark.parametrize("change", ["shape", "dtype"])
def test_the_kind_of_a_tensor_that_code_reads_and_kernels_do_not(change: str) -> None:
    like = Tensor([1.0, 2.0]).realize()
    others = [like]
    captured = TinyJit(lambda x: (x * (len(others[0].shape) + others[0].dtype.itemsize)).realize())
    assert [captured(Tensor([1.0]).realize()).tolist() for _ in range(3)] == [[5.0]] * 3
    like.replace(Tensor([[1.0, 2.0]]) if change == "shape" else Tensor([1.0]).half())
    assert captured(Tensor([1.0]).realize()).tolist() == [6.0 if change == "shape" else 3.0]


def test_a_capture_in_a_debugger() -> None:
    lines: list[int] = []

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        lines.append(frame.f_lineno)
        return trace

    captured = TinyJit(lambda x: (x * 2).realize())
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = [captured(tensor(1.0)).tolist() for _ in range(3)]
    finally:
        sys.settrace(before)
    assert found == [[2.0]] * 3
    assert captured.jit_cache
    assert lines
