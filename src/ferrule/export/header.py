"""The header of an exported program in C, and its loader in Python: both are generated text."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Sequence
from string import Template
from typing import Any, Final

from ferrule.export.interface import (
    ERROR_NAMES,
    ERRORS,
    VERSION,
    Interface,
    Parameter,
    c_type,
    shape_text,
)
from ferrule.export.program import ExportError, TensorSpec
from ferrule.ir.expr import Expr, Variable, as_expr, sint

_HEADER: Final = """\
/* $NAME: a program exported by ferrule. $WHAT

   An instance has its own states and scratch memory. Any number of them may run at once, each in
   one thread at a time. Functions return 0, or a code of an error. For an instance that is NULL,
   reset and destroy do nothing, and state and target return NULL. */
#ifndef ${UPPER}_H
#define ${UPPER}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ${UPPER}_INTERFACE_VERSION $VERSION

typedef struct $NAME $NAME;

enum {
$ERRORS
};

/* A tensor: element i is sum(i[k] * strides[k]) elements behind byte `offset` of its memory. */
typedef struct {
  const char *name;
  const char *dtype;       /* as NumPy calls it */
  const char *sizes;       /* the shape as text, with the names of sizes that a call is given */
  const int64_t *shape;    /* with the largest sizes */
  const int64_t *strides;
  int64_t nbytes;          /* of its memory, at least, whatever the sizes are */
  int64_t offset;
  int32_t ndim;
  int32_t place;           /* the number of a pointer of a run; -1 - n: in the memory of state n */
} ${NAME}_tensor;

enum { ${UPPER}_ARGUMENT, ${UPPER}_RESULT, ${UPPER}_STATE };

/* A new instance in *place; its states have the contents that they had at the export. */
int32_t ${NAME}_create($NAME **place);
void ${NAME}_destroy($NAME *instance);

/* Runs the program, on pointers in the order of the parameters of ${NAME}_run below. */
int32_t ${NAME}_run_tensors($NAME *instance, void *const *tensors, const int64_t *sizes);

/* Gives all states their first contents. */
void ${NAME}_reset($NAME *instance);

/* The memory of a state, to be read, changed or saved; NULL if there is none of that number.
   set_state: from now on it is in the caller's memory, as it is there. */
void *${NAME}_state($NAME *instance, uint32_t number);
int32_t ${NAME}_set_state($NAME *instance, uint32_t number, void *memory);

/* Tensor `number` of a kind; NULL if there are no more. */
const ${NAME}_tensor *${NAME}_describe(uint32_t kind, uint32_t number);

uint32_t ${NAME}_interface_version(void);
const char *${NAME}_error_string(int32_t error);
/* The instruction set whose kernels were chosen for this processor. */
const char *${NAME}_target(const $NAME *instance);
$THREADS
$STATES/* Runs the program.
$TENSORS */
static inline int32_t ${NAME}_run($PARAMETERS) {
  void *const tensors[] = {$POINTERS};
  const int64_t sizes[] = {$SIZES};
  return ${NAME}_run_tensors(instance, tensors, sizes);
}

#ifdef __cplusplus
}
#endif
#endif
"""

_THREADS: Final = """
/* The number of threads of later runs of an instance, at first 1. Not during a run. */
int32_t ${NAME}_set_threads($NAME *instance, int32_t threads);
"""


def header(shared: Interface, what: str, threads: bool) -> str:
    """The text of the header."""
    name, upper = shared.name, shared.name.upper()
    program = shared.program
    codes = zip(ERROR_NAMES, ERRORS.items(), strict=True)
    errors = [f"  {upper}_{label} = {code}, /* {text} */" for label, (code, text) in codes]
    errors[-1] = errors[-1].replace(",", "", 1)
    states = [
        f"  {upper}_STATE_{_upper(spec.name)} = {number}, /* {_shown(spec)} */"
        for number, spec in enumerate(shared.state_specs)
    ]
    taken: set[str] = set()
    for number, line in enumerate(states):
        label, rest = line.split(" = ", 1)
        while label in taken:
            label += "_"
        taken.add(label)
        states[number] = f"{label} = {rest}"
    listed = f"enum {{\n{chr(10).join(states)}\n}};\n\n" if states else ""
    lines = [f"   {_line(shared, spec)}" for spec in (*program.arguments, *program.results)]
    for one, variable in zip(shared.sizes, program.variables, strict=True):
        lines.append(f"   {one}: a size from {variable.min} to {variable.max}")
    parameters = [f"{name} *instance", *map(_parameter, shared.parameters)]
    parameters += [f"int64_t {size}" for size in shared.sizes]
    return Template(_HEADER).substitute(
        NAME=name,
        UPPER=upper,
        VERSION=VERSION,
        WHAT=what,
        ERRORS="\n".join(errors),
        THREADS=Template(_THREADS).substitute(NAME=name) if threads else "",
        STATES=listed,
        TENSORS="\n".join(lines) or "   It has neither arguments nor results.",
        PARAMETERS=", ".join(parameters),
        POINTERS=", ".join([f"(void *){one.name}" for one in shared.parameters]) or "0",
        SIZES=", ".join(shared.sizes) or "0",
    )


def _upper(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII).upper()


def _parameter(one: Parameter) -> str:
    const = "" if one.is_written else "const "
    return f"{const}{c_type(one.spec.dtype)} *{one.name}"


def _shown(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype.name} ({shape_text(spec.shape)})".replace("*/", "")


def _line(shared: Interface, spec: TensorSpec) -> str:
    """A tensor in words: where it is, and the bytes of its memory."""
    place = shared.place_of_block[spec.cell.block]
    nbytes = shared.program.blocks[spec.cell.block].nbytes
    if place < 0:
        where = f"in the memory of state {-1 - place}"
    else:
        where = f"in `{shared.parameters[place].name}`, {nbytes} bytes"
    strides = ", ".join([str(step) for step in spec.strides])
    return f"{_shown(spec)}, strides ({strides}), {where}"


_LOADER: Final = '''\
"""$NAME: runs $FILE, a program exported by ferrule. It needs NumPy alone."""

import ctypes
from pathlib import Path

import numpy as np

# Of each tensor: name, dtype, place, first byte, bytes of its memory, shape and strides.
ARGUMENTS = [$ARGUMENTS]
CHANGED = $CHANGED
RESULTS = [$RESULTS]
STATES = [$STATES]
SIZES = $SIZES


class $CLASS:
    "An instance of the program."

    _instance = None

    def __init__(self, path=Path(__file__).with_name($FILE_TEXT)):
        self._library, self._instance = ctypes.CDLL(str(path)), ctypes.c_void_p()
        for function in (self._library.${NAME}_error_string, self._library.${NAME}_state):
            function.restype = ctypes.c_void_p
        self._check(self._library.${NAME}_create(ctypes.byref(self._instance)))

    @property
    def states(self):
        "The states by name: arrays in the memory of the instance, which they keep alive."
        return {row[0]: _array(row, self._memory()[::-1], {}) for row in STATES}

    def _check(self, error):
        if error:
            text = self._library.${NAME}_error_string(error)
            raise RuntimeError(f"$NAME: {ctypes.string_at(text).decode()}")

    def _memory(self):
        found = [self._library.${NAME}_state(self._instance, n) for n in range(len(STATES))]
        memory = [(ctypes.c_uint8 * row[4]).from_address(a) for a, row in zip(found, STATES)]
        for one in memory:
            one.program = self
        return [np.frombuffer(one, np.uint8) for one in memory]

    def __call__(self, *arguments, **sizes):
        "The results of the program on arrays; its sizes are keywords."
        if len(arguments) != len(ARGUMENTS) or sizes.keys() != SIZES.keys():
            names = [row[0] for row in ARGUMENTS]
            raise TypeError(f"$NAME takes {names} and the sizes {[*SIZES]}")
        for name, (low, high) in SIZES.items():
            if not low <= sizes[name] <= high:
                raise ValueError(f"{name} is {sizes[name]}, not from {low} to {high}")
        memory = [np.zeros(nbytes, np.uint8) for nbytes in $MEMORY]
        for row, argument in zip(ARGUMENTS, arguments):
            room = _array(row, memory, sizes)
            # Numbers of Python have no dtype yet.
            given = np.asarray(argument, None if hasattr(argument, "dtype") else row[1])
            if given.shape != room.shape:
                raise ValueError(f"{row[0]} has the shape {given.shape}, and not {room.shape}")
            if not np.can_cast(given.dtype, room.dtype, "same_kind"):
                raise TypeError(f"{row[0]} has the dtype {given.dtype}, and not {room.dtype}")
            room[...] = given
        pointers = (ctypes.c_void_p * $N_POINTERS)(*[part.ctypes.data for part in memory])
        numbers = (ctypes.c_int64 * $N_SIZES)(*[sizes[name] for name in SIZES])
        self._check(self._library.${NAME}_run_tensors(self._instance, pointers, numbers))
        for row, argument in zip(ARGUMENTS, arguments):
            if row[0] in CHANGED and isinstance(argument, np.ndarray):
                argument[...] = _array(row, memory, sizes)
        states = [part.copy() for part in self._memory()]
        r = [_array(row, [*memory, *states[::-1]], sizes) for row in RESULTS]
        return $TEMPLATE

    def __del__(self):
        if self._instance:
            self._library.${NAME}_destroy(self._instance)


def _array(row, memory, sizes):
    _, dtype, place, start, _, layout = row
    shape, strides = layout(**sizes)
    apart = [step * np.dtype(dtype).itemsize for step in strides]
    return np.ndarray(shape, dtype, memory[place], start, apart)
'''


def loader(shared: Interface, file: str) -> str:
    """The text of a module of Python that loads the library and runs it."""
    program = shared.program
    nbytes = [program.blocks[one.block].nbytes for one in shared.parameters]
    pairs = zip(shared.sizes, program.variables, strict=True)
    bounds = {name: (variable.min, variable.max) for name, variable in pairs}
    rows = [
        "".join([f"\n    {_row(shared, one)}," for one in specs]) + ("\n" if specs else "")
        for specs in (program.arguments, program.results, shared.state_specs)
    ]
    return Template(_LOADER).substitute(
        NAME=shared.name,
        CLASS="".join([part.capitalize() for part in shared.name.split("_")]) or "Program",
        FILE=file,
        FILE_TEXT=repr(file),
        ARGUMENTS=rows[0],
        RESULTS=rows[1],
        STATES=rows[2],
        CHANGED=repr([spec.name for spec in program.changed]),
        SIZES=repr(bounds),
        MEMORY=repr(nbytes),
        N_POINTERS=max(len(nbytes), 1),
        N_SIZES=max(len(shared.sizes), 1),
        TEMPLATE=_template_text(program.template),
    )


def _row(shared: Interface, spec: TensorSpec) -> str:
    names = dict(zip(shared.program.variables, shared.sizes, strict=True))
    given = ", ".join([f"{name}={variable.max}" for variable, name in names.items()])
    renamed: dict[Expr, Expr] = {
        one: Variable(name, one.min, one.max) for one, name in names.items()
    }

    def listed(sizes: Sequence[sint]) -> str:
        texts = [str(as_expr(size).substitute(renamed)) for size in sizes]
        return f"({', '.join(texts)}{',' * (len(texts) == 1)})"

    layout = f"lambda {given}: ({listed(spec.shape)}, {listed(spec.strides)})"
    place, nbytes = (
        shared.place_of_block[spec.cell.block],
        shared.program.blocks[spec.cell.block].nbytes,
    )
    dtype = numpy_name(spec)
    return f"({spec.name!r}, {dtype!r}, {place}, {spec.cell.offset}, {nbytes}, {layout})"


def numpy_name(spec: TensorSpec) -> str:
    """The name of a tensor's dtype in NumPy; for dtypes that it lacks an integer of their size."""
    is_numpys = spec.dtype.numpy_path.startswith("numpy.")
    return spec.dtype.name if is_numpys else f"uint{8 * spec.dtype.itemsize}"


def key_text(key: Any) -> str:
    """The key of a result as an expression of Python; `ExportError` if it is no literal."""
    text = repr(key)
    try:
        if literal_eval(text) == key:
            return text
    except (SyntaxError, ValueError):
        pass
    raise ExportError(f"the key {key!r} of a result is no text or number: use one that is")


def _template_text(template: Any) -> str:
    """An expression for what the function returns, in which `r` are the results."""
    if isinstance(template, list):
        return f"[{', '.join(map(_template_text, template))}]"
    if isinstance(template, tuple):
        return f"({''.join([f'{_template_text(part)}, ' for part in template])})"
    if isinstance(template, dict):
        pairs = [f"{key_text(key)}: {_template_text(part)}" for key, part in template.items()]
        return f"{{{', '.join(pairs)}}}"
    return "None" if template is None else f"r[{template}]"
