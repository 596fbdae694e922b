"""`Target`, and what is read about processors other than this one."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ferrule.base import diskcache
from ferrule.base.config import Context, usable_cores
from ferrule.ir.speeds import Speeds
from ferrule.ir.target import Target, detect_cpu
from ferrule.runtime.cpu.llvm import host_compiler
from ferrule.runtime.cpu.measured import keep, measured

AVX2 = "fma sse4_1 avx avx2 f16c"
AVX512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl avx512_bf16"


def cpuinfo(folder: Path, label: str, words: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: some\n{label}\t\t: {words}\n\nprocessor\t: 1\n")
    return path


def caches(folder: Path) -> Path:
    levels = [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "1280K")]
    for place, (level, kind, size) in enumerate(levels):
        entry = folder / "cache" / f"index{place}"
        entry.mkdir(parents=True)
        (entry / "level").write_text(f"{level}\n")
        (entry / "type").write_text(f"{kind}\n")
        (entry / "size").write_text(f"{size}\n")
    return folder / "cache"


@pytest.mark.parametrize(
    ("machine", "label", "words", "name", "vector_bytes", "registers", "has_fma"),
    [
        ("x86_64", "flags", AVX512, "x86-64-avx512", 64, 32, True),
        ("AMD64", "flags", AVX2, "x86-64-avx2", 32, 16, True),
        ("x86_64", "flags", "avx512f sse4_1", "x86-64-sse2", 16, 16, False),
        ("aarch64", "Features", "fp asimd atomics", "aarch64-neon", 16, 32, True),
        ("riscv64", "isa", "rv64gc", "riscv64", 16, 16, False),
    ],
)
def test_other_processors(
    tmp_path: Path,
    machine: str,
    label: str,
    words: str,
    name: str,
    vector_bytes: int,
    registers: int,
    has_fma: bool,
) -> None:
    target = detect_cpu(machine, cpuinfo(tmp_path, label, words), caches(tmp_path))
    assert target.name == name
    assert (target.vector_bytes, target.n_vector_registers) == (vector_bytes, registers)
    assert target.has_fma is has_fma
    assert ("MULACC" in target.native_ops) is has_fma
    assert (target.l1_bytes, target.l2_bytes) == (48 << 10, 1280 << 10)


def test_features_have_llvms_names(tmp_path: Path) -> None:
    target = detect_cpu("x86_64", cpuinfo(tmp_path, "flags", "fma avx2 sse4_1 abm fpu"), tmp_path)
    assert target.features == "+avx2,+fma,+lzcnt,+sse4.1"


def test_without_the_files_of_linux(tmp_path: Path) -> None:
    target = detect_cpu("arm64", tmp_path / "none", tmp_path / "none")
    assert (target.name, target.features) == ("aarch64-neon", "")
    assert (target.l1_bytes, target.l2_bytes) == (32 << 10, 512 << 10)
    assert target.max_threads == usable_cores()


def test_caches_of_unknown_size(tmp_path: Path) -> None:
    """What Linux does not know has no file there, as on many ARM processors."""
    folder = caches(tmp_path)
    (folder / "index2" / "size").unlink()
    (folder / "index1" / "type").unlink()
    (folder / "index1" / "size").unlink()
    target = detect_cpu("aarch64", tmp_path / "none", folder)
    assert (target.l1_bytes, target.l2_bytes) == (48 << 10, 512 << 10)


def test_wider_vectors_mean_more_flops(tmp_path: Path) -> None:
    wide = detect_cpu("x86_64", cpuinfo(tmp_path, "flags", AVX512), tmp_path)
    narrow = detect_cpu("x86_64", cpuinfo(tmp_path, "flags", AVX2), tmp_path)
    assert wide.flops_per_second == 2 * narrow.flops_per_second
    assert wide.lanes(4) == 16


def test_json_round_trip() -> None:
    target = detect_cpu()
    again = Target.from_json(json.loads(json.dumps(target.to_json())))
    assert again == target
    assert again.key == target.key


def test_the_key_tells_targets_apart() -> None:
    target = detect_cpu()
    others = [
        replace(target, l2_bytes=target.l2_bytes * 2),
        replace(target, features=""),
        replace(target, native_ops=frozenset()),
        replace(target, index_bits=32),
        target.with_speeds(replace(target.speeds, exp2=13.0)),
    ]
    assert len({target.key, *(other.key for other in others)}) == 6


def test_the_key_is_the_same_in_another_process() -> None:
    """Nothing in it depends on the order of a set, or on the moment."""
    program = "from ferrule.ir.target import detect_cpu; print(detect_cpu().key)"
    path = str(Path(__file__).parents[2] / "src")
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == detect_cpu().key


def test_detection_does_not_import_llvm() -> None:
    path = str(Path(__file__).parents[2] / "src")
    program = (
        f"import sys; sys.path.insert(0, {path!r}); import ferrule.ir.target as t; t.detect_cpu(); "
        "print('llvmlite' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "False"


def test_speeds_decide_how_fast_a_target_is() -> None:
    target = detect_cpu()
    faster = target.with_speeds(replace(target.speeds, hertz=2 * target.speeds.hertz))
    assert faster.flops_per_second == 2 * target.flops_per_second
    assert Target.from_json(faster.to_json()) == faster


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exp3": 1.0}, "speeds: these constants are missing or unknown: exp3"),
        ({"exp2": -1.0}, "speeds: exp2 is -1.0, not a positive number"),
        ({"exp2": "12"}, "speeds: exp2 is '12', not a positive number"),
    ],
)
def test_wrong_speeds_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Speeds.from_json(Speeds().to_json() | change)


def test_speeds_of_another_version_count_as_not_measured(tmp_path: Path) -> None:
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        keep("machine", replace(Speeds(), exp2=13.0))
        assert measured("machine") == replace(Speeds(), exp2=13.0)
        diskcache.put("speeds", "machine", b'{"exp2": 13.0}')
        assert measured("machine") is None
        assert measured("another machine") is None


def test_measured_speeds_are_those_of_the_device(tmp_path: Path) -> None:
    with Context(FERRULE_CACHE_DIR=str(tmp_path)):
        target = detect_cpu()
        speeds = replace(target.speeds, exp2=13.0)
        keep(target.key, speeds)
        assert host_compiler.__wrapped__().target == target.with_speeds(speeds)
