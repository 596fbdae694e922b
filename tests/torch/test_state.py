"""PyTorch's checkpoints, as PyTorch writes them."""

from collections import OrderedDict
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
    with pytest.raises(StateError, match=r"needs torch.nn.modules.linear.Linear, and only tensors"):
        torch_load(tmp_path / "x.pt")
    torch.save({"x": torch.ones(2)}, tmp_path / "y.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(StateError, match="bare pickle, as PyTorch wrote before"):
        torch_load(tmp_path / "y.pt")
