/* What templates do with texts: the filters, and Python's methods of str. */
#define _GNU_SOURCE /* memmem */
#include <string.h>

#include "template/tmpl_strings.h"
#include "template/tmpl_unicode.h"

/* ---- arguments ----------------------------------------------------------------------------------------------- */

bool arg_text(struct render *r, struct value v, struct span *out)
{
    *out = SPAN("");
    if (v.kind == V_STRING)
        *out = value_span(v);
    else if (v.kind == V_UNDEFINED)
        fail_undefined(r, v);
    else
        fail(r, "expected a string, not '%s'", value_type_name(v));
    return r->code == ERR_OK;
}

bool arg_int(struct render *r, struct value v, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (v.kind == V_MISSING || value_as_int(v, out))
        return true;
    if (v.kind == V_UNDEFINED)
        fail_undefined(r, v);
    else
        fail(r, "expected an integer, not '%s'", value_type_name(v));
    return false;
}

bool arg_is_given(struct value v)
{
    return v.kind != V_MISSING && v.kind != V_NONE;
}

/* ---- characters ---------------------------------------------------------------------------------------------- */

bool text_take_first(struct render *r, struct span *s, uint32_t *code)
{
    if (s->n == 0 || !charge(r, 0))
        return false;
    unsigned n = code_next(s->s, s->n, code);
    s->s += n;
    s->n -= n;
    return true;
}

static bool text_take_last(struct render *r, struct span *s, uint32_t *code)
{
    if (s->n == 0 || !charge(r, 0))
        return false;
    size_t before = s->n - 1;
    while (before > 0 && utf8_is_tail(s->s[before]))
        before--;
    code_next(s->s + before, s->n - before, code);
    s->n = before;
    return true;
}

struct span text_lstrip_space(struct render *r, struct span s)
{
    uint32_t code;
    for (struct span rest = s; text_take_first(r, &rest, &code) && code_is_space(code);)
        s = rest;
    return s;
}

struct span text_rstrip_space(struct render *r, struct span s)
{
    uint32_t code;
    for (struct span rest = s; text_take_last(r, &rest, &code) && code_is_space(code);)
        s = rest;
    return s;
}

/* ---- case ---------------------------------------------------------------------------------------------------- */

typedef unsigned case_fn(uint32_t code, char *out);

/* The first character of `s` in another case. */
static void add_case(struct render *r, struct text_builder *t, struct span s, uint32_t code, case_fn *fn)
{
    char out[CODE_CASE_BYTES];
    size_t from = t->n;
    text_add(r, t, out, fn(code, out));
    if (s.trusted && s.s[s.trusted])
        text_trust(r, t, from);
}

/* Each character through `first` where a word begins, by `begins`, and through `other` elsewhere. */
static struct value change_case(struct render *r, struct span s, case_fn *first, case_fn *other,
                                bool (*begins)(uint32_t before))
{
    struct text_builder t = {0};
    uint32_t before = UINT32_MAX, code;
    for (struct span c = s; text_take_first(r, &s, &code); c = s, before = code)
        add_case(r, &t, c, code, before == UINT32_MAX || begins(before) ? first : other);
    return text_value(t);
}

static bool never(uint32_t before)
{
    return false;
}

static bool after_uncased(uint32_t before)
{
    return !(code_properties(before) & (CODE_UPPER | CODE_LOWER));
}

static bool after_delimiter(uint32_t before)
{
    return code_is_space(before) || (before < 0x80 && before && strchr("-({[<", (int)before));
}

struct value text_upper(struct render *r, struct value v, const struct value *argv)
{
    return change_case(r, value_span(value_to_string(r, v)), code_upper, code_upper, never);
}

struct value text_lower(struct render *r, struct value v, const struct value *argv)
{
    return change_case(r, value_span(value_to_string(r, v)), code_lower, code_lower, never);
}

struct value text_capitalize(struct render *r, struct value v, const struct value *argv)
{
    return change_case(r, value_span(value_to_string(r, v)), code_upper, code_lower, never);
}

static struct value method_title(struct render *r, struct value v, const struct value *argv)
{
    return change_case(r, value_span(v), code_upper, code_lower, after_uncased);
}

struct value filter_title(struct render *r, struct value v, const struct value *argv)
{
    return change_case(r, value_span(value_to_string(r, v)), code_upper, code_lower, after_delimiter);
}

static struct value method_swapcase(struct render *r, struct value v, const struct value *argv)
{
    struct text_builder t = {0};
    struct span s = value_span(v);
    uint32_t code;
    for (struct span c = s; text_take_first(r, &s, &code); c = s)
        add_case(r, &t, c, code, code_properties(code) & CODE_UPPER ? code_lower : code_upper);
    return text_value(t);
}

/* ---- what a text consists of --------------------------------------------------------------------------------- */

/* Not empty, and each character has one of the properties. */
static bool all_have(struct render *r, struct span s, unsigned properties)
{
    bool some = s.n > 0;
    uint32_t code;
    while (text_take_first(r, &s, &code))
        if (!(code_properties(code) & properties))
            return false;
    return some;
}

bool text_has_case(struct render *r, struct span s, unsigned wanted)
{
    bool found = false;
    uint32_t code;
    while (text_take_first(r, &s, &code)) {
        unsigned cased = code_properties(code) & (CODE_UPPER | CODE_LOWER);
        if (cased && cased != wanted)
            return false;
        found = found || cased;
    }
    return found;
}

#define METHOD_IS(name, expression)                                                                                    \
    static struct value method_##name(struct render *r, struct value v, const struct value *argv)                      \
    {                                                                                                                  \
        struct span s = value_span(v);                                                                                 \
        return value_bool(expression);                                                                                 \
    }
METHOD_IS(isalpha, all_have(r, s, CODE_ALPHA))
METHOD_IS(isdecimal, all_have(r, s, CODE_DECIMAL))
METHOD_IS(isdigit, all_have(r, s, CODE_DIGIT))
METHOD_IS(isnumeric, all_have(r, s, CODE_NUMERIC))
METHOD_IS(isalnum, all_have(r, s, CODE_ALPHA | CODE_DECIMAL | CODE_DIGIT | CODE_NUMERIC))
METHOD_IS(isspace, all_have(r, s, CODE_SPACE))
METHOD_IS(isprintable, s.n == 0 || all_have(r, s, CODE_PRINTABLE))
METHOD_IS(isupper, text_has_case(r, s, CODE_UPPER))
METHOD_IS(islower, text_has_case(r, s, CODE_LOWER))
METHOD_IS(isascii, utf8_count(s.s, s.n) == s.n)

/* ---- strip --------------------------------------------------------------------------------------------------- */

static bool holds(struct span set, const char *s, unsigned n)
{
    return memmem(set.s, set.n, s, n) != NULL;
}

static struct span strip(struct render *r, struct span s, struct value chars, bool left, bool right)
{
    struct span set;
    if (!arg_is_given(chars)) {
        s = left ? text_lstrip_space(r, s) : s;
        return right ? text_rstrip_space(r, s) : s;
    }
    if (!arg_text(r, chars, &set))
        return s;
    uint32_t code;
    while (left && s.n && charge(r, set.n)) {
        unsigned n = code_next(s.s, s.n, &code);
        if (!holds(set, s.s, n))
            break;
        s.s += n;
        s.n -= n;
    }
    while (right && s.n && charge(r, set.n)) {
        unsigned n = 1;
        while (n < s.n && utf8_is_tail(s.s[s.n - n]))
            n++;
        if (!holds(set, s.s + s.n - n, n))
            break;
        s.n -= n;
    }
    return s;
}

struct value text_strip(struct render *r, struct value v, const struct value *argv)
{
    return value_string(strip(r, value_span(value_to_string(r, v)), argv[0], true, true));
}

static struct value method_lstrip(struct render *r, struct value v, const struct value *argv)
{
    return value_string(strip(r, value_span(v), argv[0], true, false));
}

static struct value method_rstrip(struct render *r, struct value v, const struct value *argv)
{
    return value_string(strip(r, value_span(v), argv[0], false, true));
}

/* ---- split and join ------------------------------------------------------------------------------------------ */

static void push_span(struct render *r, struct value list, struct span s)
{
    value_push(r, list, value_string(s));
}

static void split_space(struct render *r, struct value list, struct span s, int64_t max)
{
    for (s = text_lstrip_space(r, s); s.n && r->code == ERR_OK; s = text_lstrip_space(r, s)) {
        if (max-- == 0) {
            push_span(r, list, text_rstrip_space(r, s));
            return;
        }
        struct span word = s;
        uint32_t code;
        for (struct span rest = s; text_take_first(r, &rest, &code) && !code_is_space(code);)
            s = rest;
        word.n -= s.n;
        push_span(r, list, word);
    }
}

static void split_at(struct render *r, struct value list, struct span s, struct span separator, int64_t max)
{
    const char *found;
    while (max-- != 0 && (found = text_find(r, s, separator, false))) {
        push_span(r, list, span_part(s, 0, (size_t)(found - s.s)));
        s.n -= (size_t)(found - s.s) + separator.n;
        s.s = found + separator.n;
    }
    push_span(r, list, s);
}

static void reverse(struct value list)
{
    struct seq *q = list.seq;
    for (uint32_t i = 0; i < q->n / 2; i++) {
        struct value v = q->items[i];
        q->items[i] = q->items[q->n - 1 - i];
        q->items[q->n - 1 - i] = v;
    }
}

static void rsplit_space(struct render *r, struct value list, struct span s, int64_t max)
{
    for (s = text_rstrip_space(r, s); s.n && r->code == ERR_OK; s = text_rstrip_space(r, s)) {
        if (max-- == 0) {
            push_span(r, list, text_lstrip_space(r, s));
            break;
        }
        struct span word = s;
        uint32_t code;
        for (struct span rest = s; text_take_last(r, &rest, &code) && !code_is_space(code);)
            s = rest;
        word.s += s.n;
        word.n -= s.n;
        push_span(r, list, word);
    }
}

static void rsplit_at(struct render *r, struct value list, struct span s, struct span separator, int64_t max)
{
    const char *found;
    while (max-- != 0 && (found = text_find(r, s, separator, true))) {
        size_t end = (size_t)(found - s.s) + separator.n;
        push_span(r, list, span_part(s, end, s.n - end));
        s.n = (size_t)(found - s.s);
    }
    push_span(r, list, s);
}

static struct value split(struct render *r, struct value v, const struct value *argv, bool from_right)
{
    struct value list = value_seq(r, V_LIST, 0);
    struct span separator;
    int64_t max;
    if (!arg_int(r, argv[1], -1, &max))
        return list;
    max = max < 0 ? -1 : max;
    if (!arg_is_given(argv[0])) {
        (from_right ? rsplit_space : split_space)(r, list, value_span(v), max);
    } else if (arg_text(r, argv[0], &separator)) {
        if (separator.n == 0)
            return fail(r, "empty separator");
        (from_right ? rsplit_at : split_at)(r, list, value_span(v), separator, max);
    }
    if (from_right && r->code == ERR_OK)
        reverse(list);
    return list;
}

static struct value method_split(struct render *r, struct value v, const struct value *argv)
{
    return split(r, v, argv, false);
}

static struct value method_rsplit(struct render *r, struct value v, const struct value *argv)
{
    return split(r, v, argv, true);
}

struct value text_lines(struct render *r, struct span s, bool keep_ends)
{
    struct value list = value_seq(r, V_LIST, 0);
    struct span line = s;
    uint32_t code;
    for (size_t left = s.n; text_take_first(r, &s, &code); left = s.n) {
        bool ends = (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 ||
                    code == 0x2029;
        if (!ends)
            continue;
        if (code == '\r' && s.n && *s.s == '\n')
            text_take_first(r, &s, &code);
        struct span whole = line;
        whole.n -= keep_ends ? s.n : left;
        push_span(r, list, whole);
        line = s;
    }
    if (line.n)
        push_span(r, list, line);
    return list;
}

static struct value method_splitlines(struct render *r, struct value v, const struct value *argv)
{
    return text_lines(r, value_span(v), value_is_true(r, argv[0]));
}

static struct value partition(struct render *r, struct value v, struct value separator, bool last)
{
    struct value tuple = value_seq(r, V_TUPLE, 3);
    struct span s = value_span(v), at, parts[3] = {SPAN(""), SPAN(""), SPAN("")};
    if (!arg_text(r, separator, &at))
        return tuple;
    if (at.n == 0)
        return fail(r, "empty separator");
    const char *found = text_find(r, s, at, last);
    if (found) {
        size_t before = (size_t)(found - s.s);
        parts[0] = span_part(s, 0, before);
        parts[1] = span_part(s, before, at.n);
        parts[2] = span_part(s, before + at.n, s.n - before - at.n);
    } else {
        parts[last ? 2 : 0] = s;
    }
    for (int i = 0; i < 3; i++)
        push_span(r, tuple, parts[i]);
    return tuple;
}

static struct value method_partition(struct render *r, struct value v, const struct value *argv)
{
    return partition(r, v, argv[0], false);
}

static struct value method_rpartition(struct render *r, struct value v, const struct value *argv)
{
    return partition(r, v, argv[0], true);
}

static struct value method_join(struct render *r, struct value v, const struct value *argv)
{
    struct text_builder t = {0};
    struct iterator it;
    struct value item;
    struct span s;
    bool first = true;
    if (iterator_open(r, &it, argv[0]))
        while (iterator_next(r, &it, &item) && arg_text(r, item, &s)) {
            if (!first)
                text_add_span(r, &t, value_span(v));
            text_add_span(r, &t, s);
            first = false;
        }
    return text_value(t);
}

/* ---- find and replace ---------------------------------------------------------------------------------------- */

static struct value text_replace(struct render *r, struct span s, struct span from, struct span to, int64_t max)
{
    struct text_builder t = {0};
    if (from.n == 0) { /* before each character, and at the end */
        uint32_t code;
        for (struct span first = s; max != 0 && text_take_first(r, &s, &code); first = s, max--) {
            first.n -= s.n;
            text_add_span(r, &t, to);
            text_add_span(r, &t, first);
        }
        if (max != 0)
            text_add_span(r, &t, to);
    }
    const char *found;
    while (from.n && max-- != 0 && (found = text_find(r, s, from, false))) {
        text_add_span(r, &t, span_part(s, 0, (size_t)(found - s.s)));
        text_add_span(r, &t, to);
        s.n -= (size_t)(found - s.s) + from.n;
        s.s = found + from.n;
    }
    text_add_span(r, &t, s);
    return text_value(t);
}

static struct value method_replace(struct render *r, struct value v, const struct value *argv)
{
    struct span from, to;
    int64_t max;
    if (!arg_text(r, argv[0], &from) || !arg_text(r, argv[1], &to) || !arg_int(r, argv[2], -1, &max))
        return v;
    return text_replace(r, value_span(v), from, to, max < 0 ? -1 : max);
}

struct value filter_replace(struct render *r, struct value v, const struct value *argv)
{
    int64_t max = -1;
    if (arg_is_given(argv[2]) && !arg_int(r, argv[2], -1, &max))
        return v;
    return text_replace(r, value_span(value_to_string(r, v)), value_span(value_to_string(r, argv[0])),
                        value_span(value_to_string(r, argv[1])), max < 0 ? -1 : max);
}

/* The part of a text between two character indexes (Python's rules for slices), and how many are before it. */
static struct span between(struct render *r, struct value v, struct value start, struct value end, int64_t *before)
{
    struct value bounds[3] = {arg_is_given(start) ? start : value_none(), arg_is_given(end) ? end : value_none(),
                              value_none()};
    struct value part = op_slice(r, v, bounds);
    int64_t n = value_length(r, v), from = 0;
    if (r->code != ERR_OK || (arg_is_given(start) && !arg_int(r, start, 0, &from)))
        return SPAN("");
    *before = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    return value_span(part);
}

static int64_t find(struct render *r, struct value v, const struct value *argv, bool last)
{
    struct span what;
    int64_t before = 0;
    if (!arg_text(r, argv[0], &what))
        return -1;
    struct span s = between(r, v, argv[1], argv[2], &before);
    if (s.n == 0 && (what.n || before > value_length(r, v)))
        return -1;
    const char *found = text_find(r, s, what, last);
    return found ? before + (int64_t)utf8_count(s.s, (size_t)(found - s.s)) : -1;
}

static struct value method_find(struct render *r, struct value v, const struct value *argv)
{
    return value_int(find(r, v, argv, false));
}

static struct value method_rfind(struct render *r, struct value v, const struct value *argv)
{
    return value_int(find(r, v, argv, true));
}

static struct value method_index(struct render *r, struct value v, const struct value *argv)
{
    int64_t i = find(r, v, argv, false);
    return i < 0 ? fail(r, "substring not found") : value_int(i);
}

static struct value method_rindex(struct render *r, struct value v, const struct value *argv)
{
    int64_t i = find(r, v, argv, true);
    return i < 0 ? fail(r, "substring not found") : value_int(i);
}

static struct value method_count(struct render *r, struct value v, const struct value *argv)
{
    struct span what;
    int64_t before = 0, n = 0;
    if (!arg_text(r, argv[0], &what))
        return v;
    struct span s = between(r, v, argv[1], argv[2], &before);
    if (what.n == 0)
        return value_int(before > value_length(r, v) ? 0 : (int64_t)utf8_count(s.s, s.n) + 1);
    for (const char *found; (found = text_find(r, s, what, false)); n++) {
        s.n -= (size_t)(found - s.s) + what.n;
        s.s = found + what.n;
    }
    return value_int(n);
}

/* Whether one of the ends is `affix`, or one of several in a tuple. */
static struct value has_affix(struct render *r, struct value v, const struct value *argv, bool at_end)
{
    const struct value *items = argv[0].kind == V_TUPLE ? argv[0].seq->items : &argv[0];
    uint32_t n = argv[0].kind == V_TUPLE ? argv[0].seq->n : 1;
    int64_t before = 0;
    struct span s = between(r, v, argv[1], argv[2], &before), affix;
    for (uint32_t i = 0; i < n && arg_text(r, items[i], &affix); i++) {
        bool fits = affix.n <= s.n && charge(r, affix.n) && before <= value_length(r, v);
        if (fits && (affix.n == 0 || !memcmp(at_end ? s.s + s.n - affix.n : s.s, affix.s, affix.n)))
            return value_bool(true);
    }
    return value_bool(false);
}

static struct value method_startswith(struct render *r, struct value v, const struct value *argv)
{
    return has_affix(r, v, argv, false);
}

static struct value method_endswith(struct render *r, struct value v, const struct value *argv)
{
    return has_affix(r, v, argv, true);
}

static struct value method_removeprefix(struct render *r, struct value v, const struct value *argv)
{
    struct span s = value_span(v), affix;
    if (arg_text(r, argv[0], &affix) && affix.n && affix.n <= s.n && !memcmp(s.s, affix.s, affix.n))
        s = span_part(s, affix.n, s.n - affix.n);
    return value_string(s);
}

static struct value method_removesuffix(struct render *r, struct value v, const struct value *argv)
{
    struct span s = value_span(v), affix;
    if (arg_text(r, argv[0], &affix) && affix.n && affix.n <= s.n && !memcmp(s.s + s.n - affix.n, affix.s, affix.n))
        s.n -= affix.n;
    return value_string(s);
}

/* ---- width --------------------------------------------------------------------------------------------------- */

static struct value pad(struct render *r, struct span s, struct value width, struct value fill, char where)
{
    struct span with = SPAN(" ");
    struct text_builder t = {0};
    int64_t wanted, n = (int64_t)utf8_count(s.s, s.n);
    if (!arg_int(r, width, 80, &wanted) || (fill.kind != V_MISSING && !arg_text(r, fill, &with)))
        return value_string(s);
    if (utf8_count(with.s, with.n) != 1)
        return fail(r, "the fill character must be exactly one character long");
    int64_t missing = wanted > n ? wanted - n : 0;
    int64_t left = where == 'l' ? 0 : where == 'r' ? missing : missing / 2 + (missing & wanted & 1);
    text_add_fill(r, &t, with, left);
    text_add_span(r, &t, s);
    text_add_fill(r, &t, with, missing - left);
    return text_value(t);
}

static struct value method_ljust(struct render *r, struct value v, const struct value *argv)
{
    return pad(r, value_span(v), argv[0], argv[1], 'l');
}

static struct value method_rjust(struct render *r, struct value v, const struct value *argv)
{
    return pad(r, value_span(v), argv[0], argv[1], 'r');
}

struct value text_center(struct render *r, struct value v, const struct value *argv)
{
    return pad(r, value_span(value_to_string(r, v)), argv[0], argv[1], 'c');
}

static struct value method_zfill(struct render *r, struct value v, const struct value *argv)
{
    struct span s = value_span(v);
    struct text_builder t = {0};
    int64_t width, n = (int64_t)utf8_count(s.s, s.n);
    if (!arg_int(r, argv[0], 0, &width))
        return v;
    if (s.n && (*s.s == '-' || *s.s == '+')) {
        text_add_span(r, &t, span_part(s, 0, 1));
        s = span_part(s, 1, s.n - 1);
    }
    text_add_fill(r, &t, SPAN("0"), width > n ? width - n : 0);
    text_add_span(r, &t, s);
    return text_value(t);
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

static const struct function methods[] = {
    {"capitalize", text_capitalize, NULL, {0}, 0},
    {"center", text_center, NULL, {"width", "fillchar"}, 1},
    {"count", method_count, NULL, {"sub", "start", "end"}, 1},
    {"endswith", method_endswith, NULL, {"suffix", "start", "end"}, 1},
    {"find", method_find, NULL, {"sub", "start", "end"}, 1},
    {"format", NULL, format_braces, {0}, 0},
    {"index", method_index, NULL, {"sub", "start", "end"}, 1},
    {"isalnum", method_isalnum, NULL, {0}, 0},
    {"isalpha", method_isalpha, NULL, {0}, 0},
    {"isascii", method_isascii, NULL, {0}, 0},
    {"isdecimal", method_isdecimal, NULL, {0}, 0},
    {"isdigit", method_isdigit, NULL, {0}, 0},
    {"islower", method_islower, NULL, {0}, 0},
    {"isnumeric", method_isnumeric, NULL, {0}, 0},
    {"isprintable", method_isprintable, NULL, {0}, 0},
    {"isspace", method_isspace, NULL, {0}, 0},
    {"isupper", method_isupper, NULL, {0}, 0},
    {"join", method_join, NULL, {"iterable"}, 1},
    {"ljust", method_ljust, NULL, {"width", "fillchar"}, 1},
    {"lower", text_lower, NULL, {0}, 0},
    {"lstrip", method_lstrip, NULL, {"chars"}, 0},
    {"partition", method_partition, NULL, {"sep"}, 1},
    {"removeprefix", method_removeprefix, NULL, {"prefix"}, 1},
    {"removesuffix", method_removesuffix, NULL, {"suffix"}, 1},
    {"replace", method_replace, NULL, {"old", "new", "count"}, 2},
    {"rfind", method_rfind, NULL, {"sub", "start", "end"}, 1},
    {"rindex", method_rindex, NULL, {"sub", "start", "end"}, 1},
    {"rjust", method_rjust, NULL, {"width", "fillchar"}, 1},
    {"rpartition", method_rpartition, NULL, {"sep"}, 1},
    {"rsplit", method_rsplit, NULL, {"sep", "maxsplit"}, 0},
    {"rstrip", method_rstrip, NULL, {"chars"}, 0},
    {"split", method_split, NULL, {"sep", "maxsplit"}, 0},
    {"splitlines", method_splitlines, NULL, {"keepends"}, 0},
    {"startswith", method_startswith, NULL, {"prefix", "start", "end"}, 1},
    {"strip", text_strip, NULL, {"chars"}, 0},
    {"swapcase", method_swapcase, NULL, {0}, 0},
    {"title", method_title, NULL, {0}, 0},
    {"upper", text_upper, NULL, {0}, 0},
    {"zfill", method_zfill, NULL, {"width"}, 1},
};

const struct function *find_text_method(struct span name)
{
    return find_function(methods, sizeof methods / sizeof *methods, name);
}
