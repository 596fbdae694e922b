"""`Tensor` is a list of functions: all that modules of `ferrule.tensor` have, and no others."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import ferrule.tensor
from ferrule import Tensor

FILE = Path(ferrule.tensor.__file__)
TOPICS = sorted(
    path.relative_to(FILE.parent).with_suffix("").as_posix()
    for path in FILE.parent.rglob("*.py")
    if path.name != "__init__.py"
)


def class_body() -> list[ast.stmt]:
    tree = ast.parse(FILE.read_text())
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Tensor"]
    return found.body


def members() -> Iterator[tuple[str, Any]]:
    """The functions in the class, by the names that they have there."""
    for name, member in vars(Tensor).items():
        function = getattr(member, "__func__", member)
        if isinstance(function, FunctionType):
            yield name, function


def methods_of(topic: str) -> dict[str, Any]:
    """The functions that a module makes to be methods."""
    module = importlib.import_module(f"ferrule.tensor.{topic}".replace("/", "."))
    return {
        name: function
        for name, function in vars(module).items()
        if isinstance(function, FunctionType)
        and function.__module__ == module.__name__
        and function.__qualname__.startswith("Tensor.")
    }


@pytest.mark.parametrize("topic", TOPICS)
def test_every_method_is_in_the_class(topic: str) -> None:
    listed = {id(function) for _, function in members()}
    stale = [name for name, function in methods_of(topic).items() if id(function) not in listed]
    assert not stale, f"@method in tensor/{topic}.py, and not in the class: {stale}"


@pytest.mark.parametrize("topic", TOPICS)
def test_methods_have_the_name_of_their_function_first(topic: str) -> None:
    for name in methods_of(topic):
        assert name in vars(Tensor), f"{name} of tensor/{topic}.py is there under other names only"


def test_public_names_are_methods() -> None:
    """What the decorator would do, such as naming the method in errors, is done for all."""
    plain = [
        name
        for name, function in members()
        if not name.startswith("_")
        and function.__module__.startswith("ferrule.tensor.")
        and not function.__qualname__.startswith("Tensor.")
    ]
    assert not plain, f"these lack @method: {plain}"


def test_the_class_body_is_plain() -> None:
    """Assignments of `module.function` and properties, but for what checkers do not see."""
    for statement in class_body():
        if isinstance(statement, ast.Expr | ast.If):
            continue
        if isinstance(statement, ast.FunctionDef):
            assert ast.unparse(statement.decorator_list[0]) in ("property", "grad.setter")
            continue
        assert isinstance(statement, ast.Assign)
        assert isinstance(statement.targets[0], ast.Name)
        value = statement.value
        if isinstance(value, ast.Call):
            assert ast.unparse(value.func) in ("classmethod", "staticmethod")
            (value,) = value.args
        assert isinstance(value, ast.Attribute | ast.Name | ast.Constant | ast.Tuple)


@pytest.mark.parametrize("topic", TOPICS)
def test_functions_do_not_call_the_class(topic: str) -> None:
    """They know its base by that name, which has no methods and makes objects without them."""
    tree = ast.parse((FILE.parent / f"{topic}.py").read_text())
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    owners = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = [node.lineno for node in called + owners if ast.unparse(node) == "Tensor"]
    assert not used, f"tensor/{topic}.py calls Tensor, or what it has, in lines {used}"


def test_no_name_is_assigned_twice() -> None:
    names = [
        ast.unparse(target)
        for statement in class_body()
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("topic", ["__init__", *TOPICS])
def test_nothing_is_generated(topic: str) -> None:
    tree = ast.parse((FILE.parent / f"{topic}.py").read_text())
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {"setattr", "exec", "eval", "type.__setattr__"}


DRAWING = {"uniform_", "normal_", "exponential_", "bernoulli_"}
"""They have the tensor's shape, and parameters of their own."""
IN_PLACE = sorted(methods_of("inplace").keys() - DRAWING)


@pytest.mark.parametrize("name", IN_PLACE)
def test_functions_in_place_take_what_the_others_do(name: str) -> None:
    function = getattr(Tensor, name.removesuffix("_"))
    assert inspect.signature(getattr(Tensor, name)) == inspect.signature(function)


def test_signatures_and_help() -> None:
    signature = inspect.signature(Tensor.softmax)
    assert str(signature).startswith("(self: 'Tensor', axis: ")
    assert str(signature).endswith("-> 'Tensor'")
    assert Tensor.softmax.__qualname__ == "Tensor.softmax"
    assert Tensor.softmax.__module__ == "ferrule.tensor.reduce.reductions"
    assert (Tensor.softmax.__doc__ or "").startswith("e**x over")


def test_the_error_names_the_method() -> None:
    with pytest.raises(TypeError, match=r"^Tensor\.sin\(\) takes 1 positional argument but 2"):
        Tensor([1.0]).sin(2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Tensor\.gather\(\) missing 1 required positional"):
        Tensor([1.0]).gather(0)  # type: ignore[call-arg]
