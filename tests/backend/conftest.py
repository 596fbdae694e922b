"""Tests that ask for `device` run on every device that can be opened here, as the default one.

With `--device NAME`, once or more often, they run on these devices; one that cannot be opened is
then an error. Without, CL has only some of the files.
"""

from collections.abc import Iterator
from functools import cache

import pytest
from tests.planning import Work

from ferrule.base.config import Context
from ferrule.device import Device, DeviceUnavailableError

# OpenCL on the processor takes a quarter of a second for each new kernel, which would be a quarter
# of an hour for all files (`make test-opencl`). These have every op and dtype, and kernels whose
# threads work together; and a few replays, of those that need few kernels.
_ON_CL = {"test_chains", "test_long_reduce", "test_ops_ast"}
_REPLAYS_ON_CL = {
    "test_results_of_other_forms_in_one_kernel",
    "test_a_graph_that_cannot_be_made_is_replayed_item_by_item",
    "test_a_training_step_equals_the_plain_one",
    "test_an_output_can_be_fed_back",
    "test_state_is_updated_in_place",
    "test_writes_beside_a_function_of_the_host",
    "test_symbolic_sizes",
    "test_the_first_call_runs_the_second_captures_the_third_replays",
    "test_views_of_one_memory_as_arguments",
}


def _opens(name: str) -> bool:
    try:
        Device[name]
    except DeviceUnavailableError:
        return False
    return True


@cache
def _that_open() -> list[str]:
    return [name for name in Device.names() if _opens(name)]


def _works_in_host_memory(name: str) -> bool:
    return hasattr(Device[name].allocator, "as_buffer")


def _devices(module: str, test: str) -> list[str]:
    """The devices for a test of a file."""
    file = module.rpartition(".")[2]
    on_cl = file in _ON_CL or (file == "test_jit" and test in _REPLAYS_ON_CL)
    return [name for name in _that_open() if name != "CL" or on_cl]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Chooses the devices for each test that has one."""
    if "device" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--device")
        metafunc.parametrize(
            "device",
            chosen or _devices(metafunc.module.__name__, metafunc.function.__name__),
            indirect=True,
        )


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the device under test."""
    if request.node.get_closest_marker("host_memory") and not _works_in_host_memory(request.param):
        pytest.skip(f"{request.param} does not work in the host's memory")
    with Context(FERRULE_DEVICE=request.param):
        yield request.param


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """What is planned and run in the test."""
    return Work(monkeypatch)
