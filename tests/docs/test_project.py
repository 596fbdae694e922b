"""The pages and files about the project agree with it: versions, paths, links."""

import re
import tomllib
from pathlib import Path

import pytest

import ferrule

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "examples").glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "src").rglob("*.md"),
]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text()))
    files = {link.partition("#")[0] for link in links if "://" not in link}
    assert [file for file in sorted(files) if not (page.parent / file).exists()] == []


def test_the_paths_that_contributors_are_sent_to_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"(?:src|tests|docs|examples|bench)/[\w/.-]*\w", text))
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_the_tests_that_make_runs_exist() -> None:
    named = set(re.findall(r"\btests/[\w/.*-]*\w", (ROOT / "Makefile").read_text()))
    assert "tests/unit/test_stored.py" in named
    assert [path for path in sorted(named) if not any(ROOT.glob(path))] == []


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {ferrule.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_changelog_has_this_version() -> None:
    log = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{ferrule.__version__}]" in log or f"in development is {ferrule.__version__}" in log


def test_commits_are_checked_by_the_linter_of_the_project() -> None:
    pinned = re.findall(r'"(ruff[^"]*)"', (ROOT / ".pre-commit-config.yaml").read_text())
    (wanted,) = [tool for tool in developers_tools() if tool.startswith("ruff")]
    assert set(pinned) == {wanted}


def developers_tools() -> list[str]:
    tools: list[str] = PROJECT["project"]["optional-dependencies"]["dev"]
    return tools


def test_the_hosted_checks_begin_with_the_oldest_python() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (listed,) = re.findall(r"python: \[(.*)\]", workflow)
    pythons = listed.replace('"', "").split(", ")
    assert PROJECT["project"]["requires-python"] == f">={pythons[0]}"
    assert PROJECT["tool"]["mypy"]["python_version"] == pythons[0]
    assert "run: .ci/run" in workflow
