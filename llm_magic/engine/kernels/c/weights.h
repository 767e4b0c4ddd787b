// Matrices as repacked at load: tiles of 16 outputs, and inside a tile blocks of 32 inputs.
// The integers of a block lie as [group of four inputs][16 outputs][4 inputs], one byte or one
// nibble each; a byte's low nibble belongs to group j, its high nibble to group j + 4.

enum {
  F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K,
};

typedef struct {
  i64 at;      // byte offset in the weights
  i32 kind;
  i32 n, k;    // outputs and inputs, without padding
  i32 pad;
} mat_t;

// Bytes of one block: 16 outputs x 32 inputs (K kinds: without their share of the super-block).
INLINE int block_bytes(int kind) {
  switch (kind) {
  case F32: return 2048;                   // [32 inputs][16]
  case F16: case BF16: return 1024;
  case Q4_0: return 32 + 256;              // d f16[16], nibbles
  case Q4_1: return 64 + 256;              // d, m f16[16], nibbles
  case Q5_0: return 32 + 64 + 256;         // d, fifth bits (bit j of a byte: group j), nibbles
  case Q5_1: return 64 + 64 + 256;
  case Q8_0: return 32 + 512;              // d, integers + 128
  case Q4_K: return 32 + 256;              // scale, min u8[16], nibbles
  case Q5_K: return 32 + 64 + 256;
  case Q6_K: return 32 + 128 + 256;        // two scales i8[16], two bits (groups 0-3, 4-7), nibbles
  }
  return 0;
}

// Bytes before every eighth block: d (and dmin) f16[16] of a super-block of 256 inputs.
INLINE int super_bytes(int kind) {
  return kind == Q4_K || kind == Q5_K ? 64 : kind == Q6_K ? 32 : 0;
}

INLINE i64 tile_bytes(int kind, int blocks) {
  i64 supers = super_bytes(kind) ? UP(blocks, 8) / 8 : 0;
  return (i64)blocks * block_bytes(kind) + supers * super_bytes(kind);
}
INLINE int blocks_of(const mat_t *m) { return UP(m->k, 32) / 32; }
INLINE int tiles_of(const mat_t *m) { return UP(m->n, 16) / 16; }
INLINE int pairs_of(const mat_t *m) { return UP(m->n, 32) / 32; }  // there is memory for whole pairs
INLINE int is_float(int kind) { return kind <= BF16; }

INLINE float half_f32(const u8 *p) { return half1(ld16(p)); }

// The 32 weights of one output in one block, as floats. super: the super-block's start, or NULL.
static void block_values(int kind, const u8 *super, const u8 *b, int output, float *out) {
  int o = output;
  if (is_float(kind)) {
    for (int i = 0; i < 32; i++) {
      int at = i * 16 + o;
      out[i] = kind == F32 ? f32_of_bits(ld32(b + at * 4))
             : kind == F16 ? half_f32(b + at * 2) : f32_of_bits((u32)ld16(b + at * 2) << 16);
    }
    return;
  }
  float d, d2, m = 0, m2;
  const u8 *q = b;
  switch (kind) {
  case Q4_0: d = half_f32(q + 2 * o), m = -8 * d, q += 32; break;
  case Q5_0: d = half_f32(q + 2 * o), m = -16 * d, q += 32; break;
  case Q8_0: d = half_f32(q + 2 * o), m = -128 * d, q += 32; break;
  case Q4_1: case Q5_1: d = half_f32(q + 2 * o), m = half_f32(q + 32 + 2 * o), q += 64; break;
  case Q4_K: case Q5_K:
    d = half_f32(super + 2 * o) * b[o], m = -half_f32(super + 32 + 2 * o) * b[16 + o], q += 32;
    break;
  default: d = half_f32(super + 2 * o) * (i8)b[o], m = -32 * d, q += 32;
  }
  d2 = d, m2 = m;
  if (kind == Q6_K) d2 = half_f32(super + 2 * o) * (i8)b[16 + o], m2 = -32 * d2;
  const u8 *high = q;
  q += kind == Q5_0 || kind == Q5_1 || kind == Q5_K ? 64 : kind == Q6_K ? 128 : 0;
  for (int i = 0; i < 32; i++) {
    int j = i / 4, lane = o * 4 + i % 4, v;
    if (kind == Q8_0) v = q[j * 64 + lane];
    else v = q[(j & 3) * 64 + lane] >> (j >= 4 ? 4 : 0) & 15;
    if (kind == Q5_0 || kind == Q5_1 || kind == Q5_K) v |= (high[lane] >> j & 1) << 4;
    if (kind == Q6_K) v |= (high[(j >> 2) * 64 + lane] >> 2 * (j & 3) & 3) << 4;
    out[i] = (i < 16 ? d : d2) * (float)v + (i < 16 ? m : m2);
  }
}

// One output's whole row of weights (an embedding), out: [blocks * 32].
static void weight_row(const u8 *weights, const mat_t *m, int row, float *out) {
  int blocks = blocks_of(m), bytes = block_bytes(m->kind), head = super_bytes(m->kind);
  const u8 *b = weights + m->at + row / 16 * tile_bytes(m->kind, blocks), *super = 0;
  for (int k = 0; k < blocks; k++, b += bytes) {
    if (head && k % 8 == 0) super = b, b += head;
    block_values(m->kind, super, b, row % 16, out + k * 32);
  }
}
