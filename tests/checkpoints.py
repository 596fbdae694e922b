"""Checkpoints of formats that PyTorch reads and does not write any more, put together by hand."""

import io
import pickle
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FLOATS: Final = tuple(float(number) for number in range(6))

# Key 1, the CPU, and the class of storages; then the number of elements, and these.
STORAGES: Final = (
    pickle.dumps(1, 2)
    + b"\x80\x02(K\x01X\x03\x00\x00\x00cpuctorch\nFloatStorage\nt."
    + struct.pack("<q", len(FLOATS))
    + struct.pack(f"<{len(FLOATS)}f", *FLOATS)
    # Storage 2: from element 2 of storage 1 on, three elements.
    + pickle.dumps([(2, 1, 2, 3)], 2)
)


def tensor(key: int, storage: int, *numbers: int) -> bytes:
    """A tensor in an archive: its axes, then sizes, strides and the offset."""
    named = bytes([ord("K"), key, ord("K"), storage])
    axes = len(numbers) // 2
    head = b"\x80\x02(" + named + b"ctorch\nFloatTensor\nt."
    return head + struct.pack(f"<{len(numbers) + 1}q", axes, *numbers)


TENSORS: Final = pickle.dumps(2, 2) + tensor(5, 1, 2, 3, 1, 2, 0) + tensor(6, 2, 2, 1, 1)
# {"turned": tensor 5, "part": tensor 6}
OBJECT: Final = (
    b"\x80\x02}(X\x06\x00\x00\x00turnedX\x01\x00\x00\x005Q"
    b"X\x04\x00\x00\x00partX\x01\x00\x00\x006Qu."
)
MEMBERS: Final = {"storages": STORAGES, "tensors": TENSORS, "pickle": OBJECT}


def tar_checkpoint(path: Path, members: Mapping[str, bytes] = MEMBERS) -> None:
    """Write a checkpoint as PyTorch before 0.1.10 did."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


MAGIC: Final = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
SYSTEM: Final = pickle.dumps({"little_endian": True}, 2)
# A tensor of two elements from element 1 of storage "s", whose four come behind.
STREAMED: Final = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nIntStorage\n"
    b"X\x01\x00\x00\x00sX\x03\x00\x00\x00cpuK\x04NtQK\x01K\x02\x85K\x01\x85\x89Nt"
    b"R."
)
KEYS: Final = pickle.dumps(["s"], 2)
CONTENTS: Final = struct.pack("<q4i", 4, 10, 11, 12, 13)
