"""What the device CUDA says where it cannot be opened."""

import sys

import pytest

from ferrule.device import Device, DeviceIndexError, DeviceUnavailableError
from ferrule.runtime import cuda
from ferrule.runtime.cuda import compiler, driver


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CUDA:first", "no device CUDA:first: after the colon comes a number, as in CUDA:1"),
        ("CUDA:2", "no device CUDA:2: the GPUs of the CUDA driver are 2"),
    ],
)
def test_a_gpu_has_a_number(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "gpu_count", lambda: 2)
    with pytest.raises(DeviceIndexError, match=message):
        Device[name]


@pytest.fixture
def nothing_remembered() -> None:
    """What was found out about the machine is found out again."""
    driver.bindings.cache_clear()
    driver._initialize.cache_clear()
    compiler._bindings.cache_clear()


@pytest.mark.usefixtures("nothing_remembered")
def test_without_cuda_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    message = r"device CUDA:7 cannot be opened: .* needs cuda-bindings, .*; run: pip install 'ferr"
    with pytest.raises(DeviceUnavailableError, match=message):
        Device["CUDA:7"]


class NoDriver:
    """Bindings that find no driver; which type they raise depends on their version."""

    @staticmethod
    def cuInit(flags: int) -> tuple[int]:
        raise RuntimeError("Failed to dlopen libcuda.so.1")


@pytest.mark.usefixtures("nothing_remembered")
def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "bindings", NoDriver)
    with pytest.raises(OSError, match=r"there is no usable CUDA driver: Failed to dlopen libcuda"):
        driver.open_gpu(0)


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLibrary:
        @staticmethod
        def nvrtcVersion() -> tuple[int]:
            raise RuntimeError("Failed to dlopen libnvrtc.so.13")

    def not_found(name: str) -> str:
        raise compiler.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(compiler.metadata, "version", not_found)
    monkeypatch.setattr(compiler, "_bindings", NoLibrary)
    message = r"NVRTC, the compiler of the device CUDA, cannot be loaded \(.*nvrtc.*\); run: pip"
    with pytest.raises(OSError, match=message):
        compiler.NVRTC()


class OldDriver:
    """A driver of some years ago."""

    @staticmethod
    def cuInit(flags: int) -> tuple[int]:
        return (0,)

    @staticmethod
    def cuDriverGetVersion() -> tuple[int, int]:
        return 0, 12020


@pytest.mark.usefixtures("nothing_remembered")
def test_an_old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "bindings", OldDriver)
    message = r"driver is for CUDA 12\.2; ferrule needs one for CUDA 12\.4 or later, so update it"
    with pytest.raises(OSError, match=message):
        driver.open_gpu(0)
