// The one function that tinygrad's loader enters, which is the first of the object: nothing that
// emits code may stand before it. Everything else of the object is reached through `job[JOB_COMMAND]`.
//
// job:     int32 words JOB_* (generated from job.py); from JOB_HEAD on the rows of a step, from
//          JOB_PACK on a pack_t
// plan:    model_t   weights: tiles and vectors   scratch: what a step needs
// kv:      16-bit integers with a float32 unit for each vector (attention.h)
// logits:  float32 [wanted rows][vocab, padded to 32]   team: the threads

#include "vec.h"

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
  i32 *out = job + JOB_HEAD + 4 * m->max_rows;
  summarize(logits, UP(m->vocab, 32), m->vocab, rows, keep, (part_t *)(scratch + m->work),
            (float *)out, out + rows, (float *)(out + rows + rows * keep), team);
}

static void dispatch(i32 *job, void *plan, u8 *weights, u16 *kv, u8 *scratch, float *logits,
                     void *team) {
  const model_t *m = plan;
  switch (job[JOB_COMMAND]) {
  case STEP:
    step(job, m, weights, kv, scratch, logits, team);
    if (job[JOB_TOP]) outline(job, job[JOB_WANTED], job[JOB_TOP], m, scratch, logits, team);
    break;
  case UNEMBED:
    unembed(job, m, weights, kv, scratch, logits, team);
    if (job[JOB_TOP]) outline(job, job[JOB_WANTED], job[JOB_TOP], m, scratch, logits, team);
    break;
  case PACK: pack((pack_t *)(job + JOB_PACK), team); break;
  case HELP: help(team); break;
  case DISMISS: dismiss(team); break;
  }
}
