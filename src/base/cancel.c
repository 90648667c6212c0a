#include "base/cancel.h"

err_code cancel_check(const struct cancel *c, struct err *e)
{
    return c && c->is_wanted && c->is_wanted(c->user) ? err_set(e, ERR_CANCELLED, "cancelled") : ERR_OK;
}
