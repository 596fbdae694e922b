"""Loops are objects: they say what they were made from, and nothing takes their names apart."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.roles import partials

from ferrule import codegen
from ferrule.codegen.kernel import MONOIDS, Compute, Kernel, Loop, Nest, Store, show
from ferrule.codegen.opt import Opt, ScheduleError, apply_opts
from ferrule.codegen.plan import Plan
from ferrule.codegen.primitives.loops import fuse, split
from ferrule.codegen.primitives.memory import stage
from ferrule.codegen.primitives.nests import accumulate, compute_at, group
from ferrule.dtype import dtypes
from ferrule.ir.expr import Expr, ExprOp, alu, const, less, load, range_
from ferrule.ir.target import detect_cpu

F32 = dtypes.float32
HOST = detect_cpu()
SOURCE = Path(codegen.__file__).parent
TAKE_APART = {"endswith", "partition", "removeprefix", "removesuffix", "rpartition", "rsplit"}
TAKE_APART |= {"split", "startswith"}


def rows_of_sums() -> Kernel:
    """`for i: for k: s sum= x[i * 8 + k]; b[i] = s`."""
    i, k = range_("i", 6), range_("k", 8)
    terms = Compute("s", load(1, F32, i * 8 + k), (), MONOIDS["sum"])
    total = Expr(ExprOp.READ, F32, (), "s")
    inner = Nest("s", (terms,), (Loop(k),), ("out", 1))
    return Kernel(
        "sums",
        (inner, Nest("out", (Compute("out", total, store=Store(0, i)),), (Loop(i),))),
        (F32,) * 2,
    )


def test_parts_of_a_loop_are_from_it() -> None:
    kernel = split(split(rows_of_sums(), "out", "i", 3), "out", "i.o", 2)
    (i,) = rows_of_sums().by_name["out"].loop_ranges
    first, second, last = kernel.by_name["out"].loops
    assert [r.name for r in second.descent] == ["i", "i.o", "i.o.i"]
    assert all(loop.is_from(i) for loop in (first, second, last))
    assert second.is_from(first.lineage[-1])
    assert not last.is_from(first.lineage[-1])
    assert {kernel.origin(loop.range) for loop in (first, second, last)} == {i}
    assert kernel.origin(first.lineage[-1]) is i, "a loop that is gone has its origin still"


def test_copies_of_a_loop_are_from_it() -> None:
    kernel = split(rows_of_sums(), "out", "i", 3)
    moved = compute_at(kernel, "s", 1)
    k, copy = moved.by_name["s"].loops
    assert copy.lineage == kernel.by_name["out"].loops[1].descent
    assert k.lineage == ()
    assert moved.origin(copy.range) is moved.origin(kernel.by_name["out"].loops[0].range)


def test_an_axis_of_a_copy_is_from_the_loop_that_reads_it() -> None:
    kernel = compute_at(rows_of_sums(), "s", 0)
    k, i = kernel.by_name["s"].loops
    staged = stage(kernel, "s", 1, "s", 0, (i.range.name, k.range.name), "copy")
    across, along = staged.by_name["copy"].loops
    assert (across.lineage, along.lineage) == (i.descent, k.descent)


def test_an_axis_for_several_loops_is_from_none_of_them() -> None:
    i, k = range_("i", 6), range_("k", 3)
    window = Compute("s", load(1, F32, i + k), (), MONOIDS["sum"])
    out = Compute("out", Expr(ExprOp.READ, F32, (), "s"), store=Store(0, i))
    nests = (Nest("s", (window,), (Loop(k),), ("out", 1)), Nest("out", (out,), (Loop(i),)))
    kernel = stage(Kernel("window", nests, (F32,) * 2), "s", 1, "out", 0, ("i+k",), "copy")
    (axis,) = kernel.by_name["copy"].loops
    assert (axis.size, axis.lineage) == (8, ())
    assert kernel.origin(axis.range) is axis.range


def test_loops_that_are_fused_are_a_new_one() -> None:
    kernel = split(rows_of_sums(), "out", "i", 3)
    (loop,) = fuse(kernel, "out", "i.o").by_name["out"].loops
    assert loop.lineage == ()


def test_both_passes_over_partial_results_are_from_one_loop() -> None:
    kernel = group(rows_of_sums(), "s", ["k"])
    (partial,), (final,) = kernel.by_name["s.p"].loops, kernel.by_name["s"].loops
    assert final.lineage == partial.descent


def test_a_loop_that_becomes_a_sum_keeps_its_lineage() -> None:
    i, k, whole = range_("i", 4), range_("k", 6), range_("whole", 12)
    old = load(0, F32, i, less(0, k))
    added = Compute("out", alu(ExprOp.ADD, old, load(1, F32, k)), store=Store(0, i))
    kernel = Kernel(
        "adds", (Nest("out", (added,), (Loop(i), Loop(k, lineage=(whole,)))),), (F32,) * 2
    )
    summed = accumulate(kernel, "out", "k").by_name["out.sum"].loops
    assert [loop.descent for loop in summed] == [(whole, k)]


def test_loops_that_differ_in_their_lineage_only_are_equal() -> None:
    i = range_("i", 4)
    assert Loop(i, lineage=(range_("j", 8),)) == Loop(i)
    assert hash(Loop(i, lineage=(range_("j", 8),))) == hash(Loop(i))


@pytest.mark.parametrize(
    ("taken", "free"), [((), "a"), (("a",), "a.1"), (("a", "a.1", "a.3"), "a.2"), (("b",), "a")]
)
def test_a_free_name_is_one_that_no_nest_has(taken: tuple[str, ...], free: str) -> None:
    kernel = Kernel("names", tuple(Nest(name, (), ()) for name in taken), ())
    assert kernel.free_name("a") == free


def test_free_names_may_all_have_numbers() -> None:
    kernel = Kernel("names", (Nest("a0", (), ()), Nest("a2", (), ())), ())
    assert kernel.free_name("a", numbered=True) == "a1"
    assert kernel.free_name("a", 2, numbered=True) == "a3"
    assert kernel.free_name("a", 2) == "a.2"


def test_a_plan_gives_what_primitives_make() -> None:
    plan = Plan(rows_of_sums(), HOST)
    (i,), (k,) = plan.loops("out"), plan.loops("s")
    outer, inner = plan.split("out", i, 3)
    assert plan.loops("out") == [outer, inner]
    assert (outer.size, inner.size) == (const(2), const(3))
    plan.do("compute_at", "s", 1)
    copy = plan.copy_of(inner, "s")
    assert plan.loop("s", copy).lineage == (i, inner)
    _, lane = plan.split("s", k, 4)
    partial = plan.group("s", (lane,))
    assert [nest.name for nest in partials(plan.kernel)] == [partial]
    assert plan.others(partial, (copy, lane)) == [r for r in plan.loops(partial) if r.size.arg == 2]
    assert plan.copy_of(lane, "s") is plan.loops("s")[-1]
    assert plan.copies_of([copy, lane], "s") == plan.loops("s")
    replayed = apply_opts(rows_of_sums(), [Opt.from_json(opt.to_json()) for opt in plan.opts])
    assert replayed == plan.kernel


def test_a_plan_gives_what_two_loops_become() -> None:
    plan = Plan(rows_of_sums(), HOST)
    outer, _ = plan.split("out", plan.loops("out")[0], 3)
    assert [plan.fuse("out", outer)] == plan.loops("out")


def test_a_nest_without_a_copy_of_a_loop() -> None:
    plan = Plan(rows_of_sums(), HOST)
    with pytest.raises(ScheduleError, match="nest s of kernel sums has no copy of loop i"):
        plan.copy_of(plan.loops("out")[0], "s")


def nodes_of_code() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            yield str(path.relative_to(SOURCE)), node


def test_no_code_takes_names_apart() -> None:
    """Of all texts, only lists of features and of the loops of an axis are taken apart."""
    found = []
    for file, node in nodes_of_code():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            text = ast.unparse(node.func.value)
            if node.func.attr in TAKE_APART and text.rpartition(".")[2] not in (
                "features",
                "plan",
                "self",
            ):
                found.append((file, text, ast.unparse(node.args[0])))
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert not any(alias.name == "re" for alias in node.names), file
    assert found == [("primitives/memory.py", "entry", "'+'")]


def test_names_of_loops_are_composed_in_one_place() -> None:
    """But for copies of ranges that one AST uses several times."""
    files = set()
    for file, node in nodes_of_code():
        if isinstance(node, ast.JoinedStr):
            texts = [part.value for part in node.values[1:] if isinstance(part, ast.Constant)]
            if any(str(text).startswith((".o", ".i", "@")) for text in texts):
                files.add(file)
    assert files == {"lower.py", "primitives/editing.py"}


def test_names_are_printed() -> None:
    assert "for i.i in 3:" in show(split(rows_of_sums(), "out", "i", 3))
