/* Filters, as jinja2 defines them. Those on texts alone are in tmpl_strings.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/tmpl_strings.h"
#include "template/tmpl_unicode.h"

/* ---- attributes and order ------------------------------------------------------------------------------------ */

/* item.a.b for "a.b"; parts that are numbers are indexes. An attribute that is not given is the item itself. */
static struct value get_path(struct render *r, struct value item, struct value path, struct value otherwise)
{
    struct span rest = value_span(path);
    if (!arg_is_given(path))
        return item;
    if (path.kind != V_STRING)
        return op_item(r, item, path);
    for (bool more = true; more && r->code == ERR_OK;) {
        const char *dot = rest.n ? memchr(rest.s, '.', rest.n) : NULL;
        struct span part = {rest.s, dot ? (size_t)(dot - rest.s) : rest.n};
        int64_t index = part.n && part.n < 10 ? 0 : -1;
        for (size_t i = 0; i < part.n && index >= 0; i++)
            index = part.s[i] >= '0' && part.s[i] <= '9' ? index * 10 + (part.s[i] - '0') : -1;
        item = op_item(r, item, index >= 0 ? value_int(index) : value_string(part));
        if (item.kind == V_UNDEFINED && arg_is_given(otherwise))
            item = otherwise;
        more = dot != NULL;
        rest = (struct span){rest.s + part.n + 1, more ? rest.n - part.n - 1 : 0};
    }
    return item;
}

static struct value fold_case(struct render *r, struct value v, struct value case_sensitive)
{
    return v.kind == V_STRING && !value_is_true(r, case_sensitive) ? text_lower(r, v, NULL) : v;
}

struct sorted {
    struct value key, item;
};

static bool comes_before(struct render *r, struct value a, struct value b, bool lists)
{
    if (lists && value_equal(r, a, b)) /* keys are compared inside of lists, where equal ones need no order */
        return false;
    return value_less(r, a, b);
}

/* A stable merge sort; `reverse` keeps the order of equal ones, as Python does. */
static void sort(struct render *r, struct sorted *s, struct sorted *scratch, uint32_t n, bool reverse, bool lists)
{
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t low = 0; low < n; low += 2 * width) {
            uint32_t middle = low + width < n ? low + width : n, high = low + 2 * width < n ? low + 2 * width : n;
            uint32_t i = low, j = middle;
            for (uint32_t k = low; k < high; k++) {
                bool right = i == middle || (j < high && (reverse ? comes_before(r, s[i].key, s[j].key, lists)
                                                                  : comes_before(r, s[j].key, s[i].key, lists)));
                scratch[k] = right ? s[j++] : s[i++];
                if (r->code != ERR_OK)
                    return;
            }
        }
        memcpy(s, scratch, n * sizeof *s);
    }
}

/* The items of a list, in the order of the keys in another one. */
static struct value sort_by(struct render *r, struct value items, struct value keys, bool reverse, bool lists)
{
    if (r->code != ERR_OK)
        return items;
    uint32_t n = items.seq->n;
    struct sorted *s = render_alloc(r, 2 * n * sizeof *s);
    if (!s)
        return items;
    for (uint32_t i = 0; i < n; i++)
        s[i] = (struct sorted){keys.seq->items[i], items.seq->items[i]};
    sort(r, s, s + n, n, reverse, lists);
    struct value list = value_seq(r, V_LIST, n);
    for (uint32_t i = 0; i < n && value_push(r, list, s[i].item); i++)
        ;
    return list;
}

static struct value filter_sort(struct render *r, struct value v, const struct value *argv)
{
    struct value items = value_list_of(r, v), keys = value_seq(r, V_LIST, 0);
    for (uint32_t i = 0; r->code == ERR_OK && i < items.seq->n; i++) {
        struct value key = get_path(r, items.seq->items[i], argv[2], value_none());
        if (argv[2].kind == V_STRING && memchr(argv[2].s, ',', argv[2].n)) { /* by several attributes */
            struct iterator it;
            struct value part, comma[2] = {value_string(SPAN(",")), value_int(-1)};
            struct value parts =
                call_function(r, find_text_method(SPAN("split")), argv[2], &(struct arguments){.items = comma, .n = 2});
            key = value_seq(r, V_LIST, 0);
            if (r->code == ERR_OK && iterator_open(r, &it, parts))
                while (iterator_next(r, &it, &part))
                    value_push(r, key, fold_case(r, get_path(r, items.seq->items[i], part, value_none()), argv[1]));
        }
        value_push(r, keys, fold_case(r, key, argv[1]));
    }
    return sort_by(r, items, keys, value_is_true(r, argv[0]), true);
}

static struct value dict_items(struct render *r, struct value dict, enum value_kind kind)
{
    struct value list = value_seq(r, kind, 0);
    for (uint32_t i = 0; r->code == ERR_OK && i < dict.dict->n; i++) {
        struct value pair = value_seq(r, V_TUPLE, 2);
        value_push(r, pair, dict.dict->keys[i]);
        value_push(r, pair, dict.dict->values[i]);
        value_push(r, list, pair);
    }
    return list;
}

static struct value filter_dictsort(struct render *r, struct value v, const struct value *argv)
{
    bool by_value = argv[1].kind == V_STRING && span_is(value_span(argv[1]), "value");
    if (argv[1].kind != V_MISSING && !by_value && !(argv[1].kind == V_STRING && span_is(value_span(argv[1]), "key")))
        return fail(r, "dictsort sorts by either \"key\" or \"value\"");
    if (v.kind == V_UNDEFINED)
        return fail_undefined(r, v);
    if (v.kind != V_DICT)
        return fail(r, "dictsort needs a dict, not '%s'", value_type_name(v));
    struct value items = dict_items(r, v, V_LIST), keys = value_seq(r, V_LIST, 0);
    for (uint32_t i = 0; r->code == ERR_OK && i < v.dict->n; i++)
        value_push(r, keys, fold_case(r, by_value ? v.dict->values[i] : v.dict->keys[i], argv[0]));
    return sort_by(r, items, keys, value_is_true(r, argv[2]), false);
}

static struct value filter_items(struct render *r, struct value v, const struct value *argv)
{
    if (v.kind == V_UNDEFINED)
        return value_seq(r, V_ITERATOR, 0);
    return v.kind == V_DICT ? dict_items(r, v, V_ITERATOR) : fail(r, "can only get item pairs from a mapping");
}

static struct value filter_unique(struct render *r, struct value v, const struct value *argv)
{
    struct value seen = value_seq(r, V_LIST, 0), list = value_seq(r, V_ITERATOR, 0), item;
    struct iterator it;
    if (iterator_open(r, &it, v))
        while (iterator_next(r, &it, &item)) {
            struct value key = fold_case(r, get_path(r, item, argv[1], value_none()), argv[0]);
            if (value_check_key(r, key) && !value_in(r, key, seen)) {
                value_push(r, seen, key);
                value_push(r, list, item);
            }
        }
    return list;
}

static struct value extreme(struct render *r, struct value v, const struct value *argv, bool largest)
{
    struct value best = value_undefined_sentence("no aggregated item, the sequence was empty"), best_key = best, item;
    struct iterator it;
    bool first = true;
    if (iterator_open(r, &it, v))
        while (iterator_next(r, &it, &item)) {
            struct value key = fold_case(r, get_path(r, item, argv[1], value_none()), argv[0]);
            if (first || (largest ? value_less(r, best_key, key) : value_less(r, key, best_key))) {
                best = item;
                best_key = key;
            }
            first = false;
        }
    return best;
}

static struct value filter_min(struct render *r, struct value v, const struct value *argv)
{
    return extreme(r, v, argv, false);
}

static struct value filter_max(struct render *r, struct value v, const struct value *argv)
{
    return extreme(r, v, argv, true);
}

static struct value filter_groupby(struct render *r, struct value v, const struct value *argv)
{
    struct value items = value_list_of(r, v), keys = value_seq(r, V_LIST, 0), groups = value_seq(r, V_LIST, 0);
    for (uint32_t i = 0; r->code == ERR_OK && i < items.seq->n; i++)
        value_push(r, keys, fold_case(r, get_path(r, items.seq->items[i], argv[0], argv[1]), argv[2]));
    items = sort_by(r, items, keys, false, false);
    struct value last = value_none(), members = last;
    for (uint32_t i = 0; r->code == ERR_OK && i < items.seq->n; i++) {
        struct value name = get_path(r, items.seq->items[i], argv[0], argv[1]), key = fold_case(r, name, argv[2]);
        if (i == 0 || !value_equal(r, key, last)) {
            struct value group = value_seq(r, V_TUPLE, 2);
            members = value_seq(r, V_LIST, 0);
            value_push(r, group, name);
            value_push(r, group, members);
            value_push(r, groups, group);
        }
        if (r->code == ERR_OK)
            value_push(r, members, items.seq->items[i]);
        last = key;
    }
    return groups;
}

/* ---- choosing and mapping ------------------------------------------------------------------------------------ */

static struct arguments without_first(const struct arguments *args, uint32_t n)
{
    struct arguments rest = *args;
    if (n == 0)
        return rest; /* items may be NULL */
    rest.items += n;
    rest.n -= n;
    return rest;
}

/* select, reject, selectattr, rejectattr: items whose value (or attribute) passes a test, or is true. */
static struct value choose(struct render *r, struct value v, const struct arguments *args, bool by_attribute,
                           bool wanted)
{
    struct value list = value_seq(r, V_ITERATOR, 0), item;
    struct iterator it;
    uint32_t at = by_attribute;
    if (args->n < at)
        return fail(r, "missing parameter for attribute name");
    struct span test = SPAN("");
    struct arguments rest = without_first(args, args->n > at ? at + 1 : at);
    if (args->n > at && !arg_text(r, args->items[at], &test))
        return list;
    if (!value_is_true(r, v)) /* as jinja2: what is empty or undefined gives nothing */
        return list;
    if (iterator_open(r, &it, v))
        while (iterator_next(r, &it, &item)) {
            struct value about = by_attribute ? get_path(r, item, args->items[0], value_none()) : item;
            bool is = r->code == ERR_OK && (args->n > at ? run_test(r, test, about, &rest) : value_is_true(r, about));
            if (is == wanted)
                value_push(r, list, item);
        }
    return list;
}

static struct value filter_select(struct render *r, struct value v, const struct arguments *args)
{
    return choose(r, v, args, false, true);
}

static struct value filter_reject(struct render *r, struct value v, const struct arguments *args)
{
    return choose(r, v, args, false, false);
}

static struct value filter_selectattr(struct render *r, struct value v, const struct arguments *args)
{
    return choose(r, v, args, true, true);
}

static struct value filter_rejectattr(struct render *r, struct value v, const struct arguments *args)
{
    return choose(r, v, args, true, false);
}

static struct value filter_map(struct render *r, struct value v, const struct arguments *args)
{
    struct value list = value_seq(r, V_ITERATOR, 0), item, path = {.kind = V_MISSING}, otherwise = path;
    struct iterator it;
    struct span name = SPAN("");
    bool by_path = args->n == 0;
    for (uint32_t i = 0; by_path && i < args->n_named; i++) {
        if (span_is(args->named[i].name, "attribute"))
            path = args->named[i].value;
        else if (span_is(args->named[i].name, "default"))
            otherwise = args->named[i].value;
        else
            return fail(r, "map got an unexpected argument '%.*s'", (int)args->named[i].name.n, args->named[i].name.s);
    }
    if (!value_is_true(r, v))
        return list;
    if (by_path && path.kind == V_MISSING)
        return fail(r, "map requires a filter argument");
    struct arguments rest = without_first(args, !by_path);
    if ((by_path || arg_text(r, args->items[0], &name)) && iterator_open(r, &it, v))
        while (iterator_next(r, &it, &item))
            value_push(r, list, by_path ? get_path(r, item, path, otherwise) : run_filter(r, name, item, &rest));
    return list;
}

/* ---- lists --------------------------------------------------------------------------------------------------- */

static struct value filter_list(struct render *r, struct value v, const struct value *argv)
{
    return value_list_of(r, v);
}

static struct value filter_length(struct render *r, struct value v, const struct value *argv)
{
    int64_t n = v.kind == V_LOOP ? -2 : value_length(r, v);
    if (n == -2)
        return loop_attribute(r, v.loop, SPAN("length"));
    return n < 0 ? fail(r, "object of type '%s' has no len()", value_type_name(v)) : value_int(n);
}

static struct value filter_first(struct render *r, struct value v, const struct value *argv)
{
    struct iterator it;
    struct value item;
    if (iterator_open(r, &it, v) && iterator_next(r, &it, &item))
        return item;
    return value_undefined_sentence("no first item, the sequence was empty");
}

static struct value filter_last(struct render *r, struct value v, const struct value *argv)
{
    if (v.kind == V_ITERATOR)
        return fail(r, "'generator' object is not reversible: |list makes a list of it");
    struct value items = value_list_of(r, v);
    if (r->code == ERR_OK && items.seq->n)
        return items.seq->items[items.seq->n - 1];
    return value_undefined_sentence("no last item, the sequence was empty");
}

static struct value filter_reverse(struct render *r, struct value v, const struct value *argv)
{
    const struct value bounds[3] = {value_none(), value_none(), value_int(-1)};
    if (v.kind == V_STRING)
        return op_slice(r, v, bounds);
    struct value items = value_list_of(r, v);
    struct value back = r->code == ERR_OK ? op_slice(r, items, bounds) : items;
    back.kind = r->code == ERR_OK ? V_ITERATOR : back.kind;
    return back;
}

static struct value filter_join(struct render *r, struct value v, const struct value *argv)
{
    struct text_builder t = {0};
    struct iterator it;
    struct value item, separator = argv[0].kind == V_MISSING ? value_string(SPAN("")) : value_to_string(r, argv[0]);
    bool first = true;
    if (iterator_open(r, &it, v))
        while (iterator_next(r, &it, &item)) {
            if (!first)
                text_add_span(r, &t, value_span(separator));
            text_add_value(r, &t, get_path(r, item, argv[1], value_none()));
            first = false;
        }
    return text_value(t);
}

static struct value filter_sum(struct render *r, struct value v, const struct value *argv)
{
    struct value sum = argv[1].kind == V_MISSING ? value_int(0) : argv[1], item;
    struct iterator it;
    if (sum.kind == V_STRING)
        return fail(r, "sum() can't sum strings: |join does");
    if (iterator_open(r, &it, v))
        while (iterator_next(r, &it, &item))
            sum = op_binary(r, OP_ADD, sum, get_path(r, item, argv[0], value_none()));
    return sum;
}

static struct value filter_batch(struct render *r, struct value v, const struct value *argv)
{
    struct value rows = value_seq(r, V_ITERATOR, 0), row = value_seq(r, V_LIST, 0), item;
    struct iterator it;
    int64_t width;
    if (!arg_int(r, argv[0], 0, &width) || !iterator_open(r, &it, v))
        return rows;
    while (iterator_next(r, &it, &item)) {
        if (row.seq->n == width) {
            value_push(r, rows, row);
            row = value_seq(r, V_LIST, 0);
        }
        value_push(r, row, item);
    }
    while (r->code == ERR_OK && row.seq->n && arg_is_given(argv[1]) && row.seq->n < width)
        value_push(r, row, argv[1]);
    if (r->code == ERR_OK && row.seq->n)
        value_push(r, rows, row);
    return rows;
}

static struct value filter_slice(struct render *r, struct value v, const struct value *argv)
{
    struct value items = value_list_of(r, v), rows = value_seq(r, V_ITERATOR, 0);
    int64_t n_rows;
    if (!arg_int(r, argv[0], 0, &n_rows))
        return rows;
    if (n_rows == 0)
        return fail(r, "slice into no rows");
    uint32_t at = 0;
    for (int64_t i = 0; i < n_rows && r->code == ERR_OK; i++) {
        struct value row = value_seq(r, V_LIST, 0);
        int64_t n = items.seq->n / n_rows, longer = items.seq->n % n_rows;
        for (int64_t j = 0; j < n + (i < longer); j++)
            value_push(r, row, items.seq->items[at++]);
        if (arg_is_given(argv[1]) && i >= longer)
            value_push(r, row, argv[1]);
        value_push(r, rows, row);
    }
    return rows;
}

/* ---- numbers ------------------------------------------------------------------------------------------------- */

static struct value filter_abs(struct render *r, struct value v, const struct value *argv)
{
    int64_t i;
    if (v.kind == V_FLOAT)
        return value_float(fabs(v.real));
    if (value_as_int(v, &i))
        return i < 0 ? op_negate(r, v, true) : value_int(i);
    return v.kind == V_UNDEFINED ? fail_undefined(r, v)
                                 : fail(r, "bad operand type for abs(): '%s'", value_type_name(v));
}

/* The text without white space around it and underscores between its digits, to `out`; false when it is too long or an
 * underscore is elsewhere. */
static bool clean_number(struct render *r, struct span s, char *out, size_t size)
{
    size_t n = 0;
    s = text_rstrip_space(r, text_lstrip_space(r, s));
    for (size_t i = 0; i < s.n; i++) {
        bool alone = i && i + 1 < s.n && s.s[i - 1] != '_' && s.s[i + 1] != '_';
        if (n + 1 == size || !s.s[i] || (s.s[i] == '_' && !alone))
            return false;
        if (s.s[i] != '_')
            out[n++] = s.s[i];
    }
    out[n] = '\0';
    return n > 0;
}

/* Python's float(text), which knows no hexadecimal ones. */
static bool parse_float(struct render *r, struct span s, double *out)
{
    char number[400], *end;
    if (!clean_number(r, s, number, sizeof number) || strpbrk(number, "xX(pP"))
        return false;
    *out = strtod(number, &end);
    return *end == '\0';
}

static bool parse_int(struct render *r, struct span s, int base, int64_t *out)
{
    char number[100];
    if (!clean_number(r, s, number, sizeof number))
        return false;
    const char *digits = number + (*number == '-' || *number == '+');
    char prefix = *digits == '0' ? (char)(digits[1] | 0x20) : 0;
    if ((prefix == 'x' && (base == 16 || base == 0)) || (prefix == 'o' && (base == 8 || base == 0)) ||
        (prefix == 'b' && (base == 2 || base == 0))) {
        base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : 2;
        digits += 2;
    }
    int64_t value = 0;
    for (const char *d = digits; *d; d++) {
        char low = (char)(*d | 0x20);
        int digit = *d >= '0' && *d <= '9' ? *d - '0' : low >= 'a' && low <= 'z' ? low - 'a' + 10 : 99;
        if (digit >= (base ? base : 10))
            return false;
        if (__builtin_mul_overflow(value, base ? base : 10, &value) ||
            __builtin_sub_overflow(value, digit, &value)) { /* downwards, which has room for one more */
            fail(r, "integer overflow: \"%s\" does not fit 64 bits", number);
            return false;
        }
    }
    if (*number != '-' && value == INT64_MIN)
        fail(r, "integer overflow: \"%s\" does not fit 64 bits", number);
    *out = *number == '-' ? value : r->code == ERR_OK ? -value : 0;
    return *digits != '\0';
}

static struct value int_of_float(struct render *r, double f)
{
    if (!isfinite(f))
        return fail(r, "cannot convert float %s to integer", isnan(f) ? "NaN" : "infinity");
    if (!(fabs(f) < 9223372036854775808.0))
        return fail(r, "integer overflow: %g does not fit 64 bits", f);
    return value_int((int64_t)f);
}

static struct value filter_int(struct render *r, struct value v, const struct value *argv)
{
    int64_t i, base;
    double f;
    if (!arg_int(r, argv[1], 10, &base))
        return v;
    if (v.kind == V_UNDEFINED)
        return fail_undefined(r, v);
    if (value_as_int(v, &i))
        return value_int(i);
    if (v.kind == V_FLOAT && !isnan(v.real))
        return int_of_float(r, v.real);
    if (v.kind == V_STRING && (base == 0 || (base >= 2 && base <= 36)) && parse_int(r, value_span(v), (int)base, &i))
        return value_int(i);
    if (v.kind == V_STRING && r->code == ERR_OK && parse_float(r, value_span(v), &f) && !isnan(f))
        return int_of_float(r, f);
    return argv[0].kind == V_MISSING ? value_int(0) : argv[0];
}

static struct value filter_float(struct render *r, struct value v, const struct value *argv)
{
    double f;
    if (v.kind == V_UNDEFINED)
        return fail_undefined(r, v);
    if (is_number(v))
        return value_float(value_as_float(v));
    if (v.kind == V_STRING && parse_float(r, value_span(v), &f))
        return value_float(f);
    return argv[0].kind == V_MISSING ? value_float(0) : argv[0];
}

static struct value filter_round(struct render *r, struct value v, const struct value *argv)
{
    struct span method = SPAN("common");
    int64_t precision;
    if (!arg_int(r, argv[0], 0, &precision) || (argv[1].kind != V_MISSING && !arg_text(r, argv[1], &method)))
        return v;
    bool up = span_is(method, "ceil"), down = span_is(method, "floor");
    if (!up && !down && !span_is(method, "common"))
        return fail(r, "method must be common, ceil or floor");
    if (!is_number(v))
        return v.kind == V_UNDEFINED ? fail_undefined(r, v) : fail(r, "can't round '%s'", value_type_name(v));
    if (precision > 300 || precision < -300)
        return fail(r, "precision %lld: expected -300 to 300", (long long)precision);
    double f = value_as_float(v), power = pow(10, (double)precision);
    if (up || down)
        return value_float((up ? ceil(f * power) : floor(f * power)) / power);
    if (v.kind != V_FLOAT && precision >= 0)
        return v.kind == V_INT ? v : value_int(v.boolean);
    if (v.kind == V_FLOAT && precision >= 0) { /* printf rounds as Python does: exactly, ties to even */
        char digits[700];
        snprintf(digits, sizeof digits, "%.*f", (int)precision, f);
        return value_float(isfinite(f) ? strtod(digits, NULL) : f);
    }
    double rounded = rint(f * power) / power;
    return v.kind == V_FLOAT ? value_float(rounded) : int_of_float(r, rounded);
}

/* ---- texts --------------------------------------------------------------------------------------------------- */

static struct value filter_default(struct render *r, struct value v, const struct value *argv)
{
    bool lacks = v.kind == V_UNDEFINED || (value_is_true(r, argv[1]) && !value_is_true(r, v));
    return !lacks ? v : argv[0].kind == V_MISSING ? value_string(SPAN("")) : argv[0];
}

static struct value filter_string(struct render *r, struct value v, const struct value *argv)
{
    return value_to_string(r, v);
}

static struct value filter_safe(struct render *r, struct value v, const struct value *argv)
{
    struct value s = value_to_string(r, v);
    s.markup = true;
    return s;
}

static struct value filter_forceescape(struct render *r, struct value v, const struct value *argv)
{
    struct text_builder t = {0};
    text_add_escaped(r, &t, value_span(value_to_string(r, v)));
    struct value s = text_value(t);
    s.markup = true;
    return s;
}

static struct value filter_escape(struct render *r, struct value v, const struct value *argv)
{
    return v.kind == V_STRING && v.markup ? v : filter_forceescape(r, v, argv);
}

static struct value filter_format(struct render *r, struct value v, const struct arguments *args)
{
    if (args->n && args->n_named)
        return fail(r, "can't handle positional and keyword arguments at the same time");
    struct value values = value_seq(r, V_TUPLE, args->n);
    for (uint32_t i = 0; i < args->n; i++)
        value_push(r, values, args->items[i]);
    if (args->n_named)
        values = value_dict(r, V_DICT);
    for (uint32_t i = 0; i < args->n_named && r->code == ERR_OK; i++)
        dict_set(r, values.dict, value_string(args->named[i].name), args->named[i].value);
    return r->code == ERR_OK ? format_percent(r, value_to_string(r, v), values) : v;
}

static struct value filter_indent(struct render *r, struct value v, const struct value *argv)
{
    struct text_builder t = {0}, blanks = {0};
    struct span indent, s;
    int64_t width = 4;
    bool first = value_is_true(r, argv[1]), blank = value_is_true(r, argv[2]);
    if (!arg_text(r, v, &s))
        return v;
    if (argv[0].kind == V_STRING) {
        indent = value_span(argv[0]);
    } else {
        if (!arg_int(r, argv[0], 4, &width))
            return v;
        text_add_fill(r, &blanks, SPAN(" "), width);
        indent = text_span(blanks);
    }
    struct value lines = text_lines(r, value_span(join_strings(r, v, value_string(SPAN("\n")))), false);
    for (uint32_t i = 0; r->code == ERR_OK && i < lines.seq->n; i++) {
        struct span line = value_span(lines.seq->items[i]);
        if (i)
            text_add_string(r, &t, "\n");
        if (i ? blank || line.n : first)
            text_add_span(r, &t, indent);
        text_add_span(r, &t, line);
    }
    return text_value(t);
}

static struct value filter_truncate(struct render *r, struct value v, const struct value *argv)
{
    struct span s, end = SPAN("..."), kept;
    int64_t length, leeway = 5;
    if (!arg_int(r, argv[0], 255, &length) || (argv[2].kind != V_MISSING && !arg_text(r, argv[2], &end)) ||
        (arg_is_given(argv[3]) && !arg_int(r, argv[3], 5, &leeway)))
        return v;
    int64_t n = value_length(r, v), n_end = (int64_t)utf8_count(end.s, end.n);
    if (length < n_end || leeway < 0)
        return fail(r, "expected a length of at least %lld and no negative leeway", (long long)n_end);
    if (n >= 0 && (n <= length || n - length <= leeway)) /* whatever it is */
        return v;
    if (!arg_text(r, v, &s))
        return v;
    kept = span_part(s, 0, code_offset(s, (size_t)(length - n_end)));
    size_t word = kept.n;
    while (word > 0 && kept.s[word - 1] != ' ')
        word--;
    if (!value_is_true(r, argv[1]) && word > 0)
        kept.n = word - 1;
    struct text_builder t = {0};
    text_add_span(r, &t, kept);
    text_add_span(r, &t, end);
    return text_value(t);
}

static struct value filter_wordcount(struct render *r, struct value v, const struct value *argv)
{
    struct span s = value_span(value_to_string(r, v));
    int64_t n = 0;
    bool inside = false;
    uint32_t code;
    while (text_take_first(r, &s, &code)) {
        bool word = code == '_' || (code_properties(code) & (CODE_ALPHA | CODE_DECIMAL | CODE_DIGIT | CODE_NUMERIC));
        n += word && !inside;
        inside = word;
    }
    return value_int(n);
}

static struct value filter_attr(struct render *r, struct value v, const struct value *argv)
{
    struct span name;
    if (!arg_text(r, argv[0], &name))
        return v;
    struct value found = op_own_attribute(r, v, name);
    return found.kind == V_MISSING ? value_undefined_attribute(v, name) : found;
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

static const struct function filters[] = {
    {"abs", filter_abs, NULL, {0}, 0},
    {"attr", filter_attr, NULL, {"name"}, 1},
    {"batch", filter_batch, NULL, {"linecount", "fill_with"}, 1},
    {"capitalize", text_capitalize, NULL, {0}, 0},
    {"center", text_center, NULL, {"width"}, 0},
    {"count", filter_length, NULL, {0}, 0},
    {"d", filter_default, NULL, {"default_value", "boolean"}, 0},
    {"default", filter_default, NULL, {"default_value", "boolean"}, 0},
    {"dictsort", filter_dictsort, NULL, {"case_sensitive", "by", "reverse"}, 0},
    {"e", filter_escape, NULL, {0}, 0},
    {"escape", filter_escape, NULL, {0}, 0},
    {"first", filter_first, NULL, {0}, 0},
    {"float", filter_float, NULL, {"default"}, 0},
    {"forceescape", filter_forceescape, NULL, {0}, 0},
    {"format", NULL, filter_format, {0}, 0},
    {"groupby", filter_groupby, NULL, {"attribute", "default", "case_sensitive"}, 1},
    {"indent", filter_indent, NULL, {"width", "first", "blank"}, 0},
    {"int", filter_int, NULL, {"default", "base"}, 0},
    {"items", filter_items, NULL, {0}, 0},
    {"join", filter_join, NULL, {"d", "attribute"}, 0},
    {"last", filter_last, NULL, {0}, 0},
    {"length", filter_length, NULL, {0}, 0},
    {"list", filter_list, NULL, {0}, 0},
    {"lower", text_lower, NULL, {0}, 0},
    {"map", NULL, filter_map, {0}, 0},
    {"max", filter_max, NULL, {"case_sensitive", "attribute"}, 0},
    {"min", filter_min, NULL, {"case_sensitive", "attribute"}, 0},
    {"reject", NULL, filter_reject, {0}, 0},
    {"rejectattr", NULL, filter_rejectattr, {0}, 0},
    {"replace", filter_replace, NULL, {"old", "new", "count"}, 2},
    {"reverse", filter_reverse, NULL, {0}, 0},
    {"round", filter_round, NULL, {"precision", "method"}, 0},
    {"safe", filter_safe, NULL, {0}, 0},
    {"select", NULL, filter_select, {0}, 0},
    {"selectattr", NULL, filter_selectattr, {0}, 0},
    {"slice", filter_slice, NULL, {"slices", "fill_with"}, 1},
    {"sort", filter_sort, NULL, {"reverse", "case_sensitive", "attribute"}, 0},
    {"string", filter_string, NULL, {0}, 0},
    {"sum", filter_sum, NULL, {"attribute", "start"}, 0},
    {"title", filter_title, NULL, {0}, 0},
    {"tojson", filter_tojson, NULL, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0},
    {"trim", text_strip, NULL, {"chars"}, 0},
    {"truncate", filter_truncate, NULL, {"length", "killwords", "end", "leeway"}, 0},
    {"unique", filter_unique, NULL, {"case_sensitive", "attribute"}, 0},
    {"upper", text_upper, NULL, {0}, 0},
    {"wordcount", filter_wordcount, NULL, {0}, 0},
};

const struct function *find_filter(struct span name)
{
    return find_function(filters, sizeof filters / sizeof *filters, name);
}

struct value run_filter(struct render *r, struct span name, struct value v, const struct arguments *args)
{
    const struct function *f = find_filter(name);
    if (!f)
        return fail(r, "there is no filter '%.*s'", (int)name.n, name.s);
    return call_function(r, f, v, args);
}
