// The phase of attention: which task takes which rows, heads and chunks.

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
