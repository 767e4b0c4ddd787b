// Products of rows in bulk (prompts) on tile registers (AMX, bfloat16): pairs of tiles of weights
// times panels of 16 rows.
//
// Integers would need their sums stored and scaled for each block, which costs more than the sums
// themselves [Emerald Rapids: of 54 ns a block 30]. So scales are multiplied into the weights, and
// everything adds up in float32 inside the tile registers over all inputs. bfloat16 has 8 bits, so
// weights and inputs are taken in two parts each, v = high + low, and three products of four are
// summed: low * low is below 2^-16 of the whole. That is as exact as vector registers are, but not
// the same to the last bit: so what goes this way is decided by whoever sends the rows, and a row's
// result depends neither on its batch nor on its panel.

#define BULK_UNITS 8    // blocks whose weights are spread at once: 32 KB for a pair
#define BULK_PANELS 16  // panels of a task
#define BULK_PAIRS 4    // pairs of a task
#define PART 512        // bfloat16 in a tile register: [16 rows][32 inputs], [16][16 outputs][2]
#define HIGH_HALF ((i32)0xffff0000)

// The nearest bfloat16, as the upper half of a float.
INLINE mi rounded(mf v) { return ((mi)v + 0x8000) & HIGH_HALF; }

INLINE u16 *panel_b(const acts_t *a, int panel) {
  return a->b + (i64)panel * a->blocks * 2 * PART;
}

// One block of a panel's inputs in two parts. x: [R][32]. What lies in the rows beyond R meets no
// other row.
INLINE void put_parts(const acts_t *a, int panel, int R, int block, const float *x) {
  u16 *b = panel_b(a, panel) + (i64)block * 2 * PART;
  for (int r = 0; r < R; r++)
    for (int i = 0; i < 32; i += 16) {
      const vf v = ld(x + r * 32 + i);
      const mi high = rounded(v), low = rounded(v - (vf)high);
      *(v16u16_u *)(b + r * 32 + i) = __builtin_convertvector((vi)high >> 16 & 0xffff, v16u16);
      *(v16u16_u *)(b + PART + r * 32 + i) = __builtin_convertvector(low >> 16 & 0xffff, v16u16);
    }
}

typedef struct { u16 high[PART], low[PART]; } spread_t;  // [pair of inputs][16 outputs][2]

// A block's weights in two parts. sd, sm: of its super-block.
INLINE void spread(int kind, const u8 *b, mf sd, mf sm, spread_t *to) {
  const kind_t is = kind_of(kind);
  const u8 *h = b + (kind == Q4_1 || kind == Q5_1 ? 64 : 32);
  const u8 *q = h + (is.high == 1 ? 64 : is.high == 2 ? 128 : 0);
  mf d, m = {}, d2;
  if (kind == Q6_K) d = sd * bytes_to_f32(b, 1), d2 = sd * bytes_to_f32(b + 16, 1);
  else if (super_bytes(kind)) d = sd * bytes_to_f32(b, 0);
  else d = half_to_f32(b);
  if (super_bytes(kind) && is.minimum) m = sm * bytes_to_f32(b + 16, 0);
  else if (is.minimum) m = half_to_f32(b + 32);
  UNROLL for (int j = 0; j < 8; j++) {
    const mi w = (mi)group(kind, q, h, j);
    const mf by = kind == Q6_K && j >= 4 ? d2 : d;
    mf v[4];
    UNROLL for (int i = 0; i < 4; i++) {
      const mi one = i == 3 ? (mi)((mu)w >> 24) : w >> 8 * i & 255;
      v[i] = __builtin_convertvector(one - (is.offset_log2 ? 1 << is.offset_log2 : 0), mf) * by + m;
    }
    UNROLL for (int i = 0; i < 4; i += 2) {
      const mi even = (mi)v[i] & HIGH_HALF, odd = (mi)v[i + 1] & HIGH_HALF;
      const mi even2 = rounded(v[i] - (mf)even), odd2 = rounded(v[i + 1] - (mf)odd);
      *(mi *)(to->high + (2 * j + i / 2) * 32) = (mi)((mu)even >> 16) | odd;
      *(mi *)(to->low + (2 * j + i / 2) * 32) = (mi)((mu)even2 >> 16) | odd2;
    }
  }
}

// Sums: registers 0 to 3. Rows: 4 and 5. Weights: 6 and 7. The same sum comes every fourth time:
// it takes three products to be ready. Low parts of the rows first, so that no part is loaded twice.
#define DOTS_2                                   \
  TILE_DOT(0, 4, 6); TILE_DOT(2, 5, 6);          \
  TILE_DOT(1, 4, 7); TILE_DOT(3, 5, 7);
#define DOTS_1 TILE_DOT(0, 4, 6); TILE_DOT(1, 4, 7);

// y[2][16][16] of panel a, and of the one behind it if `two`: [2][2][16][16], added to what is
// there unless `start`. w: [unit][tile].
INLINE void multiply(const spread_t *w, int units, const u16 *a, i64 stride, int two, int start,
                     float *y) {
  TILE_REGISTERS
  if (start) {
    TILE_ZERO(0); TILE_ZERO(1);
    if (two) { TILE_ZERO(2); TILE_ZERO(3); }
  } else {
    TILE_LOAD(0, y); TILE_LOAD(1, y + 256);
    if (two) { TILE_LOAD(2, y + 512); TILE_LOAD(3, y + 768); }
  }
  for (int u = 0; u < units; u++, a += 2 * PART, w += 2) {
    TILE_LOAD(4, a + PART);
    TILE_LOAD(6, w[0].high);
    TILE_LOAD(7, w[1].high);
    if (two) { TILE_LOAD(5, a + stride + PART); DOTS_2 } else { DOTS_1 }
    TILE_LOAD(4, a);
    if (two) { TILE_LOAD(5, a + stride); DOTS_2 } else { DOTS_1 }
    TILE_LOAD(6, w[0].low);
    TILE_LOAD(7, w[1].low);
    if (two) { DOTS_2 } else { DOTS_1 }
  }
  TILE_STORE(0, y); TILE_STORE(1, y + 256);
  if (two) { TILE_STORE(2, y + 512); TILE_STORE(3, y + 768); }
}

// Spreads units k .. k + units - 1 of tile w; k: a multiple of 8, where a super-block begins.
INLINE void spread_units(int kind, const u8 *w, int k, int units, spread_t *to) {
  const int head = super_bytes(kind), bytes = block_bytes(kind);
  const u8 *b = w + (i64)k * bytes + k / 8 * head;
  mf sd = {}, sm = {};
  if (head) {
    sd = half_to_f32(b);
    if (kind != Q6_K) sm = -half_to_f32(b + 32);
    b += head;
  }
  for (int u = 0; u < units; u++, b += bytes, to += 2) {
    UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(b + AHEAD + i, 0, 3);
    spread(kind, b, sd, sm, to);
  }
}

#define SPREAD(kind)                                                                            \
  static __attribute__((noinline)) void spread_##kind(const u8 *w, int k, int units,            \
                                                      spread_t *to) {                           \
    spread_units(kind, w, k, units, to);                                                        \
  }
SPREAD(Q4_0) SPREAD(Q4_1) SPREAD(Q5_0) SPREAD(Q5_1) SPREAD(Q8_0) SPREAD(Q4_K) SPREAD(Q5_K)
SPREAD(Q6_K)

static void spread_any(int kind, const u8 *w, int k, int units, spread_t *to) {
  switch (kind) {
#define CASE(kind) case kind: spread_##kind(w, k, units, to); break;
    CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q8_0) CASE(Q4_K) CASE(Q5_K) CASE(Q6_K)
#undef CASE
  }
}

typedef struct { const mat_t *m; int pair; } pair_t;  // two tiles of a matrix

// y[pair][panel][2][16][16] = pairs (of quantised matrices) times panels from .. to - 1.
static void pairs_times_panels(const u8 *weights, const pair_t *pairs, int n_pairs,
                               const acts_t *a, int from, int to, float *y) {
  spread_t w[BULK_UNITS][2] __attribute__((aligned(64)));
  const i64 stride = (i64)a->blocks * 2 * PART;
  tiles_on();
  for (int k = 0; k < a->blocks; k += BULK_UNITS) {
    const int units = MIN(BULK_UNITS, a->blocks - k);
    for (int i = 0; i < n_pairs; i++) {
      const mat_t *m = pairs[i].m;
      const i64 bytes = tile_bytes(m->kind, a->blocks);
      for (int t = 0; t < 2; t++)
        spread_any(m->kind, weights + m->at + (2 * pairs[i].pair + t) * bytes, k, units, &w[0][t]);
      float *sums = y + (i64)i * (to - from) * 512;
      const u16 *rows = panel_b(a, from) + (i64)k * 2 * PART;
      int p = from;
      for (; p + 2 <= to; p += 2, rows += 2 * stride, sums += 1024)
        multiply(w[0], units, rows, stride, 1, k == 0, sums);
      if (p < to) multiply(w[0], units, rows, stride, 0, k == 0, sums);
    }
  }
  tiles_off();
}
