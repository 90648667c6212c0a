#include "server/template_needs.h"

#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "server/messages.h"
#include "server/writer.h"

/* ---- messages made fit ----------------------------------------------------------------------------------------- */

static bool has_role(const json_t *message, const char *role)
{
    const char *own = json_string_value(json_object_get(message, "role"));
    return request_is(own, role);
}

static const char *const reasoning_fields[] = {"reasoning_content", "thinking", "reasoning"};
enum { N_REASONING = sizeof reasoning_fields / sizeof *reasoning_fields };

static json_t *calls_of(const json_t *message)
{
    return json_object_get(message, "tool_calls");
}

static int set_text_arguments(json_t *messages, const json_t *texts)
{
    size_t n = 0;
    int bad = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *calls = calls_of(json_array_get(messages, i));
        for (size_t k = 0; k < json_array_size(calls); k++)
            bad |= json_object_set(json_object_get(json_array_get(calls, k), "function"), "arguments",
                                   json_array_get(texts, n++));
    }
    return bad;
}

/* The same id for the same one: by the order in which they come. */
static int shorten_id(json_t *owner, const char *field, json_t *known)
{
    char short_id[16];
    const char *id = json_string_value(json_object_get(owner, field));
    if (!id)
        return 0;
    if (!json_object_get(known, id)) {
        snprintf(short_id, sizeof short_id, "call%05u", (unsigned)json_object_size(known) % 100000);
        if (json_object_set_new(known, id, json_string(short_id)) != 0)
            return -1;
    }
    return json_object_set(owner, field, json_object_get(known, id));
}

/* A call without an id gets one, and a result without one that of the call in its place: Ollama's clients send none. */
static int shorten_ids(json_t *messages)
{
    json_t *known = json_object(), *open = NULL; /* the last calls */
    size_t n_made = 0, n_results = 0;
    int bad = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *calls = calls_of(message);
        bad |= shorten_id(message, "tool_call_id", known);
        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *call = json_array_get(calls, k);
            if (!json_object_get(call, "id"))
                bad |= json_object_set_new(call, "id", json_sprintf("no id %zu", n_made++));
            bad |= shorten_id(call, "id", known);
        }
        open = calls ? calls : open;
        n_results = calls ? 0 : n_results;
        json_t *id = has_role(message, "tool") ? json_object_get(json_array_get(open, n_results++), "id") : NULL;
        if (id && !json_object_get(message, "tool_call_id"))
            bad |= json_object_set(message, "tool_call_id", id);
    }
    json_decref(known);
    return bad;
}

/* Where the result of a call is among the results that begin at `at`; the first where none has its id. */
static size_t find_result(const json_t *messages, size_t at, const json_t *id)
{
    for (size_t i = at; has_role(json_array_get(messages, i), "tool"); i++)
        if (id && json_equal(json_object_get(json_array_get(messages, i), "tool_call_id"), id))
            return i;
    return at;
}

/* A message with one of the calls of another, with its text and reasoning if it is the first. */
static json_t *single_call(json_t *message, size_t k)
{
    json_t *one = json_copy(message);
    int bad = json_object_set_new(one, "tool_calls", json_pack("[O]", json_array_get(calls_of(message), k)));
    if (k > 0)
        bad |= json_object_set_new(one, "content", json_string(""));
    for (size_t i = 0; k > 0 && i < N_REASONING; i++)
        (void)json_object_del(one, reasoning_fields[i]); /* which it may not have */
    return json_unless(bad, one);
}

/* Makes a message of its own of each call, followed by its result: the results behind the message, in the order of the
 * calls, as far as both go. */
static int split_calls(json_t *messages, json_t *out)
{
    int bad = 0;
    for (size_t i = 0; !bad && i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        size_t n = json_array_size(calls_of(message));
        if (n < 2)
            bad |= json_array_append(out, message);
        for (size_t k = 0; n >= 2 && k < n; k++) {
            json_t *one = single_call(message, k), *call = json_array_get(calls_of(message), k);
            size_t from = find_result(messages, i + 1, json_object_get(call, "id"));
            bad |= json_array_append_new(out, one);
            if (!has_role(json_array_get(messages, from), "tool"))
                continue;
            bad |= json_array_append(out, json_array_get(messages, from));
            json_t *first = json_incref(json_array_get(messages, i + 1)); /* takes the place of what was used */
            bad |= json_array_set_new(messages, from, first);
            bad |= json_array_set(messages, i + 1, message);
            i++;
        }
    }
    return bad;
}

/* A text before calls becomes a message of its own. */
static int set_null_content(json_t *messages, json_t *out)
{
    int bad = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *text = json_object_get(message, "content");
        if (json_array_size(calls_of(message)) > 0) {
            if (json_string_length(text) > 0)
                bad |= json_array_append_new(out, json_pack("{s:s,s:O}", "role", "assistant", "content", text));
            bad |= json_object_set_new(message, "content", json_null());
        }
        bad |= json_array_append(out, message);
    }
    return bad;
}

/* Names the reasoning as the template does, and adds a text beside calls to it if that is where it belongs. */
static int name_reasoning(json_t *messages, const struct template_needs *needs)
{
    struct growing_text reasoning = {.field = "reasoning_content"};
    int bad = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *text = json_object_get(message, "content");
        if (!json_object_get(message, "reasoning_content"))
            continue;
        if (needs->text_in_reasoning && calls_of(message) && json_string_length(text) > 0) {
            bad |= growing_add(&reasoning, message, "\n\n", json_incref(text), NULL) != ERR_OK;
            bad |= growing_end(&reasoning, NULL) != ERR_OK;
            bad |= json_object_set_new(message, "content", json_string(""));
        }
        if (needs->reasoning_field) {
            bad |= json_object_set(message, needs->reasoning_field, json_object_get(message, "reasoning_content"));
            bad |= json_object_del(message, "reasoning_content");
        }
    }
    bytes_close(&reasoning.text);
    return bad;
}

/* Joins what the user says to the message before if that has this role. */
static int join_users(json_t *messages, const char *role, json_t *out)
{
    struct growing_text content = {.field = "content"};
    int bad = 0;
    for (size_t i = 0; !bad && i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *last = json_array_get(out, json_array_size(out) - 1);
        if (!has_role(last, role) || !has_role(message, "user"))
            bad |= json_array_append(out, message);
        else
            bad |=
                growing_add(&content, last, "\n\n", json_incref(json_object_get(message, "content")), NULL) != ERR_OK;
    }
    bad |= growing_end(&content, NULL) != ERR_OK;
    bytes_close(&content.text);
    return bad;
}

static int join_user_users(json_t *messages, json_t *out)
{
    return join_users(messages, "user", out);
}

static int join_result_users(json_t *messages, json_t *out)
{
    return join_users(messages, "tool", out);
}

/* The user says what the system does, and goes on with the own text. */
static int leave_system(json_t *messages, json_t *out)
{
    json_t *first = json_array_get(messages, 0);
    if (!has_role(first, "system"))
        return json_array_extend(out, messages);
    bool joins = has_role(json_array_get(messages, 1), "user");
    int bad = json_object_set_new(first, "role", json_string("user")) | json_array_append(out, first);
    for (size_t i = 1 + joins; i < json_array_size(messages); i++)
        bad |= json_array_append(out, json_array_get(messages, i));
    struct growing_text content = {.field = "content"};
    json_t *text = json_object_get(json_array_get(messages, 1), "content");
    if (joins)
        bad |= growing_add(&content, first, "\n\n", json_incref(text), NULL) != ERR_OK ||
               growing_end(&content, NULL) != ERR_OK;
    bytes_close(&content.text);
    return bad;
}

/* What `make` makes of messages, which are taken over. NULL: there is no memory, or there are none. */
static json_t *rebuild(json_t *messages, int (*make)(json_t *messages, json_t *out))
{
    json_t *out = json_array();
    int bad = !messages || make(messages, out);
    json_decref(messages);
    return json_unless(bad, out);
}

/* Makes messages (taken over) fit; texts: of all calls' arguments. NULL: there is no memory. */
static json_t *adapt(const struct template_needs *needs, json_t *messages, const json_t *texts)
{
    int bad = 0;
    if (needs->text_arguments)
        bad |= set_text_arguments(messages, texts);
    if (needs->short_ids)
        bad |= shorten_ids(messages);
    if (needs->reasoning_field || needs->text_in_reasoning)
        bad |= name_reasoning(messages, needs);
    messages = json_unless(bad, messages);
    if (needs->one_call)
        messages = rebuild(messages, split_calls);
    if (needs->null_content)
        messages = rebuild(messages, set_null_content);
    if (needs->no_system)
        messages = rebuild(messages, leave_system);
    if (needs->user_in_result)
        messages = rebuild(messages, join_result_users);
    if (needs->one_user)
        messages = rebuild(messages, join_user_users);
    return messages;
}

bool template_needs_splits(const struct template_needs *needs, const json_t *message)
{
    size_t n = json_array_size(calls_of(message));
    return (needs->one_call && n > 1) ||
           (needs->null_content && n > 0 && json_string_length(json_object_get(message, "content")) > 0);
}

json_t *template_needs_apply(const struct template_needs *needs, const struct server_request *r)
{
    const struct template_needs *n = needs;
    if (!n->no_system && !n->one_user && !n->user_in_result && !n->text_arguments && !n->short_ids &&
        !n->null_content && !n->reasoning_field && !n->text_in_reasoning && !n->one_call)
        return json_incref(r->messages);
    return adapt(needs, json_deep_copy(r->messages), r->argument_texts);
}

/* ---- probes ---------------------------------------------------------------------------------------------------- */

#define SYSTEM  "{\"role\":\"system\",\"content\":\"probe_system\"}"
#define USER    "{\"role\":\"user\",\"content\":\"probe_user\"}"
#define ANOTHER "{\"role\":\"user\",\"content\":\"probe_other\"}"
#define CALL(id)                                                                                                       \
    "{\"id\":\"call_" id "_0123456789\",\"type\":\"function\",\"function\":{\"name\":\"probe_tool\",\"arguments\":"    \
    "{\"probe_key\":\"probe_value_" id "\"}}}"
#define CALLS(text, calls) "{\"role\":\"assistant\",\"content\":\"" text "\",\"tool_calls\":[" calls "]}"
#define REASONED(text, calls)                                                                                          \
    "{\"role\":\"assistant\",\"content\":\"" text                                                                      \
    "\",\"reasoning_content\":\"probe_reasoning\",\"tool_calls\":[" calls "]}"
#define RESULT(id)                                                                                                     \
    "{\"role\":\"tool\",\"tool_call_id\":\"call_" id                                                                   \
    "_0123456789\",\"name\":\"probe_tool\",\"content\":\"probe_result\"}"

/* Whether a conversation, made fit, is rendered to a text that has `wanted` in it, and no object in Python's form and
 * no JSON within a string of JSON. */
static bool takes(const moebius_template *tmpl, const struct template_needs *needs, const char *conversation,
                  const char *wanted)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"probe_tool\",\"description\":\"Probes.\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"probe_key\":{\"type\":\"string\","
        "\"description\":\"A key.\"}},\"required\":[\"probe_key\"]}}}]";
    json_t *texts = json_pack("[s,s]", "{\"probe_key\": \"probe_value_a\"}", "{\"probe_key\": \"probe_value_b\"}");
    json_t *messages = adapt(needs, json_loads(conversation, 0, NULL), texts);
    char *text = messages ? json_write(messages, JSON_COMPACT, NULL) : NULL;
    const moebius_template_input input = {.messages = text, .tools = tools};
    moebius_prompt *prompt = NULL;
    bool good = text && moebius_template_render(tmpl, &input, &prompt, NULL) == MOEBIUS_OK;
    if (good) {
        const char *rendered = moebius_prompt_text(prompt, NULL);
        good = strstr(rendered, wanted) && !strstr(rendered, "'probe_key'") && !strstr(rendered, "\\\"probe_key");
    }
    moebius_prompt_close(&prompt);
    json_decref(messages);
    json_decref(texts);
    mem_free(text);
    return good;
}

/* Sets a need if a conversation can't be taken without it, but with it. */
static void find_need(struct template_needs *needs, bool *need, const moebius_template *tmpl, const char *conversation,
                      const char *wanted)
{
    if (!takes(tmpl, needs, conversation, wanted)) {
        *need = true;
        *need = takes(tmpl, needs, conversation, wanted);
    }
}

/* The first of the ways to say a call that works. False: none does. */
static bool find_call(struct template_needs *needs, const moebius_template *tmpl)
{
    for (int way = 0; way < 8; way++) {
        needs->text_arguments = way & 1;
        needs->short_ids = way & 2;
        needs->null_content = way & 4;
        if (takes(tmpl, needs, "[" USER "," CALLS("", CALL("a")) "," RESULT("a") "]", "probe_value_a"))
            return true;
    }
    needs->text_arguments = needs->short_ids = needs->null_content = false;
    return false;
}

/* What a template does with reasoning that it takes under no name is its own business. */
static void find_reasoning(struct template_needs *needs, const moebius_template *tmpl)
{
    static const char conversation[] = "[" USER "," REASONED("", CALL("a")) "," RESULT("a") "]";
    static const char with_text[] = "[" USER "," REASONED("probe_text", CALL("a")) "," RESULT("a") "]";
    for (size_t i = 0; i < N_REASONING; i++) {
        needs->reasoning_field = i ? reasoning_fields[i] : NULL;
        if (takes(tmpl, needs, conversation, "probe_reasoning")) {
            find_need(needs, &needs->text_in_reasoning, tmpl, with_text, "probe_text");
            return;
        }
    }
    needs->reasoning_field = NULL;
}

/* What a template makes of a word for how much to reason (NULL: none is given), to be closed; NULL: it can't take it.
 */
static moebius_prompt *render_effort(const moebius_template *tmpl, const char *word)
{
    char json[32];
    moebius_prompt *prompt = NULL;
    snprintf(json, sizeof json, "\"%s\"", word ? word : "");
    const moebius_template_var vars[] = {{"enable_thinking", "true"}, {"thinking", "true"}, {"reasoning_effort", json}};
    const moebius_template_input input = {.messages = "[" USER "]", .vars = vars, .n_vars = word ? 3 : 2};
    return moebius_template_render(tmpl, &input, &prompt, NULL) == MOEBIUS_OK ? prompt : NULL;
}

/* Whether two texts are the same but for one word in the place of another, which is as long. */
static bool is_same_but_for(const char *a, const char *b, const char *word, const char *other)
{
    size_t n = strlen(word);
    while (*a && *b) {
        bool is_word = !strncmp(a, word, n) && !strncmp(b, other, n);
        if (!is_word && *a != *b)
            return false;
        a += is_word ? n : 1;
        b += is_word ? n : 1;
    }
    return *a == *b;
}

/* Whether a word means more to the template than one that is none. */
static bool knows_effort(const moebius_template *tmpl, const char *word)
{
    char none[32] = "";
    memset(none, 'q', strlen(word));
    moebius_prompt *a = render_effort(tmpl, word), *b = render_effort(tmpl, none);
    bool knows = a && (!b || !is_same_but_for(moebius_prompt_text(a, NULL), moebius_prompt_text(b, NULL), word, none));
    moebius_prompt_close(&a);
    moebius_prompt_close(&b);
    return knows;
}

/* Whether the template takes no word for this one. */
static bool is_usual_effort(const moebius_template *tmpl, const char *word)
{
    moebius_prompt *a = render_effort(tmpl, NULL), *b = render_effort(tmpl, word);
    bool is_same = a && b && !strcmp(moebius_prompt_text(a, NULL), moebius_prompt_text(b, NULL));
    moebius_prompt_close(&a);
    moebius_prompt_close(&b);
    return is_same;
}

static void find_efforts(struct template_needs *needs, const moebius_template *tmpl)
{
    static const struct {
        enum effort effort;
        const char *word;
    } all[] = {{EFFORT_NONE, "none"}, {EFFORT_NONE, "no_think"}, {EFFORT_MAX, "max"}, {EFFORT_MAX, "xhigh"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!needs->efforts[all[i].effort] && knows_effort(tmpl, all[i].word))
            needs->efforts[all[i].effort] = all[i].word;
    const char *none = needs->efforts[EFFORT_NONE];
    if (none && is_usual_effort(tmpl, none) && knows_effort(tmpl, "high"))
        needs->efforts[EFFORT_ANY] = "high";
    moebius_prompt *medium = render_effort(tmpl, "medium");
    if (!medium && knows_effort(tmpl, "high"))
        needs->efforts[EFFORT_MEDIUM] = "high";
    moebius_prompt_close(&medium);
}

struct template_needs template_needs_find(const moebius_template *tmpl)
{
    struct template_needs needs = {0};
    find_efforts(&needs, tmpl);
    find_need(&needs, &needs.no_system, tmpl, "[" SYSTEM "," USER "]", "probe_system");
    find_need(&needs, &needs.one_user, tmpl, "[" USER "," ANOTHER "]", "probe_other");
    if (!find_call(&needs, tmpl))
        return needs;
    find_reasoning(&needs, tmpl);
    find_need(&needs, &needs.one_call, tmpl,
              "[" USER "," CALLS("", CALL("a") "," CALL("b")) "," RESULT("a") "," RESULT("b") "]", "probe_value_b");
    find_need(&needs, &needs.user_in_result, tmpl, "[" USER "," CALLS("", CALL("a")) "," RESULT("a") "," ANOTHER "]",
              "probe_other");
    return needs;
}
