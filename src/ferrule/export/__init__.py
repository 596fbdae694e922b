"""Captured functions as programs that need no framework: exports to files, and what they share.

`loading.py` is for processes without a compiler, so that nothing is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ferrule.export.captured import exported_program
    from ferrule.export.formats import Exported, export
    from ferrule.export.loading import LoadError, load
    from ferrule.export.program import ExportedProgram, ExportError

__all__ = [
    "ExportError",
    "Exported",
    "ExportedProgram",
    "LoadError",
    "export",
    "exported_program",
    "load",
]

_HOMES = {
    "ExportError": "program",
    "Exported": "formats",
    "ExportedProgram": "program",
    "LoadError": "loading",
    "export": "formats",
    "exported_program": "captured",
    "load": "loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
