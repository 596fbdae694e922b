"""What the machine can do at most: multiply-adds, and bytes to and from memory.

The loops are LLVM IR with the widest vectors that the processor has. Each thread has arrays of its
own. Figures are the best of several runs.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import llvmlite.binding as llvm
import numpy as np

CACHED = 256 << 10
"""Bytes of each array that is to stay in a core's own cache."""
MEMORY = 64 << 20
"""Bytes of each array that the largest caches may hold in part."""
LARGE = 512 << 20
"""Bytes of each array that has to come from memory."""
RUNS = 25
CHAINS = 16
"""Independent multiply-adds: more than their latency times their number per cycle."""


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second, those of all arrays together."""

    read: float
    write: float
    triad: float
    """a = b + c * 3."""


@dataclass(frozen=True)
class Limits:
    """Operations per second, and bandwidths for arrays of three sizes."""

    threads: int
    fma: float
    bfloat16: float
    cached: Bandwidth
    memory: Bandwidth
    large: Bandwidth
    tf32: float = 0.0
    """Of float32 rounded to tf32; 0 where nothing rounds."""

    def least_ms(
        self, flops: float, reads: float, writes: float, half: bool = False, tf32: bool = False
    ) -> float:
        """What no program can be much quicker than."""
        total = reads + writes
        if total <= 3 * CACHED * self.threads:
            level = self.cached
        else:
            level = self.memory if total <= 3 * MEMORY else self.large
        rate = level.read if writes < 0.1 * reads else level.triad
        peak = self.bfloat16 if half else self.tf32 if tf32 else self.fma
        return 1e3 * max(flops / peak, total / rate)


# Programs


def _loop(name: str, step: int, carried: list[tuple[str, str]], body: str, after: str) -> str:
    """A function over i = 0, step, ... below n, `repeats` times; `carried` has names and types."""
    start = "\n".join(
        f"  %{var} = phi {kind} [zeroinitializer, %again], [%{var}.next, %body]"
        for var, kind in carried
    )
    return f"""
define void @{name}(ptr %a, ptr %b, ptr %c, i64 %n, i64 %repeats) {{
entry:
  br label %again
again:
  %r = phi i64 [0, %entry], [%r.next, %done]
  br label %body
body:
  %i = phi i64 [0, %again], [%i.next, %body]
{start}
{body}
  %i.next = add i64 %i, {step}
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %body, label %done
done:
{after}
  %r.next = add i64 %r, 1
  %again.more = icmp slt i64 %r.next, %repeats
  br i1 %again.more, label %again, label %end
end:
  ret void
}}"""


def _stored(kind: str) -> str:
    """The sum of what was carried goes to memory, so that nothing is left out."""
    lines = [f"  %total.0 = fadd {kind} %x0.next, %x0.next"]
    for chain in range(1, CHAINS):
        lines.append(f"  %total.{chain} = fadd {kind} %total.{chain - 1}, %x{chain}.next")
    return "\n".join([*lines, f"  store volatile {kind} %total.{CHAINS - 1}, ptr %c, align 64"])


def _at(pointer: str, lanes: int, number: int) -> str:
    """Lines that give the address of the loop's vector `number` in an array."""
    return (
        f"  %{pointer}i{number} = add i64 %i, {number * lanes}\n"
        f"  %{pointer}{number} = getelementptr float, ptr %{pointer}, i64 %{pointer}i{number}"
    )


def _fma(lanes: int) -> str:
    kind, name = f"<{lanes} x float>", f"@llvm.fma.v{lanes}f32"
    carried = [(f"x{chain}", kind) for chain in range(CHAINS)]
    factor = f"  %f = load {kind}, ptr %a, align 64\n"
    body = factor + "\n".join(
        f"  %x{chain}.next = call {kind} {name}({kind} %x{chain}, {kind} %f, {kind} %f)"
        for chain in range(CHAINS)
    )
    declared = f"declare {kind} {name}({kind}, {kind}, {kind})"
    return declared + _loop("fma", 1, carried, body, _stored(kind))


def _dot() -> str:
    """Products of pairs of bfloat16, summed in float32."""
    kind = "<16 x float>"
    carried = [(f"x{chain}", kind) for chain in range(CHAINS)]
    name, pairs = "@llvm.x86.avx512bf16.dpbf16ps.512", "<32 x bfloat>"
    factor = f"  %f = load {pairs}, ptr %a, align 64\n"
    body = factor + "\n".join(
        f"  %x{chain}.next = call {kind} {name}({kind} %x{chain}, {pairs} %f, {pairs} %f)"
        for chain in range(CHAINS)
    )
    declared = f"declare {kind} {name}({kind}, {pairs}, {pairs})"
    return declared + _loop("dot", 1, carried, body, _stored(kind))


def _tiles() -> str:
    """Products of AMX tiles of 16 x 32 bfloat16, into four accumulators."""
    rows = [1, 0] + [0] * 14 + [64, 0] * 8 + [0] * 16 + [16] * 8 + [0] * 8
    shape = ", ".join(f"i8 {byte}" for byte in rows)
    pairs = [(0, 4, 6), (1, 4, 7), (2, 5, 6), (3, 5, 7)]
    body = [f"  call void @llvm.x86.tdpbf16ps(i8 {c}, i8 {a}, i8 {b})" for c, a, b in pairs]
    start = ["  call void @llvm.x86.ldtilecfg(ptr @shape)"]
    start += [f"  call void @llvm.x86.tilezero(i8 {tile})" for tile in range(8)]
    release = "  call void @llvm.x86.tilerelease()"
    text = _loop("tiles", 1, [], "\n".join(body), release)
    text = text.replace("  br label %body\nbody", "\n".join([*start, "  br label %body\nbody"]), 1)
    return f"""
@shape = internal constant [64 x i8] [{shape}], align 64
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
{text}"""


def _read(lanes: int) -> str:
    kind = f"<{lanes} x float>"
    carried = [(f"x{chain}", kind) for chain in range(CHAINS)]
    lines = []
    for chain in range(CHAINS):
        lines += [
            _at("a", lanes, chain),
            f"  %l{chain} = load {kind}, ptr %a{chain}, align 64",
            f"  %x{chain}.next = fadd {kind} %x{chain}, %l{chain}",
        ]
    return _loop("read", CHAINS * lanes, carried, "\n".join(lines), _stored(kind))


def _streams(name: str, lanes: int, triad: bool, past_caches: bool) -> str:
    """c = 0, or c = a + b * 3."""
    kind = f"<{lanes} x float>"
    three = f"<{', '.join(['float 3.0'] * lanes)}>"
    suffix = ", !nontemporal !0" if past_caches else ""
    lines = []
    for number in range(4):
        value = "zeroinitializer"
        if triad:
            lines += [_at("a", lanes, number), _at("b", lanes, number)]
            lines += [
                f"  %la{number} = load {kind}, ptr %a{number}, align 64",
                f"  %lb{number} = load {kind}, ptr %b{number}, align 64",
                f"  %m{number} = fmul {kind} %lb{number}, {three}",
                f"  %s{number} = fadd {kind} %la{number}, %m{number}",
            ]
            value = f"%s{number}"
        lines += [
            _at("c", lanes, number),
            f"  store {kind} {value}, ptr %c{number}, align 64{suffix}",
        ]
    return _loop(name, 4 * lanes, [], "\n".join(lines), "")


# Measuring

Function = Callable[[int, int, int, int, int], None]


def _compiled(text: str) -> tuple[llvm.ExecutionEngine, Callable[[str], Function]]:
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )
    return engine, lambda name: prototype(engine.get_function_address(name))


def _aligned(size: int, offset: int) -> np.ndarray:
    """Memory in use. Offsets keep arrays of a power of two off each other's cache sets."""
    memory = np.zeros(size + 8192, np.uint8)
    memory.fill(1)  # or all its pages would be one page of zeros
    start = -memory.ctypes.data % 4096 + offset
    return memory[start : start + size]


def _seconds(function: Function, threads: int, size: int, count: int, repeats: int) -> float:
    """The least time in which all threads are through, each over arrays of `size` bytes."""
    arrays = [[_aligned(size, 1088 * which) for which in range(3)] for _ in range(threads)]
    barrier = threading.Barrier(threads)
    times = np.zeros((RUNS, threads, 2))

    cores = sorted(os.sched_getaffinity(0))

    def work(thread: int) -> None:
        os.sched_setaffinity(0, [cores[thread]])  # of this thread
        addresses = [array.ctypes.data for array in arrays[thread]]
        for run in range(RUNS):
            barrier.wait()
            start = time.perf_counter()
            function(*addresses, count, repeats)
            times[run, thread] = start, time.perf_counter()

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return float((times[:, :, 1].max(1) - times[:, :, 0].min(1)).min())


def _allow_tiles() -> bool:
    """Asks the system for the AMX registers."""
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0


def measure(threads: int) -> Limits:
    """All figures; takes a few seconds."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    lanes = 16 if features.get("avx512f") else 8 if features.get("avx") else 4
    parts = [_fma(lanes), _read(lanes), "!0 = !{i32 1}"]
    for past, suffix in ((False, ""), (True, ".past")):
        parts += [_streams(f"write{suffix}", lanes, False, past)]
        parts += [_streams(f"triad{suffix}", lanes, True, past)]
    dots = bool(features.get("avx512bf16"))
    tiles = bool(features.get("amx-bf16")) and _allow_tiles()
    parts += [_dot()] * dots + [_tiles()] * tiles
    engine, function = _compiled("\n".join(parts))

    def flops(name: str, each: int) -> float:
        """Each step of the loop does so many operations."""
        steps = 1_000_000
        return threads * each * steps / _seconds(function(name), threads, CACHED, steps, 1)

    def rate(name: str, arrays: int, size: int, repeats: int) -> float:
        seconds = _seconds(function(name), threads, size, size // 4, repeats)
        return threads * arrays * size * repeats / seconds

    def bandwidth(size: int, repeats: int = 1) -> Bandwidth:
        def best(name: str, arrays: int) -> float:
            return max(rate(name + suffix, arrays, size, repeats) for suffix in ("", ".past"))

        return Bandwidth(rate("read", 1, size, repeats), best("write", 1), best("triad", 3))

    fma = flops("fma", 2 * CHAINS * lanes)
    dot = flops("dot", 2 * CHAINS * 32) if dots else 0.0
    tile = flops("tiles", 4 * 2 * 16 * 16 * 32) if tiles else 0.0
    found = Limits(
        threads,
        fma=fma,
        bfloat16=max(fma, dot, tile),
        cached=bandwidth(CACHED, 200),
        memory=bandwidth(MEMORY // threads),
        large=bandwidth(LARGE // threads),
    )
    engine.close()
    return found


def from_json(text: str) -> Limits:
    """What this program prints."""
    levels = ("cached", "memory", "large")
    found = json.loads(text)
    return Limits(**found | {level: Bandwidth(**found[level]) for level in levels})


if __name__ == "__main__":
    wanted = int(sys.argv[1])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:wanted])
    print(json.dumps(asdict(measure(wanted))))
