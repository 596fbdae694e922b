"""Every workload: its inputs, what is computed, what it costs at least, and the target."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import ml_dtypes
import numpy as np
import programs
from peers.base import Program
from programs import normal

Inputs = Callable[[np.random.Generator], list[np.ndarray]]
MILLION = 1 << 20
LEVEL = 0.95


@dataclass(frozen=True)
class Target:
    """What two threads must reach; on one thread every row is to be level."""

    ratio: float = 1.0
    """The best peer's time over ferrule's."""
    limit_fraction: float = 0.0
    """The least possible time over ferrule's."""
    at_most_ms: float = float("inf")
    against: tuple[tuple[str, float], ...] = ()
    """Ratios to single peers."""
    any_threads: bool = False
    """Whether the peers may also take one thread."""
    one_thread: float = LEVEL


@dataclass(frozen=True)
class Workload:
    """One row of the table."""

    name: str
    group: str
    program: Program
    inputs: Inputs
    kind: str = "forward"
    """forward, backward, training or stateful; or start or memory, which `start.py` measures."""
    target: Target = Target()
    flops: float = 0.0
    reads: float = 0.0
    """Bytes that must come from memory."""
    writes: float = 0.0
    tolerance: float = 1e-5
    """For the largest difference from float64, over the reference's largest magnitude."""
    constants: tuple[int, ...] = ()
    """Which inputs are a model's weights."""
    wrt: tuple[int, ...] = ()
    """backward: the inputs whose gradients are wanted. The last input is the result's gradient."""
    with_result: bool = False
    state: int = 0
    """training, stateful: how many inputs, the first ones, are written."""
    optimizer: str = ""
    images: bool = False
    half: bool = False
    """Whether the arithmetic is bfloat16."""
    tf32: bool = False
    """Whether products of float32 may be of operands rounded to tf32, for everybody."""
    quick: bool = False

    def arrays(self) -> list[np.ndarray]:
        """The inputs, the same in every process."""
        return self.inputs(np.random.default_rng(zlib.crc32(self.name.encode())))


def _shapes(*shapes: tuple[int, ...], shift: float = 0.0) -> Inputs:
    return lambda rng: [normal(rng, shape, shift=shift) for shape in shapes]


def _bytes(*shapes: Sequence[int], itemsize: int = 4) -> int:
    return itemsize * sum(prod(shape) for shape in shapes)


# Element by element, and by rows


def _gelu(name: str, rows: int, columns: int, target: Target) -> Workload:
    whole = _bytes((rows, columns))
    inputs = _shapes((rows, columns), (columns,), (columns,))
    return Workload(
        f"gelu(x*w+b)+x {name}",
        "element-wise",
        programs.gelu_chain,
        inputs,
        target=target,
        reads=whole,
        writes=whole,
        quick=True,
    )


def _row_wise() -> list[Workload]:
    square = _bytes((4096, 4096))
    narrow = _bytes((8192, 64))
    softmax = Workload(
        "softmax 4096x4096",
        "rows",
        lambda lib, x: lib.softmax(x),
        _shapes((4096, 4096)),
        target=Target(1.5),
        reads=square,
        writes=square,
        quick=True,
    )
    return [
        Workload(
            "sum 16M",
            "rows",
            lambda lib, x: lib.sum(x),
            _shapes((16 * MILLION,), shift=0.5),
            target=Target(LEVEL),
            reads=square,
            quick=True,
        ),
        softmax,
        replace(
            softmax,
            name="layernorm 4096x4096",
            quick=False,
            program=lambda lib, x, weight, bias: lib.layernorm(x, weight, bias),
            inputs=_shapes((4096, 4096), (4096,), (4096,)),
        ),
        replace(
            softmax,
            name="softmax 8192x64",
            inputs=_shapes((8192, 64)),
            target=Target(1.2),
            reads=narrow,
            writes=narrow,
            quick=False,
        ),
    ]


# Matrix products


def _product(
    name: str, a: tuple[int, ...], b: tuple[int, ...], group: str, target: Target
) -> Workload:
    result = (*a[:-1], b[-1])
    return Workload(
        name,
        group,
        programs.product(),
        _shapes(a, b),
        target=target,
        flops=2 * prod(a) * b[-1],
        reads=_bytes(a, b),
        writes=_bytes(result),
        constants=(1,),
    )


def _forms(m: int, k: int, n: int) -> list[Workload]:
    """A @ B, with either operand transposed."""
    size = f"{m}" if m == k == n else f"{m}x{k}x{n}"
    found = []
    for left, right in (("A", "B"), ("A", "B.T"), ("A.T", "B")):
        plain = left + right == "AB"
        target = Target(1.0, 0.80 if size == "1024" and plain else 0.75)
        base = _product(f"{left}@{right} {size}", (m, k), (k, n), "matmul", target)
        shapes = ((k, m) if left == "A.T" else (m, k), (n, k) if right == "B.T" else (k, n))
        program = programs.product(left, right)
        quick = plain and size in ("512", "1024")
        found.append(replace(base, program=program, inputs=_shapes(*shapes), quick=quick))
    return found


def _bfloat16() -> Workload:
    shape = (1024, 1024)
    base = _product("A@B 1024 bfloat16", shape, shape, "bfloat16", Target(2.0, one_thread=0.9))
    return replace(
        base,
        inputs=lambda rng: [normal(rng, shape).astype(ml_dtypes.bfloat16) for _ in range(2)],
        half=True,
        tolerance=8e-3,  # the result is rounded to 8 bits
        reads=base.reads / 2,
        writes=base.writes / 2,
    )


def _skinny() -> list[Workload]:
    shapes = [
        ("1x4096 @ 4096x4096", (1, 4096), (4096, 4096), LEVEL),
        ("64x784 @ 784x512", (64, 784), (784, 512), 1.0),
        ("128x4096 @ 4096x4096", (128, 4096), (4096, 4096), 1.0),
        ("96 x (128x64 @ 64x128)", (96, 128, 64), (96, 64, 128), 1.0),
    ]
    found = [_product(name, a, b, "skinny", Target(ratio)) for name, a, b, ratio in shapes]
    return [replace(row, quick=number < 2) for number, row in enumerate(found)]


# Convolutions


def _conv(
    name: str,
    images: tuple[int, int, int],
    filters: tuple[int, int, int],
    stride: int = 1,
    groups: int = 1,
) -> list[Workload]:
    """Forward, and both gradients. `images`: (batch, channels, size); `filters`: (out, in, size).

    Without the padding the last size of an even image divided by the stride would differ.
    """
    batch, channels, size = images
    outputs, inputs, kernel = filters
    out_size = size // stride
    x, weight = (batch, channels, size, size), (outputs, inputs, kernel, kernel)
    result = (batch, outputs, out_size, out_size)
    forward = Workload(
        f"conv {name}",
        "conv",
        programs.convolution(stride, kernel // 2, groups),
        _shapes(x, weight),
        flops=2 * prod(result) * inputs * kernel**2,
        reads=_bytes(x, weight),
        writes=_bytes(result),
        constants=(1,),
        images=True,
    )
    backward = replace(
        forward, kind="backward", inputs=_shapes(x, weight, result), group="conv backward"
    )
    return [
        forward,
        replace(
            backward,
            name=f"conv dX {name}",
            wrt=(0,),
            reads=_bytes(weight, result),
            writes=_bytes(x),
        ),
        replace(
            backward,
            name=f"conv dW {name}",
            wrt=(1,),
            reads=_bytes(x, result),
            writes=_bytes(weight),
        ),
        replace(
            backward,
            name=f"conv dX+dW {name}",
            wrt=(0, 1),
            flops=2 * forward.flops,
            reads=_bytes(x, weight, result),
            writes=_bytes(x, weight),
        ),
    ]


def _convs() -> list[Workload]:
    n8 = _conv("3x3 N8 C64 56x56", (8, 64, 56), (64, 64, 3))
    n1 = _conv("3x3 N1 C64 56x56", (1, 64, 56), (64, 64, 3))
    others = [
        _conv("3x3 N8 C128 28x28", (8, 128, 28), (128, 128, 3)),
        _conv("3x3 N8 C256 14x14", (8, 256, 14), (256, 256, 3)),
        _conv("1x1 N8 C64 56x56", (8, 64, 56), (64, 64, 1)),
        _conv("depthwise 3x3 N8 C128 28x28", (8, 128, 28), (128, 1, 3), groups=128),
        _conv("3x3 stride 2 N8 C64 56x56", (8, 64, 56), (128, 64, 3), stride=2),
    ]
    found = [replace(n8[0], quick=True), *n8[1:], *n1[:3]]
    return found + [row for rows in others for row in rows[:3]]


# Attention


def _attention(size: int, causal: bool) -> list[Workload]:
    """Forward, and forward with all gradients: five products of S x S more."""
    shape = (1, 12, size, 64)
    name = f"S={size}{' masked' if causal else ''}"
    products = 2 * prod(shape) * size / (2 if causal else 1)
    forward = Workload(
        f"attention {name}",
        "attention",
        programs.attention(causal),
        _shapes(shape, shape, shape),
        target=Target(1.0, against=(("torch", 1.2),)),
        flops=2 * products,
        reads=_bytes(shape, shape, shape),
        writes=_bytes(shape),
        quick=size == 512 and not causal,
    )
    backward = replace(
        forward,
        name=f"attention forward+backward {name}",
        kind="backward",
        inputs=_shapes(shape, shape, shape, shape),
        target=Target(1.0),
        wrt=(0, 1, 2),
        with_result=True,
        flops=7 * products,
        reads=_bytes(shape) * 4,
        writes=_bytes(shape) * 4,
        quick=False,
    )
    return [forward, backward]


# Training and inference of models


def _mlp(optimizer: str) -> Workload:
    def inputs(rng: np.random.Generator) -> list[np.ndarray]:
        batch = [normal(rng, (128, 784)), rng.integers(0, 10, 128).astype(np.int32)]
        return programs.mlp_parameters(rng) + batch

    products = 784 * 512 + 512 * 512 + 512 * 10
    return Workload(
        f"MLP step, {optimizer}",
        "training",
        programs.mlp_loss,
        inputs,
        kind="training",
        target=Target(1.2),
        flops=2 * 128 * (3 * products - 784 * 512),
        tolerance=1e-4,
        state=6,
        optimizer=optimizer,
        quick=optimizer == "adam",
    )


def _convnet() -> Workload:
    def inputs(rng: np.random.Generator) -> list[np.ndarray]:
        batch = [normal(rng, (64, 1, 28, 28)), rng.integers(0, 10, 64).astype(np.int32)]
        return programs.convnet_parameters(rng) + batch

    first, second, third = 784 * 16 * 9, 196 * 32 * 16 * 9, 1568 * 10
    return Workload(
        "convnet step, adam",
        "training",
        programs.convnet_loss,
        inputs,
        kind="training",
        target=Target(2.0),
        flops=2 * 64 * (2 * first + 3 * second + 3 * third),
        tolerance=1e-4,
        state=6,
        optimizer="adam",
        images=True,
        quick=True,
    )


def _gpt_training() -> Workload:
    vocabulary, size, width, layers = 65, 256, 384, 6

    def inputs(rng: np.random.Generator) -> list[np.ndarray]:
        batch = [
            rng.integers(0, vocabulary, shape).astype(np.int32) for shape in ((8, size), 8 * size)
        ]
        return programs.gpt_parameters(rng, vocabulary, size, width, layers) + batch

    weights = layers * 12 * width**2 + vocabulary * width
    return Workload(
        "GPT step, adamw",
        "training",
        programs.gpt_loss(heads=6),
        inputs,
        kind="training",
        target=Target(1.2),
        flops=3 * 8 * size * (2 * weights + layers * 2 * size * width),
        tolerance=1e-4,
        state=4 + programs.PER_LAYER * layers,
        optimizer="adamw",
        images=False,
    )


def _gpt_decode() -> Workload:
    vocabulary, width, layers, heads, cached = 50257, 768, 12, 12, 128
    shape = (1, heads, cached, width // heads)

    def inputs(rng: np.random.Generator) -> list[np.ndarray]:
        caches = [normal(rng, shape) for _ in range(2 * layers)]
        parameters = programs.gpt_parameters(rng, vocabulary, 1024, width, layers)
        return [*caches, *parameters, np.array([464], np.int32)]

    weights = layers * 12 * width**2 + vocabulary * width
    count = 4 + programs.PER_LAYER * layers
    return Workload(
        "GPT-2-small decode, one token",
        "inference",
        programs.gpt_decode(heads, layers, cached - 1),
        inputs,
        kind="stateful",
        target=Target(1.05, limit_fraction=1 / 1.2),
        flops=2 * weights,
        reads=4 * weights + _bytes(shape) * 2 * layers,
        tolerance=1e-4,
        constants=tuple(range(2 * layers, 2 * layers + count)),
        state=2 * layers,
    )


def _chain() -> Workload:
    def inputs(rng: np.random.Generator) -> list[np.ndarray]:
        return [normal(rng, (64, 64)), normal(rng, (64, 64), 0.15)]

    return Workload(
        "50 x tanh(x @ w), 64x64",
        "inference",
        programs.chain,
        inputs,
        target=Target(1.3, any_threads=True),
        flops=50 * 2 * 64**3,
        reads=_bytes((64, 64)) * 2,
        writes=_bytes((64, 64)),
        tolerance=1e-4,
        constants=(1,),
        quick=True,
    )


def _whole_processes() -> list[Workload]:
    """Those whose unit is a process; `start.py` measures them."""
    mlp, gpt = _mlp("adam"), _gpt_training()
    start = replace(mlp, group="process", kind="start", flops=0, quick=False)
    return [
        replace(
            start, name="start to first loss, empty cache [ms]", target=Target(at_most_ms=800.0)
        ),
        replace(start, name="start to first loss, warm cache [ms]", target=Target(at_most_ms=250)),
        replace(
            gpt,
            name="GPT step, peak memory [MB]",
            group="process",
            kind="memory",
            target=Target(),
            flops=0,
        ),
    ]


def _in_bfloat16(row: Workload) -> Workload:
    """The same with operands and results of half the size."""
    return replace(
        row,
        name=f"{row.name} bfloat16",
        inputs=lambda rng: [value.astype(ml_dtypes.bfloat16) for value in row.inputs(rng)],
        half=True,
        tolerance=2e-2,
        reads=row.reads / 2,
        writes=row.writes / 2,
    )


def _in_tf32(row: Workload) -> Workload:
    """The same, on operands that may be rounded to 11 bits: each is off by 2**-11 at most."""
    return replace(row, name=f"{row.name} tf32", tf32=True, tolerance=3e-3)


def gpu_workloads() -> list[Workload]:
    """Those for a GPU: as large as one needs, and with targets of their own."""
    square = (4096, 4096)
    product = _product("A@B 4096", square, square, "matmul", Target(0.9))
    large = _product("A@B 8192", (8192, 8192), (8192, 8192), "matmul", Target(0.6))
    shape = (16 * MILLION,)
    copy = Workload(
        "x+1 16M",
        "element-wise",
        lambda lib, x: x + 1,
        _shapes(shape),
        target=Target(LEVEL, 0.9),
        reads=_bytes(shape),
        writes=_bytes(shape),
    )
    gelu = _gelu("16M, GPU", 4096, 4096, Target(LEVEL, 0.9))
    rows = [
        replace(row, name=f"{row.name}, GPU", target=Target(LEVEL, 0.85)) for row in _row_wise()
    ]
    attention = [
        replace(row, name=f"{row.name}, GPU", target=Target(0.5))
        for plain in _attention(2048, True)
        for row in (plain, _in_tf32(plain), _in_bfloat16(plain))
    ]
    steps = [
        replace(row, name=f"{row.name}, GPU", target=Target(1.0))
        for row in (_mlp("adam"), _gpt_training())
    ]
    chain = replace(_chain(), name="50 x tanh(x @ w), 64x64, GPU", target=Target(1.0))
    products = [product, replace(_in_tf32(product), target=Target(0.8))]
    products += [_in_bfloat16(row) for row in (replace(product, target=Target(0.6)), large)]
    return [copy, gelu, *rows, *_updates(), *products, *attention, *steps, chain]


def _updates() -> list[Workload]:
    """What a training step of a large model does beside its products: passes over memory."""
    scores = (4096, 50257)
    count = 32 * MILLION
    losses = Workload(
        "cross-entropy of 4096 x 50257, its gradient",
        "training",
        lambda lib, x, labels: lib.cross_entropy(x, labels),
        lambda rng: [
            normal(rng, scores),
            rng.integers(0, scores[1], scores[0]).astype(np.int32),
            np.ones((), np.float32),
        ],
        kind="backward",
        target=Target(LEVEL, 0.9),
        wrt=(0,),
        reads=_bytes(scores),
        writes=_bytes(scores),
    )
    adam = Workload(
        "adam of 32M",
        "training",
        lambda lib, weight, gradient: lib.sum(weight * gradient),
        _shapes((count,), (count,)),
        kind="training",
        target=Target(LEVEL, 0.9),
        reads=4 * _bytes((count,)),
        writes=3 * _bytes((count,)),
        tolerance=1e-4,
        state=1,
        optimizer="adam",
    )
    return [losses, adam]


def all_workloads() -> list[Workload]:
    """All of them, in the order of the table."""
    sizes = [(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1000, 777, 333)]
    return [
        _gelu("16M", 4096, 4096, Target(1.5)),
        _gelu("16K", 16, 1024, Target(2.0, any_threads=True)),
        *_row_wise(),
        *(row for size in sizes for row in _forms(*size)),
        *_skinny(),
        _bfloat16(),
        *_convs(),
        *(row for case in ((512, False), (512, True), (2048, False)) for row in _attention(*case)),
        _mlp("sgd"),
        _mlp("adam"),
        _convnet(),
        _gpt_training(),
        _gpt_decode(),
        _chain(),
        *_whole_processes(),
    ]
