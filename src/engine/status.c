/* Errors in the public interface's form. */
#include "engine/status.h"

#include <stdio.h>

_Static_assert((int)MOEBIUS_CANCELLED == (int)ERR_CANCELLED && (int)MOEBIUS_LIMIT == (int)ERR_LIMIT &&
                   (int)MOEBIUS_CHECK == (int)ERR_CHECK && (int)MOEBIUS_NOMEM == (int)ERR_NOMEM,
               "public status numbers are those of err.def");
_Static_assert((int)MOEBIUS_ERROR_BYTES == (int)ERR_TEXT_BYTES, "public sentences are as long as ours");

moebius_status engine_status(err_code code, const struct err *e, moebius_error *out)
{
    if (out) {
        out->status = (moebius_status)code;
        snprintf(out->text, sizeof out->text, "%s", code == ERR_OK ? "" : e->text);
    }
    return (moebius_status)code;
}
