// The whole forward pass over a ragged batch, as phases that the team shares.

typedef struct {
  mat_t q, k, v, o, gate, up, down;
  // Byte offsets of float32 vectors in the weights; -1: the model has none.
  i64 attn_norm, q_norm, k_norm, post_attn, ffn_norm, post_ffn, q_bias, k_bias, v_bias, o_bias;
  i32 rope, window;
} layer_t;

typedef struct { i64 q, s, f; i32 blocks, pad; } acts_at;  // byte offsets in the scratch memory

typedef struct {
  i32 n_layers, dim, heads, kv_heads, head, head_pad, ff, vocab;
  i32 gelu, n_ropes, max_rows, max_parts;
  i32 rotated[2];                 // entries of a head that turn, per kind of rope
  float eps, embedding_scale, attention_scale, attention_softcap, logit_softcap, pad;
  i64 inv_freq[2];                // byte offsets in the weights: float64 [UP(rotated / 2, 8)]
  i64 output_norm;
  mat_t embedding, output;
  i64 kv_slot, kv_chunk, kv_layer, kv_head;  // strides of the cache, in halves
  i64 x, h, qkv, att, parts, trig, items, work;  // byte offsets in the scratch memory
  acts_at in, mixed, inner;       // inputs of qkv/gate/up/output, of o, of down
  layer_t layers[];
} model_t;

#define SHARED_ROWS 16  // most rows whose caches are shared out in segments: parts holds so many

// Rows of one slot in consecutive positions, attended to by one task.
typedef struct { i32 row, rows, slot, pos; } item_t;

typedef struct {
  const model_t *model;
  const u8 *weights;
  u16 *kv;
  float *logits;
  team_t *team;
  const i32 *tokens, *slots, *positions, *want;
  int n, wanted, threads;
  float *x, *h;                    // [n][wide]: the residual stream; what a post-norm waits for
  float *qkv, *att, *trig;         // [n][qkv_wide], [n][att_wide], [kind of rope][n][trig_wide]
  char *parts;                     // [n][head][chunk] of share_t
  int wide, qkv_wide, k_at, v_at, att_wide, half[2], trig_wide;
  acts_t in, mixed, inner;
  item_t *items;
  int n_items, segments;
  // of the phase that runs
  const layer_t *layer;
  int layer_index;
  const mat_t *mats[3];
  int n_mats, chunk, row_panels, row_chunks, tile_chunks;
  const acts_t *from;
  float *to;
  int to_wide, add;
  i64 bias[3];
  int to_at[3];
  i64 norm, post;
  int floats;
  float softcap;
} step_t;

INLINE const float *vector(const step_t *s, i64 at) { return (const float *)(s->weights + at); }
INLINE int panels(int n) { return UP(n, MR) / MR; }

// 1 / sqrt(mean(x^2) + eps), x: [wide], zero beyond n.
INLINE float norm_scale(const float *x, int wide, int n, float eps) {
  vf a = {}, b = {};
  int i = 0;
  for (; i + 32 <= wide; i += 32) {
    vf u = ld(x + i), v = ld(x + i + 16);
    a += u * u, b += v * v;
  }
  if (i < wide) a += ld(x + i) * ld(x + i);
  return 1.f / __builtin_sqrtf(reduce_add(a + b) / (float)n + eps);
}

// ---- phases over panels of rows

// Embeds, and computes the cosines and sines of the rows' positions.
static void embed_panel(void *arg, int panel) {
  step_t *s = arg;
  const model_t *m = s->model;
  for (int i = panel * MR; i < MIN(s->n, panel * MR + MR); i++) {
    float *x = s->x + (i64)i * s->wide;
    weight_row(s->weights, &m->embedding, s->tokens[i], x);
    for (int d = 0; d < s->wide; d += 16) st(x + d, ld(x + d) * m->embedding_scale);
    for (int rope = 0; rope < m->n_ropes; rope++) {
      const double *freq = (const double *)(s->weights + m->inv_freq[rope]);
      float *cs = s->trig + ((i64)rope * m->max_rows + i) * s->trig_wide;
      for (int d = 0; d < s->half[rope]; d += 8) {
        typedef v8f v8f_u __attribute__((aligned(1), may_alias));
        v8f sines, cosines;
        vsincos(*(const vd_u *)(freq + d) * (double)s->positions[i], &sines, &cosines);
        *(v8f_u *)(cs + d) = cosines, *(v8f_u *)(cs + s->trig_wide / 2 + d) = sines;
      }
    }
  }
}

// x += norm(h) where the model has norms after its blocks; then in = norm(x).
static void norm_panel(void *arg, int panel) {
  step_t *s = arg;
  const model_t *m = s->model;
  const int R = panel_rows(s->n, panel), wide = s->wide;
  const float *w = vector(s, s->norm);
  float *rows = s->x + (i64)panel * MR * wide, scale[MR];
  for (int r = 0; r < R; r++) {
    float *x = rows + r * wide;
    if (s->post >= 0) {
      const float *h = s->h + (i64)(panel * MR + r) * wide, *post = vector(s, s->post);
      const float by = norm_scale(h, wide, m->dim, m->eps);
      for (int d = 0; d < wide; d += 16) st(x + d, ld(x + d) + ld(h + d) * by * ld(post + d));
    }
    scale[r] = norm_scale(x, wide, m->dim, m->eps);
  }
  for (int b = 0; b < s->in.blocks; b++) {
    float block[MR * 32] __attribute__((aligned(64)));
    for (int r = 0; r < R; r++)
      for (int d = 0; d < 32; d += 16)
        st(block + r * 32 + d, ld(rows + r * wide + b * 32 + d) * scale[r] * ld(w + b * 32 + d));
    put_blocks(&s->in, panel, R, b, block, s->floats);
  }
}

// Norm (where the model has it) and rotation of one head, in place. x: [head_pad].
static void turn_head(const step_t *s, float *x, i64 norm, const float *cs) {
  const model_t *m = s->model;
  if (norm >= 0) {
    const float *w = vector(s, norm);
    float scale = norm_scale(x, m->head_pad, m->head, m->eps);
    for (int d = 0; d < m->head_pad; d += 16) st(x + d, ld(x + d) * scale * ld(w + d));
  }
  const int half = m->rotated[s->layer->rope] / 2;
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

// Turns queries and keys; writes keys and values to the cache.
static void turn_panel(void *arg, int panel) {
  step_t *s = arg;
  const model_t *m = s->model;
  const int D = m->head_pad;
  for (int i = panel * MR; i < MIN(s->n, panel * MR + MR); i++) {
    float *row = s->qkv + (i64)i * s->qkv_wide;
    const float *cs = s->trig + ((i64)s->layer->rope * m->max_rows + i) * s->trig_wide;
    for (int h = 0; h < m->heads; h++) turn_head(s, row + h * D, s->layer->q_norm, cs);
    for (int h = 0; h < m->kv_heads; h++) {
      float *k = row + s->k_at + h * D, *v = row + s->v_at + h * D;
      turn_head(s, k, s->layer->k_norm, cs);
      const int pos = s->positions[i], in = pos % CHUNK;
      u16 *cache = cache_of(s, s->slots[i], h) + pos / CHUNK * m->kv_chunk;
      u16 *keys = cache + in / 16 * D * 16 + in % 16, *values = cache + (CHUNK + in) * D;
      for (int d = 0; d < D; d += 16) {
        u16 t[16];
        store_halves(t, ld(k + d));
        for (int e = 0; e < 16; e++) keys[(d + e) * 16] = t[e];
        store_halves(values + d, ld(v + d));
      }
    }
  }
}

// Chunk `chunk` of a row's head, where a few rows share out a long cache.
INLINE i64 part_bytes(const model_t *m) { return (16 + m->head_pad) * 4; }
INLINE char *part_of(const step_t *s, int row, int head, int chunk) {
  const i64 index = ((i64)row * s->model->heads + head) * s->model->max_parts + chunk;
  return s->parts + index * part_bytes(s->model);
}

INLINE void put_head(const step_t *s, int row, int head, const share_t *share) {
  const int n = s->model->head;
  float *to = s->att + (i64)row * s->att_wide + head * n, inv = 1.f / share->total;
  int d = 0;
  for (; d + 16 <= n; d += 16) st(to + d, ld(share->sum + d) * inv);
  for (; d < n; d++) to[d] = share->sum[d] * inv;
}

INLINE int first_seen(const step_t *s, int pos) { return MAX(0, pos - s->layer->window + 1); }

// Joins the chunks of one row's heads in the order in which attend_rows would.
static void join_row(void *arg, int i) {
  step_t *s = arg;
  const int D = s->model->head_pad;
  for (int h = 0; h < s->model->heads; h++) {
    share_t all;
    int chunk = first_seen(s, s->positions[i]) / CHUNK;
    const share_t *one = (const share_t *)part_of(s, i, h, chunk);
    all.top = one->top, all.total = one->total;
    copy(all.sum, one->sum, D);
    while (++chunk * CHUNK <= s->positions[i])
      join_shares(&all, (const share_t *)part_of(s, i, h, chunk), D);
    put_head(s, i, h, &all);
  }
}

// Packs what attention gave, for the output projection.
static void mixed_panel(void *arg, int panel) {
  step_t *s = arg;
  const int R = panel_rows(s->n, panel), wide = s->att_wide;
  const float *rows = s->att + (i64)panel * MR * wide;
  for (int b = 0; b < s->mixed.blocks; b++) {
    float block[MR * 32] __attribute__((aligned(64)));
    for (int r = 0; r < R; r++) copy(block + r * 32, rows + r * wide + b * 32, 32);
    put_blocks(&s->mixed, panel, R, b, block, s->floats);
  }
}

// ---- attention

// Task: item x key head x segment (of whole chunks) of the positions.
static void attend_task(void *arg, int task) {
  step_t *s = arg;
  const model_t *m = s->model;
  const int D = m->head_pad, group = m->heads / m->kv_heads;
  const int segment = task % s->segments, kv_head = task / s->segments % m->kv_heads;
  const item_t *item = s->items + task / s->segments / m->kv_heads;
  const u16 *cache = cache_of(s, item->slot, kv_head);
  const int per_row = MIN(group, QMAX), rows_in_tile = MAX(1, QMAX / group);
  float q[QMAX * MAX_HEAD] __attribute__((aligned(64)));
  share_t out[QMAX] __attribute__((aligned(64)));
  for (int r0 = 0; r0 < item->rows; r0 += rows_in_tile)
    for (int g0 = 0; g0 < group; g0 += per_row) {
      const int rows = MIN(rows_in_tile, item->rows - r0), heads = MIN(per_row, group - g0);
      const int vectors = rows * heads, size = attend_size(vectors);
      const int row0 = item->row + r0, head0 = kv_head * group + g0;
      for (int v = 0; v < size; v++) {
        const i64 row = row0 + v / heads, head = head0 + v % heads;
        const float *from = s->qkv + row * s->qkv_wide + head * D;
        const int real = v < vectors;
        for (int d = 0; d < D; d++) q[d * size + v] = real ? from[d] * m->attention_scale : 0;
      }
      const int pos = item->pos + r0, lo = first_seen(s, pos), hi = pos + rows;
      attend_t a = {.q = q, .cache = cache, .chunk = m->kv_chunk, .entries = D,
                    .lo = lo, .hi = hi, .pos = pos, .per_row = heads, .vectors = vectors,
                    .window = s->layer->window, .softcap = m->attention_softcap, .out = out};
      if (s->segments > 1) {  // one row: each chunk is kept, join_row finds it
        const int first = lo / CHUNK, chunks = UP(hi, CHUNK) / CHUNK - first;
        const int each = UP(chunks, s->segments) / s->segments;
        a.lo = MAX(lo, (first + segment * each) * CHUNK);
        a.hi = MIN(hi, (first + (segment + 1) * each) * CHUNK);
        a.parts = part_of(s, row0, head0, 0), a.part = part_bytes(m);
        a.vector = m->max_parts * a.part;
      }
      attend(&a, size);
      if (s->segments == 1)
        for (int v = 0; v < vectors; v++) put_head(s, row0 + v / heads, head0 + v % heads, out + v);
    }
}

// ---- matrix products

// Splits `tiles` (or groups of them, `bytes` long) x panels into tasks. Decode: a few tasks a
// thread, but none so short that sharing it costs more than doing it. Prefill: as many panels as
// stay in the second-level cache, beside at most `most` tiles.
static int cut(step_t *s, int tiles, int blocks, int most, i64 bytes) {
  const int all = panels(s->n), worth = (int)(tiles * bytes * MIN(s->n, MR) / (32 << 10));
  s->row_panels = MIN(all, MAX(1, (384 << 10) / (MR * blocks * 80)));
  s->row_chunks = UP(all, s->row_panels) / s->row_panels;
  int want = MAX(1, MIN(4 * s->threads / s->row_chunks, worth));
  s->chunk = MAX(1, UP(tiles, want) / want);
  if (all > 1) s->chunk = MIN(s->chunk, most);
  s->tile_chunks = UP(tiles, s->chunk) / s->chunk;
  return s->tile_chunks * s->row_chunks;
}

// y = from * mats^T: stored (with bias), or added to what is there.
static void product_task(void *arg, int task) {
  step_t *s = arg;
  const int tile0 = task % s->tile_chunks * s->chunk;
  const int panel0 = task / s->tile_chunks * s->row_panels;
  const int panel1 = MIN(panels(s->n), panel0 + s->row_panels);
  float y[MR * 16] __attribute__((aligned(64)));
  for (int panel = panel0; panel < panel1; panel++) {
    const int R = panel_rows(s->n, panel);
    float *rows = s->to + (i64)panel * MR * s->to_wide;
    int which = 0, first = 0;
    for (int t = tile0; t < tile0 + s->chunk; t++) {
      while (which < s->n_mats && t - first >= tiles_of(s->mats[which]))
        first += tiles_of(s->mats[which++]);
      if (which == s->n_mats) break;
      const int tile = t - first;
      tile_times_panel(s->weights, s->mats[which], tile, s->from, panel, R, y);
      vf bias = s->bias[which] >= 0 ? ld(vector(s, s->bias[which]) + tile * 16) : (vf){};
      for (int r = 0; r < R; r++) {
        float *to = rows + (i64)r * s->to_wide + s->to_at[which] + tile * 16;
        vf v = ld(y + r * 16) + bias;
        if (s->add) v += ld(to);
        if (s->softcap > 0) v = s->softcap * vtanh(v / s->softcap);
        st(to, v);
      }
    }
  }
}

static void product(step_t *s, const acts_t *from, float *to, int to_wide, int add) {
  int tiles = 0;
  for (int i = 0; i < s->n_mats; i++) tiles += tiles_of(s->mats[i]);
  s->from = from, s->to = to, s->to_wide = to_wide, s->add = add;
  int tasks = cut(s, tiles, from->blocks, 16, tile_bytes(s->mats[0]->kind, from->blocks));
  run(s->team, product_task, s, tasks);
}

// GELU in its tanh form is x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)).
INLINE vf activate(vf x, int gelu) {
  vf z = gelu ? x * (1.5957691216f + 0.0713548163f * x * x) : x;
  return x * vsigmoid(z);
}

// inner = activation(gate) * up, packed at once: a task owns whole blocks of 32 inner entries.
static void glu_task(void *arg, int task) {
  step_t *s = arg;
  const layer_t *l = s->layer;
  const int block0 = task % s->tile_chunks * s->chunk;
  const int panel0 = task / s->tile_chunks * s->row_panels;
  const int block1 = MIN(s->inner.blocks, block0 + s->chunk);
  const int panel1 = MIN(panels(s->n), panel0 + s->row_panels), gelu = s->model->gelu;
  float g[2 * MR * 16] __attribute__((aligned(64))), u[2 * MR * 16] __attribute__((aligned(64)));
  for (int panel = panel0; panel < panel1; panel++) {
    const int R = panel_rows(s->n, panel);
    for (int b = block0; b < block1; b++) {
      for (int t = 0; t < 2; t++) {
        tile_times_panel(s->weights, &l->gate, 2 * b + t, &s->in, panel, R, g + t * MR * 16);
        tile_times_panel(s->weights, &l->up, 2 * b + t, &s->in, panel, R, u + t * MR * 16);
      }
      float x[MR * 32] __attribute__((aligned(64)));
      for (int r = 0; r < R; r++)
        for (int t = 0; t < 2; t++) {
          const int at = (t * MR + r) * 16;
          st(x + r * 32 + t * 16, activate(ld(g + at), gelu) * ld(u + at));
        }
      put_blocks(&s->inner, panel, R, b, x, s->floats);
    }
  }
}

// ---- the pass

static void over_panels(step_t *s, void (*fn)(void *, int)) { run(s->team, fn, s, panels(s->n)); }

static void normed(step_t *s, i64 post, i64 norm, int floats) {
  s->post = post, s->norm = norm, s->floats = floats;
  over_panels(s, norm_panel);
}

// One item a row when there are few rows, so that a long cache can be shared out in segments; else
// blocks of rows of one slot.
static void list_items(step_t *s) {
  const model_t *m = s->model;
  const int few = s->n <= SHARED_ROWS && s->n * m->kv_heads < 4 * s->threads;
  const int parts = 8 * s->threads, fair = UP(s->n * m->kv_heads, parts) / parts;
  const int most = few ? 1 : MAX(8, MIN(32, fair));
  int longest = 0;
  s->n_items = 0;
  for (int i = 0; i < s->n; i++) {
    item_t *last = s->items + s->n_items - 1;
    longest = MAX(longest, s->positions[i] + 1);
    if (s->n_items && last->slot == s->slots[i] && last->rows < most &&
        last->pos + last->rows == s->positions[i])
      last->rows++;
    else
      s->items[s->n_items++] = (item_t){i, 1, s->slots[i], s->positions[i]};
  }
  const int tasks = s->n_items * m->kv_heads, chunks = UP(longest, CHUNK) / CHUNK;
  s->segments = few ? MIN(UP(4 * s->threads, tasks) / tasks, chunks) : 1;
}

static void attention(step_t *s) {
  run(s->team, attend_task, s, s->n_items * s->model->kv_heads * s->segments);
  if (s->segments > 1) run(s->team, join_row, s, s->n);
}

// From here on only the wanted rows matter: moves them to the front.
static void keep_wanted(step_t *s) {
  for (int i = 0; i < s->wanted; i++) {
    const int from = s->want[i];
    if (from == i) continue;
    copy(s->x + (i64)i * s->wide, s->x + (i64)from * s->wide, s->wide);
    copy(s->att + (i64)i * s->att_wide, s->att + (i64)from * s->att_wide, s->att_wide);
  }
  s->n = s->wanted;
}

static void qkv(step_t *s, const layer_t *l) {
  s->mats[0] = &l->q, s->mats[1] = &l->k, s->mats[2] = &l->v, s->n_mats = 3;
  s->bias[0] = l->q_bias, s->bias[1] = l->k_bias, s->bias[2] = l->v_bias;
  s->to_at[0] = 0, s->to_at[1] = s->k_at, s->to_at[2] = s->v_at;
  product(s, &s->in, s->qkv, s->qkv_wide, 0);
}

// One matrix whose result is added to the residual stream, or kept for the norm behind it.
static void project(step_t *s, const mat_t *m, const acts_t *from, i64 bias, i64 post) {
  s->mats[0] = m, s->n_mats = 1, s->bias[0] = bias, s->to_at[0] = 0;
  product(s, from, post >= 0 ? s->h : s->x, s->wide, post < 0);
}

static void forward(step_t *s) {
  const model_t *m = s->model;
  list_items(s);
  over_panels(s, embed_panel);
  i64 post = -1;
  for (int i = 0; i < m->n_layers; i++) {
    const layer_t *l = m->layers + i;
    s->layer = l, s->layer_index = i;
    normed(s, post, l->attn_norm,
           is_float(l->q.kind) || is_float(l->k.kind) || is_float(l->v.kind));
    qkv(s, l);
    over_panels(s, turn_panel);
    if (i == m->n_layers - 1 && !s->wanted) return;  // the cache is complete
    attention(s);
    if (i == m->n_layers - 1) keep_wanted(s);
    s->floats = is_float(l->o.kind);
    over_panels(s, mixed_panel);
    project(s, &l->o, &s->mixed, l->o_bias, l->post_attn);
    normed(s, l->post_attn, l->ffn_norm, is_float(l->gate.kind) || is_float(l->up.kind));
    s->floats = is_float(l->down.kind);
    int tasks = cut(s, s->inner.blocks, s->in.blocks, 4,
                    4 * tile_bytes(l->gate.kind, s->in.blocks));
    run(s->team, glu_task, s, tasks);
    project(s, &l->down, &s->inner, -1, l->post_ffn);
    post = l->post_ffn;
  }
  normed(s, post, m->output_norm, is_float(m->output.kind));
  s->softcap = m->logit_softcap;
  s->mats[0] = &m->output, s->n_mats = 1, s->bias[0] = -1, s->to_at[0] = 0;
  product(s, &s->in, s->logits, UP(m->vocab, 32), 0);
}

INLINE acts_t acts_in(const acts_at *a, u8 *scratch) {
  return (acts_t){
      scratch + a->q, (scale_t *)(scratch + a->s), (float *)(scratch + a->f), a->blocks};
}

static void step(const i32 *job, const model_t *m, const u8 *weights, u16 *kv, u8 *scratch,
                 float *logits, team_t *team) {
  const i32 *rows = job + 16;
  step_t s;
  // Not `= {}`, which may become a call to memset: there is no library to link to.
  for (u64 i = 0; i < sizeof s / 4; i++) ((i32_u *)&s)[i] = 0;
  s.model = m, s.weights = weights, s.kv = kv, s.logits = logits, s.team = team;
  s.tokens = rows, s.slots = rows + m->max_rows, s.positions = rows + 2 * m->max_rows;
  s.want = rows + 3 * m->max_rows, s.n = job[1], s.wanted = job[2];
  s.threads = team->helpers + 1;
  s.x = (float *)(scratch + m->x), s.h = (float *)(scratch + m->h);
  s.qkv = (float *)(scratch + m->qkv), s.att = (float *)(scratch + m->att);
  s.parts = (char *)(scratch + m->parts), s.trig = (float *)(scratch + m->trig);
  s.items = (item_t *)(scratch + m->items);
  s.in = acts_in(&m->in, scratch), s.mixed = acts_in(&m->mixed, scratch);
  s.inner = acts_in(&m->inner, scratch);
  s.wide = UP(m->dim, 32), s.att_wide = UP(m->heads * m->head, 32);
  s.k_at = UP(m->heads * m->head_pad, 32);
  s.v_at = s.k_at + UP(m->kv_heads * m->head_pad, 32);
  s.qkv_wide = s.v_at + UP(m->kv_heads * m->head_pad, 32);
  for (int i = 0; i < m->n_ropes; i++) {
    s.half[i] = UP(m->rotated[i] / 2, 8);
    s.trig_wide = MAX(s.trig_wide, 2 * s.half[i]);
  }
  forward(&s);
}
