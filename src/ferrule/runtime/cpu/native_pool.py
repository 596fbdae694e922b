"""The thread pool of the native runtime: how threads wait, and which chunks of a kernel each runs.

LLVM IR text for `native`, which has the rest and fills in the $NAMES.

A **pool** is worker threads that wait at a gate. The gate is one 64-bit word:

    bit 0        open: workers may enter
    bits 1-15    number of workers inside
    bits 16-31   number of workers that may still enter
    bits 32-63   the number of the job

A job is published by one store that opens the gate. A worker enters by a compare-and-swap, takes
blocks of chunks until none is left, and leaves. The caller takes blocks as well; then it closes the
gate and waits for those inside. It never waits for a worker that has not come: on a busy machine
one may be off its core for milliseconds.

The chunks that are **taken** are one 64-bit word, too: their number from the first chunk on in its
lower half, and from the last one on in its upper half. The caller and every other worker take
blocks from the start, the rest of the workers from the end, until they meet. So a thread gets much
the same part of the data in each run, and finds some of it in its own caches, but no thread waits
for a late one.
"""

from __future__ import annotations

POOL = """
declare i32 @sched_yield()

; The body of a worker thread; returns when the pool is told to quit.
define void @"$WORKER"(ptr %pool) nounwind {
entry:
  %job_at = getelementptr i8, ptr %pool, i64 $POOL_JOB
  %next = getelementptr i8, ptr %pool, i64 $POOL_NEXT
  %quit_at = getelementptr i8, ptr %pool, i64 $POOL_QUIT
  %body_at = getelementptr i8, ptr %pool, i64 $POOL_BODY
  %table_at = getelementptr i8, ptr %pool, i64 $POOL_TABLE
  %total_at = getelementptr i8, ptr %pool, i64 $POOL_TOTAL
  %block_at = getelementptr i8, ptr %pool, i64 $POOL_BLOCK
  %spin_at = getelementptr i8, ptr %pool, i64 $POOL_SPIN
  %spin = load i64, ptr %spin_at
  %mode = call i32 @default_float_mode()
  br label %idle
idle:
  %seen = phi i32 [ 0, %entry ], [ %job, %passed ], [ %job, %leave ], [ %seen, %parked ]
  %now = call i64 @ticks()
  %until = add i64 %now, %spin
  br label %look
look:
  %count = phi i32 [ 0, %idle ], [ %count_more, %wait ], [ 0, %clock ], [ %count, %enter ]
  %gate = load atomic i64, ptr %pool acquire, align 64
  %gate_high = lshr i64 %gate, 32
  %job = trunc i64 %gate_high to i32
  %new = icmp ne i32 %job, %seen
  br i1 %new, label %arrive, label %wait
wait:
  call void @pause()
  %count_more = add i32 %count, 1
  %enough = icmp uge i32 %count_more, $SPINS_BETWEEN_CLOCKS
  br i1 %enough, label %clock, label %look
clock:
  %later = call i64 @ticks()
  %tired = icmp sgt i64 %later, %until
  br i1 %tired, label %sleep, label %look
sleep:
  call void @park(ptr %pool, i32 %seen)
  br label %parked
parked:
  br label %idle
arrive:
  %quit = load atomic i32, ptr %quit_at acquire, align 4
  %quits = icmp ne i32 %quit, 0
  br i1 %quits, label %end, label %may
may:
  %open_bit = and i64 %gate, 1
  %open = icmp ne i64 %open_bit, 0
  %places_and_more = and i64 %gate, 4294901760
  %places = icmp ne i64 %places_and_more, 0
  %wanted = and i1 %open, %places
  br i1 %wanted, label %enter, label %passed
passed:
  br label %idle
enter:
  ; one more inside, one place less; every other one goes on from the end
  %place = lshr i64 %gate, 16
  %odd = and i64 %place, 1
  %from_end = icmp ne i64 %odd, 0
  %entered = add i64 %gate, -65534
  %swap = cmpxchg ptr %pool, i64 %gate, i64 %entered acq_rel acquire
  %inside = extractvalue { i64, i1 } %swap, 1
  br i1 %inside, label %work, label %look
work:
  $SEE_NEW_CODE
  %body = load ptr, ptr %body_at
  %table = load ptr, ptr %table_at
  %total = load i64, ptr %total_at
  %block = load i64, ptr %block_at
  br label %take
take:
  %left = call i1 @take_block(
    ptr %next, ptr %body, ptr %table, i64 %total, i64 %block, i1 %from_end)
  br i1 %left, label %take, label %leave
leave:
  %before = atomicrmw sub ptr %pool, i64 2 release
  br label %idle
end:
  ret void
}

; Makes all workers return, those asleep included.
define void @"$STOP"(ptr %pool) nounwind {
  %quit_at = getelementptr i8, ptr %pool, i64 $POOL_QUIT
  store atomic i32 1, ptr %quit_at seq_cst, align 4
  %gate = atomicrmw add ptr %pool, i64 4294967296 seq_cst
  call void @wake(ptr %pool, i64 2147483647)
  ret void
}

; How many chunks, as a power of two, are counted as one: chunks may be more than 32 bits hold.
define internal i64 @unit(i64 %total) nounwind {
  %zeros = call i64 @llvm.ctlz.i64(i64 %total, i1 false)
  %bits = sub i64 33, %zeros
  %some = call i64 @llvm.smax.i64(i64 %bits, i64 0)
  ret i64 %some
}

; How many units there are.
define internal i64 @units(i64 %total) nounwind {
  %unit = call i64 @unit(i64 %total)
  %last = add i64 %total, -1
  %whole = ashr i64 %last, %unit
  %count = add i64 %whole, 1
  ret i64 %count
}

; Runs the units from %first to before %last.
define internal void @run_units(
    ptr %body, ptr %table, i64 %total, i64 %first, i64 %last
) nounwind {
  %unit = call i64 @unit(i64 %total)
  %start = shl i64 %first, %unit
  %full = shl i64 %last, %unit
  %stop = call i64 @llvm.smin.i64(i64 %full, i64 %total)
  call void %body(ptr %table, i64 %start, i64 %stop)
  ret void
}

; Takes a block off either end of what is left, and runs it; false where nothing is left.
define internal i1 @take_block(
    ptr %next, ptr %body, ptr %table, i64 %total, i64 %block, i1 %from_end
) nounwind {
entry:
  %high = shl i64 %block, 32
  %step = select i1 %from_end, i64 %high, i64 %block
  %taken = atomicrmw add ptr %next, i64 %step monotonic
  %count = call i64 @units(i64 %total)
  %front = and i64 %taken, 4294967295
  %back = lshr i64 %taken, 32
  %end = sub i64 %count, %back
  %left = icmp slt i64 %front, %end
  br i1 %left, label %run, label %none
run:
  %below = sub i64 %end, %block
  %above = add i64 %front, %block
  %lowest = call i64 @llvm.smax.i64(i64 %below, i64 %front)
  %highest = call i64 @llvm.smin.i64(i64 %above, i64 %end)
  %first = select i1 %from_end, i64 %lowest, i64 %front
  %last = select i1 %from_end, i64 %end, i64 %highest
  call void @run_units(ptr %body, ptr %table, i64 %total, i64 %first, i64 %last)
  ret i1 true
none:
  ret i1 false
}

; Runs what %taken leaves with the pool's workers; returns what is taken by then, 0 if it is all.
define internal i64 @share(
    ptr %pool, ptr %body, ptr %table, i64 %total, i64 %taken, i64 %threads, i64 %deadline,
    i64 %ticks
) nounwind {
entry:
  %next = getelementptr i8, ptr %pool, i64 $POOL_NEXT
  %body_at = getelementptr i8, ptr %pool, i64 $POOL_BODY
  %table_at = getelementptr i8, ptr %pool, i64 $POOL_TABLE
  %total_at = getelementptr i8, ptr %pool, i64 $POOL_TOTAL
  %block_at = getelementptr i8, ptr %pool, i64 $POOL_BLOCK
  %count = call i64 @units(i64 %total)
  %left_over = call i64 @left(i64 %count, i64 %taken)
  %known = icmp sgt i64 %ticks, 0
  %worth = ashr i64 %ticks, $LOG2_BLOCK_TICKS
  %some = call i64 @llvm.smax.i64(i64 %worth, i64 1)
  %wanted = select i1 %known, i64 %some, i64 $BLOCKS_A_THREAD
  %each = call i64 @llvm.smin.i64(i64 %wanted, i64 $BLOCKS_A_THREAD)
  %ways = mul i64 %threads, %each
  %below = add i64 %ways, -1
  %with_rest = add i64 %count, %below
  %even = sdiv i64 %with_rest, %ways
  %bounded = call i64 @llvm.smin.i64(i64 %even, i64 $LARGEST_BLOCK)
  %block = call i64 @llvm.smax.i64(i64 %bounded, i64 1)
  %others = add i64 %threads, -1
  %helpful = add i64 %left_over, -1
  %places = call i64 @llvm.smin.i64(i64 %others, i64 %helpful)
  store ptr %body, ptr %body_at
  store ptr %table, ptr %table_at
  store i64 %total, ptr %total_at
  store i64 %block, ptr %block_at
  store atomic i64 %taken, ptr %next monotonic, align 64
  %closed = load atomic i64, ptr %pool monotonic, align 64
  %job = and i64 %closed, -4294967296
  %new_job = add i64 %job, 4294967296
  %places_field = shl i64 %places, 16
  %with_places = or i64 %new_job, %places_field
  %open = or i64 %with_places, 1
  %old = atomicrmw xchg ptr %pool, i64 %open seq_cst
  call void @wake(ptr %pool, i64 %places)
  br label %take
take:
  %left = call i1 @take_block(
    ptr %next, ptr %body, ptr %table, i64 %total, i64 %block, i1 false)
  br i1 %left, label %look, label %close
look:
  %now = call i64 @ticks()
  %late = icmp sgt i64 %now, %deadline
  br i1 %late, label %interrupt, label %take
interrupt:
  ; whoever asks from now on gets nothing
  %reached = atomicrmw xchg ptr %next, i64 $NOTHING_LEFT monotonic
  br label %close
close:
  %taken_now = phi i64 [ $NOTHING_LEFT, %take ], [ %reached, %interrupt ]
  %before = atomicrmw and ptr %pool, i64 -4294901762 acq_rel
  br label %join
join:
  %tries = phi i32 [ 0, %close ], [ %tries_more, %spin ], [ 0, %give_way ]
  %gate = load atomic i64, ptr %pool acquire, align 64
  %inside = and i64 %gate, 65534
  %empty = icmp eq i64 %inside, 0
  br i1 %empty, label %done, label %spin
spin:
  call void @pause()
  %tries_more = add i32 %tries, 1
  %patient = icmp ult i32 %tries_more, 2048
  br i1 %patient, label %join, label %give_way
give_way:
  ; more threads than cores: let the worker have this one
  %yielded = call i32 @sched_yield()
  br label %join
done:
  %rest = call i64 @left(i64 %count, i64 %taken_now)
  %unfinished = icmp sgt i64 %rest, 0
  %result = select i1 %unfinished, i64 %taken_now, i64 0
  ret i64 %result
}

; How many of %count units are left.
define internal i64 @left(i64 %count, i64 %taken) nounwind {
  %front = and i64 %taken, 4294967295
  %back = lshr i64 %taken, 32
  %end = sub i64 %count, %back
  %rest = sub i64 %end, %front
  ret i64 %rest
}

; The same by this thread alone.
define internal i64 @alone(ptr %body, ptr %table, i64 %total, i64 %taken, i64 %deadline) nounwind {
entry:
  %count = call i64 @units(i64 %total)
  %back = lshr i64 %taken, 32
  %end = sub i64 %count, %back
  %start = and i64 %taken, 4294967295
  %even = sdiv i64 %count, $BLOCKS_ALONE
  %bounded = call i64 @llvm.smin.i64(i64 %even, i64 $LARGEST_BLOCK)
  %block = call i64 @llvm.smax.i64(i64 %bounded, i64 1)
  br label %run
run:
  %from = phi i64 [ %start, %entry ], [ %stop, %more ]
  %full = add i64 %from, %block
  %stop = call i64 @llvm.smin.i64(i64 %full, i64 %end)
  call void @run_units(ptr %body, ptr %table, i64 %total, i64 %from, i64 %stop)
  %left = icmp slt i64 %stop, %end
  br i1 %left, label %more, label %done
more:
  %now = call i64 @ticks()
  %late = icmp sgt i64 %now, %deadline
  br i1 %late, label %interrupt, label %run
interrupt:
  %high = shl i64 %back, 32
  %reached = or i64 %high, %stop
  ret i64 %reached
done:
  ret i64 0
}

declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

; What %taken leaves of a kernel; %threads is 1 unless the pool is ours.
define internal i64 @run_item(
    ptr %pool, ptr %body, ptr %table, i64 %total, i64 %taken, i64 %threads, i64 %deadline,
    i64 %ticks
) nounwind {
entry:
  %count = call i64 @units(i64 %total)
  %rest = call i64 @left(i64 %count, i64 %taken)
  %several = icmp sgt i64 %rest, 1
  %helped = icmp sgt i64 %threads, 1
  %both = and i1 %several, %helped
  br i1 %both, label %together, label %test
together:
  %shared = call i64 @share(
    ptr %pool, ptr %body, ptr %table, i64 %total, i64 %taken, i64 %threads, i64 %deadline,
    i64 %ticks)
  ret i64 %shared
test:
  %any = icmp sgt i64 %rest, 0
  br i1 %any, label %single, label %none
single:
  %reached = call i64 @alone(ptr %body, ptr %table, i64 %total, i64 %taken, i64 %deadline)
  ret i64 %reached
none:
  ret i64 0
}

; Only one caller can have the workers; the others do their chunks themselves.
define internal i64 @acquire(ptr %pool, i64 %threads) nounwind {
entry:
  %helped = icmp sgt i64 %threads, 1
  br i1 %helped, label %try, label %no
try:
  %busy_at = getelementptr i8, ptr %pool, i64 $POOL_BUSY
  %swap = cmpxchg ptr %busy_at, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %swap, 1
  br i1 %mine, label %yes, label %no
yes:
  ret i64 %threads
no:
  ret i64 1
}

define internal void @release(ptr %pool, i64 %threads) nounwind {
entry:
  %mine = icmp sgt i64 %threads, 1
  br i1 %mine, label %free, label %done
free:
  %busy_at = getelementptr i8, ptr %pool, i64 $POOL_BUSY
  store atomic i32 0, ptr %busy_at release, align 4
  br label %done
done:
  ret void
}

define internal i64 @deadline(ptr %pool, i64 %now) nounwind {
  %slice_at = getelementptr i8, ptr %pool, i64 $POOL_SLICE
  %slice = load i64, ptr %slice_at
  %end = add i64 %now, %slice
  ret i64 %end
}
"""
