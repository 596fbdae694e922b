"""Mistakes that users make, over all themes: what is said names the function, and the way out.

Each case is a line as users write it. Whatever the error, the last line of theirs in the traceback
is the one to change.
"""

import re
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ferrule
from ferrule import Context, Tensor, TinyJit, Variable, nn
from ferrule.errors import (
    ConfigError,
    DeviceMismatchError,
    DTypeError,
    GradientError,
    JitError,
    LinalgError,
    OptimizerError,
    ShapeError,
    StateError,
    UnknownDeviceError,
    VmapError,
)
from ferrule.nn import _INSTEAD as nn_hints
from ferrule.nn import optim, state, utils
from ferrule.tensor.hints import _INSTEAD as tensor_hints

HERE = Path(__file__)


def ones(*shape: int) -> Tensor:
    return Tensor.ones(*shape)


def image() -> Tensor:
    return ones(1, 3, 8, 8)


def leaf(*shape: int) -> Tensor:
    return Tensor.ones(*shape, requires_grad=True)


Case = tuple[Callable[[], Any], type[Exception], str]
wrong: Any = object()  # what no type checker would let through

CASES: dict[str, list[Case]] = {
    "creation": [
        (lambda: Tensor([[1, 2], [3]]), ShapeError, "the list is ragged: data[0] has shape (2,)"),
        (lambda: Tensor("abc"), TypeError, "[Tensor] cannot be made of str; pass a number"),
        (lambda: Tensor([1, None]), TypeError, "a list may hold numbers only, found NoneType"),
        (lambda: Tensor.zeros(2.5, 3), TypeError, "[zeros] a size is a whole number, not 2.5"),
        (lambda: Tensor.eye(wrong), TypeError, "[eye] n is a whole number, not <object"),
        (lambda: Tensor.eye(-1), ShapeError, "[eye] the shape (-1, -1) has a negative size"),
        (lambda: Tensor.arange("3"), TypeError, "[arange] start, stop and step are numbers"),
        (lambda: Tensor.arange(1, 9, 0), ValueError, "[arange] step is 0; use Tensor.full"),
        (lambda: Tensor.full((2,), wrong), TypeError, "[full] the value is a number, not"),
        (lambda: Tensor.uniform(2, low=3, high=1), ValueError, "[uniform] low 3 is above high 1"),
        (lambda: Tensor.normal(2, std=-1), ValueError, "[normal] the standard deviation std"),
        (
            lambda: Tensor.randperm(-1),
            ShapeError,
            "[randperm] the number of elements is at least 0, not -1",
        ),
        (lambda: Tensor.randn(2, dtype="int32"), DTypeError, "[randn] gives floats, not dtypes."),
        (
            lambda: Tensor.frombuffer(b"abc", "int16"),
            ValueError,
            "[frombuffer] buffer size must be a",
        ),
        (lambda: Tensor([1], dtype="flot32"), DTypeError, "'flot32'; did you mean float32"),
    ],
    "element-wise": [
        (lambda: ones(2) + ones(3), ShapeError, "[add] the shapes (2,) and (3,) do not broadcast"),
        (lambda: ones(2) * wrong, TypeError, "[mul] object is no operand; use a tensor"),
        (lambda: ones(2) | ones(2), DTypeError, "[|] is defined for integers and bools, not"),
        (lambda: ones(2).lerp(ones(3), 0.5), ShapeError, "[lerp] the shapes (2,) and (3,)"),
        (lambda: (ones(2) > 0).where(1), TypeError, "[where] give what to take where it holds"),
        (
            lambda: ones(2, 3).masked_fill(Tensor([True, False]), 0),
            ShapeError,
            "[masked_fill] the shapes (2,) and (2, 3) do not broadcast",
        ),
        (lambda: ones(2).cast("foo"), DTypeError, "no dtype is called 'foo'; did you mean"),
        (lambda: ones(2).gcd(3), DTypeError, "[gcd] is defined for integers, not dtypes.float32"),
    ],
    "reductions": [
        (lambda: ones(2, 3).sum(2), ShapeError, "[sum] axis 2 is out of range for shape (2, 3)"),
        (lambda: ones(2, 2).rot90(dims=7), TypeError, "[rot90] dims takes several whole numbers"),
        (
            lambda: ones(4).split_with_sizes(2),
            TypeError,
            "several whole numbers, not 2 alone",
        ),
        (lambda: ones(2).sum(wrong), TypeError, "[sum] axis is a whole number, not <object"),
        (lambda: ones(2).mean(0.5), TypeError, "[mean] axis is a whole number, not 0.5"),
        (lambda: ones(2).softmax("a"), TypeError, "[softmax] axis is a whole number, not 'a'"),
        (lambda: ones(0).max(), ShapeError, "[max] axis 0 of shape (0,) has no elements"),
        (lambda: ones(2).quantile("a"), TypeError, "[quantile] q is a number, or several, not"),
        (lambda: ones(2).quantile(2), ValueError, "[quantile] q is from 0 to 1, not 2"),
        (lambda: ones(2).topk(3), ShapeError, "[topk] k is from 0 to 2, the size of axis -1"),
    ],
    "movement": [
        (lambda: ones(2, 3).reshape(4), ShapeError, "[reshape] (4,) does not fit a tensor of"),
        (lambda: ones(2).reshape("a"), TypeError, "[reshape] a size is a whole number, not 'a'"),
        (lambda: ones(2).tile("a"), TypeError, "[repeat] a count is a whole number, not 'a'"),
        (lambda: ones(2, 3).diagonal(0, 1, 1), ShapeError, "[diagonal] the axes 1 and 1 are"),
        (lambda: ones(2).diagonal(), ShapeError, "shape (2,) has less than two axes; give it two"),
        (lambda: ones(2).cat(ones(1, 2)), ShapeError, "[cat] the shapes (2,) and (1, 2) differ"),
        (lambda: ones(4).rearrange("a b -> b a"), ShapeError, "the left side has 2 axes, and"),
    ],
    "indexing": [
        (lambda: ones(2)[3], IndexError, "[index] 3 is out of range for axis 0 of shape (2,)"),
        (lambda: ones(2)[ones(1)], DTypeError, "[index] positions are integers, not dtypes.float"),
        (lambda: ones(2).gather(0, ones(2)), DTypeError, "[gather] positions are integers, not"),
        (lambda: ones(2).scatter(0, ones(1), 1.0), DTypeError, "[scatter] positions are integers"),
        (lambda: ones(2).nonzero_static(size=-1), ShapeError, "[nonzero_static] the size is at"),
        (lambda: ones(2).index_fill(0, [5], 1), IndexError, "[index] 5 is out of range for axis"),
        (lambda: Tensor([1, -1]).bincount(), ValueError, "[bincount] counts numbers from 0 on"),
    ],
    "linear algebra": [
        (lambda: ones(2, 3) @ ones(2, 3), ShapeError, "[matmul] (2, 3) @ (2, 3): the last axis of"),
        (lambda: ones(2, 3).inv(), ShapeError, "[inv] takes square matrices, not shape (2, 3)"),
        (lambda: ones(2, 2).solve(ones(3)), ShapeError, "[solve] matrices of shape (2, 2) and"),
        (lambda: Tensor.einsum("ij->k", ones(2, 3)), ShapeError, "the result 'k' needs letters"),
        (
            lambda: ones(3).cross(ones(2)),
            ShapeError,
            "[cross] the shapes (3,) and (2,) do not broadcast",
        ),
        (
            lambda: ones(2, 3).cross(ones(2, 3), dim=0),
            ShapeError,
            "must have 3 elements; for plane",
        ),
    ],
    "neural": [
        (
            lambda: image().conv2d(ones(4, 3, 3, 3), bias=ones(5)),
            ShapeError,
            "[conv2d] a bias of shape (5,) must be one number for each of the 4 filters",
        ),
        (lambda: image().conv2d(ones(4, 2, 3, 3)), ShapeError, "[conv2d] 3 channels of an input"),
        (
            lambda: image().conv_transpose2d(ones(3, 4, 3, 3), output_padding=1),
            ShapeError,
            "[conv_transpose2d] output_padding (1, 1) must be below the stride (1, 1)",
        ),
        (lambda: image().max_pool2d(9), ShapeError, "[max_pool2d] a kernel of (9, 9) does not fit"),
        (lambda: image().lp_pool2d(0, 2), ValueError, "[lp_pool2d] norm_type 0 must be more than"),
        (
            lambda: ones(2, 3).batch_norm(ones(4), ones(4)),
            ShapeError,
            "[batch_norm] a weight, bias or statistic of shape (4,) does not fit (1, 3); it is",
        ),
        (lambda: ones(2).dropout(2), ValueError, "[dropout] the probability is between 0 and 1"),
        (lambda: ones(2).embedding(ones(2, 3)), DTypeError, "[embedding] positions are integers"),
        (
            lambda: Tensor([0]).embedding_bag(ones(2, 3)),
            ShapeError,
            "[embedding_bag] positions of shape (1,): offsets say where the bags in a vector begin",
        ),
        (
            lambda: Tensor([[0]]).embedding_bag(ones(2, 3), mode="min"),
            ValueError,
            "[embedding_bag] mode is one of sum, mean, max, not 'min'",
        ),
        (
            lambda: Tensor([[0]]).embedding_bag(ones(2, 3), per_sample_weights=ones(1, 1)),
            ValueError,
            "[embedding_bag] per_sample_weights are for mode 'sum', not 'mean'",
        ),
        (
            lambda: Tensor([0]).embedding_bag(
                ones(2, 3), Tensor([0]), mode="sum", per_sample_weights=ones(2)
            ),
            ShapeError,
            "per_sample_weights of shape (2,) for positions of shape (1,); give one for each",
        ),
        (
            lambda: Tensor([0]).embedding_bag(ones(2, 3), Tensor([[0]])),
            ShapeError,
            "[embedding_bag] offsets are a vector, not of shape (1, 1)",
        ),
        (
            lambda: Tensor([[[0]]]).embedding_bag(ones(2, 3)),
            ShapeError,
            "positions of shape (1, 1, 1) are neither (bags, positions) nor a vector",
        ),
    ],
    "losses": [
        (lambda: ones(2, 3).mse_loss(ones(4)), ShapeError, "[mse_loss] the shapes (2, 3) and (4,)"),
        (lambda: ones(2, 3).l1(ones(4)), ShapeError, "[l1_loss] the shapes (2, 3) and (4,) do not"),
        (lambda: ones(2).smooth_l1(ones(3)), ShapeError, "[smooth_l1_loss] the shapes (2,) and"),
        (lambda: ones(2).huber(ones(3)), ShapeError, "[huber_loss] the shapes (2,) and (3,) do"),
        (lambda: ones(2).kl_div(ones(3)), ShapeError, "[kl_div] the shapes (2,) and (3,) do not"),
        (lambda: ones(2, 3).cross_entropy(ones(2)), DTypeError, "class indices are integers, not"),
        (
            lambda: ones(1, 2).cross_entropy(Tensor([0]), label_smoothing=2),
            ValueError,
            "[cross_entropy] label_smoothing is from 0 to 1, not 2",
        ),
        (
            lambda: ones(1, 2).cross_entropy(Tensor([0], device="NUMPY")),
            DeviceMismatchError,
            "[cross_entropy] one tensor is on NUMPY, the other on CPU; move one of them",
        ),
        (
            lambda: ones(2).mse(ones(2), "avg"),
            ValueError,
            "reduction 'avg' is not one of 'mean', 'sum'",
        ),
    ],
    "gradients": [
        (lambda: ones(2).sum().backward(), GradientError, "does not depend on one that requires a"),
        (lambda: (leaf(2) * 2).backward(), ShapeError, "shape (2,) is not one element; reduce it"),
        (lambda: Tensor([1], requires_grad=True), DTypeError, "only floats have gradients, not"),
        (lambda: leaf(2).assign(leaf(2) * 2), GradientError, "do it under Tensor.no_grad()"),
    ],
    "nn": [
        (lambda: nn.Linear(3, 4)(ones(2, 5)), ShapeError, "(2, 5) @ (3, 4): the last axis of"),
        (lambda: nn.Conv2d(3, 4, 3)(ones(1, 4, 8, 8)), ShapeError, "[conv2d] 4 channels of an"),
        (lambda: nn.LayerNorm(3)(ones(2, 4)), ShapeError, "LayerNorm: expected (..., 3), got"),
        (lambda: nn.EmbeddingBag(3, 4, padding_idx=3), ShapeError, "EmbeddingBag: padding_idx 3"),
        (lambda: nn.MultiheadAttention(5, 2), ShapeError, "embed_dim 5 does not divide into 2"),
        (lambda: nn.RNN(3, 4, nonlinearity="x"), ValueError, "RNN: nonlinearity 'x' is not one"),
        (
            lambda: nn.Linear("a", 2),
            TypeError,
            "Linear: in_features is a whole number, not 'a'",
        ),
        (lambda: nn.Linear(-1, 2), ShapeError, "Linear: in_features is -1; it must be at least 0"),
        (lambda: nn.Conv2d(3.0, 2, 3), TypeError, "Conv2d: in_channels is a whole number, not 3.0"),
        (lambda: nn.Embedding(3, -1), ShapeError, "Embedding: embedding_dim is -1; it must be at"),
        (lambda: nn.Sequential(3), TypeError, "Sequential: layer 0 is int, which cannot be called"),
        (lambda: nn.Sequential(nn.ReLU), TypeError, "layer 0 is the class ReLU; call it: ReLU()"),
        (lambda: nn.Dropout("x"), TypeError, "Dropout: p is 'x'; it must be a number"),
        (lambda: nn.Dropout2d(2), ValueError, "Dropout2d: p is 2; it must be from 0 to 1"),
        (
            lambda: nn.LayerNorm((3, "a")),
            TypeError,
            "LayerNorm: normalized_shape is a whole number, not 'a'",
        ),
        (
            lambda: nn.LayerNorm("a"),
            TypeError,
            "normalized_shape is 'a'; it must be a whole number,",
        ),
        (
            lambda: nn.RMSNorm(-1),
            ShapeError,
            "RMSNorm: normalized_shape is -1; it must be at least",
        ),
        (
            lambda: nn.RMSNorm(2.5),
            TypeError,
            "RMSNorm: normalized_shape is 2.5; it must be a whole",
        ),
        (
            lambda: nn.BatchNorm2d("a"),
            TypeError,
            "BatchNorm: num_features is a whole number, not 'a'",
        ),
        (lambda: nn.BatchNorm2d(3, eps="x"), TypeError, "BatchNorm: eps is 'x'; it must be a numb"),
        (
            lambda: nn.BatchNorm2d(3, momentum="x"),
            TypeError,
            "momentum is 'x'; it must be a number",
        ),
        (
            lambda: nn.GroupNorm(0, 4),
            ShapeError,
            "GroupNorm: num_groups is 0; it must be at least 1",
        ),
        (
            lambda: nn.GroupNorm(2, "a"),
            TypeError,
            "GroupNorm: num_channels is a whole number, not 'a'",
        ),
        (
            lambda: nn.Conv2d(3, 4, 3, stride=0),
            ShapeError,
            "stride and dilation is 0; it must be at",
        ),
        (
            lambda: nn.Conv2d(3, 4, 3, groups=0),
            ShapeError,
            "Conv2d: groups is 0; it must be at least",
        ),
        (lambda: nn.LSTM("a", 4), TypeError, "LSTM: input_size is a whole number, not 'a'"),
        (lambda: nn.GRU(3, 4, dropout=2), ValueError, "GRU: dropout is 2; it must be from 0 to 1"),
        (lambda: nn.GRUCell(3, "a"), TypeError, "GRUCell: hidden_size is a whole number, not 'a'"),
        (lambda: nn.MultiheadAttention(4, 0), ShapeError, "num_heads is 0; it must be at least 1"),
        (
            lambda: nn.MultiheadAttention(4, 2, "x"),
            TypeError,
            "dropout is 'x'; it must be a number",
        ),
        (lambda: nn.TransformerEncoder(3, 2), TypeError, "the layer to copy is 3, and no layer"),
        (lambda: nn.MaxPool2d("a"), TypeError, "MaxPool2d: kernel_size is a whole number, not 'a'"),
        (
            lambda: nn.LeakyReLU("x"),
            TypeError,
            "LeakyReLU: negative_slope is 'x'; it must be a numb",
        ),
        (lambda: nn.Softmax("a"), TypeError, "Softmax: dim is a whole number, not 'a'"),
        (
            lambda: nn.CrossEntropyLoss(ignore_index="a"),
            TypeError,
            "ignore_index is a whole number, not 'a'",
        ),
        (lambda: nn.ModuleList(3), TypeError, "ModuleList: int is no list of layers; put it into"),
        (
            lambda: nn.ModuleDict(3),
            TypeError,
            "ModuleDict: int is no dict of layers; give it names",
        ),
        (lambda: nn.ReLU(ones(2)), TypeError, "ReLU: inplace is a tensor; settings make the layer"),
        (
            lambda: nn.CrossEntropyLoss(ones(2, 3), Tensor([0, 1])),
            TypeError,
            "ignore_index is a tensor; settings make the layer, which is then called on tensors: "
            "CrossEntropyLoss()(...)",
        ),
        (lambda: nn.init.zeros_(nn.ReLU()), TypeError, "tensor has to be a tensor, not ReLU"),
        (lambda: nn.init.trunc_normal_(ones(2), std=0), ValueError, "std is 0; it must be above 0"),
        (lambda: nn.MaxPool2d(), TypeError, "missing a required argument: 'kernel_size'"),
    ],
    "optim": [
        (lambda: optim.SGD(wrong), OptimizerError, "SGD: object is no collection of parameters"),
        (lambda: optim.SGD([]), OptimizerError, "SGD: there are no parameters to optimise"),
        (lambda: optim.SGD([wrong]), OptimizerError, "parameter 0 is object, not a Tensor; pass"),
        (lambda: optim.SGD([ones(2)], lr=wrong), OptimizerError, "it must be a number"),
        (lambda: optim.SGD([ones(2)], lr=-1), OptimizerError, "SGD: lr is -1; it must be at least"),
        (lambda: optim.Adam([ones(2)], betas=wrong), OptimizerError, "it must be two numbers"),
        (lambda: optim.Adam([{"lr": 1.0}]), OptimizerError, 'needs them, as "params"'),
        (lambda: optim.Adam([ones(2)]).step(), OptimizerError, "has no gradient; call loss.back"),
        (lambda: optim.Adam([ones(2)]).load_state_dict({}), OptimizerError, 'with "param_groups"'),
        (
            lambda: optim.lr_scheduler.StepLR(optim.SGD([ones(2)]), wrong),
            OptimizerError,
            "it must be a whole number above 0",
        ),
        (
            lambda: optim.lr_scheduler.StepLR([], 3),
            OptimizerError,
            "list is no Optimizer; pass one",
        ),
        (
            lambda: optim.lr_scheduler.StepLR(optim.SGD([ones(2)]), 3, "x"),
            OptimizerError,
            "StepLR: gamma is 'x'; it must be a number",
        ),
        (
            lambda: optim.lr_scheduler.MultiStepLR(optim.SGD([ones(2)]), 3),
            OptimizerError,
            "MultiStepLR: milestones is 3; it must be a list of whole numbers",
        ),
        (
            lambda: optim.lr_scheduler.LambdaLR(optim.SGD([ones(2)]), 3),
            OptimizerError,
            "LambdaLR: lr_lambda is 3; it must be a function of the number of steps",
        ),
        (
            lambda: optim.lr_scheduler.ChainedScheduler(3),
            OptimizerError,
            "ChainedScheduler: int is no list of schedules",
        ),
        (
            lambda: optim.lr_scheduler.ChainedScheduler([3]),
            OptimizerError,
            "ChainedScheduler: int is no schedule",
        ),
        (
            lambda: optim.lr_scheduler.ReduceLROnPlateau(optim.SGD([ones(2)])).step("x"),
            OptimizerError,
            "ReduceLROnPlateau: the measure is 'x'; it must be a number",
        ),
        (
            lambda: utils.clip_grad_norm_([wrong], 1.0),
            TypeError,
            "object is no tensor; pass nn.state",
        ),
        (
            lambda: utils.clip_grad_value_([1], 1.0),
            TypeError,
            "clip_grad_value_: int is no",
        ),
        (lambda: utils.clip_grad_norm_(wrong, 1.0), TypeError, "object is no list of tensors; see"),
        (lambda: utils.clip_grad_norm_([], wrong), ValueError, "max_norm is <object"),
        (lambda: utils.clip_grad_norm_([], 1.0, 0), ValueError, "norm_type is 0; it must be a num"),
        (lambda: utils.clip_grad_value_([], -1), ValueError, "clip_value is -1; it must be a num"),
        (lambda: utils.parameters_to_vector([]), ValueError, "there are no parameters"),
        (
            lambda: utils.vector_to_parameters(ones(3), [ones(2)]),
            ShapeError,
            "vector_to_parameters: (3,) is not the shape of all parameters in one vector, (2,)",
        ),
        (lambda: optim.SGD(ones(2)), OptimizerError, "a Tensor is no collection of parameters; pa"),
        (lambda: optim.SGD({"a": ones(2)}), OptimizerError, "SGD: a dict is no collection of para"),
        (lambda: optim.SGD([{"params": 3}]), OptimizerError, "SGD: int is no collection of param"),
        (lambda: optim.SGD(iter(())), OptimizerError, "the iterator of them is used up: pass a"),
        (
            lambda: optim.SGD([{"params": [ones(2)]}, ones(2)]),
            OptimizerError,
            "SGD: entry 1 is Tensor among groups of parameters; put it into a group",
        ),
        (
            lambda: optim.SGD([ones(2)]).add_param_group([ones(2)]),
            OptimizerError,
            "SGD: a group of parameters is a dict, not list; pass",
        ),
        (lambda: optim.SGD([(ones(2), ones(2))]), OptimizerError, "parameter 0 is tuple, not a"),
        (
            lambda: optim.SGD([ones(2)], momentum=0.9, dampening="x"),
            OptimizerError,
            "SGD: dampening is 'x'; it must be a number",
        ),
        (
            lambda: optim.Muon([ones(2, 2)], ns_steps=1.5),
            OptimizerError,
            "Muon: ns_steps is 1.5; it must be a whole number of at least 1",
        ),
        (
            lambda: optim.Muon([ones(2, 2)], ns_coefficients=3),
            OptimizerError,
            "Muon: ns_coefficients is 3; it must be three numbers",
        ),
        (
            lambda: optim.Rprop([ones(2)], etas=(1.2, 0.5)),
            OptimizerError,
            "Rprop: etas is (1.2, 0.5); it must be 0 < down < 1 < up",
        ),
        (
            lambda: optim.Adafactor([ones(2)], beta2_decay=1),
            OptimizerError,
            "Adafactor: beta2_decay is 1; it must be at most 0",
        ),
        (
            lambda: optim.SGD([ones(2)]).load_state_dict({"state": {}, "param_groups": 3}),
            OptimizerError,
            '"param_groups" is a list of dicts with "params", as state_dict() gives',
        ),
        (
            lambda: optim.Adam([ones(2)]).load_state_dict(
                {"state": [], "param_groups": [{"params": [0]}]}
            ),
            OptimizerError,
            '"state" is a dict of dicts, one for each parameter by its number',
        ),
    ],
    "state files": [
        (lambda: state.safe_load(HERE), StateError, "is not a whole safetensors file"),
        (lambda: state.torch_load(HERE), StateError, "is no PyTorch checkpoint"),
        (lambda: state.safe_save({"a": wrong}, "x"), StateError, "safe_save: a is object, not a"),
        (lambda: state.safe_save(nn.ReLU(), "x"), StateError, "safe_save: ReLU is no dict of tens"),
        (
            lambda: state.npz_save([ones(2)], "x"),
            StateError,
            "npz_save: list is no dict of tensors",
        ),
        (
            lambda: state.safe_save({1: ones(2)}, "x"),
            StateError,
            "safe_save: the name 1 is int, no",
        ),
        (
            lambda: state.safe_save({"a": ones(2)}, "x", {"a": 1}),
            StateError,
            "safe_save: the metadata 'a': 1 is not of two str",
        ),
        (
            lambda: state.safe_save({"a": ones(2)}, HERE / "x"),
            FileNotFoundError,
            "cannot be written: there is no folder",
        ),
        (
            lambda: state.safe_save({"a": ones(2)}, HERE.parent),
            IsADirectoryError,
            "cannot be written: it is a folder; add a name",
        ),
        (
            lambda: state.load_state_dict(nn.Linear(2, 3), {"weight": 3}),
            StateError,
            "load_state_dict: weight is int, not a tensor or an array",
        ),
        (lambda: state.load_state_dict(nn.ReLU(), wrong), StateError, "object is no dict of"),
        (
            lambda: state.load_state_dict(nn.Linear(2, 3), {}),
            StateError,
            "load_state_dict: missing weight, bias (strict=False loads the rest)",
        ),
    ],
    "transforms": [
        (lambda: ferrule.grad(ones(2)), TypeError, "[grad] takes a function, not Tensor; pass it"),
        (lambda: ferrule.value_and_grad(wrong), TypeError, "[value_and_grad] takes a function"),
        (lambda: ferrule.vjp(wrong, ones(2)), TypeError, "[vjp] takes a function, not object"),
        (lambda: ferrule.jacfwd(wrong), TypeError, "[jacfwd] takes a function, not object"),
        (lambda: ferrule.vmap(wrong), TypeError, "[vmap] takes a function, not object"),
        (lambda: ferrule.checkpoint(wrong), TypeError, "[checkpoint] takes a function, not"),
        (
            lambda: ferrule.grad(Tensor.sum, argnums=wrong)(ones(2)),
            TypeError,
            "[grad] argnums is a whole number, or several, not <object",
        ),
        (lambda: ferrule.grad(Tensor.exp)(ones(2)), ShapeError, "a gradient is that of one"),
        (lambda: ferrule.vmap(Tensor.item)(ones(2)), VmapError, "it returns tensors, or None"),
    ],
    "jit": [
        (lambda: TinyJit(wrong), TypeError, "[TinyJit] takes a function, not object"),
        (lambda: repeated(TinyJit(lambda x: x.sum().item())), JitError, "values are read inside"),
        (lambda: repeated(TinyJit(lambda x: 3)), JitError, "return tensors"),
        (lambda: Variable("n", 5, 1), ValueError, "Variable n: min 5 is above max 1; swap them"),
        (lambda: Variable("n", 1, 5).bind(9), ValueError, "cannot bind n to 9: it goes from 1 to"),
    ],
    "devices": [
        (lambda: ones(2).to("GPU7"), UnknownDeviceError, "no device is called 'GPU7'; the known"),
        (lambda: Tensor.zeros(2, device="TPU"), UnknownDeviceError, "no device is called 'TPU'"),
        (lambda: ones(2).to("float16"), UnknownDeviceError, "x.cast('float16') converts to that"),
        (lambda: ones(2).to(3), TypeError, "3 is no device; pass its name, such as 'CPU'"),
        (lambda: Context(DEBGU=1), ConfigError, "no setting 'DEBGU'; the settings are DEBUG"),
        (lambda: ferrule.set_num_threads(0), ConfigError, "expected an integer of at least 1"),
    ],
    "interop": [
        (lambda: ferrule.from_dlpack(wrong), TypeError, "object has no __dlpack__"),
        (lambda: Tensor.from_numpy([1]), TypeError, "[from_numpy] takes a NumPy array, not list"),
        (lambda: Tensor(np.zeros(2, complex)), DTypeError, "'complex128' has no ferrule dtype"),
        (lambda: Tensor(np.array(["a"])), DTypeError, "has no ferrule dtype; convert it first to"),
        (lambda: bool(ones(2)), TypeError, "[bool] the truth of a tensor of shape (2,) is not one"),
        (lambda: ones(2).bfloat16().data(), DTypeError, "has no memoryview format; cast it to"),
        (lambda: ones(2).astype(complex), DTypeError, "is no dtype; use one of ferrule's"),
    ],
}


def repeated(function: Callable[[Tensor], Any]) -> None:
    """Calls a captured function until it replays."""
    for _ in range(3):
        function(ones(2))


FLAT = [
    pytest.param(*case, id=f"{theme} {place}")
    for theme, cases in CASES.items()
    for place, case in enumerate(cases)
]


@pytest.mark.parametrize(("use", "kind", "text"), FLAT)
def test_what_is_said(use: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)) as raised:
        use()
    frames = traceback.extract_tb(raised.value.__traceback__)
    own = [frame for frame in frames if frame.filename == str(HERE)]
    first = use.__code__.co_firstlineno
    assert own[-1].lineno is not None
    assert own[-1].name == "repeated" or first <= own[-1].lineno <= first + 3


def test_there_are_a_hundred_of_them_and_every_theme_has_some() -> None:
    assert len(FLAT) >= 100
    assert all(len(cases) >= 4 for cases in CASES.values())


# What only shows when it runs


def note_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
def test_a_matrix_without_inverse_is_traced_to_the_line_that_asked(device: str) -> None:
    singular = Tensor.zeros(2, 2, device=device)
    line = test_a_matrix_without_inverse_is_traced_to_the_line_that_asked.__code__.co_firstlineno
    inverse = singular.inv()
    later = (inverse * 2).sum()
    with pytest.raises(LinalgError, match=r"\[inv\] singular matrix") as raised:
        later.item()
    assert f"{HERE}:{line + 4}" in note_of(raised.value)


def test_memory_that_is_not_there_names_the_values() -> None:
    big = Tensor.arange(1 << 20, device="NUMPY") * 2
    with Context(FERRULE_MEMORY_LIMIT=1 << 16), pytest.raises(MemoryError) as raised:
        big.realize()
    assert "The largest values to be stored: " in note_of(raised.value)
    assert "1048576" in note_of(raised.value)


def test_sizes_without_a_value_are_named() -> None:
    size = Variable("rows", 1, 8)
    with pytest.raises(ShapeError, match=r"rows has no value; use variable\.bind"):
        Tensor.zeros(8).shrink(((0, size),)).numpy()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("F", "from ferrule.nn import functional as F"),
        ("parameter", r"nn\.Parameter\(tensor\) is a tensor that collects gradients"),
        ("LazyLinear", r"nn\.Linear has its sizes given"),
        ("FractionalMaxPool2d", r"nn\.AdaptiveMaxPool2d have regions that are fixed"),
        ("Liner", r"did you mean Linear, Bilinear\?"),
        ("Zork", r"dir\(ferrule\.nn\) lists its names"),
    ],
)
def test_names_that_nn_does_not_have(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; .*{hint}"):
        getattr(nn, name)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("from ferrule import optim", "optimisers are in nn.optim: from ferrule.nn import optim"),
        ("import ferrule.optim as optim", "optimisers are in nn.optim"),
        ("from ferrule.optim import Adam", "optimisers are in nn.optim"),
        ("from ferrule.utils.data import DataLoader", "from ferrule.data import DataLoader"),
        ("from ferrule import Tensor, float32", r"dtypes\.float32"),
        ("from ferrule import zeros", r"functions are methods of tensors: Tensor\.zeros"),
        ("from ferrule import Module", "from ferrule.nn import Module"),
        ("from ferrule import functional", "from ferrule.nn import functional as F"),
        ("from ferrule.nn.parameter import Parameter", r"nn\.Parameter\(tensor\) is a tensor"),
        ("from ferrule.nn.optim import Adamw", "did you mean AdamW"),
        ("import ferrule.Tensor", "is no module; write: from ferrule import Tensor"),
    ],
)
def test_imports_of_what_is_not_there(line: str, hint: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=hint):
        exec(line)


def test_modules_of_others_that_are_not_there_are_pythons_business() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'ferrules'$"):
        import_module("ferrules")
    assert find_spec("ferrules") is None
    assert find_spec("ferrule.nn.optim.adam") is not None


@pytest.mark.parametrize(
    ("module", "name", "hint"),
    [
        (optim, "Adamw", r"did you mean AdamW, Adam, RAdam\?"),
        (optim, "SparseAdam", "gradients are dense: Adam"),
        (optim, "Zork", "it has ASGD, Adadelta, .*, SGD"),
        (optim.lr_scheduler, "WarmupLR", r"LinearLR\(optimizer, start_factor=0\.1"),
        (optim.lr_scheduler, "stepLR", "did you mean StepLR"),
        (utils, "weight_norm", r"nn\.utils\.parametrizations\.weight_norm\(layer\) does it"),
        (utils, "clip_grads_norm_", r"did you mean clip_grad_norm_\?"),
        (nn.init, "xavier_uniform", "did you mean xavier_uniform_"),
        (nn.init, "glorot_uniform_", "xavier_uniform_ is its other name"),
        (state, "save", r"safe_save\(get_state_dict\(model\), path\) writes a file"),
        (state, "get_state_dic", r"did you mean get_state_dict"),
    ],
)
def test_names_that_modules_of_nn_do_not_have(module: Any, name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"^module 'ferrule.nn.* has no .*'{name}'; .*{hint}"):
        getattr(module, name)
    assert not hasattr(module, "__path_of_nothing__")


@pytest.mark.parametrize("name", ["absolute_", "eq_", "lgamma_", "negative_", "true_divide_"])
def test_functions_that_are_not_there_in_place(name: str) -> None:
    x = Tensor([1.0, -2.0])
    hint = rf"x\.assign\(x\.{name[:-1]}\(\.\.\.\)\) does that in place"
    with pytest.raises(AttributeError, match=hint):
        getattr(x, name)
    assert hasattr(x, name[:-1])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("conj", "tensors are real"),
        ("layout", "tensors are dense"),
        ("is_cpu", r"x\.device"),
        ("as_strided", r"x\.unfold"),
        ("multi_head_attention_forward", r"nn\.MultiheadAttention"),
        ("no_such_thing_", "has no attribute 'no_such_thing_'$"),
    ],
)
def test_names_that_tensors_do_not_have(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=hint):
        getattr(Tensor([1.0]), name)


def test_what_hints_name_is_there() -> None:
    """Each `x.name` and `nn.Name` in a hint."""
    for hint in tensor_hints.values():
        for name in re.findall(r"\b[xq]\.(\w+)", hint):
            assert hasattr(Tensor, name), hint
    for hint in [*tensor_hints.values(), *nn_hints.values()]:
        for name in re.findall(r"\bnn\.(\w+)", hint):
            assert hasattr(nn, name), hint


def test_what_the_hints_of_nn_say_is_so() -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = Tensor([1.0])
            self.layers = {"first": nn.Linear(2, 1), "more": [Tensor([2.0])]}
            self.mean = Tensor([0.0], requires_grad=False)

    assert len(nn.state.get_parameters(Model())) == 5
    assert {"weight", "mean", "layers.more.0"} < nn.state.get_state_dict(Model()).keys()
    assert len(nn.optim.SGD(nn.state.get_parameters(Model())).params) == 4


ELSEWHERE = {
    "ferrule.tensor([1.0])": (TypeError, r"ferrule.Tensor\(data\) makes a tensor"),
    "ferrule.jit(abs)": (TypeError, r"ferrule.TinyJit\(function\) captures"),
    "ferrule.device('cpu')": (TypeError, r"a device is its name: .*device='CPU'"),
    "ferrule.zeros(3)": (AttributeError, r"functions are methods of tensors: Tensor\.zeros"),
    "ferrule.float32": (AttributeError, r"dtypes\.float32"),
    "ferrule.optim": (AttributeError, r"optimisers are in nn\.optim"),
    "ferrule.zeroes": (AttributeError, "its names are Context, .* and those of its submodules"),
    "leaf(2).data.sub_(1)": (AttributeError, r"x\.detach\(\), which shares the memory"),
    "leaf(2).data - 1": (TypeError, r"x\.detach\(\), which shares the memory"),
    "leaf(2).data[0]": (TypeError, r"x\.detach\(\), which shares the memory"),
    "setattr(leaf(2), 'data', ones(2))": (AttributeError, r"x\.assign\(y\) for x\.data = y"),
    "ones(2).unsqueeze_(0)": (AttributeError, r"keeps its shape; write x = x\.unsqueeze\(\.\.\.\)"),
    "ones(2).cuda()": (AttributeError, r"'Tensor' object has no attribute 'cuda'; x\.to\('CUDA'\)"),
    "ones(2).max(0).values": (AttributeError, r"x\.argmax\(axis\) says where"),
    "ones(2).spqr": (AttributeError, "'Tensor' object has no attribute 'spqr'$"),
    "ones(2).where(ones(2) > 0, 0)": (DTypeError, r"write condition\.where\(x, y\), and not x\.wh"),
    "nn.Linear(2, 1).cuda()": (AttributeError, r"to\('CUDA'\) moves it"),
    "nn.ReLU().slope": (AttributeError, "'ReLU' object has no attribute 'slope'; it has inplace"),
}


@pytest.mark.parametrize("line", ELSEWHERE)
def test_names_of_other_libraries(line: str) -> None:
    kind, hint = ELSEWHERE[line]
    with pytest.raises(kind, match=hint):
        eval(line)


def test_the_method_data_still_is_the_memory() -> None:
    assert ones(2).data().tolist() == [1.0, 1.0]
    assert Tensor.data(ones(2)).tolist() == [1.0, 1.0]
    assert (ones(2) * leaf(2).detach().sub_(1)).tolist() == [0.0, 0.0]
