#include "texts/one_text.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"

/* Contexts are multiples of this, so that most texts need not grow what they take over. */
enum { CTX_UNIT = 512 };

/* ---- opening ------------------------------------------------------------------------------------------------- */

static err_code check_request(const struct text_request *r, const struct text_setup *s, struct err *e)
{
    int32_t n_vocab = moebius_n_vocab(s->engine);
    if (r->n_ids == 0)
        return err_set(e, ERR_USAGE, "the prompt is empty and this model has no token that begins a text");
    if (r->n_ids > (size_t)s->n_ctx)
        return err_set(e, ERR_LIMIT, "the prompt has %zu tokens, the context %lld: shorten it", r->n_ids,
                       (long long)s->n_ctx);
    for (size_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] < 0 || r->ids[i] >= n_vocab)
            return err_set(e, ERR_USAGE, "token %zu is %d: expected 0 to %d", i, (int)r->ids[i], (int)n_vocab - 1);
    if (r->max_tokens < -1 || r->reasoning_budget < -1)
        return err_set(e, ERR_USAGE, "%lld tokens of an answer, %lld of reasoning: expected -1 or more",
                       (long long)r->max_tokens, (long long)r->reasoning_budget);
    if (r->n_logprob < -1 || r->n_logprob > n_vocab)
        return err_set(e, ERR_USAGE, "log-probabilities of the likeliest %d tokens: expected -1 to %d", r->n_logprob,
                       (int)n_vocab);
    return ERR_OK;
}

static err_code copy_prompt(struct text *t, const struct text_request *r, struct err *e)
{
    enum { MORE = 64 };
    t->capacity = r->n_ids + MORE;
    t->ids = mem_calloc(t->capacity, sizeof *t->ids);
    if (!t->ids)
        return err_nomem(e, t->capacity * sizeof *t->ids, "a prompt");
    memcpy(t->ids, r->ids, r->n_ids * sizeof *t->ids);
    t->n_ids = t->n_prompt = r->n_ids;
    return ERR_OK;
}

static err_code copy_stops(struct text *t, const struct text_request *r, struct err *e)
{
    char **stops = mem_calloc(r->n_stops + 1, sizeof *stops);
    t->request.stops = (const char *const *)stops;
    t->request.n_stops = stops ? r->n_stops : 0;
    bool good = stops != NULL;
    for (size_t i = 0; i < r->n_stops && good; i++)
        good = (stops[i] = mem_strdup(r->stops[i])) != NULL;
    return good ? ERR_OK : err_nomem(e, r->n_stops * sizeof *stops, "stop strings");
}

static err_code open_sampler(struct text *t, const struct text_setup *s, struct err *e)
{
    moebius_error error;
    if (moebius_sampler_open(&t->sampler, s->engine, &t->request.sampling, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    for (size_t i = 0; i < t->n_ids; i++)
        moebius_sampler_accept(t->sampler, t->ids[i]);
    return ERR_OK;
}

static err_code open_answer(struct text *t, const struct text_setup *s, struct err *e)
{
    const struct text_request *r = &t->request;
    const struct answer_params params = {.vocab = moebius_engine_vocab(s->engine),
                                         .max_piece = s->max_piece,
                                         .ignore_eos = r->ignore_eos,
                                         .stops = r->stops,
                                         .n_stops = r->n_stops,
                                         .tmpl = r->tmpl,
                                         .prompt = r->prompt,
                                         .tools = r->tools,
                                         .fn = r->sink.part,
                                         .user = r->sink.user};
    return answer_open(&t->answer, &params, e);
}

static err_code open_text(struct text *t, const struct text_setup *s, const struct text_request *r, struct err *e)
{
    TRY(check_request(r, s, e));
    TRY(copy_prompt(t, r, e));
    TRY(copy_stops(t, r, e));
    TRY(open_sampler(t, s, e));
    TRY(constraint_open(&t->constraint, r, t->sampler, e));
    TRY(open_answer(t, s, e));
    if (r->scores_prompt && r->n_logprob >= 0)
        TRY(scores_open(&t->scores, t->ids, t->n_prompt, r->n_logprob, moebius_n_vocab(s->engine), e));
    if (r->n_logprob > 0 && !(t->top = mem_calloc((size_t)r->n_logprob, sizeof *t->top)))
        return err_nomem(e, (size_t)r->n_logprob * sizeof *t->top, "log-probabilities");
    return ERR_OK;
}

err_code text_open(struct text **out, const struct text_setup *setup, const struct text_request *request, struct err *e)
{
    struct text *t = *out = mem_calloc(1, sizeof *t);
    if (!t)
        return err_nomem(e, sizeof *t, "a text");
    t->request = *request;
    t->request.stops = NULL;
    t->n_ctx = setup->n_ctx;
    t->submit_ns = clock_ns();
    err_code code = open_text(t, setup, request, e);
    t->request.ids = NULL;
    t->request.prompt = t->request.tools = t->request.trigger = NULL;
    if (code != ERR_OK)
        text_close(out);
    return code;
}

void text_close(struct text **text)
{
    struct text *t = *text;
    if (!t)
        return;
    char **stops = (char **)t->request.stops;
    answer_close(&t->answer);
    constraint_close(&t->constraint);
    moebius_sampler_close(&t->sampler);
    moebius_session_close(&t->session);
    for (size_t i = 0; stops && stops[i]; i++)
        mem_free(stops[i]);
    mem_free(stops);
    scores_close(&t->scores);
    mem_free(t->top);
    mem_free(t->ids);
    mem_free(t);
    *text = NULL;
}

/* ---- going on ------------------------------------------------------------------------------------------------ */

int64_t text_context(const struct text *t)
{
    int64_t n_more = t->request.max_tokens, need = (int64_t)t->n_prompt + n_more;
    if (n_more < 0 || need > t->n_ctx)
        need = t->n_ctx;
    return (need + CTX_UNIT - 1) / CTX_UNIT * CTX_UNIT;
}

size_t text_n_missing(const struct text *t)
{
    return t->n_ids - (size_t)moebius_session_pos(t->session);
}

static err_code append(struct text *t, int32_t id, struct err *e)
{
    TRY(mem_grow(&t->ids, &t->capacity, t->n_ids + 1, sizeof *t->ids, "a text", e));
    t->ids[t->n_ids++] = id;
    return ERR_OK;
}

static void end(struct text *t, enum text_end why)
{
    t->has_ended = true;
    t->end = why;
}

/* Ends the text after its last token, which may end the answer, or lets it go on. */
static void see_end(struct text *t, bool is_end)
{
    bool is_full = (int64_t)t->n_ids > t->n_ctx; /* the last token would have to be computed */
    if (is_end)
        end(t, answer_stop(&t->answer) ? TEXT_END_STOP : TEXT_END_TOKEN);
    else if ((int64_t)(t->n_ids - t->n_prompt) == t->request.max_tokens || is_full)
        end(t, TEXT_END_LENGTH);
}

/* Tells of a token. logits: those that it was chosen by; NULL: there was no choice. */
static void tell_token(const struct text *t, const struct text_setup *s, int32_t id, const float *logits)
{
    struct text_token token = {.id = id};
    int n = t->request.n_logprob;
    if (!t->request.sink.token)
        return;
    if (logits && n >= 0) {
        token.logprob = moebius_logprobs(logits, moebius_n_vocab(s->engine), id, t->top, n);
        token.top = t->top;
        token.n_top = n;
    }
    t->request.sink.token(t->request.sink.user, &token);
}

/* The text's next token. */
static err_code take_token(struct text *t, const struct text_setup *s, int32_t id, const float *logits, struct err *e)
{
    bool is_end = false;
    TRY(append(t, id, e));
    moebius_sampler_accept(t->sampler, id);
    if (!t->first_ns)
        t->first_ns = clock_ns();
    tell_token(t, s, id, logits);
    TRY(constraint_note(&t->constraint, &t->answer, id, e));
    TRY(answer_feed(&t->answer, id, &is_end, e));
    t->n_reasoning += answer_is_reasoning(&t->answer);
    see_end(t, is_end);
    return ERR_OK;
}

/* ---- tokens without a choice ------------------------------------------------------------------------------------ */

/* Appends tokens that nobody chooses; takes them over. */
static err_code take_tokens(struct text *t, const struct text_setup *s, int32_t *ids, size_t n, struct err *e)
{
    err_code code = ERR_OK;
    for (size_t i = 0; i < n && code == ERR_OK && !t->has_ended; i++)
        code = take_token(t, s, ids[i], NULL, e);
    moebius_free(ids);
    return code;
}

/* Chooses the next token, and appends those that the grammar then leaves no choice about. */
static err_code choose_token(struct text *t, const struct text_setup *s, const float *logits, struct err *e)
{
    int32_t id, *ids;
    size_t n;
    TRY(constraint_pick(&t->constraint, &t->answer, logits, &id, e));
    if (id < 0) {
        end(t, TEXT_END_TOKEN);
        return ERR_OK;
    }
    TRY(take_token(t, s, id, logits, e));
    if (t->has_ended)
        return ERR_OK;
    TRY(constraint_forced(&t->constraint, &t->answer, &ids, &n, e));
    return take_tokens(t, s, ids, n, e);
}

/* ---- the end of reasoning ------------------------------------------------------------------------------------ */

static bool is_over_budget(const struct text *t)
{
    int64_t budget = t->request.reasoning_budget;
    return budget >= 0 && (int64_t)t->n_reasoning >= budget && answer_is_reasoning(&t->answer);
}

/* Appends the mark that ends the reasoning, whatever the model would have said. */
static err_code end_reasoning(struct text *t, const struct text_setup *s, struct err *e)
{
    moebius_error error;
    const char *mark;
    int32_t *ids;
    size_t n;
    moebius_reply_is_reasoning(t->answer.reply, &mark);
    t->request.reasoning_budget = -1; /* once */
    if (moebius_tokenize(moebius_engine_vocab(s->engine), mark, strlen(mark), false, true, &ids, &n, &error) !=
        MOEBIUS_OK)
        return err_adopt(e, &error);
    return take_tokens(t, s, ids, n, e);
}

static err_code go_on(struct text *t, const struct text_setup *setup, const float *logits, struct err *e)
{
    if (!is_over_budget(t))
        TRY(choose_token(t, setup, logits, e));
    return !t->has_ended && is_over_budget(t) ? end_reasoning(t, setup, e) : ERR_OK;
}

static void tell_scores(struct text *t)
{
    const struct text_sink *sink = &t->request.sink;
    if (t->scores.rows && !t->is_scored && sink->scored)
        sink->scored(sink->user, t->scores.rows, t->n_prompt);
    t->is_scored = true;
}

err_code text_next(struct text *t, const struct text_setup *setup, struct err *e)
{
    const float *logits = moebius_session_logits(t->session);
    tell_scores(t);
    if (t->request.max_tokens == 0) {
        end(t, TEXT_END_LENGTH);
        return ERR_OK;
    }
    if (!logits) {
        moebius_session_truncate(t->session, (int64_t)t->n_ids - 1);
        return ERR_OK;
    }
    return go_on(t, setup, logits, e);
}

/* ---- the prompt's log-probabilities -------------------------------------------------------------------------- */

bool text_see_scores(void *user, size_t i, const float *logits)
{
    struct text *t = user;
    if (!atomic_load(&t->is_cancelled)) /* else nobody wants them */
        scores_add(&t->scores, logits);
    return true;
}

void text_settle_scores(struct text *t)
{
    if (scores_are_missing(&t->scores) && (size_t)moebius_session_pos(t->session) >= t->scores.n)
        moebius_session_truncate(t->session, (int64_t)t->scores.n - 1);
}

/* ---- guesses ------------------------------------------------------------------------------------------------- */

bool text_see_logits(void *user, size_t i, const float *logits)
{
    struct text *t = user;
    struct text_guess *g = &t->guess;
    if (g->is_over || i != g->n_right || atomic_load(&t->is_cancelled))
        return true;
    g->code = go_on(t, g->setup, logits, &g->error);
    size_t n_new = t->n_ids - g->n_ids; /* tokens behind the one that the session lacked */
    while (g->n_right < g->n && g->n_right < n_new && t->ids[g->n_ids + g->n_right] == g->ids[1 + g->n_right])
        g->n_right++;
    g->is_over = g->code != ERR_OK || t->has_ended || n_new > g->n_right;
    return true;
}

void text_settle(struct text *t)
{
    struct text_guess *g = &t->guess;
    int64_t n_good = (int64_t)(g->n_ids + g->n_right);
    if (moebius_session_pos(t->session) > n_good)
        moebius_session_truncate(t->session, n_good);
    if (t->n_ids > g->n_ids) /* else the pass failed */
        draft_note(&t->odds, g->match, g->n_planned, g->n_right);
    t->n_guess += g->n;
    t->n_guess_right += g->n_right;
}

/* ---- telling ------------------------------------------------------------------------------------------------- */

void text_tell_prompt(struct text *t)
{
    const struct text_sink *sink = &t->request.sink;
    size_t pos = (size_t)moebius_session_pos(t->session), n = pos < t->n_prompt ? pos : t->n_prompt;
    t->n_told = n > t->n_told ? n : t->n_told; /* more, where it had to wait for memory */
    if (sink->prompt)
        sink->prompt(sink->user, t->n_told, t->n_cached, t->n_prompt);
}

void text_tell_end(struct text *t, const struct text_setup *setup)
{
    int64_t now_ns = clock_ns(), begin_ns = t->begin_ns ? t->begin_ns : now_ns;
    int64_t first_ns = t->first_ns ? t->first_ns : now_ns;
    answer_finish(&t->answer);
    constraint_close(&t->constraint); /* the grammar is borrowed until the sink knows */
    const struct text_result result = {
        .end = t->end,
        .stop = t->end == TEXT_END_STOP ? answer_stop(&t->answer) : NULL,
        .error = t->end == TEXT_END_FAILED ? &t->error : NULL,
        .ids = t->ids,
        .n_prompt = t->n_prompt,
        .n_answer = t->n_ids - t->n_prompt,
        .n_reasoning = t->n_reasoning,
        .n_cached = t->n_cached,
        .n_guess = t->n_guess,
        .n_guess_right = t->n_guess_right,
        .n_substituted =
            t->begin_ns ? moebius_engine_counters(setup->engine).n_substituted - t->n_substituted_before : 0,
        .queue_ns = begin_ns - t->submit_ns,
        .prompt_ns = first_ns - begin_ns,
        .answer_ns = now_ns - first_ns};
    t->request.sink.end(t->request.sink.user, &result);
}
