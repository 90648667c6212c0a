/* JSON in and out: variables come as JSON, and tojson writes it as Python's json.dumps does. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "template/tmpl_strings.h"
#include "template/tmpl_unicode.h"

/* ---- in ------------------------------------------------------------------------------------------------------ */

/* A string of the caller's. The usual names of roles are trusted where they stand for one: some templates make special
 * tokens of them, such as '<|' + message.role + '|>'. */
static struct value string_from_json(struct render *r, const json_t *j, const char *key)
{
    static const char *const roles[] = {"system",    "user",     "assistant",   "tool",
                                        "developer", "function", "observation", "ipython"};
    struct value v = value_copy_string(r, json_string_value(j), json_string_length(j));
    for (size_t i = 0; !strcmp(key, "role") && i < sizeof roles / sizeof *roles; i++) {
        struct text_builder t = {0};
        if (!span_is(value_span(v), roles[i]))
            continue;
        text_add_string(r, &t, roles[i]);
        text_trust(r, &t, 0);
        v = text_value(t);
    }
    return v;
}

static struct value from_json(struct render *r, const json_t *j, const char *in_key, int depth)
{
    struct value v = value_none(), *item;
    const char *key;
    size_t i, n;
    json_t *child;
    if (depth > TMPL_MAX_VALUE_NESTING)
        fail_limit(r, "JSON is nested too deeply");
    if (!charge(r, 0))
        return v;
    switch (json_typeof(j)) {
    case JSON_NULL: return v;
    case JSON_TRUE:
    case JSON_FALSE: return value_bool(json_is_true(j));
    case JSON_INTEGER: return value_int(json_integer_value(j));
    case JSON_REAL: return value_float(json_real_value(j));
    case JSON_STRING: return string_from_json(r, j, in_key);
    case JSON_ARRAY:
        n = json_array_size(j);
        v = value_seq(r, V_LIST, (uint32_t)n);
        for (i = 0; i < n && r->code == ERR_OK; i++)
            value_push(r, v, from_json(r, json_array_get(j, i), "", depth + 1));
        return v;
    case JSON_OBJECT: break;
    }
    v = value_dict(r, V_DICT); /* jansson has seen to it that no key comes twice */
    n = json_object_size(j);
    struct value *keys = render_alloc(r, n * sizeof *keys);
    item = render_alloc(r, n * sizeof *item);
    if (r->code != ERR_OK)
        return v;
    *v.dict = (struct dict){.keys = keys, .values = item, .capacity = (uint32_t)n};
    json_object_foreach((json_t *)j, key, child)
    {
        struct value k = value_copy_string(r, key, strlen(key)), c = from_json(r, child, key, depth + 1);
        if (r->code != ERR_OK || v.dict->n == n)
            break;
        keys[v.dict->n] = k;
        item[v.dict->n++] = c;
    }
    return v;
}

/* How many values there are, at most: what they need in memory has little to do with the length of the text. */
static size_t count_values(const char *json, size_t n)
{
    size_t n_values = 1;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (json[i] == '"')
            in_string = !in_string;
        else if (in_string)
            i += json[i] == '\\';
        else
            n_values += json[i] == '[' || json[i] == '{' || json[i] == ',' || json[i] == ':';
    }
    return n_values;
}

struct value json_parse(struct render *r, const char *name, const char *json)
{
    json_error_t error;
    size_t n = strlen(json);
    if (n > TMPL_MAX_JSON) {
        r->code = err_set(r->e, ERR_LIMIT, "%s: %zu bytes of JSON: expected at most %d", name, n, TMPL_MAX_JSON);
        return value_none();
    }
    if (count_values(json, n) > TMPL_MAX_JSON_VALUES) {
        r->code = err_set(r->e, ERR_LIMIT, "%s: expected at most %d values in its JSON", name, TMPL_MAX_JSON_VALUES);
        return value_none();
    }
    json_t *j = json_read(json, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!j && !*error.text) {
        r->code = err_nomem(r->e, n, name);
        return value_none();
    }
    if (!j) {
        r->code = err_set(r->e, ERR_FORMAT, "%s: line %d, column %d: %s", name, error.line, error.column, error.text);
        return value_none();
    }
    struct value v = from_json(r, j, "", 0);
    json_decref(j);
    return v;
}

/* ---- out ----------------------------------------------------------------------------------------------------- */

struct dump {
    struct render *r;
    struct text_builder *t;
    bool ascii, sorted, indented;
    struct span indent, item_separator, key_separator;
};

static void dump_value(struct dump *d, struct value v, int depth);

static void dump_string(struct dump *d, struct span s)
{
    text_add(d->r, d->t, "\"", 1);
    for (size_t i = 0; i < s.n && d->r->code == ERR_OK;) {
        static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
        uint32_t code;
        char escape[16] = "";
        unsigned n = code_next(s.s + i, s.n - i, &code);
        const char *simple = code && code < 0x80 ? strchr(from, (int)code) : NULL;
        if (simple)
            snprintf(escape, sizeof escape, "\\%c", to[simple - from]);
        else if (code < 0x20 || (d->ascii && code > 0x7e && code < 0x10000))
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)code);
        else if (d->ascii && code >= 0x10000)
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (code >> 10)),
                     (unsigned)(0xdc00 + (code & 0x3ff)));
        if (d->ascii && code == 0x7f)
            *escape = '\0';
        if (*escape)
            text_add_string(d->r, d->t, escape);
        else
            text_add_span(d->r, d->t, span_part(s, i, n));
        i += n;
    }
    text_add(d->r, d->t, "\"", 1);
}

static void dump_newline(struct dump *d, int depth)
{
    if (d->indented) {
        text_add(d->r, d->t, "\n", 1);
        text_add_fill(d->r, d->t, d->indent, depth);
    }
}

static void dump_key(struct dump *d, struct value key)
{
    struct text_builder t = {0};
    if (key.kind != V_STRING && key.kind != V_NONE && !is_number(key)) {
        fail(d->r, "keys must be str, int, float, bool or None, not %s", value_type_name(key));
    } else if (key.kind == V_STRING) {
        dump_string(d, value_span(key));
    } else {
        struct dump plain = {.r = d->r, .t = &t};
        dump_value(&plain, key, 0);
        dump_string(d, text_span(t));
    }
}

static void dump_dict(struct dump *d, const struct dict *dict, int depth)
{
    struct render *r = d->r;
    uint32_t *order = render_alloc(r, dict->n * sizeof *order);
    if (!order)
        return;
    for (uint32_t i = 0; i < dict->n && r->code == ERR_OK; i++) {
        uint32_t at = i;
        while (d->sorted && at > 0 && value_less(r, dict->keys[i], dict->keys[order[at - 1]])) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
    text_add(r, d->t, "{", 1);
    for (uint32_t i = 0; i < dict->n && r->code == ERR_OK; i++) {
        if (i)
            text_add_span(r, d->t, d->item_separator);
        dump_newline(d, depth + 1);
        dump_key(d, dict->keys[order[i]]);
        text_add_span(r, d->t, d->key_separator);
        dump_value(d, dict->values[order[i]], depth + 1);
    }
    if (dict->n)
        dump_newline(d, depth);
    text_add(r, d->t, "}", 1);
}

static void dump_list(struct dump *d, const struct seq *s, int depth)
{
    text_add(d->r, d->t, "[", 1);
    for (uint32_t i = 0; i < s->n && d->r->code == ERR_OK; i++) {
        if (i)
            text_add_span(d->r, d->t, d->item_separator);
        dump_newline(d, depth + 1);
        dump_value(d, s->items[i], depth + 1);
    }
    if (s->n)
        dump_newline(d, depth);
    text_add(d->r, d->t, "]", 1);
}

static void dump_value(struct dump *d, struct value v, int depth)
{
    struct render *r = d->r;
    if (depth > TMPL_MAX_VALUE_NESTING)
        fail_limit(r, "this value is nested too deeply for JSON");
    if (!charge(r, 0))
        return;
    switch ((enum value_kind)v.kind) {
    case V_NONE: text_add_string(r, d->t, "null"); break;
    case V_BOOL: text_add_string(r, d->t, v.boolean ? "true" : "false"); break;
    case V_INT: text_add_repr(r, d->t, v); break;
    case V_FLOAT:
        if (isfinite(v.real))
            text_add_float(r, d->t, v.real);
        else
            text_add_string(r, d->t, isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity");
        break;
    case V_STRING: dump_string(d, value_span(v)); break;
    case V_LIST:
    case V_TUPLE: dump_list(d, v.seq, depth); break;
    case V_DICT: dump_dict(d, v.dict, depth); break;
    default: fail(r, "'%s' is not JSON serializable", value_type_name(v));
    }
}

/* separators=(item, key) or [item, key]. */
static void set_separators(struct dump *d, struct value v)
{
    if ((v.kind != V_TUPLE && v.kind != V_LIST) || v.seq->n != 2) {
        fail(d->r, "separators must be two strings");
        return;
    }
    if (arg_text(d->r, v.seq->items[0], &d->item_separator))
        arg_text(d->r, v.seq->items[1], &d->key_separator);
}

struct value filter_tojson(struct render *r, struct value v, const struct value *argv)
{
    struct text_builder t = {0}, indent = {0};
    struct dump d = {.r = r, .t = &t, .ascii = value_is_true(r, argv[0]), .sorted = value_is_true(r, argv[3])};
    int64_t width;
    d.indented = arg_is_given(argv[1]);
    if (d.indented && argv[1].kind == V_STRING)
        d.indent = value_span(argv[1]);
    else if (d.indented && arg_int(r, argv[1], 0, &width)) {
        text_add_fill(r, &indent, SPAN(" "), width);
        d.indent = text_span(indent);
    }
    d.item_separator = d.indented ? SPAN(",") : SPAN(", ");
    d.key_separator = SPAN(": ");
    if (arg_is_given(argv[2]))
        set_separators(&d, argv[2]);
    dump_value(&d, v, 0);
    return text_value(t);
}
