"""Convolutions and their gradients: windows, long sums, sums of sums, on every kind of target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels import load, mul, store, total
from tests.roles import of_kind, the_copy, the_reduce

from ferrule.codegen.analysis.window import distance
from ferrule.codegen.interpret import extent, interpret
from ferrule.codegen.kernel import Kernel, Kind, Nest
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.plan import loads
from ferrule.codegen.uops import UOps, verify
from ferrule.device import Device
from ferrule.dtype import dtypes
from ferrule.ir.buffer import Buffer
from ferrule.ir.expr import ExprOp
from ferrule.ir.target import Target, detect_cpu
from ferrule.ops import LazyOp
from ferrule.tensor import Tensor

HOST = detect_cpu()
TARGETS = [
    replace(HOST, name="512", vector_bytes=64, n_vector_registers=32, max_threads=2),
    replace(HOST, name="128", vector_bytes=16, n_vector_registers=16, max_threads=1),
    replace(HOST, name="caches", l2_bytes=4096, max_threads=8),
]


@dataclass(frozen=True)
class Convolution:
    """The sizes of one: images x channels x height x width, filters, taps, and how they move."""

    images: int = 2
    channels: int = 3
    filters: int = 6
    height: int = 5
    width: int = 7
    taps: int = 3
    padding: int = 1
    stride: int = 1
    dilation: int = 1

    @property
    def padded(self) -> tuple[int, int]:
        return self.height + 2 * self.padding, self.width + 2 * self.padding

    @property
    def out(self) -> tuple[int, int]:
        reach = (self.taps - 1) * self.dilation
        rows, columns = ((n - reach - 1) // self.stride + 1 for n in self.padded)
        return rows, columns

    @property
    def full(self) -> tuple[int, ...]:
        """Sizes: image, filter, row, column, channel, tap row, tap column."""
        return (self.images, self.filters, *self.out, self.channels, self.taps, self.taps)

    def windows(self, slot: int) -> LazyOp:
        x = load(slot, self.images, self.channels, self.height, self.width)
        around = (self.padding, self.padding)
        step = (self.taps, self.stride, self.dilation)
        windows = x.pad(((0, 0), (0, 0), around, around)).window(2, *step).window(3, *step)
        moved = windows.permute((0, 2, 3, 1, 4, 5))  # image, row, column, channel, taps
        return moved.reshape((self.images, 1, *moved.shape[1:])).expand(self.full)

    def weights(self, slot: int) -> LazyOp:
        w = load(slot, self.filters, self.channels, self.taps, self.taps)
        return w.reshape((1, self.filters, 1, 1, *w.shape[1:])).expand(self.full)

    def results(self, slot: int) -> LazyOp:
        g = load(slot, self.images, self.filters, *self.out)
        return g.reshape((*g.shape, 1, 1, 1)).expand(self.full)

    def forward(self) -> LazyOp:
        return store(total(mul(self.windows(1), self.weights(2)), 4, 5, 6))

    def weight_gradient(self) -> LazyOp:
        return store(total(mul(self.results(1), self.windows(2)), 0, 2, 3))

    def depthwise(self) -> LazyOp:
        return store(total(mul(*self._each_channel()), 4, 5))

    def depthwise_weight_gradient(self) -> LazyOp:
        windows, _ = self._each_channel()
        g = load(2, self.images, self.channels, *self.out)
        g = g.reshape((*g.shape, 1, 1)).expand(windows.shape)
        return store(total(mul(windows, g), 0, 2, 3))

    def depthwise_input_gradient(self) -> LazyOp:
        _, weights = self._each_channel()
        g = load(1, self.images, self.channels, *self.out)
        return self._adjoint(mul(g.reshape((*g.shape, 1, 1)).expand(weights.shape), weights))

    def _each_channel(self) -> tuple[LazyOp, LazyOp]:
        """Both as (image, channel, row, column, tap row, tap column)."""
        x = load(1, self.images, self.channels, self.height, self.width)
        around = (self.padding, self.padding)
        step = (self.taps, self.stride, self.dilation)
        windows = x.pad(((0, 0), (0, 0), around, around)).window(2, *step).window(3, *step)
        w = load(2, self.channels, self.taps, self.taps)
        w = w.reshape((1, self.channels, 1, 1, self.taps, self.taps))
        return windows, w.expand(windows.shape)

    def input_gradient(self) -> LazyOp:
        part = total(mul(self.results(1), self.weights(2)), 1)
        images, _, rows, columns, channels, taps, _ = part.shape
        part = part.reshape((images, rows, columns, channels, taps, taps))
        return self._adjoint(part.permute((0, 3, 1, 2, 4, 5)))

    def _adjoint(self, part: LazyOp) -> LazyOp:
        """The sum over all windows of (image, channel, row, column, tap row, tap column)."""
        images, channels, rows, _, taps, _ = part.shape
        step = (self.stride, self.dilation)
        along = total(part.unwindow(3, self.padded[1], *step), 5)
        along = along.reshape((images, channels, rows, self.padded[1], taps))
        across = total(along.unwindow(2, self.padded[0], *step), 4)
        inside = across.reshape((images, channels, *self.padded))
        p, height, width = self.padding, self.height, self.width
        return store(inside.shrink(((0, images), (0, channels), (p, p + height), (p, p + width))))


CASES = [
    Convolution(),
    Convolution(taps=1, padding=0, channels=17),
    Convolution(stride=2, height=7),
    Convolution(dilation=2, padding=2, images=1),
    Convolution(stride=3, taps=2, padding=0, height=8),
    Convolution(channels=1, filters=20, images=1),
    Convolution(channels=19, filters=4, height=3, width=17, images=1),
    Convolution(taps=3, padding=2, height=1, width=6),
    Convolution(stride=2, taps=4, channels=17, height=6, width=9),
    Convolution(stride=3, taps=4, dilation=2, padding=2, height=11, width=14, images=1),
    Convolution(stride=2, taps=5, padding=2, channels=2, filters=17, width=24, images=1),
    Convolution(stride=2, dilation=2, padding=2, width=8, images=1),
    Convolution(taps=4, stride=4, padding=0, filters=33, height=13, width=22),
    Convolution(taps=2, stride=3, channels=5, filters=20, height=8, width=20, images=1),
    Convolution(taps=1, stride=2, padding=0, channels=17, filters=9, height=6, width=9),
    Convolution(taps=7, padding=3, channels=2, height=9, width=11, images=1),
    Convolution(taps=9, padding=4, channels=1, filters=4, height=10, width=11, images=1),
    Convolution(taps=5, stride=2, padding=2, channels=2, height=14, width=14, images=1),
]
KINDS = [
    *("forward", "weight_gradient", "input_gradient"),
    *("depthwise", "depthwise_weight_gradient", "depthwise_input_gradient"),
]


def inputs_of(ast: LazyOp) -> list[np.ndarray]:
    leaves = {n.arg.idx: n for n in ast.toposort() if not n.src and n.shape}
    generator = np.random.default_rng(0)
    return [
        generator.standard_normal(leaves[i].arg.st.real_size()).astype(np.float32) for i in (1, 2)
    ]


def run(device: str, ast: LazyOp) -> np.ndarray:
    buffers = [Buffer(device, prod(ast.src[0].shape), dtypes.float32)]
    buffers += [Buffer.fromCPU(device, x) for x in inputs_of(ast)]
    Device[device].get_runner(ast).exec(buffers)
    return buffers[0].toCPU()


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_no_access_out_of_range(kind: str, case: Convolution, target: Target) -> None:
    ast = getattr(case, kind)()
    linearizer = Linearizer(ast, target).linearize()
    verify(linearizer.uops)
    out = np.full(prod(ast.src[0].shape), np.nan, np.float32)
    chunks = extent(linearizer.uops, [])
    for chunk in reversed(range(chunks)):
        interpret(linearizer.uops, [out, *inputs_of(ast)], [], chunk, chunk + 1)
    np.testing.assert_allclose(out, run("NUMPY", ast), rtol=1e-4, atol=1e-4)


@given(
    st.builds(
        Convolution,
        images=st.integers(1, 3),
        channels=st.integers(1, 20),
        filters=st.integers(4, 40),
        height=st.integers(1, 20),
        width=st.integers(1, 40),
        taps=st.integers(1, 4),
        padding=st.integers(0, 3),
        stride=st.integers(1, 3),
        dilation=st.integers(1, 2),
    ),
    st.sampled_from(KINDS),
)
@settings(max_examples=60)
def test_sizes_of_all_kinds(case: Convolution, kind: str) -> None:
    if min(case.out) < 1:
        return
    ast = getattr(case, kind)()
    np.testing.assert_allclose(run("CPU", ast), run("NUMPY", ast), rtol=1e-4, atol=2e-3)


@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from([(1, 4, 5), (2, 1, 1), (2, 3, 6), (1, 17, 8)]),
)
@settings(max_examples=40)
def test_transposed_convolutions(
    count: int,
    taps: int,
    stride: int,
    dilation: int,
    padding: int,
    extra: int,
    sizes: tuple[int, int, int],
) -> None:
    """Any number of axes, in groups, and with more work on the result."""
    groups, channels, filters = sizes
    places = (5, 4, 3)[:count]
    out = [(n - 1) * stride + dilation * (taps - 1) + 1 + extra for n in places]
    if min(out) <= 2 * padding or extra >= max(stride, dilation):  # both are refused
        return
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, groups * channels, *places))
    w = generator.standard_normal((groups * channels, filters, *(taps,) * count))
    expected = np.zeros((2, groups, filters, *out))
    for tap in np.ndindex(*w.shape[2:]):
        first = [k * dilation for k in tap]
        at = [slice(k, k + n * stride, stride) for k, n in zip(first, places, strict=True)]
        each = w[(..., *tap)].reshape(groups, channels, filters)
        parts = np.einsum("ngc...,gcf->ngf...", x.reshape(2, groups, channels, *places), each)
        expected[(..., *at)] += parts
    expected = expected.reshape(2, groups * filters, *out)
    expected = expected[(..., *(slice(padding, n - padding) for n in out))]
    found = Tensor(x.astype(np.float32)).conv_transpose2d(
        Tensor(w.astype(np.float32)),
        groups=groups,
        stride=stride,
        dilation=dilation,
        padding=padding,
        output_padding=extra,
    )
    np.testing.assert_allclose(found.relu().numpy(), np.maximum(expected, 0), 1e-4, 1e-4)


LARGE = [
    Convolution(images=1, channels=64, filters=16, height=1, width=20_000),
    Convolution(images=1, channels=130, filters=8, height=3, width=3_000),
    Convolution(images=1, channels=1, filters=4, height=1_500, width=1_400),
    Convolution(images=1, channels=2, filters=4, height=600, width=700, stride=2),
]


@pytest.mark.parametrize("case", LARGE, ids=str)
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "input_gradient"])
def test_large_images(case: Convolution, kind: str) -> None:
    """Copies of what is large stay within a thread's stack."""
    if kind.startswith("depthwise") and case.channels > 2:
        return
    ast = getattr(case, kind)()
    device = Device["CPU"]
    plain = device.to_program(Linearizer(ast, HOST, opts=()))
    results = []
    for runner in (plain, device.get_runner(ast)):
        buffers = [Buffer("CPU", prod(ast.src[0].shape), dtypes.float32)]
        buffers += [Buffer.fromCPU("CPU", x) for x in inputs_of(ast)]
        runner.exec(buffers)
        results.append(buffers[0].toCPU())
    largest = np.abs(results[0]).max()
    np.testing.assert_allclose(results[1], results[0], rtol=1e-3, atol=1e-4 * largest)


def test_a_window_beside_another_load_of_the_same_memory() -> None:
    # `triu` compares two loads of the memory that counts; only one of them moves with the window.
    row = np.arange(14, dtype=np.float32)
    rows = np.broadcast_to(row, (4, 14))
    x = Tensor(row).realize().unsqueeze(0).expand(4, 14)
    np.testing.assert_array_equal(x.triu().cumsum(0).numpy(), np.triu(rows).cumsum(0))


# -- what is copied, and what is fetched -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["forward", "weight_gradient", "input_gradient"])
def test_rows_of_an_image_are_copied_as_they_lie(kind: str) -> None:
    """Nothing is transposed but what lanes run along: the other operand is loaded one by one."""
    case = Convolution(channels=64, filters=64, height=28, width=28, taps=5, padding=2)
    kernel = Linearizer(getattr(case, kind)(), TARGETS[0]).scheduled
    image = the_copy(kernel, 2 if kind == "weight_gradient" else 1)
    assert [loop.kind for loop in image.loops[-2:]] == [Kind.SERIAL, Kind.VECTOR]


@pytest.mark.parametrize(
    ("taps", "filters", "along_filters"),
    [(4, 96, True), (2, 16, True), (1, 64, True), (4, 4, False)],
)
def test_patches_are_read_in_place(taps: int, filters: int, along_filters: bool) -> None:
    """Several lines of places share a copy of the filters, and lanes run along these, unless they
    are too few.
    """
    size = 16 * max(taps, 2)
    case = Convolution(
        filters=filters, height=size, width=size, taps=taps, padding=0, stride=max(taps, 2)
    )
    kernel, copies = _copies(replace(case, channels=32 // taps).forward(), TARGETS[0])
    lanes = of_kind(the_reduce(kernel), Kind.VECTOR)[0].range
    assert (kernel.origin(lanes).size.arg == filters) == along_filters
    if along_filters:
        (packed,) = copies
        assert packed.at is not None
        user, depth = packed.at
        (root,) = [nest for nest in kernel.nests if nest.name == user]
        assert root.loops[depth].range.size.max == 4  # for as many lines


@pytest.mark.parametrize(("size", "padded"), [(30, True), (26, False)])
def test_channels_of_a_copy_are_in_different_sets(size: int, padded: bool) -> None:
    """32 lines of 32 floats are a page, and so is a way of the first cache."""
    target = replace(TARGETS[0], l1_bytes=32 << 10)
    case = Convolution(images=1, channels=13, filters=16, height=size, width=size)
    ast = case.weight_gradient()
    linearizer = Linearizer(ast, target).linearize()
    (copy,) = the_copy(linearizer.scheduled, 2).computes
    assert bool(copy.padding) == padded
    out = np.full(prod(ast.src[0].shape), np.nan, np.float32)
    interpret(linearizer.uops, [out, *inputs_of(ast)], [], 0, extent(linearizer.uops, []))
    np.testing.assert_allclose(out, run("NUMPY", ast), rtol=1e-4, atol=1e-3)


def _copies(ast: LazyOp, target: Target) -> tuple[Kernel, list[Nest]]:
    """A scheduled kernel and its copies: of the filters or the result's gradient, and of rows."""
    kernel = Linearizer(ast, target).scheduled
    return kernel, [n for n in kernel.nests if ".copy" in n.name]


@pytest.mark.parametrize(
    ("kind", "ahead"),
    [
        # rows: channels later by 8 KB of copies; the gradient of the result: the block's next lines
        ("weight_gradient", [12 * 24, 5 * 24 * 24]),
        # rows of five taps: whole channels, with a border; the filters stay in the cache
        ("forward", [3 * 24 * 24, None]),
        ("input_gradient", [3 * 24 * 24, None]),
    ],
)
def test_what_is_copied_next_is_fetched(kind: str, ahead: list[int | None]) -> None:
    taps = 3 if kind == "weight_gradient" else 5
    case = Convolution(
        images=8, channels=16, filters=16, height=24, width=24, taps=taps, padding=taps // 2
    )
    for l2_bytes, expected in ((1 << 17, ahead), (1 << 20, [None, None])):
        _, copies = _copies(getattr(case, kind)(), replace(TARGETS[0], l2_bytes=l2_bytes))
        assert [dict(n.ahead).get(n.computes[0].value.arg) for n in copies] == expected


@pytest.mark.parametrize("kind", ["forward", "input_gradient"])
def test_large_filters_are_fetched_too(kind: str) -> None:
    case = Convolution(channels=64, filters=64, height=12, width=12)
    _, copies = _copies(getattr(case, kind)(), replace(TARGETS[0], l2_bytes=1 << 17))
    # 16 filters of 16 neighbours are a KB, and so are about 16 channels of 9 taps
    ahead = {"forward": 8 * 16, "input_gradient": 4 * 64 * 9}[kind]
    assert copies[0].ahead == ((2, ahead),)


def test_a_line_is_fetched_by_the_load_in_which_it_begins() -> None:
    """A square of 8 channels, 36 bytes apart, has the beginnings of 5 lines; so has that of the
    ninth tap.
    """
    case = Convolution(channels=64, filters=64, height=12, width=12)
    uops = Linearizer(case.input_gradient(), replace(TARGETS[0], l2_bytes=1 << 17)).linearize().uops
    fetched = [u for u in uops if u.op is UOps.PREFETCH and u.src[0].arg == 2]
    assert len(fetched) == 2 * 5


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", ["forward", "input_gradient"])
def test_filters_are_transposed_square_by_square_in_the_order_of_memory(
    kind: str, stride: int
) -> None:
    """With a stride too, whose phases are between each other's taps."""
    case = Convolution(channels=16, filters=32, height=28, width=28, stride=stride)
    _, (filters,) = _copies(getattr(case, kind)(), TARGETS[0])
    assert [loop.kind for loop in filters.loops[-2:]] == [Kind.TRANSPOSE, Kind.VECTOR]
    (element,) = loads(filters.computes[0].value)
    steps = [distance(element.src[0], loop.range) for loop in filters.loops]
    assert steps[:-2] == sorted(steps[:-2], reverse=True)
    assert steps[-2] == 1
    if kind == "forward":  # channels and taps are one line of 144
        assert [loop.peel for loop in filters.loops] == [None] * 4


@pytest.mark.parametrize("stride", [1, 2])
def test_blocks_of_lines_are_as_large_as_the_cache_allows(stride: int) -> None:
    case = Convolution(images=2, channels=16, filters=16, height=48, width=24, stride=stride)
    target = replace(TARGETS[0], l2_bytes=1 << 17)
    kernel, copies = _copies(case.weight_gradient(), target)
    lines = max(loop.range.size.arg for loop in the_reduce(kernel).loops[:2])
    size = sum(4 * prod(r.size.arg for r in n.computes[0].ranges) for n in copies)
    assert lines > 1
    assert target.l2_bytes // 8 < size <= target.l2_bytes * 5 // 8  # vectors may have tails


@pytest.mark.parametrize(
    ("taps", "stride", "size", "lines"),
    [(3, 1, 16, 4), (7, 1, 7, 7), (8, 1, 16, 6), (3, 2, 28, 7), (5, 2, 14, 7)],
)
def test_taps_of_a_depthwise_sum_are_multiplied_once(
    taps: int, stride: int, size: int, lines: int
) -> None:
    """For some lines at a time; with a stride too, whose phases make an even number of them."""
    case = Convolution(height=size, width=size, taps=taps, padding=taps // 2, stride=stride)
    uops = Linearizer(case.depthwise(), TARGETS[0]).linearize().uops
    assert sum(u.op is UOps.ALU and u.arg is ExprOp.MULACC for u in uops) == lines * taps**2


@pytest.mark.parametrize(("taps", "copies"), [(5, 25), (7, 7)])
def test_sums_for_each_tap_stay_in_registers(taps: int, copies: int) -> None:
    """What does not fit there is another turn over the same copy."""
    case = Convolution(height=16, width=16, taps=taps, padding=taps // 2)
    linearizer = Linearizer(case.depthwise_weight_gradient(), TARGETS[0]).linearize()
    uops = linearizer.uops
    assert sum(u.op is UOps.ALU and u.arg is ExprOp.MULACC for u in uops) == copies
    assert len([n for n in linearizer.scheduled.nests if ".copy" in n.name]) == 1


@pytest.mark.parametrize(("size", "stride"), [(14, 2), (28, 2), (21, 3)])
def test_phases_of_a_line_are_shuffled_not_gathered(size: int, stride: int) -> None:
    case = Convolution(height=size, width=size, taps=5, padding=2, stride=stride)
    uops = Linearizer(case.depthwise(), TARGETS[0]).linearize().uops
    vectors = [u for u in uops if u.op is UOps.LOAD and u.lanes > 1]
    assert vectors
    assert all(u.src[1].lanes == 1 for u in vectors)


@pytest.mark.parametrize("taps", [1, 3])
def test_results_that_no_cache_keeps_are_fetched_before_their_sums(taps: int) -> None:
    """Once for each vector of a result."""
    case = Convolution(channels=16, filters=16, height=16, width=16, taps=taps, padding=taps // 2)
    assert "fetching" not in str(Linearizer(case.forward(), replace(TARGETS[0], l2_bytes=1 << 20)))
    linearizer = Linearizer(case.forward(), replace(TARGETS[0], l2_bytes=1 << 14)).linearize()
    assert ", fetching b0 before it is computed" in str(linearizer)
    uops = linearizer.uops
    fetched = [i for i, u in enumerate(uops) if u.op is UOps.PREFETCH and u.src[0].arg == 0]
    stored = [i for i, u in enumerate(uops) if u.op is UOps.STORE and u.src[0].op is UOps.PARAM]
    assert len(fetched) == len(stored)
    sums = [i for i, u in enumerate(uops) if u.op is UOps.ALU and u.arg is ExprOp.MULACC]
    assert fetched[-1] < sums[0] < sums[-1] < stored[0]
