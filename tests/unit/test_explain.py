"""`TinyJit.explain`: what a replay runs, with names, lines, times and memory."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import nn
from ferrule.base.config import Context
from ferrule.device.capture import JitError
from ferrule.dtype import dtypes
from ferrule.jit import TinyJit
from ferrule.jit.report.explain import Explanation
from ferrule.jit.report.limits import bandwidth, peak
from ferrule.jit.report.ways import Ways
from ferrule.tensor import Tensor


def tensor(*shape: int) -> Tensor:
    return Tensor.rand(*shape).realize()


def line_of(mark: str) -> int:
    """The number of the line in this file that ends with a mark."""
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# line: {mark}"))


class Model:
    def __init__(self) -> None:
        self.first = nn.Linear(20, 30)
        self.second = nn.Linear(30, 5)
        self.scale = 2.0
        self.optimizer = nn.optim.SGD(nn.state.get_parameters(self), lr=0.1, momentum=0.9)

    @TinyJit
    def step(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        self.optimizer.zero_grad()
        hidden = self.first(x).relu()  # line: first
        out = self.second(hidden) * self.scale  # line: second
        loss = (out - target).square().mean()
        loss.backward()  # line: backward
        self.optimizer.step()  # line: step
        return {"loss": loss, "out": out}


def trained(calls: int = 3) -> tuple[Model, Explanation]:
    model = Model()
    for _ in range(calls):
        model.step(tensor(8, 20), tensor(8, 5))
    return model, model.step.explain()


def test_operands_have_the_names_that_the_code_gives_them() -> None:
    _, text = trained()
    kernels = text.kernels
    first = kernels[0]
    assert first.outputs == ("t0 (8, 30) float32",)
    assert first.inputs == (
        "x (8, 20) float32",
        "self.first.weight (30, 20) float32",
        "self.first.bias (30,) float32",
    )
    assert "t0 (8, 30) float32" in kernels[1].inputs
    written = [out for one in kernels for out in one.outputs]
    for name in ("self.first.weight (30, 20) float32", "result['loss'] () float32"):
        assert name in written


def test_kernels_have_the_lines_that_asked_for_their_results() -> None:
    _, text = trained()
    kernels = text.kernels
    found = {name: int(one.line.rpartition(":")[2]) for one in kernels for name in one.outputs}
    assert all(one.line.startswith(__file__) for one in kernels)
    assert found["t0 (8, 30) float32"] == line_of("first")
    assert found["result['out'] (8, 5) float32"] == line_of("second")
    assert found["self.first.weight (30, 20) float32"] in (line_of("step"), line_of("backward"))
    assert line_of("backward") in found.values()


def test_the_text_has_the_inputs_the_state_and_the_memory() -> None:
    _, text = trained()
    assert repr(text) == str(text)
    assert text.startswith(f"TinyJit step: {len(text.kernels)} kernels, ")
    sections = {line[:9].strip(): line[9:] for line in text.splitlines() if line[:1].isalpha()}
    assert sections["inputs"] == "x (8, 20) float32, target (8, 5) float32"
    assert "self.first.weight (30, 20) float32 (written)" in sections["tensors"]
    assert sections["numbers"].startswith("self.scale = 2.0")
    assert sections["results"] == "result['loss'], result['out']"
    assert "self.second.bias" in sections["writes"]
    assert "between kernels" in sections["memory"]


def test_times_and_rates_are_measured() -> None:
    _, text = trained()
    for kernel in text.kernels:
        assert kernel.seconds is not None
        assert kernel.seconds > 0
        assert kernel.nbytes > 0
        assert kernel.memory_share is not None
        assert kernel.memory_share > 0
        assert kernel.schedule or "(1,)" in kernel.name or not kernel.operations
    assert text.kernels[0].operations >= 2 * 8 * 20 * 30
    compute = text.kernels[0].compute_share
    assert compute is not None
    assert 0 < compute < 3


def test_the_schedule_is_the_one_that_the_kernel_has(capsys: pytest.CaptureFixture[str]) -> None:
    @TinyJit
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    x, y = tensor(33, 47), tensor(47, 65)
    with Context(DEBUG=3):
        product(x, y).realize()
    shown = next(line for line in capsys.readouterr().out.splitlines() if "opts: " in line)
    product(x, y)
    (kernel,) = product.explain().kernels
    assert shown == f"opts: ({kernel.schedule})"


def test_explaining_changes_nothing() -> None:
    model, _ = trained()
    model_again = model.step
    before = {name: value.numpy() for name, value in nn.state.get_state_dict(model).items()}
    momentum = [state["momentum_buffer"].numpy() for state in model.optimizer.state]
    for _ in range(2):
        model_again.explain()
    after = nn.state.get_state_dict(model)
    assert before.keys() == after.keys()
    for name, values in before.items():
        np.testing.assert_array_equal(after[name].numpy(), values)
    for state, values in zip(model.optimizer.state, momentum, strict=True):
        np.testing.assert_array_equal(state["momentum_buffer"].numpy(), values)


def test_a_call_after_an_explanation_is_the_replay_that_it_would_have_been() -> None:
    results = []
    for explains in (False, True):
        ferrule.Tensor.manual_seed(3)
        model = Model()
        for _ in range(5):
            found = model.step(tensor(8, 20), tensor(8, 5))
            if explains:
                model.step.explain()
        results.append([found["loss"].item(), model.first.weight.numpy()])
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_arguments_that_are_written_to_stay_as_they_are() -> None:
    @TinyJit
    def count(x: Tensor) -> Tensor:
        x += 1
        return x * 2

    x = Tensor([1.0, 2.0]).realize()
    for _ in range(3):
        count(x)
    text = count.explain()
    assert x.tolist() == [4.0, 5.0]
    assert "\nwrites   x\n" in text


def test_without_a_replay_it_says_why() -> None:
    @TinyJit
    def double(x: Tensor) -> Tensor:
        return x * 2

    assert double.explain() == "TinyJit double: there is no replay yet; call it twice"
    double(tensor(3))
    text = double.explain()
    assert text == (
        "TinyJit double: the last call ran plainly because it is the first call; the next one is "
        "captured"
    )
    assert text.kernels == ()


def test_a_function_that_runs_plainly_says_why() -> None:
    held: list[Any] = [1]

    @TinyJit
    def counting(x: Tensor) -> Tensor:
        held[0] += 1
        return x * held[0]

    for calls in (3, 5):
        for _ in range(calls):
            counting(tensor(3))
        text = counting.explain()
        assert text.startswith("TinyJit counting: the last call ran plainly because ")
        assert "it changes what it reads besides tensors: a list was (" in text


def test_the_last_call_ran_plainly_and_another_has_a_replay() -> None:
    @TinyJit
    def scaled(x: Tensor, factor: float) -> Tensor:
        return x * factor

    for factor in range(20):
        scaled(tensor(3), float(factor))
    text = scaled.explain()
    assert text.startswith("TinyJit scaled: the last call ran plainly because 2 replays")
    assert "; the last replay: 1 kernel, " in text
    assert "\nanother replay (uses: 0) differs in factor 1.0 -> 2.0" in text
    assert len(text.kernels) == 1


def test_functions_of_the_host_that_refuse_zeros_are_not_timed() -> None:
    @TinyJit
    def root(x: Tensor) -> Tensor:
        return x.cholesky() * 2

    matrix = Tensor([[2.0, 0.0], [0.0, 2.0]]).realize()
    for _ in range(3):
        root(matrix)
    host, scale = root.explain().kernels
    assert host.seconds is None
    assert host.note.startswith("not timed: with zeros it raises LinalgError")
    assert scale.seconds is not None


def test_packed_weights_are_named() -> None:
    layer = nn.Linear(512, 512)

    @TinyJit
    def infer(x: Tensor) -> Tensor:
        return layer(x)

    for _ in range(6):
        infer(tensor(128, 512))
    text = infer.explain()
    assert any("packed layer.weight (512, 512) float32" in one.inputs for one in text.kernels)


def test_it_is_refused_inside_of_a_captured_function() -> None:
    double = TinyJit(lambda x: x * 2)

    @TinyJit
    def outer(x: Tensor) -> Tensor:
        if capturing:
            double.explain()
        return x + 1

    capturing = False
    outer(tensor(3))
    capturing = True
    with pytest.raises(JitError, match="explain\\(\\) inside of a captured function"):
        outer(tensor(3))


@pytest.mark.parametrize("jit", [1, 2])
def test_replays_kernel_by_kernel_are_explained_too(jit: int) -> None:
    with Context(JIT=jit):

        @TinyJit
        def both(x: Tensor) -> tuple[Tensor, Tensor]:
            return (x + 1).sum(), (x * 2).max()

        for _ in range(3):
            both(tensor(4, 5))
        outputs = [one.outputs for one in both.explain().kernels]
    assert sorted(outputs) == [("result[0] () float32",), ("result[1] () float32",)]


def test_limits_are_measured_once() -> None:
    assert peak("CPU", dtypes.float32) is peak("CPU", dtypes.float32)
    assert peak("CPU", dtypes.float32).operations_per_second > 1e8
    assert bandwidth("CPU", 100_000) == bandwidth("CPU", 120_000) > 1e7


def test_ways_are_the_shortest_expressions() -> None:
    model = Model()
    ways = Ways(model.step._jit.fxn.__get__(model))
    assert ways.to(model.first) == "self.first"
    assert ways.to(model.second.weight) == "self.second.weight"
    assert ("self.first.bias", model.first.bias) in ways.tensors
    assert ways.to(object()) is None


def test_lines_in_functions_that_this_package_calls_back() -> None:
    w = tensor(40, 40)
    layers = nn.Sequential(
        lambda x: x @ w,  # line: inner
        lambda x: x @ w,  # line: second inner
    )

    @TinyJit
    def both(x: Tensor) -> Tensor:
        y = layers(x)
        return y @ w  # line: outer

    for _ in range(3):
        both(tensor(40, 40))
    found = [int(one.line.rpartition(":")[2]) for one in both.explain().kernels]
    assert found == [line_of("inner"), line_of("second inner"), line_of("outer")]


def test_other_replays_are_told_apart_by_what_differs() -> None:
    model = Model()
    for scale in (2.0, 3.0):
        model.scale = scale
        for _ in range(3):
            model.step(tensor(8, 20), tensor(8, 5))
    for _ in range(3):
        model.step(tensor(4, 20), tensor(4, 5))
    text = model.step.explain()
    for uses in (1, 2):
        assert f"another replay (uses: {uses}) differs in x.shape (8, 20) -> (4, 20), " in text
    model.step(tensor(8, 20), tensor(8, 5))
    text = model.step.explain()
    assert "another replay (uses: 1) differs in self.scale 2.0 -> 3.0" in text


def test_ways_run_no_code_of_the_objects_that_they_lead_to() -> None:
    class Odd:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise RuntimeError("code of the object")

        def __getattr__(self, name: str) -> object:
            raise RuntimeError("code of the object")

    odd, gone, model = Odd(), weakref.proxy(Odd()), Model()
    held = {"odd": [odd], "gone": gone, "model": model}
    ways = Ways(lambda: held)
    assert ways.to(odd) == "held['odd'][0]"
    assert ways.to(model.first.weight) == "held['model'].first.weight"
