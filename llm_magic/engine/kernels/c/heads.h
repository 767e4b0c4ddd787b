// The phase of attention: which task takes which rows, heads and spans.

// Attention of an item's rows to the spans of a key head from position lo to hi - 1. after: from the
// last chunk to the one that this thread reads next, in u16; 0: none.
static void attend_item(step_t *s, const item_t *item, int kv_head, int lo, int hi, i64 after) {
  const model_t *m = s->model;
  const int D = m->head_pad, group = m->heads / m->kv_heads;
  const int per_row = MIN(group, QMAX), rows_in_tile = MAX(1, QMAX / group);
  float q[QMAX * MAX_HEAD] __attribute__((aligned(64)));
  share_t out[QMAX] __attribute__((aligned(64)));
  for (int r0 = 0; r0 < item->rows; r0 += rows_in_tile)
    for (int g0 = 0; g0 < group; g0 += per_row) {
      const int rows = MIN(rows_in_tile, item->rows - r0), heads = MIN(per_row, group - g0);
      const int vectors = rows * heads, size = attend_size(vectors);
      const int row0 = item->row + r0, head0 = kv_head * group + g0, pos = item->pos + r0;
      attend_t a = {.q = q, .cache = cache_of(s, item->slot, kv_head), .chunk = m->kv_chunk,
                    .after = after, .entries = D, .lo = MAX(lo, first_seen(s, pos)),
                    .hi = MIN(hi, pos + rows), .pos = pos, .per_row = heads, .vectors = vectors,
                    .window = s->layer->window, .softcap = m->attention_softcap, .out = out};
      if (a.lo >= a.hi) continue;  // these rows end before the spans, or begin behind them
      for (int v = 0; v < size; v++) {
        const i64 row = row0 + v / heads, head = head0 + v % heads;
        const float *from = s->qkv + row * s->qkv_wide + head * D;
        const int real = v < vectors;
        for (int d = 0; d < D; d++) q[d * size + v] = real ? from[d] * m->attention_scale : 0;
      }
      if (s->shares) {  // each span is kept, join_row finds it
        a.parts = part_of(s, row0, head0, 0), a.part = part_bytes(m);
        a.head = m->max_parts * a.part, a.row = m->heads * a.head;
      }
      attend(&a, size);
      if (!s->shares)
        for (int v = 0; v < vectors; v++) put_head(s, row0 + v / heads, head0 + v % heads, out + v);
    }
}

// Task: item x key head.
static void attend_task(void *arg, int task) {
  step_t *s = arg;
  const item_t *item = s->items + task / s->model->kv_heads;
  attend_item(s, item, task % s->model->kv_heads, 0, item->pos + item->rows, 0);
}

// Task: an equal share of all spans, one behind the other by items, key heads, positions.
static void attend_share(void *arg, int task) {
  step_t *s = arg;
  const model_t *m = s->model;
  int at = (i64)s->spans * task / s->shares, end = (i64)s->spans * (task + 1) / s->shares;
  for (const item_t *item = s->items; at < end; item++) {
    const int first = first_span(s, item), spans = spans_of(s, item), all = spans * m->kv_heads;
    // From the last chunk of a key head to the first of the next, which is read after it.
    const i64 back = (item->pos + item->rows - 1) / CHUNK - first * (SPAN / CHUNK);
    while (at < MIN(end, all)) {
      const int head = at / spans, from = at % spans, n = MIN(end - at, spans - from);
      at += n;
      const i64 after = at < MIN(end, all) ? m->kv_head - back * m->kv_chunk : 0;
      attend_item(s, item, head, (first + from) * SPAN, (first + from + n) * SPAN, after);
    }
    at = MAX(0, at - all), end -= all;
  }
}
