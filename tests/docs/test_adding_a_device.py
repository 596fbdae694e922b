"""The device of `docs/adding-a-device.md`, installed as a package of somebody else."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.docs.test_blocks import ROOT, blocks_of
from tests.kernels import CASES, Case, make_inputs

from ferrule import Device, TinyJit
from ferrule.base.config import Context
from ferrule.device import Compiled, Compiler, DeviceUnavailableError
from ferrule.dtype import dtypes
from ferrule.ir.buffer import Buffer, allocators
from ferrule.tensor import Tensor

*PARTS, USE, C = [block.code for block in blocks_of(ROOT / "docs" / "adding-a-device.md")]
TOY = "\n".join(PARTS)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names of the page's code, but for what registers a device."""
    names: dict[str, Any] = {"__name__": "toy"}
    definitions, registered, _ = C.partition("Device.register")
    assert registered
    exec(compile(TOY + definitions, "toy.py", "exec"), names)
    return names


@pytest.fixture(scope="module")
def toy(page: dict[str, Any]) -> Compiled:
    opened = page["device"]("TOY")
    assert isinstance(opened, Compiled)
    return opened


@pytest.fixture
def registered(
    toy: Compiled, page: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The page's devices are known, in this test alone."""
    monkeypatch.setattr(Device, "_registered", {})
    monkeypatch.setattr(Device, "_opened", dict(Device._opened))
    Device.register("toy", lambda name: toy)
    Device.register("C", page["c_device"])
    yield
    for name in ("TOY", "C"):
        allocators.pop(name, None)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's package as pip would have left it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "ferrule_toy.py").write_text(TOY)
    about = folder / "ferrule_toy-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ferrule-toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ferrule.devices]\nTOY = ferrule_toy:device\n")
    return folder


def test_it_is_as_short_as_promised() -> None:
    assert len([line for line in TOY.splitlines() if line.strip()]) < 100
    assert "Device.register" in USE


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_give_the_numbers_of_numpy(case: Case) -> None:
    compare_with_numpy("TOY", case)


@pytest.mark.usefixtures("registered")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")
@pytest.mark.parametrize("name", ["softmax", "matmul", "scatter"])
def test_kernels_in_c_do_so_too(name: str) -> None:
    compare_with_numpy("C", next(case for case in CASES if case.name == name))


def compare_with_numpy(device: str, case: Case) -> None:
    inputs = make_inputs(case)
    expected = np.asarray(case.expected(*inputs)).ravel()
    buffers = [Buffer(device, expected.size, dtypes.float32)]
    buffers += [Buffer.fromCPU(device, x) for x in inputs]
    Device[device].get_runner(case.ast).exec(buffers)
    np.testing.assert_allclose(buffers[0].toCPU(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("registered")
def test_tensors_gradients_and_captures() -> None:
    with Context(FERRULE_DEVICE="toy"):
        x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        x.exp().sum().backward()
        assert x.grad is not None
        assert x.grad.device == "TOY"
        np.testing.assert_allclose(x.grad.numpy(), np.exp(x.numpy()), rtol=1e-6)
        doubled = TinyJit(lambda x: (x * 2).realize())
        for number in range(4):
            assert doubled(Tensor([number]).realize()).tolist() == [2 * number]


def python(folder: Path, *arguments: str) -> str:
    """What Python prints where the package is installed."""
    paths = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT / 'src')!r}]; "
    command = [sys.executable, "-c", paths + arguments[0], *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installed_package_makes_its_device_known(installed: Path) -> None:
    code = (
        "from ferrule import Device, Tensor, Context\n"
        "assert 'TOY' in Device.names() and 'ferrule_toy' not in sys.modules\n"
        "with Context(FERRULE_DEVICE='toy'):\n"
        "    x = Tensor([1, 2, 3]) * 2\n"
        "print(x.device, x.tolist())"
    )
    assert python(installed, code) == "TOY [2, 4, 6]\n"


def test_the_backend_tests_run_on_it(installed: Path) -> None:
    code = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    chosen = ["tests/backend/test_ops_ast.py", "--device", "TOY", "-k", "cast or fused or window"]
    assert " passed" in python(installed, code, "-q", "-p", "no:cacheprovider", *chosen)


@pytest.mark.usefixtures("registered")
def test_a_device_that_cannot_be_opened_says_why() -> None:
    def broken(name: str) -> Compiled:
        raise OSError("libtoy.so is missing; install the toy's driver")

    Device.register("broken", broken)
    text = "^device BROKEN:1 cannot be opened: libtoy.so is missing; install the toy's driver$"
    with pytest.raises(DeviceUnavailableError, match=text):
        Device["broken:1"]
    with pytest.raises(ValueError, match=r"^'Cpu' is a device of ferrule; register yours by"):
        Device.register("Cpu", broken)


def test_its_kernels_are_kept_on_disk(tmp_path: Path, toy: Compiled) -> None:
    ast = CASES[0].ast
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        parts = (toy.allocator, toy.renderer, toy.compiler, toy.runtime)
        first = Compiled("TOY", *parts).get_runner(ast)
        again = Compiled("TOY", *parts).get_runner(ast)
        assert (again.lib, again.prg) == (first.lib, "")
        new = Compiler("toy 2")
        with pytest.raises(NotImplementedError):
            Compiled("TOY", toy.allocator, toy.renderer, new, toy.runtime).get_runner(ast)
