"""The kernels of training steps, and others, against their rooflines on an H200: none is estimated
far beyond its own.

A roofline is the time of a kernel's bytes at the speed of memory, or of its arithmetic on all
multiprocessors if that is longer, and a launch. Nothing is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tests.gpus import told
from tests.planning import forget

from ferrule import Context, Tensor, fusion, nn
from ferrule.codegen.estimate_blocks import BlockWork, least_block_cycles
from ferrule.codegen.linearizer import Linearizer
from ferrule.dtype import dtypes
from ferrule.fusion import make_schedule
from ferrule.nn.state import get_parameters
from ferrule.ops import LazyOp
from ferrule.runtime.cuda.driver import gpu_target

H200 = gpu_target(told("sm_90a", GLOBAL_MEMORY_BUS_WIDTH=6144, MEMORY_CLOCK_RATE=3_201_000))
BENCH = Path(__file__).parents[2] / "bench"
MOST = 10.0
"""The estimate of a kernel, in its roofline."""


def empty(*shape: int) -> Tensor:
    return Tensor.empty(*shape, requires_grad=True)


def narrow(*shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=dtypes.bfloat16)


def places(*shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=dtypes.int32)


PROGRAMS: dict[str, Callable[[], Tensor]] = {
    "copy": lambda: empty(1 << 26) + 1,
    "transpose": lambda: empty(8192, 8192).T.contiguous(),
    "transpose of a narrow float": lambda: narrow(4096, 8192).T.contiguous(),
    "channels first": lambda: empty(32, 224, 224, 3).permute(0, 3, 1, 2).contiguous(),
    "rows": lambda: empty(4096, 4096).sum(1),
    "columns": lambda: empty(4096, 4096).sum(0),
    "few long rows": lambda: empty(8, 1 << 20).max(1),
    "many short rows": lambda: empty(1 << 20, 3).sum(1),
    "few columns": lambda: empty(1 << 20, 8).sum(0),
    "channels": lambda: empty(32, 64, 56, 56).sum((0, 2, 3)),
    "all": lambda: empty(4096, 4096).sum(),
    "softmax": lambda: empty(4096, 4096).softmax(-1),
    "softmax of long rows": lambda: empty(128, 50257).softmax(-1),
    "softmax of columns": lambda: empty(4096, 4096).softmax(0),
    "layernorm": lambda: nn.LayerNorm(1024)(empty(4096, 1024)),
    "argmax": lambda: empty(4096, 4096).argmax(1),
    "greatest of many": lambda: empty(1 << 20).topk(10)[0],
    "running totals": lambda: empty(64, 4096).cumsum(1),
    "running totals of columns": lambda: empty(4096, 256).cumsum(0),
    "a long running total": lambda: empty(1 << 24).cumsum(0),
    "pooling": lambda: empty(32, 64, 112, 112).max_pool2d((3, 3), 2, padding=1),
    "depthwise": lambda: empty(32, 64, 56, 56).conv2d(empty(64, 1, 3, 3), padding=1, groups=64),
    "one image": lambda: empty(1, 256, 14, 14).conv2d(empty(256, 256, 3, 3), padding=1),
    "embedding": lambda: empty(50257, 768)[places(8192)],
    "attention": lambda: narrow(4, 8, 1024, 64).scaled_dot_product_attention(
        narrow(4, 8, 1024, 64), narrow(4, 8, 1024, 64), is_causal=True
    ),
}
PRODUCTS = [
    (4096, 4096, 4096),
    (128, 128, 128),
    (1, 4096, 4096),
    (8, 4096, 4096),
    (64, 64, 65536),
    (4096, 4096, 16),
    (100, 200, 300),
    (16, 50257, 768),
    (4096, 1, 4096),
    (3, 5, 100_000),
]
"""Rows, columns and terms."""


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("first_calls")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans as for a GPU, whether there is one or not."""
    monkeypatch.setattr(fusion, "target_of", lambda device: H200)


def kernels_of(*results: Tensor) -> list[LazyOp]:
    """The different kernels that compute something."""
    plan = make_schedule([x.lazydata for x in results]).plan
    return list(dict.fromkeys(ast for found in plan.kernels.values() for ast in found))


def loss_of(name: str, models: ModuleType) -> tuple[object, Tensor]:
    """A model, and its loss for some data."""
    if name == "ResNet-18":
        model = models.ResNet18()
        return model, model(empty(32, 3, 128, 128)).sparse_categorical_crossentropy(places(32))
    if name == "GPT":
        model = models.GPT()
        logits = model(places(8, 256)).reshape(8 * 256, -1)
        return model, logits.sparse_categorical_crossentropy(places(8 * 256))
    model, x = models.UNet(), empty(16, 3, 64, 64)
    return model, ((model(x, empty(16)) - x) ** 2).mean()


def beyond(kernels: list[LazyOp]) -> dict[str, float]:
    """The kernels whose estimate is beyond `MOST` of their rooflines, in these."""
    found = {}
    for ast in kernels:
        made = Linearizer(ast, H200)
        taken = BlockWork(made.scheduled, H200).estimate().cycles
        found[made.name] = taken / least_block_cycles(made.kernel, H200)
    return {name: ratio for name, ratio in found.items() if ratio > MOST}


KNOWN = {
    # The gradient of the positions: each row adds up a batch, and is scattered in its order. The
    # sums are computed where they are added, by as many threads as there are columns.
    "GPT": 1,
    # The gradient of the first filters, of three channels: each element that a tile copies is used
    # three times.
    "U-Net": 1,
    # The last kernel adds up sums of groups for each element: 33 loads, 16 of which are the same
    # for all of a group. A block that goes along its row would need each once.
    "running totals": 1,
}
"""The kernels that are beyond, and why."""


@pytest.mark.parametrize("name", ["ResNet-18", "GPT", "U-Net"])
def test_no_kernel_of_a_step_is_far_beyond_its_roofline(name: str, models: ModuleType) -> None:
    forget()
    with Tensor.train(), Context(FERRULE_SKIP="lengths"):
        model, loss = loss_of(name, models)
        parameters = get_parameters(model)
        loss.backward()
        gradients = [p.grad for p in parameters if p.grad is not None]
        kernels = kernels_of(loss, *gradients)
    assert len(kernels) > 20
    found = beyond(kernels)
    assert len(found) == KNOWN.get(name, 0), found


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_kernel_of_a_program_is_far_beyond_its_roofline(name: str) -> None:
    forget()
    found = beyond(kernels_of(PROGRAMS[name]()))
    assert len(found) == KNOWN.get(name, 0), found


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("size", PRODUCTS, ids=str)
def test_no_product_is_far_beyond_its_roofline(size: tuple[int, int, int], dtype: object) -> None:
    forget()
    rows, columns, terms = size
    make = empty if dtype is dtypes.float32 else narrow
    assert not beyond(kernels_of(make(rows, terms) @ make(terms, columns)))


def test_the_published_speeds_are_met() -> None:
    """A copy makes 4.3 TB/s on an H200. On an H100, whose multiprocessors are the same, products of
    4096 x 4096 x 4096 took 3.0 ms in float32 and 0.253 ms in bfloat16 (2026-11-27).
    """

    def seconds(x: Tensor) -> float:
        (ast,) = kernels_of(x)
        return BlockWork(Linearizer(ast, H200).scheduled, H200).estimate().cycles / H200.clock

    forget()
    assert 8 * (1 << 28) / seconds(empty(1 << 28) + 1) == pytest.approx(4.3e12, rel=0.05)
    assert seconds(empty(4096, 4096) @ empty(4096, 4096)) == pytest.approx(3.0e-3, rel=0.2)
    assert seconds(narrow(4096, 4096) @ narrow(4096, 4096)) == pytest.approx(0.253e-3, rel=0.2)


def test_one_thread_for_all_is_seen() -> None:
    """What no schedule was found for is beyond, so that these tests would tell."""
    (ast,) = kernels_of(empty(1024, 1024) + 1)
    made = Linearizer(ast, H200, ())
    taken = BlockWork(made.scheduled, H200).estimate().cycles
    assert taken > 1000 * least_block_cycles(made.kernel, H200)
