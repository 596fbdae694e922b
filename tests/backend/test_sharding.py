"""Tensors spread over a mesh: placements, movement between them, gradients, replays."""

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit
from ferrule.base.config import Context
from ferrule.device import DeviceIndexError, GlobalCounters
from ferrule.distributed import Mesh, P, ShardedTensor, all_reduce
from ferrule.errors import DTypeError, ShapeError

Array = np.ndarray[Any, Any]
CPUS = [f"CPU:{k}" for k in range(8)]
MESHES = {
    "one": Mesh({"data": 1}, ["CPU"]),
    "line": Mesh({"data": 3}, CPUS[:3]),
    "grid": Mesh({"data": 2, "model": 3}, CPUS[:6]),
    "cube": Mesh({"data": 2, "model": 2, "pipe": 2}, CPUS),
}


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(np.float32)


# *** meshes and placements ***


def test_a_mesh_has_places() -> None:
    mesh = Mesh({"data": 2, "model": 3}, CPUS[:6])
    assert (mesh.shape, mesh.axis_names, mesh.size) == (
        {"data": 2, "model": 3},
        ("data", "model"),
        6,
    )
    assert mesh.devices == ("CPU", "CPU:1", "CPU:2", "CPU:3", "CPU:4", "CPU:5")
    assert [mesh.number(mesh.coordinates(k)) for k in range(6)] == list(range(6))
    assert mesh.coordinates(4) == {"data": 1, "model": 1}
    assert mesh == Mesh({"data": 2, "model": 3}, [name.lower() for name in CPUS[:6]])
    assert hash(mesh) == hash(copy.deepcopy(mesh))
    assert mesh != Mesh({"model": 2, "data": 3}, CPUS[:6])
    assert mesh != Mesh({"data": 2, "model": 3}, CPUS[1:7])
    with Context(FERRULE_DEVICE="NUMPY:3"):
        assert Mesh({"x": 2}).devices == ("NUMPY", "NUMPY:1")


def test_a_mesh_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"axes {'x': 3} need 3 different devices, not CPU, CPU:1"):
        Mesh({"x": 3}, CPUS[:2])
    with pytest.raises(ValueError, match="need 2 different devices, not CPU, CPU"):
        Mesh({"x": 2}, ["CPU", "cpu:0"])
    with pytest.raises(ValueError, match=r"the axis 'x' has size 0"):
        Mesh({"x": 0})
    with pytest.raises(DeviceIndexError):
        Mesh({"x": 9}, [f"CPU:{k}" for k in range(9)])


def test_placements_are_values() -> None:
    assert P("data", None) == P("data", None) != P("data")
    assert P(("data",)) == P("data")
    assert hash(P("a", unreduced={"b"})) == hash(P("a", unreduced=["b"]))
    assert repr(P(("a", "b"), None, "c", unreduced={"z", "y"})) == (
        "P(('a', 'b'), None, 'c', unreduced={'y', 'z'})"
    )
    for one in (P(), P("a", None, ("b", "c")), P(None, unreduced={"x"})):
        assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)
    for make in (lambda: P("a", "a"), lambda: P(("a", "b"), "b"), lambda: P("a", unreduced="a")):
        with pytest.raises(ValueError, match=r"\[P\] the axis '\w' is named twice"):
            make()


# *** parts ***


def place(array: Array, mesh: Mesh, placement: P, number: int) -> Array:
    """The part of an array that a device has, written anew."""
    there = mesh.coordinates(number)
    for dim, axes in enumerate(placement.dims):
        for name in axes:
            array = np.split(array, mesh.shape[name], dim)[there[name]]
    return array


def placements(mesh: Mesh, ndim: int, seed: int, unreduced: bool = False) -> P:
    """A random placement."""
    generator = random.Random(seed)
    names = list(mesh.axis_names)
    generator.shuffle(names)
    dims: list[list[str]] = [[] for _ in range(ndim)]
    partial = []
    for name in names:
        choice = generator.randrange(-1 - unreduced, ndim)
        if choice >= 0:
            dims[choice].append(name)
        elif choice == -2:
            partial.append(name)
    return P(*dims, unreduced=partial)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_a_tensor_goes_to_a_mesh_and_back(mesh: Mesh, seed: int) -> None:
    array = numbers(24, 12, seed=seed)
    placement = placements(mesh, 2, seed)
    x = Tensor(array, device="CPU").shard(mesh, placement)
    assert (x.shape, x.dtype, x.placement, x.mesh) == ((24, 12), x.parts[0].dtype, placement, mesh)
    for number, part in enumerate(x.parts):
        assert part.device == mesh.devices[number]
        np.testing.assert_array_equal(part.numpy(), place(array, mesh, placement, number))
    whole = x.gather()
    assert whole.device == "CPU"
    np.testing.assert_array_equal(whole.numpy(), array)
    for device in ("CPU:7", "NUMPY"):
        assert x.gather(device).device == device
        np.testing.assert_array_equal(x.gather(device).numpy(), array)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_any_placement_from_any_other(mesh: Mesh, seed: int) -> None:
    """Partial sums too: the whole is the sum of what the parts of all places would be."""
    before = placements(mesh, 2, seed, unreduced=True)
    after = placements(mesh, 2, seed + 50)
    kept = P(*after.dims, unreduced=before.unreduced.difference(after.axes()))
    terms = {}
    parts = []
    for number, device in enumerate(mesh.devices):
        there = mesh.coordinates(number)
        term = tuple(there[name] for name in sorted(before.unreduced))
        terms.setdefault(term, numbers(24, 12, seed=len(terms)))
        parts.append(Tensor(place(terms[term], mesh, before, number), device=device))
    x = ShardedTensor(mesh, before, parts)
    total = sum(terms.values())
    assert x.shape == (24, 12)
    np.testing.assert_array_equal(x.gather().numpy(), total)
    y = x.reshard(after)
    for number, part in enumerate(y.parts):
        assert part.device == mesh.devices[number]
        np.testing.assert_array_equal(part.numpy(), place(np.asarray(total), mesh, after, number))
    still = x.reshard(kept)
    assert still.placement == kept
    np.testing.assert_array_equal(still.gather().numpy(), total)


def test_what_is_there_is_not_copied() -> None:
    mesh = MESHES["grid"]
    x = Tensor(numbers(6, 6), device="CPU").realize().shard(mesh, P("data"))
    Tensor.realize(*x.parts)
    GlobalCounters.reset()
    same = x.reshard(P("data"))
    finer = x.reshard(P("data", "model"))
    Tensor.realize(*same.parts, *finer.parts)
    # Each device cuts its part out of what it has: no byte goes from one to another.
    assert GlobalCounters.kernel_count <= mesh.size


def test_gradients_of_movement() -> None:
    mesh = MESHES["grid"]
    array, weight = numbers(6, 6), numbers(6, 6, seed=1)
    x = Tensor(array, device="CPU", requires_grad=True)
    spread = x.shard(mesh, P("data", None)).reshard(P(None, "model"))
    squares = ShardedTensor(mesh, spread.placement, [part.square() for part in spread.parts])
    (squares.gather() * Tensor(weight, device="CPU")).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), 2 * array * weight)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_product_of_split_matrices_in_a_captured_function(n_threads: int) -> None:
    """Rows by one axis of the mesh, inner products by the other, as partial sums."""
    mesh = Mesh({"data": 2, "model": 2}, CPUS[:4])

    @TinyJit
    def step(a: Tensor, b: Tensor) -> Tensor:
        x, w = a.shard(mesh, P("data", "model")), b.shard(mesh, P("model"))
        products = [p @ q for p, q in zip(x.parts, w.parts, strict=True)]
        return ShardedTensor(mesh, P("data", unreduced={"model"}), products).gather().realize()

    with Context(FERRULE_NUM_THREADS=n_threads):
        for seed in range(4):
            a, b = numbers(8, 6, seed=seed), numbers(6, 4, seed=seed + 9)
            got = step(Tensor(a, device="CPU"), Tensor(b, device="CPU"))
            np.testing.assert_array_equal(got.numpy(), a @ b)


def test_sharded_arguments_of_captured_functions() -> None:
    mesh = Mesh({"data": 2}, CPUS[:2])

    @TinyJit
    def double(x: ShardedTensor) -> list[Tensor]:
        assert x.placement == P("data")
        return [(part * 2).realize() for part in x.parts]

    results = []
    for seed in range(5):
        array = numbers(4, 3, seed=seed)
        x = Tensor(array, device="CPU").shard(mesh, P("data"))
        results.append((ShardedTensor(mesh, P("data"), double(x)), array))
    assert double.jit_cache
    for result, array in results:
        np.testing.assert_array_equal(result.gather().numpy(), array * 2)


# *** errors ***


def test_what_cannot_be_placed() -> None:
    mesh = MESHES["grid"]
    x = Tensor(numbers(6, 4), device="CPU")
    with pytest.raises(
        ShapeError, match=r"P\(None, 'model'\) splits dimension 1 of shape \(6, 4\)"
    ):
        x.shard(mesh, P(None, "model"))
    with pytest.raises(TypeError, match=r"takes a Mesh and a P, not dict and tuple: x\.shard"):
        x.shard({"data": 2}, ("data",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"names 'rows'; the axes of the mesh are data, model"):
        x.shard(mesh, P("rows"))
    with pytest.raises(ShapeError, match=r"is for 3 dimensions, the tensor has 2"):
        x.shard(mesh, P("data", None, None))
    with pytest.raises(ValueError, match=r"a tensor is no partial sum"):
        x.shard(mesh, P(unreduced={"data"}))
    spread = x.shard(mesh, P("data"))
    with pytest.raises(ValueError, match="there are no partial sums over model"):
        spread.reshard(P("data", unreduced={"model"}))
    with pytest.raises(ShapeError, match="which does not divide its size; pad it first"):
        spread.reshard(P(None, "model"))


def test_parts_that_do_not_fit() -> None:
    mesh = Mesh({"data": 2}, CPUS[:2])
    a, b = Tensor([1.0], device="CPU"), Tensor([1.0], device="CPU:1")
    with pytest.raises(ValueError, match="the mesh has devices CPU, CPU:1, the parts are on CPU:1"):
        ShardedTensor(mesh, P("data"), [b, a])
    with pytest.raises(ShapeError, match=r"on CPU has shape \(1,\), that on CPU:1 has \(2,\)"):
        ShardedTensor(mesh, P("data"), [a, Tensor([1.0, 2.0], device="CPU:1")])
    with pytest.raises(DTypeError, match=r"that on CPU:1 is dtypes\.int32"):
        ShardedTensor(mesh, P("data"), [a, Tensor([1], device="CPU:1")])


def test_a_sum_over_the_whole_mesh_is_an_all_reduce() -> None:
    mesh = MESHES["line"]
    parts = [Tensor(numbers(5, seed=k), device=d) for k, d in enumerate(mesh.devices)]
    copies = ShardedTensor(mesh, P(unreduced={"data"}), parts).reshard(P())
    for one, other in zip(copies.parts, all_reduce(parts), strict=True):
        assert one.device == other.device
        np.testing.assert_array_equal(one.numpy(), other.numpy())
