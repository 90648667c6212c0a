/* OpenAI's completions of plain text: /v1/completions. */
#include <math.h>

#include "base/json_text.h"
#include "server/writer.h"

/* ---- the request ----------------------------------------------------------------------------------------------- */

/* The client gets n of the best_of answers to each prompt. At temperature 0 they are all the same. */
static err_code take_best_of(struct server_request *r, int64_t best_of, struct err *e)
{
    if (best_of <= r->n_choices || r->sampling.temperature == 0)
        return ERR_OK;
    if (r->stream)
        return request_expected(e, "best_of", json_object_get(r->body, "best_of"),
                                "n or less, as a stream has all the answers that are made");
    r->n_given = r->n_choices;
    r->n_choices = best_of;
    return ERR_OK;
}

static err_code parse(struct server_request *r, json_t *body, struct err *e)
{
    static const struct request_field fields[] = {
        FIELD_SETTER("prompt", request_set_prompts),
        FIELD_NUMBER("best_of", FIELD_INT64, n_given, 0, REQUEST_MAX_CHOICES), /* until take_best_of */
        FIELD_FLAG("echo", echo),
        FIELD_SETTER("response_format", request_set_response_format),
        FIELD_SETTER("suffix", request_set_suffix),
    };
    TRY(request_take_body(r, body, e));
    TRY(REQUEST_READ_FIELDS(r, "", body, fields, e));
    const int64_t best_of = r->n_given;
    r->n_given = 0;
    TRY(take_best_of(r, best_of, e));
    TRY(request_check_prompts(r, e));
    return request_check(r, e);
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

/* Characters that begin in a token, which may be a part of one. */
static int64_t count_chars(const json_t *token)
{
    const json_t *bytes = json_object_get(token, "bytes");
    int64_t n = 0;
    for (size_t i = 0; i < json_array_size(bytes); i++)
        n += (json_integer_value(json_array_get(bytes, i)) & 0xc0) != 0x80;
    return n;
}

/* Where the first token of a prompt begins in its text: before it, where the tokens say more than the text, as those
 * that the tokenizer puts in front of it do. */
static int64_t first_offset(const char *text, size_t n, const json_t *tokens)
{
    int64_t offset = 0;
    for (size_t i = 0; i < n; i++)
        offset += ((unsigned char)text[i] & 0xc0) != 0x80;
    for (size_t i = 0; i < json_array_size(tokens); i++)
        offset -= count_chars(json_array_get(tokens, i));
    return offset;
}

/* The likeliest tokens with their log-probabilities, and the token itself. Of several with the same text, as parts of
 * characters have, the likeliest counts. */
static json_t *top_of(const json_t *token)
{
    const json_t *likeliest = json_object_get(token, "top_logprobs");
    json_t *top = json_object();
    int bad = !top;
    for (size_t k = 0; k <= json_array_size(likeliest); k++) {
        const json_t *one = k < json_array_size(likeliest) ? json_array_get(likeliest, k) : token;
        const char *text = json_string_value(json_object_get(one, "token"));
        if (!json_object_get(top, text))
            bad |= json_object_set(top, text, json_object_get(one, "logprob"));
    }
    return json_unless(bad, top);
}

/* OpenAI's older form of log-probabilities: lists beside each other. *offset: where the first token begins in the
 * text, in characters; moves on. */
static json_t *list_logprobs(const json_t *tokens, int64_t *offset)
{
    json_t *texts = json_array(), *logprobs = json_array(), *tops = json_array(), *offsets = json_array();
    int bad = 0;
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const json_t *token = json_array_get(tokens, i);
        json_t *logprob = json_object_get(token, "logprob");
        bad |= json_array_append(texts, json_object_get(token, "token"));
        bad |= json_array_append(logprobs, logprob);
        bad |= json_array_append_new(tops, json_is_null(logprob) ? json_null() : top_of(token));
        bad |= json_array_append_new(offsets, json_integer(*offset > 0 ? *offset : 0));
        *offset += count_chars(token);
    }
    return json_unless(bad, json_pack("{s:o,s:o,s:o,s:o}", "tokens", texts, "token_logprobs", logprobs, "top_logprobs",
                                      tops, "text_offset", offsets));
}

/* Takes over text. `tokens` and `ids` may be NULL. */
static json_t *make_choice(const struct server_request *r, int64_t i, json_t *text, const json_t *tokens, json_t *ids,
                           int64_t *offset, const char *finish)
{
    bool has_logprobs = r->n_logprob >= 0 && json_array_size(tokens) > 0;
    json_t *one = json_pack("{s:o,s:I,s:o,s:s?}", "text", text, "index", (json_int_t)i, "logprobs",
                            has_logprobs ? list_logprobs(tokens, offset) : json_null(), "finish_reason", finish);
    bool has_ids = r->return_ids && ids;
    return json_unless(has_ids && json_object_set(one, "token_ids", ids), one);
}

static json_t *make_answer(const struct answer_head *head, json_t *choices)
{
    return json_pack("{s:o,s:s,s:I,s:s,s:o}", "id", json_sprintf("cmpl-%s", head->id), "object", "text_completion",
                     "created", (json_int_t)head->created, "model", head->model, "choices", choices);
}

/* A chunk of one choice, with the tokens that wait. Takes over `text`. */
static json_t *make_chunk(struct answer_writer *w, int64_t choice, json_t *text, const char *finish)
{
    struct told_choice *c = &w->choices[choice];
    json_t *one =
        make_choice(w->r, choice, text, c->tokens, json_array_size(c->ids) ? c->ids : NULL, &c->text_off, finish);
    int bad = json_array_clear(c->tokens);
    json_decref(c->ids);
    c->ids = json_array(); /* the choice has the other one */
    return json_unless(bad, make_answer(&w->head, json_pack("[o]", one)));
}

static err_code tell_prompt(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    struct told_choice *c = &w->choices[event->choice];
    json_t *tokens = openai_logprobs(event->token, event->n_tok, event->n_top);
    c->text_off = first_offset(event->text, event->n, tokens);
    int bad = !tokens || json_array_extend(c->tokens, tokens);
    json_decref(tokens);
    json_t *text = json_text(event->text, event->n);
    return writer_send(out, NULL, json_unless(bad, make_chunk(w, event->choice, text, NULL)), e);
}

static err_code end(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    json_t *chunk = make_chunk(w, event->choice, json_string(""), openai_finish(event->finish));
    return openai_end(w, &event->usage, chunk, out, e);
}

/* Reasoning is text like any other here; there are no calls. */
static err_code tell(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    switch (event->kind) {
    case ANSWER_PROMPT: return tell_prompt(w, event, out, e);
    case ANSWER_REASONING:
    case ANSWER_CONTENT:
        return writer_send(out, NULL, make_chunk(w, event->choice, json_text(event->text, event->n), NULL), e);
    case ANSWER_TOKEN: return writer_add_token(w, event, e);
    case ANSWER_END: return end(w, event, out, e);
    case ANSWER_FAILED: return writer_send(out, NULL, openai_error(server_http_status(event->error), event->error), e);
    case ANSWER_BEGIN:
    case ANSWER_PROGRESS:
    case ANSWER_CALL:
    case ANSWER_ARGUMENTS:
    case ANSWER_CALL_END: break;
    }
    return ERR_OK;
}

static json_t *whole_text(const struct gathered_choice *c)
{
    struct bytes all = {0};
    err_code code = bytes_add(&all, c->prompt.s, c->prompt.n, NULL);
    if (code == ERR_OK)
        code = bytes_add(&all, c->reasoning.s, c->reasoning.n, NULL);
    if (code == ERR_OK)
        code = bytes_add(&all, c->content.s, c->content.n, NULL);
    json_t *text = code == ERR_OK ? json_text(all.s, all.n) : NULL;
    bytes_close(&all);
    return text;
}

/* Of an answer's tokens. One without any comes last. */
static double mean_logprob(const struct gathered_choice *c)
{
    size_t n = json_array_size(c->logprobs);
    double sum = n ? 0 : -INFINITY;
    for (size_t i = 0; i < n; i++)
        sum += json_number_value(json_object_get(json_array_get(c->logprobs, i), "logprob"));
    return n ? sum / (double)n : sum;
}

/* Whether `a` comes before `b`, another answer to the same prompt: it is likelier, or as likely and the first. */
static bool is_better(const struct gathered_choice *a, const struct gathered_choice *b)
{
    double of_a = mean_logprob(a), of_b = mean_logprob(b);
    return of_a > of_b || (of_a == of_b && a < b);
}

/* The best of n answers that come after `last`; NULL: of all. */
static const struct gathered_choice *next_best(const struct gathered_choice *all, int64_t n,
                                               const struct gathered_choice *last)
{
    const struct gathered_choice *best = NULL;
    for (int64_t i = 0; i < n; i++)
        if ((!last || is_better(last, &all[i])) && (!best || is_better(&all[i], best)))
            best = &all[i];
    return best;
}

static json_t *whole(const struct server_request *r, const struct answer_head *head,
                     const struct gathered_choice *choices)
{
    const int64_t n_each = server_request_n_each(r), n_given = r->n_given ? r->n_given : n_each;
    const struct gathered_choice *c = NULL;
    json_t *all = json_array();
    int bad = 0;
    for (int64_t i = 0; i < server_request_n_prompts(r) * n_given; i++) {
        const struct gathered_choice *of = &choices[i / n_given * n_each]; /* the same prompt's */
        c = r->n_given ? next_best(of, n_each, i % n_given ? c : NULL) : &of[i % n_given];
        json_t *tokens = openai_logprobs(c->prompt_tokens, c->n_prompt_tok, c->n_prompt_top);
        int64_t offset = c->prompt_tokens ? first_offset(c->prompt.s, c->prompt.n, tokens) : 0;
        bad |= !tokens || (c->logprobs && json_array_extend(tokens, c->logprobs));
        bad |= json_array_append_new(
            all, make_choice(r, i, whole_text(c), tokens, c->ids, &offset, openai_finish(c->finish)));
        json_decref(tokens);
    }
    struct answer_usage usage = answer_usage_all(choices, r->n_choices);
    json_t *answer = make_answer(head, all);
    bad |= json_object_set_new(answer, "usage", openai_usage(&usage));
    bad |= json_object_set_new(answer, "timings", openai_timings(&usage));
    return json_unless(bad, answer);
}

const struct protocol protocol_completions = {.name = "completions",
                                              .content_type = "text/event-stream",
                                              .parse = parse,
                                              .error = openai_error,
                                              .open = writer_open,
                                              .event = tell,
                                              .ping = writer_ping_comment,
                                              .close = writer_close,
                                              .whole = whole};
