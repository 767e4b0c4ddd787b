// Products of whole panels on tile registers (AMX): two tiles of weights times up to TILE_PANELS
// panels of 16 rows.
//
// Integers in bfloat16: weights of up to 6 bits, and both parts of an input, have at most 8 bits
// each, so every product is exact, and so is a float32 sum of them below 2^24. The high parts are
// written times 256, an exponent, so that both parts of an input add up in one register:
// 32 inputs x 16 x 32640 < 2^24. (As int8 the parts would need a register each, twice the stores,
// and a shift, an addition and a conversion behind them.) What follows the sums of a block is the
// arithmetic of matmul.h in the same order: a row's result does not depend on the way, bit by bit.
//
// Where sums may be larger, two exact numbers are added last, which rounds as a conversion does:
// weights of 5 bits without sign are taken minus 16, and 16 times the sum of the inputs is added;
// those of 8 bits keep the sums of high and low parts apart.
//
// Tile registers must be filled from memory and emptied to memory, one row a cycle, and neither
// overlaps with vector instructions [measured on Emerald Rapids]. So weights are spread once for
// all panels, rows are loaded once for both tiles, and sums are scaled some blocks at a time, with the
// results of a panel in vector registers.

#define SEGMENT 4  // units whose sums are held at once; a unit: a block, or half of one (has_halves)

// Integers of 8 bits: sums of high and low parts of the inputs are kept apart.
INLINE int is_apart(int kind) { return is_bytes(kind) || kind == IQ4_NL || kind == IQ4_XS; }

typedef struct {
  u16 weights[SEGMENT][2][512];  // [unit][tile][16 pairs of inputs][16 outputs][2] bfloat16
  float sums[2][SEGMENT][2][256];  // [tile][unit][all or high, low][16 rows][16 outputs]
  mf scale[SEGMENT][2], minimum[SEGMENT][2];
} tiles_t;

// The integers of unit `half` of a block, and what they are multiplied by.
INLINE void spread(int kind, int half, const u8 *b, mf sd, mf sm, u16 *to, mf *d, mf *m) {
  const kind_t is = kind_of(kind);
  const u8 *h = b + high_at(kind), *q = b + integers_at(kind);
  const int minus = is.offset_log2 ? 1 << is.offset_log2 : is.high ? 16 : 0;
  UNROLL for (int j = 0; j < 8; j++) {
    const mi w = (mi)group(kind, q, h, j);
    mi v[4];
    UNROLL for (int i = 0; i < 4; i++)
      v[i] = (mi)__builtin_convertvector((w >> 8 * i & 255) - minus, mf);
    if (has_halves(kind) && j / 4 != half) v[0] = v[1] = v[2] = v[3] = (mi){};
    UNROLL for (int i = 0; i < 4; i += 2)
      *(mi *)(to + (2 * j + i / 2) * 32) = (mi)((mu)v[i] >> 16) | v[i + 1];
  }
  *d = block_scale(kind, half, b, 0, sd);
  if (is.minimum) *m = block_minimum(kind, half, b, 0, sm);
}

// A unit with two tiles: both parts of the rows into one register each (c, d), or apart into two
// (low parts: l, m).
#define UNIT(u, c, d, l, m)                     \
  TILE_LOAD(4, a + (u) / per * 1024);           \
  TILE_LOAD(6, t->weights[u][0]);               \
  TILE_ZERO(c);                                 \
  TILE_DOT(c, 4, 6);                            \
  TILE_LOAD(7, t->weights[u][1]);               \
  TILE_ZERO(d);                                 \
  TILE_DOT(d, 4, 7);                            \
  TILE_LOAD(5, a + (u) / per * 1024 + 512);     \
  if (apart) { TILE_ZERO(l); TILE_ZERO(m); }    \
  TILE_DOT(l, 5, 6);                            \
  TILE_DOT(m, 5, 7);                            \
  TILE_STORE(c, t->sums[0][u][0]);              \
  TILE_STORE(d, t->sums[1][u][0]);              \
  if (apart) { TILE_STORE(l, t->sums[0][u][1]); TILE_STORE(m, t->sums[1][u][1]); }

// Sums of 16 rows with two tiles. a: the rows' first block; per: units of a block. Units take turns
// with the registers: the second product with one waits for the first.
INLINE void multiply(tiles_t *t, int units, int per, int apart, const u16 *a) {
  TILE_REGISTERS
  for (int u = 0; u < units; u++) {
    if (apart) {
      UNIT(u, 0, 1, 2, 3)
    } else if (u % 2) {
      UNIT(u, 2, 3, 2, 3)
    } else {
      UNIT(u, 0, 1, 0, 1)
    }
  }
}

// Adds what the sums of one tile stand for to y[16][16].
INLINE void add_sums(const tiles_t *t, int kind, int tile, int units, int per, const scale_t *as,
                     int stride, float *y) {
  const kind_t is = kind_of(kind);
  mf acc[16];
  UNROLL for (int r = 0; r < 16; r++) acc[r] = ld_mf(y + r * 16);
  for (int u = 0; u < units; u++) {
    const float *sums = t->sums[tile][u][0], *low = t->sums[tile][u][1];
    const scale_t *s = as + u / per * stride;
    const mf d = t->scale[u][tile], m = t->minimum[u][tile];
    UNROLL for (int r = 0; r < 16; r++) {
      mf sum = ld_mf(sums + r * 16);
      if (is_apart(kind)) sum += ld_mf(low + r * 16);
      else if (is.minimum && is.high) sum += (float)(-16 * s[r].neg);
      acc[r] += sum * (d * s[r].d);
      if (is.minimum) acc[r] += m * (per == 2 ? half_sum(s + r, u % 2) : s[r].sum);
    }
  }
  UNROLL for (int r = 0; r < 16; r++) st_mf(y + r * 16, acc[r]);
}

// y[panel][2][16][16] = two tiles, `w` and the next one, times panels panel0 .. panel1 - 1 of n
// rows. Rows beyond a panel's own mean nothing: their inputs are whatever lies there, in memory
// that is ours.
INLINE void pair_int(int kind, const u8 *w, const acts_t *a, int n, int panel0, int panel1,
                     float *y) {
  const int head = super_bytes(kind), bytes = block_bytes(kind), blocks = a->blocks;
  const int per = has_halves(kind) ? 2 : 1;
  const u8 *b[2] = {w, w + tile_bytes(kind, blocks)};
  mf sd[2] = {}, sm[2] = {};
  tiles_t t __attribute__((aligned(64)));
  for (int i = 0; i < (panel1 - panel0) * 512; i += 16) st_mf(y + i, (mf){});
  for (int k = 0; k < blocks; k += SEGMENT / per) {
    const int units = MIN(SEGMENT, (blocks - k) * per);
    for (int u = 0; u < units; u++)
      for (int i = 0; i < 2; i++) {
        const int half = u % per;
        if (head && !half && (k + u / per) % 8 == 0) {
          sd[i] = super_scale(kind, b[i], 0);
          if (kind_of(kind).minimum) sm[i] = -half_to_f32(b[i] + 32);
          b[i] += head;
        }
        if (!half)
          UNROLL for (int at = 0; at < bytes; at += 64) __builtin_prefetch(b[i] + AHEAD + at, 0, 3);
        spread(kind, half, b[i], sd[i], sm[i], t.weights[u][i], &t.scale[u][i], &t.minimum[u][i]);
        if (half == per - 1) b[i] += bytes;
      }
    for (int p = panel0; p < panel1; p++) {
      const int R = panel_rows(n, p);
      const scale_t *s = panel_s(a, p) + (i64)k * R;
      float *to = y + (p - panel0) * 512;
      multiply(&t, units, per, is_apart(kind), (const u16 *)panel_q(a, p) + (i64)k * 1024);
      add_sums(&t, kind, 0, units, per, s, R, to);
      add_sums(&t, kind, 1, units, per, s, R, to + 256);
    }
  }
}

#define PAIR(kind)                                                                               \
  static __attribute__((noinline)) void pair_##kind(const u8 *w, const acts_t *a, int n,         \
                                                    int panel0, int panel1, float *y) {          \
    pair_int(kind, w, a, n, panel0, panel1, y);                                                  \
  }
PAIR(Q4_0) PAIR(Q4_1) PAIR(Q5_0) PAIR(Q5_1) PAIR(Q8_0) PAIR(Q4_K) PAIR(Q5_K) PAIR(Q6_K)
PAIR(Q2_K) PAIR(Q3_K) PAIR(IQ4_NL) PAIR(IQ4_XS) PAIR(MXFP4) PAIR(SCALED)

// y[panel][2][MR][16]: a pair of tiles times some panels, each by the way that it is packed for.
static void pair_times_panels(const u8 *weights, const mat_t *m, int pair, const acts_t *a, int n,
                              int panel0, int panel1, float *y) {
  const u8 *w = weights + m->at + 2 * pair * tile_bytes(m->kind, a->blocks);
  int whole = is_float(m->kind) ? panel0 : panel1;  // panels that tile registers take
  if (whole > panel0 && panel_rows(n, panel1 - 1) < TILE_ROWS) whole--;
  if (whole > panel0) switch (m->kind) {
#define CASE(kind) case kind: pair_##kind(w, a, n, panel0, whole, y); break;
    CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q8_0) CASE(Q4_K) CASE(Q5_K) CASE(Q6_K)
    CASE(Q2_K) CASE(Q3_K) CASE(IQ4_NL) CASE(IQ4_XS) CASE(MXFP4) CASE(SCALED)
#undef CASE
  }
  for (int p = whole; p < panel1; p++)
    for (int i = 0; i < 2; i++)
      tile_times_panel(weights, m, 2 * pair + i, a, p, panel_rows(n, p),
                       y + ((p - panel0) * 2 + i) * MR * 16);
}
