"""A tensor of float32 times one of float64 that has no axes."""

import numpy as np

from ferrule import Tensor

seed = 1


def arguments(call):
    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])
    a0 = Tensor([0.7, -1.2, 0.4])
    a1 = Tensor(0.1, dtype="float64")
    return (a0, a1)


def step(a0, a1):
    v1 = a0 * a1
    v2 = v1.sum()
    return (v1, v2)


for call in range(1):
    for result in step(*arguments(call)):
        print(result.numpy())
