"""`from ferrule import torch`: PyTorch's names, for programs that were written for it."""

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Tensor, TinyJit, dtypes, nn, torch
from ferrule.autograd import GradientError


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "int64", "uint8"])
def test_types_have_their_names(name: str) -> None:
    assert getattr(torch, name) is dtypes.from_name(name)
    assert torch.zeros(2, dtype=getattr(torch, name)).dtype.name == name


def test_types_go_before_methods() -> None:
    found = {name: getattr(torch, name).name for name in ("float", "double", "half", "long", "int")}
    assert list(found.values()) == ["float32", "float64", "float16", "int64", "int32"]
    assert torch.bool.name == "bool"


def test_functions_are_those_of_tensors() -> None:
    x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    assert isinstance(x, torch.Tensor)
    assert torch.is_tensor(x)
    assert torch.cat([x, torch.relu(x)], dim=0).tolist() == [[1.0, -2.0], [1.0, 0.0]]
    assert torch.nn is nn
    assert torch.optim is nn.optim
    assert torch.autocast is ferrule.autocast
    assert isinstance(x.shape, torch.Size)
    assert torch.full((1,), -torch.inf).item() == -torch.inf
    assert torch.finfo(torch.float16).max == 65504
    assert torch.iinfo(torch.int8).min == -128
    assert {"zeros", "float32", "nn", "device", "from_exported"} <= set(dir(torch))


def test_a_name_that_lacks_says_what_to_write() -> None:
    with pytest.raises(AttributeError, match="TinyJit captures"):
        _ = torch.compile
    with pytest.raises(AttributeError, match="no attribute 'zerros'"):
        _ = torch.zerros


def test_devices_have_pytorchs_attributes() -> None:
    second = torch.device("cuda", 1)
    assert (second.type, second.index, str(second)) == ("cuda", 1, "CUDA:1")
    cpu = torch.device("cpu")
    assert (cpu.type, cpu.index) == ("cpu", None)
    assert nn.Linear(2, 1).to(cpu).weight.device == "CPU"
    assert torch.cuda.is_available() in (True, False)


def test_as_tensor_copies_nothing_that_fits() -> None:
    x = torch.ones(2)
    assert torch.as_tensor(x, dtype=torch.float32) is x
    assert torch.as_tensor(np.ones(2), dtype=torch.int32).dtype is dtypes.int32


def test_modes_of_recording() -> None:
    x = torch.ones(2, requires_grad=True)

    @torch.inference_mode
    def bare() -> Any:
        return x * 2

    @torch.inference_mode()
    def called() -> Any:
        return x * 2

    assert not bare().requires_grad
    assert not called().requires_grad
    with torch.no_grad(), torch.inference_mode(False):
        assert not torch.is_grad_enabled()
    with torch.inference_mode(False):
        assert torch.is_grad_enabled()
    with torch.no_grad(), torch.set_grad_enabled(True):
        assert (x * 2).requires_grad


def test_checkpoints_in_files_and_in_memory(tmp_path: Path) -> None:
    state = {"model": nn.Linear(2, 1).state_dict(), "epoch": 3}
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    torch.save(state, tmp_path / "run.pt")
    weight = state["model"]["weight"].tolist()  # type: ignore[index]
    for found in (torch.load(file), torch.load(tmp_path / "run.pt", map_location="cpu")):
        assert found["epoch"] == 3
        assert found["model"]["weight"].tolist() == weight


# -- autograd --------------------------------------------------------------------------------------


def test_grad_of_several_outputs() -> None:
    x, y = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    outputs = [x * y, x * x]
    slopes = torch.autograd.grad(outputs, [x, y], [Tensor([1.0]), Tensor([10.0])])
    assert [slope.tolist() for slope in slopes] == [[3.0 + 40.0], [2.0]]
    assert x.grad is None
    with pytest.raises(GradientError):
        torch.autograd.grad((x * 2).sum(), y)


class Scaled(ferrule.torch.autograd.Function):  # type: ignore[name-defined, misc]
    """x * y * k, with slopes that are told from the true ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, k: float) -> Tensor:
        ctx.save_for_backward(x, None, y)
        ctx.k = k
        return x * y * k

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, nothing, y = ctx.saved_tensors
        assert nothing is None
        assert ctx.needs_input_grad == (True, True, False)
        return gradient * y * ctx.k, gradient * x * ctx.k * 100, None


def test_a_function_has_its_own_slope() -> None:
    x, y = torch.tensor([2.0, 3.0], requires_grad=True), torch.tensor([5.0, 7.0])
    y.requires_grad_()
    Scaled.apply(x, y, 2.0).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() == [10.0, 14.0]
    assert y.grad.tolist() == [400.0, 600.0]
    # Each call has a context of its own.
    first, second = Scaled.apply(x, y, 1.0).sum(), Scaled.apply(x, y, 3.0).sum()
    assert torch.autograd.grad(second, x)[0].tolist() == [15.0, 21.0]
    assert torch.autograd.grad(first, x)[0].tolist() == [5.0, 7.0]


def test_a_function_in_a_captured_step() -> None:
    y = torch.tensor([5.0]).requires_grad_()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(Scaled.apply(x, y, 2.0).sum(), x)[0].realize()

    for value in range(4):
        assert step(Tensor([float(value)])).tolist() == [10.0]


class Split(ferrule.torch.autograd.Function):  # type: ignore[name-defined, misc]
    """Two results, by a context that is set up after the forward part."""

    @staticmethod
    def forward(x: Tensor) -> Any:
        return x * 2, x * 3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        x, tripled = ctx.saved_tensors
        return first * 2 + second * 3 + (tripled - x * 3)


def test_a_function_with_two_results() -> None:
    x = torch.tensor([1.0], requires_grad=True)
    double, triple = Split.apply(x)
    (double + 10 * triple).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [32.0]


def test_slopes_are_counted() -> None:
    class Wrong(torch.autograd.Function):  # type: ignore[name-defined, misc]
        forward = staticmethod(lambda ctx, x, y: x + y)
        backward = staticmethod(lambda ctx, g: g)

    x = torch.ones(1, requires_grad=True)
    with pytest.raises(GradientError, match="Wrong"):
        Wrong.apply(x, x).sum().backward()


def test_names_are_found_without_the_rules_of_aten() -> None:
    code = (
        "from ferrule import torch; torch.zeros(2); import sys;"
        "print([name for name in sys.modules if 'torch.rules' in name or name == 'torch'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
