/* What a client wants done to a model: the bodies of POST /models/load and /models/unload, whose names are those of
 * llama.cpp's server. Pure; thread-safe. */
#ifndef SERVER_MODEL_CHANGE_H
#define SERVER_MODEL_CHANGE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

struct model_change {
    const char *model; /* its name; borrowed from the body */
    bool when_done;    /* of unloading: once its answers have ended */
};

/* ERR_USAGE with a sentence that names the field. Fields that are not known are passed over. */
MUST_USE err_code model_change_parse(struct model_change *out, const json_t *body, struct err *e);

#endif
