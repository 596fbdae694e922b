"""Set-up for all tests: a disk cache of this run, two cores, hypothesis without a stopwatch."""

import gc
import os
import re
import signal
import sys
import tempfile

import hypothesis
import pytest

from tests.cores import keep_to_own
from tests.leftovers import in_use, remove_leftovers

_PREFIX = "ferrule-tests-"
# pytest-xdist's workers inherit the variable, so one run has one cache, and starts with none.
_cache = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
_mark = in_use(_cache.name)
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["FERRULE_CACHE_DIR"] = _cache.name
    # OpenCL on the processor has a cache of its own, for what it compiles at the first launch.
    os.environ["POCL_CACHE_DIR"] = os.path.join(_cache.name, "pocl")
    os.mkdir(os.environ["POCL_CACHE_DIR"])
    remove_leftovers(tempfile.gettempdir(), _PREFIX)

keep_to_own(os.environ)

# A shell lets a job in the background ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The first example of a kind compiles a kernel, which no fixed deadline allows for. The same
# examples every time: a failure in one run is a failure in all.
hypothesis.settings.register_profile("ferrule", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("ferrule")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files from what the tests produce, instead of comparing",
    )
    parser.addoption(
        "--programs",
        type=int,
        default=800,
        help="how many random programs on tensors to compare with NumPy's",
    )
    parser.addoption(
        "--device",
        action="append",
        help="run the backend tests on this device, not on all that open; may be repeated",
    )


# Hypothesis counts the references to a generator of its own, which Python counts otherwise since
# 3.14, and says so in any of its tests.
_REGISTERED = pytest.mark.filterwarnings("ignore:It looks like `register_random`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A name with an address in it differs from process to process, and pytest-xdist gives up."""
    for item in items:
        if re.search("0x[0-9a-f]{8}", item.nodeid):
            raise pytest.UsageError(f"{item.nodeid}: the name has an address; pass other ids")
        if sys.version_info >= (3, 14):
            item.add_marker(_REGISTERED)


def pytest_collection_finish() -> None:
    """What collecting made stays to the end: no collection of garbage need look at it again.

    A capture asks for one, and for all objects there are; thousands of tests are a million.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _settled_writes() -> None:
    """No write that tests before left pending joins the schedules of this one, on any device."""
    from ferrule.engine.realize import settle_writes  # not before the cache's place is known

    settle_writes()


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether the golden files are to be written rather than compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def programs(request: pytest.FixtureRequest) -> int:
    """How many random programs on tensors to run."""
    return int(request.config.getoption("--programs"))
