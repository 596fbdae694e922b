"""A pytest plugin: this process has the fake driver, and not NVIDIA's.

python -m pytest -p tests.cuda.plugin --device CUDA tests/cuda/gpu tests/backend
"""

from collections.abc import Iterator

import pytest

from tests.cuda import fake

fake.load()


def pytest_configure() -> None:
    """The device CUDA compiles for it; by now tests/conftest.py has chosen the settings."""
    fake.install()


@pytest.fixture(autouse=True)
def fresh_fake_driver() -> Iterator[None]:
    """A kernel that failed, or a failure that was ordered, is forgotten; none has complaints."""
    driver = fake.load()
    driver.reset()
    yield
    assert driver.complaints() == []
