"""How other libraries see a tensor: `numpy.ma`, which plotting uses, NumPy's dtypes, einops."""

import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, TinyJit, dtypes, grad, vmap
from ferrule.dtype import DType

MATRIX = np.array([[1.0, -2.0, 3.0], [4.0, 0.5, 2.0]])

# They read what only an array has: its bytes, its fields, or a mask by the name of a method.
ONLY_OF_ARRAYS = {
    "clump_unmasked",
    "default_fill_value",
    "flatnotmasked_contiguous",
    "flatnotmasked_edges",
    "frombuffer",
    "maximum_fill_value",
    "minimum_fill_value",
    "ndenumerate",
    "notmasked_contiguous",
    "transpose",
}


def takes_a_matrix(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with one matrix: others raise whatever they like."""
    try:
        with warnings.catch_warnings(action="ignore"):
            function(MATRIX.copy())
    except Exception:
        return False
    return True


def functions_of_masked_arrays() -> list[str]:
    functions = {name: getattr(np.ma, name) for name in {*np.ma.__all__} - ONLY_OF_ARRAYS}
    return sorted(
        name
        for name, function in functions.items()
        if callable(function) and not inspect.isclass(function) and takes_a_matrix(function)
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", functions_of_masked_arrays())
def test_masked_arrays_are_made_of_tensors(name: str) -> None:
    function = getattr(np.ma, name)
    expected, found = function(MATRIX.copy()), function(Tensor(MATRIX))
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray) and name != "empty_like":
        np.testing.assert_array_equal(np.ma.getdata(found), np.ma.getdata(expected))
        np.testing.assert_array_equal(np.ma.getmaskarray(found), np.ma.getmaskarray(expected))


def test_numpy_takes_none_of_our_private_names_for_its_own() -> None:
    """NumPy tells masked arrays and others by attributes, which a tensor must not have."""
    asked = re.compile(r"""(?:has|get)attr\(\s*[\w.]+\s*,\s*["'](_[A-Za-z]\w*)["']""")
    folder = Path(np.__file__).parent
    texts = [path.read_text(errors="ignore") for path in folder.glob("[a-z]*/*.py")]
    names = {name for text in texts for name in asked.findall(text)}
    assert "_mask" in names
    private = {name for name in dir(Tensor) if not name.startswith("__")}
    assert not names & private
    known_to_masked_arrays = {n for n in dir(np.ma.masked_array([1])) if re.match("_[a-z]", n)}
    assert not known_to_masked_arrays & private


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda dtype: dtype.name)
def test_numpy_takes_our_dtypes(dtype: DType) -> None:
    assert np.dtype(dtype) == np.dtype(dtype.np)
    assert np.zeros(2, dtype).dtype == np.dtype(dtype.np)
    assert np.ones(2).astype(dtype).dtype == np.dtype(dtype.np)
    assert dtype == np.dtype(dtype.np)


# *** einops ***


@pytest.fixture
def einops() -> Any:
    return pytest.importorskip("einops", reason="einops is not installed; it is in the extra dev")


CUBE = np.arange(24.0).reshape(2, 3, 4)
REDUCTIONS = ["sum", "mean", "max", "min", "prod"]


def check(found: Any, expected: Any) -> None:
    assert isinstance(found, Tensor)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_einops_checks_arguments(einops: Any) -> None:
    x = Tensor(CUBE)
    for pattern in ("a b c -> (c a) b", "a b (c d) -> a d (b c) 1", "a b c -> (a b c)"):
        sizes = {"d": 2} if "d" in pattern else {}
        check(einops.rearrange(x, pattern, **sizes), einops.rearrange(CUBE, pattern, **sizes))
    for pattern in ("a b c -> a 2 (b r) c", "a b c -> r a b c"):
        check(einops.repeat(x, pattern, r=3), einops.repeat(CUBE, pattern, r=3))
    check(einops.einsum(x, x, "a b c, d b c -> a d"), np.einsum("abc,dbc->ad", CUBE, CUBE))
    several = einops.rearrange([x, x + 1], "n a b c -> a (n b) c")
    check(several, einops.rearrange([CUBE, CUBE + 1], "n a b c -> a (n b) c"))
    assert einops.parse_shape(x, "a b c") == {"a": 2, "b": 3, "c": 4}
    np.testing.assert_array_equal(einops.asnumpy(x), CUBE)
    packed, shapes = einops.pack([x, x[:, 0]], "a * c")
    expected, wanted = einops.pack([CUBE, CUBE[:, 0]], "a * c")
    check(packed, expected)
    assert shapes == wanted
    for part, array in zip(einops.unpack(packed, shapes, "a * c"), [CUBE, CUBE[:, 0]], strict=True):
        check(part, array)


@pytest.mark.parametrize("pattern", ["a b c -> b", "a b c -> a 1 c", "a b c ->"])
def test_einops_reduces_tensors(einops: Any, pattern: str) -> None:
    x = Tensor(CUBE)
    for name in REDUCTIONS:
        check(einops.reduce(x, pattern, name), einops.reduce(CUBE, pattern, name))
    for name in ("any", "all"):
        check(einops.reduce(x > 3, pattern, name), einops.reduce(CUBE > 3, pattern, name))


def test_einops_in_transformed_and_captured_functions(einops: Any) -> None:
    x = Tensor(CUBE)
    check(grad(lambda x: einops.reduce(x * x, "a b c ->", "sum"))(x), 2 * CUBE)
    check(vmap(lambda x: einops.rearrange(x, "b c -> c b"))(x), CUBE.transpose(0, 2, 1))
    turned = TinyJit(lambda x: einops.rearrange(x, "a b c -> c (a b)") + 1)
    for number in range(4):
        moved = einops.rearrange(CUBE + number, "a b c -> c (a b)") + 1
        check(turned((x + number).realize()), moved)


ORDERS = [
    "import einops; import ferrule",
    "import ferrule; import einops",
    "import ferrule; ferrule.Tensor; import einops",
    "import einops; import numpy; einops.rearrange(numpy.ones(2), 'a -> a'); import ferrule",
]


@pytest.mark.parametrize("order", ORDERS)
def test_einops_and_ferrule_are_imported_in_any_order(einops: Any, order: str) -> None:
    light = "import sys; print('ferrule.tensor' in sys.modules)"
    use = "print(einops.rearrange(ferrule.Tensor([[1], [2]]), 'a b -> b a').tolist())"
    run = [sys.executable, "-W", "error", "-c", f"{order}; {light}; {use}"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == [str("Tensor" in order), "[[1, 2]]"], done.stderr
