/* Texts: building them, and what Python's str() and repr() make of values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/tmpl_unicode.h"
#include "template/tmpl_value.h"

/* Room for n more bytes and, when there are trusted ones or are to be, for the marks of all. */
static bool text_reserve(struct render *r, struct text_builder *t, size_t n, bool trusted)
{
    enum { LEAST = 64 };
    bool marked = trusted || t->trusted;
    size_t capacity = t->capacity;
    if (t->n + n > capacity)
        capacity = t->n + n > 2 * capacity ? t->n + n : 2 * capacity;
    else if (t->trusted || !marked)
        return true;
    capacity = capacity < LEAST ? LEAST : capacity;
    char *more = render_alloc(r, marked ? 2 * capacity : capacity);
    if (!more)
        return false;
    if (t->n)
        memcpy(more, t->s, t->n);
    if (t->n && t->trusted)
        memcpy(more + capacity, t->s + t->trusted, t->n);
    *t = (struct text_builder){more, t->n, capacity, marked ? capacity : 0};
    return true;
}

void text_add_span(struct render *r, struct text_builder *t, struct span s)
{
    if (!charge(r, s.n) || s.n == 0 || !text_reserve(r, t, s.n, s.trusted != 0))
        return;
    memcpy(t->s + t->n, s.s, s.n);
    if (s.trusted)
        memcpy(t->s + t->trusted + t->n, s.s + s.trusted, s.n);
    t->n += s.n;
}

void text_add(struct render *r, struct text_builder *t, const char *s, size_t n)
{
    text_add_span(r, t, (struct span){s, n});
}

void text_trust(struct render *r, struct text_builder *t, size_t from)
{
    if (t->n > from && text_reserve(r, t, 0, true))
        memset(t->s + t->trusted + from, 1, t->n - from);
}

void text_add_string(struct render *r, struct text_builder *t, const char *s)
{
    text_add(r, t, s, strlen(s));
}

void text_add_fill(struct render *r, struct text_builder *t, struct span fill, int64_t times)
{
    if (times > 0 && fill.n && (uint64_t)times > r->max_bytes / fill.n)
        fail_limit(r, "the template makes too long a text");
    for (; times > 0 && fill.n && r->code == ERR_OK; times--)
        text_add_span(r, t, fill);
}

void text_add_escaped(struct render *r, struct text_builder *t, struct span s)
{
    for (size_t i = 0; i < s.n && r->code == ERR_OK; i++) {
        switch (s.s[i]) {
        case '&': text_add_string(r, t, "&amp;"); break;
        case '<': text_add_string(r, t, "&lt;"); break;
        case '>': text_add_string(r, t, "&gt;"); break;
        case '"': text_add_string(r, t, "&#34;"); break;
        case '\'': text_add_string(r, t, "&#39;"); break;
        default: text_add_span(r, t, span_part(s, i, 1));
        }
    }
}

struct span text_span(struct text_builder t)
{
    return t.s ? (struct span){t.s, t.n, t.trusted} : SPAN("");
}

struct value text_value(struct text_builder t)
{
    return value_string(text_span(t));
}

/* The shortest digits that give the number back, with an exponent where Python has one. */
void text_add_float(struct render *r, struct text_builder *t, double f)
{
    char digits[40];
    if (!isfinite(f)) {
        text_add_string(r, t, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, f);
    while (strtod(digits, NULL) != f && ++precision < 17);
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) {
        *e = '\0';
        text_add_string(r, t, digits);
        snprintf(digits, sizeof digits, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else {
        int decimals = precision - exponent;
        snprintf(digits, sizeof digits, "%.*f", decimals > 1 ? decimals : 1, f);
    }
    text_add_string(r, t, digits);
}

static void add_quoted(struct render *r, struct text_builder *t, struct span s)
{
    char quote = memchr(s.s, '\'', s.n) && !memchr(s.s, '"', s.n) ? '"' : '\'';
    text_add(r, t, &quote, 1);
    for (size_t i = 0; i < s.n && r->code == ERR_OK;) {
        uint32_t code;
        char escape[16];
        unsigned n = code_next(s.s + i, s.n - i, &code);
        if (code == '\n' || code == '\r' || code == '\t')
            snprintf(escape, sizeof escape, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
        else if (code == '\\' || code == (uint32_t)quote)
            snprintf(escape, sizeof escape, "\\%c", (char)code);
        else if (!(code_properties(code) & CODE_PRINTABLE))
            snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
        else
            *escape = '\0';
        if (*escape)
            text_add_string(r, t, escape);
        else
            text_add_span(r, t, span_part(s, i, n));
        i += n;
    }
    text_add(r, t, &quote, 1);
}

static void add_items(struct render *r, struct text_builder *t, const struct seq *s, const char *open,
                      const char *close)
{
    text_add_string(r, t, open);
    for (uint32_t i = 0; i < s->n && r->code == ERR_OK; i++) {
        if (i)
            text_add_string(r, t, ", ");
        text_add_repr(r, t, s->items[i]);
    }
    text_add_string(r, t, close);
}

static void add_dict(struct render *r, struct text_builder *t, const struct dict *d)
{
    text_add_string(r, t, "{");
    for (uint32_t i = 0; i < d->n && r->code == ERR_OK; i++) {
        if (i)
            text_add_string(r, t, ", ");
        text_add_repr(r, t, d->keys[i]);
        text_add_string(r, t, ": ");
        text_add_repr(r, t, d->values[i]);
    }
    text_add_string(r, t, "}");
}

static void add_range(struct render *r, struct text_builder *t, const struct seq *s)
{
    char range[100];
    int n = snprintf(range, sizeof range, "range(%lld, %lld", (long long)s->start, (long long)s->stop);
    snprintf(range + n, sizeof range - (size_t)n, s->step == 1 ? ")" : ", %lld)", (long long)s->step);
    text_add_string(r, t, range);
}

static void add_loop(struct render *r, struct text_builder *t, struct loop *l)
{
    char counts[80];
    loop_fetch(r, l, INT64_MAX);
    snprintf(counts, sizeof counts, "<LoopContext %lld/%u>", (long long)l->index0 + 1, l->items->n);
    text_add_string(r, t, counts);
}

static void add_repr(struct render *r, struct text_builder *t, struct value v)
{
    char number[32];
    size_t from = t->n;
    switch ((enum value_kind)v.kind) {
    case V_UNDEFINED: text_add_string(r, t, "Undefined"); break;
    case V_NONE: text_add_string(r, t, "None"); break;
    case V_BOOL: text_add_string(r, t, v.boolean ? "True" : "False"); break;
    case V_INT:
        snprintf(number, sizeof number, "%lld", (long long)v.integer);
        text_add_string(r, t, number);
        text_trust(r, t, from);
        break;
    case V_FLOAT:
        text_add_float(r, t, v.real);
        text_trust(r, t, from);
        break;
    case V_STRING:
        text_add_string(r, t, v.markup ? "Markup(" : "");
        add_quoted(r, t, value_span(v));
        text_add_string(r, t, v.markup ? ")" : "");
        break;
    case V_LIST: add_items(r, t, v.seq, "[", "]"); break;
    case V_TUPLE: add_items(r, t, v.seq, "(", v.seq->n == 1 ? ",)" : ")"); break;
    case V_RANGE: add_range(r, t, v.seq); break;
    case V_VIEW:
        add_items(r, t, v.seq,
                  v.seq->view == 'k'   ? "dict_keys(["
                  : v.seq->view == 'v' ? "dict_values(["
                                       : "dict_items([",
                  "])");
        break;
    case V_DICT: add_dict(r, t, v.dict); break;
    case V_NAMESPACE:
        text_add_string(r, t, "<Namespace ");
        add_dict(r, t, v.dict);
        text_add_string(r, t, ">");
        break;
    case V_MACRO:
        text_add_string(r, t, "<Macro '");
        text_add_span(r, t, v.macro->node->text);
        text_add_string(r, t, "'>");
        break;
    case V_LOOP: add_loop(r, t, v.loop); break;
    default:
        text_add_string(r, t, "<");
        text_add_string(r, t, value_type_name(v));
        text_add_string(r, t, ">");
    }
}

void text_add_repr(struct render *r, struct text_builder *t, struct value v)
{
    if (++r->depth > TMPL_MAX_DEPTH)
        fail_limit(r, "values are nested too deeply");
    if (charge(r, 0))
        add_repr(r, t, v);
    r->depth--;
}

void text_add_value(struct render *r, struct text_builder *t, struct value v)
{
    if (v.kind == V_STRING)
        text_add_span(r, t, value_span(v));
    else if (v.kind != V_UNDEFINED)
        text_add_repr(r, t, v);
}

struct value value_to_string(struct render *r, struct value v)
{
    if (v.kind == V_STRING)
        return v;
    struct text_builder t = {0};
    text_add_value(r, &t, v);
    return text_value(t);
}

/* Room for b behind a text at its end, if it is one of the last that were joined; that one comes to the front. */
static struct text_builder *find_tail(struct render *r, struct value a, struct value b)
{
    for (size_t i = 0; i < N_TAIL; i++) {
        struct text_builder t = r->tail[i];
        if (!t.s || a.s + a.n != t.s + t.n || a.s < t.s || t.capacity - t.n < b.n || t.trusted != a.trusted ||
            (b.trusted && !t.trusted))
            continue;
        memmove(r->tail + 1, r->tail, i * sizeof t);
        r->tail[0] = t;
        return r->tail;
    }
    return NULL;
}

/* a + b. Texts that grow by one piece after the other, as templates like to build them, are extended in place. */
struct value join_strings(struct render *r, struct value a, struct value b)
{
    size_t n = (size_t)a.n + b.n;
    if (!charge(r, b.n))
        return a;
    if (a.n == 0 || b.n == 0)
        return a.n ? a : b;
    struct text_builder *tail = find_tail(r, a, b);
    if (!tail) {
        struct text_builder t = {0};
        if (!text_reserve(r, &t, 2 * n, a.trusted || b.trusted))
            return a;
        text_add_span(r, &t, value_span(a));
        memmove(r->tail + 1, r->tail, (N_TAIL - 1) * sizeof *tail);
        tail = r->tail;
        *tail = t;
    }
    text_add_span(r, tail, value_span(b));
    return r->code == ERR_OK ? value_string(span_part(text_span(*tail), tail->n - n, n)) : a;
}
