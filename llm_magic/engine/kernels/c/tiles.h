// Products of whole panels on tile registers (AMX): two tiles of weights times up to TILE_PANELS
// panels of 16 rows.
//
// The integer sums of a block are exact by either way, and what follows them is the arithmetic of
// matmul.h in the same order: a row's result does not depend on the way, bit by bit.
//
// Tile registers must be filled from memory and emptied to memory, one row a cycle, and neither
// overlaps with vector instructions [measured on Emerald Rapids]. So weights are spread to bytes
// once for all panels, rows are loaded once for both tiles, and sums are turned into floats some
// blocks at a time, with the results of a panel in vector registers.

#define SEGMENT 4  // units whose sums are held at once; a unit: a block, of Q6_K half a block

typedef struct {
  i8 weights[SEGMENT][2][512];      // [unit][tile][8 groups][16 outputs][4 inputs]
  i32 sums[2][SEGMENT][2][256];     // [tile][unit][high, low][16 rows][16 outputs]
  mf scale[SEGMENT][2], minimum[SEGMENT][2];
} tiles_t;

// The integers of unit `half` of a block, and what they are multiplied by.
INLINE void spread(int kind, int half, const u8 *b, mf sd, mf sm, i8 *to, mf *d, mf *m) {
  const kind_t is = kind_of(kind);
  const u8 *h = b + (kind == Q4_1 || kind == Q5_1 ? 64 : 32);
  const u8 *q = h + (is.high == 1 ? 64 : is.high == 2 ? 128 : 0);
  UNROLL for (int j = 0; j < 8; j++) {
    mb w = group(kind, q, h, j) - (u8)(is.offset_log2 ? 1 << is.offset_log2 : 0);
    if (kind == Q6_K && j / 4 != half) w = (mb){};
    *(mb *)(to + j * 64) = w;
  }
  if (kind == Q6_K) *d = sd * bytes_to_f32(b + 16 * half, 1);
  else if (super_bytes(kind)) *d = sd * bytes_to_f32(b, 0);
  else *d = half_to_f32(b);
  if (super_bytes(kind) && is.minimum) *m = sm * bytes_to_f32(b + 16, 0);
  else if (is.minimum) *m = half_to_f32(b + 32);
}

// Integer sums of 16 rows with two tiles. q: the rows' first block; per: units of a block.
INLINE void multiply(tiles_t *t, int units, int per, const u8 *q, i64 stride) {
  TILE_REGISTERS
  for (int u = 0; u < units; u++) {
    TILE_LOAD(4, q + u / per * stride, 64);
    TILE_LOAD(6, t->weights[u][0], 64);
    TILE_ZERO(0);
    TILE_DOT(0, 4, 6);
    TILE_LOAD(5, q + u / per * stride + 32, 64);
    TILE_ZERO(1);
    TILE_DOT(1, 5, 6);
    TILE_LOAD(7, t->weights[u][1], 64);
    TILE_ZERO(2);
    TILE_DOT(2, 4, 7);
    TILE_ZERO(3);
    TILE_DOT(3, 5, 7);
    TILE_STORE(0, t->sums[0][u][0]);
    TILE_STORE(1, t->sums[0][u][1]);
    TILE_STORE(2, t->sums[1][u][0]);
    TILE_STORE(3, t->sums[1][u][1]);
  }
}

// Adds what the sums of one tile stand for to y[16][16].
INLINE void add_sums(const tiles_t *t, int tile, int minimum, int units, int per,
                     const scale_t *as, int stride, float *y) {
  mf acc[16];
  UNROLL for (int r = 0; r < 16; r++) acc[r] = ld_mf(y + r * 16);
  for (int u = 0; u < units; u++) {
    const i32 *high = t->sums[tile][u][0], *low = t->sums[tile][u][1];
    const scale_t *s = as + u / per * stride;
    const mf d = t->scale[u][tile], m = t->minimum[u][tile];
    UNROLL for (int r = 0; r < 16; r++) {
      mi sum = (*(const mi *)(high + r * 16) << 8) + *(const mi *)(low + r * 16);
      acc[r] += __builtin_convertvector(sum, mf) * (d * s[r].d);
      if (minimum) acc[r] += m * s[r].sum;
    }
  }
  UNROLL for (int r = 0; r < 16; r++) st_mf(y + r * 16, acc[r]);
}

// y[panel][2][16][16] = two tiles, `w` and the next one, times panels panel0 .. panel1 - 1 of n
// rows. Rows beyond a panel's own mean nothing: their inputs are whatever lies behind, in memory
// that is ours.
INLINE void pair_int(int kind, const u8 *w, const acts_t *a, int n, int panel0, int panel1,
                     float *y) {
  const int head = super_bytes(kind), bytes = block_bytes(kind), blocks = a->blocks;
  const int per = kind == Q6_K ? 2 : 1, minimum = kind_of(kind).minimum;
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
          sd[i] = half_to_f32(b[i]);
          if (minimum) sm[i] = -half_to_f32(b[i] + 32);
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
      multiply(&t, units, per, panel_q(a, p) + (i64)k * R * 64, R * 64);
      add_sums(&t, 0, minimum, units, per, s, R, to);
      add_sums(&t, 1, minimum, units, per, s, R, to + 256);
    }
  }
}

#define PAIR(kind)                                                                               \
  static __attribute__((noinline)) void pair_##kind(const u8 *w, const acts_t *a, int n,         \
                                                    int panel0, int panel1, float *y) {          \
    pair_int(kind, w, a, n, panel0, panel1, y);                                                  \
  }
PAIR(Q4_0) PAIR(Q4_1) PAIR(Q5_0) PAIR(Q5_1) PAIR(Q8_0) PAIR(Q4_K) PAIR(Q5_K) PAIR(Q6_K)

// y[panel][2][MR][16]: a pair of tiles times some panels, by whichever way is the faster.
static void pair_times_panels(const u8 *weights, const mat_t *m, int pair, const acts_t *a, int n,
                              int panel0, int panel1, float *y) {
  const u8 *w = weights + m->at + 2 * pair * tile_bytes(m->kind, a->blocks);
  int whole = is_float(m->kind) ? panel0 : panel1;  // panels that tile registers take
  if (whole > panel0 && panel_rows(n, panel1 - 1) < TILE_ROWS) whole--;
  if (whole > panel0) switch (m->kind) {
#define CASE(kind) case kind: pair_##kind(w, a, n, panel0, whole, y); break;
    CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q8_0) CASE(Q4_K) CASE(Q5_K) CASE(Q6_K)
#undef CASE
  }
  for (int p = whole; p < panel1; p++)
    for (int i = 0; i < 2; i++)
      tile_times_panel(weights, m, 2 * pair + i, a, p, panel_rows(n, p),
                       y + ((p - panel0) * 2 + i) * MR * 16);
}
