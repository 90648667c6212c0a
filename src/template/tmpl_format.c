/* "..." % values and "...".format(...): Python's two ways to put values into texts, without alternate forms (#) and
 * locale (n). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "template/tmpl_strings.h"
#include "template/tmpl_unicode.h"

struct spec {
    struct span fill;
    char align;               /* < > ^ =, 0: by type */
    char sign;                /* + space, 0: minus only */
    char group;               /* , or _ between thousands, 0: none */
    char type;                /* 0: by type */
    int64_t width, precision; /* -1: none */
};

/* What fills numbers: a byte and its mark, as numbers are trusted. */
#define ZERO ((struct span){"0\1", 1, 1})

enum { MAX_PRECISION = 300, MAX_DIGITS = 800 };

static void add_padded(struct render *r, struct text_builder *t, const struct spec *spec, struct span sign,
                       struct span body, char align)
{
    int64_t n = (int64_t)(utf8_count(body.s, body.n) + sign.n), missing = spec->width > n ? spec->width - n : 0;
    char where = spec->align ? spec->align : align;
    int64_t left = where == '>' ? missing : where == '^' ? missing / 2 : 0;
    text_add_fill(r, t, spec->fill, left);
    text_add_span(r, t, sign);
    if (where == '=')
        text_add_fill(r, t, spec->fill, missing);
    text_add_span(r, t, body);
    if (where != '=')
        text_add_fill(r, t, spec->fill, missing - left);
}

static void add_text_field(struct render *r, struct text_builder *t, const struct spec *spec, struct span s)
{
    if (spec->precision >= 0)
        s.n = code_offset(s, (size_t)spec->precision);
    add_padded(r, t, spec, SPAN(""), s, '<');
}

/* Digits with separators between groups of three (four for other bases), up to the first that is no digit. */
static struct span group_digits(struct span digits, char group, size_t size, char *out)
{
    size_t whole = 0, n = 0;
    while (whole < digits.n && ((digits.s[whole] >= '0' && digits.s[whole] <= '9') || size == 4))
        whole++;
    for (size_t i = 0; i < digits.n; i++) {
        if (i && i < whole && (whole - i) % size == 0)
            out[n++] = group;
        out[n++] = digits.s[i];
    }
    return (struct span){out, n};
}

static void add_number(struct render *r, struct text_builder *t, const struct spec *spec, bool negative,
                       struct span digits, size_t group_size)
{
    char grouped[2 * MAX_DIGITS], sign = negative ? '-' : spec->sign;
    struct text_builder number = {0};
    if (spec->group)
        digits = group_digits(digits, spec->group, group_size, grouped);
    text_add(r, &number, &sign, sign != 0);
    text_add_span(r, &number, digits);
    text_trust(r, &number, 0);
    if (r->code != ERR_OK)
        return;
    struct span all = text_span(number);
    add_padded(r, t, spec, span_part(all, 0, sign != 0), span_part(all, sign != 0, digits.n), '>');
}

static void add_int(struct render *r, struct text_builder *t, const struct spec *spec, int64_t i)
{
    char digits[80];
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    size_t n = sizeof digits, base = spec->type == 'x' || spec->type == 'X' ? 16
                                     : spec->type == 'o'                    ? 8
                                     : spec->type == 'b'                    ? 2
                                                                            : 10;
    do
        digits[--n] = (spec->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
    while (u /= base);
    while (spec->precision > (int64_t)(sizeof digits - n) && n > 0)
        digits[--n] = '0';
    add_number(r, t, spec, i < 0, (struct span){digits + n, sizeof digits - n}, base == 10 ? 3 : 4);
}

static void add_float(struct render *r, struct text_builder *t, const struct spec *spec, double f)
{
    char digits[MAX_DIGITS];
    char type = spec->type == '%' ? 'f' : spec->type;
    int precision = spec->precision < 0 ? 6 : (int)spec->precision;
    double size = fabs(spec->type == '%' ? f * 100 : f);
    if (!isfinite(f)) {
        snprintf(digits, sizeof digits, "%s", isnan(f) ? "nan" : "inf");
        if (type == 'E' || type == 'F' || type == 'G')
            snprintf(digits, sizeof digits, "%s", isnan(f) ? "NAN" : "INF");
    } else if (type == 0 && spec->precision < 0) { /* as str() */
        struct text_builder shortest = {0};
        text_add_float(r, &shortest, size);
        snprintf(digits, sizeof digits, "%.*s", (int)shortest.n, shortest.s ? shortest.s : "");
    } else if (type == 0) { /* as g, but with a digit behind the point; rare enough to be left to it */
        snprintf(digits, sizeof digits, "%.*g", precision ? precision : 1, size);
        if (!strpbrk(digits, ".e"))
            strcat(digits, ".0");
    } else {
        const char format[] = {'%', '.', '*', type, '\0'};
        snprintf(digits, sizeof digits, format, precision, size);
    }
    size_t n = strlen(digits);
    if (spec->type == '%')
        digits[n++] = '%';
    add_number(r, t, spec, signbit(f) && !isnan(f), (struct span){digits, n}, 3);
}

/* ---- % ------------------------------------------------------------------------------------------------------- */

struct percent {
    struct render *r;
    struct span format;
    size_t i;
    struct value values; /* a tuple, or one value, which counts as a tuple of it */
    uint32_t n_used;
};

static struct value next_value(struct percent *p)
{
    uint32_t i = p->n_used++;
    if (p->values.kind == V_TUPLE ? i < p->values.seq->n : i == 0)
        return p->values.kind == V_TUPLE ? p->values.seq->items[i] : p->values;
    return fail(p->r, "not enough arguments for format string");
}

/* Digits or *, up to what we are ready to make. */
static int64_t percent_number(struct percent *p, int64_t otherwise)
{
    int64_t n = otherwise;
    if (p->i < p->format.n && p->format.s[p->i] == '*') {
        p->i++;
        arg_int(p->r, next_value(p), 0, &n);
        return n;
    }
    for (; p->i < p->format.n && p->format.s[p->i] >= '0' && p->format.s[p->i] <= '9'; p->i++)
        n = (n < 0 ? 0 : n) * 10 + (p->format.s[p->i] - '0') < TMPL_MAX_BYTES
                ? (n < 0 ? 0 : n) * 10 + (p->format.s[p->i] - '0')
                : TMPL_MAX_BYTES;
    return n;
}

static void percent_spec(struct percent *p, struct spec *spec)
{
    *spec = (struct spec){.fill = SPAN(" "), .align = '>', .width = -1, .precision = -1};
    for (; p->i < p->format.n && strchr("-+ 0#", p->format.s[p->i]) && p->format.s[p->i]; p->i++) {
        char c = p->format.s[p->i];
        if (c == '-')
            spec->align = '<';
        else if (c == '0' && spec->align != '<') {
            spec->fill = ZERO;
            spec->align = '=';
        } else if (c == '+' || (c == ' ' && !spec->sign))
            spec->sign = c;
    }
    spec->width = percent_number(p, -1);
    if (p->i < p->format.n && p->format.s[p->i] == '.') {
        p->i++;
        spec->precision = percent_number(p, 0);
    }
    while (p->i < p->format.n && p->format.s[p->i] && strchr("hlL", p->format.s[p->i]))
        p->i++;
}

static void percent_conversion(struct percent *p, struct text_builder *t, struct spec *spec, struct value v, char c)
{
    struct render *r = p->r;
    struct text_builder s = {0};
    int64_t i;
    bool number = is_number(v);
    if (strchr("sra", c) || (c == 'c' && v.kind == V_STRING && value_length(r, v) == 1)) {
        (c == 's' || c == 'c' ? text_add_value : text_add_repr)(r, &s, v);
        if (spec->align == '=')
            spec->align = '>', spec->fill = SPAN(" ");
        add_text_field(r, t, spec, text_span(s));
    } else if (strchr("diuxXo", c)) {
        if (!value_as_int(v, &i)) {
            if (v.kind != V_FLOAT || !strchr("diu", c) || !(fabs(v.real) < 9.2e18)) {
                fail(r, "%%%c format: a number is required, not '%s'", c, value_type_name(v));
                return;
            }
            i = (int64_t)v.real;
        }
        spec->type = strchr("xXo", c) ? c : 'd';
        add_int(r, t, spec, i);
    } else if (strchr("eEfFgG", c) && number) {
        spec->type = c;
        if (spec->precision > MAX_PRECISION)
            fail(r, "precision %lld: expected at most %d", (long long)spec->precision, MAX_PRECISION);
        else
            add_float(r, t, spec, value_as_float(v));
    } else if (v.kind == V_UNDEFINED) {
        fail_undefined(r, v);
    } else {
        fail(r, "%%%c format: '%s' is not what it takes", c, value_type_name(v));
    }
}

/* %(name)s: the value of the dictionary. */
static struct value percent_named(struct percent *p)
{
    size_t from = ++p->i;
    while (p->i < p->format.n && p->format.s[p->i] != ')')
        p->i++;
    if (p->i == p->format.n || p->values.kind != V_DICT)
        return fail(p->r, "format requires a mapping");
    struct span name = {p->format.s + from, p->i++ - from};
    const struct value *v = dict_find_text(p->r, p->values.dict, name);
    return v ? *v : fail(p->r, "no key '%.*s' for the format string", (int)name.n, name.s);
}

struct value format_percent(struct render *r, struct value format, struct value values)
{
    struct percent p = {.r = r, .format = value_span(format), .values = values};
    struct text_builder t = {0};
    struct spec spec;
    while (p.i < p.format.n && r->code == ERR_OK) {
        char c = p.format.s[p.i++];
        if (c != '%') {
            text_add_span(r, &t, span_part(p.format, p.i - 1, 1));
            continue;
        }
        bool named = p.i < p.format.n && p.format.s[p.i] == '(';
        struct value v = named ? percent_named(&p) : value_none();
        percent_spec(&p, &spec);
        c = p.i < p.format.n ? p.format.s[p.i++] : 0;
        if (c == '%') {
            text_add_span(r, &t, span_part(p.format, p.i - 1, 1));
        } else if (c && strchr("sracdiuxXoeEfFgG", c)) {
            v = named ? v : next_value(&p);
            p.n_used += named;
            if (r->code == ERR_OK)
                percent_conversion(&p, &t, &spec, v, c);
        } else {
            fail(r, "unsupported or incomplete format");
        }
    }
    bool all = values.kind == V_TUPLE ? p.n_used >= values.seq->n
                                      : p.n_used || values.kind == V_DICT || values.kind == V_LIST ||
                                            values.kind == V_RANGE || values.kind == V_UNDEFINED;
    if (r->code == ERR_OK && !all)
        return fail(r, "not all arguments converted during string formatting");
    struct value result = text_value(t);
    result.markup = format.markup;
    return result;
}

/* ---- format() ------------------------------------------------------------------------------------------------ */

struct braces {
    struct render *r;
    const struct arguments *args;
    struct span format;
    size_t i;
    uint32_t n_auto;
    int depth;
};

static int64_t span_number(struct span s)
{
    int64_t n = s.n ? 0 : -1;
    for (size_t i = 0; i < s.n && n >= 0; i++)
        n = s.s[i] >= '0' && s.s[i] <= '9' && n < TMPL_MAX_BYTES ? n * 10 + (s.s[i] - '0') : -1;
    return n;
}

/* name.attribute[item]: the field's value. */
static struct value field_value(struct braces *b, struct span field)
{
    struct render *r = b->r;
    size_t n = 0;
    while (n < field.n && field.s[n] != '.' && field.s[n] != '[')
        n++;
    struct span name = {field.s, n};
    struct value v = {.kind = V_MISSING};
    int64_t index = n ? span_number(name) : b->n_auto++;
    const struct argument *named = index < 0 ? find_argument(r, b->args, name) : NULL;
    if (named)
        v = named->value;
    if (index >= 0 && index < b->args->n)
        v = b->args->items[index];
    if (v.kind == V_MISSING)
        return fail(r, "there is no argument '%.*s' for format()", (int)n, field.s);
    while (n < field.n && r->code == ERR_OK) {
        bool item = field.s[n] == '[';
        size_t from = ++n;
        while (n < field.n && (item ? field.s[n] != ']' : field.s[n] != '.' && field.s[n] != '['))
            n++;
        struct span part = {field.s + from, n - from};
        int64_t i = item ? span_number(part) : -1;
        v = i >= 0 ? op_item(r, v, value_int(i)) : item ? op_item(r, v, value_string(part)) : op_attribute(r, v, part);
        n += item;
    }
    return v;
}

static bool parse_spec(struct render *r, struct span s, struct spec *out)
{
    size_t i = 0;
    uint32_t code;
    *out = (struct spec){.fill = SPAN(" "), .width = -1, .precision = -1};
    unsigned first = s.n ? code_next(s.s, s.n, &code) : 0;
    if (first && s.n > first && strchr("<>^=", s.s[first])) {
        out->fill = span_part(s, 0, first);
        out->align = s.s[first];
        i = first + 1;
    } else if (s.n && strchr("<>^=", *s.s)) {
        out->align = s.s[i++];
    }
    if (i < s.n && strchr("+- ", s.s[i])) {
        out->sign = s.s[i] == '-' ? 0 : s.s[i];
        i++;
    }
    if (i < s.n && s.s[i] == '0') {
        out->fill = out->align ? out->fill : ZERO;
        out->align = out->align ? out->align : '=';
        i++;
    }
    for (; i < s.n && s.s[i] >= '0' && s.s[i] <= '9' && out->width < TMPL_MAX_BYTES; i++)
        out->width = (out->width < 0 ? 0 : out->width) * 10 + (s.s[i] - '0');
    if (i < s.n && (s.s[i] == ',' || s.s[i] == '_'))
        out->group = s.s[i++];
    if (i < s.n && s.s[i] == '.')
        for (i++, out->precision = 0; i < s.n && s.s[i] >= '0' && s.s[i] <= '9' && out->precision < MAX_PRECISION; i++)
            out->precision = out->precision * 10 + (s.s[i] - '0');
    if (i < s.n && strchr("sdboxXeEfFgG%", s.s[i]))
        out->type = s.s[i++];
    if (i < s.n)
        fail(r, "invalid format specifier '%.*s'", (int)s.n, s.s);
    return r->code == ERR_OK;
}

static void add_field(struct render *r, struct text_builder *t, struct value v, struct span spec_text)
{
    struct spec spec;
    int64_t i;
    if (!parse_spec(r, spec_text, &spec))
        return;
    bool number_type = spec.type && spec.type != 's';
    bool as_float = spec.type && strchr("eEfFgG%", spec.type);
    bool plain_bool = v.kind == V_BOOL && !spec.type && spec_text.n == 0;
    if ((v.kind == V_STRING || plain_bool || spec_text.n == 0) && !number_type && !is_number(v)) {
        struct text_builder s = {0};
        text_add_value(r, &s, v);
        if (spec.align == '=' && v.kind == V_STRING)
            spec.align = '<'; /* zeros before a text go behind it */
        add_text_field(r, t, &spec, text_span(s));
    } else if (plain_bool) {
        text_add_value(r, t, v);
    } else if (value_as_int(v, &i) && !as_float && spec.type != 's' && spec.precision < 0) {
        add_int(r, t, &spec, i);
    } else if (is_number(v) && (as_float || (v.kind == V_FLOAT && !spec.type))) {
        add_float(r, t, &spec, value_as_float(v));
    } else {
        fail(r, "invalid format specifier '%.*s' for '%s'", (int)spec_text.n, spec_text.s, value_type_name(v));
    }
}

static struct value expand(struct braces *b);

/* What is between braces at b->i: field, !conversion, :spec. */
static void expand_field(struct braces *b, struct text_builder *t)
{
    struct render *r = b->r;
    size_t from = b->i;
    while (b->i < b->format.n && !strchr("!:{}", b->format.s[b->i])) {
        if (b->format.s[b->i] == '[') /* an index may hold anything */
            while (b->i < b->format.n && b->format.s[b->i] != ']')
                b->i++;
        b->i += b->i < b->format.n;
    }
    struct value v = field_value(b, (struct span){b->format.s + from, b->i - from});
    if (b->i + 1 < b->format.n && b->format.s[b->i] == '!') {
        char conversion = b->format.s[b->i + 1];
        struct text_builder s = {0};
        if (!strchr("rsa", conversion))
            fail(r, "unknown conversion '!%c'", conversion);
        (conversion == 's' ? text_add_value : text_add_repr)(r, &s, v);
        v = text_value(s);
        b->i += 2;
    }
    struct span spec = SPAN("");
    if (b->i < b->format.n && b->format.s[b->i] == ':') {
        size_t begin = ++b->i;
        for (int open = 1; b->i < b->format.n; b->i++) {
            open += b->format.s[b->i] == '{' ? 1 : b->format.s[b->i] == '}' ? -1 : 0;
            if (open == 0)
                break;
        }
        struct braces inner = *b;
        inner.format = span_part(b->format, begin, b->i - begin);
        inner.i = 0;
        inner.depth++;
        spec = value_span(expand(&inner));
        b->n_auto = inner.n_auto;
    }
    if (b->i >= b->format.n || b->format.s[b->i] != '}')
        fail(r, "expected '}' in a format string");
    b->i++;
    if (r->code == ERR_OK)
        add_field(r, t, v, spec);
}

static struct value expand(struct braces *b)
{
    struct render *r = b->r;
    struct text_builder t = {0};
    if (b->depth > 2)
        return fail(r, "format strings are nested too deeply");
    while (b->i < b->format.n && r->code == ERR_OK) {
        char c = b->format.s[b->i++];
        bool doubled = b->i < b->format.n && b->format.s[b->i] == c;
        if (c == '{' && !doubled) {
            expand_field(b, &t);
        } else if (c == '}' && !doubled) {
            fail(r, "single '}' encountered in format string");
        } else {
            text_add_span(r, &t, span_part(b->format, b->i - 1, 1));
            b->i += c == '{' || c == '}';
        }
    }
    return text_value(t);
}

struct value format_braces(struct render *r, struct value self, const struct arguments *args)
{
    struct braces b = {.r = r, .args = args, .format = value_span(self)};
    return expand(&b);
}
