"""The native part of running kernels, as LLVM IR text: thread pool, launch, replay of a batch.

It is compiled and cached like kernels, and the module `pool` calls it. All state is in
records of 8-byte slots, whose offsets are the constants below.

Every call has a **slice** of time. After it no more blocks are handed out, and the call returns the
number of chunks that are taken. Python can then handle signals, and go on from there. Chunks may be
run in any partition and order (by the binary interface of kernels), so no bit depends on any of
this.
"""

from __future__ import annotations

from string import Template

from ferrule.runtime.cpu import native_lanes, native_parts, native_pool, native_sort

# Records. A pool's parts that different threads write are in cache lines of their own.
POOL_GATE, POOL_JOB = 0, 4
POOL_BODY, POOL_TABLE, POOL_TOTAL, POOL_BLOCK = 8, 16, 24, 32
POOL_NEXT = 64
POOL_SLEEPERS, POOL_QUIT, POOL_MUTEX, POOL_CONDITION = 128, 132, 136, 200
POOL_CORE, POOL_BUSY, POOL_SLICE, POOL_SPIN = 264, 320, 328, 336
ALIGNMENT = 64

PROGRAM_BODY, PROGRAM_EXTENT, PROGRAM_POOL, PROGRAM_TICKS = 0, 8, 16, 24

BATCH_ITEMS, BATCH_N_ITEMS, BATCH_PATCHES, BATCH_N_PATCHES = 0, 8, 16, 24
BATCH_POOL, BATCH_ITEM, BATCH_TAKEN = 32, 40, 48
# The items up to the last one are run again and again until as many as there are to be have run.
# Each time the memory of some slots has moved on by a stride.
BATCH_TOTAL, BATCH_LEFT, BATCH_STRIDES, BATCH_N_STRIDES = 56, 64, 72, 80
# A batch of several devices has no items of its own: each device has a lane, which has a batch.
# Its gate is the record of a pool without workers, at which threads sleep until something happens.
BATCH_LANES, BATCH_N_LANES, BATCH_DEADLINE, BATCH_LANE_THREADS, BATCH_GATE = 88, 96, 104, 112, 120

# The words that lanes change are far apart, so that no two lanes share a line of the cache.
LANE_LOCK, LANE_DONE, LANE_BATCH, LANE_N_SEGMENTS, LANE_SEGMENTS = 0, 8, 16, 24, 32
LANE_BYTES = 128

ITEM_BODY, ITEM_EXTENT, ITEM_TABLE, ITEM_TICKS = 0, 8, 16, 24
ITEM_BYTES = 32

PATCH_SLOT, PATCH_INPUT, PATCH_OFFSET = 0, 8, 16
PATCH_BYTES = 24

STRIDE_SLOT, STRIDE_BYTES = 0, 8
STRIDE_RECORD_BYTES = 16

WORKER, STOP = "ferrule.worker", "ferrule.stop"
LAUNCH, REPLAY = "ferrule.launch", "ferrule.replay"
COPY, COPY_EXTENT = "ferrule.copy", "ferrule.copy.extent"
WHILE, WHILE_EXTENT = "ferrule.while", "ferrule.while.extent"
SORT, SELECT, MEDIAN = "ferrule.sort", "ferrule.select", "ferrule.median"
ROWS_EXTENT = "ferrule.rows.extent"
PYTHON_LAUNCH, PYTHON_REPLAY = "ferrule.python_launch", "ferrule.python_replay"

# Numbers of the scheduler. Blocks are for balance among threads, and for a look at the clock in
# between. There are many, but not so many that handing them out takes longer than a block. A kernel
# that took no time in its last run gets one block for each thread: then a thread also gets the part
# of the data that it had before. Not measured one by one.
BLOCKS_A_THREAD = 16
BLOCKS_ALONE = 64  # blocks of a call that has one thread
LARGEST_BLOCK = 256  # chunks
# Looks of a thread that finds no lane to run before it sleeps: 20 to 100 us, as an idle worker.
LOOKS_AT_LANES = 2048
SPINS_BETWEEN_CLOCKS = 32  # turns of an idle worker's loop for each look at the clock
# A mask: kernels of one chunk between two looks at the clock, less one. A look takes 7 ns (Zen 4,
# 2026-11), as long as a small kernel.
LAST_BETWEEN_CLOCKS = 7
LOG2_COPY_CHUNK = 20  # a chunk of a copy is a mebibyte
NOTHING_LEFT = 1 << 31  # more than there are units

# The names that the texts may use: all constants so far.
_CONSTANTS = {name: value for name, value in vars().items() if isinstance(value, int | str)}

_LAUNCH = """
; What %taken, at first 0, leaves of a kernel. 0: finished; else call again with what is returned.
define i64 @"$LAUNCH"(ptr %program, ptr %table, i64 %taken, i64 %threads) nounwind {
entry:
  $SEE_NEW_CODE
  %body = load ptr, ptr %program
  %extent_at = getelementptr i8, ptr %program, i64 $PROGRAM_EXTENT
  %extent = load ptr, ptr %extent_at
  %mode = call i32 @default_float_mode()
  %total = call i64 %extent(ptr %table)
  %one = icmp eq i64 %total, 1
  br i1 %one, label %direct, label %several
direct:
  call void %body(ptr %table, i64 0, i64 1)
  call void @restore_float_mode(i32 %mode)
  ret i64 0
several:
  %pool_at = getelementptr i8, ptr %program, i64 $PROGRAM_POOL
  %pool = load ptr, ptr %pool_at
  %mine = call i64 @acquire(ptr %pool, i64 %threads)
  %ticks_at = getelementptr i8, ptr %program, i64 $PROGRAM_TICKS
  %ticks = load atomic i64, ptr %ticks_at monotonic, align 8
  %begin = call i64 @ticks()
  %deadline = call i64 @deadline(ptr %pool, i64 %begin)
  %reached = call i64 @run_item(
    ptr %pool, ptr %body, ptr %table, i64 %total, i64 %taken, i64 %mine, i64 %deadline,
    i64 %ticks)
  %now = call i64 @ticks()
  %took = sub i64 %now, %begin
  store atomic i64 %took, ptr %ticks_at monotonic, align 8
  call void @release(ptr %pool, i64 %mine)
  call void @restore_float_mode(i32 %mode)
  ret i64 %reached
}
"""

_REPLAY = """
; Writes the inputs to the argument tables that hold them.
define internal void @patch(ptr %batch, ptr %inputs) nounwind {
entry:
  %patches_at = getelementptr i8, ptr %batch, i64 $BATCH_PATCHES
  %count_at = getelementptr i8, ptr %batch, i64 $BATCH_N_PATCHES
  %patches = load ptr, ptr %patches_at
  %count = load i64, ptr %count_at
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %next, label %done
next:
  %index = phi i64 [ 0, %entry ], [ %index_more, %next ]
  %offset = mul i64 %index, $PATCH_BYTES
  %patch = getelementptr i8, ptr %patches, i64 %offset
  %slot = load ptr, ptr %patch
  %input_at = getelementptr i8, ptr %patch, i64 $PATCH_INPUT
  %input = load i64, ptr %input_at
  %value_at = getelementptr i64, ptr %inputs, i64 %input
  %value = load i64, ptr %value_at, align 1
  %behind_at = getelementptr i8, ptr %patch, i64 $PATCH_OFFSET
  %behind = load i64, ptr %behind_at
  %address = add i64 %value, %behind
  store i64 %address, ptr %slot
  %index_more = add i64 %index, 1
  %more = icmp slt i64 %index_more, %count
  br i1 %more, label %next, label %done
done:
  ret void
}

; Moves the memory of all slots with a stride on.
define internal void @move_on(ptr %batch) nounwind {
entry:
  %strides_at = getelementptr i8, ptr %batch, i64 $BATCH_STRIDES
  %count_at = getelementptr i8, ptr %batch, i64 $BATCH_N_STRIDES
  %strides = load ptr, ptr %strides_at
  %count = load i64, ptr %count_at
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %next, label %done
next:
  %index = phi i64 [ 0, %entry ], [ %index_more, %next ]
  %offset = mul i64 %index, $STRIDE_RECORD_BYTES
  %stride = getelementptr i8, ptr %strides, i64 %offset
  %slot = load ptr, ptr %stride
  %bytes_at = getelementptr i8, ptr %stride, i64 $STRIDE_BYTES
  %bytes = load i64, ptr %bytes_at
  %old = load i64, ptr %slot
  %new = add i64 %old, %bytes
  store i64 %new, ptr %slot
  %index_more = add i64 %index, 1
  %more = icmp slt i64 %index_more, %count
  br i1 %more, label %next, label %done
done:
  ret void
}

; Puts a batch at its beginning.
define internal void @rewind(ptr %batch) nounwind {
  %item_at = getelementptr i8, ptr %batch, i64 $BATCH_ITEM
  %taken_at = getelementptr i8, ptr %batch, i64 $BATCH_TAKEN
  %total_at = getelementptr i8, ptr %batch, i64 $BATCH_TOTAL
  %left_at = getelementptr i8, ptr %batch, i64 $BATCH_LEFT
  %all = load i64, ptr %total_at
  store i64 %all, ptr %left_at
  store i64 0, ptr %item_at
  store i64 0, ptr %taken_at
  ret void
}

; Runs a batch from where it stopped until %floor items are left, or it is late.
; 0: so many are left; 1: it was late.
define internal i64 @run_batch(
    ptr %batch, ptr %pool, i64 %mine, i64 %deadline, i64 %floor
) nounwind {
begin:
  %items_at = getelementptr i8, ptr %batch, i64 $BATCH_ITEMS
  %count_at = getelementptr i8, ptr %batch, i64 $BATCH_N_ITEMS
  %item_at = getelementptr i8, ptr %batch, i64 $BATCH_ITEM
  %taken_at = getelementptr i8, ptr %batch, i64 $BATCH_TAKEN
  %left_at = getelementptr i8, ptr %batch, i64 $BATCH_LEFT
  %items = load ptr, ptr %items_at
  %count = load i64, ptr %count_at
  %first_item = load i64, ptr %item_at
  %first_taken = load i64, ptr %taken_at
  %first_left = load i64, ptr %left_at
  br label %test
test:
  %number = phi i64 [ %first_item, %begin ], [ %number_next, %after ]
  %taken = phi i64 [ %first_taken, %begin ], [ 0, %after ]
  %left = phi i64 [ %first_left, %begin ], [ %left_next, %after ]
  %some = icmp sgt i64 %left, %floor
  br i1 %some, label %run, label %end
run:
  %offset = mul i64 %number, $ITEM_BYTES
  %item = getelementptr i8, ptr %items, i64 %offset
  %extent_at = getelementptr i8, ptr %item, i64 $ITEM_EXTENT
  %table_at = getelementptr i8, ptr %item, i64 $ITEM_TABLE
  %ticks_at = getelementptr i8, ptr %item, i64 $ITEM_TICKS
  %body = load ptr, ptr %item
  %extent = load ptr, ptr %extent_at
  %table = load ptr, ptr %table_at
  %total = call i64 %extent(ptr %table)
  %one = icmp eq i64 %total, 1
  br i1 %one, label %direct, label %several
direct:
  call void %body(ptr %table, i64 0, i64 1)
  %turn = and i64 %left, $LAST_BETWEEN_CLOCKS
  %due = icmp eq i64 %turn, 0
  br i1 %due, label %clock, label %ahead
clock:
  %now = call i64 @ticks()
  br label %look
several:
  %before = call i64 @ticks()
  %ticks = load i64, ptr %ticks_at
  %reached = call i64 @run_item(
    ptr %pool, ptr %body, ptr %table, i64 %total, i64 %taken, i64 %mine, i64 %deadline,
    i64 %ticks)
  %finished = icmp eq i64 %reached, 0
  br i1 %finished, label %measure, label %end
measure:
  %finish = call i64 @ticks()
  %took = sub i64 %finish, %before
  store i64 %took, ptr %ticks_at
  br label %look
look:
  %time = phi i64 [ %now, %clock ], [ %finish, %measure ]
  %is_late = icmp sgt i64 %time, %deadline
  br label %ahead
ahead:
  %late = phi i1 [ false, %direct ], [ %is_late, %look ]
  %left_now = load i64, ptr %left_at ; an item may have said that it is the last one
  %left_next = sub i64 %left_now, 1
  store i64 %left_next, ptr %left_at
  %rest = icmp sgt i64 %left_next, %floor
  %number_more = add i64 %number, 1
  %is_last = icmp eq i64 %number_more, %count
  %again = and i1 %is_last, %rest
  br i1 %again, label %wrap, label %after
wrap:
  call void @move_on(ptr %batch)
  br label %after
after:
  %number_next = phi i64 [ %number_more, %ahead ], [ 0, %wrap ]
  %stops = and i1 %late, %rest
  br i1 %stops, label %end, label %test
end:
  %stop_item = phi i64 [ %number, %test ], [ %number, %several ], [ %number_next, %after ]
  %stop_taken = phi i64 [ %taken, %test ], [ %reached, %several ], [ 0, %after ]
  %result = phi i64 [ 0, %test ], [ 1, %several ], [ 1, %after ]
  store i64 %stop_item, ptr %item_at
  store i64 %stop_taken, ptr %taken_at
  ret i64 %result
}

; Runs a batch: from the start with new inputs, or, if %inputs is null, from where it stopped.
; 0: finished; 1: call again, without inputs.
define i64 @"$REPLAY"(ptr %batch, ptr %inputs, i64 %threads) nounwind {
entry:
  %pool_at = getelementptr i8, ptr %batch, i64 $BATCH_POOL
  %lanes_at = getelementptr i8, ptr %batch, i64 $BATCH_N_LANES
  %pool = load ptr, ptr %pool_at
  %n_lanes = load i64, ptr %lanes_at
  %going_on = icmp eq ptr %inputs, null
  br i1 %going_on, label %begin, label %first
first:
  call void @patch(ptr %batch, ptr %inputs)
  call void @rewind(ptr %batch)
  call void @rewind_lanes(ptr %batch)
  br label %begin
begin:
  $SEE_NEW_CODE
  %mode = call i32 @default_float_mode()
  %mine = call i64 @acquire(ptr %pool, i64 %threads)
  %first_time = call i64 @ticks()
  %deadline = call i64 @deadline(ptr %pool, i64 %first_time)
  %has_lanes = icmp sgt i64 %n_lanes, 0
  br i1 %has_lanes, label %several, label %single
single:
  %stopped = call i64 @run_batch(ptr %batch, ptr %pool, i64 %mine, i64 %deadline, i64 0)
  br label %end
several:
  %unfinished = call i64 @run_lanes(ptr %batch, ptr %pool, i64 %mine, i64 %deadline)
  br label %end
end:
  %result = phi i64 [ %stopped, %single ], [ %unfinished, %several ]
  call void @release(ptr %pool, i64 %mine)
  call void @restore_float_mode(i32 %mode)
  ret i64 %result
}
"""

_COPY = """
declare ptr @memmove(ptr, ptr, i64)

; A kernel that copies: destination, source, bytes; a chunk is a mebibyte.
define i64 @"$COPY_EXTENT"(ptr %args) nounwind {
  %bytes_at = getelementptr i8, ptr %args, i64 16
  %bytes = load i64, ptr %bytes_at
  %last = add i64 %bytes, -1
  %whole = ashr i64 %last, $LOG2_COPY_CHUNK
  %chunks = add i64 %whole, 1
  ret i64 %chunks
}

define void @"$COPY"(ptr %args, i64 %start, i64 %stop) nounwind {
  %from_at = getelementptr i8, ptr %args, i64 8
  %bytes_at = getelementptr i8, ptr %args, i64 16
  %to = load ptr, ptr %args
  %from = load ptr, ptr %from_at
  %bytes = load i64, ptr %bytes_at
  %first = shl i64 %start, $LOG2_COPY_CHUNK
  %full = shl i64 %stop, $LOG2_COPY_CHUNK
  %end = call i64 @llvm.smin.i64(i64 %full, i64 %bytes)
  %size = sub i64 %end, %first
  %to_first = getelementptr i8, ptr %to, i64 %first
  %from_first = getelementptr i8, ptr %from, i64 %first
  %moved = call ptr @memmove(ptr %to_first, ptr %from_first, i64 %size)
  ret void
}
"""

_WHILE = """
; A kernel at the end of a trip: a condition, the number of items left, the number of trips so far.
; Unless the condition holds, this is the last item.
define i64 @"$WHILE_EXTENT"(ptr %args) nounwind {
  ret i64 1
}

define void @"$WHILE"(ptr %args, i64 %start, i64 %stop) nounwind {
entry:
  %left_slot = getelementptr i8, ptr %args, i64 8
  %trips_slot = getelementptr i8, ptr %args, i64 16
  %condition_at = load ptr, ptr %args
  %left_at = load ptr, ptr %left_slot
  %trips_at = load ptr, ptr %trips_slot
  %trips = load i64, ptr %trips_at
  %more = add i64 %trips, 1
  store i64 %more, ptr %trips_at
  %condition = load i8, ptr %condition_at
  %ends = icmp eq i8 %condition, 0
  br i1 %ends, label %last, label %done
last:
  store i64 1, ptr %left_at
  br label %done
done:
  ret void
}
"""

# System call numbers of Linux, and the numbers of the systems' monotonic clocks.
_SYSTEM_CALLS = {
    "x86-64": {"FUTEX": 202, "SET_AFFINITY": 203, "GET_AFFINITY": 204},
    "aarch64": {"FUTEX": 98, "SET_AFFINITY": 122, "GET_AFFINITY": 123},
}
_MONOTONIC_CLOCK = {"linux": 1, "darwin": 6}

# The parts that depend on the processor: its source, the instruction of a thread before it may run
# code that another thread has loaded, and log2 of the least ticks of a block, about 5 us.
_PROCESSORS = {
    "x86-64": (native_parts.X86_64, "", 14),
    "aarch64": (
        native_parts.CLOCK + native_parts.AARCH64,
        "call void @llvm.aarch64.isb(i32 15)",
        12,
    ),
}
_OTHER_PROCESSOR = (native_parts.CLOCK + native_parts.ANY_PROCESSOR, "", 12)


def ir(arch: str, system: str, for_python: bool) -> str:
    """The source of the native runtime for a processor ("x86-64", …) and `sys.platform`.

    `for_python` adds the functions that the interpreter can call directly. Linux sleeps by futex,
    other systems by a POSIX condition variable.
    """
    has_futex = system == "linux" and arch in _SYSTEM_CALLS
    processor, see_new_code, log2_block_ticks = _PROCESSORS.get(arch, _OTHER_PROCESSOR)
    parts = [
        processor,
        native_parts.FUTEX if has_futex else native_parts.CONDITION,
        native_pool.POOL,
        _LAUNCH,
        native_lanes.LANES,
        _REPLAY,
        _COPY,
        _WHILE,
        native_sort.SORT,
    ]
    if for_python:
        parts.append(native_parts.PYTHON)
    return Template("".join(parts)).substitute(
        {**_CONSTANTS, **_SYSTEM_CALLS.get(arch, {})},
        MONOTONIC=_MONOTONIC_CLOCK.get(system, 1),
        SEE_NEW_CODE=see_new_code,
        LOG2_BLOCK_TICKS=log2_block_ticks,
    )
