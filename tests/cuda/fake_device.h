// Part of the fake driver: lets a C++ compiler take the text of a CUDA C kernel as it is.
//
// The names that CUDA C has beside C++ are defined here, for one thread of one block; the fake
// driver (fake_driver.cpp) has the threads, and what they wait for. A kernel's library leaves the
// names that start with `fake_` open: they are the driver's.
// Nothing is included: the headers of C++ take five times as long as a kernel.
#pragma once

#define FERRULE_SHIM 1

struct FakeDim {
  unsigned x, y, z;
};
enum FakeWait { FAKE_BLOCK = 1, FAKE_WARP = 2 };

extern "C" {
extern FakeDim fake_thread, fake_block, fake_block_size, fake_grid_size;
// Lets the other threads go on, until all of the block or of the warp wait at the same line.
void fake_wait(FakeWait kind, int line);
// Eight bytes of the thread that is `lane` of this thread's warp.
void* fake_slot(unsigned lane);
void fake_check_exchange(unsigned mask, unsigned from);
unsigned fake_lane();
// The bytes of shared memory that the launch asked for.
unsigned char* fake_shared();
// Copies that are there only when their thread has waited for them.
void fake_copy(void* to, const void* source, unsigned bytes, unsigned zeros);
void fake_commit();
void fake_await(unsigned newest);
}

#ifndef FAKE_DRIVER
typedef unsigned long size_t;
#define FAKE_FUNCTIONS(of)                                                               \
  extern "C" double of(double);                                                          \
  extern "C" float of##f(float);
FAKE_FUNCTIONS(sqrt)
FAKE_FUNCTIONS(trunc)
FAKE_FUNCTIONS(rint)
FAKE_FUNCTIONS(floor)
FAKE_FUNCTIONS(ceil)
FAKE_FUNCTIONS(fabs)
extern "C" double fmod(double, double);
extern "C" float fmodf(float, float);
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
extern "C" float exp2f(float);
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

#define threadIdx fake_thread
#define blockIdx fake_block
#define blockDim fake_block_size
#define gridDim fake_grid_size
#define warpSize 32

#define __global__
#define __device__
#define __host__
#define __constant__ static
// In a section of its own, so that the driver finds it.
#define __shared__ static __attribute__((section("fake_shared")))
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
// The word of C++ may not follow `static`, which stands for `__shared__` here.
#define alignas(n) __attribute__((aligned(n)))
#define __syncthreads() fake_wait(FAKE_BLOCK, __LINE__)
#define __syncwarp(...) fake_wait(FAKE_WARP, __LINE__)

#define FAKE_VECTORS(name, type)                                                      \
  struct __align__(2 * sizeof(type)) name##2 {                                        \
    type x, y;                                                                        \
  };                                                                                  \
  struct __align__(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4 {            \
    type x, y, z, w;                                                                  \
  };                                                                                  \
  static inline name##2 make_##name##2(type x, type y) { return {x, y}; }             \
  static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
typedef unsigned char fake_uchar;
typedef unsigned short fake_ushort;
typedef unsigned int fake_uint;
typedef long long fake_longlong;
typedef unsigned long long fake_ulonglong;
FAKE_VECTORS(char, signed char)
FAKE_VECTORS(uchar, fake_uchar)
FAKE_VECTORS(short, short)
FAKE_VECTORS(ushort, fake_ushort)
FAKE_VECTORS(int, int)
FAKE_VECTORS(uint, fake_uint)
FAKE_VECTORS(longlong, fake_longlong)
FAKE_VECTORS(ulonglong, fake_ulonglong)
FAKE_VECTORS(float, float)
FAKE_VECTORS(double, double)

template <class To, class From>
static inline To fake_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}
static inline int __float_as_int(float x) { return fake_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return fake_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return fake_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return fake_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return fake_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return fake_bits<double>(x); }

// Each compiles to one operation, rounded to nearest even: nothing is contracted here.
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __drcp_rn(double a) { return 1.0 / a; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

template <class Value>
static Value fake_shuffle(unsigned mask, Value value, unsigned from, int line) {
  static_assert(sizeof(Value) <= 8);
  fake_check_exchange(mask, from % 32);
  __builtin_memcpy(fake_slot(fake_lane()), &value, sizeof value);
  fake_wait(FAKE_WARP, line);
  Value result;
  __builtin_memcpy(&result, fake_slot(from % 32), sizeof result);
  fake_wait(FAKE_WARP, line);
  return result;
}
#define __shfl_sync(mask, value, lane, ...) fake_shuffle(mask, value, lane, __LINE__)
#define __shfl_xor_sync(mask, value, distance, ...) \
  fake_shuffle(mask, value, fake_lane() ^ (distance), __LINE__)

// cuda_pipeline_primitives.h
#define __pipeline_memcpy_async(to, source, bytes, zeros) fake_copy(to, source, bytes, zeros)
#define __pipeline_commit() fake_commit()
#define __pipeline_wait_prior(newest) fake_await(newest)

// What the driver finds of a kernel: how to call it once, the sizes of its parameters, the most
// threads of a block, its arrays in shared memory.
template <size_t...>
struct FakeNumbers {};
template <class... Values, size_t... Numbers>
static inline void fake_call(void (*kernel)(Values...), void** values, FakeNumbers<Numbers...>) {
  kernel(*static_cast<Values*>(values[Numbers])...);
}
template <class... Values>
static inline void fake_call(void (*kernel)(Values...), void** values) {
  fake_call(kernel, values, FakeNumbers<__integer_pack(sizeof...(Values))...>{});
}
template <class... Values>
static const size_t* fake_sizes(void (*)(Values...)) {
  static const size_t sizes[] = {sizeof(Values)..., 0};
  return sizes;
}
// The linker defines both where there is such a section.
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_fake_shared[];
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __stop_fake_shared[];
#define FAKE_KERNEL(name, threads)                                                     \
  extern "C" void fake_call_##name(void** values) { fake_call(name, values); }         \
  extern "C" const size_t* fake_sizes_##name() { return fake_sizes(name); }            \
  extern "C" unsigned fake_threads_##name() { return threads; }                        \
  extern "C" unsigned char* fake_shared_##name(bool end) {                             \
    return end ? __stop_fake_shared : __start_fake_shared;                             \
  }
#endif
