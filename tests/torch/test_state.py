"""PyTorch's checkpoints, as PyTorch writes them."""

import json
from argparse import Namespace
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrule import dtypes, nn
from ferrule.nn.state import StateError, load_state_dict, torch_load

torch = pytest.importorskip("torch")

DTYPES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 "
    "float8_e4m3fn float8_e5m2"
)


@pytest.mark.parametrize("name", DTYPES.split())
def test_dtypes(name: str, tmp_path: Path) -> None:
    tensor = torch.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0]]).to(getattr(torch, name))
    torch.save({"x": tensor, "empty": tensor[:0], "one": tensor[0, 1]}, tmp_path / "x.pt")
    loaded = torch_load(tmp_path / "x.pt")
    assert loaded["x"].dtype is dtypes.from_name(name.removesuffix("fn"))
    assert loaded["x"].numpy().tobytes() == tensor.view(torch.uint8).numpy().tobytes()
    assert loaded["empty"].shape == (0, 3)
    assert loaded["one"].item() == 1


def test_views_and_shared_storages(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(2, 3, 4)
    views = {
        "whole": whole,
        "turned": whole.permute(2, 0, 1),
        "part": whole[1:, ::2, 1:3],
        "repeated": whole[0, 0, :1].expand(5),
        "parameter": torch.nn.Parameter(whole[0]),
    }
    torch.save(views, tmp_path / "x.pt")
    for name, tensor in torch_load(tmp_path / "x.pt").items():
        np.testing.assert_array_equal(tensor.numpy(), views[name].detach().numpy())


def test_a_state_dict_is_loaded_into_a_model(tmp_path: Path) -> None:
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    torch.save(theirs.state_dict(), tmp_path / "x.pt")
    ours = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    loaded = torch_load(tmp_path / "x.pt")
    assert isinstance(loaded, OrderedDict)
    load_state_dict(ours, loaded)
    np.testing.assert_array_equal(ours[0].weight.numpy(), theirs[0].weight.detach().numpy())


def test_a_state_dict_is_loaded_without_a_file() -> None:
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).bfloat16()
    ours = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    load_state_dict(ours, theirs.state_dict())
    np.testing.assert_array_equal(ours[0].weight.numpy(), theirs[0].weight.detach().float().numpy())


def test_an_optimisers_state_is_continued(tmp_path: Path) -> None:
    param = torch.ones(3, requires_grad=True)
    theirs = torch.optim.AdamW([param], lr=0.1)
    param.grad = torch.ones(3)
    theirs.step()
    torch.save({"optimizer": theirs.state_dict(), "epoch": 3}, tmp_path / "x.pt")
    loaded: Any = torch_load(tmp_path / "x.pt")
    assert loaded["epoch"] == 3
    ours = nn.optim.AdamW([nn.Linear(3, 1, bias=False).weight.reshape(3).detach()])
    ours.load_state_dict(loaded["optimizer"])
    assert ours.lr.item() == np.float32(0.1)


def test_models_and_old_formats_are_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 3), tmp_path / "x.pt")
    with pytest.raises(StateError, match=r"needs torch.nn.modules.linear.Linear: only tensors"):
        torch_load(tmp_path / "x.pt")
    torch.save({"x": torch.ones(2)}, tmp_path / "y.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(StateError, match="bare pickle, as PyTorch wrote before"):
        torch_load(tmp_path / "y.pt")


def test_a_negative_that_pytorch_did_not_compute(tmp_path: Path) -> None:
    """Its storage has the opposite of its elements, and a mark says so."""
    tensor = torch._neg_view(torch.tensor([1.0, -2.0]))
    torch.save({"x": tensor}, tmp_path / "x.pt")
    assert torch_load(tmp_path / "x.pt")["x"].tolist() == tensor.tolist() == [-1.0, 2.0]


def test_what_training_scripts_save_beside_tensors(tmp_path: Path) -> None:
    buffer = torch.nn.Buffer(torch.ones(2))
    saved = {
        "args": Namespace(lr=0.1, path=tmp_path),
        "best": np.float64(0.5),
        "device": torch.device("cuda:1"),
        "seen": {1, 2},
        "counts": Counter("aab"),
        "bytes": b"xy",
        "model": {"buffer": buffer, "parameter": torch.nn.Parameter(torch.ones(1))},
    }
    torch.save(saved, tmp_path / "x.pt")
    loaded = torch_load(tmp_path / "x.pt")
    args = loaded.pop("args")
    assert repr(args) == "<unread argparse.Namespace>"
    with pytest.raises(AttributeError, match="has no attribute 'lr': only tensors, numbers"):
        _ = args.lr
    model = loaded.pop("model")
    assert {name: tensor.tolist() for name, tensor in model.items()} == {
        "buffer": [1.0, 1.0],
        "parameter": [1.0],
    }
    assert loaded == {
        "best": 0.5,
        "device": "cuda:1",
        "seen": {1, 2},
        "counts": {"a": 2, "b": 1},
        "bytes": b"xy",
    }


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (lambda: torch.ones(2, dtype=torch.complex64), r"save torch\.view_as_real\(x\)"),
        (lambda: torch.eye(2).to_sparse(), r"save x\.to_dense\(\)"),
        (lambda: torch.empty(2, device="meta"), "without values, on the device meta"),
    ],
)
def test_tensors_that_are_none_here_are_refused(tensor: Any, text: str, tmp_path: Path) -> None:
    torch.save({"x": tensor()}, tmp_path / "x.pt")
    with pytest.raises(StateError, match=text):
        torch_load(tmp_path / "x.pt")


def test_a_checkpoint_in_several_files(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "1.bin")
    torch.save({"b": torch.zeros(1)}, tmp_path / "2.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.bin", "b": "2.bin"}}))
    loaded = torch_load(index)
    assert {name: x.tolist() for name, x in loaded.items()} == {"a": [1.0, 1.0], "b": [0.0]}
