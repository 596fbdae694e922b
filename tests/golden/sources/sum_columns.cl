// kernel kernel_sum_columns

#pragma OPENCL FP_CONTRACT OFF

typedef char i8;
typedef short i16;
typedef int i32;
typedef long i64;
typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef ulong u64;

static inline __attribute__((always_inline)) float across_add_float_16x16(float x, i32 thread, __local float *scratch) {
  const i32 place = thread % 256;
  scratch[thread] = x;
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (place < 128) scratch[thread] = scratch[thread] + scratch[thread + 128];
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (place < 64) scratch[thread] = scratch[thread] + scratch[thread + 64];
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (place < 32) scratch[thread] = scratch[thread] + scratch[thread + 32];
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (place < 16) scratch[thread] = scratch[thread] + scratch[thread + 16];
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  x = scratch[thread - place + place % 16];
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  return x;
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void kernel_sum_columns(__global float *data0, __global const float *restrict data1) {
  __local __attribute__((aligned(16))) u8 scratch[1024];
  const i32 block = (i32)get_group_id(0);
  const i32 thread = (i32)get_local_id(0);
  const i32 t0 = thread & 15;
  const i32 t1 = thread >> 4;
  const i32 t2 = t1 * 35;
  const bool t3 = t1 < 13;
  const bool t4 = (thread >> 4) < 1;
  float acc5 = 0.0f;
  const i32 t6 = block * 16;
  const i32 t7 = t6 + t0;
  const bool t8 = t7 < 35;
  const i32 t9 = t2 + t6 + t0;
  const float t10 = t8 ? data1[t9] : 0.0f;
  const float t11 = t8 ? data1[t9 + 560] : 0.0f;
  const float t12 = t8 ? data1[t9 + 1120] : 0.0f;
  const float t13 = t8 ? data1[t9 + 1680] : 0.0f;
  const float t14 = (t3 & t8) ? data1[t9 + 2240] : 0.0f;
  acc5 = (t10 + t11 + (t12 + t13)) + t14;
  const float t15 = across_add_float_16x16(acc5, (i32)get_local_id(0), (__local float *)scratch);
  if (t4 & t8) data0[t7] = t15;
}
