/* The library's errors as those of the rooms. */
#ifndef TEXTS_LIBRARY_ERR_H
#define TEXTS_LIBRARY_ERR_H

#include "base/err.h"
#include "moebius/moebius.h"

/* Takes over a public error, whose statuses are the codes; returns its code. */
static inline err_code library_err(struct err *e, const moebius_error *from)
{
    return err_set(e, (err_code)from->status, "%s", from->text);
}

#endif
