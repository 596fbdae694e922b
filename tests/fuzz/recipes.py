"""Calls whose arguments have to fit each other, for methods that chance alone would rarely meet.

A recipe draws the operands too, and gives the text of the whole call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tests.fuzz.drawing import Drawing

Recipe = Callable[[Drawing], str]

PATTERNS = ("a b -> b a", "a b -> (a b)", "a b -> b 1 a", "a b -> (b a)")
FOLDED = ("a b -> a", "a b -> b", "a b -> b 1", "a b ->")
FORMULAS = ("ij,jk->ik", "bij,bjk->bik", "ij->ji", "ij,ij->", "i,j->ij", "ij,kj->ik", "ij,j->i")


def some(draw: Drawing, shape: Sequence[int], dtype: str = "float32") -> str:
    """A tensor of a shape: one that there is, or a new one."""
    fits = draw.fitting(lambda y: y.shape == tuple(shape) and y.dtype.name == dtype)
    return draw.choice(fits) if fits and draw.chance(0.6) else draw.fresh(shape, dtype)


def ranked(draw: Drawing, rank: int, least: int = 1) -> tuple[str, tuple[int, ...]]:
    """A tensor of float32 with so many axes, of sizes that may be small only, and its shape."""
    fits = draw.fitting(
        lambda y: y.ndim == rank and y.dtype.name == "float32" and min(y.shape) >= least
    )
    if fits and draw.chance(0.6):
        name = draw.choice(fits)
        return name, tuple(int(n) for n in draw.values[name].shape)
    shape = tuple(draw.integer(least, max(least, 8 - rank)) for _ in range(rank))
    return draw.fresh(shape, "float32"), shape


def square(draw: Drawing) -> tuple[str, int]:
    """A matrix that is well conditioned, as an expression, and its size."""
    size = draw.integer(1, 4)
    return f"({some(draw, (size, size))} + 20 * Tensor.eye({size}))", size


def reduction(draw: Drawing) -> str:
    return draw.choice(["'mean'", "'sum'", "'none'"])


# -- windows -------------------------------------------------------------------------------------


def adaptive(name: str, axes: int) -> Recipe:
    def call(draw: Drawing) -> str:
        x, _ = ranked(draw, axes + draw.integer(1, 2))
        return f"{x}.{name}({draw.integer(1, 3)})"

    return call


def pooled(name: str, axes: int) -> Recipe:
    def call(draw: Drawing) -> str:
        x, _ = ranked(draw, axes + 2, 3)
        norm = f"{draw.integer(1, 2)}, " if name.startswith("lp") else ""
        stride = f", stride={draw.integer(1, 3)}" if draw.chance(0.5) else ""
        padding = draw.chance(0.3) and not norm
        return f"{x}.{name}({norm}{draw.integer(2, 3)}{stride}{', padding=1' if padding else ''})"

    return call


def convolution(name: str, axes: int) -> Recipe:
    def call(draw: Drawing) -> str:
        size = draw.integer(1, 3)
        groups = draw.choice([1, 1, 1, 2])
        inputs, outputs = groups * draw.integer(1, 3), groups * draw.integer(1, 3)
        lengths = [draw.integer(size, size + 5) for _ in range(axes)]
        x = some(draw, (draw.integer(1, 2), inputs, *lengths))
        turned = "transpose" in name
        pair = (inputs, outputs // groups) if turned else (outputs, inputs // groups)
        weight = some(draw, (*pair, *[size] * axes))
        more = [f"groups={groups}"] if groups > 1 else []
        more += [f"stride={draw.integer(1, 3)}"] if draw.chance(0.4) else []
        more += [f"padding={draw.integer(0, size - 1)}"] if draw.chance(0.4) else []
        more += [f"bias={some(draw, (outputs,))}"] if draw.chance(0.4) else []
        if draw.chance(0.2) and not turned and min(lengths) > 2 * (size - 1):
            more.append("dilation=2")
        return f"{x}.{name}({', '.join([weight, *more])})"

    return call


def fold(draw: Drawing) -> str:
    size, kernel = draw.integer(2, 5), draw.integer(1, 2)
    places = (size - kernel + 1) ** 2
    x = some(draw, (1, draw.integer(1, 2) * kernel**2, places))
    return f"{x}.fold(({size}, {size}), {kernel})"


def grid_sample(draw: Drawing) -> str:
    x, shape = ranked(draw, 4)
    grid = some(draw, (shape[0], draw.integer(1, 3), draw.integer(1, 3), 2))
    mode = draw.choice(["'bilinear'", "'nearest'"])
    return f"{x}.grid_sample({grid} / 4, mode={mode}, align_corners={draw.chance(0.5)})"


def affine_grid(draw: Drawing) -> str:
    batch = draw.integer(1, 2)
    size = (batch, 1, draw.integer(1, 4), draw.integer(1, 4))
    return f"{some(draw, (batch, 2, 3))}.affine_grid({size}, align_corners={draw.chance(0.5)})"


LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
"""The name of linear interpolation, by the number of axes."""


def interpolated(name: str) -> Recipe:
    """An image, or what has one or three axes like one, of another size; half of them linearly."""

    def call(draw: Drawing) -> str:
        rank = draw.choice([3, 4, 4, 5])
        x, _ = ranked(draw, rank)
        mode = f", mode={LINEAR[rank]!r}" if draw.chance(0.5) else ""
        factor = draw.choice(["1", "2", "3", "1.5", "0.6"])
        return f"{x}.{name}(scale_factor={factor}{mode})"

    return call


def resized(name: str, *ranks: int) -> Recipe:
    def call(draw: Drawing) -> str:
        x, _ = ranked(draw, draw.choice(ranks))
        return f"{x}.{name}(scale_factor={draw.integer(1, 3)})"

    return call


def shuffled(name: str) -> Recipe:
    def call(draw: Drawing) -> str:
        factor = draw.integer(1, 2)
        channels, high, wide = (draw.integer(1, 3) for _ in range(3))
        if name == "pixel_unshuffle":
            high, wide = high * factor, wide * factor
        else:
            channels *= factor * factor
        x = some(draw, (draw.integer(1, 2), channels, high, wide))
        return f"{x}.{name}({factor})"

    return call


# -- normalisation, losses and attention -----------------------------------------------------------


def grouped(name: str) -> Recipe:
    def call(draw: Drawing) -> str:
        groups = draw.integer(1, 3)
        shape = (draw.integer(1, 3), groups * draw.integer(1, 2), draw.integer(1, 5))
        return f"{some(draw, shape)}.{name}({groups}{scaled_and_moved(draw, shape[1:2])})"

    return call


def scaled_and_moved(draw: Drawing, shape: Sequence[int]) -> str:
    """Arguments for a weight, and for a bias, or for neither."""
    found = [some(draw, shape) for _ in range(draw.integer(0, 2))]
    return "".join([f", {name}" for name in found])


def batch_norm(draw: Drawing) -> str:
    x, shape = ranked(draw, draw.integer(2, 4))
    if draw.chance(0.4) and math.prod(shape) > shape[1]:
        return f"{x}.batch_norm(None, None, training=True)"
    mean, var = some(draw, shape[1:2]), some(draw, shape[1:2])
    return f"{x}.batch_norm({mean}, {var}.abs() + 1{scaled_and_moved(draw, shape[1:2])})"


def batchnorm(draw: Drawing) -> str:
    x, shape = ranked(draw, draw.integer(2, 4))
    return f"{x}.batchnorm({', '.join(some(draw, shape[1:2]) for _ in range(4))})"


def layer_norm(draw: Drawing) -> str:
    x, shape = ranked(draw, draw.integer(1, 4))
    kept = shape[draw.integer(0, len(shape) - 1) :]
    return f"{x}.layer_norm({kept}{scaled_and_moved(draw, kept)})"


def classified(name: str) -> Recipe:
    def call(draw: Drawing) -> str:
        x, shape = ranked(draw, 2)
        target = draw.fresh(shape[:1], "int64", 0, shape[1])
        weight = ""
        if name != "sparse_categorical_crossentropy" and draw.chance(0.3):
            weight = f", weight={some(draw, shape[1:2])}.abs() + 0.5"
        return f"{x}.{name}({target}, reduction={reduction(draw)}{weight})"

    return call


def gaussian(draw: Drawing) -> str:
    x, shape = ranked(draw, draw.integer(1, 3))
    return f"{x}.gaussian_nll_loss({some(draw, shape)}, {draw.integer(1, 3)})"


def ctc_loss(draw: Drawing) -> str:
    times, batch, classes = draw.integer(3, 5), draw.integer(1, 2), draw.integer(2, 4)
    targets = draw.fresh((batch, 2), "int64", 1, classes)
    x = some(draw, (times, batch, classes))
    lengths = f"[{times}] * {batch}, [{draw.integer(1, 2)}] * {batch}"
    return f"{x}.log_softmax(2).ctc_loss({targets}, {lengths}, zero_infinity=True)"


def attention(draw: Drawing) -> str:
    heads, rows, columns = draw.integer(1, 3), draw.integer(1, 9), draw.integer(1, 9)
    depth = draw.choice([1, 3, 4, 8, 16])
    groups = draw.choice([1, 1, 1, 2])
    query = some(draw, (1, heads * groups, rows, depth))
    key, value = (some(draw, (1, heads, columns, depth)) for _ in range(2))
    more = ", is_causal=True" if draw.chance(0.4) and rows == columns else ""
    if not more and draw.chance(0.3):
        more = f", attn_mask={some(draw, (rows, columns))}"
    if groups > 1:
        more += ", enable_gqa=True"
    return f"{query}.scaled_dot_product_attention({key}, {value}{more})"


# -- parts and positions ---------------------------------------------------------------------------


def divided(name: str, axis: int, least: int) -> Recipe:
    def call(draw: Drawing) -> str:
        x, shape = ranked(draw, draw.integer(max(least, 1), 4))
        size = shape[axis if len(shape) > axis else 0]
        parts = draw.choice([n for n in range(1, size + 1) if size % n == 0])
        places = sorted(draw.integer(0, size) for _ in range(2))
        text = str(parts) if draw.chance(0.5) else str(places)
        if name.endswith("_split") and draw.chance(0.4):
            text = f"{places}, {draw.integer(0, len(shape) - 1)}"
        return f"{x}.{name}({text})[{draw.choice([0, -1])}]"

    return call


def split_with_sizes(draw: Drawing) -> str:
    x, shape = ranked(draw, draw.integer(1, 3))
    axis = draw.integer(0, len(shape) - 1)
    first = draw.integer(0, shape[axis])
    sizes = [first, shape[axis] - first]
    return f"{x}.split_with_sizes({sizes}, {axis})[{draw.choice([0, 1])}]"


def reduced_into(name: str) -> Recipe:
    def call(draw: Drawing) -> str:
        x, shape = ranked(draw, draw.integer(1, 3))
        axis = draw.integer(0, len(shape) - 1)
        count = draw.choice([0, 1, 2, 3, 3, 4, 5])
        others = [n if draw.chance(0.7) else draw.integer(1, n) for n in shape]
        others = [*shape] if name == "index_reduce" else others
        chosen = (*others[:axis], count, *others[axis + 1 :])
        index = draw.fresh((count,) if name == "index_reduce" else chosen, "int64", 0, shape[axis])
        kinds = ["'prod'", "'prod'", "'mean'", "'amax'", "'amin'"]
        kinds += ["'sum'"] if name != "index_reduce" else []
        more = f"{draw.choice(kinds)}, include_self={draw.chance(0.5)}"
        return f"{x}.{name.rstrip('_')}({axis}, {index}, {some(draw, chosen)}, {more})"

    return call


def indexed_into(name: str) -> Recipe:
    def call(draw: Drawing) -> str:
        x, shape = ranked(draw, draw.integer(1, 3))
        axis = draw.integer(0, len(shape) - 1)
        # Of several elements for one place, any may be the one that is copied.
        count = draw.integer(0, 4) if name == "index_add" else 1
        index = draw.fresh((count,), "int64", 0, shape[axis])
        source = some(draw, (*shape[:axis], count, *shape[axis + 1 :]))
        more = ", alpha=2" if name == "index_add" and draw.chance(0.3) else ""
        return f"{x}.{name}({axis}, {index}, {source}{more})"

    return call


def along_axis(name: str) -> Recipe:
    """A method with an index of as many axes, which is smaller along some, and longer along one."""

    def call(draw: Drawing) -> str:
        x, shape = ranked(draw, draw.integer(1, 3))
        axis, count = draw.integer(0, len(shape) - 1), draw.integer(1, 4)
        chosen = [n if draw.chance(0.6) else draw.integer(1, n) for n in shape]
        chosen[axis] = count
        index = draw.fresh(chosen, "int64", 0, shape[axis])
        place = axis - len(shape) if draw.chance(0.3) else axis
        if name == "take_along_axis":
            return f"{x}.{name}({index}, {place})"
        source = f", {some(draw, chosen)}" if name.startswith("scatter") else ""
        return f"{x}.{name}({place}, {index}{source})"

    return call


def unpooled(name: str, axes: int) -> Recipe:
    """Elements put back where those of another tensor are the largest of their windows."""

    def call(draw: Drawing) -> str:
        size = draw.integer(1, 2)
        wide = [draw.integer(1, 3) * size for _ in range(axes)]
        head = (draw.integer(1, 2), draw.integer(1, 2))
        x = some(draw, (*head, *(n // size for n in wide)))
        places = f"{some(draw, (*head, *wide))}.max_pool{axes}d({size}, return_indices=True)[1]"
        return f"{x}.{name}({places}, {size})"

    return call


def bincount(draw: Drawing) -> str:
    count = draw.integer(1, 9)
    x = draw.fresh((count,), "int64", 0, 5)
    weights = f"weights={some(draw, (count,))}" if draw.chance(0.5) else ""
    return f"{x}.bincount({weights})"


def diagonal_scatter(draw: Drawing) -> str:
    x, shape = ranked(draw, 2)
    return f"{x}.diagonal_scatter({some(draw, (min(shape),))})"


def masked_scatter(draw: Drawing) -> str:
    x, shape = ranked(draw, draw.integer(1, 3))
    return f"{x}.masked_scatter({draw.mask(shape)}, {some(draw, (math.prod(shape),))})"


def patterns(name: str) -> Recipe:
    def call(draw: Drawing) -> str:
        x, _ = ranked(draw, 2)
        if name == "rearrange":
            return f"{x}.rearrange({draw.choice(PATTERNS)!r})"
        return f"{x}.reduce({draw.choice(FOLDED)!r}, {draw.choice(['sum', 'max', 'mean'])!r})"

    return call


def einsum(draw: Drawing) -> str:
    formula = draw.choice(FORMULAS)
    sizes = {letter: draw.size() for letter in "bijk"}
    inputs = formula.partition("->")[0].split(",")
    operands = [some(draw, [sizes[letter] for letter in term]) for term in inputs]
    return f"Tensor.einsum({formula!r}, {', '.join(operands)})"


# -- numbers and matrices --------------------------------------------------------------------------


def norm(name: str) -> Recipe:
    """A norm of any order, whose rules are others for each of them."""

    def call(draw: Drawing) -> str:
        x, _ = ranked(draw, draw.integer(1, 3))
        order = draw.choice(["1", "2", "3", "0", "0.5", "np.inf", "np.inf", "-np.inf"])
        return f"{x}.{name}({order}, axis={draw.axes(draw.values[x])})"

    return call


def pinv(draw: Drawing) -> str:
    """The pseudoinverse of a matrix of any sides, or of a symmetric one."""
    if draw.chance(0.3):
        x = some(draw, (3, 3))
        return f"({x} + {x}.T).pinv(hermitian=True)"
    return f"{ranked(draw, draw.integer(2, 3))[0]}.pinv()"


def quantile(name: str) -> Recipe:
    def call(draw: Drawing) -> str:
        x, _ = ranked(draw, draw.integer(1, 3))
        q = draw.choice(["0.0", "0.5", "1.0", "0.3", "[0.25, 0.75]"])
        q = q.replace("0.", "20.") if name == "percentile" else q
        return f"{x}.{name}({q}, axis={draw.choice([0, -1])})"

    return call


def numbered(name: str, *arguments: str) -> Recipe:
    """A call with numbers only; each is one of the words of a text."""

    def call(draw: Drawing) -> str:
        chosen = ", ".join(draw.choice(text.split()) for text in arguments)
        return f"{'Tensor'}.{name}({chosen})"

    return call


def floating(name: str, *arguments: str) -> Recipe:
    """A method of a tensor of floats, with arguments that are words of a text each."""

    def call(draw: Drawing) -> str:
        x, _ = ranked(draw, draw.integer(1, 3))
        return f"{x}.{name}({', '.join(draw.choice(text.split()) for text in arguments)})"

    return call


def of_square(name: str) -> Recipe:
    def call(draw: Drawing) -> str:
        matrix, _ = square(draw)
        return f"{matrix}.{name}()"

    return call


def of_positive(name: str) -> Recipe:
    def call(draw: Drawing) -> str:
        size = draw.integer(1, 4)
        x = some(draw, (size, size))
        return f"({x} @ {x}.T + 2 * Tensor.eye({size})).{name}()"

    return call


def solved(name: str) -> Recipe:
    """A system of equations, or several that have one matrix, or right side, in common."""

    def call(draw: Drawing) -> str:
        size = draw.integer(1, 4)
        batches = draw.choice([((), ()), ((1,), (2,)), ((2,), (1,)), ((), (2,)), ((2,), (2,))])
        matrix = some(draw, (*batches[0], size, size))
        right = some(draw, (*batches[1], size, draw.integer(1, 3)))
        matrix = f"({matrix} + 20 * Tensor.eye({size}))"
        if name == "solve":
            return f"{matrix}.solve({right})"
        options = f"upper={draw.chance(0.5)}, unitriangular={draw.chance(0.5)}"
        return f"{matrix}.solve_triangular({right}, {options})"

    return call


def of_factor(name: str) -> Recipe:
    """A function of a triangle of a well conditioned matrix, perhaps with right sides."""

    def call(draw: Drawing) -> str:
        matrix, size = square(draw)
        upper = f"upper={draw.chance(0.5)}"
        if name == "cholesky_inverse":
            return f"{matrix}.{name}({upper})"
        return f"{some(draw, (size, draw.integer(1, 3)))}.{name}({matrix}, {upper})"

    return call


def matrix_power(draw: Drawing) -> str:
    size = draw.integer(1, 4)
    return f"{some(draw, (size, size))}.matrix_power({draw.integer(0, 4)})"


def batched(name: str, added: bool) -> Recipe:
    def call(draw: Drawing) -> str:
        batch, rows, inner, columns = (draw.integer(1, 5) for _ in range(4))
        left, right = some(draw, (batch, rows, inner)), some(draw, (batch, inner, columns))
        if not added:
            return f"{left}.{name}({right})"
        shape = (rows, columns) if name == "addbmm" else (batch, rows, columns)
        return f"{some(draw, shape)}.{name}({left}, {right})"

    return call


def lettered(name: str, *terms: str) -> Recipe:
    """A method of tensors that have a letter for each axis; equal letters are equal sizes."""

    def call(draw: Drawing) -> str:
        sizes = {letter: draw.size() for letter in "".join(terms)}
        first, *others = [some(draw, [sizes[letter] for letter in term]) for term in terms]
        return f"{first}.{name}({', '.join(others)})"

    return call


def tensordot(draw: Drawing) -> str:
    """Products along the last and the first axes, or along any of equal sizes."""
    sizes = [draw.size() for _ in range(4)]
    count = draw.integer(0, 2)
    inner = sizes[:count]
    x, y = some(draw, [*sizes[2:], *inner]), some(draw, [*inner, sizes[3]])
    if draw.chance(0.5):
        return f"{x}.tensordot({y}, {count})"
    order = draw.rng.sample(range(count), count)
    return f"{x}.tensordot({y}, ({[place + 2 for place in order]}, {order}))"


def repeat_interleave(draw: Drawing) -> str:
    """Each element as often as all others, or as one number of several says."""
    x, shape = ranked(draw, draw.integer(1, 3))
    axis = draw.integer(0, len(shape) - 1)
    count = str(draw.integer(0, 3))
    if draw.chance(0.6):
        count = str([draw.integer(0, 3) for _ in range(shape[axis])])
        count = f"Tensor({count})" if draw.chance(0.5) else count
    return f"{x}.repeat_interleave({count}, {axis})"


def eigh(draw: Drawing) -> str:
    size = draw.integer(1, 4)
    x = some(draw, (size, size))
    return f"({x} + {x}.T).eigh()"


def looked_up(name: str) -> Recipe:
    """Rows of a table by a tensor of their numbers."""

    def call(draw: Drawing) -> str:
        rows, columns = draw.integer(3, 6), draw.integer(1, 5)
        shape = [draw.integer(1, 4) for _ in range(2 if name == "embedding_bag" else 1)]
        index = draw.fresh(shape, "int64", 0, rows)
        weights = ""
        if name == "embedding_bag" and draw.chance(0.3):
            weights = f", mode='sum', per_sample_weights={some(draw, shape)}"
        return f"{index}.{name}({some(draw, (rows, columns))}{weights})"

    return call


def multi_margin(draw: Drawing) -> str:
    rows, classes = draw.integer(1, 5), draw.integer(2, 5)
    target = draw.fresh((rows,), "int64", 0, classes)
    weight = f", weight={some(draw, (classes,))}.abs()" if draw.chance(0.3) else ""
    p = draw.integer(1, 2)
    return f"{some(draw, (rows, classes))}.multi_margin_loss({target}, p={p}{weight})"


def cosine_embedding(draw: Drawing) -> str:
    rows = [draw.integer(1, 4) for _ in range(draw.integer(0, 2))]
    x, y = (some(draw, (*rows, columns)) for columns in [draw.integer(1, 5)] * 2)
    target = f"{draw.fresh(rows, 'int64', 0, 2)} * 2 - 1"
    return f"({x} + 0.25).cosine_embedding_loss({y} - 0.25, {target})"


def crossed(draw: Drawing) -> str:
    shape = [draw.integer(1, 4) for _ in range(draw.integer(0, 2))]
    place = draw.integer(0, len(shape))
    shape.insert(place, 3)
    dim = place - draw.choice([0, len(shape)])
    return f"{some(draw, shape)}.cross({some(draw, shape)}, dim={dim})"


def one_hot(draw: Drawing) -> str:
    count = draw.integer(1, 5)
    x = draw.fresh([draw.integer(1, 4) for _ in range(draw.integer(0, 2))], "int64", 0, count)
    return f"{x}.one_hot({count + draw.integer(0, 1)})"


RECIPES: dict[str, Recipe] = {
    "addmm": lettered("addmm", "ij", "ik", "kj"),
    "addmv": lettered("addmv", "i", "ij", "j"),
    "addr": lettered("addr", "ij", "i", "j"),
    "mv": lettered("mv", "ij", "j"),
    "linear": lettered("linear", "bij", "jk", "k"),
    "bilinear": lettered("bilinear", "bi", "bj", "kij", "k"),
    "chain_matmul": lettered("chain_matmul", "ij", "jk", "kl"),
    "multi_dot": lettered("multi_dot", "ij", "jk", "kl", "li"),
    "cartesian_prod": lettered("cartesian_prod", "i", "j", "k"),
    "tensordot": tensordot,
    "eigh": eigh,
    "repeat_interleave": repeat_interleave,
    "embedding": looked_up("embedding"),
    "embedding_bag": looked_up("embedding_bag"),
    "multi_margin_loss": multi_margin,
    "cosine_embedding_loss": cosine_embedding,
    "cross": crossed,
    "upsample_bilinear": resized("upsample_bilinear", 4),
    "upsample_nearest": resized("upsample_nearest", 3, 4, 5),
    "one_hot": one_hot,
    **{
        f"adaptive_{kind}_pool{n}d": adaptive(f"adaptive_{kind}_pool{n}d", n)
        for kind in ("avg", "max")
        for n in (1, 2, 3)
    },
    **{
        f"{kind}_pool{n}d": pooled(f"{kind}_pool{n}d", n)
        for kind in ("avg", "max", "lp")
        for n in (1, 2, 3)
    },
    **{
        f"conv{kind}{n}d": convolution(f"conv{kind}{n}d", n)
        for kind in ("", "_transpose")
        for n in (1, 2, 3)
    },
    "fold": fold,
    "grid_sample": grid_sample,
    "affine_grid": affine_grid,
    **{name: interpolated(name) for name in ("interpolate", "upsample")},
    **{name: shuffled(name) for name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")},
    "group_norm": grouped("group_norm"),
    "groupnorm": grouped("groupnorm"),
    "batch_norm": batch_norm,
    "batchnorm": batchnorm,
    "layer_norm": layer_norm,
    **{
        name: classified(name)
        for name in ("nll_loss", "cross_entropy", "sparse_categorical_crossentropy")
    },
    "gaussian_nll_loss": gaussian,
    "ctc_loss": ctc_loss,
    "scaled_dot_product_attention": attention,
    "array_split": divided("array_split", 0, 1),
    "tensor_split": divided("tensor_split", 0, 1),
    "hsplit": divided("hsplit", 1, 1),
    "vsplit": divided("vsplit", 0, 2),
    "dsplit": divided("dsplit", 2, 3),
    "split_with_sizes": split_with_sizes,
    "index_reduce": reduced_into("index_reduce"),
    "scatter_reduce": reduced_into("scatter_reduce"),
    "index_add": indexed_into("index_add"),
    "index_copy": indexed_into("index_copy"),
    **{name: along_axis(name) for name in ("gather", "take_along_axis", "scatter", "scatter_add")},
    **{f"max_unpool{n}d": unpooled(f"max_unpool{n}d", n) for n in (1, 2, 3)},
    "bincount": bincount,
    "diagonal_scatter": diagonal_scatter,
    "masked_scatter": masked_scatter,
    "rearrange": patterns("rearrange"),
    "reduce": patterns("reduce"),
    "einsum": einsum,
    **{name: quantile(name) for name in ("quantile", "nanquantile", "percentile")},
    "arange": numbered("arange", "0 1 -3 2.5", "4 -5 9 None", "1 2 -1 -3 0.5"),
    "linspace": numbered("linspace", "0 -1 2", "1 3 -2", "1 2 5 9"),
    "logspace": numbered("logspace", "0 -1 2", "1 3 -2", "1 2 5 9"),
    "tril_indices": numbered("tril_indices", "1 2 4", "1 3 5", "0 -1 1"),
    "triu_indices": numbered("triu_indices", "1 2 4", "1 3 5", "0 -1 1"),
    "bucketize": floating("bucketize", "[-1.0,0.5,2.0] [0.0]"),
    "constant_pad_nd": floating("constant_pad_nd", "(1,2) (0,1) (2,-1)", "0 1 -0.5"),
    "renorm": floating("renorm", "1 2", "0 -1", "0.5 3"),
    "threshold": floating("threshold", "0 0.5 -1", "0 2 -0.5"),
    "new_tensor": floating("new_tensor", "[1,2] [0.5] 3"),
    **{
        name: of_square(name)
        for name in ("det", "inv", "inverse", "slogdet", "logdet", "matrix_exp", "qr", "svdvals")
    },
    **{name: of_positive(name) for name in ("cholesky", "eigvalsh")},
    **{name: solved(name) for name in ("solve", "solve_triangular")},
    **{
        name: of_factor(name) for name in ("cholesky_inverse", "cholesky_solve", "triangular_solve")
    },
    "matrix_power": matrix_power,
    "pinv": pinv,
    **{name: norm(name) for name in ("norm", "vector_norm")},
    "bmm": batched("bmm", False),
    "baddbmm": batched("baddbmm", True),
    "addbmm": batched("addbmm", True),
}
