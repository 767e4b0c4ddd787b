// A mixture of experts: which rows take which experts, and what these add, in h.
//
// A row's result must not depend on which rows share its step: experts come in rising order, each
// adds what it gives to the rows that chose it, and the part that all rows take comes last.

// The layer's router has made s->scores: weights of its experts, and the `used` best ones of a row,
// by rising number. by: scores[experts], what the choice goes by.
static void choose(const step_t *s, int row) {
  const layer_t *l = s->layer;
  const int n = l->experts, wide = UP(n, 32);
  float *score = s->scores + (i64)row * s->scores_wide, by[MAX_EXPERTS];
  choice_t *out = s->choices + (i64)row * l->used;
  for (int e = n; e < wide; e++) score[e] = NEVER;
  float top = score[0], total = 0;
  for (int e = 1; e < n; e++) top = MAX(top, score[e]);
  if (l->gating == SIGMOID)
    for (int e = 0; e < wide; e += 16) st(score + e, vsigmoid(ld(score + e)));
  if (l->gating == SOFTMAX) {
    vf sum = {};
    for (int e = 0; e < wide; e += 16) {
      const vf p = vexp(ld(score + e) - top);
      st(score + e, p), sum += p;
    }
    const float inv = 1.f / reduce_add(sum);
    for (int e = 0; e < wide; e += 16) st(score + e, ld(score + e) * inv);
  }
  for (int e = 0; e < wide; e += 16)
    st(by + e, l->correction >= 0 ? ld(score + e) + ld(vector(s, l->correction) + e) : ld(score + e));
  u8 taken[MAX_EXPERTS];
  for (int e = 0; e < n; e++) {
    int better = 0;
    for (int o = 0; o < n; o++) better += by[o] > by[e] || (by[o] == by[e] && o < e);
    taken[e] = better < l->used;
  }
  int k = 0;
  for (int e = 0; e < n && k < l->used; e++) {
    if (!taken[e]) continue;
    float weight = score[e];
    if (l->gating == CHOSEN) weight = vexp(splat(weight - top))[0];
    out[k].expert = e, out[k++].weight = weight, total += weight;
  }
  // Scores that are not numbers choose nothing: the row's result must not be one either.
  for (; k < l->used; k++) out[k].expert = 0, out[k].weight = total = __builtin_nanf("");
  const float scale = l->expert_scale / (l->normalized || l->gating == CHOSEN ? total : 1.f);
  for (int i = 0; i < l->used; i++) out[i].weight *= scale;
}

static void choose_panel(void *arg, int panel) {
  step_t *s = arg;
  for (int r = panel * MR; r < MIN(s->n, panel * MR + MR); r++) {
    choose(s, r);
    for (int d = 0; d < s->wide; d += 16) st(s->h + (i64)r * s->wide + d, (vf){});
  }
}

// Lists the rows of every expert: s->picks, those of expert e from s->first[e] on.
static void list_picks(step_t *s) {
  const layer_t *l = s->layer;
  const int all = s->n * l->used;
  for (int e = 0; e <= l->experts; e++) s->first[e] = 0;
  for (int i = 0; i < all; i++) s->first[s->choices[i].expert + 1]++;
  for (int e = 0; e < l->experts; e++) s->first[e + 1] += s->first[e];
  for (int i = 0; i < all; i++) {
    pick_t *pick = s->picks + s->first[s->choices[i].expert]++;
    pick->row = i / l->used, pick->weight = s->choices[i].weight;
  }
  for (int e = l->experts; e > 0; e--) s->first[e] = s->first[e - 1];
  s->first[0] = 0;
}

// Packs the rows of an expert. s->n: how many.
static void pick_panel(void *arg, int panel) {
  step_t *s = arg;
  const int R = panel_rows(s->n, panel);
  for (int b = 0; b < s->picked.blocks; b++) {
    float block[MR * 32] __attribute__((aligned(64)));
    for (int r = 0; r < R; r++)
      copy(block + r * 32, s->normal + (i64)s->pick[panel * MR + r].row * s->wide + b * 32, 32);
    put_blocks(&s->picked, panel, R, b, block, s->floats);
  }
}

// h += weight * what the expert gives, for the rows that chose it.
static void scatter_panel(void *arg, int panel) {
  step_t *s = arg;
  for (int r = panel * MR; r < MIN(s->n, panel * MR + MR); r++) {
    const float *from = s->given + (i64)r * s->wide;
    float *to = s->h + (i64)s->pick[r].row * s->wide;
    for (int d = 0; d < s->wide; d += 16) {
      const vf v = ld(from + d) * s->pick[r].weight;
      st(to + d, ld(to + d) + v);
    }
  }
}

// h += what all rows take, times its own gate where it has one.
static void shared_panel(void *arg, int panel) {
  step_t *s = arg;
  const i64 gate = s->layer->shared_router;
  for (int r = panel * MR; r < MIN(s->n, panel * MR + MR); r++) {
    const float *from = s->given + (i64)r * s->wide, *x = s->normal + (i64)r * s->wide;
    float *to = s->h + (i64)r * s->wide, by = 1;
    if (gate >= 0) {
      vf sum = {};
      for (int d = 0; d < s->wide; d += 16) sum += ld(x + d) * ld(vector(s, gate) + d);
      by = vsigmoid(splat(reduce_add(sum)))[0];
    }
    for (int d = 0; d < s->wide; d += 16) {
      const vf v = ld(from + d) * by;
      st(to + d, ld(to + d) + v);
    }
  }
}

// x += h, or h as it is to be added.
static void finish_panel(void *arg, int panel) {
  step_t *s = arg;
  for (int r = panel * MR; r < MIN(s->n, panel * MR + MR); r++) {
    float *x = s->x + (i64)r * s->wide, *h = s->h + (i64)r * s->wide;
    for (int d = 0; d < s->wide; d += 16) {
      const vf v = ld(h + d) * s->by;
      if (s->add) st(x + d, ld(x + d) + v);
      else st(h + d, v);
    }
  }
}

// An expert's matrix: they lie one behind the other.
INLINE mat_t nth(const mat_t *m, int e) {
  mat_t one = *m;
  one.at += (i64)e * tiles_of(m) * tile_bytes(m->kind, blocks_of(m));
  return one;
}
INLINE i64 nth_vector(i64 at, int e, int n) { return at < 0 ? -1 : at + (i64)e * UP(n, 32) * 4; }

// What `down` gives for the rows of `inner`, in s->given.
static void give(step_t *s, const mat_t *down, i64 bias) {
  s->mats[0] = down, s->n_mats = 1, s->bias[0] = bias, s->to_at[0] = 0, s->by = 1;
  product(s, &s->inner, s->given, s->wide, 0);
}

// The rows' norms are in s->normal, and packed in `in`. aside: h is added later.
static void mixture(step_t *s, int aside) {
  const layer_t *l = s->layer;
  const int n = s->n;
  s->mats[0] = &l->router, s->n_mats = 1, s->bias[0] = l->router_bias, s->to_at[0] = 0, s->by = 1;
  product(s, &s->in, s->scores, s->scores_wide, 0);
  over_panels(s, choose_panel);
  list_picks(s);
  const acts_t in = s->in;
  for (int e = 0; e < l->experts; e++) {
    const int rows = s->first[e + 1] - s->first[e];
    if (!rows) continue;
    const mat_t gate = nth(&l->expert_gate, e), up = nth(&l->expert_up, e),
                down = nth(&l->expert_down, e);
    s->n = rows, s->pick = s->picks + s->first[e];
    s->floats = is_float(gate.kind) || is_float(up.kind);
    over_panels(s, pick_panel);
    s->in = s->picked, s->floats = is_float(down.kind);
    glu(s, &gate, &up, nth_vector(l->expert_gate_bias, e, gate.n),
        nth_vector(l->expert_up_bias, e, up.n));
    give(s, &down, nth_vector(l->expert_down_bias, e, down.n));
    over_panels(s, scatter_panel);
    s->in = in;
  }
  s->n = n;
  if (l->up.n) {
    s->floats = is_float(l->down.kind);
    glu(s, &l->gate, &l->up, -1, -1);
    give(s, &l->down, -1);
    over_panels(s, shared_panel);
  }
  s->by = l->post_ffn_kind ? 1 : l->residual_scale;
  s->add = !aside && !l->post_ffn_kind;
  over_panels(s, finish_panel);
}
