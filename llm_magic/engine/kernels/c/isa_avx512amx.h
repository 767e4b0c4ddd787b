// AVX-512 with VNNI, and AMX in bfloat16 from a dozen rows on: 16 of 64 bytes fill a tile register.
#include "isa_avx512vnni.h"

#undef MR
#define MR 16          // a panel fills the rows of a tile register
#define VR 8           // rows of a pass by vector instructions
#define TILE_ROWS 12   // from so many rows on tile registers are faster
#define TILE_PANELS 8  // panels that share the work of spreading weights
#define ROW_BYTES 128  // 32 inputs in two parts of bfloat16
#define PAGES 4        // every CPU with AMX is Intel's: see fetch_ahead; 48 KB of first level hold it
#define TASKS 1        // of a thread in decode: a hand-over between cores costs 150 ns on its mesh
#define PANEL_CACHE (3 << 19)  // three quarters of the second-level cache of every CPU with AMX

typedef u32 mu __attribute__((vector_size(4 * V)));

// Numbers of tile registers are part of the instructions: macros, not functions. Tests on CPUs
// without AMX define these themselves, by loops.
#ifndef TILE_DOT
#define TILE_REGISTERS
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, p) _tile_loadd(t, p, 64)
#define TILE_DOT(sum, rows, weights) _tile_dpbf16ps(sum, rows, weights)
#define TILE_STORE(t, p) _tile_stored(t, p, 64)

// Sums: 0 to 3, [16 rows][16 outputs] float32. Rows: 4 and 5, [16][32] bfloat16. Weights: 6 and 7,
// [16 pairs of inputs][16 outputs][2] bfloat16.
INLINE void tiles_on(void) {
  struct { u8 palette, start, none[14]; u16 row_bytes[16]; u8 rows[16]; } c
      __attribute__((aligned(64)));
  for (int i = 0; i < 14; i++) c.none[i] = 0;
  for (int i = 0; i < 16; i++) c.row_bytes[i] = i < 8 ? 64 : 0, c.rows[i] = i < 8 ? 16 : 0;
  c.palette = 1, c.start = 0;
  _tile_loadconfig(&c);
}
// A thread that keeps tiles in use has 8 KB more to save at every switch.
INLINE void tiles_off(void) { _tile_release(); }
#endif
