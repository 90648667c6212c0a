/* What a job's texts produce (texts/texts.h), turned into events of an answer (texts/answer.h). */
#include <string.h>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "server/hide_folders.h"
#include "server/job_internal.h"
#include "server/random_id.h"

/* ---- pieces of text -------------------------------------------------------------------------------------------- */

static enum answer_event_kind kind_of(moebius_reply_part part)
{
    switch (part) {
    case MOEBIUS_REPLY_REASONING: return ANSWER_REASONING;
    case MOEBIUS_REPLY_ARGUMENTS: return ANSWER_ARGUMENTS;
    default: return ANSWER_CONTENT;
    }
}

static void tell_text(struct choice *c, bool all)
{
    struct err e = {0};
    const char *text;
    size_t n;
    err_code code = whole_text_take(&c->held, all, &text, &n, &e);
    if (code != ERR_OK)
        job_break_off(c->job, &e);
    else if (n)
        job_tell(c->job,
                 &(struct answer_event){
                     .kind = kind_of(c->part), .choice = c->index, .text = text, .n = n, .call = c->n_calls - 1});
}

static void add_text(struct choice *c, moebius_reply_part part, const char *text, size_t n)
{
    struct err e = {0};
    if (part != c->part)
        tell_text(c, true);
    c->part = part;
    if (whole_text_add(&c->held, text, n, &e) != ERR_OK)
        job_break_off(c->job, &e);
    tell_text(c, false);
}

/* Begins a call. Its id is random, so that a client that sends one back can only have it from here. */
static void begin_call(struct choice *c, const char *name, size_t n)
{
    struct err e = {0};
    char id[sizeof "call_" + RANDOM_ID_BYTES] = "call_";
    if (random_id(id + 5, &e) != ERR_OK)
        job_break_off(c->job, &e);
    job_tell(c->job, &(struct answer_event){
                         .kind = ANSWER_CALL, .choice = c->index, .text = name, .n = n, .id = id, .call = c->n_calls});
    c->n_calls++;
}

static void end_call(struct choice *c)
{
    job_tell(c->job, &(struct answer_event){.kind = ANSWER_CALL_END, .choice = c->index, .call = c->n_calls - 1});
    c->has_called = true;
}

/* Ends the answer if something follows the only call that was allowed. Until then it may end by itself, with the tokens
 * that end a turn. */
static void see_enough(struct choice *c, moebius_reply_part part, const char *text, size_t n)
{
    size_t n_space = 0;
    while (n_space < n && strchr(" \t\r\n", text[n_space]))
        n_space++;
    bool says_more = part == MOEBIUS_REPLY_CALL || (part == MOEBIUS_REPLY_CONTENT && n_space < n);
    if (!c->job->request.one_call || !c->has_called || !says_more || c->has_enough)
        return;
    c->has_enough = true;
    job_cancel_text(c);
}

/* Ends an answer that has taken too long, once there is a line of it. */
static void see_time(struct choice *c, const char *text, size_t n)
{
    int64_t now_ns = clock_ns(), most_ns = c->job->request.max_answer_ms * 1000000;
    c->first_ns = c->first_ns ? c->first_ns : now_ns;
    c->has_line |= memchr(text, '\n', n) != NULL;
    if (most_ns <= 0 || !c->has_line || now_ns - c->first_ns < most_ns || c->has_enough)
        return;
    c->has_enough = true;
    job_cancel_text(c);
}

static void on_part(void *user, moebius_reply_part part, const char *text, size_t n)
{
    struct choice *c = user;
    struct job *job = c->job;
    pthread_mutex_lock(&job->lock);
    job_tell_begin(job, 0);
    see_enough(c, part, text, n);
    if (c->has_enough) {
        /* what follows the only call that was allowed is not sent */
    } else if (part == MOEBIUS_REPLY_CALL) {
        tell_text(c, true);
        begin_call(c, text, n);
    } else if (part == MOEBIUS_REPLY_CALL_END) {
        tell_text(c, true);
        end_call(c);
    } else if (part == MOEBIUS_REPLY_NOTE) {
        log_line(job->log, LOG_INFO, "answer %s: %.*s", job->head.id, (int)n, text);
    } else {
        add_text(c, part, text, n);
        see_time(c, text, n);
    }
    pthread_mutex_unlock(&job->lock);
}

/* ---- the other things that happen to a text -------------------------------------------------------------------- */

static void on_prompt(void *user, size_t n_done, size_t n_cached, size_t n_prompt)
{
    struct choice *c = user;
    pthread_mutex_lock(&c->job->lock);
    job_tell_begin(c->job, n_cached);
    if (c->job->request.return_progress && c->index == 0)
        job_tell(c->job, &(struct answer_event){.kind = ANSWER_PROGRESS,
                                                .choice = c->index,
                                                .usage.prompt_s = (double)(clock_ns() - c->job->start_ns) / 1e9,
                                                .n_done = (int64_t)n_done,
                                                .n_all = (int64_t)n_prompt,
                                                .n_cached = (int64_t)n_cached});
    pthread_mutex_unlock(&c->job->lock);
}

static struct answer_logprob named(const struct job *job, int32_t id, double logprob)
{
    struct answer_logprob l = {.id = id, .logprob = logprob};
    if (id >= 0)
        l.piece = moebius_token_piece(job->model->vocab, id, true, &l.n_piece);
    return l;
}

static void on_scored(void *user, const moebius_logprob *scores, size_t n_prompt)
{
    struct err e = {0};
    struct choice *c = user;
    int n_top = c->job->request.n_logprob;
    size_t n = n_prompt * (1 + (size_t)n_top);
    struct answer_logprob *tokens = mem_calloc(n, sizeof *tokens);
    for (size_t i = 0; tokens && i < n; i++)
        tokens[i] = named(c->job, scores[i].id, scores[i].logprob);
    pthread_mutex_lock(&c->job->lock);
    job_tell_begin(c->job, 0);
    if (tokens)
        job_tell_prompt(c, tokens, n_top);
    else
        job_break_off(c->job, (err_nomem(&e, n * sizeof *tokens, "a prompt's tokens"), &e));
    pthread_mutex_unlock(&c->job->lock);
    mem_free(tokens);
}

static void on_token(void *user, const struct text_token *token)
{
    enum { MAX_TOP = 32 };
    struct choice *c = user;
    struct answer_logprob all[1 + MAX_TOP];
    int n_top = 0;
    pthread_mutex_lock(&c->job->lock);
    job_tell_begin(c->job, 0);
    all[0] = named(c->job, token->id, token->logprob);
    for (; n_top < token->n_top && n_top < MAX_TOP && token->top[n_top].id >= 0; n_top++)
        all[1 + n_top] = named(c->job, token->top[n_top].id, token->top[n_top].logprob);
    job_tell(c->job, &(struct answer_event){.kind = ANSWER_TOKEN, .choice = c->index, .token = all, .n_top = n_top});
    pthread_mutex_unlock(&c->job->lock);
}

/* A prompt counts once, whatever the number of answers to it. */
static struct answer_usage usage_of(const struct choice *c, const struct text_result *r)
{
    return (struct answer_usage){.n_prompt = c->counts_prompt ? (int64_t)r->n_prompt : 0,
                                 .n_cached = c->counts_prompt ? (int64_t)r->n_cached : 0,
                                 .n_answer = (int64_t)r->n_answer,
                                 .n_reasoning = (int64_t)r->n_reasoning,
                                 .n_substituted = (int64_t)r->n_substituted,
                                 .n_guess = (int64_t)r->n_guess,
                                 .n_guess_right = (int64_t)r->n_guess_right,
                                 .prompt_s = (double)r->prompt_ns / 1e9,
                                 .answer_s = (double)r->answer_ns / 1e9,
                                 .queue_s = (double)r->queue_ns / 1e9};
}

static void add_usage(struct job *job, const struct answer_usage *u)
{
    job->usage.n_prompt += u->n_prompt;
    job->usage.n_cached += u->n_cached;
    job->usage.n_answer += u->n_answer;
    job->usage.n_reasoning += u->n_reasoning;
    job->usage.n_substituted += u->n_substituted;
}

static enum answer_finish finish_of(const struct choice *c, enum text_end end)
{
    switch (end) {
    case TEXT_END_STOP: return FINISH_STOP_STRING;
    case TEXT_END_LENGTH: return FINISH_LENGTH;
    case TEXT_END_CANCELLED: return c->n_calls ? FINISH_TOOL_CALLS : FINISH_LENGTH; /* it had enough */
    default: return c->n_calls ? FINISH_TOOL_CALLS : FINISH_STOP;
    }
}

/* Says whose error it is where there are several prompts. */
static void name_prompt(const struct choice *c, struct err *e)
{
    if (c->job->n_prompts > 1)
        err_prefix(e, "prompt[%zu]", (size_t)(c->prompt - c->job->prompts));
}

/* What the client got of an answer that called tools, in the form of a message of a history. */
static json_t *message_of(const struct gathered_choice *g)
{
    json_t *calls = json_array();
    bool good = calls != NULL;
    for (size_t i = 0; i < g->n_calls && good; i++) {
        const struct gathered_call *call = &g->calls[i];
        good = json_array_append_new(calls,
                                     json_pack("{s:s, s:{s:s, s:o}}", "id", call->id, "function", "name", call->name,
                                               "arguments", json_text(call->arguments.s, call->arguments.n))) == 0;
    }
    json_t *message =
        good ? json_pack("{s:o, s:O}", "content", json_text(g->content.s, g->content.n), "tool_calls", calls) : NULL;
    json_decref(calls);
    return message;
}

/* Keeps a complete answer with tool calls for when the client sends it back. Called without the lock, since it may
 * write a file, for which the threads of HTTP must not wait. */
static void keep_calls(struct choice *c, const struct text_result *r)
{
    struct err e = {0};
    if (c->n_calls == 0 || r->end != TEXT_END_TOKEN)
        return;
    json_t *message = message_of(&c->gathered);
    const struct replay_answer answer = {r->ids, r->n_prompt, r->n_answer, message};
    if (message && replay_add(c->job->model->replay, &answer, &e) != ERR_OK)
        log_line(c->job->log, LOG_WARN, "answer %s: %s", c->job->head.id, e.text);
    json_decref(message);
}

static void tell_end(struct choice *c, const struct text_result *r)
{
    struct job *job = c->job;
    struct err e = {0};
    struct answer_usage usage = usage_of(c, r);
    add_usage(job, &usage);
    if (r->end == TEXT_END_FAILED) {
        log_line(job->log, LOG_WARN, "answer %s: %s", job->head.id, r->error->text);
        e = *r->error;
        hide_folders(job->model->path, &e);
        name_prompt(c, &e);
        job_break_off(job, &e);
    } else if (r->end == TEXT_END_CANCELLED && !c->has_enough) {
        err_set(&e, ERR_CANCELLED, "the server is ending");
        job_break_off(job, &e);
    } else {
        job_tell(job, &(struct answer_event){.kind = ANSWER_END,
                                             .choice = c->index,
                                             .finish = finish_of(c, r->end),
                                             .stop = r->end == TEXT_END_STOP ? r->stop : NULL,
                                             .usage = usage});
    }
}

static void on_end(void *user, const struct text_result *result)
{
    struct choice *c = user;
    struct job *job = c->job;
    models_note_end(job->model);
    pthread_mutex_lock(&job->lock);
    job_tell_begin(job, result->n_cached);
    tell_text(c, true);
    bool is_heard = !job_is_silent(job);
    pthread_mutex_unlock(&job->lock);
    if (is_heard)
        keep_calls(c, result);
    pthread_mutex_lock(&job->lock);
    tell_end(c, result);
    c->is_open = false;
    job->n_open--;
    if (job->n_open > 0 || !job->is_submitted) {
        pthread_mutex_unlock(&job->lock);
        return;
    }
    job_finish(job);
    job_close(&job); /* the texts' reference */
}

struct text_sink job_sink(struct choice *c)
{
    const struct server_request *r = &c->job->request;
    const bool wants_tokens = r->n_logprob >= 0 || r->return_ids || r->n_given;
    return (struct text_sink){.prompt = on_prompt,
                              .scored = on_scored,
                              .token = wants_tokens ? on_token : NULL,
                              .part = on_part,
                              .end = on_end,
                              .user = c};
}
