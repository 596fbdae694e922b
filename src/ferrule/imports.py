"""Imports that ferrule takes part in: of old paths, of names that it does not have, and of einops.

A finder in front of all others gives modules by the paths that they had before. Attributes that are
missing say what to write instead (`ferrule.optim`). Python's imports drop that text, so a finder
behind all others gives it to them. Another one waits for einops, which knows only the tensors of
those who subclass one of its classes.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any, final

_BACKENDS = "einops._backends"
"""The module of einops with the backends for tensors of other libraries."""

_MOVED_TO = {
    "autograd": """
        backward counting=iota gradient.joined=concat gradient.recording gradient.rules
        gradient.tape gradient.training gradient=
    """,
    "base": """
        calls config containers diskcache enums fingerprint helpers interning interrupts records
        threadstate
    """,
    "codegen": "codegen.phases=polyphase",
    "codegen.analysis": """
        codegen.limits=loop_bounds codegen.neighbours=vector_shuffles codegen.owner=injective_stores
        codegen.segments=loop_partitions codegen.window
    """,
    "codegen.emit": """
        codegen.ahead=software_pipelining codegen.emitter codegen.floats codegen.fragments
        codegen.prepare=legalize codegen.reduction codegen.serial=loops
        codegen.tileregisters=tile_registers codegen.transcendental codegen.values
        codegen.waves=trigonometry
    """,
    "codegen.primitives": "codegen.primitives.running=reduce_fusion",
    "codegen.schedules": "codegen.copies codegen.packed codegen.tensorize codegen.tile",
    "codegen.schedules.cpu": """
        codegen.amx codegen.blocks codegen.chains codegen.contraction codegen.dots=inner_products
        codegen.panels=gemv codegen.rows codegen.scans codegen.scatters codegen.streams
        codegen.taps=depthwise
    """,
    "codegen.schedules.gpu": """
        codegen.grid.chains codegen.grid.cost codegen.grid.parts=split_reduce codegen.grid.rows
        codegen.grid.scatter codegen.grid.schedule codegen.grid.streams codegen.grid.tile
        codegen.grid=
    """,
    "device": "capture compiler interpreted memory=memory_planner packing=weight_packing runner",
    "device.autotune": "trial_worker=worker trials=measurement tuner winners=tuning_cache",
    "engine": "blas host random realize",
    "fusion": """
        schedule.costs schedule.cut schedule.expansion schedule.forms schedule.fusion=groups
        schedule.gains schedule.graph schedule.guests=horizontal_reduces schedule.hazards
        schedule.joined=concat schedule.keep=stages schedule.legality schedule.long_reduces
        schedule.merge=horizontal_elementwise schedule.order schedule.parts=long_reduces
        schedule.rounding schedule.signature schedule.slots schedule.tasks schedule.trees
        schedule.updates schedule.views schedule=
    """,
    "fusion.dynamic": "schedule.lengths schedule.offsets schedule.templates",
    "fusion.plans": """
        schedule.outline=graph_key schedule.recipe=execution_plan schedule.stored=plan_cache
    """,
    "ir": """
        buffer dependence dlpack dtype facts=statistics fits fold=constant_folding known=simplify
        lazy node opkinds=op_table ops=lazyop steps storage target
    """,
    "ir.expr": "expr.base expr.build expr.numbers expr.printing expr.values expr.variable expr=",
    "ir.shape": "shape.layout shape.movement shape.shapetracker shape.view shape=",
    "jit": "jit.recent=fast_path jit.watch=guards tuning",
    "renderer.c": """
        renderer.calu=alu renderer.cblocks=blocks renderer.cbounds=bounds renderer.cdialect=dialect
        renderer.cfunction=function renderer.cinline=inline renderer.claunch=launch
        renderer.cprelude=prelude renderer.cstyle=style
    """,
    "renderer.llvm": """
        renderer.llvmaddress=address renderer.llvmalu=alu renderer.llvmcast=cast
        renderer.llvmexpand=expand renderer.llvmfloat8=float8 renderer.llvmir=ir
        renderer.llvmtile=tile renderer.llvmvalue=value
    """,
    "runtime.cpu": """
        runtime.cpu_memory=memory runtime.cpu_program=program runtime.elf runtime.graph.cpu=graph
        runtime.llvm runtime.native runtime.native_parts runtime.native_pool runtime.pool
        runtime.relocations
    """,
    "runtime.cuda": """
        features.graph.cuda=graph runtime.cuda_compiler=compiler runtime.cuda_driver=driver
        runtime.cuda_memory=memory runtime.cuda_program=program runtime.graph.cuda=graph
    """,
    "runtime.opencl": """
        runtime.graph.opencl=graph runtime.opencl_driver=driver runtime.opencl_memory=memory
        runtime.opencl_program=program
    """,
    "tensor.algebra": """
        tensor.decompositions tensor.diagonals tensor.einstein tensor.factoring tensor.fourier
        tensor.linalg tensor.matrices tensor.products tensor.solvers tensor.solving tensor.spectra
    """,
    "tensor.index": """
        tensor.indexing tensor.positions tensor.scattered tensor.scattering tensor.selecting
        tensor.tables
    """,
    "tensor.math": """
        tensor.activations tensor.arithmetic tensor.bessel tensor.elementwise tensor.errorfunction
        tensor.functions tensor.gamma tensor.inverse tensor.numeric tensor.pairs tensor.power
        tensor.probability tensor.scientific tensor.special
    """,
    "tensor.network": """
        tensor.alignment tensor.attention tensor.classes tensor.convolution tensor.loss
        tensor.margins tensor.neural tensor.normalization tensor.pooling tensor.resampling
        tensor.sampling tensor.windows
    """,
    "tensor.reduce": """
        tensor.differences tensor.moments tensor.norms tensor.order tensor.reductions tensor.rowwise
        tensor.running tensor.scan tensor.searching tensor.sorting tensor.summaries
    """,
    "tensor.shaping": """
        tensor.arranging tensor.joining tensor.movement tensor.patterns tensor.rearranging
    """,
    "transforms": """
        lanes=batching transforms.custom=custom_derivatives transforms.mapping=vectorize
        transforms.recompute=rematerialize
    """,
}
"""By folder, the paths that its modules had before, each with its new name after `=` if it has one;
the folder itself has an empty name.
"""
_FOLDERS = ("features", "features.graph", "runtime.graph")
"""Packages of before that are none now: there is nothing in them but what was moved."""
_DOCUMENTED = """
    buffer dtype expr features.graph.cuda helpers lazy ops realize renderer.cdialect
    renderer.cstyle runtime.graph.cuda schedule shape shape.shapetracker target
"""
DOCUMENTED = frozenset(_DOCUMENTED.split())
"""The old paths that documents have, and that stay."""


def _moved() -> dict[str, str]:
    moved = {}
    for folder, words in _MOVED_TO.items():
        for word in words.split():
            old, renamed, name = word.partition("=")
            last = name if renamed else old.rpartition(".")[2]
            moved[old] = f"{folder}.{last}" if last else folder
    return moved


MOVED = _moved()
"""Paths below the package that modules had before, and those that they have now."""


@final
class _Moved:
    """Finds modules by the paths that they had before, as the module objects of their new paths."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Any:
        """The spec of a module that was moved, for which one that exists is loaded."""
        old = name.removeprefix("ferrule.") if name.startswith("ferrule.") else ""
        home = MOVED.get(old)
        if home is None and old not in _FOLDERS:
            return None
        from importlib.machinery import ModuleSpec

        if home is None:
            return ModuleSpec(name, None, is_package=True)
        loader: Any = _SameModule(f"ferrule.{home}")
        return ModuleSpec(name, loader)


@final
class _SameModule:
    """A loader that gives a module which has another path; see `_Moved`."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._spec: Any = None

    def create_module(self, spec: Any) -> ModuleType:
        """The module, with a warning unless its old path is documented."""
        module = import_module(self._home)
        self._spec = module.__spec__
        if spec.name.removeprefix("ferrule.") not in DOCUMENTED:
            warnings.warn(
                f"{spec.name} is {self._home} now; its old path will be gone in the next version",
                DeprecationWarning,
                stacklevel=2,
            )
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Undoes what the import has changed: the module keeps its own spec."""
        module.__spec__ = self._spec


@final
class _Hints:
    """A finder that finds nothing, and says why; it comes after all others."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raises `ModuleNotFoundError` with a hint for modules in this package."""
        package, _, last = name.rpartition(".")
        if package.partition(".")[0] != "ferrule" or package not in sys.modules:
            return
        try:
            getattr(sys.modules[package], last)
        except AttributeError as error:
            # With a `name` in the error, an import of several names would go on, and forget it.
            raise ModuleNotFoundError(str(error)) from None
        raise ModuleNotFoundError(f"{name} is no module; write: from {package} import {last}")


@final
class _WithEinops:
    """A finder of einops' backends, which adds ours to them, once."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """The spec of the backends of einops, whose loader registers one more."""
        if name != _BACKENDS:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec: Any = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


@final
class _Loader:
    """A loader that also registers a backend in the module that it has loaded."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module."""
        self._loader.exec_module(module)
        _register(module)


def _register(backends: ModuleType) -> None:
    from ferrule.einops_backend import register

    register(backends)


def install() -> None:
    """Puts the finders behind and in front of the others."""
    if any(type(finder).__qualname__ == _Hints.__qualname__ for finder in sys.meta_path):
        return
    sys.meta_path.append(_Hints())
    # In front: below a package that was moved, Python would find a module's file once more.
    sys.meta_path.insert(0, _Moved())
    if _BACKENDS in sys.modules:
        _register(sys.modules[_BACKENDS])
    else:
        sys.meta_path.insert(0, _WithEinops())
