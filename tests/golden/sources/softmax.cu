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

#ifdef FERRULE_UNALIGNED
#define ALIGNED(size)
#else
#define ALIGNED(size) alignas(size)
#endif

typedef struct ALIGNED(16) { float lane[4]; } float_x4;

static __device__ __forceinline__ float max_float(float a, float b) {
  return a < b || b != b ? b : a;
}

static __device__ __forceinline__ float across_max_float_32x1(float x, i32 thread) {
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

static __device__ __forceinline__ float across_add_float_32x1(float x, i32 thread) {
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

extern "C" __global__ void __launch_bounds__(32) kernel_softmax(float *data0, const float *__restrict__ data1) {
  const i32 block = (i32)blockIdx.x;
  const i32 thread = (i32)threadIdx.x;
  const bool t0 = thread < 25;
  const i32 t1 = thread * 4;
  const bool t2 = thread < 25;
  const bool t3 = thread < 25;
  const i32 t4 = thread * 4;
  const bool t5 = thread < 25;
  const i32 t6 = block * 100;
  const i32 t7 = t6 + t1;
  float_x4 v9 = {{0, 0, 0, 0}};
  if (t0) v9 = *(const float_x4 *)&data1[t7];
  float acc10 = float_of_bits(0xff800000u);
  const float t11_0 = t2 ? v9.lane[0] : float_of_bits(0xff800000u);
  const float t11_1 = t2 ? v9.lane[1] : float_of_bits(0xff800000u);
  const float t11_2 = t2 ? v9.lane[2] : float_of_bits(0xff800000u);
  const float t11_3 = t2 ? v9.lane[3] : float_of_bits(0xff800000u);
  const float t12 = max_float(max_float(t11_0, t11_2), max_float(t11_1, t11_3));
  acc10 = t12;
  const float t13 = across_max_float_32x1(acc10, (i32)threadIdx.x);
  float acc14 = 0.0f;
  const float t15_0 = v9.lane[0] - t13;
  const float t15_1 = v9.lane[1] - t13;
  const float t15_2 = v9.lane[2] - t13;
  const float t15_3 = v9.lane[3] - t13;
  const float t16_0 = (t15_0 < (-105.53166f)) ? (-105.53166f) : t15_0;
  const float t16_1 = (t15_1 < (-105.53166f)) ? (-105.53166f) : t15_1;
  const float t16_2 = (t15_2 < (-105.53166f)) ? (-105.53166f) : t15_2;
  const float t16_3 = (t15_3 < (-105.53166f)) ? (-105.53166f) : t15_3;
  const float t17_0 = (89.415985f < t16_0) ? 89.415985f : t16_0;
  const float t17_1 = (89.415985f < t16_1) ? 89.415985f : t16_1;
  const float t17_2 = (89.415985f < t16_2) ? 89.415985f : t16_2;
  const float t17_3 = (89.415985f < t16_3) ? 89.415985f : t16_3;
  const float t18_0 = fmaf(t17_0, 1.442695f, 12583064.0f);
  const float t18_1 = fmaf(t17_1, 1.442695f, 12583064.0f);
  const float t18_2 = fmaf(t17_2, 1.442695f, 12583064.0f);
  const float t18_3 = fmaf(t17_3, 1.442695f, 12583064.0f);
  const float t19_0 = t18_0 - 12583064.0f;
  const float t19_1 = t18_1 - 12583064.0f;
  const float t19_2 = t18_2 - 12583064.0f;
  const float t19_3 = t18_3 - 12583064.0f;
  const float t20_0 = fmaf(t19_0, 1.9046542e-09f, fmaf(t19_0, (-0.6931472f), t17_0));
  const float t20_1 = fmaf(t19_1, 1.9046542e-09f, fmaf(t19_1, (-0.6931472f), t17_1));
  const float t20_2 = fmaf(t19_2, 1.9046542e-09f, fmaf(t19_2, (-0.6931472f), t17_2));
  const float t20_3 = fmaf(t19_3, 1.9046542e-09f, fmaf(t19_3, (-0.6931472f), t17_3));
  const float t21_0 = fmaf(fmaf(fmaf(fmaf(fmaf(4.1187772e-11f, t20_0, 2.4940625e-10f), t20_0, 1.2418113e-09f), t20_0, 4.9670104e-09f), t20_0, 1.4901159e-08f), t20_0, 2.9802322e-08f);
  const float t21_1 = fmaf(fmaf(fmaf(fmaf(fmaf(4.1187772e-11f, t20_1, 2.4940625e-10f), t20_1, 1.2418113e-09f), t20_1, 4.9670104e-09f), t20_1, 1.4901159e-08f), t20_1, 2.9802322e-08f);
  const float t21_2 = fmaf(fmaf(fmaf(fmaf(fmaf(4.1187772e-11f, t20_2, 2.4940625e-10f), t20_2, 1.2418113e-09f), t20_2, 4.9670104e-09f), t20_2, 1.4901159e-08f), t20_2, 2.9802322e-08f);
  const float t21_3 = fmaf(fmaf(fmaf(fmaf(fmaf(4.1187772e-11f, t20_3, 2.4940625e-10f), t20_3, 1.2418113e-09f), t20_3, 4.9670104e-09f), t20_3, 1.4901159e-08f), t20_3, 2.9802322e-08f);
  const float t22_0 = fmaf(t21_0, t20_0, 2.9802322e-08f);
  const float t22_1 = fmaf(t21_1, t20_1, 2.9802322e-08f);
  const float t22_2 = fmaf(t21_2, t20_2, 2.9802322e-08f);
  const float t22_3 = fmaf(t21_3, t20_3, 2.9802322e-08f);
  const u32 t23_0 = bits_of_float(t22_0);
  const u32 t23_1 = bits_of_float(t22_1);
  const u32 t23_2 = bits_of_float(t22_2);
  const u32 t23_3 = bits_of_float(t22_3);
  const u32 t24_0 = bits_of_float(t18_0);
  const u32 t24_1 = bits_of_float(t18_1);
  const u32 t24_2 = bits_of_float(t18_2);
  const u32 t24_3 = bits_of_float(t18_3);
  const u32 t25_0 = t24_0 >> 1u;
  const u32 t25_1 = t24_1 >> 1u;
  const u32 t25_2 = t24_2 >> 1u;
  const u32 t25_3 = t24_3 >> 1u;
  const u32 t26_0 = t23_0 + (t25_0 << 23u);
  const u32 t26_1 = t23_1 + (t25_1 << 23u);
  const u32 t26_2 = t23_2 + (t25_2 << 23u);
  const u32 t26_3 = t23_3 + (t25_3 << 23u);
  const float t27_0 = float_of_bits(t26_0);
  const float t27_1 = float_of_bits(t26_1);
  const float t27_2 = float_of_bits(t26_2);
  const float t27_3 = float_of_bits(t26_3);
  const u32 t28_0 = (t24_0 - t25_0) << 23u;
  const u32 t28_1 = (t24_1 - t25_1) << 23u;
  const u32 t28_2 = (t24_2 - t25_2) << 23u;
  const u32 t28_3 = (t24_3 - t25_3) << 23u;
  const float t29_0 = float_of_bits(t28_0);
  const float t29_1 = float_of_bits(t28_1);
  const float t29_2 = float_of_bits(t28_2);
  const float t29_3 = float_of_bits(t28_3);
  const float t30_0 = fmaf(t27_0, t29_0, (t20_0 - t20_0));
  const float t30_1 = fmaf(t27_1, t29_1, (t20_1 - t20_1));
  const float t30_2 = fmaf(t27_2, t29_2, (t20_2 - t20_2));
  const float t30_3 = fmaf(t27_3, t29_3, (t20_3 - t20_3));
  const float t31_0 = t3 ? t30_0 : 0.0f;
  const float t31_1 = t3 ? t30_1 : 0.0f;
  const float t31_2 = t3 ? t30_2 : 0.0f;
  const float t31_3 = t3 ? t30_3 : 0.0f;
  const float t32 = t31_0 + t31_2 + (t31_1 + t31_3);
  acc14 = t32;
  const float t33 = across_add_float_32x1(acc14, (i32)threadIdx.x);
  const float t34 = 1.0f / t33;
  const i32 t35 = t6 + t4;
  const float_x4 v36 = {{t30_0 * t34, t30_1 * t34, t30_2 * t34, t30_3 * t34}};
  if (t5) *(float_x4 *)&data0[t35] = v36;
}
