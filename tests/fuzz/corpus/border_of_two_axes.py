"""A corner and an edge of a matrix with a border."""

import numpy as np

from ferrule import Tensor

seed = 1


def arguments(call):
    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])
    a0 = Tensor(rng(0).integers(1, 7, (2, 3)) / 2, dtype="float32")
    return (a0,)


def step(a0):
    v1 = a0.pad((1, 1, 1, 0))
    v2 = v1[0, 0] + 1
    v3 = v1[:, 1][1:2].reshape(1, 1)[0] + 1
    return (v2, v3)


for call in range(3):
    for result in step(*arguments(call)):
        print(result.numpy())
