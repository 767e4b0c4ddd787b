// The one function that tinygrad's loader enters, which is the first of the object: nothing that
// emits code may stand before it. Everything else of the object is reached through `job[0]`.
//
// job:     int32: command, sizes, then rows (model.h); or, 8-byte aligned from job + 4, a pack_t
// plan:    model_t   weights: tiles and vectors   kv: float16   scratch: what a step needs
// logits:  float32 [wanted rows][vocab, padded to 32]   team: the threads

#include "vec.h"




enum { NOTHING, STEP, PACK, HELP, DISMISS, SUMMARY };

static void dispatch(i32 *job, void *plan, u8 *weights, u16 *kv, u8 *scratch, float *logits,
                     void *team);

void llm_magic_kernel(i32 *job, void *plan, u8 *weights, u16 *kv, u8 *scratch, float *logits,
                      void *team) {
  dispatch(job, plan, weights, kv, scratch, logits, team);
}

#include "isa.h"
#include "team.h"
#include "acts.h"
#include "weights.h"
#include "matmul.h"
#include "attention.h"
#include "model.h"
#include "rows.h"
#include "heads.h"
#include "products.h"
#include "step.h"
#include "pack.h"
#include "summary.h"

// Summaries follow the rows of the job: lse, ids, values.
static void outline(i32 *job, int rows, int keep, const model_t *m, u8 *scratch,
                    const float *logits, team_t *team) {
  i32 *out = job + 16 + 4 * m->max_rows;
  summarize(logits, UP(m->vocab, 32), m->vocab, rows, keep, (part_t *)(scratch + m->work),
            (float *)out, out + rows, (float *)(out + rows + rows * keep), team);
}

static void dispatch(i32 *job, void *plan, u8 *weights, u16 *kv, u8 *scratch, float *logits,
                     void *team) {
  const model_t *m = plan;
  switch (job[0]) {
  case STEP:
    step(job, m, weights, kv, scratch, logits, team);
    if (job[3]) outline(job, job[2], job[3], m, scratch, logits, team);
    break;
  case PACK: pack((pack_t *)(job + 4), team); break;
  case HELP: help(team); break;
  case DISMISS: dismiss(team); break;
  case SUMMARY: outline(job, job[1], job[2], m, scratch, logits, team); break;
  }
}
