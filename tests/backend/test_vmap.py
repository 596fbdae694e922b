"""`vmap` and `checkpoint`: what is peculiar to them, beside what each operation gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrule import GlobalCounters, Tensor, TinyJit, nn
from ferrule.engine.host import on_host
from ferrule.fusion import make_schedule
from ferrule.ir.op_table import SCATTERED
from ferrule.transforms import (
    checkpoint,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    value_and_grad,
    vjp,
    vmap,
)
from ferrule.transforms.batching import VmapError

RNG = np.random.default_rng(4)
ROWS = RNG.normal(size=(5, 3)).astype(np.float32)
WEIGHT = RNG.normal(size=(3, 3)).astype(np.float32)


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    found = found.numpy() if isinstance(found, Tensor) else found
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# *** axes and containers ***


def test_axes(device: str) -> None:
    x, y = Tensor(RNG.normal(size=(2, 3, 4))), Tensor(RNG.normal(size=(4, 3)))
    found = vmap(lambda a, b: a * b, in_axes=(-1, 0), out_axes=1)(x, y)
    close(found, x.numpy().transpose(0, 2, 1) * y.numpy()[None])
    found = vmap(lambda a, b: (a.sum(), b + a.sum(0)), (2, None), (0, -1))(x, Tensor([1.0, 2, 3]))
    close(found[0], x.numpy().sum((0, 1)))
    close(vmap(lambda a: a, in_dims=1, out_dims=-1)(x), x.numpy().transpose(0, 2, 1))
    close(found[1], x.numpy().sum(0) + np.array([[1], [2], [3]]))


def test_containers(device: str) -> None:
    arguments = {"a": Tensor(ROWS), "b": [Tensor(ROWS.T), None, 2.0]}

    def function(p: dict[str, Any], *, shift: float) -> dict[str, Any]:
        first, nothing, scale = p["b"]
        assert p["a"].shape == first.shape == (3,)
        assert nothing is None
        return {"sum": p["a"] + first * scale + shift, "rest": (None, p["a"].max())}

    axes = ({"a": 0, "b": [1, None, None]},)
    found = vmap(function, axes, {"sum": 1, "rest": 0})(arguments, shift=1.0)
    close(found["sum"], (ROWS * 3 + 1).T)
    close(found["rest"][1], ROWS.max(1))
    assert found["rest"][0] is None


def test_results_that_are_the_same_for_all() -> None:
    w = Tensor(WEIGHT, requires_grad=True)
    both, total = vmap(lambda x: (w, w.sum()), out_axes=(1, 0))(Tensor(ROWS))
    assert both.shape == (3, 5, 3)
    assert total.shape == (5,)
    (both.sum() + total.sum()).backward()
    assert w.grad is not None
    close(w.grad, np.full((3, 3), 10.0))


def test_nothing_to_map_and_one_lane() -> None:
    assert vmap(lambda x: x @ x)(Tensor(np.zeros((0, 3)))).shape == (0,)
    assert vmap(lambda x: x.cumsum(0))(Tensor([[1, 2, 3]])).tolist() == [[1, 3, 6]]
    assert vmap(lambda x: x + 1)([Tensor([1, 2])][0].numpy()).tolist() == [2, 3]


def test_nested(device: str) -> None:
    a, b = RNG.normal(size=(4, 3)), RNG.normal(size=(2, 3))
    products = vmap(vmap(lambda x, y: (x * y).sum(), (None, 0)), (0, None))
    close(products(Tensor(a), Tensor(b)), a @ b.T)
    slopes = grad(lambda x, y: products(x, y).square().sum(), (0, 1))(Tensor(a), Tensor(b))
    close(slopes[0], 2 * (a @ b.T) @ b)
    close(slopes[1], 2 * (a @ b.T).T @ a)


def _cubes(row: Tensor) -> Tensor:
    return row * row * row.sum(0)


def _pulled(row: Tensor) -> Tensor:
    _, pull = vjp(_cubes, row)
    return vmap(lambda unit: pull(unit)[0])(Tensor.eye(3))


MAPS_INSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "map": lambda row: vmap(lambda unit: row * row * unit)(Tensor.eye(3)),
    "gradients": _pulled,
    "jacrev": jacrev(_cubes),
    "jacfwd": jacfwd(_cubes),
}


@pytest.mark.parametrize("inside", MAPS_INSIDE.values(), ids=MAPS_INSIDE)
def test_second_derivatives_through_a_map_of_maps(
    inside: Callable[[Tensor], Tensor], device: str
) -> None:
    def at_once(x: Tensor) -> Tensor:
        return vmap(inside)(x).square().sum()

    def one_by_one(x: Tensor) -> Tensor:
        return Tensor.stack(*[inside(row) for row in x]).square().sum()

    x = Tensor(ROWS[:2])
    close(hessian(at_once)(x), hessian(one_by_one)(x).numpy(), 1e-4)
    steps = [jvp(grad(function), (x,), (x,))[1] for function in (at_once, one_by_one)]
    close(steps[0], steps[1].numpy(), 1e-4)


def test_gradients_of_single_examples(device: str) -> None:
    Tensor.manual_seed(3)
    layers = [nn.Linear(3, 4), nn.Linear(4, 1)]
    parameters = nn.state.get_state_dict(layers)

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        hidden = (p["0.weight"] @ x + p["0.bias"]).tanh()
        return (p["1.weight"] @ hidden + p["1.bias"]).square().sum()

    slopes = vmap(grad(loss), (None, 0))(parameters, Tensor(ROWS))
    for lane, row in enumerate(ROWS):
        for name, slope in grad(loss)(parameters, Tensor(row)).items():
            close(slopes[name][lane], slope.numpy())


# *** kinds of nodes ***


def test_functions_on_the_host(device: str) -> None:
    def descending(x: Tensor) -> Tensor:
        return Tensor(on_host(np.sort, [(-x)._read()], x.shape, x.dtype).node) * -1

    found = vmap(descending)(Tensor(ROWS))
    before = GlobalCounters.host_calls
    close(found, -np.sort(-ROWS, 1))
    assert GlobalCounters.host_calls == before + 1
    close(vmap(vmap(lambda x: descending(x.reshape(1))))(Tensor(ROWS)), ROWS[:, :, None])


def test_writing_in_place(device: str) -> None:
    base = Tensor([1.0, 2.0, 3.0]).realize()

    def function(x: Tensor) -> Tensor:
        y = base.clone()
        y[0] = x[1] * 2
        y[1:] += x[:2]
        z = Tensor.zeros(3).contiguous()
        z[Tensor([2, 0])] = x[:2]
        return y * z.exp()

    expected = np.stack([function(Tensor(row)).numpy() for row in ROWS])
    close(vmap(function)(Tensor(ROWS)), expected)
    slopes = [grad(lambda x: function(x).sum())(Tensor(row)).numpy() for row in ROWS]
    close(grad(lambda x: vmap(function)(x).sum())(Tensor(ROWS)), np.stack(slopes))
    assert base.tolist() == [1.0, 2.0, 3.0]


def test_strided_nodes_and_casts() -> None:
    def windows(x: Tensor) -> Tensor:
        value = x._read()
        strided = value.node.as_strided((2, 2), (1, 1), 0)
        return Tensor(strided.cast(Tensor([1]).dtype).cast(value.dtype))

    close(
        vmap(windows)(Tensor(np.arange(15.0).reshape(5, 3))),
        [[[3 * lane, 3 * lane + 1], [3 * lane + 1, 3 * lane + 2]] for lane in range(5)],
    )
    bits = vmap(lambda x: x.bitcast("int32") + 0)(Tensor(ROWS))
    assert bits.tolist() == ROWS.view(np.int32).tolist()


@pytest.mark.parametrize("how", SCATTERED)
def test_every_way_to_scatter(how: str) -> None:
    def scattered(x: Tensor, places: Tensor) -> Tensor:
        value = x._read().scatter(places._read(), 0, 4, how)
        return Tensor(value.node)

    places = np.array([[0, 2, 0], [1, 1, 1], [3, 4, -1], [2, 2, 0], [0, 1, 2]], np.int32)
    lanes = [scattered(Tensor(x), Tensor(i)).numpy() for x, i in zip(ROWS, places, strict=True)]
    close(vmap(scattered)(Tensor(ROWS), Tensor(places)), np.stack(lanes))
    onto = RNG.normal(size=(5, 6)).astype(np.float32)

    def put(base: Tensor, x: Tensor, places: Tensor) -> Tensor:
        return Tensor(base._read().put(x._read(), places._read(), 0, how).node)

    for axes in ((0, 0, 0), (None, 0, 0), (0, None, 0), (0, 0, None), (None, None, 0)):
        given = [onto, ROWS, places]
        pairs = list(zip(given, axes, strict=True))
        arguments = [Tensor(one if axis == 0 else one[0]) for one, axis in pairs]
        each = [[Tensor(one[n if axis == 0 else 0]) for one, axis in pairs] for n in range(5)]
        close(vmap(put, axes)(*arguments), np.stack([put(*one).numpy() for one in each]))
    whole = [scattered(Tensor(x), Tensor(places[0])).numpy() for x in ROWS]
    close(vmap(scattered, (0, None))(Tensor(ROWS), Tensor(places[0])), np.stack(whole))


def test_devices_can_change_inside() -> None:
    found = vmap(lambda x: x.to("NUMPY") * 2)(Tensor(ROWS, device="CPU"))
    assert found.device == "NUMPY"
    close(found, ROWS * 2)


# *** random numbers ***


def test_random_numbers_differ_from_lane_to_lane(device: str) -> None:
    Tensor.manual_seed(1)
    x = Tensor(np.zeros((4, 2)))
    found = vmap(lambda x: x + Tensor.rand(2, dtype="float64"))(x).numpy()
    assert len(np.unique(found)) == 8
    same = vmap(lambda x: x + Tensor.rand(2, dtype="float64"), randomness="same")(x).numpy()
    assert len(np.unique(same)) == 2
    nested = vmap(vmap(lambda x: x + Tensor.rand(dtype="float64")))(x).numpy()
    assert len(np.unique(nested)) == 8
    outer = vmap(vmap(lambda x: x + Tensor.rand(dtype="float64"), randomness="same"))(x).numpy()
    assert len(np.unique(outer)) == 4


def test_random_numbers_differ_from_replay_to_replay() -> None:
    draw = TinyJit(vmap(lambda x: x + Tensor.rand(2)))
    seen = [draw(Tensor(np.zeros((4, 2), np.float32))).numpy() for _ in range(4)]
    assert len(np.unique(seen)) == 32


# *** what cannot be mapped ***


def test_what_is_written_outside_is_taken_back() -> None:
    total = Tensor([1.0, 2.0, 3.0]).realize()

    def adds(x: Tensor) -> Tensor:
        total.assign(total + x)
        return x

    with pytest.raises(VmapError, match=r"writes a mapped value .* of shape \(3,\)"):
        vmap(adds)(Tensor(ROWS))
    assert total.tolist() == [1.0, 2.0, 3.0]

    def counts(x: Tensor) -> Tensor:
        total.assign(total + 1)
        return x + total

    close(vmap(counts)(Tensor(ROWS)), ROWS + np.array([2, 3, 4]))
    assert total.tolist() == [2.0, 3.0, 4.0]


def test_what_leaves_cannot_be_read() -> None:
    kept: list[Tensor] = []

    def keeps(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return x

    close(vmap(keeps)(Tensor(ROWS)), ROWS)
    with pytest.raises(VmapError, match="nor leave the tensor in an attribute"):
        kept[0].numpy()
    close(Tensor(ROWS) + 1, ROWS + 1)


# *** checkpoint ***


def block(weights: list[Tensor]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        for weight in weights:
            x = (x @ weight).tanh()
        return x

    return function


def test_checkpoint_gives_the_same_gradients(device: str) -> None:
    found = []
    for wrap in (checkpoint, lambda function: function):
        w = Tensor(WEIGHT, requires_grad=True)
        x = Tensor(ROWS, requires_grad=True)
        wrap(block([w, w]))(x).square().sum().backward()
        assert w.grad is not None
        assert x.grad is not None
        found.append((w.grad.numpy(), x.grad.numpy()))
    close(found[0][0], found[1][0])
    close(found[0][1], found[1][1])


def test_checkpoint_inside_other_transformations(device: str) -> None:
    plain = block([Tensor(WEIGHT), Tensor(WEIGHT.T)])
    inner = checkpoint(plain)
    row = Tensor(ROWS[0])
    close(hessian(lambda x: inner(x).sum())(row), hessian(lambda x: plain(x).sum())(row).numpy())
    slope, expected = [
        grad(lambda x, f=f: vmap(f)(x).square().sum())(Tensor(ROWS)) for f in (inner, plain)
    ]
    close(slope, expected.numpy())

    def closes_over_a_lane(x: Tensor, wrap: Callable[..., Any]) -> Tensor:
        hidden = x * 2
        return wrap(lambda y: (y * hidden).sin() * y)(x + 1).sum()

    slope, expected = [
        grad(lambda x, w=w: vmap(lambda x: closes_over_a_lane(x, w))(x).square().sum())(
            Tensor(ROWS)
        )
        for w in (checkpoint, lambda function: function)
    ]
    close(slope, expected.numpy())


def test_checkpoint_with_several_arguments_and_results(device: str) -> None:
    def function(p: dict[str, Tensor], i: Tensor, scale: float) -> tuple[Tensor, Any]:
        hidden = (p["a"] * scale).exp()
        return hidden.sum(), [hidden[i] * p["b"], i + 1, None]

    def loss(p: dict[str, Tensor], wrap: Callable[..., Any]) -> Tensor:
        total, (part, index, _) = wrap(function)(p, Tensor([2, 0]), scale=0.5)
        assert index.tolist() == [3, 1]
        return total * part.sum()

    p = {"a": Tensor(ROWS[0]), "b": Tensor(ROWS[1, :2])}
    found = grad(lambda p: loss(p, checkpoint))(p)
    expected = grad(lambda p: loss(p, lambda function: function))(p)
    for name in p:
        close(found[name], expected[name].numpy())
    assert checkpoint(lambda x: x * 2, Tensor([1.0])).tolist() == [2.0]


def test_checkpoint_draws_the_same_numbers_again() -> None:
    x = Tensor(np.ones(200, np.float32), requires_grad=True)
    with_noise = checkpoint(lambda x: x * x * Tensor.rand(200))(x)
    with_noise.sum().backward()
    assert x.grad is not None
    close(x.grad, 2 * with_noise.numpy())
    value, slope = value_and_grad(
        lambda x: vmap(checkpoint(lambda x: x * x * Tensor.rand(7)))(x).sum()
    )(Tensor(np.ones((3, 7), np.float32)))
    close(slope.numpy().sum(), 2 * value.numpy(), 1e-4)


def test_checkpoint_writes_once() -> None:
    found = []
    for wrap in (checkpoint, lambda function: function):
        count = Tensor([1.0]).realize()

        def function(x: Tensor, count: Tensor = count) -> Tensor:
            y = x * count
            count.assign(count + 1)
            return y.sin() * count

        slopes = [grad(lambda x, f=function, w=wrap: w(f)(x).sum())(Tensor(ROWS[0])) for _ in "ab"]
        found.append([slope.tolist() for slope in slopes])
        assert count.item() == 3.0
    close(found[0], found[1])


@pytest.mark.parametrize("jit", [False, True])
def test_checkpoint_of_a_normalised_layer_in_training(jit: bool) -> None:
    losses = []
    for wrap in (checkpoint, lambda function: function):
        Tensor.manual_seed(3)
        layer, norm = nn.Linear(3, 3), nn.BatchNorm(3)
        optimiser = nn.optim.SGD(nn.state.get_parameters([layer, norm]), lr=0.1)
        inner = wrap(lambda x, layer=layer, norm=norm: norm(layer(x)).relu())

        def step(x: Tensor, inner: Any = inner, optimiser: Any = optimiser) -> Tensor:
            optimiser.zero_grad()
            loss = inner(x).square().mean().backward()
            optimiser.step()
            return loss

        run = TinyJit(step) if jit else step
        with Tensor.train():
            losses.append([run(Tensor(ROWS * scale)).item() for scale in (1, 2, 3, 4)])
        losses[-1] += norm.running_mean.tolist()
    close(losses[0], losses[1])


def memory_of_a_step(wrap: Callable[..., Any]) -> int:
    """The bytes that the gradients of a chain of blocks take, results and arguments included."""
    shapes = [[(64, 64)] * 4] * 6
    blocks = [[Tensor(np.ones(n, np.float32), requires_grad=True) for n in row] for row in shapes]
    x = Tensor(np.ones((2048, 64), np.float32)).realize()
    for weights in blocks:
        x = wrap(block(weights))(x)
    x.square().mean().backward()
    nodes = [weight.grad.lazydata for weights in blocks for weight in weights]
    items = make_schedule(nodes).items
    return sum(
        {buffer.base: buffer.base.nbytes for item in items for buffer in item.buffers}.values()
    )


def test_checkpoint_saves_memory() -> None:
    activation = 2048 * 64 * 4
    kept, recomputed = memory_of_a_step(lambda function: function), memory_of_a_step(checkpoint)
    assert kept > 24 * activation
    assert recomputed < 16 * activation
