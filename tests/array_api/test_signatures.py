"""The names of the standard, and how its functions are called."""

import inspect
from types import ModuleType
from typing import Any

import array_api_compat
import array_api_strict
import pytest

import ferrule.array_api as xp
from ferrule import Device, Tensor, dtypes

# What array_api_strict has beyond version 2024.12 or for itself, and complex numbers.
NOT_OURS = {
    "ArrayAPIStrictFlags",
    "Device",
    "ModuleType",
    "broadcast_shapes",
    "complex128",
    "complex64",
    "fft",
    "get_array_api_strict_flags",
    "isin",
    "reset_array_api_strict_flags",
    "set_array_api_strict_flags",
}


def names(module: ModuleType) -> set[str]:
    public = getattr(module, "__all__", dir(module))
    return {name for name in public if not name.startswith("_")} - NOT_OURS


def functions(theirs: ModuleType, ours: ModuleType) -> list[Any]:
    found = [(name, getattr(theirs, name)) for name in sorted(names(theirs))]
    return [
        pytest.param(function, getattr(ours, name), id=name)
        for name, function in found
        if inspect.isfunction(function)
    ]


def test_every_name_is_there() -> None:
    assert names(array_api_strict) - names(xp) == set()
    assert names(array_api_strict.linalg) - names(xp.linalg) == set()


def parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    functions(array_api_strict, xp) + functions(array_api_strict.linalg, xp.linalg),
)
def test_signatures(theirs: Any, ours: Any) -> None:
    """The same parameters in order and kind, with the same defaults where those mean something."""
    expected, found = parameters(theirs), parameters(ours)
    assert [part.name for part in found] == [part.name for part in expected]
    for own, other in zip(found, expected, strict=True):
        assert own.kind == other.kind
        assert (own.default is own.empty) == (other.default is other.empty) or own.name == "axis"
        if isinstance(other.default, bool | int | float | str):
            assert own.default == other.default


@pytest.mark.parametrize("name", xp.__all__)
def test_everything_is_documented(name: str) -> None:
    if inspect.isfunction(getattr(xp, name)):
        assert getattr(xp, name).__doc__
        assert getattr(xp, name).__name__ == name


# *** the array object ***

METHODS = """
    __abs__ __add__ __and__ __array_namespace__ __bool__ __complex__ __dlpack__ __dlpack_device__
    __eq__ __float__ __floordiv__ __ge__ __getitem__ __gt__ __index__ __int__ __invert__ __le__
    __lshift__ __lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __or__ __pos__ __pow__ __rshift__
    __setitem__ __sub__ __truediv__ __xor__ to_device
    __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __ipow__ __imod__ __imatmul__ __iand__
    __ior__ __ixor__ __ilshift__ __irshift__
    __radd__ __rsub__ __rmul__ __rtruediv__ __rfloordiv__ __rpow__ __rmod__ __rmatmul__ __rand__
    __ror__ __rxor__ __rlshift__ __rrshift__
    dtype device mT ndim shape T size
"""


@pytest.mark.parametrize("name", METHODS.split())
def test_the_array_object_has(name: str) -> None:
    assert hasattr(Tensor([[1]]), name)


def test_the_namespace_of_a_tensor() -> None:
    x = Tensor([1.0])
    assert x.__array_namespace__() is xp
    assert x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(ValueError, match=r"version '2020\.01' of the array API is none of"):
        x.__array_namespace__(api_version="2020.01")
    assert array_api_compat.is_array_api_obj(x)
    assert array_api_compat.array_namespace(x, x) is xp
    assert array_api_compat.device(x) == x.device
    assert array_api_compat.to_device(x, "NUMPY").device == "NUMPY"


def test_moving_between_devices() -> None:
    x = Tensor([1.0])
    assert x.to_device(x.device) is x
    assert x.to_device("NUMPY").device == "NUMPY"
    with pytest.raises(ValueError, match="no streams"):
        x.to_device("CPU", stream=1)


# *** what the namespace says of itself ***


def test_inspection() -> None:
    info = xp.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"]
    assert info.default_device() == Device.DEFAULT
    assert {"CPU", "NUMPY"} <= set(info.devices())
    assert info.default_dtypes()["real floating"] is dtypes.float32
    assert set(info.dtypes()) == {
        *("bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64", "float32", "float64"),
    }
    assert set(info.dtypes(kind="real floating")) == {"float32", "float64"}
    assert set(info.dtypes(kind=("bool", "signed integer"))) == {
        *("bool", "int8", "int16", "int32", "int64")
    }


def test_data_types() -> None:
    assert xp.isdtype(xp.int8, "integral")
    assert xp.isdtype(xp.int8, ("bool", xp.int8))
    assert not xp.isdtype(xp.float32, "complex floating")
    with pytest.raises(ValueError, match="'whole' is no kind"):
        xp.isdtype(xp.int8, "whole")
    assert xp.result_type(xp.int8, Tensor([1], dtype=xp.uint8)) is xp.int16
    assert xp.result_type(xp.float32, 1.0, 2) is xp.float32
    assert xp.can_cast(xp.int8, xp.int16)
    assert not xp.can_cast(xp.float64, xp.float32)
    assert xp.iinfo(xp.int8).min == -128
    assert xp.finfo(Tensor([1.0])).smallest_normal == 2.0**-126
    assert xp.finfo(dtypes.bfloat16).eps == 2.0**-7


# *** libraries that dispatch on the namespace ***


def test_scikit_learn_computes_with_tensors() -> None:
    sklearn = pytest.importorskip("sklearn")
    metrics = pytest.importorskip("sklearn.metrics")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    x = Tensor([[0.0, 1.0], [2.0, 4.0], [4.0, 1.0]])
    with sklearn.config_context(array_api_dispatch=True):
        scaled = preprocessing.StandardScaler().fit_transform(x)
        assert isinstance(scaled, Tensor)
        assert scaled.std(0, correction=0).allclose([1.0, 1.0])
        assert metrics.mean_squared_error(x[:, 0], x[:, 1]) == pytest.approx(14 / 3)


def test_scipy_computes_with_tensors() -> None:
    special = pytest.importorskip("scipy.special")
    quantization = pytest.importorskip("scipy.cluster.vq")
    if not pytest.importorskip("scipy._lib._array_api").SCIPY_ARRAY_API:
        pytest.skip("SciPy does this if SCIPY_ARRAY_API=1 is set as it is imported")
    x = Tensor([[0.0, 1.0], [2.0, 4.0]])
    for found in (special.softmax(x, axis=1), quantization.whiten(x)):
        assert isinstance(found, Tensor)
    assert special.logsumexp(x, axis=1).allclose(x.logsumexp(1))
