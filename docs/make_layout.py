"""Writes what each module is into `docs/layout.md`: the first sentence of its docstring.

Run it with `python docs/make_layout.py` after a docstring has changed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

PAGE = Path(__file__).parent / "layout.md"
SOURCE = PAGE.parents[1] / "src" / "ferrule"


def purpose(module: str) -> str:
    """What the docstring of a module begins with."""
    docstring = ast.get_docstring(ast.parse((SOURCE / module).read_text())) or ""
    return " ".join(docstring.partition("\n\n")[0].split()).rstrip(".")


def refreshed(page: str) -> str:
    """The page with the present purpose in each row that names a module."""
    return re.sub(
        r"^\| `([\w/]+\.py)` \|.*$",
        lambda row: f"| `{row[1]}` | {purpose(row[1])} |",
        page,
        flags=re.MULTILINE,
    )


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text()))
