/* Routes of the page's reports. /plan: the memory and speed that a model should have, and what it has now. /receipts:
 * what earlier runs measured. */
#include <string.h>

#include "base/free_memory.h"
#include "base/json_text.h"
#include "server/call.h"
#include "server/hide_folders.h"
#include "server/routes.h"
#include "server/writer.h"

/* ---- plans ----------------------------------------------------------------------------------------------------- */

/* With fewer tokens than these a rate says nothing. */
enum { LEAST_DECODED = 32, LEAST_PROMPT = 64 };

static json_t *known_rate(uint64_t n, uint64_t n_least, int64_t n_ns)
{
    return n >= n_least && n_ns > 0 ? json_real((double)n * 1e9 / (double)n_ns) : json_null();
}

static json_t *held_by_devices(const struct device_ledger *l)
{
    json_t *list = json_array();
    bool good = list != NULL;
    for (int i = 0; good && i < l->n; i++) {
        const struct held_bytes *h = &l->held[i];
        const char *where = strstr(h->device, "vulkan") ? "vram" : "ram";
        good = json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "device", h->device, "where",
                                                     where, "weights", (json_int_t)h->weights, "experts",
                                                     (json_int_t)h->experts, "texts", (json_int_t)h->texts,
                                                     "activations", (json_int_t)h->activations)) == 0;
    }
    return json_unless(!good, list);
}

/* What was measured, as of the last text's end; resident_bytes is of now. */
static json_t *measured(const struct model_view *view)
{
    const struct texts_stats *s = &view->stats;
    const moebius_counters *c = &view->counters;
    const uint64_t unread = c->expert_all_bytes > c->expert_bytes ? c->expert_all_bytes - c->expert_bytes : 0;
    return json_pack("{s:I, s:o, s:I, s:o, s:o, s:o}", "resident_bytes", (json_int_t)resident_memory_bytes(), "devices",
                     held_by_devices(&view->ledger), "drive_bytes", (json_int_t)unread, "decode",
                     known_rate(s->n_decoded, LEAST_DECODED, s->decode_ns), "decode_texts",
                     s->n_decode_pass ? json_real((double)(s->n_decoded - s->n_guess_right) / (double)s->n_decode_pass)
                                      : json_null(),
                     "prefill", known_rate(s->n_prompt, LEAST_PROMPT, s->prefill_ns));
}

/* If the model can't be planned for, the request still succeeds, and `error` says why. */
static json_t *plan_of(struct call *c, struct served_model *m)
{
    const struct server_reports *r = &c->server->options->reports;
    const struct model_view view = models_look(m);
    const bool is_there = view.state == SERVED_READY;
    json_t *plan = NULL;
    struct err e = {0};
    pthread_mutex_lock(&c->server->reports_lock);
    err_code code = r->plan(r->user, m->path, &plan, &e);
    pthread_mutex_unlock(&c->server->reports_lock);
    hide_folders(m->path, &e);
    return json_pack("{s:s, s:o, s:o, s:o}", "model", m->name, "plan", code == ERR_OK ? plan : json_null(), "error",
                     code == ERR_OK ? json_null() : json_text(e.text, strlen(e.text)), "now",
                     is_there ? measured(&view) : json_null());
}

/* /plan without a name is about the current model. */
void route_plan(struct call *c)
{
    struct models *all = c->server->models;
    const size_t n = strlen(c->route->path);
    const char *name = c->route->path[n - 1] == '/' ? c->x->path + n : NULL;
    struct served_model *m = name ? models_find(all, name) : models_current(all);
    if (m)
        call_json(c, 200, plan_of(c, m));
    else
        call_refuse(c, 404, "model: there is no model %s: GET /models lists them", name);
    http_reply(c->x);
}

/* ---- receipts -------------------------------------------------------------------------------------------------- */

/* The server's model that a receipt is about, by its file's name; NULL: it is about another model. */
static const struct served_model *model_of(struct models *all, const json_t *receipt)
{
    const char *file = json_string_value(json_object_get(receipt, "model"));
    for (size_t i = 0; file && i < models_n(all); i++) {
        const struct served_model *m = models_at(all, i);
        const char *slash = strrchr(m->path, '/');
        if (!strcmp(slash ? slash + 1 : m->path, file))
            return m;
    }
    return NULL;
}

/* The receipts about the server's models, under their names here. What else ran on this machine is private. */
static json_t *choose_receipts(struct models *all, const json_t *receipts)
{
    json_t *chosen = json_array();
    bool good = chosen != NULL;
    for (size_t i = 0; good && i < json_array_size(receipts); i++) {
        json_t *r = json_array_get(receipts, i);
        const struct served_model *m = model_of(all, r);
        good = !m || (json_object_set_new(r, "id", json_string(m->name)) == 0 && json_array_append(chosen, r) == 0);
    }
    return json_unless(!good, chosen);
}

void route_receipts(struct call *c)
{
    const struct server_reports *r = &c->server->options->reports;
    json_t *receipts = NULL;
    struct err e = {0};
    pthread_mutex_lock(&c->server->reports_lock);
    err_code code = r->receipts(r->user, &receipts, &e);
    pthread_mutex_unlock(&c->server->reports_lock);
    if (code == ERR_OK)
        call_json(c, 200, json_pack("{s:o}", "receipts", choose_receipts(c->server->models, receipts)));
    else
        call_error(c, &e);
    json_decref(receipts);
    http_reply(c->x);
}
