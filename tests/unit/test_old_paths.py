"""Modules by the paths that they had before: the same modules, with a warning if undocumented."""

import importlib
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import ferrule
from ferrule.imports import DOCUMENTED, MOVED
from ferrule.ir.lazy import LazyBuffer

SOURCE = Path(ferrule.__file__).parent


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forgets old paths after a test: Python clears modules at its end by their last entries."""
    before = {*sys.modules}
    yield
    for name in sys.modules.keys() - before:
        if sys.modules[name].__name__ != name:
            del sys.modules[name]


def warnings_of_import(path: str) -> list[str]:
    """What importing a module says for the first time, if what it is below is there already."""
    package = path.rpartition(".")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(package)
    sys.modules.pop(path, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        importlib.import_module(path)
        importlib.import_module(path)
    assert {warning.category for warning in caught} <= {DeprecationWarning}
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_is_the_same_module(old: str) -> None:
    new = f"ferrule.{MOVED[old]}"
    said = warnings_of_import(f"ferrule.{old}")
    module = importlib.import_module(new)
    assert sys.modules[f"ferrule.{old}"] is module
    assert module.__name__ == new
    assert module.__spec__ is not None
    assert module.__spec__.name == new
    if old in DOCUMENTED:
        assert said == []
    else:
        assert said == [
            f"ferrule.{old} is {new} now; its old path will be gone in the next version"
        ]


def test_documented_paths_are_in_the_table() -> None:
    assert {*MOVED} >= DOCUMENTED


@pytest.mark.parametrize("old", MOVED)
def test_nothing_else_is_at_an_old_path(old: str) -> None:
    assert not (SOURCE / f"{old.replace('.', '/')}.py").exists()
    assert not (SOURCE / old.replace(".", "/") / "__init__.py").exists()


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_hides_nothing(old: str) -> None:
    """An import makes a module an attribute of the package that the path says."""
    package, _, name = old.rpartition(".")
    home = importlib.import_module(f"ferrule.{MOVED.get(package, package)}".rstrip("."))
    module = importlib.import_module(f"ferrule.{MOVED[old]}")
    assert vars(home).get(name) in (None, module)


def test_the_graph_executor_of_cuda_has_its_documented_paths() -> None:
    program = (
        "from ferrule.features.graph.cuda import CUDAGraph; "
        "import ferrule.runtime.graph.cuda, ferrule.runtime.cuda; "
        "assert ferrule.runtime.graph.cuda.CUDAGraph is CUDAGraph; "
        "print(CUDAGraph.__module__, ferrule.runtime.cuda.__name__)"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=SOURCE.parent)
    assert done.stdout.split() == ["ferrule.runtime.cuda.graph", "ferrule.runtime.cuda"]


def test_imports_by_old_paths() -> None:
    """Of modules from packages, and of names from both, in a process that has none of them yet."""
    program = (
        "from ferrule import lazy; import ferrule.gradient.tape as tape; "
        "from ferrule.schedule.cut import __name__ as cut; from ferrule.codegen import grid; "
        "import ferrule.ops, ferrule.ir.lazyop; "
        "print(lazy.__name__, tape.__name__, cut, grid.__name__, ferrule.ops is ferrule.ir.lazyop)"
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=SOURCE.parent)
    names = "ferrule.ir.lazy ferrule.autograd.tape ferrule.fusion.cut ferrule.codegen.schedules.gpu"
    assert done.stdout.split() == [*names.split(), "True"]


def test_the_warning_is_at_the_line_that_imports() -> None:
    command = [sys.executable, "-W", "always", "-c", "\n\nimport ferrule.storage"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=SOURCE.parent)
    assert done.stderr.startswith("<string>:3: DeprecationWarning: ferrule.storage is ferrule.ir")


def test_pickles_of_before() -> None:
    old = b"cferrule.lazy\nLazyBuffer\n."
    assert pickle.loads(old) is LazyBuffer


@pytest.mark.parametrize("stub", sorted(SOURCE.glob("*.pyi")), ids=lambda stub: stub.stem)
def test_a_stub_is_of_what_is_imported(stub: Path) -> None:
    homes = re.findall(r"^from ferrule\.([\w.]+) import", stub.read_text(), re.MULTILINE)
    assert MOVED[stub.stem] == homes[0]
    assert stub.stem in DOCUMENTED
