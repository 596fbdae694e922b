"""The tests of the device CUDA and the backend tests on it, with its graphs and without.

python tests/cuda/run.py           on the GPU that is here; nothing where there is none
python tests/cuda/run.py --fake    on the fake driver
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
MOST_PROCESSES = 8
SANITIZED = ("tests/cuda/gpu/test_program.py", "tests/backend/test_ops_ast.py")


def why_not() -> str:
    """Why there is no device CUDA here; empty if there is one."""
    sys.path.insert(0, str(ROOT / "src"))
    from ferrule.device import Device, DeviceUnavailableError

    try:
        Device["CUDA"]
    except DeviceUnavailableError as error:
        return str(error)
    return ""


def run(title: str, command: list[str], jit: int = 1) -> bool:
    """Runs pytest; whether all is well."""
    print(f"{title}: {' '.join(command)}", flush=True)
    settings = ["env", f"JIT={jit}", f"PYTHONPATH={ROOT / 'src'}:{ROOT}"]
    return subprocess.run([*settings, *command], cwd=ROOT, check=False).returncode == 0


def several_processes() -> list[str]:
    """Most of the time is the compiler's, on the processor."""
    count = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    return ["-n", str(count), "--dist", "worksteal"] if find_spec("xdist") else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake", action="store_true", help="use the fake driver")
    options, pytest_options = parser.parse_known_args()
    reason = "" if options.fake else why_not()
    if reason:
        print(f"skipped: {reason}")
        return 0
    pytest = [sys.executable, "-m", "pytest", "-q", "--device", "CUDA", *pytest_options]
    without_graphs = OF_GRAPHS if options.fake else EVERYTHING
    several = [] if options.fake or "-n" in pytest_options else several_processes()
    if options.fake:
        pytest += ["-p", "tests.cuda.plugin"]
    done = [
        run("with graphs", [*pytest, *several, *EVERYTHING]),
        run("without graphs", [*pytest, *several, *without_graphs], jit=2),
    ]
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer and not options.fake:
        command = [sanitizer, "--error-exitcode", "1", *pytest, *SANITIZED]
        done.append(run("under compute-sanitizer", command))
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
