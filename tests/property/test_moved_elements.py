"""Random programs of movements around few elements, or none, have NumPy's values and gradients.

Sizes are 0 to 3, and single elements are taken from everything: what a size of 1 or 0, or a stride
of 0, makes special is met in every combination. `--programs` is how many are run for each device.
"""

from typing import Any

import numpy as np
import pytest
from tests.moves import Array, Program

from ferrule import Tensor, TinyJit, grad
from ferrule.base.config import Context


def equal(tensor: Tensor, array: Array, what: object) -> None:
    assert tensor.shape == array.shape, what
    np.testing.assert_array_equal(tensor.numpy(), array, err_msg=str(what))


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_movements_of_tensors_are_numpys(device: str, programs: int) -> None:
    count = programs // 2 if device == "NUMPY" else programs // 16
    with Context(FERRULE_DEVICE=device):
        for seed in range(count):
            program = Program(seed)
            array = program.data()
            values, gradient = program.expected(array)
            x = Tensor(array, requires_grad=True)
            results = program.results(x)
            if seed % 2:  # before the gradient is asked for: other kernels
                Tensor.realize(*results)
            program.total(results).backward()
            assert x.grad is not None
            equal(x.grad, gradient, seed)
            for result, value in zip(results, values, strict=True):
                equal(result, value, seed)
            for result, value in zip(program.results(Tensor(array)), values, strict=True):
                equal(result, value, seed)


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_captured_movements_are_numpys(device: str, programs: int) -> None:
    count = programs // 20 if device == "NUMPY" else programs // 40
    with Context(FERRULE_DEVICE=device):
        for seed in range(count):
            program = Program(seed)

            def both(x: Tensor, program: Program = program) -> Any:
                slope = grad(lambda y: program.total(program.results(y)))(x)
                return [value.realize() for value in program.results(x)], slope.realize()

            captured = TinyJit(both)
            for _ in range(4):
                array = program.data()
                values, gradient = program.expected(array)
                results, slope = captured(Tensor(array))
                equal(slope, gradient, seed)
                for result, value in zip(results, values, strict=True):
                    equal(result, value, seed)
