"""Imports of names that ferrule does not have, such as `from ferrule import optim`.

Attributes that are missing say what to write instead (`ferrule.optim`). Python's imports drop that
text, so a finder behind all others gives it to them.
"""

from __future__ import annotations

import sys
from typing import final


@final
class _Hints:
    """Finds nothing, and says why: it is asked for modules that nobody else has found."""

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


def install() -> None:
    """Puts the finder behind the others."""
    if not any(type(finder).__qualname__ == _Hints.__qualname__ for finder in sys.meta_path):
        sys.meta_path.append(_Hints())
