"""Where the graph is cut, in which order its kernels run, and what is written in place."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.effort import calls
from tests.kernels import add, load, store
from tests.planning import Work

from ferrule.codegen.lower import lower
from ferrule.device import Buffer, Device
from ferrule.device.capture import Capture
from ferrule.device.runner import JITRunner
from ferrule.dtype import dtypes
from ferrule.engine.realize import realize, run
from ferrule.fusion import _plan, _plans, create_schedule, make_schedule
from ferrule.fusion.plans.graph_key import KeyedGraph
from ferrule.fusion.slots import Slots
from ferrule.ir.buffer import BufferUseError
from ferrule.ir.expr import Variable
from ferrule.ir.lazy import Handle, LazyBuffer
from ferrule.ir.shape.view import ShapeError, View
from ferrule.ir.storage import Storage
from ferrule.ir.target import detect_cpu, usable_cores
from ferrule.ops import (
    BinaryOps,
    BufferOps,
    LazyOp,
    LoadOps,
    MovementOps,
    Op,
    ReduceOps,
    ScheduleItem,
    UnaryOps,
)

Array = np.ndarray[Any, Any]
DEVICE = "NUMPY"


def from_array(array: Array) -> LazyBuffer:
    return LazyBuffer.from_buffer(Buffer.fromCPU(DEVICE, array), array.shape)


def random_array(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def to_array(node: LazyBuffer) -> Array:
    realize([node])
    assert node.realized is not None
    return node.realized.toCPU().reshape(node.shape)


class Value(Handle):
    """A node with broadcasting arithmetic, so that the tests read as formulas."""

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.node.shape

    def two(self, op: Op, other: Value | float) -> Value:
        if not isinstance(other, Value):
            other = Value(LazyBuffer.const(other, self.node.dtype, (), self.node.device))
        shape = np.broadcast_shapes(self.shape, other.shape)
        return Value(self.broadcast(shape).e(op, other.broadcast(shape)))

    def broadcast(self, shape: tuple[int, ...]) -> LazyBuffer:
        missing = len(shape) - len(self.shape)
        return self.node.reshape((1,) * missing + self.shape).expand(shape)

    def __add__(self, other: Value | float) -> Value:
        return self.two(BinaryOps.ADD, other)

    def __sub__(self, other: Value | float) -> Value:
        return self.two(BinaryOps.SUB, other)

    def __mul__(self, other: Value | float) -> Value:
        return self.two(BinaryOps.MUL, other)

    def __truediv__(self, other: Value | float) -> Value:
        return self.two(BinaryOps.DIV, other)

    def relu(self) -> Value:
        return self.two(BinaryOps.MAX, 0.0)

    def exp(self) -> Value:
        return Value((self * math.log2(math.e)).node.e(UnaryOps.EXP2))

    def log(self) -> Value:
        return Value(self.node.e(UnaryOps.LOG2)) * math.log(2)

    def sqrt(self) -> Value:
        return Value(self.node.e(UnaryOps.SQRT))

    def sum(self, *axes: int) -> Value:
        return Value(self.node.r(ReduceOps.SUM, axes))

    def max(self, *axes: int) -> Value:
        return Value(self.node.r(ReduceOps.MAX, axes))

    def mean(self, *axes: int) -> Value:
        return self.sum(*axes) * (1 / math.prod(self.shape[axis] for axis in axes))

    def reshape(self, *shape: int) -> Value:
        return Value(self.node.reshape(shape))

    @property
    def transposed(self) -> Value:
        rank = len(self.shape)
        return Value(self.node.permute((*range(rank - 2), rank - 1, rank - 2)))

    def __matmul__(self, other: Value) -> Value:
        left = self.reshape(*self.shape[:-1], 1, self.shape[-1])
        right = other.transposed
        right = right.reshape(*right.shape[:-2], 1, *right.shape[-2:])
        product = left * right
        total = product.sum(len(product.shape) - 1)
        return total.reshape(*total.shape[:-1])


def value(*shape: int, seed: int = 0) -> Value:
    return Value(from_array(random_array(*shape, seed=seed)))


def softmax(x: Value, axis: int = -1) -> Value:
    axis %= len(x.shape)
    shifted = (x - x.max(axis)).exp()
    return shifted / shifted.sum(axis)


def normalised(x: Value) -> Value:
    last = len(x.shape) - 1
    centred = x - x.mean(last)
    return centred / ((centred * centred).mean(last) + 1e-5).sqrt()


def gelu(x: Value) -> Value:
    inner = (x + x * x * x * 0.044715) * 0.79788456
    twice = (inner * 2.0).exp()
    return x * 0.5 * ((twice - 1.0) / (twice + 1.0) + 1.0)


def kernels(*values: Value) -> list[ScheduleItem]:
    return make_schedule([each.node for each in values]).items


def reduces(item: ScheduleItem) -> list[LazyOp]:
    return [node for node in item.ast.toposort() if isinstance(node.op, ReduceOps)]


# *** one kernel ***


def test_softmax_is_one_kernel() -> None:
    assert len(kernels(softmax(value(64, 100)))) == 1


def test_softmax_along_the_first_axis_of_an_expression_is_one_kernel() -> None:
    x = value(64, 100) * value(100, seed=1) + value(100, seed=2)
    assert len(kernels(softmax(x, 0))) == 1


def test_layernorm_and_rmsnorm_are_one_kernel() -> None:
    x = value(64, 100)
    assert len(kernels(normalised(x) * value(100, seed=1) + value(100, seed=2))) == 1
    assert len(kernels(x / ((x * x).mean(1) + 1e-5).sqrt())) == 1


def test_logsumexp_is_one_kernel() -> None:
    x = value(64, 100)
    largest = x.max(1)
    assert len(kernels((x - largest).exp().sum(1).log() + largest)) == 1


def test_a_chain_of_elementwise_operations_is_one_kernel() -> None:
    assert len(kernels(gelu(value(1000) * 2.0 + 1.0))) == 1


def test_a_linear_layer_takes_its_bias_and_activation_along() -> None:
    layer = (value(32, 64) @ value(64, 48, seed=1) + value(48, seed=2)).relu()
    assert len(kernels(layer)) == 1


def test_batchnorm_is_one_kernel_for_many_channels() -> None:
    x = value(4, 32, 6, 6)
    centred = x - x.mean(0, 2, 3)
    assert len(kernels(centred / ((centred * centred).mean(0, 2, 3) + 1e-5).sqrt())) == 1


def test_a_sum_whose_terms_would_be_gathered_has_its_own_kernel() -> None:
    image, vector = value(1, 256, 300, seed=2), value(1, 1, 4096)
    in_rows, in_columns = value(1, 4096, 256, seed=1).transposed, value(1, 256, 4096, seed=1)
    assert len(kernels(image + (vector * in_rows).sum(2))) == 2
    assert len(kernels(image + (vector * in_columns).sum(2))) == 1
    few_terms = (value(1, 1, 8) * value(1, 8, 256).transposed).sum(2)
    assert len(kernels(image + few_terms)) == 1
    middle = value(64, 100, 300)
    assert len(kernels(middle / (middle * middle).sum(1).sqrt())) == 1  # lanes are along the sums


def test_a_contraction_finds_interleaved_elements_in_order() -> None:
    filters = value(1, 64, 32, 1, seed=1)

    def product(pixels: LazyBuffer) -> Value:  # (1, 32, pixels) times the filters
        return (Value(pixels.reshape((1, 1, 32, 4096))) * filters).sum(2)

    parts = value(1, 32, 2, 2, 32, 32).node
    shuffled = parts.permute((0, 1, 4, 2, 5, 3)).reshape((1, 32, 64, 64))
    small = value(1, 32, 64, 32, 1).node
    repeated = small.expand((1, 32, 64, 32, 2)).reshape((1, 32, 64, 64))
    turned = value(1, 64, 32, 64).node.permute((0, 2, 1, 3)).reshape((1, 32, 64, 64))
    halves = value(2, 32, 32, 64).node.permute((1, 2, 0, 3)).reshape((1, 32, 64, 64))
    counts = [len(kernels(product(image))) for image in (shuffled, repeated, turned, halves)]
    assert counts == [2, 2, 1, 1]
    assert len(kernels(Value(shuffled).sum(1))) == 1


def test_attention_is_one_kernel_that_keeps_its_scores() -> None:
    query, key, values = (value(2, 64, 32, seed=seed) for seed in range(3))
    (item,) = kernels(softmax(query @ key.transposed * 0.125) @ values)
    assert len(reduces(item)) == 4
    stages = [node for node in item.ast.toposort() if node.op is BufferOps.STAGE]
    assert [(node.shape, node.arg) for node in stages] == [((2, 64, 64), (2,))] * 3


def adjoint_of_windows(taps: int, stride: int, channels: int = 16) -> Value:
    """(4, channels, L): the adjoint of a convolution with 32 filters along one axis."""
    out = 100
    products = value(4, 32, 1, out, 1) * value(1, 32, channels, 1, taps, seed=1)
    parts = products.sum(1).node.reshape((4, channels, out, taps))
    whole = parts.unwindow(2, (out - 1) * stride + taps, stride)
    return Value(whole.r(ReduceOps.SUM, (3,)))


def count_rectified(taps: int, stride: int) -> int:
    """The kernels of a rectified adjoint; nothing else refers to the adjoint, as `assert` would."""
    return len(kernels(adjoint_of_windows(taps, stride).relu()))


def test_windows_that_overlap_are_added_up_where_they_are_made() -> None:
    assert len(kernels(adjoint_of_windows(3, 1))) == 1
    assert count_rectified(3, 2) == 1
    assert len(kernels(adjoint_of_windows(5, 3))) == 1
    assert len(kernels(adjoint_of_windows(1, 2))) == 2  # they leave gaps


def test_windows_side_by_side_are_made_where_they_belong_unless_lanes_would_be_empty() -> None:
    assert len(kernels(adjoint_of_windows(2, 2))) == 1
    assert count_rectified(3, 3) == 1
    assert len(kernels(adjoint_of_windows(7, 7, channels=1))) == 2
    assert len(kernels(adjoint_of_windows(16, 16))) == 2  # the taps are lanes as they lie there


def test_what_a_chain_would_gain_decides_whether_it_keeps_anything() -> None:
    rows, wide, narrow = value(512, 256), value(256, 256, seed=1), value(256, 8, seed=2)
    deep = kernels((rows @ wide).relu() @ wide)
    flat = kernels((value(512, 8) @ narrow.transposed).relu() @ narrow)
    assert (len(deep), len(flat)) == (2, 1)


def attention_and_sum(heads: int, rows: int) -> tuple[Value, Value]:
    """Of weights that nothing else holds: their product with the values, and a sum over rows."""
    query, key, values = (value(heads, rows, 32, seed=seed) for seed in range(3))
    weights = softmax(query @ key.transposed * 0.125)
    return weights @ values, weights.transposed @ query


def test_sums_over_the_blocks_of_a_chain_join_it() -> None:
    heads = 2 * usable_cores()
    (item,) = kernels(*attention_and_sum(heads, 64))
    assert len(item.outputs) == 2
    assert max(buffer.size for buffer in item.buffers) == heads * 64 * 32


# *** several kernels ***


def test_sums_that_would_leave_threads_idle_do_not_join_a_chain() -> None:
    assert (len(kernels(*attention_and_sum(1, 512))) == 1) == (usable_cores() == 1)


def test_a_sum_with_an_epilogue_does_not_join_a_chain() -> None:
    result, total = attention_and_sum(2 * usable_cores(), 64)
    assert len(kernels(result, total.relu())) > 1


def test_weights_of_attention_that_are_held_are_stored() -> None:
    query, key, values = (value(2, 64, 32, seed=seed) for seed in range(3))
    weights = softmax(query @ key.transposed * 0.125)
    items = kernels(weights @ values)
    assert len(items) > 1
    assert any(item.out.size == 2 * 64 * 64 for item in items)


def test_each_matrix_product_of_a_network_is_a_kernel() -> None:
    hidden = (value(32, 100) @ value(100, 64, seed=1) + value(64, seed=2)).relu()
    items = kernels(hidden @ value(64, 40, seed=3) + value(40, seed=4))
    assert [item.out.size for item in items] == [32 * 64, 32 * 40]


def test_a_sum_that_everything_waits_for_is_cut_off_where_threads_would_idle() -> None:
    small, large = value(1000), value(100_000)
    assert len(kernels(small / small.sum(0))) == 1
    assert [item.out.size for item in kernels(large / large.sum(0))][-1] == 100_000
    assert len(kernels(large / large.sum(0))) > 1


def test_the_cut_falls_after_the_epilogue_of_a_reduce() -> None:
    x = value(100_000)
    root = ((x * x).mean(0) + 1e-5).sqrt()
    *_, norm, _ = kernels(x / root)
    assert norm.out.size == 1
    assert norm.ast.src[0].op is UnaryOps.SQRT


def test_reduces_over_both_axes_do_not_share_loops() -> None:
    x = value(64, 100)
    items = kernels(x / x.sum(0) / x.sum(1))
    assert len(items) == 2


def test_what_is_expensive_and_wanted_often_is_computed_once() -> None:
    x = gelu(gelu(value(256, 256)))
    items = kernels(x @ value(256, 256, seed=1))
    assert len(items) == 2
    assert not reduces(items[0])


def test_what_is_cheap_is_computed_again_rather_than_stored() -> None:
    x = value(512, 512) * 2.0
    assert len(kernels(x.sum(0), x.sum(1))) == 2


def test_a_kernel_has_a_bounded_number_of_nodes() -> None:
    x = node = from_array(random_array(16))
    for _ in range(3000):
        node = node.e(BinaryOps.ADD, x)
    items = make_schedule([node]).items
    assert 1 < len(items) < 20
    assert max(len(item.ast.toposort()) for item in items) < 500


def test_copies_to_a_device_and_back() -> None:
    x = value(4, 3)
    there = (x + 1.0).node.copy_to("CPU")
    back = there.e(BinaryOps.ADD, there).copy_to(DEVICE)
    items = make_schedule([back]).items
    assert [item.ast.op for item in items if isinstance(item.ast.op, LoadOps)] == [
        LoadOps.FROM,
        LoadOps.FROM,
    ]
    expected = 2 * (random_array(4, 3) + 1)
    np.testing.assert_array_equal(to_array(back), expected)


# *** several outputs ***


def test_what_a_kernel_computes_anyway_is_stored_with_it() -> None:
    x = value(100)
    middle = gelu(x)
    items = kernels(middle * 2.0, middle)
    assert len(items) == 1
    assert items[0].ast.op is BufferOps.SINK
    assert len(items[0].outputs) == 2


def test_kernels_that_share_a_value_at_the_same_index_become_one() -> None:
    shared = gelu(value(100))
    assert len(kernels(shared * 2.0, shared + 1.0)) == 1


def test_a_number_in_common_is_no_reason_to_share_loops() -> None:
    rate = value(1)
    (item,) = kernels(value(100) * rate, value(100, seed=1) + rate)
    assert len(lower(item.ast, "k").roots) == 2
    both = value(100)
    (item,) = kernels(value(100, seed=1) * both, value(100, seed=2) * both)
    assert len(lower(item.ast, "k").roots) == 1


def test_what_a_kernel_overwrites_is_read_in_the_same_loop() -> None:
    """The third store meets both others, which have nothing in common."""
    p, x = load(3, 50_000), load(2, 50_000)
    stores = (store(add(p, p)), store(add(x, x), 1), store(add(p, p), 2))
    ast = LazyOp(BufferOps.SINK, stores)
    assert len(lower(ast, "k").roots) == 1
    arrays = [random_array(50_000) for _ in range(4)]
    buffers = [Buffer.fromCPU("CPU", array) for array in arrays]
    Device["CPU"].get_runner(ast).exec(buffers)
    expected = arrays[3] * 2, arrays[2] * 2, arrays[3] * 2
    for buffer, values in zip(buffers, expected, strict=False):
        np.testing.assert_array_equal(buffer.toCPU(), values)


def test_a_contraction_is_not_computed_for_two_outputs_at_once() -> None:
    product = value(64, 64) @ value(64, 64, seed=1)
    items = kernels(product.relu(), product + 1.0)
    assert len(items) == 2
    assert sum(len(reduces(item)) for item in items) == 1


class Network:
    """A multi-layer perceptron with its gradients written out, and Adam's or SGD's update."""

    def __init__(self, sizes: Sequence[int]) -> None:
        pairs = pairwise(sizes)
        self.sizes = sizes
        self.params = [
            Storage(from_array(random_array(*shape, seed=number)))
            for a, b in pairs
            for number, shape in enumerate([(a, b), (b,)])
        ]
        self.first = self.zeros()
        self.second = self.zeros()
        self.steps = Storage(from_array(np.ones(1, np.float32)))

    def zeros(self) -> list[Storage]:
        return [Storage(from_array(np.zeros(p.node.shape, np.float32))) for p in self.params]

    def gradients(self, batch: int = 32) -> list[Value]:
        layers = len(self.sizes) - 1
        inputs = [value(batch, self.sizes[0], seed=7)]
        for layer in range(layers):
            weight, bias = (Value(p.node) for p in self.params[2 * layer : 2 * layer + 2])
            out = inputs[-1] @ weight + bias
            inputs.append(out.relu() if layer < layers - 1 else out)
        slope = softmax(inputs.pop()) - value(batch, self.sizes[-1], seed=8)
        found: list[Value] = []
        for layer in reversed(range(layers)):
            bias_slope = slope.sum(0).reshape(self.sizes[layer + 1])
            found = [inputs[layer].transposed @ slope, bias_slope, *found]
            if layer:
                active = inputs[layer]
                zero = Value(LazyBuffer.const(0, dtypes.float32, (), DEVICE))
                mask = Value(zero.two(BinaryOps.CMPLT, active).node.cast(dtypes.float32))
                slope = (slope @ Value(self.params[2 * layer].node).transposed) * mask
        return found

    def sgd(self) -> list[LazyBuffer]:
        for param, gradient in zip(self.params, self.gradients(), strict=True):
            param.write((Value(param.node) - gradient * 0.1).node)
        return [param.node for param in self.params]

    def adam(self, gradients: list[Value]) -> list[LazyBuffer]:
        self.steps.write((Value(self.steps.node) + 1.0).node)
        steps = Value(self.steps.node)
        one = Value(LazyBuffer.const(1.0, dtypes.float32, (1,), DEVICE))
        first_scale = one - Value((steps * math.log2(0.9)).node.e(UnaryOps.EXP2))
        second_scale = one - Value((steps * math.log2(0.999)).node.e(UnaryOps.EXP2))
        groups = zip(self.params, self.first, self.second, gradients, strict=True)
        for param, first, second, gradient in groups:
            new_first = Value(first.node) * 0.9 + gradient * 0.1
            new_second = Value(second.node) * 0.999 + gradient * gradient * 0.001
            step = new_first / first_scale / ((new_second / second_scale).sqrt() + 1e-8)
            param.write((Value(param.node) - step * 1e-3).node)
            first.write(new_first.node)
            second.write(new_second.node)
        storages = [self.steps, *self.params, *self.first, *self.second]
        return [storage.node for storage in storages]


def test_training_takes_about_one_kernel_for_each_matrix_product() -> None:
    network = Network((784, 512, 512, 10))
    items = make_schedule(network.sgd()).items
    # 3 forward, 2 + 3 backward with the updates inside, 3 bias sums, the slope of the softmax.
    assert len(items) == 12
    outputs = {buffer for item in items for buffer in item.outputs}
    assert {p.node.srcs[0].realized for p in network.params} <= outputs


def test_adam_updates_six_parameters_by_few_programs() -> None:
    network = Network((784, 512, 512, 10))
    gradients = [Value(from_array(random_array(*p.node.shape))) for p in network.params]
    items = make_schedule(network.adam(gradients)).items
    assert len({item.ast for item in items if item.out.size > 1}) <= 3
    # Every parameter and moment is written where it was.
    written = {buffer for item in items for buffer in item.outputs}
    assert {s.node.srcs[0].realized for s in network.params + network.first} <= written


def test_scheduling_a_training_step_takes_work_in_proportion_to_its_layers() -> None:
    def effort(layers: int) -> int:
        network = Network((784, *[512] * layers, 10))
        return calls(make_schedule, network.adam(network.gradients()))

    effort(3)  # what is computed once; plans are kept for each number of layers
    assert effort(16) < 4.5 * effort(4)


# *** writing in place ***


def storage_of(array: Array) -> Storage:
    return Storage(from_array(array.copy()))


def buffer_of(storage: Storage) -> Buffer:
    assert storage.node.realized is not None
    return storage.node.realized


X = random_array(5, 4)


def test_an_update_happens_in_place() -> None:
    storage = storage_of(X)
    buffer = buffer_of(storage)
    storage.write((Value(storage.node) + 1.0).node)
    items = create_schedule([storage.node])
    assert len(items) == 1
    assert (items[0].out, items[0].inputs) == (buffer, ())
    assert buffer_of(storage) is buffer


def test_what_was_built_before_a_write_reads_the_old_version() -> None:
    storage = storage_of(X)
    before = Value(storage.node) + 1.0
    storage.write((Value(storage.node) * 2.0).node)
    after = Value(storage.node) + 1.0
    np.testing.assert_array_equal(to_array(after.node), X * 2 + 1)
    np.testing.assert_array_equal(to_array(before.node), X + 1)
    np.testing.assert_array_equal(to_array(storage.node), X * 2)


def test_a_pending_write_joins_the_schedule_of_a_reader_of_the_old_version() -> None:
    storage = storage_of(X)
    before = Value(storage.node) + 1.0
    storage.write((Value(storage.node) * 2.0).node)
    realize([before.node])
    np.testing.assert_array_equal(to_array(before.node), X + 1)
    assert storage.node.realized is not None


def test_readers_in_the_schedule_run_before_the_writer() -> None:
    storage = storage_of(X)
    buffer = buffer_of(storage)
    before = Value(storage.node).sum(0)
    storage.write((Value(storage.node) * 2.0).node)
    realize([before.node, storage.node])
    assert buffer_of(storage) is buffer
    np.testing.assert_array_equal(to_array(before.node), X.sum(0, keepdims=True))


def test_a_reader_outside_the_schedule_gets_a_copy_or_its_value() -> None:
    storage = storage_of(X)
    buffer = buffer_of(storage)
    other = Value(storage.node).sum(0, 1)  # smaller than the memory: it is computed now
    storage.write((Value(storage.node) * 2.0).node)
    realize([storage.node])
    assert buffer_of(storage) is buffer
    np.testing.assert_allclose(to_array(other.node)[0, 0], X.sum(), rtol=1e-5)


def test_a_version_that_somebody_holds_is_copied() -> None:
    storage = storage_of(X)
    buffer = buffer_of(storage)
    held = Handle(storage.node)
    storage.write((Value(storage.node) * 2.0).node)
    realize([storage.node])
    assert buffer_of(storage) is buffer
    assert held.node.realized is not buffer
    np.testing.assert_array_equal(to_array(held.node), X)
    np.testing.assert_array_equal(to_array(storage.node), X * 2)


def test_a_version_that_nothing_holds_is_gone_when_it_is_written_over() -> None:
    """To refer to a node is not to hold it: an error is better than what is there now."""
    storage = storage_of(X)
    old = storage.node
    made_of_it = old.e(UnaryOps.NEG)
    result = (Value(made_of_it) * 2.0).node
    storage.write(result)
    realize([storage.node])
    np.testing.assert_array_equal(to_array(storage.node), X * -2)
    for node in (old.e(UnaryOps.EXP2), made_of_it):
        with pytest.raises(BufferUseError, match=r"written over since, and nothing held"):
            realize([node])


def test_memory_that_was_handed_out_keeps_its_contents() -> None:
    storage = storage_of(X)
    array = buffer_of(storage).toCPU()
    storage.write(LazyBuffer.const(0.0, dtypes.float32, (5, 4), DEVICE))
    realize([storage.node])
    np.testing.assert_array_equal(array.reshape(5, 4), X)
    np.testing.assert_array_equal(to_array(storage.node), 0 * X)
    del array
    gc.collect()
    before = buffer_of(storage)
    storage.write((Value(storage.node) + 1.0).node)
    realize([storage.node])
    assert buffer_of(storage) is before


def test_a_part_is_written_in_place() -> None:
    storage = storage_of(X)
    buffer = buffer_of(storage)
    row = LazyBuffer.const(7.0, dtypes.float32, (4,), DEVICE)
    storage.write(row, View.create((4,), (1,), 8))
    (item,) = create_schedule([storage.node])
    assert item.out.base is buffer
    assert (item.out.byte_offset, item.out.size) == (32, 4)
    assert item.ast.arg.st.view.offset == 0


def test_one_kernel_serves_all_parts_of_some_memory() -> None:
    buffer = buffer_of(storage_of(X))
    memory = LazyBuffer.from_buffer(buffer, (5, 4))
    asts = set()
    for row in range(1, 4):
        rows = [memory.shrink(((place, place + 1), (0, 4))) for place in (row, row + 1)]
        (item,) = create_schedule([(Value(rows[0]) - Value(rows[1])).node])
        asts.add(item.ast)
        (part,) = item.inputs
        assert part.base is buffer
        assert (part.byte_offset, part.size) == (16 * row, 8)
    assert len(asts) == 1


def test_parts_begin_at_whole_vectors_where_threads_of_a_block_load_them() -> None:
    target = replace(detect_cpu(), block_threads=256, warp=32, shared_bytes=48 << 10)
    memory = from_array(random_array(64))
    found = {}
    for start in range(1, 20):
        graph = KeyedGraph([memory.shrink(((start, start + 40),)).e(UnaryOps.NEG)]).graph()
        (step,) = (plan := _plan(graph, target)[0]).steps
        (load,) = [node for node in step.ast.toposort() if node.op is BufferOps.LOAD]
        place = plan.places[step.places[1]]
        assert place.offset % 4 == 0
        assert place.offset + load.arg.st.view.offset == start
        found[start] = step.ast
    # One kernel for each place in a vector of 16 bytes.
    assert len(set(found.values())) == 4


def test_in_a_capture_only_memory_from_before_has_parts() -> None:
    before = from_array(X)
    asts = {}
    for name in ("before", "inside"):
        with Capture() as capture:
            memory = before if name == "before" else from_array(X)
            for row in (1, 2):
                realize([memory.shrink(((row, row + 2), (0, 4))).e(UnaryOps.NEG)])
        asts[name] = {record.prg.ast for record in capture.recorded}  # type: ignore[attr-defined]
    assert len(asts["before"]) == 1
    assert len(asts["inside"]) == 2


def test_in_a_capture_a_view_stays_whole() -> None:
    buffer = buffer_of(storage_of(X))
    view = LazyBuffer.from_buffer(buffer.view(0, buffer.size), (5, 4))
    with Capture() as capture:
        realize([view.shrink(((1, 3), (0, 4))).e(UnaryOps.NEG)])
    (record,) = capture.recorded
    assert record.args[1] is view.realized


def test_what_goes_backwards_or_is_masked_is_a_part() -> None:
    buffer = buffer_of(storage_of(X))
    memory = LazyBuffer.from_buffer(buffer, (5, 4))
    rows = memory.shrink(((1, 3), (0, 4)))
    array = to_array(memory)[1:3]
    expected = {
        rows.stride((-1, -1)): array[::-1, ::-1],
        rows.pad(((1, 0), (0, 2))): np.pad(array, ((1, 0), (0, 2))),
    }
    for node, value in expected.items():
        more = (Value(node) + 1.0).node
        schedule = make_schedule([more])
        (item,) = schedule.items
        assert [(part.base, part.byte_offset, part.size) for part in item.inputs] == [
            (buffer, 16, 8)
        ]
        run(schedule.items)
        schedule.commit()
        np.testing.assert_array_equal(to_array(more), value + np.float32(1.0))


def test_a_part_may_be_updated_from_itself() -> None:
    storage = storage_of(X)
    more = Value(storage.node.shrink(((2, 3), (0, 4)))) + 1.0
    storage.write(more.node, View.create((1, 4), (4, 1), 8))
    del more
    items = create_schedule([storage.node])
    assert len(items) == 1
    assert items[0].inputs == ()


def test_a_value_read_elsewhere_than_it_is_written_goes_through_other_memory() -> None:
    storage = storage_of(X)
    storage.write(storage.node.stride((-1, 1)))
    items = create_schedule([storage.node])
    assert len(items) == 2
    assert items[0].out is not items[1].out


def test_two_storages_can_be_swapped() -> None:
    a, b = storage_of(X), storage_of(2 * X)
    old_a, old_b = a.node, b.node
    a.write(old_b)
    b.write(old_a)
    del old_a, old_b
    realize([a.node, b.node])
    np.testing.assert_array_equal(to_array(a.node), 2 * X)
    np.testing.assert_array_equal(to_array(b.node), X)


def test_a_reader_of_both_versions_gets_both() -> None:
    storage = storage_of(X)
    old = Value(storage.node)
    storage.write((old * old).node)
    both = old.sum(0) + Value(storage.node).sum(0)
    del old
    realize([both.node])
    expected = X.sum(0, keepdims=True) + (X * X).sum(0, keepdims=True)
    np.testing.assert_allclose(to_array(both.node), expected, rtol=1e-5)


def test_a_part_of_what_the_schedule_computes_is_written_where_that_is() -> None:
    a, b = random_array(64, 256), random_array(256, 64, seed=1)
    storage = Storage((Value(from_array(a)) @ Value(from_array(b))).node)
    two = LazyBuffer.const(2.0, dtypes.float32, (1, 64), DEVICE)
    storage.write(two, View.create((1, 64), (64, 1), 64))
    items = create_schedule([storage.node])
    assert len(items) == 2
    assert items[0].out.base is items[1].out.base
    run(items)
    expected = a @ b
    expected[1] = 2
    np.testing.assert_allclose(to_array(storage.node), expected, rtol=1e-4, atol=1e-4)


def test_parts_overlap_by_their_bytes() -> None:
    base = Buffer.fromCPU(DEVICE, np.arange(8, dtype=np.float32))
    slots = Slots()
    first, second, middle = [slots.of_buffer(base.view(start, 4)) for start in (0, 4, 3)]
    assert not first.overlaps(second)
    assert not second.overlaps(first)
    for part in (first, second):
        assert part.overlaps(middle)
        assert middle.overlaps(part)


def test_writes_in_a_row_are_one_kernel() -> None:
    storage = storage_of(X)
    for _ in range(5):
        storage.write((Value(storage.node) + 1.0).node)
    assert len(create_schedule([storage.node])) == 1


def test_a_part_of_shared_memory_is_ordered_by_its_bytes() -> None:
    base = Buffer.fromCPU(DEVICE, np.arange(8, dtype=np.float32))
    whole = Value(LazyBuffer.from_buffer(base, (8,)))
    part = Storage(LazyBuffer.from_buffer(base.view(2, 3), (3,)))
    doubled = whole * 2.0
    part.write((Value(part.node) + 100.0).node)
    realize([part.node, doubled.node])
    np.testing.assert_array_equal(to_array(doubled.node), 2 * np.arange(8))
    expected = [0, 1, 102, 103, 104, 5, 6, 7]
    np.testing.assert_array_equal(base.toCPU(), expected)


def assert_in_place_rule(ast: LazyOp) -> None:
    """A buffer that is stored is loaded at the store's own place only."""
    stores = ast.src if ast.op is BufferOps.SINK else (ast,)
    places = {stored.arg.idx: stored.arg.st for stored in stores}
    for stored in stores:
        aligned: dict[LazyOp, bool] = {stored.src[0]: True}
        for node in stored.src[0].get_lazyops():
            keeps = not isinstance(node.op, (MovementOps, ReduceOps))
            for source in node.src:
                aligned[source] = aligned.get(source, True) and keeps and aligned[node]
            if node.op is BufferOps.LOAD and node.arg.idx in places:
                assert aligned[node]
                assert node.arg.st == places[node.arg.idx]


@pytest.mark.parametrize("seed", range(5))
def test_kernels_keep_the_rule_of_writing_in_place(seed: int) -> None:
    network = Network((20, 12, 6))
    storage = storage_of(random_array(5, 4, seed=seed))
    x = Value(storage.node)
    storage.write((x - x.mean(0, 1) + Value(x.node.stride((-1, 1)))).node)
    for item in make_schedule([*network.sgd(), storage.node]).items:
        assert_in_place_rule(item.ast)


# *** ASTs ***


def test_equal_kernels_have_one_ast() -> None:
    first, second = (softmax(value(8, 16, seed=seed)) for seed in range(2))
    asts = [item.ast for item in kernels(first)] + [item.ast for item in kernels(second)]
    assert asts[0] is asts[1]


def test_movements_of_memory_become_views_of_loads() -> None:
    x = from_array(X)
    node = x.permute((1, 0)).shrink(((0, 2), (1, 4))).pad(((1, 0), (0, 0))).e(UnaryOps.NEG)
    (item,) = make_schedule([node]).items
    load = item.ast.src[0].src[0]
    assert load.op is BufferOps.LOAD
    assert load.arg.st.view == View.create((3, 3), (1, 4), -1, ((1, 3), (0, 3)))
    assert item.inputs[0].byte_offset == 16, "the part begins with the first element that is there"


def test_windows_of_memory_become_views_of_loads() -> None:
    x = from_array(np.arange(10, dtype=np.float32))
    node = x.window(0, 3, 2, 1).e(UnaryOps.NEG)
    (item,) = make_schedule([node]).items
    assert item.ast.src[0].src[0].arg.st.view == View.create((4, 3), (2, 1))


def test_a_reshape_of_a_result_costs_nothing() -> None:
    x = value(4, 6)
    (item,) = kernels(x.sum(1).reshape(2, 2))
    assert item.ast.src[0].op is ReduceOps.SUM


def test_nothing_is_scheduled_for_what_is_there_or_empty() -> None:
    x = from_array(X)
    assert make_schedule([x]).items == []
    assert make_schedule([]).items == []
    empty = LazyBuffer.empty((0, 3), dtypes.float32, DEVICE).e(UnaryOps.NEG)
    assert make_schedule([empty]).items == []
    assert to_array(empty).shape == (0, 3)
    untouched = LazyBuffer.empty((2,), dtypes.float32, DEVICE)
    assert make_schedule([untouched]).items == []
    realize([untouched])
    assert untouched.realized is not None


def test_a_symbolic_size_is_a_variable_of_the_kernel() -> None:
    n = Variable("n", 1, 5)
    x = from_array(X)
    total = x.shrink(((0, n.bind(3)), (0, 4))).e(UnaryOps.NEG).r(ReduceOps.SUM, (0,))
    (item,) = make_schedule([total]).items
    assert item.var_vals == {n: 3}
    assert item.ast.vars() == [n]
    np.testing.assert_allclose(to_array(total), -X[:3].sum(0, keepdims=True), rtol=1e-6)


def test_symbolic_results_are_laid_out_for_their_upper_bound() -> None:
    n = Variable("n", 1, 4)
    part = from_array(X).shrink(((0, 5), (0, n.bind(2)))).e(UnaryOps.NEG)
    realize([part])
    assert part.realized is not None
    array = part.realized.toCPU().reshape(5, 4)[:, :2]
    np.testing.assert_array_equal(array, -X[:, :2])
    again = part.e(UnaryOps.NEG).r(ReduceOps.SUM, (1,))
    np.testing.assert_allclose(to_array(again), X[:, :2].sum(1, keepdims=True), rtol=1e-6)


def test_one_kernel_serves_all_values_of_a_variable() -> None:
    n = Variable("n", 1, 5)
    asts = set()
    for size in (2, 4):
        x = from_array(X).shrink(((0, n.bind(size)), (0, 4)))
        (item,) = make_schedule([x.e(UnaryOps.NEG)]).items
        asts.add(item.ast)
    assert len(asts) == 1


# *** using schedules again ***


def assert_used_again(build: Any, *arrays: Array, hits: bool = True) -> None:
    """`build(array)` gives a node and its value; a plan serves the second array."""
    _plans.clear()  # a full one would not grow
    sizes = []
    for array in arrays:
        node, expected = build(array)
        np.testing.assert_allclose(to_array(node), expected, rtol=1e-5)
        sizes.append(len(_plans))
    assert (sizes[0] == sizes[1]) is hits


def test_a_graph_of_the_same_form_is_not_planned_again() -> None:
    def build(array: Array) -> tuple[LazyBuffer, Array]:
        x = Value(from_array(array))
        return (x - x.sum(1)).node, array - array.sum(1, keepdims=True)

    assert_used_again(build, random_array(3, 7), random_array(3, 7, seed=1))


def test_which_operands_share_memory_is_part_of_the_form() -> None:
    def build(array: Array) -> tuple[LazyBuffer, Array]:
        buffer = Buffer.fromCPU(DEVICE, array)
        other = buffer if array[0] > 0 else Buffer.fromCPU(DEVICE, 3 * array)
        factor = 1 if array[0] > 0 else 3
        nodes = [LazyBuffer.from_buffer(each, array.shape) for each in (buffer, other)]
        return nodes[0].e(BinaryOps.SUB, nodes[1]), array - factor * array

    assert_used_again(build, np.full(9, 2.0), np.full(9, -2.0), hits=False)


def test_forms_with_equal_hashes_are_told_apart() -> None:
    assert hash(-1.0) == hash(-2.0)
    for number in (-1.0, -2.0):
        x = from_array(X)
        shifted = x.e(BinaryOps.ADD, LazyBuffer.const(number, dtypes.float32, X.shape, DEVICE))
        realize([shifted])
        np.testing.assert_array_equal(to_array(shifted), X + np.float32(number))


def test_a_write_is_planned_again_if_its_memory_was_handed_out() -> None:
    arrays = []
    for _ in range(2):
        storage = storage_of(X)
        buffer = buffer_of(storage)
        storage.write((Value(storage.node) * 3.0).node)
        exported = buffer.toCPU() if arrays else None
        realize([storage.node])
        assert (buffer_of(storage) is buffer) is (exported is None)
        np.testing.assert_array_equal(to_array(storage.node), X * 3)
        arrays.append(X if exported is None else exported.reshape(X.shape))
    np.testing.assert_array_equal(arrays[1], X)


def test_a_plan_takes_the_values_of_variables_anew() -> None:
    n = Variable("n", 1, 5)

    def build(array: Array) -> tuple[LazyBuffer, Array]:
        size = int(array[0, 0])
        part = from_array(array).shrink(((0, n.bind(size)), (0, 3)))
        total = part.e(UnaryOps.NEG).r(ReduceOps.SUM, (0,))
        return total, -array[:size].sum(0, keepdims=True)

    assert_used_again(build, np.full((5, 3), 2.0), np.full((5, 3), 4.0))


def plans(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """What is planned from now on adds to the list; nothing is known from before."""
    Work.forget()
    made: list[None] = []

    def counted(*args: Any) -> Any:
        made.append(None)
        return _plan(*args)

    monkeypatch.setattr("ferrule.fusion._plan", counted)
    return made


@pytest.mark.parametrize("shape", [(3, 7), ()])
def test_numbers_that_keep_changing_have_one_kernel(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plans(monkeypatch)
    array = random_array(*shape)
    for step in range(20):
        x = Value(from_array(array))
        # The second of the numbers does not change, and stays in the kernel.
        node = ((x * (0.7 * step) + 3.25) * (step + 10.5)).node
        factors = np.float32([0.7 * step, step + 10.5])
        np.testing.assert_allclose(
            to_array(node), (array * factors[0] + 3.25) * factors[1], rtol=1e-5
        )
    assert len(made) == 5


def test_who_else_holds_a_number_makes_no_other_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plans(monkeypatch)
    for is_held in (True, False):
        held = LazyBuffer.const(2.5, dtypes.float32, X.shape, "NUMPY") if is_held else None
        node = (Value(from_array(X)) * 2.5).node
        assert held is None or node.srcs[1] is held
        np.testing.assert_array_equal(to_array(node), X * 2.5)
    assert len(made) == 1


def test_numbers_change_in_writes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plans(monkeypatch)
    storage, expected = storage_of(X), X.copy()
    for step in range(12):
        storage.write((Value(storage.node) * (1.5 + step / 8)).node)
        expected *= 1.5 + step / 8
        np.testing.assert_allclose(to_array(storage.node), expected, rtol=1e-5)
    assert len(made) == 5


def test_changing_numbers_at_changing_places_have_one_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans(monkeypatch)
    storage, expected = storage_of(X), X.copy()
    asts = []
    for step in range(12):
        row, number = step % 4 + 1, 0.5 + step
        before = Value(storage.node.shrink(((row - 1, row), (0, 4))))
        storage.write((before * number).node, View.create((1, 4), (4, 1), 4 * row))
        del before
        items = create_schedule([storage.node])
        run(items)
        asts.append(tuple(item.ast for item in items))
        expected[row] = expected[row - 1] * np.float32(number)
        np.testing.assert_allclose(to_array(storage.node), expected, rtol=1e-5)
    assert len(set(asts[:4])) == 4, "the first numbers have kernels of their own"
    assert len(set(asts[4:])) == 1


def test_the_same_numbers_again_stay_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plans(monkeypatch)
    for step in range(20):
        node = (Value(from_array(X)) * float(step % 3 + 0.125)).node
        np.testing.assert_allclose(to_array(node), X * (step % 3 + 0.125))
    assert len(made) == 3
    assert LazyBuffer.const(0.125, dtypes.float32, X.shape, DEVICE).base_const() == 0.125


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_a_number_in_memory_is_the_constant_that_it_was(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constant of a graph stays one, though it is memory in the graph that stands in for it."""
    made = plans(monkeypatch)
    zeros = from_array(np.zeros(shape, np.float32))
    for value in (2.5, -3.0, 0.1, 7.0, float("nan"), 1e30, -0.5):
        constant = LazyBuffer.const(value, dtypes.float32, shape, DEVICE)
        nodes = [constant.e(BinaryOps.ADD, zeros), constant.e(BinaryOps.MAX, zeros)]
        realize([*nodes, constant.contiguous()])
        expected = np.full(shape, value, np.float32)
        np.testing.assert_array_equal(to_array(nodes[0]), expected)
        np.testing.assert_array_equal(to_array(nodes[1]), np.maximum(expected, 0))
        np.testing.assert_array_equal(constant.base_const(), np.float32(value))
    assert len(made) == 5, "from the fifth on they have one plan"


def test_a_number_that_was_the_same_so_far_changes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that differ in known numbers are not looked at; one that differs in others is."""
    made = plans(monkeypatch)
    looked_at: list[None] = []
    graph = KeyedGraph.graph

    def noting(keyed: KeyedGraph) -> object:
        looked_at.append(None)
        return graph(keyed)

    monkeypatch.setattr(KeyedGraph, "graph", noting)
    x = from_array(X)
    for turn in range(30):
        slope, shift = turn / 8 + 0.0625, 3.5 if turn < 10 or turn == 20 else turn / 16
        node = (Value(x) * slope + shift).node
        np.testing.assert_array_equal(to_array(node), X * np.float32(slope) + np.float32(shift))
        if turn == 9:
            assert len(looked_at) == 5, "four with plans of their own, and the first without"
    assert len(made) <= 8
    assert len(looked_at) <= 9


def test_a_number_that_changes_and_is_asked_for_itself() -> None:
    for turn in range(8):
        for shape in ((), (3,)):
            constant = LazyBuffer.const(turn + 0.25, dtypes.float32, shape, DEVICE)
            np.testing.assert_array_equal(to_array(constant), np.full(shape, turn + 0.25))


def test_one_schedule_may_use_two_values_of_a_variable() -> None:
    n = Variable("n", 1, 5)
    x = from_array(X)
    parts = [x.shrink(((0, n.bind(size)), (0, 4))).r(ReduceOps.SUM, (0,)) for size in (2, 3)]
    realize(parts)
    for part, size in zip(parts, (2, 3), strict=True):
        np.testing.assert_allclose(to_array(part), X[:size].sum(0, keepdims=True), rtol=1e-6)


def test_one_kernel_with_two_values_of_a_variable_is_refused() -> None:
    n = Variable("n", 1, 5)
    x = from_array(X)
    a, b = (x.shrink(((0, n.bind(size)), (0, 4))).r(ReduceOps.SUM, (0,)) for size in (2, 3))
    with pytest.raises(ShapeError, match=r"variable n is 2 and 3 in one kernel; use one value"):
        make_schedule([a.e(BinaryOps.ADD, b)])


def test_a_runner_of_the_users_own() -> None:
    class Double(JITRunner):
        def __call__(
            self, rawbufs: Any, var_vals: Any, wait: bool = False, jit: bool = False
        ) -> None:
            out, x = rawbufs
            out.copyin((x.toCPU() * 2).view(np.uint8).data)

    for _ in range(2):
        x = from_array(X).e(UnaryOps.NEG)
        doubled = LazyBuffer.custom(Double(), [x], (5, 4), dtypes.float32, DEVICE)
        np.testing.assert_array_equal(to_array(doubled.e(UnaryOps.NEG)), 2 * X)


# *** size ***


def test_a_hundred_thousand_nodes_take_work_in_proportion_to_their_number() -> None:
    def chain(nodes: int) -> LazyBuffer:
        x = node = from_array(random_array(8))
        for _ in range(nodes // 2):
            node = node.e(BinaryOps.ADD, x).e(UnaryOps.NEG)
        return node

    items = make_schedule([chain(100_000)]).items
    assert len(items) < 1000
    assert calls(make_schedule, [chain(8000)]) < 4.5 * calls(make_schedule, [chain(2000)])


def test_many_writes_take_work_in_proportion_to_their_number() -> None:
    def written(places: int) -> LazyBuffer:
        storage = storage_of(np.zeros(places, np.float32))
        one = LazyBuffer.const(1.0, dtypes.float32, (1,), DEVICE)
        for place in range(places):
            storage.write(one, View.create((1,), (1,), place))
        return storage.node

    few, many = written(400), written(3200)
    realize([written(100)])  # what is computed once
    least = calls(realize, [few])
    # Eight times as many, in pieces of which more or fewer are alike.
    assert calls(realize, [many]) < 12 * least
    np.testing.assert_array_equal(to_array(many), np.ones(3200))
