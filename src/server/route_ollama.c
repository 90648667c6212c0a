/* The part of Ollama's interface that its clients ask before they chat. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json_text.h"
#include "server/call.h"
#include "server/routes.h"
#include "server/writer.h"

/* Clients compare this with the version of Ollama that they need, so it is not this program's version. */
static const char interface_version[] = "0.6.4";

void route_ollama_version(struct call *c)
{
    call_json(c, 200, json_pack("{s:s}", "version", interface_version));
}

/* A model's entry in a list. The digest is empty, because computing it would take reading the whole file. */
static json_t *entry(struct served_model *m, const struct model_view *view)
{
    char modified[32];
    const char *family = *view->facts.arch ? view->facts.arch : "unknown";
    format_time(m->created, modified);
    return json_pack("{s:s, s:s, s:s, s:I, s:s, s:{s:s, s:s, s:s, s:[s], s:s, s:s}}", "name", m->name, "model", m->name,
                     "modified_at", modified, "size", (json_int_t)m->size_bytes, "digest", "", "details",
                     "parent_model", "", "format", "gguf", "family", family, "families", family, "parameter_size", "",
                     "quantization_level", "");
}

/* Adds the fields of a model that is loaded. It does not expire, which is shown as a date far in the future. */
static int add_running(json_t *one, const struct model_view *view)
{
    enum { YEARS = 100, DAY_S = 24 * 60 * 60 };
    char end[32];
    format_time((int64_t)time(NULL) + (int64_t)YEARS * 365 * DAY_S, end);
    return json_object_update_new(one, json_pack("{s:s, s:I, s:I}", "expires_at", end, "size_vram", (json_int_t)0,
                                                 "context_length", (json_int_t)view->facts.n_ctx));
}

static void list(struct call *c, bool all_of_them)
{
    struct models *all = c->server->models;
    json_t *models = json_array();
    bool good = models != NULL;
    for (size_t i = 0; good && i < models_n(all); i++) {
        struct served_model *m = models_at(all, i);
        const struct model_view view = models_look(m);
        if (!all_of_them && view.state != SERVED_READY)
            continue;
        json_t *one = entry(m, &view);
        good = (all_of_them || add_running(one, &view) == 0) && json_array_append(models, one) == 0;
        json_decref(one);
    }
    call_json(c, 200, good ? json_pack("{s:O}", "models", models) : NULL);
    json_decref(models);
}

void route_ollama_tags(struct call *c)
{
    list(c, true);
}

void route_ollama_ps(struct call *c)
{
    list(c, false);
}

static err_code show(struct call *c, struct served_model *m, struct err *e)
{
    char key[128], parameters[64];
    const struct model_view view = models_look(m);
    const char *source = models_template(m), *tmpl = source ? source : "";
    snprintf(key, sizeof key, "%s.context_length", view.facts.arch);
    snprintf(parameters, sizeof parameters, "num_ctx %lld", (long long)view.facts.n_ctx);
    json_t *all = entry(m, &view);
    json_t *more = json_pack("{s:o, s:s, s:s, s:{s:s, s:I}, s:[s, s]}", "template", json_text(tmpl, strlen(tmpl)),
                             "modelfile", "", "parameters", parameters, "model_info", "general.architecture",
                             view.facts.arch, key, (json_int_t)view.facts.n_ctx, "capabilities", "completion", "tools");
    call_json(c, 200, json_unless(json_object_update_new(all, more), all));
    http_reply(c->x);
    return ERR_OK;
}

static err_code find_shown(struct call *c, struct served_model **m, struct err *e)
{
    const char *model, *name;
    TRY(call_body(c, &c->request.body, e));
    TRY(request_string(c->request.body, "", "model", &model, e));
    TRY(request_string(c->request.body, "", "name", &name, e)); /* of older clients */
    return call_find_model(c, model ? model : name, m, e);
}

void route_ollama_show(struct call *c)
{
    struct err e = {0};
    struct served_model *m;
    if (find_shown(c, &m, &e) == ERR_OK)
        call_with_model(c, m, show);
    else
        call_fail(c, &e);
}
