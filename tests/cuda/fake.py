"""The fake driver: a stand-in for NVIDIA's that runs kernels on the processor.

`load` has to be called before anything else asks for `libcuda.so.1`, so it is for processes of its
own (`tests/cuda/plugin.py`). `FakeToolchain` takes NVRTC's place: a C++ compiler that is given the
same text.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).parent
_DRIVER = _HERE / "fake_driver.cpp"
_BLOCK = _HERE / "fake_block.h"
_DEVICE = _HERE / "fake_device.h"
_MAGIC = b"FAKECUBN"
_HEAD = struct.Struct("<8s8sQ")  # the magic, the architecture, the length of the library
_COMPILER = "g++"
_DRIVER_FLAGS = ("-O1", "-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
_KERNEL_FLAGS = (
    *("-O1", "-std=c++17", "-shared", "-fPIC", "-w", "-march=native"),
    *("-ffp-contract=off", "-fno-strict-aliasing", "-fno-exceptions", "-fno-rtti"),
    "-nostdlib",  # what a kernel needs is in the fake driver's process
    "-fsanitize=alignment",
)
_KERNEL = re.compile(
    r'extern "C" __global__ void(?:\s+__launch_bounds__\((\d+)[\d, ]*\))?\s+(\w+)\s*\('
)
_MOST_THREADS = "1024"


def missing() -> str:
    """Why the fake driver cannot be used here; empty if it can."""
    if shutil.which(_COMPILER) is None:
        return f"{_COMPILER} is not installed"
    try:
        import cuda.bindings.driver
        import cuda.pathfinder
    except ImportError as error:
        return f"cuda-bindings cannot be imported: {error}"
    assert cuda.bindings.driver
    if cuda.pathfinder.find_nvidia_header_directory("cudart") is None:
        return "the headers of CUDA are not installed"
    return ""


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        # Not above: ferrule reads its settings when it is imported, and tests set some before.
        from ferrule.device import CompileError

        raise CompileError(f"{_COMPILER}: {done.stderr}")


def _folder() -> Path:
    """Where what was built is kept: for this version of the sources, and this user."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (_DRIVER, _BLOCK, _DEVICE)))
    for flag in _DRIVER_FLAGS:
        digest.update(flag.encode())
    name = f"ferrule-fake-driver-{os.getuid()}-{digest.hexdigest()[:16]}"
    folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _built(name: str, command: list[str]) -> Path:
    """A file of the folder, made by `command` where it is not there yet."""
    path = _folder() / name
    if not path.exists():
        # Under another name first: several processes may do this at once.
        part = path.with_name(f"{os.getpid()}-{name}")
        _run([*command, "-o", str(part)])
        part.rename(path)
    return path


def build() -> Path:
    """The fake driver's library, `libcuda.so.1`."""
    from cuda.pathfinder import find_nvidia_header_directory

    include = find_nvidia_header_directory("cudart")
    command = [_COMPILER, *_DRIVER_FLAGS, f"-I{include}", str(_DRIVER), "-ldl", "-lm"]
    return _built("libcuda.so.1", command)


class FakeDriver:
    """What tests can ask of the fake driver beside what a driver does."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name in ("calls", "alive"):
            getattr(library, f"fake_{name}").restype = ctypes.c_long
        for name in ("report", "ran", "complaints"):
            getattr(library, f"fake_{name}").restype = ctypes.c_char_p
        for name in ("pending", "used"):
            getattr(library, f"fake_{name}").restype = ctypes.c_size_t

    def calls(self, name: str) -> int:
        """How often a function was called."""
        return int(self._library.fake_calls(name.encode()))

    def alive(self, kind: str) -> int:
        """How many there are of memory, pinned, streams, events, modules, graphs, executables."""
        count = int(self._library.fake_alive(kind.encode()))
        assert count >= 0, f"the fake driver has no {kind}"
        return count

    def fail(self, name: str, code: int, after: int = 0) -> None:
        """Lets a function fail once, after so many good calls."""
        self._library.fake_fail(name.encode(), code, ctypes.c_long(after))

    def set_memory(self, nbytes: int) -> None:
        """How much memory each GPU has."""
        self._library.fake_set_memory(ctypes.c_size_t(nbytes))

    def used_memory(self) -> int:
        """How much of the first GPU's memory is in use."""
        return int(self._library.fake_used())

    def reset(self) -> None:
        """Forgets failed kernels, and failures that were ordered and did not happen."""
        self._library.fake_reset()

    def complaints(self) -> list[str]:
        """What went wrong without anybody being told, since the last `reset`."""
        text: bytes = self._library.fake_complaints()
        return text.decode().splitlines()

    def pending(self) -> int:
        """How much is queued and not done."""
        return int(self._library.fake_pending())

    def ran(self) -> list[str]:
        """The kernels, with their sizes, and the copies that ran since this was asked last."""
        text: bytes = self._library.fake_ran()
        return text.decode().splitlines()


_loaded: list[FakeDriver] = []


def load(devices: int = 2) -> FakeDriver:
    """Makes the fake driver the one that this process finds."""
    if not _loaded:
        library = ctypes.CDLL(str(build()), ctypes.RTLD_GLOBAL)
        library.fake_set_devices(devices)
        _loaded.append(FakeDriver(library))
    return _loaded[0]


def loaded() -> FakeDriver | None:
    """The fake driver, if this process uses it."""
    return _loaded[0] if _loaded else None


class FakeToolchain:
    """A C++ compiler in place of NVRTC."""

    version = f"{_KERNEL_FLAGS} {hashlib.sha256(_DEVICE.read_bytes()).hexdigest()}"

    def build(self, source: str, arch: str, options: Sequence[str]) -> bytes:
        """What the fake driver loads: a library that has the kernels of `source`."""
        defines = [option.split("=", 1)[1] for option in options if "define-macro" in option]
        found = _KERNEL.findall(source)
        kernels = "\n".join(f"FAKE_KERNEL({name}, {most or _MOST_THREADS})" for most, name in found)
        with tempfile.TemporaryDirectory() as folder:
            text, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
            text.write_text(f"{source}\n{kernels}\n")
            command = [_COMPILER, *_KERNEL_FLAGS, *[f"-D{define}" for define in defines]]
            _run([*command, "-include", str(_DEVICE), str(text), "-o", str(library)])
            contents = library.read_bytes()
        return _HEAD.pack(_MAGIC, arch.encode(), len(contents)) + contents


def install() -> FakeDriver:
    """Loads the fake driver, and lets the devices CUDA and CUDA:1 compile for it."""
    driver = load()
    from ferrule.runtime import cuda

    cuda.toolchain = FakeToolchain
    return driver
