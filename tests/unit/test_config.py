"""Settings: what the environment says, what a `Context` changes, and for whom."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferrule.base.config import (
    ConfigError,
    Context,
    config,
    config_from,
    get_float32_matmul_precision,
    get_num_threads,
    quota_cores,
    set_float32_matmul_precision,
    set_num_threads,
    usable_cores,
)


def test_defaults() -> None:
    settings = config_from({})
    assert (settings.DEBUG, settings.BEAM, settings.JIT, settings.LRU) == (0, 0, 1, 1)
    assert (settings.ALLOW_TF32, settings.FERRULE_CHECK_INDEX) == (0, 0)
    assert settings.FERRULE_DEVICE is None
    assert settings.FERRULE_MEMORY_LIMIT is None
    assert settings.FERRULE_NUM_THREADS == usable_cores() >= 1
    assert settings.FERRULE_COMPILE_WORKERS is None
    assert settings.FERRULE_CACHE_DIR.endswith("ferrule")


def test_the_environment_is_read() -> None:
    settings = config_from(
        {
            "DEBUG": "2",
            "JIT": "0",
            "FERRULE_DEVICE": "NUMPY",
            "FERRULE_NUM_THREADS": "3",
            "FERRULE_CACHE_DIR": "/somewhere",
            "BEAM": "",
            "HOME": "/root",
        }
    )
    assert (settings.DEBUG, settings.JIT, settings.BEAM) == (2, 0, 0)
    assert settings.FERRULE_DEVICE == "NUMPY"
    assert settings.FERRULE_NUM_THREADS == 3
    assert settings.FERRULE_CACHE_DIR == "/somewhere"


def test_the_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert config_from({"XDG_CACHE_HOME": "/caches"}).FERRULE_CACHE_DIR == "/caches/ferrule"


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("512m", 512 << 20), ("4G", 4 << 30), (" 2K ", 2048)]
)
def test_memory_limit(text: str, size: int) -> None:
    settings = config_from({"FERRULE_MEMORY_LIMIT": text})
    assert settings.FERRULE_MEMORY_LIMIT == size


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DEBUG", "yes", "DEBUG='yes': expected an integer of at least 0"),
        ("BEAM", "-1", "BEAM='-1': expected an integer of at least 0"),
        ("FERRULE_NUM_THREADS", "0", "expected an integer of at least 1"),
        ("FERRULE_COMPILE_WORKERS", "-1", "expected an integer of at least 0"),
        ("FERRULE_MEMORY_LIMIT", "lots", "expected a number of bytes, such as 500000000, 512M"),
        ("FERRULE_MEMORY_LIMIT", "0", "expected a number of bytes"),
    ],
)
def test_malformed_values(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from({name: value})


@pytest.mark.parametrize(
    ("name", "meant"),
    [("FERRULE_NUM_THREAD", "FERRULE_NUM_THREADS"), ("FERRULE_DEBUG", "DEBUG")],
)
def test_misspelt_names(name: str, meant: str) -> None:
    with pytest.warns(UserWarning, match=f"{name} is no setting; did you mean {meant}"):
        config_from({name: "2", "FERRULE_SOMETHING_ELSE": "1"})


def test_blocks_nest() -> None:
    before = config()
    with Context(DEBUG=3, BEAM=2):
        with Context(DEBUG=1):
            assert (config().DEBUG, config().BEAM) == (1, 2)
        assert config().DEBUG == 3
    assert config() is before


def test_a_block_ends_with_an_exception() -> None:
    before = config()
    with pytest.raises(RuntimeError), Context(DEBUG=3):
        raise RuntimeError
    assert config() is before


def test_one_context_may_be_entered_twice() -> None:
    context = Context(DEBUG=3)
    before = config()
    with context:
        with context:
            assert config().DEBUG == 3
        assert config().DEBUG == 3
    assert config() is before


def test_a_decorated_function_may_recur() -> None:
    @Context(BEAM=4)
    def beams(depth: int) -> list[int]:
        """How wide, at each depth."""
        return [config().BEAM, *(beams(depth - 1) if depth else [])]

    assert beams(2) == [4, 4, 4]
    assert beams.__doc__ == "How wide, at each depth."
    assert config().BEAM != 4


def test_other_threads_do_not_see_a_block() -> None:
    seen: list[int] = []
    with Context(DEBUG=6):
        thread = threading.Thread(target=lambda: seen.append(config().DEBUG))
        thread.start()
        thread.join()
    assert seen == [config().DEBUG]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"DEBUGG": 1}, "no setting 'DEBUGG'; the settings are DEBUG, BEAM, BEAM_SECONDS, JIT"),
        ({"DEBUG": "loud"}, "DEBUG='loud': expected an integer"),
        ({"DEBUG": 1.5}, "DEBUG=1.5: expected an integer"),
        ({"FERRULE_DEVICE": 3}, "FERRULE_DEVICE=3: expected a non-empty string"),
    ],
)
def test_a_context_checks_its_changes(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Context(**changes)


def test_a_context_takes_every_kind_of_setting() -> None:
    with Context(LRU=False, FERRULE_DEVICE=None, FERRULE_MEMORY_LIMIT="1M"):
        assert config().LRU == 0
        assert config().FERRULE_MEMORY_LIMIT == 1 << 20


@pytest.fixture
def precision() -> Iterator[None]:
    before = get_float32_matmul_precision()
    yield
    set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("name", "allowed", "found"),
    [("highest", 0, "highest"), ("high", 1, "high"), ("medium", 1, "high")],
)
def test_how_exact_products_are(name: str, allowed: int, found: str, precision: None) -> None:
    set_float32_matmul_precision("highest" if allowed else "high")
    set_float32_matmul_precision(name)
    assert config().ALLOW_TF32 == allowed
    assert get_float32_matmul_precision() == found
    with Context(ALLOW_TF32=1 - allowed):
        assert get_float32_matmul_precision() != found


def test_there_are_three_precisions(precision: None) -> None:
    before = get_float32_matmul_precision()
    with pytest.raises(ConfigError, match="expected one of highest, high, medium"):
        set_float32_matmul_precision("low")
    assert get_float32_matmul_precision() == before


@pytest.fixture
def threads() -> Iterator[int]:
    before = get_num_threads()
    yield before
    set_num_threads(before)


def test_the_number_of_threads_is_the_processs(threads: int) -> None:
    set_num_threads(threads + 3)
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(get_num_threads()))
    other.start()
    other.join()
    assert seen == [threads + 3] == [config().FERRULE_NUM_THREADS]


def test_a_block_goes_before_the_processs_number(threads: int) -> None:
    with Context(FERRULE_NUM_THREADS=7):
        set_num_threads(threads + 1)
        assert get_num_threads() == 7
    assert get_num_threads() == threads + 1


def test_a_block_about_something_else_follows_the_process(threads: int) -> None:
    with Context(DEBUG=1), Context(JIT=0):
        set_num_threads(threads + 1)
        assert get_num_threads() == threads + 1
        assert (config().DEBUG, config().JIT) == (1, 0)
        with Context(DEBUG=2):
            assert get_num_threads() == threads + 1
    assert config().DEBUG == 0


@pytest.mark.parametrize("number", [0, -1, 2.0, "two", None])
def test_not_a_number_of_threads(number: int, threads: int) -> None:
    with pytest.raises(ConfigError, match="expected an integer of at least 1"):
        set_num_threads(number)
    assert get_num_threads() == threads


def test_a_control_groups_quota(tmp_path: Path) -> None:
    membership, groups = tmp_path / "cgroup", tmp_path / "groups"
    (groups / "jobs" / "one").mkdir(parents=True)
    membership.write_text("4:memory:/x\n0::/jobs/one\n")
    assert quota_cores(membership, groups) > 1000
    (groups / "jobs" / "one" / "cpu.max").write_text("max 100000\n")
    assert quota_cores(membership, groups) > 1000
    (groups / "jobs" / "cpu.max").write_text("250000 100000\n")
    assert quota_cores(membership, groups) == 3
    (groups / "jobs" / "one" / "cpu.max").write_text("100000 100000\n")
    assert quota_cores(membership, groups) == 1
    (groups / "jobs" / "one" / "cpu.max").write_text("nonsense\n")
    assert quota_cores(membership, groups) == 3
    membership.write_text("4:memory:/x\n")
    assert quota_cores(membership, groups) > 1000
    assert quota_cores(tmp_path / "missing", groups) > 1000
