"""docs/api.md and the lists of modules are what the docstrings say."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def script(name: str) -> Any:
    """A module of the folder of documents."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_names_is_up_to_date() -> None:
    stale = "docs/api.md is not what the docstrings say; run: python docs/make_api.py"
    assert (DOCS / "api.md").read_text() == script("make_api").page(), stale


LAYOUT = script("make_layout")


@pytest.mark.parametrize("page", LAYOUT.pages(), ids=lambda page: page.parent.name)
def test_the_pages_of_modules_are_up_to_date(page: Path) -> None:
    stale = f"{page} is not what the docstrings say; run: python docs/make_layout.py"
    assert LAYOUT.refreshed(page) == page.read_text(), stale
