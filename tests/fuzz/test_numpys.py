"""Tests of NumPy as an oracle: it does these statements, and a mistake in one is a finding."""

from typing import Any

import pytest

from ferrule import Tensor
from ferrule.autograd import TracedValue
from ferrule.tensor.cell import StorageRef
from tests.fuzz import namespaces, surface
from tests.fuzz.calls import accepted, accepted_statements
from tests.fuzz.check import check
from tests.fuzz.generate import Generator
from tests.fuzz.numpy_functions import AGGREGATES, UFUNCS
from tests.fuzz.numpy_special import INTEGERS, NUMBERS
from tests.fuzz.numpys import (
    OF_ALL,
    OF_FLOATS,
    OF_NUMBERS,
    PARTS,
    DiffersError,
    NumpyOracle,
    compared,
)
from tests.fuzz.program import Program, Source, assigned, methods
from tests.fuzz.ways import Way

SOURCES = (
    Source("a0", 'Tensor(rng(0).integers(-6, 7, (3, 4)) / 2, dtype="float32")'),
    Source("a1", 'Tensor(rng(1).integers(-6, 7, (3, 4)), dtype="int32")'),
)
LINES = [
    "a0 + a1",
    "2 - a0",
    "a0 @ a1.permute(1, 0)",
    "a0 < a1",
    "-a0[1:, None, ::-2]",
    "a1.reshape((2, 6))",
    "a1.flip(0).roll(1, 1)",
    "a0.transpose(0, 1).expand(2, 4, 3)",
    "a0.tril(-1)",
    "a0.sum(1, keepdim=True)",
    "a1.max(dim=0)",
    "a0.cumsum(1)",
    "a0.tanh()",
    "a1.abs()",
    "a0.maximum(a1)",
    "a0.hypot(a1)",
    "a0.sigmoid()",
    "a0.cat(a1, dim=-1)",
    "a0.pad(((1, 0), (0, 2)), value=2.0)",
    "a0.gather(1, a1.clamp(0, 3))",
    "a0.softmax(0)",
    "a0.std(1, correction=0)",
    "a1.argmax(axis=1)",
    "a0.reshape(1, 1, 3, 4).conv2d(a0.reshape(1, 1, 3, 4), padding=1, stride=2)",
    "a0.reshape(1, 1, 3, 4).max_pool2d(2, stride=1)",
    "Tensor.einsum('ij,kj->ik', a0, a0)",
    "a1 ^ 3",
    "~a1",
    "a0.T / 4",
]
WRITES = [
    "a0[1:, ::2] = a1[1:, ::2]",
    "a0[[2, 0]] = 7",
    "a0[0] *= 2",
    "a0 += a1",
    "a0.clamp_(-1, 2)",
]


@pytest.mark.parametrize("line", LINES)
def test_numpy_does_statements_of_these_kinds(line: str) -> None:
    before = compared[True]
    program = Program(SOURCES, (f"v2 = {line}",), ("v2",))
    assert check(program, [Way()]) is None
    assert compared[True] == before + 1


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-12), ("float32", 1e-5)])
def test_one_function_is_right_to_its_last_places(dtype: str, error: float) -> None:
    """A wrong coefficient of a polynomial shows in the last digits only."""
    values: dict[str, Any] = {"a": Tensor([0.25, 0.375, -40.0], dtype=dtype)}
    for line, is_wrong in (("b = a.atan()", True), ("b = (a + 1).atan()", False)):
        exec(line, values)
        NumpyOracle().after(values, line)
        values["b"] = values["b"] * (1 + error)
        if is_wrong:
            with pytest.raises(DiffersError):
                NumpyOracle().after(values, line)


TABLES = (UFUNCS, AGGREGATES, OF_ALL, OF_FLOATS, OF_NUMBERS, INTEGERS, PARTS, NUMBERS)


@pytest.mark.parametrize("name", sorted({name for table in TABLES for name in table}))
def test_numpy_does_drawn_calls_of_every_function(name: str) -> None:
    """A table's entry whose parameters have other names than the method's is never used."""
    (method,) = [method for method in surface.methods() if method.name == name]
    before = compared[True]
    accepted(method, 240, 30, NumpyOracle())
    assert compared[True] > before


SQUARE = "(a0 @ a0.T + 20 * Tensor.eye(3))"
SPOILT = [
    "v2 = (a0 @ a0.T / 8).matrix_exp()",
    f"v2 = {SQUARE}.inv()",
    f"v2, v3 = {SQUARE}.slogdet()",
    "v2 = a0.multi_dot(a0.T, a0)",
    f"v2, v3 = {SQUARE}.qr()",
    "v2, v3, v4 = a0.svd(full_matrices=False)",
    "v2, v3 = a0.sort(1)",
    "v2, v3 = a0.median(1)",
    "v2, v3 = a1.cummax(1)",
    "v2 = a0.quantile(0.3, axis=0)",
    "v2 = a1.abs().reshape(12).bincount()",
    "v2 = a0.scatter(1, a1.clamp(0, 3), 2.0)",
    "v2, v3 = a0.split(2, dim=1)",
    "v2 = a0.short()",
    "v2 = a0.scatter_reduce(1, a1.clamp(0, 3), a0, 'prod')",
    "v2 = a0.huber_loss(a0 * 2)",
    "v2 = a0.reshape(1, 1, 3, 4).adaptive_max_pool2d(2)",
    "v2 = a0.i0()",
    "v2 = a1.floor_divide(3)",
    "v2 = a0.nanmean(1)",
    "v2 = Tensor.tril_indices(3, 4)",
]


@pytest.mark.parametrize("line", SPOILT)
def test_a_mistake_in_each_kind_of_method_is_a_finding(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of several results is wrong, of each of which NumPy says something."""
    program = Program(SOURCES, (line,), assigned(line))
    before = compared[True]
    assert check(program, [Way()]) is None
    assert compared[True] == before + 1
    name = methods(line)[0]
    method = getattr(Tensor, name)

    def wrong(*args: Any, **named: Any) -> Any:
        result = method(*args, **named)
        if isinstance(result, Tensor):
            return result * 2 + 1
        return (*result[:-1], result[-1] * 2 + 1)

    monkeypatch.setattr(Tensor, name, wrong)
    finding = check(program, [Way()])
    assert finding is not None
    assert "NumPy" in finding.detail


def test_a_missing_result_is_a_finding() -> None:
    oracle = NumpyOracle()
    whole = Tensor([[1.0, 2.0], [3.0, 4.0]])
    oracle.after({"a0": whole, "v1": whole[0], "v2": whole[1]}, "v1, v2 = a0.unbind()")
    with pytest.raises(DiffersError, match="NumPy gives 2 results, ferrule 1"):
        oracle.after({"a0": whole, "v1": (whole[0],)}, "v1 = a0.unbind()")


TRANSFORMS = [
    f for f in namespaces.functions() if f.on_tensor and f.path.startswith("ferrule.fft.")
]


@pytest.mark.parametrize("function", TRANSFORMS, ids=lambda function: str(function.name))
def test_numpy_does_fourier_transforms(function: namespaces.Function) -> None:
    def drawn(generator: Generator) -> str:
        return f"v = {namespaces.call(generator.draw, function)}"

    before = compared[True]
    accepted_statements(drawn, 60, 20, NumpyOracle())
    assert compared[True] > before + 5


@pytest.mark.parametrize("line", WRITES)
def test_numpy_does_writes(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = compared[True]
    assert check(Program(SOURCES, (line,), ("a0",)), [Way()]) is None
    assert compared[True] == before + 1
    # A write that does nothing is a finding.
    monkeypatch.setattr(StorageRef, "write", lambda *args: None)
    finding = check(Program(SOURCES, (line,), ("a0",)), [Way()])
    assert finding is not None


def test_a_write_to_an_expanded_view_is_left_alone() -> None:
    before = compared[True]
    body = ("v2 = a0[:, :1].expand(3, 4)", "v2[:, 1:2] *= 2")
    assert check(Program(SOURCES, body, ("v2",)), [Way()]) is None
    assert compared[True] == before + 1  # the first line


def test_what_all_devices_have_wrong_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TracedValue, "absolute", lambda value: value)
    finding = check(Program(SOURCES, ("v2 = a0.abs()",), ("v2",)), [Way("CPU")])
    assert finding is not None
    assert finding.kind == "wrong"
    assert "NumPy" in finding.detail


def test_what_chooses_among_numbers_may_not_round_them(monkeypatch: pytest.MonkeyPatch) -> None:
    thirds = Source("a0", 'Tensor([[1 / 3, -2 / 3], [0.1, -7.7]], dtype="float32")')
    absolute = TracedValue.absolute
    for line in ("a0.abs()", "a0.abs().T[0].max()", "a0.maximum(a0.abs())"):
        assert check(Program((thirds,), (f"v2 = {line}",), ("v2",)), [Way()]) is None
    monkeypatch.setattr(TracedValue, "absolute", lambda value: (absolute(value) + 1) - 1)
    finding = check(Program((thirds,), ("v2 = a0.abs()",), ("v2",)), [Way()])
    assert finding is not None
    assert "NumPy" in finding.detail


def test_a_dtype_that_is_asked_for_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(SOURCES, ('v2 = a0.softmax(0, dtype="float64")',), ("v2",))
    assert check(program, [Way()]) is None
    softmax = Tensor.softmax
    monkeypatch.setattr(Tensor, "softmax", lambda x, axis, dtype: softmax(x, axis))
    finding = check(program, [Way()])
    assert finding is not None
    assert "asked for float64, ferrule gives float32" in finding.detail


def test_integers_that_wrap_on_the_way_are_left_alone() -> None:
    """NumPy computes in float64, where nothing wraps."""
    wide = Source("a0", 'Tensor([[300, 2], [1, 0]], dtype="int16")')
    for line in ("(a0 * a0).cumsum(1)", "(a0 * 200 + 1).sum()"):
        program = Program((wide,), (f"v0 = {line}",), ("v0",))
        assert check(program, [Way("CPU")]) is None
