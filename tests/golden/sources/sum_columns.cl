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

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void kernel_sum_columns(__global float *data0, __global const float *restrict data1) {
  const i32 block = (i32)get_group_id(0);
  const i32 thread = (i32)get_local_id(0);
  float acc0 = 0.0f;
  const i32 t1 = block * 64;
  const i32 t2 = t1 + thread;
  const bool t3 = t2 < 35;
  for (i32 i0 = 0; i0 < 77; i0++) {
    const float t4 = t3 ? data1[t1 + i0 * 35 + thread] : 0.0f;
    acc0 = acc0 + t4;
  }
  if (t3) data0[t2] = acc0;
}
