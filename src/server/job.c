#include "server/job.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "base/random.h"
#include "server/answer_grammar.h"
#include "server/hide_folders.h"
#include "server/random_id.h"
#include "server/whole_text.h"
#include "texts/answer.h"

/* A stream sends a ping after so long a silence. It also waits so long for its model before it begins. */
static const int64_t ping_ns = 5000000000;

/* One of the answers to a request. Its address is the sink's `user`. */
struct choice {
    struct job *job;
    int64_t index;
    const struct prompt *prompt; /* one of the job's */
    bool counts_prompt;          /* the first answer to its prompt */
    uint64_t id;                 /* the text's; 0: not known yet */
    bool is_open;                /* a text was submitted and has not ended */
    moebius_reply_part part;     /* of what is held */
    struct whole_text held;      /* the beginning of a character */
    int64_t n_calls;
    bool has_called;  /* a call has ended */
    bool has_enough;  /* something followed the only call that shall be, or it has taken too long */
    bool has_line;    /* it has said the end of a line */
    int64_t first_ns; /* when it said something first; 0: nothing yet */
    struct gathered_choice gathered;
};

struct job {
    pthread_mutex_t lock; /* guards all that follows, except what job_open fills in */
    int n_refs;

    struct server_request request;
    const struct protocol *protocol;
    struct served_model *model;
    const moebius_template_var *vars;
    size_t n_vars;
    const struct log *log;
    uint64_t group;
    void (*done)(void *user, int status, struct bytes *body);
    void *user;
    struct answer_head head;
    struct prompt *prompts; /* [n_prompts], owned */
    size_t n_prompts;
    struct answer_grammar grammar;

    struct choice *choices; /* [request.n_choices] */
    size_t n_open;          /* texts that have not ended */
    bool is_submitted;      /* all texts were submitted; the job does not end before that */
    bool has_begun;
    bool is_cancelled; /* nobody reads the answer any more */
    struct err error;  /* the first error */
    struct answer_usage usage;

    struct stream *stream, *unread; /* the writer's side, and the reader's until it is taken */
    struct answer_writer *writer;
    struct bytes out;
    int64_t start_ns, wrote_ns;
};

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

/* ---- what goes out; all with the lock -------------------------------------------------------------------------- */

static void cancel_text(struct choice *c)
{
    if (c->is_open && c->id)
        texts_cancel(c->job->model->texts, c->id);
}

static void cancel_texts(struct job *job)
{
    for (int64_t i = 0; i < job->request.n_choices; i++)
        cancel_text(&job->choices[i]);
}

/* Stops the answer: running texts are cancelled, and nothing more is sent. */
static void fail(struct job *job, const struct err *e)
{
    if (job->error.code == ERR_OK)
        job->error = *e;
    cancel_texts(job);
}

static void flush(struct job *job)
{
    if (job->out.n == 0)
        return;
    job->wrote_ns = clock_ns();
    if (!stream_put(job->stream, job->out.s, job->out.n)) {
        job->is_cancelled = true;
        cancel_texts(job);
    }
    job->out.n = 0;
}

static bool is_silent(const struct job *job)
{
    return job->is_cancelled || job->error.code != ERR_OK;
}

static void tell(struct job *job, const struct answer_event *event)
{
    struct err e = {0};
    if (is_silent(job))
        return;
    err_code code = ERR_OK;
    if (!job->stream || job->prompts[0].tools) /* calls are kept (call_replay.h) */
        code = gathered_choice_add(&job->choices[event->choice].gathered, event, &e);
    if (job->stream && code == ERR_OK)
        code = job->protocol->event(job->writer, event, &job->out, &e);
    if (job->stream && code == ERR_OK)
        flush(job);
    if (code != ERR_OK)
        fail(job, &e);
}

static struct answer_event begin_event(const struct job *job, size_t n_cached)
{
    struct answer_event event = {.kind = ANSWER_BEGIN, .usage.n_cached = (int64_t)n_cached};
    for (size_t i = 0; i < job->n_prompts; i++)
        event.usage.n_prompt += (int64_t)job->prompts[i].n;
    return event;
}

/* tokens: as in ANSWER_PROMPT; NULL: none. */
static void tell_prompt(const struct choice *c, const struct answer_logprob *tokens, int n_top)
{
    const struct prompt *p = c->prompt;
    tell(c->job, &(struct answer_event){.kind = ANSWER_PROMPT,
                                        .choice = c->index,
                                        .text = p->text.s,
                                        .n = p->text.n,
                                        .token = tokens,
                                        .n_top = n_top,
                                        .n_tok = tokens ? p->n : 0});
}

static void tell_begin(struct job *job, size_t n_cached)
{
    if (job->has_begun)
        return;
    job->has_begun = true;
    const struct answer_event event = begin_event(job, n_cached);
    tell(job, &event);
    bool is_echoed = job->request.echo && job->request.n_logprob < 0; /* else with its log-probabilities */
    for (int64_t i = 0; i < job->request.n_choices && is_echoed; i++)
        tell_prompt(&job->choices[i], NULL, 0);
}

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
        fail(c->job, &e);
    else if (n)
        tell(c->job, &(struct answer_event){
                         .kind = kind_of(c->part), .choice = c->index, .text = text, .n = n, .call = c->n_calls - 1});
}

static void add_text(struct choice *c, moebius_reply_part part, const char *text, size_t n)
{
    struct err e = {0};
    if (part != c->part)
        tell_text(c, true);
    c->part = part;
    if (whole_text_add(&c->held, text, n, &e) != ERR_OK)
        fail(c->job, &e);
    tell_text(c, false);
}

/* Begins a call. Its id is random, so that a client that sends one back can only have it from here. */
static void begin_call(struct choice *c, const char *name, size_t n)
{
    struct err e = {0};
    char id[sizeof "call_" + RANDOM_ID_BYTES] = "call_";
    if (random_id(id + 5, &e) != ERR_OK)
        fail(c->job, &e);
    tell(c->job, &(struct answer_event){
                     .kind = ANSWER_CALL, .choice = c->index, .text = name, .n = n, .id = id, .call = c->n_calls});
    c->n_calls++;
}

static void end_call(struct choice *c)
{
    tell(c->job, &(struct answer_event){.kind = ANSWER_CALL_END, .choice = c->index, .call = c->n_calls - 1});
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
    cancel_text(c);
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
    cancel_text(c);
}

static void on_part(void *user, moebius_reply_part part, const char *text, size_t n)
{
    struct choice *c = user;
    struct job *job = c->job;
    pthread_mutex_lock(&job->lock);
    tell_begin(job, 0);
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
    tell_begin(c->job, n_cached);
    if (c->job->request.return_progress && c->index == 0)
        tell(c->job, &(struct answer_event){.kind = ANSWER_PROGRESS,
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
    tell_begin(c->job, 0);
    if (tokens)
        tell_prompt(c, tokens, n_top);
    else
        fail(c->job, (err_nomem(&e, n * sizeof *tokens, "a prompt's tokens"), &e));
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
    tell_begin(c->job, 0);
    all[0] = named(c->job, token->id, token->logprob);
    for (; n_top < token->n_top && n_top < MAX_TOP && token->top[n_top].id >= 0; n_top++)
        all[1 + n_top] = named(c->job, token->top[n_top].id, token->top[n_top].logprob);
    tell(c->job, &(struct answer_event){.kind = ANSWER_TOKEN, .choice = c->index, .token = all, .n_top = n_top});
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
        fail(job, &e);
    } else if (r->end == TEXT_END_CANCELLED && !c->has_enough) {
        err_set(&e, ERR_CANCELLED, "the server is ending");
        fail(job, &e);
    } else {
        tell(job, &(struct answer_event){.kind = ANSWER_END,
                                         .choice = c->index,
                                         .finish = finish_of(c, r->end),
                                         .stop = r->end == TEXT_END_STOP ? r->stop : NULL,
                                         .usage = usage});
    }
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

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
    flush(job);
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

/* Ends the job when all texts have ended. Unlocks it first, since `done` may close it. */
static void finish(struct job *job)
{
    struct bytes body = {0};
    int status = 200;
    answer_grammar_close(&job->grammar);
    if (job->stream) {
        end_stream(job);
        pthread_mutex_unlock(&job->lock);
        return;
    }
    if (!is_silent(job))
        make_whole(job, &body, &job->error);
    if (is_silent(job)) {
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

static void on_end(void *user, const struct text_result *result)
{
    struct choice *c = user;
    struct job *job = c->job;
    models_note_end(job->model);
    pthread_mutex_lock(&job->lock);
    tell_begin(job, result->n_cached);
    tell_text(c, true);
    bool is_heard = !is_silent(job);
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
    finish(job);
    job_close(&job); /* the texts' reference */
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* Some protocols' clients want to hear in the stream that a prompt is too long. */
static err_code check_length(struct job *job, size_t i, struct err *e)
{
    int64_t n = (int64_t)job->prompts[i].n, max = job->model->facts.n_ctx;
    if (n < max || (n == max && job->request.max_tokens == 0))
        return ERR_OK;
    server_set_overflow(e, n, max - 1);
    if (job->n_prompts > 1)
        err_prefix(e, "prompt[%zu]", i);
    if (!job->stream || !job->protocol->overflows_in_stream)
        return e->code;
    pthread_mutex_lock(&job->lock); /* job_tick may look at it already */
    job->error = *e;
    pthread_mutex_unlock(&job->lock);
    return ERR_OK;
}

static err_code check_biases(const struct job *job, struct err *e)
{
    const moebius_sampler_options *s = &job->request.sampling;
    const int32_t n_vocab = moebius_vocab_size(job->model->vocab);
    for (int64_t i = 0; i < s->n_logit_biases; i++)
        if (s->logit_biases[i].id >= n_vocab)
            return err_set(e, ERR_USAGE, "logit_bias: token %d; expected 0 to %d", (int)s->logit_biases[i].id,
                           (int)n_vocab - 1);
    return ERR_OK;
}

static err_code open_answers(struct job *job, const struct job_setup *setup, struct err *e)
{
    const struct server_request *r = &job->request;
    job->head.model = job->model->name;
    job->head.created = (int64_t)time(NULL);
    TRY(random_id(job->head.id, e));
    const int64_t n_each = server_request_n_each(r);
    job->n_prompts = (size_t)server_request_n_prompts(r);
    job->prompts = mem_calloc(job->n_prompts, sizeof *job->prompts);
    job->choices = mem_calloc((size_t)r->n_choices, sizeof *job->choices);
    if (!job->prompts || !job->choices)
        return err_nomem(e, (size_t)r->n_choices * sizeof *job->choices, "answers");
    for (int64_t i = 0; i < r->n_choices; i++)
        job->choices[i] = (struct choice){
            .job = job, .index = i, .prompt = &job->prompts[i / n_each], .counts_prompt = i % n_each == 0};
    if (!r->has_seed)
        TRY(random_from_system(&job->request.sampling.seed, sizeof job->request.sampling.seed, e));
    if (r->stream) {
        TRY(job->protocol->open(&job->writer, r, &job->head, e));
        TRY(stream_open(&job->stream, setup->max_stream_bytes, e));
        job->unread = job->stream;
    }
    return ERR_OK;
}

err_code job_open(struct job **out, const struct job_setup *setup, struct err *e)
{
    struct job *job = *out = mem_calloc(1, sizeof *job);
    if (!job) {
        server_request_close(setup->request);
        return err_nomem(e, sizeof *job, "an answer");
    }
    pthread_mutex_init(&job->lock, NULL);
    job->n_refs = 1;
    job->protocol = setup->protocol;
    job->model = setup->model;
    job->vars = setup->vars;
    job->n_vars = setup->n_vars;
    job->log = setup->log;
    job->group = setup->group;
    job->done = setup->done;
    job->user = setup->user;
    job->request = *setup->request;
    *setup->request = (struct server_request){0};
    job->wrote_ns = clock_ns();
    err_code code = open_answers(job, setup, e);
    if (code != ERR_OK)
        job_close(out);
    return code;
}

const json_t *job_notes(const struct job *job)
{
    return job->request.notes;
}

void job_close(struct job **out)
{
    struct job *job = *out;
    if (!job)
        return;
    *out = NULL;
    pthread_mutex_lock(&job->lock);
    bool last = --job->n_refs == 0;
    pthread_mutex_unlock(&job->lock);
    if (!last)
        return;
    for (int64_t i = 0; job->choices && i < job->request.n_choices; i++) {
        gathered_choice_close(&job->choices[i].gathered);
        whole_text_close(&job->choices[i].held);
    }
    for (size_t i = 0; job->prompts && i < job->n_prompts; i++)
        prompt_close(&job->prompts[i]);
    mem_free(job->choices);
    mem_free(job->prompts);
    if (job->writer)
        job->protocol->close(job->writer);
    stream_end(&job->stream, true);
    stream_leave(&job->unread);
    bytes_close(&job->out);
    answer_grammar_close(&job->grammar);
    server_request_close(&job->request);
    pthread_mutex_destroy(&job->lock);
    mem_free(job);
}

/* ---- submitting ------------------------------------------------------------------------------------------------ */

static err_code submit_one(struct job *job, struct choice *c, const char *const *stops, struct err *e)
{
    const struct server_request *r = &job->request;
    uint64_t id;
    struct text_request t = {
        .ids = c->prompt->ids,
        .n_ids = c->prompt->n,
        .max_tokens = r->max_tokens,
        .ignore_eos = r->ignore_eos,
        .stops = stops,
        .n_stops = json_array_size(r->stops),
        .sampling = r->sampling,
        .n_logprob = r->n_logprob,
        .scores_prompt = r->echo,
        .tmpl = r->messages ? job->model->tmpl : NULL,
        .prompt = answer_prompt_end(c->prompt->text.s, c->prompt->text.n),
        .tools = c->prompt->tools,
        .reasoning_budget = r->reasoning_budget,
        .grammar = job->grammar.kept ? job->grammar.kept->grammar : NULL,
        .grammar_from = job->grammar.from,
        .trigger = job->grammar.trigger,
        .group = job->group,
        .follows = c->index > 0,
        .sink = {.prompt = on_prompt, .scored = on_scored, .part = on_part, .end = on_end, .user = c}};
    t.sampling.seed += (uint64_t)(c->index % server_request_n_each(r)); /* a prompt is answered as if it were alone */
    if (r->n_logprob >= 0 || r->return_ids)
        t.sink.token = on_token;
    pthread_mutex_lock(&job->lock);
    c->is_open = true;
    job->n_open++;
    pthread_mutex_unlock(&job->lock);
    err_code code = texts_submit(job->model->texts, &t, &id, e);
    pthread_mutex_lock(&job->lock);
    if (code != ERR_OK) {
        c->is_open = false;
        job->n_open--;
    } else {
        c->id = id;
        if (is_silent(job) || c->has_enough)
            cancel_text(c);
    }
    pthread_mutex_unlock(&job->lock);
    return code;
}

static err_code submit_all(struct job *job, struct err *e)
{
    size_t n_stops = json_array_size(job->request.stops);
    const char **stops = mem_calloc(n_stops + 1, sizeof *stops);
    if (!stops)
        return err_nomem(e, n_stops * sizeof *stops, "stop strings");
    for (size_t i = 0; i < n_stops; i++)
        stops[i] = json_string_value(json_array_get(job->request.stops, i));
    err_code code = ERR_OK;
    for (int64_t i = 0; code == ERR_OK && i < job->request.n_choices; i++)
        code = submit_one(job, &job->choices[i], stops, e);
    mem_free(stops);
    return code;
}

/* Log-probabilities of prompts are kept until the answer is whole. */
static err_code check_scores(const struct job *job, struct err *e)
{
    enum { MAX_SCORES = 1000000 };
    const struct server_request *r = &job->request;
    int64_t n = 0;
    for (int64_t i = 0; i < r->n_choices && r->echo; i++)
        n += (int64_t)job->choices[i].prompt->n * (1 + r->n_logprob);
    if (n <= MAX_SCORES)
        return ERR_OK;
    return err_set(e, ERR_USAGE, "logprobs: %lld of the prompts' tokens and of the likeliest; expected at most %d",
                   (long long)n, MAX_SCORES);
}

static err_code make_prompts(struct job *job, struct err *e)
{
    TRY(check_biases(job, e));
    for (size_t i = 0; i < job->n_prompts; i++) {
        TRY(prompt_make(&job->prompts[i], job->model, &job->request, i, job->vars, job->n_vars, e));
        TRY(check_length(job, i, e));
    }
    TRY(check_scores(job, e));
    return answer_grammar_open(&job->grammar, job->model, &job->prompts[0], &job->request, e);
}

/* Ends submitting, which holds a reference for the texts. The last text to end gives it up or, if all have ended
 * already, this function does. e NULL: submitting succeeded. */
static void end_submission(struct job *job, const struct err *e)
{
    pthread_mutex_lock(&job->lock);
    job->is_submitted = true;
    if (e) {
        fail(job, e);
        job->done = NULL;
    }
    if (job->n_open > 0) {
        pthread_mutex_unlock(&job->lock);
        return;
    }
    finish(job);
    job_close(&job);
}

static void begin_submission(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    job->start_ns = clock_ns();
    job->n_refs++;
    pthread_mutex_unlock(&job->lock);
}

err_code job_submit(struct job *job, struct err *e)
{
    begin_submission(job);
    err_code code = make_prompts(job, e);
    if (code == ERR_OK && job->error.code == ERR_OK)
        code = submit_all(job, e);
    end_submission(job, code == ERR_OK ? NULL : e);
    return code;
}

void job_fail(struct job *job, const struct err *e)
{
    if (job->is_submitted)
        return;
    begin_submission(job);
    end_submission(job, e);
}

bool job_is_streamed(const struct job *job)
{
    return job->writer != NULL;
}

struct stream *job_take_stream(struct job *job)
{
    struct stream *s = job->unread;
    job->unread = NULL;
    return s;
}

void job_cancel(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    if (job->n_open > 0 || !job->is_submitted)
        job->is_cancelled = true;
    cancel_texts(job);
    pthread_mutex_unlock(&job->lock);
}

bool job_tick(struct job *job, int64_t now_ns)
{
    pthread_mutex_lock(&job->lock);
    bool is_due = job->stream && !is_silent(job) && now_ns - job->wrote_ns > ping_ns;
    if (is_due) {
        job->protocol->ping(job->writer, &job->out);
        flush(job);
    }
    pthread_mutex_unlock(&job->lock);
    return is_due;
}

struct job_report job_report(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    struct job_report report = {
        .usage = job->usage, .failed = job->error.code != ERR_OK, .cancelled = job->is_cancelled};
    pthread_mutex_unlock(&job->lock);
    return report;
}
