"""The formats that a captured function is exported to: one table, and the function that uses it."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, final

from ferrule.base.records import dataclass
from ferrule.device.capture import is_capturing
from ferrule.export import native
from ferrule.export.c import c_program
from ferrule.export.captured import exported_program
from ferrule.export.interface import Interface
from ferrule.export.loading import LoadError
from ferrule.export.program import ExportError
from ferrule.export.targets import c_target, scheduled
from ferrule.export.trials import trial_of_c, trial_of_wasm
from ferrule.export.verify import verify
from ferrule.export.wasm import LOADER, wasm_kernels, wasm_program
from ferrule.ir.buffer import readable_bytes
from ferrule.ir.storage import turn
from ferrule.jit import BoundJit, TinyJit
from ferrule.jit.report.examples import Examples
from ferrule.jit.report.signature import Signature

Step: TypeAlias = TinyJit[Any] | BoundJit[Any]


@final
@dataclass(frozen=True)
class Written:
    """What a format's function has written, the main file first, and what was compared."""

    files: tuple[Path, ...]
    steps: int
    verified: str


@final
@dataclass(frozen=True)
class Exported:
    """Files that a captured function was exported to."""

    format: str
    files: tuple[Path, ...]
    nbytes: int
    steps: int
    verified: str
    """What was compared with the captured function."""

    @property
    def path(self) -> Path:
        """The main file."""
        return self.files[0]

    def __repr__(self) -> str:
        names = ", ".join([path.name for path in self.files])
        size = readable_bytes(self.nbytes)
        return f"<{self.format}: {names}; {size}, {self.steps} steps; verified: {self.verified}>"


Write: TypeAlias = Callable[..., Written]
"""`write(step, path, name, **options)` writes the files of one format, the main one at the path,
others beside it, and compares them with the captured function before it returns."""


Targets: TypeAlias = str | Sequence[str]


def _so(
    step: Step, path: Path, name: str, targets: Targets = native.NATIVE, threads: bool = False
) -> Written:
    """A shared library, its header in C, and its loader in Python."""
    program, verified = _native(step, name, targets, threads)
    native.write_library(program, path)
    header, loader = path.with_suffix(".h"), path.with_suffix(".py")
    header.write_text(program.header(), "utf-8")
    loader.write_text(program.loader(path.name), "utf-8")
    return Written((path, header, loader), len(program.program.steps), verified)


def _a(
    step: Step, path: Path, name: str, targets: Targets = native.NATIVE, threads: bool = False
) -> Written:
    """An archive of object files, and its header in C."""
    program, verified = _native(step, name, targets, threads)
    native.write_static_library(program, path)
    header = path.with_suffix(".h")
    header.write_text(program.header(), "utf-8")
    return Written((path, header), len(program.program.steps), verified)


def _ferrule(
    step: Step, path: Path, name: str, targets: Targets = native.NATIVE, threads: bool = False
) -> Written:
    """A file for `ferrule.load`."""
    program, verified = _native(step, name, targets, threads)
    native.write_program(program, path)
    return Written((path,), len(program.program.steps), verified)


def _c(step: Step, path: Path, name: str, weights: str = "c", target: str = "native") -> Written:
    """A source in C and its header; with `weights="bin"` the weights are in a file."""
    if weights not in ("c", "bin"):
        raise ExportError(f'weights={weights!r}: they go to "c", the source, or "bin", a file')
    chosen = c_target(target)
    program = exported_program(step, packed=False, name=name)
    made = c_program(program, name, chosen, weights_in_file=weights == "bin")
    kernels = {key: one.uops for key, one in scheduled(program, chosen).items()}
    with tempfile.TemporaryDirectory(prefix="ferrule-") as folder:
        shared = Interface(program, name)
        run, how = trial_of_c(made, shared, kernels, chosen, Path(folder))
        verified = f"{verify(step, program, run, _TOLERANCE)} ({how})"
    files = [path, path.with_name(f"{shared.name}.h")]
    path.write_text(made.source, "utf-8")
    files[1].write_text(made.header, "utf-8")
    if made.weights is not None:
        files.append(path.with_name(f"{shared.name}.bin"))
        files[2].write_bytes(made.weights)
    return Written(tuple(files), len(program.steps), verified)


def _wasm(step: Step, path: Path, name: str) -> Written:
    """A module of WebAssembly, and its loader for JavaScript."""
    program = exported_program(step, packed=False, name=name)
    made = wasm_program(program, name)
    run, how = trial_of_wasm(made, wasm_kernels(program))
    verified = f"{verify(step, program, run, _TOLERANCE)} ({how})"
    loader = path.with_suffix(".mjs")
    path.write_bytes(made.module)
    loader.write_text(LOADER.read_text("utf-8"), "utf-8")
    return Written((path, loader), len(program.steps), verified)


def _onnx(step: Step, path: Path, name: str, args: Sequence[Any] = (), **options: Any) -> Written:
    """A model in ONNX's format, of the function itself; see `ferrule.onnx.export`."""
    from ferrule.onnx import export as export_model  # an extra

    with turn:
        replay, key, function = step.last_replay()
        if replay is None and not args:
            raise ExportError(
                f"{function!r} has no replay to take example arguments from: call it three times "
                "with arguments of the same kind first, or pass some: export(path, args=(x,))"
            )
        kwargs: dict[str, Any] = {}
        if replay is not None and not args:
            examples = Examples(replay.objects, replay.var_vals)
            args, kwargs = examples.arguments(Signature(key[0]))
    made = export_model(function, path, *args, **options, **kwargs)
    files = [one for one in (path, path.with_name(f"{path.name}.data")) if one.exists()]
    verified = f"on {made.checked_by}: within {made.difference:.1e} of the function"
    return Written(tuple(files), sum(made.operators.values()), verified)


def _native(
    step: Step, name: str, targets: Targets, threads: bool
) -> tuple[native.NativeProgram, str]:
    """The native code of a program; its kernels for each target are compared with the replay."""
    wanted = [targets] if isinstance(targets, str) else list(dict.fromkeys(targets))
    program = native.native_program(step, name, wanted, threads)
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="ferrule-") as folder:
        for target in wanted:
            one = program
            if len(wanted) > 1:
                one = native.native_program(step, name, (target,), threads)
            path = Path(folder) / f"{target}.ferrule"
            native.write_program(one, path)
            try:
                run = native.runner(one, path)
            except LoadError as error:
                found[target] = f"not run here ({error})"
                continue
            # Kernels of another schedule round otherwise.
            tolerance = 0.0 if target == native.NATIVE else _TOLERANCE
            found[target] = str(verify(step, one.program, run, tolerance))
    if len(found) == 1:
        return program, next(iter(found.values()))
    return program, "; ".join([f"{target}: {text}" for target, text in found.items()])


_TOLERANCE: Final = 1e-3
"""Relative to the largest number of a tensor: kernels with other schedules add in another order."""


FORMATS: Final[dict[str, Write]] = {
    "so": _so,
    "a": _a,
    "ferrule": _ferrule,
    "c": _c,
    "wasm": _wasm,
    "onnx": _onnx,
}
"""The function of each format, by its name, which is the suffix of its files too."""


def _is_an_export(file: Path, main: Path) -> bool:
    """Whether the file in the place of one that an export writes is of an earlier export.

    It is if its text says so. Data has no text: the main one is what the caller asks to replace,
    and others are of the main file that is there.
    """
    if file.suffix in (".c", ".h", ".mjs", ".py"):
        return b"exported by ferrule" in file.read_bytes()[:1000]
    return file.is_file() and main.exists()


def export(
    step: Step,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    name: str | None = None,
    **options: Any,
) -> Exported:
    """Writes a captured function to files that need no framework; see `docs/export.md`.

    The program is what the replay used last runs, with its weights and its state of now. `format`
    is "so", "a", "ferrule", "c", "wasm" or "onnx", by default the suffix of the path; `name` is
    that of the program's functions, by default the file's. Other options are those of the format:
    `targets` and `threads` of `so`, `a` and `ferrule`, `weights` and `target` of `c`, those of
    `ferrule.onnx.export` for `onnx`.

    What was written is compared with the captured function before this returns.

    Raises `ExportError` for a function that is not captured yet or that does what a program cannot,
    within a captured function, for an unknown format, and where another file has the name of a
    source, a header or a loader; `TypeError` for an option that the format has not; `OSError` where
    the files cannot be written.

    >>> import tempfile
    >>> from ferrule import Tensor, TinyJit
    >>> from ferrule.export import export
    >>> double = TinyJit(lambda x: x * 2)
    >>> for i in range(3):
    ...     y = double(Tensor([i], device="CPU"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = export(double, f"{folder}/double.ferrule")
    >>> exported.format, exported.path.name, exported.steps
    ('ferrule', 'double.ferrule', 1)
    """
    if is_capturing():
        raise ExportError("a captured function calls export, and replays would not: call it after")
    path = Path(path)
    kind = path.suffix.removeprefix(".") if format is None else format
    write = _writer(kind, options)
    # Other programs may use files of these names now: new ones take their places at the end.
    with tempfile.TemporaryDirectory(prefix=".export-", dir=path.parent) as folder:
        written = write(step, Path(folder) / path.name, name or path.stem, **options)
        files = _put(written.files, path)
    nbytes = sum([file.stat().st_size for file in files])
    return Exported(kind, files, nbytes, written.steps, written.verified)


def _writer(kind: str, options: Mapping[str, Any]) -> Write:
    """The function of a format, which takes these options."""
    if kind not in FORMATS:
        known = ", ".join(FORMATS)
        raise ExportError(f"no format is called {kind!r}; there are {known}: export(path, format)")
    write = FORMATS[kind]
    known_options = inspect.signature(write).parameters
    for option in options:
        if option not in known_options and "options" not in known_options:
            names = ", ".join([*known_options][3:]) or "none"
            raise TypeError(f"the format {kind!r} has no option {option!r}; it has {names}")
    return write


def _put(written: Sequence[Path], main: Path) -> tuple[Path, ...]:
    """Moves files to the main one's folder, where they replace only those of earlier exports."""
    files = [main.with_name(file.name) for file in written]
    if len(set(files)) < len(files):
        raise ExportError(f"{main} is the name of the header or the loader, too: take another")
    for file in files:
        if file.exists() and not _is_an_export(file, main):
            raise ExportError(
                f"{file} is there, and is no part of an exported program: move it, or export "
                "under another name"
            )
    for made, file in zip(written, files, strict=True):
        made.replace(file)
    return tuple(files)
