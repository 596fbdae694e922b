"""Import hooks: hints for names that ferrule does not have, and a backend for einops.

Missing attributes say what to write instead (`ferrule.optim`). Python's imports drop that text, so
a finder behind all others adds it. A finder in front of all others waits for einops, which takes
the tensors of libraries that subclass one of its classes.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, final

_BACKENDS = "einops._backends"
"""The module of einops with the backends for tensors of other libraries."""


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
    if _BACKENDS in sys.modules:
        _register(sys.modules[_BACKENDS])
    else:
        sys.meta_path.insert(0, _WithEinops())
