/* Cancellation: work that takes long asks now and then whether it should stop. */
#ifndef BASE_CANCEL_H
#define BASE_CANCEL_H

#include <stdbool.h>

#include "base/err.h"

struct cancel {
    bool (*is_wanted)(void *user); /* returns true to stop the work; NULL: the work is never stopped */
    void *user;
};

/* Whether the work should stop. `c` may be NULL. */
bool cancel_is_wanted(const struct cancel *c);

/* ERR_CANCELLED when the work should stop. `c` may be NULL. */
MUST_USE err_code cancel_check(const struct cancel *c, struct err *e);

#endif
