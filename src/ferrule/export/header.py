"""The header of an exported program in C, and its loader in Python: both are generated text."""

from __future__ import annotations

import json
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
$MORE
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


_ABOUT: Final = """
/* What the program takes and gives, as JSON for the loader in Python. */
const char *${NAME}_about(void);
"""


def header(shared: Interface, what: str, threads: bool = False, has_about: bool = False) -> str:
    """The text of the header; a library may have functions for threads, and one for a loader."""
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
        MORE=Template(_THREADS * threads + _ABOUT * has_about).substitute(NAME=name),
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
import json
from pathlib import Path

import numpy as np


class $CLASS:
    "An instance: a function of arrays, with sizes as keywords. `about` says what it takes."

    _library = None

    def __init__(self, path=Path(__file__).with_name($FILE_TEXT)):
        self._library, self._instance = ctypes.CDLL(str(path)), ctypes.c_void_p()
        self.about = json.loads(self._call(ctypes.c_char_p, "about"))
        self._run("create", ctypes.byref(self._instance))

    def __call__(self, *arguments, **sizes):
        known, taken = self.about["sizes"], self.about["arguments"]
        if len(arguments) != len(taken) or sizes.keys() != known.keys():
            raise TypeError(f"$NAME takes {[row['name'] for row in taken]} and sizes {known}")
        for name, (low, high) in known.items():
            if not low <= sizes[name] <= high:
                raise ValueError(f"{name} is {sizes[name]}, not from {low} to {high}")
        memory = [np.zeros(nbytes, np.uint8) for nbytes in self.about["memory"]]
        rooms = [_array(row, memory, sizes) for row in taken]
        for row, room, argument in zip(taken, rooms, arguments):
            given = np.asarray(argument, getattr(argument, "dtype", room.dtype))
            if given.shape != room.shape:
                raise ValueError(f"{row['name']} has the shape {given.shape}, and not {room.shape}")
            if not np.can_cast(given.dtype, room.dtype, "same_kind"):
                raise TypeError(f"{row['name']} has the dtype {given.dtype}, and not {room.dtype}")
            room[...] = given
        tensors = (ctypes.c_void_p * len(memory))(*[one.ctypes.data for one in memory])
        numbers = (ctypes.c_int64 * len(sizes))(*[sizes[name] for name in known])
        self._run("run_tensors", self._instance, tensors, numbers)
        for row, room, argument in zip(taken, rooms, arguments):
            if row["changed"] and isinstance(argument, np.ndarray):
                argument[...] = room
        memory += [np.array(one) for one in self._memory()]
        results = [_array(row, memory, sizes) for row in self.about["results"]]
        return eval(self.about["template"], {"r": results})

    @property
    def states(self):
        "The states by name: arrays in the memory of the instance, which they keep alive."
        memory, largest = self._memory(), self.about["largest"]
        return {row["name"]: _array(row, memory, largest) for row in self.about["states"]}

    def _memory(self):
        memory = []
        for number, row in enumerate(self.about["states"]):
            address = self._call(ctypes.c_void_p, "state", self._instance, number)
            memory.insert(0, (ctypes.c_uint8 * row["nbytes"]).from_address(address))
            memory[0].program = self
        return memory

    def _call(self, kind, name, *arguments):
        function = self._library[f"${NAME}_{name}"]
        function.restype = kind
        return function(*arguments)

    def _run(self, name, *arguments):
        if error := self._call(ctypes.c_int32, name, *arguments):
            text = self._call(ctypes.c_char_p, "error_string", error).decode()
            raise RuntimeError(f"$NAME: {text}")

    def __del__(self):
        if self._library:
            self._call(None, "destroy", self._instance)


def _array(row, memory, sizes):
    shape, strides = eval(row["layout"], {}, sizes)
    return np.ndarray(shape, row["dtype"], memory[row["place"]], row["offset"], strides)
'''


def loader(shared: Interface, file: str) -> str:
    """The text of a module of Python that loads the library and runs it."""
    return Template(_LOADER).substitute(
        NAME=shared.name,
        CLASS="".join([part.capitalize() for part in shared.name.split("_")]) or "Program",
        FILE=file,
        FILE_TEXT=repr(file),
    )


def about(shared: Interface) -> str:
    """The program as JSON: what a loader in Python has to know, with expressions of Python."""
    program = shared.program
    bounds = zip(shared.sizes, program.variables, strict=True)
    sizes = {name: (variable.min, variable.max) for name, variable in bounds}
    return json.dumps(
        {
            "arguments": [_row(shared, spec) for spec in program.arguments],
            "results": [_row(shared, spec) for spec in program.results],
            "states": [_row(shared, spec) for spec in shared.state_specs],
            "sizes": sizes,
            "largest": {name: high for name, (_, high) in sizes.items()},
            "memory": [program.blocks[one.block].nbytes for one in shared.parameters],
            "template": _template_text(program.template),
        }
    )


def _row(shared: Interface, spec: TensorSpec) -> dict[str, Any]:
    """A tensor; its layout is the shape, and the strides in bytes, with the names of sizes."""
    renamed: dict[Expr, Expr] = {
        one: Variable(name, one.min, one.max)
        for one, name in zip(shared.program.variables, shared.sizes, strict=True)
    }

    def listed(sizes: Sequence[sint]) -> str:
        texts = [f"{as_expr(size).substitute(renamed)}, " for size in sizes]
        return f"({''.join(texts).strip()})"

    block = shared.program.blocks[spec.cell.block]
    steps = [step * spec.dtype.itemsize for step in spec.strides]
    return {
        "name": spec.name,
        "dtype": numpy_name(spec),
        "layout": f"{listed(spec.shape)}, {listed(steps)}",
        "offset": spec.cell.offset,
        "place": shared.place_of_block[spec.cell.block],
        "nbytes": block.nbytes,
        "changed": block.is_written,
    }


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
