"""The native code of an exported program around its kernels, as LLVM IR.

An instance is one piece of memory: a header, the states, and scratch memory. Its header has the
number of the set of kernels that was chosen for this processor, the number of threads, and the
address of each state, which may be the caller's. A run writes the addresses and numbers of each
step to a table on the stack and calls the kernel. Nothing else is written to but what the caller
gave, so any number of instances run at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import Template
from typing import Final, final

from ferrule.base.helpers import round_up
from ferrule.base.records import dataclass
from ferrule.export import entry_points, features, interface
from ferrule.export.interface import Described, Interface, shape_text
from ferrule.export.program import (
    ALIGNMENT,
    BlockKind,
    Cell,
    ExportedProgram,
    Kernel,
    TensorSpec,
)
from ferrule.export.step_code import Lines, StepCode, expression
from ferrule.ir.expr import Variable, as_expr, sint
from ferrule.ir.target import Target
from ferrule.runtime.cpu import native, native_parts

_SLOT: Final = 8
_VARIANT, _THREADS, _WORKERS, _STATES = 0, 8, 16, 64
"""Places in the header of an instance, in bytes."""
_RECORD: Final = 32  # bytes of a launch
MOST_THREADS: Final = 256

_PROCESSORS: Final = {
    "x86-64": native_parts.X86_64,
    "aarch64": native_parts.CLOCK + native_parts.AARCH64,
}


@final
@dataclass(frozen=True)
class Variant:
    """The program with kernels for one target; `kernels` are their names, in the order of steps."""

    target: Target
    program: ExportedProgram
    kernels: tuple[str, ...]


@final
@dataclass(frozen=True)
class Weights:
    """The places of constants and of the first contents of states in the read-only data."""

    name: str
    places: Mapping[int, int]
    """The first byte of each memory, by the serial number of its buffer."""


@final
class _Steps(StepCode):
    """The steps of a run of one set of kernels."""

    def __init__(
        self,
        whole: NativeCode,
        code: Lines,
        values: Mapping[Variable, str],
        bases: Mapping[int, tuple[str, int]],
        kernels: Iterator[str],
        threads: str,
    ) -> None:
        super().__init__(code, values)
        self._whole = whole
        self._bases = bases
        self._kernels = enumerate(kernels)
        self._threads = threads
        """The number of threads; empty if there is one."""

    def first(self, cell: Cell) -> str:
        """The address of a cell without its moves."""
        value, offset = self._bases[cell.block]
        return self.code.at(value, offset + cell.offset)

    def copy(self, to: str, source: str, nbytes: int) -> None:
        """Copies bytes between addresses."""
        self.code.do(f"call ptr @memcpy(ptr {to}, ptr {source}, i64 {nbytes})")

    def kernel(self, kernel: Kernel) -> None:
        """Runs a kernel: its addresses and numbers go to the table."""
        code, (number, name) = self.code, next(self._kernels)
        for place, cell in enumerate(kernel.cells):
            address = self.address(cell)
            code.do(f"store ptr {address}, ptr {code.at('%table', _SLOT * place)}")
        for place, item in enumerate(kernel.values, start=len(kernel.cells)):
            text = self.values[item] if isinstance(item, Variable) else str(item)
            code.do(f"store i64 {text}, ptr {code.at('%table', _SLOT * place)}")
        if self._threads:
            record = self._whole.record(code, number)
            code.do(f'store ptr @"{name}", ptr {record}')
            code.do(f'store ptr @"{name}.extent", ptr {code.at(record, 8)}')
            self._whole.launch(code, record, self._threads)
            return
        extent = code.value(f'call i64 @"{name}.extent"(ptr %table)')
        code.do(f'call void @"{name}"(ptr %table, i64 0, i64 {extent})')


@final
class NativeCode:
    """The functions of the interface of one program, as LLVM IR text: `str()` of it."""

    def __init__(
        self,
        shared: Interface,
        variants: Sequence[Variant],
        weights: Weights,
        about: str,
        threads: bool,
    ) -> None:
        self._interface = shared
        self._name = shared.name
        self._variants = variants
        self._weights = weights
        self._about = about
        self._threads = threads
        self._constants: list[str] = []
        self._texts: dict[str, str] = {}
        self._arch = variants[0].target.arch
        self._program = variants[0].program
        header = _STATES + _SLOT * len(shared.states)
        self._launches_at = round_up(header, ALIGNMENT)
        """Records of launches, and before them the pool: see `runtime/cpu/native.py`."""
        most = max([len(one.kernels) for one in variants])
        end = self._launches_at
        if threads:
            self._pool_at = end
            self._worker_ids_at = end + 512
            self._records_at = self._worker_ids_at + _SLOT * MOST_THREADS
            end = self._records_at + _RECORD * most
        self._state_places: list[int] = []
        for block in shared.states:
            end = round_up(end, ALIGNMENT)
            self._state_places.append(end)
            end += self._program.blocks[block].nbytes
        self._scratch_at = round_up(end, ALIGNMENT)
        scratch = max([one.program.nbytes(BlockKind.SCRATCH) for one in variants])
        self.nbytes = round_up(self._scratch_at + scratch, ALIGNMENT)
        """The bytes of an instance."""

    @property
    def exported(self) -> list[str]:
        """The names of the functions of the interface."""
        ends = "create destroy run_tensors reset state set_state describe target"
        ends += " interface_version error_string about" + " set_threads" * self._threads
        return [f"{self._name}_{end}" for end in ends.split()]

    @property
    def imported(self) -> list[str]:
        """The names of the functions that come from outside."""
        names = ["posix_memalign", "free", "memcpy", "memset", "memmove", "getauxval", "syscall"]
        if self._threads:
            names += ["pthread_create", "pthread_join", "sched_getcpu", "sched_yield"]
            names += ["clock_gettime"]
        return names

    def __str__(self) -> str:
        parts = [
            Template(_PROCESSORS[self._arch]).substitute(MONOTONIC=1),
            features.helpers(self._arch, self._all_features()),
            entry_points.DECLARATIONS,
            f"@{self._weights.name} = external constant i8",
            *[self._run(number, one) for number, one in enumerate(self._variants)],
            self._choose(),
            self._create(),
            self._others(),
            self._descriptions(),
        ]
        if self._threads:
            parts.append(self._thread_functions())
        kernels = dict.fromkeys([name for one in self._variants for name in one.kernels])
        for name in kernels:
            parts.append(f'declare hidden i64 @"{name}.extent"(ptr)')
            parts.append(f'declare hidden void @"{name}"(ptr, i64, i64)')
        return "\n".join([*parts, *self._constants]) + "\n"

    # -- a run -----------------------------------------------------------------------------------

    def _run(self, number: int, variant: Variant) -> str:
        code = Lines()
        program = variant.program
        shared = Interface(program, self._name)
        for pointer, is_read in (("%tensors", shared.parameters), ("%sizes", shared.sizes)):
            if is_read:
                is_null = code.value(f"icmp eq ptr {pointer}, null")
                code.leave_if(is_null, interface.NULL_POINTER)
        bases = self._bases(code, program, shared)
        values: dict[Variable, str] = {}
        for place, variable in enumerate(program.variables):
            at = code.at("%sizes", _SLOT * place)
            value = values[variable] = code.value(f"load i64, ptr {at}")
            for comparison, bound in (("slt", variable.min), ("sgt", variable.max)):
                outside = code.value(f"icmp {comparison} i64 {value}, {bound}")
                code.leave_if(outside, interface.SIZE)
        for spare in program.limits:
            found = expression(code, as_expr(spare), values)
            code.leave_if(code.value(f"icmp slt i64 {found}, 0"), interface.SIZE)
        mode = code.value("call i32 @default_float_mode()")
        threads = code.value(f"load i64, ptr {code.at('%self', _THREADS)}") if self._threads else ""
        steps = _Steps(self, code, values, bases, iter(variant.kernels), threads)
        steps.run(program.steps)
        code.do(f"call void @restore_float_mode(i32 {mode})")
        slots = [len(s.cells) + len(s.values) for s in program.kernels]
        name = f'@"{self._name}.run.{number}"'
        errors = [
            f"error{error}:\n  ret i32 {error}"
            for error in (interface.NULL_POINTER, interface.SIZE)
        ]
        body = "\n".join(code.lines)
        return (
            f"\ndefine internal i32 {name}(ptr %self, ptr %tensors, ptr %sizes) nounwind {{\n"
            f"entry:\n  %table = alloca [{max([1, *slots])} x i64], align 16\n"
            f"{steps.slots()}{body}\n"
            f"  ret i32 0\n{chr(10).join(errors)}\n}}\n"
        )

    def _bases(
        self, code: Lines, program: ExportedProgram, shared: Interface
    ) -> dict[int, tuple[str, int]]:
        """The address of each block, as a value and an offset from it."""
        found: dict[int, tuple[str, int]] = {}
        for place, parameter in enumerate(shared.parameters):
            value = code.value(f"load ptr, ptr {code.at('%tensors', _SLOT * place)}")
            if program.blocks[parameter.block].nbytes:
                is_null = code.value(f"icmp eq ptr {value}, null")
                code.leave_if(is_null, interface.NULL_POINTER)
            found[parameter.block] = value, 0
        for place, number in enumerate(shared.states):
            at = code.at("%self", _STATES + _SLOT * place)
            found[number] = code.value(f"load ptr, ptr {at}"), 0
        for number, block in enumerate(program.blocks):
            if block.kind is BlockKind.CONSTANT and block.memory is not None:
                start = self._weights.places.get(block.memory.serial, 0)  # or nobody uses it
                found[number] = f"@{self._weights.name}", start
            elif block.kind is BlockKind.SCRATCH:
                found[number] = "%self", self._scratch_at
        return found

    def record(self, code: Lines, number: int) -> str:
        """The record of a launch by threads."""
        return code.at("%self", self._records_at + _RECORD * number)

    def launch(self, code: Lines, record: str, threads: str) -> None:
        """Runs the kernel of a record on the table."""
        pool = code.at("%self", self._pool_at)
        code.do(f"store ptr {pool}, ptr {code.at(record, 16)}")
        function = f'@"{self._name}.{native.LAUNCH}"'
        code.do(f"call i64 {function}(ptr {record}, ptr %table, i64 0, i64 {threads})")

    # -- instances -------------------------------------------------------------------------------

    def _all_features(self) -> list[str]:
        every = [features.names_of(one.target.features) for one in self._variants]
        return list(dict.fromkeys([name for names in every for name in names]))

    def _choose(self) -> str:
        """A function that gives the number of the first set of kernels that can run here, or -1."""
        lines = ["entry:", "  br label %try0"]
        for number, variant in enumerate(self._variants):
            lines.append(f"try{number}:")
            all_of = "true"
            names = features.names_of(variant.target.features)
            for place, (check, bit) in enumerate(features.checks(self._arch, names)):
                # Names of values are those of features: each set of kernels has its own.
                fresh = [_numbered(line, number) for line in check]
                lines += fresh
                result = f"%t{number}.{place}"
                lines.append(f"  {result} = and i1 {all_of}, {_numbered(bit, number)}")
                all_of = result
            after = f"try{number + 1}" if number + 1 < len(self._variants) else "none"
            lines.append(f"  br i1 {all_of}, label %take{number}, label %{after}")
            lines.append(f"take{number}:\n  ret i64 {number}")
        lines.append("none:\n  ret i64 -1")
        return f"\ndefine internal i64 @choose() nounwind {{\n{chr(10).join(lines)}\n}}\n"

    def _create(self) -> str:
        code = Lines()
        code.do("store ptr null, ptr %place")
        variant = code.value("call i64 @choose()")
        code.leave_if(code.value(f"icmp slt i64 {variant}, 0"), interface.PROCESSOR)
        alloc = f"call i32 @posix_memalign(ptr %got, i64 {ALIGNMENT}, i64 {self.nbytes})"
        failed = code.value(alloc)
        code.leave_if(code.value(f"icmp ne i32 {failed}, 0"), interface.NO_MEMORY)
        self_ = code.value("load ptr, ptr %got")
        code.do(f"call ptr @memset(ptr {self_}, i32 0, i64 {self._scratch_at})")
        code.do(f"store i64 {variant}, ptr {self_}")
        code.do(f"store i64 1, ptr {code.at(self_, _THREADS)}")
        for place, at in enumerate(self._state_places):
            code.do(f"store ptr {code.at(self_, at)}, ptr {code.at(self_, _STATES + 8 * place)}")
        if self._threads:
            pool = code.at(self_, self._pool_at)
            # A call is never interrupted.
            code.do(f"store i64 {1 << 61}, ptr {code.at(pool, native.POOL_SLICE)}")
            spin = 1 << 18 if self._arch == "x86-64" else 60_000
            code.do(f"store i64 {spin}, ptr {code.at(pool, native.POOL_SPIN)}")
        code.do(f"call void @{self._name}_reset(ptr {self_})")
        code.do(f"store ptr {self_}, ptr %place")
        return (
            f"\ndefine i32 @{self._name}_create(ptr %place) nounwind {{\nentry:\n"
            "  %got = alloca ptr\n  %nowhere = icmp eq ptr %place, null\n"
            f"  br i1 %nowhere, label %error{interface.NULL_POINTER}, label %begin\nbegin:\n"
            + "\n".join(code.lines)
            + "\n  ret i32 0\n"
            + "\n".join(
                [
                    f"error{error}:\n  ret i32 {error}"
                    for error in (
                        interface.NULL_POINTER,
                        interface.PROCESSOR,
                        interface.NO_MEMORY,
                    )
                ]
            )
            + "\n}\n"
        )

    def _others(self) -> str:
        name = self._name
        reset = Lines()
        for place, number in enumerate(self._interface.states):
            block = self._program.blocks[number]
            at = reset.at("%self", _STATES + _SLOT * place)
            to = reset.value(f"load ptr, ptr {at}")
            if block.memory is None:
                reset.do(f"call ptr @memset(ptr {to}, i32 0, i64 {block.nbytes})")
                continue
            first = self._weights.places[block.memory.serial]
            source = reset.at(f"@{self._weights.name}", first)
            reset.do(f"call ptr @memcpy(ptr {to}, ptr {source}, i64 {block.nbytes})")
        cases = "\n".join(
            [f"    i64 {number}, label %run{number}" for number in range(len(self._variants))]
        )
        runs = "\n".join(
            [
                f'run{number}:\n  %error{number} = call i32 @"{name}.run.{number}"'
                f"(ptr %self, ptr %tensors, ptr %sizes)\n  ret i32 %error{number}"
                for number in range(len(self._variants))
            ]
        )
        targets = [self._text(variant.target.name) for variant in self._variants]
        target_table = ", ".join([f"ptr {one}" for one in targets])
        errors = ", ".join([f"ptr {self._text(text)}" for text in interface.ERRORS.values()])
        self._constants += [
            f"@targets = internal constant [{len(targets)} x ptr] [{target_table}]",
            f"@errors = internal constant [{len(interface.ERRORS)} x ptr] [{errors}]",
        ]
        return Template(entry_points.OTHERS).substitute(
            NAME=name,
            RESET="\n".join(reset.lines),
            CASES=cases,
            RUNS=runs,
            N_STATES=len(self._interface.states),
            STATES=_STATES,
            VERSION=interface.VERSION,
            N_ERRORS=len(interface.ERRORS),
            UNKNOWN=self._text("an unknown error"),
            ABOUT=self._text(self._about),
            NULL=interface.NULL_POINTER,
            STOP="call void @stop_threads(ptr %self)" if self._threads else "",
        )

    # -- descriptions ----------------------------------------------------------------------------

    def _text(self, text: str) -> str:
        """The name of a constant with this text."""
        found = self._texts.get(text)
        if found is None:
            data = text.encode()
            found = self._texts[text] = f"@text{len(self._texts)}"
            shown = "".join([f"\\{byte:02x}" for byte in (*data, 0)])
            self._constants.append(f'{found} = internal constant [{len(data) + 1} x i8] c"{shown}"')
        return found

    def _numbers(self, values: Sequence[int]) -> str:
        name = f"@numbers{len(self._constants)}"
        listed = ", ".join([f"i64 {value}" for value in values or (0,)])
        self._constants.append(
            f"{name} = internal constant [{max(len(values), 1)} x i64] [{listed}]"
        )
        return name

    def _description(self, one: Described) -> str:
        spec = one.spec
        texts = spec.name, spec.dtype.name, shape_text(spec.shape)
        pointers = [self._text(text) for text in texts]
        pointers += [self._numbers(_largest(spec.shape)), self._numbers(_largest(spec.strides))]
        nbytes = self._program.blocks[spec.cell.block].nbytes
        fields = [*[f"ptr {pointer}" for pointer in pointers], f"i64 {nbytes}"]
        fields += [f"i64 {spec.cell.offset}", f"i32 {len(spec.shape)}", f"i32 {one.place}"]
        return f"%tensor {{ {', '.join(fields)} }}"

    def _descriptions(self) -> str:
        shared, program = self._interface, self._program
        lists: list[Sequence[TensorSpec]] = [
            program.arguments,
            program.results,
            shared.state_specs,
        ]
        for number, specs in enumerate(lists):
            rows = [self._description(one) for one in shared.described(specs)]
            listed = ", ".join([f"%tensor {row.removeprefix('%tensor ')}" for row in rows])
            kind = f"[{len(rows)} x %tensor]"
            filled = f"[{listed}]" if rows else "zeroinitializer"
            self._constants.append(f"@described{number} = internal constant {kind} {filled}")
        counts = [len(specs) for specs in lists]
        listed_counts = ", ".join([f"i32 {count}" for count in counts])
        tables = ", ".join([f"ptr @described{number}" for number in range(len(lists))])
        self._constants += [
            f"@counts = internal constant [3 x i32] [{listed_counts}]",
            f"@tables = internal constant [3 x ptr] [{tables}]",
        ]
        return Template(entry_points.DESCRIBE).substitute(NAME=self._name)

    # -- threads ---------------------------------------------------------------------------------

    def _thread_functions(self) -> str:
        return Template(entry_points.WITH_THREADS).substitute(
            NAME=self._name,
            POOL=self._pool_at,
            THREADS=_THREADS,
            WORKERS=_WORKERS,
            IDS=self._worker_ids_at,
            MOST=MOST_THREADS,
            TOO_FEW=interface.THREADS,
            NULL=interface.NULL_POINTER,
            SIZE=interface.SIZE,
            LAUNCH=f"{self._name}.{native.LAUNCH}",
            WORKER=f"{self._name}.{native.WORKER}",
            STOP=f"{self._name}.{native.STOP}",
            QUIT=native.POOL_QUIT,
        )


def _numbered(text: str, number: int) -> str:
    """A line in which values have names of their own."""
    return text.replace('%"', f'%"{number}:').replace("%tiles", f"%tiles{number}")


def _largest(sizes: Sequence[sint]) -> list[int]:
    return [as_expr(size).max for size in sizes]
