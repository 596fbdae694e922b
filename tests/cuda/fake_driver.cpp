// The fake driver: a stand-in for libcuda.so.1 that runs kernels on the processor, for tests.
//
// Kernels are libraries that a C++ compiler made of CUDA C text and fake_device.h. Nothing is done
// before it must be: work waits in its stream until somebody synchronises, so that what is
// overwritten or freed too early shows. The nodes of a graph run in the order that is most unlike
// the one they were added in, as far as their dependencies allow it; the threads of a block take
// turns in changing order.
//
// What NVIDIA's documentation forbids is refused with the code that it names. What a real driver
// would merely allow is an error too: a context that is not current, memory of the host that is not
// pinned in a copy that is asynchronous, work on memory that is freed. Mistakes of which no caller
// would hear, such as code that is unloaded while a graph still needs it, are `complaints`, which
// tests look at.
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "fake_block.h"

// *** what the driver has ***

namespace {

struct Context {
  int device;
  CUresult error = CUDA_SUCCESS;  // after a failed kernel nothing works any more
  size_t used = 0;
  std::set<Context*> peers;  // whose memory its kernels may use
};

struct Allocation {
  Context* context;  // null: pinned memory of the host
  size_t bytes;
};

using Operation = std::function<CUresult()>;

struct Stream {
  Context* context;
  std::deque<Operation> pending;
};

struct Event {
  Context* context;
  bool is_timed;
  Stream* stream = nullptr;
  long asked = 0, reached = 0;  // how often it was recorded, and which of these have run
  std::chrono::steady_clock::time_point time;
};

struct Module {
  Context* context;
  void* library;
};

struct Function {
  Module* module;
  void (*call)(void**);
  std::vector<size_t> sizes;
  std::string name;
  unsigned most_threads;
  SharedArrays arrays;
  int dynamic_shared_limit;  // what a launch may ask for
};

// A launch with the values of its parameters, as they were when it was asked for.
struct Launch {
  Function* function;
  FakeDim grid, block;
  unsigned shared;
  std::vector<std::vector<char>> values;
};

struct Graph;

struct Node {
  Graph* graph;
  bool is_kernel;
  Launch launch;
  CUDA_MEMCPY3D copy;
  Context *to, *from;  // whose memory it copies
  std::vector<Node*> after;
};

struct Graph {
  std::vector<Node*> nodes;
};

struct Executable {
  Context* context;
  std::vector<Node*> order;  // as added
  std::map<Node*, Node> nodes;
  std::map<Node*, bool> enabled;
};

constexpr int kStaticShared = 48 << 10, kMostShared = 227 << 10;
constexpr size_t kMostPitch = 0x7fffffff;
constexpr size_t kMargin = 256;
constexpr unsigned char kUnset = 0xA5, kFreed = 0xDD, kMarginByte = 0x5A;

std::recursive_mutex lock;
bool initialised = false;
int device_count = 1;
size_t memory_limit = size_t(1) << 30;
int capability = 90;
std::vector<Context*> contexts;
thread_local Context* current = nullptr;
thread_local std::vector<Context*> pushed;
std::map<uintptr_t, Allocation> allocations;
std::set<Stream*> streams;
std::set<Event*> events;
std::set<Module*> modules;
std::set<Function*> functions;
std::set<Graph*> graphs;
std::set<Executable*> executables;
std::map<std::string, long> calls;
std::map<std::string, std::pair<long, CUresult>> failures;  // after how many calls, with what
std::vector<std::string> ran;  // the kernels and copies of graphs and launches, as they ran
std::string report;            // what was wrong at the last failure
std::vector<std::string> complaints;
pid_t owner;  // the process that has initialised the driver

// The start of each entry: counts it, and fails where a test asked for that.
CUresult enter(const char* name, bool needs_context) {
  std::string key(name);
  key = key.substr(0, key.find("_v"));
  calls[key]++;
  auto failure = failures.find(key);
  if (failure != failures.end() && failure->second.first-- <= 0) {
    CUresult code = failure->second.second;
    failures.erase(failure);
    return code;
  }
  if (!initialised && key != "cuInit") return CUDA_ERROR_NOT_INITIALIZED;
  // A fork has the driver's memory, and no access to the GPU.
  if (initialised && owner != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!needs_context) return CUDA_SUCCESS;
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  return current->error;
}

#define ENTER_WITH(needs_context)                    \
  std::lock_guard<std::recursive_mutex> guard(lock); \
  if (CUresult code = enter(__func__, needs_context)) return code
#define ENTER ENTER_WITH(true)
#define ENTER_WITHOUT_CONTEXT ENTER_WITH(false)

CUresult wrong(CUresult code, const std::string& why) {
  report = why;
  return code;
}

bool is_context(Context* context) {
  return std::count(contexts.begin(), contexts.end(), context) > 0;
}

// The allocation that has all of `bytes` bytes from `address` on; null if there is none.
Allocation* find(uintptr_t address, size_t bytes) {
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return nullptr;
  auto [start, allocation] = *std::prev(next);
  return address + bytes <= start + allocation.bytes ? &std::prev(next)->second : nullptr;
}

bool margins_are_whole(uintptr_t start, size_t bytes) {
  auto* before = reinterpret_cast<unsigned char*>(start) - kMargin;
  auto* after = reinterpret_cast<unsigned char*>(start) + bytes;
  for (size_t i = 0; i < kMargin; i++)
    if (before[i] != kMarginByte || after[i] != kMarginByte) return false;
  return true;
}

void set_margins(uintptr_t start, size_t bytes) {
  memset(reinterpret_cast<void*>(start - kMargin), kMarginByte, kMargin);
  memset(reinterpret_cast<void*>(start + bytes), kMarginByte, kMargin);
}

uintptr_t take(Context* context, size_t bytes) {
  size_t whole = (bytes + 2 * kMargin + 255) / 256 * 256;
  uintptr_t start = reinterpret_cast<uintptr_t>(aligned_alloc(256, whole)) + kMargin;
  set_margins(start, bytes);
  memset(reinterpret_cast<void*>(start), kUnset, bytes);
  allocations[start] = {context, bytes};
  return start;
}

void give_back(uintptr_t start) {
  size_t bytes = allocations[start].bytes;
  memset(reinterpret_cast<void*>(start), kFreed, bytes);
  allocations.erase(start);
  free(reinterpret_cast<void*>(start - kMargin));
}

CUresult check_margins() {
  for (auto& [start, allocation] : allocations)
    if (!margins_are_whole(start, allocation.bytes))
      return wrong(CUDA_ERROR_ILLEGAL_ADDRESS,
                   "something was written next to " + std::to_string(allocation.bytes) + " bytes");
  return CUDA_SUCCESS;
}

CUresult run_first(Stream* stream) {
  Operation operation = std::move(stream->pending.front());
  stream->pending.pop_front();
  CUresult code = operation();
  if (code == CUDA_SUCCESS) code = check_margins();
  if (code != CUDA_SUCCESS && stream->context->error == CUDA_SUCCESS) stream->context->error = code;
  return stream->context->error;
}

CUresult drain(Stream* stream) {
  while (!stream->pending.empty() && stream->context->error == CUDA_SUCCESS) run_first(stream);
  return stream->context->error;
}

// Runs what is before the record number `until`.
CUresult finish(Event* event, long until) {
  while (event->reached < until && !event->stream->pending.empty()) {
    CUresult code = run_first(event->stream);
    if (code != CUDA_SUCCESS) return code;
  }
  return CUDA_SUCCESS;
}

CUresult add(Stream* stream, Operation operation) {
  if (!streams.count(stream))
    return wrong(CUDA_ERROR_INVALID_HANDLE, "no such stream, or the default stream");
  if (stream->context != current)
    return wrong(CUDA_ERROR_INVALID_CONTEXT, "the stream's context is not current");
  stream->pending.push_back(std::move(operation));
  return CUDA_SUCCESS;
}

CUresult copy_bytes(uintptr_t dest, uintptr_t source, size_t bytes) {
  if (!find(dest, bytes) || !find(source, bytes))
    return wrong(CUDA_ERROR_ILLEGAL_ADDRESS, "a copy to or from memory that is not allocated");
  if (dest < source + bytes && source < dest + bytes)
    return wrong(CUDA_ERROR_INVALID_VALUE, "a copy to memory that overlaps with its source");
  memcpy(reinterpret_cast<void*>(dest), reinterpret_cast<void*>(source), bytes);
  ran.push_back("copy");
  return CUDA_SUCCESS;
}

// `host`: which of the two is memory of the host, which has to be pinned.
CUresult add_copy(Stream* stream, uintptr_t dest, uintptr_t source, size_t bytes, int host) {
  Allocation *to = find(dest, bytes), *from = find(source, bytes);
  if (!to || !from)
    return wrong(CUDA_ERROR_INVALID_VALUE, "a copy to or from memory that is not allocated");
  if ((host == 1) != !to->context || (host == 2) != !from->context)
    return wrong(CUDA_ERROR_INVALID_VALUE, "a copy to or from the wrong kind of memory");
  return add(stream, [=] { return copy_bytes(dest, source, bytes); });
}

CUresult check_launch(const Launch& launch) {
  FakeDim g = launch.grid, b = launch.block;
  if (!functions.count(launch.function))
    return wrong(CUDA_ERROR_INVALID_HANDLE, "no such function, or its module is unloaded");
  if (!g.x || !g.y || !g.z || !b.x || !b.y || !b.z || b.x > 1024 || b.y > 1024 || b.z > 64 ||
      g.x > 0x7fffffff || g.y > 65535 || g.z > 65535)
    return wrong(CUDA_ERROR_INVALID_VALUE, "a launch of a size that there is not");
  if (b.x * b.y * b.z > launch.function->most_threads)
    return wrong(CUDA_ERROR_INVALID_VALUE, "more threads in a block than the function was made for");
  if (launch.shared > unsigned(launch.function->dynamic_shared_limit))
    return wrong(CUDA_ERROR_INVALID_VALUE, "more shared memory than the function was allowed");
  if (launch.function->module->context != current)
    return wrong(CUDA_ERROR_INVALID_CONTEXT, "the function's context is not current");
  return CUDA_SUCCESS;
}

CUresult take_values(Launch& launch, void** values, void** extra) {
  launch.values.clear();
  if (extra || (!values && !launch.function->sizes.empty()))
    return wrong(CUDA_ERROR_INVALID_VALUE, "a launch without arguments, or with them twice");
  for (size_t i = 0; i < launch.function->sizes.size(); i++) {
    char* bytes = static_cast<char*>(values[i]);
    launch.values.emplace_back(bytes, bytes + launch.function->sizes[i]);
  }
  return CUDA_SUCCESS;
}

// Eight bytes are an address: null, or in memory that the function's GPU can use.
bool can_be_used(const std::vector<char>& value, Context* context) {
  uint64_t address = 0;
  if (value.size() != sizeof address) return true;
  memcpy(&address, value.data(), sizeof address);
  Allocation* found = address ? find(address, 0) : nullptr;
  if (!found) return !address;
  return !found->context || found->context == context || context->peers.count(found->context);
}

CUresult run_launch(Launch launch) {
  Function* function = launch.function;
  if (!functions.count(function))
    return wrong(CUDA_ERROR_LAUNCH_FAILED, function->name + " was unloaded before it ran");
  std::vector<void*> values;
  for (auto& value : launch.values) {
    if (!can_be_used(value, function->module->context))
      return wrong(CUDA_ERROR_ILLEGAL_ADDRESS, function->name + " has memory that is not allocated");
    values.push_back(value.data());
  }
  ran.push_back(function->name + " " + std::to_string(launch.grid.x) + "x" +
                std::to_string(launch.block.x) + "+" + std::to_string(launch.shared));
  if (run_kernel(function->call, values.data(), launch.grid, launch.block, launch.shared,
                 function->arrays))
    return CUDA_SUCCESS;
  CUresult code = misaligned ? CUDA_ERROR_MISALIGNED_ADDRESS : CUDA_ERROR_LAUNCH_FAILED;
  return wrong(code, function->name + ": " + problem);
}

uintptr_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

// *** for the tests: what happened, and what is to happen ***

API long fake_calls(const char* name) { return calls[name]; }
API void fake_fail(const char* name, int code, long after) {
  failures[name] = {after, CUresult(code)};
}
API void fake_set_memory(size_t bytes) { memory_limit = bytes; }
API void fake_set_devices(int count) { device_count = count; }
API void fake_set_capability(int number) { capability = number; }
API const char* fake_report() { return report.c_str(); }
API size_t fake_used() { return contexts.empty() ? 0 : contexts[0]->used; }
// A failed kernel is forgotten, and what was queued after it.
API void fake_reset() {
  for (Stream* stream : streams)
    if (stream->context->error != CUDA_SUCCESS) stream->pending.clear();
  for (Context* context : contexts) context->error = CUDA_SUCCESS;
  for (auto& [start, allocation] : allocations) set_margins(start, allocation.bytes);
  failures.clear();
  report.clear();
  complaints.clear();
}
API const char* fake_complaints() {
  static std::string text;
  text.clear();
  for (auto& line : complaints) text += line + "\n";
  return text.c_str();
}
API size_t fake_pending() {
  size_t total = 0;
  for (Stream* stream : streams) total += stream->pending.size();
  return total;
}
API long fake_alive(const char* kind) {
  std::string name(kind);
  if (name == "memory")
    return std::count_if(allocations.begin(), allocations.end(),
                         [](auto& entry) { return entry.second.context; });
  if (name == "pinned") return allocations.size() - fake_alive("memory");
  if (name == "streams") return streams.size();
  if (name == "events") return events.size();
  if (name == "modules") return modules.size();
  if (name == "graphs") return graphs.size();
  if (name == "executables") return executables.size();
  return -1;
}
// What ran since the last time, a line each.
API const char* fake_ran() {
  static std::string text;
  text.clear();
  for (auto& line : ran) text += line + "\n";
  ran.clear();
  return text.c_str();
}

// *** the entries ***

API CUresult cuInit(unsigned flags) {
  ENTER_WITHOUT_CONTEXT;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (!device_count) return CUDA_ERROR_NO_DEVICE;
  initialised = true;
  owner = getpid();
  return CUDA_SUCCESS;
}
API CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult code, const char** text) {
  switch (code) {
#define NAMED(name) \
  case name:        \
    *text = #name;  \
    return CUDA_SUCCESS
    NAMED(CUDA_SUCCESS);
    NAMED(CUDA_ERROR_INVALID_VALUE);
    NAMED(CUDA_ERROR_OUT_OF_MEMORY);
    NAMED(CUDA_ERROR_NOT_INITIALIZED);
    NAMED(CUDA_ERROR_NO_DEVICE);
    NAMED(CUDA_ERROR_INVALID_DEVICE);
    NAMED(CUDA_ERROR_INVALID_IMAGE);
    NAMED(CUDA_ERROR_INVALID_CONTEXT);
    NAMED(CUDA_ERROR_NO_BINARY_FOR_GPU);
    NAMED(CUDA_ERROR_INVALID_HANDLE);
    NAMED(CUDA_ERROR_NOT_FOUND);
    NAMED(CUDA_ERROR_NOT_READY);
    NAMED(CUDA_ERROR_ILLEGAL_ADDRESS);
    NAMED(CUDA_ERROR_MISALIGNED_ADDRESS);
    NAMED(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    NAMED(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    NAMED(CUDA_ERROR_TOO_MANY_PEERS);
    NAMED(CUDA_ERROR_LAUNCH_FAILED);
    NAMED(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    default:
      *text = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}
API CUresult cuGetErrorString(CUresult code, const char** text) {
  CUresult known = cuGetErrorName(code, text);
  if (known == CUDA_SUCCESS && !report.empty()) *text = report.c_str();
  return known;
}
API CUresult cuDeviceGetCount(int* count) {
  ENTER_WITHOUT_CONTEXT;
  *count = device_count;
  return CUDA_SUCCESS;
}
#define CHECK_DEVICE(device) \
  if ((device) < 0 || (device) >= device_count) return CUDA_ERROR_INVALID_DEVICE
API CUresult cuDeviceGet(CUdevice* device, int number) {
  ENTER_WITHOUT_CONTEXT;
  CHECK_DEVICE(number);
  *device = number;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char* text, int length, CUdevice device) {
  ENTER_WITHOUT_CONTEXT;
  CHECK_DEVICE(device);
  snprintf(text, length, "fake driver");
  return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  ENTER_WITHOUT_CONTEXT;
  CHECK_DEVICE(device);
  *bytes = memory_limit;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  ENTER_WITHOUT_CONTEXT;
  CHECK_DEVICE(device);
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = capability / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = capability % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 0x7fffffff; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = kWarp; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = kMostShared; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 228 << 10; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 50 << 20; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 2619000; break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 5120; break;
    default: return wrong(CUDA_ERROR_INVALID_VALUE, "the fake driver lacks this attribute");
  }
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ENTER_WITHOUT_CONTEXT;
  CHECK_DEVICE(device);
  while (int(contexts.size()) <= device) contexts.push_back(new Context{int(contexts.size())});
  *context = reinterpret_cast<CUcontext>(contexts[device]);
  return CUDA_SUCCESS;
}
// Like most functions they "may also return error codes from previous, asynchronous launches".
API CUresult cuCtxSetCurrent(CUcontext context) {
  ENTER_WITHOUT_CONTEXT;
  auto* it = reinterpret_cast<Context*>(context);
  if (it && !is_context(it)) return CUDA_ERROR_INVALID_CONTEXT;
  if (it && it->error != CUDA_SUCCESS) return it->error;
  current = it;
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext* context) {
  ENTER_WITHOUT_CONTEXT;
  *context = reinterpret_cast<CUcontext>(current);
  return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  ENTER_WITHOUT_CONTEXT;
  auto* it = reinterpret_cast<Context*>(context);
  if (!is_context(it)) return CUDA_ERROR_INVALID_CONTEXT;
  if (it->error != CUDA_SUCCESS) return it->error;
  pushed.push_back(current);
  current = it;
  return CUDA_SUCCESS;
}
API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  ENTER_WITHOUT_CONTEXT;
  if (pushed.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = reinterpret_cast<CUcontext>(current);
  current = pushed.back();
  pushed.pop_back();
  return CUDA_SUCCESS;
}
API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice other) {
  ENTER_WITHOUT_CONTEXT;
  CHECK_DEVICE(device);
  CHECK_DEVICE(other);
  *can = device != other;
  return CUDA_SUCCESS;
}
API CUresult cuCtxEnablePeerAccess(CUcontext context, unsigned flags) {
  ENTER;
  auto* peer = reinterpret_cast<Context*>(context);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (!is_context(peer) || peer == current) return CUDA_ERROR_INVALID_CONTEXT;
  bool is_new = current->peers.insert(peer).second;
  return is_new ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

// memory

API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  ENTER;
  *free = memory_limit - std::min(memory_limit, current->used);
  *total = memory_limit;
  return CUDA_SUCCESS;
}
API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  ENTER;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (current->used + bytes > memory_limit) return CUDA_ERROR_OUT_OF_MEMORY;
  current->used += bytes;
  *address = take(current, bytes);
  return CUDA_SUCCESS;
}
API CUresult cuMemFree_v2(CUdeviceptr address) {
  ENTER;
  auto found = allocations.find(address);
  if (found == allocations.end() || !found->second.context)
    return wrong(CUDA_ERROR_INVALID_VALUE, "memory is freed that is not allocated");
  if (found->second.context != current) return CUDA_ERROR_INVALID_CONTEXT;
  current->used -= found->second.bytes;
  give_back(address);
  return CUDA_SUCCESS;
}
API CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
  ENTER;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *pointer = reinterpret_cast<void*>(take(nullptr, bytes));
  return CUDA_SUCCESS;
}
API CUresult cuMemFreeHost(void* pointer) {
  ENTER;
  auto found = allocations.find(address_of(pointer));
  if (found == allocations.end() || found->second.context)
    return wrong(CUDA_ERROR_INVALID_VALUE, "this is no pinned memory of the host");
  give_back(address_of(pointer));
  return CUDA_SUCCESS;
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dest, const void* source, size_t bytes,
                                  CUstream stream) {
  ENTER;
  return add_copy(reinterpret_cast<Stream*>(stream), dest, address_of(source), bytes, 2);
}
API CUresult cuMemcpyDtoHAsync_v2(void* dest, CUdeviceptr source, size_t bytes, CUstream stream) {
  ENTER;
  return add_copy(reinterpret_cast<Stream*>(stream), address_of(dest), source, bytes, 1);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dest, CUdeviceptr source, size_t bytes,
                                  CUstream stream) {
  ENTER;
  Allocation *to = find(dest, bytes), *from = find(source, bytes);
  if (to && from && (to->context != current || from->context != current))
    return wrong(CUDA_ERROR_INVALID_VALUE, "a copy inside a device with memory of another");
  return add_copy(reinterpret_cast<Stream*>(stream), dest, source, bytes, 0);
}
API CUresult cuMemcpyPeerAsync(CUdeviceptr dest, CUcontext dest_context, CUdeviceptr source,
                               CUcontext source_context, size_t bytes, CUstream stream) {
  ENTER;
  Allocation *to = find(dest, bytes), *from = find(source, bytes);
  if (!to || !from || to->context != reinterpret_cast<Context*>(dest_context) ||
      from->context != reinterpret_cast<Context*>(source_context))
    return wrong(CUDA_ERROR_INVALID_VALUE, "a copy between devices with memory of others");
  return add_copy(reinterpret_cast<Stream*>(stream), dest, source, bytes, 0);
}

// streams and events

API CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  ENTER;
  if (flags & ~CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  auto* made = new Stream{current, {}};
  streams.insert(made);
  *stream = reinterpret_cast<CUstream>(made);
  return CUDA_SUCCESS;
}
API CUresult cuStreamSynchronize(CUstream stream) {
  ENTER;
  auto* it = reinterpret_cast<Stream*>(stream);
  return streams.count(it) ? drain(it) : CUDA_ERROR_INVALID_HANDLE;
}
API CUresult cuStreamDestroy_v2(CUstream stream) {
  ENTER;
  auto* it = reinterpret_cast<Stream*>(stream);
  if (!streams.count(it)) return CUDA_ERROR_INVALID_HANDLE;
  drain(it);
  streams.erase(it);
  return CUDA_SUCCESS;
}
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  ENTER;
  auto* it = reinterpret_cast<Event*>(event);
  if (!events.count(it)) return CUDA_ERROR_INVALID_HANDLE;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  long until = it->asked;
  return add(reinterpret_cast<Stream*>(stream), [it, until] { return finish(it, until); });
}
API CUresult cuEventCreate(CUevent* event, unsigned flags) {
  ENTER;
  if (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
  auto* made = new Event{current, !(flags & CU_EVENT_DISABLE_TIMING)};
  events.insert(made);
  *event = reinterpret_cast<CUevent>(made);
  return CUDA_SUCCESS;
}
API CUresult cuEventDestroy_v2(CUevent event) {
  ENTER;
  // What waits for it may still be to run: the memory stays.
  return events.erase(reinterpret_cast<Event*>(event)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
API CUresult cuEventRecord(CUevent event, CUstream stream) {
  ENTER;
  auto* it = reinterpret_cast<Event*>(event);
  auto* into = reinterpret_cast<Stream*>(stream);
  if (!events.count(it) || !streams.count(into)) return CUDA_ERROR_INVALID_HANDLE;
  if (it->context != into->context)
    return wrong(CUDA_ERROR_INVALID_HANDLE, "an event and a stream of different contexts");
  it->stream = into;
  long number = ++it->asked;
  return add(it->stream, [it, number] {
    it->reached = number;
    it->time = std::chrono::steady_clock::now();
    return CUDA_SUCCESS;
  });
}
API CUresult cuEventSynchronize(CUevent event) {
  ENTER;
  auto* it = reinterpret_cast<Event*>(event);
  return events.count(it) ? finish(it, it->asked) : CUDA_ERROR_INVALID_HANDLE;
}
API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  ENTER;
  auto *first = reinterpret_cast<Event*>(start), *last = reinterpret_cast<Event*>(end);
  for (Event* it : {first, last})
    if (!events.count(it) || !it->is_timed || !it->asked || it->context != current)
      return wrong(CUDA_ERROR_INVALID_HANDLE, "an event that has no time, or is not recorded");
  if (first->reached < first->asked || last->reached < last->asked) return CUDA_ERROR_NOT_READY;
  std::chrono::duration<float, std::milli> elapsed = last->time - first->time;
  *milliseconds = elapsed.count();
  return CUDA_SUCCESS;
}

// modules

namespace {

// An image begins with this, and a library follows.
struct Image {
  char magic[8];
  char architecture[8];
  uint64_t length;
};

// Machine code is for later GPUs of its generation, or, with an `a`, for just one kind.
bool runs_here(const std::string& architecture) {
  int made_for = atoi(architecture.c_str() + 3);
  if (architecture.back() == 'a') return made_for == capability;
  return made_for / 10 == capability / 10 && made_for <= capability;
}

bool is_in(const Executable& graph, Module* module) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](auto& entry) {
    return entry.second.is_kernel && entry.second.launch.function->module == module;
  });
}

}  // namespace

API CUresult cuModuleLoadData(CUmodule* module, const void* data) {
  ENTER;
  auto* image = static_cast<const Image*>(data);
  if (memcmp(image->magic, "FAKECUBN", 8)) return wrong(CUDA_ERROR_INVALID_IMAGE, "no image of ours");
  std::string architecture(image->architecture, strnlen(image->architecture, 8));
  if (!runs_here(architecture))
    return wrong(CUDA_ERROR_NO_BINARY_FOR_GPU, "the image is for " + architecture);
  // A file of its own: what has the name of an open library is taken for that one.
  char path[] = "/tmp/fake-kernel-XXXXXX";
  int file = mkstemp(path);
  bool written = write(file, image + 1, image->length) == ssize_t(image->length);
  close(file);
  void* library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  std::string why = library ? "" : written ? dlerror() : "no room";
  unlink(path);
  if (!library) return wrong(CUDA_ERROR_INVALID_IMAGE, why);
  auto* made = new Module{current, library};
  modules.insert(made);
  *module = reinterpret_cast<CUmodule>(made);
  return CUDA_SUCCESS;
}
API CUresult cuModuleUnload(CUmodule module) {
  ENTER;
  auto* it = reinterpret_cast<Module*>(module);
  if (!modules.count(it)) return CUDA_ERROR_INVALID_HANDLE;
  if (it->context != current) return CUDA_ERROR_INVALID_CONTEXT;
  for (Executable* graph : executables)
    if (is_in(*graph, it)) complaints.push_back("code was unloaded that a graph needs");
  modules.erase(it);
  // The records stay, for launches that wait: these find that the function is gone.
  for (auto place = functions.begin(); place != functions.end();)
    place = (*place)->module == it ? functions.erase(place) : std::next(place);
  dlclose(it->library);
  return CUDA_SUCCESS;
}
API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  ENTER;
  auto* it = reinterpret_cast<Module*>(module);
  if (!modules.count(it)) return CUDA_ERROR_INVALID_HANDLE;
  auto find_symbol = [&](const char* prefix) {
    return dlsym(it->library, (std::string(prefix) + name).c_str());
  };
  auto call = reinterpret_cast<void (*)(void**)>(find_symbol("fake_call_"));
  if (!call) return CUDA_ERROR_NOT_FOUND;
  auto sizes = reinterpret_cast<const size_t* (*)()>(find_symbol("fake_sizes_"));
  auto threads = reinterpret_cast<unsigned (*)()>(find_symbol("fake_threads_"));
  auto shared = reinterpret_cast<unsigned char* (*)(bool)>(find_symbol("fake_shared_"));
  SharedArrays arrays{shared(false), size_t(shared(true) - shared(false))};
  if (arrays.bytes > kStaticShared)
    return wrong(CUDA_ERROR_INVALID_IMAGE, "larger arrays in shared memory than a kernel can have");
  auto* made = new Function{it, call, {}, name, threads(), arrays, kStaticShared - int(arrays.bytes)};
  for (const size_t* size = sizes(); *size; size++) made->sizes.push_back(*size);
  functions.insert(made);
  *function = reinterpret_cast<CUfunction>(made);
  return CUDA_SUCCESS;
}
API CUresult cuFuncGetParamInfo(CUfunction function, size_t number, size_t* offset, size_t* size) {
  ENTER;
  auto* it = reinterpret_cast<Function*>(function);
  if (!functions.count(it)) return CUDA_ERROR_INVALID_HANDLE;
  if (number >= it->sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  size_t place = 0;
  for (size_t i = 0; i <= number; i++) {
    place = (place + it->sizes[i] - 1) / it->sizes[i] * it->sizes[i];
    *offset = place;
    place += it->sizes[i];
  }
  *size = it->sizes[number];
  return CUDA_SUCCESS;
}
API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  ENTER;
  auto* it = reinterpret_cast<Function*>(function);
  if (!functions.count(it)) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = it->most_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = it->arrays.bytes; break;
    // The documentation does not say whether a kernel's own arrays are part of this.
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = std::max(it->dynamic_shared_limit, kStaticShared);
      break;
    default: return wrong(CUDA_ERROR_INVALID_VALUE, "the fake driver lacks this attribute");
  }
  return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  ENTER;
  auto* it = reinterpret_cast<Function*>(function);
  if (!functions.count(it)) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
      value + int(it->arrays.bytes) > kMostShared)
    return wrong(CUDA_ERROR_INVALID_VALUE, "more shared memory than a block can have");
  it->dynamic_shared_limit = value;
  return CUDA_SUCCESS;
}
API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, CUstream stream,
                            void** values, void** extra) {
  ENTER;
  Launch launch{reinterpret_cast<Function*>(function), {gx, gy, gz}, {bx, by, bz}, shared, {}};
  if (CUresult code = check_launch(launch)) return code;
  if (CUresult code = take_values(launch, values, extra)) return code;
  return add(reinterpret_cast<Stream*>(stream), [launch] { return run_launch(launch); });
}

// graphs

namespace {

CUresult fill_kernel(Node& node, const CUDA_KERNEL_NODE_PARAMS* params) {
  Launch launch = {reinterpret_cast<Function*>(params->func),
                   {params->gridDimX, params->gridDimY, params->gridDimZ},
                   {params->blockDimX, params->blockDimY, params->blockDimZ},
                   params->sharedMemBytes,
                   {}};
  if (CUresult code = check_launch(launch)) return code;
  if (CUresult code = take_values(launch, params->kernelParams, params->extra)) return code;
  node.is_kernel = true;
  node.launch = launch;
  return CUDA_SUCCESS;
}

CUresult fill_copy(Node& node, const CUDA_MEMCPY3D* copy, CUcontext context) {
  if (reinterpret_cast<Context*>(context) != current) return CUDA_ERROR_INVALID_CONTEXT;
  if (copy->Height != 1 || copy->Depth != 1 || copy->srcMemoryType != CU_MEMORYTYPE_DEVICE ||
      copy->dstMemoryType != CU_MEMORYTYPE_DEVICE)
    return wrong(CUDA_ERROR_INVALID_VALUE, "the fake driver copies rows of the device only");
  size_t pitch = std::min(copy->srcPitch, copy->dstPitch);
  if (!copy->WidthInBytes || pitch < copy->WidthInBytes || pitch > kMostPitch ||
      !copy->srcHeight || !copy->dstHeight)
    return wrong(CUDA_ERROR_INVALID_VALUE, "a copy node of a size that there is not");
  Allocation* from = find(copy->srcDevice, copy->WidthInBytes);
  Allocation* to = find(copy->dstDevice, copy->WidthInBytes);
  if (!from || !to)
    return wrong(CUDA_ERROR_INVALID_VALUE, "a copy node with memory that is not allocated");
  node.from = from->context;
  node.to = to->context;
  node.is_kernel = false;
  node.copy = *copy;
  return CUDA_SUCCESS;
}

CUresult add_node(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, size_t n, Node made) {
  auto* it = reinterpret_cast<Graph*>(graph);
  if (!graphs.count(it)) return CUDA_ERROR_INVALID_HANDLE;
  made.graph = it;
  for (size_t i = 0; i < n; i++) {
    auto* earlier = reinterpret_cast<Node*>(after[i]);
    if (!std::count(it->nodes.begin(), it->nodes.end(), earlier))
      return wrong(CUDA_ERROR_INVALID_VALUE, "a dependency on a node that is not in the graph");
    made.after.push_back(earlier);
  }
  auto* node = new Node(std::move(made));
  it->nodes.push_back(node);
  *out = reinterpret_cast<CUgraphNode>(node);
  return CUDA_SUCCESS;
}

CUresult run_node(const Node& node) {
  if (node.is_kernel) return run_launch(node.launch);
  return copy_bytes(node.copy.dstDevice, node.copy.srcDevice, node.copy.WidthInBytes);
}

// Of the nodes that could run, always the one that was added last.
CUresult run_graph(const Executable& graph) {
  std::set<Node*> done;
  while (done.size() < graph.order.size()) {
    for (size_t k = graph.order.size(); k-- > 0;) {
      Node* node = graph.order[k];
      auto& after = node->after;
      bool ready = std::all_of(after.begin(), after.end(), [&](Node* n) { return done.count(n); });
      if (done.count(node) || !ready) continue;
      done.insert(node);
      if (graph.enabled.at(node))
        if (CUresult code = run_node(graph.nodes.at(node))) return code;
      break;
    }
  }
  return CUDA_SUCCESS;
}

Node* node_of(CUgraphExec executable, CUgraphNode node) {
  auto* it = reinterpret_cast<Executable*>(executable);
  auto* key = reinterpret_cast<Node*>(node);
  if (!executables.count(it) || !it->nodes.count(key)) return nullptr;
  // A node is no more when its graph is destroyed.
  return graphs.count(key->graph) ? &it->nodes[key] : nullptr;
}

}  // namespace

API CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
  ENTER;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  auto* made = new Graph;
  graphs.insert(made);
  *graph = reinterpret_cast<CUgraph>(made);
  return CUDA_SUCCESS;
}
API CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                     size_t n, const CUDA_KERNEL_NODE_PARAMS* params) {
  ENTER;
  Node made{};
  if (CUresult code = fill_kernel(made, params)) return code;
  return add_node(node, graph, after, n, made);
}
API CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                  size_t n, const CUDA_MEMCPY3D* copy, CUcontext context) {
  ENTER;
  Node made{};
  if (CUresult code = fill_copy(made, copy, context)) return code;
  return add_node(node, graph, after, n, made);
}
API CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                         unsigned long long flags) {
  ENTER;
  auto* it = reinterpret_cast<Graph*>(graph);
  if (!graphs.count(it)) return CUDA_ERROR_INVALID_HANDLE;
  if (flags & ~15ull) return CUDA_ERROR_INVALID_VALUE;
  auto* made = new Executable{current, it->nodes, {}, {}};
  for (Node* node : it->nodes) {
    made->nodes[node] = *node;
    made->enabled[node] = true;
  }
  executables.insert(made);
  *executable = reinterpret_cast<CUgraphExec>(made);
  return CUDA_SUCCESS;
}
API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                               const CUDA_KERNEL_NODE_PARAMS* params) {
  ENTER;
  Node* it = node_of(executable, node);
  if (!it || !it->is_kernel) return CUDA_ERROR_INVALID_VALUE;
  return fill_kernel(*it, params);
}
API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                            const CUDA_MEMCPY3D* copy, CUcontext context) {
  ENTER;
  Node* it = node_of(executable, node);
  if (!it || it->is_kernel) return CUDA_ERROR_INVALID_VALUE;
  Node made = *it;
  if (CUresult code = fill_copy(made, copy, context)) return code;
  if (made.to != it->to || made.from != it->from)
    return wrong(CUDA_ERROR_INVALID_VALUE, "a copy node's memory may not move to another GPU");
  *it = made;
  return CUDA_SUCCESS;
}
API CUresult cuGraphNodeSetEnabled(CUgraphExec executable, CUgraphNode node, unsigned enabled) {
  ENTER;
  if (!node_of(executable, node) || enabled > 1) return CUDA_ERROR_INVALID_VALUE;
  auto* it = reinterpret_cast<Executable*>(executable);
  it->enabled[reinterpret_cast<Node*>(node)] = enabled;
  return CUDA_SUCCESS;
}
API CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  ENTER;
  auto* it = reinterpret_cast<Executable*>(executable);
  if (!executables.count(it)) return CUDA_ERROR_INVALID_HANDLE;
  if (it->context != current) return CUDA_ERROR_INVALID_CONTEXT;
  // As it is now: what is set later is for later launches.
  Executable now = *it;
  return add(reinterpret_cast<Stream*>(stream), [now] { return run_graph(now); });
}
API CUresult cuGraphExecDestroy(CUgraphExec executable) {
  ENTER;
  auto* it = reinterpret_cast<Executable*>(executable);
  return executables.erase(it) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
API CUresult cuGraphDestroy(CUgraph graph) {
  ENTER;
  // The nodes stay: launches that wait refer to them.
  auto* it = reinterpret_cast<Graph*>(graph);
  return graphs.erase(it) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// How the bindings find all of these; names of later versions have a number at the end.
API CUresult cuGetProcAddress_v2(const char* symbol, void** function, int, cuuint64_t,
                                 CUdriverProcAddressQueryResult* status) {
  static void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *function = nullptr;
  for (const char* suffix : {"_v2", "", "WithFlags"})
    if ((*function = dlsym(self, (std::string(symbol) + suffix).c_str()))) break;
  if (status)
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
