"""`autocast`: an operation in a block is the plain one on operands that were cast by hand."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Tensor, TinyJit, amp, autocast, checkpoint, dtypes, grad, nn, vmap
from ferrule.device import UnknownDeviceError
from ferrule.ir.dtype import DType, DTypeError
from ferrule.tensor.autocast import POLICIES, Policy

LAYERS = ("BatchNorm", "InstanceNorm")
REFLECTED = ("rmatmul", "rpow", "rtruediv")
LOW = [dtypes.bfloat16, dtypes.float16]


def random(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(sum(shape)).uniform(0.2, 0.9, shape).astype(np.float32))


# For some operations of each policy: how they are called.
A, B, IMAGE, KERNEL = random(4, 4), random(4, 4) + 0.1, random(1, 2, 6, 6), random(3, 2, 3, 3)
CALLS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "matmul": lambda c: c(A) @ c(B),
    "dot": lambda c: c(A).dot(c(B)),
    "rmatmul": lambda c: [[1.0, 2.0, 3.0, 4.0]] @ c(A),
    "linear": lambda c: c(A).linear(c(B), c(random(4))),
    "conv2d": lambda c: c(IMAGE).conv2d(c(KERNEL), bias=c(random(3))),
    "einsum": lambda c: Tensor.einsum("ij,jk->ik", c(A), c(B)),
    "multi_dot": lambda c: c(A).multi_dot(c(B), c(A)),
    "scaled_dot_product_attention": lambda c: c(A[None]).scaled_dot_product_attention(
        c(B[None]), c(A[None])
    ),
    "softmax": lambda c: c(A).softmax(-1),
    "log_softmax": lambda c: c(A).log_softmax(-1),
    "sum": lambda c: c(A).sum(),
    "cumsum": lambda c: c(A).cumsum(0),
    "exp": lambda c: c(A).exp(),
    "log": lambda c: c(A).log(),
    "pow": lambda c: c(A) ** 3,
    "rpow": lambda c: 2.0 ** c(A),
    "rtruediv": lambda c: 1 / c(A),
    "norm": lambda c: c(A).norm(),
    "layer_norm": lambda c: c(A).layer_norm((4,)),
    "cross_entropy": lambda c: c(A).cross_entropy(Tensor([0, 1, 2, 3])),
    "mse_loss": lambda c: c(A).mse_loss(c(B)),
    "batch_norm": lambda c: c(IMAGE).batch_norm(None, None, training=True),
}


def plainly(policy: Policy, low: DType) -> Callable[[Tensor], Tensor]:
    kind = low if policy is Policy.LOW else dtypes.float32
    return lambda x: x.cast(kind)


@pytest.mark.parametrize("low", LOW, ids=str)
@pytest.mark.parametrize("given", [dtypes.float32, *LOW], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_operations_are_the_plain_ones_on_cast_operands(
    name: str, given: DType, low: DType
) -> None:
    policy, call = POLICIES[name], CALLS[name]
    with autocast(dtype=low):
        found = call(lambda x: x.cast(given))
    expected = call(lambda x: plainly(policy, low)(x.cast(given)))
    if policy is Policy.INSIDE:
        expected = expected.cast(given)
    assert found.dtype is expected.dtype
    assert np.array_equal(found.numpy(), expected.numpy())


def test_every_name_in_the_table_is_one_of_a_method() -> None:
    names = {getattr(getattr(Tensor, name), "__name__", name) for name in dir(Tensor)}
    assert set(POLICIES) - {*LAYERS, *REFLECTED} <= names


def results(found: Any) -> list[Tensor]:
    parts = found if isinstance(found, list | tuple) else [found]
    return [part for part in parts if isinstance(part, Tensor)]


@pytest.mark.parametrize("kind", [dtypes.float32, dtypes.bfloat16], ids=str)
def test_methods_that_the_table_does_not_list_are_as_ever(kind: DType) -> None:
    """Methods that are made of listed ones would differ: they belong into the table too."""
    x = A.cast(kind)
    names = [
        name
        for name in dir(Tensor)
        if not name.startswith("_")
        and not name.endswith("_")
        and getattr(getattr(Tensor, name), "__name__", name) not in POLICIES
    ]
    called = 0
    for name in names:
        for args in ((), (x,), (0,), (1.0,), (x, x), (0, x)):
            try:
                plain = results(getattr(x, name)(*args))
            except Exception:  # it takes other arguments
                continue
            with autocast():
                found = results(getattr(x, name)(*args))
            called += 1
            assert [one.dtype for one in found] == [one.dtype for one in plain], (name, args)
    assert called > 300


def test_types_that_are_not_cast() -> None:
    with autocast():
        assert (A.cast(dtypes.float64) @ B.cast(dtypes.float64)).dtype is dtypes.float64
        assert (Tensor([[1]]) @ Tensor([[2]])).dtype is dtypes.int32
        assert A.cast(dtypes.float64).softmax(-1).dtype is dtypes.float64
        assert (A.bfloat16() + B).dtype is dtypes.float32
        assert A.bfloat16().relu().dtype is dtypes.bfloat16
        assert A.half().sum(dtype=dtypes.float64).dtype is dtypes.float64


def test_blocks_nest_and_end() -> None:
    with autocast():
        assert (A @ B).dtype is dtypes.bfloat16
        with autocast(dtype=dtypes.float16):
            assert (A @ B).dtype is dtypes.float16
        with autocast(enabled=False):
            assert (A @ B).dtype is dtypes.float32
        assert (A @ B).dtype is dtypes.bfloat16
    assert (A @ B).dtype is dtypes.float32
    with pytest.raises(KeyError), autocast():
        raise KeyError
    assert (A @ B).dtype is dtypes.float32


def test_a_decorator_and_the_names_of_pytorch() -> None:
    @amp.autocast("cpu", dtype=dtypes.float16)
    def product(x: Tensor) -> Tensor:
        return x @ x if len(x.shape) == 2 else product(x[0])

    assert amp.autocast is ferrule.autocast is Tensor.autocast
    x = A.to("CPU")
    assert product(x).dtype is product(x[None]).dtype is dtypes.float16
    assert (x @ x).dtype is dtypes.float32


def test_a_block_is_for_the_devices_it_names() -> None:
    here, there = A.to("CPU"), A.to("NUMPY")
    with amp.autocast("cpu"):
        assert (here @ here).dtype is dtypes.bfloat16
        assert (there @ there).dtype is dtypes.float32
        with amp.autocast("numpy", dtype=dtypes.float16):
            assert (here @ here).dtype is dtypes.bfloat16
            assert (there @ there).dtype is dtypes.float16
    with autocast(), amp.autocast("cpu", enabled=False):
        assert (here @ here).dtype is dtypes.float32
        assert (there @ there).dtype is dtypes.bfloat16


def test_other_threads_do_not_see_it() -> None:
    found: list[Any] = []
    with autocast():
        thread = Thread(target=lambda: found.append((A @ B).dtype))
        thread.start()
        thread.join()
    assert found == [dtypes.float32]


def test_errors() -> None:
    with pytest.raises(DTypeError, match=r"\[autocast\] the low precision is bfloat16 or float16"):
        autocast(dtype=dtypes.float32)
    with pytest.raises(UnknownDeviceError):
        autocast("abacus")


def test_gradients_have_the_types_of_their_tensors() -> None:
    x, w = A.clone().requires_grad_(), B.clone().requires_grad_()
    with autocast():
        loss = (x @ w).softmax(-1).square().sum()
    assert loss.dtype is dtypes.float32
    loss.backward()
    x32, w32 = A.clone().requires_grad_(), B.clone().requires_grad_()
    (x32 @ w32).softmax(-1).square().sum().backward()
    for found, expected in ((x.grad, x32.grad), (w.grad, w32.grad)):
        assert found is not None
        assert expected is not None
        assert found.dtype is dtypes.float32
        np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=0.02)


def test_inside_of_transformations() -> None:
    with autocast():
        slope = grad(lambda x: (x @ B).square().sum())(A)
        mapped = vmap(lambda row: row @ B)(A)
    assert (slope.dtype, mapped.dtype) == (dtypes.float32, dtypes.bfloat16)
    with autocast():
        plain = (A @ B).numpy()
    assert np.array_equal(mapped.numpy(), plain)


def test_a_checkpoint_is_computed_again_in_the_same_block() -> None:
    seen: list[Any] = []

    def block(x: Tensor) -> Tensor:
        y = x @ B
        seen.append(y.dtype)
        return y.square().sum()

    x = A.clone().requires_grad_()
    with autocast():
        loss = checkpoint(block, x)
    loss.backward()
    assert seen == [dtypes.bfloat16] * 2


def test_captures_in_different_blocks_are_different() -> None:
    step = TinyJit(lambda x: (x @ B).realize())
    for _ in range(4):
        assert step(A).dtype is dtypes.float32
        with autocast():
            assert step(A).dtype is dtypes.bfloat16
        with autocast(dtype=dtypes.float16):
            assert step(A).dtype is dtypes.float16


def test_a_captured_function_with_a_block_inside() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        with autocast():
            return (x @ B).softmax(-1).realize()

    results = [step(A + number).numpy() for number in range(4)]
    with autocast():
        expected = [((A + number) @ B).softmax(-1).numpy() for number in range(4)]
    np.testing.assert_allclose(results, expected, atol=1e-6)


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), (4, 8)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        (2, 2, 6, 6),
    ),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (2, 5, 8),
    ),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8), nn.Linear(8, 2)), (4, 8)),
    "groups": (lambda: nn.Sequential(nn.Conv1d(4, 4, 3), nn.GroupNorm(2, 4)), (2, 4, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_are_near_their_results_in_float32(name: str) -> None:
    Tensor.manual_seed(0)
    make, shape = MODELS[name]
    model, x = make(), random(*shape)
    model.train()

    def run() -> tuple[Any, list[Any]]:
        model.zero_grad()
        out = model(x)
        out.square().mean().backward()
        return out, [parameter.grad for parameter in model.parameters()]

    expected, slopes = run()
    with autocast():
        found, low = run()
    np.testing.assert_allclose(found.numpy().astype(np.float32), expected.numpy(), atol=0.06)
    assert all(slope.dtype is dtypes.float32 for slope in low)
    for one, other in zip(low, slopes, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=0.05)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers(kind: Any) -> None:
    Tensor.manual_seed(0)
    layer, x = kind(4, 8, num_layers=2), random(5, 2, 4)
    expected, _ = layer(x)
    with autocast():
        found, states = layer(x)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=0.03)
    assert all(state.dtype is dtypes.float32 for state in results(states))


def test_batch_statistics_stay_in_float32() -> None:
    layer = nn.BatchNorm2d(2)
    with Tensor.train(), autocast():
        out = layer((random(4, 2, 3, 3) + 300).bfloat16())
    assert out.dtype is dtypes.bfloat16
    assert layer.running_mean.dtype is dtypes.float32
    wide = nn.BatchNorm2d(2)
    with Tensor.train():
        wide((random(4, 2, 3, 3) + 300).bfloat16().float())
    assert np.array_equal(layer.running_mean.numpy(), wide.running_mean.numpy())
