// Matrices as repacked at load: tiles of 16 outputs, and inside a tile blocks of 32 inputs.
// The integers of a block lie as [group of four inputs][16 outputs][4 inputs], one byte or one
// nibble each; a byte's low nibble belongs to group j, its high nibble to group j + 4.

enum {
  F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K,
  Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4, SCALED,
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
  case Q2_K: return 32 + 128;              // scale | min << 4 u8[16] of each half, two bits
  case Q3_K: return 32 + 64 + 128;         // two scales i8[16], third bits, two bits
  case IQ4_NL: return 32 + 256;            // d f16[16], nibbles that name values
  case IQ4_XS: return 16 + 256;            // scale i8[16], nibbles
  case MXFP4: return 16 + 256;             // exponent u8[16], nibbles
  case SCALED: return 32 + 512;            // two scales i8[16], integers + 128
  }
  return 0;
}

// Bytes before every eighth block: d (and dmin) f16[16] of a super-block of 256 inputs, or d f32[16].
INLINE int super_bytes(int kind) {
  switch (kind) {
  case Q4_K: case Q5_K: case Q2_K: case SCALED: return 64;
  case Q6_K: case Q3_K: case IQ4_XS: return 32;
  default: return 0;
  }
}

// What a block's numbers are, beyond its sizes.
INLINE int has_halves(int kind) {  // a scale for each 16 inputs
  return kind == Q6_K || kind == Q2_K || kind == Q3_K || kind == SCALED;
}
INLINE int is_bytes(int kind) { return kind == Q8_0 || kind == SCALED; }
INLINE int is_named(int kind) { return kind == IQ4_NL || kind == IQ4_XS || kind == MXFP4; }
INLINE int is_two_bits(int kind) { return kind == Q2_K || kind == Q3_K; }
INLINE int has_fifth(int kind) { return kind == Q5_0 || kind == Q5_1 || kind == Q5_K; }

// Where the extra bits, and behind them the nibbles or bytes, begin in a block.
INLINE int high_at(int kind) {
  return kind == Q4_1 || kind == Q5_1 ? 64 : kind == IQ4_XS || kind == MXFP4 ? 16 : 32;
}
INLINE int integers_at(int kind) {
  return high_at(kind) + (has_fifth(kind) || kind == Q3_K ? 64 : kind == Q6_K ? 128 : 0);
}

// What a nibble of the kinds with names stands for, plus 128: the values of IQ4_NL, and those of
// 4-bit floats (E2M1) times two.
static const u8 IQ4_VALUES[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                  129, 141, 153, 166, 181, 197, 217, 241};
static const u8 E2M1_VALUES[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                   128, 127, 126, 125, 124, 122, 120, 116};
INLINE const u8 *named_values(int kind) { return kind == MXFP4 ? E2M1_VALUES : IQ4_VALUES; }

// Half of 2^(e - 127): the scale of doubled values with a common exponent of eight bits.
INLINE u32 half_power_bits(u32 e) { return e < 2 ? 0x00200000u << e : (e - 1) << 23; }

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
  const u8 *high = b + high_at(kind), *q = b + integers_at(kind);
  d = half_f32((super_bytes(kind) ? super : b) + 2 * o);
  if (kind == SCALED) d = f32_of_bits(ld32(super + 4 * o));
  if (kind == MXFP4) d = f32_of_bits(half_power_bits(b[o]));
  d2 = d;
  switch (kind) {
  case Q4_0: m = -8 * d; break;
  case Q5_0: m = -16 * d; break;
  case Q8_0: case IQ4_NL: case MXFP4: m = -128 * d; break;
  case Q4_1: case Q5_1: m = half_f32(b + 32 + 2 * o); break;
  case Q4_K: case Q5_K: d *= b[o], m = -half_f32(super + 32 + 2 * o) * b[16 + o]; break;
  case IQ4_XS: d *= (i8)b[o], m = -128 * d; break;
  case Q2_K: d *= b[o] & 15, m = -half_f32(super + 32 + 2 * o) * (b[o] >> 4); break;
  case Q6_K: d *= (i8)b[o], m = -32 * d; break;
  case Q3_K: d *= (i8)b[o], m = -4 * d; break;
  case SCALED: d *= (i8)b[o], m = -128 * d; break;
  }
  m2 = m;
  if (kind == Q2_K) d2 *= b[16 + o] & 15, m2 = -half_f32(super + 32 + 2 * o) * (b[16 + o] >> 4);
  else if (has_halves(kind)) {
    d2 *= (i8)b[16 + o], m2 = (kind == Q6_K ? -32 : kind == Q3_K ? -4 : -128) * d2;
  } else d2 = d;
  for (int i = 0; i < 32; i++) {
    int j = i / 4, lane = o * 4 + i % 4, v;
    if (is_bytes(kind)) v = q[j * 64 + lane];
    else if (is_two_bits(kind)) v = q[(j >> 2) * 64 + lane] >> 2 * (j & 3) & 3;
    else v = q[(j & 3) * 64 + lane] >> (j >= 4 ? 4 : 0) & 15;
    if (is_named(kind)) v = named_values(kind)[v];
    if (has_fifth(kind)) v |= (high[lane] >> j & 1) << 4;
    if (kind == Q3_K) v |= (high[lane] >> j & 1) << 2;
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
