/* What the server says of itself and its models. Each function answers at once. */
#include <string.h>

#include "server/call.h"
#include "server/routes.h"
#include "server/writer.h"

/* 200 when a request would be answered, which also loads what is unloaded; 503 while the only model is loaded. */
void route_health(struct call *c)
{
    struct models *all = c->server->models;
    struct model_view view = models_look(models_at(all, 0));
    bool is_loading = models_n(all) == 1 && view.state == MODEL_LOADING;
    if (models_n(all) == 1 && view.error.code != ERR_OK) {
        call_error_as(c, 503, &view.error);
    } else if (is_loading) {
        call_refuse(c, 503, "the model is being loaded");
    } else {
        call_json(c, 200, json_pack("{s:s}", "status", "ok"));
    }
}

/* ---- models ---------------------------------------------------------------------------------------------------- */

/* With the names of OpenAI's, Anthropic's, vLLM's and llama.cpp's lists. */
static json_t *describe(struct model *m)
{
    char created[32];
    const struct model_view view = models_look(m);
    const struct model_facts *f = &view.facts;
    format_time(m->created, created);
    json_t *j = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:s}", "id", m->name, "object", "model", "created",
                          (json_int_t)m->created, "owned_by", "moebius", "type", "model", "display_name", m->name,
                          "created_at", created, "state", models_state_name(view.state));
    if (j && f->n_ctx &&
        json_object_update_new(j, json_pack("{s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:s}}", "context_length",
                                            (json_int_t)f->n_ctx, "max_model_len", (json_int_t)f->n_ctx, "meta",
                                            "n_ctx", (json_int_t)f->n_ctx, "n_ctx_train", (json_int_t)f->n_ctx_train,
                                            "n_vocab", (json_int_t)f->n_vocab, "n_embd", (json_int_t)f->n_embd, "size",
                                            (json_int_t)m->size_bytes, "architecture", f->arch)) != 0) {
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
    struct model *m = models_find(c->server->models, name);
    if (m)
        call_json(c, 200, describe(m));
    else
        call_refuse(c, 404, "model: there is no model %s: GET /v1/models lists them", name);
}

/* ---- state ----------------------------------------------------------------------------------------------------- */

void route_props(struct call *c)
{
    struct model *m = models_current(c->server->models);
    const struct model_view view = models_look(m);
    const char *slash = strrchr(m->path, '/');
    call_json(c, 200,
              json_pack("{s:{s:I, s:{}}, s:I, s:s, s:s, s:s, s:b, s:{s:b, s:b}}", "default_generation_settings",
                        "n_ctx", (json_int_t)view.facts.n_ctx, "params", "total_slots",
                        (json_int_t)c->server->options->models.texts.n_texts, "model_alias", m->name, "model_path",
                        slash ? slash + 1 : m->path, "build_info", moebius_version(), "is_sleeping",
                        view.state == MODEL_UNLOADED, "modalities", "vision", 0, "audio", 0));
}

/* Texts that may run at once, the first of which are busy: a place belongs to no text. */
void route_slots(struct call *c)
{
    struct model *m = models_current(c->server->models);
    const struct model_view view = models_look(m);
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < c->server->options->models.texts.n_texts; i++)
        good = json_array_append_new(list,
                                     json_pack("{s:I, s:b, s:I}", "id", (json_int_t)i, "is_processing",
                                               i < view.stats.n_running, "n_ctx", (json_int_t)view.facts.n_ctx)) == 0;
    call_json(c, 200, good ? json_incref(list) : NULL);
    json_decref(list);
}

void route_metrics(struct call *c)
{
    struct bytes text = {0};
    struct err e = {0};
    if (metrics_write(c->server, &text, &e) == ERR_OK)
        call_text(c, 200, "text/plain; version=0.0.4; charset=utf-8", text.s);
    else
        call_error_as(c, 503, &e);
    bytes_close(&text);
}

void route_embeddings(struct call *c)
{
    call_refuse(c, 501, "this server has no embeddings: its models continue text");
    http_reply(c->x);
}
