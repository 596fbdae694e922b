"""Single changes of source code: what a careless edit might have made of it.

A mutation replaces one piece of a file's text. All mutations of a file are listed in the order of
its text; a fixed number of them is chosen by a hash, so that a list stays the same until the files
change.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# How many mutations of each part of the package there are to draw from.
PARTS = {
    "ir/shape": 200,
    "fusion": 300,
    "autograd": 200,
    "tensor": 200,
    "codegen/lower.py": 50,
    "codegen/expressions.py": 50,
}
MOST_OF_KIND = 0.25
"""Of one part: the share of any one kind of mutation."""

_OPERATORS: dict[type[ast.AST], tuple[str, type[ast.AST]]] = {
    ast.Add: ("-", ast.Sub),
    ast.Sub: ("+", ast.Add),
    ast.Mult: ("+", ast.Add),
    ast.FloorDiv: ("%", ast.Mod),
    ast.Mod: ("//", ast.FloorDiv),
    ast.Div: ("*", ast.Mult),
    ast.LShift: (">>", ast.RShift),
    ast.Lt: ("<=", ast.LtE),
    ast.LtE: ("<", ast.Lt),
    ast.Gt: (">=", ast.GtE),
    ast.GtE: (">", ast.Gt),
    ast.Eq: ("!=", ast.NotEq),
    ast.NotEq: ("==", ast.Eq),
    ast.Is: ("is not", ast.IsNot),
    ast.IsNot: ("is", ast.Is),
    ast.In: ("not in", ast.NotIn),
    ast.NotIn: ("in", ast.In),
    ast.And: ("or", ast.Or),
    ast.Or: ("and", ast.And),
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# What is told to a reader only, or checked only to be refused, has no effect on numbers.
_SILENT = {"__repr__", "__str__", "__format__", "__dir__", "describe", "pretty"}


@dataclass(frozen=True)
class Mutation:
    """One piece of text of a file, and what is there instead."""

    file: str
    """Below the package, such as `ir/shape/view.py`."""
    kind: str
    start: int
    """In bytes."""
    end: int
    text: str

    @property
    def name(self) -> str:
        digest = hashlib.sha256(f"{self.start}:{self.end}:{self.text}".encode()).hexdigest()
        return f"{self.file}:{self.kind}:{digest[:8]}"

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        lines = difflib.unified_diff(
            source.decode().splitlines(),
            self.applied(source).decode().splitlines(),
            self.file,
            self.kind,
            lineterm="",
            n=1,
        )
        return "\n".join(lines)


def all_mutations(package: Path) -> list[Mutation]:
    """About a thousand mutations of the package, the same ones for the same files."""
    found = []
    for part, count in PARTS.items():
        top = package / part
        files = [top] if top.suffix else sorted(top.rglob("*.py"))
        candidates = [m for file in files for m in mutations_of(file, package)]
        found += _chosen(candidates, count, package)
    return found


def _chosen(candidates: list[Mutation], count: int, package: Path) -> list[Mutation]:
    """So many of them by a hash, not too many of one kind."""
    by_hash = sorted(candidates, key=lambda m: hashlib.sha256(m.name.encode()).hexdigest())
    taken: list[Mutation] = []
    kinds: dict[str, int] = {}
    for mutation in by_hash:
        if len(taken) == count:
            break
        source = (package / mutation.file).read_bytes()
        room = kinds.get(mutation.kind, 0) < MOST_OF_KIND * count
        if room and _parses(mutation.applied(source)):
            kinds[mutation.kind] = kinds.get(mutation.kind, 0) + 1
            taken.append(mutation)
    return sorted(taken, key=lambda m: (m.file, m.start, m.text))


def mutations_of(file: Path, package: Path) -> list[Mutation]:
    """All mutations of a file, in the order of its text; some may not parse."""
    source = file.read_bytes()
    lines = [0]
    for line in source.split(b"\n"):
        lines.append(lines[-1] + len(line) + 1)
    name = file.relative_to(package).as_posix()
    found: dict[tuple[int, int, str], Mutation] = {}
    for node in _nodes(ast.parse(source)):
        for kind, target, text in _changes(node):
            start = lines[target.lineno - 1] + target.col_offset
            assert target.end_lineno is not None
            assert target.end_col_offset is not None
            end = lines[target.end_lineno - 1] + target.end_col_offset
            mutation = Mutation(name, kind, start, end, text)
            found.setdefault((start, end, text), mutation)
    return sorted(found.values(), key=lambda m: (m.start, m.end, m.text))


def _parses(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that decide numbers: no annotations, errors, assertions or texts for readers."""
    yield tree
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_silent(child):
                yield from _nodes(child)


def _is_silent(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        return node.test.id == "TYPE_CHECKING" or _refuses(node)
    if isinstance(node, ast.If):
        return _refuses(node)
    if isinstance(node, ast.FunctionDef):
        return node.name in _SILENT or node.name.startswith(("_refuse", "check_", "_check"))
    return False


def _refuses(node: ast.If) -> bool:
    return not node.orelse and isinstance(node.body[-1], ast.Raise)


Change = tuple[str, ast.expr | ast.stmt, str]


def _changes(node: ast.AST) -> Iterator[Change]:
    """The kind, the node replaced, and the text instead of it."""
    if isinstance(node, ast.expr):
        yield from _of_expression(node)
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        test = ast.unparse(node.test)
        yield "negated condition", node.test, f"not ({test})"
        if not isinstance(node, ast.While):
            yield "branch always taken", node.test, "True"
            yield "branch never taken", node.test, "False"
    if isinstance(node, ast.comprehension):
        for condition in node.ifs:
            yield "filter dropped", condition, "True"
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)


def _of_expression(node: ast.expr) -> Iterator[Change]:
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OPERATORS:
        _, other = _OPERATORS[type(node.op)]
        yield "operator", node, _with(node, "op", other())
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        _, other = _OPERATORS[type(node.ops[0])]
        yield "comparison", node, _with(node, "ops", [other(), *node.ops[1:]])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "sign or negation dropped", node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", node, str(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "constant", node, f"({node.value!r} + 1)"
        yield "constant", node, f"({node.value!r} - 1)"
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[Change]:
    if isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        yield "function", node.func, _FUNCTIONS[node.func.id]
    plain = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
    if len(plain) == len(node.args) >= 2 and ast.dump(plain[0]) != ast.dump(plain[1]):
        yield "arguments swapped", node, _with(node, "args", [plain[1], plain[0], *plain[2:]])
    if node.keywords and node.keywords[-1].arg is not None:
        yield "argument dropped", node, _with(node, "keywords", node.keywords[:-1])


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if called or isinstance(node, ast.AugAssign | ast.Continue | ast.Break):
        yield "statement dropped", node, "pass"
    elif isinstance(node, ast.Return) and node.value is not None:
        value = node.value
        first: ast.expr | None = None
        if isinstance(value, ast.BinOp):
            first = value.left
        elif isinstance(value, ast.Call) and value.args:
            first = value.args[0]
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            first = value.func.value
        if first is not None and not isinstance(first, ast.Starred):
            yield "first operand returned", value, f"({ast.unparse(first)})"
        is_none = isinstance(value, ast.Constant) and value.value is None
        if isinstance(value, ast.Constant | ast.Name | ast.Compare | ast.BoolOp) and not is_none:
            yield "nothing returned", value, "None"


def _with(node: ast.expr, field: str, value: object) -> str:
    """The text of an expression with another field, in brackets."""
    parts = {name: getattr(node, name) for name in node._fields}
    return f"({ast.unparse(type(node)(**{**parts, field: value}))})"


def drawn(mutations: Iterable[Mutation], count: int, seed: int) -> list[Mutation]:
    """So many mutations in a random order; fewer of them are the first of more."""

    def place(mutation: Mutation) -> str:
        return hashlib.sha256(f"{seed}:{mutation.name}".encode()).hexdigest()

    return sorted(mutations, key=place)[:count]
