"""The first minutes with a GPU, in one command that needs the driver and this Python only.

python tests/cuda/first_contact.py FOLDER              all steps, in the order of their worth
python tests/cuda/first_contact.py FOLDER --only machine,kernels --seconds 60
python tests/cuda/first_contact.py FOLDER --fake       a rehearsal, on the fake driver

Each step is a process of its own, is ended when its time is over, and writes FOLDER/<step>.log as
it goes. Steps that need the GPU to be quiet come before those that use all processors.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHOWN_LINES = 12
"""The last ones of each step's output, which are printed at the end."""
PACKAGES = ("numpy", "ml-dtypes", "cuda-bindings", "nvidia-cuda-nvrtc", "torch", "triton", "jax")
ATTRIBUTES = (
    "MULTIPROCESSOR_COUNT",
    "CLOCK_RATE",
    "MEMORY_CLOCK_RATE",
    "GLOBAL_MEMORY_BUS_WIDTH",
    "L2_CACHE_SIZE",
    "MAX_THREADS_PER_MULTIPROCESSOR",
    "MAX_THREADS_PER_BLOCK",
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "WARP_SIZE",
)


@dataclass(frozen=True)
class Step:
    """A command, and the most seconds that it may take."""

    name: str
    command: tuple[str, ...]
    seconds: float
    needed: bool = False
    """Whether there is no sense in going on where it fails."""


def steps(folder: Path, fake: bool) -> list[Step]:
    """All of them."""
    python, this = sys.executable, str(Path(__file__))
    own = [python, this, str(folder), *(["--fake"] if fake else [])]
    suite = [python, "tests/cuda/run.py", *(["--fake"] if fake else []), "-W", "default"]
    bench = [python, "bench/run.py", "--gpu", "--peers", "torch", "--rounds", "2"]
    found = [
        Step("machine", (*own, "--step", "machine"), 60, needed=True),
        Step("kernels", (*own, "--step", "kernels"), 90),
        Step("replays", (*own, "--step", "replays"), 40),
    ]
    if not fake:  # what the fake driver computes says nothing of speed
        found += [
            Step("tiles", (python, "bench/gpu_tiles.py", str(folder / "tiles.json")), 60),
            Step("programs", (python, "bench/gpu_kernels.py"), 60),
        ]
    found += [Step("suite", (*suite, "--part", "graphs"), 150)]
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer and not fake:
        checked = (sanitizer, "--error-exitcode", "1", "--report-api-errors", "no")
        found += [Step("sanitizer", (*checked, *own, "--step", "kernels"), 60)]
    if not fake:
        found += [Step("bench", (*bench, "--output", str(folder / "bench")), 120)]
    return found


def run(step: Step, folder: Path, seconds: float) -> dict[str, Any]:
    """Runs a step; what became of it."""
    environment = ["env", f"PYTHONPATH={ROOT / 'src'}:{ROOT}", "PYTHONUNBUFFERED=1"]
    begin = time.monotonic()
    with (folder / f"{step.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*environment, *step.command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = str(process.wait(min(step.seconds, seconds)))
        except subprocess.TimeoutExpired:
            ended = "out of time"
        finally:  # its helpers too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {"step": step.name, "ended": ended, "seconds": round(time.monotonic() - begin, 1)}


def contact(options: argparse.Namespace) -> int:
    """Runs all steps; the number of those that did not end well."""
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    chosen = steps(folder, options.fake)
    if options.only:
        names = options.only.split(",")
        chosen = [step for name in names for step in chosen if step.name == name]
    results: list[dict[str, Any]] = []
    for step in chosen:
        left = deadline - time.monotonic()
        if left < 1:
            results.append({"step": step.name, "ended": "not begun", "seconds": 0})
            continue
        results.append(run(step, folder, left))
        print(results[-1], flush=True)
        (folder / "summary.json").write_text(json.dumps(results, indent=1))
        if step.needed and results[-1]["ended"] != "0":
            break
    for result in results:
        log = folder / f"{result['step']}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        print(f"== {result}", *(line[:220] for line in lines[-SHOWN_LINES:]), sep="\n")
    return sum(result["ended"] != "0" for result in results)


# -- the steps that are no other command --------------------------------------------------------


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def machine() -> None:
    """What is there, and how long it takes to open it."""
    print(sys.version)
    print({name: _version(name) for name in PACKAGES})
    begin = time.perf_counter()
    from ferrule.runtime.cuda.driver import bindings, check, gpu_target, open_gpu

    print(f"import: {time.perf_counter() - begin:.2f} s")
    gpu = open_gpu(0)
    print(f"open: {time.perf_counter() - begin:.2f} s: {gpu.name}, {gpu.capability}")
    print(f"driver: {check(bindings().cuDriverGetVersion())}, {gpu.total_bytes} bytes")
    for name in ATTRIBUTES:
        try:
            print(f"{name}: {gpu.attribute(name)}")
        except Exception as error:  # an old driver, or the fake one, may not know all
            print(f"{name}: {error}")
    print(gpu_target(gpu))
    from ferrule import Tensor

    begin = time.perf_counter()
    print((Tensor([1.0, 2.0], device="CUDA") + 1).tolist())
    print(f"first result: {time.perf_counter() - begin:.2f} s")
    from ferrule.runtime.cuda.compiler import NVRTC

    print(NVRTC().version)


def kernels() -> None:
    """Twenty kernels and more, each compared with NumPy; the exit status is how many are wrong."""
    import numpy as np

    from ferrule import Context, Tensor

    wrong = 0
    for name, ours, expected, tolerance in _kernels(np.random.default_rng(0)):
        begin = time.perf_counter()
        try:
            with Context(FERRULE_DEVICE="CUDA"):
                values = ours(Tensor)
                found = values.float().numpy().astype(np.float64)
            exact = np.asarray(expected, np.float64)
            scale = max(np.abs(exact).max(), 1e-30)
            error = float(np.abs(found - exact).max() / scale)
            text = f"{error:.1e}"
            good = found.shape == exact.shape and error <= tolerance
        except Exception as failure:  # the next kernel may be right
            text, good = f"{type(failure).__name__}: {failure}"[:600], False
        wrong += not good
        seconds = time.perf_counter() - begin
        print(f"{'ok   ' if good else 'WRONG'} {name}: {text} ({seconds:.2f} s)", flush=True)
    print(f"{wrong} wrong")
    sys.exit(min(wrong, 100))


def _kernels(rng: Any) -> Iterator[tuple[str, Callable[[Any], Any], Any, float]]:
    import ml_dtypes
    import numpy as np

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape, np.float32)

    def softmax(v: Any, axis: int = -1) -> Any:
        powers = np.exp(v.astype(np.float64) - v.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)

    def rounded(v: Any) -> Any:
        return v.astype(ml_dtypes.bfloat16).astype(np.float32)

    x, y, i = draw(333, 257), draw(333, 257), rng.integers(0, 333, (5, 77))
    yield "x * y + 1", lambda T: T(x) * T(y) + 1, x * y + 1, 1e-6
    yield "exp(x)", lambda T: T(x).exp(), np.exp(x.astype(np.float64)), 1e-6
    yield "sin(100 x)", lambda T: (T(x) * 100).sin(), np.sin(x * np.float32(100)), 1e-5
    yield "log(|x|)", lambda T: T(x).abs().log(), np.log(np.abs(x.astype(np.float64))), 1e-6
    yield "int division", lambda T: T(i) // 7, i // 7, 0
    yield "half", lambda T: T(x).half() + T(y).half(), x + y, 2e-3
    yield "bfloat16", lambda T: T(x).bfloat16() * T(y).bfloat16(), x * y, 2e-2
    yield (
        "flip, pad, shrink",
        lambda T: T(x).flip(1).pad(((3, 0), (0, 5)))[2:, 4:],
        (np.pad(x[:, ::-1], ((3, 0), (0, 5)))[2:, 4:]),
        0,
    )
    yield "transposed copy", lambda T: T(x).transpose(0, 1).contiguous(), x.T, 0
    for axis in (None, 0, 1):
        yield f"sum {axis}", lambda T, a=axis: T(x).sum(a), x.astype(np.float64).sum(axis), 1e-5
        yield f"max {axis}", lambda T, a=axis: T(x).max(a), x.max(axis), 0
    yield "x - x.mean()", lambda T: T(x) - T(x).mean(), x - x.astype(np.float64).mean(), 1e-5
    yield "softmax", lambda T: T(x).softmax(), softmax(x), 1e-5
    yield "softmax 0", lambda T: T(x).softmax(0), softmax(x, 0), 1e-5
    yield (
        "layernorm",
        lambda T: T(x).layernorm(),
        ((x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)),
        1e-4,
    )
    yield "argmax", lambda T: T(x).argmax(1), x.argmax(1), 0
    yield "cumsum", lambda T: T(x).cumsum(1), x.astype(np.float64).cumsum(1), 1e-5
    yield "gather", lambda T: T(x)[T(i)], x[i], 0
    added = np.zeros((333, 257))
    np.add.at(added, i[0], x[:77].astype(np.float64))
    yield "index_add", lambda T: T.zeros(333, 257).index_add(0, T(i[0]), T(x[:77])), added, 1e-6
    yield "sort", lambda T: T(x).sort(1)[0], np.sort(x, 1), 0
    for m, k, n in (
        (64, 64, 64),
        (192, 256, 128),
        (500, 520, 328),
        (333, 77, 129),
        (1, 1024, 1024),
    ):
        a, b = draw(m, k), draw(k, n)
        wide = a.astype(np.float64) @ b
        yield f"product {m}x{k}x{n}", lambda T, a=a, b=b: T(a) @ T(b), wide, 1e-5
        narrow = rounded(a).astype(np.float64) @ rounded(b)
        yield (
            f"product {m}x{k}x{n}, bfloat16",
            (lambda T, a=a, b=b: T(a).bfloat16() @ T(b).bfloat16()),
            narrow,
            1e-2,
        )
        yield (
            f"product {m}x{k}x{n}, half",
            (lambda T, a=a, b=b: T(a).half() @ T(b).half()),
            wide,
            5e-3,
        )
        yield (
            f"product {m}x{k}x{n}, transposed, bfloat16",
            (
                lambda T, a=a, b=b: (
                    T(np.ascontiguousarray(a.T)).bfloat16().T
                    @ T(np.ascontiguousarray(b.T)).bfloat16().T
                )
            ),
            narrow,
            1e-2,
        )
    images, filters = draw(2, 8, 14, 14), draw(16, 8, 3, 3)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3)
    )
    convolved = np.einsum("nchwij,ocij->nohw", windows.astype(np.float64), filters)
    yield "conv2d", lambda T: T(images).conv2d(T(filters), padding=1), convolved, 1e-5
    yield (
        "conv2d, bfloat16",
        (lambda T: T(images).bfloat16().conv2d(T(filters).bfloat16(), padding=1)),
        convolved,
        2e-2,
    )
    for width, size in ((64, 256), (128, 200)):
        q, k, v = draw(1, 2, size, width), draw(1, 2, size, width), draw(1, 2, size, width)
        scores = np.einsum("bhqd,bhkd->bhqk", q, k).astype(np.float64) / width**0.5
        masked = np.where(np.tril(np.ones((size, size), bool)), scores, -np.inf)
        for causal, kept in ((False, scores), (True, masked)):
            mixed = softmax(kept) @ v
            for name, tolerance in (("float32", 1e-5), ("bfloat16", 3e-2), ("float16", 5e-3)):
                yield (
                    f"attention {width} {size} {causal} {name}",
                    (
                        lambda T, q=q, k=k, v=v, name=name, causal=causal: (
                            T(q).cast(name)
                        ).scaled_dot_product_attention(
                            T(k).cast(name), T(v).cast(name), is_causal=causal
                        )
                    ),
                    mixed,
                    tolerance,
                )
    large = draw(1 << 22)
    yield "sum of 4M", lambda T: T(large).sum(), large.astype(np.float64).sum(), 1e-4


CHAIN = 100


def replays() -> None:
    """What a replay costs: of a hundred small kernels, each of which needs the one before."""
    import statistics

    import numpy as np

    from ferrule import Device, Tensor, TinyJit

    def median_us(call: Callable[[], object], wait: Callable[[], object], at_once: int) -> float:
        for _ in range(5):
            call()
        wait()
        samples = []
        for _ in range(30):
            begin = time.perf_counter()
            for _ in range(at_once):
                call()
            wait()
            samples.append((time.perf_counter() - begin) / at_once)
        return 1e6 * statistics.median(samples)

    def chain(x: Tensor) -> Tensor:
        for _ in range(CHAIN):
            x = (x * 0.5 + 1).realize()
        return x

    x, jitted = Tensor(np.arange(8, dtype=np.float32), device="CUDA").realize(), TinyJit(chain)
    wait = Device["CUDA"].synchronize
    for at_once in (1, 20):
        us = median_us(lambda: jitted(x), wait, at_once)
        print(f"ferrule, {CHAIN} kernels, {at_once} replays awaited together: {us:.1f} us")
    print("result", jitted(x).numpy()[:3])

    def one(x: Tensor) -> Tensor:
        return (x * 0.5 + 1).realize()

    single = TinyJit(one)
    for at_once in (1, 20):
        us = median_us(lambda: single(x), wait, at_once)
        print(f"ferrule, 1 kernel, {at_once} replays awaited together: {us:.1f} us")
    try:
        import torch
    except ImportError:
        print("no torch")
        return
    if not torch.cuda.is_available():
        print("torch has no GPU")
        return
    given = torch.arange(8, dtype=torch.float32, device="cuda")

    def theirs() -> object:
        found = given
        for _ in range(CHAIN):
            found = torch.add(found, 1.0)
        return found

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        theirs()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        theirs()
    for at_once in (1, 20):
        us = median_us(graph.replay, torch.cuda.synchronize, at_once)
        print(f"torch's graph, {CHAIN} kernels, {at_once} replays awaited together: {us:.1f} us")


STEPS = {"machine": machine, "kernels": kernels, "replays": replays}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the results go")
    parser.add_argument("--only", help="steps, such as machine,kernels, in this order")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all steps together")
    parser.add_argument("--fake", action="store_true", help="use the fake driver")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.step:
        return contact(options)
    if options.fake:
        from tests.cuda import fake

        fake.load()
        fake.install()
    STEPS[options.step]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
