#include "server/template_needs.h"

#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "server/messages.h"

/* ---- probes ---------------------------------------------------------------------------------------------------- */

/* Whether a conversation (taken over) can be rendered to a text that has `wanted` and not `unwanted` (NULL: whatever).
 */
static bool renders(const moebius_template *tmpl, json_t *messages, const char *wanted, const char *unwanted)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"probe_tool\",\"description\":\"Probes.\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"probe_key\":{\"type\":"
        "\"string\"}}}}}]";
    char *text = messages ? json_write(messages, JSON_COMPACT, NULL) : NULL;
    const moebius_template_input input = {.messages = text, .tools = tools};
    moebius_prompt *prompt = NULL;
    json_decref(messages);
    bool good = text && moebius_template_render(tmpl, &input, &prompt, NULL) == MOEBIUS_OK;
    if (good) {
        const char *rendered = moebius_prompt_text(prompt, NULL);
        good = strstr(rendered, wanted) && !(unwanted && strstr(rendered, unwanted));
    }
    moebius_prompt_close(&prompt);
    mem_free(text);
    return good;
}

/* Takes over the arguments. */
static json_t *make_call(const char *id, json_t *arguments)
{
    return json_pack("[{s:s,s:s},{s:s,s:s,s:[{s:s,s:s,s:{s:s,s:o}}]},{s:s,s:s,s:s,s:s}]", "role", "user", "content",
                     "A probe.", "role", "assistant", "content", "", "tool_calls", "id", id, "type", "function",
                     "function", "name", "probe_tool", "arguments", arguments, "role", "tool", "content", "Done.",
                     "tool_call_id", id, "name", "probe_tool");
}

static json_t *probe_object(void)
{
    return json_pack("{s:s}", "probe_key", "probe_value");
}

static json_t *probe_text(void)
{
    return json_string("{\"probe_key\": \"probe_value\"}");
}

static void find_call_needs(struct template_needs *needs, const moebius_template *tmpl)
{
    static const char long_id[] = "call_0123456789abcdef", short_id[] = "probe0001";
    static const char value[] = "probe_value", quoted[] = "\\\"probe_key", python[] = "'probe_key'";
    for (int is_short = 0; is_short < 2; is_short++) {
        const char *id = is_short ? short_id : long_id;
        bool takes_object = renders(tmpl, make_call(id, probe_object()), value, python);
        bool takes_text = !takes_object && renders(tmpl, make_call(id, probe_text()), value, quoted);
        if (takes_object || takes_text) {
            needs->short_ids = is_short;
            needs->text_arguments = takes_text;
            return;
        }
    }
}

struct template_needs template_needs_find(const moebius_template *tmpl)
{
    struct template_needs needs = {0};
    static const char system[] = "Probe of a system.", first[] = "First probe.", second[] = "Second probe.";
    if (!renders(tmpl, json_pack("[{s:s,s:s}]", "role", "user", "content", first), first, NULL))
        return needs;
    needs.no_system = !renders(
        tmpl, json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content", system, "role", "user", "content", first),
        system, NULL);
    needs.one_user = !renders(
        tmpl, json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", first, "role", "user", "content", second),
        first, NULL);
    find_call_needs(&needs, tmpl);
    return needs;
}

/* ---- messages -------------------------------------------------------------------------------------------------- */

static bool has_role(const json_t *message, const char *role)
{
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && !strcmp(own, role);
}

/* Adds the content of the next message to this one, which becomes the user's. */
static int join_next(json_t *messages, size_t i)
{
    json_t *message = json_array_get(messages, i);
    json_t *text = json_object_get(json_array_get(messages, i + 1), "content");
    err_code code = messages_append(message, "content", "\n\n", json_incref(text), NULL);
    return (code != ERR_OK) | json_object_set_new(message, "role", json_string("user")) |
           json_array_remove(messages, i + 1);
}

static int join_users(json_t *messages)
{
    int bad = 0;
    for (size_t i = 0; i + 1 < json_array_size(messages);)
        if (has_role(json_array_get(messages, i), "user") && has_role(json_array_get(messages, i + 1), "user"))
            bad |= join_next(messages, i);
        else
            i++;
    return bad;
}

static int leave_system(json_t *messages)
{
    json_t *first = json_array_get(messages, 0);
    if (!has_role(first, "system"))
        return 0;
    if (has_role(json_array_get(messages, 1), "user"))
        return join_next(messages, 0);
    return json_object_set_new(first, "role", json_string("user"));
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

static int adapt_calls(const struct template_needs *needs, json_t *messages, const json_t *texts)
{
    json_t *known = json_object();
    size_t n_call = 0;
    int bad = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i), *calls = json_object_get(message, "tool_calls");
        if (needs->short_ids)
            bad |= shorten_id(message, "tool_call_id", known);
        for (size_t k = 0; k < json_array_size(calls); k++, n_call++) {
            json_t *call = json_array_get(calls, k);
            if (needs->short_ids)
                bad |= shorten_id(call, "id", known);
            if (needs->text_arguments)
                bad |= json_object_set(json_object_get(call, "function"), "arguments", json_array_get(texts, n_call));
        }
    }
    json_decref(known);
    return bad;
}

json_t *template_needs_apply(const struct template_needs *needs, const struct server_request *r)
{
    bool any = needs->text_arguments || needs->short_ids || needs->no_system || needs->one_user;
    json_t *messages = any ? json_deep_copy(r->messages) : json_incref(r->messages);
    int bad = 0;
    if (needs->text_arguments || needs->short_ids)
        bad |= adapt_calls(needs, messages, r->argument_texts);
    if (needs->no_system)
        bad |= leave_system(messages);
    if (needs->one_user)
        bad |= join_users(messages);
    if (!bad)
        return messages;
    json_decref(messages);
    return NULL;
}
