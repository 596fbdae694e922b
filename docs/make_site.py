"""Lays the documentation out for the generator of the site, in build/site.

`make site` runs this and the generator, Zensical, which reads `mkdocs.yml` as MkDocs does. The
pages are those of the repository, at their paths, so that links lead to each other there as here.
Made from code are: a page for each part of the public names, one for each example, and the tour.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"
PAGES = SITE / "pages"

CONFIG = """\
site_name: ferrule
site_description: A tensor compiler in Python
docs_dir: pages
site_dir: html
theme:
  name: material
  font: false
  features: [content.code.copy, navigation.indexes, navigation.tabs, navigation.top, toc.follow]
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
      toggle: {icon: material/weather-night, name: Dark}
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
      toggle: {icon: material/weather-sunny, name: Light}
plugins: [search]
markdown_extensions:
  - attr_list
  - tables
  - toc: {permalink: true, toc_depth: 3}
  - pymdownx.highlight
  - pymdownx.inlinehilite
  - pymdownx.superfences
validation: {invalid_links: true, invalid_link_anchors: true}
nav: """

# The tabs of the site. A list of paths is in their order; a star stands for all others.
NAV: dict[str, list[str]] = {
    "Home": ["index.md"],
    "Guide": [
        "docs/coming-from.md",
        "docs/coming-from-pytorch.md",
        "docs/distributions.md",
        "docs/mixed-precision.md",
        "docs/onnx.md",
        "docs/pytorch-models.md",
        "docs/export.md",
        "docs/array-api.md",
        "docs/performance.md",
    ],
    "Examples": ["examples/index.md", "examples/*.md"],
    "Names": ["docs/api.md", "docs/api/*.md"],
    "Errors": ["docs/errors/index.md", "docs/errors/*.md"],
    "Inside": [
        "docs/layout.md",
        "docs/tour.md",
        "docs/adding-a-device.md",
        "docs/adding-an-op.md",
        "docs/design/*.md",
    ],
    "Rooms": ["docs/rooms/*.md"],
    "Decisions": ["docs/decisions/index.md", "docs/decisions/*.md"],
    "Project": ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"],
}

LANGUAGES = {7: "llvm", 8: "asm"}


def script(path: Path) -> ModuleType:
    """A module that belongs to no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fenced(text: str, language: str = "text") -> str:
    """A block of code."""
    return f"```{language}\n{text.strip()}\n```\n"


# The pages of the repository


def place_of(path: Path) -> str:
    """Where something is on the site: programs are pages, and a folder's page is its index."""
    place = path.relative_to(ROOT).as_posix()
    place = re.sub(r"^src/ferrule/(\w+)/README\.md$", r"docs/rooms/\1.md", place)
    place = place.replace("README.md", "index.md")
    return re.sub(r"^(examples/\w+|docs/tour)\.py$", r"\1.md", place)


def repository_pages() -> Iterator[tuple[str, str]]:
    """All pages that are written by hand, but for the list of names; copies files they link to."""
    folders = [ROOT.glob("*.md"), ROOT.glob("docs/**/*.md"), ROOT.glob("examples/*.md")]
    for path in chain(*folders, ROOT.glob("src/ferrule/*/README.md")):
        if path != ROOT / "docs" / "api.md":
            text = re.sub(r"(?<=\]\()([^)#:\s]+)", partial(linked, path), path.read_text())
            yield place_of(path), text


def linked(page: Path, link: re.Match[str]) -> str:
    """A link of a page, as it is on the site. What it leads to is copied if it is no page there."""
    target = (page.parent / link[1]).resolve()
    if not target.is_relative_to(ROOT) or not target.is_file():
        return link[1]
    place = place_of(target)
    if not place.endswith(".md"):
        (PAGES / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, PAGES / place)
    return os.path.relpath(PAGES / place, (PAGES / place_of(page)).parent)


# Pages made from code


def example_pages() -> Iterator[tuple[str, str]]:
    """A page for each example: what its docstring says, then its code."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        _, about, code = path.read_text().split('"""', 2)
        title, _, rest = about.partition("\n")
        text = f"# {title.rstrip('.')}\n{rest}\n{fenced(code, 'python')}"
        yield f"examples/{path.stem}.md", text


def tour_page() -> Iterator[tuple[str, str]]:
    """The forms of a matrix product on its way to machine code, as `docs/tour.py` prints them."""
    tour = script(ROOT / "docs" / "tour.py")
    shown: list[str] = []
    tour.Tour(shown.append).run()
    about = (tour.__doc__ or "").replace("`docs/layout.md`", "[the map](layout.md)")
    title, _, rest = about.partition("\n")
    parts = [f"# {title.rstrip('.')}\n{rest}\nWhat it prints on the machine that made this site:\n"]
    for step in shown:
        match = re.fullmatch(r"\n=== (\d+)\. (.*) ===\n\n(.*)", step, re.DOTALL)
        assert match is not None
        number, title, text = int(match[1]), match[2], match[3]
        parts.append(f"\n## {number}. {title}\n\n")
        if number == 1:
            (PAGES / "docs" / "tour-graph.svg").write_text(graph_picture(text))
            parts.append("![The nodes of the graph, sources on the left](tour-graph.svg)\n\n")
        parts.append(fenced(text, LANGUAGES.get(number, "text")))
    yield "docs/tour.md", "".join(parts)


def graph_picture(text: str) -> str:
    """The graph of the tour as SVG: its lines say "%7 = MUL(%6, %3) (48, 32, 64) ..."."""
    width, height, column, row = 104, 44, 124, 64
    boxes, arrows = [], []
    places: dict[str, tuple[int, int]] = {}
    for name, op, sources, shape in re.findall(r"^(%\d+) = (\w+)\((.*?)\) \((.*?)\)", text, re.M):
        before = [places[source] for source in re.findall(r"%\d+", sources)]
        x = max((x for x, _ in before), default=-1) + 1
        y = min((y for _, y in before), default=len([p for p in places.values() if p[0] == 0]))
        places[name] = x, y
        left, top = 10 + x * column, 10 + y * row
        boxes.append(
            f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="6" class="node"/>'
            f'<text x="{left + width // 2}" y="{top + 18}" class="op">{op}</text>'
            f'<text x="{left + width // 2}" y="{top + 35}">{shape}</text>'
        )
        for source_x, source_y in before:
            start, line = 10 + source_x * column + width, 10 + source_y * row + height // 2
            way = f"M{start} {line} H{left - column + width} L{left} {top + height // 2}"
            arrows.append(f'<path d="{way}"/>')
    size = [
        10 + max(place[axis] for place in places.values()) * step + step
        for axis, step in enumerate((column, row))
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}">'
        "<style>text{font:13px sans-serif;text-anchor:middle}.op{font-weight:bold}"
        "path{fill:none;stroke:#777;stroke-width:1.5}.node{fill:#e8eaf6;stroke:#3f51b5}</style>"
        f'<rect width="100%" height="100%" fill="white"/>{"".join(arrows + boxes)}</svg>\n'
    )


def name_pages() -> Iterator[tuple[str, str]]:
    """The list of names in parts, and a page that leads to them."""
    whole: str = script(ROOT / "docs" / "make_api.py").page()
    head, *sections = split(whole, "## ")
    links = []
    for section in sections:
        intro, *themes = split(section, "### Tensor: ")
        for number, part in enumerate([intro, *themes]):
            heading, _, body = part.partition("\n")
            title = heading.strip("# ").removeprefix("Tensor: ")
            title = f"Tensor: {title[0].lower()}{title[1:]}" if number else title
            slug = re.sub(r"\W+", "-", title.lower()).strip("-")
            text = "\n".join(lines_of_names(body, "####" if number else "###"))
            yield f"docs/api/{slug}.md", f"# {title}\n{text}"
            links.append(f"- [{title}](api/{slug}.md)\n")
    yield "docs/api.md", f"{head}\n{''.join(links)}"


def split(text: str, heading: str) -> list[str]:
    """The parts of a page that begin with such a heading, and what comes before."""
    return re.split(rf"^(?={heading})", text, flags=re.MULTILINE)


def lines_of_names(body: str, mark: str) -> Iterator[str]:
    """The lines of a part: a name's heading has it as its anchor, and prose no stray emphasis."""
    in_code = False
    for line in body.splitlines():
        in_code ^= line.startswith("```")
        match = re.fullmatch(rf"{mark} `((\w+).*)`", line)
        if match:
            yield f"## `{match[1]}` {{ #{match[2]} data-toc-label='{match[2]}' }}"
        elif in_code:
            yield line
        else:
            pieces = line.split("`")
            pieces[::2] = [piece.replace("*", r"\*") for piece in pieces[::2]]
            yield "`".join(pieces)


# All of it


def navigation(places: set[str]) -> list[dict[str, Any]]:
    """The tabs with their pages. Ends the program if a page is in none of them."""
    listed: set[str] = {place for paths in NAV.values() for place in paths}
    tabs = []
    for title, paths in NAV.items():
        pages: list[str] = []
        for path in paths:
            folder, _, name = path.rpartition("/")
            siblings = [p for p in places if p.rpartition("/")[0] == folder and p not in listed]
            pages += sorted(siblings) if name == "*.md" else [path]
        listed.update(pages)
        tabs.append({title: pages})
    left = places - listed
    if left:
        sys.exit(f"give these pages a place in NAV of docs/make_site.py: {sorted(left)}")
    return tabs


def main() -> None:
    """Writes the pages, the files that they link to, and the generator's settings."""
    shutil.rmtree(SITE, ignore_errors=True)
    (PAGES / "docs").mkdir(parents=True)
    pages = dict(repository_pages())
    for made in (example_pages(), tour_page(), name_pages()):
        pages.update(made)
    for place, text in pages.items():
        path = PAGES / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (SITE / "mkdocs.yml").write_text(CONFIG + json.dumps(navigation(set(pages)), indent=1) + "\n")


if __name__ == "__main__":
    main()
