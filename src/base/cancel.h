/* Work that takes long asks now and then whether it shall stop. */
#ifndef BASE_CANCEL_H
#define BASE_CANCEL_H

#include <stdbool.h>

#include "base/err.h"

struct cancel {
    bool (*is_wanted)(void *user); /* true: stop; NULL: never */
    void *user;
};

/* Whether the work shall stop. `c` may be NULL. */
bool cancel_is_wanted(const struct cancel *c);

/* ERR_CANCELLED when the work shall stop. `c` may be NULL. */
MUST_USE err_code cancel_check(const struct cancel *c, struct err *e);

#endif
