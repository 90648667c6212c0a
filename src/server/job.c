#include "server/job.h"

#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "server/job_internal.h"
#include "server/random_id.h"

/* A stream sends a ping after so long a silence. It also waits so long for its model before it begins. */
static const int64_t ping_ns = 5000000000;

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
    struct text_request t = {.ids = c->prompt->ids,
                             .n_ids = c->prompt->n,
                             .max_tokens = r->max_tokens,
                             .ignore_eos = r->ignore_eos,
                             .stops = stops,
                             .n_stops = json_array_size(r->stops),
                             .sampling = r->sampling,
                             .n_logprob = r->n_given && r->n_logprob < 0 ? 0 : r->n_logprob,
                             .scores_prompt = r->echo && r->n_logprob >= 0,
                             .tmpl = r->messages ? job->model->tmpl : NULL,
                             .prompt = answer_prompt_end(c->prompt->text.s, c->prompt->text.n),
                             .tools = c->prompt->tools,
                             .reasoning_budget = r->reasoning_budget,
                             .grammar = job->grammar.kept ? job->grammar.kept->grammar : NULL,
                             .grammar_from = job->grammar.from,
                             .trigger = job->grammar.trigger,
                             .group = job->group,
                             .follows = c->index > 0,
                             .sink = job_sink(c)};
    t.sampling.seed += (uint64_t)(c->index % server_request_n_each(r)); /* a prompt is answered as if it were alone */
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
        if (job_is_silent(job) || c->has_enough)
            job_cancel_text(c);
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
        job_break_off(job, e);
        job->done = NULL;
    }
    if (job->n_open > 0) {
        pthread_mutex_unlock(&job->lock);
        return;
    }
    job_finish(job);
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
    job_cancel_texts(job);
    pthread_mutex_unlock(&job->lock);
}

bool job_tick(struct job *job, int64_t now_ns)
{
    pthread_mutex_lock(&job->lock);
    bool is_due = job->stream && !job_is_silent(job) && now_ns - job->wrote_ns > ping_ns;
    if (is_due) {
        job->protocol->ping(job->writer, &job->out);
        job_flush(job);
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
