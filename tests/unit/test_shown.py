"""What `repr` shows of layers: settings, shapes of tensors, and the layers in them."""

from typing import Any

from ferrule import Tensor, nn


def test_settings_and_shapes_on_one_line() -> None:
    assert repr(nn.Linear(3, 2)) == "Linear(weight=(2, 3), bias=(2,))"
    assert repr(nn.Linear(3, 2, bias=False)) == "Linear(weight=(2, 3), bias=None)"
    assert repr(nn.Dropout(0.1)) == "Dropout(p=0.1, inplace=False)"
    loss: Any = nn.CrossEntropyLoss(weight=Tensor([1.0, 2.0]))
    assert repr(loss).startswith("CrossEntropyLoss(weight=(2,), ignore_index=-100, ")
    assert repr(nn.Sequential()) == "Sequential()"
    assert repr(nn.Identity(1, named=2)) == "Identity()"


def test_layers_in_layers_are_indented() -> None:
    inner = nn.Sequential(nn.Conv1d(1, 8, 3, padding=1))
    assert repr(nn.Sequential(nn.Linear(4, 8), Tensor.tanh, inner)) == (
        "Sequential(\n"
        "  (0): Linear(weight=(8, 4), bias=(8,))\n"
        "  (1): tanh\n"
        "  (2): Sequential(\n"
        "    (0): Conv1d(\n"
        "      in_channels=1,\n"
        "      out_channels=8,\n"
        "      kernel_size=(3,),\n"
        "      stride=(1,),\n"
        "      dilation=(1,),\n"
        "      groups=1,\n"
        "      padding_mode='zeros',\n"
        "      padding=(1,),\n"
        "      weight=(8, 1, 3),\n"
        "      bias=(8,),\n"
        "    )\n"
        "  )\n"
        ")"
    )


def test_lists_of_layers() -> None:
    shown = repr(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2))
    assert shown.startswith(
        "TransformerEncoder(\n  norm=None\n  (layers): ModuleList(\n    (0): Trans"
    )
    assert (
        shown.count("(norm2): LayerNorm(normalized_shape=(8,), eps=1e-05, weight=(8,), bias") == 2
    )


def test_every_layer_has_a_text_of_its_own() -> None:
    for name in nn.__all__:
        kind = getattr(nn, name)
        if isinstance(kind, type) and name[0].isupper() and name != "Parameter":
            assert kind.__repr__ is not object.__repr__, name
