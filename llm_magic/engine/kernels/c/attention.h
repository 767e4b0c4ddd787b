// Attention of a tile of query vectors (rows x heads that share one key head) over a range of
// positions, chunk by chunk, so that scores never leave the cache.
//
// The cache of a chunk's layer and head: keys [4][entry][16 positions], then values [64][entry],
// float16. Keys lie so that the scores of 16 positions need no sums across lanes. While one chunk
// is read, the next is fetched: it lies far away, where the hardware would not look.
//
// A row's result must not depend on which rows share its step, nor on the number of threads. So
// chunks begin at multiples of CHUNK whatever the tile, each is summed from zero, and they are
// joined in rising order, here or (when a long cache is shared out) in rows.h. What a row does not
// see adds exact zeros.

#define CHUNK 64    // positions whose scores are held at once
#define MAX_HEAD 512
#define NEVER -1e30f

// The weighted sum of a chunk's values, or of several chunks.
typedef struct {
  float top, total;    // largest score; sum of e^(score - top)
  float pad[14];
  float sum[MAX_HEAD]; // sum of e^(score - top) * value
} share_t;

typedef struct {
  const float *q;      // [entry][R], scaled
  const u16 *cache;    // of chunk 0
  i64 chunk;           // halves from one chunk to the next
  int entries;         // of a head, padded to 16
  int lo, hi;          // positions lo .. hi - 1; lo a multiple of CHUNK, or the first in the window
  int pos, per_row;    // vector v belongs to the row at position pos + v / per_row
  int window;          // positions that a row sees, itself included
  int vectors;         // of the R, those that are real
  float softcap;       // 0: none
  share_t *out;        // [R]: the joined chunks
  char *parts;         // or NULL: where chunk 0 of vector 0 is to be kept
  i64 part, vector;    // bytes from one chunk's share to the next; from one vector's to the next
} attend_t;

// all <- all and one.
INLINE void join_shares(share_t *all, const share_t *one, int entries) {
  const float top = MAX(all->top, one->top);
  const vf e = vexp((vf){all->top - top, one->top - top});
  const float keep = e[0], add = e[1];
  all->top = top, all->total = all->total * keep + one->total * add;
  for (int d = 0; d < entries; d += 16)
    st(all->sum + d, ld(all->sum + d) * keep + ld(one->sum + d) * add);
}

// Scores of B blocks of 16 positions. k: keys of the first.
INLINE void score_blocks(const attend_t *a, const u16 *k, int R, int B, float *s) {
  vf acc[B][R];
  UNROLL for (int b = 0; b < B; b++) UNROLL for (int r = 0; r < R; r++) acc[b][r] = (vf){};
  const float *q = a->q;
  const i64 next = (i64)a->entries * 16;
  for (int e = 0; e < a->entries; e++, k += 16, q += R) {
    vf kv[B];
    UNROLL for (int b = 0; b < B; b++) {
      kv[b] = halves(k + b * next);
      __builtin_prefetch(k + b * next + a->chunk, 0, 2);
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int b = 0; b < B; b++) acc[b][r] += kv[b] * q[r];
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int b = 0; b < B; b++) st(s + r * CHUNK + b * 16, acc[b][r]);
}

// Weighted sums of `count` values, in entries entry .. entry + 16 * B - 1. v: the first of them.
INLINE void mix_values(const attend_t *a, const u16 *v, share_t *out, int R, int B, int count,
                       int entry, const float *s) {
  vf acc[B][R];
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int b = 0; b < B; b++) acc[b][r] = (vf){};
  v += entry;
  for (int t = 0; t < count; t++, v += a->entries) {
    vf vv[B];
    UNROLL for (int b = 0; b < B; b++) vv[b] = halves(v + b * 16);
    UNROLL for (int b = 0; b < B; b += 2) __builtin_prefetch(v + b * 16 + a->chunk, 0, 2);
    UNROLL for (int r = 0; r < R; r++)
      UNROLL for (int b = 0; b < B; b++) acc[b][r] += vv[b] * s[r * CHUNK + t];
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int b = 0; b < B; b++) st(out[r].sum + entry + b * 16, acc[b][r]);
}

// Turns the scores of vector r in blocks first .. last - 1 of a chunk into weights.
INLINE void soften(const attend_t *a, share_t *out, int r, int from, int first, int last,
                   int masked, float *s) {
  const int pos = a->pos + r / a->per_row, oldest = pos - a->window + 1;
  const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  vf top = splat(NEVER);
  for (int b = first; b < last; b++) {
    vf x = ld(s + b * 16);
    if (a->softcap > 0) x = a->softcap * vtanh(x / a->softcap);
    if (masked) {
      vi at = lane + (from + b * 16);
      x = select((at <= pos) & (at >= oldest), x, splat(NEVER));
    }
    st(s + b * 16, x);
    top = vmax(top, x);
  }
  out->top = reduce_max(top);
  vf sum = {};
  for (int b = first; b < last; b++) {
    vf p = vexp(ld(s + b * 16) - out->top);
    st(s + b * 16, p);
    sum += p;
  }
  out->total = reduce_add(sum);
}

INLINE void attend_rows(const attend_t *a, int R) {
  float s[R * CHUNK] __attribute__((aligned(64)));
  share_t one[R] __attribute__((aligned(64)));
  const int last_row = a->pos + (R - 1) / a->per_row, B = ATTEND_WIDTH(R);
  for (int from = a->lo / CHUNK * CHUNK, started = 0; from < a->hi; from += CHUNK, started = 1) {
    const int begin = MAX(0, a->lo - from) / 16, count = MIN(CHUNK, a->hi - from);
    const int end = UP(count, 16) / 16;
    const u16 *keys = a->cache + from / CHUNK * a->chunk;
    const u16 *values = keys + (CHUNK + begin * 16) * a->entries;
    int b = begin, e = 0;
    for (; b + B <= end; b += B) score_blocks(a, keys + b * a->entries * 16, R, B, s + b * 16);
    for (; b < end; b++) score_blocks(a, keys + b * a->entries * 16, R, 1, s + b * 16);
    // A chunk that some row sees in part, or not at all.
    int masked = from + end * 16 > a->pos + 1 || from + begin * 16 < last_row - a->window + 1;
    for (int r = 0; r < R; r++) soften(a, one + r, r, from, begin, end, masked, s + r * CHUNK);
    const float *weights = s + begin * 16;
    const int n = count - begin * 16;
    for (; e + 16 * B <= a->entries; e += 16 * B) mix_values(a, values, one, R, B, n, e, weights);
    for (; e < a->entries; e += 16) mix_values(a, values, one, R, 1, n, e, weights);
    for (int r = 0; r < a->vectors; r++) {
      share_t *to = a->out + r;
      if (a->parts) to = (share_t *)(a->parts + from / CHUNK * a->part + r * a->vector);
      if (a->parts || !started) {
        to->top = one[r].top, to->total = one[r].total;
        copy(to->sum, one[r].sum, a->entries);
      } else
        join_shares(to, one + r, a->entries);
    }
  }
}

#define ATTEND(R)                                                        \
  static __attribute__((noinline)) void attend_##R(const attend_t *a) { \
    attend_rows(a, R);                                                  \
  }
ATTEND(1) ATTEND(2)
#if QMAX >= 4
ATTEND(3) ATTEND(4)
#endif
#if QMAX >= 8
ATTEND(6) ATTEND(8)
#endif

// The number of vectors that a tile is filled up to (with zeros): one of the copies above.
INLINE int attend_size(int vectors) { return vectors <= 4 ? vectors : vectors <= 6 ? 6 : 8; }
static void attend(const attend_t *a, int size) {
  switch (size) {
  case 1: attend_1(a); break;
  case 2: attend_2(a); break;
#if QMAX >= 4
  case 3: attend_3(a); break;
  case 4: attend_4(a); break;
#endif
#if QMAX >= 8
  case 6: attend_6(a); break;
  case 8: attend_8(a); break;
#endif
  }
}
