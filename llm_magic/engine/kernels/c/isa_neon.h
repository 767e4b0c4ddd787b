// 64-bit ARM with the dot-product instructions: four lanes of four signed products.
#include <arm_neon.h>

#define V 8    // two registers: sums of four rows in two planes fit the 32
#define MR 4
#define QMAX 4
#define ATTEND_WIDTH(R) ((R) <= 2 ? 2 : 1)
#define PLANES 1
#define SIGNED_WEIGHTS 1

typedef float mf __attribute__((vector_size(4 * V)));
typedef i32 mi __attribute__((vector_size(4 * V)));
typedef u8 mb __attribute__((vector_size(4 * V)));
typedef u16 mh __attribute__((vector_size(4 * V)));
typedef i32 v4i __attribute__((vector_size(16)));
typedef i8 v32i8 __attribute__((vector_size(32)));
typedef i8 v16i8s __attribute__((vector_size(16)));

INLINE mi dot4(mi sum, mb w, const u8 *p) {
  const v4i a = (v4i){} + (i32)ld32(p);
  const v32i8 s = (v32i8)w;
  v16i8s w0 = __builtin_shufflevector(s, s, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  v16i8s w1 = __builtin_shufflevector(s, s, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29,
                                      30, 31);
  v4i s0 = __builtin_shufflevector(sum, sum, 0, 1, 2, 3);
  v4i s1 = __builtin_shufflevector(sum, sum, 4, 5, 6, 7);
  s0 = (v4i)vdotq_s32((int32x4_t)s0, (int8x16_t)w0, (int8x16_t)a);
  s1 = (v4i)vdotq_s32((int32x4_t)s1, (int8x16_t)w1, (int8x16_t)a);
  return __builtin_shufflevector(s0, s1, 0, 1, 2, 3, 4, 5, 6, 7);
}

typedef struct { mi high, low; } idot;
INLINE idot dot_start(mi init) { return (idot){(mi){}, init}; }
INLINE idot dot(idot a, mb w, const u8 *q, int j) {
  return (idot){dot4(a.high, w, q + 4 * j), dot4(a.low, w, q + 32 + 4 * j)};
}
INLINE mi dot_value(idot a) { return (a.high << 8) + a.low; }

// Each byte's entry of a table of 16.
INLINE mb look_up(const u8 *table, mb at) {
  typedef u8 v16u8 __attribute__((vector_size(16)));
  const uint8x16_t t = vld1q_u8(table);
  v16u8 w0 = __builtin_shufflevector(at, at, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  v16u8 w1 = __builtin_shufflevector(at, at, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29,
                                     30, 31);
  w0 = (v16u8)vqtbl1q_u8(t, (uint8x16_t)w0), w1 = (v16u8)vqtbl1q_u8(t, (uint8x16_t)w1);
  return __builtin_shufflevector(w0, w1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
                                 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
}

typedef __fp16 v8h __attribute__((vector_size(16)));
typedef v8h v8h_u __attribute__((aligned(1), may_alias));
INLINE mf half_to_f32(const void *p) { return __builtin_convertvector(*(const v8h_u *)p, mf); }
INLINE float half1(u16 h) {
  u16 eight[8] = {h};
  return half_to_f32(eight)[0];
}
INLINE void pause(void) { __asm__ volatile("yield"); }
INLINE u64 ticks(void) {  // a counter at 24 MHz to 1 GHz: scaled to about gigahertz
  u64 t;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t * 16;
}
