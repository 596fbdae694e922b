"""Products of bfloat16 in tile registers, on machines that lack them: as the interpreter does them,
and as compiled code does them with the instructions in software.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding as llvm
from tests.kernels import Case
from tests.programs import HOST, Array, Builder, run_both
from tests.roles import copied_slots, the_reduce
from tests.softtiles import emulated
from tests.unit.test_tensorize import BFLOAT16, WITH_DOT, check, empty_result, inputs_of
from tests.unit.test_tensorize import matrix_product as product

from ferrule.codegen.interpret import interpret
from ferrule.codegen.intrinsics import TILE
from ferrule.codegen.kernel import Kind
from ferrule.codegen.linearizer import Linearizer, linearize
from ferrule.codegen.lower import lower
from ferrule.codegen.opt import Opt, ScheduleError, apply_opts
from ferrule.codegen.prepack import prepack
from ferrule.codegen.uops import OF_TILES, ProgramError, UOps, verify
from ferrule.dtype import dtypes
from ferrule.ir import target
from ferrule.ir.target import Target
from ferrule.renderer.base import RenderError
from ferrule.renderer.llvm.ir import LLVMRenderer
from ferrule.renderer.llvm.tile import configuration
from ferrule.runtime.cpu.llvm import CPUCompiler

AMX = replace(
    WITH_DOT,
    name="amx",
    l1_bytes=48 << 10,
    l2_bytes=2 << 20,
    max_threads=2,
    features=",".join(sorted({*WITH_DOT.features.split(","), *(f"+{n}" for n in TILE.needs)})),
)
SMALL = replace(AMX, l1_bytes=6 << 10)  # two steps of k at a time
needs_tiles = pytest.mark.skipif(not TILE.is_native(HOST), reason="no tile registers")


def linearized(case: Case, machine: Target = AMX) -> Linearizer:
    """The kernel's program, which multiplies in tile registers."""
    linearizer = Linearizer(case.ast, machine).linearize()
    verify(linearizer.uops)
    assert uses_tiles(linearizer)
    return linearizer


def uses_tiles(linearizer: Linearizer) -> bool:
    return any(u.op in OF_TILES for u in linearizer.uops)


def result(case: Case, machine: Target = AMX) -> Array:
    """What compiled code gives, which the interpreter gives too."""
    buffers = [empty_result(case), *(x.ravel() for x in inputs_of(case))]
    return run_both(linearized(case, machine).uops, buffers, target=machine, emulate=emulated)[0]


CASES = [
    *(product(32, 64, 48, form) for form in ("NN", "NT", "TN", "TT")),
    *(product(40, 32, 33, form) for form in ("NN", "TT")),  # tails of rows and of columns
    product(16, 32, 16),  # one tile
    product(17, 32, 48, "TN"),
    product(100, 32, 20, "NT"),
    product(17, 64, 20, "NN", batch=3),
    product(32, 64, 32, out=dtypes.bfloat16),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_products_are_right(case: Case) -> None:
    check(case, result(case))


@pytest.mark.parametrize("case", [product(70, 128, 40, "TN"), product(64, 192, 17, "NT")])
def test_blocks_of_a_long_sum(case: Case) -> None:
    """A panel that the first cache has no room for is used in parts; sums wait in scratch."""
    linearizer = linearized(case, SMALL)
    nest = the_reduce(linearizer.scheduled)
    assert nest.loops[1].range in nest.result_axes
    stores = [u for u in linearizer.uops if u.op is UOps.STORE and u.src[0].op is UOps.LOCAL]
    zeros = [u.src[2].lanes for u in stores if u.src[2].op is UOps.CONST]
    assert zeros == [16] * len(zeros) != []
    check(case, result(case, SMALL))


@pytest.mark.parametrize(("steps", "block"), [(8, 8), (16, 16), (20, 10), (32, 16), (34, 17)])
def test_blocks_of_a_sum_fill_the_first_cache(steps: int, block: int) -> None:
    """16 steps do; where half of these would be the most, more than 16."""
    nest = the_reduce(linearized(product(32, 32 * steps, 32)).scheduled)
    combined = [loop.size for loop in nest.loops[:-1] if loop.range not in nest.result_axes]
    assert combined == ([steps] if steps == block else [steps // block, block])


def test_rows_of_a_block_are_read_where_they_are() -> None:
    """Pairs that are neighbours need no copy; the other operand has one, in pairs of rows."""
    in_place, copied = (linearized(product(64, 64, 64, form)) for form in ("NN", "TN"))
    assert copied_slots(in_place.scheduled) == [2]
    assert sorted(copied_slots(copied.scheduled)) == [1, 2]


def test_a_step_is_four_loads_and_four_products() -> None:
    uops = linearized(product(64, 64, 64)).uops
    counts = {op: sum(u.op is op for u in uops) for op in OF_TILES}
    assert counts == dict.fromkeys(OF_TILES, 4)


def test_operands_that_are_one_buffer() -> None:
    """x @ x.T: both copies are of the same buffer."""
    case = product(64, 64, 64, "NT")
    a = inputs_of(case)[0].ravel()
    uops = linearized(case).uops
    out = run_both(uops, [empty_result(case), a, a.copy()], target=AMX, emulate=emulated)[0]
    wide = a.reshape(64, 64).astype(np.float64)
    np.testing.assert_allclose(out.reshape(64, 64), wide @ wide.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "size", [(64, 48, 64), (8, 64, 64), (64, 64, 8), (64, 33, 64), (64, 16, 64)]
)
def test_what_fills_no_tile_is_multiplied_by_lanes(size: tuple[int, int, int]) -> None:
    assert not uses_tiles(Linearizer(product(*size).ast, AMX).linearize())


def test_targets_without_tile_registers_use_none() -> None:
    assert not uses_tiles(Linearizer(product(64, 64, 64).ast, WITH_DOT).linearize())


def test_infinities_of_other_rows_stay_there() -> None:
    """Beyond the last row and column copies have zeros, not what memory has there."""
    case = product(33, 32, 17)
    a, b = inputs_of(case)
    a[0, 32], b[0, :, 16] = np.inf, 1
    out = empty_result(case)
    run = [out, a.ravel(), b.ravel()]
    found = run_both(linearized(case).uops, run, target=AMX, emulate=emulated)[0]
    assert np.isfinite(found.reshape(33, 17)[:32]).all()
    assert not np.isfinite(found.reshape(33, 17)[32]).any()


def test_constant_operands_are_packed_beforehand() -> None:
    case = product(64, 128, 64)
    linearizer = linearized(case)
    prepacked = prepack(linearizer.scheduled, {2}, [4 * 64 * 64, 2 * 64 * 128, 2 * 128 * 64], AMX)
    assert prepacked is not None
    a, b = (x.ravel() for x in inputs_of(case))
    packed = np.zeros(prepacked.copies[0].elements, np.uint32)
    interpret(linearize(prepacked.copies[0].kernel, AMX), [packed, b])
    out = empty_result(case)
    interpret(linearize(prepacked.kernel, AMX), [out, a, b, packed])
    check(case, out)


# -- the instruction -------------------------------------------------------------------------------


def tile_product(a: Array, b: Array, c: Array) -> Array:
    """One product of tiles, by the interpreter: pairs as numbers of 32 bits."""
    builder = Builder()
    memory = [builder.param(0, dtypes.float32), *(builder.param(n, dtypes.uint32) for n in (1, 2))]
    zero = builder.const(0)
    for number, pointer in enumerate(memory):
        builder.add(UOps.TILE_LOAD, src=(pointer, zero), arg=(number, 16))
    builder.add(UOps.TILE_DOT, arg=(0, 1, 2))
    builder.add(UOps.TILE_STORE, src=(memory[0], zero), arg=(0, 16))
    verify(builder.uops)
    out = c.copy()
    interpret(builder.uops, [out, a, b])
    return out


def pairs(value: Array) -> Array:
    return np.ascontiguousarray(value.astype(BFLOAT16)).view(np.uint32).ravel()


def test_the_instruction_multiplies_pairs() -> None:
    generator = np.random.default_rng(4)
    a, b = generator.integers(-8, 8, (16, 32)), generator.integers(-8, 8, (32, 16))
    c = generator.integers(-8, 8, (16, 16)).astype(np.float32)
    by_pairs = b.reshape(16, 2, 16).transpose(0, 2, 1)
    found = tile_product(pairs(a), pairs(by_pairs), c.ravel())
    np.testing.assert_array_equal(found.reshape(16, 16), c + a @ b)


def test_halves_are_added_up_apart() -> None:
    """2**24 + 1 is no float32; the two halves of pairs meet only at the end."""
    a, b = np.zeros((16, 32)), np.zeros((16, 16, 2))
    a[0, :4], b[:, 0] = [2.0**24, 1, 1, 1], 1
    found = tile_product(pairs(a), pairs(b), np.zeros(256, np.float32))
    assert found[0] == 2.0**24 + 2  # not + 3, which rounds to + 4
    a[0, :4] = [1, 2.0**24, 1, -(2.0**24)]
    assert tile_product(pairs(a), pairs(b), np.zeros(256, np.float32))[0] == 2


def test_subnormals_count_as_zeros() -> None:
    a, b = np.zeros((16, 32)), np.zeros((16, 16, 2))
    a[0, 0], b[0, 0, 0] = 2.0**-64, 2.0**-64
    c = np.full(256, 2.0**-127, np.float32)
    assert not tile_product(pairs(a), pairs(b), c).any()


def test_the_instructions_are_in_the_code() -> None:
    """LLVM makes them of what is rendered, for a processor that has them."""
    source = LLVMRenderer(AMX).render("product", linearized(product(64, 64, 64)).uops)
    machine = CPUCompiler(AMX)._machine()
    code = str(machine.emit_assembly(llvm.parse_assembly(source, llvm.create_context())))
    assert code.count("\tldtilecfg\t") == code.count("\ttilerelease\n") == 1
    names = ("tilezero", "tileloadd", "tdpbf16ps", "tilestored")
    assert [code.count(f"\t{name}\t") for name in names] == [4] * 4


def test_all_registers_have_sixteen_rows_of_64_bytes() -> None:
    """As LDTILECFG takes it: palette 1, a 16-bit width and an 8-bit height for each."""
    found = np.frombuffer(configuration(), np.uint8)
    assert len(found) == 64
    assert found[0] == 1
    assert found[16:32].view("<u2").tolist() == [64] * 8
    assert found[48:56].tolist() == [16] * 8
    assert found.sum() == 1 + 8 * (64 + 16)


# -- refusals --------------------------------------------------------------------------------------


def test_targets_without_them_are_refused() -> None:
    with pytest.raises(RenderError, match="tile registers: dot has none; they take"):
        LLVMRenderer(WITH_DOT).render("product", linearized(product(64, 64, 64)).uops)


def test_programs_with_other_registers_are_refused() -> None:
    builder = Builder()
    builder.add(UOps.TILE_DOT, arg=(0, 1, 8))
    with pytest.raises(ProgramError, match="there is no tile register"):
        verify(builder.uops)


def test_loops_of_other_sizes_are_refused() -> None:
    kernel = lower(product(64, 64, 64).ast, "k")
    with pytest.raises(ScheduleError, match="in its last three loops, 16 rows, 16 columns and"):
        apply_opts(kernel, [Opt("tensorize", ("sum0", "r0.3", "tdpbf16ps"))])


def test_the_three_loops_are_done_together() -> None:
    nest = the_reduce(linearized(product(64, 64, 64)).scheduled)
    assert [loop.kind for loop in nest.loops[-3:]] == [Kind.MATRIX] * 3


# -- the system's permission -----------------------------------------------------------------------


@pytest.mark.parametrize("answer", [False, True])
def test_what_the_system_does_not_permit_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: bool
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : fma avx512f avx512bw avx512dq avx512vl avx2 amx_tile amx_bf16\n")
    monkeypatch.setattr(target, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(target, "_may_use_tiles", lambda: answer)
    found = target.detect_cpu("x86_64", cpuinfo)
    assert TILE.is_native(found) is answer
    assert "+avx512f" in found.features


def test_a_processor_without_them_asks_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : fma avx512f\n")
    monkeypatch.setattr(target, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(target, "_may_use_tiles", lambda: pytest.fail("the system was asked"))
    assert "+avx512f" in target.detect_cpu("x86_64", cpuinfo).features


@needs_tiles
def test_compiled_products_are_the_interpreted_ones() -> None:
    """By the instructions themselves."""
    case = product(64, 64, 64)
    uops = Linearizer(case.ast, HOST).linearize().uops
    assert any(u.op in OF_TILES for u in uops)
    run_both(uops, [empty_result(case), *(x.ravel() for x in inputs_of(case))])


@pytest.mark.skipif(TILE.is_native(HOST), reason="the system says yes")
def test_the_system_says_no_where_there_are_none() -> None:
    assert not target._may_use_tiles()
