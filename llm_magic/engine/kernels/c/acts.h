// Activations as the matrix products read them.
//
// Rows come in panels of MR (the last one shorter, R rows). Every block of 32 inputs of a row is
// scaled to 16-bit integers, |v| <= 32639: 8 bits would move the log-probabilities by tenths.
//   q: [panel][block][R][64] bytes: 32 high and 32 low parts, v = 256 * high + low (PLANES), or
//      32 int16 in the order 0 2 1 3 of every four, which is how 8-bit weights split into pairs;
//      of panels for tile registers (TILE_ROWS rows and more) [panel][block][2][16][32] bfloat16:
//      256 * high, and low
//   s: [panel][block][R] of scale_t
//   f: [panel][input][R] float32, filled only where a matrix with float weights follows

typedef struct {
  float d;     // value of one unit
  float sum;   // sum of the 32 values: multiplies a block's minimum
  i32 neg;     // -(sum of the 32 integers): multiplies the offset of unsigned weights
  i32 neg2;    // the same of the last 16: Q6_K scales halves
} scale_t;

typedef struct {
  u8 *q;
  scale_t *s;
  float *f;
  int blocks;  // of 32 inputs
} acts_t;

#ifndef ROW_BYTES
#define ROW_BYTES 64  // of a block
#endif
#define RANGE 32639.f  // 127 * 256 + 127: both parts fit a signed byte

INLINE int panel_rows(int n, int panel) { return MIN(MR, n - panel * MR); }
INLINE u8 *panel_q(const acts_t *a, int panel) {
  return a->q + (i64)panel * MR * a->blocks * ROW_BYTES;
}
INLINE scale_t *panel_s(const acts_t *a, int panel) { return a->s + (i64)panel * MR * a->blocks; }
INLINE float *panel_f(const acts_t *a, int panel) {
  return a->f + (i64)panel * MR * a->blocks * 32;
}

// 16 integers of at most 8 bits times a power of two, as bfloat16.
INLINE void st_bfloats(u8 *p, vi v) {
  *(v16u16_u *)p = __builtin_convertvector((vi)__builtin_convertvector(v, vf) >> 16, v16u16);
}

INLINE float block_top(vf x0, vf x1) { return reduce_max(vmax(vabs(x0), vabs(x1))); }

// d: one unit of the integers; inv: 1 / d, or 0.
INLINE void pack_block(vf x0, vf x1, float d, float inv, u8 *q, scale_t *s, int bfloats) {
  vi v0 = round_i32(x0 * inv), v1 = round_i32(x1 * inv);
  i32 sum1 = reduce_addi(v1), sum = reduce_addi(v0) + sum1;
  *s = (scale_t){d, d * (float)sum, -sum, -sum1};
#if PLANES
  vi h0 = (v0 + 128) >> 8, h1 = (v1 + 128) >> 8;
#ifdef TILE_ROWS
  if (bfloats) {
    st_bfloats(q, h0 << 8), st_bfloats(q + 32, h1 << 8);
    st_bfloats(q + 1024, v0 - (h0 << 8)), st_bfloats(q + 1056, v1 - (h1 << 8));
    return;
  }
#endif
  *(v16i8_u *)(q) = __builtin_convertvector(h0, v16i8);
  *(v16i8_u *)(q + 16) = __builtin_convertvector(h1, v16i8);
  *(v16i8_u *)(q + 32) = __builtin_convertvector(v0 - (h0 << 8), v16i8);
  *(v16i8_u *)(q + 48) = __builtin_convertvector(v1 - (h1 << 8), v16i8);
#else
  v16u16 p0 = __builtin_convertvector((vi)v0, v16u16), p1 = __builtin_convertvector((vi)v1, v16u16);
  p0 = __builtin_shufflevector(p0, p0, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  p1 = __builtin_shufflevector(p1, p1, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  *(v16u16_u *)q = p0, *(v16u16_u *)(q + 32) = p1;
#endif
}

// One block of all R rows of a panel, x: [R][32]: the rows' maxima and quotients do not wait for
// each other. floats: a matrix with float weights will read them, too.
INLINE void put_blocks(const acts_t *a, int panel, int R, int block, const float *x,
                       int floats) {
#ifdef TILE_ROWS
  const int bfloats = R >= TILE_ROWS;
#else
  const int bfloats = 0;
#endif
  u8 *q = panel_q(a, panel) + (i64)block * (bfloats ? 2048 : R * 64);
  scale_t *s = panel_s(a, panel) + (i64)block * R;
  float top[16];
  for (int r = 0; r < 16; r++) top[r] = 0;
  for (int r = 0; r < R; r++) top[r] = block_top(ld(x + r * 32), ld(x + r * 32 + 16));
  const vf t = ld(top), d = t / RANGE, inv = select(t > (vf){}, RANGE / t, (vf){});
  float ds[16], invs[16];
  st(ds, d), st(invs, inv);
  for (int r = 0; r < R; r++)
    pack_block(ld(x + r * 32), ld(x + r * 32 + 16), ds[r], invs[r], q + r * 64, s + r, bfloats);
  if (floats) {
    float *f = panel_f(a, panel) + (i64)block * 32 * R;
    for (int r = 0; r < R; r++)
      for (int i = 0; i < 32; i++) f[i * R + r] = x[r * 32 + i];
  }
}

// The same for one row of a panel, up to 16 blocks of it, x: [blocks][32]. The quotients of all
// blocks come of one division: with one row in a step, a division a block took half of the time of
// a norm. Not for panels of tile registers, whose blocks lie otherwise.
#define ROW_BLOCKS 16
INLINE void put_row(const acts_t *a, int panel, int R, int row, int block, int blocks,
                    const float *x, int floats) {
  u8 *q = panel_q(a, panel) + ((i64)block * R + row) * 64;
  scale_t *s = panel_s(a, panel) + (i64)block * R + row;
  float top[16], units[16], quotients[16];
  for (int b = 0; b < 16; b++) top[b] = 0;
  for (int b = 0; b < blocks; b++) top[b] = block_top(ld(x + b * 32), ld(x + b * 32 + 16));
  const vf t = ld(top);
  st(units, t / RANGE), st(quotients, select(t > (vf){}, RANGE / t, (vf){}));
  for (int b = 0; b < blocks; b++)
    pack_block(ld(x + b * 32), ld(x + b * 32 + 16), units[b], quotients[b], q + b * R * 64,
               s + b * R, 0);
  if (floats) {
    float *f = panel_f(a, panel) + (i64)block * 32 * R + row;
    for (int i = 0; i < blocks * 32; i++) f[i * R] = x[i];
  }
}
