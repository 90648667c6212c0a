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

/* What a request that says nothing gets, under llama.cpp's names. */
static json_t *default_params(void)
{
    struct server_request r;
    server_request_init(&r);
    const moebius_sampler_options s = r.sampling;
    json_t *params = json_pack(
        "{s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:i, s:o, s:o, s:I, s:I}",
        "temperature", json_float(s.temperature), "top_k", s.top_k, "top_p", json_float(s.top_p), "min_p",
        json_float(s.min_p), "typical_p", json_float(s.typical_p), "xtc_probability", json_float(s.xtc_probability),
        "xtc_threshold", json_float(s.xtc_threshold), "repeat_last_n", s.repeat_last_n, "repeat_penalty",
        json_float(s.repeat_penalty), "presence_penalty", json_float(s.presence_penalty), "frequency_penalty",
        json_float(s.frequency_penalty), "dry_multiplier", json_float(s.dry_multiplier), "dry_base",
        json_float(s.dry_base), "dry_allowed_length", s.dry_allowed_length, "dry_penalty_last_n", s.dry_last_n,
        "mirostat", s.mirostat, "mirostat_tau", json_float(s.mirostat_tau), "mirostat_eta", json_float(s.mirostat_eta),
        "max_tokens", (json_int_t)r.max_tokens, "n_predict", (json_int_t)r.max_tokens);
    server_request_close(&r);
    return params;
}

/* A special token's text, empty if there is none, as clients expect. */
static json_t *token_text(const moebius_vocab *vocab, int32_t id)
{
    size_t n = 0;
    const char *piece = id >= 0 ? moebius_token_piece(vocab, id, true, &n) : "";
    return json_text(piece, n);
}

/* What clients need that apply the template themselves. */
static void add_template(void *props, const struct served_model *m)
{
    const char *tmpl = models_template(m), *source = tmpl ? tmpl : "";
    json_t *more = json_pack("{s:o, s:o, s:o}", "chat_template", json_text(source, strlen(source)), "bos_token",
                             token_text(m->vocab, moebius_token_bos(m->vocab)), "eos_token",
                             token_text(m->vocab, moebius_token_eos(m->vocab)));
    json_object_update(props, more);
    json_decref(more);
}

void route_props(struct call *c)
{
    struct served_model *m = models_current(c->server->models);
    const struct model_view view = models_look(m);
    const char *slash = strrchr(m->path, '/'), *file = slash ? slash + 1 : m->path;
    json_t *props =
        json_pack("{s:{s:I, s:o}, s:I, s:s, s:o, s:s, s:b, s:b, s:b, s:b, s:{s:b, s:b, s:b}}",
                  "default_generation_settings", "n_ctx", (json_int_t)view.facts.n_ctx, "params", default_params(),
                  "total_slots", (json_int_t)c->server->options->models.texts.n_texts, "model_alias", m->name,
                  "model_path", json_text(file, strlen(file)), "build_info", moebius_version(), "is_sleeping",
                  view.state == SERVED_UNLOADED, "endpoint_slots", 1, "endpoint_metrics", 1, "endpoint_props", 0,
                  "modalities", "vision", 0, "video", 0, "audio", 0);
    (void)models_peek(m, add_template, props);
    call_json(c, 200, props);
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
