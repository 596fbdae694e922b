"""A write to a state that several threads carry out, each for itself."""

import numpy as np

from ferrule import Tensor

seed = 1
rng = lambda salt: np.random.default_rng([seed, 0, salt])
a0 = Tensor([0.0])


def arguments(call):
    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])
    a1 = Tensor([1.0])
    return (a1,)


def step(a1):
    a0.assign(a0 + a1)
    v1 = a0 * 1
    return (v1,)


for call in range(5):
    for result in step(*arguments(call)):
        print(result.numpy())
