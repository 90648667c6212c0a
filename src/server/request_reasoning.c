/* How a request says whether and how much the model reasons. Templates have no common name for it: most ask for
 * enable_thinking, some for thinking, MiniMax M3 for thinking_mode, gpt-oss for reasoning_effort and Kimi K3 for
 * thinking_effort. What the client says of these in chat_template_kwargs counts more than what is derived here. */

#include "server/request_fields.h"

/* Sets a variable of the template unless the client has set it itself. */
static err_code set_default(struct server_request *r, const char *name, json_t *value, struct err *e)
{
    const json_t *own = json_object_get(r->body, "chat_template_kwargs");
    if (json_object_get(own, name)) {
        json_decref(value);
        return ERR_OK;
    }
    return json_object_set_new(r->template_vars, name, value) == 0 ? ERR_OK : err_nomem(e, 0, name);
}

/* How much the model is to reason, and the word for it that most templates know. */
static err_code set_effort(struct server_request *r, enum effort effort, const char *word, struct err *e)
{
    TRY(set_default(r, "reasoning_effort", json_string(word), e));
    bool is_own = json_object_get(json_object_get(r->body, "chat_template_kwargs"), "reasoning_effort");
    r->effort = is_own ? EFFORT_OWN : effort;
    return ERR_OK;
}

err_code request_set_thinks(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    if (!json_is_boolean(value))
        return request_expected(e, path, value, "true or false");
    TRY(set_default(r, "enable_thinking", json_incref(value), e));
    TRY(set_default(r, "thinking", json_incref(value), e));
    return set_default(r, "thinking_mode", json_string(json_is_true(value) ? "enabled" : "disabled"), e);
}

err_code request_check_reasoning(struct server_request *r, struct err *e)
{
    if (r->reasoning_budget == 0)
        TRY(request_set_thinks(r, "reasoning_budget", json_false(), e));
    const json_t *thinks = json_object_get(r->template_vars, "enable_thinking");
    if (json_is_true(thinks) && !json_object_get(r->template_vars, "reasoning_effort"))
        r->effort = EFFORT_ANY;
    /* the least that models do who always reason */
    return json_is_false(thinks) ? set_effort(r, EFFORT_NONE, "low", e) : ERR_OK;
}

err_code request_set_effort(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    /* what clients say, and the nearest words that models were trained with: as reasoning_effort and thinking_effort */
    static const struct {
        const char *said, *effort, *thinking_effort;
        enum effort level;
    } words[] = {{"minimal", "low", "low", EFFORT_LOW},       {"low", "low", "low", EFFORT_LOW},
                 {"medium", "medium", "high", EFFORT_MEDIUM}, {"high", "high", "high", EFFORT_HIGH},
                 {"xhigh", "high", "max", EFFORT_MAX},        {"max", "high", "max", EFFORT_MAX}};
    const char *text = json_string_value(value);
    if (request_is(text, "none"))
        return request_set_thinks(r, path, json_false(), e);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (request_is(text, words[i].said)) {
            TRY(set_effort(r, words[i].level, words[i].effort, e));
            TRY(set_default(r, "thinking_effort", json_string(words[i].thinking_effort), e));
            bool is_said = json_object_get(r->template_vars, "enable_thinking") != NULL;
            return is_said ? ERR_OK : request_set_thinks(r, path, json_true(), e);
        }
    return request_expected(e, path, value, "none, minimal, low, medium, high, xhigh or max");
}

static err_code set_excluded(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    if (!json_is_boolean(value))
        return request_expected(e, path, value, "true or false");
    r->hides_reasoning |= json_is_true(value);
    return ERR_OK;
}

err_code request_set_reasoning(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    static const struct request_field fields[] = {
        FIELD_SETTER("effort", request_set_effort),
        FIELD_SETTER("enabled", request_set_thinks),
        FIELD_SETTER("exclude", set_excluded),
        FIELD_LENGTH("max_tokens", reasoning_budget, -1),
        FIELD_IGNORED("summary"), /* protocol_responses.c looks at it */
        FIELD_IGNORED("generate_summary"),
        FIELD_IGNORED("context"),
        FIELD_IGNORED("mode"),
    };
    return REQUEST_READ_MEMBERS(r, path, value, fields, e);
}

err_code request_set_thinking(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    static const struct request_field fields[] = {
        FIELD_IGNORED("type"),
        FIELD_LENGTH("budget_tokens", reasoning_budget, 1),
        FIELD_IGNORED("display"),
    };
    const char *type, *display;
    if (json_is_boolean(value))
        return request_set_thinks(r, path, value, e);
    TRY(request_string(value, path, "type", &type, e));
    TRY(request_string(value, path, "display", &display, e));
    if (!request_is(type, "enabled") && !request_is(type, "adaptive") && !request_is(type, "disabled"))
        return request_expected(e, field_path(path, -1, "type").s, json_object_get(value, "type"),
                                "enabled, adaptive or disabled");
    r->hides_reasoning |= request_is(display, "omitted");
    TRY(request_set_thinks(r, path, request_is(type, "disabled") ? json_false() : json_true(), e));
    return REQUEST_READ_MEMBERS(r, path, value, fields, e);
}
