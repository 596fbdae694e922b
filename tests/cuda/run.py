"""The tests of the device CUDA and the backend tests on it, with its graphs and without.

python tests/cuda/run.py           on the GPU that is here; nothing where there is none
python tests/cuda/run.py --fake    on the fake driver
python tests/cuda/run.py --part graphs -x -k jit    some of it; pytest takes the other options
"""

import argparse
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
EVERYTHING = ("tests/cuda/gpu", "tests/backend")
OF_GRAPHS = ("tests/backend/test_jit.py", "tests/backend/test_jit_constants.py")
MOST_PROCESSES = 16
SANITIZED = ("tests/cuda/gpu/test_program.py", "tests/backend/test_ops_ast.py")
# Calls that the driver refuses are no errors: how many parameters a kernel has shows by asking for
# one too many, and tests ask for what there is not.
SANITIZER_OPTIONS = ("--error-exitcode", "1", "--report-api-errors", "no")
PARTS = ("graphs", "plain", "sanitizer")
NEEDED = ("numpy", "pytest", "hypothesis")
# A Python for GPUs has plugins of pytest that nobody asked for, and what they warn of is an error:
# with pytest-benchmark beside pytest-xdist no test would begin.
PLUGINS = ("xdist.plugin", "pytest_timeout")
OPEN = """
from ferrule.device import Device, DeviceUnavailableError
try:
    Device["CUDA"]
except DeviceUnavailableError as error:
    print(error)
"""


def why_not() -> str:
    """Why there is no device CUDA here; empty if there is one.

    Another process asks, for this one waits for the tests, and is not to hold a GPU meanwhile.
    """
    command = ["env", f"PYTHONPATH={ROOT / 'src'}", sys.executable, "-c", OPEN]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ferrule cannot be used here:\n{done.stderr}")
    return done.stdout.strip()


def check_packages() -> None:
    """Ends where this Python lacks what the tests need."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise SystemExit(f"{sys.executable} lacks {', '.join(missing)}, which the tests need")


def plugins() -> list[str]:
    """Options of pytest for those that are here."""
    found = [name for name in PLUGINS if find_spec(name.partition(".")[0])]
    return [option for name in found for option in ("-p", name)]


def run(title: str, command: list[str], jit: int = 1) -> bool:
    """Runs pytest; whether all is well."""
    print(f"{title}: {' '.join(command)}", flush=True)
    settings = ["env", f"JIT={jit}", f"PYTHONPATH={ROOT / 'src'}:{ROOT}"]
    settings += ["PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"]
    return subprocess.run([*settings, *command], cwd=ROOT, check=False).returncode == 0


def several_processes() -> list[str]:
    """Most of the time is the compiler's, on the processor."""
    count = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    return ["-n", str(count), "--dist", "worksteal"] if find_spec("xdist") else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake", action="store_true", help="use the fake driver")
    parser.add_argument("--part", choices=PARTS, help="with graphs, without, under the sanitizer")
    options, pytest_options = parser.parse_known_args()
    reason = "" if options.fake else why_not()
    if reason:
        print(f"skipped: {reason}")
        return 0
    check_packages()
    pytest = [sys.executable, "-m", "pytest", "-q", "--device", "CUDA", *plugins()]
    pytest += ["-p", "tests.cuda.shown", *pytest_options]
    without_graphs = OF_GRAPHS if options.fake else EVERYTHING
    several = [] if options.fake or "-n" in pytest_options else several_processes()
    if options.fake:
        pytest += ["-p", "tests.cuda.plugin"]
    asked = [options.part] if options.part else PARTS
    done = []
    if "graphs" in asked:
        done.append(run("with graphs", [*pytest, *several, *EVERYTHING]))
    if "plain" in asked:
        done.append(run("without graphs", [*pytest, *several, *without_graphs], jit=2))
    sanitizer = shutil.which("compute-sanitizer")
    if "sanitizer" in asked and not sanitizer:
        print("skipped: there is no compute-sanitizer")
    elif "sanitizer" in asked and not options.fake:
        command = [sanitizer, *SANITIZER_OPTIONS, *pytest, *SANITIZED]
        done.append(run("under compute-sanitizer", command))
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
