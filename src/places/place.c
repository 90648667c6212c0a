#include "places/place.h"

void place_begin(struct place *p, const struct place_call *c)
{
    p->v->begin(p, c);
}

err_code place_finish(struct place *p, struct err *e)
{
    return p->v->finish(p, e);
}

void place_cancel(struct place *p)
{
    p->v->cancel(p);
}

err_code place_open(struct place *p, size_t spare_bytes, const struct usage *past, struct err *e)
{
    return p->v->open(p, spare_bytes, past, e);
}

void place_predict(struct place *p, int layer, const int32_t *ids, int64_t n, bool is_likely)
{
    p->v->predict(p, layer, ids, n, is_likely);
}

bool place_lend(struct place *p, int layer, int32_t expert, struct expert_bytes *out)
{
    return p->v->lend && p->v->lend(p, layer, expert, out);
}

err_code place_layer_stats(struct place *p, int layer, struct place_layer_stats *out, struct err *e)
{
    return p->v->layer_stats(p, layer, out, e);
}

err_code place_facts(struct place *p, struct place_facts *out, struct err *e)
{
    return p->v->facts(p, out, e);
}

void place_reclaim(struct place *p, size_t n_bytes)
{
    p->v->reclaim(p, n_bytes);
}

void place_forget(struct place *p)
{
    p->v->forget(p);
}

void place_close(struct place **p)
{
    if (*p)
        (*p)->v->close(*p);
    *p = NULL;
}
