"""The names that programs use, where they are promised, and what importing them costs."""

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import ferrule
from ferrule.tensor import Tensor

PUBLIC = {
    "Context",
    "Device",
    "GlobalCounters",
    "Tensor",
    "TinyJit",
    "Variable",
    "amp",
    "array_api",
    "autocast",
    "checkpoint",
    "cond",
    "custom_vjp",
    "data",
    "distributed",
    "distributions",
    "dtypes",
    "enable_grad",
    "fft",
    "from_dlpack",
    "get_float32_matmul_precision",
    "get_num_threads",
    "grad",
    "hessian",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "linearize",
    "load",
    "nn",
    "no_grad",
    "onnx",
    "scan",
    "set_float32_matmul_precision",
    "set_num_threads",
    "signal",
    "torch",
    "tune",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
}


def test_the_facade() -> None:
    assert set(ferrule.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(ferrule, name) is not None
        assert name in dir(ferrule)


def test_the_version_is_in_one_place() -> None:
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
    assert re.fullmatch(r"\d+\.\d+\.\d+", ferrule.__version__)
    assert "version" not in project["project"]
    assert Path(ferrule.__file__).match(project["tool"]["hatch"]["version"]["path"])


HOMES = {
    "Context": "ferrule.base.config",
    "Device": "ferrule.device",
    "GlobalCounters": "ferrule.base.helpers",
    "Tensor": "ferrule.tensor",
    "TinyJit": "ferrule.jit",
    "Variable": "ferrule.ir.expr",
    "autocast": "ferrule.tensor.autocast",
    "checkpoint": "ferrule.transforms",
    "cond": "ferrule.transforms",
    "custom_vjp": "ferrule.transforms",
    "dtypes": "ferrule.ir.dtype",
    "enable_grad": "ferrule.autograd",
    "from_dlpack": "ferrule.array_api",
    "get_float32_matmul_precision": "ferrule.base.config",
    "get_num_threads": "ferrule.base.config",
    "grad": "ferrule.transforms",
    "hessian": "ferrule.transforms",
    "jacfwd": "ferrule.transforms",
    "jacobian": "ferrule.transforms",
    "jacrev": "ferrule.transforms",
    "jvp": "ferrule.transforms",
    "linearize": "ferrule.transforms",
    "no_grad": "ferrule.autograd",
    "scan": "ferrule.transforms",
    "set_float32_matmul_precision": "ferrule.base.config",
    "set_num_threads": "ferrule.base.config",
    "tune": "ferrule.jit.tuning",
    "value_and_grad": "ferrule.transforms",
    "vjp": "ferrule.transforms",
    "vmap": "ferrule.transforms",
    "while_loop": "ferrule.transforms",
}


@pytest.mark.parametrize("name", HOMES)
def test_names_of_the_facade_are_those_of_their_modules(name: str) -> None:
    assert getattr(ferrule, name) is getattr(importlib.import_module(HOMES[name]), name)


def test_star_import() -> None:
    found: dict[str, Any] = {}
    exec("from ferrule import *", found)
    assert found.keys() >= PUBLIC


# What users of PyTorch and tinygrad look for.
NAMES = """
    to_device from_numpy from_dlpack frombuffer nextafter
    numpy item tolist data realize contiguous clone cast cpu
    float half int short long bool double bfloat16
    bitcast to assign replace detach requires_grad_ zero_grad backward gradient
    contiguous_backward
    no_grad enable_grad autocast manual_seed get_rng_state set_rng_state
    train training shard shape ndim dtype device size numel
    element_size nbytes itemsize dim grad requires_grad is_leaf lazydata is_floating_point
    empty zeros ones full zeros_like ones_like full_like rand_like randn_like arange linspace eye
    tril triu rand randn randint uniform normal scaled_uniform glorot_uniform kaiming_uniform
    kaiming_normal randperm one_hot meshgrid
    add sub mul div floordiv mod pow neg abs sign reciprocal sqrt rsqrt square exp exp2 expm1 log
    log2 log10 log1p sin cos tan sinh cosh tanh sigmoid logsigmoid erf
    relu relu6 leaky_relu elu selu celu gelu quick_gelu silu swish mish softplus softsign hardtanh
    hardsigmoid hardswish
    asin acos atan atan2 asinh acosh atanh arcsin arccos arctan arctan2 arcsinh arccosh arctanh
    deg2rad rad2deg radians degrees sinc erfc erfinv logit expit lgamma digamma polygamma
    ndtr entr xlog1py angle byte char
    hypot logaddexp logaddexp2 xlogy ldexp float_power gcd lcm
    positive true_divide divide floor_divide remainder fmod rsub multiply subtract negative absolute
    power frac fix sgn signbit copysign heaviside isposinf isneginf isreal nan_to_num fmax fmin
    addcmul addcdiv eq ne lt le gt ge not_equal less less_equal greater greater_equal
    bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_invert invert bitwise_left_shift
    bitwise_right_shift logical_xor clamp_min clamp_max
    tanhshrink hardshrink softshrink threshold prelu glu
    H adjoint argwhere array_split atleast_1d atleast_2d atleast_3d bernoulli broadcast_shapes
    broadcast_tensors cartesian_prod column_stack combinations concat concatenate
    constant_pad_nd copy_ diagonal diagonal_scatter dsplit dstack empty_like fill fill_ fliplr
    flipud from_file hsplit hstack index_add index_copy index_fill index_put index_reduce
    logspace mH masked_scatter moveaxis multinomial new_empty new_full new_ones new_tensor
    new_zeros put randint_like ravel reshape_as rot90 row_stack scalar_tensor scatter_reduce
    select select_scatter slice_scatter split_with_sizes swapaxes swapdims t take
    take_along_axis tensor_split tile tri unravel_index view_as vsplit vstack zero_
    ceil floor trunc round clamp clip minimum maximum where isnan isinf isfinite isclose allclose
    lerp logical_not logical_and logical_or masked_fill
    sum prod mean max min var std var_mean std_mean argmax argmin any all softmax log_softmax
    logsumexp cumsum norm
    equal amin amax aminmax nansum nanmean count_nonzero sum_to_size
    cumprod cummax cummin logcumsumexp vector_norm dist renorm
    sort argsort msort topk kthvalue median nanmedian mode quantile nanquantile
    searchsorted bucketize isin bincount histc histogram unique unique_consecutive
    diff trapezoid trapz cumulative_trapezoid cov corrcoef
    reshape view permute transpose T mT expand broadcast_to expand_as flatten unflatten squeeze
    unsqueeze flip pad shrink narrow cat stack split chunk unbind repeat repeat_interleave roll
    movedim unfold
    gather scatter scatter_add take_along_dim index_select masked_select nonzero
    mm mv bmm addmm addmv addbmm baddbmm addr multi_dot chain_matmul inner vdot vecdot ger cross
    kron tensordot diag diag_embed diagflat trace block_diag vander tril_indices triu_indices cdist
    conv_transpose1d conv_transpose3d max_pool1d max_pool3d avg_pool1d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    interpolate upsample upsample_nearest upsample_bilinear grid_sample affine_grid
    pixel_shuffle pixel_unshuffle channel_shuffle
    layer_norm rmsnorm batch_norm instance_norm instancenorm group_norm groupnorm
    local_response_norm normalize dropout1d dropout2d dropout3d alpha_dropout embedding bilinear
    binary_cross_entropy binary_cross_entropy_with_logits kl_div poisson_nll_loss gaussian_nll_loss
    smooth_l1_loss huber_loss cosine_similarity pairwise_distance pdist cosine_embedding_loss
    triplet_margin_loss triplet_margin_with_distance_loss margin_ranking_loss hinge_embedding_loss
    soft_margin_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
    ctc_loss softmin max_unpool1d max_unpool2d max_unpool3d im2col fold
    det slogdet logdet inv inverse pinv pinverse matrix_power tensorinv solve solve_triangular
    triangular_solve tensorsolve cholesky cholesky_solve cholesky_inverse qr svd svdvals eigh
    eigvalsh eig eigvals matrix_exp lstsq matrix_rank matrix_norm cond rearrange reduce
    matmul dot einsum outer linear conv1d conv2d conv3d conv_transpose2d max_pool2d avg_pool2d
    layernorm batchnorm rms_norm dropout scaled_dot_product_attention sequential
    cross_entropy sparse_categorical_crossentropy binary_crossentropy binary_crossentropy_logits
    nll_loss mse_loss l1_loss mse l1 smooth_l1 huber
    lp_pool1d lp_pool2d lp_pool3d embedding_bag nonzero_static astype
    i0 i0e i1 i1e erfcx log_ndtr ndtri zeta mvlgamma multigammaln frexp
    ptp percentile average nanmax nanmin nanprod nanvar nanstd cbrt type_as copy tobytes
    fill_diagonal_ rrelu gumbel_softmax stride storage_offset is_contiguous nelement ndimension
    is_nonzero register_hook retain_grad retains_grad
    abs_ neg_ sign_ reciprocal_ sqrt_ square_ rsqrt_ exp_ exp2_ expm1_ sin_ tan_ asin_ atan_
    sinh_ tanh_ asinh_ erf_ log1p_ cos_ cosh_ acos_ log_ log2_ log10_ sigmoid_ relu_ elu_
    leaky_relu_ hardtanh_ ceil_ floor_ trunc_ round_ frac_ nan_to_num_ add_ sub_ mul_ div_ pow_
    floor_divide_ remainder_ fmod_ copysign_ atan2_ hypot_ clamp_ clip_ clamp_min_ clamp_max_
    lerp_ addcmul_ addcdiv_ addmm_ cumsum_ cumprod_ tril_ triu_ bitwise_and_ bitwise_or_
    bitwise_xor_ logical_not_ masked_fill_ masked_scatter_ index_fill_ index_add_ index_copy_
    index_put_ scatter_ scatter_add_ scatter_reduce_ uniform_ normal_ exponential_ bernoulli_
"""
METHODS = NAMES.split()


@pytest.mark.parametrize("name", METHODS)
def test_tensor_has(name: str) -> None:
    assert hasattr(Tensor, name)


def test_nothing_public_is_forgotten_here() -> None:
    public = {name for name in dir(Tensor) if not name.startswith("_")}
    assert public == set(METHODS)


def _documented() -> Iterator[tuple[str, Any]]:
    for name in METHODS:
        member = inspect.getattr_static(Tensor, name)
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        if isinstance(member, FunctionType | type | property):
            yield name, member


@pytest.mark.parametrize(("name", "member"), list(_documented()))
def test_methods_are_documented(name: str, member: Any) -> None:
    assert member.__doc__, f"{name} has no docstring"
    if isinstance(member, FunctionType):
        assert ">>>" in member.__doc__, f"the docstring of {name} has no example"


def _output(program: str) -> str:
    """What a program prints in a fresh interpreter."""
    command = [sys.executable, "-c", program]
    source = Path(ferrule.__file__).parents[1]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=source)
    return run.stdout.strip()


def test_importing_opens_nothing() -> None:
    program = (
        "import sys, ferrule; from ferrule import Tensor, nn; "
        "print([m for m in ('llvmlite', 'ml_dtypes', 'safetensors', 'ferrule.runtime.cpu') "
        "if m in sys.modules])"
    )
    assert _output(program) == "[]"


def test_layers_are_imported_when_they_are_asked_for() -> None:
    program = (
        "import sys; from ferrule.nn.optim import SGD; "
        "print('ferrule.nn.linear' in sys.modules); "
        "from ferrule import nn; print(nn.Linear is nn.linear.Linear, 'Linear' in dir(nn)); "
        "from ferrule.nn import *; print(LSTM.__module__)"
    )
    assert _output(program).split() == ["False", "True", "True", "ferrule.nn.recurrent"]


def test_a_layer_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match=r"module 'ferrule\.nn' has no attribute 'Linea'"):
        _ = ferrule.nn.Linea
