"""The gradient of zero to a negative power with respect to the power."""

import numpy as np

from ferrule import Tensor

seed = 1


def arguments(call):
    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])
    a0 = Tensor([0.0, 2.0])
    a1 = Tensor([-1.0, -1.0])
    return (a0, a1)


def step(a0, a1):
    v1 = a0 ** a1
    return (v1,)


wanted = ('a1',)


for call in range(1):
    for result in step(*arguments(call)):
        print(result.numpy())
