"""Our `Enum` does what the standard library's does."""

import copy
import enum
import pickle
from enum import auto

import pytest

from ferrule.base.enums import Enum
from ferrule.ops import BinaryOps


class Standard(enum.Enum):
    """Two sides."""

    LEFT = auto()
    RIGHT = auto()


class Ours(Enum):
    """Two sides."""

    LEFT = auto()
    RIGHT = auto()

    @staticmethod
    def first() -> "Ours":
        return Ours.LEFT

    @property
    def other(self) -> "Ours":
        return Ours.RIGHT if self is Ours.LEFT else Ours.LEFT


def test_members_are_found_as_in_the_standard_one() -> None:
    assert issubclass(Ours, enum.Enum)
    assert [member.name for member in Ours] == [member.name for member in Standard]
    assert [member.value for member in Ours] == [member.value for member in Standard]
    assert Ours["LEFT"] is Ours(1) is Ours.LEFT is Ours.first() is Ours.RIGHT.other
    assert list(Ours.__members__) == list(Standard.__members__)
    assert Ours.__doc__ == Standard.__doc__
    assert Ours.__name__ == "Ours"
    assert len(Ours) == 2
    assert Ours.LEFT in Ours
    assert repr(Ours.LEFT) == "<Ours.LEFT: 1>"
    assert str(Ours.LEFT) == "Ours.LEFT"
    assert len({Ours.LEFT: 1, Ours.RIGHT: 2, Ours.first(): 3}) == 2


def test_names_that_are_no_members_are_errors() -> None:
    with pytest.raises(AttributeError, match="UP"):
        Ours.UP  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="LEFT"):
        Ours.LEFT = 3  # type: ignore[misc, assignment]
    with pytest.raises(KeyError):
        Ours["UP"]
    with pytest.raises(ValueError, match="3"):
        Ours(3)


def test_copies_of_members_are_the_same_members() -> None:
    for op in BinaryOps:
        assert pickle.loads(pickle.dumps(op)) is op
        assert copy.deepcopy(op) is op


def test_methods_of_the_class_are_refused() -> None:
    """They would be found unbound."""
    with pytest.raises(TypeError, match=r"Wrong\.first: a class method of an Enum"):

        class Wrong(Enum):
            @classmethod
            def first(cls) -> None: ...
