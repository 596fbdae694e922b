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

from ferrule.codegen.uops import GUARDED, OF_TILES, UOp, UOps
from ferrule.ir.dtype import dtypes
from ferrule.ir.expr import ExprOp
from ferrule.ir.target import Target
from ferrule.renderer.base import Renderer, RenderError, dtype_of, until_extent
from ferrule.renderer.llvm import tile
from ferrule.renderer.llvm.address import Addresses, computed_values, is_address, is_sum, terms_of
from ferrule.renderer.llvm.alu import alu
from ferrule.renderer.llvm.cast import bitcast, cast
from ferrule.renderer.llvm.value import Code, Value, constant, letter, memory_type, vector

MAX_LOCAL_BYTES: Final = 4 << 20  # bytes of scratch; a thread's stack has 8 MiB as a rule
_SLOT_BYTES: Final = 8  # bytes of a slot of the argument table
_MAX_WEIGHT: Final = (1 << 31) - 1  # LLVM's branch weights are 32 bits


def _plain(name: object) -> str:
    """A part of an identifier."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", str(name))


@final
class _Function(Code):
    """The body of one of the two functions, rendered UOp by UOp."""

    def __init__(self, target: Target, declared: set[str], metadata: list[str]) -> None:
        super().__init__(target, declared)
        self.addresses = Addresses(self)
        self.metadata = metadata
        self.values: dict[UOp, Value] = {}
        self.blocks: dict[UOp, int] = {}
        self.elsewhere: set[str] = set()
        self.mixed: set[UOp] = set()
        self.local_bytes = 0
        self.streams = False

    # -- names -------------------------------------------------------------------------------------

    def name(self, u: UOp) -> str:
        return self.values[u].name

    def named(self, u: UOp, name: str) -> Value:
        """The value of a UOp that has a name, or the pointer."""
        return Value(self, dtype_of(u), u.lanes, name)

    def made(self, u: UOp, text: str) -> Value:
        """The value of a UOp by one instruction."""
        return self.named(u, self.assign(text))

    # -- the UOps ----------------------------------------------------------------------------------

    def add(self, u: UOp) -> None:
        """Render one UOp."""
        value_of = _VALUES.get(u.op)
        if value_of is not None:
            self.values[u] = value_of(self, u)
            self.addresses.define(self.name(u))
            return
        match u.op:
            case UOps.STORE:
                self.store(u)
            case UOps.PREFETCH:
                how = (("i32", number) for number in (0, 2, 1))
                self.call("llvm.prefetch.p0", "void", ("ptr", self.address(u)), *how)
            case UOps.SET:
                self.emit(f"store {self.values[u.src[1]]}, ptr {self.name(u.src[0])}")
            case UOps.LOOP:
                self.open_loop(u)
            case UOps.END:
                self.close_loop(u.src[0])
            case UOps.IF:
                self.open_if(u)
            case UOps.ENDIF:
                end = f"endif.{self.blocks[u.src[0]]}"
                self.jump(end)
                self.addresses.close_branch()
                self.label(end)
            case UOps.TILE_ZERO | UOps.TILE_LOAD | UOps.TILE_DOT | UOps.TILE_STORE:
                tile.add(self, u, self.address(u) if u.src else "")
            case UOps.EXTENT:
                pass
            case _:
                raise RenderError(f"{u.op.name} has no value")

    # -- values ------------------------------------------------------------------------------------

    def given(self, u: UOp) -> Value:
        """The first chunk, or the one after the last."""
        return self.named(u, f"%{u.op.name.lower()}")

    def argument(self, u: UOp) -> Value:
        """A pointer or a number from the argument table."""
        offset, slot = _SLOT_BYTES * u.arg, "%args"
        if offset:
            slot = self.assign(f"getelementptr i8, ptr %args, i64 {offset}")
        kind = "ptr" if u.op is UOps.PARAM else "i64"
        return self.made(u, f"load {kind}, ptr {slot}, align 8")

    def iota(self, u: UOp) -> Value:
        numbers = ", ".join(f"i64 {lane}" for lane in range(u.lanes))
        return self.named(u, "0" if u.lanes == 1 else f"<{numbers}>")

    def operand(self, u: UOp) -> Value:
        return self.values[u.src[0]]

    def alu(self, u: UOp) -> Value:
        bounds = _bounds(u)
        if bounds is not None:
            x, stop = bounds  # without its sign a negative number is a large one
            return self.values[x].op("icmp ult", stop)
        return alu(u.arg, *(self.values[s] for s in u.src))

    def splat(self, u: UOp) -> Value:
        scalar = self.operand(u)
        if u.lanes == 1:
            return scalar
        if not scalar.name.startswith("%"):
            return self.named(u, f"splat ({scalar})")
        whole = vector(scalar.type, u.lanes)
        first = self.assign(f"insertelement {whole} poison, {scalar}, i64 0")
        zeros = f"<{u.lanes} x i32> zeroinitializer"
        return self.made(u, f"shufflevector {whole} {first}, {whole} poison, {zeros}")

    def shuffle(self, u: UOp) -> Value:
        if u.src[0].lanes == 1 or u.lanes == 1:
            raise RenderError("SHUFFLE is from vector to vector; use SPLAT or EXTRACT for scalars")
        first, *others = (self.values[s] for s in u.src)
        picked = first.shuffled(u.arg, *others)
        if others and any(s in self.mixed for s in u.src):
            return self.fenced(picked)
        if others:
            self.mixed.add(u)
        return picked

    def fenced(self, x: Value) -> Value:
        """The value behind a fence that LLVM does not look through.

        LLVM would combine successive shuffles, which takes longer for the levels of a transposition
        than all other passes.
        """
        return x.intrinsic("arithmetic.fence") if x.is_real else x

    def halve(self, u: UOp) -> Value:
        """Combine the lower half of the lanes with the upper until one is left.

        A NaN is searched in all lanes at once, not at every step of a chain of maxima.
        """
        x = self.operand(u)
        if u.arg is not ExprOp.MAX or not x.is_real:
            return _halves(x, lambda a, b: alu(u.arg, a, b))
        bits = self.assign(f"bitcast {x.is_nan()} to i{x.lanes}")
        is_nan = x.made(f"icmp ne i{x.lanes} {bits}, 0", dtypes.bool, lanes=1)
        largest = _halves(x, lambda a, b: (b > a).select(b, a))
        return is_nan.select(largest.constant(math.nan), largest)

    # -- memory ------------------------------------------------------------------------------------

    def local(self, u: UOp) -> Value:
        dtype = dtype_of(u)
        name, size = u.arg
        self.local_bytes += size * dtype.itemsize
        if self.local_bytes > MAX_LOCAL_BYTES:
            raise RenderError(
                f"scratch {name}: {self.local_bytes} bytes in all do not fit the stack of a "
                f"thread; keep it below {MAX_LOCAL_BYTES}, by smaller tiles"
            )
        return self.allocated(u, name, f"[{size} x {memory_type(dtype)}], align 64")

    def register(self, u: UOp) -> Value:
        value = self.operand(u)
        register = self.allocated(u, u.arg, value.type)
        self.emit(f"store {value}, ptr {register.name}")
        return register

    def get(self, u: UOp) -> Value:
        register = self.operand(u)
        return self.made(u, f"load {register.type}, ptr {register.name}")

    def allocated(self, u: UOp, name: object, text: str) -> Value:
        """The pointer to new memory on the stack."""
        pointer = f"%{_plain(name)}.{self.number()}"
        self.entry.append(f"  {pointer} = alloca {text}")
        return self.named(u, pointer)

    def address(self, u: UOp) -> str:
        """The address of a UOp's element, or a vector of addresses."""
        pointer, index = u.src[:2]
        kind = memory_type(dtype_of(pointer))
        name = self.name(pointer)
        if not is_address(u, 1):
            return self.assign(f"getelementptr {kind}, ptr {name}, {self.values[index]}")
        terms, number = terms_of(index)
        names = [self.name(term) for term in terms]
        return self.addresses.element(kind, dtype_of(pointer).itemsize, name, names, number)

    def load(self, u: UOp) -> Value:
        dtype, address, mask = dtype_of(u), self.address(u), u.src[2:]
        held = dtypes.uint8 if dtype is dtypes.bool else dtype
        whole = vector(memory_type(dtype), u.lanes)
        if u.lanes > 1 and (mask or u.src[1].lanes > 1):
            name, operands = self.masked(("load", "gather"), u, u, mask, address)
            loaded = self.call(name, whole, *operands, (whole, "zeroinitializer"))
        else:
            place = self.place_if(mask, address, "%zero")
            loaded = self.assign(f"load {whole}, ptr {place}, align {dtype.itemsize}")
        value = Value(self, held, u.lanes, loaded)
        return value if held is dtype else value.differs(0)

    def store(self, u: UOp) -> None:
        value, mask, size = self.values[u.src[2]], u.src[3:], dtype_of(u.src[2]).itemsize
        if value.dtype is dtypes.bool:
            value = value.resized(dtypes.uint8)
        address = self.address(u)
        if value.lanes > 1 and (mask or u.src[1].lanes > 1):
            name, operands = self.masked(("store", "scatter"), u, u.src[2], mask, address)
            self.call(name, "void", (value.type, value.name), *operands)
        elif u.arg == "nontemporal" and not mask and self.can_stream(value.lanes * size):
            self.streaming_store(value, address, size)
        else:
            place = self.place_if(mask, address, "%unread")
            self.emit(f"store {value}, ptr {place}, align {size}")

    def masked(
        self, operations: tuple[str, str], u: UOp, x: UOp, mask: Sequence[UOp], address: str
    ) -> tuple[str, list[tuple[str, object]]]:
        """The intrinsic of an access to several places, and its operands but for the value.

        `operations` are those for neighbours and for any places.
        """
        of_any = u.src[1].lanes > 1
        places = f"v{x.lanes}p0" if of_any else "p0"
        enabled = self.values[mask[0]] if mask else constant(self, dtypes.bool, x.lanes, True)
        if u.arg == GUARDED:
            condition = self.name(mask[0].src[0])
            address = self.addresses.chosen(condition, address, self.name(u.src[0]))
        kind = letter(memory_type(dtype_of(x)))
        return f"llvm.masked.{operations[of_any]}.v{x.lanes}{kind}.{places}", [
            (vector("ptr", x.lanes if of_any else 1), address),
            ("i32", dtype_of(x).itemsize),
            (enabled.type, enabled.name),
        ]

    def place_if(self, mask: Sequence[UOp], address: str, other: str) -> str:
        """The address for an access to one element; of a scratch element if the mask is false.

        That element is `%zero`, which is 0 and never stored to, or `%unread`, which is never
        loaded. An instruction with a mask would wait for a store to the same place to reach the
        cache.
        """
        if not mask:
            return address
        if other not in self.elsewhere:
            self.elsewhere.add(other)
            self.entry.append(f"  {other} = alloca i64")
            if other == "%zero":
                self.entry.append(f"  store i64 0, ptr {other}")
        return self.addresses.chosen(self.name(mask[0]), address, other)

    def can_stream(self, size: int) -> bool:
        """True if a store of `size` bytes can bypass the caches."""
        return self.target.arch == "x86-64" and size in (16, 32, 64)

    def streaming_store(self, value: Value, address: str, itemsize: int) -> None:
        """Emit a store past the caches if the address is aligned to its size, which a view may not
        be; else a plain one.
        """
        self.streams = True
        size, number = value.lanes * itemsize, self.number()
        stream, plain, end = (f"{name}.{number}" for name in ("stream", "plain", "stored"))
        bits = self.assign(f"ptrtoint ptr {address} to i64")
        low = self.assign(f"and i64 {bits}, {size - 1}")
        self.branch(self.assign(f"icmp eq i64 {low}, 0"), stream, plain)
        self.label(stream)
        node = self.node("!{i32 1}")
        self.emit(f"store {value}, ptr {address}, align {size}, !nontemporal {node}")
        self.jump(end)
        self.label(plain)
        self.emit(f"store {value}, ptr {address}, align {itemsize}")
        self.jump(end)
        self.label(end)

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
        self.blocks[u] = number = self.number()
        counter = f"%{_plain(u.arg)}.{number}"
        body, end = f"loop.{number}", f"done.{number}"
        self.addresses.open_loop(counter)
        if first.op is UOps.CONST and limit.op is UOps.CONST and first.arg < limit.arg:
            self.jump(body)
        else:
            self.branch((self.values[first] < self.values[limit]).name, body, end)
        incoming = f"[ {self.name(first)}, %{self.block} ], [ {counter}.next, %next.{number} ]"
        self.label(body)
        self.emit(f"{counter} = phi i64 {incoming}")
        self.values[u] = self.named(u, counter)

    def close_loop(self, u: UOp) -> None:
        _, limit, step = u.src
        number = self.blocks[u]
        counter = self.name(u)
        self.jump(f"next.{number}")
        self.label(f"next.{number}")
        self.emit(f"{counter}.next = add nsw i64 {counter}, {self.name(step)}")
        more = self.assign(f"icmp slt i64 {counter}.next, {self.name(limit)}")
        self.branch(more, f"loop.{number}", f"done.{number}", self.loop_nodes(u))
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
        self.blocks[u] = number = self.number()
        self.branch(self.name(u.src[0]), f"then.{number}", f"endif.{number}")
        self.label(f"then.{number}")
        self.addresses.open_branch()


_VALUES: Final[dict[UOps, Callable[[_Function, UOp], Value]]] = {
    UOps.PARAM: _Function.argument,
    UOps.VALUE: _Function.argument,
    UOps.START: _Function.given,
    UOps.STOP: _Function.given,
    UOps.CONST: lambda f, u: constant(f, dtype_of(u), u.lanes, u.arg),
    UOps.IOTA: _Function.iota,
    UOps.ALU: _Function.alu,
    UOps.CAST: lambda f, u: cast(f.operand(u), dtype_of(u)),
    UOps.BITCAST: lambda f, u: bitcast(f.operand(u), dtype_of(u), u.lanes),
    UOps.SPLAT: _Function.splat,
    UOps.EXTRACT: lambda f, u: f.operand(u).lane(u.arg),
    UOps.SHUFFLE: _Function.shuffle,
    UOps.HREDUCE: _Function.halve,
    UOps.LOCAL: _Function.local,
    UOps.LOAD: _Function.load,
    UOps.REG: _Function.register,
    UOps.GET: _Function.get,
}
"""The function for the value of each UOp that has one; of a pointer, its name."""


def _bounds(u: UOp) -> tuple[UOp, int] | None:
    """The integer x and the number n, if an operation means `0 <= x and x < n`."""
    if u.arg is not ExprOp.AND or any(s.arg is not ExprOp.CMPLT for s in u.src):
        return None
    for low, high in (u.src, u.src[::-1]):
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
    return int(u.arg) if u.op is UOps.CONST and dtypes.is_int(dtype_of(u)) else None


def _halves(x: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """The lower half of the lanes combined with the upper, until one lane is left."""
    while x.lanes > 1:
        half = x.lanes // 2
        if half == 1:
            x = combine(x.lane(0), x.lane(1))
        else:
            x = combine(x.shuffled(range(half)), x.shuffled(range(half, x.lanes)))
    return x


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
        needed: set[str] = set()
        metadata: list[str] = []
        main = self._main(name, uops, _Function(self.target, needed, metadata))
        extent = self._extent(name, uops, _Function(self.target, needed, []))
        nodes = [f"!{i} = {text}" for i, text in enumerate(metadata)]
        parts = [main, extent, *sorted(needed), _attributes(self.target), *nodes]
        return "\n".join(parts) + "\n"

    def _main(self, name: str, uops: Sequence[UOp], function: _Function) -> str:
        computed = computed_values(uops)
        uses_tiles = any(u.op in OF_TILES for u in uops)
        if uses_tiles:
            tile.configure(function)
        for u in uops:
            if u in computed or not is_sum(u):
                function.add(u)
        if uses_tiles:
            tile.release(function)
        if function.streams:
            # Stores past the caches are not ordered with others, and another thread may read them.
            function.call("llvm.x86.sse.sfence", "void")
        function.emit("ret void")
        return function.text(f'void @"{name}"(ptr %args, i64 %start, i64 %stop)')

    def _extent(self, name: str, uops: Sequence[UOp], function: _Function) -> str:
        before, extent = until_extent(name, uops)
        for u in before:
            function.add(u)
        function.emit(f"ret i64 {function.name(extent.src[0])}")
        return function.text(f'i64 @"{name}.extent"(ptr %args)')
