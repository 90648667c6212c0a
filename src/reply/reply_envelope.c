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
    call_fail(r, expected);
    return true;
}

static bool take_to(struct reply *r, enum envelope at)
{
    r->call.at = (uint8_t)at;
    call_take(r, 1);
    return true;
}

static bool end_key(struct reply *r)
{
    struct call *c = &r->call;
    c->field = (uint8_t)field_of(reply_bytes_text(&c->key));
    bool is_twice = (c->field == IS_NAME && c->name.n) || (c->field == IS_ARGUMENTS && c->stage != NO_ARGS);
    if (is_twice)
        return fail(r, "each key once");
    if (c->field == IS_OTHER && c->is_soft && !c->is_begun)
        return fail(r, NULL);
    return take_to(r, AT_COLON);
}

/* A piece of a key, a name or an id, up to its quote. */
static bool read_word(struct reply *r, struct reply_bytes *to)
{
    struct call *c = &r->call;
    char byte = r->held.s[0];
    if (byte == '"' && c->at == IN_KEY)
        return end_key(r);
    if (byte != '"') {
        if (byte == '\\' || (unsigned char)byte < 0x20 || to->n == MAX_WORD)
            return fail(r, "a plain name");
        reply_bytes_add_char(to, byte);
        return take_to(r, (enum envelope)c->at);
    }
    take_to(r, AFTER_VALUE);
    if (c->field == IS_NAME && call_know_tool(r) && c->stage == HAS_ARGS && call_start(r))
        call_commit(r);
    return true;
}

static bool begin_value(struct reply *r)
{
    struct call *c = &r->call;
    char byte = r->held.s[0];
    if (c->field == IS_NAME || c->field == IS_ID) {
        reply_bytes_clear(c->field == IS_NAME ? &c->name : &c->id);
        return byte == '"' ? take_to(r, IN_WORD) : fail(r, "a string");
    }
    if (c->field != IS_ARGUMENTS) {
        reply_bytes_clear(&c->value);
        args_begin(&c->skip, ARGS_JSON, &c->value);
        c->at = IN_OTHER;
        return true;
    }
    if (byte != '{')
        return fail(r, "a JSON object of arguments");
    if (c->name.n && !call_start(r))
        return true;
    args_begin(&c->args, ARGS_JSON, &c->json);
    c->stage = IN_ARGS;
    c->at = IN_ARGUMENTS;
    return true;
}

static bool read_arguments(struct reply *r)
{
    struct call *c = &r->call;
    enum args_result result = args_take(&c->args, r->held.s[0], &c->json);
    if (result == ARGS_WRONG)
        return fail(r, "JSON");
    take_to(r, result == ARGS_WHOLE ? AFTER_VALUE : IN_ARGUMENTS);
    if (c->is_begun && args_is_settled(&c->args))
        call_commit(r);
    if (result == ARGS_WHOLE)
        c->stage = HAS_ARGS;
    return true;
}

static bool read_other(struct reply *r)
{
    enum args_result result = args_take(&r->call.skip, r->held.s[0], &r->call.value);
    if (result == ARGS_WRONG)
        return fail(r, "JSON");
    if (result == ARGS_BEFORE)
        r->call.at = AFTER_VALUE;
    else
        take_to(r, result == ARGS_WHOLE ? AFTER_VALUE : IN_OTHER);
    return true;
}

static bool end_envelope(struct reply *r)
{
    struct call *c = &r->call;
    const struct reply_way *way = &c->state->ways[0];
    if (c->name.n == 0)
        return fail(r, "a name");
    if (!call_start(r))
        return true;
    call_take(r, 1);
    call_end(r);
    call_follow(r, way);
    return true;
}

bool envelope_advance(struct reply *r)
{
    struct call *c = &r->call;
    if (r->held.n == 0)
        return false;
    char byte = r->held.s[0];
    bool is_outside = c->at != IN_KEY && c->at != IN_WORD && c->at != IN_ARGUMENTS && c->at != IN_OTHER;
    if (is_outside && reply_is_space(byte))
        return take_to(r, (enum envelope)c->at);
    switch ((enum envelope)c->at) {
    case AT_OPEN: return byte == '{' ? take_to(r, AT_KEY) : fail(r, "a JSON object");
    case AT_KEY:
        reply_bytes_clear(&c->key);
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
