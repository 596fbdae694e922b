"""Every example in a docstring of ferrule runs, and gives what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FILES = sorted(path.relative_to(SOURCE) for path in (SOURCE / "ferrule").rglob("*.py"))
MODULES = [
    ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    for path in FILES
    if path.name not in ("__main__.py", "functional.py")  # these are made to be run, or to fail
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
