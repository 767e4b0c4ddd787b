// Phases of matrix products: how they are cut into tasks, and what follows each product.

// Splits `tiles` (or groups of them, `bytes` long) x panels into tasks. Decode: two tasks a thread
// (each more costs an exchange between the cores and a new start of reading: with four, a step of
// SmolLM2 takes 5 % longer), but none so short that sharing it costs more than doing it. Prefill: as
// many panels as stay in the second-level cache, beside at most `most` tiles.
static int cut(step_t *s, int tiles, int blocks, int most, i64 bytes) {
  const int all = panels(s->vectors), worth = (int)(tiles * bytes * MIN(s->vectors, MR) / (32 << 10));
  s->first_panel = 0, s->end_panel = all;
  s->row_panels = MIN(all, MAX(1, (384 << 10) / (MR * blocks * 80)));
  s->row_chunks = UP(all, s->row_panels) / s->row_panels;
  int want = MAX(1, MIN((all > 1 ? 4 : 2) * s->threads / s->row_chunks, worth));
  s->chunk = MAX(1, UP(tiles, want) / want);
  if (all > 1) s->chunk = MIN(s->chunk, most);
  s->tile_chunks = UP(tiles, s->chunk) / s->chunk;
  return s->tile_chunks * s->row_chunks;
}

// What task number `task` of a cut does: s->chunk units (tiles, pairs or blocks) from `first` on,
// times panels `from` .. `to` - 1.
typedef struct { int first, from, to; } part_of_cut_t;
INLINE part_of_cut_t part_of_cut(const step_t *s, int task) {
  const int from = s->first_panel + task / s->tile_chunks * s->row_panels;
  return (part_of_cut_t){
      task % s->tile_chunks * s->chunk, from, MIN(s->end_panel, from + s->row_panels)};
}

// What a tile gave for the rows of a panel, y: [R][16], to its place.
INLINE void put_product(const step_t *s, int which, int tile, int panel, int R, const float *y) {
  float *rows = s->to + (i64)panel * MR * s->to_wide;
  vf bias = s->bias[which] >= 0 ? ld(vector(s, s->bias[which]) + tile * 16) : (vf){};
  for (int r = 0; r < R; r++) {
    float *to = rows + (i64)r * s->to_wide + s->to_at[which] + tile * 16;
    vf v = ld(y + r * 16) + bias;
    if (s->add) v += ld(to);
    if (s->softcap > 0) v = s->softcap * vtanh(v / s->softcap);
    st(to, v);
  }
}

// y = from * mats^T: stored (with bias), or added to what is there.
static void product_task(void *arg, int task) {
  step_t *s = arg;
  const part_of_cut_t part = part_of_cut(s, task);
  float y[MR * 16] __attribute__((aligned(64)));
  for (int panel = part.from; panel < part.to; panel++) {
    const int R = panel_rows(s, panel);
    int which = 0, first = 0;
    for (int t = part.first; t < part.first + s->chunk; t++) {
      while (which < s->n_mats && t - first >= tiles_of(s->mats[which]))
        first += tiles_of(s->mats[which++]);
      if (which == s->n_mats) break;
      tile_times_panel(s->weights, s->mats[which], t - first, s->from, panel, R, y);
      put_product(s, which, t - first, panel, R, y);
    }
  }
}

// GELU in its tanh form is x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)).
INLINE vf activate(vf x, int gelu) {
  vf z = gelu ? x * (1.5957691216f + 0.0713548163f * x * x) : x;
  return x * vsigmoid(z);
}

// inner = activation(gate) * up of a panel, packed at once: 32 inner entries. g, u: [2][MR][16].
INLINE void put_inner(step_t *s, int panel, int R, int block, const float *g, const float *u) {
  float x[MR * 32] __attribute__((aligned(64)));
  for (int r = 0; r < R; r++)
    for (int t = 0; t < 2; t++) {
      const int at = (t * MR + r) * 16;
      st(x + r * 32 + t * 16, activate(ld(g + at), s->model->gelu) * ld(u + at));
    }
  put_inputs(s, &s->inner, panel, R, block, x);
}

// A task owns whole blocks of 32 inner entries.
static void glu_task(void *arg, int task) {
  step_t *s = arg;
  const layer_t *l = s->layer;
  const part_of_cut_t part = part_of_cut(s, task);
  const int block1 = MIN(s->inner.blocks, part.first + s->chunk);
  float g[2 * MR * 16] __attribute__((aligned(64))), u[2 * MR * 16] __attribute__((aligned(64)));
  for (int panel = part.from; panel < part.to; panel++) {
    const int R = panel_rows(s, panel);
    for (int b = part.first; b < block1; b++) {
      for (int t = 0; t < 2; t++) {
        tile_times_panel(s->weights, &l->gate, 2 * b + t, &s->in, panel, R, g + t * MR * 16);
        tile_times_panel(s->weights, &l->up, 2 * b + t, &s->in, panel, R, u + t * MR * 16);
      }
      put_inner(s, panel, R, b, g, u);
    }
  }
}

#ifdef TILES
// The same two phases for rows in bulk. Every pair of tiles is spread once for all panels of a task:
// so many panels as they may be, and so many tasks that no thread waits long for the others.
static int cut_bulk(step_t *s, int units, int most) {
  s->first_panel = panels(s->vectors), s->end_panel = panels(s->n);
  const int all = s->end_panel - s->first_panel, share = 2 * s->threads;
  int want = UP(MAX(UP(units, most) / most, MIN(share, units)), s->threads);
  s->chunk = MAX(1, UP(units, want) / want);
  s->tile_chunks = UP(units, s->chunk) / s->chunk;
  want = MAX(UP(all, BULK_PANELS) / BULK_PANELS, MIN(UP(share, s->tile_chunks) / s->tile_chunks,
                                                     MAX(1, all / 4)));
  s->row_panels = UP(UP(all, want) / want, 2);
  s->row_chunks = UP(all, s->row_panels) / s->row_panels;
  return s->tile_chunks * s->row_chunks;
}

// y[pair][panel][2][16][16], for matrices of any kind.
static void bulk_products(const step_t *s, const pair_t *pairs, int n, const acts_t *a, int from,
                          int to, float *y) {
  for (int i = 0; i < n;) {
    int same = i;
    while (same < n && !is_float(pairs[same].m->kind)) same++;
    if (same > i) {
      pairs_times_panels(s->weights, pairs + i, same - i, a, from, to, y);
    } else {
      same = i + 1;
      for (int p = from; p < to; p++)
        for (int t = 0; t < 2; t++)
          tile_times_panel(s->weights, pairs[i].m, 2 * pairs[i].pair + t, a, p, panel_rows(s, p),
                           y + ((p - from) * 2 + t) * 256);
    }
    y += (i64)(same - i) * (to - from) * 512, i = same;
  }
}

static void product_bulk_task(void *arg, int task) {
  step_t *s = arg;
  const part_of_cut_t part = part_of_cut(s, task);
  float y[BULK_PAIRS * BULK_PANELS * 512] __attribute__((aligned(64)));
  pair_t pairs[BULK_PAIRS];
  int whose[BULK_PAIRS], n = 0, which = 0, first = 0;
  for (int pair = part.first; pair < part.first + s->chunk; pair++, n++) {
    while (which < s->n_mats && pair - first >= pairs_of(s->mats[which]))
      first += pairs_of(s->mats[which++]);
    if (which == s->n_mats) break;
    pairs[n] = (pair_t){s->mats[which], pair - first}, whose[n] = which;
  }
  bulk_products(s, pairs, n, s->from, part.from, part.to, y);
  const float *from = y;
  for (int i = 0; i < n; i++)
    for (int p = part.from; p < part.to; p++)
      for (int t = 0; t < 2; t++, from += 256)
        put_product(s, whose[i], 2 * pairs[i].pair + t, p, panel_rows(s, p), from);
}

static void glu_bulk_task(void *arg, int task) {
  step_t *s = arg;
  const part_of_cut_t part = part_of_cut(s, task);
  const int panels = part.to - part.from, count = MIN(s->chunk, s->inner.blocks - part.first);
  float y[BULK_PAIRS * BULK_PANELS * 512] __attribute__((aligned(64)));
  pair_t pairs[BULK_PAIRS];
  for (int i = 0; i < count; i++) {
    pairs[2 * i] = (pair_t){&s->layer->gate, part.first + i};
    pairs[2 * i + 1] = (pair_t){&s->layer->up, part.first + i};
  }
  bulk_products(s, pairs, 2 * count, &s->in, part.from, part.to, y);
  for (int i = 0; i < count; i++)
    for (int p = 0; p < panels; p++)
      put_inner(s, part.from + p, panel_rows(s, part.from + p), part.first + i,
                y + (2 * i * panels + p) * 512, y + ((2 * i + 1) * panels + p) * 512);
}
#endif

static void product(step_t *s, const acts_t *from, float *to, int to_wide, int add) {
  int tiles = 0, pairs = 0;
  for (int i = 0; i < s->n_mats; i++) tiles += tiles_of(s->mats[i]), pairs += pairs_of(s->mats[i]);
  s->from = from, s->to = to, s->to_wide = to_wide, s->add = add;
  if (s->vectors) {
    const i64 bytes = tile_bytes(s->mats[0]->kind, from->blocks);
    run(s->team, product_task, s, cut(s, tiles, from->blocks, 16, bytes));
  }
#ifdef TILES
  if (s->vectors < s->n) run(s->team, product_bulk_task, s, cut_bulk(s, pairs, BULK_PAIRS));
#endif
}

static void glu(step_t *s) {
  if (s->vectors)
    run(s->team, glu_task, s, cut(s, s->inner.blocks, s->in.blocks, 4,
                                  4 * tile_bytes(s->layer->gate.kind, s->in.blocks)));
#ifdef TILES
  if (s->vectors < s->n)
    run(s->team, glu_bulk_task, s, cut_bulk(s, s->inner.blocks, BULK_PAIRS / 2));
#endif
}
