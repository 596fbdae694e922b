"""The format `c`: a captured function as one file of C11 and its header, for any compiler.

The file needs libc and libm and nothing else. All memory belongs to an instance, so that any number
of them can run at once. Constants are arrays in the file, or in a file of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from string import Template
from typing import Any, Final, final

import numpy as np

from ferrule.base.helpers import round_up
from ferrule.base.records import dataclass
from ferrule.codegen.kernel import show
from ferrule.export.header import header, numpy_name
from ferrule.export.interface import ERRORS, Described, Interface, c_type
from ferrule.export.program import (
    ALIGNMENT,
    BlockKind,
    Cell,
    ExportedProgram,
    ExportError,
    Kernel,
    Loop,
    Step,
)
from ferrule.export.targets import scheduled
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import Expr, ExprOp, Variable, as_expr
from ferrule.ir.target import Target
from ferrule.renderer.c.dialect import is_special, literal, memory_type, symbol
from ferrule.renderer.c.portable import PORTABLE, KernelFunction, Parameter, kernel_function
from ferrule.renderer.c.prelude import Prelude
from ferrule.renderer.c.sorting import helpers as sorting_helpers
from ferrule.renderer.c.sorting import row_function

FLAGS: Final = ("-std=c11", "-O3", "-march=native", "-fno-math-errno")
"""A compiler's flags with which a file is fast; none of them is needed."""

_VALUES_PER_LINE: Final = 8
_REALS: Final = frozenset({"float", "double"})


@final
@dataclass(frozen=True)
class CProgram:
    """The text of the source and of the header, and the weights if they are a file of their own."""

    source: str
    header: str
    weights: bytes | None


def c_program(
    program: ExportedProgram, name: str, target: Target, weights_in_file: bool = False
) -> CProgram:
    """A program as C, with kernels scheduled for a target.

    Raises `ExportError` for a program with packed kernels.
    """
    writer = _Writer(Interface(program, name), target, weights_in_file)
    contents = writer.contents() if weights_in_file else None
    return CProgram(writer.source(), writer.header(), contents)


@final
@dataclass(frozen=True)
class _Place:
    """The memory of a block, as an expression of C with the type of its elements."""

    text: str
    kind: str


@final
class _Writer:
    """Writes the files of one program."""

    def __init__(self, shared: Interface, target: Target, in_file: bool) -> None:
        self.shared = shared
        self.program = shared.program
        self.name = shared.name
        self.target = target
        self.in_file = in_file
        self.prelude = Prelude(PORTABLE, target.vector_bytes)
        self.linearizers = scheduled(self.program, target)
        self.functions: dict[str, KernelFunction] = {
            name: kernel_function(name, k.uops, self.prelude)
            for name, k in self.linearizers.items()
        }
        self.rows = self.program.row_functions
        for name, function in self.rows.items():
            self.functions[name] = row_function(function, name)
        self._stored = {
            number: block
            for number, block in enumerate(self.program.blocks)
            if block.memory is not None and number in self.program.used_blocks
        }
        """The constants that are used, and the states with first contents."""
        self._offsets: dict[int, int] = {}
        """The places in the file of weights."""
        self._file_bytes = 0
        for number, block in self._stored.items():
            self._offsets[number] = self._file_bytes
            self._file_bytes += round_up(block.nbytes, ALIGNMENT)
        self._places = {
            number: self._place(number)
            for number, block in enumerate(self.program.blocks)
            if block.kind is not BlockKind.CONSTANT or number in self._stored
        }
        names = map(_local, shared.sizes)
        self._sizes = dict(zip(self.program.variables, names, strict=True))

    # -- memory ------------------------------------------------------------------------------------

    def _place(self, number: int) -> _Place:
        block = self.program.blocks[number]
        if block.kind is BlockKind.SCRATCH:
            return _Place("scratch", "u8")
        if block.kind is BlockKind.STATE:
            return _Place(f"state_{self.shared.states.index(number)}", "u8")
        if block.kind is BlockKind.CONSTANT:
            return self._first_contents(number)
        (given,) = (one for one in self.shared.parameters if one.block == number)
        return _Place(_local(given.name), memory_type(given.spec.dtype))

    def _first_contents(self, number: int) -> _Place:
        """The bytes of a constant, or the first ones of a state."""
        block = self._stored[number]
        if self.in_file:
            return _Place(_plus("weights", self._offsets[number]), "u8")
        assert block.memory is not None
        label = symbol(block.name).strip("_")
        return _Place(f"data_{number}_{label}".rstrip("_"), memory_type(block.memory.dtype))

    def _pointer(self, cell: Cell, dtype: DType, is_written: bool) -> str:
        """The address of a cell, as a pointer to elements of a dtype."""
        place, kind = self._places[cell.block], memory_type(dtype)
        if place.kind == kind:
            return _plus(place.text, cell.offset // dtype.itemsize, *_moved(cell, dtype.itemsize))
        const = "" if is_written else "const "
        return f"({const}{kind} *)({self._byte(cell, is_written)})"

    def _byte(self, cell: Cell, is_written: bool) -> str:
        place = self._places[cell.block]
        const = "" if is_written else "const "
        text = place.text if place.kind == "u8" else f"({const}u8 *){place.text}"
        return _plus(text, cell.offset, *_moved(cell, 1))

    # -- the files ---------------------------------------------------------------------------------

    def header(self) -> str:
        lanes = self.target.vector_bytes
        what = f"Standard C11, whose kernels are made for vectors of {lanes} bytes."
        text = header(self.shared, what)
        if not self.in_file:
            return text
        create = f"int32_t {self.name}_create({self.name} **place);"
        assert create in text
        return text.replace(
            create,
            f"/* `weights` are the {self._file_bytes} bytes of the file {self.name}.bin, at a "
            f"multiple of {ALIGNMENT}.\n   They have to stay there as long as the instance. */\n"
            f"int32_t {self.name}_create({self.name} **place, const void *weights);",
        )

    def contents(self) -> bytes:
        """The bytes of the constants and of the first values of states."""
        out = bytearray(self._file_bytes)
        for number, block in self._stored.items():
            contents = block.contents
            assert contents is not None
            out[self._offsets[number] : self._offsets[number] + contents.size] = contents.tobytes()
        return bytes(out)

    def source(self) -> str:
        parts = [
            self._title(),
            f'#include "{self.name}.h"\n\n#include <stdlib.h>\n#include <string.h>',
            PORTABLE.header,
            self.prelude.text(),
            *([] if self.in_file else self._arrays()),
            sorting_helpers(set(self.rows.values())),
            *map(self._kernel, self.functions),
            self._life(),
            self._run(),
            self._describe(),
            self._main(),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _title(self) -> str:
        upper = self.name.upper()
        return (
            f"/* {self.name}: a program exported by ferrule, in standard C11.\n\n"
            "   A value of several lanes is a vector of gcc or clang, and an array for other\n"
            "   compilers or with -DNO_VECTORS. It is fast with\n\n"
            f"     cc {' '.join(FLAGS)} -c {self.name}.c\n\n"
            f"   An example, on zeros: cc -D{upper}_EXAMPLE {self.name}.c -lm && ./a.out */"
        )

    def _arrays(self) -> Iterator[str]:
        for number, block in self._stored.items():
            memory, contents = block.memory, block.contents
            assert memory is not None
            assert contents is not None
            place, values = self._first_contents(number), contents.view(memory.dtype.np)
            head = f"static const {place.kind} {place.text}[{max(len(values), 1)}]"
            comment = f"/* {block.name} */\n" if block.name else ""
            yield f"{comment}{head} = {{\n{_listed(memory.dtype, values)}\n}};"

    def _kernel(self, name: str) -> str:
        function = self.functions[name]
        if name in self.rows:
            return function.text(restrict=self._is_alone(name, function))
        text = show(self.linearizers[name].kernel).replace("*/", "* /").replace("/*", "/ *")
        comment = "\n".join(f"   {line}".rstrip() for line in text.splitlines()).strip()
        return f"/* {comment} */\n{function.text(restrict=self._is_alone(name, function))}"

    def _is_alone(self, name: str, function: KernelFunction) -> bool:
        """True if what a kernel writes to overlaps no other memory of it, in all calls."""
        calls = [kernel.cells for kernel in self.program.kernels if kernel.name == name]
        buffers = [p for p in function.parameters if p.is_buffer]
        return not any(
            p is not q and p.is_written and _overlap(cells[p.slot], cells[q.slot])
            for cells in calls
            for p in buffers
            for q in buffers
        )

    # -- an instance -------------------------------------------------------------------------------

    def _life(self) -> str:
        scratch = [block.nbytes for _, block in self.program.of_kind(BlockKind.SCRATCH)]
        own: list[str] = []
        total = round_up(sum(scratch), ALIGNMENT)
        for number, state in enumerate(self.shared.states):
            own.append(f"  made->states[{number}] = made->scratch + {total};")
            total += round_up(self.program.blocks[state].nbytes, ALIGNMENT)
        life = _LIFE.replace("$STATE_FUNCTIONS", _STATE_OF_SOME if own else _STATE_OF_NONE)
        return Template(life).substitute(
            NAME=self.name,
            UPPER=self.name.upper(),
            STATES=f"  u8 *states[{len(self.shared.states)}];\n" if own else "",
            WEIGHTS="  const u8 *weights;\n" if self.in_file else "",
            GIVEN=", const void *weights" if self.in_file else "",
            KEPT="  made->weights = weights;\n" if self.in_file else "",
            CHECK="place == NULL || weights == NULL" if self.in_file else "place == NULL",
            TOTAL=total + ALIGNMENT,
            ALIGNMENT=ALIGNMENT,
            OWN="\n".join(own) + "\n" if own else "",
            RESET="\n".join(self._resetting()),
            VERSION=f"{self.name.upper()}_INTERFACE_VERSION",
            TEXTS="\n".join(f'    case {code}: return "{text}";' for code, text in ERRORS.items()),
        )

    def _resetting(self) -> Iterator[str]:
        if not self.shared.states:
            yield "  (void)instance; /* it has none */"
            return
        yield "  if (instance == NULL) return;"
        if self.in_file and any(state in self._stored for state in self.shared.states):
            yield "  const u8 *const weights = instance->weights;"
        for number, state in enumerate(self.shared.states):
            nbytes = self.program.blocks[state].nbytes
            if state in self._stored:
                source = self._first_contents(state).text
                yield f"  memcpy(instance->states[{number}], {source}, {nbytes});"
            else:
                yield f"  memset(instance->states[{number}], 0, {nbytes});"

    # -- the run -----------------------------------------------------------------------------------

    def _run(self) -> str:
        upper = self.name.upper()
        steps = "\n".join(self._steps(self.program.steps, 0))
        checks: list[str] = []
        for variable, one in self._sizes.items():
            outside = f"{one} < {variable.min} || {one} > {variable.max}"
            checks.append(f"  if ({outside}) return {upper}_SIZE;")
        for spare in self.program.limits:
            checks.append(f"  if ({self._integer(spare)} < 0) return {upper}_SIZE;")
        body = "\n".join([*checks, steps])
        head = f"int32_t {self.name}_run_tensors"
        lines = [f"{head}({self.name} *instance, void *const *tensors, const int64_t *sizes) {{"]
        used = [line for name, line in self._locals() if re.search(rf"\b{name}\b", body)]
        pointers = ["instance", *["tensors"] * bool(self.shared.parameters)]
        pointers += ["sizes"] * bool(self._sizes)
        pointers += [
            f"tensors[{number}]"
            for number, one in enumerate(self.shared.parameters)
            if self.program.blocks[one.block].nbytes
        ]
        used[:0] = [f"  if ({one} == NULL) return {upper}_NULL_POINTER;" for one in pointers]
        text = "\n".join(used)
        names = ("tensors", "sizes")
        lines += [f"  (void){name};" for name in names if not re.search(rf"\b{name}\b", text)]
        return "\n".join([*lines, *used, body, f"  return {upper}_OK;", "}"])

    def _locals(self) -> Iterator[tuple[str, str]]:
        """The names of memory and sizes in a run, with their declarations."""
        yield "scratch", "  u8 *const scratch = instance->scratch;"
        yield "weights", "  const u8 *const weights = instance->weights;"
        for number in range(len(self.shared.states)):
            yield f"state_{number}", f"  u8 *const state_{number} = instance->states[{number}];"
        for number, one in enumerate(self.shared.parameters):
            kind = f"{'' if one.is_written else 'const '}{memory_type(one.spec.dtype)} *"
            name = _local(one.name)
            yield name, f"  {kind}const {name} = ({kind})tensors[{number}];"
        for number, size in enumerate(self._sizes.values()):
            yield size, f"  const i64 {size} = sizes[{number}];"

    def _steps(self, steps: Sequence[Step], depth: int) -> Iterator[str]:
        """The lines of steps within so many loops."""
        indent = "  " * (1 + 2 * depth)
        for step in steps:
            if isinstance(step, Loop):
                yield from self._loop(step, depth)
            elif isinstance(step, Kernel):
                function = self.functions[step.name]
                arguments = ", ".join(self._argument(step, p) for p in function.parameters)
                yield f"{indent}{function.name}({arguments});"
            else:
                to, source = self._byte(step.to, True), self._byte(step.source, False)
                yield f"{indent}memcpy({to}, {source}, {step.to.nbytes});"

    def _loop(self, loop: Loop, depth: int) -> Iterator[str]:
        trip, trips = f"trip_{depth}", f"trips_{depth}"
        outer, inner = "  " * (1 + 2 * depth), "  " * (2 + 2 * depth)
        most = "INT64_MAX" if loop.most is None else self._integer(as_expr(loop.most))
        yield f"{outer}{{"
        yield f"{inner}i64 {trip} = 0, {trips} = {most};"
        if loop.count is not None:
            count = f"*({self._pointer(loop.count, dtypes.int32, False)})"
            yield f"{inner}if ({count} < {trips}) {trips} = {count};"
        if loop.start is not None:
            yield f"{inner}if (!*({self._pointer(loop.start, dtypes.bool, False)})) {trips} = 0;"
        yield from (line[2:] for line in self._steps(loop.before, depth + 1))
        yield f"{inner}while ({trip} < {trips}) {{"
        yield from self._steps(loop.body, depth + 1)
        if loop.condition is None:
            yield f"{inner}  {trip}++;"
        else:
            goes_on = f"*({self._pointer(loop.condition, dtypes.bool, False)}) != 0"
            yield f"{inner}  const bool goes_on = {goes_on};"
            yield f"{inner}  {trip}++;"
            yield f"{inner}  if (!goes_on) break;"
        yield f"{inner}}}"
        if loop.counted is not None:
            yield f"{inner}*({self._pointer(loop.counted, dtypes.int32, True)}) = (i32){trip};"
        yield from (line[2:] for line in self._steps(loop.after, depth + 1))
        yield f"{outer}}}"

    def _argument(self, kernel: Kernel, p: Parameter) -> str:
        if p.is_buffer:
            return self._pointer(kernel.cells[p.slot], p.dtype, p.is_written)
        value = kernel.values[p.slot - len(kernel.cells)]
        return str(value) if isinstance(value, int) else self._sizes[value]

    def _integer(self, e: Expr) -> str:
        """An expression of the variables."""
        if e.op is ExprOp.CONST:
            return str(e.arg)
        if isinstance(e, Variable):
            return self._sizes[e]
        if e.op not in _INTEGERS:
            raise ExportError(
                f"{e}: the format c has no {e.op.name} of sizes; report this as a bug"
            )
        return f"({_INTEGERS[e.op].format(*map(self._integer, e.src))})"

    # -- what the interface says of itself ---------------------------------------------------------

    def _describe(self) -> str:
        program, lines = self.program, [""]
        lists = (program.arguments, program.results, self.shared.state_specs)
        for label, specs in zip(("arguments", "results", "states"), lists, strict=True):
            rows = []
            for number, one in enumerate(self.shared.described(specs)):
                numbers = f"{label}_{number}"
                lines += [f"static const int64_t {numbers}[] = {{{self._numbers(one)}}};"]
                rows.append(f"  {self._row(one, numbers)},")
            if rows:
                lines += [f"static const {self.name}_tensor {label}[] = {{", *rows, "};"]
        head = f"const {self.name}_tensor *{self.name}_describe(uint32_t kind, uint32_t number) {{"
        lines += [head]
        for kind, label, specs in zip(
            ("ARGUMENT", "RESULT", "STATE"), ("arguments", "results", "states"), lists, strict=True
        ):
            if specs:
                fits = f"kind == {self.name.upper()}_{kind} && number < {len(specs)}"
                lines.append(f"  if ({fits}) return &{label}[number];")
        unused = [] if any(lists) else ["  (void)kind;", "  (void)number;"]
        return "\n".join([*lines, *unused, "  return NULL;", "}"]).strip()

    def _numbers(self, one: Described) -> str:
        sizes = [*one.spec.capacity, *(as_expr(step).max for step in one.spec.strides)]
        return ", ".join(map(str, sizes)) or "0"

    def _row(self, one: Described, numbers: str) -> str:
        spec = one.spec
        shape = ", ".join(map(str, spec.shape))
        texts = f'"{spec.name}", "{numpy_name(spec)}", "{shape}"'.replace("\\", "\\\\")
        nbytes, ndim = self.program.blocks[spec.cell.block].nbytes, len(spec.shape)
        places = f"{numbers}, {numbers} + {ndim}, {nbytes}, {spec.cell.offset}"
        return f"{{{texts}, {places}, {ndim}, {one.place}}}"

    def _main(self) -> str:
        """A program that runs the function on zeros and prints what comes first in each result."""
        arrays, prints = [], []
        for one in self.shared.parameters:
            dtype, nbytes = one.spec.dtype, self.program.blocks[one.block].nbytes
            count = max(nbytes // dtype.itemsize, 1)
            name = _local(one.name)
            arrays.append(f"static {c_type(dtype)} {name}[{count}];")
            if self.program.blocks[one.block].kind is BlockKind.RESULT:
                prints.append(f'  printf("{one.name}: %g, ...\\n", (double){name}[0]);')
        names = [_local(one.name) for one in self.shared.parameters]
        sizes = [str(variable.max) for variable in self.program.variables]
        read = _READ_WEIGHTS.format(name=self.name, nbytes=self._file_bytes)
        return Template(_MAIN).substitute(
            NAME=self.name,
            UPPER=self.name.upper(),
            ARRAYS="\n".join(arrays),
            WEIGHTS=read if self.in_file else "",
            GIVEN=", weights" if self.in_file else "",
            ARGUMENTS=", ".join(["instance", *names, *sizes]),
            PRINTS="\n".join(prints),
            FREED="  free(weights);\n" if self.in_file else "",
        )


_LIFE: Final = """\
struct $NAME {
  void *block; /* all memory of its own */
  u8 *scratch;
$WEIGHTS$STATES};

void ${NAME}_reset($NAME *instance) {
$RESET
}

int32_t ${NAME}_create($NAME **place$GIVEN) {
  if ($CHECK) return ${UPPER}_NULL_POINTER;
  *place = NULL;
  $NAME *const made = calloc(1, sizeof *made);
  if (made == NULL) return ${UPPER}_NO_MEMORY;
  made->block = calloc(1, $TOTAL);
  if (made->block == NULL) {
    free(made);
    return ${UPPER}_NO_MEMORY;
  }
  const uintptr_t beyond = (uintptr_t)made->block % $ALIGNMENT;
  made->scratch = (u8 *)made->block + ($ALIGNMENT - beyond) % $ALIGNMENT;
$KEPT$OWN  ${NAME}_reset(made);
  *place = made;
  return ${UPPER}_OK;
}

void ${NAME}_destroy($NAME *instance) {
  if (instance == NULL) return;
  free(instance->block);
  free(instance);
}

$STATE_FUNCTIONS

uint32_t ${NAME}_interface_version(void) { return $VERSION; }

const char *${NAME}_target(const $NAME *instance) {
  return instance == NULL ? NULL : "c11";
}

const char *${NAME}_error_string(int32_t error) {
  switch (error) {
$TEXTS
    default: return "unknown error";
  }
}"""

_STATE_OF_SOME: Final = """\
void *${NAME}_state($NAME *instance, uint32_t number) {
  const uint32_t count = sizeof instance->states / sizeof *instance->states;
  return instance != NULL && number < count ? instance->states[number] : NULL;
}

int32_t ${NAME}_set_state($NAME *instance, uint32_t number, void *memory) {
  if (memory == NULL || ${NAME}_state(instance, number) == NULL) return ${UPPER}_NULL_POINTER;
  instance->states[number] = memory;
  return ${UPPER}_OK;
}"""
_STATE_OF_NONE: Final = """\
void *${NAME}_state($NAME *instance, uint32_t number) {
  (void)instance;
  (void)number;
  return NULL;
}

int32_t ${NAME}_set_state($NAME *instance, uint32_t number, void *memory) {
  (void)memory;
  return ${NAME}_state(instance, number) == NULL ? ${UPPER}_NULL_POINTER : ${UPPER}_OK;
}"""

_READ_WEIGHTS: Final = """\
  void *const weights = malloc({nbytes} + 1);
  FILE *const file = fopen("{name}.bin", "rb");
  if (weights == NULL || file == NULL || fread(weights, 1, {nbytes}, file) != {nbytes}) return 1;
  fclose(file);
"""
_MAIN: Final = """\
#ifdef ${UPPER}_EXAMPLE
#include <stdio.h>

$ARRAYS

/* Runs the program once, on zeros. */
int main(void) {
$WEIGHTS  $NAME *instance;
  int32_t error = ${NAME}_create(&instance$GIVEN);
  if (error == ${UPPER}_OK) error = ${NAME}_run($ARGUMENTS);
  if (error) printf("%s\\n", ${NAME}_error_string(error));
$PRINTS
  ${NAME}_destroy(instance);
$FREED  return error;
}
#endif"""

_INTEGERS: Final = {
    ExprOp.ADD: "{} + {}",
    ExprOp.SUB: "{} - {}",
    ExprOp.MUL: "{} * {}",
    ExprOp.NEG: "-{}",
    ExprOp.MAX: "{0} > {1} ? {0} : {1}",
    ExprOp.MIN: "{0} < {1} ? {0} : {1}",
}


def _local(name: str) -> str:
    """The name of a tensor or a size where names of the file's own are."""
    return f"given_{name}"


def _plus(text: str, offset: int, *more: str) -> str:
    return " + ".join([text, *[str(offset)] * bool(offset), *more])


def _moved(cell: Cell, itemsize: int) -> Iterator[str]:
    """The elements by which a cell is behind its first place in the present trips."""
    for move in cell.moves:
        trip, trips = f"trip_{move.depth}", f"trips_{move.depth}"
        if move.stride:
            number = f"({trips} - 1 - {trip})" if move.backwards else trip
            yield f"{number} * {move.stride // itemsize}"
        if move.other:
            turn = f"({trip} + {move.phase}) % 2" if move.phase else f"{trip} % 2"
            yield f"{turn} * {move.other // itemsize}"


def _overlap(a: Cell, b: Cell) -> bool:
    """True if cells may have memory in common; of those that loops move, the block says it."""
    if a.block != b.block:
        return False
    if a.moves or b.moves:
        return True
    return a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _listed(dtype: DType, values: np.ndarray[Any, Any]) -> str:
    """The elements of an array, some in a line; floats in hexadecimal, which is exact."""
    texts = [_element(dtype, value) for value in values.tolist()] or ["0"]
    rows = (texts[i : i + _VALUES_PER_LINE] for i in range(0, len(texts), _VALUES_PER_LINE))
    return "\n".join(f"  {', '.join(row)}," for row in rows)


def _element(dtype: DType, value: float) -> str:
    kind = memory_type(dtype)
    if is_special(dtype, value):
        sign = "-" if str(value).startswith("-") else ""
        return f"{sign}{'NAN' if value != value else 'INFINITY'}"
    if kind not in _REALS:
        return literal(dtype, value)
    mantissa, _, exponent = float(value).hex().partition("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}{'f' if kind == 'float' else ''}"
