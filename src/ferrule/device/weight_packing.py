"""Weight packing: kernels that read constant weights from packed copies, and those that pack.

`packed_forms` gives the runners, compiled together or from the disk cache.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from typing import Any, Final, TypeAlias

from ferrule.base import diskcache
from ferrule.base.records import dataclass
from ferrule.codegen.policy import copies_own_memory
from ferrule.device import Compiled, CompiledASTRunner
from ferrule.ir.dtype import DType, dtypes

_TABLE = "packed kernels"


@dataclass(frozen=True)
class PackedCopy:
    """`runner` fills a buffer of `size` elements from the kernel's buffer number `source`."""

    runner: CompiledASTRunner
    source: int
    size: int
    dtype: DType
    is_all: bool
    """True if the kernel reads nothing of that buffer but the copy."""


@dataclass(frozen=True)
class PackedForm:
    """A kernel's `runner` that takes one more buffer for each of the `copies`, after its own."""

    runner: CompiledASTRunner
    copies: tuple[PackedCopy, ...]


@dataclass(frozen=True)
class Request:
    """A kernel of a device, which of its buffers are constant, and the bytes of all of them."""

    runner: CompiledASTRunner
    constant: frozenset[int]
    sizes: tuple[int, ...]


_Source: TypeAlias = tuple[str, str]
"""The name of a kernel and its source."""
_forms: dict[str, PackedForm | None] = {}


LEAST_OPERATIONS: Final = 1 << 20
"""Operations of a kernel; a smaller one takes only a few microseconds."""


def is_worth_packing(runner: CompiledASTRunner, places: Set[int]) -> bool:
    """True if a kernel that reads constants at these places may gain by packed copies of them."""
    operations = runner.op_estimate
    is_large = isinstance(operations, int) and operations >= LEAST_OPERATIONS
    return bool(places) and runner.ast is not None and is_large


def packed_forms(device: Compiled, requests: Sequence[Request]) -> list[PackedForm | None]:
    """The packed form of each kernel; None if packing would gain too little."""
    if not copies_own_memory(device.linearizer_opts):
        return [None] * len(requests)
    keys = [_key(device, request) for request in requests]
    missing = {key: r for key, r in zip(keys, requests, strict=True) if key not in _forms}
    is_cached = device.compiler.cachekey is not None
    if is_cached:
        for key, entry in diskcache.get_many(_TABLE, list(missing)).items():
            _forms[key] = _loaded(device, missing.pop(key), entry)
    for key, entry in _made(device, missing).items():
        _forms[key] = _loaded(device, missing[key], entry)
        if is_cached:
            diskcache.put(_TABLE, key, entry)
    return [_forms[key] for key in keys]


def _key(device: Compiled, request: Request) -> str:
    runner = request.runner
    assert runner.ast is not None
    # The program is part of the key, since a search may have changed its schedule.
    program = diskcache.digest(runner.lib)
    return repr((device.cache_key(runner.ast), program, sorted(request.constant), request.sizes))


def _made(device: Compiled, requests: dict[str, Request]) -> dict[str, bytes]:
    """The entries of kernels that the disk cache does not have, compiled on several threads."""
    if not requests:
        return {}
    sources = {key: _sources(device, request) for key, request in requests.items()}
    wanted = {source for _, found in sources.values() for source in found}
    with device.compiling() as begin:
        libs = {source: begin(source[1]) for source in wanted}
    return {
        key: _entry(copies, [(name, libs[name, text].result()) for name, text in found])
        for key, (copies, found) in sources.items()
    }


def _sources(device: Compiled, request: Request) -> tuple[list[Any], list[_Source]]:
    """The facts about the copies for the entry, and the kernels' sources, the main one first."""
    # Imported here: a process that finds its kernels in the disk cache needs no code generation.
    from ferrule.codegen.linearizer import linearize
    from ferrule.codegen.prepack import prepack

    assert request.runner.ast is not None
    k = device.get_linearizer(request.runner.ast, request.constant)
    target = device.linearizer_opts
    found = prepack(k.scheduled, request.constant, request.sizes, target)
    if not found.copies:
        return [], []
    kernels = [found.kernel, *(copy.kernel for copy in found.copies)]
    copies = [
        (copy.source, copy.elements, copy.dtype.name, not found.reads(copy.source))
        for copy in found.copies
    ]
    texts = [(x.name, device.renderer.render(x.name, linearize(x, target))) for x in kernels]
    return copies, texts


def _entry(copies: list[Any], programs: Sequence[tuple[str, bytes]]) -> bytes:
    head = [copies, [(name, len(lib)) for name, lib in programs]]
    return json.dumps(head).encode() + b"\0" + b"".join(lib for _, lib in programs)


def _loaded(device: Compiled, request: Request, entry: bytes) -> PackedForm | None:
    head, _, libs = entry.partition(b"\0")
    copies, programs = json.loads(head)
    if not copies:
        return None
    runners = []
    for name, length in programs:
        runner = CompiledASTRunner(None, name, "")
        device.load(runner, libs[:length])
        libs = libs[length:]
        runners.append(runner)
    main, *packers = runners
    _take_after(main, request.runner)
    found = []
    for (source, size, dtype, is_all), packer in zip(copies, packers, strict=True):
        packer.mem_estimate = size * dtypes.from_name(dtype).itemsize + request.sizes[source]
        found.append(PackedCopy(packer, source, size, dtypes.from_name(dtype), is_all))
    copied = {copy.source for copy in found if copy.is_all}
    first = len(request.sizes)
    main.reads = (main.reads or frozenset()) - copied | {*range(first, first + len(found))}
    return PackedForm(main, tuple(found))


def _take_after(runner: CompiledASTRunner, original: CompiledASTRunner) -> None:
    """Give a runner the statistics and the variables of the original."""
    runner.op_estimate = original.op_estimate
    runner.mem_estimate = original.mem_estimate
    runner.vars = original.vars
    runner.fixed = original.fixed
    runner.writes = original.writes
    runner.reads = original.reads
