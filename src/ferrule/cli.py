"""The command line: `python -m ferrule …`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from ferrule.base import diskcache
from ferrule.base.config import Context, config
from ferrule.demo import digits
from ferrule.device import Compiled, Device, DeviceUnavailableError, UnknownDeviceError
from ferrule.ir.buffer import readable_bytes

Command = Callable[[argparse.Namespace], int]

MISUSED = 2
"""The exit status for a command that cannot be carried out."""
INTERRUPTED = 130
"""The exit status after Ctrl-C."""


def installed_version() -> str:
    """The version that is installed."""
    try:
        return version("ferrule")
    except PackageNotFoundError:
        return "not installed as a package"


def _whole_number(least: int) -> Callable[[str], int]:
    """A parser of whole numbers from `least` on, for `argparse`."""

    def read(text: str) -> int:
        try:
            if int(text) >= least:
                return int(text)
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")

    return read


# Commands


def _demo_digits(arguments: argparse.Namespace) -> int:
    options = digits.Options(arguments.device, arguments.epochs, arguments.seed)
    digits.run(options, sys.stdout)
    return 0


def _info(arguments: argparse.Namespace) -> int:
    with Context(**({"FERRULE_DEVICE": arguments.device} if arguments.device else {})):
        lines = [
            ("version", installed_version()),
            ("default device", Device.DEFAULT),
            *((f"device {name}", _device_line(name)) for name in Device.names()),
            ("threads", str(config().FERRULE_NUM_THREADS)),
            ("speeds", _speeds_line()),
            ("cache", _cache_line()),
        ]
    for name, text in lines:
        print(f"{name:<16s} {text}")
    return 0


def _device_line(name: str) -> str:
    try:
        device = Device[name]
    except DeviceUnavailableError as error:
        return f"unavailable: {error}"
    if not isinstance(device, Compiled):
        return "interprets kernels"
    target = device.linearizer_opts
    caches = f"L1 {readable_bytes(target.l1_bytes)}, L2 {readable_bytes(target.l2_bytes)}"
    return f"compiles for {target.name}: {target.vector_bytes}-byte vectors, {caches}"


def _speeds_line() -> str:
    from ferrule.ir.target import detect_cpu
    from ferrule.runtime.cpu.measured import measured

    is_measured = measured(detect_cpu().key) is not None
    return "measured here" if is_measured else "as shipped; to measure: python -m ferrule calibrate"


def _cache_line() -> str:
    entries, size = diskcache.usage()
    return f"{config().FERRULE_CACHE_DIR}: {entries} entries, {readable_bytes(size)}"


def _cache_info(arguments: argparse.Namespace) -> int:
    del arguments
    print(_cache_line())
    return 0


def _cache_clear(arguments: argparse.Namespace) -> int:
    del arguments
    removed = diskcache.clear()
    if removed is None:
        return _fail(f"the cache in {config().FERRULE_CACHE_DIR} cannot be written")
    print(f"{removed} entries removed from {config().FERRULE_CACHE_DIR}")
    return 0


def _calibrate(arguments: argparse.Namespace) -> int:
    del arguments
    from ferrule.ir.speeds import shipped
    from ferrule.ir.target import detect_cpu
    from ferrule.runtime.cpu.calibrate import calibrate
    from ferrule.runtime.cpu.measured import measured

    target = detect_cpu()
    found = calibrate()
    before = shipped(target.arch).to_json()
    print(f"{'constant':<20s}{'shipped':>16s}{'measured':>16s}")
    for name, value in found.to_json().items():
        print(f"{name:<20s}{before[name]:>16.4g}{value:>16.4g}")
    if measured(target.key) != found:
        return _fail(f"the cache in {config().FERRULE_CACHE_DIR} cannot be written")
    print(f"kept in {config().FERRULE_CACHE_DIR}, for processes that begin from now on")
    return 0


def _onnx(arguments: argparse.Namespace) -> int:
    from ferrule.onnx import commands
    from ferrule.onnx.values import OnnxError

    chosen = getattr(commands, arguments.action)
    more = (arguments.output,) if arguments.action == "run" else ()
    try:
        return int(chosen(arguments.model, arguments.input, arguments.size, *more))
    except (OnnxError, ImportError, MemoryError, OSError) as error:
        return _fail(error)


# Parsing


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ferrule", description="A tensor compiler in Python.")
    parser.add_argument("--version", action="version", version=f"ferrule {installed_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_demo(commands.add_parser("demo", help="run a demonstration"))
    info = commands.add_parser("info", help="show devices, threads and the cache")
    info.add_argument("--device", help="the default device to show")
    info.set_defaults(command=_info)
    calibrate = commands.add_parser("calibrate", help="measure the speeds of this machine's cores")
    calibrate.set_defaults(command=_calibrate)
    _add_onnx(commands.add_parser("onnx", help="show, run, check or time a model in ONNX's format"))
    _add_cache(commands.add_parser("cache", help="show or clear the cache of compiled kernels"))
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(metavar="NAME", required=True)
    demo = names.add_parser("digits", help="train a small network on handwritten digits")
    demo.add_argument("--device", help="such as CPU or NUMPY; default: the first that opens")
    demo.add_argument("--epochs", type=_whole_number(1), default=digits.Options.epochs)
    demo.add_argument("--seed", type=_whole_number(0), default=digits.Options.seed)
    demo.set_defaults(command=_demo_digits)


_ONNX_ACTIONS = {
    "info": "show what it takes and gives, its parameters, and what a call costs",
    "run": "run it, on files or on random inputs",
    "check": "compare all values with ONNX's reference implementation",
    "bench": "time it, beside ONNX Runtime if that is installed",
}


def _add_onnx(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, text in _ONNX_ACTIONS.items():
        action = actions.add_parser(name, help=text)
        action.add_argument("model", help="a file in ONNX's format")
        action.add_argument(
            *("--input",), action="append", default=[], metavar="NAME=FILE.npy",
            help="an input; others are random",
        )  # fmt: skip
        action.add_argument(
            *("--size",), action="append", default=[], metavar="AXIS=N",
            help="the size of an axis that may vary; 1 for others",
        )  # fmt: skip
        if name == "run":
            action.add_argument("--output", metavar="FOLDER", help="where to write the outputs")
        action.set_defaults(command=_onnx, action=name)


def _add_cache(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    actions.add_parser("info", help="where it is, and how large").set_defaults(command=_cache_info)
    actions.add_parser("clear", help="remove all entries").set_defaults(command=_cache_clear)


def _fail(reason: object) -> int:
    print(f"ferrule: {reason}", file=sys.stderr)
    return MISUSED


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; gives the exit status."""
    parsed = _parser().parse_args(arguments)
    command: Command = parsed.command
    try:
        return command(parsed)
    except (UnknownDeviceError, DeviceUnavailableError) as error:
        return _fail(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
