"""PyTorch's older formats, and hostile files of them: an error of one line, and nothing runs."""

import pickle
import struct
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoints import (
    CONTENTS,
    KEYS,
    MAGIC,
    MEMBERS,
    OBJECT,
    STORAGES,
    STREAMED,
    SYSTEM,
    TENSORS,
    tar_checkpoint,
    tensor,
)

from ferrule import Tensor, nn
from ferrule.nn.state import StateError, torch_load, torch_save

WHOLE = MAGIC + SYSTEM + STREAMED + KEYS + CONTENTS


def test_several_pickles_in_a_row(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(WHOLE)
    assert torch_load(tmp_path / "x.pt").tolist() == [11, 12]


def test_a_tar_archive(tmp_path: Path) -> None:
    tar_checkpoint(tmp_path / "x.pt")
    loaded = torch_load(tmp_path / "x.pt")
    assert loaded["turned"].tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
    assert loaded["part"].tolist() == [3.0, 4.0]


def refused(path: Path, text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(StateError, match=text) as found:
        torch_load(path)
    assert "\n" not in str(found.value)
    assert time.perf_counter() - start < 5


OTHER_ORDER = pickle.dumps({"little_endian": False}, 2)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (MAGIC, "its pickle is damaged"),
        (MAGIC[:12] + MAGIC[12:].replace(b"\xe9\x03", b"\xea\x03"), "its pickle is damaged"),
        (MAGIC.replace(b"\xe9\x03", b"\xea\x03") + WHOLE[len(MAGIC) :], "is of version 1002"),
        (MAGIC + OTHER_ORDER + WHOLE[len(MAGIC + SYSTEM) :], "another order of bytes"),
        (MAGIC + b"\x80\x02cos\nsystem\n." + STREAMED, "os.system has no place here"),
        (MAGIC + SYSTEM + STREAMED, "its pickle is damaged"),
        (MAGIC + SYSTEM + STREAMED + pickle.dumps(3), "there is no list of storages"),
        (MAGIC + SYSTEM + STREAMED + pickle.dumps([]), "there is no storage s"),
        (MAGIC + SYSTEM + STREAMED + pickle.dumps(["t"]) + CONTENTS, "belongs to nothing"),
        (WHOLE[:-1], "storage s is not whole"),
        (WHOLE[:-24] + struct.pack("<q4i", 5, 1, 2, 3, 4), "storage s is not whole"),
        (WHOLE[:-24] + struct.pack("<q4i", -1, 1, 2, 3, 4), "storage s is not whole"),
        (WHOLE.replace(b"K\x04NtQK\x01", b"K\x04NtQK\x03"), "a tensor reaches beyond storage s"),
        (WHOLE.replace(b"K\x02\x85K\x01\x85", b"K\x02\x85K\xff\x85"), "a tensor reaches beyond"),
        (
            WHOLE.replace(b"K\x04NtQ", b"J\xff\xff\xff\x7fNtQ"),
            "storage s is not whole",
        ),
        (WHOLE.replace(b"K\x04NtQ", b"J\xff\xff\xff\xffNtQ"), "is no storage"),
        (
            WHOLE.replace(b"K\x04NtQ", b"K\x04(X\x01\x00\x00\x00vK\x03K\x02ttQ"),
            "a part of storage s reaches beyond it",
        ),
    ],
)
def test_damaged_files_of_several_pickles(data: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(data)
    refused(tmp_path / "x.pt", text)


def counted(count: int, rest: bytes) -> bytes:
    return pickle.dumps(count, 2) + rest


ONE = TENSORS.removeprefix(pickle.dumps(2, 2))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"tensors": None}, "there is no tensors"),
        ({"storages": STORAGES[:40]}, "its pickle is damaged|is not whole"),
        ({"storages": counted(1 << 30, STORAGES[5:])}, "its pickle is damaged|has no type"),
        ({"storages": STORAGES.replace(struct.pack("<q", 6), struct.pack("<q", 1 << 60))}, "whole"),
        ({"storages": STORAGES.replace(struct.pack("<q", 6), struct.pack("<q", -6))}, "-6 is no"),
        (
            {"storages": STORAGES.replace(b"K\x02K\x01K\x02K\x03", b"K\x02K\x01K\x05K\x03")},
            "beyond",
        ),
        ({"tensors": counted(1, tensor(5, 1, 2, 4, 1, 2, 0))}, "a tensor reaches beyond storage 1"),
        ({"tensors": counted(1, tensor(5, 1, 2, 3, 1, -2, 0))}, "has shape"),
        ({"tensors": counted(1, ONE[:30] + struct.pack("<q", 1 << 40))}, "its pickle is damaged"),
        ({"tensors": counted(1, tensor(5, 9, 2, 3, 1, 2, 0))}, "its pickle is damaged"),
        ({"pickle": OBJECT.replace(b"6Q", b"7Q")}, "its pickle is damaged"),
        ({"pickle": b"\x80\x02cos\nsystem\n."}, "holds <unread os.system> and no tensors by name"),
    ],
)
def test_damaged_tar_archives(changed: dict[str, Any], text: str, tmp_path: Path) -> None:
    members = {name: data for name, data in {**MEMBERS, **changed}.items() if data is not None}
    tar_checkpoint(tmp_path / "x.pt", members)
    refused(tmp_path / "x.pt", text)


def test_a_tar_archive_that_ends_early(tmp_path: Path) -> None:
    tar_checkpoint(tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    for size in (512, 700, 1024, 2000):
        (tmp_path / "x.pt").write_bytes(data[:size])
        refused(tmp_path / "x.pt", "x.pt")


def test_nothing_in_old_files_is_executed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    call = f"cos\nsystem\n(Vtouch {made}\ntR".encode()
    (tmp_path / "x.pt").write_bytes(MAGIC + SYSTEM + call + b"." + pickle.dumps([]))
    refused(tmp_path / "x.pt", "holds <unread os.system> and no tensors")
    tar_checkpoint(tmp_path / "y.pt", {**MEMBERS, "storages": call + b"."})
    refused(tmp_path / "y.pt", "its pickle is damaged")
    assert not made.exists()


# -- TorchScript ---------------------------------------------------------------------------------


def test_torchscript_that_holds_itself(tmp_path: Path) -> None:
    body = b"\x80\x02c__torch__\nNet\n)\x81q\x00}(X\x04\x00\x00\x00selfh\x00ub."
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", body)
    refused(tmp_path / "x.pt", "self... is in itself, or nested too deeply")


# -- what is written -----------------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    torch_save({"model": model.state_dict(), "epoch": 3}, tmp_path / "x.pt")
    loaded = torch_load(tmp_path / "x.pt")
    assert loaded["epoch"] == 3
    for name, value in model.state_dict().items():
        assert np.array_equal(loaded["model"][name].numpy(), value.numpy())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"x": np.zeros(2)}, r"torch_save: \['x'\] is ndarray, .*; make it one: Tensor\(x\)"),
        ([1, {2}], r"torch_save: \[1\] is set, neither a tensor, a number, a string"),
        ({"model": nn.Linear(1, 1)}, r"\['model'\] is Linear, .*; save its state_dict\(\)"),
        ({(lambda: 0): 1}, "a key of the dict is function"),
        (1 << 3000, "a whole number of 376 bytes is too long"),
    ],
)
def test_what_cannot_be_saved_is_named(value: Any, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(b"before")
    with pytest.raises(StateError, match=text):
        torch_save(value, path)
    assert path.read_bytes() == b"before"


def test_values_in_themselves_are_refused(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(StateError, match="is nested too deeply, or in itself"):
        torch_save(value, tmp_path / "x.pt")


def test_a_file_stays_if_its_replacement_fails(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch_save(Tensor([1.0]), path)
    with pytest.raises(FileNotFoundError):
        torch_save(Tensor([2.0]), tmp_path / "nothing" / "x.pt")
    assert torch_load(path).tolist() == [1.0]
    assert [file.name for file in tmp_path.iterdir()] == ["x.pt"]
