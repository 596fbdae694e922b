"""Tests that ask for `device` run on every device that can be opened here, as the default one.

With `--device NAME`, once or more often, they run on these devices; one that cannot be opened is
then an error.
"""

from collections.abc import Iterator
from functools import cache

import pytest

from ferrule.config import Context
from ferrule.device import Device, DeviceUnavailableError


def _opens(name: str) -> bool:
    try:
        Device[name]
    except DeviceUnavailableError:
        return False
    return True


@cache
def _that_open() -> list[str]:
    return [name for name in Device.names() if _opens(name)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Chooses the devices for each test that has one."""
    if "device" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--device")
        metafunc.parametrize("device", chosen or _that_open(), indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the device under test."""
    with Context(FERRULE_DEVICE=request.param):
        yield request.param
