"""Gradients of the maximum of scattered products."""

import numpy as np

from ferrule import Tensor

seed = 1


def arguments(call):
    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])
    a0 = Tensor(rng(0).integers(-40, 41, (12, 5)) / 7, dtype="float32")
    a1 = Tensor(rng(1).integers(-40, 41, (12, 5)) / 7, dtype="float32")
    a2 = Tensor(rng(2).integers(0, 3, (12, 5)), dtype="int64")
    return (a0, a1, a2)


def step(a0, a1, a2):
    v1 = a0 * a1
    v2 = Tensor.zeros(3, 5).scatter_reduce(0, a2, v1, "amax", include_self=False)
    return (v2,)


wanted = ('a0', 'a1')


for call in range(3):
    for result in step(*arguments(call)):
        print(result.numpy())
