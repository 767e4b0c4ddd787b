// Attention of a tile of query vectors (rows x heads that share one key head) over a range of
// positions, with a running maximum, so that scores never leave the cache.
//
// keys:   [position / 16][entry][16 positions] f16: scores of 16 positions need no sums across lanes
// values: [position][entry] f16

#define CHUNK 128   // positions whose scores are held at once
#define QMAX 8      // query vectors in a tile
#define MAX_HEAD 512
#define NEVER -1e30f

typedef struct {
  const float *q;      // [entry][R], scaled
  const u16 *keys, *values;
  int entries;         // of a head, padded to 16
  int lo, hi;          // positions lo .. hi - 1
  int pos, per_row;    // vector v belongs to the row at position pos + v / per_row
  int window;          // positions that a row sees, itself included
  float softcap;       // 0: none
  float *out;          // [R][MAX_HEAD] sums, not yet divided by `total`
  float top[QMAX], total[QMAX];
} attend_t;

INLINE void score_blocks(const attend_t *a, int R, int B, int block, float *s) {
  vf acc[B][R];
  UNROLL for (int b = 0; b < B; b++) UNROLL for (int r = 0; r < R; r++) acc[b][r] = (vf){};
  const u16 *k = a->keys + (i64)block * a->entries * 16;
  const float *q = a->q;
  const i64 next = (i64)a->entries * 16;
  for (int e = 0; e < a->entries; e++, k += 16, q += R) {
    vf kv[B];
    UNROLL for (int b = 0; b < B; b++) kv[b] = halves(k + b * next);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int b = 0; b < B; b++) acc[b][r] += kv[b] * q[r];
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int b = 0; b < B; b++) st(s + r * CHUNK + b * 16, acc[b][r]);
}

INLINE void mix_values(const attend_t *a, int R, int B, int from, int count, int entry,
                       const float *s) {
  vf acc[B][R];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int b = 0; b < B; b++) acc[b][r] = ld(a->out + r * MAX_HEAD + entry + b * 16);
  const u16 *v = a->values + (i64)from * a->entries + entry;
  for (int t = 0; t < count; t++, v += a->entries) {
    vf vv[B];
    UNROLL for (int b = 0; b < B; b++) vv[b] = halves(v + b * 16);
    UNROLL for (int r = 0; r < R; r++)
      UNROLL for (int b = 0; b < B; b++) acc[b][r] += vv[b] * s[r * CHUNK + t];
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int b = 0; b < B; b++) st(a->out + r * MAX_HEAD + entry + b * 16, acc[b][r]);
}

// Turns the scores of vector r into weights, and scales what was summed before to the new maximum.
INLINE void soften(attend_t *a, int r, int from, int blocks, int masked, float *s) {
  const int pos = a->pos + r / a->per_row, first = pos - a->window + 1;
  const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  vf top = splat(NEVER);
  for (int b = 0; b < blocks; b++) {
    vf x = ld(s + b * 16);
    if (a->softcap > 0) x = a->softcap * vtanh(x / a->softcap);
    if (masked) {
      vi at = lane + (from + b * 16);
      x = select((at <= pos) & (at >= first) & (at >= a->lo) & (at < a->hi), x, splat(NEVER));
    }
    st(s + b * 16, x);
    top = vmax(top, x);
  }
  float best = reduce_max(top);
  if (best > a->top[r]) {
    float keep = vexp(splat(a->top[r] - best))[0];
    a->top[r] = best, a->total[r] *= keep;
    for (int e = 0; e < a->entries; e += 16) {
      float *o = a->out + r * MAX_HEAD + e;
      st(o, ld(o) * keep);
    }
  }
  vf sum = {};
  for (int b = 0; b < blocks; b++) {
    vf p = vexp(ld(s + b * 16) - a->top[r]);
    st(s + b * 16, p);
    sum += p;
  }
  a->total[r] += reduce_add(sum);
}

INLINE void attend_rows(attend_t *a, int R) {
  float s[R * CHUNK] __attribute__((aligned(64)));
  UNROLL for (int r = 0; r < R; r++) {
    a->top[r] = NEVER, a->total[r] = 0;
    for (int e = 0; e < a->entries; e += 16) st(a->out + r * MAX_HEAD + e, (vf){});
  }
  const int last_row = a->pos + (R - 1) / a->per_row;
  for (int from = a->lo & ~15; from < a->hi; from += CHUNK) {
    int count = MIN(CHUNK, a->hi - from), blocks = UP(count, 16) / 16, b = 0;
    for (; b + 2 <= blocks; b += 2) score_blocks(a, R, 2, from / 16 + b, s + b * 16);
    if (b < blocks) score_blocks(a, R, 1, from / 16 + b, s + b * 16);
    int masked = from + blocks * 16 > MIN(a->pos + 1, a->hi) || from < a->lo ||
                 from < last_row - a->window + 1;
    for (int r = 0; r < R; r++) soften(a, r, from, blocks, masked, s + r * CHUNK);
    int e = 0;
    for (; e + 32 <= a->entries; e += 32) mix_values(a, R, 2, from, count, e, s);
    if (e < a->entries) mix_values(a, R, 1, from, count, e, s);
  }
}

#define ATTEND(R) static __attribute__((noinline)) void attend_##R(attend_t *a) { attend_rows(a, R); }
ATTEND(1) ATTEND(2) ATTEND(3) ATTEND(4) ATTEND(6) ATTEND(8)

// The number of vectors that a tile is filled up to (with zeros): one of the copies above.
INLINE int attend_size(int vectors) { return vectors <= 4 ? vectors : vectors <= 6 ? 6 : 8; }
static void attend(attend_t *a, int size) {
  switch (size) {
  case 1: attend_1(a); break;
  case 2: attend_2(a); break;
  case 3: attend_3(a); break;
  case 4: attend_4(a); break;
  case 6: attend_6(a); break;
  default: attend_8(a);
  }
}
