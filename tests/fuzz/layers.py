"""Layers of `ferrule.nn` and optimisers, found in what is public, with shapes that they take.

A layer that is added is fuzzed as soon as the settings that it needs have usual annotations: `int`,
`Sizes`, `float`, ... Which shapes it takes is found out by trying: each input has some axes, one
of which may have the size of a setting. `tests/fuzz/test_layers_drawn.py` holds which layers no
program calls, and why.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrule import Context, Tensor, nn
from ferrule.dtype import dtypes
from ferrule.nn.functions import Function
from tests.fuzz.drawing import Drawing, NothingFitsError

# Never called by a program, each with the reason.
LEFT_OUT = {
    **dict.fromkeys(
        ("Module", "ModuleDict", "ModuleList", "Parameter", "ParameterDict", "ParameterList"),
        "is no layer",
    ),
    "RReLU": "draws by chance in training, and has no tensors",
}
MOST_FORMS = 12
MOST_TRIES = 400
SIZES = (8, 12, 10, 14, 16)
"""Of axes that have nothing to do with a setting, while forms are looked for."""
SETTINGS = ((6, 3, 1, 1, 1), (2, 2, 2, 2, 2), (1, 1, 1, 1, 1))
LARGEST_DEFAULT = 4
"""Of a whole number: a setting with a larger default is always given."""

CHOICES = {
    "dropout": "0.5",
    "padding_idx": "0",
    "reduction": "'mean' 'sum' 'none'",
    "nonlinearity": "'tanh' 'relu'",
    "padding_mode": "'zeros' 'reflect' 'replicate' 'circular'",
    "approximate": "'none' 'tanh'",
    "activation": "'relu' 'gelu'",
    "Upsample.mode": "'nearest' 'bilinear'",
    "EmbeddingBag.mode": "'sum' 'mean' 'max'",
    "scale_factor": "1 2 3",
    "unflattened_size": "(-1,1) (1,-1)",
    "dim": "0 1 -1",
    "norm": "None",
    "size": "2 3",
    "momentum": "0.5 0.25",
    "momentum_decay": "0.5",
    "betas": "(0.5,0.75) (0.25,0.5)",
    "etas": "(0.5,1.5)",
    "step_sizes": "(0.125,2.0)",
    "p": "1 2",
    "blank": "0",
    "eps": "0.25 0.5",
    "lr": "0.25 0.5 0.125",
    "Adafactor.eps": "(None,0.25)",
    "ns_steps": "1 2",
    "gamma": "0.5 0.75",
    "milestones": "[1] [1,2]",
    "total_iters": "1 2",
    "T_max": "2 3",
    "T_0": "1 2",
    "step_size": "1 2",
    "step_size_up": "1 2",
    "base_lr": "0.125",
    "max_lr": "0.5",
    "total_steps": "9",
    "last_epoch": "",
    "adjust_lr_fn": "'original' 'match_rms_adamw'",
}
"""Words for settings, by their names."""
KINDS = {
    "int": "1 2 3 4",
    "Sizes": "1 2 3",
    "Wanted": "1 2 3",
    "int | Sequence[int]": "1 2 3 4",
    "Sizes | str": "0 1",
    "float": "0.5 0.25 1.0 2.0",
    "Chance": "0.5",
    "bool": "True False",
}
"""Words for settings, by their annotations."""
ALWAYS = ("scale_factor", "eps")
"""Settings that are given though a layer, or an optimiser, has a default for them."""
WHOLE = ("int", "Sizes", "Wanted", "int | Sequence[int]")
# Settings that are not given: what draws by chance, and what `Tensor`'s methods have too.
SKIPPED = ("device", "dtype", "inplace", "max_norm")


OPTIONAL = ("Tensor | None", "tuple[Tensor, Tensor] | None")


@dataclass(frozen=True)
class Setting:
    name: str
    annotation: str
    required: bool
    default: Any

    @property
    def is_whole(self) -> bool:
        return self.annotation in WHOLE and self.name not in CHOICES

    @property
    def is_given(self) -> bool:
        """True for what is always given, since the default would be too large."""
        is_large = type(self.default) is int and self.default > LARGEST_DEFAULT
        return self.required or self.name in ALWAYS or (self.is_whole and is_large)

    def words(self, layer: str) -> str:
        named = CHOICES.get(f"{layer}.{self.name}", CHOICES.get(self.name, ""))
        return named or KINDS.get(self.annotation.removesuffix(" | None"), "")


@dataclass(frozen=True)
class Operand:
    """An input: its kind of dtype, and its axes, each the name of a setting or of a free size."""

    kind: str
    """"float", "index" or "sign"."""
    axes: tuple[str, ...]


Form = tuple[Operand, ...]


@dataclass(frozen=True)
class Layer:
    """A class of layers, and what its calls take."""

    name: str
    settings: tuple[Setting, ...]
    inputs: tuple[str, ...]
    """The required inputs."""
    others: tuple[tuple[str, str], ...] = ()
    """Names and annotations of tensors that may be given."""

    @property
    def has_tensors(self) -> bool:
        return any(setting.name == "dtype" for setting in self.settings)

    @property
    def lacking(self) -> list[str]:
        """Settings that are needed and for which nothing is known."""
        return [s.name for s in self.settings if s.required and not s.words(self.name)]

    @property
    def whole(self) -> list[str]:
        """The settings that are given and may be sizes."""
        return [s.name for s in self.settings if s.is_given and s.is_whole]

    def made(self, draw: Drawing, known: Mapping[str, int], dtype: str) -> str:
        """An expression that makes one, with the settings that are known and others drawn."""
        parts = []
        for setting in self.settings:
            name = setting.name
            if name in known:
                parts.append(f"{name}={known[name]}")
            elif name == "dtype":
                parts.append(f'dtype="{dtype}"')
            elif name not in SKIPPED or setting.required:
                words = setting.words(self.name)
                if words and (setting.is_given or draw.chance(0.25)):
                    parts.append(f"{name}={draw.choice(words.split())}")
        return f"nn.{self.name}({', '.join(parts)})"


def unavailable(name: str) -> str | None:
    """The reason why programs do not make one of a class; None if they may."""
    return LEFT_OUT.get(name)


@functools.cache
def layers() -> tuple[Layer, ...]:
    """All public layers that programs may call."""
    found = []
    for name in nn.__all__:
        member = getattr(nn, name)
        if isinstance(member, type) and "__call__" in dir(member) and name not in LEFT_OUT:
            found.append(_layer(name, member))
    return tuple(found)


def _layer(name: str, member: Any) -> Layer:
    others: list[tuple[str, str]] = []
    settings = inspect.signature(member)
    if issubclass(member, Function):  # whose inputs are those of its function that are no settings
        inputs = [
            p.name
            for p in inspect.signature(member._function).parameters.values()
            if p.name not in settings.parameters
            and p.default is p.empty
            and p.kind is not p.VAR_KEYWORD
        ]
    else:
        parameters = [*inspect.signature(member.__call__).parameters.values()][1:]
        inputs = [
            p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD
        ]
        others = [(p.name, str(p.annotation)) for p in parameters if str(p.annotation) in OPTIONAL]
    return Layer(name, settings_of(settings), tuple(inputs), tuple(others))


def settings_of(signature: inspect.Signature) -> tuple[Setting, ...]:
    empty = inspect.Parameter.empty
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return tuple(
        Setting(p.name, str(p.annotation), p.default is empty, p.default)
        for p in signature.parameters.values()
        if p.kind not in variable
    )


# -- the shapes that a layer takes -----------------------------------------------------------------


@functools.cache
def forms(layer: Layer) -> tuple[Form, ...]:
    """Shapes of the inputs that a layer takes, found by trying."""
    found: list[Form] = []
    names = layer.whole
    with Context(FERRULE_DEVICE="NUMPY"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for numbers in SETTINGS:
            for chosen in dict.fromkeys(itertools.permutations(numbers[: len(names)])):
                known = dict(zip(names, chosen, strict=False))
                made = _made(layer, known)
                if made is not None:
                    found = _accepted(layer, made, known)
                if found:
                    return tuple(found)
    return ()


@functools.cache
def optional_inputs(layer: Layer, form: Form) -> tuple[tuple[str, bool, tuple[str, ...]], ...]:
    """Tensors that may be given besides: their names, whether they are pairs, and their axes."""
    found = []
    names = layer.whole
    with Context(FERRULE_DEVICE="NUMPY"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for numbers in SETTINGS:
            known = dict(zip(names, numbers, strict=False))
            made = _made(layer, known)
            if made is None or not _takes(made, form, known):
                continue
            axes = [*dict.fromkeys(axis for operand in form for axis in operand.axes), *known, "1"]
            for name, annotation in layer.others:
                is_pair = annotation.startswith("tuple")
                for rank in (2, 3, 1):
                    fits = [
                        chosen
                        for chosen in itertools.product(dict.fromkeys(axes), repeat=rank)
                        if _takes(made, form, known, {name: (is_pair, chosen)})
                    ]
                    if fits:
                        found.append((name, is_pair, fits[0]))
                        break
            return tuple(found)
    return ()


def _made(layer: Layer, known: Mapping[str, int]) -> Any:
    others = {
        s.name: s.words(layer.name).split()[0]
        for s in layer.settings
        if s.is_given and s.name not in known and s.words(layer.name)
    }
    text = ", ".join(f"{name}={value}" for name, value in {**known, **others}.items())
    try:
        return eval(f"nn.{layer.name}({text})", {"nn": nn})
    except (TypeError, ValueError):
        return None


def _accepted(layer: Layer, made: Any, known: Mapping[str, int]) -> list[Form]:
    """The forms that a layer accepts, for each number of axes the most general ones."""
    found: list[Form] = []
    tries = 0
    for form in _candidates(layer.inputs, list(known)):
        if form[0].kind == "index" and any(f[0].kind == "float" for f in found):
            continue
        general = [f for f in found if _kinds(f) == _kinds(form)]
        if any(_is_general(f[0], known) for f in general):
            continue  # with a size less free, it is another case of one that was found
        tries += 1
        if tries > MOST_TRIES or len(found) == MOST_FORMS:
            break
        if _takes(made, form, known):
            found.append(form)
    return found


def _kinds(form: Form) -> tuple[tuple[str, int], ...]:
    return tuple((operand.kind, len(operand.axes)) for operand in form)


def _is_general(operand: Operand, known: Mapping[str, int]) -> bool:
    return not any(axis in known for axis in operand.axes)


def _candidates(inputs: Sequence[str], settings: Sequence[str]) -> Iterator[Form]:
    for kind in ("float", "index"):
        for rank in (2, 3, 4, 1, 5):
            free = tuple(f"n{place}" for place in range(rank))
            firsts = [free]
            for place in (rank - 1, 1):
                for setting in settings if place < rank else ():
                    firsts.append((*free[:place], setting, *free[place + 1 :]))
            for axes in dict.fromkeys(firsts):
                others = [_others(name, axes, settings) for name in inputs[1:]]
                for chosen in itertools.product(*others):
                    yield (Operand(kind, axes), *chosen)


def _others(name: str, axes: tuple[str, ...], settings: Sequence[str]) -> list[Operand]:
    """The candidates for a further input, from its name and the axes of the first."""
    found = [Operand("float", axes)]
    found += [Operand("float", (*axes[:-1], name)) for name in settings if name not in axes]
    if "target" not in name:
        return found
    without = (*axes[:1], *axes[2:])  # a class for each of the others
    return [*found, Operand("sign", axes), Operand("index", without), Operand("index", axes)]


def _takes(
    made: Any,
    form: Form,
    known: Mapping[str, int],
    others: Mapping[str, tuple[bool, tuple[str, ...]]] | None = None,
) -> bool:
    sizes = {**{f"n{place}": size for place, size in enumerate(SIZES)}, **known, "1": 1}
    more = {}
    for name, (is_pair, axes) in (others or {}).items():
        x = Tensor.zeros(*(sizes[axis] for axis in axes))
        more[name] = (x, x) if is_pair else x
    inputs = [
        Tensor.zeros(
            *(sizes[axis] for axis in operand.axes),
            dtype=dtypes.int64 if operand.kind == "index" else dtypes.float32,
        )
        for operand in form
    ]
    try:
        result = made(*inputs, **more)
    except Exception:
        return False
    return any(isinstance(part, Tensor) for part in parts(result))


def parts(result: Any) -> Iterator[Any]:
    """The tensors of a result, and what else is in it, one by one."""
    if isinstance(result, tuple | list):
        for part in result:
            yield from parts(part)
    else:
        yield result


# -- calls of them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A layer that is to be called: how it is made, and its inputs."""

    layer: Layer
    made: str
    inputs: tuple[str, ...]


def drawn(draw: Drawing, layer: Layer) -> Drawn:
    """A layer with settings that go with the tensors that there are."""
    if layer.name in RECIPES:
        made, inputs = RECIPES[layer.name](draw)
        return Drawn(layer, made, inputs)
    possible = forms(layer)
    if layer.lacking or not possible:
        raise NothingFitsError
    form = draw.choice(possible)
    first, sizes = _first(draw, form[0], layer)
    for name in layer.whole:
        divisors = [n for n in range(1, 5) if any(s % n == 0 for s in sizes.values())]
        common = draw.choice(divisors or [1])
        sizes.setdefault(name, common if draw.chance(0.5) else draw.integer(1, 4))
    dtype = draw.values[first].dtype if form[0].kind == "float" else dtypes.float32
    others = [_other(draw, operand, sizes, dtype.name) for operand in form[1:]]
    if form[0].kind == "index":  # of rows of the first setting
        below = next((sizes[name] for name in layer.whole), 2)
        first = draw.fresh(draw.values[first].shape, "int64", 0, below)
    known = {name: sizes[name] for name in layer.whole}
    if layer.others and draw.chance(0.4):
        others += _optional(draw, layer, form, {**sizes, "1": 1}, dtype.name)
    return Drawn(layer, layer.made(draw, known, dtype.name), (first, *others))


def _optional(
    draw: Drawing, layer: Layer, form: Form, sizes: Mapping[str, int], dtype: str
) -> list[str]:
    """An argument by name, of those that may be left out."""
    possible = optional_inputs(layer, form)
    if not possible:
        return []
    name, is_pair, axes = draw.choice(possible)
    one, two = (_other(draw, Operand("float", axes), sizes, dtype) for _ in range(2))
    return [f"{name}=({one}, {two})" if is_pair else f"{name}={one}"]


def _first(draw: Drawing, operand: Operand, layer: Layer) -> tuple[str, dict[str, int]]:
    """A tensor for the first input, and the sizes that its axes stand for."""
    rank = len(operand.axes)
    fits = draw.fitting(
        lambda y: (
            y.ndim == rank
            and dtypes.is_float(y.dtype)
            and y.dtype.bits > 8
            and all(0 < n <= 33 for n in y.shape)
        )
    )
    if fits and draw.chance(0.7):
        name = draw.choice(fits)
    else:
        kind = draw.choice(["float32"] * 8 + ["float64", "float16", "bfloat16"])
        name = draw.fresh([draw.integer(1, max(2, 8 - rank)) for _ in range(rank)], kind)
    shape = [int(n) for n in draw.values[name].shape]
    return name, dict(zip(operand.axes, shape, strict=True))


def _other(draw: Drawing, operand: Operand, sizes: Mapping[str, int], dtype: str) -> str:
    shape = tuple(sizes[axis] for axis in operand.axes)
    if operand.kind == "index":  # of classes, which are counted by an axis that is not there
        absent = [n for axis, n in sizes.items() if axis not in operand.axes]
        return draw.fresh(shape, "int64", 0, (absent or [2])[0])
    if operand.kind == "sign":
        return f"({draw.fresh(shape, 'int64', 0, 2)} * 2 - 1)"
    same = draw.fitting(lambda y: tuple(y.shape) == shape and y.dtype.name == dtype)
    return draw.choice(same) if same and draw.chance(0.6) else draw.fresh(shape, dtype)


# -- recipes, for layers whose arguments have to fit each other ------------------------------------


def _tensor(draw: Drawing, *shape: int) -> str:
    fits = draw.fitting(lambda y: tuple(y.shape) == shape and y.dtype.name == "float32")
    return draw.choice(fits) if fits and draw.chance(0.5) else draw.fresh(shape, "float32")


def _sequential(draw: Drawing) -> tuple[str, tuple[str, ...]]:
    sizes = [draw.integer(1, 5) for _ in range(draw.integer(2, 4))]
    middle = ["nn.ReLU()", "nn.Tanh()", "nn.GELU()", "Tensor.square"]
    found = []
    for one, two in itertools.pairwise(sizes):
        found.append(f'nn.Linear({one}, {two}, dtype="float32")')
        if draw.chance(0.3):
            found.append(f'nn.BatchNorm1d({two}, dtype="float32")')
        if draw.chance(0.3):
            found.append(f'nn.LayerNorm({two}, dtype="float32")')
        found.append(draw.choice(middle))
    return f"nn.Sequential({', '.join(found)})", (_tensor(draw, draw.integer(1, 5), sizes[0]),)


def _stack(name: str, layer: str, inputs: int) -> Any:
    def call(draw: Drawing) -> tuple[str, tuple[str, ...]]:
        heads = draw.integer(1, 2)
        width = heads * draw.integer(1, 3)
        first = draw.choice(["True", "False"])
        sizes = f"{width}, {heads}, {draw.integer(1, 4)}"
        more = f'norm_first={first}, dropout=0.0, dtype="float32"'
        inner = f"nn.{layer}({sizes}, {more})"
        batch = draw.integer(1, 3)
        tensors = [_tensor(draw, draw.integer(1, 4), batch, width) for _ in range(inputs)]
        return f"nn.{name}({inner}, {draw.integer(1, 2)})", tuple(tensors)

    return call


def _unpool(axes: int) -> Any:
    def call(draw: Drawing) -> tuple[str, tuple[str, ...]]:
        size = draw.integer(1, 3)
        x = _tensor(draw, 1, draw.integer(1, 2), *(draw.integer(1, 2) * size for _ in range(axes)))
        pooled = f"{x}.max_pool{axes}d({size}, return_indices=True)"
        return f"nn.MaxUnpool{axes}d({size})", (f"*{pooled}",)

    return call


def _ctc(draw: Drawing) -> tuple[str, tuple[str, ...]]:
    times, batch, classes = draw.integer(3, 5), draw.integer(1, 2), draw.integer(2, 4)
    targets = draw.fresh((batch, 2), "int64", 1, classes)
    x = _tensor(draw, times, batch, classes)
    lengths = f"[{times}] * {batch}, [{draw.integer(1, 2)}] * {batch}"
    return "nn.CTCLoss(zero_infinity=True)", (f"{x}.log_softmax(2), {targets}, {lengths}",)


def _fold(draw: Drawing) -> tuple[str, tuple[str, ...]]:
    size, kernel = draw.integer(2, 5), draw.integer(1, 2)
    x = _tensor(draw, 1, draw.integer(1, 2) * kernel**2, (size - kernel + 1) ** 2)
    return f"nn.Fold({size}, {kernel})", (x,)


def _pixels(draw: Drawing) -> tuple[str, tuple[str, ...]]:
    r = draw.integer(1, 2)
    x = _tensor(draw, 1, draw.integer(1, 2) * r * r, draw.integer(1, 3), draw.integer(1, 3))
    return f"nn.PixelShuffle({r})", (x,)


def _unpixels(draw: Drawing) -> tuple[str, tuple[str, ...]]:
    r = draw.integer(1, 2)
    x = _tensor(draw, 1, draw.integer(1, 2), draw.integer(1, 3) * r, draw.integer(1, 3) * r)
    return f"nn.PixelUnshuffle({r})", (x,)


RECIPES = {
    "Sequential": _sequential,
    "TransformerEncoder": _stack("TransformerEncoder", "TransformerEncoderLayer", 1),
    "TransformerDecoder": _stack("TransformerDecoder", "TransformerDecoderLayer", 2),
    **{f"MaxUnpool{axes}d": _unpool(axes) for axes in (1, 2, 3)},
    "CTCLoss": _ctc,
    "Fold": _fold,
    "PixelShuffle": _pixels,
    "PixelUnshuffle": _unpixels,
}
