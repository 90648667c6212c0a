/* Answers of a model, in any protocol. */
#include <time.h>

#include "server/call.h"
#include "server/routes.h"

enum { MAX_STREAM_BYTES = 16 << 20 }; /* that may wait for a client that does not read */

/* Replies when an answer that is not streamed is complete or has failed. Runs in any thread. */
static void on_done(void *user, int status, struct bytes *body)
{
    struct call *c = user;
    c->x->reply.status = status;
    c->x->reply.type = "application/json";
    c->x->reply.retry_after_s = status == 503 ? CALL_RETRY_S : 0;
    c->x->reply.body = *body;
    *body = (struct bytes){0};
    http_reply(c->x);
}

/* Makes the call's job. Takes over the call's request. */
static err_code open_job(struct call *c, struct served_model *m, struct err *e)
{
    const struct server_options *o = c->server->options;
    const struct job_setup setup = {.model = m,
                                    .protocol = c->protocol,
                                    .request = &c->request,
                                    .vars = o->vars,
                                    .n_vars = o->n_vars,
                                    .log = &c->server->log,
                                    .group = c->group,
                                    .max_stream_bytes = MAX_STREAM_BYTES,
                                    .done = on_done,
                                    .user = c};
    struct job *job;
    TRY(job_open(&job, &setup, e));
    atomic_store(&c->job, job);
    if (atomic_load(&c->left))
        job_cancel(job);
    return ERR_OK;
}

static err_code submit(struct call *c, struct served_model *m, struct err *e)
{
    struct job *job = atomic_load(&c->job);
    TRY(job_submit(job, e));
    server_log_notes(c->server, job_notes(job));
    if (job_is_streamed(job))
        call_begin_stream(c);
    return ERR_OK;
}

/* Answers a request of Ollama's clients that only loads a model. */
static err_code say_loaded(struct call *c, struct served_model *m, struct err *e)
{
    const struct answer_head head = {.model = m->name, .created = (int64_t)time(NULL)};
    call_json(c, 200, c->protocol->whole(&c->request, &head, NULL));
    http_reply(c->x);
    return ERR_OK;
}

static err_code take_share(struct call *c, const struct server_request *r, struct err *e)
{
    struct quota *quota = &c->server->quota;
    if (c->group && quota->max && r->n_choices > quota->max)
        return err_set(e, ERR_USAGE, "n: %lld answers; expected at most %lld, as a key may have so many at once",
                       (long long)r->n_choices, (long long)quota->max);
    if (quota_enter(quota, &c->share, c->group, r->n_choices))
        return ERR_OK;
    c->error_status = 429;
    return err_set(e, ERR_LIMIT, "this key may have %lld answers at once: try again later", (long long)quota->max);
}

static err_code answer(struct call *c, struct err *e)
{
    struct served_model *m;
    TRY(call_read_request(c, e));
    TRY(take_share(c, &c->request, e));
    TRY(call_find_model(c, c->request.model, &m, e));
    const bool only_loads = c->request.only_loads;
    if (!only_loads)
        TRY(open_job(c, m, e));
    call_with_model(c, m, only_loads ? say_loaded : submit);
    return ERR_OK;
}

void route_answer(struct call *c)
{
    struct err e = {0};
    if (answer(c, &e) != ERR_OK)
        call_fail(c, &e);
}
