// What a step records or changes at points of a layer (kernels/taps.py writes the table).

// Sorted by layer, point, changes before reads: a cursor finds each where the step comes to it.
enum { TAP_READ, TAP_ADD, TAP_REPLACE };

static void tap(step_t *s, int point, float *rows, int wide) {
  for (; s->taps < s->taps_end; s->taps++) {
    const tap_t *t = s->taps;
    if (t->layer != s->layer_index || t->point != point) return;
    for (int r = 0; r < t->rows; r++) {
      float *row = rows + (i64)(t->first + r) * wide + t->column;
      float *data = (float *)t->data + r * t->stride;
      for (int c = 0; c < t->columns; c++) {
        if (t->kind == TAP_READ)
          data[c] = row[c];
        else
          row[c] = t->kind == TAP_ADD ? row[c] + data[c] : data[c];
        __asm__ volatile("");  // or the loop becomes a call to memcpy: there is no library
      }
    }
  }
}

INLINE norm_t output_norm(const model_t *m) {
  return (norm_t){m->output_norm_kind, m->output_norm, m->output_norm_bias};
}

// A row through a norm: to = norm(from).
INLINE void norm_row(const step_t *s, norm_t norm, const float *from, float *to) {
  const normal_t by = normal_of(norm.kind, from, s->wide, s->model->dim, s->model->eps);
  for (int d = 0; d < s->wide; d += 16) st(to + d, norm_vector(s, norm, &by, from, d));
}

static void post_panel(void *arg, int panel) {
  step_t *s = arg;
  for (int r = panel * MR; r < MIN(s->n, panel * MR + MR); r++)
    norm_row(s, s->post, s->h + (i64)r * s->wide, s->h + (i64)r * s->wide);
}

// x += h, through its norm where it has one, with a stop at what is added and at the sum.
static void add_tapped(step_t *s, norm_t post, int added, int sum) {
  s->post = post;
  if (post.kind) over_panels(s, post_panel);
  tap(s, added, s->h, s->wide);
  for (i64 d = 0; d < (i64)s->n * s->wide; d += 16) st(s->x + d, ld(s->x + d) + ld(s->h + d));
  tap(s, sum, s->x, s->wide);
}

static void tap_heads(step_t *s) {
  tap(s, POINT_Q, s->qkv, s->qkv_wide);
  tap(s, POINT_K, s->qkv + s->k_at, s->qkv_wide);
  tap(s, POINT_V, s->qkv + s->v_at, s->qkv_wide);
}

// The last norm of every row, in h.
static void tap_end(step_t *s) {
  if (s->taps == s->taps_end) return;
  for (int r = 0; r < s->n; r++)
    norm_row(s, output_norm(s->model), s->x + (i64)r * s->wide, s->h + (i64)r * s->wide);
  tap(s, POINT_NORMALIZED, s->h, s->wide);
}
