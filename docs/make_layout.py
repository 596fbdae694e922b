"""Writes what each module is into the pages that list modules: the first sentence of its docstring.

Run it with `python docs/make_layout.py` after a docstring has changed. The pages are those of the
rooms, `src/ferrule/*/README.md`, and `docs/layout.md` for the modules at the root.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

LAYOUT = Path(__file__).parent / "layout.md"
SOURCE = LAYOUT.parents[1] / "src" / "ferrule"


def pages() -> list[Path]:
    """The pages that list modules."""
    return [LAYOUT, *sorted(SOURCE.glob("*/README.md"))]


def purpose(module: Path) -> str:
    """What the docstring of a module begins with."""
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(docstring.partition("\n\n")[0].split()).rstrip(".")


def refreshed(page: Path) -> str:
    """The page with the present purpose in each row that names a module."""
    folder = SOURCE if page == LAYOUT else page.parent
    return re.sub(
        r"^\| `([\w/]+\.py)` \|.*$",
        lambda row: f"| `{row[1]}` | {purpose(folder / row[1])} |",
        page.read_text(),
        flags=re.MULTILINE,
    )


if __name__ == "__main__":
    for page in pages():
        page.write_text(refreshed(page))
