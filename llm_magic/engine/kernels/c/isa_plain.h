// Any CPU: vector extensions only, float16 converted by integer arithmetic.

#define V 4
#define MR 4
#define QMAX 2
#define ATTEND_WIDTH(R) 1
#define SIGNED_WEIGHTS 0
#define PLANES 0

typedef float mf __attribute__((vector_size(4 * V)));
typedef i32 mi __attribute__((vector_size(4 * V)));
typedef u32 mu __attribute__((vector_size(4 * V)));
typedef u8 mb __attribute__((vector_size(4 * V)));
typedef u16 mh __attribute__((vector_size(4 * V)));

typedef struct { mi sum; } idot;
INLINE idot dot_start(mi init) { return (idot){init}; }
INLINE idot dot(idot a, mb w, const u8 *q, int j) {
  const u8 *p = q + 8 * j;  // int16 in the order 0 2 1 3
  a.sum += (mi)((mu)w & 255) * (i32)(short)ld16(p);
  a.sum += (mi)((mu)w >> 8 & 255) * (i32)(short)ld16(p + 4);
  a.sum += (mi)((mu)w >> 16 & 255) * (i32)(short)ld16(p + 2);
  a.sum += (mi)((mu)w >> 24) * (i32)(short)ld16(p + 6);
  return a;
}
INLINE mi dot_value(idot a) { return a.sum; }

// Each byte's entry of a table of 16.
INLINE mb look_up(const u8 *table, mb at) {
  mb out;
  for (int i = 0; i < 4 * V; i++) out[i] = table[at[i]];
  return out;
}

// Halves whose bits were moved to a float's place lack 112 in the exponent; a product supplies it,
// for subnormal halves too. Infinities and NaN need the largest exponent.
#define HALF_TO_F32(bits, ints, floats)                                                          \
  ints at = ((ints)(bits)&0x7fff) << 13, big = at >= 0x0f800000;                                 \
  floats value = (floats)at * 5.192296858534828e33f;                                             \
  return (floats)((((ints)value & ~big) | ((at | 0x7f800000) & big)) | ((ints)(bits)&0x8000) << 16);

INLINE mf half_to_f32(const void *p) {
  typedef u16 vec __attribute__((vector_size(2 * V)));
  typedef vec vec_u __attribute__((aligned(1), may_alias));
  mi bits = __builtin_convertvector(*(const vec_u *)p, mi);
  HALF_TO_F32(bits, mi, mf)
}
INLINE float half1(u16 h) {
  u16 four[4] = {h};
  return half_to_f32(four)[0];
}
#if defined(__x86_64__)
INLINE void pause(void) { __builtin_ia32_pause(); }
INLINE u64 ticks(void) { return __builtin_ia32_rdtsc(); }
#elif defined(__aarch64__)
INLINE void pause(void) { __asm__ volatile("yield"); }
INLINE u64 ticks(void) {  // a counter at 24 MHz to 1 GHz: scaled to about gigahertz
  u64 t;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t * 16;
}
#else
INLINE void pause(void) {}
INLINE u64 ticks(void) { return 0; }
#endif
