/* Routes that describe the server. Each function answers at once. */
#include <string.h>

#include "base/json_text.h"
#include "server/call.h"
#include "server/routes.h"

/* 200 if a request would be answered, even if that loads a model first. 503 while the only model is being loaded. */
void route_health(struct call *c)
{
    struct models *all = c->server->models;
    struct model_view view = models_look(models_at(all, 0));
    bool is_loading = models_n(all) == 1 && view.state == SERVED_LOADING;
    if (models_n(all) == 1 && view.error.code != ERR_OK) {
        call_error_as(c, 503, &view.error);
    } else if (is_loading) {
        call_refuse(c, 503, "the model is being loaded");
    } else {
        call_json(c, 200, json_pack("{s:s}", "status", "ok"));
    }
}

/* ---- state ----------------------------------------------------------------------------------------------------- */

void route_props(struct call *c)
{
    struct served_model *m = models_current(c->server->models);
    const struct model_view view = models_look(m);
    const char *slash = strrchr(m->path, '/'), *file = slash ? slash + 1 : m->path;
    call_json(c, 200,
              json_pack("{s:{s:I, s:{}}, s:I, s:s, s:o, s:s, s:b, s:{s:b, s:b}}", "default_generation_settings",
                        "n_ctx", (json_int_t)view.facts.n_ctx, "params", "total_slots",
                        (json_int_t)c->server->options->models.texts.n_texts, "model_alias", m->name, "model_path",
                        json_text(file, strlen(file)), "build_info", moebius_version(), "is_sleeping",
                        view.state == SERVED_UNLOADED, "modalities", "vision", 0, "audio", 0));
}

/* A slot for each text that may run at once. As texts are not bound to slots, the first ones are shown as busy. */
void route_slots(struct call *c)
{
    struct served_model *m = models_current(c->server->models);
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
