// kernel kernel_sum_rows

#include <math.h>
#include <stdbool.h>

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

void kernel_sum_rows(const i64 *args, i64 start, i64 stop) {
  float *data0 = (float *)args[0];
  const float *data1 = (const float *)args[1];
  for (i64 i0 = 0; i0 < 9; i0++) {
    float acc0_0 = 0.0f;
    float acc0_1 = 0.0f;
    float acc0_2 = 0.0f;
    float acc0_3 = 0.0f;
    float acc1_0 = 0.0f;
    float acc1_1 = 0.0f;
    float acc1_2 = 0.0f;
    float acc1_3 = 0.0f;
    float acc2_0 = 0.0f;
    float acc2_1 = 0.0f;
    float acc2_2 = 0.0f;
    float acc2_3 = 0.0f;
    float acc3_0 = 0.0f;
    float acc3_1 = 0.0f;
    float acc3_2 = 0.0f;
    float acc3_3 = 0.0f;
    const i64 t4 = i0 * 77;
    for (i64 i1 = 0; i1 < 4; i1++) {
      const i64 t5 = t4 + i1 * 16;
      const float t6_0 = data1[t5];
      const float t6_1 = data1[t5 + 1];
      const float t6_2 = data1[t5 + 2];
      const float t6_3 = data1[t5 + 3];
      acc0_0 = acc0_0 + t6_0;
      acc0_1 = acc0_1 + t6_1;
      acc0_2 = acc0_2 + t6_2;
      acc0_3 = acc0_3 + t6_3;
      const i64 t7 = t5 + 4;
      const float t8_0 = data1[t7];
      const float t8_1 = data1[t7 + 1];
      const float t8_2 = data1[t7 + 2];
      const float t8_3 = data1[t7 + 3];
      acc1_0 = acc1_0 + t8_0;
      acc1_1 = acc1_1 + t8_1;
      acc1_2 = acc1_2 + t8_2;
      acc1_3 = acc1_3 + t8_3;
      const i64 t9 = t5 + 8;
      const float t10_0 = data1[t9];
      const float t10_1 = data1[t9 + 1];
      const float t10_2 = data1[t9 + 2];
      const float t10_3 = data1[t9 + 3];
      acc2_0 = acc2_0 + t10_0;
      acc2_1 = acc2_1 + t10_1;
      acc2_2 = acc2_2 + t10_2;
      acc2_3 = acc2_3 + t10_3;
      const i64 t11 = t5 + 12;
      const float t12_0 = data1[t11];
      const float t12_1 = data1[t11 + 1];
      const float t12_2 = data1[t11 + 2];
      const float t12_3 = data1[t11 + 3];
      acc3_0 = acc3_0 + t12_0;
      acc3_1 = acc3_1 + t12_1;
      acc3_2 = acc3_2 + t12_2;
      acc3_3 = acc3_3 + t12_3;
    }
    for (i64 i1 = 4; i1 < 5; i1++) {
      const i64 t13 = i1 * 16;
      const i64 t14 = t4 + t13;
      const float t15_0 = data1[t14];
      const float t15_1 = data1[t14 + 1];
      const float t15_2 = data1[t14 + 2];
      const float t15_3 = data1[t14 + 3];
      acc0_0 = acc0_0 + t15_0;
      acc0_1 = acc0_1 + t15_1;
      acc0_2 = acc0_2 + t15_2;
      acc0_3 = acc0_3 + t15_3;
      const i64 t16 = t14 + 4;
      const float t17_0 = data1[t16];
      const float t17_1 = data1[t16 + 1];
      const float t17_2 = data1[t16 + 2];
      const float t17_3 = data1[t16 + 3];
      acc1_0 = acc1_0 + t17_0;
      acc1_1 = acc1_1 + t17_1;
      acc1_2 = acc1_2 + t17_2;
      acc1_3 = acc1_3 + t17_3;
      const i64 t18 = t14 + 8;
      const float t19_0 = data1[t18];
      const float t19_1 = data1[t18 + 1];
      const float t19_2 = data1[t18 + 2];
      const float t19_3 = data1[t18 + 3];
      acc2_0 = acc2_0 + t19_0;
      acc2_1 = acc2_1 + t19_1;
      acc2_2 = acc2_2 + t19_2;
      acc2_3 = acc2_3 + t19_3;
      const i32 t20 = (i32)t13;
      const i64 t21 = t14 + 12;
      const float t22_0 = ((t20 + 0) < 65) ? data1[t21] : 0.0f;
      const float t22_1 = ((t20 + 1) < 65) ? data1[t21 + 1] : 0.0f;
      const float t22_2 = ((t20 + 2) < 65) ? data1[t21 + 2] : 0.0f;
      const float t22_3 = ((t20 + 3) < 65) ? data1[t21 + 3] : 0.0f;
      acc3_0 = acc3_0 + t22_0;
      acc3_1 = acc3_1 + t22_1;
      acc3_2 = acc3_2 + t22_2;
      acc3_3 = acc3_3 + t22_3;
    }
    float acc23 = 0.0f;
    const float t24_0 = acc0_0 + acc1_0 + (acc2_0 + acc3_0);
    const float t24_1 = acc0_1 + acc1_1 + (acc2_1 + acc3_1);
    const float t24_2 = acc0_2 + acc1_2 + (acc2_2 + acc3_2);
    const float t24_3 = acc0_3 + acc1_3 + (acc2_3 + acc3_3);
    const float t25 = t24_0 + t24_2 + (t24_1 + t24_3);
    acc23 = t25;
    data0[i0] = acc23;
  }
}

i64 kernel_sum_rows_extent(const i64 *args) {
  return 1;
}
