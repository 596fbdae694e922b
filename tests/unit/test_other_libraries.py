"""How other libraries see a tensor: `numpy.ma`, which plotting uses, and NumPy's dtypes."""

import inspect
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrule import Tensor, dtypes
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
