"""Folders of killed runs are removed by later ones, and no others."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fcntl")
from tests.leftovers import in_use, remove_leftovers

KILLED = """
import os, signal, sys
from tests.leftovers import in_use
mark = in_use(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_folders_of_the_dead_are_removed(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("run-dead", "run-alive", "run-other", "else")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "file").write_text("text")
    for name in ("run-dead", "else"):
        command = [sys.executable, "-c", KILLED, str(folders[name])]
        subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    with in_use(str(folders["run-alive"])):
        remove_leftovers(str(tmp_path), "run-")
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "else",
            "run-alive",
            "run-other",
        ]
    remove_leftovers(str(tmp_path), "run-")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["else", "run-other"]
