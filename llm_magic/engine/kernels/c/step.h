// The whole forward pass over a ragged batch, as phases that the team shares.

static void over_panels(step_t *s, void (*fn)(void *, int)) { run(s->team, fn, s, panels(s->n)); }

static void normed(step_t *s, norm_t post, norm_t norm, int floats) {
  s->post = post, s->norm = norm, s->floats = floats;
  over_panels(s, norm_panel);
}

// Blocks of rows of one slot. Where these are too few to be shared out evenly, their spans are.
static void list_items(step_t *s) {
  const model_t *m = s->model;
  const int parts = 8 * s->threads, fair = UP(s->n * m->kv_heads, parts) / parts;
  const int most = MAX(8, MIN(32, fair));
  s->n_items = 0;
  for (int i = 0; i < s->n; i++) {
    item_t *last = s->items + s->n_items - 1;
    if (s->n_items && last->slot == s->slots[i] && last->rows < most &&
        last->pos + last->rows == s->positions[i])
      last->rows++;
    else
      s->items[s->n_items++] = (item_t){i, 1, s->slots[i], s->positions[i]};
  }
}

static void attention(step_t *s) {
  const int tasks = s->n_items * s->model->kv_heads;
  s->shares = s->spans = 0;
  if (s->n <= SHARED_ROWS && tasks < SHARE_TASKS * s->threads) {
    for (int i = 0; i < s->n_items; i++)
      s->spans += spans_of(s, s->items + i) * s->model->kv_heads;  // of this layer's window
    if (s->spans > tasks) s->shares = MIN(SHARE_TASKS * s->threads, s->spans);
  }
  if (!s->shares) {
    run(s->team, attend_task, s, tasks);
    return;
  }
  run(s->team, attend_share, s, s->shares);
  run(s->team, join_row, s, s->n);
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

// Queries; and keys and values by way of a short vector. The piece of a key that turns is added
// when it does.
static void latent_qkv(step_t *s, const layer_t *l) {
  s->by = 1, s->n_mats = 1, s->bias[0] = l->q_bias, s->to_at[0] = 0;
  s->mats[0] = &l->q;
  product(s, &s->in, s->qkv, s->qkv_wide, 0);
  s->mats[0] = &l->kv_a, s->bias[0] = -1;
  product(s, &s->in, s->kv_a, s->model->kv_a_wide, 0);
  s->floats = is_float(l->k.kind);
  over_panels(s, latent_panel);
  s->mats[0] = &l->k, s->mats[1] = &l->v, s->n_mats = 2, s->bias[0] = s->bias[1] = -1;
  s->to_at[0] = s->k_at, s->to_at[1] = s->v_at;
  product(s, &s->latent, s->qkv, s->qkv_wide, 0);
}

static void qkv(step_t *s, const layer_t *l) {
  s->mats[0] = &l->q, s->mats[1] = &l->k, s->mats[2] = &l->v, s->n_mats = 3;
  s->bias[0] = l->q_bias, s->bias[1] = l->k_bias, s->bias[2] = l->v_bias;
  s->to_at[0] = 0, s->to_at[1] = s->k_at, s->to_at[2] = s->v_at;
  s->by = 1;
  product(s, &s->in, s->qkv, s->qkv_wide, 0);
}

// One matrix whose result is added to the residual stream, or kept: for the norm behind it, or
// (aside) for taps.
static void project(step_t *s, const mat_t *m, const acts_t *from, i64 bias, int post, int aside) {
  s->mats[0] = m, s->n_mats = 1, s->bias[0] = bias, s->to_at[0] = 0;
  s->by = post ? 1 : s->layer->residual_scale;
  product(s, from, post || aside ? s->h : s->x, s->wide, !post && !aside);
}

#include "moe.h"
#include "taps.h"

// One layer. post: the norm of the layer before, which its output waits for in h. tapped is a
// constant: what taps need is no part of the pass without them. With them, nothing waits in h.
INLINE void run_layer(step_t *s, norm_t post, const int tapped) {
  const layer_t *l = s->layer;
  const int last = s->layer_index == s->model->n_layers - 1;
  const int floats = is_float(l->q.kind) || is_float(l->k.kind) || is_float(l->v.kind) ||
                     (l->latent && is_float(l->kv_a.kind));
  const norm_t attn = {l->attn_norm_kind, l->attn_norm, l->attn_norm_bias};
  const norm_t post_attn = {l->post_attn_kind, l->post_attn, -1};
  const norm_t ffn = {l->ffn_norm_kind, l->ffn_norm, l->ffn_norm_bias};
  const int ffn_floats = (l->gate.n && is_float(l->gate.kind)) ||
                         (l->up.n && is_float(l->up.kind)) ||
                         (l->experts && is_float(l->router.kind));
  if (tapped) tap(s, POINT_RESID_PRE, s->x, s->wide);
  normed(s, post, attn, floats);
  if (l->latent) latent_qkv(s, l);
  else qkv(s, l);
  over_panels(s, turn_panel);
  if (tapped) tap_heads(s);
  if (!tapped && last && !s->wanted) return;  // the cache is complete
  attention(s);
  if (tapped) tap(s, POINT_Z, s->att, s->att_wide);
  if (!tapped && last) keep_wanted(s);
  // Parallel parts both read what the layer was given: before anything is added to it.
  s->keep = l->experts;
  if (l->parallel) normed(s, (norm_t){}, ffn, ffn_floats);
  s->floats = is_float(l->o.kind);
  over_panels(s, mixed_panel);
  project(s, &l->o, &s->mixed, l->o_bias, l->post_attn_kind, tapped);
  if (tapped) add_tapped(s, post_attn, POINT_ATTN_OUT, POINT_RESID_MID);
  if (!l->parallel) normed(s, tapped ? (norm_t){} : post_attn, ffn, ffn_floats);
  s->keep = 0;
  if (l->experts) {
    mixture(s, tapped);
  } else {
    s->floats = is_float(l->down.kind);
    glu(s, &l->gate, &l->up, l->gate_bias, l->up_bias);
    project(s, &l->down, &s->inner, l->down_bias, l->post_ffn_kind, tapped);
  }
  if (tapped)
    add_tapped(s, (norm_t){l->post_ffn_kind, l->post_ffn, -1}, POINT_MLP_OUT, POINT_RESID_POST);
}

// Logits of the rows of x.
static void head(step_t *s, norm_t post) {
  const model_t *m = s->model;
  normed(s, post, output_norm(m), is_float(m->output.kind));
  s->softcap = m->logit_softcap, s->by = m->logit_scale;
  s->mats[0] = &m->output, s->n_mats = 1, s->bias[0] = m->output_bias, s->to_at[0] = 0;
  product(s, &s->in, s->logits, UP(m->vocab, 32), 0);
}

static void forward(step_t *s) {
  const model_t *m = s->model;
  list_items(s);
  over_panels(s, embed_panel);
  norm_t post = {};
  for (int i = 0; i < m->n_layers; i++) {
    s->layer = m->layers + i, s->layer_index = i;
    if (s->taps) {
      run_layer(s, post, 1);
      continue;
    }
    run_layer(s, post, 0);
    post = (norm_t){s->layer->post_ffn_kind, s->layer->post_ffn, -1};
  }
  if (s->taps) {
    tap_end(s);
    keep_wanted(s);
  }
  if (s->wanted) head(s, post);
}

INLINE acts_t acts_in(const acts_at *a, u8 *scratch) {
  return (acts_t){
      scratch + a->q, (scale_t *)(scratch + a->s), (float *)(scratch + a->f), a->blocks};
}

static void begin(step_t *s, const i32 *job, const model_t *m, const u8 *weights, u16 *kv,
                  u8 *scratch, float *logits, team_t *team) {
  const i32 *rows = job + JOB_HEAD;
  // Not `= {}`, which may become a call to memset: there is no library to link to.
  for (u64 i = 0; i < sizeof *s / 4; i++) ((i32_u *)s)[i] = 0;
  s->model = m, s->weights = weights, s->kv = kv, s->logits = logits, s->team = team;
  s->tokens = rows, s->slots = rows + m->max_rows, s->positions = rows + 2 * m->max_rows;
  s->want = rows + 3 * m->max_rows, s->n = job[JOB_ROWS], s->wanted = job[JOB_WANTED];
  s->threads = team->helpers + 1;
  s->x = (float *)(scratch + m->x), s->h = (float *)(scratch + m->h);
  s->qkv = (float *)(scratch + m->qkv), s->att = (float *)(scratch + m->att);
  s->parts = (char *)(scratch + m->parts), s->trig = (float *)(scratch + m->trig);
  s->items = (item_t *)(scratch + m->items);
  s->in = acts_in(&m->in, scratch), s->mixed = acts_in(&m->mixed, scratch);
  s->inner = acts_in(&m->inner, scratch), s->picked = acts_in(&m->picked, scratch);
  s->latent = acts_in(&m->latent, scratch), s->kv_a = (float *)(scratch + m->kv_a);
  s->normal = (float *)(scratch + m->normal), s->scores = (float *)(scratch + m->scores);
  s->given = (float *)(scratch + m->given), s->scores_wide = UP(m->max_experts, 32);
  s->choices = (choice_t *)(scratch + m->choices), s->picks = (pick_t *)(scratch + m->picks);
  s->first = (i32 *)(scratch + m->first);
  s->wide = UP(m->dim, 32), s->att_wide = UP(m->heads * m->value_head, 32);
  s->k_at = UP(m->heads * m->head_pad, 32);
  s->v_at = s->k_at + UP(m->kv_heads * m->head_pad, 32);
  s->qkv_wide = s->v_at + UP(m->kv_heads * m->head_pad, 32);
  for (int i = 0; i < m->n_ropes; i++) {
    s->half[i] = UP(m->rotated[i] / 2, 8);
    s->trig_wide = MAX(s->trig_wide, 2 * s->half[i]);
  }
}

// Logits of vectors that stand in x: the rows of a job, all of them wanted.
static void unembed(const i32 *job, const model_t *m, const u8 *weights, u16 *kv, u8 *scratch,
                    float *logits, team_t *team) {
  step_t s;
  begin(&s, job, m, weights, kv, scratch, logits, team);
  head(&s, (norm_t){});
}

static void step(const i32 *job, const model_t *m, const u8 *weights, u16 *kv, u8 *scratch,
                 float *logits, team_t *team) {
  step_t s;
  begin(&s, job, m, weights, kv, scratch, logits, team);
  if (job[JOB_TAPS]) {
    s.taps = (const tap_t *)*(const i64 *)(job + JOB_AT);
    s.taps_end = s.taps + job[JOB_TAPS];
  }
  if (s.n > 1 || !team->helpers) {
    forward(&s);
    return;
  }
  const int alone = team->alone ^ other_way(team);
  const u64 began = ticks(), solo = team->solo_until;
  if (alone) team->solo_until = ~0ull;
  forward(&s);
  if (alone) team->solo_until = solo;
  book(team, alone, ticks() - began);
}
