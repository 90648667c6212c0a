/* Errors in the public interface's form. */
#ifndef ENGINE_STATUS_H
#define ENGINE_STATUS_H

#include "base/err.h"
#include "moebius/moebius.h"

/* Copies an internal error into the public struct, which may be NULL, and returns its status. */
moebius_status engine_status(err_code code, const struct err *e, moebius_error *out);

#endif
