"""A module imports lower modules only, so there can be no import circle."""

import ast
import functools
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from ferrule.device import codegen_files
from ferrule.fusion.plans.plan_cache import planning_files

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ferrule"

# The page that lists all rooms, lower ones first, and the modules above them; each room has a page
# that lists its modules, lower ones first.
LAYOUT = ROOT / "docs" / "layout.md"
ROOMS = re.findall(
    r"^\| \[`\w+/`\]\(\.\./src/ferrule/(\w+)/README\.md\)", LAYOUT.read_text(), re.MULTILINE
)


def rows_of(room: str) -> list[str]:
    """The modules that the page of a room lists, of the root for an empty name."""
    page = SOURCE / room / "README.md" if room else LAYOUT
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", page.read_text(), re.MULTILINE)
    return [f"{room}/{file}".lstrip("/") for file in listed]


LISTED = [file for room in (*ROOMS, "") for file in rows_of(room)]

# The table of devices, the namespace of functions on tensors, the method that exports a captured
# function, and what the documents have in helpers: the only edges upward. The backend of einops
# says of which module's tensors it is.
NAMES_OTHERS = {"base.helpers", "device", "einops_backend", "jit", "tensor.namespace"}

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
    assert name in ORDER, f"{name}: in no layer; give it its place in the README of its room"
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
    needed = reached_from({"codegen.linearizer", "ir.statistics", *renderers})
    needed -= {"ir.buffer", "base.config", "base.forks", "base.helpers"}
    needed -= {"ir.target", "base.threadstate"}
    assert {MODULES[name] for name in needed} <= set(codegen_files())


def test_the_fingerprint_of_planning_covers_what_it_is_made_of() -> None:
    """What is reached from planning decides what a stored schedule is."""
    # Of devices, runs and files the planner asks nothing but the target, which is in the key; and
    # how often tensors have changed decides nothing.
    needed = reached_from({"fusion"}) - reached_from({"device"}) - {"base.changes"}
    assert {MODULES[name] for name in needed} <= set(planning_files())
    expected = {MODULES["ir.lazy"], MODULES["ir.lazyop"], MODULES["fusion.cut"]}
    assert expected <= set(planning_files())


# Facts of a target from which only code generation concludes what schedules can do.
OF_HARDWARE = {"block_threads", "warp", "static_shared_bytes", "n_vector_registers"}
# They make targets, or take what a kernel was scheduled for.
KNOW_HARDWARE = ("codegen.", "renderer.", "runtime.", "ir.target")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_code_generation_concludes_from_what_the_hardware_is_like(name: str) -> None:
    """Others put a named question to `codegen/policy.py`."""
    if name.startswith(KNOW_HARDWARE):
        return
    tree = ast.parse(MODULES[name].read_text())
    asked = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not asked & OF_HARDWARE, f"{name}: ask ferrule.codegen.policy instead"


def test_functions_of_tensors_know_no_target() -> None:
    """They ask the scheduler in which form it wants a computation."""
    for name in MODULES:
        if name.split(".")[0] == "tensor":
            assert not {"ir.target", "codegen.policy"} & {*named_in(name).imports}, name


def test_the_pages_list_all_modules() -> None:
    files = [path.relative_to(SOURCE).as_posix() for path in MODULES.values()]
    assert sorted(LISTED) == sorted(files)


# *** rooms: the folders right below the package, and the modules at its root ***

MOST_IN_A_FOLDER = 25
MOST_AT_THE_ROOT = 8
MAY_IMPORT = re.compile(r"^\| may import \| (.*) \|$", re.MULTILINE)


def test_the_layout_page_lists_all_rooms() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert sorted(ROOMS) == sorted(folders)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_its_page_says(room: str) -> None:
    """Those are lower rooms, and none that it does not need."""
    (row,) = MAY_IMPORT.findall((SOURCE / room / "README.md").read_text())
    said = re.findall(r"\[`(\w+)`\]\(\.\./\w+/README\.md\)", row)
    imported = {
        other.partition(".")[0]
        for name in MODULES
        if name.partition(".")[0] == room
        for other in named_in(name).imports
    }
    assert said == [other for other in ROOMS if other in imported - {room}]
    assert not {*said} - {*ROOMS[: ROOMS.index(room)]}, "a higher room"


@pytest.mark.parametrize("room", ROOMS)
def test_the_page_of_a_room_lists_its_modules(room: str) -> None:
    files = [path.relative_to(SOURCE).as_posix() for path in (SOURCE / room).rglob("*.py")]
    assert sorted(rows_of(room)) == sorted(files)


def test_no_folder_has_too_many_modules() -> None:
    held = Counter(path.parent for path in MODULES.values())
    assert held.pop(SOURCE) <= MOST_AT_THE_ROOT
    assert not [folder for folder, count in held.items() if count > MOST_IN_A_FOLDER]
