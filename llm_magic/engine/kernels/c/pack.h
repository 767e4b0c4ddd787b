// GGUF blocks -> tiles (weights.h). Integers and scales are moved, never recomputed: what a tile
// means is bit by bit what the file says.

typedef struct {
  const u8 *from;   // rows of the file's blocks
  u8 *to;
  const i32 *rows;  // source row of every output, -1: zeros; NULL: the identity
  i64 n_from;       // rows in the file
  i64 kind, k, tiles, chunk;
} pack_t;

// Bytes of one file block, and the inputs in it.
INLINE int file_bytes(int kind) {
  switch (kind) {
  case F32: return 4;
  case F16: case BF16: return 2;
  case Q4_0: case IQ4_NL: return 18;
  case Q4_1: return 20;
  case Q5_0: return 22;
  case Q5_1: return 24;
  case Q8_0: return 34;
  case Q4_K: return 144;
  case Q5_K: return 176;
  case Q2_K: return 84;
  case Q3_K: return 110;
  case IQ4_XS: return 136;
  case MXFP4: return 17;
  case SCALED: return 276;  // lowbit.py: d f32, 16 scales i8, 256 integers i8
  default: return 210;
  }
}
INLINE int file_inputs(int kind) { return is_float(kind) ? 1 : super_bytes(kind) ? 256 : 32; }

// Every fourth bit of x, from bit 0 on, side by side in the low byte.
INLINE u32 every_fourth(u32 x) {
  x &= 0x11111111;
  x = (x | x >> 3) & 0x03030303;
  x = (x | x >> 6) & 0x000f000f;
  return (x | x >> 12) & 0xff;
}

// Blocks of 32 with their own scale. b: the tile's block, o: the output in it.
INLINE void pack_32(int kind, const u8 *f, u8 *b, int o) {
  st16(b + 2 * o, ld16(f)), f += 2, b += 32;
  if (kind == Q8_0) {
    for (int j = 0; j < 8; j++) st32(b + j * 64 + 4 * o, ld32(f + 4 * j) ^ 0x80808080);
    return;
  }
  if (kind == Q4_1 || kind == Q5_1) st16(b + 2 * o, ld16(f)), f += 2, b += 32;
  if (kind == Q5_0 || kind == Q5_1) {
    u32 high = ld32(f), bytes = 0;
    for (int i = 0; i < 4; i++) bytes |= every_fourth(high >> i) << 8 * i;
    st32(b + 4 * o, bytes), f += 4, b += 64;
  }
  for (int j = 0; j < 4; j++) st32(b + j * 64 + 4 * o, ld32(f + 4 * j));
}

INLINE void pack_nibbles(const u8 *f, int shift, u8 *b, int o) {
  for (int j = 0; j < 4; j++)
    st32(b + j * 64 + 4 * o, (ld32(f + 4 * j) >> shift & 0x0f0f0f0f) |
                                 (ld32(f + 16 + 4 * j) >> shift & 0x0f0f0f0f) << 4);
}

// Super-blocks of 256 with a 6-bit scale and minimum per 32 (Q4_K, Q5_K).
INLINE void pack_k45(int kind, const u8 *f, u8 *b, int o) {
  st16(b + 2 * o, ld16(f)), st16(b + 32 + 2 * o, ld16(f + 2)), b += 64;
  const u8 *sc = f + 4, *qh = f + 16, *q = f + (kind == Q5_K ? 48 : 16);
  for (int s = 0; s < 8; s++, b += block_bytes(kind)) {
    b[o] = s < 4 ? sc[s] & 63 : (sc[s + 4] & 15) | (sc[s - 4] >> 6) << 4;
    b[16 + o] = s < 4 ? sc[s + 4] & 63 : sc[s + 4] >> 4 | (sc[s] >> 6) << 4;
    if (kind == Q5_K) {
      u32 bytes = 0;
      for (int j = 0; j < 8; j++) bytes |= (ld32(qh + 4 * j) >> s & 0x01010101) << j;
      st32(b + 32 + 4 * o, bytes);
    }
    pack_nibbles(q + s / 2 * 32, s % 2 * 4, b + (kind == Q5_K ? 96 : 32), o);
  }
}

// Q6_K: two halves of 128; sub-block t of a half takes nibble t / 2 of 32 bytes and two bits of qh.
INLINE void pack_k6(const u8 *f, u8 *b, int o) {
  const u8 *scales = f + 192;
  st16(b + 2 * o, ld16(f + 208)), b += 32;
  for (int s = 0; s < 8; s++, b += block_bytes(Q6_K)) {
    const u8 *ql = f + s / 4 * 64 + s % 2 * 32, *qh = f + 128 + s / 4 * 32;
    b[o] = scales[2 * s], b[16 + o] = scales[2 * s + 1];
    for (int h = 0; h < 2; h++) {
      u32 bytes = 0;
      for (int j = 0; j < 4; j++)
        bytes |= (ld32(qh + 16 * h + 4 * j) >> s % 4 * 2 & 0x03030303) << 2 * j;
      st32(b + 32 + h * 64 + 4 * o, bytes);
    }
    pack_nibbles(ql, s % 4 / 2 * 4, b + 160, o);
  }
}

// Two bits of 128 inputs in 32 bytes: sub-block s (32 inputs) of a half takes bits 2 s of each.
INLINE void pack_two_bits(const u8 *qs, int s, u8 *b, int o) {
  for (int h = 0; h < 2; h++) {
    u32 bytes = 0;
    for (int j = 0; j < 4; j++)
      bytes |= (ld32(qs + s / 4 * 32 + 16 * h + 4 * j) >> s % 4 * 2 & 0x03030303) << 2 * j;
    st32(b + h * 64 + 4 * o, bytes);
  }
}

INLINE void pack_k2(const u8 *f, u8 *b, int o) {
  st16(b + 2 * o, ld16(f + 80)), st16(b + 32 + 2 * o, ld16(f + 82)), b += 64;
  for (int s = 0; s < 8; s++, b += block_bytes(Q2_K)) {
    b[o] = f[2 * s], b[16 + o] = f[2 * s + 1];
    pack_two_bits(f + 16, s, b + 32, o);
  }
}

// Scale k of Q3_K: four low bits in bytes 0-7 (low halves first), two high bits in bytes 8-11.
INLINE u8 k3_scale(const u8 *sc, int k) {
  return (u8)((sc[k % 8] >> k / 8 * 4 & 15 | (sc[8 + k % 4] >> k / 4 * 2 & 3) << 4) - 32);
}
INLINE void pack_k3(const u8 *f, u8 *b, int o) {
  st16(b + 2 * o, ld16(f + 108)), b += 32;
  for (int s = 0; s < 8; s++, b += block_bytes(Q3_K)) {
    b[o] = k3_scale(f + 96, 2 * s), b[16 + o] = k3_scale(f + 96, 2 * s + 1);
    u32 bytes = 0;
    for (int j = 0; j < 8; j++) bytes |= (ld32(f + 4 * j) >> s & 0x01010101) << j;
    st32(b + 32 + 4 * o, bytes);
    pack_two_bits(f + 32, s, b + 96, o);
  }
}

INLINE void pack_iq4_xs(const u8 *f, u8 *b, int o) {
  const u32 high = ld16(f + 2);
  st16(b + 2 * o, ld16(f)), b += 32;
  for (int s = 0; s < 8; s++, b += block_bytes(IQ4_XS)) {
    b[o] = (u8)((f[4 + s / 2] >> s % 2 * 4 & 15 | (high >> 2 * s & 3) << 4) - 32);
    for (int j = 0; j < 4; j++) st32(b + 16 + j * 64 + 4 * o, ld32(f + 8 + 16 * s + 4 * j));
  }
}

INLINE void pack_mxfp4(const u8 *f, u8 *b, int o) {
  b[o] = f[0];
  for (int j = 0; j < 4; j++) st32(b + 16 + j * 64 + 4 * o, ld32(f + 1 + 4 * j));
}

INLINE void pack_scaled(const u8 *f, u8 *b, int o) {
  st32(b + 4 * o, ld32(f)), b += 64;
  for (int s = 0; s < 8; s++, b += block_bytes(SCALED)) {
    b[o] = f[4 + 2 * s], b[16 + o] = f[5 + 2 * s];
    for (int j = 0; j < 8; j++)
      st32(b + 32 + j * 64 + 4 * o, ld32(f + 20 + 32 * s + 4 * j) ^ 0x80808080);
  }
}

INLINE void pack_row(int kind, const u8 *f, i64 k, u8 *tile, int o) {
  if (is_float(kind)) {
    for (i64 i = 0; i < k; i++) {
      if (kind == F32) st32(tile + (i * 16 + o) * 4, ld32(f + i * 4));
      else st16(tile + (i * 16 + o) * 2, ld16(f + i * 2));
    }
    return;
  }
  const int inputs = file_inputs(kind), per = inputs / 32;
  const int bytes = per * block_bytes(kind) + super_bytes(kind);
  for (i64 i = 0; i < k; i += inputs, f += file_bytes(kind), tile += bytes) {
    switch (kind) {
    case Q6_K: pack_k6(f, tile, o); break;
    case Q4_K: case Q5_K: pack_k45(kind, f, tile, o); break;
    case Q2_K: pack_k2(f, tile, o); break;
    case Q3_K: pack_k3(f, tile, o); break;
    case IQ4_XS: pack_iq4_xs(f, tile, o); break;
    case MXFP4: pack_mxfp4(f, tile, o); break;
    case SCALED: pack_scaled(f, tile, o); break;
    default: pack_32(kind, f, tile, o);
    }
  }
}

INLINE void pack_tiles(int kind, const pack_t *p, int task) {
  const i64 row_bytes = p->k / file_inputs(kind) * file_bytes(kind);
  const i64 bytes = tile_bytes(kind, (int)(UP(p->k, 32) / 32));
  for (i64 t = task * p->chunk; t < MIN(p->tiles, (task + 1) * p->chunk); t++)
    for (int o = 0; o < 16; o++) {
      i64 row = t * 16 + o;
      if (p->rows) row = p->rows[row];
      if (row < 0 || row >= p->n_from) continue;  // the memory is zero, and so is the weight
      pack_row(kind, p->from + row * row_bytes, p->k, p->to + t * bytes, o);
    }
}

static void pack_task(void *arg, int task) {
  const pack_t *p = arg;
  switch (p->kind) {
#define CASE(kind) case kind: pack_tiles(kind, p, task); break;
  CASE(F32) CASE(F16) CASE(BF16) CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q8_0)
  CASE(Q4_K) CASE(Q5_K) CASE(Q6_K)
  CASE(Q2_K) CASE(Q3_K) CASE(IQ4_NL) CASE(IQ4_XS) CASE(MXFP4) CASE(SCALED)
#undef CASE
  }
}

static void pack(pack_t *p, team_t *team) {
  p->chunk = MAX(1, UP(p->tiles, 64) / 64);
  run(team, pack_task, p, (int)(UP(p->tiles, p->chunk) / p->chunk));
}
