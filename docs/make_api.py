"""Writes docs/api.md, the list of all public names, from their docstrings.

`python docs/make_api.py`; a test says when the page is not what the code says. The examples in it
are the docstrings' own, which the tests run.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

PAGE = Path(__file__).with_name("api.md")

HEAD = """# All public names

Made from the docstrings by `docs/make_api.py`. `Tensor`'s methods are grouped by theme, as the
modules of `ferrule.tensor` are. A parameter called `axis` may be called `dim` as well, `keepdim`
`keepdims`, `correction` `ddof`.
"""

# Title of a section, and the module whose public names it lists, in the order of the page.
MODULES = {
    "ferrule": "ferrule",
    "ferrule.fft": "ferrule.fft",
    "ferrule.export": "ferrule.export",
    "ferrule.onnx": "ferrule.onnx",
    "ferrule.torch": "ferrule.torch",
    "ferrule.signal": "ferrule.signal",
    "ferrule.signal.windows": "ferrule.signal.windows",
    "ferrule.distributed": "ferrule.distributed",
    "ferrule.distributions": "ferrule.distributions",
    "ferrule.distributions.constraints": "ferrule.distributions.constraints",
    "ferrule.amp": "ferrule.amp",
    "ferrule.data": "ferrule.data",
    "ferrule.nn": "ferrule.nn",
    "ferrule.nn.optim": "ferrule.nn.optim",
    "ferrule.nn.optim.lr_scheduler": "ferrule.nn.optim.lr_scheduler",
    "ferrule.nn.optim.swa_utils": "ferrule.nn.optim.swa_utils",
    "ferrule.nn.utils": "ferrule.nn.utils",
    "ferrule.nn.utils.rnn": "ferrule.nn.utils.rnn",
    "ferrule.nn.init": "ferrule.nn.init",
    "ferrule.nn.state": "ferrule.nn.state",
    "ferrule.errors": "ferrule.errors",
}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, name in MODULES.items():
        module = importlib.import_module(name)
        parts.append(f"\n## {title}\n\n{text_of(module)}\n")
        for public in sorted(public_names(module)):
            member = getattr(module, public)
            if not inspect.ismodule(member) and public != "Tensor":
                parts.append(entry(public, member, level=3))
    parts.append(tensor_section())
    return "".join(parts)


def public_names(module: Any) -> list[str]:
    """A module's names: those it exports, else those that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, member in vars(module).items()
        if not name.startswith("_") and getattr(member, "__module__", None) == module.__name__
    ]


def tensor_section() -> str:
    """`Tensor`: its attributes, then its methods, module by module."""
    tensor = importlib.import_module("ferrule.tensor").Tensor
    parts = [f"\n## Tensor\n\n{text_of(tensor)}\n"]
    themes: dict[str, list[tuple[str, Any]]] = {}
    for owner in reversed(tensor.__mro__[:-1]):
        for name, member in public_members(owner):
            themes.setdefault(theme_of(member), []).append((name, member))
    order = [theme_of(member) for member in vars(tensor).values()]
    for theme in sorted(themes, key=order.index):
        parts.append(f"\n### Tensor: {theme}\n")
        parts.extend(tensor_entry(name, member) for name, member in sorted(themes[theme]))
    return "".join(parts)


def tensor_entry(name: str, member: Any) -> str:
    """A method or an attribute; of a method's other names only what it is the same as."""
    function = getattr(member, "__func__", member)
    if isinstance(function, FunctionType) and function.__name__ != name:
        shown = signature(name, member)
        return f"\n#### `{shown}`\n\nThe same as `{function.__name__}`.\n"
    return entry(name, member, level=4)


def theme_of(member: Any) -> str:
    """What the module of a method is about: the first paragraph of its docstring."""
    function = getattr(member, "__func__", member)
    if not isinstance(function, FunctionType):
        return "attributes"
    module = importlib.import_module(function.__module__)
    return " ".join((inspect.getdoc(module) or "").partition("\n\n")[0].split()).rstrip(".")


def public_members(owner: type) -> Iterator[tuple[str, Any]]:
    """The methods and properties that a class defines itself and documents."""
    for name, member in sorted(vars(owner).items()):
        function = getattr(member, "__func__", member)
        documented = isinstance(function, FunctionType | property) and inspect.getdoc(function)
        if not name.startswith("_") and documented:
            yield name, member


def class_members(owner: type) -> list[tuple[str, Any]]:
    """The public members of a class, with those of its bases in the same module."""
    bases = [base for base in reversed(owner.__mro__) if base.__module__ == owner.__module__]
    return sorted({name: member for base in bases for name, member in public_members(base)}.items())


def entry(name: str, member: Any, level: int) -> str:
    """One name: its signature, what its docstring says, and its methods if it is a class."""
    shown = signature(name, member)
    parts = [f"\n{'#' * level} `{shown}`\n\n{text_of(member)}\n"]
    if inspect.isclass(member) and level == 3:
        for method, function in class_members(member):
            summary = (inspect.getdoc(getattr(function, "__func__", function)) or "").split("\n")[0]
            parts.append(f"\n- `{signature(method, function)}`: {summary}")
        parts.append("\n" if len(parts) > 1 else "")
    return "".join(parts)


def signature(name: str, member: Any) -> str:
    """The name with its parameters, without `self` and annotations."""
    function = getattr(member, "__func__", member)
    if isinstance(function, property) or not callable(function):
        return name
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return name
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return f"{name}{inspect.Signature(plain)}"


def text_of(thing: Any) -> str:
    """A docstring as Markdown: its examples become blocks of code."""
    text = inspect.getdoc(getattr(thing, "__func__", thing)) or ""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(
        f"```pycon\n{p}\n```" if p.lstrip().startswith(">>>") else p for p in paragraphs
    )


if __name__ == "__main__":
    PAGE.write_text(page())
