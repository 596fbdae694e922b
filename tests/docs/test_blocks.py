"""Every Python block of the README and of docs/ runs; where a comment shows a result, it is that.

The blocks of one page share their names, as a reader would expect who follows it from the top. A
line `print(...)  # text` promises what it prints, and so does a block of text after one of Python.
A block after `<!-- not run -->` is left out.
"""

import io
import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from ferrule import errors
from ferrule.device import Device

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(<!-- not run -->\n)?^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
PROMISE = re.compile(r"^print\(.*\)  # (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One piece of Python in a page, and the line that it starts at."""

    code: str
    line: int
    output: str | None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = [match for match in BLOCK.finditer(text) if match[1] is None]
    return [Block(match[2], text.count("\n", 0, match.start(2)) + 1, match[3]) for match in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_python_blocks_of_a_page_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(Device, "_registered", {})
    names = {"__name__": page.stem}
    for block in blocks_of(page):
        # The empty lines make the line numbers of a traceback those of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(code, names)
        assert block.output in (None, printed.getvalue()), f"{page}:{block.line}"
        for promise in PROMISE.findall(block.code):
            assert promise in printed.getvalue().splitlines(), f"{page}:{block.line}: {promise}"


def test_every_error_has_a_page() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "errors").glob("*.md")}
    closely_related = {"AllocationSizeError", "OpTypeError"}
    assert set(errors.__all__) - closely_related <= pages
    index = (ROOT / "docs" / "errors" / "README.md").read_text()
    assert all(f"[{name}]({name}.md)" in index for name in pages - {"README"})


def test_the_readme_has_an_example() -> None:
    assert blocks_of(ROOT / "README.md")
