// The tables that Python writes (layout.py mirrors them field by field), and the state of a step.

#define MAX_ROPES 4
#define MAX_EXPERTS 512
enum { NO_NORM, RMS_NORM, LAYER_NORM };
enum { SILU, GELU_TANH, GELU, RELU, RELU_SQUARED, CLAMPED };
enum { SOFTMAX, SIGMOID, CHOSEN };  // what makes weights of experts of a router's scores

typedef struct {
  // Where the feed-forward part is not gated, gate.n is 0. With experts, gate, up and down are what
  // all rows take (up.n may be 0), and expert_* the first expert's: the others lie behind it.
  mat_t q, k, v, o, gate, up, down, router, expert_gate, expert_up, expert_down;
  mat_t kv_a;  // of latent attention: k and v are made of what this gives
  // Byte offsets of float32 vectors in the weights; -1: the model has none.
  i64 attn_norm, q_norm, k_norm, post_attn, ffn_norm, post_ffn, q_bias, k_bias, v_bias, o_bias;
  i64 attn_norm_bias, ffn_norm_bias, gate_bias, up_bias, down_bias;
  i64 sinks, router_bias, correction, shared_router;
  i64 expert_gate_bias, expert_up_bias, expert_down_bias, kv_a_norm;
  i32 rope, window;
  i32 attn_norm_kind, post_attn_kind, ffn_norm_kind, post_ffn_kind;
  i32 qk_norm_kind, qk_norm_row;  // row: over all heads of a row, else over each head
  i32 activation, parallel;
  i32 latent, pad;                // latent: entries of the short vector, 0: keys are made at once
  i32 experts, used, gating, normalized;  // experts: 0, or how many there are to choose from
  float residual_scale, expert_scale;     // of what is added to the residual stream; of weights
} layer_t;

// A norm: its kind, and byte offsets of its weights and bias (-1: none).
typedef struct { int kind; i64 weight, bias; } norm_t;

typedef struct { i64 q, s, f; i32 blocks, pad; } acts_at;  // byte offsets in the scratch memory

typedef struct {
  i32 n_layers, dim, heads, kv_heads, head, head_pad, ff, vocab;
  i32 output_norm_kind, n_ropes, max_rows, max_parts, max_experts, value_head;
  i32 kv_a_wide, pad;             // of latent attention
  i32 rotated[MAX_ROPES];         // entries of a head that turn, per kind of rope; 0: none
  float magnitude[MAX_ROPES];     // factor of cosines and sines
  float eps, embedding_scale, attention_scale, attention_softcap, logit_softcap, logit_scale;
  i64 inv_freq[MAX_ROPES];        // byte offsets in the weights: float64 [UP(rotated / 2, 8)]
  i64 output_norm, output_norm_bias, output_bias;
  mat_t embedding, positions, output;  // positions.n is 0 where the model has none
  i64 kv_slot, kv_chunk, kv_layer, kv_head;  // strides of the cache, in u16
  i64 x, h, qkv, att, parts, trig, items, work;  // byte offsets in the scratch memory
  i64 normal, scores, choices, picks, first, given;  // and where a layer has experts
  i64 kv_a;
  // Inputs of qkv/gate/up/output, of o, of down, of an expert, of latent attention's k and v.
  acts_at in, mixed, inner, picked, latent;
  layer_t layers[];
} model_t;

#define SHARE_TASKS 4  // shares for each thread
#define SHARED_ROWS 16  // most rows whose caches are shared out: parts holds so many

// Rows of a point that are copied out, added to or replaced; data: the address of float32 values,
// stride: from row to row, in floats, 0 if one row serves all.
typedef struct {
  i32 layer, point, kind, first, rows, column, columns, pad;
  i64 data, stride;
} tap_t;

// Rows of one slot in consecutive positions, attended to by one task.
typedef struct { i32 row, rows, slot, pos; } item_t;

// An expert that a row takes; a row that takes an expert.
typedef struct { i32 expert; float weight; } choice_t;
typedef struct { i32 row; float weight; } pick_t;

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
  char *parts;                     // [n][head][span] of share_t
  int wide, qkv_wide, k_at, v_at, att_wide, half[MAX_ROPES], trig_wide;
  acts_t in, mixed, inner, picked, latent;
  float *kv_a;                     // [n][kv_a_wide]: short vectors, then what turns of a key
  float *normal, *scores, *given;  // [n][wide]; [n][scores_wide]; [n][wide]
  int scores_wide;
  choice_t *choices;               // [n][used]
  pick_t *picks;                   // [n * used], by experts
  i32 *first;                      // of each expert's picks
  item_t *items;
  int n_items;
  int spans, shares;               // of all items and key heads, and the tasks that they are shared
                                   // out to; 0: a task is an item and a key head
  const tap_t *taps, *taps_end;    // those that the step has not come to; 0: it has none
  // of the phase that runs
  const layer_t *layer;
  int layer_index;
  const mat_t *mats[3];
  const mat_t *gate, *up;          // of the feed-forward part, and their biases
  i64 gate_bias, up_bias;
  const pick_t *pick;              // of the expert that runs
  int keep;                        // norms are kept in `normal`
  int n_mats, chunk, row_panels, row_chunks, tile_chunks;
  const acts_t *from;
  float *to;
  int to_wide, add;
  float by;                        // factor of what a product gives
  i64 bias[3];
  int to_at[3];
  norm_t norm, post;
  int floats;
  float softcap;
} step_t;

INLINE const float *vector(const step_t *s, i64 at) { return (const float *)(s->weights + at); }
INLINE int panels(int n) { return UP(n, MR) / MR; }

// Mean of x[0 .. n-1]. x: [wide], zero beyond n.
INLINE float mean_of(const float *x, int wide, int n) {
  vf sum = {};
  for (int i = 0; i < wide; i += 16) sum += ld(x + i);
  return reduce_add(sum) / (float)n;
}

// 1 / sqrt(mean((x - mean)^2) + eps) of x[0 .. n-1].
INLINE float spread_scale(const float *x, int wide, int n, float mean, float eps) {
  const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  vf sum = {};
  for (int i = 0; i < wide; i += 16) {
    const vf d = select(lane + i < n, ld(x + i) - mean, (vf){});
    sum += d * d;
  }
  return 1.f / __builtin_sqrtf(reduce_add(sum) / (float)n + eps);
}

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

// A norm of one row: y = (x - mean) * scale * weight + bias, without mean where it is an RMS norm.
typedef struct { float mean, scale; } normal_t;
INLINE normal_t normal_of(int kind, const float *x, int wide, int n, float eps) {
  if (kind == NO_NORM) return (normal_t){0, 1};
  if (kind == RMS_NORM) return (normal_t){0, norm_scale(x, wide, n, eps)};
  const float mean = mean_of(x, wide, n);
  return (normal_t){mean, spread_scale(x, wide, n, mean, eps)};
}
