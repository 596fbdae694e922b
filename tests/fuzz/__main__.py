"""`python -m tests.fuzz`: runs random programs, and writes down those that are not what they mean.

Exits with 1 if there were findings.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

FOCI = (
    *("views", "gradients", "jit", "threads", "writes", "aliases", "dtypes"),
    *("contractions", "layers", "training", "transforms", "functions", "chance"),
)


def focus(text: str) -> str:
    """One of `FOCI`, or a file of the package whose methods are drawn more often than others."""
    if text not in ("", *FOCI) and not text.endswith(".py"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither one of {FOCI} nor a file")
    return text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the run; drawn and printed if not given")
    parser.add_argument("--only", type=int, help="run this program alone, and print it")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--programs", type=int, help="how many, at most")
    parser.add_argument("--size", choices=("small", "large"), default="small")
    parser.add_argument(
        "--focus", type=focus, default="", help=f"one of {', '.join(FOCI)}, or tensor/….py"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--devices",
        default="",
        help="to draw from, CL seldom; NUMPY,CPU,CPU and CL if there is one, if not given",
    )
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"), help="a folder")
    parser.add_argument("--state", type=Path, help="a file; goes on where a run with it ended")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--first", action="store_true", help="end at the first finding")
    parser.add_argument(
        "--patience",
        type=float,
        default=20.0,
        help="seconds of processor time for one program, after which it is said to hang",
    )
    return parser.parse_args()


def main() -> int:
    options = arguments()
    # The cache of compiled kernels has to be chosen before ferrule reads the environment.
    with tempfile.TemporaryDirectory(prefix="ferrule-fuzz-") as cache:
        os.environ["FERRULE_CACHE_DIR"] = cache
        from tests.fuzz.session import Session

        return Session(options).run()


if __name__ == "__main__":
    sys.exit(main())
