// AVX-512 with VNNI: 16 outputs in a register, four products a lane, a broadcast from memory free.
#include <immintrin.h>

#define V 16   // outputs that one register of the matrix products holds
#define MR 8   // rows of activations that share one pass over the weights
#define SIGNED_WEIGHTS 0
#define PLANES 1
// Attention: query vectors in a tile, and registers of keys or values that a tile of R meets at
// once: R * width sums, width inputs and a broadcast fit 32 registers.
#define QMAX 8
#define ATTEND_WIDTH(R) ((R) == 8 ? 3 : 4)

typedef float mf __attribute__((vector_size(4 * V)));
typedef i32 mi __attribute__((vector_size(4 * V)));
typedef u8 mb __attribute__((vector_size(4 * V)));
typedef u16 mh __attribute__((vector_size(4 * V)));

typedef struct { mi high, low; } idot;
INLINE idot dot_start(mi init) { return (idot){(mi){}, init}; }
INLINE idot dot(idot a, mb w, const u8 *q, int j) {
  const __m512i high = _mm512_set1_epi32((i32)ld32(q + 4 * j));
  const __m512i low = _mm512_set1_epi32((i32)ld32(q + 32 + 4 * j));
  a.high = (mi)_mm512_dpbusd_epi32((__m512i)a.high, (__m512i)w, high);
  a.low = (mi)_mm512_dpbusd_epi32((__m512i)a.low, (__m512i)w, low);
  return a;
}
INLINE mi dot_value(idot a) { return (a.high << 8) + a.low; }

// Each byte's entry of a table of 16.
INLINE mb look_up(const u8 *table, mb at) {
  const __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i_u *)table));
  return (mb)_mm512_shuffle_epi8(t, (__m512i)at);
}

INLINE mf half_to_f32(const void *p) { return (mf)_mm512_cvtph_ps(_mm256_loadu_si256(p)); }
INLINE float half1(u16 h) { return _cvtsh_ss(h); }
INLINE void pause(void) { _mm_pause(); }
INLINE u64 ticks(void) { return __builtin_ia32_rdtsc(); }
