"""Programs as LLVM IR: what compiled code does is what the interpreter does, bit for bit."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.kernels import CASES, store
from tests.programs import (
    COMPUTED,
    HOST,
    I64,
    NARROW,
    REALS,
    SIZE,
    Array,
    Builder,
    Compiled,
    bits,
    dot,
    elementwise,
    every_operation,
    in_range,
    operand_count,
    run_both,
    sample,
    tail,
)

from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.codegen.plan import Plan
from ferrule.codegen.uops import GUARDED, UOp, UOps
from ferrule.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.ir.shape.shapetracker import ShapeTracker
from ferrule.ir.target import Target
from ferrule.ops import BufferOps, LazyOp, MemBuffer, UnaryOps
from ferrule.renderer.base import RenderError
from ferrule.renderer.llvm.ir import MAX_LOCAL_BYTES, LLVMRenderer
from ferrule.tensor import Tensor

GOLDEN = Path(__file__).parents[1] / "golden" / "llvmir"


def x86(vector_bytes: int, features: str) -> Target:
    """A lesser x86 than this machine's, whose code this machine can run."""
    has_fma = "+fma" in features
    native = {"SQRT"} | ({"MULACC"} if has_fma else set())
    if "+sse4.1" in features:
        native |= {"TRUNC", "ROUND"}
    return Target(
        name="x86-64-test",
        arch="x86-64",
        features=features,
        vector_bytes=vector_bytes,
        n_vector_registers=16,
        max_threads=1,
        l1_bytes=32768,
        l2_bytes=1 << 20,
        has_fma=has_fma,
        flops_per_second=1e11,
        bytes_per_second=1e10,
        native_ops=frozenset(native),
    )


SSE2 = x86(16, "")
AVX2 = x86(32, "+avx2,+f16c,+fma,+sse4.1")
TARGETS = [HOST]
if HOST.arch == "x86-64":
    TARGETS.append(SSE2)
    if {"+avx2", "+f16c", "+fma"} <= set(HOST.features.split(",")):
        TARGETS.append(AVX2)


@pytest.fixture(params=TARGETS, ids=lambda t: f"{t.name}-{t.vector_bytes}")
def target(request: pytest.FixtureRequest) -> Target:
    return request.param


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", COMPUTED, ids=lambda d: d.name)
def test_every_operation(dtype: DType, lanes: int, target: Target) -> None:
    uops, stored = every_operation(dtype, lanes)
    inputs = [sample(dtype, SIZE, seed) for seed in range(3)]
    outputs = [np.zeros(SIZE, kind.np) for kind in stored]
    run_both(uops, [*inputs, *outputs], target=target)


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
def test_fused_multiply_add_rounds_once(dtype: DType, target: Target) -> None:
    """Also where there is no such instruction, and the product nearly cancels the addend."""
    generator = np.random.default_rng(5)
    size = 2048
    a = generator.standard_normal(size).astype(dtype.np)
    b = generator.standard_normal(size).astype(dtype.np)
    c = (-a * b * (1 + generator.integers(-2, 3, size) * np.finfo(dtype.np).eps)).astype(dtype.np)
    c[::4] = (generator.standard_normal(len(c[::4])) * 1e-8).astype(dtype.np)

    def body(builder: Builder, values: Sequence[UOp]) -> UOp:
        return builder.alu(ExprOp.MULACC, *values)

    uops = elementwise(body, [dtype] * 3, 8, size // 8)
    found = run_both(uops, [np.zeros_like(a), a, b, c], target=target)[0]
    assert (found != a * b + c).any()


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("divisor", [1, 3, 8, 10, 1 << 20])
def test_index_division_floors(divisor: int, lanes: int) -> None:
    x = np.array([*range(-20, 20), -(2**40), 2**40, 2**62, -(2**62), 5, 6, 7, 8], np.int64)
    d = np.full(len(x), divisor, np.int64)

    def divided(op: ExprOp, constant: bool) -> Array:
        def body(b: Builder, values: Sequence[UOp]) -> UOp:
            by = b.const(divisor, I64, lanes) if constant else values[1]
            return b.alu(op, values[0], by)

        uops = elementwise(body, [I64, I64], lanes, len(x) // lanes)
        return run_both(uops, [np.zeros_like(x), x, d])[0]

    for constant in (False, True):
        np.testing.assert_array_equal(divided(ExprOp.IDIV, constant), x // divisor)
        np.testing.assert_array_equal(divided(ExprOp.MOD, constant), x % divisor)


@pytest.mark.parametrize("divisor", [1, 3, 8, -1, -3, 0])
@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.int64], ids=lambda d: d.name)
def test_integer_division_by_a_constant(dtype: DType, divisor: int) -> None:
    x = sample(dtype, SIZE, 1)
    for op in (ExprOp.TDIV, ExprOp.TMOD):

        def body(b: Builder, values: Sequence[UOp], op: ExprOp = op) -> UOp:
            return b.alu(op, values[0], b.const(divisor, dtype, 4))

        run_both(elementwise(body, [dtype], 4, SIZE // 4), [np.zeros_like(x), x])


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("source", [*COMPUTED, *NARROW], ids=lambda d: d.name)
def test_every_cast(source: DType, lanes: int, target: Target) -> None:
    kinds = [*COMPUTED, *NARROW]
    b = Builder(SIZE // lanes)
    start, stop = b.add(UOps.START, I64), b.add(UOps.STOP, I64)
    loop = b.loop(start, stop)
    index = b.alu(ExprOp.MUL, loop, b.const(lanes))
    inputs = []
    for slot, kind in enumerate(kinds):
        value = b.load(b.param(2 * slot, source), index, lanes)
        result = b.add(UOps.CAST, kind, lanes, (value,))
        b.store(b.param(2 * slot + 1, kind), index, result)
        x = sample(source, SIZE, slot)
        inputs += [in_range(x, kind) if dtypes.is_float(source) else x, np.zeros(SIZE, kind.np)]
    b.end(loop)
    run_both(b.uops, inputs, target=target)


@pytest.mark.parametrize("kind", NARROW, ids=lambda d: d.name)
def test_narrow_floats_round_to_nearest_even(kind: DType, target: Target) -> None:
    """From values of the narrow type, from the middles between them and from beside those."""
    every = np.arange(1 << 16, dtype=np.uint16).view(kind.np)
    with np.errstate(invalid="ignore"):  # on AArch64 it warns of NaNs
        every = every[np.isfinite(every.astype(np.float32))]
    values = np.sort(every.astype(np.float64))
    middles = (values[1:] + values[:-1]) / 2
    near = [np.nextafter(middles, side) for side in (-np.inf, np.inf)]
    x = np.concatenate([part[::5] for part in (values, middles, *near)])
    x = np.concatenate([x, np.zeros(-len(x) % 16)])
    for source in REALS:

        def body(b: Builder, loaded: Sequence[UOp]) -> UOp:
            return b.add(UOps.CAST, kind, 16, (loaded[0],))

        uops = elementwise(body, [source], 16, len(x) // 16)
        inputs = x.astype(source.np)
        run_both(uops, [np.zeros(len(x), kind.np), inputs], target=target)


def test_bitcasts() -> None:
    pairs = [(dtypes.float32, dtypes.int32), (dtypes.uint64, dtypes.float64)]
    pairs += [(dtypes.bfloat16, dtypes.uint16), (dtypes.int16, dtypes.float16)]
    pairs += [(dtypes.bool, dtypes.uint8), (dtypes.int32, dtypes.uint32)]
    for source, target in pairs:

        def body(b: Builder, values: Sequence[UOp], target: DType = target) -> UOp:
            return b.add(UOps.BITCAST, target, 8, (values[0],))

        x = sample(source, SIZE, 0)
        uops = elementwise(body, [source], 8, SIZE // 8)
        found = run_both(uops, [np.zeros(SIZE, target.np), x])[0]
        np.testing.assert_array_equal(found.view(np.uint8), x.view(np.uint8))


# -- reductions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2, 4, 16])
@pytest.mark.parametrize("op", [ExprOp.ADD, ExprOp.MUL, ExprOp.MAX, ExprOp.MIN])
def test_horizontal_reductions_halve(op: ExprOp, lanes: int) -> None:
    def body(b: Builder, values: Sequence[UOp]) -> UOp:
        reduced = b.add(UOps.HREDUCE, dtypes.float32, 1, (values[0],), op)
        return b.splat(reduced, lanes)

    x = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    found = run_both(elementwise(body, [dtypes.float32], lanes, SIZE // lanes), [x * 0, x])[0]
    if op is ExprOp.ADD:
        rows = x.reshape(-1, lanes)
        while rows.shape[1] > 1:
            half = rows.shape[1] // 2
            rows = rows[:, :half] + rows[:, half:]
        np.testing.assert_array_equal(found.reshape(-1, lanes)[:, :1], rows)


def test_maximum_keeps_nan_on_either_side() -> None:
    def body(b: Builder, values: Sequence[UOp]) -> UOp:
        return b.alu(ExprOp.MAX, *values)

    a = np.array([np.nan, 1, np.nan, 2, -0.0, 0.0, -np.inf, np.inf], np.float32)
    c = np.array([1, np.nan, np.nan, 3, 0.0, -0.0, np.nan, 1], np.float32)
    uops = elementwise(body, [dtypes.float32] * 2, 8, 1)
    found = run_both(uops, [np.zeros_like(a), a, c])[0]
    np.testing.assert_array_equal(found, np.maximum(a, c))


def test_maximum_with_a_constant_is_one_instruction() -> None:
    def body(b: Builder, values: Sequence[UOp]) -> UOp:
        return b.alu(ExprOp.MAX, values[0], b.const(0.0, dtypes.float32, 8))

    uops = elementwise(body, [dtypes.float32], 8, 1)
    assert "uno" not in LLVMRenderer(HOST).render("relu", uops)
    x = np.array([np.nan, 1, -1, -0.0, 0.0, np.inf, -np.inf, 2], np.float32)
    np.testing.assert_array_equal(run_both(uops, [np.zeros_like(x), x])[0], np.maximum(x, 0))


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dtypes.bool, dtypes.int8, *NARROW, *REALS], ids=lambda d: d.name)
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_masks_keep_accesses_inside(dtype: DType, lanes: int, target: Target) -> None:
    """out[i] = in[i - 3] where that is there: the first and the last vectors are masked."""
    size = 37
    b = Builder(-(-size // lanes))
    start, stop = b.add(UOps.START, I64), b.add(UOps.STOP, I64)
    out, x = b.param(0, dtype), b.param(1, dtype)
    loop = b.loop(start, stop)
    base = b.alu(ExprOp.MUL, loop, b.const(lanes))
    iota = b.add(UOps.IOTA, I64, lanes)
    index = b.alu(ExprOp.ADD, b.splat(base, lanes), iota)
    inside = b.alu(ExprOp.CMPLT, index, b.const(size, I64, lanes))
    behind = b.alu(ExprOp.CMPLT, b.const(2, I64, lanes), index)
    source = b.alu(ExprOp.SUB, base, b.const(3))
    value = b.load(x, source, lanes, b.alu(ExprOp.AND, behind, inside))
    b.store(out, base, value, inside)
    b.end(loop)
    data = sample(dtype, size, 2)
    found = run_both(b.uops, [np.ones(size, dtype.np), data], target=target)[0]
    expected = np.concatenate([np.zeros(3, dtype.np), data[:-3]])
    np.testing.assert_array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("masked", [False, True])
def test_gather_and_scatter(lanes: int, masked: bool, target: Target) -> None:
    """out[where[i]] = in[from[i]]; of two lanes with one place the higher stays."""
    dtype = dtypes.float32
    generator = np.random.default_rng(1)
    origin = generator.integers(0, 50, lanes).astype(np.int64)
    place = generator.integers(0, 8, lanes).astype(np.int64)
    enabled = generator.random(lanes) < 0.6
    if masked:
        origin[~enabled] = 10**9
        place[~enabled] = -(10**9)
    b = Builder()
    zero = b.const(0)
    at = b.load(b.param(1, I64), zero, lanes)
    to = b.load(b.param(2, I64), zero, lanes)
    mask = b.load(b.param(3, dtypes.bool), zero, lanes) if masked else None
    value = b.load(b.param(4, dtype), at, lanes, mask)
    b.store(b.param(0, dtype), to, value, mask)
    buffers = [np.zeros(8, np.float32), origin, place, enabled, np.arange(50, dtype=np.float32)]
    run_both(b.uops, buffers, target=target)


def test_scratch_and_shuffles() -> None:
    """A 4x4 transpose by shuffles, and one through scratch: the same."""
    b = Builder()
    x, out = b.param(0, dtypes.float32), b.param(1, dtypes.float32)
    scratch = b.add(UOps.LOCAL, dtypes.float32, arg=("tile", 16))
    rows = [b.load(x, b.const(4 * i), 4) for i in range(4)]
    for i, row in enumerate(rows):
        for j in range(4):
            lane = b.add(UOps.EXTRACT, dtypes.float32, 1, (row,), j)
            b.store(scratch, b.const(4 * j + i), lane)
    halves = []
    for a, c in ((rows[0], rows[2]), (rows[1], rows[3])):
        for lanes in ((0, 4, 1, 5), (2, 6, 3, 7)):
            halves.append(b.add(UOps.SHUFFLE, dtypes.float32, 4, (a, c), lanes))
    for i, (a, c) in enumerate((halves[k], halves[k + 2]) for k in (0, 1)):
        for j, lanes in enumerate(((0, 4, 1, 5), (2, 6, 3, 7))):
            column = b.add(UOps.SHUFFLE, dtypes.float32, 4, (a, c), lanes)
            saved = b.load(scratch, b.const(4 * (2 * i + j)), 4)
            b.store(out, b.const(8 * (2 * i + j)), column)
            b.store(out, b.const(8 * (2 * i + j) + 4), saved)
    data = np.arange(16, dtype=np.float32)
    found = run_both(b.uops, [data, np.zeros(32, np.float32)])[1].reshape(4, 2, 4)
    for way in range(2):
        np.testing.assert_array_equal(found[:, way], data.reshape(4, 4).T)


@pytest.mark.parametrize("offset", [0, 1])
def test_streaming_stores_need_no_alignment(offset: int) -> None:
    b = Builder()
    x, out = b.param(0, dtypes.float32), b.param(1, dtypes.float32)
    loop = b.loop(b.const(0), b.const(64), 16)
    b.store(out, loop, b.load(x, loop, 16), arg="nontemporal")
    b.end(loop)
    aligned = np.zeros(64 + 32, np.float32)
    first = (-aligned.ctypes.data // 4) % 16 + offset
    data = np.arange(64, dtype=np.float32)
    out_view = aligned[first : first + 64]
    compiled = Compiled(b.uops)
    compiled([data, out_view])
    np.testing.assert_array_equal(out_view, data)
    assert ("!nontemporal" in compiled.source) == (HOST.arch == "x86-64")


def test_what_is_fetched_may_be_outside_of_the_buffer() -> None:
    b = Builder()
    x, out = b.param(0, dtypes.float32), b.param(1, dtypes.float32)
    loop = b.loop(b.const(0), b.const(64), 16)
    b.uops.append(UOp(UOps.PREFETCH, src=(x, b.alu(ExprOp.ADD, loop, b.const(1 << 40)))))
    b.store(out, loop, b.load(x, loop, 16))
    b.end(loop)
    data = np.arange(64, dtype=np.float32)
    found = run_both(b.uops, [data, np.zeros(64, np.float32)])[1]
    np.testing.assert_array_equal(found, data)
    assert "call void @llvm.prefetch" in Compiled(b.uops).source


# -- control ---------------------------------------------------------------------------------------


def test_registers_in_nested_loops() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((2, 6 * 64)).astype(np.float32)
    found = run_both(dot(64, 16), [np.zeros(6, np.float32), x, y], [6])[0]
    expected = (x.astype(np.float64) * y).reshape(6, 64).sum(1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_any_partition_of_the_chunks_gives_the_same() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 6 * 64)).astype(np.float32)
    compiled = Compiled(dot(64, 16))
    whole, parts = np.zeros(6, np.float32), np.zeros(6, np.float32)
    compiled([whole, x, y], [6])
    for start, stop in ((4, 6), (0, 1), (1, 1), (1, 4)):
        compiled([parts, x, y], [6], start, stop)
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_loops_may_run_not_at_all(count: int) -> None:
    """The bounds come from variables: n iterations of a loop within n iterations."""
    b = Builder()
    n = b.add(UOps.VALUE, I64, arg=1)
    out = b.param(0, I64)
    register = b.add(UOps.REG, I64, 1, (b.const(0),), "count")
    outer = b.loop(b.const(0), n, name="outer loop!")  # any name will do
    inner = b.loop(outer, n)
    old = b.add(UOps.GET, I64, 1, (register,))
    b.add(UOps.SET, src=(register, b.alu(ExprOp.ADD, old, inner)))
    b.end(inner)
    b.end(outer)
    b.store(out, b.const(0), b.add(UOps.GET, I64, 1, (register,)))
    found = run_both(b.uops, [np.full(1, 99)], [count])[0]
    assert found[0] == sum(j for i in range(count) for j in range(i, count))


@pytest.mark.parametrize("value", [3, 12])
def test_conditions(value: int) -> None:
    b = Builder()
    n = b.add(UOps.VALUE, I64, arg=1)
    out = b.param(0, I64)
    small = b.add(UOps.IF, src=(b.alu(ExprOp.CMPLT, n, b.const(10)),))
    b.store(out, b.const(0), n)
    inner = b.add(UOps.IF, src=(b.alu(ExprOp.CMPNE, n, b.const(3)),))
    b.store(out, b.const(1), n)
    b.end(inner)
    b.end(small)
    found = run_both(b.uops, [np.zeros(2, np.int64)], [value])[0]
    assert list(found) == ([3, 0] if value == 3 else [0, 0])


def test_extent_is_computed_from_variables() -> None:
    b = Builder(0)
    n = b.add(UOps.VALUE, I64, arg=1)
    rounded = b.alu(ExprOp.IDIV, b.alu(ExprOp.ADD, n, b.const(15)), b.const(16))
    b.add(UOps.EXTENT, src=(rounded,))
    b.store(b.param(0, I64), b.const(0), rounded)
    compiled = Compiled(b.uops)
    buffer = np.zeros(1, np.int64)
    assert [compiled.extent([buffer], [n]) for n in (1, 16, 17, 160)] == [1, 1, 2, 10]
    run_both(b.uops, [buffer], [100])


# -- random programs -------------------------------------------------------------------------------

_CLOSED = [ExprOp.ADD, ExprOp.SUB, ExprOp.MUL, ExprOp.MAX, ExprOp.MIN, ExprOp.NEG, ExprOp.MULACC]


@pytest.mark.parametrize("seed", range(12))
def test_random_expressions(seed: int) -> None:
    """A DAG of thirty operations on values of several dtypes, with casts between them."""
    generator = np.random.default_rng(seed)
    kinds = [dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64, dtypes.uint8]
    lanes = int(generator.choice([1, 4, 16]))

    def body(b: Builder, values: Sequence[UOp]) -> UOp:
        known = list(values)
        for _ in range(30):
            dtype = kinds[generator.integers(len(kinds))]
            same = [u for u in known if u.dtype is dtype]
            op = _CLOSED[generator.integers(len(_CLOSED))]
            operands = [same[generator.integers(len(same))] for _ in range(operand_count(op))]
            made = b.alu(op, *operands)
            if generator.random() < 0.3:
                less = b.alu(ExprOp.CMPLT, operands[0], made)
                made = b.alu(ExprOp.WHERE, less, operands[-1], made)
            known.append(made)
            if not dtypes.is_float(dtype):
                wider = kinds[generator.integers(4)]
                known.append(b.add(UOps.CAST, wider, lanes, (made,)))
        last = [u for u in known if u.dtype is dtypes.float64][-1]
        return b.alu(ExprOp.ADD, last, b.add(UOps.CAST, dtypes.float64, lanes, (known[-1],)))

    inputs = [sample(dtype, 64, seed + i) for i, dtype in enumerate(kinds)]
    uops = elementwise(body, kinds, lanes, 64 // lanes)
    run_both(uops, [np.zeros(64), *inputs])


# -- text ------------------------------------------------------------------------------------------


def stream() -> list[UOp]:
    """out[i] = in[i] + 1, past the caches."""
    b = Builder()
    out, x = b.param(0, dtypes.float32), b.param(1, dtypes.float32)
    value = b.load(x, b.const(0), 8)
    one = b.const(1.0, dtypes.float32, 8)
    b.store(out, b.const(0), b.alu(ExprOp.ADD, value, one), arg="nontemporal")
    return b.uops


@pytest.mark.parametrize(
    ("name", "uops"), [("dot", dot(64, 8)), ("tail", tail(21, 8)), ("stream", stream())]
)
def test_golden_text(name: str, uops: list[UOp], update_golden: bool) -> None:
    text = LLVMRenderer(AVX2).render(name, uops)
    path = GOLDEN / f"{name}.ll"
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_equal_programs_give_equal_text() -> None:
    assert LLVMRenderer(HOST).render("k", dot(64, 8)) == LLVMRenderer(HOST).render("k", dot(64, 8))


@pytest.mark.parametrize("dtype", [*COMPUTED, *NARROW], ids=lambda d: d.name)
def test_arm_needs_no_library(dtype: DType) -> None:
    """Compiled for a processor that is not here, no operation becomes a call of libm."""
    binding = pytest.importorskip("llvmlite.binding")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    triple = "aarch64-unknown-linux-gnu"
    try:
        machine = binding.Target.from_triple(triple).create_target_machine(features="+neon")
    except RuntimeError:
        pytest.skip("this LLVM is built without AArch64")
    native = frozenset({"SQRT", "MULACC", "TRUNC", "ROUND"})
    arm = replace(SSE2, arch="aarch64", features="+neon", has_fma=True, native_ops=native)
    if dtype in NARROW:
        uops = elementwise(lambda b, v: b.add(UOps.CAST, dtype, 8, v), [dtypes.float64], 8, 1)
    else:
        uops, _ = every_operation(dtype, 8)
    module = binding.parse_assembly(LLVMRenderer(arm).render("k", uops))
    module.triple = triple
    module.verify()
    calls = [
        line.split() for line in machine.emit_assembly(module).splitlines() if "\tbl\t" in line
    ]
    assert all(callee.startswith(("ferrule.", ".L")) for _, callee in calls), calls


def test_accesses_without_any_lane_go_to_the_beginning_of_the_buffer(target: Target) -> None:
    """A masked access takes a microsecond where its page is not there, even if it has no lane."""
    b = Builder()
    zero, far = b.const(0), b.const(1 << 20)
    condition = b.load(b.param(1, dtypes.bool), zero)
    mask = b.add(UOps.SPLAT, dtypes.bool, 16, (condition,))
    x, out = b.param(2, dtypes.float32), b.param(0, dtypes.float32)
    value = b.add(UOps.LOAD, dtypes.float32, 16, (x, far, mask), GUARDED)
    b.store(out, zero, value)
    b.add(UOps.STORE, src=(out, far, value, mask), arg=GUARDED)
    enabled = np.zeros(16, np.bool_)
    run_both(b.uops, [np.ones(16, np.float32), enabled, np.ones(16, np.float32)], target=target)
    text = LLVMRenderer(target).render("k", b.uops)
    assert text.count("select i1") == 2
    assert all(
        "select" in line_of(text, operand)
        for operand in re.findall(r"@llvm\.masked\.(?:load|store)\S+\(.*?ptr (%v\d+)", text)
    )


def line_of(text: str, name: str) -> str:
    """The line of a module that defines a value."""
    return next(line for line in text.splitlines() if line.strip().startswith(f"{name} ="))


def test_only_masks_of_one_condition_are_guarded() -> None:
    """Rows beyond a border have none of their lanes; the last vector of a row has some."""

    def guarded(columns: int, rows: int) -> bool:
        st = ShapeTracker.from_shape((30, columns)).pad(((rows, rows), (0, 0)))
        image = LazyOp(BufferOps.LOAD, (), MemBuffer(1, dtypes.float32, st))
        plan = Plan(lower(store(LazyOp(UnaryOps.SQRT, (image,))), "k"), HOST)
        (root,) = (nest.name for nest in plan.kernel.roots)
        _, lane = plan.split(root, plan.loops(root)[1], 16, "mask")
        plan.do("vectorize", root, lane)
        uops = Linearizer(store(LazyOp(UnaryOps.SQRT, (image,))), HOST, plan.opts).linearize().uops
        return any(u.arg == GUARDED for u in uops if u.op in (UOps.LOAD, UOps.STORE))

    assert guarded(48, 1)
    assert not guarded(40, 0)


def test_lanes_two_apart_are_shuffled_in_a_loop_of_one_iteration() -> None:
    """Ten results of 16 lanes: the loop around these lanes runs once, so all masks are known."""
    st = ShapeTracker.from_shape((6, 20)).shrink(((0, 6), (0, 20))).reshape((6, 10, 2))
    st = st.shrink(((0, 6), (0, 10), (0, 1)))
    ast = store(
        LazyOp(UnaryOps.SQRT, (LazyOp(BufferOps.LOAD, (), MemBuffer(1, dtypes.float32, st)),))
    )
    plan = Plan(lower(ast, "k"), HOST)
    (root,) = (nest.name for nest in plan.kernel.roots)
    _, lane = plan.split(root, plan.loops(root)[1], 16, "mask")
    plan.do("vectorize", root, lane)
    loads = [u for u in Linearizer(ast, HOST, plan.opts).linearize().uops if u.op is UOps.LOAD]
    assert len(loads) == 2
    assert all(u.src[1].lanes == 1 for u in loads)


# -- errors ----------------------------------------------------------------------------------------


def render(body: Builder) -> str:
    return LLVMRenderer(HOST).render("k", body.uops)


def test_arithmetic_on_narrow_floats_is_refused() -> None:
    b = Builder()
    x = b.const(1.0, dtypes.float16)
    b.alu(ExprOp.ADD, x, x)
    with pytest.raises(
        RenderError,
        match=r"^ADD of float16: programs compute in float32; CAST before and after$",
    ):
        render(b)


def test_functions_must_be_expanded_first() -> None:
    b = Builder()
    b.alu(ExprOp.EXP2, b.const(1.0, dtypes.float32))
    with pytest.raises(RenderError, match=r"^EXP2 is no operation of a program; expand it first$"):
        render(b)


@pytest.mark.parametrize("dtype", [dtypes.float8_e4m3, dtypes.float8_e5m2])
def test_float8_is_rounded_as_ml_dtypes_does(dtype: DType) -> None:
    every = np.arange(256, dtype=np.uint8).view(dtype.np)
    exact = every.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        ties = ((exact[:-1].astype(np.float64) + exact[1:]) / 2).astype(np.float32)
        near = [np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)]
        others = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, 1e-45, 464.0, 61440.0])
        some = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
        values = np.concatenate([exact, ties, *near, others, some])
        expected = values.astype(dtype.np)
    values = np.resize(values, -(-values.size // 4) * 4)
    for lanes in (1, 4):
        b = Builder()
        x = b.load(b.param(0, dtypes.float32), b.const(0), lanes)
        b.store(b.param(1, dtype), b.const(0), b.add(UOps.CAST, dtype, lanes, (x,)))
        for start in range(0, expected.size - 3, 4 * lanes):
            part = values[start : start + lanes]
            found = run_both(b.uops, [part, np.zeros(lanes, dtype.np)])[1].astype(np.float32)
            want = np.resize(expected, values.size)[start : start + lanes].astype(np.float32)
            np.testing.assert_array_equal(found, want)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(want))
    b = Builder()
    x = b.load(b.param(0, dtype), b.const(0), 256)
    b.store(b.param(1, dtypes.float32), b.const(0), b.add(UOps.CAST, dtypes.float32, 256, (x,)))
    np.testing.assert_array_equal(run_both(b.uops, [every, np.zeros(256, np.float32)])[1], exact)


def test_scratch_must_fit_the_stack() -> None:
    b = Builder()
    b.add(UOps.LOCAL, dtypes.float32, arg=("panel", MAX_LOCAL_BYTES // 4 + 1))
    with pytest.raises(
        RenderError,
        match=r"^scratch panel: 4194308 bytes in all do not fit the stack of a thread; "
        r"keep it below 4194304, by smaller tiles$",
    ):
        render(b)


def test_subtracting_bools_is_refused() -> None:
    b = Builder()
    b.alu(ExprOp.SUB, b.const(True, dtypes.bool), b.const(True, dtypes.bool))
    with pytest.raises(RenderError, match=r"^SUB of bool has no meaning; use XOR"):
        render(b)


def test_a_program_needs_an_extent() -> None:
    with pytest.raises(RenderError, match=r"^kernel k has no EXTENT"):
        render(Builder(0))


def test_shuffles_are_from_vector_to_vector() -> None:
    b = Builder()
    x = b.const(1.0, dtypes.float32, 4)
    b.add(UOps.SHUFFLE, dtypes.float32, 1, (x,), (0,))
    with pytest.raises(RenderError, match=r"^SHUFFLE is from vector to vector"):
        render(b)


def test_scalars_under_a_condition_have_no_masks() -> None:
    """A store with a mask would be waited for by the next load of its place."""
    case = next(case for case in CASES if case.name == "scatter")
    program = Linearizer(case.ast, HOST).linearize()
    source = LLVMRenderer(HOST).render("k", program.uops)
    assert "<1 x i1>" not in source
    assert "ptr %zero" in source
    assert "ptr %unread" in source
    assert "icmp ult i64" in source


def conditional_copy(inside: bool) -> list[UOp]:
    """Rows of a matrix, with 0 where they are loaded under a condition that fails, and are not
    stored where another one does: conditions on the row or, inside, on the element of it.
    """
    b = Builder()
    x, out = b.param(0, dtypes.float32), b.param(1, dtypes.float32)
    row = b.loop(b.const(0), b.const(6))
    of_row = _conditions(b, row)
    column = b.loop(b.const(0), b.const(8))
    place = b.alu(ExprOp.ADD, b.alu(ExprOp.MUL, row, b.const(8)), column)
    is_loaded, is_stored = _conditions(b, column) if inside else of_row
    b.store(out, place, b.load(x, place, 1, is_loaded), is_stored)
    b.end(column)
    b.end(row)
    return b.uops


def _conditions(b: Builder, counter: UOp) -> tuple[UOp, UOp]:
    """Below 4, and above 1."""
    return b.alu(ExprOp.CMPLT, counter, b.const(4)), b.alu(ExprOp.CMPLT, b.const(1), counter)


@pytest.mark.parametrize("inside", [False, True])
def test_what_is_known_outside_of_a_loop_masks_addresses_there(inside: bool) -> None:
    """A comparison is kept in flags, and many of them would be next to each other."""
    data = np.arange(1, 49, dtype=np.float32)
    uops = conditional_copy(inside)
    found = run_both(uops, [data, np.full(48, -1, np.float32)])[1].reshape(6, 8)
    i = np.broadcast_to(np.arange(8), (6, 8)) if inside else np.arange(6)[:, None]
    expected = np.where(i < 4, data.reshape(6, 8), 0)
    np.testing.assert_array_equal(found, np.where(i > 1, expected, -1))
    source = Compiled(uops).source
    assert ("select i1" in source) == inside
    assert ("inttoptr" in source) != inside


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_remainders_of_near_and_far_numbers(dtype: type) -> None:
    """Quotients of any size, whole ones and those just below one, and what is no number."""
    rng = np.random.default_rng(1)
    whole = np.uint32 if dtype is np.float32 else np.uint64
    anything = rng.integers(0, np.iinfo(whole).max, (2, 5000), dtype=whole).view(dtype)
    special = np.array([0, -0.0, 1, np.inf, -np.inf, np.nan, 1e-40, 3, -6, 0.7, 1e38], dtype)
    steps = (rng.integers(1, 1000, 5000) * 0.1).astype(dtype)
    for x, y in (
        anything,
        [part.ravel() for part in np.meshgrid(special, special)],
        (steps, np.full_like(steps, 0.1)),
        (steps * dtype(0.7), steps),
        (rng.normal(size=5000).astype(dtype) * dtype(1000), np.full(5000, 0.7, dtype)),
    ):
        with np.errstate(all="ignore"):
            expected = np.fmod(x, y)
        result = Tensor(x, device="CPU").fmod(Tensor(y, device="CPU")).numpy()
        same = (result.view(whole) == expected.view(whole)) | (
            np.isnan(result) & np.isnan(expected)
        )
        assert same.all()


def sums_in_a_nest() -> list[UOp]:
    """out[60a + 12b + 3c + 0, 1, 2] from 2 to 4 places further in; where b > 1, c counts from 1."""
    b = Builder()
    out, x = b.param(0, dtypes.int64), b.param(1, dtypes.int64)
    outer = b.loop(b.const(0), b.const(2), name="a")
    first = b.alu(ExprOp.MUL, outer, b.const(60))
    middle = b.loop(b.const(0), b.const(5), name="b")
    second = b.alu(ExprOp.MUL, middle, b.const(12))
    branch = b.add(UOps.IF, src=(b.alu(ExprOp.CMPLT, b.const(1), middle),))
    inner = b.loop(b.const(1), b.const(4), name="c")
    third = b.alu(ExprOp.MUL, inner, b.const(3))
    index = b.alu(ExprOp.ADD, b.alu(ExprOp.ADD, third, first), second)
    for copy in range(3):
        place = b.alu(ExprOp.ADD, index, b.const(copy))
        further = b.alu(ExprOp.ADD, place, b.const(2))
        value = b.load(x, b.alu(ExprOp.ADD, further, b.const(copy)))
        # The sum is also a number, and not only a part of addresses.
        b.store(out, place, b.alu(ExprOp.ADD, value, place))
    for block in (inner, branch):
        b.end(block)
    after = b.alu(ExprOp.ADD, first, second)
    b.store(out, b.alu(ExprOp.ADD, after, b.const(1)), b.load(x, after))
    b.end(middle)
    b.end(outer)
    return b.uops


def test_addresses_are_computed_where_their_terms_are_known(target: Target) -> None:
    x = np.random.default_rng(3).integers(-99, 99, 140)
    uops = sums_in_a_nest()
    run_both(uops, [np.zeros(140, np.int64), x], target=target)
    text = LLVMRenderer(target).render("k", uops)
    inside = text.partition("%c.")[2].partition("\nnext.")[0]
    geps = [line for line in inside.splitlines() if "getelementptr" in line]
    # One address for each buffer, and numbers: 1 and 2 from the one, 2, 4 and 6 from the other.
    numbers = [line.rpartition(" ")[2] for line in geps if "getelementptr i8" in line]
    assert numbers == ["16", "32", "8", "48", "16"]
    assert len(geps) == 2 + len(numbers)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int32], ids=lambda d: d.name)
def test_shuffles_one_after_the_other(dtype: DType, target: Target) -> None:
    """Four of them in a row, of which LLVM is to look at two at a time."""
    b = Builder()
    out, x = b.param(0, dtype), b.param(1, dtype)
    one, other = (b.load(x, b.const(at), 4) for at in (0, 4))
    for order in ((0, 4, 1, 5), (2, 6, 3, 7), (1, 7, 0, 6), (5, 2, 4, 3)):
        one, other = b.add(UOps.SHUFFLE, dtype, 4, (one, other), order), one
    b.store(out, b.const(0), one)
    x_values = np.arange(8).astype(dtype.np)
    run_both(b.uops, [np.zeros(4, dtype.np), x_values], target=target)
    text = LLVMRenderer(target).render("k", b.uops)
    assert text.count("= call") == (2 if dtype is dtypes.float32 else 0)
