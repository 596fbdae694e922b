"""Tests that ask for `device` run on every device that can be opened here, as the default one."""

from collections.abc import Iterator

import pytest

from ferrule.config import Context
from ferrule.device import Device, DeviceUnavailableError


def _opens(name: str) -> bool:
    try:
        Device[name]
    except DeviceUnavailableError:
        return False
    return True


@pytest.fixture(params=[name for name in Device.names() if _opens(name)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the device under test."""
    with Context(FERRULE_DEVICE=request.param):
        yield request.param
