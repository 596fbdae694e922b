// kernel kernel_softmax

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ __forceinline__ float float_of_bits(u32 x) {
  union { u32 x; float y; } same;
  same.x = x;
  return same.y;
}

static __device__ __forceinline__ float max_float(float a, float b) {
  return a < b || b != b ? b : a;
}

static __device__ __forceinline__ float across_max_float_128x1(float x, i32 thread, float *scratch) {
  const i32 place = thread % 128;
  scratch[thread] = x;
  __syncthreads();
  if (place < 64) scratch[thread] = max_float(scratch[thread], scratch[thread + 64]);
  __syncthreads();
  if (place < 32) scratch[thread] = max_float(scratch[thread], scratch[thread + 32]);
  __syncthreads();
  x = scratch[thread - place + place % 32];
  __syncthreads();
  const float other_16 = __shfl_xor_sync(0xffffffffu, x, 16);
  x = thread & 16 ? max_float(other_16, x) : max_float(x, other_16);
  const float other_8 = __shfl_xor_sync(0xffffffffu, x, 8);
  x = thread & 8 ? max_float(other_8, x) : max_float(x, other_8);
  const float other_4 = __shfl_xor_sync(0xffffffffu, x, 4);
  x = thread & 4 ? max_float(other_4, x) : max_float(x, other_4);
  const float other_2 = __shfl_xor_sync(0xffffffffu, x, 2);
  x = thread & 2 ? max_float(other_2, x) : max_float(x, other_2);
  const float other_1 = __shfl_xor_sync(0xffffffffu, x, 1);
  x = thread & 1 ? max_float(other_1, x) : max_float(x, other_1);
  return x;
}

static __device__ __forceinline__ u32 bits_of_float(float x) {
  union { float x; u32 y; } same;
  same.x = x;
  return same.y;
}

static __device__ __forceinline__ float across_add_float_128x1(float x, i32 thread, float *scratch) {
  const i32 place = thread % 128;
  scratch[thread] = x;
  __syncthreads();
  if (place < 64) scratch[thread] = scratch[thread] + scratch[thread + 64];
  __syncthreads();
  if (place < 32) scratch[thread] = scratch[thread] + scratch[thread + 32];
  __syncthreads();
  x = scratch[thread - place + place % 32];
  __syncthreads();
  const float other_16 = __shfl_xor_sync(0xffffffffu, x, 16);
  x = x + other_16;
  const float other_8 = __shfl_xor_sync(0xffffffffu, x, 8);
  x = x + other_8;
  const float other_4 = __shfl_xor_sync(0xffffffffu, x, 4);
  x = x + other_4;
  const float other_2 = __shfl_xor_sync(0xffffffffu, x, 2);
  x = x + other_2;
  const float other_1 = __shfl_xor_sync(0xffffffffu, x, 1);
  x = x + other_1;
  return x;
}

extern "C" __global__ void __launch_bounds__(128) kernel_softmax(float *data0, const float *__restrict__ data1) {
  __shared__ alignas(16) u8 scratch[512];
  const i32 block = (i32)blockIdx.x;
  const i32 thread = (i32)threadIdx.x;
  float acc0 = float_of_bits(0xff800000u);
  const i32 t1 = block * 100;
  for (i32 i0 = 0; i0 < 1; i0++) {
    const i32 t2 = i0 * 128;
    const bool t3 = (t2 + thread) < 100;
    const float t4 = t3 ? data1[t2 + t1 + thread] : 0.0f;
    acc0 = max_float(acc0, (t3 ? t4 : float_of_bits(0xff800000u)));
  }
  const float t5 = across_max_float_128x1(acc0, (i32)threadIdx.x, (float *)scratch);
  float acc6 = 0.0f;
  for (i32 i0 = 0; i0 < 1; i0++) {
    const i32 t7 = i0 * 128;
    const bool t8 = (t7 + thread) < 100;
    const float t9 = t8 ? data1[t7 + t1 + thread] : 0.0f;
    const float t10 = t9 - t5;
    const float t11 = (t10 < (-105.53166f)) ? (-105.53166f) : t10;
    const float t12 = (89.415985f < t11) ? 89.415985f : t11;
    const float t13 = fmaf(t12, 1.442695f, 12583064.0f);
    const float t14 = t13 - 12583064.0f;
    const float t15 = fmaf(t14, 1.9046542e-09f, fmaf(t14, (-0.6931472f), t12));
    const float t16 = fmaf(fmaf(fmaf(fmaf(fmaf(4.1187772e-11f, t15, 2.4940625e-10f), t15, 1.2418113e-09f), t15, 4.9670104e-09f), t15, 1.4901159e-08f), t15, 2.9802322e-08f);
    const float t17 = fmaf(t16, t15, 2.9802322e-08f);
    const u32 t18 = bits_of_float(t17);
    const u32 t19 = bits_of_float(t13);
    const u32 t20 = t19 >> 1u;
    const u32 t21 = t18 + (t20 << 23u);
    const float t22 = float_of_bits(t21);
    const u32 t23 = (t19 - t20) << 23u;
    const float t24 = float_of_bits(t23);
    acc6 = acc6 + (t8 ? (t22 * t24) : 0.0f);
  }
  const float t25 = across_add_float_128x1(acc6, (i32)threadIdx.x, (float *)scratch);
  const float t26 = 1.0f / t25;
  for (i32 i0 = 0; i0 < 1; i0++) {
    const i32 t27 = i0 * 128;
    const bool t28 = (t27 + thread) < 100;
    const i32 t29 = t27 + t1 + thread;
    const float t30 = t28 ? data1[t29] : 0.0f;
    const float t31 = t30 - t5;
    const float t32 = (t31 < (-105.53166f)) ? (-105.53166f) : t31;
    const float t33 = (89.415985f < t32) ? 89.415985f : t32;
    const float t34 = fmaf(t33, 1.442695f, 12583064.0f);
    const float t35 = t34 - 12583064.0f;
    const float t36 = fmaf(t35, 1.9046542e-09f, fmaf(t35, (-0.6931472f), t33));
    const float t37 = fmaf(fmaf(fmaf(fmaf(fmaf(4.1187772e-11f, t36, 2.4940625e-10f), t36, 1.2418113e-09f), t36, 4.9670104e-09f), t36, 1.4901159e-08f), t36, 2.9802322e-08f);
    const float t38 = fmaf(t37, t36, 2.9802322e-08f);
    const u32 t39 = bits_of_float(t38);
    const u32 t40 = bits_of_float(t34);
    const u32 t41 = t40 >> 1u;
    const u32 t42 = t39 + (t41 << 23u);
    const float t43 = float_of_bits(t42);
    const u32 t44 = (t40 - t41) << 23u;
    const float t45 = float_of_bits(t44);
    if (t28) data0[t29] = (t43 * t45) * t26;
  }
}
