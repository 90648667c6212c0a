#include "places/waves.h"

void waves_enqueue(const struct waves *w, const struct tensor *slots)
{
    const struct op op = {
        .kind = OP_EXPERTS,
        .in = {[EXPERTS_X] = w->x, [EXPERTS_IDS] = w->ids, [EXPERTS_SLOTS] = *slots, [EXPERTS_WEIGHTS] = w->weights},
        .out = {w->y},
        .vec = {w->bias[EXPERT_GATE], w->bias[EXPERT_UP], w->bias[EXPERT_DOWN]},
        .slot_pool = experts_slot_pool(w->experts, w->layer),
        .experts = {w->act, w->sort_cutoff, w->tensors, w->act_limit, w->act_up_limit}};
    backend_enqueue(w->device, &op);
}

err_code waves_next(const struct waves *w, int64_t *n, struct err *e)
{
    TRY(experts_fetch_next(w->experts, w->host_slots, n, e));
    experts_backfill(w->experts);
    if (*n == 0)
        return ERR_OK;
    backend_write(w->device, &w->slots, w->host_slots);
    waves_enqueue(w, &w->slots);
    return backend_wait(w->device, backend_fence(w->device), e);
}
