"""The parts of the native runtime that depend on the system, the processor and the interpreter.

LLVM IR text for `native`, which has the rest and fills in the $NAMES.
"""

from __future__ import annotations

# Waiting for a job, and waking a waiting worker. The worker has already spun for a while.
#
# Linux without knowledge of shared caches (as in small virtual machines) wakes a thread on the
# core it slept on, even if that is the caller's and another one is idle. Both then take turns
# there, for milliseconds. So a worker that wakes on the caller's core leaves it: it forbids itself
# that core, which moves it, and then allows it again.
FUTEX = """
declare i64 @syscall(i64, ...)
declare i32 @sched_getcpu()

define internal void @leave_core(i32 %core) nounwind {
entry:
  %mine = call i32 @sched_getcpu()
  %same = icmp eq i32 %mine, %core
  br i1 %same, label %look, label %done
look:
  %before = alloca [16 x i64], align 64
  %after = alloca [16 x i64], align 64
  %size = call i64 (i64, ...) @syscall(i64 $GET_AFFINITY, i32 0, i64 128, ptr %before)
  %known = icmp sgt i64 %size, 0
  %representable = icmp ult i32 %core, 1024
  %both = and i1 %known, %representable
  br i1 %both, label %leave, label %done
leave:
  %all = load [16 x i64], ptr %before
  store [16 x i64] %all, ptr %after
  %core64 = zext i32 %core to i64
  %word = lshr i64 %core64, 6
  %bit = and i64 %core64, 63
  %at = getelementptr i64, ptr %after, i64 %word
  %old = load i64, ptr %at
  %one = shl i64 1, %bit
  %others = xor i64 %one, -1
  %new = and i64 %old, %others
  store i64 %new, ptr %at
  %moved = call i64 (i64, ...) @syscall(i64 $SET_AFFINITY, i32 0, i64 %size, ptr %after)
  %put_back = call i64 (i64, ...) @syscall(i64 $SET_AFFINITY, i32 0, i64 %size, ptr %before)
  br label %done
done:
  ret void
}

define internal void @park(ptr %pool, i32 %seen) nounwind {
  %job = getelementptr i8, ptr %pool, i64 $POOL_JOB
  %sleepers = getelementptr i8, ptr %pool, i64 $POOL_SLEEPERS
  %up = atomicrmw add ptr %sleepers, i32 1 seq_cst
  %wait = call i64 (i64, ...) @syscall(
    i64 $FUTEX, ptr %job, i64 128, i32 %seen, ptr null, ptr null, i32 0)
  %down = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  %core_at = getelementptr i8, ptr %pool, i64 $POOL_CORE
  %core = load atomic i32, ptr %core_at monotonic, align 4
  call void @leave_core(i32 %core)
  ret void
}

define internal void @wake(ptr %pool, i64 %count) nounwind {
  %sleepers = getelementptr i8, ptr %pool, i64 $POOL_SLEEPERS
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %any = icmp sgt i32 %asleep, 0
  br i1 %any, label %call, label %done
call:
  %core = call i32 @sched_getcpu()
  %core_at = getelementptr i8, ptr %pool, i64 $POOL_CORE
  store atomic i32 %core, ptr %core_at monotonic, align 4
  %job = getelementptr i8, ptr %pool, i64 $POOL_JOB
  %woken = call i64 (i64, ...) @syscall(
    i64 $FUTEX, ptr %job, i64 129, i64 %count, ptr null, ptr null, i32 0)
  br label %done
done:
  ret void
}
"""

# Without futexes. The lock around the test makes a wake-up between test and wait impossible.
CONDITION = """
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

define internal void @park(ptr %pool, i32 %seen) nounwind {
entry:
  %job = getelementptr i8, ptr %pool, i64 $POOL_JOB
  %sleepers = getelementptr i8, ptr %pool, i64 $POOL_SLEEPERS
  %mutex = getelementptr i8, ptr %pool, i64 $POOL_MUTEX
  %condition = getelementptr i8, ptr %pool, i64 $POOL_CONDITION
  %up = atomicrmw add ptr %sleepers, i32 1 seq_cst
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  br label %test
test:
  %now = load atomic i32, ptr %job seq_cst, align 4
  %same = icmp eq i32 %now, %seen
  br i1 %same, label %wait, label %leave
wait:
  %waited = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %test
leave:
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  %down = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  ret void
}

define internal void @wake(ptr %pool, i64 %count) nounwind {
entry:
  %sleepers = getelementptr i8, ptr %pool, i64 $POOL_SLEEPERS
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %any = icmp sgt i32 %asleep, 0
  br i1 %any, label %call, label %done
call:
  %mutex = getelementptr i8, ptr %pool, i64 $POOL_MUTEX
  %condition = getelementptr i8, ptr %pool, i64 $POOL_CONDITION
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  %woken = call i32 @pthread_cond_broadcast(ptr %condition)
  br label %done
done:
  ret void
}
"""

# x86-64: the time stamp counter, in 10 ns; the rounding mode is set to the default and put back,
# since a library may have left this thread flushing denormals to zero, and results are not to
# depend on which thread computes them.
X86_64 = """
declare i64 @llvm.readcyclecounter()
declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define internal i64 @ticks() nounwind {
  %now = call i64 @llvm.readcyclecounter()
  ret i64 %now
}

define internal void @pause() nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}

define internal i32 @default_float_mode() nounwind {
entry:
  %place = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %mode = load i32, ptr %place
  %settings = and i32 %mode, 65472
  %usual = icmp eq i32 %settings, 8064
  br i1 %usual, label %done, label %change
change:
  store i32 8064, ptr %place
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  br label %done
done:
  ret i32 %mode
}

define internal void @restore_float_mode(i32 %mode) nounwind {
entry:
  %settings = and i32 %mode, 65472
  %usual = icmp eq i32 %settings, 8064
  br i1 %usual, label %done, label %change
change:
  %place = alloca i32
  store i32 %mode, ptr %place
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  br label %done
done:
  ret void
}
"""

# Elsewhere: the system's monotonic clock in nanoseconds, 25 ns.
CLOCK = """
declare i32 @clock_gettime(i32, ptr)

define internal i64 @ticks() nounwind {
  %time = alloca [2 x i64]
  %failed = call i32 @clock_gettime(i32 $MONOTONIC, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr i8, ptr %time, i64 8
  %rest = load i64, ptr %rest_at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}
"""

# AArch64: the mode as on x86-64; all bits of it are 0 by default. `isb` throws away what was
# fetched ahead. That takes about as long as x86's pause does, where `yield` takes no time at all;
# and a thread that runs code that another thread has loaded needs one in between.
AARCH64 = """
declare void @llvm.aarch64.isb(i32)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

define internal void @pause() nounwind {
  call void @llvm.aarch64.isb(i32 15)
  ret void
}

define internal i32 @default_float_mode() nounwind {
entry:
  %whole = call i64 @llvm.aarch64.get.fpcr()
  %mode = trunc i64 %whole to i32
  %usual = icmp eq i32 %mode, 0
  br i1 %usual, label %done, label %change
change:
  call void @llvm.aarch64.set.fpcr(i64 0)
  br label %done
done:
  ret i32 %mode
}

define internal void @restore_float_mode(i32 %mode) nounwind {
entry:
  %usual = icmp eq i32 %mode, 0
  br i1 %usual, label %done, label %change
change:
  %whole = zext i32 %mode to i64
  call void @llvm.aarch64.set.fpcr(i64 %whole)
  br label %done
done:
  ret void
}
"""

ANY_PROCESSOR = """
define internal void @pause() nounwind {
  fence seq_cst
  ret void
}

define internal i32 @default_float_mode() nounwind {
  ret i32 0
}

define internal void @restore_float_mode(i32 %mode) nounwind {
  ret void
}
"""

# The same two functions as methods of Python (METH_FASTCALL), which cost a tenth of a call
# through ctypes. `self` is an int, the record's address; a table is bytes, and inputs are a list
# of ints.
PYTHON = """
declare ptr @PyBytes_AsString(ptr)
declare i32 @PyErr_BadArgument()
declare ptr @PyErr_Occurred()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyEval_SaveThread()
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyList_GetItem(ptr, i64)
declare i64 @PyList_Size(ptr)

; launch(table, taken, threads) -> taken
define ptr @"$PYTHON_LAUNCH"(ptr %self, ptr %arguments, i64 %count) nounwind {
entry:
  %three = icmp eq i64 %count, 3
  br i1 %three, label %convert, label %wrong
wrong:
  %set = call i32 @PyErr_BadArgument()
  ret ptr null
convert:
  %program = call ptr @PyLong_AsVoidPtr(ptr %self)
  %table_object = load ptr, ptr %arguments
  %taken_at = getelementptr i8, ptr %arguments, i64 8
  %taken_object = load ptr, ptr %taken_at
  %threads_at = getelementptr i8, ptr %arguments, i64 16
  %threads_object = load ptr, ptr %threads_at
  %table = call ptr @PyBytes_AsString(ptr %table_object)
  %taken = call i64 @PyLong_AsLongLong(ptr %taken_object)
  %threads = call i64 @PyLong_AsLongLong(ptr %threads_object)
  %error = call ptr @PyErr_Occurred()
  %failed = icmp ne ptr %error, null
  br i1 %failed, label %raise, label %run
raise:
  ret ptr null
run:
  %thread = call ptr @PyEval_SaveThread()
  %reached = call i64 @"$LAUNCH"(ptr %program, ptr %table, i64 %taken, i64 %threads)
  call void @PyEval_RestoreThread(ptr %thread)
  %result = call ptr @PyLong_FromLongLong(i64 %reached)
  ret ptr %result
}

; replay(0, threads, inputs) starts, replay(1, threads, inputs) goes on -> 0 or 1
define ptr @"$PYTHON_REPLAY"(ptr %self, ptr %arguments, i64 %count) nounwind {
entry:
  %three = icmp eq i64 %count, 3
  br i1 %three, label %convert, label %wrong
wrong:
  %set = call i32 @PyErr_BadArgument()
  ret ptr null
convert:
  %batch = call ptr @PyLong_AsVoidPtr(ptr %self)
  %on_object = load ptr, ptr %arguments
  %on = call i64 @PyLong_AsLongLong(ptr %on_object)
  %threads_at = getelementptr i8, ptr %arguments, i64 8
  %threads_object = load ptr, ptr %threads_at
  %threads = call i64 @PyLong_AsLongLong(ptr %threads_object)
  %list_at = getelementptr i8, ptr %arguments, i64 16
  %list = load ptr, ptr %list_at
  %size = call i64 @PyList_Size(ptr %list)
  %n_inputs = call i64 @llvm.smax.i64(i64 %size, i64 0)
  %given = alloca i64, i64 %n_inputs
  br label %test
test:
  %number = phi i64 [ 0, %convert ], [ %number_more, %input ]
  %left = icmp slt i64 %number, %n_inputs
  br i1 %left, label %input, label %check
input:
  %object = call ptr @PyList_GetItem(ptr %list, i64 %number)
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  %value_at = getelementptr i64, ptr %given, i64 %number
  store i64 %value, ptr %value_at
  %number_more = add i64 %number, 1
  br label %test
check:
  %starts = icmp eq i64 %on, 0
  %inputs = select i1 %starts, ptr %given, ptr null
  %error = call ptr @PyErr_Occurred()
  %failed = icmp ne ptr %error, null
  br i1 %failed, label %raise, label %run
raise:
  ret ptr null
run:
  %thread = call ptr @PyEval_SaveThread()
  %more = call i64 @"$REPLAY"(ptr %batch, ptr %inputs, i64 %threads)
  call void @PyEval_RestoreThread(ptr %thread)
  %result = call ptr @PyLong_FromLongLong(i64 %more)
  ret ptr %result
}
"""

PYTHON_FUNCTIONS = (
    "PyBytes_AsString",
    "PyErr_BadArgument",
    "PyErr_Occurred",
    "PyEval_RestoreThread",
    "PyEval_SaveThread",
    "PyList_GetItem",
    "PyList_Size",
    "PyLong_AsLongLong",
    "PyLong_AsVoidPtr",
    "PyLong_FromLongLong",
)
"""The functions of the interpreter that the methods for Python call: all are in the limited API."""
