#include "base/cancel.h"

bool cancel_is_wanted(const struct cancel *c)
{
    return c && c->is_wanted && c->is_wanted(c->user);
}

err_code cancel_check(const struct cancel *c, struct err *e)
{
    return cancel_is_wanted(c) ? err_set(e, ERR_CANCELLED, "cancelled") : ERR_OK;
}
