#include "cli/batch_text.h"

#include <string.h>

#include "base/mem.h"
#include "base/json_text.h"

/* ---- opening ------------------------------------------------------------------------------------------------- */

/* Takes the prompt's tokens, with room for more. */
static err_code take_prompt(struct batch_text *t, const int32_t *ids, size_t n, struct err *e)
{
    t->capacity = n + 64;
    t->ids = mem_calloc(t->capacity, sizeof *t->ids);
    if (!t->ids)
        return err_nomem(e, t->capacity * sizeof *t->ids, "a prompt");
    if (n)
        memcpy(t->ids, ids, n * sizeof *ids);
    t->n_ids = t->n_prompt = n;
    return ERR_OK;
}

static err_code append(struct batch_text *t, int32_t id, struct err *e)
{
    if (t->n_ids == t->capacity) {
        size_t capacity = 2 * t->capacity;
        int32_t *more = mem_resize(t->ids, capacity, sizeof *more);
        if (!more)
            return err_nomem(e, capacity * sizeof *more, "a text");
        t->ids = more;
        t->capacity = capacity;
    }
    t->ids[t->n_ids++] = id;
    return ERR_OK;
}

static err_code tokenize(struct batch_text *t, const moebius_vocab *vocab, struct err *e)
{
    moebius_error error;
    int32_t *ids;
    size_t n;
    if (moebius_tokenize(vocab, t->request.text, t->request.n_text, true, false, &ids, &n, &error) != MOEBIUS_OK)
        return cli_error(e, &error);
    err_code code = take_prompt(t, ids, n, e);
    moebius_free(ids);
    return code;
}

static err_code copy_tokens(struct batch_text *t, const moebius_vocab *vocab, struct err *e)
{
    const json_t *tokens = t->request.tokens;
    TRY(take_prompt(t, NULL, 0, e));
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        json_int_t id = json_integer_value(json_array_get(tokens, i));
        if (id < 0 || id >= moebius_vocab_size(vocab))
            return err_set(e, ERR_FORMAT, "token %zu is %lld: expected 0 to %d", i, (long long)id,
                           (int)moebius_vocab_size(vocab) - 1);
        TRY(append(t, (int32_t)id, e));
    }
    t->n_prompt = t->n_ids;
    return ERR_OK;
}

static err_code render(struct batch_text *t, const moebius_vocab *vocab, struct chat_prompt *p, struct err *e)
{
    const struct batch_setup *s = t->setup;
    if (!s->tmpl)
        return err_set(e, s->template_error->code, "%s", s->template_error->text);
    TRY(chat_prompt_render(p, s->tmpl, vocab, t->request.messages, s->vars->vars, s->vars->n, e));
    return take_prompt(t, p->ids, p->n, e);
}

static void on_text(void *user, moebius_reply_part part, const char *text, size_t n)
{
    struct batch_text *t = user;
    struct batch_bytes *b = &t->parts[part];
    if (b->capacity - b->n < n) {
        size_t capacity = 2 * (b->n + n) + 256;
        char *more = mem_resize(b->s, capacity, 1);
        t->is_short_of_memory |= !more;
        if (!more)
            return;
        b->s = more;
        b->capacity = capacity;
    }
    memcpy(b->s + b->n, text, n);
    b->n += n;
}

static err_code open_answer(struct batch_text *t, const moebius_vocab *vocab, const struct chat_prompt *p,
                            struct err *e)
{
    const struct answer_params params = {.vocab = vocab,
                                         .max_piece = t->setup->max_piece,
                                         .ignore_eos = t->request.ignore_eos,
                                         .stops = t->request.stops,
                                         .tmpl = t->request.messages ? t->setup->tmpl : NULL,
                                         .prompt = p->rendered ? moebius_prompt_text(p->rendered, NULL) : NULL,
                                         .fn = on_text,
                                         .user = t};
    return answer_open(&t->answer, &params, e);
}

/* The prompt is there: what goes on with it. */
static err_code open_rest(struct batch_text *t, struct err *e)
{
    if (t->n_prompt == 0)
        return err_set(e, ERR_USAGE, "the prompt is empty and this model has no token that begins a text");
    TRY(cli_context_size(t->setup->model, t->setup->engine, "the prompt", (int64_t)t->n_prompt, t->request.max_tokens,
                         &t->n_ctx, e));
    TRY(cli_open_sampler(&t->request.sampling, t->setup->engine, &t->sampler, e));
    for (size_t i = 0; i < t->n_prompt; i++)
        moebius_sampler_accept(t->sampler, t->ids[i]);
    if (t->request.max_tokens == 0)
        t->finish_reason = "length";
    return ERR_OK;
}

err_code batch_text_open(struct batch_text *t, const struct batch_setup *setup, struct batch_request *request,
                         struct err *e)
{
    const moebius_vocab *vocab = moebius_engine_vocab(setup->engine);
    struct chat_prompt p = {0};
    *t = (struct batch_text){.setup = setup, .request = *request};
    *request = (struct batch_request){0};
    err_code code = t->request.messages ? render(t, vocab, &p, e)
                    : t->request.tokens ? copy_tokens(t, vocab, e)
                                        : tokenize(t, vocab, e);
    if (code == ERR_OK)
        code = open_answer(t, vocab, &p, e);
    chat_prompt_close(&p);
    return code == ERR_OK ? open_rest(t, e) : code;
}

void batch_text_close(struct batch_text *t)
{
    answer_close(&t->answer);
    moebius_sampler_close(&t->sampler);
    moebius_session_close(&t->session);
    for (int i = 0; i < MOEBIUS_REPLY_N; i++)
        mem_free(t->parts[i].s);
    mem_free(t->ids);
    batch_request_close(&t->request);
    *t = (struct batch_text){0};
}

/* ---- going on ------------------------------------------------------------------------------------------------ */

size_t batch_text_n_missing(const struct batch_text *t)
{
    return t->n_ids - (size_t)moebius_session_pos(t->session);
}

/* Why the answer ends after its last token; NULL: it goes on. */
static const char *finish_reason(const struct batch_text *t, bool is_end)
{
    int64_t n_answer = (int64_t)(t->n_ids - t->n_prompt);
    bool is_full = (int64_t)t->n_ids > t->n_ctx; /* the last token would have to be computed */
    return is_end ? "stop" : n_answer == t->request.max_tokens || is_full ? "length" : NULL;
}

err_code batch_text_next(struct batch_text *t, struct err *e)
{
    const float *logits = moebius_session_logits(t->session);
    bool is_end = false;
    if (!logits) {
        moebius_session_truncate(t->session, (int64_t)t->n_ids - 1);
        return ERR_OK;
    }
    int32_t id = moebius_sampler_pick(t->sampler, logits);
    moebius_sampler_accept(t->sampler, id);
    TRY(append(t, id, e));
    TRY(answer_feed(&t->answer, id, &is_end, e));
    t->finish_reason = finish_reason(t, is_end);
    if (t->finish_reason)
        answer_finish(&t->answer);
    return t->is_short_of_memory ? err_nomem(e, t->parts[MOEBIUS_REPLY_CONTENT].n, "an answer") : ERR_OK;
}

/* ---- lines --------------------------------------------------------------------------------------------------- */

/* What can't be made for lack of memory is NULL, which jansson passes on and json_pack refuses. */
static json_t *answer_ids(const struct batch_text *t)
{
    json_t *ids = json_array();
    bool good = ids != NULL;
    for (size_t i = t->n_prompt; good && i < t->n_ids; i++)
        good = json_array_append_new(ids, json_integer(t->ids[i])) == 0;
    if (good)
        return ids;
    json_decref(ids);
    return NULL;
}

static json_t *part_text(const struct batch_text *t, moebius_reply_part part)
{
    const struct batch_bytes *b = &t->parts[part];
    return json_text(b->s ? b->s : "", b->n);
}

json_t *batch_text_answer(const struct batch_text *t)
{
    const struct sampling_options *s = &t->request.sampling;
    json_t *answer = json_pack("{s:O, s:o, s:o, s:s, s:{s:I, s:I, s:I}}", "id", t->request.id, "text",
                               part_text(t, MOEBIUS_REPLY_CONTENT), "ids", answer_ids(t), "finish_reason",
                               t->finish_reason, "usage", "prompt_tokens", (json_int_t)t->n_prompt, "completion_tokens",
                               (json_int_t)(t->n_ids - t->n_prompt), "cached_tokens", (json_int_t)t->n_cached);
    bool good = answer != NULL;
    if (good && t->parts[MOEBIUS_REPLY_REASONING].n)
        good = json_object_set_new(answer, "reasoning", part_text(t, MOEBIUS_REPLY_REASONING)) == 0;
    if (good && s->sampler.temperature > 0)
        good = json_object_set_new(answer, "seed", json_integer(s->seed)) == 0;
    if (good)
        return answer;
    json_decref(answer);
    return NULL;
}
