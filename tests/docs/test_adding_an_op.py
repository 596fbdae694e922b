"""The ops of `docs/adding-an-op.md`, added to a copy of ferrule by the changes on the page."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.test_blocks import ROOT

PAGE = (ROOT / "docs" / "adding-an-op.md").read_text()
DIFF = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^## An? (.*?) op$(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
SECTIONS = {name: DIFF.findall(text) for name, text in SECTION.findall(PAGE)}


def hunks_of(diff: str) -> list[tuple[str, str, str]]:
    """For each change of a diff the file, the lines that it has, and those that it gets."""
    found = []
    for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        file, *hunks = re.split(r"^@@\n", part, flags=re.MULTILINE)
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] != "+")
            after = "".join(line[1:] for line in lines if line[0] != "-")
            found.append((file.strip(), before, after))
    return found


def apply(diffs: list[str], folder: Path) -> None:
    for diff in diffs:
        for file, before, after in hunks_of(diff):
            text = (folder / file).read_text()
            assert text.count(before) == 1, f"{file} has {text.count(before)} times:\n{before}"
            (folder / file).write_text(text.replace(before, after))


def python(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with the copy of ferrule in a folder."""
    path = f"import sys; sys.path.insert(0, {str(folder / 'src')!r})\n"
    command = [sys.executable, "-c", path + program]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def table_test(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the test of the table there."""
    arguments = ["-q", "-p", "no:cacheprovider", "tests/test_ops_table.py"]
    return python(folder, f"import pytest; sys.exit(pytest.main({arguments}))")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package and of the test of the table."""
    unneeded = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "ferrule", tmp_path / "src" / "ferrule", ignore=unneeded)
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "test_ops_table.py", tmp_path / "tests")
    return tmp_path


def test_there_is_one_op_of_each_kind() -> None:
    assert [*SECTIONS] == ["element-wise", "movement", "reduce"]


@pytest.mark.parametrize("kind", SECTIONS)
def test_an_op_touches_at_most_four_files(kind: str) -> None:
    files = {file for diff in SECTIONS[kind] for file, _, _ in hunks_of(diff)}
    assert 0 < len(files) <= 4


def test_the_test_of_the_table_says_what_is_missing(copy: Path) -> None:
    apply(SECTIONS["element-wise"][:1], copy)
    (promised,) = re.findall(r"^```text\n(UnaryOps.RSQRT.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    done = table_test(copy)
    found = re.findall(r"^E +AssertionError: (.* has no rule for .*)$", done.stdout, re.MULTILINE)
    assert found == promised.splitlines(), done.stdout + done.stderr


def test_the_ops_of_the_page_work(copy: Path) -> None:
    apply([diff for diffs in SECTIONS.values() for diff in diffs], copy)
    done = table_test(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    use = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert use is not None
    done = python(copy, use[1])
    assert done.stdout == use[2], done.stderr
