/* OpenAI's chat completions: /v1/chat/completions, with the fields that llama.cpp's and vLLM's servers have beside
 * OpenAI's.
 *
 * A stream begins with a chunk for each choice that says the role; then come deltas of reasoning_content, content and
 * tool_calls; the last chunk of a choice has its finish_reason. Custom tools' input is told in one piece, as it is
 * JSON inside of JSON until then. A call that the answer's end cuts has the arguments that there are; a custom tool's
 * is left out. */
#include <string.h>

#include "base/json_text.h"
#include "server/messages.h"
#include "server/writer.h"

/* ---- the request ----------------------------------------------------------------------------------------------- */

static err_code set_modalities(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *name = json_string_value(json_array_get(value, i));
        if (!request_is(name, "text"))
            return request_expected(e, path, json_array_get(value, i), "text, as this server writes nothing else");
    }
    return ERR_OK;
}

static err_code parse(struct server_request *r, json_t *body, struct err *e)
{
    static const struct request_field fields[] = {
        FIELD_SETTER("messages", messages_set_chat),
        FIELD_SETTER("tools", tools_set_chat),
        FIELD_SETTER("tool_choice", tools_set_choice),
        FIELD_SETTER("parallel_tool_calls", tools_set_parallel),
        FIELD_SETTER("response_format", request_set_response_format),
        FIELD_SETTER("modalities", set_modalities),
        FIELD_NONE("audio", "this server writes text only"),
        FIELD_NONE("functions", "use tools"),
        FIELD_NONE("function_call", "use tool_choice"),
        FIELD_NONE("echo", "a conversation has no text to repeat"),
        FIELD_IGNORED("prediction"),
        FIELD_IGNORED("moderation"),
    };
    TRY(request_take_body(r, body, e));
    TRY(REQUEST_READ_FIELDS(r, "", body, fields, e));
    if (!r->messages)
        return request_expected(e, "messages", NULL, "a list of messages, one at least");
    TRY(tools_finish(r, e));
    return request_check(r, e);
}

/* ---- streams --------------------------------------------------------------------------------------------------- */

static json_t *make_chunk(const struct answer_writer *w, json_t *choices)
{
    return json_pack("{s:o,s:s,s:I,s:s,s:o}", "id", json_sprintf("chatcmpl-%s", w->head.id), "object",
                     "chat.completion.chunk", "created", (json_int_t)w->head.created, "model", w->head.model, "choices",
                     choices);
}

/* Moves what waits into a chunk, unless there is nothing. */
static int take_waiting(json_t **waiting, json_t *out, const char *name)
{
    if (json_array_size(*waiting) == 0)
        return 0;
    int bad = json_object_set_new(out, name, *waiting);
    *waiting = json_array();
    return bad;
}

/* A chunk of one choice, with the tokens that wait. Takes over `delta`. */
static json_t *make_delta(struct answer_writer *w, int64_t choice, json_t *delta, const char *finish)
{
    struct told_choice *c = &w->choices[choice];
    json_t *logprobs = json_object();
    json_t *one = json_pack("{s:I,s:o,s:s?}", "index", (json_int_t)choice, "delta", delta, "finish_reason", finish);
    int bad = take_waiting(&c->tokens, logprobs, "content") | take_waiting(&c->ids, one, "token_ids");
    if (json_object_size(logprobs) > 0)
        bad |= json_object_set_new(logprobs, "refusal", json_null()) | json_object_set(one, "logprobs", logprobs);
    json_decref(logprobs);
    return json_unless(bad, make_chunk(w, json_pack("[o]", one)));
}

static err_code send_delta(struct answer_writer *w, int64_t choice, json_t *delta, const char *finish,
                           struct bytes *out, struct err *e)
{
    return writer_send(out, NULL, make_delta(w, choice, delta, finish), e);
}

static err_code send_text(struct answer_writer *w, const struct answer_event *event, const char *field,
                          struct bytes *out, struct err *e)
{
    return send_delta(w, event->choice, json_pack("{s:o}", field, json_text(event->text, event->n)), NULL, out, e);
}

static err_code begin(struct answer_writer *w, struct bytes *out, struct err *e)
{
    for (int64_t i = 0; i < w->r->n_choices; i++)
        TRY(send_delta(w, i, json_pack("{s:s,s:s}", "role", "assistant", "content", ""), NULL, out, e));
    return ERR_OK;
}

/* Sends how much of the prompt is done, as llama.cpp's server does. */
static err_code send_progress(struct answer_writer *w, const struct answer_event *event, struct bytes *out,
                              struct err *e)
{
    if (!w->r->return_progress)
        return ERR_OK;
    json_t *chunk = make_delta(w, 0, json_object(), NULL);
    json_t *progress =
        json_pack("{s:I,s:I,s:I,s:I}", "total", (json_int_t)event->n_all, "cache", (json_int_t)event->n_cached,
                  "processed", (json_int_t)event->n_done, "time_ms", (json_int_t)(1e3 * event->usage.prompt_s));
    int bad = json_object_set_new(chunk, "prompt_progress", progress);
    return writer_send(out, NULL, json_unless(bad, chunk), e);
}

static err_code begin_call(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    struct open_call *call = &w->choices[event->choice].call;
    TRY(open_call_begin(call, event, e));
    if (tools_client_name(w->r, call->name).is_custom)
        return ERR_OK;
    json_t *one = json_pack("{s:I,s:s,s:s,s:{s:s,s:s}}", "index", (json_int_t)event->call, "id", call->id, "type",
                            "function", "function", "name", call->name, "arguments", "");
    return send_delta(w, event->choice, json_pack("{s:[o]}", "tool_calls", one), NULL, out, e);
}

static err_code add_arguments(struct answer_writer *w, const struct answer_event *event, struct bytes *out,
                              struct err *e)
{
    struct open_call *call = &w->choices[event->choice].call;
    if (!call->is_open)
        return ERR_OK;
    if (tools_client_name(w->r, call->name).is_custom)
        return open_call_add(call, event, e);
    json_t *one = json_pack("{s:I,s:{s:o}}", "index", (json_int_t)event->call, "function", "arguments",
                            json_text(event->text, event->n));
    return send_delta(w, event->choice, json_pack("{s:[o]}", "tool_calls", one), NULL, out, e);
}

static json_t *custom_call(const char *id, const char *name, const char *arguments, size_t n)
{
    return json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", id, "type", "custom", "custom", "name", name, "input",
                     tools_custom_input(arguments, n));
}

static err_code end_call(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    struct open_call *call = &w->choices[event->choice].call;
    err_code code = ERR_OK;
    if (call->is_open && tools_client_name(w->r, call->name).is_custom) {
        json_t *one = custom_call(call->id, call->name, call->arguments.s ? call->arguments.s : "", call->arguments.n);
        int bad = json_object_set_new(one, "index", json_integer(event->call));
        code = send_delta(w, event->choice, json_unless(bad, json_pack("{s:[o]}", "tool_calls", one)), NULL, out, e);
    }
    open_call_close(call);
    return code;
}

static err_code end(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    json_t *chunk = make_delta(w, event->choice, json_object(), openai_finish(event->finish));
    return openai_end(w, &event->usage, chunk, out, e);
}

static err_code tell(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    switch (event->kind) {
    case ANSWER_BEGIN: return begin(w, out, e);
    case ANSWER_PROGRESS: return send_progress(w, event, out, e);
    case ANSWER_REASONING: return w->r->hides_reasoning ? ERR_OK : send_text(w, event, "reasoning_content", out, e);
    case ANSWER_CONTENT: return send_text(w, event, "content", out, e);
    case ANSWER_CALL: return begin_call(w, event, out, e);
    case ANSWER_ARGUMENTS: return add_arguments(w, event, out, e);
    case ANSWER_CALL_END: return end_call(w, event, out, e);
    case ANSWER_TOKEN: return writer_add_token(w, event, e);
    case ANSWER_END: return end(w, event, out, e);
    case ANSWER_FAILED: return writer_send(out, NULL, openai_error(server_http_status(event->error), event->error), e);
    case ANSWER_PROMPT: break;
    }
    return ERR_OK;
}

/* ---- whole answers --------------------------------------------------------------------------------------------- */

static json_t *make_call(const struct server_request *r, const struct gathered_call *call)
{
    if (tools_client_name(r, call->name).is_custom)
        return custom_call(call->id, call->name, call->arguments.s, call->arguments.n);
    return json_pack("{s:s,s:s,s:{s:o,s:o}}", "id", call->id, "type", "function", "function", "name",
                     json_text(call->name, strlen(call->name)), "arguments",
                     json_text(call->arguments.s, call->arguments.n));
}

static json_t *make_message(const struct server_request *r, const struct gathered_choice *c)
{
    json_t *content =
        c->content.n || c->n_calls == 0 ? json_text(c->content.s ? c->content.s : "", c->content.n) : json_null();
    json_t *message = json_pack("{s:s,s:o,s:n}", "role", "assistant", "content", content, "refusal");
    int bad = 0;
    if (c->reasoning.n && !r->hides_reasoning)
        bad |= json_object_set_new(message, "reasoning_content", json_text(c->reasoning.s, c->reasoning.n));
    json_t *calls = json_array();
    for (size_t i = 0; i < c->n_calls; i++)
        if (c->calls[i].is_whole || !tools_client_name(r, c->calls[i].name).is_custom)
            bad |= json_array_append_new(calls, make_call(r, &c->calls[i]));
    if (json_array_size(calls) > 0)
        bad |= json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    return json_unless(bad, message);
}

static json_t *whole(const struct server_request *r, const struct answer_head *head,
                     const struct gathered_choice *choices)
{
    json_t *all = json_array();
    int bad = 0;
    for (int64_t i = 0; i < r->n_choices; i++) {
        const struct gathered_choice *c = &choices[i];
        json_t *logprobs =
            r->n_logprob >= 0 && c->logprobs ? json_pack("{s:O,s:n}", "content", c->logprobs, "refusal") : json_null();
        json_t *one = json_pack("{s:I,s:o,s:o,s:s}", "index", (json_int_t)i, "message", make_message(r, c), "logprobs",
                                logprobs, "finish_reason", openai_finish(c->finish));
        if (r->return_ids && c->ids)
            bad |= json_object_set(one, "token_ids", c->ids);
        bad |= json_array_append_new(all, one);
    }
    struct answer_usage usage = answer_usage_all(choices, r->n_choices);
    json_t *answer = json_pack("{s:o,s:s,s:I,s:s,s:o,s:o,s:o}", "id", json_sprintf("chatcmpl-%s", head->id), "object",
                               "chat.completion", "created", (json_int_t)head->created, "model", head->model, "choices",
                               all, "usage", openai_usage(&usage), "timings", openai_timings(&usage));
    return json_unless(bad, answer);
}

const struct protocol protocol_chat = {.name = "chat completions",
                                       .content_type = "text/event-stream",
                                       .parse = parse,
                                       .error = openai_error,
                                       .open = writer_open,
                                       .event = tell,
                                       .ping = writer_ping_comment,
                                       .close = writer_close,
                                       .whole = whole};
