"""Two sums over parts of one axis had loops of one name, and so the same loops once these were split."""

import numpy as np

from ferrule import Tensor

seed = 646459100


def arguments(call):
    rng = lambda salt: np.random.default_rng([seed, call + 1, salt])
    a4 = Tensor([[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0]]])
    a5 = Tensor([[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]])
    a7 = Tensor([[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]])
    return (a4, a5, a7)


def step(a4, a5, a7):
    v7 = a4.bmm(a5)
    v9 = v7.diff(prepend=a7)
    v12 = v9.unfold(-1, 3, 2)
    return (v12,)


wanted = ('a4',)


for call in range(1):
    for result in step(*arguments(call)):
        print(result.numpy())
