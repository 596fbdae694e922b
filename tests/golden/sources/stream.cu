// kernel kernel_stream

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef FERRULE_UNALIGNED
#define ALIGNED(size)
#else
#define ALIGNED(size) alignas(size)
#endif

typedef struct ALIGNED(16) { float lane[4]; } float_x4;

extern "C" __global__ void __launch_bounds__(256) kernel_stream(float *data0, const float *__restrict__ data1, const float *__restrict__ data2) {
  const i32 block = (i32)blockIdx.x;
  const i32 thread = (i32)threadIdx.x;
  const i32 t0 = thread * 4;
  const bool t1 = (block * 256 + thread) < 16000;
  const i32 t2 = block * 1024 + t0;
  float_x4 v4 = {{0, 0, 0, 0}};
  if (t1) v4 = *(const float_x4 *)&data1[t2];
  float_x4 v6 = {{0, 0, 0, 0}};
  if (t1) v6 = *(const float_x4 *)&data2[t2];
  const float_x4 v7 = {{v4.lane[0] + v6.lane[0], v4.lane[1] + v6.lane[1], v4.lane[2] + v6.lane[2], v4.lane[3] + v6.lane[3]}};
  if (t1) *(float_x4 *)&data0[t2] = v7;
}
