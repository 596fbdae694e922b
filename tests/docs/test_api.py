"""docs/api.md is what the docstrings say."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
    assert spec is not None
    assert spec.loader is not None
    make_api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_api)
    stale = "docs/api.md is not what the docstrings say; run: python docs/make_api.py"
    assert (DOCS / "api.md").read_text() == make_api.page(), stale
