#include "server/writer.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/json_text.h"
#include "base/mem.h"

err_code writer_open(struct answer_writer **out, const struct server_request *r, const struct answer_head *head,
                     struct err *e)
{
    struct answer_writer *w = mem_calloc(1, sizeof *w);
    *out = w;
    if (!w)
        return err_nomem(e, sizeof *w, "a stream");
    w->r = r;
    w->head = *head;
    w->choices = mem_calloc((size_t)r->n_choices, sizeof *w->choices);
    w->output = json_array();
    bool good = w->choices && w->output;
    for (int64_t i = 0; good && i < r->n_choices; i++) {
        w->choices[i].tokens = json_array();
        w->choices[i].ids = json_array();
        good = w->choices[i].tokens && w->choices[i].ids;
    }
    if (good)
        return ERR_OK;
    writer_close(w);
    *out = NULL;
    return err_nomem(e, 0, "a stream");
}

void writer_close(struct answer_writer *w)
{
    if (!w)
        return;
    for (int64_t i = 0; w->choices && i < w->r->n_choices; i++) {
        open_call_close(&w->choices[i].call);
        json_decref(w->choices[i].tokens);
        json_decref(w->choices[i].ids);
    }
    mem_free(w->choices);
    json_decref(w->output);
    bytes_close(&w->text);
    mem_free(w);
}

err_code writer_send(struct bytes *out, const char *name, json_t *data, struct err *e)
{
    size_t n, n_before = out->n;
    char *text = data ? json_write(data, JSON_COMPACT, &n) : NULL;
    err_code code = text ? ERR_OK : err_nomem(e, 0, "an event");
    json_decref(data);
    if (code == ERR_OK && name)
        code = bytes_print(out, e, "event: %s\n", name);
    if (code == ERR_OK)
        code = bytes_add_text(out, "data: ", e);
    if (code == ERR_OK)
        code = bytes_add(out, text, n, e);
    if (code == ERR_OK)
        code = bytes_add_text(out, "\n\n", e);
    if (code != ERR_OK)
        out->n = n_before; /* no half events */
    mem_free(text);
    return code;
}

void writer_ping_comment(struct answer_writer *w, struct bytes *out)
{
    err_code unsent = bytes_add_text(out, ": ping\n\n", NULL);
    (void)unsent; /* one less where memory is short */
}

err_code writer_add_token(struct answer_writer *w, const struct answer_event *event, struct err *e)
{
    struct told_choice *c = &w->choices[event->choice];
    int bad = 0;
    if (w->r->n_logprob >= 0)
        bad |= json_array_append_new(c->tokens, openai_logprob(event->token, event->n_top));
    if (w->r->return_ids)
        bad |= json_array_append_new(c->ids, json_integer(event->token->id));
    return bad ? err_nomem(e, 0, "a token") : ERR_OK;
}

json_t *json_unless(int bad, json_t *value)
{
    if (!bad)
        return value;
    json_decref(value);
    return NULL;
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

err_code open_call_begin(struct open_call *call, const struct answer_event *event, struct err *e)
{
    open_call_close(call);
    call->is_open = true;
    call->id = mem_strdup(event->id ? event->id : "");
    call->name = mem_alloc(event->n + 1);
    if (!call->id || !call->name)
        return err_nomem(e, event->n, "a call");
    memcpy(call->name, event->text, event->n);
    call->name[event->n] = '\0';
    return ERR_OK;
}

err_code open_call_add(struct open_call *call, const struct answer_event *event, struct err *e)
{
    return bytes_add(&call->arguments, event->text, event->n, e);
}

void open_call_close(struct open_call *call)
{
    mem_free(call->id);
    mem_free(call->name);
    bytes_close(&call->arguments);
    *call = (struct open_call){0};
}

/* ---- usage ----------------------------------------------------------------------------------------------------- */

void answer_usage_add(struct answer_usage *all, const struct answer_usage *one)
{
    all->n_prompt += one->n_prompt;
    all->n_cached += one->n_cached;
    all->n_answer += one->n_answer;
    all->n_reasoning += one->n_reasoning;
    all->n_substituted += one->n_substituted;
    all->n_guess += one->n_guess;
    all->n_guess_right += one->n_guess_right;
    all->prompt_s = fmax(all->prompt_s, one->prompt_s); /* they run beside each other */
    all->answer_s = fmax(all->answer_s, one->answer_s);
    all->queue_s = fmax(all->queue_s, one->queue_s);
}

struct answer_usage answer_usage_all(const struct gathered_choice *choices, int64_t n)
{
    struct answer_usage all = {0};
    for (int64_t i = 0; i < n; i++)
        answer_usage_add(&all, &choices[i].usage);
    return all;
}

json_t *usage_with_substitutes(json_t *usage, const struct answer_usage *u)
{
    bool has_some = u->n_substituted > 0;
    return json_unless(has_some && json_object_set_new(usage, "substituted_experts", json_integer(u->n_substituted)),
                       usage);
}

json_t *openai_usage(const struct answer_usage *u)
{
    json_t *usage =
        json_pack("{s:I,s:I,s:I,s:{s:I},s:{s:I}}", "prompt_tokens", (json_int_t)u->n_prompt, "completion_tokens",
                  (json_int_t)u->n_answer, "total_tokens", (json_int_t)(u->n_prompt + u->n_answer),
                  "prompt_tokens_details", "cached_tokens", (json_int_t)u->n_cached, "completion_tokens_details",
                  "reasoning_tokens", (json_int_t)u->n_reasoning);
    return usage_with_substitutes(usage, u);
}

json_t *openai_timings(const struct answer_usage *u)
{
    int64_t n_computed = u->n_prompt - u->n_cached;
    json_t *timings = json_pack("{s:I,s:I,s:f,s:f,s:I,s:f,s:f}", "cache_n", (json_int_t)u->n_cached, "prompt_n",
                                (json_int_t)n_computed, "prompt_ms", 1e3 * u->prompt_s, "prompt_per_second",
                                u->prompt_s > 0 ? (double)n_computed / u->prompt_s : 0.0, "predicted_n",
                                (json_int_t)u->n_answer, "predicted_ms", 1e3 * u->answer_s, "predicted_per_second",
                                u->answer_s > 0 ? (double)u->n_answer / u->answer_s : 0.0);
    int bad = 0;
    if (u->n_guess > 0) {
        bad |= json_object_set_new(timings, "draft_n", json_integer(u->n_guess));
        bad |= json_object_set_new(timings, "draft_n_accepted", json_integer(u->n_guess_right));
    }
    return json_unless(bad, timings);
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

/* JSON has no infinity; OpenAI stands -9999 for it. */
static json_t *number_of(double logprob)
{
    return isnan(logprob) ? json_null() : json_real(fmax(logprob, -9999));
}

json_t *writer_byte_list(const char *bytes, size_t n)
{
    json_t *list = json_array();
    int bad = !list;
    for (size_t i = 0; i < n; i++)
        bad |= json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return json_unless(bad, list);
}

static json_t *one_logprob(const struct answer_logprob *token)
{
    return json_pack("{s:o,s:o,s:o}", "token", json_text(token->piece, token->n_piece), "logprob",
                     number_of(token->logprob), "bytes", writer_byte_list(token->piece, token->n_piece));
}

json_t *openai_logprob(const struct answer_logprob *token, int n_top)
{
    json_t *all = one_logprob(token), *top = json_array();
    int bad = 0;
    for (int i = 1; i <= n_top; i++)
        bad |= token[i].id < 0 ? 0 : json_array_append_new(top, one_logprob(&token[i]));
    bad |= json_object_set_new(all, "top_logprobs", top);
    return json_unless(bad, all);
}

json_t *openai_logprobs(const struct answer_logprob *tokens, size_t n_tok, int n_top)
{
    json_t *list = json_array();
    int bad = !list;
    for (size_t i = 0; i < n_tok && !bad; i++)
        bad |= json_array_append_new(list, openai_logprob(tokens + i * (1 + (size_t)n_top), n_top));
    return json_unless(bad, list);
}

const char *openai_finish(enum answer_finish finish)
{
    static const char *const words[] = {[FINISH_STOP] = "stop",
                                        [FINISH_STOP_STRING] = "stop",
                                        [FINISH_LENGTH] = "length",
                                        [FINISH_TOOL_CALLS] = "tool_calls"};
    return words[finish];
}

/* A chunk like another one, with the usage in place of choices. */
static json_t *usage_chunk(json_t *like, const struct answer_usage *usage)
{
    json_t *chunk = json_copy(like);
    int bad = json_object_set_new(chunk, "choices", json_array());
    bad |= json_object_set_new(chunk, "usage", openai_usage(usage));
    return json_unless(bad, chunk);
}

err_code openai_end(struct answer_writer *w, const struct answer_usage *usage, json_t *chunk, struct bytes *out,
                    struct err *e)
{
    answer_usage_add(&w->usage, usage);
    if (++w->n_ended < w->r->n_choices)
        return writer_send(out, NULL, chunk, e);
    json_t *last = w->r->stream_usage ? usage_chunk(chunk, &w->usage) : NULL;
    int bad = w->r->stream_usage && !last;
    bad |= json_object_set_new(chunk, "timings", openai_timings(&w->usage));
    err_code code = writer_send(out, NULL, json_unless(bad, chunk), e);
    if (code == ERR_OK && last)
        code = writer_send(out, NULL, json_incref(last), e);
    json_decref(last);
    return code == ERR_OK ? bytes_add_text(out, "data: [DONE]\n\n", e) : code;
}

void format_time(int64_t seconds, char out[32])
{
    time_t t = (time_t)seconds;
    struct tm utc = {0};
    gmtime_r(&t, &utc);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}
