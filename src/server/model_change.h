/* Parses the bodies of POST /models/load and /models/unload. The fields have the names of llama.cpp's server. Has no
 * side effects; thread-safe. */
#ifndef SERVER_MODEL_CHANGE_H
#define SERVER_MODEL_CHANGE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

struct model_change {
    const char *model; /* its name; borrowed from the body */
    bool when_done;    /* unload only after the model's answers have ended */
};

/* ERR_USAGE names the field that is wrong. Unknown fields are ignored. */
MUST_USE err_code model_change_parse(struct model_change *out, const json_t *body, struct err *e);

#endif
