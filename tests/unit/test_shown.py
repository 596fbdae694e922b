"""What `repr` shows of layers: settings, shapes of tensors, and the layers in them."""

from typing import Any

from ferrule import Tensor, nn


def test_settings_on_one_line() -> None:
    assert repr(nn.Linear(3, 2)) == "Linear(in_features=3, out_features=2, bias=True)"
    assert repr(nn.Linear(3, 2, bias=False)) == "Linear(in_features=3, out_features=2, bias=False)"
    assert repr(nn.Dropout(0.1)) == "Dropout(p=0.1, inplace=False)"
    loss: Any = nn.CrossEntropyLoss(weight=Tensor([1.0, 2.0]))
    assert repr(loss) == "CrossEntropyLoss(weight=(2,))"
    assert repr(nn.Sequential()) == "Sequential()"
    assert repr(nn.ModuleList()) == "ModuleList()"
    assert repr(nn.Identity(1, named=2)) == "Identity()"


def test_settings_that_are_defaults_are_left_out() -> None:
    start = "Conv2d(4, 8, kernel_size=(3, 3), stride=(1, 1)"
    assert repr(nn.Conv2d(4, 8, 3)) == f"{start})"
    assert repr(nn.Conv2d(4, 8, 3, padding=1, groups=2, bias=False)) == (
        f"{start}, padding=(1, 1), groups=2, bias=False)"
    )
    assert repr(nn.RNNCell(4, 8, bias=False)) == "RNNCell(4, 8, bias=False)"
    assert repr(nn.LSTMCell(4, 8)) == "LSTMCell(4, 8)"
    assert repr(nn.LSTM(4, 8, batch_first=True)) == "LSTM(4, 8, batch_first=True)"


def test_sizes_are_those_of_the_weight() -> None:
    linear, table = nn.Linear(3, 2), nn.Embedding(5, 4)
    assert (linear.in_features, linear.out_features) == (3, 2)
    assert (table.num_embeddings, table.embedding_dim) == (5, 4)
    linear.weight = Tensor.zeros(2, 7)
    assert linear.in_features == 7


def test_a_layer_with_a_new_class_shows_all_its_attributes() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            for number in range(20):
                setattr(self, f"setting{number}", number)

    lines = repr(Wide()).splitlines()
    assert lines[:2] == ["Wide(", "  setting0=0,"]
    assert len(lines) == 22


def test_layers_in_layers_are_indented() -> None:
    inner = nn.Sequential(nn.Conv1d(1, 8, 3, padding=1))
    assert repr(nn.Sequential(nn.Linear(4, 8), Tensor.tanh, inner)) == (
        "Sequential(\n"
        "  (0): Linear(in_features=4, out_features=8, bias=True)\n"
        "  (1): tanh\n"
        "  (2): Sequential(\n"
        "    (0): Conv1d(1, 8, kernel_size=(3,), stride=(1,), padding=(1,))\n"
        "  )\n"
        ")"
    )


def test_equal_neighbours_in_a_list_have_one_line() -> None:
    layers = nn.ModuleList([nn.ReLU(), nn.ReLU(), nn.Tanh(), nn.ReLU()])
    assert repr(layers) == "ModuleList(\n  (0-1): 2 x ReLU()\n  (2): Tanh()\n  (3): ReLU()\n)"
    shown = repr(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2))
    assert shown.startswith(
        "TransformerEncoder(\n  (layers): ModuleList(\n    (0-1): 2 x TransformerEncoderLayer(\n"
    )
    assert shown.count("(norm2): LayerNorm((8,), eps=1e-05, elementwise_affine=True)") == 1


def test_every_layer_has_a_text_of_its_own() -> None:
    for name in nn.__all__:
        kind = getattr(nn, name)
        if isinstance(kind, type) and name[0].isupper() and name != "Parameter":
            assert kind.__repr__ is not object.__repr__, name
