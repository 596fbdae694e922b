"""Programs whose shapes are drawn at random, a few of each class of kernels.

The constants of the estimate were set without them, so they show how it does with kernels that it
has not met. A seed makes the same programs everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from math import prod
from random import Random
from typing import TypeVar

import numpy as np

from ferrule import Tensor

_T = TypeVar("_T")
Function = Callable[..., Tensor | list[Tensor]]

MOST_ELEMENTS = 1 << 20
"""Elements of an operand: most fit the second cache, a few do not."""
MOST_PRODUCTS = 1 << 25
"""Multiply-adds of a program: about a millisecond of a core."""


@dataclass(frozen=True)
class Operand:
    """An input of a program: normal numbers, or integers below a bound."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 0

    def tensor(self, generator: np.random.Generator) -> Tensor:
        if self.below:
            return Tensor(generator.integers(0, self.below, self.shape).astype(np.int32)).realize()
        values = Tensor(generator.standard_normal(self.shape).astype(np.float32))
        if self.dtype.startswith("int"):
            values = values * 8
        return values.cast(self.dtype).realize()


@dataclass(frozen=True)
class Drawn:
    """A program, and its operands."""

    name: str
    function: Function
    operands: tuple[Operand, ...]


def gradient_of(function: Function) -> Function:
    """The gradients of a function's squares by all its operands that are floats."""

    def gradients(*tensors: Tensor) -> list[Tensor]:
        wanted = [tensor for tensor in tensors if tensor.is_floating_point()]
        for tensor in wanted:
            tensor.requires_grad = True
        result = function(*tensors)
        assert isinstance(result, Tensor)
        (result**2).sum().backward()
        return [tensor.grad for tensor in wanted if tensor.grad is not None]

    return gradients


class _Draw:
    """Sizes and choices, from a seed."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)

    def size(self, least: int, most: int) -> int:
        """A size whose logarithm is uniform; every second large one is a multiple of 8."""
        size = round(least * (most / least) ** self.random.random())
        return size // 8 * 8 if size >= 32 and self.random.random() < 0.5 else size

    def shape(self, axes: int, most: int = MOST_ELEMENTS) -> tuple[int, ...]:
        """A shape of at least 2,000 elements."""
        while True:
            found = tuple(self.size(2, 2000) for _ in range(axes))
            if 2000 <= prod(found) <= most:
                return found

    def axes(self) -> int:
        return self.random.choice((1, 2, 2, 3, 3, 4))

    def dtype(self) -> str:
        return self.random.choice((*["float32"] * 7, "float16", "bfloat16", "float64"))

    def pick(self, choices: Sequence[_T]) -> _T:
        return self.random.choice(choices)


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.relu(),
    "gelu": lambda x: x.gelu(),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "silu": lambda x: x.silu(),
    "exp": lambda x: x.exp(),
    "log": lambda x: (x * x + 1).log(),
    "sqrt": lambda x: (x * x).sqrt(),
    "sin": lambda x: x.sin(),
    "scaled": lambda x: x * 1.5 + 2,
    "clip": lambda x: x.clip(-1, 1),
    "quotient": lambda x: 1 / (x * x + 1),
}
_REDUCES: dict[str, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
    "sum": lambda x, axes: x.sum(axes),
    "mean": lambda x, axes: x.mean(axes),
    "max": lambda x, axes: x.max(axes),
    "variance": lambda x, axes: x.var(axes),
    "squares": lambda x, axes: (x * x).sum(axes),
    "argmax": lambda x, axes: x.argmax(axes[0]),
    "logsumexp": lambda x, axes: x.logsumexp(axes),
    "any": lambda x, axes: (x > 2).any(axes),
}
_NORMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "softmax": lambda x, axis: x.softmax(axis),
    "log_softmax": lambda x, axis: x.log_softmax(axis),
    "layernorm": lambda x, axis: x.layernorm(axis),
    "rmsnorm": lambda x, axis: x / ((x * x).mean(axis, keepdim=True) + 1e-5).sqrt(),
    "length": lambda x, axis: x / (x * x).sum(axis, keepdim=True).sqrt(),
    "centred": lambda x, axis: x - x.mean(axis, keepdim=True),
}


def _chain(names: Sequence[str], *tensors: Tensor) -> Tensor:
    x, *others = tensors
    for name in names:
        x = _UNARY[name](x)
    for other in others:
        x = x * other
    return x


def _element_wise(d: _Draw) -> Drawn:
    names = tuple(d.pick(list(_UNARY)) for _ in range(d.pick((1, 1, 2, 3))))
    shape, dtype = d.shape(d.axes()), d.dtype()
    return Drawn(" ".join((*names, dtype)), partial(_chain, names), (Operand(shape, dtype),))


def _broadcast(d: _Draw) -> Drawn:
    shape = d.shape(d.pick((2, 3, 4)))
    kept = [tuple(n if d.random.random() < 0.5 else 1 for n in shape) for _ in range(2)]
    operands = [Operand(s) for s in dict.fromkeys((shape, *kept))]
    return Drawn(str(kept), partial(_chain, (d.pick(list(_UNARY)),)), tuple(operands))


def _moved(d: _Draw) -> Drawn:
    axes = d.pick((2, 3, 4))
    order = d.random.sample(range(axes), axes)
    shape = d.shape(axes)
    steps = tuple(d.pick((1, 1, 1, 2, -1)) for _ in shape)
    borders = tuple((d.pick((0, 0, 1, 3)), d.pick((0, 0, 2))) for _ in shape)

    def moved(x: Tensor) -> Tensor:
        return (
            x.pad(borders)[tuple(slice(None, None, s) for s in steps)].permute(order).contiguous()
        )

    return Drawn(f"{order} {steps}", moved, (Operand(shape, d.dtype()),))


def _reduce(d: _Draw) -> Drawn:
    shape = d.shape(d.pick((2, 2, 3, 3, 4)))
    axes = tuple(sorted(d.random.sample(range(len(shape)), d.pick((1, 1, 1, 2)))))
    name = d.pick(list(_REDUCES))
    function = partial(lambda reduce, x: reduce(x, axes), _REDUCES[name])
    return Drawn(f"{name} {axes}", function, (Operand(shape, d.dtype()),))


def _norm(d: _Draw) -> Drawn:
    shape = d.shape(d.pick((2, 2, 3, 4)))
    axis = d.random.randrange(len(shape))
    name = d.pick(list(_NORMS))
    return Drawn(
        f"{name} {axis}",
        partial(lambda norm, x: norm(x, axis), _NORMS[name]),
        (Operand(shape, d.pick(("float32", "float32", "float16"))),),
    )


def _pool(d: _Draw) -> Drawn:
    kernel, stride, place = d.pick((2, 3, 3, 4, 5)), d.pick((1, 2, 2, 3)), d.size(7, 64)
    channels = max(1, min(d.size(2, 64), MOST_ELEMENTS // place**2 // 2))
    padding = d.pick((0, 0, kernel // 2))
    name = d.pick(("max", "mean"))

    def pool(x: Tensor) -> Tensor:
        if name == "max":
            return x.max_pool2d(kernel, stride, padding)
        return x.avg_pool2d(kernel, stride, padding)

    return Drawn(
        f"{name} {kernel} / {stride} + {padding}", pool, (Operand((2, channels, place, place)),)
    )


def _convolution(d: _Draw) -> Drawn:
    kind = d.pick(("plain", "plain", "depthwise", "groups", "transposed", "line"))
    while True:
        kernel, stride, dilation = d.pick((1, 3, 3, 5, 7)), d.pick((1, 1, 2)), d.pick((1, 1, 1, 2))
        place, batch = d.size(7, 48), d.pick((1, 2, 4))
        channels, filters = d.size(3, 128), d.size(3, 128)
        groups = {"depthwise": channels, "groups": 4}.get(kind, 1)
        if groups > 1:
            channels = max(channels // groups, 1) * groups
            filters = channels if kind == "depthwise" else max(filters // groups, 1) * groups
        places = place if kind == "line" else place**2
        taps = kernel if kind == "line" else kernel**2
        products = batch * channels // groups * filters * places * taps
        if products <= MOST_PRODUCTS and (kernel - 1) * dilation < place:
            break
    padding = d.pick((0, kernel // 2, kernel // 2 * dilation))
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    name = f"{kind} {kernel} / {stride} + {padding}, {dilation} apart"
    image = (batch, channels, *[place] * (1 if kind == "line" else 2))
    weights = (filters, channels // groups, *[kernel] * (1 if kind == "line" else 2))
    if kind == "transposed":
        weights = (channels, filters, kernel, kernel)
        return Drawn(
            name, lambda x, w: x.conv_transpose2d(w, **how), (Operand(image), Operand(weights))
        )
    return Drawn(name, lambda x, w: x.conv2d(w, **how), (Operand(image), Operand(weights)))


def _product(d: _Draw) -> Drawn:
    while True:
        batch = d.pick((1, 1, 1, d.size(2, 64)))
        m, k, n = (d.size(1, 2000) for _ in range(3))
        sizes = [batch * m * k, batch * k * n, batch * m * n]
        if 1 << 12 < batch * m * k * n <= MOST_PRODUCTS and max(sizes) <= MOST_ELEMENTS:
            break
    form = d.pick(("a @ b", "a @ b", "a @ b.T", "a.T @ b", "layer"))
    dtype = d.pick((*["float32"] * 6, "float64", "float16", "bfloat16", "int32"))
    lead = (batch,) if batch > 1 else ()
    a = Operand((*lead, *((k, m) if form == "a.T @ b" else (m, k))), dtype)
    b = Operand((*lead, *((n, k) if form == "a @ b.T" else (k, n))), dtype)

    def product(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        if form == "a.T @ b":
            a = a.transpose(-1, -2)
        if form == "a @ b.T":
            b = b.transpose(-1, -2)
        return a @ b if c is None else (a @ b + c).relu()

    operands = (a, b, Operand((n,), dtype)) if form == "layer" else (a, b)
    return Drawn(f"{form} {batch} x {m} x {k} x {n} {dtype}", product, operands)


def _gathered(d: _Draw) -> Drawn:
    rows, width, picked = d.size(20, 2000), d.size(1, 256), d.size(50, 2000)
    form = d.pick(("rows", "columns", "gather", "scatter", "ones"))
    if form == "rows":
        return Drawn(
            form, lambda x, i: x[i], (Operand((rows, width)), Operand((picked,), below=rows))
        )
    if form == "columns":
        return Drawn(
            form, lambda x, i: x[:, i], (Operand((width, rows)), Operand((picked,), below=rows))
        )
    if form == "gather":
        operands = Operand((rows, width)), Operand((picked, width), below=rows)
        return Drawn(form, lambda x, i: x.gather(0, i), operands)
    if form == "scatter":
        operands = (
            Operand((rows, width)),
            Operand((picked, width), below=rows),
            Operand((picked, width)),
        )
        return Drawn(form, lambda x, i, y: x.scatter_add(0, i, y), operands)
    operands = Operand((picked,), below=width), Operand((picked, 1))
    return Drawn(form, lambda i, x: (i.one_hot(width) * x).sum(0), operands)


def _scan(d: _Draw) -> Drawn:
    shape = d.shape(d.pick((1, 2, 3)), 1 << 18)
    axis, name = d.random.randrange(len(shape)), d.pick(("sum", "sum", "max", "product"))

    def scan(x: Tensor) -> Tensor:
        if name == "sum":
            return x.cumsum(axis)
        return x.cumprod(axis) if name == "product" else x.cummax(axis)[0]

    return Drawn(f"{name} {axis}", scan, (Operand(shape),))


def _joined(d: _Draw) -> Drawn:
    shape = d.shape(d.pick((2, 3)), 1 << 18)
    axis = d.random.randrange(len(shape))
    other = tuple(d.size(1, 64) if a == axis else n for a, n in enumerate(shape))
    form = d.pick(("cat", "roll", "repeat", "triangle", "larger"))
    functions: dict[str, Function] = {
        "cat": lambda x, y: x.cat(y * 2, dim=axis),
        "roll": lambda x, y: x.roll(3, axis) + 1,
        "repeat": lambda x, y: x.repeat_interleave(3, axis),
        "triangle": lambda x, y: x.tril(),
        "larger": lambda x, y: x.cat(y, dim=axis).relu().sum(axis),
    }
    return Drawn(f"{form} {axis}", functions[form], (Operand(shape), Operand(other)))


def _fused(d: _Draw) -> Drawn:
    form = d.pick(("attention", "causal", "squeeze", "distances", "residual", "loss", "gate"))
    rows, width, most = d.size(16, 128), d.size(8, 96), d.size(8, 200)
    if form in ("attention", "causal"):
        heads = Operand((2, d.pick((2, 4)), rows, d.pick((16, 32, 64))))
        attention = partial(
            lambda causal, q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal),
            form == "causal",
        )
        return Drawn(form, attention, (heads,) * 3)
    if form == "squeeze":
        image = Operand((2, width, d.size(7, 32), d.size(7, 32)))
        return Drawn(
            form,
            lambda x, a, b: x * ((x.mean((2, 3)) @ a).relu() @ b).sigmoid()[:, :, None, None],
            (image, Operand((width, 8)), Operand((8, width))),
        )
    two = Operand((rows, width)), Operand((most, width))
    if form == "distances":
        return Drawn(form, lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1), two)
    if form == "residual":
        operands = Operand((rows, width)), Operand((width, width)), Operand((rows, width))
        return Drawn(form, lambda x, w, r: ((x @ w).gelu() + r).layernorm(), operands)
    if form == "loss":
        operands = Operand((rows, most)), Operand((rows, most))
        return Drawn(form, lambda x, y: -(x.log_softmax(1) * y).sum(1).mean(), operands)
    return Drawn(form, lambda x, w: (x @ w.T).sigmoid() * 2, two)


_CLASSES: dict[str, tuple[Callable[[_Draw], Drawn], int, int]] = {
    "element-wise": (_element_wise, 12, 2),
    "broadcast": (_broadcast, 10, 3),
    "moved": (_moved, 12, 2),
    "reduce": (_reduce, 24, 3),
    "norm": (_norm, 18, 4),
    "pool": (_pool, 12, 6),
    "convolution": (_convolution, 24, 12),
    "product": (_product, 30, 5),
    "gathered": (_gathered, 10, 3),
    "scan": (_scan, 8, 2),
    "joined": (_joined, 10, 3),
    "fused": (_fused, 10, 6),
}
"""How a program of each class is drawn, and how many programs and gradients there are of it."""


def drawn(seed: int, classes: Sequence[str] = ()) -> Iterator[Drawn]:
    """The programs of all classes, or of some."""
    for name, (make, programs, gradients) in _CLASSES.items():
        if classes and name not in classes:
            continue
        for number in islice(count(), programs + gradients):
            one = make(_Draw(f"{seed} {name} {number}"))
            if number < programs:
                yield Drawn(f"{name}: {one.name}", one.function, one.operands)
                continue
            # Gradients are of float32: others are the same kernels with conversions.
            operands = tuple(o if o.below else Operand(o.shape) for o in one.operands)
            yield Drawn(f"{name}, gradients: {one.name}", gradient_of(one.function), operands)
