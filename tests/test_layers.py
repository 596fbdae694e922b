"""A module imports lower modules only, so there can be no import circle."""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from ferrule.device import codegen_files
from ferrule.schedule.stored import planning_files

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ferrule"

# The page that lists all modules, lower ones first.
LAYOUT = (ROOT / "docs" / "layout.md").read_text()
LISTED = re.findall(r"^\| `([\w/]+\.py)` \|", LAYOUT, re.MULTILINE)

# The table of devices, the namespace of functions on tensors, and what the documents have in
# helpers: the only edges upward. The backend of einops says of which module's tensors it is.
NAMES_OTHERS = {"device", "einops_backend", "helpers", "tensor.namespace"}

# In `tensor/base.py`, for type checkers alone: the class that is made of the functions above it.
FOR_CHECKERS = "from ferrule.tensor import Tensor as Tensor"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path): path for path in SOURCE.rglob("*.py")}
ORDER = {module_name(SOURCE / file): place for place, file in enumerate(LISTED)}
FULL_NAMES = {f"ferrule.{name}" for name in MODULES}


def named_by(text: str) -> str:
    """The module that a dotted name inside ferrule refers to, `__init__` for the package itself."""
    name = text.removeprefix("ferrule").removeprefix(".")
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or "__init__"


def is_full_name(value: object) -> bool:
    """Whether a constant is what a module is loaded by, such as `ferrule.jit:TinyJit`."""
    return isinstance(value, str) and value.split(":")[0] in FULL_NAMES


class Named(NamedTuple):
    """What of ferrule a module names."""

    imports: list[str]
    """All modules in an import, wherever the import stands."""
    strings: list[str]
    """Texts that a module could be loaded by."""


@functools.cache
def named_in(name: str) -> Named:
    named = Named([], [])
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        names: list[str] = []
        if name == "tensor.base" and ast.unparse(node) == FOR_CHECKERS:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and is_full_name(node.value):
            named.strings.append(str(node.value))
        ours = [name for name in names if name.split(".")[0] == "ferrule"]
        named.imports.extend(map(named_by, ours))
    return named


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_lower_modules_only(name: str) -> None:
    assert name in ORDER, f"{name}: in no layer; give it its place in docs/layout.md"
    upward = [other for other in named_in(name).imports if ORDER[other] >= ORDER[name]]
    assert not upward, f"{name} imports {upward}, which are not lower"


@pytest.mark.parametrize("name", sorted(MODULES.keys() - NAMES_OTHERS))
def test_few_modules_name_others_in_strings(name: str) -> None:
    """A module loaded by name would be an import that the other test cannot see."""
    assert not named_in(name).strings


def reached_from(names: set[str]) -> set[str]:
    """These modules, and all that they import, and so on."""
    reached: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting |= {*named_in(name).imports} - reached
    return reached


def test_the_fingerprint_of_code_generation_covers_what_it_is_made_of() -> None:
    """What is reached from making a program and printing it decides what a cached kernel is."""
    renderers = {name for name in MODULES if name.startswith("renderer")}
    # Settings, memory and threads decide nothing there; a target's key is in a kernel's key itself.
    needed = reached_from({"codegen.linearizer", "facts", *renderers})
    needed -= {"buffer", "config", "helpers", "target", "threadstate"}
    assert {MODULES[name] for name in needed} <= set(codegen_files())


def test_the_fingerprint_of_planning_covers_what_it_is_made_of() -> None:
    """What is reached from planning decides what a stored schedule is."""
    # Of devices, runs and files the planner asks nothing but the target, which is in the key.
    needed = reached_from({"schedule"}) - reached_from({"device"})
    assert {MODULES[name] for name in needed} <= set(planning_files())
    assert {MODULES["lazy"], MODULES["ops"], MODULES["schedule.cut"]} <= set(planning_files())


# Facts of a target from which only code generation concludes what schedules can do.
OF_HARDWARE = {"block_threads", "warp", "static_shared_bytes", "n_vector_registers"}
# They make targets, or take what a kernel was scheduled for.
KNOW_HARDWARE = ("codegen", "renderer", "runtime", "target")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_code_generation_concludes_from_what_the_hardware_is_like(name: str) -> None:
    """Others put a named question to `codegen/policy.py`."""
    if name.split(".")[0] in KNOW_HARDWARE:
        return
    tree = ast.parse(MODULES[name].read_text())
    asked = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not asked & OF_HARDWARE, f"{name}: ask ferrule.codegen.policy instead"


def test_functions_of_tensors_know_no_target() -> None:
    """They ask the scheduler in which form it wants a computation."""
    for name in MODULES:
        if name.split(".")[0] == "tensor":
            assert not {"target", "codegen.policy"} & {*named_in(name).imports}, name


def test_the_layout_page_lists_all_modules() -> None:
    files = [path.relative_to(SOURCE).as_posix() for path in MODULES.values()]
    assert sorted(LISTED) == sorted(files)
