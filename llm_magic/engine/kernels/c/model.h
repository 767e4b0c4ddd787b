// The tables that Python writes (layout.py mirrors them field by field), and the state of a step.

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
  i64 kv_slot, kv_chunk, kv_layer, kv_head;  // strides of the cache, in u16
  i64 x, h, qkv, att, parts, trig, items, work;  // byte offsets in the scratch memory
  acts_at in, mixed, inner;       // inputs of qkv/gate/up/output, of o, of down
  layer_t layers[];
} model_t;

#define SHARE_TASKS 4  // shares for each thread
#define SHARED_ROWS 16  // most rows whose caches are shared out: parts holds so many

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
  char *parts;                     // [n][head][span] of share_t
  int wide, qkv_wide, k_at, v_at, att_wide, half[2], trig_wide;
  acts_t in, mixed, inner;
  item_t *items;
  int n_items;
  int spans, shares;               // of all items and key heads, and the tasks that they are shared
                                   // out to; 0: a task is an item and a key head
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
