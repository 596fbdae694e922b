"""Batches of several devices in the native runtime: lanes that wait for each other's events.

LLVM IR text for `native`, which has the rest and fills in the $NAMES.

Each device has a **lane**: a batch of its own items, cut into segments. A segment ends where
another lane waits for it, or the next one has to wait. The number of finished segments of a lane is
its event. The record of a segment has the number of items of its lane that are left at its end, and
then for each lane the number of segments that have to be finished before it begins.

The threads of the pool take lanes that need not wait, and run each as far as it goes. No thread
belongs to a lane: one thread is enough for all. A thread that finds nothing to run looks again for
a while, and then sleeps until a segment is finished.
"""

from __future__ import annotations

LANES = """
; Puts all lanes of a batch at their beginnings.
define internal void @rewind_lanes(ptr %group) nounwind {
entry:
  %lanes_at = getelementptr i8, ptr %group, i64 $BATCH_LANES
  %count_at = getelementptr i8, ptr %group, i64 $BATCH_N_LANES
  %lanes = load ptr, ptr %lanes_at
  %count = load i64, ptr %count_at
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %next, label %done
next:
  %index = phi i64 [ 0, %entry ], [ %index_more, %next ]
  %offset = mul i64 %index, $LANE_BYTES
  %lane = getelementptr i8, ptr %lanes, i64 %offset
  %done_at = getelementptr i8, ptr %lane, i64 $LANE_DONE
  %batch_at = getelementptr i8, ptr %lane, i64 $LANE_BATCH
  %batch = load ptr, ptr %batch_at
  call void @rewind(ptr %batch)
  store atomic i64 0, ptr %lane release, align 8
  store atomic i64 0, ptr %done_at release, align 8
  %index_more = add i64 %index, 1
  %more = icmp slt i64 %index_more, %count
  br i1 %more, label %next, label %done
done:
  ret void
}

; The segment that a lane has to run next; null if it is finished, or has to wait.
define internal ptr @ready_segment(ptr %lanes, i64 %count, ptr %lane) nounwind {
entry:
  %done_at = getelementptr i8, ptr %lane, i64 $LANE_DONE
  %total_at = getelementptr i8, ptr %lane, i64 $LANE_N_SEGMENTS
  %segments_at = getelementptr i8, ptr %lane, i64 $LANE_SEGMENTS
  %done = load atomic i64, ptr %done_at monotonic, align 8
  %total = load i64, ptr %total_at
  %left = icmp slt i64 %done, %total
  br i1 %left, label %find, label %none
find:
  %segments = load ptr, ptr %segments_at
  %slots = add i64 %count, 1
  %first_slot = mul i64 %done, %slots
  %segment = getelementptr i64, ptr %segments, i64 %first_slot
  br label %test
test:
  %index = phi i64 [ 0, %find ], [ %index_more, %fine ]
  %index_more = add i64 %index, 1
  %need_at = getelementptr i64, ptr %segment, i64 %index_more
  %need = load i64, ptr %need_at
  %offset = mul i64 %index, $LANE_BYTES
  %other = getelementptr i8, ptr %lanes, i64 %offset
  %other_at = getelementptr i8, ptr %other, i64 $LANE_DONE
  %reached = load atomic i64, ptr %other_at acquire, align 8
  %satisfied = icmp sge i64 %reached, %need
  br i1 %satisfied, label %fine, label %none
fine:
  %more = icmp slt i64 %index_more, %count
  br i1 %more, label %test, label %found
found:
  ret ptr %segment
none:
  ret ptr null
}

; Tells the threads that sleep that something has happened.
define internal void @happened(ptr %group) nounwind {
  %gate_at = getelementptr i8, ptr %group, i64 $BATCH_GATE
  %gate = load ptr, ptr %gate_at
  %job_at = getelementptr i8, ptr %gate, i64 $POOL_JOB
  %more = atomicrmw add ptr %job_at, i32 1 seq_cst
  call void @wake(ptr %gate, i64 2147483647)
  ret void
}

; Runs a lane, which this thread has locked, as far as it goes; true if a segment was finished.
define internal i1 @run_lane(ptr %group, ptr %lane, i64 %deadline) nounwind {
entry:
  %lanes_at = getelementptr i8, ptr %group, i64 $BATCH_LANES
  %count_at = getelementptr i8, ptr %group, i64 $BATCH_N_LANES
  %threads_at = getelementptr i8, ptr %group, i64 $BATCH_LANE_THREADS
  %batch_at = getelementptr i8, ptr %lane, i64 $LANE_BATCH
  %done_at = getelementptr i8, ptr %lane, i64 $LANE_DONE
  %lanes = load ptr, ptr %lanes_at
  %count = load i64, ptr %count_at
  %threads = load i64, ptr %threads_at
  %batch = load ptr, ptr %batch_at
  %pool_at = getelementptr i8, ptr %batch, i64 $BATCH_POOL
  %pool = load ptr, ptr %pool_at
  %mine = call i64 @acquire(ptr %pool, i64 %threads)
  br label %look
look:
  %ran = phi i1 [ false, %entry ], [ true, %finished ]
  %segment = call ptr @ready_segment(ptr %lanes, i64 %count, ptr %lane)
  %none = icmp eq ptr %segment, null
  br i1 %none, label %out, label %run
run:
  %floor = load i64, ptr %segment
  %late = call i64 @run_batch(ptr %batch, ptr %pool, i64 %mine, i64 %deadline, i64 %floor)
  %is_late = icmp ne i64 %late, 0
  br i1 %is_late, label %out, label %finished
finished:
  %event = atomicrmw add ptr %done_at, i64 1 release
  call void @happened(ptr %group)
  br label %look
out:
  call void @release(ptr %pool, i64 %mine)
  ret i1 %ran
}

; The work of a thread, by the binary interface of kernels: a chunk is a thread, which begins to
; look at the lane with its number. Returns when all lanes are finished, or it is late.
define internal void @work_lanes(ptr %group, i64 %start, i64 %stop) nounwind {
entry:
  %lanes_at = getelementptr i8, ptr %group, i64 $BATCH_LANES
  %count_at = getelementptr i8, ptr %group, i64 $BATCH_N_LANES
  %deadline_at = getelementptr i8, ptr %group, i64 $BATCH_DEADLINE
  %gate_at = getelementptr i8, ptr %group, i64 $BATCH_GATE
  %lanes = load ptr, ptr %lanes_at
  %count = load i64, ptr %count_at
  %deadline = load i64, ptr %deadline_at
  %gate = load ptr, ptr %gate_at
  %job_at = getelementptr i8, ptr %gate, i64 $POOL_JOB
  br label %pass
pass:
  ; what happens from here on, sleep would notice
  %idle = phi i32 [ 0, %entry ], [ 0, %judge ], [ %idle_more, %wait ], [ 0, %sleep ]
  %seen = load atomic i32, ptr %job_at seq_cst, align 4
  br label %next
next:
  %index = phi i64 [ 0, %pass ], [ %index_more, %after ]
  %open = phi i1 [ false, %pass ], [ %open_now, %after ]
  %progress = phi i1 [ false, %pass ], [ %progress_now, %after ]
  %shifted = add i64 %start, %index
  %number = urem i64 %shifted, %count
  %offset = mul i64 %number, $LANE_BYTES
  %lane = getelementptr i8, ptr %lanes, i64 %offset
  %done_at = getelementptr i8, ptr %lane, i64 $LANE_DONE
  %total_at = getelementptr i8, ptr %lane, i64 $LANE_N_SEGMENTS
  %done = load atomic i64, ptr %done_at acquire, align 8
  %total = load i64, ptr %total_at
  %left = icmp slt i64 %done, %total
  br i1 %left, label %test, label %after
test:
  %segment = call ptr @ready_segment(ptr %lanes, i64 %count, ptr %lane)
  %waits = icmp eq ptr %segment, null
  br i1 %waits, label %after, label %lock
lock:
  %swap = cmpxchg ptr %lane, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %run, label %after
run:
  %ran = call i1 @run_lane(ptr %group, ptr %lane, i64 %deadline)
  store atomic i64 0, ptr %lane release, align 8
  %some = or i1 %progress, %ran
  br label %after
after:
  %progress_now = phi i1 [ %progress, %next ], [ %progress, %test ], [ %progress, %lock ],
    [ %some, %run ]
  %open_now = phi i1 [ %open, %next ], [ true, %test ], [ true, %lock ], [ true, %run ]
  %index_more = add i64 %index, 1
  %more = icmp slt i64 %index_more, %count
  br i1 %more, label %next, label %end
end:
  br i1 %open_now, label %clock, label %return
clock:
  %now = call i64 @ticks()
  %late = icmp sgt i64 %now, %deadline
  br i1 %late, label %leave, label %judge
judge:
  br i1 %progress_now, label %pass, label %spin
spin:
  call void @pause()
  %idle_more = add i32 %idle, 1
  %patient = icmp ult i32 %idle_more, $LOOKS_AT_LANES
  br i1 %patient, label %wait, label %sleep
wait:
  br label %pass
sleep:
  call void @park(ptr %gate, i32 %seen)
  br label %pass
leave:
  ; the lane that this thread leaves may be the one that others sleep for
  call void @happened(ptr %group)
  br label %return
return:
  ret void
}

; Runs the lanes of a batch from where they stopped. 0: finished; 1: it was late.
define internal i64 @run_lanes(ptr %group, ptr %pool, i64 %mine, i64 %deadline) nounwind {
entry:
  %lanes_at = getelementptr i8, ptr %group, i64 $BATCH_LANES
  %count_at = getelementptr i8, ptr %group, i64 $BATCH_N_LANES
  %deadline_at = getelementptr i8, ptr %group, i64 $BATCH_DEADLINE
  %lanes = load ptr, ptr %lanes_at
  %count = load i64, ptr %count_at
  store i64 %deadline, ptr %deadline_at
  %helped = icmp sgt i64 %mine, 1
  br i1 %helped, label %together, label %alone
together:
  ; the lanes look at the clock: whoever has begun with a chunk ends it
  %shared = call i64 @share(
    ptr %pool, ptr @work_lanes, ptr %group, i64 %count, i64 0, i64 %mine,
    i64 9223372036854775807, i64 0)
  br label %check
alone:
  call void @work_lanes(ptr %group, i64 0, i64 1)
  br label %check
check:
  %index = phi i64 [ 0, %together ], [ 0, %alone ], [ %index_more, %fine ]
  %offset = mul i64 %index, $LANE_BYTES
  %lane = getelementptr i8, ptr %lanes, i64 %offset
  %done_at = getelementptr i8, ptr %lane, i64 $LANE_DONE
  %total_at = getelementptr i8, ptr %lane, i64 $LANE_N_SEGMENTS
  %done = load atomic i64, ptr %done_at acquire, align 8
  %total = load i64, ptr %total_at
  %left = icmp slt i64 %done, %total
  br i1 %left, label %unfinished, label %fine
fine:
  %index_more = add i64 %index, 1
  %more = icmp slt i64 %index_more, %count
  br i1 %more, label %check, label %finished
finished:
  ret i64 0
unfinished:
  ret i64 1
}
"""
