// AVX2, with or without AVX-VNNI: eight outputs in a register.
//
// With VNNI, activations are two planes of bytes, as with AVX-512. Without, they are int16: the
// product of unsigned and signed bytes (vpmaddubsw) would saturate, that of int16 pairs (vpmaddwd)
// is exact.
#include <immintrin.h>

#define V 8
#define MR 4
#define SIGNED_WEIGHTS 0
#define QMAX 4
#define ATTEND_WIDTH(R) ((R) <= 2 ? 2 : 1)

typedef float mf __attribute__((vector_size(4 * V)));
typedef i32 mi __attribute__((vector_size(4 * V)));
typedef u8 mb __attribute__((vector_size(4 * V)));
typedef u16 mh __attribute__((vector_size(4 * V)));

INLINE __m256i broadcast(const u8 *p) { return _mm256_set1_epi32((i32)ld32(p)); }

#ifdef __AVXVNNI__
#define PLANES 1
typedef struct { mi high, low; } idot;
INLINE idot dot_start(mi init) { return (idot){(mi){}, init}; }
INLINE idot dot(idot a, mb w, const u8 *q, int j) {
  a.high = (mi)_mm256_dpbusd_avx_epi32((__m256i)a.high, (__m256i)w, broadcast(q + 4 * j));
  a.low = (mi)_mm256_dpbusd_avx_epi32((__m256i)a.low, (__m256i)w, broadcast(q + 32 + 4 * j));
  return a;
}
INLINE mi dot_value(idot a) { return (a.high << 8) + a.low; }
#else
#define PLANES 0
typedef struct { mi sum; } idot;
INLINE idot dot_start(mi init) { return (idot){init}; }
INLINE idot dot(idot a, mb w, const u8 *q, int j) {
  __m256i even = (__m256i)((mh)w & 255), odd = (__m256i)((mh)w >> 8);  // inputs 0, 2 and 1, 3
  a.sum += (mi)_mm256_madd_epi16(even, broadcast(q + 8 * j));
  a.sum += (mi)_mm256_madd_epi16(odd, broadcast(q + 8 * j + 4));
  return a;
}
INLINE mi dot_value(idot a) { return a.sum; }
#endif

// Each byte's entry of a table of 16.
INLINE mb look_up(const u8 *table, mb at) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i_u *)table));
  return (mb)_mm256_shuffle_epi8(t, (__m256i)at);
}

INLINE mf half_to_f32(const void *p) { return (mf)_mm256_cvtph_ps(_mm_loadu_si128(p)); }
INLINE float half1(u16 h) { return _cvtsh_ss(h); }
INLINE void pause(void) { _mm_pause(); }
INLINE u64 ticks(void) { return __builtin_ia32_rdtsc(); }
