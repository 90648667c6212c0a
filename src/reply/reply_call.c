/* Calls: follows the states of a family. */
#include <string.h>

#include "reply/reply_internal.h"

enum {
    MAX_NAME = 256, /* bytes of a name, an id, a key or a header: what is longer is none */
    MAX_SPACE = 256 /* bytes of white space behind a value's end, after which what follows does not matter */
};

/* ---- steps --------------------------------------------------------------------------------------------------- */

void reply_call_take(struct reply *r, size_t n)
{
    bytes_put(&r->call.raw, r->held.s, n);
    bytes_drop(&r->held, n);
}

void reply_call_commit(struct reply *r)
{
    reply_tell(r, REPLY_SYNTAX, r->call.raw.s, r->call.raw.n);
    bytes_clear(&r->call.raw);
}

/* Nothing of a call is known any more. */
static void forget(struct reply_call *c)
{
    bytes_clear(&c->name);
    bytes_clear(&c->id);
    bytes_clear(&c->key);
    bytes_clear(&c->json);
    bytes_clear(&c->value);
    c->tool = NULL;
    c->is_begun = false;
    c->stage = NO_ARGS;
    c->is_in_value = false;
    c->at = 0;
}

/* What was read since the trigger, or the last call, is no call. */
static void leave_as_text(struct reply *r)
{
    struct reply_call *c = &r->call;
    c->state = NULL;
    reply_tell(r, r->part, c->raw.s, c->raw.n);
    r->is_trimming = c->raw.n == 0;
    bytes_clear(&c->raw);
    forget(c);
}

void reply_call_begin(struct reply *r, const struct reply_trigger *t, size_t n_space)
{
    struct reply_call *c = &r->call;
    forget(c);
    c->state = &r->style.family->states[t->to];
    c->has_called = false;
    c->is_soft = (t->flags & TRIGGER_IS_SOFT) != 0;
    reply_call_take(r, n_space + (t->flags & TRIGGER_KEEPS ? 0 : strlen(t->text)));
}

/* functions.NAME:3, which is the id, too. */
static void split_id(struct reply_call *c)
{
    char *colon = c->name.n ? strrchr(c->name.s, ':') : NULL;
    bytes_clear(&c->id);
    bytes_put(&c->id, bytes_text(&c->name), c->name.n);
    if (colon) {
        *colon = '\0';
        c->name.n = (size_t)(colon - c->name.s);
    }
}

bool reply_call_know_tool(struct reply *r)
{
    static const char functions[] = "functions.";
    struct reply_call *c = &r->call;
    if (c->tool)
        return true;
    while (c->name.n && reply_is_space(c->name.s[c->name.n - 1]))
        c->name.s[--c->name.n] = '\0';
    if (r->style.family->has_id_in_name && c->id.n == 0)
        split_id(c);
    c->tool = reply_tools_find(r->tools, bytes_text(&c->name));
    if (!c->tool && !strncmp(bytes_text(&c->name), functions, sizeof functions - 1)) {
        bytes_drop(&c->name, sizeof functions - 1);
        c->tool = reply_tools_find(r->tools, bytes_text(&c->name));
    }
    if (c->tool)
        return true;
    if (!c->is_soft)
        reply_note(r, "a call of \"%.128s\", which is none of the tools, is left as text", bytes_text(&c->name));
    leave_as_text(r);
    return false;
}

bool reply_call_start(struct reply *r)
{
    struct reply_call *c = &r->call;
    if (!reply_call_know_tool(r))
        return false;
    if (c->is_begun)
        return true;
    reply_tell(r, REPLY_CALL, c->tool->name, strlen(c->tool->name));
    c->is_begun = true;
    r->part = REPLY_CONTENT;
    r->had_fault = false;
    return true;
}

/* ---- values of parameters ------------------------------------------------------------------------------------ */

/* Writes the key and begins its value. */
static void begin_value(struct reply *r)
{
    struct reply_call *c = &r->call;
    if (!reply_call_start(r))
        return;
    bytes_put_char(&c->json, c->stage == NO_ARGS ? '{' : ',');
    c->stage = IN_ARGS;
    args_string(bytes_text(&c->key), c->key.n, &c->json);
    bytes_put_char(&c->json, ':');
    c->kind = c->state->action == READ_STRING  ? REPLY_KIND_STRING
              : c->state->action == READ_OTHER ? REPLY_KIND_ANY
                                               : reply_tool_kind(c->tool, bytes_text(&c->key));
    if (c->kind == REPLY_KIND_STRING)
        args_string_begin(&c->args, &c->json);
    bytes_clear(&c->value);
    c->depth = 0;
    c->is_in_value = true;
}

/* What was kept of the value is the beginning of a string. */
static void value_is_string(struct reply_call *c)
{
    args_string_begin(&c->args, &c->json);
    for (size_t i = 0; i < c->value.n; i++)
        args_string_add(&c->args, c->value.s[i], &c->json);
    bytes_clear(&c->value);
    c->kind = REPLY_KIND_STRING;
}

static void take_value_byte(struct reply *r)
{
    struct reply_call *c = &r->call;
    char byte = r->held.s[0];
    reply_call_take(r, 1);
    if (c->kind == REPLY_KIND_STRING) {
        args_string_add(&c->args, byte, &c->json);
    } else {
        bytes_put_char(&c->value, byte);
        if (c->kind == REPLY_KIND_STRING_NULL && strncmp("null", bytes_text(&c->value), c->value.n) != 0)
            value_is_string(c);
    }
    if (c->kind == REPLY_KIND_STRING && args_is_settled(&c->args))
        reply_call_commit(r);
}

/* Takes a mark of the value's family. False: it is the value's end. */
static bool take_nested_mark(struct reply *r, const struct reply_way *way)
{
    struct reply_call *c = &r->call;
    bool nests = (way->flags & WAY_NESTS) != 0;
    if (!nests && c->depth == 0)
        return false;
    if (c->kind == REPLY_KIND_ANY) /* strings have no elements */
        c->depth += nests ? 1 : -1;
    for (size_t n = strlen(way->text); n > 0; n--)
        take_value_byte(r);
    return true;
}

/* Elements in elements, where the value's family writes these. */
static bool convert_nested(struct reply_call *c)
{
    const struct reply_way *ways = c->state->ways;
    return ways[1].text && ways[1].flags & WAY_NESTS &&
           args_convert_nested(bytes_text(&c->value), c->value.n, ways[1].text, ways[0].text, &c->json);
}

static void end_value(struct reply_call *c)
{
    bool is_null = c->kind == REPLY_KIND_STRING_NULL && c->value.n == 4;
    bool is_json = c->kind == REPLY_KIND_ANY || is_null;
    c->is_in_value = false;
    if (is_json && (convert_nested(c) || args_convert(bytes_text(&c->value), c->value.n, ARGS_JSON, &c->json) ||
                    args_convert(bytes_text(&c->value), c->value.n, ARGS_PYTHON, &c->json)))
        return;
    if (c->kind != REPLY_KIND_STRING)
        value_is_string(c);
    args_string_end(&c->args, &c->json);
}

/* ---- ends ---------------------------------------------------------------------------------------------------- */

static void tell_end(struct reply *r)
{
    struct reply_call *c = &r->call;
    if (c->stage == NO_ARGS)
        bytes_put_text(&c->json, "{}");
    reply_tell(r, REPLY_CALL_END, bytes_text(&c->id), c->id.n);
}

void reply_call_end(struct reply *r)
{
    tell_end(r);
    reply_call_commit(r);
    r->call.is_soft = false;
    r->call.has_called = true;
    forget(&r->call);
}

/* Writes what the arguments lack. */
static void close_args(struct reply_call *c)
{
    if (c->is_in_value)
        end_value(c);
    if (c->stage != IN_ARGS)
        return;
    if (c->state->action == READ_ARGS || c->state->action == READ_CALL)
        args_end(&c->args, &c->json);
    else
        bytes_put_char(&c->json, '}');
}

void reply_call_fail(struct reply *r, const char *expected)
{
    struct reply_call *c = &r->call;
    const char *behind = expected ? ", expected " : "";
    expected = expected ? expected : "";
    if (c->is_begun) {
        const char *name = c->tool->name; /* of the tools: stays */
        close_args(c);
        tell_end(r);
        reply_note(r, "the call of \"%.128s\" is malformed%s%s: it was ended there, and the rest is text", name, behind,
                   expected);
    } else if (c->has_called) {
        reply_note(r, "what follows a call is malformed%s%s: it is left as text", behind, expected);
    } else if (!c->is_soft) {
        reply_note(r, "what begins like a call is none%s%s: it is left as text", behind, expected);
    }
    r->had_fault = r->had_fault || c->is_begun || c->has_called;
    leave_as_text(r);
}

void reply_call_follow(struct reply *r, const struct reply_way *way)
{
    struct reply_call *c = &r->call;
    if (way->flags & WAY_ENDS) {
        if (!reply_call_start(r))
            return;
        if (c->stage == IN_ARGS)
            bytes_put_char(&c->json, '}');
        reply_call_end(r);
    } else if (way->flags & WAY_CLOSES) {
        reply_call_commit(r);
    }
    if (way->to == TO_TEXT) {
        reply_call_commit(r);
        reply_go_on(r, REPLY_CONTENT);
        c->state = NULL;
        return;
    }
    c->state = &r->style.family->states[way->to];
    struct bytes *read = c->state->action == READ_NAME  ? &c->name
                         : c->state->action == READ_ID  ? &c->id
                         : c->state->action == READ_KEY ? &c->key
                                                        : NULL;
    if (read)
        bytes_clear(read);
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

/* The way that the held bytes go: the longest text that they begin with. 1: more are needed to say; 0: none. */
static int find_way(const struct reply *r, const struct reply_way **way)
{
    const struct reply_state *s = r->call.state;
    size_t longest = 0, maybe = 0;
    *way = NULL;
    for (int i = 0; i < REPLY_MAX_WAYS && s->ways[i].text; i++) {
        size_t n = strlen(s->ways[i].text);
        int match = n ? reply_match(r, 0, s->ways[i].text) : 2;
        if (match == 2 && (n > longest || !*way)) {
            *way = &s->ways[i];
            longest = n;
        }
        maybe = match == 1 && n > maybe ? n : maybe;
    }
    return maybe > longest || (maybe && !*way) ? 1 : *way ? 2 : 0;
}

static void take_way(struct reply *r, const struct reply_way *way)
{
    if (!(way->flags & WAY_KEEPS))
        reply_call_take(r, strlen(way->text));
    reply_call_follow(r, way);
}

static bool skip_space(struct reply *r)
{
    size_t n = 0;
    while (n < r->held.n && reply_is_space(r->held.s[n]))
        n++;
    reply_call_take(r, n);
    return n > 0;
}

static bool read_mark(struct reply *r)
{
    const struct reply_way *way;
    int found = find_way(r, &way);
    if (found == 1)
        return false;
    if (found == 2)
        take_way(r, way);
    else
        reply_call_fail(r, r->call.state->ways[0].text);
    return true;
}

static bool is_name_byte(char c)
{
    return (unsigned char)c > 0x20 && !strchr("<>{}()[]\"'`=,;", c);
}

/* What an attribute says. */
static void unescape(struct bytes *b)
{
    static const struct {
        const char *escape;
        char c;
    } all[] = {{"&amp;", '&'}, {"&quot;", '"'}};
    size_t n = 0;
    for (size_t i = 0; i < b->n; n++) {
        size_t k = 0;
        while (k < 2 && strncmp(b->s + i, all[k].escape, strlen(all[k].escape)) != 0)
            k++;
        b->s[n] = k < 2 ? all[k].c : b->s[i];
        i += k < 2 ? strlen(all[k].escape) : 1;
    }
    if (b->n)
        b->s[b->n = n] = '\0';
}

/* All up to a mark: a name, an id or a key. */
static bool read_until(struct reply *r, struct bytes *to)
{
    const struct reply_way *way;
    int found = r->held.n ? find_way(r, &way) : 1;
    if (found == 1)
        return false;
    struct reply_call *c = &r->call;
    bool is_key = c->state->action == READ_KEY, has_attributes = r->style.family->has_attributes;
    if (found == 2) {
        if (has_attributes)
            unescape(to);
        take_way(r, way);
        return true;
    }
    char byte = r->held.s[0];
    if (to->n == MAX_NAME ||
        (!is_key && !is_name_byte(byte) && !(has_attributes && byte == ';') && !(reply_is_space(byte) && to->n)) ||
        (is_key && (unsigned char)byte < 0x20)) {
        reply_call_fail(r, is_key ? "the name of a parameter" : c->state->ways[0].text);
        return true;
    }
    bytes_put_char(to, byte);
    reply_call_take(r, 1);
    return true;
}

/* Whether a value ends with the text of `way`, because what follows can follow it: 1: more bytes are needed to say;
 * 0: the text belongs to the value, as in a file about such calls. */
static int find_follower(const struct reply *r, const struct reply_way *way)
{
    const struct reply_state *next = &r->style.family->states[way->to];
    size_t at = strlen(way->text), n_space = 0;
    int best = 0;
    if (next->action != READ_MARK)
        return 2;
    while (at + n_space < r->held.n && reply_is_space(r->held.s[at + n_space]))
        if (++n_space > MAX_SPACE)
            return 2;
    for (int i = 0; i < REPLY_MAX_WAYS && next->ways[i].text; i++) {
        int match = reply_match(r, at + n_space, next->ways[i].text);
        best = match > best ? match : best;
    }
    return best;
}

static bool read_value(struct reply *r)
{
    const struct reply_way *way;
    if (!r->call.is_in_value) {
        begin_value(r);
        return true;
    }
    int found = r->held.n ? find_way(r, &way) : 1;
    if (found == 2 && take_nested_mark(r, way))
        return true;
    if (found == 2)
        found = find_follower(r, way);
    if (found == 2) {
        end_value(&r->call);
        reply_call_take(r, strlen(way->text));
        reply_call_commit(r);
        reply_call_follow(r, way);
    } else if (found == 0) {
        take_value_byte(r);
    }
    return found != 1;
}

static bool read_args(struct reply *r)
{
    struct reply_call *c = &r->call;
    if (r->held.n == 0)
        return false;
    if (c->stage == NO_ARGS) {
        if (c->state->notation == ARGS_JSON && r->held.s[0] != '{') {
            reply_call_fail(r, "a JSON object of arguments");
            return true;
        }
        if (!reply_call_start(r))
            return true;
        args_begin(&c->args, (enum args_notation)c->state->notation, &c->json);
        c->stage = IN_ARGS;
    }
    enum args_result result = args_take(&c->args, r->held.s[0], &c->json);
    if (result == ARGS_WRONG) {
        reply_call_fail(r, "JSON");
        return true;
    }
    reply_call_take(r, 1);
    if (args_is_settled(&c->args))
        reply_call_commit(r);
    if (result == ARGS_WHOLE) {
        const struct reply_way *way = &c->state->ways[0];
        c->stage = HAS_ARGS;
        reply_call_end(r);
        reply_call_follow(r, way);
    }
    return true;
}

static bool read_header(struct reply *r)
{
    static const char end[] = "<|message|>";
    int match = r->held.n ? reply_match(r, 0, end) : 1;
    if (match == 1)
        return false;
    reply_call_take(r, match == 2 ? sizeof end - 1 : 1);
    if (match == 2)
        reply_harmony_header(r);
    else if (r->call.raw.n > MAX_NAME)
        reply_call_fail(r, NULL);
    return true;
}

/* Whether white space is no matter here. */
static bool is_before_text(const struct reply_call *c)
{
    switch ((enum reply_action)c->state->action) {
    case READ_MARK: return true;
    case READ_NAME: return c->name.n == 0;
    case READ_ARGS: return c->stage == NO_ARGS;
    default: return false;
    }
}

bool reply_call_advance(struct reply *r)
{
    struct reply_call *c = &r->call;
    if (is_before_text(c) && skip_space(r))
        return true;
    switch ((enum reply_action)c->state->action) {
    case READ_MARK: return read_mark(r);
    case READ_NAME: return read_until(r, &c->name);
    case READ_ID: return read_until(r, &c->id);
    case READ_KEY: return read_until(r, &c->key);
    case READ_VALUE:
    case READ_STRING:
    case READ_OTHER: return read_value(r);
    case READ_ARGS: return read_args(r);
    case READ_CALL: return reply_envelope_advance(r);
    case READ_HEADER: break;
    }
    return read_header(r);
}

/* Nothing but white space since the last call. */
static bool is_between_calls(const struct reply_call *c)
{
    size_t n = 0;
    while (n < c->raw.n && reply_is_space(c->raw.s[n]))
        n++;
    return !c->is_begun && c->name.n == 0 && n == c->raw.n;
}

/* Tells what there is of a call that has no end. */
static void leave_open(struct reply *r)
{
    struct reply_call *c = &r->call;
    reply_call_commit(r);
    reply_note(r, "the call of \"%.128s\" was cut", c->tool->name);
    forget(c);
}

void reply_call_finish(struct reply *r, bool is_cut)
{
    struct reply_call *c = &r->call;
    if (c->is_begun && c->stage != HAS_ARGS) {
        const char *name = c->tool->name; /* of the tools: stays */
        reply_call_take(r, r->held.n);
        if (is_cut) {
            leave_open(r);
        } else {
            close_args(c);
            reply_call_end(r);
            reply_note(r, "the call of \"%.128s\" was cut short: it was ended there", name);
        }
    } else if (c->is_begun) {
        reply_call_end(r);
    } else if (is_between_calls(c)) {
        reply_call_commit(r);
    } else {
        reply_call_fail(r, NULL);
        return;
    }
    c->state = NULL;
    reply_go_on(r, REPLY_CONTENT);
}

void reply_call_close(struct reply_call *c)
{
    bytes_close(&c->raw);
    bytes_close(&c->name);
    bytes_close(&c->id);
    bytes_close(&c->key);
    bytes_close(&c->json);
    bytes_close(&c->value);
    args_close(&c->args);
    args_close(&c->skip);
}
