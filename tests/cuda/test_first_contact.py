"""A rehearsal of the first command on a GPU: it must not fail there for a reason of its own."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_rehearsal(tmp_path: Path) -> None:
    command = [sys.executable, "tests/cuda/first_contact.py", str(tmp_path), "--fake"]
    command += ["--only", "machine,replays", "--seconds", "100"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = json.loads((tmp_path / "summary.json").read_text())
    assert [(step["step"], step["ended"]) for step in steps] == [("machine", "0"), ("replays", "0")]
    assert "[2.0, 3.0]" in (tmp_path / "machine.log").read_text()
    assert "ferrule, 100 kernels" in (tmp_path / "replays.log").read_text()


def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "tests/cuda/first_contact.py", str(tmp_path), "--fake"]
    command += ["--only", "suite,machine", "--seconds", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    steps = json.loads((tmp_path / "summary.json").read_text())
    assert [step["ended"] for step in steps] == ["out of time"]
