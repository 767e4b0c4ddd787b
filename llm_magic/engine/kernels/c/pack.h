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
  case Q4_0: return 18;
  case Q4_1: return 20;
  case Q5_0: return 22;
  case Q5_1: return 24;
  case Q8_0: return 34;
  case Q4_K: return 144;
  case Q5_K: return 176;
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
    if (kind == Q6_K) pack_k6(f, tile, o);
    else if (per == 8) pack_k45(kind, f, tile, o);
    else pack_32(kind, f, tile, o);
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
#undef CASE
  }
}

static void pack(pack_t *p, team_t *team) {
  p->chunk = MAX(1, UP(p->tiles, 64) / 64);
  run(team, pack_task, p, (int)(UP(p->tiles, p->chunk) / p->chunk));
}
