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

# Lower layers first, one line a layer; inside a layer, earlier modules first.
LAYERS = """
    shape codegen codegen.primitives renderer runtime runtime.graph demo
    records enums interning helpers calls fingerprint containers config diskcache
    dtype fits dlpack target
    expr.base expr.printing expr.build expr.values expr.variable expr
    shape.movement shape.view shape.shapetracker shape.layout
    codegen.launch
    buffer
    opkinds ops facts fold
    codegen.intrinsics codegen.kernel codegen.phases codegen.elementwise codegen.sums
    codegen.expressions codegen.lower
    codegen.window codegen.limits codegen.segments codegen.neighbours codegen.owner
    codegen.primitives.editing codegen.primitives.loops codegen.primitives.kinds
    codegen.primitives.nests codegen.primitives.memory codegen.primitives.products
    codegen.primitives.running codegen.primitives.scans codegen.opt codegen.threads
    codegen.plan codegen.streams codegen.panels codegen.rows codegen.scans codegen.tensorize
    codegen.tile codegen.copies codegen.packed codegen.blocks codegen.taps codegen.dots
    codegen.amx codegen.contraction
    codegen.chains codegen.scatters codegen.gridstreams
    codegen.gridcost codegen.gridrows codegen.gridtile codegen.gridchains codegen.gridscatter
    codegen.grid codegen.heuristic codegen.mutate codegen.search
    codegen.prepack
    codegen.uops codegen.floats codegen.waves codegen.transcendental codegen.prepare
    codegen.emitter codegen.values codegen.serial codegen.ahead codegen.fragments
    codegen.tileregisters codegen.reduction
    codegen.linearizer codegen.gridparts
    codegen.interpret.arithmetic codegen.interpret.memory codegen.interpret.machine
    codegen.interpret
    renderer.base renderer.float8
    renderer.llvmvalue renderer.llvmexpand renderer.llvmalu renderer.llvmfloat8
    renderer.llvmcast renderer.llvmtile renderer.llvmaddress renderer.llvmir
    renderer.cdialect renderer.cprelude renderer.calu renderer.cbounds renderer.cinline
    renderer.cblocks renderer.cfunction renderer.claunch renderer.cstyle
    compiler runner winners trials tuner interpreted device packing trial_worker capture
    runtime.elf runtime.native_parts runtime.native_pool runtime.native runtime.pool runtime.llvm
    runtime.cpu_memory runtime.cpu_program runtime.graph.cpu runtime.cpu runtime.numpy
    runtime.opencl_driver runtime.opencl_memory runtime.opencl_program runtime.graph.opencl
    runtime.opencl
    runtime.cuda_driver runtime.cuda_memory runtime.cuda_compiler runtime.cuda_program
    runtime.graph.dependencies runtime.graph.cuda runtime.cuda
    features features.graph features.graph.cuda
    node known lazy steps storage schedule.signature schedule.graph schedule.views schedule.updates
    schedule.tasks schedule.slots
    schedule.costs schedule.fusion schedule.gains schedule.legality schedule.keep schedule.guests
    schedule.cut
    schedule.trees schedule.merge schedule.order
    schedule.joined schedule.hazards schedule.parts schedule.outline schedule.recipe
    schedule.stored schedule.offsets schedule.lengths schedule.changing
    memory schedule realize
    gradient.recording gradient.tape gradient.rules gradient gradient.joined backward
    counting random blas host lanes
    tensor.keywords tensor.data tensor.steps tensor.special tensor.power tensor.errorfunction
    tensor.pairs tensor.inverse tensor.gamma tensor.bessel tensor.rowwise tensor.classes
    tensor.broadcast tensor.limits tensor.matrices tensor.cell tensor.einstein tensor.windows
    tensor.solving tensor.factoring
    tensor.base tensor.checked tensor.exchange tensor.copying tensor.namespace tensor.autograd
    tensor.arithmetic tensor.elementwise tensor.functions tensor.scientific
    tensor.probability tensor.numeric tensor.activations tensor.movement tensor.joining
    tensor.arranging
    tensor.scan tensor.reduce tensor.moments tensor.norms tensor.running tensor.order
    tensor.sorting tensor.searching tensor.differences tensor.summaries tensor.creation
    tensor.making tensor.scattered
    tensor.positions tensor.indexing tensor.selecting tensor.scattering tensor.linalg
    tensor.products tensor.diagonals tensor.solvers
    tensor.decompositions tensor.patterns tensor.rearranging
    tensor.convolution tensor.pooling tensor.sampling tensor.resampling
    tensor.normalization
    tensor.tables tensor.attention tensor.neural tensor.loss tensor.margins tensor.alignment
    tensor.inplace tensor.hints tensor
    jit.places jit.reach jit.names jit.numbers jit.hooks jit.inputs jit.sharing jit.results
    jit.found jit.readers jit.watch jit.batch jit.weights jit.replay jit.recent jit.before
    jit.made jit.record jit
    fft signal.windows signal.spectrum signal
    tuning
    array_api.data_types array_api.creation array_api.elementwise array_api.statistical
    array_api.manipulation array_api.searching array_api.linalg array_api.inspection array_api
    transforms.trace transforms.derivatives transforms.mapping transforms.jacobians
    transforms.recompute transforms.custom transforms
    nn.optim.groups nn.optim.optimizer nn.optim.tensorwise nn.optim.sgd nn.optim.adam
    nn.optim.adaptive nn.optim.linesearch nn.optim.lbfgs
    nn.optim.lr_scheduler.schedule nn.optim.lr_scheduler.decay nn.optim.lr_scheduler.cycles
    nn.optim.lr_scheduler.combined nn.optim.lr_scheduler.plateau nn.optim.lr_scheduler nn.optim
    nn.state.files nn.state.model nn.state.safetensors nn.state.npz nn.state.checkpoints
    nn.state
    nn.init nn.parameters nn.shown nn.functions nn.containers nn.linear nn.embedding nn.convolution
    nn.normalization nn.recurrent nn.attention nn.transformer nn.activations nn.shapes nn.losses
    nn.utils.parametrize nn.utils.parametrizations nn.utils nn
    demo.terminal demo.digits cli errors imports __init__ __main__
"""
# The table of devices, and the namespace of functions on tensors: the only edges upward.
NAMES_OTHERS = {"device", "tensor.namespace"}
ORDER = {name: place for place, name in enumerate(LAYERS.split())}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path): path for path in SOURCE.rglob("*.py")}
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
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and is_full_name(node.value):
            named.strings.append(node.value)
        ours = [name for name in names if name.split(".")[0] == "ferrule"]
        named.imports.extend(map(named_by, ours))
    return named


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_lower_modules_only(name: str) -> None:
    assert name in ORDER, f"{name}: in no layer; give it its place in LAYERS"
    upward = [other for other in named_in(name).imports if ORDER[other] >= ORDER[name]]
    assert not upward, f"{name} imports {upward}, which are not lower"


@pytest.mark.parametrize("name", sorted(MODULES.keys() - NAMES_OTHERS))
def test_only_two_modules_name_others_in_strings(name: str) -> None:
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
    # Settings and memory decide nothing there; a target's key is in a kernel's key itself.
    needed = reached_from({"codegen.linearizer", "facts", *renderers})
    needed -= {"buffer", "config", "helpers", "target"}
    assert {MODULES[name] for name in needed} <= set(codegen_files())


def test_the_fingerprint_of_planning_covers_what_it_is_made_of() -> None:
    """What is reached from planning decides what a stored schedule is."""
    # Of devices, runs and files the planner asks nothing but the target, which is in the key.
    needed = reached_from({"schedule"}) - reached_from({"device"})
    assert {MODULES[name] for name in needed} <= set(planning_files())
    assert {MODULES["lazy"], MODULES["ops"], MODULES["schedule.cut"]} <= set(planning_files())


def test_the_layout_page_names_just_the_modules_that_there_are() -> None:
    page = (ROOT / "docs" / "layout.md").read_text()
    table = page.partition("## From an expression")[0]
    named = set(re.findall(r"`([\w/]+\.py)`", table.partition("| layer |")[2]))
    assert named == {path.relative_to(SOURCE).as_posix() for path in MODULES.values()}
