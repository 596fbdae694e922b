"""`Tensor`: arrays that are computed lazily, on any device, with gradients.

`TensorBase` is the handle on memory. All operations are functions in modules by topic, and `Tensor`
is the list of these: `softmax = reductions.softmax`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from ferrule.autograd import enable_grad, is_training, no_grad, train
from ferrule.base.changes import changes
from ferrule.base.helpers import not_a_function
from ferrule.base.threadstate import this_thread
from ferrule.tensor import (
    autograd,
    casts,
    copying,
    creation,
    exchange,
    hints,
    inplace,
    making,
    moving,
    namespace,
    printing,
    reading,
    writing,
)
from ferrule.tensor.algebra import decompositions, diagonals, linalg, products, solvers
from ferrule.tensor.autocast import autocast
from ferrule.tensor.base import TensorBase
from ferrule.tensor.checked import are_tensors
from ferrule.tensor.index import indexing, scattering, selecting, tables
from ferrule.tensor.math import (
    activations,
    arithmetic,
    elementwise,
    functions,
    numeric,
    probability,
    scientific,
)
from ferrule.tensor.network import (
    alignment,
    convolution,
    loss,
    margins,
    neural,
    normalization,
    pooling,
    resampling,
)
from ferrule.tensor.reduce import (
    differences,
    moments,
    norms,
    reductions,
    running,
    searching,
    sorting,
    summaries,
)
from ferrule.tensor.shaping import arranging, joining, movement, rearranging
from ferrule.tensor.sharding import sharded

__all__ = ["Tensor"]

not_a_function(__name__, "ferrule.Tensor(data) makes a tensor")


class _TensorType(type):
    """The type of `Tensor`, for attributes of the class that belong to a thread."""

    @property
    def training(cls) -> bool:
        """True if layers such as dropout and batch normalisation behave as in training.

        The mode belongs to the thread that reads or sets it; a new thread starts with False, which
        is evaluation. `with Tensor.train():` sets it for a block, and setting it to None resets it.
        The own mode of a layer (`model.train()`, `model.eval()`) has priority.
        """
        return is_training()

    @training.setter
    def training(cls, mode: bool | None) -> None:
        this_thread.state.training = None if mode is None else bool(mode)

    @training.deleter
    def training(cls) -> None:
        this_thread.state.training = None


@final
class Tensor(TensorBase, metaclass=_TensorType):
    """An array of numbers on a device, lazy and differentiable.

    >>> from ferrule import Tensor
    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> loss = (x * x).sum().backward()
    >>> x.grad.tolist()
    [[2.0, 4.0], [6.0, 8.0]]
    """

    __slots__ = ()

    # -- attributes: first, since some methods below hide types that annotations here name ---------

    @property
    def T(self) -> Tensor:
        """The axes in reverse order. A view."""
        return self.permute(tuple(range(len(self._shape)))[::-1])

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped. A view."""
        return self.transpose(-1, -2)

    @property
    def H(self) -> Tensor:
        """The axes in reverse order, as `T`: there are no complex numbers. A view."""
        return self.T

    @property
    def mH(self) -> Tensor:
        """The last two axes swapped, as `mT`: there are no complex numbers. A view."""
        return self.mT

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` accumulated, None before."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        autograd.check_gradient(self, value)
        self._grad = value
        changes.count += 1

    @property
    def is_leaf(self) -> bool:
        """True for an end of the tape: a tensor that is no result of recorded operations."""
        return self._leaf is not None or self._read().edge is None

    @property
    def retains_grad(self) -> bool:
        """True if this tensor is no leaf and keeps its gradient, by `retain_grad`."""
        return autograd.retains_grad(self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's description of the memory, which is read-only, and kept by its "data"."""
        return exchange.array_interface(self)

    if TYPE_CHECKING:  # with `__getattr__`, checkers would take every name for granted
        data = reading.data
    else:
        data = hints.DataMethod(reading.data)
        __getattr__ = hints.explain_missing

    # -- modes of the thread -----------------------------------------------------------------------
    train = train
    no_grad = no_grad
    enable_grad = staticmethod(enable_grad)
    autocast = autocast

    # -- sizes, values as arrays and Python numbers ------------------------------------------------
    dim = reading.dim
    size = reading.size
    numel = reading.numel
    element_size = reading.element_size
    is_floating_point = reading.is_floating_point
    realize = reading.realize
    numpy = reading.numpy
    item = reading.item
    tolist = reading.tolist
    __len__ = reading.length
    __bool__ = reading.truth
    __int__ = reading.to_int
    __float__ = reading.to_float
    __index__ = reading.to_index
    __repr__ = printing.shown
    _repr_html_ = printing.html

    # -- writing -----------------------------------------------------------------------------------
    assign = writing.assign
    replace = writing.replace

    # -- exchange with NumPy, DLPack, buffers; strides ---------------------------------------------
    __array_priority__ = 1000
    from_numpy = classmethod(exchange.from_numpy)
    from_dlpack = classmethod(exchange.from_dlpack)
    frombuffer = classmethod(exchange.frombuffer)
    tobytes = exchange.tobytes
    __array__ = exchange.array
    __array_ufunc__ = exchange.array_ufunc
    __array_function__ = exchange.array_function
    __buffer__ = exchange.buffer
    __dlpack__ = exchange.dlpack
    __dlpack_device__ = exchange.dlpack_device
    stride = exchange.stride
    storage_offset = exchange.storage_offset
    is_contiguous = exchange.is_contiguous
    nelement = reading.numel
    ndimension = exchange.ndimension
    is_nonzero = exchange.is_nonzero
    __complex__ = exchange.to_complex
    __format__ = exchange.formatted

    # -- copies and pickles ------------------------------------------------------------------------
    __copy__ = copying.shallow_copy
    __deepcopy__ = copying.deepcopy
    __reduce__ = copying.pickled
    _unpickled = classmethod(copying._unpickled)

    # -- devices, and the array API's namespace ----------------------------------------------------
    to = moving.to
    cpu = moving.cpu
    to_device = moving.to_device
    shard = sharded.shard
    __array_namespace__ = namespace.array_namespace

    # -- gradients ---------------------------------------------------------------------------------
    detach = autograd.detach
    requires_grad_ = autograd.requires_grad_
    zero_grad = autograd.zero_grad
    clone = autograd.clone
    copy = autograd.clone
    contiguous = autograd.contiguous
    contiguous_backward = autograd.contiguous_backward
    backward = autograd.backward
    register_hook = autograd.register_hook
    retain_grad = autograd.retain_grad
    gradient = autograd.gradient

    # -- arithmetic operators, and their reflected forms -------------------------------------------
    add = arithmetic.add
    sub = arithmetic.sub
    mul = arithmetic.mul
    div = arithmetic.div
    floordiv = arithmetic.floordiv
    mod = arithmetic.mod
    pow = arithmetic.pow
    neg = arithmetic.neg
    __add__ = arithmetic.plus
    __radd__ = arithmetic.radd
    __sub__ = arithmetic.sub
    __rsub__ = arithmetic.rsub
    __mul__ = arithmetic.mul
    __rmul__ = arithmetic.rmul
    __truediv__ = arithmetic.div
    __rtruediv__ = arithmetic.rtruediv
    __floordiv__ = arithmetic.floordiv
    __rfloordiv__ = arithmetic.rfloordiv
    __mod__ = arithmetic.mod
    __rmod__ = arithmetic.rmod
    __pow__ = arithmetic.pow
    __rpow__ = arithmetic.rpow
    __divmod__ = arithmetic.divmod
    __rdivmod__ = arithmetic.rdivmod
    __neg__ = arithmetic.neg
    __pos__ = arithmetic.pos

    # -- comparisons, bits, logic, choice ----------------------------------------------------------
    __eq__ = elementwise.equals  # type: ignore[assignment]
    __ne__ = elementwise.differs  # type: ignore[assignment]
    __hash__ = TensorBase.__hash__
    eq = elementwise.eq
    ne = elementwise.ne
    lt = elementwise.lt
    le = elementwise.le
    gt = elementwise.gt
    ge = elementwise.ge
    __lt__ = elementwise.lt
    __le__ = elementwise.le
    __gt__ = elementwise.gt
    __ge__ = elementwise.ge
    not_equal = elementwise.ne
    less = elementwise.lt
    less_equal = elementwise.le
    greater = elementwise.gt
    greater_equal = elementwise.ge
    maximum = elementwise.maximum
    minimum = elementwise.minimum
    clamp = elementwise.clamp
    clamp_min = elementwise.clamp_min
    clamp_max = elementwise.clamp_max
    clip = elementwise.clamp
    isclose = elementwise.isclose
    __rlshift__ = elementwise.rlshift
    __rrshift__ = elementwise.rrshift
    bitwise_and = elementwise.bitwise_and
    bitwise_or = elementwise.bitwise_or
    bitwise_xor = elementwise.bitwise_xor
    bitwise_not = elementwise.bitwise_not
    bitwise_invert = elementwise.bitwise_not
    invert = elementwise.bitwise_not
    __and__ = elementwise.bitwise_and
    __rand__ = elementwise.bitwise_and
    __or__ = elementwise.bitwise_or
    __ror__ = elementwise.bitwise_or
    __xor__ = elementwise.bitwise_xor
    __rxor__ = elementwise.bitwise_xor
    __invert__ = elementwise.bitwise_not
    __lshift__ = elementwise.bitwise_left_shift
    __rshift__ = elementwise.bitwise_right_shift
    bitwise_left_shift = elementwise.bitwise_left_shift
    bitwise_right_shift = elementwise.bitwise_right_shift
    logical_not = elementwise.logical_not
    logical_and = elementwise.logical_and
    logical_or = elementwise.logical_or
    logical_xor = elementwise.logical_xor
    isnan = elementwise.isnan
    isinf = elementwise.isinf
    isfinite = elementwise.isfinite
    masked_fill = elementwise.masked_fill
    lerp = elementwise.lerp

    # -- casts -------------------------------------------------------------------------------------
    float = casts.float
    double = casts.double
    half = casts.half
    bfloat16 = casts.bfloat16
    int = casts.int
    long = casts.long
    short = casts.short
    byte = casts.byte
    char = casts.char
    bool = casts.bool

    # -- elementary functions ----------------------------------------------------------------------
    cast = functions.cast
    type_as = functions.type_as
    astype = functions.astype
    bitcast = functions.bitcast
    sqrt = functions.sqrt
    rsqrt = functions.rsqrt
    reciprocal = functions.reciprocal
    square = functions.square
    exp = functions.exp
    exp2 = functions.exp2
    expm1 = functions.expm1
    log = functions.log
    log2 = functions.log2
    log10 = functions.log10
    log1p = functions.log1p
    sin = functions.sin
    cos = functions.cos
    tan = functions.tan
    sinh = functions.sinh
    cosh = functions.cosh
    tanh = functions.tanh
    erf = functions.erf
    __abs__ = functions.abs
    abs = functions.abs
    sign = functions.sign
    floor = functions.floor
    ceil = functions.ceil
    trunc = functions.trunc
    round = functions.round
    __round__ = functions.round_to
    __trunc__ = functions.trunc
    __floor__ = functions.floor
    __ceil__ = functions.ceil

    # -- inverse and special functions -------------------------------------------------------------
    cbrt = scientific.cbrt
    asin = scientific.asin
    acos = scientific.acos
    atan = scientific.atan
    atan2 = scientific.atan2
    deg2rad = scientific.deg2rad
    rad2deg = scientific.rad2deg
    sinc = scientific.sinc
    asinh = scientific.asinh
    acosh = scientific.acosh
    atanh = scientific.atanh
    arcsin = scientific.asin
    arccos = scientific.acos
    arctan = scientific.atan
    arctan2 = scientific.atan2
    arcsinh = scientific.asinh
    arccosh = scientific.acosh
    arctanh = scientific.atanh
    radians = scientific.deg2rad
    degrees = scientific.rad2deg
    erfc = scientific.erfc
    erfinv = scientific.erfinv
    logit = scientific.logit
    ndtr = scientific.ndtr
    entr = scientific.entr
    lgamma = scientific.lgamma
    digamma = scientific.digamma
    polygamma = scientific.polygamma
    hypot = scientific.hypot
    logaddexp = scientific.logaddexp
    logaddexp2 = scientific.logaddexp2
    xlogy = scientific.xlogy
    xlog1py = scientific.xlog1py
    ldexp = scientific.ldexp
    float_power = scientific.float_power
    gcd = scientific.gcd
    lcm = scientific.lcm

    # -- Bessel, zeta, normal distribution ---------------------------------------------------------
    ndtri = probability.ndtri
    log_ndtr = probability.log_ndtr
    erfcx = probability.erfcx
    i0 = probability.i0
    i0e = probability.i0e
    i1 = probability.i1
    i1e = probability.i1e
    zeta = probability.zeta
    mvlgamma = probability.mvlgamma
    multigammaln = probability.mvlgamma

    # -- parts of numbers, remainders, signs, fused products ---------------------------------------
    positive = numeric.positive
    true_divide = numeric.true_divide
    divide = arithmetic.div
    frexp = numeric.frexp
    floor_divide = numeric.floor_divide
    remainder = numeric.remainder
    fmod = numeric.fmod
    rsub = numeric.rsub
    multiply = arithmetic.mul
    subtract = arithmetic.sub
    negative = arithmetic.neg
    absolute = functions.abs
    power = arithmetic.pow
    frac = numeric.frac
    fix = functions.trunc
    sgn = functions.sign
    signbit = numeric.signbit
    angle = numeric.angle
    copysign = numeric.copysign
    nextafter = numeric.nextafter
    heaviside = numeric.heaviside
    isposinf = numeric.isposinf
    isneginf = numeric.isneginf
    isreal = numeric.isreal
    nan_to_num = numeric.nan_to_num
    fmax = numeric.fmax
    fmin = numeric.fmin
    addcmul = numeric.addcmul
    addcdiv = numeric.addcdiv

    # -- activations -------------------------------------------------------------------------------
    relu = activations.relu
    relu6 = activations.relu6
    leaky_relu = activations.leaky_relu
    elu = activations.elu
    celu = activations.celu
    selu = activations.selu
    sigmoid = activations.sigmoid
    expit = activations.sigmoid
    logsigmoid = activations.logsigmoid
    gelu = activations.gelu
    quick_gelu = activations.quick_gelu
    silu = activations.silu
    swish = activations.swish
    mish = activations.mish
    softplus = activations.softplus
    softsign = activations.softsign
    hardtanh = activations.hardtanh
    hardsigmoid = activations.hardsigmoid
    hardswish = activations.hardswish
    tanhshrink = activations.tanhshrink
    hardshrink = activations.hardshrink
    softshrink = activations.softshrink
    threshold = activations.threshold
    prelu = activations.prelu
    glu = activations.glu

    # -- shapes, axes, slices ----------------------------------------------------------------------
    reshape = movement.reshape
    view = movement.view
    flatten = movement.flatten
    unflatten = movement.unflatten
    squeeze = movement.squeeze
    unsqueeze = movement.unsqueeze
    expand = movement.expand
    broadcast_to = movement.expand
    expand_as = movement.expand_as
    permute = movement.permute
    transpose = movement.transpose
    movedim = movement.movedim
    flip = movement.flip
    shrink = movement.shrink
    narrow = movement.narrow

    # -- padding, joining, splitting, repeating ----------------------------------------------------
    pad = joining.pad
    cat = joining.cat
    stack = joining.stack
    split = joining.split
    chunk = joining.chunk
    unbind = joining.unbind
    repeat_interleave = joining.repeat_interleave
    roll = joining.roll
    unfold = joining.unfold

    # -- rearranging, joining, splitting: other forms ----------------------------------------------
    swapaxes = arranging.swapaxes
    swapdims = arranging.swapdims
    moveaxis = movement.movedim
    t = arranging.t
    adjoint = arranging.adjoint
    ravel = arranging.ravel
    view_as = arranging.view_as
    reshape_as = arranging.reshape_as
    diagonal = arranging.diagonal
    fill_diagonal_ = arranging.fill_diagonal_
    atleast_1d = arranging.atleast_1d
    atleast_2d = arranging.atleast_2d
    atleast_3d = arranging.atleast_3d
    fliplr = arranging.fliplr
    flipud = arranging.flipud
    rot90 = arranging.rot90
    tile = arranging.tile
    constant_pad_nd = arranging.constant_pad_nd
    broadcast_shapes = staticmethod(arranging.broadcast_shapes)
    broadcast_tensors = arranging.broadcast_tensors
    concat = joining.cat
    concatenate = joining.cat
    hstack = arranging.hstack
    vstack = arranging.vstack
    row_stack = arranging.vstack
    dstack = arranging.dstack
    column_stack = arranging.column_stack
    cartesian_prod = arranging.cartesian_prod
    split_with_sizes = arranging.split_with_sizes
    tensor_split = arranging.tensor_split
    array_split = arranging.tensor_split
    hsplit = arranging.hsplit
    vsplit = arranging.vsplit
    dsplit = arranging.dsplit
    select = arranging.select

    # -- reductions, softmax -----------------------------------------------------------------------
    sum = reductions.sum
    prod = reductions.prod
    mean = reductions.mean
    nansum = reductions.nansum
    nanmean = reductions.nanmean
    count_nonzero = reductions.count_nonzero
    sum_to_size = reductions.sum_to_size
    max = reductions.max
    min = reductions.min
    amax = reductions.amax
    amin = reductions.amin
    aminmax = reductions.aminmax
    argmax = reductions.argmax
    argmin = reductions.argmin
    any = reductions.any
    all = reductions.all
    equal = reductions.equal
    allclose = reductions.allclose
    softmax = reductions.softmax
    log_softmax = reductions.log_softmax
    logsumexp = reductions.logsumexp

    # -- variance ----------------------------------------------------------------------------------
    var = moments.var
    std = moments.std
    var_mean = moments.var_mean
    std_mean = moments.std_mean

    # -- norms -------------------------------------------------------------------------------------
    norm = norms.norm
    vector_norm = norms.vector_norm
    dist = norms.dist
    renorm = norms.renorm

    # -- scans -------------------------------------------------------------------------------------
    cumsum = running.cumsum
    cumprod = running.cumprod
    cummax = running.cummax
    cummin = running.cummin
    logcumsumexp = running.logcumsumexp

    # -- sorting -----------------------------------------------------------------------------------
    sort = sorting.sort
    argsort = sorting.argsort
    msort = sorting.msort
    topk = sorting.topk
    kthvalue = sorting.kthvalue
    median = sorting.median
    nanmedian = sorting.nanmedian
    mode = sorting.mode
    quantile = sorting.quantile
    nanquantile = sorting.nanquantile

    # -- searching, counting, sets -----------------------------------------------------------------
    searchsorted = searching.searchsorted
    bucketize = searching.bucketize
    isin = searching.isin
    bincount = searching.bincount
    histc = searching.histc
    histogram = searching.histogram
    unique = searching.unique
    unique_consecutive = searching.unique_consecutive

    # -- differences, integrals, covariance --------------------------------------------------------
    diff = differences.diff
    trapezoid = differences.trapezoid
    trapz = differences.trapezoid
    cumulative_trapezoid = differences.cumulative_trapezoid
    cov = differences.cov
    corrcoef = differences.corrcoef

    # -- statistics, NumPy's names -----------------------------------------------------------------
    ptp = summaries.ptp
    percentile = summaries.percentile
    average = summaries.average
    nanmax = summaries.nanmax
    nanmin = summaries.nanmin
    nanprod = summaries.nanprod
    nanvar = summaries.nanvar
    nanstd = summaries.nanstd

    # -- creation: constants, sequences, random numbers --------------------------------------------
    empty = classmethod(creation.empty)
    full = classmethod(creation.full)
    zeros = classmethod(creation.zeros)
    ones = classmethod(creation.ones)
    full_like = creation.full_like
    zeros_like = creation.zeros_like
    ones_like = creation.ones_like
    arange = classmethod(creation.arange)
    linspace = classmethod(creation.linspace)
    eye = classmethod(creation.eye)
    tril = creation.tril
    triu = creation.triu
    meshgrid = creation.meshgrid
    manual_seed = staticmethod(creation.manual_seed)
    rand = classmethod(creation.rand)
    rand_like = creation.rand_like
    randn = classmethod(creation.randn)
    randn_like = creation.randn_like
    randint = classmethod(creation.randint)
    uniform = classmethod(creation.uniform)
    normal = classmethod(creation.normal)
    scaled_uniform = classmethod(creation.scaled_uniform)
    glorot_uniform = classmethod(creation.glorot_uniform)
    kaiming_uniform = classmethod(creation.kaiming_uniform)
    kaiming_normal = classmethod(creation.kaiming_normal)

    # -- creation: other forms ---------------------------------------------------------------------
    one_hot = making.one_hot
    empty_like = making.empty_like
    randint_like = making.randint_like
    new_tensor = making.new_tensor
    new_empty = making.new_empty
    new_zeros = making.new_zeros
    new_ones = making.new_ones
    new_full = making.new_full
    fill = making.fill
    fill_ = making.fill_
    zero_ = making.zero_
    copy_ = making.copy_
    from_file = classmethod(making.from_file)
    scalar_tensor = classmethod(making.scalar_tensor)
    logspace = classmethod(making.logspace)
    tri = classmethod(making.tri)
    bernoulli = making.bernoulli
    get_rng_state = classmethod(making.get_rng_state)
    set_rng_state = staticmethod(making.set_rng_state)
    randperm = classmethod(making.randperm)
    multinomial = making.multinomial

    # -- indexing ----------------------------------------------------------------------------------
    __getitem__ = indexing.getitem
    __iter__ = indexing.iterated
    __contains__ = indexing.contains
    index_select = indexing.index_select
    gather = indexing.gather
    take_along_dim = indexing.take_along_dim
    masked_select = indexing.masked_select
    __setitem__ = indexing.setitem

    # -- selection ---------------------------------------------------------------------------------
    take = selecting.take
    take_along_axis = selecting.take_along_axis
    nonzero = selecting.nonzero
    nonzero_static = selecting.nonzero_static
    argwhere = selecting.argwhere
    where = selecting.where
    combinations = selecting.combinations
    unravel_index = selecting.unravel_index

    # -- scatters ----------------------------------------------------------------------------------
    scatter = scattering.scatter
    scatter_add = scattering.scatter_add
    scatter_reduce = scattering.scatter_reduce
    index_add = scattering.index_add
    index_reduce = scattering.index_reduce
    index_copy = scattering.index_copy
    index_fill = scattering.index_fill
    index_put = scattering.index_put
    put = scattering.put
    masked_scatter = scattering.masked_scatter
    select_scatter = scattering.select_scatter
    slice_scatter = scattering.slice_scatter
    diagonal_scatter = scattering.diagonal_scatter

    # -- matrix products, einsum -------------------------------------------------------------------
    matmul = linalg.matmul
    dot = linalg.dot
    __matmul__ = linalg.dot
    __rmatmul__ = linalg.rmatmul
    outer = linalg.outer
    linear = linalg.linear
    einsum = classmethod(linalg.einsum)

    # -- products: other forms ---------------------------------------------------------------------
    mm = products.mm
    mv = products.mv
    bmm = products.bmm
    addmm = products.addmm
    addmv = products.addmv
    baddbmm = products.baddbmm
    addbmm = products.addbmm
    addr = products.addr
    multi_dot = products.multi_dot
    chain_matmul = products.chain_matmul
    inner = products.inner
    vdot = products.vdot
    vecdot = products.vecdot
    ger = products.ger
    cross = products.cross
    kron = products.kron
    tensordot = products.tensordot

    # -- diagonals, structured matrices, distances -------------------------------------------------
    diag = diagonals.diag
    diag_embed = diagonals.diag_embed
    diagflat = diagonals.diagflat
    trace = diagonals.trace
    block_diag = diagonals.block_diag
    vander = diagonals.vander
    tril_indices = classmethod(diagonals.tril_indices)
    triu_indices = classmethod(diagonals.triu_indices)
    cdist = diagonals.cdist

    # -- determinants, inverses, linear systems ----------------------------------------------------
    det = solvers.det
    slogdet = solvers.slogdet
    logdet = solvers.logdet
    inv = solvers.inv
    inverse = solvers.inv
    pinv = solvers.pinv
    pinverse = solvers.pinverse
    matrix_power = solvers.matrix_power
    tensorinv = solvers.tensorinv
    solve = solvers.solve
    solve_triangular = solvers.solve_triangular
    triangular_solve = solvers.triangular_solve
    tensorsolve = solvers.tensorsolve
    cholesky = solvers.cholesky
    cholesky_solve = solvers.cholesky_solve
    cholesky_inverse = solvers.cholesky_inverse

    # -- matrix decompositions ---------------------------------------------------------------------
    qr = decompositions.qr
    svd = decompositions.svd
    svdvals = decompositions.svdvals
    eigh = decompositions.eigh
    eigvalsh = decompositions.eigvalsh
    eig = decompositions.eig
    eigvals = decompositions.eigvals
    matrix_exp = decompositions.matrix_exp
    lstsq = decompositions.lstsq
    matrix_rank = decompositions.matrix_rank
    matrix_norm = decompositions.matrix_norm
    cond = decompositions.cond

    # -- einops notation ---------------------------------------------------------------------------
    rearrange = rearranging.rearrange
    reduce = rearranging.reduce
    repeat = rearranging.repeat

    # -- convolutions ------------------------------------------------------------------------------
    conv1d = convolution.conv1d
    conv2d = convolution.conv2d
    conv3d = convolution.conv3d
    conv_transpose1d = convolution.conv_transpose1d
    conv_transpose2d = convolution.conv_transpose2d
    conv_transpose3d = convolution.conv_transpose3d

    # -- pooling, unfolding ------------------------------------------------------------------------
    max_pool1d = pooling.max_pool1d
    max_pool2d = pooling.max_pool2d
    max_pool3d = pooling.max_pool3d
    avg_pool1d = pooling.avg_pool1d
    avg_pool2d = pooling.avg_pool2d
    avg_pool3d = pooling.avg_pool3d
    lp_pool1d = pooling.lp_pool1d
    lp_pool2d = pooling.lp_pool2d
    lp_pool3d = pooling.lp_pool3d
    max_unpool1d = pooling.max_unpool1d
    max_unpool2d = pooling.max_unpool2d
    max_unpool3d = pooling.max_unpool3d
    im2col = pooling.im2col
    fold = pooling.fold

    # -- adaptive pooling, resampling --------------------------------------------------------------
    adaptive_avg_pool1d = resampling.adaptive_avg_pool1d
    adaptive_avg_pool2d = resampling.adaptive_avg_pool2d
    adaptive_avg_pool3d = resampling.adaptive_avg_pool3d
    adaptive_max_pool1d = resampling.adaptive_max_pool1d
    adaptive_max_pool2d = resampling.adaptive_max_pool2d
    adaptive_max_pool3d = resampling.adaptive_max_pool3d
    interpolate = resampling.interpolate
    upsample = resampling.upsample
    upsample_nearest = resampling.upsample_nearest
    upsample_bilinear = resampling.upsample_bilinear
    grid_sample = resampling.grid_sample
    affine_grid = resampling.affine_grid
    pixel_shuffle = resampling.pixel_shuffle
    pixel_unshuffle = resampling.pixel_unshuffle
    channel_shuffle = resampling.channel_shuffle

    # -- normalisation -----------------------------------------------------------------------------
    layernorm = normalization.layernorm
    layer_norm = normalization.layer_norm
    rmsnorm = normalization.rmsnorm
    rms_norm = normalization.rms_norm
    batchnorm = normalization.batchnorm
    batch_norm = normalization.batch_norm
    instance_norm = normalization.instance_norm
    group_norm = normalization.group_norm
    local_response_norm = normalization.local_response_norm
    normalize = normalization.normalize
    groupnorm = normalization.group_norm
    instancenorm = normalization.instance_norm

    # -- embeddings --------------------------------------------------------------------------------
    embedding = tables.embedding
    embedding_bag = tables.embedding_bag

    # -- dropout, attention ------------------------------------------------------------------------
    dropout = neural.dropout
    rrelu = neural.rrelu
    gumbel_softmax = neural.gumbel_softmax
    dropout1d = neural.dropout1d
    dropout2d = neural.dropout2d
    dropout3d = neural.dropout3d
    alpha_dropout = neural.alpha_dropout
    bilinear = neural.bilinear
    softmin = neural.softmin
    scaled_dot_product_attention = neural.scaled_dot_product_attention
    sequential = neural.sequential

    # -- losses ------------------------------------------------------------------------------------
    cross_entropy = loss.cross_entropy
    sparse_categorical_crossentropy = loss.sparse_categorical_crossentropy
    nll_loss = loss.nll_loss
    binary_cross_entropy = loss.binary_cross_entropy
    binary_crossentropy = loss.binary_crossentropy
    binary_cross_entropy_with_logits = loss.binary_cross_entropy_with_logits
    binary_crossentropy_logits = loss.binary_crossentropy_logits
    kl_div = loss.kl_div
    poisson_nll_loss = loss.poisson_nll_loss
    gaussian_nll_loss = loss.gaussian_nll_loss
    mse_loss = loss.mse_loss
    l1_loss = loss.l1_loss
    smooth_l1_loss = loss.smooth_l1_loss
    huber_loss = loss.huber_loss
    mse = loss.mse_loss
    l1 = loss.l1_loss
    smooth_l1 = loss.smooth_l1_loss
    huber = loss.huber_loss

    # -- similarities, losses with margins ---------------------------------------------------------
    cosine_similarity = margins.cosine_similarity
    pairwise_distance = margins.pairwise_distance
    pdist = margins.pdist
    cosine_embedding_loss = margins.cosine_embedding_loss
    triplet_margin_loss = margins.triplet_margin_loss
    triplet_margin_with_distance_loss = margins.triplet_margin_with_distance_loss
    margin_ranking_loss = margins.margin_ranking_loss
    hinge_embedding_loss = margins.hinge_embedding_loss
    soft_margin_loss = margins.soft_margin_loss
    multi_margin_loss = margins.multi_margin_loss
    multilabel_margin_loss = margins.multilabel_margin_loss
    multilabel_soft_margin_loss = margins.multilabel_soft_margin_loss

    # -- connectionist temporal classification -----------------------------------------------------
    ctc_loss = alignment.ctc_loss

    # -- in place ----------------------------------------------------------------------------------
    __iadd__ = inplace.iadd
    __isub__ = inplace.isub
    __imul__ = inplace.imul
    __itruediv__ = inplace.itruediv
    __ifloordiv__ = inplace.ifloordiv
    __imod__ = inplace.imod
    __ipow__ = inplace.ipow
    __imatmul__ = inplace.imatmul
    __iand__ = inplace.iand
    __ior__ = inplace.ior
    __ixor__ = inplace.ixor
    __ilshift__ = inplace.ilshift
    __irshift__ = inplace.irshift
    abs_ = inplace.abs_
    neg_ = inplace.neg_
    sign_ = inplace.sign_
    reciprocal_ = inplace.reciprocal_
    sqrt_ = inplace.sqrt_
    square_ = inplace.square_
    rsqrt_ = inplace.rsqrt_
    exp_ = inplace.exp_
    exp2_ = inplace.exp2_
    expm1_ = inplace.expm1_
    sin_ = inplace.sin_
    tan_ = inplace.tan_
    asin_ = inplace.asin_
    atan_ = inplace.atan_
    sinh_ = inplace.sinh_
    tanh_ = inplace.tanh_
    asinh_ = inplace.asinh_
    erf_ = inplace.erf_
    log1p_ = inplace.log1p_
    cos_ = inplace.cos_
    cosh_ = inplace.cosh_
    acos_ = inplace.acos_
    log_ = inplace.log_
    log2_ = inplace.log2_
    log10_ = inplace.log10_
    sigmoid_ = inplace.sigmoid_
    relu_ = inplace.relu_
    elu_ = inplace.elu_
    leaky_relu_ = inplace.leaky_relu_
    hardtanh_ = inplace.hardtanh_
    ceil_ = inplace.ceil_
    floor_ = inplace.floor_
    trunc_ = inplace.trunc_
    round_ = inplace.round_
    frac_ = inplace.frac_
    nan_to_num_ = inplace.nan_to_num_
    add_ = inplace.add_
    sub_ = inplace.sub_
    mul_ = inplace.mul_
    div_ = inplace.div_
    pow_ = inplace.pow_
    floor_divide_ = inplace.floor_divide_
    remainder_ = inplace.remainder_
    fmod_ = inplace.fmod_
    copysign_ = inplace.copysign_
    atan2_ = inplace.atan2_
    hypot_ = inplace.hypot_
    clamp_ = inplace.clamp_
    clip_ = inplace.clamp_
    clamp_min_ = inplace.clamp_min_
    clamp_max_ = inplace.clamp_max_
    lerp_ = inplace.lerp_
    addcmul_ = inplace.addcmul_
    addcdiv_ = inplace.addcdiv_
    addmm_ = inplace.addmm_
    cumsum_ = inplace.cumsum_
    cumprod_ = inplace.cumprod_
    tril_ = inplace.tril_
    triu_ = inplace.triu_
    bitwise_and_ = inplace.bitwise_and_
    bitwise_or_ = inplace.bitwise_or_
    bitwise_xor_ = inplace.bitwise_xor_
    logical_not_ = inplace.logical_not_
    masked_fill_ = inplace.masked_fill_
    masked_scatter_ = inplace.masked_scatter_
    index_fill_ = inplace.index_fill_
    index_add_ = inplace.index_add_
    index_copy_ = inplace.index_copy_
    index_put_ = inplace.index_put_
    scatter_ = inplace.scatter_
    scatter_add_ = inplace.scatter_add_
    scatter_reduce_ = inplace.scatter_reduce_
    uniform_ = inplace.uniform_
    normal_ = inplace.normal_
    exponential_ = inplace.exponential_
    bernoulli_ = inplace.bernoulli_


are_tensors(Tensor)
