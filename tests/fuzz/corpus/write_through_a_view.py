"""A write to a part of a state, seen through another view of it."""

import numpy as np

from ferrule import Tensor

seed = 1
rng = lambda salt: np.random.default_rng([seed, 0, salt])
a0 = Tensor(rng(0).integers(-6, 7, (4, 4)) / 2, dtype="float32")


def arguments(call):
    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])
    a1 = Tensor(rng(1).integers(-6, 7, (4,)) / 2, dtype="float32")
    return (a1,)


def step(a1):
    global a0
    v1 = a0[1]
    a0[:, 1] += a1
    v2 = v1 * 2
    a0[0, ::-1] = a1
    v3 = a0.T.reshape(16)[3:9]
    return (v2, v3)


for call in range(5):
    for result in step(*arguments(call)):
        print(result.numpy())
