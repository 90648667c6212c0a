#include "cli/batch_text.h"

#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "cli/chat_prompt.h"
#include "cli/open_model.h"
#include "texts/answer.h"

/* ---- the prompt ---------------------------------------------------------------------------------------------- */

static err_code tokenize(const struct batch_text *t, const moebius_vocab *vocab, struct chat_prompt *p, struct err *e)
{
    moebius_error error;
    if (moebius_tokenize(vocab, t->request.text, t->request.n_text, true, false, &p->ids, &p->n, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    return ERR_OK;
}

static err_code copy_tokens(const struct batch_text *t, const moebius_vocab *vocab, struct chat_prompt *p,
                            struct err *e)
{
    const json_t *tokens = t->request.tokens;
    size_t n = json_array_size(tokens);
    p->ids = mem_calloc(n + 1, sizeof *p->ids);
    if (!p->ids)
        return err_nomem(e, n * sizeof *p->ids, "a prompt");
    for (p->n = 0; p->n < n; p->n++) {
        json_int_t id = json_integer_value(json_array_get(tokens, p->n));
        if (id < 0 || id >= moebius_vocab_size(vocab))
            return err_set(e, ERR_FORMAT, "token %zu is %lld: expected 0 to %d", p->n, (long long)id,
                           (int)moebius_vocab_size(vocab) - 1);
        p->ids[p->n] = (int32_t)id;
    }
    return ERR_OK;
}

static err_code read_prompt(const struct batch_text *t, const struct batch_setup *s, struct chat_prompt *p,
                            struct err *e)
{
    const moebius_vocab *vocab = moebius_engine_vocab(s->engine);
    if (t->request.tokens)
        return copy_tokens(t, vocab, p, e);
    if (!t->request.messages)
        return tokenize(t, vocab, p, e);
    if (!s->tmpl)
        return err_set(e, s->template_error->code, "%s", s->template_error->text);
    return chat_prompt_render(p, s->tmpl, vocab, t->request.messages, s->vars->vars, s->vars->n, e);
}

/* ---- the form ------------------------------------------------------------------------------------------------ */

static err_code open_grammar(struct batch_text *t, const struct batch_setup *s, struct err *e)
{
    const struct batch_request *r = &t->request;
    moebius_error error;
    size_t n = r->gbnf ? strlen(r->gbnf) : 0;
    if (!r->form)
        return ERR_OK;
    char *schema = r->schema ? json_write(r->schema, JSON_COMPACT, &n) : NULL;
    if (r->schema && !schema)
        return err_nomem(e, n, "a schema");
    t->grammars = s->grammars;
    moebius_status status = grammar_cache_take(s->grammars, r->gbnf ? MOEBIUS_GRAMMAR_GBNF : MOEBIUS_GRAMMAR_SCHEMA,
                                               r->gbnf  ? r->gbnf
                                               : schema ? schema
                                                        : "",
                                               n, r->is_lenient ? MOEBIUS_GRAMMAR_LENIENT : 0, &t->grammar, &error);
    mem_free(schema);
    if (status != MOEBIUS_OK)
        return err_set(e, status == MOEBIUS_NOMEM ? ERR_NOMEM : ERR_FORMAT, "%s: %s", r->form, error.text);
    return ERR_OK;
}

/* ---- the text ------------------------------------------------------------------------------------------------ */

static void on_part(void *user, moebius_reply_part part, const char *text, size_t n)
{
    struct batch_text *t = user;
    if (t->error.code == ERR_OK)
        (void)!bytes_add(&t->parts[part], text, n, &t->error);
}

static err_code submit(struct batch_text *t, struct texts *texts, const struct batch_setup *s,
                       const struct chat_prompt *p, void (*end)(void *user, const struct text_result *result),
                       struct err *e)
{
    const struct batch_request *r = &t->request;
    size_t n = 0;
    const char *prompt = p->rendered ? moebius_prompt_text(p->rendered, &n) : NULL;
    struct text_request request = {.ids = p->ids,
                                   .n_ids = p->n,
                                   .max_tokens = r->max_tokens,
                                   .ignore_eos = r->ignore_eos,
                                   .stops = r->stops.items,
                                   .n_stops = (size_t)r->stops.n,
                                   .n_logprob = -1,
                                   .tmpl = r->messages ? s->tmpl : NULL,
                                   .prompt = answer_prompt_end(prompt, n),
                                   .reasoning_budget = -1,
                                   .grammar = t->grammar ? t->grammar->grammar : NULL,
                                   .grammar_from = r->messages ? TEXT_GRAMMAR_FROM_CONTENT : TEXT_GRAMMAR_FROM_START,
                                   .sink = {.part = on_part, .end = end, .user = t}};
    uint64_t id;
    int64_t n_ctx;
    TRY(cli_context_size(s->model, s->engine, "the prompt", (int64_t)p->n, r->max_tokens, &n_ctx, e));
    TRY(cli_sampler_options(&t->request.sampling, &request.sampling, e));
    return texts_submit(texts, &request, &id, e);
}

err_code batch_text_submit(struct batch_text *t, struct texts *texts, const struct batch_setup *setup,
                           void (*end)(void *user, const struct text_result *result), struct err *e)
{
    struct chat_prompt p = {0};
    err_code code = read_prompt(t, setup, &p, e);
    if (code == ERR_OK)
        code = open_grammar(t, setup, e);
    if (code == ERR_OK)
        code = submit(t, texts, setup, &p, end, e);
    chat_prompt_close(&p);
    return code;
}

void batch_text_close(struct batch_text *t)
{
    for (int i = 0; i < MOEBIUS_REPLY_N; i++)
        bytes_close(&t->parts[i]);
    if (t->grammar)
        grammar_cache_give_back(t->grammars, t->grammar);
    batch_request_close(&t->request);
    mem_free(t);
}

/* ---- lines --------------------------------------------------------------------------------------------------- */

/* A value for which there is no memory is NULL; jansson's functions pass that on, and json_pack fails. */
static json_t *answer_ids(const struct text_result *r)
{
    json_t *ids = json_array();
    bool good = ids != NULL;
    for (size_t i = 0; good && i < r->n_answer; i++)
        good = json_array_append_new(ids, json_integer(r->ids[r->n_prompt + i])) == 0;
    if (good)
        return ids;
    json_decref(ids);
    return NULL;
}

static json_t *part_text(const struct batch_text *t, moebius_reply_part part)
{
    const struct bytes *b = &t->parts[part];
    return json_text(b->s ? b->s : "", b->n);
}

json_t *batch_text_answer(const struct batch_text *t, const struct text_result *result)
{
    const struct sampling_options *s = &t->request.sampling;
    json_t *answer = json_pack("{s:O, s:o, s:o, s:s, s:{s:I, s:I, s:I}}", "id", t->request.id, "text",
                               part_text(t, MOEBIUS_REPLY_CONTENT), "ids", answer_ids(result), "finish_reason",
                               result->end == TEXT_END_LENGTH ? "length" : "stop", "usage", "prompt_tokens",
                               (json_int_t)result->n_prompt, "completion_tokens", (json_int_t)result->n_answer,
                               "cached_tokens", (json_int_t)result->n_cached);
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
