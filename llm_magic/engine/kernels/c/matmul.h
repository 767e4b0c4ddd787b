// One tile of 16 outputs times R rows of activations: the loop where the time goes.
//
// Rows are the inner loop, so that weights are unpacked once for all of them and every row has its
// own chain of sums. R is a compile-time constant of each copy: all sums live in registers.

#ifndef VR
#define VR MR  // rows of one pass; a panel may hold more
#endif

INLINE mb ld_mb(const u8 *p) {
  typedef mb mb_u __attribute__((aligned(1), may_alias));
  return *(const mb_u *)p;
}
INLINE mf ld_mf(const float *p) {
  typedef mf mf_u __attribute__((aligned(1), may_alias));
  return *(const mf_u *)p;
}
INLINE void st_mf(float *p, mf v) {
  typedef mf mf_u __attribute__((aligned(1), may_alias));
  *(mf_u *)p = v;
}
INLINE mf bytes_to_f32(const u8 *p, int is_signed) {
  typedef u8 vec __attribute__((vector_size(V)));
  typedef i8 ivec __attribute__((vector_size(V)));
  typedef vec vec_u __attribute__((aligned(1), may_alias));
  vec v = *(const vec_u *)p;
  return is_signed ? __builtin_convertvector((ivec)v, mf) : __builtin_convertvector(v, mf);
}
// Some bits of V bytes, as floats.
INLINE mf bytes_to_f32_masked(const u8 *p, int shift, int mask) {
  typedef u8 vec __attribute__((vector_size(V)));
  typedef vec vec_u __attribute__((aligned(1), may_alias));
  return __builtin_convertvector((*(const vec_u *)p >> (u8)shift) & (u8)mask, mf);
}
// half_power_bits of V exponents.
INLINE mf half_powers(const u8 *p) {
  typedef u8 vec __attribute__((vector_size(V)));
  typedef vec vec_u __attribute__((aligned(1), may_alias));
  const mi e = __builtin_convertvector(*(const vec_u *)p, mi), small = e < 2;
  return (mf)((((e - 1) << 23) & ~small) | ((0x00200000 << (e & 1)) & small));
}
// Bits at `from` of every byte, moved to `to`: `mask` cuts what crosses from the neighbour.
INLINE mb move_bits(mb v, int from, int to, int mask) {
  mh h = (mh)v;
  h = to >= from ? h << (to - from) : h >> (from - to);
  return (mb)h & (u8)mask;
}

typedef struct {
  int offset_log2;  // stored integer = true integer + 2^offset_log2; 0: none
  int minimum;      // a minimum per block is added
  int high;         // extra bits beyond the nibble (of Q3_K: beyond two bits)
} kind_t;

INLINE kind_t kind_of(int kind) {
  switch (kind) {
  case Q4_0: return (kind_t){3, 0, 0};
  case Q4_1: case Q4_K: return (kind_t){0, 1, 0};
  case Q5_0: return (kind_t){4, 0, 1};
  case Q5_1: case Q5_K: return (kind_t){0, 1, 1};
  case Q6_K: return (kind_t){5, 0, 2};
  case Q2_K: return (kind_t){0, 1, 0};
  case Q3_K: return (kind_t){2, 0, 1};
  default: return (kind_t){SIGNED_WEIGHTS ? 0 : 7, 0, 0};  // bytes, and nibbles that name bytes
  }
}

// Integers of group j (four inputs) of V outputs. q: nibbles or bytes, h: extra bits, at this lane.
INLINE mb group(int kind, const u8 *q, const u8 *h, int j) {
  if (is_bytes(kind)) return ld_mb(q + j * 64) ^ (u8)(SIGNED_WEIGHTS ? 128 : 0);
  if (is_two_bits(kind)) {
    mb w = move_bits(ld_mb(q + (j >> 2) * 64), 2 * (j & 3), 0, 3);
    if (kind == Q3_K) w |= move_bits(ld_mb(h), j, 2, 4);
    return w;
  }
  mb w = move_bits(ld_mb(q + (j & 3) * 64), j >= 4 ? 4 : 0, 0, 15);
  if (is_named(kind)) return look_up(named_values(kind), w) ^ (u8)(SIGNED_WEIGHTS ? 128 : 0);
  if (kind_of(kind).high == 1) w |= move_bits(ld_mb(h), j, 4, 16);
  if (kind_of(kind).high == 2) w |= move_bits(ld_mb(h + (j >> 2) * 64), 2 * (j & 3), 4, 48);
  return w;
}

// Minus the sum of the integers of one half of a block, and the sum of the values that they mean.
INLINE i32 half_neg(const scale_t *s, int half) { return half ? s->neg2 : s->neg - s->neg2; }
INLINE float half_sum(const scale_t *s, int half) { return s->d * (float)-half_neg(s, half); }

// What the integers of a block (or a half of it) are multiplied by, and its minimum. sd, sm: of the
// super-block.
INLINE mf block_scale(int kind, int half, const u8 *b, int o, mf sd) {
  if (kind == Q2_K) return sd * bytes_to_f32_masked(b + 16 * half + o, 0, 15);
  if (has_halves(kind)) return sd * bytes_to_f32(b + 16 * half + o, 1);
  if (kind == IQ4_XS) return sd * bytes_to_f32(b + o, 1);
  if (kind == MXFP4) return half_powers(b + o);
  return super_bytes(kind) ? sd * bytes_to_f32(b + o, 0) : half_to_f32(b + 2 * o);
}
INLINE mf block_minimum(int kind, int half, const u8 *b, int o, mf sm) {
  if (kind == Q2_K) return sm * bytes_to_f32_masked(b + 16 * half + o, 4, 15);
  return super_bytes(kind) ? sm * bytes_to_f32(b + 16 + o, 0) : half_to_f32(b + 32 + 2 * o);
}
INLINE mf super_scale(int kind, const u8 *b, int o) {
  return kind == SCALED ? ld_mf((const float *)b + o) : half_to_f32(b + 2 * o);
}

// Adds the products of groups first .. last - 1 to acc[r], scaled by d (and minimum m).
INLINE void dot_groups(int kind, int R, const u8 *q, const u8 *h, int first, int last, mf d, mf m,
                       const u8 *aq, const scale_t *as, mf *acc) {
  const kind_t is = kind_of(kind);
  idot sum[VR];
  UNROLL for (int r = 0; r < R; r++) {
    const i32 neg = has_halves(kind) ? half_neg(as + r, first != 0) : as[r].neg;
    sum[r] = dot_start(is.offset_log2 ? ((mi){} + neg) << is.offset_log2 : (mi){});
  }
  UNROLL for (int j = first; j < last; j++) {
    mb w = group(kind, q, h, j);
    UNROLL for (int r = 0; r < R; r++) sum[r] = dot(sum[r], w, aq + r * 64, j);
  }
  UNROLL for (int r = 0; r < R; r++) {
    acc[r] += __builtin_convertvector(dot_value(sum[r]), mf) * (d * as[r].d);
    if (is.minimum) acc[r] += m * (has_halves(kind) ? half_sum(as + r, first != 0) : as[r].sum);
  }
}

#define AHEAD 6144  // bytes: about 0.15 us of one core's reading

// Fetches as many bytes as are read from `b` on, for later. Tiles are read in order, but with many
// rows too slowly for the hardware to see it.
//
// With PAGES a window is fetched ahead, by turns from each of its pages of 4 KB: Intel's prefetcher
// follows a run of addresses inside one page and keeps few of its lines under way. [Two cores of a
// Sapphire Rapids, products of SmolLM2 alone: 23 GB/s with one run, 28 to 31 with four pages; what
// memory gives there is 31. On an AMD EPYC with four pages a step takes 12 % longer.]
INLINE void fetch_ahead(const u8 *b, int bytes) {
#ifdef PAGES
  enum { TURN = 64 * PAGES, WINDOW = PAGES << 12 };
  const u64 end = (u64)b + bytes;
  for (u64 at = UP((u64)b, TURN); at < end; at += TURN) {
    const u64 inside = at % WINDOW;
    const u8 *next = (const u8 *)(at - inside + WINDOW + inside / PAGES);
    UNROLL for (int page = 0; page < PAGES; page++)
        __builtin_prefetch(next + (page << 12), 0, 3);
  }
#else
  UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(b + AHEAD + i, 0, 3);
#endif
}

// y[r][16] = tile times row r. w: the tile; aq, as: the panel from its first row on, stride rows.
INLINE void tile_int(int kind, int R, const u8 *w, int blocks, const u8 *aq, const scale_t *as,
                     int stride, float *y) {
  const int head = super_bytes(kind), bytes = block_bytes(kind);
  UNROLL for (int o = 0; o < 16; o += V) {
    mf acc[VR];
    UNROLL for (int r = 0; r < R; r++) acc[r] = (mf){};
    mf sd = {}, sm = {};
    const u8 *b = w, *q = aq;
    const scale_t *s = as;
    for (int k = 0; k < blocks; k++, b += bytes, q += stride * 64, s += stride) {
      if (head && k % 8 == 0) {
        sd = super_scale(kind, b, o);
        if (kind_of(kind).minimum) sm = -half_to_f32(b + 32 + 2 * o);
        b += head;
      }
      fetch_ahead(b, bytes);
      const u8 *h = b + high_at(kind) + o * 4, *n = b + integers_at(kind) + o * 4;
      const int halves = has_halves(kind) ? 2 : 1;
      UNROLL for (int i = 0; i < halves; i++) {
        mf m = {};
        if (kind_of(kind).minimum) m = block_minimum(kind, i, b, o, sm);
        dot_groups(kind, R, n, h, i * 4, halves == 2 ? i * 4 + 4 : 8,
                   block_scale(kind, i, b, o, sd), m, q, s, acc);
      }
    }
    UNROLL for (int r = 0; r < R; r++) st_mf(y + r * 16 + o, acc[r]);
  }
}

// Float weights: two chains of sums a row, or with one row each sum would wait for the one before.
INLINE void tile_float(int kind, int R, const u8 *w, int inputs, const float *x, int stride,
                       float *y) {
  enum { C = 2 };  // for any R, so that a row's sum does not depend on its neighbours
  UNROLL for (int o = 0; o < 16; o += V) {
    mf acc[VR][C];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) acc[r][c] = (mf){};
    for (int i = 0; i < inputs; i += C) {
      UNROLL for (int c = 0; c < C; c++) {
        mf v;
        const int at = (i + c) * 16 + o;
        if (kind == F32) v = ld_mf((const float *)w + at);
        else if (kind == F16) v = half_to_f32(w + at * 2);
        else {
          typedef u16 vec __attribute__((vector_size(2 * V)));
          typedef vec vec_u __attribute__((aligned(1), may_alias));
          v = (mf)(__builtin_convertvector(*(const vec_u *)(w + at * 2), mi) << 16);
        }
        UNROLL for (int r = 0; r < R; r++) acc[r][c] += v * x[(i + c) * stride + r];
      }
    }
    UNROLL for (int r = 0; r < R; r++) st_mf(y + r * 16 + o, acc[r][0] + acc[r][1]);
  }
}

INLINE void tile_rows(int kind, int R, const u8 *w, int blocks, const u8 *q, const scale_t *s,
                      const float *f, int stride, float *y) {
  if (is_float(kind)) tile_float(kind, R, w, blocks * 32, f, stride, y);
  else tile_int(kind, R, w, blocks, q, s, stride, y);
}

// One copy of the loop for every kind and number of rows.
#define TILE(kind)                                                                              \
  static __attribute__((noinline)) void tile_##kind(                                            \
      int R, const u8 *w, int blocks, const u8 *q, const scale_t *s, const float *f, float *y) { \
    int r = 0;                                                                                  \
    for (; r + VR <= R; r += VR)                                                                \
      tile_rows(kind, VR, w, blocks, q + r * 64, s + r, f + r, R, y + r * 16);                  \
    if (VR > 4 && r + 4 <= R) {                                                                 \
      tile_rows(kind, 4, w, blocks, q + r * 64, s + r, f + r, R, y + r * 16), r += 4;           \
    }                                                                                           \
    switch (R - r) {                                                                            \
    case 3: tile_rows(kind, 3, w, blocks, q + r * 64, s + r, f + r, R, y + r * 16); break;      \
    case 2: tile_rows(kind, 2, w, blocks, q + r * 64, s + r, f + r, R, y + r * 16); break;      \
    case 1: tile_rows(kind, 1, w, blocks, q + r * 64, s + r, f + r, R, y + r * 16); break;      \
    }                                                                                           \
  }
TILE(F32) TILE(F16) TILE(BF16) TILE(Q4_0) TILE(Q4_1) TILE(Q5_0) TILE(Q5_1) TILE(Q8_0)
TILE(Q4_K) TILE(Q5_K) TILE(Q6_K)
TILE(Q2_K) TILE(Q3_K) TILE(IQ4_NL) TILE(IQ4_XS) TILE(MXFP4) TILE(SCALED)

// y[R][16] = tile number `tile` of the matrix times the R rows of a panel.
static void tile_times_panel(const u8 *weights, const mat_t *m, int tile, const acts_t *a,
                             int panel, int R, float *y) {
  const u8 *w = weights + m->at + tile * tile_bytes(m->kind, a->blocks);
  const u8 *q = panel_q(a, panel);
  const scale_t *s = panel_s(a, panel);
  const float *f = panel_f(a, panel);
  switch (m->kind) {
#define CASE(kind) case kind: tile_##kind(R, w, a->blocks, q, s, f, y); break;
  CASE(F32) CASE(F16) CASE(BF16) CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q8_0)
  CASE(Q4_K) CASE(Q5_K) CASE(Q6_K)
  CASE(Q2_K) CASE(Q3_K) CASE(IQ4_NL) CASE(IQ4_XS) CASE(MXFP4) CASE(SCALED)
#undef CASE
  }
}
