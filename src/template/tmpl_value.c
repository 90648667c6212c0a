#define _GNU_SOURCE /* memrchr */
#include "template/tmpl_value.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "template/tmpl_unicode.h"

/* ---- failures, memory, steps --------------------------------------------------------------------------------- */

struct value fail(struct render *r, const char *fmt, ...)
{
    if (r->code == ERR_OK) {
        char sentence[ERR_TEXT_BYTES / 2];
        va_list args;
        va_start(args, fmt);
        vsnprintf(sentence, sizeof sentence, fmt, args);
        va_end(args);
        for (size_t n = strlen(sentence), bad = utf8_valid(sentence, n); bad < n; bad = n)
            sentence[bad] = '\0'; /* a character that was cut */
        r->code = tmpl_error(r->e, ERR_FORMAT, r->t->source, r->pos, "%s", sentence);
    }
    return (struct value){0};
}

void fail_limit(struct render *r, const char *what)
{
    if (r->code == ERR_OK)
        r->code = tmpl_error(r->e, ERR_LIMIT, r->t->source, r->pos, "%s", what);
}

void *render_alloc(struct render *r, size_t n_bytes)
{
    enum { PIECE = 64 << 10, ALIGN = 16 };
    if (r->code != ERR_OK)
        return NULL;
    if (n_bytes > r->max_bytes || r->n_bytes + n_bytes > r->max_bytes) {
        fail_limit(r, "the template needs too much memory");
        return NULL;
    }
    n_bytes = (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    r->n_bytes += n_bytes;
    bool own = n_bytes > PIECE / 4;
    if (own || r->bump_left < n_bytes) {
        char *piece = arena_alloc(&r->arena, own ? n_bytes : PIECE);
        if (!piece) {
            r->code = err_nomem(r->e, n_bytes, "a template's values");
            return NULL;
        }
        if (own)
            return piece;
        r->bump = piece;
        r->bump_left = PIECE;
    }
    char *p = r->bump;
    r->bump += n_bytes;
    r->bump_left -= n_bytes;
    return p;
}

bool charge(struct render *r, size_t n_bytes)
{
    r->n_steps += 1 + (int64_t)(n_bytes / 32);
    if (r->n_steps > r->max_steps)
        fail_limit(r, "the template takes too many steps: is there a loop without an end?");
    return r->code == ERR_OK;
}

/* ---- making values ------------------------------------------------------------------------------------------- */

struct value value_none(void)
{
    return (struct value){.kind = V_NONE};
}

struct value value_bool(bool b)
{
    return (struct value){.kind = V_BOOL, .boolean = b};
}

struct value value_int(int64_t i)
{
    return (struct value){.kind = V_INT, .integer = i};
}

struct value value_float(double f)
{
    return (struct value){.kind = V_FLOAT, .real = f};
}

struct value value_string(struct span s)
{
    return (struct value){.kind = V_STRING, .s = s.s, .n = (uint32_t)s.n, .trusted = (uint32_t)s.trusted};
}

struct value value_copy_string(struct render *r, const char *s, size_t n)
{
    char *copy = render_alloc(r, n + 1);
    if (!copy)
        return (struct value){0};
    if (n)
        memcpy(copy, s, n);
    return value_string((struct span){copy, n});
}

struct value value_seq(struct render *r, enum value_kind kind, uint32_t n)
{
    struct seq *s = render_alloc(r, sizeof *s);
    struct value *items = s ? render_alloc(r, n * sizeof *items) : NULL;
    if (!items)
        return (struct value){0};
    *s = (struct seq){.items = items, .capacity = n};
    return (struct value){.kind = (uint8_t)kind, .seq = s};
}

struct value value_dict(struct render *r, enum value_kind kind)
{
    struct dict *d = render_alloc(r, sizeof *d);
    return d ? (struct value){.kind = (uint8_t)kind, .dict = d} : (struct value){0};
}

struct value value_undefined(struct span name)
{
    return (struct value){.kind = V_UNDEFINED, .of = UNDEFINED_NAME, .s = name.s, .n = (uint32_t)name.n};
}

struct value value_undefined_sentence(const char *sentence)
{
    return (struct value){
        .kind = V_UNDEFINED, .of = UNDEFINED_SENTENCE, .s = sentence, .n = (uint32_t)strlen(sentence)};
}

struct value value_undefined_attribute(struct value object, struct span name)
{
    return (struct value){.kind = V_UNDEFINED, .of = object.kind, .s = name.s, .n = (uint32_t)name.n};
}

struct value value_method(struct render *r, const struct function *f, struct value self)
{
    struct method *m = render_alloc(r, sizeof *m);
    if (!m)
        return (struct value){0};
    *m = (struct method){f, self};
    return (struct value){.kind = V_METHOD, .method = m};
}

bool value_push(struct render *r, struct value seq, struct value item)
{
    if (r->code != ERR_OK || !is_seq(seq))
        return false;
    struct seq *s = seq.seq;
    if (s->n == s->capacity) {
        uint32_t capacity = s->capacity ? 2 * s->capacity : 4;
        struct value *items = render_alloc(r, capacity * sizeof *items);
        if (!items)
            return false;
        if (s->n)
            memcpy(items, s->items, s->n * sizeof *items);
        s->items = items;
        s->capacity = capacity;
    }
    s->items[s->n++] = item;
    return charge(r, 0);
}

/* ---- dictionaries -------------------------------------------------------------------------------------------- */

const struct value *dict_find(struct render *r, const struct dict *d, struct value key)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (value_equal(r, d->keys[i], key))
            return &d->values[i];
    return NULL;
}

const struct value *dict_find_text(struct render *r, const struct dict *d, struct span key)
{
    charge(r, 2 * d->n);
    for (uint32_t i = 0; i < d->n; i++)
        if (d->keys[i].kind == V_STRING && text_equal(r, value_span(d->keys[i]), key))
            return &d->values[i];
    return NULL;
}

bool value_check_key(struct render *r, struct value v)
{
    if (v.kind == V_LIST || v.kind == V_DICT || v.kind == V_VIEW)
        fail(r, "unhashable type: '%s'", value_type_name(v));
    if (++r->depth > TMPL_MAX_DEPTH)
        fail_limit(r, "values are nested too deeply");
    charge(r, 0);
    for (uint32_t i = 0; v.kind == V_TUPLE && r->code == ERR_OK && i < v.seq->n; i++)
        value_check_key(r, v.seq->items[i]);
    r->depth--;
    return r->code == ERR_OK;
}

bool dict_set(struct render *r, struct dict *d, struct value key, struct value value)
{
    value_check_key(r, key);
    for (uint32_t i = 0; i < d->n && r->code == ERR_OK; i++)
        if (value_equal(r, d->keys[i], key)) {
            d->values[i] = value;
            return true;
        }
    if (d->n == d->capacity) {
        uint32_t capacity = d->capacity ? 2 * d->capacity : 4;
        struct value *keys = render_alloc(r, capacity * sizeof *keys);
        struct value *values = render_alloc(r, capacity * sizeof *values);
        if (!keys || !values)
            return false;
        if (d->n) {
            memcpy(keys, d->keys, d->n * sizeof *keys);
            memcpy(values, d->values, d->n * sizeof *values);
        }
        *d = (struct dict){keys, values, d->n, capacity};
    }
    if (r->code != ERR_OK)
        return false;
    d->keys[d->n] = key;
    d->values[d->n++] = value;
    return true;
}

/* ---- asking values ------------------------------------------------------------------------------------------- */

const char *value_type_name(struct value v)
{
    static const char *const names[] = {
        [V_UNDEFINED] = "Undefined",
        [V_MISSING] = "nothing",
        [V_NONE] = "NoneType",
        [V_BOOL] = "bool",
        [V_INT] = "int",
        [V_FLOAT] = "float",
        [V_STRING] = "str",
        [V_LIST] = "list",
        [V_TUPLE] = "tuple",
        [V_RANGE] = "range",
        [V_VIEW] = "dict_view",
        [V_ITERATOR] = "generator",
        [V_DICT] = "dict",
        [V_NAMESPACE] = "Namespace",
        [V_MACRO] = "Macro",
        [V_METHOD] = "method",
        [V_FUNCTION] = "function",
        [V_LOOP] = "LoopContext",
        [V_CYCLER] = "Cycler",
        [V_JOINER] = "Joiner",
    };
    return names[v.kind];
}

struct value fail_undefined(struct render *r, struct value v)
{
    if (v.of == UNDEFINED_SENTENCE)
        return fail(r, "%.*s", (int)v.n, v.s);
    if (v.of == UNDEFINED_NAME)
        return fail(r, "'%.*s' is undefined", (int)v.n, v.s);
    if (v.of == V_NONE)
        return fail(r, "None has no attribute '%.*s'", (int)v.n, v.s);
    return fail(r, "'%s object' has no attribute '%.*s'", value_type_name((struct value){.kind = v.of}), (int)v.n, v.s);
}

bool value_is_true(struct render *r, struct value v)
{
    switch ((enum value_kind)v.kind) {
    case V_UNDEFINED:
    case V_MISSING:
    case V_NONE: return false;
    case V_BOOL: return v.boolean;
    case V_INT: return v.integer != 0;
    case V_FLOAT: return v.real != 0;
    case V_STRING: return v.n != 0;
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW: return v.seq->n != 0;
    case V_DICT: return v.dict->n != 0;
    default: return true;
    }
}

bool text_equal(struct render *r, struct span a, struct span b)
{
    return a.n == b.n && charge(r, a.n) && span_equal(a, b);
}

const char *text_find(struct render *r, struct span s, struct span what, bool last)
{
    if (what.n == 0)
        return s.s + (last ? s.n : 0);
    while (s.n >= what.n) {
        size_t n_place = s.n - what.n + 1;
        const char *at = last ? memrchr(s.s, *what.s, n_place) : memchr(s.s, *what.s, n_place);
        if (!at || !charge(r, what.n))
            return NULL;
        if (!memcmp(at, what.s, what.n))
            return at;
        size_t before = (size_t)(at - s.s);
        s.n = last ? before + what.n - 1 : s.n - before - 1;
        s.s = last ? s.s : at + 1;
    }
    return NULL;
}

bool value_as_int(struct value v, int64_t *i)
{
    if (v.kind != V_INT && v.kind != V_BOOL)
        return false;
    *i = v.kind == V_INT ? v.integer : v.boolean;
    return true;
}

double value_as_float(struct value v)
{
    return v.kind == V_FLOAT ? v.real : v.kind == V_INT ? (double)v.integer : (double)v.boolean;
}

/* Integers and floats on one scale that holds both exactly. */
static long double exact_number(struct value v)
{
    return v.kind == V_FLOAT ? (long double)v.real : v.kind == V_INT ? (long double)v.integer : (long double)v.boolean;
}

static bool equal_seqs(struct render *r, const struct seq *a, const struct seq *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n && r->code == ERR_OK; i++)
        if (!value_equal(r, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool equal_dicts(struct render *r, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n && r->code == ERR_OK; i++) {
        const struct value *other = dict_find(r, b, a->keys[i]);
        if (!other || !value_equal(r, a->values[i], *other))
            return false;
    }
    return true;
}

static bool equal_by_kind(struct render *r, struct value a, struct value b)
{
    if (is_number(a) && is_number(b))
        return a.kind == V_INT && b.kind == V_INT ? a.integer == b.integer : exact_number(a) == exact_number(b);
    if (a.kind != b.kind)
        return false;
    switch ((enum value_kind)a.kind) {
    case V_UNDEFINED:
    case V_NONE: return true;
    case V_STRING: return text_equal(r, value_span(a), value_span(b));
    case V_LIST:
    case V_TUPLE:
    case V_RANGE: return equal_seqs(r, a.seq, b.seq);
    case V_DICT: return equal_dicts(r, a.dict, b.dict);
    case V_METHOD: return a.method->function == b.method->function && value_equal(r, a.method->self, b.method->self);
    default: return a.s == b.s; /* the same thing */
    }
}

bool value_equal(struct render *r, struct value a, struct value b)
{
    if (!charge(r, 0))
        return false;
    if (++r->depth > TMPL_MAX_DEPTH)
        fail_limit(r, "values are nested too deeply");
    bool equal = r->code == ERR_OK && equal_by_kind(r, a, b);
    r->depth--;
    return equal;
}

bool value_less(struct render *r, struct value a, struct value b)
{
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED) {
        fail_undefined(r, a.kind == V_UNDEFINED ? a : b);
        return false;
    }
    if (!charge(r, 0))
        return false;
    if (is_number(a) && is_number(b))
        return exact_number(a) < exact_number(b);
    if (a.kind == V_STRING && b.kind == V_STRING) {
        uint32_t n = a.n < b.n ? a.n : b.n;
        int order = charge(r, n) && n ? memcmp(a.s, b.s, n) : 0;
        return order ? order < 0 : a.n < b.n;
    }
    if ((a.kind == V_LIST || a.kind == V_TUPLE) && a.kind == b.kind) {
        if (++r->depth > TMPL_MAX_DEPTH)
            fail_limit(r, "values are nested too deeply");
        uint32_t i = 0, n = a.seq->n < b.seq->n ? a.seq->n : b.seq->n;
        while (r->code == ERR_OK && i < n && value_equal(r, a.seq->items[i], b.seq->items[i]))
            i++;
        bool less = i < n ? r->code == ERR_OK && value_less(r, a.seq->items[i], b.seq->items[i]) : a.seq->n < b.seq->n;
        r->depth--;
        return less;
    }
    fail(r, "'<' not supported between '%s' and '%s'", value_type_name(a), value_type_name(b));
    return false;
}

static bool text_in(struct render *r, struct value item, struct value text)
{
    if (item.kind != V_STRING) {
        fail(r, "'in <string>' requires string as left operand, not %s", value_type_name(item));
        return false;
    }
    return charge(r, text.n) && text_find(r, value_span(text), value_span(item), false);
}

bool value_in(struct render *r, struct value item, struct value container)
{
    if (container.kind == V_STRING)
        return text_in(r, item, container);
    if (container.kind == V_DICT)
        return value_check_key(r, item) && dict_find(r, container.dict, item);
    struct iterator it;
    struct value other;
    if (!is_seq(container) && container.kind != V_UNDEFINED) {
        fail(r, "argument of type '%s' is not iterable", value_type_name(container));
        return false;
    }
    if (iterator_open(r, &it, container))
        while (iterator_next(r, &it, &other))
            if (value_equal(r, item, other))
                return true;
    return false;
}

int64_t value_length(struct render *r, struct value v)
{
    switch ((enum value_kind)v.kind) {
    case V_UNDEFINED: return 0;
    case V_STRING: return charge(r, v.n) ? (int64_t)utf8_count(value_span(v).s, v.n) : 0;
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW: return v.seq->n;
    case V_DICT: return v.dict->n;
    default: return -1;
    }
}

/* ---- walking ------------------------------------------------------------------------------------------------- */

bool iterator_open(struct render *r, struct iterator *it, struct value of)
{
    *it = (struct iterator){.of = of, .seq = is_seq(of) ? of.seq : NULL};
    if (is_seq(of) || of.kind == V_DICT || of.kind == V_STRING || of.kind == V_UNDEFINED)
        return r->code == ERR_OK;
    fail(r, "'%s' object is not iterable", value_type_name(of));
    return false;
}

bool iterator_next(struct render *r, struct iterator *it, struct value *item)
{
    if (!charge(r, 0))
        return false;
    if (it->seq) { /* an iterator remembers where it is, and others don't */
        uint32_t i = it->of.kind == V_ITERATOR ? it->seq->at++ : (uint32_t)it->at++;
        if (i >= it->seq->n)
            return false;
        *item = it->seq->items[i];
        return true;
    }
    if (it->of.kind == V_DICT) {
        if (it->at >= it->of.dict->n)
            return false;
        *item = it->of.dict->keys[it->at++];
        return true;
    }
    if (it->of.kind != V_STRING || it->at >= it->of.n)
        return false;
    uint32_t code;
    unsigned n = code_next(it->of.s + it->at, it->of.n - it->at, &code);
    *item = value_string(span_part(value_span(it->of), it->at, n));
    it->at += n;
    return true;
}

struct value value_list_of(struct render *r, struct value v)
{
    struct iterator it;
    struct value list = value_seq(r, V_LIST, 0), item;
    if (iterator_open(r, &it, v))
        while (iterator_next(r, &it, &item) && value_push(r, list, item))
            ;
    return list;
}
