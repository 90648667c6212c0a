/* A protocol's number, or 255 for what is wanted of a model, and a body: what is parsed must be fit for templates and
 * for the model, and what is refused needs a sentence. Then an answer is told, in a stream and whole, whose pieces must
 * be JSON whatever the text is. */
#include "fuzz.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "server/model_change.h"
#include "server/protocol.h"
#include "server/template_needs.h"

static const struct protocol *const protocols[] = {&protocol_chat,     &protocol_completions, &protocol_responses,
                                                   &protocol_messages, &protocol_ollama_chat, &protocol_ollama_generate,
                                                   &protocol_llama,    &protocol_infill};
enum { N_PROTOCOL = sizeof protocols / sizeof *protocols, MODEL_CHANGE = 255, MAX_ANSWERS = 1024 };

/* ---- the request ----------------------------------------------------------------------------------------------- */

static void check_messages(const struct server_request *r, const json_t *messages)
{
    size_t n_call = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i), *calls = json_object_get(message, "tool_calls");
        const json_t *reasoning = json_object_get(message, "reasoning_content");
        const char *role = json_string_value(json_object_get(message, "role"));
        assert(role && json_is_string(json_object_get(message, "content")));
        assert(!strcmp(role, "user") || !strcmp(role, "assistant") || !strcmp(role, "tool") ||
               (i == 0 && !strcmp(role, "system")));
        assert(!reasoning || json_is_string(reasoning));
        for (size_t k = 0; k < json_array_size(calls); k++, n_call++) {
            const json_t *function = json_object_get(json_array_get(calls, k), "function");
            assert(json_is_string(json_object_get(function, "name")) && json_object_get(function, "arguments"));
        }
    }
    assert(n_call == json_array_size(r->argument_texts));
}

static void check_request(const struct server_request *r)
{
    assert(!!r->messages + !!r->prompts == !r->only_loads);
    assert(server_request_n_each(r) >= 1 && server_request_n_each(r) <= 64 && r->n_choices <= MAX_ANSWERS);
    assert(r->n_choices == server_request_n_each(r) * server_request_n_prompts(r) && r->max_tokens >= -1 &&
           r->reasoning_budget >= -1);
    assert(r->n_logprob >= -1 && r->n_logprob <= 20 && json_is_object(r->template_vars) && json_is_array(r->notes));
    assert(!r->tools == !r->tool_kinds && json_array_size(r->tools) == json_object_size(r->tool_kinds));
    assert(!r->tools || json_array_size(r->tools) > 0);
    assert((r->tool_choice == TOOL_CHOICE_NAMED) <= (r->tool_name && json_object_get(r->tool_kinds, r->tool_name)));
    assert((r->format == FORMAT_JSON_SCHEMA) == json_is_object(r->schema));
    assert((r->format == FORMAT_GBNF || r->format == FORMAT_REGEX) == (r->grammar != NULL));
    for (size_t i = 0; i < json_array_size(r->stops); i++)
        assert(json_string_length(json_array_get(r->stops, i)) > 0);
    for (size_t i = 0; i < json_array_size(r->tools); i++) {
        const json_t *function = json_object_get(json_array_get(r->tools, i), "function");
        assert(json_object_get(r->tool_kinds, json_string_value(json_object_get(function, "name"))));
        assert(json_is_object(json_object_get(function, "parameters")));
    }
    static const struct template_needs all = {.no_system = true,
                                              .one_user = true,
                                              .user_in_result = true,
                                              .text_arguments = true,
                                              .short_ids = true,
                                              .one_call = true,
                                              .reasoning_field = "thinking",
                                              .text_in_reasoning = true};
    json_t *fit = r->messages ? template_needs_apply(&all, r) : NULL;
    assert(!fit == !r->messages);
    check_messages(r, r->messages);
    check_messages(r, r->messages ? fit : NULL);
    json_decref(fit);
}

/* ---- the answer ------------------------------------------------------------------------------------------------ */

static bool is_json(const char *text, size_t n)
{
    json_error_t error;
    json_t *j = json_loadb(text, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    bool good = json_is_object(j);
    json_decref(j);
    return good;
}

/* Each line of a stream is empty, a comment, an event's name, or JSON. */
static void check_stream(const struct bytes *stream)
{
    static const char *const others[] = {"", ": ping", "event: ", "data: [DONE]"};
    for (size_t at = 0; at < stream->n;) {
        const char *line = stream->s + at, *end = memchr(line, '\n', stream->n - at);
        assert(end);
        size_t n = (size_t)(end - line);
        bool is_other = n == 0;
        for (size_t i = 1; i < sizeof others / sizeof *others; i++)
            is_other |= n >= strlen(others[i]) && !memcmp(line, others[i], strlen(others[i]));
        size_t skip = n >= 6 && !memcmp(line, "data: ", 6) ? 6 : 0;
        assert(is_other || is_json(line + skip, n - skip));
        at += n + 1;
    }
}

static const struct err failure = {ERR_IO, "a read error"};

/* An answer whose text has quotes, zero bytes and what is no UTF-8, and a call of the first tool. */
static void tell_answer(const struct protocol *p, const struct server_request *r, bool fails)
{
    static const char text[] = "a\"\\\n\0\xc3\xa9\xff", arguments[] = "{\"input\": \"x\\u00e9\"";
    static const struct answer_logprob tokens[] = {{"\xc3", 1, 5, -0.5}, {"\xc3", 1, 5, -0.5}, {"b", 1, -1, -1e40}};
    static const struct answer_head head = {.id = "1", .model = "m", .created = 1};
    const char *name = json_object_iter_key(json_object_iter(r->tool_kinds));
    name = name ? name : "none";
    struct answer_usage usage = {.n_prompt = 9, .n_cached = 4, .n_answer = 5, .n_substituted = 1};
    struct gathered_choice choices[MAX_ANSWERS] = {0};
    struct answer_writer *writer;
    struct bytes stream = {0};
    struct err e = {0};
    err_code code = p->open(&writer, r, &head, &e);
    assert(code == ERR_OK);
    for (int64_t i = 0; i < r->n_choices; i++) {
        const struct answer_event events[] = {
            {.kind = ANSWER_BEGIN, .usage = usage},
            {.kind = ANSWER_PROMPT, .text = text, .n = sizeof text - 1, .token = tokens, .n_tok = 1, .n_top = 2},
            {.kind = ANSWER_PROGRESS, .n_all = 9},
            {.kind = ANSWER_ARGUMENTS, .text = "{", .n = 1},
            {.kind = ANSWER_REASONING, .text = text, .n = sizeof text - 1},
            {.kind = ANSWER_TOKEN,
             .token = tokens,
             .n_top = r->n_logprob < 0   ? 0
                      : r->n_logprob > 2 ? 2
                                         : r->n_logprob},
            {.kind = ANSWER_CONTENT, .text = text, .n = sizeof text - 1},
            {.kind = ANSWER_CALL, .text = name, .n = strlen(name), .id = "c"},
            {.kind = ANSWER_ARGUMENTS, .text = arguments, .n = sizeof arguments - 1},
            {.kind = ANSWER_ARGUMENTS, .text = "}", .n = 1},
            {.kind = ANSWER_CALL_END},
            {.kind = ANSWER_CALL, .text = "other", .n = 5, .id = "d", .call = 1}, /* cut */
            {.kind = fails ? ANSWER_FAILED : ANSWER_END, .finish = FINISH_LENGTH, .usage = usage, .error = &failure},
        };
        for (size_t k = i > 0; k < sizeof events / sizeof *events; k++) {
            struct answer_event event = events[k];
            event.choice = i;
            code = p->event(writer, &event, &stream, &e);
            assert(code == ERR_OK);
            code = gathered_choice_add(&choices[i], &event, &e);
            assert(code == (event.kind == ANSWER_FAILED ? ERR_IO : ERR_OK));
            p->ping(writer, &stream);
        }
        if (fails)
            break;
    }
    p->close(writer);
    check_stream(&stream);
    json_t *whole = fails ? NULL : p->whole(r, &head, choices);
    char *dumped = whole ? json_dumps(whole, 0) : NULL;
    assert(fails || (dumped && is_json(dumped, strlen(dumped))));
    mem_free(dumped);
    json_decref(whole);
    for (int i = 0; i < MAX_ANSWERS; i++)
        gathered_choice_close(&choices[i]);
    bytes_close(&stream);
}

/* ---- items that are referred to ---------------------------------------------------------------------------------- */

/* As if earlier answers had consisted of what the input brings: references to these are found. */
static void keep_items(struct kept_items *kept, const json_t *input)
{
    kept_items_open(kept);
    for (size_t i = 0; i < json_array_size(input); i++)
        kept_items_add(kept, json_array_get(input, i));
}

/* ---- models ---------------------------------------------------------------------------------------------------- */

static void check_model_change(const json_t *body)
{
    struct model_change change;
    struct err e = {0};
    err_code code = model_change_parse(&change, body, &e);
    assert((code == ERR_OK) == !*e.text && (code == ERR_OK || code == ERR_USAGE));
    assert(code != ERR_OK ||
           (*change.model && strlen(change.model) == json_string_length(json_object_get(body, "model"))));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kept_items kept; /* too large for a stack */
    struct server_request r;
    struct err e = {0};
    json_error_t error;
    if (size < 2)
        return 0;
    const struct protocol *p = protocols[data[0] % N_PROTOCOL];
    json_t *body = json_loadb((const char *)data + 1, size - 1, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!body)
        return 0;
    if (data[0] == MODEL_CHANGE) {
        check_model_change(body);
        json_decref(body);
        return 0;
    }
    server_request_init(&r);
    if (p == &protocol_responses) {
        keep_items(&kept, json_object_get(body, "input"));
        r.kept = &kept;
    }
    err_code code = p->parse(&r, body, &e);
    assert((code == ERR_OK) == !*e.text && (code == ERR_OK || code == ERR_USAGE));
    if (code == ERR_OK) {
        check_request(&r);
        tell_answer(p, &r, size % 4 == 0);
    }
    json_t *told = p->error(server_http_status(&e), &e);
    assert(told);
    json_decref(told);
    server_request_close(&r);
    if (p == &protocol_responses)
        kept_items_close(&kept);
    return 0;
}
