"""Public architectures with random weights: those of transformers, torchvision and timm, small.

Each maker gives a model and its arguments by name. Of transformers' the settings are small, of
the others the images are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

WORDS, LENGTH = 99, 12
MADE: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {}


def images(size: int, batch: int = 2) -> Any:
    return torch.randn(batch, 3, size, size)


def words(length: int = LENGTH, batch: int = 2) -> Any:
    return torch.randint(3, WORDS, (batch, length))


def ones() -> Any:
    return torch.ones(2, LENGTH, dtype=torch.long)


# -- transformers --------------------------------------------------------------------------------


def _transformer(model: str, settings: str, inputs: Callable[[], Any], **given: Any) -> Any:
    library = importlib.import_module("transformers")
    made = getattr(library, model)(getattr(library, settings)(**given))
    return made, inputs()


def enter(name: str, model: str, settings: str, inputs: Callable[[], Any], **given: Any) -> None:
    MADE[name] = partial(_transformer, model, settings, inputs, **given)


def text() -> dict[str, Any]:
    return {"input_ids": words()}


def masked() -> dict[str, Any]:
    return {"input_ids": words(), "attention_mask": ones()}


def causal() -> dict[str, Any]:
    return {"input_ids": words(), "use_cache": False}


def masked_causal() -> dict[str, Any]:
    return {**masked(), "use_cache": False}


def pair() -> dict[str, Any]:
    return {"input_ids": words(), "decoder_input_ids": words(5), "use_cache": False}


SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TEXT = SMALL | {"vocab_size": WORDS}
GPT = TEXT | {"num_key_value_heads": 2, "max_position_embeddings": 64}
TWO_STACKS: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
MARKS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PYRAMID: dict[str, Any] = {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1]}

enter("bert", "BertForSequenceClassification", "BertConfig", masked, **TEXT)
enter(
    "distilbert",
    "DistilBertModel",
    "DistilBertConfig",
    text,
    dim=32,
    n_layers=2,
    n_heads=4,
    hidden_dim=64,
    vocab_size=WORDS,
)
enter("roberta", "RobertaModel", "RobertaConfig", text, **TEXT, max_position_embeddings=64)
enter("albert", "AlbertModel", "AlbertConfig", text, **TEXT, embedding_size=16)
enter("electra", "ElectraModel", "ElectraConfig", text, **TEXT, embedding_size=16)
enter(
    "deberta",
    "DebertaV2Model",
    "DebertaV2Config",
    text,
    **TEXT,
    relative_attention=True,
    position_buckets=8,
    pos_att_type=["p2c", "c2p"],
    max_position_embeddings=64,
)
enter(
    "xlnet",
    "XLNetModel",
    "XLNetConfig",
    lambda: text() | {"use_mems": False},
    d_model=32,
    n_layer=2,
    n_head=4,
    d_inner=64,
    vocab_size=WORDS,
)
enter(
    "gpt2",
    "GPT2LMHeadModel",
    "GPT2Config",
    causal,
    n_embd=32,
    n_layer=2,
    n_head=4,
    vocab_size=WORDS,
    n_positions=64,
)
enter("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", causal, **TEXT)
enter(
    "opt",
    "OPTForCausalLM",
    "OPTConfig",
    masked_causal,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    ffn_dim=64,
    vocab_size=WORDS,
    max_position_embeddings=64,
    word_embed_proj_dim=32,
)
enter(
    "bloom",
    "BloomForCausalLM",
    "BloomConfig",
    masked_causal,
    hidden_size=32,
    n_layer=2,
    n_head=4,
    vocab_size=WORDS,
)
enter(
    "falcon",
    "FalconForCausalLM",
    "FalconConfig",
    causal,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=WORDS,
)
enter("llama", "LlamaForCausalLM", "LlamaConfig", causal, **GPT)
enter("mistral", "MistralForCausalLM", "MistralConfig", causal, **GPT)
enter("mixtral", "MixtralForCausalLM", "MixtralConfig", causal, **GPT, num_local_experts=4)
enter("qwen2", "Qwen2ForCausalLM", "Qwen2Config", causal, **GPT)
enter("qwen3", "Qwen3ForCausalLM", "Qwen3Config", causal, **GPT, head_dim=8)
enter("gemma2", "Gemma2ForCausalLM", "Gemma2Config", causal, **GPT, head_dim=8)
enter("phi3", "Phi3ForCausalLM", "Phi3Config", causal, **GPT, **MARKS)
enter(
    "mamba",
    "MambaForCausalLM",
    "MambaConfig",
    causal,
    hidden_size=32,
    num_hidden_layers=2,
    vocab_size=WORDS,
    state_size=8,
)
enter(
    "t5",
    "T5ForConditionalGeneration",
    "T5Config",
    pair,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    vocab_size=WORDS,
)
enter(
    "bart",
    "BartForConditionalGeneration",
    "BartConfig",
    pair,
    **TWO_STACKS,
    **MARKS,
    vocab_size=WORDS,
    max_position_embeddings=64,
    decoder_start_token_id=2,
    forced_eos_token_id=2,
)
enter(
    "whisper",
    "WhisperForConditionalGeneration",
    "WhisperConfig",
    lambda: {
        "input_features": torch.randn(1, 80, 3000),
        "decoder_input_ids": words(5, 1),
        "use_cache": False,
    },
    **TWO_STACKS,
    **MARKS,
    vocab_size=WORDS,
    decoder_start_token_id=3,
)
enter(
    "wav2vec2",
    "Wav2Vec2Model",
    "Wav2Vec2Config",
    lambda: {"input_values": torch.randn(2, 4000)},
    **TEXT,
    conv_dim=(16,) * 7,
)
enter(
    "vit",
    "ViTForImageClassification",
    "ViTConfig",
    lambda: {"pixel_values": images(32)},
    **SMALL,
    image_size=32,
    patch_size=8,
)
enter(
    "dinov2",
    "Dinov2Model",
    "Dinov2Config",
    lambda: {"pixel_values": images(28)},
    image_size=28,
    patch_size=14,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
)
enter(
    "swin",
    "SwinModel",
    "SwinConfig",
    lambda: {"pixel_values": images(32)},
    image_size=32,
    patch_size=2,
    embed_dim=16,
    depths=[1, 1],
    num_heads=[2, 4],
    window_size=4,
)
enter(
    "convnext", "ConvNextModel", "ConvNextConfig", lambda: {"pixel_values": images(64)}, **PYRAMID
)
enter(
    "segformer",
    "SegformerForSemanticSegmentation",
    "SegformerConfig",
    lambda: {"pixel_values": images(64)},
    **PYRAMID,
    num_attention_heads=[1, 2, 2, 4],
    decoder_hidden_size=32,
)
enter(
    "detr",
    "DetrForObjectDetection",
    "DetrConfig",
    lambda: {"pixel_values": images(64)},
    **TWO_STACKS,
    use_timm_backbone=False,
    use_pretrained_backbone=False,
    num_queries=10,
)
enter(
    "clip",
    "CLIPModel",
    "CLIPConfig",
    lambda: masked() | {"pixel_values": images(32)},
    text_config=TEXT | {"max_position_embeddings": 32, "eos_token_id": 2},
    vision_config=SMALL | {"image_size": 32, "patch_size": 8},
    projection_dim=16,
)


# -- torchvision and timm ------------------------------------------------------------------------


def _torchvision(name: str, size: int) -> Any:
    torchvision = importlib.import_module("torchvision")
    return torchvision.models.get_model(name, weights=None), {"x": images(size)}


def _timm(name: str, size: int) -> Any:
    timm = importlib.import_module("timm")
    return timm.create_model(name, pretrained=False), {"x": images(size)}


for _name in (
    *("alexnet", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "densenet121"),
    *("mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0"),
    *("squeezenet1_1", "mnasnet0_5", "regnet_y_400mf", "convnext_tiny", "swin_t", "swin_v2_t"),
):
    MADE[f"torchvision-{_name}"] = partial(_torchvision, _name, 64)
for _name in (
    *("edgenext_xx_small", "mobilevit_xxs", "ghostnet_050", "repvgg_a0", "poolformer_s12"),
    *("nfnet_l0", "dla34", "hrnet_w18_small"),
):
    MADE[f"timm-{_name}"] = partial(_timm, _name, 64)
