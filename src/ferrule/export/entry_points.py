"""The functions of the interface that are the same in all exported programs, as LLVM IR."""

from __future__ import annotations

from typing import Final

DECLARATIONS: Final = """
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare ptr @memcpy(ptr, ptr, i64)
declare ptr @memset(ptr, i32, i64)

; name, dtype and shape as text, largest shape, strides, bytes, first byte, axes, place
%tensor = type { ptr, ptr, ptr, ptr, ptr, i64, i64, i32, i32 }
"""

OTHERS: Final = """
define void @${NAME}_reset(ptr %self) nounwind {
entry:
  %nothing = icmp eq ptr %self, null
  br i1 %nothing, label %done, label %begin
begin:
$RESET
  br label %done
done:
  ret void
}

define i32 @${NAME}_run_tensors(ptr %self, ptr %tensors, ptr %sizes) nounwind {
entry:
  %nothing = icmp eq ptr %self, null
  br i1 %nothing, label %null, label %begin
begin:
  %variant = load i64, ptr %self
  switch i64 %variant, label %null [
$CASES
  ]
$RUNS
null:
  ret i32 $NULL
}

define void @${NAME}_destroy(ptr %self) nounwind {
entry:
  %nothing = icmp eq ptr %self, null
  br i1 %nothing, label %done, label %begin
begin:
  $STOP
  call void @free(ptr %self)
  br label %done
done:
  ret void
}

define ptr @${NAME}_state(ptr %self, i32 %number) nounwind {
entry:
  %known = icmp ult i32 %number, $N_STATES
  %something = icmp ne ptr %self, null
  %good = and i1 %known, %something
  br i1 %good, label %found, label %unknown
found:
  %wide = zext i32 %number to i64
  %first = getelementptr i8, ptr %self, i64 $STATES
  %at = getelementptr ptr, ptr %first, i64 %wide
  %memory = load ptr, ptr %at
  ret ptr %memory
unknown:
  ret ptr null
}

define i32 @${NAME}_set_state(ptr %self, i32 %number, ptr %memory) nounwind {
entry:
  %known = icmp ult i32 %number, $N_STATES
  %given = icmp ne ptr %memory, null
  %something = icmp ne ptr %self, null
  %both = and i1 %given, %something
  %good = and i1 %known, %both
  br i1 %good, label %found, label %unknown
found:
  %wide = zext i32 %number to i64
  %first = getelementptr i8, ptr %self, i64 $STATES
  %at = getelementptr ptr, ptr %first, i64 %wide
  store ptr %memory, ptr %at
  ret i32 0
unknown:
  ret i32 $NULL
}

define i32 @${NAME}_interface_version() nounwind {
  ret i32 $VERSION
}

define ptr @${NAME}_about() nounwind {
  ret ptr $ABOUT
}

define ptr @${NAME}_error_string(i32 %error) nounwind {
entry:
  %known = icmp ult i32 %error, $N_ERRORS
  br i1 %known, label %found, label %unknown
found:
  %wide = zext i32 %error to i64
  %at = getelementptr ptr, ptr @errors, i64 %wide
  %text = load ptr, ptr %at
  ret ptr %text
unknown:
  ret ptr $UNKNOWN
}

define ptr @${NAME}_target(ptr %self) nounwind {
entry:
  %nothing = icmp eq ptr %self, null
  br i1 %nothing, label %unknown, label %found
found:
  %variant = load i64, ptr %self
  %at = getelementptr ptr, ptr @targets, i64 %variant
  %text = load ptr, ptr %at
  ret ptr %text
unknown:
  ret ptr null
}
"""

DESCRIBE: Final = """
define ptr @${NAME}_describe(i32 %kind, i32 %number) nounwind {
entry:
  %known = icmp ult i32 %kind, 3
  br i1 %known, label %count, label %unknown
count:
  %wide = zext i32 %kind to i64
  %count_at = getelementptr i32, ptr @counts, i64 %wide
  %there_are = load i32, ptr %count_at
  %is_there = icmp ult i32 %number, %there_are
  br i1 %is_there, label %found, label %unknown
found:
  %table_at = getelementptr ptr, ptr @tables, i64 %wide
  %table = load ptr, ptr %table_at
  %row = zext i32 %number to i64
  %tensor = getelementptr %tensor, ptr %table, i64 %row
  ret ptr %tensor
unknown:
  ret ptr null
}
"""

WITH_THREADS: Final = """
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare hidden i64 @"$LAUNCH"(ptr, ptr, i64, i64)
declare hidden void @"$WORKER"(ptr)
declare hidden void @"$STOP"(ptr)

define internal ptr @work(ptr %pool) nounwind {
  call void @"$WORKER"(ptr %pool)
  ret ptr null
}

define internal void @stop_threads(ptr %self) nounwind {
entry:
  %workers_at = getelementptr i8, ptr %self, i64 $WORKERS
  %count = load i64, ptr %workers_at
  %some = icmp ne i64 %count, 0
  br i1 %some, label %stop, label %done
stop:
  %pool = getelementptr i8, ptr %self, i64 $POOL
  call void @"$STOP"(ptr %pool)
  %ids = getelementptr i8, ptr %self, i64 $IDS
  br label %next
next:
  %number = phi i64 [ 0, %stop ], [ %more, %next ]
  %at = getelementptr i64, ptr %ids, i64 %number
  %id = load i64, ptr %at
  call i32 @pthread_join(i64 %id, ptr null)
  %more = add i64 %number, 1
  %again = icmp slt i64 %more, %count
  br i1 %again, label %next, label %end
end:
  %quit = getelementptr i8, ptr %pool, i64 $QUIT
  store i32 0, ptr %quit
  store i64 0, ptr %workers_at
  br label %done
done:
  ret void
}

; Not during a run.
define i32 @${NAME}_set_threads(ptr %self, i32 %threads) nounwind {
entry:
  %nothing = icmp eq ptr %self, null
  br i1 %nothing, label %null, label %check
check:
  %least = icmp slt i32 %threads, 1
  %most = icmp sgt i32 %threads, $MOST
  %outside = or i1 %least, %most
  br i1 %outside, label %size, label %begin
begin:
  call void @stop_threads(ptr %self)
  %wanted = sext i32 %threads to i64
  %threads_at = getelementptr i8, ptr %self, i64 $THREADS
  %workers_at = getelementptr i8, ptr %self, i64 $WORKERS
  %pool = getelementptr i8, ptr %self, i64 $POOL
  %ids = getelementptr i8, ptr %self, i64 $IDS
  store i64 1, ptr %threads_at
  br label %next
next:
  %number = phi i64 [ 0, %begin ], [ %more, %started ]
  %have = add i64 %number, 1
  %enough = icmp sge i64 %have, %wanted
  br i1 %enough, label %done, label %start
start:
  %at = getelementptr i64, ptr %ids, i64 %number
  %failed = call i32 @pthread_create(ptr %at, ptr null, ptr @work, ptr %pool)
  %is_started = icmp eq i32 %failed, 0
  br i1 %is_started, label %started, label %few
started:
  %more = add i64 %number, 1
  store i64 %more, ptr %workers_at
  %running = add i64 %more, 1
  store i64 %running, ptr %threads_at
  br label %next
done:
  ret i32 0
few:
  ret i32 $TOO_FEW
size:
  ret i32 $SIZE
null:
  ret i32 $NULL
}
"""
