// What a reader of probabilities needs of a row of logits: its log of the sum of exponentials, and
// its largest entries. One pass over the logits by the whole team, then a merge of the parts.

#define TOP_MAX 32
#define PARTS_MAX 64

typedef struct {
  float top, total;            // maximum; sum of e^(x - top)
  float value[TOP_MAX];        // falling
  i32 id[TOP_MAX];
} part_t;

typedef struct {
  const float *logits;
  i64 stride;                  // of a row, in floats
  part_t *parts;               // [rows][n_parts]
  int vocab, n_parts, keep;
} summary_t;

INLINE void keep_largest(part_t *p, int keep, float x, i32 id) {
  int i = keep - 1;
  if (x <= p->value[i]) return;  // equal logits: the lower id was here first
  for (; i > 0 && p->value[i - 1] < x; i--) p->value[i] = p->value[i - 1], p->id[i] = p->id[i - 1];
  p->value[i] = x, p->id[i] = id;
}

static void summary_task(void *arg, int task) {
  const summary_t *s = arg;
  const float *x = s->logits + task / s->n_parts * s->stride;
  const int part = task % s->n_parts, per = UP(UP(s->vocab, 16) / 16, s->n_parts) / s->n_parts * 16;
  const int from = MIN(s->vocab, part * per), to = MIN(s->vocab, from + per);
  part_t *p = s->parts + task;
  for (int i = 0; i < s->keep; i++) p->value[i] = -__builtin_inff(), p->id[i] = -1;
  vf top = splat(-__builtin_inff());
  vi odd = {};  // what is not equal to itself is not a number
  int i = from;
  for (; i + 16 <= to; i += 16) {
    vf v = ld(x + i);
    top = vmax(top, v), odd |= v != v;
    vi more = v > splat(p->value[s->keep - 1]);
    if (__builtin_reduce_or(more))
      for (int e = 0; e < 16; e++) keep_largest(p, s->keep, x[i + e], i + e);
  }
  p->top = reduce_max(top);
  for (; i < to; i++) {
    keep_largest(p, s->keep, x[i], i), p->top = MAX(p->top, x[i]);
    odd[0] |= x[i] != x[i];
  }
  vf sum = {};
  for (i = from; i + 16 <= to; i += 16) sum += vexp(ld(x + i) - p->top);
  p->total = reduce_add(sum);
  for (; i < to; i++) p->total += vexp(splat(x[i] - p->top))[0];
  if (__builtin_reduce_or(odd)) p->top = __builtin_inff();  // and so is the row's lse
}

// lse: [rows]  id, value: [rows][keep]; keep >= 1. stride: of a row of logits.
static void summarize(const float *logits, i64 stride, int vocab, int rows, int keep, part_t *work,
                      float *lse, i32 *id, float *value, team_t *team) {
  summary_t s = {logits, stride, work, vocab, MIN(PARTS_MAX, 4 * (team->helpers + 1)), keep};
  const int most = PARTS_MAX / s.n_parts;  // rows whose parts fit the work memory
  for (int r = 0; r < rows; r++) {
    if (r % most == 0) {
      s.logits = logits + r * stride;
      run(team, summary_task, &s, MIN(most, rows - r) * s.n_parts);
    }
    part_t *all = work + r % most * s.n_parts;
    float top = all->top;
    for (int i = 1; i < s.n_parts; i++) top = MAX(top, all[i].top);
    double total = 0;
    for (int i = 0; i < s.n_parts; i++)
      if (all[i].total > 0) total += (double)all[i].total * vexp(splat(all[i].top - top))[0];
    lse[r] = top + log_((float)total);
    for (int i = 1; i < s.n_parts; i++)
      for (int k = 0; k < keep && all[i].id[k] >= 0; k++)
        keep_largest(all, keep, all[i].value[k], all[i].id[k]);
    for (int k = 0; k < keep; k++) {
      id[r * keep + k] = all->id[k];
      value[r * keep + k] = all->value[k];
    }
  }
}
