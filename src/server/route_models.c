/* Routes that list models, and load and unload them. The lists answer at once. */
#include <string.h>

#include "base/json_text.h"
#include "server/call.h"
#include "server/model_change.h"
#include "server/routes.h"
#include "server/writer.h"

/* ---- the list -------------------------------------------------------------------------------------------------- */

/* A model's status in the form of llama.cpp's server. A model that could not be loaded is "unloaded", and has failed.
 */
static json_t *status_of(const struct model_view *view)
{
    const bool is_loading = view->state == SERVED_LOADING || view->waits;
    const bool goes = view->state == SERVED_ENDING || (view->state == SERVED_READY && view->leaves);
    const char *value = goes                          ? "unloading"
                        : is_loading                  ? "loading"
                        : view->state == SERVED_READY ? "loaded"
                                                      : "unloaded";
    json_t *j = json_pack("{s:s}", "value", value);
    int bad = 0;
    if (j && view->waits)
        bad = json_object_set_new(j, "waits", json_true());
    else if (j && is_loading)
        bad = json_object_set_new(j, "progress", json_real(view->loaded_share));
    else if (j && view->state == SERVED_UNLOADED && view->error.code != ERR_OK)
        bad = json_object_update_new(
            j, json_pack("{s:b, s:o}", "failed", 1, "error", json_text(view->error.text, strlen(view->error.text))));
    return json_unless(bad, j);
}

/* A model's entry, with the fields of OpenAI's, Anthropic's, vLLM's and llama.cpp's lists. */
static json_t *describe(struct served_model *m)
{
    char created[32];
    const struct model_view view = models_look(m);
    const struct served_facts *f = &view.facts;
    format_time(m->created, created);
    json_t *j =
        json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:s, s:o, s:I, s:I}", "id", m->name, "object", "model",
                  "created", (json_int_t)m->created, "owned_by", "moebius", "type", "model", "display_name", m->name,
                  "created_at", created, "state", models_state_name(view.state), "status", status_of(&view), "size",
                  (json_int_t)m->size_bytes, "answers", (json_int_t)(view.stats.n_running + view.stats.n_waiting));
    if (j && f->n_ctx &&
        json_object_update_new(j, json_pack("{s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:s}}", "context_length",
                                            (json_int_t)f->n_ctx, "max_model_len", (json_int_t)f->n_ctx,
                                            "max_input_tokens", (json_int_t)f->n_ctx, "max_tokens",
                                            (json_int_t)f->n_ctx, "meta", "n_ctx", (json_int_t)f->n_ctx, "n_ctx_train",
                                            (json_int_t)f->n_ctx_train, "n_vocab", (json_int_t)f->n_vocab, "n_embd",
                                            (json_int_t)f->n_embd, "size", (json_int_t)m->size_bytes, "architecture",
                                            f->arch)) != 0) {
        json_decref(j);
        return NULL;
    }
    return j;
}

void route_models(struct call *c)
{
    struct models *all = c->server->models;
    size_t n = models_n(all);
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = json_array_append_new(list, describe(models_at(all, i))) == 0;
    call_json(c, 200,
              good ? json_pack("{s:s, s:O, s:b, s:s, s:s}", "object", "list", "data", list, "has_more", 0, "first_id",
                               models_at(all, 0)->name, "last_id", models_at(all, n - 1)->name)
                   : NULL);
    json_decref(list);
}

void route_model(struct call *c)
{
    const char *name = c->x->path + strlen(c->route->path);
    struct served_model *m = models_find(c->server->models, name);
    if (m)
        call_json(c, 200, describe(m));
    else
        call_refuse(c, 404, "model: there is no model %s: GET /v1/models lists them", name);
}

/* ---- loading and unloading --------------------------------------------------------------------------------------- */

typedef err_code change_fn(struct call *c, struct served_model *m, const struct model_change *change, struct err *e);

static err_code load(struct call *c, struct served_model *m, const struct model_change *change, struct err *e)
{
    return models_load(c->server->models, m, e);
}

static err_code unload(struct call *c, struct served_model *m, const struct model_change *change, struct err *e)
{
    return models_unload(c->server->models, m, change->when_done, e);
}

static err_code change_model(struct call *c, change_fn *fn, struct err *e)
{
    json_t *body;
    struct model_change change;
    TRY(call_body(c, &body, e));
    err_code code = model_change_parse(&change, body, e);
    struct served_model *m = code == ERR_OK ? models_find(c->server->models, change.model) : NULL;
    if (m) {
        code = fn(c, m, &change, e);
        c->error_status = code == ERR_LIMIT ? 409 : 0;
    } else if (code == ERR_OK) {
        c->error_status = 404;
        code = err_set(e, ERR_USAGE, "model: there is no model %s: GET /models lists them", change.model);
    }
    json_decref(body);
    return code;
}

static void change(struct call *c, change_fn *fn)
{
    struct err e = {0};
    if (c->server->options->keeps_model)
        call_refuse(c, 501, "the model stays: other processes have parts of it");
    else if (change_model(c, fn, &e) == ERR_OK)
        call_json(c, 200, json_pack("{s:b}", "success", 1));
    else
        call_error(c, &e);
    http_reply(c->x);
}

void route_models_load(struct call *c)
{
    change(c, load);
}

void route_models_unload(struct call *c)
{
    change(c, unload);
}
