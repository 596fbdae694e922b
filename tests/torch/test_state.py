"""PyTorch's checkpoints, as PyTorch writes them."""

import json
import math
from argparse import Namespace
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints import tar_checkpoint

from ferrule import Tensor, dtypes, nn
from ferrule.nn.state import StateError, load_state_dict, torch_load, torch_save

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


def test_models_are_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 3), tmp_path / "x.pt")
    with pytest.raises(StateError, match=r"needs torch.nn.modules.linear.Linear: only tensors"):
        torch_load(tmp_path / "x.pt")


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


# -- older formats, and TorchScript --------------------------------------------------------------


@pytest.mark.parametrize("name", ["bool", "uint8", "int64", "float16", "bfloat16", "float64"])
def test_files_from_before_1_6(name: str, tmp_path: Path) -> None:
    whole = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, name))
    saved = {
        "whole": whole,
        "part": whole[1:, ::2, 1:3],
        "again": [whole.permute(2, 0, 1), "text", 3],
        "parameter": torch.nn.Parameter(whole.float()),
    }
    torch.save(saved, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    loaded = torch_load(tmp_path / "x.pt")
    assert loaded["again"][1:] == ["text", 3]
    assert loaded["whole"].dtype is dtypes.from_name(name)
    for found, expected in (
        *((loaded[key], saved[key]) for key in ("whole", "part", "parameter")),
        (loaded["again"][0], saved["again"][0]),
    ):
        np.testing.assert_array_equal(
            found.float().numpy(), expected.detach().float().contiguous().numpy()
        )


def test_a_state_from_before_1_6_is_loaded_into_a_model(tmp_path: Path) -> None:
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    torch.save(theirs.state_dict(), tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    ours = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    load_state_dict(ours, torch_load(tmp_path / "x.pt"))
    np.testing.assert_array_equal(ours[0].weight.numpy(), theirs[0].weight.detach().numpy())


def test_the_archive_from_before_0_1_10_is_pytorchs(tmp_path: Path) -> None:
    """PyTorch reads what the test of the format writes by hand."""
    path = tmp_path / "x.pt"
    tar_checkpoint(path)
    theirs, ours = torch.load(path, weights_only=False), torch_load(path)
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(ours[name].numpy(), tensor.numpy())


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_parameters_of_torchscript(how: str, tmp_path: Path) -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    model = torch.nn.Sequential(inner, torch.nn.ReLU(), torch.nn.Linear(3, 2, bias=False)).eval()
    x = torch.ones(2, 4)
    made = torch.jit.script(model) if how == "script" else torch.jit.trace(model, x)
    torch.jit.save(made, tmp_path / "x.pt")
    loaded = torch_load(tmp_path / "x.pt")
    assert list(loaded) == list(model.state_dict())
    ours = nn.Sequential(
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), nn.ReLU(), nn.Linear(3, 2, bias=False)
    )
    ours.load_state_dict(loaded)
    expected = model(x).detach().numpy()
    np.testing.assert_allclose(ours.eval()(Tensor.ones(2, 4)).numpy(), expected, atol=1e-6)


# -- what ferrule writes -------------------------------------------------------------------------


@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
@pytest.mark.parametrize("name", DTYPES.split())
def test_pytorch_reads_every_dtype(name: str, mmap: bool, tmp_path: Path) -> None:
    dtype = dtypes.from_name(name.removesuffix("fn"))
    tensors = {
        "x": Tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0]]).cast(dtype),
        "empty": Tensor.zeros(0, 3, dtype=dtype),
        "one": Tensor(1.0).cast(dtype),
        "wide": Tensor([1.0]).cast(dtype).expand(4),
    }
    torch_save(tensors, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=True, mmap=mmap)
    for key, tensor in tensors.items():
        assert loaded[key].dtype is getattr(torch, name)
        assert tuple(loaded[key].shape) == tensor.shape
        elements = loaded[key].contiguous().reshape(-1)
        assert elements.view(torch.uint8).numpy().tobytes() == tensor.tobytes()


def test_pytorch_sees_which_tensors_share_memory(tmp_path: Path) -> None:
    x = Tensor(np.arange(24.0).reshape(2, 3, 4)).realize()
    views = {"x": x, "turned": x.permute(2, 0, 1), "part": x[1:, ::2, 1:3], "flipped": x[::-1]}
    torch_save({**views, "same": x}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    for name, view in views.items():
        np.testing.assert_array_equal(loaded[name].numpy(), view.numpy())
    memory = {name: tensor.untyped_storage().data_ptr() for name, tensor in loaded.items()}
    assert memory["x"] == memory["turned"] == memory["part"] != memory["flipped"]
    assert loaded["same"] is loaded["x"]


def test_a_part_alone_takes_its_own_bytes(tmp_path: Path) -> None:
    torch_save(Tensor.rand(10_000).realize()[:3], tmp_path / "x.pt")
    assert (tmp_path / "x.pt").stat().st_size < 2000
    assert torch.load(tmp_path / "x.pt", weights_only=True).shape == (3,)


def test_models_and_optimisers_go_both_ways(tmp_path: Path) -> None:
    ours = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    ours[0].weight.requires_grad_()
    optimizer = nn.optim.AdamW(ours.parameters(), lr=0.25)
    with Tensor.train():
        ours(Tensor.rand(2, 3, 5, 5)).square().sum().backward()
    optimizer.step()
    torch_save({"model": ours.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    theirs.load_state_dict(loaded["model"])
    np.testing.assert_array_equal(ours[0].weight.numpy(), theirs[0].weight.detach().numpy())
    their_optimizer = torch.optim.AdamW(theirs.parameters())
    their_optimizer.load_state_dict(loaded["optimizer"])
    assert their_optimizer.param_groups[0]["lr"] == 0.25
    moments = their_optimizer.state[theirs[0].weight]["exp_avg"].numpy()
    np.testing.assert_array_equal(moments, optimizer.state[0]["exp_avg"].numpy())


def test_plain_values_arrive(tmp_path: Path) -> None:
    values = {
        "numbers": [0, -1, 2**31, -(2**40), 2**200, 1.5, math.inf, True, False, None],
        "texts": ("", "ä", "x" * 300, b"\xff\x00", ()),
        "ordered": OrderedDict(b=1, a={}),
        3: np.float32(2.5).item(),
    }
    values["again"] = values["numbers"]
    torch_save(values, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    assert loaded == values
    assert loaded["again"] is loaded["numbers"]
    assert list(loaded["ordered"]) == ["b", "a"]
    assert torch_load(tmp_path / "x.pt") == values


def test_parameters_keep_that_they_are_trained(tmp_path: Path) -> None:
    torch_save([Tensor([1.0], requires_grad=True), Tensor([1.0])], tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    assert [tensor.requires_grad for tensor in loaded] == [True, False]
