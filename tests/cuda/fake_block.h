// Part of the fake driver: the threads of a block, which take turns, and what they do together.
//
// Each is a fiber that runs until it waits for others. What a GPU leaves undefined, or answers with a
// failed launch, ends the launch here, and `problem` says why.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#define FAKE_DRIVER
#include "fake_device.h"

#define API extern "C" __attribute__((visibility("default")))

API FakeDim fake_thread, fake_block, fake_block_size, fake_grid_size;
FakeDim fake_thread, fake_block, fake_block_size, fake_grid_size;

namespace {

constexpr size_t kStackBytes = 512 << 10;
constexpr unsigned kWarp = 32;

struct Copy {
  char *to;
  const char* source;
  unsigned bytes, zeros;
};

struct Fiber {
  jmp_buf place;
  ucontext_t start;
  FakeDim thread;
  int waits_for;  // 0: it can go on
  int line;
  bool done;
  bool started;
  uint64_t slot;
  std::vector<Copy> copies;               // begun since the last group
  std::deque<std::vector<Copy>> groups;  // on their way
};

std::vector<Fiber*> fibers;
Fiber* running;
jmp_buf scheduler;
void (*kernel_call)(void**);
void** kernel_values;
std::string problem;  // what is wrong with the launch that runs
std::string misuse;   // what one of its threads did that none may
bool misaligned;      // it was an address that is no multiple of what is there
unsigned block_threads;
std::vector<unsigned char> asked_for;  // shared memory of the block, with a margin behind it
constexpr size_t kSharedMargin = 256;
constexpr unsigned char kUnsetShared = 0xA5;

// The arrays that a kernel declares in shared memory.
struct SharedArrays {
  unsigned char* start;
  size_t bytes;
};

void back_to_scheduler() {
  if (!_setjmp(running->place)) _longjmp(scheduler, 1);
}

void fiber_main() {
  for (;;) {
    kernel_call(kernel_values);
    running->done = true;
    back_to_scheduler();
  }
}

Fiber* new_fiber() {
  auto* fiber = new Fiber{};
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  getcontext(&fiber->start);
  fiber->start.uc_stack.ss_sp = stack;
  fiber->start.uc_stack.ss_size = kStackBytes;
  makecontext(&fiber->start, fiber_main, 0);
  return fiber;
}

void resume(Fiber* fiber) {
  running = fiber;
  fake_thread = fiber->thread;
  if (_setjmp(scheduler)) return;
  if (fiber->started) _longjmp(fiber->place, 1);
  fiber->started = true;
  setcontext(&fiber->start);
}

// Lets those of `first..last-1` go on that all wait for the same; false if some never can.
bool release(unsigned first, unsigned last, int kind) {
  Fiber* one = nullptr;
  for (unsigned i = first; i < last; i++)
    if (fibers[i]->waits_for == kind) one = fibers[i];
  if (!one) return true;
  for (unsigned i = first; i < last; i++) {
    Fiber* fiber = fibers[i];
    if (fiber->done || fiber->waits_for != kind || fiber->line != one->line) {
      problem = "thread " + std::to_string(i) +
                (fiber->done ? " is done" : " is at line " + std::to_string(fiber->line)) +
                " where another waits for it at line " + std::to_string(one->line);
      return false;
    }
  }
  for (unsigned i = first; i < last; i++) fibers[i]->waits_for = 0;
  return true;
}

bool waits_for_copies(unsigned n) {
  for (unsigned i = 0; i < n; i++) {
    bool some = !fibers[i]->copies.empty();
    for (auto& group : fibers[i]->groups) some |= !group.empty();
    if (some) problem = "thread " + std::to_string(i) + " is done, its copies are on their way";
    if (some) return true;
  }
  return false;
}

bool all_done(unsigned n) {
  return std::all_of(fibers.begin(), fibers.begin() + n, [](Fiber* f) { return f->done; });
}

bool run_block(unsigned n) {
  for (unsigned turn = fake_block.x; !all_done(n); turn++) {
    for (unsigned k = 0; k < n; k++) {
      Fiber* fiber = fibers[turn % 2 ? n - 1 - k : k];
      if (!fiber->done && !fiber->waits_for) resume(fiber);
      if (!misuse.empty()) {
        problem = misuse;
        return false;
      }
    }
    bool in_warps = false;
    for (unsigned i = 0; i < n; i++) in_warps |= fibers[i]->waits_for == FAKE_WARP;
    if (in_warps) {
      for (unsigned i = 0; i < n; i += kWarp)
        if (!release(i, std::min(i + kWarp, n), FAKE_WARP)) return false;
    } else if (!release(0, n, FAKE_BLOCK)) {
      return false;
    }
  }
  bool whole = std::all_of(asked_for.end() - kSharedMargin, asked_for.end(),
                           [](unsigned char byte) { return byte == kUnsetShared; });
  if (!whole) problem = "more shared memory was written than the launch asked for";
  return !waits_for_copies(n) && whole;
}

void prepare_block(unsigned n) {
  while (fibers.size() < n) fibers.push_back(new_fiber());
  for (unsigned i = 0; i < n; i++) {
    FakeDim size = fake_block_size;
    fibers[i]->thread = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    fibers[i]->done = false;
    fibers[i]->waits_for = 0;
    fibers[i]->copies.clear();
    fibers[i]->groups.clear();
  }
  block_threads = n;
  misuse.clear();
  misaligned = false;
}

bool run_kernel(void (*call)(void**), void** values, FakeDim grid, FakeDim block, size_t shared,
                SharedArrays arrays) {
  static unsigned launches = 0;
  kernel_call = call;
  kernel_values = values;
  fake_grid_size = grid;
  fake_block_size = block;
  unsigned n = block.x * block.y * block.z;
  uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  bool backwards = launches++ % 2;
  for (uint64_t k = 0; k < blocks; k++) {
    uint64_t b = backwards ? blocks - 1 - k : k;
    fake_block = {unsigned(b % grid.x), unsigned(b / grid.x % grid.y),
                  unsigned(b / grid.x / grid.y)};
    prepare_block(n);
    // No block finds what another one left.
    asked_for.assign(shared + kSharedMargin, kUnsetShared);
    memset(arrays.start, kUnsetShared, arrays.bytes);
    if (!run_block(n)) {
      // Those that wait for ever are given up, stacks and all.
      fibers.clear();
      return false;
    }
  }
  return true;
}

}  // namespace

API void fake_wait(FakeWait kind, int line) {
  running->waits_for = kind;
  running->line = line;
  back_to_scheduler();
  fake_thread = running->thread;
}

API unsigned char* fake_shared() { return asked_for.data(); }

static unsigned fake_place() {
  FakeDim t = running->thread, size = fake_block_size;
  return t.x + size.x * (t.y + size.y * t.z);
}

API unsigned fake_lane() { return fake_place() % kWarp; }

API void* fake_slot(unsigned lane) { return &fibers[fake_place() / kWarp * kWarp + lane]->slot; }

// Who takes part in an exchange, and whose value is taken, must be in the mask.
API void fake_check_exchange(unsigned mask, unsigned from) {
  unsigned lane = fake_lane(), first = fake_place() - lane;
  if (!(mask >> lane & 1)) misuse = "a thread exchanges values by a mask without itself";
  else if (first + from >= block_threads || !(mask >> from & 1))
    misuse = "a thread takes the value of one that takes no part in the exchange";
}

// The compiler puts a call of it wherever an address is no multiple of the alignment that the type
// there has. (-fsanitize=alignment)
API void __ubsan_handle_type_mismatch_v1(void*, void*) {
  misuse = "an address is not aligned to the type of what is there";
  misaligned = true;
  back_to_scheduler();  // and never on: the instruction would end the process
}

// Until it is there, what was at its place is lost as well.
API void fake_copy(void* to, const void* source, unsigned bytes, unsigned zeros) {
  if (bytes != 4 && bytes != 8 && bytes != 16) misuse = "there are copies of 4, 8 and 16 bytes only";
  if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(source) % bytes) {
    misuse = "a copy to shared memory is not aligned to its size";
    misaligned = true;
  }
  memset(to, kUnsetShared, bytes);
  running->copies.push_back({static_cast<char*>(to), static_cast<const char*>(source), bytes, zeros});
}

API void fake_commit() {
  running->groups.push_back(std::move(running->copies));
  running->copies.clear();
}

API void fake_await(unsigned newest) {
  while (running->groups.size() > newest) {
    for (const Copy& copy : running->groups.front()) {
      memcpy(copy.to, copy.source, copy.bytes - copy.zeros);
      memset(copy.to + copy.bytes - copy.zeros, 0, copy.zeros);
    }
    running->groups.pop_front();
  }
}
