"""Derivatives of functions and what they can be put into: against finite differences and loops."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.backend.test_tensor_gradient import BINARY, CONVOLUTIONS, CUBE, MOVES, REDUCES, UNARY

import ferrule
from ferrule import Context, Tensor, TinyJit, dtypes, nn
from ferrule.autograd import GradNode
from ferrule.transforms import (
    custom_vjp,
    grad,
    hessian,
    jacfwd,
    jacobian,
    jacrev,
    jvp,
    linearize,
    value_and_grad,
    vjp,
    vmap,
)

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(11)
POINT = np.array([0.3, -1.2, 2.0])
WEIGHT = np.array([[0.1, -0.7, 0.4], [0.9, 0.2, -0.3], [-0.5, 0.8, 0.6]])

IMAGE, FILTERS, BIAS = (RNG.normal(size=n) for n in ((2, 2, 5, 4), (4, 2, 3, 2), (4,)))
FUNCTIONS: dict[str, tuple[Callable[..., Tensor], list[Array]]] = {
    **{name: (function, [point]) for name, (function, point) in UNARY.items() if name != "cast"},
    **{name: (function, [a, b]) for name, (function, a, b) in BINARY.items()},
    **{f"move {name}": (function, [CUBE]) for name, function in MOVES.items()},
    **{f"along {name}": (function, [CUBE]) for name, function in REDUCES.items()},
    **{
        f"conv2d {name}": (lambda x, w, b, o=o: x.conv2d(w, b, **o), [IMAGE, FILTERS, BIAS])
        for name, o in CONVOLUTIONS.items()
    },
}


def close(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    found = found.numpy() if isinstance(found, Tensor) else found
    expected = expected.numpy() if isinstance(expected, Tensor) else expected
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def tensors(arrays: list[Array]) -> list[Tensor]:
    return [Tensor(np.asarray(array, np.float64)) for array in arrays]


def energy(x: Tensor) -> Tensor:
    """A function of a vector, every derivative of which is there."""
    return ((x @ Tensor(WEIGHT)).tanh() * x.exp()).sum()


def differences(function: Callable[[Tensor], Tensor], point: Array, step: float = 1e-5) -> Array:
    """The Jacobian of a function of a vector, by central differences."""
    columns = []
    for move in np.eye(len(point)) * step:
        above, below = function(Tensor(point + move)), function(Tensor(point - move))
        columns.append((above.numpy() - below.numpy()) / (2 * step))
    return np.stack(columns, -1)


# *** every operation ***


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Transformations end where graphs begin: one device is enough, and this compiles nothing."""
    with Context(FERRULE_DEVICE="NUMPY"):
        yield


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jvp(interpreted: None, name: str) -> None:
    function, points = FUNCTIONS[name]
    directions = [RNG.normal(size=np.shape(point)) for point in points]
    value, slope = jvp(function, tensors(points), tensors(directions))
    moved = [
        function(*tensors([p + step * d for p, d in zip(points, directions, strict=True)])).numpy()
        for step in (1e-6, -1e-6)
    ]
    close(value, function(*tensors(points)))
    close(slope, (moved[0] - moved[1]) / 2e-6, 2e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_is_a_loop(interpreted: None, name: str) -> None:
    """Values, gradients, and gradients by what is the same for all lanes."""
    function, points = FUNCTIONS[name]
    wide = [np.stack([point, point * 1.01, point * 0.98]) for point in points]
    lanes = [tensors([part[lane] for part in wide]) for lane in range(3)]
    expected = np.stack([function(*lane).numpy() for lane in lanes])
    close(vmap(function)(*tensors(wide)), expected)

    weights = Tensor(RNG.normal(size=expected.shape))
    whole = tensors(points)[1:]
    axes = (0, *[None for _ in whole])
    numbers = tuple(range(len(points)))

    def weighted(number: int) -> Callable[..., Tensor]:
        return lambda *args: (function(*args) * weights[number]).sum()

    slopes = grad(lambda *args: (vmap(function)(*args) * weights).sum(), numbers)(*tensors(wide))
    one_by_one = [grad(weighted(number), numbers)(*lane) for number, lane in enumerate(lanes)]
    for slope, parts in zip(slopes, zip(*one_by_one, strict=True), strict=True):
        close(slope, np.stack([part.numpy() for part in parts]))

    mapped = grad(lambda *args: (vmap(function, axes)(*args) * weights).sum(), numbers)
    slopes = mapped(Tensor(wide[0]), *whole)
    one_by_one = [grad(weighted(n), numbers)(lane[0], *whole) for n, lane in enumerate(lanes)]
    for slope, parts in zip(slopes[1:], list(zip(*one_by_one, strict=True))[1:], strict=True):
        close(slope, np.sum([part.numpy() for part in parts], 0))


@pytest.mark.parametrize(
    "name",
    [
        *["gelu", "pow", "matmul", "maximum", "conv2d stride"],
        *["along softmax", "along max", "along prod", "along attention", "along cross_entropy"],
        *["move pad reflect", "move index tensor", "move scatter_add", "move setitem tensor"],
        *["move index_put", "move index_put add", "move scatter prod", "move scatter amax alone"],
    ],
)
def test_second_derivatives_through_vmap(interpreted: None, name: str) -> None:
    function, points = FUNCTIONS[name]
    first = np.asarray(points[0], np.float64)
    wide = Tensor(np.stack([first, first * 1.01]))
    rest = tensors(points[1:])

    def slope(x: Tensor) -> Tensor:
        return (grad(lambda x: (function(x, *rest) ** 2).sum())(x) ** 2).sum()

    def slope_over_lanes(x: Tensor) -> Tensor:
        inner = vmap(lambda x: function(x, *rest))
        return (grad(lambda x: (inner(x) ** 2).sum())(x) ** 2).sum()

    expected = np.stack([grad(slope)(wide[lane]).numpy() for lane in range(2)])
    close(grad(slope_over_lanes)(wide), expected)
    close(vmap(grad(slope))(wide), expected)


# *** gradients ***


def test_grad_of_a_formula(device: str) -> None:
    x = Tensor(POINT)
    close(grad(lambda x: (x.sin() * x).sum())(x), np.sin(POINT) + POINT * np.cos(POINT))
    close(grad(energy)(x), differences(energy, POINT), 1e-8)
    value, slope = value_and_grad(energy)(x)
    close(value, energy(x))
    close(slope, grad(energy)(x))
    assert grad(lambda x: x * x)(3.0).item() == 6.0


def test_arguments_and_results_in_containers(device: str) -> None:
    def loss(parameters: dict[str, Any], x: Tensor, scale: float) -> tuple[Tensor, dict[str, Any]]:
        hidden = (x @ parameters["w"] + parameters["b"][0]).tanh()
        return (hidden * scale).sum(), {"hidden": hidden, "name": "loss"}

    parameters = {"w": Tensor(WEIGHT), "b": (Tensor(POINT), None)}
    x = Tensor(POINT)
    (slopes, by_x), aux = grad(loss, (0, 1), has_aux=True)(parameters, x, 2.0)
    assert aux["name"] == "loss"
    assert aux["hidden"].requires_grad is None
    assert slopes["b"][1] is None
    assert isinstance(slopes["b"], tuple)
    close(slopes["w"], grad(lambda w: loss({**parameters, "w": w}, x, 2.0)[0])(Tensor(WEIGHT)))
    close(slopes["b"][0], 2 * (1 - np.tanh(POINT @ WEIGHT + POINT) ** 2))
    close(by_x, slopes["b"][0].numpy() @ WEIGHT.T)
    (value, rest), _ = value_and_grad(loss, -2, has_aux=True)(parameters, x, 2.0)
    close(value, loss(parameters, x, 2.0)[0])
    assert rest["name"] == "loss"


def test_results_that_are_arguments() -> None:
    x = Tensor(POINT)
    assert grad(lambda x: x)(Tensor(3.0)).item() == 1.0
    assert jvp(lambda x: x, (x,), (x * 2,))[1].tolist() == (2 * POINT).tolist()
    assert vjp(lambda x: (x, x), x)[1]((x, x))[0].tolist() == (2 * POINT).tolist()
    close(jacrev(lambda x: x)(x), np.eye(3))
    close(jacfwd(lambda x: x)(x), np.eye(3))
    close(vmap(lambda x: x)(x), POINT)
    close(ferrule.checkpoint(lambda x: x, x), POINT)
    close(grad(lambda x: ferrule.checkpoint(lambda x: x, x).sum())(x), np.ones(3))


def test_checkpoint_of_a_written_view() -> None:
    """The result is a view, which is read when the function has run again."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        view = (x * 1).reshape(3, 1)
        view[1:] = y
        return view

    x, y = Tensor(POINT), Tensor([[3.0], [4.0]]).requires_grad_()
    for result in (function(x, y), ferrule.checkpoint(function)(x, y)):
        close(result.square().sum().gradient(y)[0], np.array([[6.0], [8.0]]))


def test_checkpoint_asks_for_no_gradient_that_nobody_wants() -> None:
    """Only some arguments are differentiated by; others may have no rule."""
    x, q = Tensor(POINT).abs() + 2, (Tensor(POINT).abs() + 1).requires_grad_()
    plain = x.zeta(q).sum().gradient(q)[0].numpy()
    seen = []

    @ferrule.checkpoint
    def function(x: Tensor, q: Tensor) -> Tensor:
        seen.append((bool(x.requires_grad), bool(q.requires_grad)))
        return x.zeta(q)

    close(function(x, q).sum().gradient(q)[0], plain)
    assert seen == [(False, True)] * 2
    assert not function(x, q.detach()).requires_grad


def test_what_does_not_depend_gets_zeros() -> None:
    x, y = Tensor(POINT), Tensor(POINT)
    by_x, by_y = grad(lambda x, y: (y * 2).sum(), (0, 1))(x, y)
    assert by_x.tolist() == [0, 0, 0]
    assert by_y.tolist() == [2, 2, 2]
    assert jvp(lambda x: y * 2, (x,), (x,))[1].tolist() == [0, 0, 0]
    assert jacfwd(lambda x: y)(x).tolist() == jacrev(lambda x: y)(x).tolist() == [[0] * 3] * 3
    assert grad(lambda x: (x.detach() * x).sum())(x).tolist() == POINT.tolist()


def test_models_as_closures(device: str) -> None:
    Tensor.manual_seed(5)
    model = nn.Linear(3, 2)
    x = Tensor(POINT.astype(np.float32))
    by_x = grad(lambda x: model(x).sum())(x)
    close(by_x, model.weight.numpy().sum(0), 1e-6)
    assert model.weight.grad is None
    by_x.square().sum().backward()
    close(model.weight.grad, np.tile(2 * by_x.numpy(), (2, 1)), 1e-6)
    examples = Tensor(RNG.normal(size=(4, 3)).astype(np.float32))
    vmap(model)(examples).square().sum().backward()
    together, model.weight.grad = model.weight.grad, None
    model(examples).square().sum().backward()
    close(together.numpy() - np.tile(2 * by_x.numpy(), (2, 1)), model.weight.grad, 1e-5)


def test_transformations_leave_the_tape_outside_alone() -> None:
    w = Tensor(POINT, requires_grad=True)
    hidden = w * 2
    slope = grad(lambda x: (x * hidden).sum())(Tensor(POINT))
    assert slope.requires_grad
    (hidden * slope.detach()).sum().backward()
    close(w.grad, 4 * POINT)
    assert grad(lambda x: (x * x).sum())(Tensor(POINT)).requires_grad is None
    assert grad(lambda x: (x * x).sum())(w).requires_grad
    with Tensor.no_grad():
        inside = grad(lambda x: (x * x).sum())(w)
    assert inside.requires_grad is None
    close(inside, 2 * POINT)
    assert vmap(lambda x: x * 2)(Tensor(POINT)).requires_grad is None


def test_arguments_are_not_written_to() -> None:
    def twice(x: Tensor) -> Tensor:
        x += x
        return (x * x).sum()

    x = Tensor(POINT)
    close(grad(twice)(x), 8 * POINT)
    close(vmap(twice)(Tensor(np.stack([POINT] * 2))), [4 * (POINT**2).sum()] * 2)
    close(x, POINT)


def test_no_recording_inside_is_respected() -> None:
    def half(x: Tensor) -> Tensor:
        with Tensor.no_grad():
            factor = x * 2
        return (x * factor).sum()

    close(grad(half)(Tensor(POINT)), 2 * POINT)
    with ferrule.no_grad(), ferrule.enable_grad():
        assert (Tensor(POINT, requires_grad=True) * 2).requires_grad


# *** products, Jacobians, Hessians ***


def test_vjp_and_jvp_are_each_others_transpose(device: str) -> None:
    def function(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"a": (x @ Tensor(WEIGHT)).sin() * y, "b": x * y.exp()}

    x, y = tensors([POINT, POINT * 0.5 + 1])
    along = tensors([RNG.normal(size=3), RNG.normal(size=3)])
    back = dict(zip("ab", tensors([RNG.normal(size=3), RNG.normal(size=3)]), strict=True))
    value, pull = vjp(function, x, y)
    pulled = pull(back)
    same, pushed = jvp(function, (x, y), tuple(along))
    close(value["a"], same["a"])
    left = sum((pulled[n].numpy() * along[n].numpy()).sum() for n in range(2))
    right = sum((pushed[key].numpy() * back[key].numpy()).sum() for key in "ab")
    close(left, right)
    close(pull({"b": back["b"], "a": back["a"]})[0], pulled[0])
    again, push = linearize(function, x, y)
    close(push(*along)["b"], pushed["b"])
    close(again["b"], value["b"])
    aux = vjp(lambda x: (x * 2, "more"), x, has_aux=True)
    assert aux[2] == "more"
    assert aux[1](x)[0].tolist() == (2 * POINT).tolist()
    assert jvp(lambda x: (x * 2, "more"), (x,), (x,), has_aux=True)[2] == "more"


def test_jacobians(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        return (x @ Tensor(WEIGHT[:, :2])).sin() * x[0]

    x = Tensor(POINT)
    expected = differences(function, POINT)
    for transform in (jacrev, jacfwd, jacobian):
        close(transform(function)(x), expected, 1e-8)
    close(vmap(jacrev(function))(x.reshape(1, 3)), expected[None], 1e-8)
    close(vmap(jacfwd(function))(x.reshape(1, 3)), expected[None], 1e-8)


def test_jacobians_of_containers(device: str) -> None:
    def function(p: dict[str, Tensor], y: Tensor) -> tuple[Tensor, list[Tensor]]:
        return p["m"] @ y, [p["m"].sum(), y * p["s"]]

    p = {"m": Tensor(WEIGHT[:2]), "s": Tensor(2.0).double()}
    y = Tensor(POINT)
    for transform in (jacrev, jacfwd):
        found = transform(function, (0, 1))(p, y)
        by_p, by_y = found[0]
        assert by_p["m"].shape == (2, 2, 3)
        assert by_p["s"].shape == (2,)
        close(by_y, WEIGHT[:2])
        close(by_p["m"], np.einsum("ij,k->ijk", np.eye(2), POINT))
        assert found[1][0][0]["m"].tolist() == [[1.0] * 3] * 2
        close(found[1][1][1], np.eye(3) * 2)
        close(found[1][1][0]["s"], POINT)
    jacobians, aux = jacfwd(lambda x: (x * 2, "more"), has_aux=True)(y)
    assert aux == "more"
    assert jacobians.tolist() == (np.eye(3) * 2).tolist()


def test_hessian(device: str) -> None:
    x = Tensor(POINT)
    expected = differences(grad(energy), POINT)
    close(hessian(energy)(x), expected, 1e-8)
    for first in (jacrev, jacfwd, grad):
        for second in (jacrev, jacfwd):
            close(second(first(energy))(x), expected, 1e-8)
    close(jvp(grad(energy), (x,), (x,))[1], expected @ POINT, 1e-8)
    close(grad(lambda y: jvp(energy, (y,), (x,))[1])(x), expected @ POINT, 1e-8)
    close(vjp(grad(energy), x)[1](x)[0], expected @ POINT, 1e-8)
    mixed = hessian(lambda x, y: (x * y * y).sum(), (0, 1))(x, x)
    close(mixed[0][0], np.zeros((3, 3)))
    close(mixed[0][1], np.diag(2 * POINT))
    close(mixed[1][1], np.diag(2 * POINT))


@pytest.mark.parametrize("base", [1.0, 2.0, 0.25])
@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_hessian_of_a_power(device: str, base: float, exponent: float) -> None:
    # By the formulas, at the exponent 0 too, where the slope to the base is 0 and not constant.
    found = hessian(lambda z: (z[:1] ** z[1:]).sum())(
        Tensor([base, exponent], dtype=dtypes.float64)
    )
    power, log = base**exponent, np.log(base)
    mixed = base ** (exponent - 1) * (1 + exponent * log)
    curved = exponent * (exponent - 1) * base ** (exponent - 2)
    close(found, np.array([[curved, mixed], [mixed, power * log * log]]), 1e-12)


def test_third_order(device: str) -> None:
    x = Tensor(POINT)
    third = jacfwd(hessian(energy))(x).numpy()
    close(third, differences(hessian(energy), POINT), 1e-7)
    close(jacrev(jacrev(jacrev(energy)))(x), third)
    cube = grad(lambda x: grad(lambda x: grad(lambda x: (x**5).sum())(x).sum())(x).sum())
    close(cube(x), 60 * POINT**2)
    t = Tensor(POINT, requires_grad=True)
    (first,) = (t**4).sum().gradient(t, create_graph=True)
    (second,) = first.sum().gradient(t, create_graph=True)
    close(second.sum().gradient(t)[0], 24 * POINT)


def test_perturbations_are_not_confused() -> None:
    """The inner derivative must not see the outer variable as its own."""
    found = grad(lambda x: x * grad(lambda y: x + y)(Tensor(1.0)))(Tensor(1.0))
    assert found.item() == 1.0
    found = jvp(lambda x: x * jvp(lambda y: x * y, (x,), (x * 0 + 1,))[1], (3.0,), (1.0,))[1]
    assert found.item() == 6.0


# *** inside and around TinyJit ***


def batch(seed: int) -> Tensor:
    return Tensor(np.random.default_rng(seed).normal(size=(4, 3)))


@pytest.mark.parametrize(
    "transformed",
    [
        grad(lambda x: vmap(energy)(x).sum()),
        vmap(grad(energy)),
        vmap(hessian(energy)),
        vmap(lambda x: jvp(energy, (x,), (x * 2,))[1]),
        vmap(jacfwd(lambda x: x.softmax() * x[0])),
        vmap(grad(ferrule.checkpoint(energy))),
        lambda x: vjp(vmap(energy), x)[1](x[:, 0])[0],
        vmap(vmap(lambda x: x.sin() * 2)),
        lambda x: vmap(lambda x, y: x @ y, in_axes=(0, None))(x, x.T),
    ],
    ids=[
        *["grad of vmap", "vmap of grad", "hessian", "jvp", "jacfwd", "checkpoint", "vjp"],
        *["vmap of vmap", "whole"],
    ],
)
def test_inside_tinyjit(device: str, transformed: Callable[..., Tensor]) -> None:
    function = TinyJit(transformed)
    for seed in range(4):
        x = batch(seed)
        close(function(x), transformed(x), 1e-12)
    assert len(function.jit_cache) > 0


def test_tinyjit_inside_is_just_the_function() -> None:
    @TinyJit
    def total(x: Tensor) -> Tensor:
        return (x * x).sum()

    for seed in range(4):
        x = batch(seed)
        close(grad(total)(x), 2 * x.numpy())
        close(vmap(total)(x), (x.numpy() ** 2).sum(1))
        assert total.cnt == 2 * seed + 2
        assert not total.jit_cache


# *** derivatives of the user's making ***


def test_custom_vjp(device: str) -> None:
    @custom_vjp
    def power(x: Tensor) -> Tensor:
        """e to the x."""
        return x.exp()

    def forward(x: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        value = x.exp()
        return value, (value,)

    power.defvjp(forward, lambda kept, slope: (slope * kept[0],))
    assert power.__doc__ == "e to the x."
    x = Tensor(POINT)
    close(power(x), np.exp(POINT))
    close(grad(lambda x: power(x).sum())(x), np.exp(POINT))
    close(hessian(lambda x: power(x).sum())(x), np.diag(np.exp(POINT)))
    close(vmap(grad(grad(power)))(x), np.exp(POINT))
    close(grad(lambda x: vmap(power)(x).sum())(x), np.exp(POINT))
    close(jvp(power, (x,), (x,))[1], np.exp(POINT) * POINT)


def test_custom_vjp_of_containers() -> None:
    @custom_vjp
    def both(pair: dict[str, Tensor], scale: float, z: Tensor) -> tuple[Tensor, Tensor]:
        return pair["x"] * scale, pair["y"] + z

    def backward(kept: Any, slopes: tuple[Tensor, Tensor]) -> Any:
        by_first, by_second = slopes
        return {"x": by_first * 10, "y": by_second * 100, "n": None}, None, None

    both.defvjp(lambda pair, scale, z: (both._function(pair, scale, z), ()), backward)
    pair = {"x": Tensor(POINT), "y": Tensor(POINT)}
    slopes, by_z = grad(lambda p, z: both({**p, "n": 3}, 3.0, z)[0].sum(), (0, 1))(
        pair, Tensor(POINT)
    )
    assert slopes["x"].tolist() == [10.0] * 3
    assert slopes["y"].tolist() == by_z.tolist() == [0.0] * 3


def test_entries_are_counted_as_they_are_made() -> None:
    x = Tensor(POINT, requires_grad=True)
    first, second = (x * 2)._read().edge, (x * 3)._read().edge
    assert isinstance(first, GradNode)
    assert isinstance(second, GradNode)
    assert first.serial < second.serial
