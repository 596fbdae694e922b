"""Every example in a docstring of ferrule runs, and gives what it says."""

import ast
import builtins
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


def free_names(example: str) -> set[str]:
    """The names that an example uses, and that neither it nor Python defines."""
    tree = ast.parse("".join(part.source for part in doctest.DocTestParser().get_examples(example)))
    used, bound = set(), set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(name.asname or name.name).partition(".")[0] for name in node.names}
    return used - bound


@pytest.mark.parametrize(
    "room", ["array_api", "distributed", "fft", "nn", "signal", "tensor", "transforms"]
)
def test_examples_of_public_names_run_when_they_are_pasted(room: str) -> None:
    lacking = []
    for path in sorted((SOURCE / "ferrule" / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                names = free_names(ast.get_docstring(node) or "")
                lacking += [f"{path.name}: {node.name} lacks {sorted(names)}"] if names else []
    assert not lacking
