"""What users of PyTorch, NumPy and tinygrad reach for first is there, under that name."""

import importlib

import pytest

from ferrule import Tensor

TENSOR = {
    "creation": """
        empty zeros ones full empty_like zeros_like ones_like full_like arange linspace eye tril
        triu meshgrid one_hot rand randn randint uniform normal randperm multinomial bernoulli
        scaled_uniform glorot_uniform kaiming_uniform kaiming_normal from_numpy from_dlpack
        frombuffer from_file
    """,
    "operators": """
        __add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __pow__ __matmul__ __and__ __or__
        __xor__ __lshift__ __rshift__ __radd__ __rsub__ __rmul__ __rtruediv__ __rfloordiv__
        __rmod__ __rpow__ __rmatmul__ __rand__ __ror__ __rxor__ __rlshift__ __rrshift__ __iadd__
        __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __imatmul__ __iand__ __ior__
        __ixor__ __ilshift__ __irshift__ __neg__ __pos__ __invert__ __abs__ __eq__ __ne__ __lt__
        __le__ __gt__ __ge__ __bool__ __int__ __float__ __index__ __len__ __iter__ __contains__
        __getitem__ __setitem__ __round__
    """,
    "element-wise": """
        abs sign neg reciprocal sqrt rsqrt square exp exp2 expm1 log log2 log10 log1p sin cos tan
        asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc lgamma digamma sigmoid
        logsigmoid ceil floor trunc round frac clamp clip minimum maximum fmod remainder
        floor_divide pow copysign hypot logaddexp lerp nan_to_num isnan isinf isfinite isclose
        allclose where cast astype bool char short int long byte half bfloat16 float double
    """,
    "activations": """
        relu relu6 leaky_relu elu selu celu gelu silu swish mish softplus softsign hardtanh
        hardsigmoid hardswish tanhshrink quick_gelu glu rrelu gumbel_softmax
    """,
    "reductions": """
        sum prod mean var std var_mean std_mean min max amin amax argmin argmax all any cumsum
        cumprod cummax logsumexp logcumsumexp softmax log_softmax norm median quantile nansum
        nanmean count_nonzero ptp percentile average nanmax nanmin nanprod nanvar nanstd
    """,
    "movement": """
        reshape view permute transpose T mT expand broadcast_to flatten unflatten squeeze unsqueeze
        flip roll rot90 pad shrink cat stack split chunk unbind repeat repeat_interleave tile
        unfold diagonal movedim swapaxes rearrange
    """,
    "indexing": """
        gather scatter scatter_add scatter_reduce index_select index_add index_put take
        take_along_dim masked_fill masked_select nonzero nonzero_static searchsorted bincount
        unique sort argsort topk
    """,
    "linear algebra": """
        matmul dot einsum outer cross kron trace tensordot bmm addmm norm det inv solve cholesky qr
        svd eigh lstsq triangular_solve
    """,
    "neural": """
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d
        max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d lp_pool1d lp_pool2d lp_pool3d
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
        adaptive_max_pool2d adaptive_max_pool3d interpolate grid_sample pixel_shuffle layernorm
        batchnorm groupnorm instancenorm rmsnorm layer_norm batch_norm group_norm instance_norm
        rms_norm dropout embedding embedding_bag scaled_dot_product_attention
    """,
    "losses": """
        cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits mse mse_loss
        l1 l1_loss smooth_l1 smooth_l1_loss huber huber_loss kl_div cosine_similarity ctc_loss
    """,
    "gradients": """
        backward gradient grad requires_grad requires_grad_ no_grad enable_grad detach is_leaf
        zero_grad
    """,
    "in place": """
        add_ sub_ mul_ div_ pow_ exp_ log_ sqrt_ abs_ neg_ clamp_ relu_ sigmoid_ tanh_ round_ fill_
        zero_ copy_ masked_fill_ scatter_ scatter_add_ index_add_ index_copy_ index_fill_ index_put_
        lerp_ addcmul_ addcdiv_ uniform_ normal_ bernoulli_ exponential_ requires_grad_
    """,
    "special": """
        i0 i0e i1 i1e sinc entr xlogy xlog1py logit polygamma zeta erfinv erfcx ndtr ndtri log_ndtr
        mvlgamma multigammaln frexp ldexp nextafter
    """,
    "exchange": """
        __array__ __array_interface__ __dlpack__ __dlpack_device__ __copy__ __deepcopy__
        __reduce__ numpy tolist item data realize to cpu assign clone contiguous
        stride storage_offset is_contiguous nelement ndimension is_nonzero
    """,
}
MODULES = {
    "ferrule": """
        grad value_and_grad vjp jvp vmap scan while_loop cond jacobian hessian checkpoint no_grad
        enable_grad from_dlpack TinyJit Variable Device dtypes Context
    """,
    "ferrule.nn": """
        Linear Bilinear Embedding EmbeddingBag Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d
        ConvTranspose3d BatchNorm BatchNorm1d BatchNorm2d BatchNorm3d LayerNorm GroupNorm
        InstanceNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d RMSNorm LocalResponseNorm Dropout
        AlphaDropout MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d LPPool1d LPPool2d
        LPPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d LSTM GRU RNN LSTMCell
        GRUCell RNNCell MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer
        TransformerEncoder TransformerDecoder Transformer Sequential ModuleList ModuleDict
        Upsample UpsamplingNearest2d UpsamplingBilinear2d PixelShuffle ChannelShuffle ReLU GELU
        RReLU CrossEntropyLoss MSELoss L1Loss CTCLoss TripletMarginWithDistanceLoss
    """,
    "ferrule.nn.optim": """
        SGD Adam AdamW LAMB LARS Muon RMSprop Adagrad Adadelta NAdam RAdam Adamax Rprop ASGD
        Adafactor LBFGS
    """,
    "ferrule.nn.optim.lr_scheduler": """
        StepLR MultiStepLR ConstantLR LinearLR ExponentialLR PolynomialLR CosineAnnealingLR
        CosineAnnealingWarmRestarts CyclicLR OneCycleLR LambdaLR MultiplicativeLR SequentialLR
        ChainedScheduler ReduceLROnPlateau
    """,
    "ferrule.nn.init": """
        uniform_ normal_ constant_ ones_ zeros_ eye_ xavier_uniform_ xavier_normal_
        kaiming_uniform_ kaiming_normal_ trunc_normal_ orthogonal_ calculate_gain
    """,
    "ferrule.nn.utils": """
        clip_grad_norm_ clip_grad_value_ get_total_norm parameters_to_vector vector_to_parameters
    """,
    "ferrule.nn.utils.rnn": """
        PackedSequence pack_padded_sequence pad_packed_sequence pad_sequence pack_sequence
        unpad_sequence unpack_sequence
    """,
    "ferrule.export": "export exported_program load ExportedProgram ExportError LoadError",
    "ferrule.onnx": "load export Model OnnxError",
    "ferrule.distributions": """
        Normal Bernoulli Categorical Uniform Beta Gamma Dirichlet Poisson MultivariateNormal
        TransformedDistribution Independent MixtureSameFamily kl_divergence register_kl
    """,
    "ferrule.distributed": """
        all_reduce all_gather reduce_scatter all_to_all broadcast scatter gather reduce permute
        Mesh P ShardedTensor
    """,
    "ferrule.signal": "stft istft windows",
    "ferrule.torch": "from_exported Model TorchError",
    "ferrule.nn.state": """
        get_parameters get_state_dict load_state_dict safe_save safe_load npz_save npz_load
        torch_load
    """,
}


@pytest.mark.parametrize("theme", TENSOR)
def test_tensors_have(theme: str) -> None:
    missing = [name for name in TENSOR[theme].split() if not hasattr(Tensor, name)]
    assert not missing, f"Tensor lacks {missing}"


@pytest.mark.parametrize("module", MODULES)
def test_modules_have(module: str) -> None:
    found = importlib.import_module(module)
    missing = [name for name in MODULES[module].split() if not hasattr(found, name)]
    assert not missing, f"{module} lacks {missing}"
