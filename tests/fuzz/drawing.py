"""Random choices: shapes, dtypes, numbers, and the tensors that a program has so far."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ferrule import Tensor
from ferrule.dtype import DType, dtypes
from tests.fuzz.program import Source

T = TypeVar("T")
Shape = tuple[int, ...]

# Sizes near what the compiler treats apart: lanes of 4, 8, 16 and 32, tiles, and odd remainders.
SMALL_SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9)
EDGE_SIZES = (11, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65)
LARGE_SIZES = (63, 64, 65, 127, 129, 255, 256, 257, 1023, 1025, 4099)
# Numbers of elements near where kernels use several threads, or split a reduce, and their like.
LARGE_COUNTS = (32_767, 32_768, 32_769, 65_537, 149_999, 150_000, 150_001)

INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
TINY_FLOATS = ("float8_e4m3", "float8_e5m2")
DTYPES = (
    *("float32",) * 10,
    *("int32",) * 5,
    *("int64", "int64", "bool", "bool", "float64", "float16", "bfloat16"),
    *("uint8", "int8", "int16", "uint16", "uint32", "uint64", "float8_e4m3", "float8_e5m2"),
)
MANY_DTYPES = ("bool", *INTS, *FLOATS, *TINY_FLOATS, "float32", "int32")

SPECIAL = (
    "[0.0, -0.0, 1.0, -1.0, 0.5, 2.0, np.inf, -np.inf, np.nan]",
    "[0.0, 1.0, -1.0, 3e38, -3e38, 1e-38, 1e-45, 65504.0]",
    "[0.0, -0.0, 1.0, -0.5]",
)


@dataclass(frozen=True)
class Limits:
    """The limits on the size of a program."""

    statements: int = 11
    elements: int = 200
    """Of a source."""
    most: int = 1500
    """Of any value."""
    large: bool = False


SMALL = Limits()
LARGE = Limits(16, 40_000, 700_000, True)


class NothingFitsError(Exception):
    """A statement cannot be drawn here: no value has what it needs."""


@dataclass
class Drawing:
    """A source of choices, and what there is to choose from."""

    rng: random.Random
    limits: Limits = SMALL
    focus: str = ""
    values: dict[str, Tensor] = field(default_factory=dict)
    pending: list[Source] = field(default_factory=list)
    """Sources that the statement being drawn adds."""
    make: Callable[[Source], Any] | None = None
    special: bool = False
    literals: float = 0.35
    """The probability that an operand is a number."""
    numbers: str = ""
    """If not empty, a list that floats are drawn from."""
    varied: int = 0
    """If not 0, arguments with an axis of this size have larger ones in later calls."""
    count: int = 0

    # -- plain choices ---------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def choice(self, items: Sequence[T]) -> T:
        if not items:
            raise NothingFitsError
        return self.rng.choice(items)

    def weighted(self, items: Sequence[tuple[int, T]]) -> T:
        """One of the items, each as often as its weight says."""
        (found,) = self.rng.choices([x for _, x in items], [weight for weight, _ in items])
        return found

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def size(self) -> int:
        if self.limits.large and self.chance(0.3):
            return self.choice(LARGE_SIZES)
        if self.chance(0.02):
            return 0
        return self.choice(EDGE_SIZES if self.chance(0.15) else SMALL_SIZES)

    def shape(self, least: int = 0, most: int = 4) -> Shape:
        """A shape of at most so many elements as a source may have."""
        if self.limits.large and self.chance(0.2) and least <= 1:
            count = self.choice(LARGE_COUNTS)
            return (count,) if self.chance(0.5) else self.factors(count, 2)
        rank = self.choice([n for n in (0, 1, 1, 2, 2, 2, 3, 3, 4, 5) if least <= n <= most])
        shape = [self.size() for _ in range(rank)]
        while math.prod(shape) > self.limits.elements:
            largest = max(range(rank), key=lambda axis: shape[axis])
            shape[largest] = self.choice(SMALL_SIZES)
        return tuple(shape)

    def factors(self, count: int, parts: int) -> Shape:
        """A shape of so many elements, in at most so many axes, and a few of size 1."""
        if count == 0:
            return tuple(self.choice([[0], [0, 3], [2, 0]]))
        sizes: list[int] = []
        for _ in range(parts - 1):
            divisors = [n for n in range(1, min(count, 70) + 1) if count % n == 0]
            sizes.append(self.choice(divisors))
            count //= sizes[-1]
        sizes.append(count)
        self.rng.shuffle(sizes)
        return tuple(sizes)

    def dtype(self) -> str:
        if self.focus.endswith(".py") and self.chance(0.3):
            return self.choice(FLOATS)  # functions of a file may compute each in a way of its own
        return self.choice(MANY_DTYPES if self.focus == "dtypes" else DTYPES)

    # -- tensors ---------------------------------------------------------------------------------

    def fitting(self, condition: Callable[[Tensor], bool]) -> list[str]:
        return [name for name, value in self.values.items() if condition(value)]

    def pick(self, condition: Callable[[Tensor], bool] = lambda _: True) -> str:
        """The name of a value; late ones are likelier, so that programs are deep."""
        names = self.fitting(condition)
        if not names:
            raise NothingFitsError
        if self.chance(0.35):
            return names[-1]
        return names[-1 - int(len(names) * self.rng.random() ** 2)]

    def fresh(
        self, shape: Sequence[int], dtype: str, low: int | None = None, high: int | None = None
    ) -> str:
        """The name of a new source; integers of it are from `low` to before `high`."""
        name = f"a{self.count}"
        self.count += 1
        varied = self.varied if low is None else 0
        sizes = [f"{n} + call % 3" if varied and n == varied else str(n) for n in shape]
        text = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
        made = self.data(text, dtype, low, high).replace("rng.", f"rng({self.count - 1}).")
        source = Source(name, f'Tensor({made}, dtype="{dtype}")')
        assert self.make is not None
        self.values[name] = self.make(source)
        self.pending.append(source)
        return name

    def object(self, letter: str, made: str) -> str:
        """The name of a new source that is no tensor, such as a model; `{}` is its generator."""
        name = f"{letter}{self.count}"
        source = Source(name, made.replace("{}", f"rng({self.count})"), True)
        self.count += 1
        assert self.make is not None
        self.make(source)
        self.pending.append(source)
        return name

    def data(self, size: str, dtype: str, low: int | None, high: int | None) -> str:
        """An expression for an array of small numbers, of which sums and products are exact."""
        if low is not None:
            return f"rng.integers({low}, {high}, {size})"
        if dtype == "bool":
            return f"rng.integers(0, 2, {size})"
        if self.special and self.chance(0.5):
            if dtype in FLOATS:
                return f"rng.choice({self.choice(SPECIAL)}, {size}).astype(np.float32)"
            if dtype in INTS:
                least, most = (
                    dtypes.min(dtypes.from_name(dtype)),
                    dtypes.max(dtypes.from_name(dtype)),
                )
                return f'rng.choice(np.array([{least}, 0, 1, {most}], "{dtype}"), {size})'
        if self.numbers and dtype in FLOATS:
            return f"rng.choice({self.numbers}, {size})"
        if dtype.startswith("u"):
            return f"rng.integers(0, 7, {size})"
        if dtype in INTS:
            return f"rng.integers(-5, 6, {size})"
        if dtype in TINY_FLOATS:
            return f"rng.integers(-3, 4, {size})"
        return f"rng.integers(-6, 7, {size}) / 2"

    def number(self, dtype: DType) -> str:
        """A literal that goes well with a dtype."""
        if dtype is dtypes.bool:
            return self.choice(["True", "False"])
        if dtypes.is_unsigned(dtype):
            return self.choice(["0", "1", "2", "3"])
        if dtypes.is_int(dtype):
            return self.choice(["0", "1", "2", "3", "-1", "-2", "5"])
        return self.choice(["0", "-0.0", "1", "2", "0.5", "-1", "-0.5", "1.5", "3", "-2.0", "0.25"])

    def operand(self, x: Tensor, literals: float | None = None) -> str:
        """The second operand for a tensor: a number, or a tensor that broadcasts with it."""
        if self.chance(self.literals if literals is None else literals):
            return self.number(x.dtype)
        fits = [name for name in self.fitting(lambda y: broadcasts(y.shape, x.shape, self))]
        alike = self.others([name for name in fits if self.values[name].dtype == x.dtype], x)
        if alike and self.chance(0.75):
            return self.choice(alike)
        if fits and self.chance(0.6):
            return self.choice(fits)
        return self.fresh(self.smaller(x.shape), x.dtype.name if self.chance(0.7) else self.dtype())

    def others(self, names: list[str], x: Tensor) -> list[str]:
        """The names of other tensors than one, if there are any; seldom that one, too."""
        found = [name for name in names if self.values[name] is not x]
        return names if not found or self.chance(0.15) else found

    def smaller(self, shape: Shape) -> Shape:
        """A shape that broadcasts to another."""
        kept = tuple(1 if self.chance(0.2) else size for size in shape)
        return kept[self.integer(0, len(kept)) :] if self.chance(0.3) else kept

    def like(self, x: Tensor, dtype: str | None = None) -> str:
        """A tensor of the same shape, and of the same dtype or the given one."""
        kind = x.dtype.name if dtype is None else dtype
        same = self.fitting(lambda y: y.shape == x.shape and y.dtype.name == kind)
        same = self.others(same, x)
        return self.choice(same) if same and self.chance(0.7) else self.fresh(x.shape, kind)

    def mask(self, shape: Shape) -> str:
        fits = self.fitting(lambda y: y.shape == shape and y.dtype is dtypes.bool)
        return self.choice(fits) if fits and self.chance(0.6) else self.fresh(shape, "bool")

    def index(self, shape: Sequence[int], size: int, negative: bool = False) -> str:
        """A tensor of positions along an axis of so many elements."""
        if size == 0 and math.prod(shape):
            raise NothingFitsError
        low = -size if negative and self.chance(0.3) else 0
        kind = self.choice(["int32", "int64"])
        if size == 0:
            return self.fresh(shape, kind)
        return self.fresh(shape, kind, low, size)

    # -- places ----------------------------------------------------------------------------------

    def axis(self, x: Tensor) -> int:
        if not x.ndim:
            raise NothingFitsError
        return self.integer(-x.ndim, x.ndim - 1)

    def axes(self, x: Tensor) -> str:
        """None, an axis, or several."""
        if not x.ndim or self.chance(0.15):
            return "None"
        if self.chance(0.6):
            return str(self.axis(x))
        chosen = self.rng.sample(range(x.ndim), self.integer(1, x.ndim))
        return repr(tuple(a - x.ndim if self.chance(0.3) else a for a in chosen))

    def slice(self, size: int) -> str:
        if size and self.chance(0.15):  # a single element, or an end
            place = self.choice([0, size - 1, self.integer(0, size - 1)])
            return self.choice([f"{place}:{place + 1}", f"{place}:", f":{place + 1}"])
        step = self.choice(["", "", "", ":1", ":-1", ":2", ":-2", ":3"])
        bounds = [self.integer(-size - 1, size + 1) for _ in range(2)]
        if self.chance(0.8):  # most others have no elements
            bounds.sort(key=lambda n: n % (size + 1), reverse="-" in step)
        start, stop = ("" if self.chance(0.4) else self.whole(bound) for bound in bounds)
        return f"{start}:{stop}{step}"

    def windows(self, x: Tensor) -> str:
        """The arguments of `unfold`: an axis, the size of its windows, and their step."""
        axis = self.axis(x)
        size = int(x.shape[axis])
        return f"{axis}, {self.integer(1, min(size, 4))}, {self.integer(1, 3)}"

    def two_axes(self, x: Tensor) -> str:
        return ", ".join(map(str, self.rng.sample(range(x.ndim), 2)))

    def one(self, x: Tensor) -> str:
        """An index of one element, often at an end, that keeps some of the axes, with size 1."""
        places = [self.choice([0, n - 1, self.integer(0, n - 1)]) for n in x.shape]
        return ", ".join(f"{n}:{n + 1}" if self.chance(0.7) else str(n) for n in places)

    def part(self, size: int) -> str:
        """An integer or a slice for an axis."""
        if size and self.chance(0.3):
            return self.whole(self.integer(-size, size - 1))
        return self.slice(size)

    def whole(self, number: int) -> str:
        """An integer in one of the forms that indices have."""
        kind = self.rng.random()
        if kind < 0.9:
            return str(number)
        return f"np.int64({number})" if kind < 0.95 else f"np.array({number})"

    def key(self, x: Tensor) -> str:
        """A basic index, as text between brackets."""
        if x.ndim and self.chance(0.12) and all(x.shape):
            return ", ".join(str(self.integer(-size, size - 1)) for size in x.shape)
        parts = [self.part(size) for size in x.shape]
        first = self.integer(0, x.ndim)
        if self.chance(0.25):
            parts[first : self.integer(first, x.ndim)] = ["..."]
        else:
            parts = parts[: max(first, 1)]
        if self.chance(0.15):
            parts.insert(self.integer(0, len(parts)), "None")
        return ", ".join(parts) if parts else "..."

    def positions(self, x: Tensor) -> str:
        """An index with tensors, lists or masks on some axes, as text between brackets."""
        if not x.ndim or 0 in x.shape:
            raise NothingFitsError
        wide = self.choice([(3,), (2,), (2, 2), (1,), (), (2, 1), (4,)])
        chosen = self.integer(0, x.ndim - 1)
        parts: list[str] = []
        for axis, size in enumerate(x.shape):
            if axis != chosen and self.chance(0.6):
                parts.append(self.part(size))
            elif self.chance(0.7):
                parts.append(self.index(wide, size, True))
            elif len(wide) == 1:
                parts.append(str([self.integer(-size, size - 1) for _ in range(wide[0])]))
            else:
                parts.append(str(self.integer(-size, size - 1)))
        return ", ".join(parts)


def broadcasts(shape: Shape, other: Shape, draw: Drawing) -> bool:
    """True if two shapes go together and give no larger result than is wanted."""
    count = 1
    for place in range(1, max(len(shape), len(other)) + 1):
        a = shape[-place] if place <= len(shape) else 1
        b = other[-place] if place <= len(other) else 1
        if a != b and 1 not in (a, b):
            return False
        count *= max(a, b) if a and b else 0
    return count <= draw.limits.most
