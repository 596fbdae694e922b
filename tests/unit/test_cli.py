"""The command line, called as a function."""

import re
from pathlib import Path
from typing import Any

import pytest

from ferrule import cli
from ferrule.base import diskcache
from ferrule.base.config import Context
from ferrule.demo import digits
from ferrule.ir.speeds import Speeds
from ferrule.ir.target import detect_cpu
from ferrule.runtime.cpu import calibrate
from ferrule.runtime.cpu.measured import measured


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a command."""
    try:
        status = cli.main(arguments)
    except SystemExit as exit_request:  # argparse's way out
        status = int(exit_request.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--version")
    assert status == 0
    assert out == f"ferrule {cli.installed_version()}\n"


def test_info_names_devices_threads_and_cache(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(FERRULE_NUM_THREADS=3):
        status, out, _ = run(capsys, "info", "--device", "NUMPY")
    assert status == 0
    found = dict(re.split(r"\s{2,}| (?=/)", line, maxsplit=1) for line in out.splitlines())
    assert found["default device"] == "NUMPY"
    assert found["device NUMPY"] == "interprets kernels"
    assert found["threads"] == "3"
    assert "entries" in out


def test_cache_is_shown_and_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        diskcache.put("table", "key", b"value")
        assert run(capsys, "cache", "info")[1].startswith(f"{tmp_path}: 1 entries, ")
        assert run(capsys, "cache", "clear")[:2] == (0, f"1 entries removed from {tmp_path}\n")
        assert diskcache.get("table", "key") is None


def test_calibrate_measures_and_keeps_speeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        assert "as shipped" in run(capsys, "info")[1]
        status, out, _ = run(capsys, "calibrate")
        assert status == 0
        assert "measured here" in run(capsys, "info")[1]
        found = measured(detect_cpu().key)
    assert found is not None
    assert {line.split()[0] for line in out.splitlines()[1:-1]} == set(found.to_json())
    # Whatever the machine: a cycle is that of an addition, and no core of ours does 16 at once.
    assert 1e8 < found.hertz < 1e10
    assert all(0.05 < speed < 16 for speed in (found.arithmetic, found.loads, found.stores))
    assert found.exp2 > 1 < found.sin


def test_speeds_that_cannot_be_kept_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "calibrate", Speeds)
    file = tmp_path / "file"
    file.touch()
    with Context(FERRULE_CACHE_DIR=str(file)):
        status, _, err = run(capsys, "calibrate")
    assert status == 2
    assert err == f"ferrule: the cache in {file} cannot be written\n"


def test_a_cache_that_cannot_be_written_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diskcache, "clear", lambda: None)
    status, _, err = run(capsys, "cache", "clear")
    assert status == 2
    assert re.fullmatch(r"ferrule: the cache in .* cannot be written\n", err)


@pytest.mark.parametrize("command", [("demo", "digits"), ("info",)])
def test_an_unknown_device_is_one_clear_line(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, *command, "--device", "ABACUS")
    assert status == 2
    assert err.startswith("ferrule: no device is called 'ABACUS'; the known devices are ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("fly",), "invalid choice: 'fly'"),
        (("demo",), "the following arguments are required: NAME"),
        (("cache",), "the following arguments are required: ACTION"),
        (("demo", "digits", "--epochs", "0"), "--epochs: '0' is no whole number from 1 on"),
        (("demo", "digits", "--epochs", "x"), "--epochs: 'x' is no whole number from 1 on"),
        (("demo", "digits", "--seed", "-1"), "--seed: '-1' is no whole number from 0 on"),
    ],
)
def test_misuse(arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert text in err


def test_an_interrupt_ends_cleanly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(digits, "run", interrupted)
    assert run(capsys, "demo", "digits") == (130, "", "interrupted\n")


def test_the_demonstration_ends_with_a_line_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = run(capsys, "demo", "digits", "--device", "NUMPY", "--epochs", "1")
    assert status == 0
    last = out.splitlines()[-1]
    assert re.fullmatch(
        r"digits accuracy=[01]\.\d{4} total_s=\d+\.\d first_step_s=\d+\.\d\d step_ms=\d+\.\d\d"
        r" kernels=\d+ peak_mb=(\d+|nan)",
        last,
    )
    accuracy = float(last.split()[1].partition("=")[2])
    assert accuracy > 0.3  # chance is 0.1
    assert "epoch 1/1  loss " in out
