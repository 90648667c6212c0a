#include "engine/prompt_batch.h"

enum { BATCH_UNIT = 64, SLOT_SHARE = 2 };

int64_t prompt_batch_choose(const struct prompt_batch_facts *f, int64_t n)
{
    int64_t best = f->n_batch;
    double least = 0;
    for (int64_t n_chunk = (n + f->n_batch - 1) / f->n_batch; n_chunk > 0; n_chunk--) {
        int64_t batch = (n + n_chunk * BATCH_UNIT - 1) / (n_chunk * BATCH_UNIT) * BATCH_UNIT;
        batch = batch > f->n_batch ? batch : f->n_batch;
        double more = (double)(batch - f->n_batch) * (double)f->token_bytes;
        double missing = (double)f->expert_bytes - ((double)f->slot_bytes - more);
        double bytes = (double)n_chunk * missing + more;
        if (more * SLOT_SHARE > (double)f->slot_bytes)
            break;
        if (batch == f->n_batch || bytes < least) {
            best = batch;
            least = bytes;
        }
    }
    return best;
}
