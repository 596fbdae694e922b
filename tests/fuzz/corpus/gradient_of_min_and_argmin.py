"""A minimum, its position and its gradient belong together."""

import numpy as np

from ferrule import Tensor

seed = 1


def arguments(call):
    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])
    a0 = Tensor(rng(0).integers(-40, 41, (12, 5)) / 7, dtype="float32")
    return (a0,)


def step(a0):
    v1 = a0 / 3 + a0.mean(0)
    v2 = v1.min(1, keepdim=True)
    v3 = (v1 == v2).sum(1)
    v4 = v1.argmin(1)
    return (v2, v3, v4)


wanted = ('a0',)


for call in range(3):
    for result in step(*arguments(call)):
        print(result.numpy())
