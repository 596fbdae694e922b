"""Our `dataclass` does what the standard library's does."""

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Any

import pytest

from ferrule.base import records


@dataclasses.dataclass(frozen=True)
class StandardFrozen:
    a: int
    b: list[int] = field(default_factory=list)
    c: str = "c"


@records.dataclass(frozen=True)
class OurFrozen:
    a: int
    b: list[int] = field(default_factory=list)
    c: str = "c"


@dataclasses.dataclass
class StandardPlain:
    a: int
    b: float = 0.5


@records.dataclass
class OurPlain:
    a: int
    b: float = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class StandardSlots:
    a: int
    b: tuple[int, ...] = ()


@records.dataclass(frozen=True, slots=True)
class OurSlots:
    a: int
    b: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class StandardOne:
    a: float


@records.dataclass(frozen=True)
class OurOne:
    a: float


@dataclasses.dataclass(frozen=True)
class StandardNone:
    pass


@records.dataclass(frozen=True)
class OurNone:
    pass


PAIRS = [
    (StandardFrozen, OurFrozen, (1, [2], "d")),
    (StandardPlain, OurPlain, (1, 2.5)),
    (StandardSlots, OurSlots, (1, (2, 3))),
    (StandardOne, OurOne, (float("nan"),)),
    (StandardNone, OurNone, ()),
]
both = pytest.mark.parametrize(("standard", "ours", "values"), PAIRS)


def outcome(action: Callable[[], Any]) -> str:
    """What an action gives, or the error that it raises."""
    try:
        found = action()
    except (TypeError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
    return str(found).replace("Standard", "Our")


@both
def test_what_is_shown(standard: Any, ours: Any, values: Any) -> None:
    assert repr(ours(*values)) == repr(standard(*values)).replace("Standard", "Our")
    assert [f.name for f in dataclasses.fields(ours)] == [
        f.name for f in dataclasses.fields(standard)
    ]
    assert ours.__match_args__ == standard.__match_args__
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(standard).parameters)
    assert inspect.get_annotations(ours.__init__) == inspect.get_annotations(standard.__init__)


@both
def test_equality_and_hashes(standard: Any, ours: Any, values: Any) -> None:
    # The values are the same objects: not-a-number is equal to itself, in a tuple.
    assert ours(*values) == ours(*values)
    assert ours(*values) != standard(*values)
    assert ours(*values).__eq__(values) is NotImplemented
    assert outcome(lambda: hash(ours(*values))) == outcome(lambda: hash(standard(*values)))


@both
def test_inequality(standard: Any, ours: Any, values: Any) -> None:
    if values:
        assert ours(*values) != ours(*values[:-1], "other")


@both
def test_assignment(standard: Any, ours: Any, values: Any) -> None:
    changes: list[Callable[[Any], None]] = [
        lambda made: setattr(made, "a", 5),
        lambda made: delattr(made, "a"),
    ]
    for change in changes:
        expected = outcome(lambda change=change: change(standard(*values)))
        assert outcome(lambda change=change: change(ours(*values))) == expected
    if ours in (OurFrozen, OurSlots):
        with pytest.raises((FrozenInstanceError, AttributeError)):
            ours(*values).other = 5


@both
def test_copies(standard: Any, ours: Any, values: Any) -> None:
    made = ours(*values)
    for copied in (copy.copy(made), pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert repr(copied) == repr(made)
        assert type(copied) is ours
    if values:
        assert dataclasses.replace(made, a=7).a == 7
    assert dataclasses.asdict(made).keys() == dataclasses.asdict(standard(*values)).keys()


def test_a_factory_makes_a_value_for_each() -> None:
    first, second = OurFrozen(1), OurFrozen(1)
    assert first.b == []
    assert first.b is not second.b
    assert OurFrozen(a=2, c="x") == OurFrozen(2, [], "x")


@both
def test_wrong_arguments(standard: Any, ours: Any, values: Any) -> None:
    for arguments in ((1, 2, 3, 4, 5), () if values else (1,)):
        expected = outcome(lambda arguments=arguments: standard(*arguments))
        assert expected.startswith("TypeError")
        assert outcome(lambda arguments=arguments: ours(*arguments)) == expected


def test_own_methods_stay() -> None:
    @records.dataclass(frozen=True)
    class Word:
        text: str

        def __post_init__(self) -> None:
            object.__setattr__(self, "text", self.text.lower())

        def __repr__(self) -> str:
            return f"<{self.text}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Word) and other.text[0] == self.text[0]

        def __hash__(self) -> int:
            return ord(self.text[0])

    assert repr(Word("AB")) == "<ab>"
    assert Word("AB") == Word("AC")
    assert hash(Word("AB")) == ord("a")


def test_without_equality_objects_differ() -> None:
    @records.dataclass(eq=False)
    class Thing:
        a: int

    assert Thing(1) != Thing(1)
    assert len({Thing(1), Thing(1)}) == 2


def test_a_class_on_top_of_another_has_its_fields_first() -> None:
    @records.dataclass(frozen=True)
    class More(OurFrozen):
        d: int = 4

    made = More(1)
    assert (made.a, made.d) == (1, 4)
    assert made != OurFrozen(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        made.a = 2  # type: ignore[misc]


def test_a_mutable_default_is_refused() -> None:
    with pytest.raises(ValueError, match="use default_factory"):

        @records.dataclass
        class Wrong:
            a: list[int] = []  # noqa: RUF012


def test_all_of_ferrule_uses_it() -> None:
    """But for classes with an initialiser of their own, which nothing compiles."""
    folder = Path(records.__file__).parents[1]
    modules = [path for path in folder.rglob("*.py") if path.name != "records.py"]
    users = [path for path in modules if re.search(r"^ *@dataclass\b", path.read_text(), re.M)]
    assert users
    for path in users:
        assert "from ferrule.base.records import dataclass" in path.read_text(), path


def test_an_initialiser_is_compiled_when_it_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[type] = []
    compile_init = records._compiled_init

    def counted(cls: type, *rest: Any) -> Any:
        made.append(cls)
        return compile_init(cls, *rest)

    monkeypatch.setattr(records, "_compiled_init", counted)

    @records.dataclass(frozen=True)
    class Base:
        a: int

    @records.dataclass(frozen=True)
    class Derived(Base):
        b: int = 2

    assert made == []
    assert [Derived(1), Derived(1, 3)] == [Derived(a=1, b=2), Derived(b=3, a=1)]
    assert made == [Derived]
    assert Base(4).a == 4
    assert made == [Derived, Base]


@dataclasses.dataclass(frozen=True)
class StandardUncompared:
    a: int
    b: int = field(default=0, compare=False)


@records.dataclass(frozen=True)
class OurUncompared:
    a: int
    b: int = field(default=0, compare=False)


@pytest.mark.parametrize("cls", [StandardUncompared, OurUncompared])
def test_fields_may_count_for_nothing(cls: type[Any]) -> None:
    assert cls(1, 2) == cls(1, 3) != cls(2, 2)
    assert hash(cls(1, 2)) == hash(cls(1, 3))
    assert "b=2" in repr(cls(1, 2))
