#include "server/model_change.h"

#include <string.h>

err_code model_change_parse(struct model_change *out, const json_t *body, struct err *e)
{
    const json_t *model = json_object_get(body, "model"), *when_done = json_object_get(body, "when_done");
    *out = (struct model_change){.model = json_string_value(model), .when_done = json_is_true(when_done)};
    if (!out->model || !*out->model || strlen(out->model) != json_string_length(model))
        return err_set(e, ERR_USAGE, "model: expected a model's name, as GET /models has it");
    if (when_done && !json_is_null(when_done) && !json_is_boolean(when_done))
        return err_set(e, ERR_USAGE, "when_done: expected true or false");
    return ERR_OK;
}
