// Phases of matrix products: how they are cut into tasks, and what follows each product.

#ifndef PANEL_CACHE
#define PANEL_CACHE (384 << 10)  // bytes of inputs that a task goes over again and again
#endif

#ifndef TASKS
#define TASKS 2  // of a thread in decode
#endif

// Splits `tiles` (or groups of them, `bytes` long) x panels into tasks. Decode: TASKS a thread (each
// more costs an exchange between the cores and a new start of reading: with four, a step of SmolLM2
// takes 5 % longer on AMD; on Intel two take 9 % longer than one), but none so short that sharing it
// costs more than doing it. Prefill: as many panels as stay in the second-level cache, beside at
// most `most` tiles.
static int cut(step_t *s, int tiles, int blocks, int most, i64 bytes) {
  const int all = panels(s->n), worth = (int)(tiles * bytes * MIN(s->n, MR) / (32 << 10));
  s->row_panels = MIN(all, MAX(1, PANEL_CACHE / (MR * blocks * (ROW_BYTES + 16))));
  s->row_chunks = UP(all, s->row_panels) / s->row_panels;
  int want = MAX(1, MIN((all > 1 ? 4 : TASKS) * s->threads / s->row_chunks, worth));
  s->chunk = MAX(1, UP(tiles, want) / want);
  if (all > 1) s->chunk = MIN(s->chunk, most);
  s->tile_chunks = UP(tiles, s->chunk) / s->chunk;
  return s->tile_chunks * s->row_chunks;
}

// What task number `task` of a cut does: s->chunk units (tiles, pairs or blocks) from `first` on,
// times panels `from` .. `to` - 1.
typedef struct { int first, from, to; } part_of_cut_t;
INLINE part_of_cut_t part_of_cut(const step_t *s, int task) {
  const int from = task / s->tile_chunks * s->row_panels;
  return (part_of_cut_t){
      task % s->tile_chunks * s->chunk, from, MIN(panels(s->n), from + s->row_panels)};
}

// What a tile gave for the rows of a panel, y: [R][16], to its place.
INLINE void put_product(const step_t *s, int which, int tile, int panel, int R, const float *y) {
  float *rows = s->to + (i64)panel * MR * s->to_wide;
  vf bias = s->bias[which] >= 0 ? ld(vector(s, s->bias[which]) + tile * 16) : (vf){};
  for (int r = 0; r < R; r++) {
    float *to = rows + (i64)r * s->to_wide + s->to_at[which] + tile * 16;
    vf v = (ld(y + r * 16) + bias) * s->by;
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
    const int R = panel_rows(s->n, panel);
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
INLINE vf activate(vf x, int kind) {
  switch (kind) {
  case GELU: return 0.5f * x * (1.f + verf(x * 0.70710678f));
  case RELU: return vmax(x, (vf){});
  case RELU_SQUARED: x = vmax(x, (vf){}); return x * x;
  }
  vf z = kind == GELU_TANH ? x * (1.5957691216f + 0.0713548163f * x * x) : x;
  return x * vsigmoid(z);
}

// inner = activation(gate) * up of a panel, packed at once: 32 inner entries. g, u: [2][MR][16].
// Not gated: activation(up).
INLINE vf gated(vf gate, vf up, int kind) {
  if (kind != CLAMPED) return activate(gate, kind) * up;
  gate = __builtin_elementwise_min(gate, splat(7.f));
  up = vmax(__builtin_elementwise_min(up, splat(7.f)), splat(-7.f));
  return gate * vsigmoid(1.702f * gate) * (up + 1.f);
}
INLINE void put_inner(step_t *s, int panel, int R, int block, const float *g, const float *u) {
  float x[MR * 32] __attribute__((aligned(64)));
  const layer_t *l = s->layer;
  for (int t = 0; t < 2; t++) {
    vf gate = {}, up = {};
    if (s->gate_bias >= 0) gate = ld(vector(s, s->gate_bias) + block * 32 + t * 16);
    if (s->up_bias >= 0) up = ld(vector(s, s->up_bias) + block * 32 + t * 16);
    for (int r = 0; r < R; r++) {
      const int at = (t * MR + r) * 16;
      const vf v = ld(u + at) + up;
      st(x + r * 32 + t * 16, s->gate->n ? gated(ld(g + at) + gate, v, l->activation)
                                         : activate(v, l->activation));
    }
  }
  put_blocks(&s->inner, panel, R, block, x, s->floats);
}

// A task owns whole blocks of 32 inner entries.
static void glu_task(void *arg, int task) {
  step_t *s = arg;
  const part_of_cut_t part = part_of_cut(s, task);
  const int block1 = MIN(s->inner.blocks, part.first + s->chunk);
  float g[2 * MR * 16] __attribute__((aligned(64))), u[2 * MR * 16] __attribute__((aligned(64)));
  for (int panel = part.from; panel < part.to; panel++) {
    const int R = panel_rows(s->n, panel);
    for (int b = part.first; b < block1; b++) {
      for (int t = 0; t < 2; t++) {
        if (s->gate->n)
          tile_times_panel(s->weights, s->gate, 2 * b + t, &s->in, panel, R, g + t * MR * 16);
        tile_times_panel(s->weights, s->up, 2 * b + t, &s->in, panel, R, u + t * MR * 16);
      }
      put_inner(s, panel, R, b, g, u);
    }
  }
}

#ifdef TILE_ROWS
#include "tiles.h"

// The same two phases on tile registers: pairs of tiles, each times all panels of the task.
static void product_pairs_task(void *arg, int task) {
  step_t *s = arg;
  const part_of_cut_t part = part_of_cut(s, task);
  float y[TILE_PANELS * 2 * MR * 16] __attribute__((aligned(64)));
  int which = 0, first = 0;
  tiles_on();
  for (int pair = part.first; pair < part.first + s->chunk; pair++) {
    while (which < s->n_mats && pair - first >= pairs_of(s->mats[which]))
      first += pairs_of(s->mats[which++]);
    if (which == s->n_mats) break;
    for (int p = part.from; p < part.to; p += TILE_PANELS) {
      const int end = MIN(part.to, p + TILE_PANELS);
      pair_times_panels(s->weights, s->mats[which], pair - first, s->from, s->n, p, end, y);
      for (int i = 0; i < 2 * (end - p); i++)
        put_product(s, which, 2 * (pair - first) + i % 2, p + i / 2, panel_rows(s->n, p + i / 2),
                    y + i * MR * 16);
    }
  }
  tiles_off();
}

static void glu_pairs_task(void *arg, int task) {
  step_t *s = arg;
  const part_of_cut_t part = part_of_cut(s, task);
  const int block1 = MIN(s->inner.blocks, part.first + s->chunk);
  float g[TILE_PANELS * 2 * MR * 16] __attribute__((aligned(64)));
  float u[TILE_PANELS * 2 * MR * 16] __attribute__((aligned(64)));
  tiles_on();
  for (int b = part.first; b < block1; b++)
    for (int p = part.from; p < part.to; p += TILE_PANELS) {
      const int end = MIN(part.to, p + TILE_PANELS);
      if (s->gate->n) pair_times_panels(s->weights, s->gate, b, &s->in, s->n, p, end, g);
      pair_times_panels(s->weights, s->up, b, &s->in, s->n, p, end, u);
      for (int i = 0; i < end - p; i++)
        put_inner(s, p + i, panel_rows(s->n, p + i), b, g + i * 2 * MR * 16, u + i * 2 * MR * 16);
    }
  tiles_off();
}
#endif

static void product(step_t *s, const acts_t *from, float *to, int to_wide, int add) {
  const i64 bytes = tile_bytes(s->mats[0]->kind, from->blocks);
  int tiles = 0, pairs = 0;
  for (int i = 0; i < s->n_mats; i++) tiles += tiles_of(s->mats[i]), pairs += pairs_of(s->mats[i]);
  s->from = from, s->to = to, s->to_wide = to_wide, s->add = add;
#ifdef TILE_ROWS
  if (s->n >= TILE_ROWS) {
    run(s->team, product_pairs_task, s, cut(s, pairs, from->blocks, 8, 2 * bytes));
    return;
  }
#endif
  run(s->team, product_task, s, cut(s, tiles, from->blocks, 16, bytes));
}

// inner = what the feed-forward part with these matrices makes of `in`.
static void glu(step_t *s, const mat_t *gate, const mat_t *up, i64 gate_bias, i64 up_bias) {
  s->gate = gate, s->up = up, s->gate_bias = gate_bias, s->up_bias = up_bias;
  s->inner.blocks = UP(up->n, 32) / 32;
  const int tasks =
      cut(s, s->inner.blocks, s->in.blocks, 4, 4 * tile_bytes(up->kind, s->in.blocks));
#ifdef TILE_ROWS
  if (s->n >= TILE_ROWS) {
    run(s->team, glu_pairs_task, s, tasks);
    return;
  }
#endif
  run(s->team, glu_task, s, tasks);
}
