"""Sums and running totals of int32 that do not fit one."""

import numpy as np

from ferrule import Tensor

seed = 1


def arguments(call):
    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])
    a0 = Tensor(rng(0).integers(2**30, 2**31 - 1, (3, 4)), dtype="int32")
    return (a0,)


def step(a0):
    v1 = a0.sum(1)
    v2 = a0.cumsum(0)
    v3 = a0.sum()
    return (v1, v2, v3)


for call in range(3):
    for result in step(*arguments(call)):
        print(result.numpy())
