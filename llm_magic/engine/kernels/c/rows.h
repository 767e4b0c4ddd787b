// Phases over panels of rows: what happens between the matrix products.

#define FEW 8  // most rows of a panel that are packed row by row; fewer than TILE_ROWS

// Embeds, and computes the cosines and sines of the rows' positions.
static void embed_panel(void *arg, int panel) {
  step_t *s = arg;
  const model_t *m = s->model;
  for (int i = panel * MR; i < MIN(s->n, panel * MR + MR); i++) {
    float *x = s->x + (i64)i * s->wide;
    weight_row(s->weights, &m->embedding, s->tokens[i], x);
    for (int d = 0; d < s->wide; d += 16) st(x + d, ld(x + d) * m->embedding_scale);
    if (m->positions.n) {
      float *more = s->h + (i64)i * s->wide;
      weight_row(s->weights, &m->positions, s->positions[i], more);
      for (int d = 0; d < s->wide; d += 16) st(x + d, ld(x + d) + ld(more + d));
    }
    for (int rope = 0; rope < m->n_ropes; rope++) {
      const double *freq = (const double *)(s->weights + m->inv_freq[rope]);
      float *cs = s->trig + ((i64)rope * m->max_rows + i) * s->trig_wide;
      for (int d = 0; d < s->half[rope]; d += 8) {
        typedef v8f v8f_u __attribute__((aligned(1), may_alias));
        v8f sines, cosines;
        vsincos(*(const vd_u *)(freq + d) * (double)s->positions[i], &sines, &cosines);
        cosines *= m->magnitude[rope], sines *= m->magnitude[rope];
        *(v8f_u *)(cs + d) = cosines, *(v8f_u *)(cs + s->trig_wide / 2 + d) = sines;
      }
    }
  }
}

// What a norm makes of 16 entries of a row, from entry d on. The mean of an RMS norm is 0.
INLINE vf norm_vector(const step_t *s, norm_t norm, const normal_t *n, const float *x, int d) {
  if (!norm.kind) return ld(x + d);
  const vf v = (ld(x + d) - n->mean) * n->scale * ld(vector(s, norm.weight) + d);
  return norm.bias >= 0 ? v + ld(vector(s, norm.bias) + d) : v;
}

// x += norm(h) where the model has norms after its blocks; then in = norm(x).
static void norm_panel(void *arg, int panel) {
  step_t *s = arg;
  const model_t *m = s->model;
  const int R = panel_rows(s->n, panel), wide = s->wide;
  float *rows = s->x + (i64)panel * MR * wide;
  normal_t normal[MR];
  for (int r = 0; r < R; r++) {
    float *x = rows + r * wide;
    if (s->post.kind) {
      const float *h = s->h + (i64)(panel * MR + r) * wide;
      const normal_t by = normal_of(s->post.kind, h, wide, m->dim, m->eps);
      for (int d = 0; d < wide; d += 16) {  // residual_scale is in the norm's weight
        const vf added = norm_vector(s, s->post, &by, h, d);  // rounded: taps read what is added
        st(x + d, ld(x + d) + added);
      }
    }
    normal[r] = normal_of(s->norm.kind, x, wide, m->dim, m->eps);
  }
  for (int r = 0; R <= FEW && r < R; r++)
    for (int b = 0; b < s->in.blocks; b += ROW_BLOCKS) {
      const int n = MIN(ROW_BLOCKS, s->in.blocks - b);
      float y[ROW_BLOCKS * 32] __attribute__((aligned(64)));
      for (int d = 0; d < n * 32; d += 16)
        st(y + d, norm_vector(s, s->norm, normal + r, rows + r * wide, b * 32 + d));
      if (s->keep) copy(s->normal + (i64)(panel * MR + r) * wide + b * 32, y, n * 32);
      put_row(&s->in, panel, R, r, b, n, y, s->floats);
    }
  for (int b = 0; R > FEW && b < s->in.blocks; b++) {
    float block[MR * 32] __attribute__((aligned(64)));
    for (int r = 0; r < R; r++)
      for (int d = 0; d < 32; d += 16)
        st(block + r * 32 + d, norm_vector(s, s->norm, normal + r, rows + r * wide, b * 32 + d));
    if (s->keep)
      for (int r = 0; r < R; r++)
        copy(s->normal + (i64)(panel * MR + r) * wide + b * 32, block + r * 32, 32);
    put_blocks(&s->in, panel, R, b, block, s->floats);
  }
}

// Norms of the heads of queries or keys, in place. x: [heads * head_pad].
static void norm_heads(const step_t *s, float *x, int heads, i64 weight) {
  const model_t *m = s->model;
  const layer_t *l = s->layer;
  const int all = l->qk_norm_row ? heads : 1, wide = all * m->head_pad;
  const norm_t norm = {l->qk_norm_kind, weight, -1};
  for (int h = 0; h < heads; h += all) {
    float *row = x + h * m->head_pad;
    const normal_t by = normal_of(norm.kind, row, wide, all * m->head, m->eps);
    const norm_t of = {norm.kind, weight + (i64)h * m->head_pad * 4, -1};
    for (int d = 0; d < wide; d += 16) st(row + d, norm_vector(s, of, &by, row, d));
  }
}

// Rotation of one head, in place. x: [head_pad].
static void turn_head(const step_t *s, float *x, const float *cs) {
  const int half = s->model->rotated[s->layer->rope] / 2;
  const float *c = cs, *n = cs + s->trig_wide / 2;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    vf a = ld(x + i), b = ld(x + i + half), cv = ld(c + i), nv = ld(n + i);
    st(x + i, a * cv - b * nv), st(x + i + half, a * nv + b * cv);
  }
  for (; i < half; i++) {
    float a = x[i], b = x[i + half];
    x[i] = a * c[i] - b * n[i], x[i + half] = a * n[i] + b * c[i];
  }
}

// The first chunk of a slot's head in this layer. Chunks are outermost, so that a slot's memory
// fills from its start on.
INLINE u16 *cache_of(const step_t *s, int slot, int head) {
  const model_t *m = s->model;
  return s->kv + slot * m->kv_slot + s->layer_index * m->kv_layer + head * m->kv_head;
}

// Norms and packs the short vectors of latent attention.
static void latent_panel(void *arg, int panel) {
  step_t *s = arg;
  const model_t *m = s->model;
  const int R = panel_rows(s->n, panel), rank = s->layer->latent, wide = UP(rank, 32);
  const float *rows = s->kv_a + (i64)panel * MR * m->kv_a_wide;
  const norm_t norm = {RMS_NORM, s->layer->kv_a_norm, -1};
  normal_t normal[MR];
  for (int r = 0; r < R; r++)
    normal[r] = normal_of(RMS_NORM, rows + (i64)r * m->kv_a_wide, wide, rank, m->eps);
  for (int b = 0; b < s->latent.blocks; b++) {
    float block[MR * 32] __attribute__((aligned(64)));
    for (int r = 0; r < R; r++)
      for (int d = 0; d < 32; d += 16)
        st(block + r * 32 + d,
           norm_vector(s, norm, normal + r, rows + (i64)r * m->kv_a_wide, b * 32 + d));
    put_blocks(&s->latent, panel, R, b, block, s->floats);
  }
}

// Turns queries and keys; writes keys and values to the cache.
static void turn_panel(void *arg, int panel) {
  step_t *s = arg;
  const model_t *m = s->model;
  const int D = m->head_pad;
  for (int i = panel * MR; i < MIN(s->n, panel * MR + MR); i++) {
    float *row = s->qkv + (i64)i * s->qkv_wide;
    const float *cs = s->trig + ((i64)s->layer->rope * m->max_rows + i) * s->trig_wide;
    if (s->layer->qk_norm_kind) {
      norm_heads(s, row, m->heads, s->layer->q_norm);
      norm_heads(s, row + s->k_at, m->kv_heads, s->layer->k_norm);
    }
    for (int h = 0; h < m->heads; h++) turn_head(s, row + h * D, cs);
    for (int h = 0; h < m->kv_heads; h++) {
      float *k = row + s->k_at + h * D, *v = row + s->v_at + h * D;
      if (s->layer->latent) {  // all heads share what turns of a key; k has zeros there
        const float *piece = s->kv_a + (i64)i * m->kv_a_wide + UP(s->layer->latent, 32);
        for (int d = 0; d < m->rotated[s->layer->rope]; d++) k[d] += piece[d];
      }
      turn_head(s, k, cs);
      const int pos = s->positions[i], in = pos % CHUNK;
      u16 *keys = cache_of(s, s->slots[i], h) + pos / CHUNK * m->kv_chunk;
      key_units(keys, D)[in] = store_shorts(k, D, keys + in / 16 * D * 16 + in % 16, 16);
      value_units(keys, D)[in] = store_shorts(v, D, values_of(keys, D) + in * D, 1);
    }
  }
}

// Span `span` of a row's head, where a few rows share out a long cache.
INLINE i64 part_bytes(const model_t *m) { return (16 + m->head_pad) * 4; }
INLINE char *part_of(const step_t *s, int row, int head, int span) {
  const i64 index = ((i64)row * s->model->heads + head) * s->model->max_parts + span;
  return s->parts + index * part_bytes(s->model);
}

INLINE void put_head(const step_t *s, int row, int head, const share_t *share) {
  const int n = s->model->value_head;
  float *to = s->att + (i64)row * s->att_wide + head * n, inv = 1.f / share->total;
  if (s->layer->sinks >= 0) {  // one more score, of nothing
    const float sink = vector(s, s->layer->sinks)[head], top = MAX(share->top, sink);
    const vf e = vexp((vf){share->top - top, sink - top});
    const float mine = e[0], other = e[1];
    inv = mine / (share->total * mine + other);
  }
  int d = 0;
  for (; d + 16 <= n; d += 16) st(to + d, ld(share->sum + d) * inv);
  for (; d < n; d++) to[d] = share->sum[d] * inv;
}

INLINE int first_seen(const step_t *s, int pos) { return MAX(0, pos - s->layer->window + 1); }
INLINE int first_span(const step_t *s, const item_t *i) { return first_seen(s, i->pos) / SPAN; }
INLINE int spans_of(const step_t *s, const item_t *i) {
  return (i->pos + i->rows - 1) / SPAN + 1 - first_span(s, i);
}

// Joins the spans of one row's heads in the order in which attend_rows would.
static void join_row(void *arg, int i) {
  step_t *s = arg;
  const int D = s->model->head_pad;
  for (int h = 0; h < s->model->heads; h++) {
    share_t all;
    int span = first_seen(s, s->positions[i]) / SPAN;
    const share_t *one = (const share_t *)part_of(s, i, h, span);
    all.top = one->top, all.total = one->total;
    copy(all.sum, one->sum, D);
    while (++span * SPAN <= s->positions[i])
      join_shares(&all, (const share_t *)part_of(s, i, h, span), D);
    put_head(s, i, h, &all);
  }
}

// Packs what attention gave, for the output projection.
static void mixed_panel(void *arg, int panel) {
  step_t *s = arg;
  const int R = panel_rows(s->n, panel), wide = s->att_wide;
  const float *rows = s->att + (i64)panel * MR * wide;
  for (int r = 0; R <= FEW && r < R; r++)
    for (int b = 0; b < s->mixed.blocks; b += ROW_BLOCKS)
      put_row(&s->mixed, panel, R, r, b, MIN(ROW_BLOCKS, s->mixed.blocks - b),
              rows + r * wide + b * 32, s->floats);
  for (int b = 0; R > FEW && b < s->mixed.blocks; b++) {
    float block[MR * 32] __attribute__((aligned(64)));
    for (int r = 0; r < R; r++) copy(block + r * 32, rows + r * wide + b * 32, 32);
    put_blocks(&s->mixed, panel, R, b, block, s->floats);
  }
}
