/* What a job sends: events in its protocol's form, or the whole answer when all texts have ended. */
#include <string.h>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "server/job_internal.h"

/* The body of an error in a protocol's form. */
static void make_error(const struct protocol *protocol, int status, const struct err *e, struct bytes *body)
{
    size_t n;
    json_t *error = protocol->error(status, e);
    char *text = error ? json_write(error, JSON_COMPACT, &n) : NULL;
    if (text)
        *body = (struct bytes){text, n, n + 1};
    json_decref(error); /* without memory the body is empty, and the status alone shows the error */
}

/* ---- events; all with the lock --------------------------------------------------------------------------------- */

void job_cancel_text(struct choice *c)
{
    if (c->is_open && c->id)
        texts_cancel(c->job->model->texts, c->id);
}

void job_cancel_texts(struct job *job)
{
    for (int64_t i = 0; i < job->request.n_choices; i++)
        job_cancel_text(&job->choices[i]);
}

void job_break_off(struct job *job, const struct err *e)
{
    if (job->error.code == ERR_OK)
        job->error = *e;
    job_cancel_texts(job);
}

void job_flush(struct job *job)
{
    if (job->out.n == 0)
        return;
    job->wrote_ns = clock_ns();
    if (!stream_put(job->stream, job->out.s, job->out.n)) {
        job->is_cancelled = true;
        job_cancel_texts(job);
    }
    job->out.n = 0;
}

bool job_is_silent(const struct job *job)
{
    return job->is_cancelled || job->error.code != ERR_OK;
}

void job_tell(struct job *job, const struct answer_event *event)
{
    struct err e = {0};
    if (job_is_silent(job))
        return;
    err_code code = ERR_OK;
    if (!job->stream || job->prompts[0].tools) /* calls are kept (call_replay.h) */
        code = gathered_choice_add(&job->choices[event->choice].gathered, event, &e);
    if (job->stream && code == ERR_OK)
        code = job->protocol->event(job->writer, event, &job->out, &e);
    if (job->stream && code == ERR_OK)
        job_flush(job);
    if (code != ERR_OK)
        job_break_off(job, &e);
}

static struct answer_event begin_event(const struct job *job, size_t n_cached)
{
    struct answer_event event = {.kind = ANSWER_BEGIN, .usage.n_cached = (int64_t)n_cached};
    for (size_t i = 0; i < job->n_prompts; i++)
        event.usage.n_prompt += (int64_t)job->prompts[i].n;
    return event;
}

void job_tell_prompt(const struct choice *c, const struct answer_logprob *tokens, int n_top)
{
    const struct prompt *p = c->prompt;
    job_tell(c->job, &(struct answer_event){.kind = ANSWER_PROMPT,
                                            .choice = c->index,
                                            .text = p->text.s,
                                            .n = p->text.n,
                                            .token = tokens,
                                            .n_top = n_top,
                                            .n_tok = tokens ? p->n : 0});
}

void job_tell_begin(struct job *job, size_t n_cached)
{
    if (job->has_begun)
        return;
    job->has_begun = true;
    const struct answer_event event = begin_event(job, n_cached);
    job_tell(job, &event);
    bool is_echoed = job->request.echo && job->request.n_logprob < 0; /* else with its log-probabilities */
    for (int64_t i = 0; i < job->request.n_choices && is_echoed; i++)
        job_tell_prompt(&job->choices[i], NULL, 0);
}

/* ---- the end; all with the lock -------------------------------------------------------------------------------- */

/* Reports a failure in the stream, after which nothing else can be sent. */
static void tell_failure(struct job *job)
{
    struct err e = {0};
    const struct answer_event events[] = {
        begin_event(job, 0),
        {.kind = ANSWER_FAILED, .error = &job->error},
    };
    for (int i = job->has_begun; i < 2; i++)
        if (job->protocol->event(job->writer, &events[i], &job->out, &e) != ERR_OK)
            job->is_cancelled = true;
    job_flush(job);
}

static void end_stream(struct job *job)
{
    if (job->error.code != ERR_OK && !job->is_cancelled)
        tell_failure(job);
    stream_end(&job->stream, job->is_cancelled);
}

static void make_whole(struct job *job, struct bytes *body, struct err *e)
{
    size_t n = 0;
    struct gathered_choice *all = mem_calloc((size_t)job->request.n_choices, sizeof *all);
    for (int64_t i = 0; all && i < job->request.n_choices; i++)
        all[i] = job->choices[i].gathered; /* borrowed: the choices own the contents */
    json_t *answer = all ? job->protocol->whole(&job->request, &job->head, all) : NULL;
    char *text = answer ? json_write(answer, JSON_COMPACT, &n) : NULL;
    if (text)
        *body = (struct bytes){text, n, n + 1};
    else
        err_nomem(e, n, "an answer");
    json_decref(answer);
    mem_free(all);
}

void job_finish(struct job *job)
{
    struct bytes body = {0};
    int status = 200;
    answer_grammar_close(&job->grammar);
    if (job->stream) {
        end_stream(job);
        pthread_mutex_unlock(&job->lock);
        return;
    }
    if (!job_is_silent(job))
        make_whole(job, &body, &job->error);
    if (job_is_silent(job)) {
        struct err e = job->error;
        if (job->is_cancelled)
            err_set(&e, ERR_CANCELLED, "the client has left");
        status = job->is_cancelled ? STATUS_CLIENT_LEFT : server_http_status(&e);
        make_error(job->protocol, status, &e, &body);
    }
    void (*done)(void *user, int status, struct bytes *body) = job->done;
    pthread_mutex_unlock(&job->lock);
    if (done)
        done(job->user, status, &body);
    bytes_close(&body);
}
