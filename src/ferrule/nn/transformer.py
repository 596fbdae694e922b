"""Transformer blocks: encoder and decoder layers, and stacks of them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, ClassVar, final

from ferrule.nn.attention import MultiheadAttention
from ferrule.nn.containers import ModuleList
from ferrule.nn.linear import Linear
from ferrule.nn.module import Layer
from ferrule.nn.normalization import LayerNorm
from ferrule.nn.parameters import check_counts, glorot_uniform
from ferrule.nn.state import get_state_dict
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments
from ferrule.tensor.data import DTypeLike

Activation = str | Callable[[Tensor], Tensor]


def _gelu(x: Tensor) -> Tensor:
    return x.gelu("none")


def _activation(name: str, given: Activation) -> Callable[[Tensor], Tensor]:
    """The function of a name, or the given one."""
    if callable(given):
        return given
    known: dict[str, Callable[[Tensor], Tensor]] = {"relu": Tensor.relu, "gelu": _gelu}
    if given not in known:
        raise ValueError(
            f"{name}: activation is {given!r}; it must be 'relu', 'gelu' or a function"
        )
    return known[given]


class _Block(Layer):
    """The base of both kinds of layers: attention, and two matrices with an activation between."""

    _shown = ""

    looks_up: ClassVar[bool]
    """True if there is attention to an encoder's result, too."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        place: Any = {"dtype": dtype, "device": device}

        def attention() -> MultiheadAttention:
            given = (d_model, nhead, dropout, bias)
            return MultiheadAttention(*given, batch_first=batch_first, **place)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, **place)

        self.self_attn = attention()
        if self.looks_up:
            self.multihead_attn = attention()
        self.dropout = dropout
        self.norm_first = norm_first
        self.activation = _activation(type(self).__name__, activation)
        self.linear1 = Linear(d_model, dim_feedforward, bias, **place)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **place)
        self.norm1, self.norm2 = norm(), norm()
        if self.looks_up:
            self.norm3 = norm()

    def _feed_forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.linear1(x)).dropout(self.dropout)
        return self.linear2(inner).dropout(self.dropout)

    def _attended(
        self,
        x: Tensor,
        norm: LayerNorm,
        attention: MultiheadAttention,
        memory: Tensor | None,
        padding: Tensor | None,
        mask: Tensor | None,
        is_causal: bool,
    ) -> Tensor:
        """x plus its attention to a memory, or to itself."""

        def attend(x: Tensor) -> Tensor:
            seen = x if memory is None else memory
            out, _ = attention(x, seen, seen, padding, False, mask, is_causal=is_causal)
            return out.dropout(self.dropout)

        return self._residual(x, norm, attend)

    def _residual(self, x: Tensor, norm: LayerNorm, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x plus a part's result for it, normalised before the part or after the sum."""
        return x + part(norm(x)) if self.norm_first else norm(x + part(x))


@final
class TransformerEncoderLayer(_Block):
    """Self-attention and a feed-forward network, each added to its input and normalised.

    Takes (T, N, d_model), with `batch_first` (N, T, d_model), or (T, d_model). `activation` is
    "relu", "gelu" or a function; `norm_first` normalises what goes into each part rather than the
    sums. Vaswani and others, "Attention Is All You Need" (2017).

    Raises `ShapeError` for an input of another width, `ValueError` for another name of an
    activation.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import TransformerEncoderLayer
    >>> layer = TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=16, batch_first=True)
    >>> layer(Tensor.ones(2, 5, 8), is_causal=True).shape
    (2, 5, 8)
    """

    looks_up = False

    @checks_arguments
    def __call__(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The layer applied to `src`; masks are as for `MultiheadAttention`."""
        masks = (src_key_padding_mask, src_mask, is_causal)
        x = self._attended(src, self.norm1, self.self_attn, None, *masks)
        return self._residual(x, self.norm2, self._feed_forward)


@final
class TransformerDecoderLayer(_Block):
    """Self-attention, attention to an encoder's result, and a feed-forward network.

    Raises `ShapeError` for an input of another width, `ValueError` for another name of an
    activation.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import TransformerDecoderLayer
    >>> layer = TransformerDecoderLayer(d_model=8, nhead=2, dim_feedforward=16)
    >>> layer(Tensor.ones(5, 2, 8), Tensor.ones(7, 2, 8), tgt_is_causal=True).shape
    (5, 2, 8)
    """

    looks_up = True

    @checks_arguments
    def __call__(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """The layer applied to `tgt`, with an encoder's `memory`."""
        own = (tgt_key_padding_mask, tgt_mask, tgt_is_causal)
        masks = (memory_key_padding_mask, memory_mask, memory_is_causal)
        x = self._attended(tgt, self.norm1, self.self_attn, None, *own)
        x = self._attended(x, self.norm2, self.multihead_attn, memory, *masks)
        return self._residual(x, self.norm3, self._feed_forward)


def _check_layers(stack: object, layer: object, num_layers: int) -> None:
    """Raises `TypeError` for what is no layer, or no number of them."""
    if not callable(layer) or isinstance(layer, type):
        kind = type(stack).__name__
        raise TypeError(f"{kind}: the layer to copy is {layer!r}, and no layer; make one first")
    check_counts(stack, num_layers=num_layers)


@final
class TransformerEncoder(Layer):
    """`num_layers` copies of a layer, one after another, and a norm at the end if there is one.

    `enable_nested_tensor` and `mask_check` change nothing: there are no nested tensors.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import TransformerEncoder, TransformerEncoderLayer
    >>> layer = TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=16)
    >>> TransformerEncoder(layer, num_layers=2)(Tensor.ones(5, 2, 8)).shape
    (5, 2, 8)
    """

    _shown = ""

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Callable[[Tensor], Tensor] | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        _check_layers(self, encoder_layer, num_layers)
        self.layers = ModuleList([deepcopy(encoder_layer) for _ in range(num_layers)])
        self.norm = norm

    @checks_arguments
    def __call__(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """All layers applied to `src`, in order."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


@final
class TransformerDecoder(Layer):
    """`num_layers` copies of a decoder's layer, and a norm at the end if there is one.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import TransformerDecoder, TransformerDecoderLayer
    >>> layer = TransformerDecoderLayer(d_model=8, nhead=2, dim_feedforward=16)
    >>> TransformerDecoder(layer, num_layers=2)(Tensor.ones(5, 2, 8), Tensor.ones(3, 2, 8)).shape
    (5, 2, 8)
    """

    _shown = ""

    def __init__(
        self,
        decoder_layer: TransformerDecoderLayer,
        num_layers: int,
        norm: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        _check_layers(self, decoder_layer, num_layers)
        self.layers = ModuleList([deepcopy(decoder_layer) for _ in range(num_layers)])
        self.norm = norm

    @checks_arguments
    def __call__(self, tgt: Tensor, memory: Tensor, **masks: Any) -> Tensor:
        """All layers applied to `tgt`, in order; `masks` are those of the layers."""
        for layer in self.layers:
            tgt = layer(tgt, memory, **masks)
        return tgt if self.norm is None else self.norm(tgt)


@final
class Transformer(Layer):
    """An encoder and a decoder, with a norm after each.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import Transformer
    >>> model = Transformer(8, 2, 1, 1, dim_feedforward=16, batch_first=True)
    >>> model(Tensor.ones(2, 5, 8), Tensor.ones(2, 3, 8), tgt_is_causal=True).shape
    (2, 3, 8)
    """

    _shown = ""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
    ) -> None:
        place: Any = {"dtype": dtype, "device": device}
        layer = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps)
        given = (*layer, batch_first, norm_first, bias)
        norms = [LayerNorm(d_model, layer_norm_eps, bias=bias, **place) for _ in range(2)]
        encoder = TransformerEncoderLayer(*given, **place)
        self.encoder = TransformerEncoder(encoder, num_encoder_layers, norms[0])
        decoder = TransformerDecoderLayer(*given, **place)
        self.decoder = TransformerDecoder(decoder, num_decoder_layers, norms[1])
        self._spread(dtype, device)

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: str | None = None, dtype: DTypeLike | None = None
    ) -> Tensor:
        """The mask of causal attention, (sz, sz): 0 where a step may look, minus infinity ahead.

        >>> from ferrule.nn import Transformer
        >>> Transformer.generate_square_subsequent_mask(2).tolist()
        [[0.0, -inf], [0.0, 0.0]]
        """
        return Tensor.full((sz, sz), float("-inf"), device=device, dtype=dtype).triu(1)

    def _spread(self, dtype: DTypeLike | None, device: str | None) -> None:
        """Every matrix anew, by Glorot's rule: the copies of a layer are alike so far."""
        with Tensor.no_grad():
            for parameter in get_state_dict(self).values():
                if parameter.ndim == 2:
                    rows, columns = parameter.shape
                    parameter.assign(glorot_uniform((rows, columns), dtype, device).detach())

    @checks_arguments
    def __call__(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """The decoder applied to `tgt`, with the encoder's result for `src`."""
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )
