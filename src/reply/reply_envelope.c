/* A call that is one JSON object, {"name": NAME, "arguments": {...}}, its keys in any order; "parameters" and
 * "function" are other names for them, and it may have an "id". Arguments before the name wait for it. */
#include <string.h>

#include "reply/reply_internal.h"

enum { MAX_WORD = 256 }; /* bytes of a key, a name or an id */

enum envelope {
    AT_OPEN, /* { must come; the first one, as a call begins with zero */
    AT_KEY,
    IN_KEY,
    AT_COLON,
    AT_VALUE,
    IN_WORD, /* a name or an id */
    IN_ARGUMENTS,
    IN_OTHER,
    AFTER_VALUE,
};

enum field { IS_NAME, IS_ARGUMENTS, IS_ID, IS_TYPE, IS_OTHER };

static enum field field_of(const char *key)
{
    static const struct {
        const char *key;
        enum field field;
    } fields[] = {{"name", IS_NAME},
                  {"function", IS_NAME},
                  {"tool_name", IS_NAME},
                  {"arguments", IS_ARGUMENTS},
                  {"parameters", IS_ARGUMENTS},
                  {"id", IS_ID},
                  {"type", IS_TYPE}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(key, fields[i].key))
            return fields[i].field;
    return IS_OTHER;
}

static bool fail(struct reply *r, const char *expected)
{
    reply_call_fail(r, expected);
    return true;
}

static bool take_to(struct reply *r, enum envelope at)
{
    r->call.at = (uint8_t)at;
    reply_call_take(r, 1);
    return true;
}

static bool end_key(struct reply *r)
{
    struct reply_call *c = &r->call;
    c->field = (uint8_t)field_of(bytes_text(&c->key));
    bool is_twice = (c->field == IS_NAME && c->name.n) || (c->field == IS_ARGUMENTS && c->stage != NO_ARGS);
    if (is_twice)
        return fail(r, "each key once");
    if (c->field == IS_OTHER && c->is_soft && !c->is_begun)
        return fail(r, NULL);
    return take_to(r, AT_COLON);
}

/* A piece of a key, a name or an id, up to its quote. */
static bool read_word(struct reply *r, struct bytes *to)
{
    struct reply_call *c = &r->call;
    char byte = r->held.s[0];
    if (byte == '"' && c->at == IN_KEY)
        return end_key(r);
    if (byte != '"') {
        if (byte == '\\' || (unsigned char)byte < 0x20 || to->n == MAX_WORD)
            return fail(r, "a plain name");
        bytes_put_char(to, byte);
        return take_to(r, (enum envelope)c->at);
    }
    take_to(r, AFTER_VALUE);
    if (c->field == IS_NAME && reply_call_know_tool(r) && c->stage == HAS_ARGS && reply_call_start(r))
        reply_call_commit(r);
    return true;
}

static bool begin_value(struct reply *r)
{
    struct reply_call *c = &r->call;
    char byte = r->held.s[0];
    if (c->field == IS_NAME || c->field == IS_ID) {
        bytes_clear(c->field == IS_NAME ? &c->name : &c->id);
        return byte == '"' ? take_to(r, IN_WORD) : fail(r, "a string");
    }
    if (c->field != IS_ARGUMENTS || byte != '{') {
        bytes_clear(&c->value);
        args_begin(&c->skip, ARGS_JSON, &c->value);
        c->at = IN_OTHER;
        return true;
    }
    if (c->name.n && !reply_call_start(r))
        return true;
    args_begin(&c->args, ARGS_JSON, &c->json);
    c->stage = IN_ARGS;
    c->at = IN_ARGUMENTS;
    return true;
}

static bool read_arguments(struct reply *r)
{
    struct reply_call *c = &r->call;
    enum args_result result = args_take(&c->args, r->held.s[0], &c->json);
    if (result == ARGS_WRONG)
        return fail(r, "JSON");
    take_to(r, result == ARGS_WHOLE ? AFTER_VALUE : IN_ARGUMENTS);
    if (c->is_begun && args_is_settled(&c->args))
        reply_call_commit(r);
    if (result == ARGS_WHOLE)
        c->stage = HAS_ARGS;
    return true;
}

/* Arguments that are no object: there are none, or they are an object's text in a string. */
static bool end_odd_arguments(struct reply *r)
{
    struct reply_call *c = &r->call;
    json_t *j = json_loadb(bytes_text(&c->value), c->value.n, JSON_DECODE_ANY, NULL);
    const char *text = json_string_value(j);
    bool is_none = json_is_null(j) || (text && !*text), is_object = text && *text == '{';
    bool good = is_none || (is_object && args_convert(text, strlen(text), ARGS_JSON, &c->json));
    json_decref(j);
    if (!good)
        return fail(r, "a JSON object of arguments");
    c->stage = is_none ? NO_ARGS : HAS_ARGS;
    if (c->stage == HAS_ARGS && c->name.n && reply_call_start(r))
        reply_call_commit(r);
    return true;
}

static bool read_other(struct reply *r)
{
    struct reply_call *c = &r->call;
    enum args_result result = args_take(&c->skip, r->held.s[0], &c->value);
    if (result == ARGS_WRONG)
        return fail(r, "JSON");
    c->at = result == ARGS_MORE ? IN_OTHER : AFTER_VALUE;
    if (result != ARGS_BEFORE)
        reply_call_take(r, 1);
    return result == ARGS_MORE || c->field != IS_ARGUMENTS || end_odd_arguments(r);
}

static bool end_envelope(struct reply *r)
{
    struct reply_call *c = &r->call;
    const struct reply_way *way = &c->state->ways[0];
    if (c->name.n == 0)
        return fail(r, "a name");
    if (!reply_call_start(r))
        return true;
    reply_call_take(r, 1);
    reply_call_end(r);
    reply_call_follow(r, way);
    return true;
}

bool reply_envelope_advance(struct reply *r)
{
    struct reply_call *c = &r->call;
    if (r->held.n == 0)
        return false;
    char byte = r->held.s[0];
    bool is_outside = c->at != IN_KEY && c->at != IN_WORD && c->at != IN_ARGUMENTS && c->at != IN_OTHER;
    if (is_outside && reply_is_space(byte))
        return take_to(r, (enum envelope)c->at);
    switch ((enum envelope)c->at) {
    case AT_OPEN: return byte == '{' ? take_to(r, AT_KEY) : fail(r, "a JSON object");
    case AT_KEY:
        bytes_clear(&c->key);
        return byte == '"' ? take_to(r, IN_KEY) : byte == '}' ? end_envelope(r) : fail(r, "a key");
    case IN_KEY: return read_word(r, &c->key);
    case AT_COLON: return byte == ':' ? take_to(r, AT_VALUE) : fail(r, ":");
    case AT_VALUE: return begin_value(r);
    case IN_WORD: return read_word(r, c->field == IS_NAME ? &c->name : &c->id);
    case IN_ARGUMENTS: return read_arguments(r);
    case IN_OTHER: return read_other(r);
    case AFTER_VALUE: break;
    }
    return byte == ',' ? take_to(r, AT_KEY) : byte == '}' ? end_envelope(r) : fail(r, "} of the call");
}
