"""Tile registers (AMX) in software: the intrinsics of a module as functions of its own.

What they do is what Intel's manual says of the instructions (TDPBF16PS: sums of the products of
the even and of the odd halves of pairs, each fused and rounded to nearest even, then added to one
another, then to what the register had). Subnormals are not made zeros here. A tile is loaded and
multiplied only between LDTILECFG and TILERELEASE, or the process ends.
"""

from __future__ import annotations

import re

_DECLARATION = re.compile(r"^declare void @llvm\.x86\.(\w*tile\w*|tdpbf16ps)\(.*\n", re.MULTILINE)
_CALL = re.compile(r"@llvm\.x86\.(\w*tile\w*|tdpbf16ps)\(")

_FUNCTIONS = """
@soft.tiles = internal global [8 x [16 x <16 x i32>]] zeroinitializer, align 64
@soft.rows = internal global [8 x i8] zeroinitializer
declare void @llvm.trap()
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)

define internal void @soft.ldtilecfg(ptr %from) {
  %at = getelementptr i8, ptr %from, i64 48
  %rows = load <8 x i8>, ptr %at
  store <8 x i8> %rows, ptr @soft.rows
  ret void
}

define internal void @soft.tilerelease() {
  store <8 x i8> zeroinitializer, ptr @soft.rows
  ret void
}

define internal ptr @soft.row(i8 %n, i64 %r) {
  %at = getelementptr [8 x i8], ptr @soft.rows, i64 0, i8 %n
  %rows = load i8, ptr %at
  %ok = icmp eq i8 %rows, 16
  br i1 %ok, label %fine, label %bad
bad:
  call void @llvm.trap()
  unreachable
fine:
  %n64 = zext i8 %n to i64
  %row = getelementptr [8 x [16 x <16 x i32>]], ptr @soft.tiles, i64 0, i64 %n64, i64 %r
  ret ptr %row
}

define internal void @soft.tdpbf16ps(i8 %c, i8 %a, i8 %b) {
entry:
  br label %rows
rows:
  %r = phi i64 [ 0, %entry ], [ %r.next, %sum ]
  %a.row = call ptr @soft.row(i8 %a, i64 %r)
  %c.row = call ptr @soft.row(i8 %c, i64 %r)
  br label %terms
terms:
  %k = phi i64 [ 0, %rows ], [ %k.next, %terms ]
  %even = phi <16 x float> [ zeroinitializer, %rows ], [ %even.next, %terms ]
  %odd = phi <16 x float> [ zeroinitializer, %rows ], [ %odd.next, %terms ]
  %a.at = getelementptr i32, ptr %a.row, i64 %k
  %pair = load i32, ptr %a.at
  %one = insertelement <16 x i32> poison, i32 %pair, i64 0
  %x = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
  %b.row = call ptr @soft.row(i8 %b, i64 %k)
  %y = load <16 x i32>, ptr %b.row
  %x.low = shl <16 x i32> %x, splat (i32 16)
  %y.low = shl <16 x i32> %y, splat (i32 16)
  %x.high = and <16 x i32> %x, splat (i32 -65536)
  %y.high = and <16 x i32> %y, splat (i32 -65536)
  %x.even = bitcast <16 x i32> %x.low to <16 x float>
  %y.even = bitcast <16 x i32> %y.low to <16 x float>
  %x.odd = bitcast <16 x i32> %x.high to <16 x float>
  %y.odd = bitcast <16 x i32> %y.high to <16 x float>
  %even.next = call <16 x float> @llvm.fma.v16f32(<16 x float> %x.even, <16 x float> %y.even, <16 x float> %even)
  %odd.next = call <16 x float> @llvm.fma.v16f32(<16 x float> %x.odd, <16 x float> %y.odd, <16 x float> %odd)
  %k.next = add i64 %k, 1
  %k.more = icmp ult i64 %k.next, 16
  br i1 %k.more, label %terms, label %sum
sum:
  %both = fadd <16 x float> %even.next, %odd.next
  %old = load <16 x float>, ptr %c.row
  %new = fadd <16 x float> %old, %both
  store <16 x float> %new, ptr %c.row
  %r.next = add i64 %r, 1
  %r.more = icmp ult i64 %r.next, 16
  br i1 %r.more, label %rows, label %done
done:
  ret void
}
"""  # noqa: E501 - a line of LLVM IR is an instruction


_EACH_ROW = """
define internal void @soft.{name}({parameters}) {{
entry:
  br label %rows
rows:
  %r = phi i64 [ 0, %entry ], [ %next, %rows ]
  %row = call ptr @soft.row(i8 %n, i64 %r)
  {body}
  %next = add i64 %r, 1
  %more = icmp ult i64 %next, 16
  br i1 %more, label %rows, label %done
done:
  ret void
}}
"""

_PLACE = """%offset = mul i64 %r, %stride
  %at = getelementptr i8, ptr %memory, i64 %offset"""

_ROW_BY_ROW = (
    ("tilezero", "i8 %n", "store <16 x i32> zeroinitializer, ptr %row"),
    (
        "tileloadd64",
        "i8 %n, ptr %memory, i64 %stride",
        f"""{_PLACE}
  %value = load <16 x i32>, ptr %at, align 1
  store <16 x i32> %value, ptr %row""",
    ),
    (
        "tilestored64",
        "i8 %n, ptr %memory, i64 %stride",
        f"""{_PLACE}
  %value = load <16 x i32>, ptr %row
  store <16 x i32> %value, ptr %at, align 1""",
    ),
)


def emulated(source: str) -> str:
    """A module whose tile registers are memory. Kernels must not run on several threads at once."""
    changed = _CALL.sub(lambda found: f"@soft.{found[1]}(", _DECLARATION.sub("", source))
    assert changed != source, "no tile registers are used"
    loops = [
        _EACH_ROW.format(name=name, parameters=parameters, body=body)
        for name, parameters, body in _ROW_BY_ROW
    ]
    return "".join([changed, _FUNCTIONS, *loops])
