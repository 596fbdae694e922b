"""Programs as LLVM IR, for LLVM 19 to 22.

A module has two functions, as `docs/design/interfaces.md` says: `void NAME(ptr, i64, i64)` and
`i64 NAME.extent(ptr)`. Vectors are explicit and loops are marked not to be unrolled or vectorised
again, so that the only pass worth running is `sroa`, which turns the registers' memory into SSA.
The module names no triple and no data layout: the compiler sets its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Final, final

from ferrule.codegen.uops import OF_TILES, UOp, UOps
from ferrule.ir.dtype import DType, dtypes
from ferrule.ir.expr import ExprOp
from ferrule.ir.target import Target
from ferrule.renderer.base import STORAGE_ONLY, Renderer, RenderError, storage_bits
from ferrule.renderer.llvm import tile
from ferrule.renderer.llvm.address import Addresses, is_address, is_sum, needed, terms_of
from ferrule.renderer.llvm.alu import alu
from ferrule.renderer.llvm.cast import bitcast, cast
from ferrule.renderer.llvm.value import (
    Code,
    Lanes,
    is_real,
    lanes_of,
    literal,
    memory_type,
    register_type,
    vector,
)

MAX_LOCAL_BYTES: Final = 4 << 20  # bytes of scratch; a thread's stack has 8 MiB as a rule
_SLOT_BYTES: Final = 8  # bytes of a slot of the argument table
_MAX_WEIGHT: Final = (1 << 31) - 1  # LLVM's branch weights are 32 bits


def _plain(name: object) -> str:
    """A part of an identifier."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", str(name))


def _dtype(u: UOp) -> DType:
    assert u.dtype is not None, u
    return u.dtype


@final
class _Function:
    """The body of one of the two functions, rendered UOp by UOp."""

    def __init__(self, target: Target, declared: set[str], metadata: list[str]) -> None:
        self.target = target
        self.code = Code(target, declared)
        self.addresses = Addresses(self.code)
        self.metadata = metadata
        self.entry: list[str] = []
        self.names: dict[UOp, str] = {}
        self.blocks: dict[UOp, int] = {}
        self.block = "entry"
        self.elsewhere: set[str] = set()
        self.mixed: set[UOp] = set()
        self.local_bytes = 0
        self.streams = False

    # -- names -------------------------------------------------------------------------------------

    def name(self, u: UOp) -> str:
        return self.names[u]

    def type_of(self, u: UOp) -> str:
        return vector(register_type(_dtype(u)), u.lanes)

    def typed(self, u: UOp) -> str:
        """Type and operand."""
        return f"{self.type_of(u)} {self.name(u)}"

    def label(self, name: str) -> None:
        self.code.label(name)
        self.block = name

    # -- the UOps ----------------------------------------------------------------------------------

    def add(self, u: UOp) -> None:
        """Render one UOp."""
        match u.op:
            case UOps.STORE:
                self.store(u)
            case UOps.PREFETCH:
                address = self.address(u)
                self.code.needed.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
                self.code.emit(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 2, i32 1)")
            case UOps.SET:
                register = self.name(u.src[0])
                self.code.emit(f"store {self.typed(u.src[1])}, ptr {register}")
            case UOps.LOOP:
                self.open_loop(u)
            case UOps.END:
                self.close_loop(u.src[0])
            case UOps.IF:
                self.open_if(u)
            case UOps.ENDIF:
                number = self.blocks[u.src[0]]
                self.code.emit(f"br label %endif.{number}")
                self.addresses.close_branch()
                self.label(f"endif.{number}")
            case UOps.TILE_ZERO | UOps.TILE_LOAD | UOps.TILE_DOT | UOps.TILE_STORE:
                tile.add(self.code, u, self.address(u) if u.src else "")
            case UOps.EXTENT:
                pass
            case _:
                name = self.value(u)
                self.names[u] = name
                self.addresses.define(name)

    def value(self, u: UOp) -> str:
        """The operand for the value of a UOp."""
        match u.op:
            case UOps.PARAM:
                return self.code.value(f"load ptr, ptr {self.slot(u)}, align 8")
            case UOps.VALUE:
                return self.code.value(f"load i64, ptr {self.slot(u)}, align 8")
            case UOps.START:
                return "%start"
            case UOps.STOP:
                return "%stop"
            case UOps.CONST:
                return self.constant(u)
            case UOps.IOTA:
                numbers = ", ".join(f"i64 {lane}" for lane in range(u.lanes))
                return "0" if u.lanes == 1 else f"<{numbers}>"
            case UOps.ALU:
                return self.alu(u)
            case UOps.CAST | UOps.BITCAST:
                function = cast if u.op is UOps.CAST else bitcast
                x = u.src[0]
                return function(self.code, self.name(x), _dtype(x), _dtype(u), u.lanes)
            case UOps.SPLAT:
                return self.splat(u)
            case UOps.EXTRACT:
                return self.extract(u.src[0], u.arg)
            case UOps.SHUFFLE:
                return self.shuffle(u)
            case UOps.HREDUCE:
                return self.halve(u)
            case UOps.LOCAL:
                return self.local(u)
            case UOps.LOAD:
                return self.load(u)
            case UOps.REG:
                return self.register(u)
            case UOps.GET:
                return self.code.value(f"load {self.type_of(u)}, ptr {self.name(u.src[0])}")
            case _:
                raise RenderError(f"{u.op.name} has no value")

    def slot(self, u: UOp) -> str:
        offset = _SLOT_BYTES * u.arg
        return self.code.value(f"getelementptr i8, ptr %args, i64 {offset}") if offset else "%args"

    def constant(self, u: UOp) -> str:
        dtype = _dtype(u)
        value = storage_bits(dtype, u.arg) if dtype in STORAGE_ONLY else u.arg
        return literal(register_type(dtype), u.lanes, value)

    def alu(self, u: UOp) -> str:
        operand = u.src[1] if u.arg is ExprOp.WHERE else u.src[0]
        names = [self.name(s) for s in u.src]
        bounds = _bounds(u)
        if bounds is not None:
            x, stop = bounds  # without its sign a negative number is a large one
            t = lanes_of(self.code, _dtype(x), u.lanes)
            return t.compare("ult", self.name(x), t.constant(stop))
        return alu(self.code, u.arg, _dtype(operand), u.lanes, names)

    def splat(self, u: UOp) -> str:
        scalar = self.name(u.src[0])
        if u.lanes == 1:
            return scalar
        kind = register_type(_dtype(u))
        if not scalar.startswith("%"):
            return f"splat ({kind} {scalar})"
        whole = vector(kind, u.lanes)
        first = self.code.value(f"insertelement {whole} poison, {kind} {scalar}, i64 0")
        zeros = f"<{u.lanes} x i32> zeroinitializer"
        return self.code.value(f"shufflevector {whole} {first}, {whole} poison, {zeros}")

    def extract(self, x: UOp, lane: int) -> str:
        if x.lanes == 1:
            return self.name(x)
        return self.code.value(f"extractelement {self.typed(x)}, i64 {lane}")

    def shuffle(self, u: UOp) -> str:
        first = u.src[0]
        if first.lanes == 1 or u.lanes == 1:
            raise RenderError("SHUFFLE is from vector to vector; use SPLAT or EXTRACT for scalars")
        if len(u.src) == 1:
            return self.pick(f"{self.typed(first)}, {self.type_of(first)} poison", u.arg)
        picked = self.pick(f"{self.typed(first)}, {self.typed(u.src[1])}", u.arg)
        if any(s in self.mixed for s in u.src):
            return self.fenced(u, picked)
        self.mixed.add(u)
        return picked

    def fenced(self, u: UOp, name: str) -> str:
        """The value behind a fence that LLVM does not look through.

        LLVM would combine successive shuffles, which takes longer for the levels of a transposition
        than all other passes.
        """
        kind = register_type(_dtype(u))
        if not is_real(kind):
            return name
        return Lanes(self.code, kind, u.lanes).intrinsic("arithmetic.fence", name)

    def pick(self, vectors: str, lanes: Sequence[int]) -> str:
        numbers = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.code.value(f"shufflevector {vectors}, <{len(lanes)} x i32> <{numbers}>")

    def halve(self, u: UOp) -> str:
        """Combine the lower half of the lanes with the upper until one is left.

        A NaN is searched in all lanes at once, not at every step of a chain of maxima.
        """
        dtype, lanes = _dtype(u), u.src[0].lanes
        kind = register_type(dtype)
        value = self.name(u.src[0])
        if u.arg is not ExprOp.MAX or not is_real(kind):
            return self.halves(u, lambda n, a, b: alu(self.code, u.arg, dtype, n, [a, b]))
        wide = Lanes(self.code, kind, lanes)
        unordered = wide.compare("uno", value, value)
        bits = self.code.value(f"bitcast {vector('i1', lanes)} {unordered} to i{lanes}")
        is_nan = self.code.value(f"icmp ne i{lanes} {bits}, 0")
        scalar = Lanes(self.code, kind, 1)
        return scalar.select(is_nan, scalar.constant(math.nan), self.halves(u, self.larger(kind)))

    def larger(self, kind: str) -> Callable[[int, str, str], str]:
        """A function for the maximum of two operands that are no NaN."""

        def combine(lanes: int, a: str, b: str) -> str:
            t = Lanes(self.code, kind, lanes)
            return t.select(t.compare("ogt", b, a), b, a)

        return combine

    def halves(self, u: UOp, combine: Callable[[int, str, str], str]) -> str:
        kind, lanes = register_type(_dtype(u)), u.src[0].lanes
        value = self.name(u.src[0])
        while lanes > 1:
            whole = f"{vector(kind, lanes)} {value}"
            lanes //= 2
            if lanes == 1:
                pair = [self.code.value(f"extractelement {whole}, i64 {i}") for i in (0, 1)]
            else:
                vectors = f"{whole}, {vector(kind, 2 * lanes)} poison"
                pair = [self.pick(vectors, range(i, i + lanes)) for i in (0, lanes)]
            value = combine(lanes, *pair)
        return value

    # -- memory ------------------------------------------------------------------------------------

    def local(self, u: UOp) -> str:
        dtype = _dtype(u)
        name, size = u.arg
        self.local_bytes += size * dtype.itemsize
        if self.local_bytes > MAX_LOCAL_BYTES:
            raise RenderError(
                f"scratch {name}: {self.local_bytes} bytes in all do not fit the stack of a "
                f"thread; keep it below {MAX_LOCAL_BYTES}, by smaller tiles"
            )
        pointer = f"%{_plain(name)}.{self.code.number()}"
        self.entry.append(f"  {pointer} = alloca [{size} x {memory_type(dtype)}], align 64")
        return pointer

    def register(self, u: UOp) -> str:
        pointer = f"%{_plain(u.arg)}.{self.code.number()}"
        self.entry.append(f"  {pointer} = alloca {self.type_of(u)}")
        self.code.emit(f"store {self.typed(u.src[0])}, ptr {pointer}")
        return pointer

    def address(self, u: UOp) -> str:
        """The address of a UOp's element, or a vector of addresses."""
        pointer, index = u.src[:2]
        kind = memory_type(_dtype(pointer))
        name = self.name(pointer)
        if not is_address(u, 1):
            return self.code.value(f"getelementptr {kind}, ptr {name}, {self.typed(index)}")
        terms, number = terms_of(index)
        names = [self.name(term) for term in terms]
        return self.addresses.element(kind, _dtype(pointer).itemsize, name, names, number)

    def mask(self, u: UOp, position: int, lanes: int) -> str:
        """The mask operand for an intrinsic."""
        if len(u.src) <= position:
            return literal("i1", lanes, True)
        return self.name(u.src[position])

    def load(self, u: UOp) -> str:
        dtype = _dtype(u)
        index = u.src[1]
        address = self.address(u)
        kind = memory_type(dtype)
        if len(u.src) == 2 and index.lanes == 1:
            whole = vector(kind, u.lanes)
            value = self.code.value(f"load {whole}, ptr {address}, align {dtype.itemsize}")
        else:
            value = self.masked_load(u, kind, address)
        if dtype is dtypes.bool:
            return lanes_of(self.code, dtypes.uint8, u.lanes).compare(
                "ne", value, literal("i8", u.lanes, 0)
            )
        return value

    def masked_load(self, u: UOp, kind: str, address: str) -> str:
        if u.lanes == 1:
            return self.conditional_load(u, kind, address)
        gather = u.src[1].lanes > 1
        whole = f"<{u.lanes} x {kind}>"
        pointers = f"<{u.lanes} x ptr>" if gather else "ptr"
        mask = self.mask(u, 2, u.lanes)
        name = "gather" if gather else "load"
        suffix = f"v{u.lanes}p0" if gather else "p0"
        return self.code.call(
            f"llvm.masked.{name}.v{u.lanes}{_letter(kind)}.{suffix}",
            whole,
            (pointers, address),
            ("i32", str(_dtype(u).itemsize)),
            (f"<{u.lanes} x i1>", mask),
            (whole, "zeroinitializer"),
        )

    def conditional_load(self, u: UOp, kind: str, address: str) -> str:
        """One element, or 0 if the condition is false.

        A load is done in any case, from elsewhere if the condition is false: an instruction with a
        mask would wait for a store to the same place to reach the cache.
        """
        place = self.place_if(u.src[2], address, "%zero")
        return self.code.value(f"load {kind}, ptr {place}, align {_dtype(u).itemsize}")

    def place_if(self, condition: UOp, address: str, other: str) -> str:
        """The address if a condition holds, else that of a scratch element.

        The element is `%zero`, which is 0 and never stored to, or `%unread`, which is never loaded.
        """
        if other not in self.elsewhere:
            self.elsewhere.add(other)
            self.entry.append(f"  {other} = alloca i64")
            if other == "%zero":
                self.entry.append(f"  store i64 0, ptr {other}")
        return self.addresses.chosen(self.name(condition), address, other)

    def store(self, u: UOp) -> None:
        index, value = u.src[1:3]
        dtype = _dtype(value)
        name = self.name(value)
        kind = memory_type(dtype)
        if dtype is dtypes.bool:
            name = lanes_of(self.code, dtype, value.lanes).convert("zext", name, "i8")
        address = self.address(u)
        whole = vector(kind, value.lanes)
        if len(u.src) > 3 or index.lanes > 1:
            self.masked_store(u, kind, name, address)
        elif u.arg == "nontemporal" and self.can_stream(value.lanes * dtype.itemsize):
            self.streaming_store(f"{whole} {name}", address, dtype, value.lanes)
        else:
            self.code.emit(f"store {whole} {name}, ptr {address}, align {dtype.itemsize}")

    def masked_store(self, u: UOp, kind: str, name: str, address: str) -> None:
        value = u.src[2]
        if value.lanes == 1:
            place = self.place_if(u.src[3], address, "%unread")
            self.code.emit(f"store {kind} {name}, ptr {place}, align {_dtype(value).itemsize}")
            return
        scatter = u.src[1].lanes > 1
        whole = f"<{value.lanes} x {kind}>"
        pointers = f"<{value.lanes} x ptr>" if scatter else "ptr"
        mask = self.mask(u, 3, value.lanes)
        operation = "scatter" if scatter else "store"
        suffix = f"v{value.lanes}p0" if scatter else "p0"
        intrinsic = f"llvm.masked.{operation}.v{value.lanes}{_letter(kind)}.{suffix}"
        masks = f"<{value.lanes} x i1>"
        self.code.needed.add(f"declare void @{intrinsic}({whole}, {pointers}, i32, {masks})")
        align = _dtype(value).itemsize
        self.code.emit(
            f"call void @{intrinsic}"
            f"({whole} {name}, {pointers} {address}, i32 {align}, {masks} {mask})"
        )

    def can_stream(self, size: int) -> bool:
        """True if a store of `size` bytes can bypass the caches."""
        return self.target.arch == "x86-64" and size in (16, 32, 64)

    def streaming_store(self, value: str, address: str, dtype: DType, lanes: int) -> None:
        """Emit a store past the caches if the address is aligned to its size, which a view may not
        be; else a plain one.
        """
        self.streams = True
        size = lanes * dtype.itemsize
        number = self.code.number()
        bits = self.code.value(f"ptrtoint ptr {address} to i64")
        low = self.code.value(f"and i64 {bits}, {size - 1}")
        aligned = self.code.value(f"icmp eq i64 {low}, 0")
        self.code.emit(f"br i1 {aligned}, label %stream.{number}, label %plain.{number}")
        self.label(f"stream.{number}")
        node = self.node("!{i32 1}")
        self.code.emit(f"store {value}, ptr {address}, align {size}, !nontemporal {node}")
        self.code.emit(f"br label %stored.{number}")
        self.label(f"plain.{number}")
        self.code.emit(f"store {value}, ptr {address}, align {dtype.itemsize}")
        self.code.emit(f"br label %stored.{number}")
        self.label(f"stored.{number}")

    # -- control -----------------------------------------------------------------------------------

    def node(self, text: str) -> str:
        """The number of a metadata node; equal nodes are shared unless they are distinct."""
        if text.startswith("distinct") or text not in self.metadata:
            self.metadata.append(text)
            return f"!{len(self.metadata) - 1}"
        return f"!{self.metadata.index(text)}"

    def open_loop(self, u: UOp) -> None:
        """Open `for (i = first; i < limit; i += step)`, tested at its end and once before it."""
        first, limit, _ = u.src
        number = self.code.number()
        self.blocks[u] = number
        counter = f"%{_plain(u.arg)}.{number}"
        body, end = f"loop.{number}", f"done.{number}"
        self.addresses.open_loop(counter)
        if first.op is UOps.CONST and limit.op is UOps.CONST and first.arg < limit.arg:
            self.code.emit(f"br label %{body}")
        else:
            some = self.code.value(f"icmp slt i64 {self.name(first)}, {self.name(limit)}")
            self.code.emit(f"br i1 {some}, label %{body}, label %{end}")
        incoming = f"[ {self.name(first)}, %{self.block} ], [ {counter}.next, %next.{number} ]"
        self.label(body)
        self.code.emit(f"{counter} = phi i64 {incoming}")
        self.names[u] = counter

    def close_loop(self, u: UOp) -> None:
        _, limit, step = u.src
        number = self.blocks[u]
        counter = self.name(u)
        self.code.emit(f"br label %next.{number}")
        self.label(f"next.{number}")
        self.code.emit(f"{counter}.next = add nsw i64 {counter}, {self.name(step)}")
        more = self.code.value(f"icmp slt i64 {counter}.next, {self.name(limit)}")
        target = f"label %loop.{number}, label %done.{number}"
        self.code.emit(f"br i1 {more}, {target}{self.loop_nodes(u)}")
        self.label(f"done.{number}")
        self.addresses.close_loop()

    def loop_nodes(self, u: UOp) -> str:
        """The metadata of a loop: that LLVM must not change it, and its number of iterations if it
        is known.

        LLVM assumes 31 iterations otherwise. In deep loop nests, some loops of which run once, it
        then keeps the wrong values in registers.
        """
        unroll = self.node('!{!"llvm.loop.unroll.disable"}')
        vectorize = self.node('!{!"llvm.loop.vectorize.enable", i1 false}')
        own = self.node(f"distinct !{{!{len(self.metadata)}, {unroll}, {vectorize}}}")
        first, limit, step = (s.arg if s.op is UOps.CONST else None for s in u.src)
        if first is None or limit is None or step is None:
            return f", !llvm.loop {own}"
        again = max(0, (limit - first - 1) // step)
        weights = self.node(f'!{{!"branch_weights", i32 {min(again, _MAX_WEIGHT)}, i32 1}}')
        return f", !prof {weights}, !llvm.loop {own}"

    def open_if(self, u: UOp) -> None:
        number = self.code.number()
        self.blocks[u] = number
        condition = self.name(u.src[0])
        self.code.emit(f"br i1 {condition}, label %then.{number}, label %endif.{number}")
        self.label(f"then.{number}")
        self.addresses.open_branch()

    def text(self, header: str) -> str:
        return "\n".join([f"define {header} #0 {{", "entry:", *self.entry, *self.code.lines, "}"])


def _bounds(u: UOp) -> tuple[UOp, int] | None:
    """The integer x and the number n, if an operation means `0 <= x and x < n`."""
    if u.op is not UOps.ALU or u.arg is not ExprOp.AND:
        return None
    tests = [s for s in u.src if s.op is UOps.ALU and s.arg is ExprOp.CMPLT]
    if len(tests) != 2:
        return None
    for low, high in (tests, tests[::-1]):
        (negated, one), (x, stop) = low.src, high.src
        is_negated = negated.op is UOps.ALU and negated.arg is ExprOp.MUL and negated.src[0] is x
        if not is_negated or _number(one) != 1 or _number(negated.src[1]) != -1:
            continue
        n = _number(stop)
        if n is not None and n >= 0:
            return x, n
    return None


def _number(u: UOp) -> int | None:
    """The integer that a value is in all lanes, if it is known."""
    if u.op is UOps.SPLAT:
        u = u.src[0]
    is_integer = u.op is UOps.CONST and u.dtype is not None and dtypes.is_int(u.dtype)
    return int(u.arg) if is_integer else None


def _letter(kind: str) -> str:
    return {"float": "f32", "double": "f64"}.get(kind, kind)


def _extent_function(target: Target, declared: set[str], name: str, uops: Sequence[UOp]) -> str:
    function = _Function(target, declared, [])
    for u in uops:
        if u.op is UOps.EXTENT:
            function.code.emit(f"ret i64 {function.name(u.src[0])}")
            return function.text(f'i64 @"{name}.extent"(ptr %args)')
        function.add(u)
    raise RenderError(f"kernel {name} has no EXTENT; put one behind what computes it")


def _main_function(
    target: Target, declared: set[str], metadata: list[str], name: str, uops: Sequence[UOp]
) -> str:
    function = _Function(target, declared, metadata)
    computed = needed(uops)
    uses_tiles = any(u.op in OF_TILES for u in uops)
    if uses_tiles:
        tile.configure(function.code)
    for u in uops:
        if u in computed or not is_sum(u):
            function.add(u)
    if uses_tiles:
        tile.release(function.code)
    if function.streams:
        # Stores past the caches are not ordered with others, and another thread may read them.
        declared.add("declare void @llvm.x86.sse.sfence()")
        function.code.emit("call void @llvm.x86.sse.sfence()")
    function.code.emit("ret void")
    return function.text(f'void @"{name}"(ptr %args, i64 %start, i64 %stop)')


def _attributes(target: Target) -> str:
    bits = 8 * target.vector_bytes
    return (
        "attributes #0 = { nounwind "
        f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}" '
        '"no-trapping-math"="true" "denormal-fp-math"="ieee,ieee" }'
    )


@final
class LLVMRenderer(Renderer):
    """Renders programs as LLVM IR for one target."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def render(self, name: str, uops: Sequence[UOp]) -> str:
        """The module of the kernel `name`: LLVM IR, as text.

        Raises:
            RenderError: no EXTENT, arithmetic on a dtype that is for storage only, scratch that
                does not fit the stack, or an operation that has to be expanded first.
        """
        declared: set[str] = set()
        metadata: list[str] = []
        main = _main_function(self.target, declared, metadata, name, uops)
        extent = _extent_function(self.target, declared, name, uops)
        nodes = [f"!{i} = {text}" for i, text in enumerate(metadata)]
        parts = [main, extent, *sorted(declared), _attributes(self.target), *nodes]
        return "\n".join(parts) + "\n"
