"""Functions under PyTorch's names, argument names and order: `F.relu(x)` is `x.relu()`.

A table has the signature of each, and the method of `Tensor` that computes it. Settings that the
method lacks are refused where they ask for something else than what it does.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

from ferrule.base.helpers import no_attribute
from ferrule.tensor import Tensor

_LOSS = "size_average=None, reduce=None, reduction='mean'"
_POOL = "kernel_size, stride=None, padding=0"
_AVG = f"{_POOL}, ceil_mode=False, count_include_pad=True"
_MAX = f"{_POOL}, dilation=1, ceil_mode=False, return_indices=False"
_CONV = "weight, bias=None, stride=1, padding=0, dilation=1, groups=1"
_TURNED = "weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1"
_DROP = "p=0.5, training=True, inplace=False"
_AXIS = "dim, _stacklevel=3, dtype=None"
_NORM = "running_mean=None, running_var=None, weight=None, bias=None"

# The parameters after the first, which is the tensor whose method is called.
_TABLE: dict[str, str] = {
    # Activations
    **dict.fromkeys(
        ("relu", "relu6", "selu", "silu", "mish", "hardswish", "hardsigmoid"), "inplace=False"
    ),
    **dict.fromkeys(("sigmoid", "tanh", "logsigmoid", "softsign", "tanhshrink", "relu_"), ""),
    **dict.fromkeys(("elu", "celu"), "alpha=1.0, inplace=False"),
    "elu_": "alpha=1.0",
    "leaky_relu": "negative_slope=0.01, inplace=False",
    "leaky_relu_": "negative_slope=0.01",
    "hardtanh": "min_val=-1.0, max_val=1.0, inplace=False",
    "hardtanh_": "min_val=-1.0, max_val=1.0",
    "threshold": "threshold, value, inplace=False",
    "rrelu": "lower=1/8, upper=1/3, training=False, inplace=False",
    "prelu": "weight",
    "gelu": "approximate='none'",
    "glu": "dim=-1",
    "softplus": "beta=1.0, threshold=20.0",
    **dict.fromkeys(("hardshrink", "softshrink"), "lambd=0.5"),
    **dict.fromkeys(("softmax", "softmin", "log_softmax"), _AXIS),
    "gumbel_softmax": "tau=1, hard=False, eps=1e-10, dim=-1",
    # Products
    "linear": "weight, bias=None",
    "bilinear": "input2, weight, bias=None",
    "scaled_dot_product_attention": (
        "key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False"
    ),
    **{f"conv{n}d": _CONV for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _TURNED for n in (1, 2, 3)},
    # Windows, and shapes
    "avg_pool1d": _AVG,
    **{f"avg_pool{n}d": f"{_AVG}, divisor_override=None" for n in (2, 3)},
    **{f"max_pool{n}d": _MAX for n in (1, 2, 3)},
    **{f"lp_pool{n}d": "norm_type, kernel_size, stride=None, ceil_mode=False" for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": "output_size" for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": "output_size, return_indices=False" for n in (1, 2, 3)},
    **{f"max_unpool{n}d": f"indices, {_POOL}, output_size=None" for n in (1, 2, 3)},
    "fold": "output_size, kernel_size, dilation=1, padding=0, stride=1",
    "unfold": "kernel_size, dilation=1, padding=0, stride=1",
    "pad": "pad, mode='constant', value=None",
    "interpolate": (
        "size=None, scale_factor=None, mode='nearest', align_corners=None, "
        "recompute_scale_factor=None, antialias=False"
    ),
    "upsample": "size=None, scale_factor=None, mode='nearest', align_corners=None",
    **dict.fromkeys(("upsample_nearest", "upsample_bilinear"), "size=None, scale_factor=None"),
    "affine_grid": "size, align_corners=None",
    "grid_sample": "grid, mode='bilinear', padding_mode='zeros', align_corners=None",
    "pixel_shuffle": "upscale_factor",
    "pixel_unshuffle": "downscale_factor",
    "channel_shuffle": "groups",
    # Dropout
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"), _DROP),
    # Normalisations
    "batch_norm": (
        "running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5"
    ),
    "instance_norm": f"{_NORM}, use_input_stats=True, momentum=0.1, eps=1e-5",
    "layer_norm": "normalized_shape, weight=None, bias=None, eps=1e-5",
    "rms_norm": "normalized_shape, weight=None, eps=None",
    "group_norm": "num_groups, weight=None, bias=None, eps=1e-5",
    "local_response_norm": "size, alpha=1e-4, beta=0.75, k=1.0",
    "normalize": "p=2.0, dim=1, eps=1e-12, out=None",
    # Tables
    "one_hot": "num_classes=-1",
    "embedding": (
        "weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, "
        "sparse=False"
    ),
    "embedding_bag": (
        "weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode='mean', "
        "sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=None"
    ),
    # Losses
    **dict.fromkeys(("mse_loss", "l1_loss"), f"target, {_LOSS}, weight=None"),
    **dict.fromkeys(("soft_margin_loss", "multilabel_margin_loss"), f"target, {_LOSS}"),
    "smooth_l1_loss": f"target, {_LOSS}, beta=1.0",
    "huber_loss": "target, reduction='mean', delta=1.0, weight=None",
    "cross_entropy": (
        "target, weight=None, size_average=None, ignore_index=-100, reduce=None, "
        "reduction='mean', label_smoothing=0.0"
    ),
    "nll_loss": (
        "target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction='mean'"
    ),
    **dict.fromkeys(
        ("binary_cross_entropy", "multilabel_soft_margin_loss"), f"target, weight=None, {_LOSS}"
    ),
    "binary_cross_entropy_with_logits": f"target, weight=None, {_LOSS}, pos_weight=None",
    "kl_div": f"target, {_LOSS}, log_target=False",
    "poisson_nll_loss": (
        "target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, "
        "reduction='mean'"
    ),
    "gaussian_nll_loss": "target, var, full=False, eps=1e-6, reduction='mean'",
    "hinge_embedding_loss": f"target, margin=1.0, {_LOSS}",
    "cosine_embedding_loss": f"input2, target, margin=0.0, {_LOSS}",
    "margin_ranking_loss": f"input2, target, margin=0.0, {_LOSS}",
    "multi_margin_loss": f"target, p=1, margin=1.0, weight=None, {_LOSS}",
    "triplet_margin_loss": (f"positive, negative, margin=1.0, p=2, eps=1e-6, swap=False, {_LOSS}"),
    "triplet_margin_with_distance_loss": (
        "positive, negative, *, distance_function=None, margin=1.0, swap=False, reduction='mean'"
    ),
    "ctc_loss": (
        "targets, input_lengths, target_lengths, blank=0, reduction='mean', zero_infinity=False"
    ),
    # Distances
    "cosine_similarity": "x2, dim=1, eps=1e-8",
    "pairwise_distance": "x2, p=2.0, eps=1e-6, keepdim=False",
    "pdist": "p=2.0",
}

# The name of the first parameter, where it is not `input`.
_FIRST = {
    "affine_grid": "theta",
    "cosine_similarity": "x1",
    "ctc_loss": "log_probs",
    "gumbel_softmax": "logits",
    "one_hot": "tensor",
    "pairwise_distance": "x1",
    "scaled_dot_product_attention": "query",
    **dict.fromkeys(("bilinear", "cosine_embedding_loss", "margin_ranking_loss"), "input1"),
    **dict.fromkeys(("triplet_margin_loss", "triplet_margin_with_distance_loss"), "anchor"),
}

# Names that methods have for parameters of PyTorch.
_RENAMED = {
    "dim": "axis",
    "input2": "other",
    "negative_slope": "neg_slope",
    "pad": "padding",
    "x2": "other",
}
_IGNORED = frozenset(["_stacklevel", "eps", "inplace", "sparse"])
"""What may be given though a method lacks it: results are the same."""


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.linear(weight.transpose(), bias)  # whose weight is (in_features, out_features)


# What computes a function, if it is no method of the same name.
_METHODS: dict[str, Callable[..., Any]] = {"linear": _linear, "unfold": Tensor.im2col}

__all__ = sorted(_TABLE)


def _signature(name: str) -> inspect.Signature:
    """The signature of a function, from its row."""
    kind = inspect.Parameter
    definition = ast.parse(f"def f({_FIRST.get(name, 'input')}, {_TABLE[name]}): ...").body[0]
    assert isinstance(definition, ast.FunctionDef)
    found = definition.args
    missing = len(found.args) - len(found.defaults)
    parameters = [
        kind(
            argument.arg,
            kind.POSITIONAL_OR_KEYWORD,
            default=_number(found.defaults[place - missing]) if place >= missing else kind.empty,
        )
        for place, argument in enumerate(found.args)
    ]
    parameters += [
        kind(argument.arg, kind.KEYWORD_ONLY, default=_number(default))
        for argument, default in zip(found.kwonlyargs, found.kw_defaults, strict=True)
    ]
    return inspect.Signature(parameters)


def _number(default: Any) -> Any:
    """A literal, or a quotient of two."""
    if isinstance(default, ast.BinOp):
        return ast.literal_eval(default.left) / ast.literal_eval(default.right)
    return ast.literal_eval(default)


def _made(name: str) -> Callable[..., Any]:
    """The function of a row."""
    signature = _signature(name)
    method = _METHODS.get(name) or getattr(Tensor, name)
    known = inspect.signature(method).parameters
    own: dict[str, str | None] = {}
    for parameter in list(signature.parameters)[1:]:
        renamed = parameter if parameter in known else _RENAMED.get(parameter)
        own[parameter] = renamed if renamed in known else None
    missing = inspect.Parameter.empty
    defaults = {key: signature.parameters[key].default for key in own}
    # None stands for the method's own default, as where it is left out.
    always = {
        mine: defaults[key]
        for key, mine in own.items()
        if mine
        and defaults[key] is not missing
        and defaults[key] not in (None, known[mine].default)
    }
    kinds = inspect.Parameter
    positional = [
        key for key in own if signature.parameters[key].kind is kinds.POSITIONAL_OR_KEYWORD
    ]
    required = [key for key in own if defaults[key] is missing]

    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and not required:
            return method(args[0], **always)
        # As `signature.bind`, which takes ten times as long; a misfit is left to it.
        given = dict(zip(positional, args[1:], strict=False))
        fits = args and len(args) <= len(positional) + 1 and not given.keys() & kwargs.keys()
        given.update(kwargs)
        if not (fits and given.keys() <= own.keys() and all(key in given for key in required)):
            bound = signature.bind(*args, **kwargs).arguments
            given = dict(list(bound.items())[1:])
            args = tuple(bound.values())
        settings = dict(always)
        for key, value in given.items():
            mine = own[key]
            if mine is not None:
                if value is not None:
                    settings[mine] = value
            elif key not in _IGNORED and value != defaults[key]:
                raise TypeError(
                    f"{name}: {key}={value!r} is not supported; leave it out"
                    + (", and give a reduction" if key in ("reduce", "size_average") else "")
                )
        return method(args[0], **settings)

    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__doc__ = f"`Tensor.{name}` of the first argument, with PyTorch's parameters."
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


# What newcomers look for, and what does it here.
_INSTEAD = {
    "multi_head_attention_forward": "nn.MultiheadAttention computes it",
}


def __getattr__(name: str) -> Any:
    if name in _TABLE:
        globals()[name] = _made(name)
        return globals()[name]
    raise no_attribute(__name__, name, __all__, _INSTEAD)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
