"""Programs that read and write a few tensors over and over, through overlapping views.

They test hazards: the memory that a kernel may overwrite, the order of kernels, and the copies made
before a write. A hazard needs several such statements in one schedule; in general programs these
are too far apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ferrule import Tensor
from tests.fuzz.drawing import Drawing, NothingFitsError
from tests.fuzz.program import loaded

OPS = "+-+-*"
LONG = {1: (70, 150, 300), 2: (9, 16, 18), 3: (6, 7)}
"""By the number of axes: sizes of those that a kernel has to go along in several steps."""
MOST = 400
"""Elements of what is written to."""
WIDE = ((40000,), (200, 200), (30, 30, 40))
"""Shapes that several threads share out; nothing waits for another thread then."""
WIDE_SHARE = 0.08
REDUCED = ("sum({})", "sum({}, keepdim=True)", "max({})", "cumsum({})", "flip({})", "sort({})[0]")


@dataclass
class Aliases:
    """Draws statements for one program."""

    draw: Drawing
    new_name: Callable[[], str]
    waiting: list[str] = field(default_factory=list)
    """Statements that belong to the last one."""
    most: int = MOST

    def sources(self) -> None:
        """Two or three tensors of one shape, and of one dtype."""
        draw = self.draw
        rank = draw.choice([1, 2, 2, 2, 3])
        # What fits a few vectors is read before any of it is written.
        shape = [draw.choice([2, 3, 5, *LONG[rank]]) for _ in range(rank)]
        if draw.chance(0.5):
            shape = [shape[0]] * len(shape)
        if draw.chance(WIDE_SHARE):
            shape = list(draw.choice(WIDE))
            self.most = math.prod(shape)
            draw.limits = replace(draw.limits, most=4 * self.most)
        dtype = draw.choice(["float32", "float32", "int32", "float64", "int16"])
        for _ in range(draw.integer(2, 3)):
            draw.fresh(shape, dtype)

    def statement(self) -> str:
        while self.waiting:
            line = self.waiting.pop()
            if all(name in self.draw.values for name in loaded(line)):
                return line  # but for what was not kept
        kinds: list[tuple[int, Callable[[], str]]] = [
            (5, self.view),
            (8, self.write),
            (7, self.update),
            (4, self.whole),
            (4, self.put),
            (6, self.combined),
            (3, self.reduced),
            (3, self.joined),
            (4, self.together),
            (3, self.exchanged),
            (2, self.placed),
        ]
        kind = self.draw.weighted(kinds)
        return kind()

    # -- statements ------------------------------------------------------------------------------

    def view(self) -> str:
        name = self.target()
        text = name if self.draw.chance(0.3) else f"{name}[{self.key(name)}]"
        return f"{self.new_name()} = {self.moved(text)}"

    def write(self) -> str:
        name = self.target()
        key = self.key(name)
        return f"{name}[{key}] = {self.operand(self.shape_of(f'{name}[{key}]'), name)}"

    def update(self) -> str:
        name = self.target()
        op = self.draw.choice(["+=", "+=", "-=", "*="])
        place = name if self.draw.chance(0.4) else f"{name}[{self.key(name)}]"
        return f"{place} {op} {self.operand(self.shape_of(place), name)}"

    def whole(self) -> str:
        name = self.target()
        shape = self.shape_of(name)
        return f"{name}.assign({self.operand(shape, name, exact=True)})"

    def put(self) -> str:
        """Elements by index, along any axis; or a tensor that they were put into."""
        draw, name = self.draw, self.target()
        shape = self.shape_of(name)
        axis, count = draw.integer(0, len(shape) - 1), draw.integer(1, 3)
        index = draw.fresh((count,), "int64", 0, shape[axis])
        part = (*shape[:axis], count, *shape[axis + 1 :])
        new = self.operand(part, name, exact=True)
        call = f"{draw.choice(['index_add', 'index_add', 'index_copy'])}({axis}, {index}, {new})"
        if draw.chance(0.3):
            return f"{name}.index_add_({axis}, {index}, {new})"
        if draw.chance(0.3):
            op = draw.choice(["=", "=", "+="])
            return f"{name}[{':, ' * axis}{index}] {op} {new}"
        made = self.new_name()
        if draw.chance(0.7):
            self.waiting = [f"{name}.assign({made})"]
            if draw.chance(0.5):
                more = f"{self.turned(made, shape)} {draw.choice(OPS)} 2"
                self.waiting.append(f"{self.new_name()} = {more}")
        base = self.turned(name, shape)
        if draw.chance(0.3):
            base = f"({self.operand(shape, name, exact=True)})"
        return f"{made} = {base}.{call}"

    def combined(self) -> str:
        name = self.target()
        new = self.operand(self.shape_of(name), name, exact=True)
        return f"{self.new_name()} = {f'({new}).contiguous()' if self.draw.chance(0.3) else new}"

    def reduced(self) -> str:
        name = self.target()
        axis = self.draw.axis(self.draw.values[name])
        text = self.operand(self.shape_of(name), name, exact=True)
        return f"{self.new_name()} = ({text}).{self.draw.choice(REDUCED).format(axis)}"

    def joined(self) -> str:
        name = self.target()
        axis = self.draw.axis(self.draw.values[name])
        parts = [f"({self.operand(self.shape_of(name), name, exact=True)})" for _ in range(2)]
        parts = [f"{part}.contiguous()" if self.draw.chance(0.4) else part for part in parts]
        if self.draw.chance(0.3):
            parts[1] = parts[0]
        return f"{self.new_name()} = {parts[0]}.cat({parts[1]}, dim={axis})"

    def together(self) -> str:
        """A value that is written to a tensor, and needed beside a view of that tensor."""
        name, shared, other = self.target(), self.new_name(), self.new_name()
        shape = self.shape_of(name)
        read = self.turned(name, shape)
        self.waiting = [
            f"{other} = {read} {self.draw.choice(OPS)} {shared}",
            self.draw.choice(
                [f"{name} += {shared}", f"{name}.assign({shared})", f"{name}[:] = {shared}"]
            ),
        ]
        self.draw.rng.shuffle(self.waiting)
        alike = self.draw.fitting(lambda x: x.shape == shape and x is not self.draw.values[name])
        new = self.draw.choice(alike) if alike else self.draw.fresh(shape, self.kind_of(name))
        if self.draw.chance(0.3):  # kernels that read one element have no loop for it in common
            source = self.target()
            key = ", ".join("-1:" for _ in self.shape_of(source))
            new = f"{source}[{key}].reshape({', '.join('1' for _ in shape)}).expand({shape})"
        return f"{shared} = ({new}) * 2"

    def exchanged(self) -> str:
        """Two tensors get what was made of the other before."""
        name, old = self.target(), self.new_name()
        shape = self.shape_of(name)
        others = self.draw.fitting(lambda x: x.shape == shape)
        other = self.draw.choice(others)
        self.waiting = [
            f"{other}.assign({old})",
            f"{name}.assign({self.turned(other, shape)} {self.draw.choice(OPS)} 2)",
        ]
        return (
            f"{old} = {self.turned(name, shape)} {self.draw.choice(OPS)} {self.part(shape, other)}"
        )

    def placed(self) -> str:
        """A value that may be stored where it is joined with another, and is then written to."""
        draw, name = self.draw, self.target()
        made, whole = self.new_name(), self.new_name()
        shape = self.shape_of(name)
        pieces = [made, self.part(shape, name)]
        draw.rng.shuffle(pieces)
        write = f"{made}[{self.key(name)}] += {draw.number(draw.values[name].dtype)}"
        self.waiting = [
            draw.choice(
                [write, f"{made} += {self.turned(name, shape)}", f"{self.new_name()} = {made} * 2"]
            ),
            f"{whole} = {pieces[0]}.cat({pieces[1]}, dim={draw.axis(draw.values[name])})",
        ]
        return f"{made} = ({self.operand(shape, name, exact=True)}).contiguous()"

    # -- parts of statements ---------------------------------------------------------------------

    def target(self) -> str:
        """A tensor to write to, or to read; early ones are likelier, as they are what is shared."""
        names = self.draw.fitting(lambda x: 1 <= x.ndim <= 4 and 0 < x.numel() <= self.most)
        if not names:
            raise NothingFitsError
        return names[int(len(names) * self.draw.rng.random() ** 2)]

    def kind_of(self, name: str) -> str:
        return self.draw.values[name].dtype.name

    def shape_of(self, text: str) -> tuple[int, ...]:
        found: Tensor = eval(text, {"np": np, **self.draw.values})
        return tuple(found.shape)

    def key(self, name: str) -> str:
        x: Tensor = self.draw.values[name]
        if self.draw.chance(0.4):
            return self.draw.key(x)
        parts = [":"] * x.ndim
        axis = self.draw.integer(0, x.ndim - 1)
        parts[axis] = self.span(int(x.shape[axis]), self.draw.integer(1, int(x.shape[axis])))
        return ", ".join(parts)

    def span(self, size: int, count: int) -> str:
        """So many neighbours along an axis."""
        start = self.draw.choice([0, size - count, self.draw.integer(0, size - count)])
        return f"{start}:{start + count}"

    def operand(self, shape: Sequence[int], target: str, exact: bool = False) -> str:
        """An operand of this shape: a part of the target or of another tensor, or a number."""
        draw = self.draw
        if not exact and draw.chance(0.1):
            return draw.number(self.draw.values[target].dtype)
        text = self.part(shape, target)
        if draw.chance(0.5):
            other = self.part(shape, target) if draw.chance(0.7) else "2"
            text = f"{text} {draw.choice(OPS)} {other}"
        return text

    def part(self, shape: Sequence[int], target: str) -> str:
        """A view of a tensor with a shape."""
        draw = self.draw
        made = draw.fitting(lambda x: x.shape == tuple(shape))
        if made and draw.chance(0.3):  # what several statements need is computed with one of them
            return made[-1 - int(min(len(made), 3) * draw.rng.random())]
        name = target
        if not self.has_room(name, shape) or draw.chance(0.5):
            fits = [other for other in draw.values if self.has_room(other, shape)]
            name = draw.choice(fits) if fits else draw.fresh(shape, self.kind_of(target))
        pairs = zip(draw.values[name].shape, shape, strict=True)
        spans = [":" if n == count else self.span(int(n), count) for n, count in pairs]
        text = name if all(span == ":" for span in spans) else f"{name}[{', '.join(spans)}]"
        return self.turned(text, shape)

    def turned(self, text: str, shape: Sequence[int]) -> str:
        """The same elements, perhaps in another order."""
        draw = self.draw
        if len(shape) > 1 and len(set(shape)) == 1 and draw.chance(0.3):
            axes = draw.rng.sample(range(len(shape)), len(shape))
            return f"{text}.permute({', '.join(map(str, axes))})"
        if shape and draw.chance(0.3):
            return f"{text}.flip({draw.integer(0, len(shape) - 1)})"
        return text

    def has_room(self, name: str, shape: Sequence[int]) -> bool:
        x = self.draw.values[name]
        if x.ndim != len(shape):
            return False
        return all(n >= count for n, count in zip(x.shape, shape, strict=True))

    def moved(self, text: str) -> str:
        """A view of a view, the same memory under another name, or what may be a copy of it."""
        kind = self.draw.integer(0, 8)
        rank = len(self.shape_of(text))
        if kind == 0 and rank:
            return f"{text}.flip({self.draw.integer(0, rank - 1)})"
        if kind == 1 and rank > 1:
            axes = self.draw.rng.sample(range(rank), rank)
            return f"{text}.permute({', '.join(map(str, axes))})"
        more = {2: ".reshape(-1)", 3: ".contiguous()", 4: ".clone()", 5: ".detach()"}
        return f"{text}{more.get(kind, '')}"
