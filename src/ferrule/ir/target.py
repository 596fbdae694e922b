"""`Target`: the facts about a device that code generation uses, and the host's own target.

Every size that a schedule depends on comes from here, and nothing here is timed, so that one
machine always gives one `Target`, one set of kernels and one set of bits. Its speeds are those that
are shipped for the architecture, until `python -m ferrule calibrate` has measured them.

Other systems than Linux. Nothing but `detect_cpu` knows the system. It reads `/proc/cpuinfo` and
`/sys/devices/system/cpu/cpu0/cache`. Where they are missing (macOS, Windows), the instruction set
is the least that the processor's architecture guarantees (NEON on arm64, SSE2 on x86-64) and the
caches have their fallback sizes. To do better there, give `detect_cpu` the same text from `sysctl`
(macOS: `machdep.cpu.features`, `hw.l1dcachesize`, `hw.l2cachesize`) or from
`IsProcessorFeaturePresent` and `GetLogicalProcessorInformation` (Windows).
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

from ferrule.base.config import config, usable_cores
from ferrule.base.records import dataclass
from ferrule.ir.speeds import BlockSpeeds, Speeds, shipped

PAGE_BYTES: Final = 4096
LINE_BYTES: Final = 64
"""Bytes of a page and of a cache line, the same on all processors so far."""


@final
@dataclass(frozen=True)
class Target:
    """One kind of device, as code generation sees it."""

    name: str
    """The name, such as `x86-64-avx512`."""
    arch: str
    """The instruction set's family, such as `x86-64`, `aarch64`."""
    features: str
    """The instruction-set extensions, sorted, in LLVM's spelling: `+avx2,+fma`."""
    vector_bytes: int
    """The bytes of a vector register."""
    n_vector_registers: int
    max_threads: int
    """The number of chunks of a kernel that can run at once."""
    l1_bytes: int
    """The bytes of the first-level data cache of one core."""
    l2_bytes: int
    has_fma: bool
    flops_per_second: float
    """float32 operations a second on one core, a multiply-add counting two: an estimate."""
    bytes_per_second: float
    """Bytes a second of memory traffic that one core can sustain: an estimate."""
    native_ops: frozenset[str]
    """The operations beside arithmetic, comparison, bits and casts that are one instruction."""
    max_buffers: int | None = None
    """The greatest number of buffers of one kernel; None: any number."""
    index_bits: int = 64
    speeds: Speeds = field(default_factory=Speeds)
    """What a core does in a cycle; of a GPU only the ratios of operations are used."""
    block_speeds: BlockSpeeds = field(default_factory=BlockSpeeds)
    """What a multiprocessor does in a cycle, if kernels run in thread blocks."""
    block_threads: int = 1
    """The greatest number of threads of a block, which share memory; 1 on a processor."""
    warp: int = 1
    """The number of threads of a block that run in step."""
    shared_bytes: int = 0
    """The bytes of memory that the threads of a block share."""
    static_shared_bytes: int | None = None
    """The bytes of shared memory that need no request at launch; None: all of them."""
    allows_tf32: bool = False
    """True if products of float32 may round their operands to tf32: `ALLOW_TF32`."""

    @property
    def has_masks(self) -> bool:
        """True if a masked load of a vector, of elements of any size, is one instruction."""
        return "+avx512bw" in self.features.split(",")

    @cached_property
    def multiprocessors(self) -> int:
        """The number of multiprocessors, whose resident threads are all that run at once."""
        return max(1, self.max_threads * self.block_threads // self.block_speeds.threads)

    @cached_property
    def clock(self) -> float:
        """The cycles of a multiprocessor in a second."""
        operations = 2 * self.block_speeds.lanes * self.multiprocessors
        return self.flops_per_second * self.max_threads / operations

    @cached_property
    def with_tf32(self) -> Target:
        """The target with `allows_tf32`; itself if it has no instruction for products of tf32."""
        has_it = "+mma" in self.features.split(",")
        return replace(self, allows_tf32=True) if has_it else self

    @cached_property
    def key(self) -> str:
        """A short text for cache keys: equal targets, and no others, have equal keys.

        It is the same in every process.
        """
        text = json.dumps(self.to_json(), sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def to_json(self) -> dict[str, Any]:
        """The fields, as values that JSON can hold."""
        lists = {"native_ops": sorted(self.native_ops), "speeds": self.speeds.to_json()}
        return asdict(self) | lists

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Target:
        """The target that `to_json` described."""
        speeds = Speeds.from_json(fields["speeds"])
        native_ops = frozenset(fields["native_ops"])
        blocks = BlockSpeeds(**fields["block_speeds"])
        known = {"native_ops": native_ops, "speeds": speeds, "block_speeds": blocks}
        return Target(**{**fields, **known})

    def with_speeds(self, speeds: Speeds) -> Target:
        """A processor's target with other speeds."""
        operations = speeds.arithmetic * self.lanes(4) * (2 if self.has_fma else 1)
        return replace(
            self,
            speeds=speeds,
            flops_per_second=speeds.hertz * operations,
            bytes_per_second=speeds.bytes_per_second,
        )

    def lanes(self, itemsize: int) -> int:
        """The number of values of `itemsize` bytes in one vector register."""
        return self.vector_bytes // itemsize


def allowed(target: Target) -> Target:
    """A device's target as the settings in force let code generation use it."""
    return target.with_tf32 if config().ALLOW_TF32 else target


@dataclass(frozen=True)
class _Level:
    """One level of an instruction set, and the features that a processor needs for it."""

    name: str
    vector_bytes: int
    n_vector_registers: int
    needs: frozenset[str]


# The widest first; the last needs nothing and so always fits.
_LEVELS: Mapping[str, tuple[_Level, ...]] = {
    "x86-64": (
        _Level(
            "x86-64-avx512",
            64,
            32,
            frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma"}),
        ),
        _Level("x86-64-avx2", 32, 16, frozenset({"avx2", "fma"})),
        _Level("x86-64-sse2", 16, 16, frozenset()),
    ),
    "aarch64": (_Level("aarch64-neon", 16, 32, frozenset()),),
}

_ARCHITECTURES = {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64", "aarch64": "aarch64"}

# /proc/cpuinfo's word -> LLVM's feature, for the features that change the code of a kernel.
_X86_FEATURES = {
    "pni": "sse3",
    "ssse3": "ssse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "popcnt": "popcnt",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "bmi2": "bmi2",
    "avx": "avx",
    "avx2": "avx2",
    "f16c": "f16c",
    "fma": "fma",
    "avx_vnni": "avxvnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
}
_ARM_FEATURES = {
    "asimd": "neon",
    "asimdhp": "fullfp16",
    "asimddp": "dotprod",
    "atomics": "lse",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "sve": "sve",
    "sve2": "sve2",
}
_FEATURES = {"x86-64": _X86_FEATURES, "aarch64": _ARM_FEATURES}

_CPUINFO = Path("/proc/cpuinfo")
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18  # of Linux on x86-64
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_FALLBACK_L1_BYTES = 32 << 10
_FALLBACK_L2_BYTES = 512 << 10


def _features(arch: str, cpuinfo: str) -> frozenset[str]:
    """LLVM's names of the features of the first processor in `cpuinfo`."""
    known = _FEATURES.get(arch, {})
    for line in cpuinfo.splitlines():
        label, _, words = line.partition(":")
        if label.strip() in ("flags", "Features"):
            return frozenset(known[word] for word in words.split() if word in known)
    return frozenset()


def _may_use_tiles() -> bool:
    """True if Linux grants this process the use of tile registers (AMX), for which this asks.

    The system saves their 8 KiB with the other registers of each thread, so that processes have to
    ask. Threads and forked processes inherit the permission; programs that are started ask again.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    request = (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    return bool(ctypes.CDLL(None).syscall(*map(ctypes.c_long, request)) == 0)


def _without_tiles(features: frozenset[str]) -> frozenset[str]:
    return frozenset(feature for feature in features if not feature.startswith("amx-"))


def _level(arch: str, features: frozenset[str]) -> _Level:
    levels = _LEVELS.get(arch, (_Level(arch, 16, 16, frozenset()),))
    return next(level for level in levels if level.needs <= features)


def _cache_bytes(caches: Path, level: int, fallback: int) -> int:
    """The size of the data cache of `level`, as Linux lists it under `caches`.

    Linux leaves out files whose contents it does not know, as in most virtual machines on ARM.
    """
    for entry in sorted(caches.glob("index*")):
        kind, level_text, size = (_text_of(entry / name) for name in ("type", "level", "size"))
        if kind != "Instruction" and level_text == str(level) and size:
            return int(size.removesuffix("K")) << 10
    return fallback


def _text_of(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def detect_cpu(
    machine: str | None = None,
    cpuinfo: Path = _CPUINFO,
    caches: Path = _CACHES,
) -> Target:
    """The target of the processor that this process runs on; the arguments stand in for others.

    >>> target = detect_cpu()
    >>> target.vector_bytes in (16, 32, 64), target == Target.from_json(target.to_json())
    (True, True)
    """
    name = (machine or platform.machine()).lower()
    arch = _ARCHITECTURES.get(name, name)
    features = _features(arch, _text_of(cpuinfo))
    if features != _without_tiles(features) and cpuinfo is _CPUINFO and not _may_use_tiles():
        features = _without_tiles(features)
    return _cpu(arch, features, caches)


_COMMON = "sse3 ssse3 sse4.1 sse4.2 popcnt avx avx2 fma f16c bmi bmi2 lzcnt"
"""The features of the level x86-64-v3, which processors with AVX2 have."""
_NAMED = {
    "avx512": ("x86-64", f"{_COMMON} avx512f avx512bw avx512cd avx512dq avx512vl"),
    "avx2": ("x86-64", _COMMON),
    "sse2": ("x86-64", ""),
    "neon": ("aarch64", "neon"),
}


def named_cpu(name: str) -> Target:
    """The target of all processors with an instruction set: avx512, avx2, sse2, or neon.

    Sizes of caches are those of this machine. Raises `ValueError` for another name.

    >>> named_cpu("avx2").vector_bytes
    32
    """
    if name not in _NAMED:
        raise ValueError(f"no target is called {name!r}; there are {', '.join(_NAMED)}")
    arch, features = _NAMED[name]
    return _cpu(arch, frozenset(features.split()), _CACHES)


def _cpu(arch: str, features: frozenset[str], caches: Path) -> Target:
    """The target of processors with these features."""
    level = _level(arch, features)
    has_fma = arch == "aarch64" or "fma" in features
    native_ops = {"SQRT"}
    if has_fma:
        native_ops.add("MULACC")
    if arch == "aarch64" or "sse4.1" in features:
        native_ops |= {"TRUNC", "ROUND"}
    target = Target(
        name=level.name,
        arch=arch,
        features=",".join(f"+{feature}" for feature in sorted(features)),
        vector_bytes=level.vector_bytes,
        n_vector_registers=level.n_vector_registers,
        max_threads=usable_cores(),
        l1_bytes=_cache_bytes(caches, 1, _FALLBACK_L1_BYTES),
        l2_bytes=_cache_bytes(caches, 2, _FALLBACK_L2_BYTES),
        has_fma=has_fma,
        flops_per_second=0.0,
        bytes_per_second=0.0,
        native_ops=frozenset(native_ops),
    )
    return target.with_speeds(shipped(arch))
