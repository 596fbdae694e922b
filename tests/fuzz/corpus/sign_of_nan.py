"""The sign of a literal that is no number."""

import numpy as np

from ferrule import Tensor

seed = 1


def arguments(call):
    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])
    a0 = Tensor([1.0, -2.0])
    return (a0,)


def step(a0):
    v1 = Tensor.full((2,), -float("nan"))
    v2 = a0.abs().copysign(v1)
    v3 = v1.signbit()
    return (v2, v3)


for call in range(1):
    for result in step(*arguments(call)):
        print(result.numpy())
