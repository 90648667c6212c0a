#define _POSIX_C_SOURCE 200809L /* gmtime_r */
#include "server/call.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "base/printable.h"
#include "server/routes.h"

/* ---- replies --------------------------------------------------------------------------------------------------- */

void call_json(struct call *c, int status, json_t *value)
{
    struct http_reply *r = &c->x->reply;
    size_t n;
    char *text = value ? json_write(value, JSON_COMPACT, &n) : NULL;
    json_decref(value);
    bytes_close(&r->body);
    r->status = text ? status : 503; /* without memory there is no body, only the status */
    r->type = "application/json";
    if (text)
        r->body = (struct bytes){text, n, n + 1};
}

void call_text(struct call *c, int status, const char *type, const char *text)
{
    struct http_reply *r = &c->x->reply;
    bytes_close(&r->body);
    r->status = bytes_add_text(&r->body, text, NULL) == ERR_OK ? status : 503;
    r->type = type;
}

void call_error_as(struct call *c, int status, const struct err *e)
{
    call_json(c, status, (c->protocol ? c->protocol : &protocol_chat)->error(status, e));
    if (status == 429 || status == 503)
        c->x->reply.retry_after_s = CALL_RETRY_S;
}

void call_error(struct call *c, const struct err *e)
{
    call_error_as(c, c->error_status ? c->error_status : server_http_status(e), e);
}

void call_refuse(struct call *c, int status, const char *fmt, ...)
{
    char text[PRINTABLE_FORMAT_BYTES];
    struct err e = {0};
    va_list args;
    va_start(args, fmt);
    (void)printable_format(text, sizeof text, fmt, args);
    va_end(args);
    err_set(&e, status < 500 ? ERR_USAGE : ERR_UNSUPPORTED, "%s", text);
    call_error_as(c, status, &e);
}

err_code call_body(struct call *c, json_t **out, struct err *e)
{
    json_error_t error;
    const struct bytes *body = &c->x->body;
    *out = body->n ? json_read(body->s, body->n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error) : NULL;
    bool is_empty = body->n == 0;
    http_drop_body(c->x);
    if (is_empty)
        return err_set(e, ERR_USAGE, "the body is empty: expected a JSON object");
    if (!*out)
        return *error.text ? err_set(e, ERR_USAGE, "the body can't be read as JSON: line %d, column %d: %s", error.line,
                                     error.column, error.text)
                           : err_nomem(e, 0, "a body");
    if (json_is_object(*out))
        return ERR_OK;
    json_decref(*out);
    *out = NULL;
    return err_set(e, ERR_USAGE, "the body is no JSON object");
}

err_code call_read_request(struct call *c, struct err *e)
{
    json_t *body;
    server_request_init(&c->request);
    c->request.reasoning_budget = c->server->options->reasoning_budget;
    c->request.kept = &c->server->kept;
    TRY(call_body(c, &body, e));
    TRY(c->protocol->parse(&c->request, body, e));
    server_log_notes(c->server, c->request.notes);
    return ERR_OK;
}

/* ---- models ---------------------------------------------------------------------------------------------------- */

/* Ollama's clients append ":latest" to a name that has no other tag. */
static struct served_model *find_without_tag(struct call *c, const char *name)
{
    static const char tag[] = ":latest";
    const size_t n = strlen(name), n_tag = sizeof tag - 1;
    if (strncmp(c->x->path, "/api/", 5) != 0 || n <= n_tag || strcmp(name + n - n_tag, tag) != 0)
        return NULL;
    char *bare = mem_strdup(name);
    if (bare)
        bare[n - n_tag] = '\0';
    struct served_model *m = bare ? models_find(c->server->models, bare) : NULL;
    mem_free(bare);
    return m;
}

err_code call_find_model(struct call *c, const char *name, struct served_model **m, struct err *e)
{
    struct models *all = c->server->models;
    *m = name ? models_find(all, name) : NULL;
    if (name && !*m)
        *m = find_without_tag(c, name);
    if (name && models_n(all) > 1 && !*m) {
        c->error_status = 404;
        return err_set(e, ERR_USAGE, "model: there is no model %s: GET /v1/models lists them", name);
    }
    *m = *m ? *m : models_current(all);
    return ERR_OK;
}

void call_fail(struct call *c, const struct err *e)
{
    struct job *job = atomic_load(&c->job);
    if (job)
        job_fail(job, e);
    if (atomic_exchange(&c->has_replied, true))
        return;
    call_error(c, e);
    http_reply(c->x);
}

void call_begin_stream(struct call *c)
{
    if (atomic_exchange(&c->has_replied, true))
        return;
    c->x->reply.stream = job_take_stream(atomic_load(&c->job));
    c->x->reply.status = 200;
    c->x->reply.type = c->protocol->content_type;
    http_reply(c->x);
}

/* Runs the call's work, or reports why there is no model. */
static void work(void *user)
{
    struct call *c = user;
    struct err e = c->wait.error;
    err_code code = e.code;
    if (code == ERR_OK) {
        code = c->work(c, c->wait.model, &e);
        models_give_back(c->wait.model);
    }
    if (code != ERR_OK)
        call_fail(c, &e);
    call_release(c);
}

static void on_wait_over(void *user)
{
    struct call *c = user;
    http_do(c->server->http, &c->task);
}

void call_with_model(struct call *c, struct served_model *m, call_work_fn *fn)
{
    call_hold(c);
    c->work = fn;
    c->task = (struct http_task){.run = work, .user = c};
    c->wait = (struct model_wait){.model = m, .left = &c->left, .over = on_wait_over, .user = c};
    if (models_take(c->server->models, &c->wait))
        work(c);
}

struct call *call_open(struct server *s, struct http_exchange *x)
{
    struct call *c = mem_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->server = s;
    c->x = x;
    atomic_init(&c->n_refs, 1);
    return c;
}

void call_hold(struct call *c)
{
    atomic_fetch_add(&c->n_refs, 1);
}

void call_release(struct call *c)
{
    if (atomic_fetch_sub(&c->n_refs, 1) > 1)
        return;
    struct job *job = atomic_load(&c->job);
    job_close(&job);
    server_request_close(&c->request);
    mem_free(c);
}

/* ---- the log --------------------------------------------------------------------------------------------------- */

static void now_text(char out[24], const char *format)
{
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(out, 24, format, &tm);
}

static void print_json(struct server *s, json_t *line)
{
    char time[24];
    now_text(time, "%Y-%m-%dT%H:%M:%SZ");
    char *text =
        line && json_object_set_new(line, "time", json_string(time)) == 0 ? json_write(line, JSON_COMPACT, NULL) : NULL;
    if (text)
        s->options->print(s->options->user, text);
    mem_free(text);
    json_decref(line);
}

void server_log(struct server *s, enum log_level level, const char *fmt, ...)
{
    char text[PRINTABLE_FORMAT_BYTES], line[PRINTABLE_FORMAT_BYTES + 16];
    va_list args;
    va_start(args, fmt);
    (void)printable_format(text, sizeof text, fmt, args);
    va_end(args);
    if (s->options->log_json) {
        print_json(s, json_pack("{s:s, s:s}", "level", level == LOG_WARN ? "warning" : "info", "message", text));
        return;
    }
    snprintf(line, sizeof line, "%s%s", level == LOG_WARN ? "warning: " : "", text);
    s->options->print(s->options->user, line);
}

void server_log_notes(struct server *s, const json_t *notes)
{
    enum { MAX_NOTES = 1000 };
    for (size_t i = 0; i < json_array_size(notes); i++) {
        const char *note = json_string_value(json_array_get(notes, i));
        pthread_mutex_lock(&s->notes_lock);
        bool is_new = note && json_object_size(s->notes) < MAX_NOTES && !json_object_get(s->notes, note) &&
                      json_object_set_new(s->notes, note, json_true()) == 0;
        pthread_mutex_unlock(&s->notes_lock);
        if (is_new)
            server_log(s, LOG_INFO, "%s", note);
    }
}

static const char *state_word(const struct call *c, bool whole, const struct job_report *r)
{
    if (atomic_load(&c->left) && (!whole || r->cancelled)) /* a client that has read everything may leave */
        return "the client left";
    return r->failed ? "failed" : whole ? "" : "cut off";
}

static void print_call(struct call *c, const struct job_report *r, const char *state, double ms)
{
    const struct answer_usage *u = &r->usage;
    const struct http_exchange *x = c->x;
    char time[24], path[128], tokens[128] = "", line[512];
    now_text(time, "%Y-%m-%d %H:%M:%S");
    printable_line(x->path, strlen(x->path), path, sizeof path);
    if (u->n_prompt)
        snprintf(tokens, sizeof tokens, ", prompt %lld (%lld cached), answer %lld", (long long)u->n_prompt,
                 (long long)u->n_cached, (long long)u->n_answer);
    snprintf(line, sizeof line, "%s %s %s %d, %.0f ms%s%s%s", time, x->method, path, x->reply.status, ms, tokens,
             *state ? ", " : "", state);
    c->server->options->print(c->server->options->user, line);
}

void server_log_call(struct call *c, bool whole)
{
    const struct http_exchange *x = c->x;
    struct job *job = atomic_load(&c->job);
    const struct job_report r = job ? job_report(job) : (struct job_report){0};
    const double ms = (double)(clock_ns() - x->start_ns) / 1e6;
    const char *state = state_word(c, whole, &r);
    if (!c->server->options->log_json) {
        print_call(c, &r, state, ms);
        return;
    }
    json_t *line = json_pack("{s:s, s:o, s:o, s:i, s:f, s:s}", "level", "info", "method",
                             json_text(x->method, strlen(x->method)), "path", json_text(x->path, strlen(x->path)),
                             "status", x->reply.status, "ms", ms, "request_id", x->id);
    if (line && r.usage.n_prompt)
        (void)json_object_update_new(line,
                                     json_pack("{s:I, s:I, s:I, s:f}", "prompt_tokens", (json_int_t)r.usage.n_prompt,
                                               "cached_tokens", (json_int_t)r.usage.n_cached, "answer_tokens",
                                               (json_int_t)r.usage.n_answer, "queue_ms", r.usage.queue_s * 1e3));
    if (line && *state)
        (void)json_object_set_new(line, "state", json_string(state));
    print_json(c->server, line);
}
