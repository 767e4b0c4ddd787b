// Attention of a tile of query vectors (rows x heads that share one key head) over a range of
// positions, span by span, so that scores never leave the cache.
//
// The cache of a chunk's layer and head: keys [4][entry][16 positions], their units [64], values
// [64][entry], their units [64]. Keys and values are 16-bit integers in units of their own vector's
// largest entry / 32767, float32. [float16 takes as much, but rounds that entry, which rules the
// score, 16 times as coarsely: with it, keys alone moved log-probabilities more than all the rest.]
// Keys lie so that the scores of 16 positions need no sums across lanes. While one chunk is read,
// the next is fetched: it lies far away, where the hardware would not look.
//
// A row's result must not depend on which rows share its step, nor on the number of threads. So
// spans begin at multiples of SPAN whatever the tile, each is summed from zero, and they are joined
// in rising order, here or (when a long cache is shared out) in rows.h. What a row does not see
// adds exact zeros. [Spans of 256 against 64: 2,048 tokens are prefilled 8 % faster; of longer ones
// there would be too few to share out.]

#define CHUNK 64    // positions that lie together in the cache
#define BLOCKS (CHUNK / 16)
#define SPAN 256    // positions whose scores are held at once; a multiple of CHUNK
#define MAX_HEAD 512
#define NEVER -1e30f

// The weighted sum of a span's values, or of several spans.
typedef struct {
  float top, total;    // largest score; sum of e^(score - top)
  float pad[14];
  float sum[MAX_HEAD]; // sum of e^(score - top) * value
} share_t;

typedef struct {
  const float *q;      // [entry][R], scaled
  const u16 *cache;    // of chunk 0
  i64 chunk;           // u16 from one chunk to the next
  i64 after;           // from the last chunk to what is read after it
  int entries;         // of a head, padded to 16
  int lo, hi;          // positions lo .. hi - 1; lo a multiple of SPAN, or the first in the window
  int pos, per_row;    // vector v belongs to the row at position pos + v / per_row
  int window;          // positions that a row sees, itself included
  int vectors;         // of the R, those that are real
  float softcap;       // 0: none
  share_t *out;        // [R]: the joined spans
  char *parts;         // or NULL: where span 0 of vector 0 is to be kept
  i64 part, head, row; // bytes from one span's share to the next, from one head's, from one row's
} attend_t;

// Of a chunk's layer and head, by its keys.
INLINE float *key_units(const u16 *keys, int entries) { return (float *)(keys + CHUNK * entries); }
INLINE u16 *values_of(const u16 *keys, int entries) { return (u16 *)keys + CHUNK * (entries + 2); }
INLINE float *value_units(const u16 *keys, int entries) {
  return key_units(values_of(keys, entries), entries);
}
INLINE void fetch_units(const float *units, i64 ahead) {
  UNROLL for (int i = 0; i < CHUNK; i += 16)
    __builtin_prefetch((const u16 *)(units + i) + ahead, 0, 2);
}

// x: [entries] -> integers, `step` apart. Returns their unit, which is not a number where one of x is
// not: the largest does not tell.
INLINE float store_shorts(const float *x, int entries, u16 *to, int step) {
  vf top = {};
  vi odd = {};
  for (int d = 0; d < entries; d += 16) {
    const vf v = ld(x + d);
    top = vmax(top, vabs(v)), odd |= v != v;
  }
  const float most = __builtin_reduce_or(odd) ? __builtin_nanf("") : reduce_max(top);
  const float inv = most > 0 ? 32767.f / most : 0;
  for (int d = 0; d < entries; d += 16) {
    const v16i16 v = __builtin_convertvector(round_i32(ld(x + d) * inv), v16i16);
    if (step == 1) *(v16i16_u *)(to + d) = v;
    else
      for (int e = 0; e < 16; e++) to[(d + e) * step] = (u16)v[e];
  }
  return most / 32767.f;
}

// all <- all and one.
INLINE void join_shares(share_t *all, const share_t *one, int entries) {
  const float top = MAX(all->top, one->top);
  const vf e = vexp((vf){all->top - top, one->top - top});
  const float keep = e[0], add = e[1];
  all->top = top, all->total = all->total * keep + one->total * add;
  for (int d = 0; d < entries; d += 16)
    st(all->sum + d, ld(all->sum + d) * keep + ld(one->sum + d) * add);
}

// Scores of B blocks of 16 positions. k, units: keys of the first. ahead: to the next chunk's.
INLINE void score_blocks(const attend_t *a, const u16 *k, const float *units, i64 ahead, int R,
                         int B, float *s) {
  vf acc[B][R];
  UNROLL for (int b = 0; b < B; b++) UNROLL for (int r = 0; r < R; r++) acc[b][r] = (vf){};
  const float *q = a->q;
  const i64 next = (i64)a->entries * 16;
  for (int e = 0; e < a->entries; e++, k += 16, q += R) {
    vf kv[B];
    UNROLL for (int b = 0; b < B; b++) {
      kv[b] = shorts(k + b * next);
      __builtin_prefetch(k + b * next + ahead, 0, 2);
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int b = 0; b < B; b++) acc[b][r] += kv[b] * q[r];
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int b = 0; b < B; b++) st(s + r * SPAN + b * 16, acc[b][r] * ld(units + b * 16));
}

// Weighted sums of `count` values, in entries entry .. entry + 16 * B - 1. v: the first of them.
// more: to what `out` holds.
INLINE void mix_values(const attend_t *a, const u16 *v, i64 ahead, share_t *out, int R, int B,
                       int count, int entry, const float *s, int more) {
  vf acc[B][R];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int b = 0; b < B; b++)
      acc[b][r] = more ? ld(out[r].sum + entry + b * 16) : (vf){};
  v += entry;
  for (int t = 0; t < count; t++, v += a->entries) {
    vf vv[B];
    UNROLL for (int b = 0; b < B; b++) vv[b] = shorts(v + b * 16);
    UNROLL for (int b = 0; b < B; b += 2) __builtin_prefetch(v + b * 16 + ahead, 0, 2);
    UNROLL for (int r = 0; r < R; r++)
      UNROLL for (int b = 0; b < B; b++) acc[b][r] += vv[b] * s[r * SPAN + t];
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int b = 0; b < B; b++) st(out[r].sum + entry + b * 16, acc[b][r]);
}

// Turns the scores of vector r in blocks first .. last - 1 of a span into weights.
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
  float s[R * SPAN] __attribute__((aligned(64)));
  share_t one[R] __attribute__((aligned(64)));
  const int last_row = a->pos + (R - 1) / a->per_row, B = ATTEND_WIDTH(R), D = a->entries;
  for (int from = a->lo / SPAN * SPAN, started = 0; from < a->hi; from += SPAN, started = 1) {
    const int begin = MAX(0, a->lo - from) / 16, count = MIN(SPAN, a->hi - from);
    const int end = UP(count, 16) / 16, first = begin / BLOCKS, last = (count - 1) / CHUNK;
    const u16 *chunk = a->cache + (from / CHUNK + first) * a->chunk;
    for (int c = first; c <= last; c++, chunk += a->chunk) {
      const i64 ahead = from + (c + 1) * CHUNK < a->hi ? a->chunk : a->after;
      const int stop = MIN(end - c * BLOCKS, BLOCKS);
      const float *units = key_units(chunk, D);
      float *to = s + c * CHUNK;
      int b = MAX(0, begin - c * BLOCKS);
      fetch_units(units, ahead);
      for (; b + B <= stop; b += B)
        score_blocks(a, chunk + b * 16 * D, units + b * 16, ahead, R, B, to + b * 16);
      for (; b < stop; b++)
        score_blocks(a, chunk + b * 16 * D, units + b * 16, ahead, R, 1, to + b * 16);
    }
    // A span that some row sees in part, or not at all.
    int masked = from + end * 16 > a->pos + 1 || from + begin * 16 < last_row - a->window + 1;
    for (int r = 0; r < R; r++) soften(a, one + r, r, from, begin, end, masked, s + r * SPAN);
    chunk = a->cache + (from / CHUNK + first) * a->chunk;
    for (int c = first; c <= last; c++, chunk += a->chunk) {
      const i64 ahead = from + (c + 1) * CHUNK < a->hi ? a->chunk : a->after;
      const int skip = MAX(0, begin - c * BLOCKS) * 16;
      const int n = MIN(CHUNK, count - c * CHUNK) - skip;
      const u16 *values = values_of(chunk, D) + skip * D;
      const float *units = value_units(chunk, D);
      float *weights = s + c * CHUNK + skip;
      int e = 0;
      fetch_units(units, ahead);
      for (int r = 0; r < R; r++)
        for (int t = 0; t < n; t += 16) {
          float *w = weights + r * SPAN + t;
          st(w, ld(w) * ld(units + skip + t));
        }
      for (; e + 16 * B <= D; e += 16 * B)
        mix_values(a, values, ahead, one, R, B, n, e, weights, c > first);
      for (; e < D; e += 16) mix_values(a, values, ahead, one, R, 1, n, e, weights, c > first);
    }
    for (int r = 0; r < a->vectors; r++) {
      share_t *to = a->out + r;
      if (a->parts)
        to = (share_t *)(a->parts + from / SPAN * a->part + r / a->per_row * a->row +
                         r % a->per_row * a->head);
      if (a->parts || !started) {
        to->top = one[r].top, to->total = one[r].total;
        copy(to->sum, one[r].sum, D);
      } else
        join_shares(to, one + r, D);
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
