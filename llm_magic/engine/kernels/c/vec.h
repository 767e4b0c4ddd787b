// Vectors of 16 floats, written with clang's vector extensions: the compiler lowers them to one
// 512-bit register, two of 256 bits or four of 128. What has no portable form is in isa_*.h.

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

typedef float vf __attribute__((vector_size(64)));
typedef i32 vi __attribute__((vector_size(64)));
typedef i8 v16i8 __attribute__((vector_size(16)));
typedef u16 v16u16 __attribute__((vector_size(32)));
typedef short v16i16 __attribute__((vector_size(32)));
typedef double vd __attribute__((vector_size(64)));
typedef i64 vl __attribute__((vector_size(64)));
typedef float v8f __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define UP(n, to) (((n) + (to) - 1) / (to) * (to))

// Unaligned access without undefined behaviour.
typedef vf vf_u __attribute__((aligned(1), may_alias));
typedef vi vi_u __attribute__((aligned(1), may_alias));
typedef vd vd_u __attribute__((aligned(1), may_alias));
typedef v16u16 v16u16_u __attribute__((aligned(1), may_alias));
typedef v16i16 v16i16_u __attribute__((aligned(1), may_alias));
typedef v16i8 v16i8_u __attribute__((aligned(1), may_alias));
typedef i32 i32_u __attribute__((aligned(1), may_alias));
typedef u32 u32_u __attribute__((aligned(1), may_alias));
typedef u16 u16_u __attribute__((aligned(1), may_alias));

INLINE vf ld(const float *p) { return *(const vf_u *)p; }
INLINE void st(float *p, vf v) { *(vf_u *)p = v; }
INLINE vf splat(float x) { return (vf){} + x; }
INLINE u32 ld32(const void *p) { return *(const u32_u *)p; }
INLINE u16 ld16(const void *p) { return *(const u16_u *)p; }
INLINE void st32(void *p, u32 v) { *(u32_u *)p = v; }
INLINE void st16(void *p, u16 v) { *(u16_u *)p = v; }
INLINE float f32_of_bits(u32 x) { union { u32 i; float f; } u = {x}; return u.f; }
INLINE u32 bits_of_f32(float x) { union { float f; u32 i; } u = {x}; return u.i; }
INLINE vf select(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }
INLINE vf vmax(vf a, vf b) { return __builtin_elementwise_max(a, b); }
INLINE vf vabs(vf a) { return (vf)((vi)a & 0x7fffffff); }
INLINE float reduce_max(vf a) { return __builtin_reduce_max(a); }
INLINE i32 reduce_addi(vi a) { return __builtin_reduce_add(a); }

INLINE float reduce_add(vf a) {
  vf b = a + __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  b += __builtin_shufflevector(b, b, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  b += __builtin_shufflevector(b, b, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  return b[0] + b[1];
}

// n: a multiple of 16. Not memcpy, which may become a call: there is no library to link to.
INLINE void copy(float *to, const float *from, int n) {
  for (int i = 0; i < n; i += 16) st(to + i, ld(from + i));
}

// Nearest integer of |x| < 2^22, as int32: adding 1.5 * 2^23 leaves it in the low bits.
INLINE vi round_i32(vf x) { return (vi)(x + 12582912.f) - 0x4b400000; }

// 16-bit integers as floats, which hold them exactly.
INLINE vf shorts(const u16 *p) { return __builtin_convertvector(*(const v16i16_u *)p, vf); }

// e^x, relative error 2e-7; 0 below -87, where float ends. Argument reduction by ln 2 in two parts.
INLINE vf vexp(vf x) {
  vi live = x > splat(-87.f);
  x = vmax(__builtin_elementwise_min(x, splat(88.f)), splat(-87.f));
  vi n = round_i32(x * 1.44269504f);
  vf k = __builtin_convertvector(n, vf);
  vf r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  return select(live, (vf)((vi)p + (n << 23)), splat(0.f));
}

INLINE vf vsigmoid(vf x) { return 1.f / (1.f + vexp(-x)); }
// Error function, absolute error 2e-7 (Abramowitz and Stegun 1964, 7.1.26).
INLINE vf verf(vf x) {
  const vf a = vabs(x), t = 1.f / (1.f + 0.3275911f * a);
  const vf p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f +
                    t * (-1.453152027f + t * 1.061405429f))));
  const vf y = 1.f - p * vexp(-a * a);
  return select(x < (vf){}, -y, y);
}
INLINE vf vtanh(vf x) { return 2.f * vsigmoid(2.f * x) - 1.f; }

// ln(x) of a positive normal float, for one number a row: no need to be fast.
static float log_(float x) {
  u32 b = bits_of_f32(x);
  int e = (int)(b >> 23) - 127;
  double m = f32_of_bits((b & 0x7fffff) | 0x3f800000);
  if (m > 1.4142135) m *= 0.5, e++;
  double t = (m - 1.0) / (m + 1.0), t2 = t * t;  // atanh series, |t| < 0.172: t^15 / 15 < 1e-12
  double s = 1.0 / 13;
  for (int i = 11; i > 0; i -= 2) s = s * t2 + 1.0 / i;
  return (float)(2 * t * s + e * 0.6931471805599453);
}

// sin and cos of eight doubles, |x| < 2^30: absolute error below 1e-10, more than a float holds.
INLINE void vsincos(vd x, v8f *sin_, v8f *cos_) {
  vd k = (x * 0.6366197723675814 + 6755399441055744.0);
  vl q = (vl)k;                                             // quadrant, in the low bits
  k -= 6755399441055744.0;
  vd r = ((x - k * 1.5707963267341256) - k * 6.077100506303966e-11) - k * 2.0222662487959506e-21;
  vd r2 = r * r;
  vd s = (vd){} + 1.0 / 6227020800.0, c = (vd){} + 1.0 / 479001600.0;
  s = s * r2 - 1.0 / 39916800.0, c = c * r2 - 1.0 / 3628800.0;
  s = s * r2 + 1.0 / 362880.0, c = c * r2 + 1.0 / 40320.0;
  s = s * r2 - 1.0 / 5040.0, c = c * r2 - 1.0 / 720.0;
  s = s * r2 + 1.0 / 120.0, c = c * r2 + 1.0 / 24.0;
  s = s * r2 - 1.0 / 6.0, c = c * r2 - 0.5;
  s = s * r2 * r + r, c = c * r2 + 1.0;
  vl odd = -(q & 1), sneg = (q & 2) << 62, cneg = ((q + 1) & 2) << 62;
  vd so = (vd)((((vl)c & odd) | ((vl)s & ~odd)) ^ sneg);
  vd co = (vd)((((vl)s & odd) | ((vl)c & ~odd)) ^ cneg);
  *sin_ = __builtin_convertvector(so, v8f), *cos_ = __builtin_convertvector(co, v8f);
}
