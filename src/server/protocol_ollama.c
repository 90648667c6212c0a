/* Ollama's chat and generate: /api/chat and /api/generate. Streams are objects of JSON, a line each, and the default.
 * Calls are told whole; one that the answer's end cuts is left out, as arguments are objects here. */
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "server/messages.h"
#include "server/request_format.h"
#include "server/writer.h"

/* ---- the request ----------------------------------------------------------------------------------------------- */

static err_code set_options(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    static const struct request_field fields[] = {
        FIELD_LENGTH("num_predict", max_tokens, -2),
        FIELD_IGNORED("num_ctx"),
        FIELD_IGNORED("num_keep"),
        FIELD_IGNORED("num_batch"),
        FIELD_IGNORED("num_gpu"),
        FIELD_IGNORED("main_gpu"),
        FIELD_IGNORED("num_thread"),
        FIELD_IGNORED("use_mmap"),
        FIELD_IGNORED("use_mlock"),
        FIELD_IGNORED("low_vram"),
        FIELD_IGNORED("numa"),
        FIELD_IGNORED("f16_kv"),
        FIELD_IGNORED("vocab_only"),
        {"penalize_newline", FIELD_NEUTRAL, 0, 0, 1, 0, "true or false"},
    };
    if (!json_is_object(value))
        return request_expected(e, path, value, "an object");
    return REQUEST_READ_FIELDS(r, path, value, fields, e);
}

/* "json", or a schema. */
static err_code set_format(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    const char *text = json_string_value(value);
    if (text && !*text)
        return ERR_OK;
    if (request_is(text, "json"))
        return request_set_json_object(r, path, e);
    return json_is_object(value) ? request_set_schema(r, path, value, e)
                                 : request_expected(e, path, value, "json, or a JSON schema");
}

static err_code set_think(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    return json_is_string(value) ? request_set_effort(r, path, value, e) : request_set_thinks(r, path, value, e);
}

#define OLLAMA_FIELDS                                                                                                  \
    FIELD_SETTER("options", set_options), FIELD_SETTER("format", set_format), FIELD_SETTER("think", set_think),        \
        FIELD_IGNORED("keep_alive"), FIELD_IGNORED("truncate"), FIELD_IGNORED("shift"),                                \
        FIELD_NUMBER("n", FIELD_INT64, n_choices, 1, 1)

static err_code finish(struct server_request *r, struct err *e)
{
    if (r->max_tokens < 0)
        r->max_tokens = -1; /* -2: until the context is full */
    TRY(tools_finish(r, e));
    return request_check(r, e);
}

/* An empty list asks to load the model. If the last message is the assistant's, the answer continues it. */
static err_code set_messages(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    if (json_is_array(value) && json_array_size(value) == 0)
        return ERR_OK;
    TRY(messages_set_chat(r, path, value, e));
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    r->continues_message = request_is(role, "assistant") && !json_object_get(last, "tool_calls");
    return ERR_OK;
}

static err_code parse_chat(struct server_request *r, json_t *body, struct err *e)
{
    static const struct request_field fields[] = {
        OLLAMA_FIELDS, FIELD_SETTER("messages", set_messages), FIELD_SETTER("tools", tools_set_chat),
        FIELD_SETTER("tool_choice", tools_set_choice), FIELD_SETTER("parallel_tool_calls", tools_set_parallel)};
    r->stream = true;
    TRY(request_take_body(r, body, e));
    TRY(REQUEST_READ_FIELDS(r, "", body, fields, e));
    r->only_loads = !r->messages;
    return finish(r, e);
}

static err_code parse_generate(struct server_request *r, json_t *body, struct err *e)
{
    static const struct request_field fields[] = {
        OLLAMA_FIELDS,
        FIELD_IGNORED("prompt"), /* below */
        FIELD_IGNORED("system"),
        FIELD_IGNORED("raw"),
        FIELD_NONE("images", "this server reads text only"),
        FIELD_SETTER("suffix", request_set_suffix),
        FIELD_NONE("template", "the model's own template is used"),
        FIELD_NONE("context", "send the conversation to /api/chat"),
    };
    struct message_list list;
    const char *prompt, *system;
    bool is_raw = false;
    r->stream = true;
    TRY(request_take_body(r, body, e));
    TRY(REQUEST_READ_FIELDS(r, "", body, fields, e));
    TRY(request_string(body, "", "prompt", &prompt, e));
    TRY(request_string(body, "", "system", &system, e));
    TRY(request_flag(body, "", "raw", &is_raw, e));
    r->only_loads = !prompt || !*prompt;
    if (!r->only_loads && (r->suffix || is_raw))
        r->prompts = json_pack("[O]", json_object_get(body, "prompt"));
    if (r->only_loads || r->prompts)
        return finish(r, e);
    err_code code = messages_open(&list, r, e);
    if (code == ERR_OK && system && *system)
        code = messages_add_system(&list, json_string(system), e);
    if (code == ERR_OK)
        code = messages_add_user(&list, json_string(prompt), e);
    TRY(messages_close(&list, code, e));
    return finish(r, e);
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

enum form { FORM_CHAT, FORM_GENERATE };

/* The object for a piece of an answer, or for a whole one. Takes over the values; calls and tokens may be NULL. */
static json_t *make_answer(enum form form, const struct answer_head *head, json_t *content, json_t *thinking,
                           json_t *calls, json_t *tokens)
{
    char time[32];
    format_time(head->created, time);
    json_t *answer = json_pack("{s:s,s:s}", "model", head->model, "created_at", time);
    json_t *inner = form == FORM_CHAT ? json_pack("{s:s}", "role", "assistant") : json_incref(answer);
    int bad = json_object_set_new(inner, form == FORM_CHAT ? "content" : "response", content);
    if (thinking)
        bad |= json_object_set_new(inner, "thinking", thinking);
    if (calls)
        bad |= json_object_set_new(inner, "tool_calls", calls);
    if (form == FORM_CHAT)
        bad |= json_object_set_new(answer, "message", inner);
    else
        json_decref(inner);
    if (tokens)
        bad |= json_object_set_new(answer, "logprobs", tokens);
    return json_unless(bad, answer);
}

static int set_done(json_t *answer, enum answer_finish finish, const struct answer_usage *u)
{
    const double ns = 1e9;
    json_t *done = json_pack(
        "{s:b,s:s,s:I,s:i,s:I,s:I,s:I,s:I}", "done", 1, "done_reason", finish == FINISH_LENGTH ? "length" : "stop",
        "total_duration", (json_int_t)(ns * (u->queue_s + u->prompt_s + u->answer_s)), "load_duration", 0,
        "prompt_eval_count", (json_int_t)u->n_prompt, "prompt_eval_duration", (json_int_t)(ns * u->prompt_s),
        "eval_count", (json_int_t)u->n_answer, "eval_duration", (json_int_t)(ns * u->answer_s));
    int bad = json_object_update(answer, done);
    if (u->n_substituted > 0)
        bad |= json_object_set_new(answer, "substituted_experts", json_integer(u->n_substituted));
    json_decref(done);
    return bad;
}

static json_t *make_call(size_t i, const char *id, const char *name, const char *arguments, size_t n)
{
    return json_pack("{s:s,s:{s:i,s:o,s:o}}", "id", id, "function", "index", (int)i, "name",
                     json_text(name, strlen(name)), "arguments", tools_arguments_object(arguments, n));
}

/* Sends an object as a line. Takes it over. */
static err_code send_line(struct bytes *out, json_t *answer, struct err *e)
{
    size_t n;
    char *text = answer ? json_write(answer, JSON_COMPACT, &n) : NULL;
    err_code code = text ? bytes_add(out, text, n, e) : err_nomem(e, 0, "a line");
    if (code == ERR_OK)
        code = bytes_add_text(out, "\n", e);
    json_decref(answer);
    mem_free(text);
    return code;
}

/* Takes the log-probabilities that wait for their text; NULL: there are none. */
static json_t *take_tokens(struct answer_writer *w)
{
    json_t *tokens = w->choices[0].tokens;
    if (json_array_size(tokens) == 0)
        return NULL;
    w->choices[0].tokens = json_array();
    return tokens;
}

/* Sends a piece of an answer. Takes over the values. */
static err_code send_piece(struct answer_writer *w, enum form form, json_t *content, json_t *thinking, json_t *calls,
                           struct bytes *out, struct err *e)
{
    json_t *answer = make_answer(form, &w->head, content, thinking, calls, take_tokens(w));
    return send_line(out, json_unless(json_object_set_new(answer, "done", json_false()), answer), e);
}

static err_code end_call(struct answer_writer *w, enum form form, struct bytes *out, struct err *e)
{
    struct open_call *call = &w->choices[0].call;
    if (!call->is_open)
        return ERR_OK;
    const char *arguments = call->arguments.s ? call->arguments.s : "";
    json_t *one = make_call((size_t)w->n_block++, call->id, call->name, arguments, call->arguments.n);
    err_code code = send_piece(w, form, json_string(""), NULL, json_pack("[o]", one), out, e);
    open_call_close(call);
    return code;
}

static json_t *make_error(int status, const struct err *error)
{
    return json_pack("{s:s}", "error", error->text);
}

static err_code tell(struct answer_writer *w, enum form form, const struct answer_event *event, struct bytes *out,
                     struct err *e)
{
    json_t *answer;
    switch (event->kind) {
    case ANSWER_REASONING:
        return w->r->hides_reasoning
                   ? ERR_OK
                   : send_piece(w, form, json_string(""), json_text(event->text, event->n), NULL, out, e);
    case ANSWER_CONTENT: return send_piece(w, form, json_text(event->text, event->n), NULL, NULL, out, e);
    case ANSWER_CALL: return open_call_begin(&w->choices[0].call, event, e);
    case ANSWER_ARGUMENTS: return open_call_add(&w->choices[0].call, event, e);
    case ANSWER_CALL_END: return end_call(w, form, out, e);
    case ANSWER_TOKEN: return writer_add_token(w, event, e);
    case ANSWER_END:
        answer = make_answer(form, &w->head, json_string(""), NULL, NULL, take_tokens(w));
        return send_line(out, json_unless(set_done(answer, event->finish, &event->usage), answer), e);
    case ANSWER_FAILED: return send_line(out, make_error(0, event->error), e);
    case ANSWER_BEGIN:
    case ANSWER_PROMPT:
    case ANSWER_PROGRESS: break;
    }
    return ERR_OK;
}

static err_code tell_chat(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    return tell(w, FORM_CHAT, event, out, e);
}

static err_code tell_generate(struct answer_writer *w, const struct answer_event *event, struct bytes *out,
                              struct err *e)
{
    return tell(w, FORM_GENERATE, event, out, e);
}

/* A ping is a piece without text, since clients read each line as a piece. Without memory it is left out. */
static void ping_chat(struct answer_writer *w, struct bytes *out)
{
    err_code unsent = send_piece(w, FORM_CHAT, json_string(""), NULL, NULL, out, NULL);
    (void)unsent;
}

static void ping_generate(struct answer_writer *w, struct bytes *out)
{
    err_code unsent = send_piece(w, FORM_GENERATE, json_string(""), NULL, NULL, out, NULL);
    (void)unsent;
}

static json_t *make_loaded(enum form form, const struct answer_head *head)
{
    json_t *answer = make_answer(form, head, json_string(""), NULL, NULL, NULL);
    int bad = json_object_set_new(answer, "done", json_true());
    bad |= json_object_set_new(answer, "done_reason", json_string("load"));
    return json_unless(bad, answer);
}

static json_t *make_whole(enum form form, const struct server_request *r, const struct answer_head *head,
                          const struct gathered_choice *choices)
{
    if (r->only_loads)
        return make_loaded(form, head);
    const struct gathered_choice *c = &choices[0];
    bool has_thinking = c->reasoning.n > 0 && !r->hides_reasoning;
    size_t n_calls = c->n_calls && !c->calls[c->n_calls - 1].is_whole ? c->n_calls - 1 : c->n_calls;
    json_t *calls = n_calls ? json_array() : NULL;
    int bad = 0;
    for (size_t i = 0; i < n_calls; i++)
        bad |= json_array_append_new(
            calls, make_call(i, c->calls[i].id, c->calls[i].name, c->calls[i].arguments.s, c->calls[i].arguments.n));
    json_t *answer = make_answer(form, head, json_text(c->content.s ? c->content.s : "", c->content.n),
                                 has_thinking ? json_text(c->reasoning.s, c->reasoning.n) : NULL, calls,
                                 r->n_logprob >= 0 ? json_incref(c->logprobs) : NULL);
    return json_unless(bad | set_done(answer, c->finish, &c->usage), answer);
}

static json_t *whole_chat(const struct server_request *r, const struct answer_head *head,
                          const struct gathered_choice *choices)
{
    return make_whole(FORM_CHAT, r, head, choices);
}

static json_t *whole_generate(const struct server_request *r, const struct answer_head *head,
                              const struct gathered_choice *choices)
{
    return make_whole(FORM_GENERATE, r, head, choices);
}

const struct protocol protocol_ollama_chat = {.name = "Ollama's chat",
                                              .content_type = "application/x-ndjson",
                                              .parse = parse_chat,
                                              .error = make_error,
                                              .open = writer_open,
                                              .event = tell_chat,
                                              .ping = ping_chat,
                                              .close = writer_close,
                                              .whole = whole_chat};
const struct protocol protocol_ollama_generate = {.name = "Ollama's generate",
                                                  .content_type = "application/x-ndjson",
                                                  .parse = parse_generate,
                                                  .error = make_error,
                                                  .open = writer_open,
                                                  .event = tell_generate,
                                                  .ping = ping_generate,
                                                  .close = writer_close,
                                                  .whole = whole_generate};
