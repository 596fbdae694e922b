"""Expressions and kernels as text: what is used again is written once."""

from tests.kernels import load, store
from tests.programs import HOST

from ferrule.codegen.kernel import show
from ferrule.codegen.linearizer import Linearizer
from ferrule.codegen.lower import lower
from ferrule.dtype import dtypes
from ferrule.ir.expr import Expr, ExprOp, Variable, const
from ferrule.ir.expr import load as load_element
from ferrule.ir.expr.printing import texts
from ferrule.ops import BinaryOps, LazyOp


def element(place: int) -> Expr:
    return load_element(1, dtypes.float32, const(place))


def both(op: ExprOp, a: Expr, b: Expr) -> Expr:
    return Expr(op, dtypes.float32, (a, b))


def test_short_parts_are_repeated() -> None:
    x = element(3)
    square = both(ExprOp.MUL, x, x)
    assert repr(both(ExprOp.ADD, square, square)) == "b1[3] * b1[3] + b1[3] * b1[3]"


def test_long_parts_are_numbered() -> None:
    total = element(0)
    for place in range(1, 14):
        total = both(ExprOp.ADD, total, element(place))
    inner = " + ".join(f"b1[{place}]" for place in range(14))
    assert len(inner) > 100
    square = both(ExprOp.MUL, total, total)
    assert repr(total) == inner
    assert repr(square) == f"%0 * %0 where %0 = {inner}"
    assert texts([square, total, element(1)]) == (["%0 * %0", "%0", "b1[1]"], [f"%0 = {inner}"])


def test_parentheses_stand_where_it_would_be_read_otherwise() -> None:
    """Python reads each text as the expression it is of."""
    i, j = Variable("i", 0, 9), Variable("j", 0, 9)
    texts_of = {
        i * 4 + j: "i * 4 + j",
        (i + j) * 4: "i * 4 + j * 4",
        (i + j) // 4: "(i + j) // 4",
        (i * 3 // 4) * 5: "((i * 3) // 4) * 5",
        i // 4 % 2 - 1: "(i // 4) % 2 - 1",
        (j < 3) & (i < 7): "(j < 3) & (i < 7)",
    }
    for expression, text in texts_of.items():
        assert repr(expression) == text
    product = both(ExprOp.MUL, element(0), both(ExprOp.MUL, element(1), element(2)))
    assert repr(product) == "b1[0] * (b1[1] * b1[2])"
    difference = both(ExprOp.SUB, element(0), both(ExprOp.SUB, element(1), element(2)))
    assert repr(difference) == "b1[0] - (b1[1] - b1[2])"
    assert repr(both(ExprOp.SUB, difference, element(3))) == "b1[0] - (b1[1] - b1[2]) - b1[3]"
    assert repr(both(ExprOp.FDIV, product, element(3))) == "(b1[0] * (b1[1] * b1[2])) / b1[3]"


def test_a_part_refers_to_those_before() -> None:
    value = element(0)
    for _ in range(100):
        value = both(ExprOp.MUL, both(ExprOp.ADD, value, element(1)), value)
    (text,), parts = texts([value])
    assert len(text) + sum(map(len, parts)) < 100 * 200
    for place, part in enumerate(parts):
        assert part.startswith(f"%{place} = ")
        assert not any(f"%{later}" in part.split(" = ")[1] for later in range(place, len(parts)))


def test_depth_needs_no_recursion() -> None:
    value = element(0)
    for _ in range(20_000):
        value = both(ExprOp.SUB, value, element(1))
    assert repr(value).count("b1[1]") == 20_000


def squares(times: int) -> LazyOp:
    x = load(1, 16)
    value = x
    for _ in range(times):
        value = LazyOp(BinaryOps.ADD, (LazyOp(BinaryOps.MUL, (value, value)), x))
    return store(value)


def test_a_kernel_writes_what_it_shares_once() -> None:
    """As a tree, 60 squares of one another would be 2**60 loads."""
    text = show(lower(squares(60), "k"))
    assert len(text) < 10_000
    parts = [line.split()[0] for line in text.splitlines() if line.lstrip().startswith("%")]
    assert parts == [f"%{number}" for number in range(len(parts))]
    assert text.splitlines()[-1].count(parts[-1]) == 8
    assert len(str(Linearizer(squares(60), HOST))) < 20_000
