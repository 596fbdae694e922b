"""Sorting and selecting in the native runtime: rows of different 64-bit codes.

Both are kernels: a chunk is a row. A code has a word in its upper half and a position in the lower
one, and positions ascend in a row, so that a stable order of the words is the order of the codes.

- Few codes: a bitonic network, whose steps are minima and maxima of vectors.
- A sort: a least-significant-digit radix sort by the four bytes of the words. All digits are
  counted in one pass before, and a byte that all words share is passed over.
- A selection: the codes of the bucket that has the wanted ranks are kept, by ever lower digits,
  until few are left, or the ranks are in several buckets; those that are left are sorted.

No step branches by comparisons of codes: nothing is mispredicted.
"""

from __future__ import annotations

MAX_FEW = 256
"""Codes that a network sorts, a power of two: 0.9 us there, where digits take 1.5 (Zen 4,
2026-11)."""

# Count the digit, which has a part of the table.
_COUNT = """  %c_shift$K = lshr i64 %c_code, $SHIFT
  %d$K = and i64 %c_shift$K, 255
  %e$K = add i64 %d$K, $START
  %p$K = getelementptr i32, ptr %counts, i64 %e$K
  %n$K = load i32, ptr %p$K
  %m$K = add i32 %n$K, 1
  store i32 %m$K, ptr %p$K
"""
# See if a digit differs among the codes.
_DIFFERS = """  %f_shift$K = lshr i64 %first_code, $SHIFT
  %f_digit$K = and i64 %f_shift$K, 255
  %f_place$K = add i64 %f_digit$K, $START
  %f_at$K = getelementptr i32, ptr %counts, i64 %f_place$K
  %f_count$K = load i32, ptr %f_at$K
  %f_wide$K = zext i32 %f_count$K to i64
  %f_differs$K = icmp ne i64 %f_wide$K, %size
  %differs$K = zext i1 %f_differs$K to i64
"""


def _for_digits(text: str) -> str:
    """The text for each of the four digits."""
    texts = [text.replace("$K", str(k)) for k in range(4)]
    shifted = [text.replace("$SHIFT", str(32 + 8 * k)) for k, text in enumerate(texts)]
    return "".join(text.replace("$START", str(256 * k)) for k, text in enumerate(shifted))


def _stages(partners: tuple[int, ...]) -> str:
    """Steps in a vector: elements whose numbers differ by these bits are put in order."""
    lines: list[str] = []
    value = "%v"
    for number, bits in enumerate(partners):
        swapped = ", ".join(f"i32 {k ^ bits}" for k in range(8))
        chosen = ", ".join(f"i32 {k if k < k ^ bits else k + 8}" for k in range(8))
        n = f"{number}"
        lines += [
            f"  %s{n} = shufflevector <8 x i64> {value}, <8 x i64> poison, <8 x i32> <{swapped}>",
            f"  %l{n} = call <8 x i64> @llvm.umin.v8i64(<8 x i64> {value}, <8 x i64> %s{n})",
            f"  %h{n} = call <8 x i64> @llvm.umax.v8i64(<8 x i64> {value}, <8 x i64> %s{n})",
            f"  %v{n} = shufflevector <8 x i64> %l{n}, <8 x i64> %h{n}, <8 x i32> <{chosen}>",
        ]
        value = f"%v{n}"
    return "\n".join([*lines, f"  ret <8 x i64> {value}"])


_FEW = """
declare <8 x i64> @llvm.umin.v8i64(<8 x i64>, <8 x i64>)
declare <8 x i64> @llvm.umax.v8i64(<8 x i64>, <8 x i64>)

define internal <8 x i64> @sort_vector(<8 x i64> %v) alwaysinline nounwind {
$SORT_VECTOR
}

; Sorts a vector whose elements ascend and then descend, or a rotation of such a one.
define internal <8 x i64> @merge_vector(<8 x i64> %v) alwaysinline nounwind {
$MERGE_VECTOR
}

define internal <8 x i64> @reversed(<8 x i64> %v) alwaysinline nounwind {
  %r = shufflevector <8 x i64> %v, <8 x i64> poison,
    <8 x i32> <i32 7, i32 6, i32 5, i32 4, i32 3, i32 2, i32 1, i32 0>
  ret <8 x i64> %r
}

; Sorts a few codes into %to by a bitonic network of as many as the next power of two, unless they
; are in order, as are positions below words that are all the same.
define internal void @sort_few(ptr %from, ptr %to, i64 %size) nounwind {
entry:
  %codes = alloca [$ROOM x i64], align 64 ; one vector more than are sorted
  %bytes = shl i64 %size, 3
  call void @llvm.memcpy.p0.p0.i64(ptr align 64 %codes, ptr %from, i64 %bytes, i1 false)
  %last_number = sub i64 %size, 1
  %more_bits = or i64 %last_number, 7
  %zeros = call i64 @llvm.ctlz.i64(i64 %more_bits, i1 true)
  %log2 = sub i64 64, %zeros
  %all = shl i64 1, %log2
  %end = getelementptr i64, ptr %codes, i64 %size
  %padding = sub i64 %all, %size
  %padding_bytes = shl i64 %padding, 3
  %behind_bytes = add i64 %padding_bytes, 64
  call void @llvm.memset.p0.i64(ptr %end, i8 -1, i64 %behind_bytes, i1 false)
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %k_next, %look ]
  %falls = phi <8 x i1> [ zeroinitializer, %entry ], [ %falls_next, %look ]
  %k_next = add i64 %k, 8
  %k_at = getelementptr i64, ptr %codes, i64 %k
  %k_after_at = getelementptr i64, ptr %k_at, i64 1
  %k_codes = load <8 x i64>, ptr %k_at, align 64
  %k_after = load <8 x i64>, ptr %k_after_at, align 8
  %k_falls = icmp ugt <8 x i64> %k_codes, %k_after
  %falls_next = or <8 x i1> %falls, %k_falls
  %k_more = icmp slt i64 %k_next, %all
  br i1 %k_more, label %look, label %looked
looked:
  %falls_bits = bitcast <8 x i1> %falls_next to i8
  %ascends = icmp eq i8 %falls_bits, 0
  br i1 %ascends, label %done, label %vector
vector:
  %i = phi i64 [ 0, %looked ], [ %i_next, %vector ]
  %i_at = getelementptr i64, ptr %codes, i64 %i
  %i_codes = load <8 x i64>, ptr %i_at, align 64
  %i_sorted = call <8 x i64> @sort_vector(<8 x i64> %i_codes)
  store <8 x i64> %i_sorted, ptr %i_at, align 64
  %i_next = add i64 %i, 8
  %i_more = icmp slt i64 %i_next, %all
  br i1 %i_more, label %vector, label %level
level:
  %half = phi i64 [ 8, %vector ], [ %length, %merged ]
  %length = shl i64 %half, 1
  %is_sorted = icmp sgt i64 %length, %all
  br i1 %is_sorted, label %done, label %fold
fold:
  ; The codes of two sorted parts, the second from its end, are put in order.
  %f = phi i64 [ 0, %level ], [ %f_next, %fold ]
  %f_in = sub i64 %half, 1
  %f_low = and i64 %f, %f_in
  %f_high = sub i64 %f, %f_low
  %f_base = shl i64 %f_high, 1
  %f_first = add i64 %f_base, %f_low
  %f_end = add i64 %f_base, %length
  %f_over = add i64 %f_low, 8
  %f_second = sub i64 %f_end, %f_over
  %f_a_at = getelementptr i64, ptr %codes, i64 %f_first
  %f_b_at = getelementptr i64, ptr %codes, i64 %f_second
  %f_a = load <8 x i64>, ptr %f_a_at, align 64
  %f_b = load <8 x i64>, ptr %f_b_at, align 64
  %f_turned = call <8 x i64> @reversed(<8 x i64> %f_b)
  %f_least = call <8 x i64> @llvm.umin.v8i64(<8 x i64> %f_a, <8 x i64> %f_turned)
  %f_most = call <8 x i64> @llvm.umax.v8i64(<8 x i64> %f_a, <8 x i64> %f_turned)
  %f_back = call <8 x i64> @reversed(<8 x i64> %f_most)
  store <8 x i64> %f_least, ptr %f_a_at, align 64
  store <8 x i64> %f_back, ptr %f_b_at, align 64
  %f_next = add i64 %f, 8
  %f_pairs = lshr i64 %all, 1
  %f_more = icmp slt i64 %f_next, %f_pairs
  br i1 %f_more, label %fold, label %distances
distances:
  %d_before = phi i64 [ %half, %fold ], [ %d, %step ]
  %d = lshr i64 %d_before, 1
  %d_is_small = icmp slt i64 %d, 8
  br i1 %d_is_small, label %inside, label %step
step:
  %p = phi i64 [ 0, %distances ], [ %p_next, %step ]
  %p_in = sub i64 %d, 1
  %p_low = and i64 %p, %p_in
  %p_high = sub i64 %p, %p_low
  %p_base = shl i64 %p_high, 1
  %p_first = add i64 %p_base, %p_low
  %p_second = add i64 %p_first, %d
  %p_a_at = getelementptr i64, ptr %codes, i64 %p_first
  %p_b_at = getelementptr i64, ptr %codes, i64 %p_second
  %p_a = load <8 x i64>, ptr %p_a_at, align 64
  %p_b = load <8 x i64>, ptr %p_b_at, align 64
  %p_least = call <8 x i64> @llvm.umin.v8i64(<8 x i64> %p_a, <8 x i64> %p_b)
  %p_most = call <8 x i64> @llvm.umax.v8i64(<8 x i64> %p_a, <8 x i64> %p_b)
  store <8 x i64> %p_least, ptr %p_a_at, align 64
  store <8 x i64> %p_most, ptr %p_b_at, align 64
  %p_next = add i64 %p, 8
  %p_pairs = lshr i64 %all, 1
  %p_more = icmp slt i64 %p_next, %p_pairs
  br i1 %p_more, label %step, label %distances
inside:
  %m = phi i64 [ 0, %distances ], [ %m_next, %inside ]
  %m_at = getelementptr i64, ptr %codes, i64 %m
  %m_codes = load <8 x i64>, ptr %m_at, align 64
  %m_sorted = call <8 x i64> @merge_vector(<8 x i64> %m_codes)
  store <8 x i64> %m_sorted, ptr %m_at, align 64
  %m_next = add i64 %m, 8
  %m_more = icmp slt i64 %m_next, %all
  br i1 %m_more, label %inside, label %merged
merged:
  br label %level
done:
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr align 64 %codes, i64 %bytes, i1 false)
  ret void
}
"""
_FEW = _FEW.replace("$ROOM", str(MAX_FEW + 8)).replace("$SORT_VECTOR", _stages((1, 3, 1, 7, 2, 1)))
_FEW = _FEW.replace("$MERGE_VECTOR", _stages((4, 2, 1)))

_DIGITS = (
    """
; Sorts codes into %to by way of %scratch, where they may be already.
define internal void @sort_many(ptr %codes, ptr %to, ptr %scratch, i64 %size) nounwind {
entry:
  %counts = alloca [1024 x i32], align 64
  call void @llvm.memset.p0.i64(ptr align 64 %counts, i8 0, i64 4096, i1 false)
  br label %count
count:
  %c = phi i64 [ 0, %entry ], [ %c_next, %count ]
  %c_at = getelementptr i64, ptr %codes, i64 %c
  %c_code = load i64, ptr %c_at
$COUNTS  %c_next = add i64 %c, 1
  %c_more = icmp slt i64 %c_next, %size
  br i1 %c_more, label %count, label %counted
counted:
  %first_code = load i64, ptr %codes
$DIFFERS  %passes01 = add i64 %differs0, %differs1
  %passes23 = add i64 %differs2, %differs3
  %passes = add i64 %passes01, %passes23
  %odd_bit = and i64 %passes, 1
  %is_even = icmp eq i64 %odd_bit, 0
  %is_scratch = icmp eq ptr %codes, %scratch
  %must_leave = and i1 %is_even, %is_scratch
  %is_sorted = icmp eq i64 %passes, 0
  %is_copied = or i1 %must_leave, %is_sorted
  br i1 %is_copied, label %copy, label %begin
copy:
  %bytes = shl i64 %size, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %codes, i64 %bytes, i1 false)
  br label %begin
begin:
  %start = phi ptr [ %codes, %counted ], [ %to, %copy ]
  br label %pass
pass:
  %k = phi i64 [ 0, %begin ], [ %k_next, %pass_end ]
  %from = phi ptr [ %start, %begin ], [ %from_next, %pass_end ]
  %left = phi i64 [ %passes, %begin ], [ %left_next, %pass_end ]
  %table_offset = shl i64 %k, 8
  %table = getelementptr i32, ptr %counts, i64 %table_offset
  %bits = shl i64 %k, 3
  %shift = add i64 %bits, 32
  %t_shifted = lshr i64 %first_code, %shift
  %t_digit = and i64 %t_shifted, 255
  %t_at = getelementptr i32, ptr %table, i64 %t_digit
  %t_count = load i32, ptr %t_at
  %t_wide = zext i32 %t_count to i64
  %is_shared = icmp eq i64 %t_wide, %size
  br i1 %is_shared, label %pass_end, label %target
target:
  %left_bit = and i64 %left, 1
  %ends_there = icmp ne i64 %left_bit, 0
  %next = select i1 %ends_there, ptr %to, ptr %scratch
  %left_less = sub i64 %left, 1
  br label %sum
sum:
  %s = phi i64 [ 0, %target ], [ %s_next, %sum ]
  %before = phi i32 [ 0, %target ], [ %through, %sum ]
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
  %to_at = getelementptr i64, ptr %next, i64 %place_wide
  store i64 %m_code, ptr %to_at
  %m_next = add i64 %m, 1
  %m_more = icmp slt i64 %m_next, %size
  br i1 %m_more, label %move, label %pass_end
pass_end:
  %from_next = phi ptr [ %from, %pass ], [ %next, %move ]
  %left_next = phi i64 [ %left, %pass ], [ %left_less, %move ]
  %k_next = add i64 %k, 1
  %k_more = icmp slt i64 %k_next, 4
  br i1 %k_more, label %pass, label %done
done:
  ret void
}

; Sorts codes into %to by way of %scratch, where they may be already.
define internal void @sort_row(ptr %codes, ptr %to, ptr %scratch, i64 %size) nounwind {
  %is_few = icmp sle i64 %size, $MAX_FEW
  br i1 %is_few, label %few, label %many
few:
  call void @sort_few(ptr %codes, ptr %to, i64 %size)
  ret void
many:
  call void @sort_many(ptr %codes, ptr %to, ptr %scratch, i64 %size)
  ret void
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
""".replace("$COUNTS", _for_digits(_COUNT))
    .replace("$DIFFERS", _for_digits(_DIFFERS))
    .replace("$MAX_FEW", str(MAX_FEW))
)

_SELECT_ROW = """
; Writes the codes of the ranks from %low to %high to %out. %scratch has room for two rows.
define internal void @select_row(
    ptr %codes, ptr %out, ptr %scratch, i64 %size, i64 %low, i64 %high) nounwind {
entry:
  %counts = alloca [2048 x i32], align 64
  %second = getelementptr i64, ptr %scratch, i64 %size
  %at_once = icmp sle i64 %size, $MAX_FEW
  br i1 %at_once, label %sort, label %level
level:
  %from = phi ptr [ %codes, %entry ], [ %scratch, %deeper ]
  %n = phi i64 [ %size, %entry ], [ %kept, %deeper ]
  %l = phi i64 [ %low, %entry ], [ %l_next, %deeper ]
  %h = phi i64 [ %high, %entry ], [ %h_next, %deeper ]
  %shift = phi i64 [ 53, %entry ], [ %shift_next, %deeper ]
  call void @llvm.memset.p0.i64(ptr align 64 %counts, i8 0, i64 8192, i1 false)
  br label %count
count:
  %c = phi i64 [ 0, %level ], [ %c_next, %count ]
  %c_at = getelementptr i64, ptr %from, i64 %c
  %c_code = load i64, ptr %c_at
  %c_shifted = lshr i64 %c_code, %shift
  %c_digit = and i64 %c_shifted, 2047
  %c_count_at = getelementptr i32, ptr %counts, i64 %c_digit
  %c_count = load i32, ptr %c_count_at
  %c_count_next = add i32 %c_count, 1
  store i32 %c_count_next, ptr %c_count_at
  %c_next = add i64 %c, 1
  %c_more = icmp slt i64 %c_next, %n
  br i1 %c_more, label %count, label %find_low
find_low:
  %b = phi i64 [ 0, %count ], [ %b_next, %find_low ]
  %before = phi i64 [ 0, %count ], [ %through, %find_low ]
  %b_at = getelementptr i32, ptr %counts, i64 %b
  %b_count = load i32, ptr %b_at
  %b_wide = zext i32 %b_count to i64
  %through = add i64 %before, %b_wide
  %b_next = add i64 %b, 1
  %is_before = icmp sle i64 %through, %l
  br i1 %is_before, label %find_low, label %found_low
found_low:
  %has_all = icmp sge i64 %through, %h
  br i1 %has_all, label %keep, label %find_high
find_high:
  %e = phi i64 [ %b_next, %found_low ], [ %e_next, %find_high ]
  %e_before = phi i64 [ %through, %found_low ], [ %e_through, %find_high ]
  %e_at = getelementptr i32, ptr %counts, i64 %e
  %e_count = load i32, ptr %e_at
  %e_wide = zext i32 %e_count to i64
  %e_through = add i64 %e_before, %e_wide
  %e_next = add i64 %e, 1
  %e_more = icmp slt i64 %e_through, %h
  br i1 %e_more, label %find_high, label %keep
keep:
  %last = phi i64 [ %b, %found_low ], [ %e, %find_high ]
  %width = sub i64 %last, %b
  br label %compress
compress:
  %i = phi i64 [ 0, %keep ], [ %i_next, %compress ]
  %kept_before = phi i64 [ 0, %keep ], [ %kept, %compress ]
  %i_at = getelementptr i64, ptr %from, i64 %i
  %i_code = load i64, ptr %i_at
  %to_at = getelementptr i64, ptr %scratch, i64 %kept_before
  store i64 %i_code, ptr %to_at
  %i_shifted = lshr i64 %i_code, %shift
  %i_digit = and i64 %i_shifted, 2047
  %i_behind = sub i64 %i_digit, %b
  %is_kept = icmp ule i64 %i_behind, %width
  %one_more = zext i1 %is_kept to i64
  %kept = add i64 %kept_before, %one_more
  %i_next = add i64 %i, 1
  %i_more = icmp slt i64 %i_next, %n
  br i1 %i_more, label %compress, label %compressed
compressed:
  %l_next = sub i64 %l, %before
  %h_next = sub i64 %h, %before
  %several = icmp ne i64 %width, 0
  %few = icmp sle i64 %kept, $MAX_FEW
  %sorts = or i1 %several, %few
  br i1 %sorts, label %sort, label %same
same:
  ; Equal words are in their order.
  %is_last = icmp eq i64 %shift, 32
  br i1 %is_last, label %write, label %deeper
deeper:
  %shift_less = sub i64 %shift, 11
  %shift_next = call i64 @llvm.smax.i64(i64 %shift_less, i64 32)
  br label %level
sort:
  %unsorted = phi ptr [ %codes, %entry ], [ %scratch, %compressed ]
  %rest = phi i64 [ %size, %entry ], [ %kept, %compressed ]
  %sorted_low = phi i64 [ %low, %entry ], [ %l_next, %compressed ]
  call void @sort_row(ptr %unsorted, ptr %second, ptr %scratch, i64 %rest)
  br label %write
write:
  %sorted = phi ptr [ %scratch, %same ], [ %second, %sort ]
  %first = phi i64 [ %l_next, %same ], [ %sorted_low, %sort ]
  %first_at = getelementptr i64, ptr %sorted, i64 %first
  %found = sub i64 %high, %low
  %bytes = shl i64 %found, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %out, ptr %first_at, i64 %bytes, i1 false)
  ret void
}

; The rank of the median: the middle one of the codes below %nan, the lower of two. If others are
; there too, the first of them, unless they are ignored.
define internal i64 @median_rank(ptr %codes, i64 %size, i64 %nan, i64 %ignores) nounwind {
entry:
  br label %count
count:
  %i = phi i64 [ 0, %entry ], [ %i_next, %count ]
  %below = phi i64 [ 0, %entry ], [ %below_next, %count ]
  %at = getelementptr i64, ptr %codes, i64 %i
  %code = load i64, ptr %at
  %is_below = icmp ult i64 %code, %nan
  %one = zext i1 %is_below to i64
  %below_next = add i64 %below, %one
  %i_next = add i64 %i, 1
  %more = icmp slt i64 %i_next, %size
  br i1 %more, label %count, label %counted
counted:
  %last = sub i64 %below_next, 1
  %last_there = call i64 @llvm.smax.i64(i64 %last, i64 0)
  %middle = lshr i64 %last_there, 1
  %is_ignored = icmp ne i64 %ignores, 0
  %is_whole = icmp eq i64 %below_next, %size
  %is_middle = or i1 %is_ignored, %is_whole
  %rank = select i1 %is_middle, i64 %middle, i64 %below_next
  ret i64 %rank
}
""".replace("$MAX_FEW", str(MAX_FEW))

# A kernel of rows: the result, the codes, the number of rows, the codes of each, the results
# of each, and other values.
# A row of the result has scratch memory behind the results, as `RowFunction` says; that of the
# first row is used.
_ROWS = """
define void @"$NAME"(ptr %args, i64 %start, i64 %stop) nounwind {
entry:
  %codes_at = getelementptr i64, ptr %args, i64 1
  %size_at = getelementptr i64, ptr %args, i64 3
  %out = load ptr, ptr %args
  %codes = load ptr, ptr %codes_at
  %size = load i64, ptr %size_at
$VALUES  %scratch_size = call i64 @row_scratch(i64 %size)
  %stride = add i64 %width, %scratch_size
  %start_offset = mul i64 %start, %stride
  %start_out = getelementptr i64, ptr %out, i64 %start_offset
  %scratch = getelementptr i64, ptr %start_out, i64 %width
  br label %row
row:
  %r = phi i64 [ %start, %entry ], [ %r_next, %row ]
  %codes_offset = mul i64 %r, %size
  %row_codes = getelementptr i64, ptr %codes, i64 %codes_offset
  %out_offset = mul i64 %r, %stride
  %row_out = getelementptr i64, ptr %out, i64 %out_offset
$ROW  %r_next = add i64 %r, 1
  %r_more = icmp slt i64 %r_next, %stop
  br i1 %r_more, label %row, label %done
done:
  ret void
}
"""


def _kernel(name: str, values: tuple[str, ...], row: str) -> str:
    loads = "".join(
        f"  %{value}_at = getelementptr i64, ptr %args, i64 {place}\n"
        f"  %{value} = load i64, ptr %{value}_at\n"
        for place, value in enumerate(values, start=4)
    )
    return _ROWS.replace("$NAME", name).replace("$VALUES", loads).replace("$ROW", row)


_EXTENT = """
; The elements of scratch memory in a row of a result.
define internal i64 @row_scratch(i64 %size) alwaysinline nounwind {
  %elements = shl i64 %size, 1
  ret i64 %elements
}

define i64 @"$ROWS_EXTENT"(ptr %args) nounwind {
  %rows_at = getelementptr i64, ptr %args, i64 2
  %rows = load i64, ptr %rows_at
  ret i64 %rows
}
"""

_PARTS = _FEW + _DIGITS + _SELECT_ROW + _EXTENT

_FUNCTIONS = {
    "sort": (
        ("width",),
        "  call void @sort_row(ptr %row_codes, ptr %row_out, ptr %scratch, i64 %size)\n",
    ),
    "select": (
        ("width", "low"),
        "  %high = add i64 %low, %width\n"
        "  call void @select_row(\n"
        "    ptr %row_codes, ptr %row_out, ptr %scratch, i64 %size, i64 %low, i64 %high)\n",
    ),
    "median": (
        ("width", "nan", "ignores"),
        "  %low = call i64 @median_rank(ptr %row_codes, i64 %size, i64 %nan, i64 %ignores)\n"
        "  %high = add i64 %low, 1\n"
        "  call void @select_row(\n"
        "    ptr %row_codes, ptr %row_out, ptr %scratch, i64 %size, i64 %low, i64 %high)\n",
    ),
}
"""The values of each function of rows, and what it does to a row."""

SORT = _PARTS + "".join(
    [_kernel(f"${name.upper()}", *function) for name, function in _FUNCTIONS.items()]
)
"""All functions, as a part of the native runtime."""


def module(function: str, name: str) -> str:
    """One function as LLVM IR of its own, with the names of a kernel: `name` and `name.extent`."""
    declared = "declare i64 @llvm.ctlz.i64(i64, i1)\ndeclare i64 @llvm.smax.i64(i64, i64)\n"
    parts = _PARTS.replace("$ROWS_EXTENT", f"{name}.extent")
    return declared + parts + _kernel(name, *_FUNCTIONS[function])
