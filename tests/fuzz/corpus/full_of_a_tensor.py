"""A tensor filled with another one of no axes, and with a number of NumPy."""

import numpy as np

from ferrule import Tensor

seed = 1


def arguments(call):
    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])
    a0 = Tensor(rng(0).integers(1, 7, ()), dtype="int64")
    return (a0,)


def step(a0):
    v1 = Tensor.full((3,), a0, dtype="int32")
    v2 = Tensor.full((2, 2), np.int64(3)) * v1[0]
    return (v1, v2)


for call in range(3):
    for result in step(*arguments(call)):
        print(result.numpy())
