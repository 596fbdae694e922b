"""Captured functions as programs that need no framework: exports to files, and what they share."""

from ferrule.export.captured import exported_program
from ferrule.export.program import ExportedProgram, ExportError

__all__ = ["ExportError", "ExportedProgram", "exported_program"]
