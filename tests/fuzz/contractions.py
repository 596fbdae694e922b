"""Programs around products that are large enough for tiling, blocking, and sums over the blocks.

Small kernels need none of these, so small programs never test the decisions: the sums that share a
kernel, the values kept in blocks, and the number of times that each is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ferrule import Tensor
from tests.fuzz.drawing import Drawing, Limits, NothingFitsError
from tests.fuzz.program import loaded

LIMITS = Limits(statements=4, elements=4000, most=6000)
SIZES = (16, 17, 24, 31, 32, 33, 40, 48)
LEAST = 33_000
"""Multiply-adds of a product, from which it is scheduled as one."""
BATCH = 4
"""Of products that blocks are made for; with `ROWS`, enough rows for two threads."""
ROWS = (33, 40)
FEW = (16, 17, 24)
EPILOGUES = ("relu()", "abs()", "sigmoid()", "exp2()", "softmax(-1)", "softmax(0)", "square()")
ROUNDED = ("softmax(-1)", "softmax(0)", "layernorm()", "logsumexp(-1, keepdim=True)")
FOLDED = ("sum({})", "max({})", "mean({})", "argmax({})", "cumsum({})", "logsumexp({})")


@dataclass
class Contractions:
    """Draws statements for one program."""

    draw: Drawing
    new_name: Callable[[], str]
    waiting: list[str] = field(default_factory=list)
    """Statements that belong to the last one."""
    made: int = 0
    """The number of statements drawn so far; the first is a product."""

    def sources(self) -> None:
        self.draw.fresh((self.draw.choice(SIZES), self.draw.choice(SIZES)), "float32")

    def statement(self) -> str:
        kinds: list[tuple[int, Callable[[], str]]] = [
            (6, self.product),
            (2, self.attention),
            (1, self.convolution),
            (4, self.blocks),
            (3, self.epilogue),
            (3, self.combined),
            (3, self.folded),
            (2, self.moved),
            (7, self.chosen),
        ]
        while self.waiting:
            line = self.waiting.pop()
            if all(name in self.draw.values for name in loaded(line)):
                return f"{self.new_name()} = {line}"  # but for what was not kept
        if self.made == 0:
            kinds = kinds[:4]
        kind = self.draw.weighted(kinds)
        self.made += 1
        return f"{self.new_name()} = {kind()}"

    # -- products --------------------------------------------------------------------------------

    def product(self) -> str:
        """A product of matrices, of a batch of them, or of what is computed on the way."""
        draw = self.draw
        name = self.matrix()
        rows, terms = self.draw.values[name].shape
        sizes = [n for n in SIZES if rows * terms * n >= LEAST]
        columns = draw.choice(sizes)
        left = f"({name} {draw.choice('+*')} {draw.number(draw.values[name].dtype)})"
        left = left if draw.chance(0.3) else name
        if draw.chance(0.3):
            return f"{left} @ {self.other((columns, terms))}.T"
        if draw.chance(0.2):
            return f"{left}.T @ {self.other((rows, columns))}"
        return f"{left} @ {self.other((terms, columns))}"

    def attention(self) -> str:
        """Two products, with what becomes of the first between them."""
        draw = self.draw
        name = self.matrix()
        rows, depth = draw.values[name].shape
        count = draw.choice([n for n in SIZES if rows * depth * n >= LEAST])
        key, value = self.other((count, depth)), self.other((count, depth))
        scores = f"({name} @ {key}.T)"
        between = draw.choice(["softmax(-1)", "relu()", "softmax(0)", "cumsum(1)", "square()"])
        if draw.chance(0.3):
            scores = f"({scores} + {self.other((rows, count))})"
        return f"{scores}.{between} @ {value}"

    def blocks(self) -> str:
        """A product whose result other statements read along its rows and along its columns.

        A kernel keeps such rows in blocks. It sums the readers of the columns along with its own
        value, unless they need the stored result.
        """
        draw = self.draw
        name = f"v{draw.count}"
        rows, depth, count, width = (draw.choice(sizes) for sizes in (ROWS, FEW, FEW, FEW))
        query, key, value = (
            self.other((BATCH, *shape)) for shape in ((rows, depth), (count, depth), (count, width))
        )
        scores = f"({query} @ {key}.transpose(-1, -2))"
        if draw.chance(0.3):
            scores = f"({scores} + {self.other((rows, count))})"
        made = f"{scores}.{draw.choice(['softmax(-1)', 'softmax(-1)', 'sigmoid()', 'square()'])}"
        if draw.chance(0.2):
            made = f"({scores} < 1.5).where({scores}, 0)"
        # What is one result is sure to be one schedule, in which nobody else holds the weights.
        is_one = draw.chance(0.5)
        weights = f"({made})" if is_one else name
        read = draw.choice(
            [
                *(f"{weights} @ {value}",) * 3,
                f"{weights}.flip(-1) @ {value}",
                f"{weights}.pad((0, 2)) @ {value}.pad((0, 0, 0, 2))",
            ]
        )
        summed = self.other((BATCH, rows, width))
        if draw.chance(0.3):
            summed = draw.choice([f"({read})", f"({read} @ {self.other((BATCH, width, width))})"])
        added = f"{weights}.transpose(-1, -2) @ {summed}"
        if is_one:
            return f"({read}).max(1) {draw.choice('+-')} ({added}).max(1)"
        self.waiting = draw.choice([[read], [added], [read, added]])
        return made

    def convolution(self) -> str:
        draw = self.draw
        inputs, outputs, size = draw.integer(2, 4), draw.integer(8, 12), draw.choice([9, 12, 13])
        x = draw.fresh((draw.integer(1, 2), inputs, size, size), "float32")
        weight = draw.fresh((outputs, inputs, 3, 3), "float32")
        stride = draw.choice(["", ", stride=2", ", padding=1", ", padding=1, dilation=2"])
        return f"{x}.conv2d({weight}{stride})"

    def matrix(self) -> str:
        fits = self.draw.fitting(
            lambda x: x.ndim == 2 and x.dtype.name == "float32" and _is_large(x)
        )
        if not fits or self.draw.chance(0.2):
            return self.draw.fresh(
                (self.draw.choice(SIZES[2:]), self.draw.choice(SIZES[4:])), "float32"
            )
        return self.draw.choice(fits)

    def other(self, shape: tuple[int, ...]) -> str:
        fits = self.draw.fitting(lambda x: x.shape == shape and x.dtype.name == "float32")
        return (
            self.draw.choice(fits)
            if fits and self.draw.chance(0.6)
            else self.draw.fresh(shape, "float32")
        )

    # -- what goes with them ---------------------------------------------------------------------

    def value(self) -> str:
        fits = self.draw.fitting(lambda x: x.numel() >= 64 and x.dtype.name == "float32")
        if not fits:
            raise NothingFitsError
        return fits[-1] if self.draw.chance(0.5) else self.draw.choice(fits)

    def epilogue(self) -> str:
        return f"{self.value()}.{self.draw.choice(EPILOGUES)}"

    def combined(self) -> str:
        """A value with another, or with what its rows and columns are combined to."""
        draw, name = self.draw, self.value()
        x = draw.values[name]
        if draw.chance(0.5):
            return f"{name} {draw.choice('+-*')} {draw.operand(x, 0.1)}"
        how = draw.choice(["sum", "max", "mean", "min"])
        return f"{name} {draw.choice('+-*')} {name}.{how}({draw.axis(x)}, keepdim=True)"

    def folded(self) -> str:
        name = self.value()
        return f"{name}.{self.draw.choice(FOLDED).format(self.draw.axis(self.draw.values[name]))}"

    def chosen(self) -> str:
        """Sums that are rounded, and which of them is the largest: two roundings of one sum would
        meet there, in one schedule or in two.
        """
        draw, name = self.draw, self.value()
        total = f"v{draw.count}"
        if draw.chance(0.5) and draw.values[name].ndim > 1:
            how = draw.choice(["max(-1, keepdim=True)", "max(0)", "max()"])
            self.waiting = [f"{total} >= {total}.{how}.realize()"]
            if draw.chance(0.4):
                return f"({name} / 3) @ {name}.transpose(-1, -2)"
            return f"({name} / 3).{draw.choice(ROUNDED)}"
        self.waiting = [
            draw.choice([f"{total} == {total}.max()", f"{total} >= {total}.max(-1, keepdim=True)"]),
        ]
        if draw.chance(0.5):
            self.waiting.insert(0, f"{total}.argmax()")
        axis = draw.axis(draw.values[name])
        return f"({name} / 3).sum({axis}{draw.choice(['', ', keepdim=True'])})"

    def moved(self) -> str:
        draw, name = self.draw, self.value()
        x = draw.values[name]
        kinds = [f"{name}[{draw.key(x)}]", f"{name}.flip({draw.axis(x)})", f"{name}.pad((1, 2))"]
        if x.ndim == 2:
            kinds.append(f"{name}.T")
        return draw.choice(kinds)


def _is_large(x: Tensor) -> bool:
    return bool(min(x.shape) >= SIZES[0] and x.numel() * SIZES[-1] >= LEAST)
