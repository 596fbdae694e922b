"""What `make test-cuda` does before any test runs, and when one fails."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cuda import run

FAILS = """
import os
def test_first(): assert 1 == 2, "the first"
def test_second(): os._exit(3)
"""


def test_a_failure_is_shown_though_the_run_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(FAILS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.cuda.shown", "-c", "/dev/null"]
    command += ["--rootdir", str(tmp_path), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=run.ROOT)
    assert done.returncode == 3
    assert "AssertionError: the first" in done.stdout, done.stderr


def test_plugins_that_nobody_asked_for_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def note(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(run.subprocess, "run", note)
    monkeypatch.setattr(sys, "argv", ["run.py", "--fake", "--part", "graphs", "-x"])
    assert run.main() == 0
    (command,) = commands
    assert "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1" in command[: command.index(sys.executable)]
    assert ("xdist.plugin" in command) == (find_spec("xdist") is not None)
    assert "-x" in command


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None if name == "hypothesis" else object())
    with pytest.raises(SystemExit, match="lacks hypothesis, which the tests need"):
        run.check_packages()
