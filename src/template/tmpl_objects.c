/* Tests, global functions, methods of lists and dictionaries, and what `loop` knows. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <time.h>

#include "template/tmpl_strings.h"
#include "template/tmpl_unicode.h"

const struct function *find_function(const struct function *table, size_t n, struct span name)
{
    for (size_t i = 0; i < n; i++)
        if (*table[i].name == (name.n ? *name.s : 0) && span_is(name, table[i].name))
            return &table[i];
    return NULL;
}

/* ---- tests --------------------------------------------------------------------------------------------------- */

static bool is_iterable(struct value v)
{
    return is_seq(v) || v.kind == V_STRING || v.kind == V_DICT || v.kind == V_UNDEFINED || v.kind == V_LOOP;
}

static bool is_sequence(struct value v)
{
    return v.kind == V_LIST || v.kind == V_TUPLE || v.kind == V_RANGE || v.kind == V_STRING || v.kind == V_DICT ||
           v.kind == V_UNDEFINED;
}

static bool is_callable(struct value v)
{
    return v.kind == V_MACRO || v.kind == V_METHOD || v.kind == V_FUNCTION || v.kind == V_LOOP || v.kind == V_JOINER ||
           v.kind == V_UNDEFINED;
}

static bool is_same(struct render *r, struct value a, struct value b)
{
    if (a.kind != b.kind)
        return false;
    return a.kind >= V_LIST ? a.s == b.s : value_equal(r, a, b);
}

static bool is_divisible(struct render *r, struct value v, struct value by, int64_t rest)
{
    struct value left = op_binary(r, OP_MOD, v, by);
    return r->code == ERR_OK && value_equal(r, left, value_int(rest));
}

#define TEST(name, expression)                                                                                         \
    static struct value test_##name(struct render *r, struct value v, const struct value *argv)                        \
    {                                                                                                                  \
        return value_bool(expression);                                                                                 \
    }
TEST(boolean, v.kind == V_BOOL)
TEST(callable, is_callable(v))
TEST(defined, v.kind != V_UNDEFINED)
TEST(divisibleby, is_divisible(r, v, argv[0], 0))
TEST(eq, value_equal(r, v, argv[0]))
TEST(escaped, v.kind == V_STRING && v.markup)
TEST(even, is_divisible(r, v, value_int(2), 0))
TEST(false, v.kind == V_BOOL && !v.boolean)
TEST(filter, value_check_key(r, v) && v.kind == V_STRING && find_filter(value_span(v)))
TEST(float, v.kind == V_FLOAT)
TEST(ge, value_is_true(r, op_compare(r, CMP_GE, v, argv[0])))
TEST(gt, value_is_true(r, op_compare(r, CMP_GT, v, argv[0])))
TEST(in, value_in(r, v, argv[0]))
TEST(integer, v.kind == V_INT)
TEST(iterable, is_iterable(v))
TEST(le, value_is_true(r, op_compare(r, CMP_LE, v, argv[0])))
TEST(lower, text_has_case(r, value_span(value_to_string(r, v)), CODE_LOWER))
TEST(lt, value_is_true(r, op_compare(r, CMP_LT, v, argv[0])))
TEST(mapping, v.kind == V_DICT)
TEST(ne, !value_equal(r, v, argv[0]))
TEST(none, v.kind == V_NONE)
TEST(number, is_number(v))
TEST(odd, is_divisible(r, v, value_int(2), 1))
TEST(sameas, is_same(r, v, argv[0]))
TEST(sequence, is_sequence(v))
TEST(string, v.kind == V_STRING)
TEST(test, value_check_key(r, v) && v.kind == V_STRING && find_test(value_span(v)))
TEST(true, v.kind == V_BOOL && v.boolean)
TEST(undefined, v.kind == V_UNDEFINED)
TEST(upper, text_has_case(r, value_span(value_to_string(r, v)), CODE_UPPER))

static const struct function tests[] = {
    {"boolean", test_boolean, NULL, {0}, 0},     {"callable", test_callable, NULL, {0}, 0},
    {"defined", test_defined, NULL, {0}, 0},     {"divisibleby", test_divisibleby, NULL, {"num"}, 1},
    {"eq", test_eq, NULL, {"other"}, 1},         {"equalto", test_eq, NULL, {"other"}, 1},
    {"==", test_eq, NULL, {"other"}, 1},         {"escaped", test_escaped, NULL, {0}, 0},
    {"even", test_even, NULL, {0}, 0},           {"false", test_false, NULL, {0}, 0},
    {"filter", test_filter, NULL, {0}, 0},       {"float", test_float, NULL, {0}, 0},
    {"ge", test_ge, NULL, {"other"}, 1},         {">=", test_ge, NULL, {"other"}, 1},
    {"gt", test_gt, NULL, {"other"}, 1},         {"greaterthan", test_gt, NULL, {"other"}, 1},
    {">", test_gt, NULL, {"other"}, 1},          {"in", test_in, NULL, {"seq"}, 1},
    {"integer", test_integer, NULL, {0}, 0},     {"iterable", test_iterable, NULL, {0}, 0},
    {"le", test_le, NULL, {"other"}, 1},         {"<=", test_le, NULL, {"other"}, 1},
    {"lower", test_lower, NULL, {0}, 0},         {"lt", test_lt, NULL, {"other"}, 1},
    {"lessthan", test_lt, NULL, {"other"}, 1},   {"<", test_lt, NULL, {"other"}, 1},
    {"mapping", test_mapping, NULL, {0}, 0},     {"ne", test_ne, NULL, {"other"}, 1},
    {"!=", test_ne, NULL, {"other"}, 1},         {"none", test_none, NULL, {0}, 0},
    {"number", test_number, NULL, {0}, 0},       {"odd", test_odd, NULL, {0}, 0},
    {"sameas", test_sameas, NULL, {"other"}, 1}, {"sequence", test_sequence, NULL, {0}, 0},
    {"string", test_string, NULL, {0}, 0},       {"test", test_test, NULL, {0}, 0},
    {"true", test_true, NULL, {0}, 0},           {"undefined", test_undefined, NULL, {0}, 0},
    {"upper", test_upper, NULL, {0}, 0},
};

const struct function *find_test(struct span name)
{
    return find_function(tests, sizeof tests / sizeof *tests, name);
}

bool run_test(struct render *r, struct span name, struct value v, const struct arguments *args)
{
    const struct function *f = find_test(name);
    if (!f)
        fail(r, "there is no test '%.*s'", (int)name.n, name.s);
    return f && value_is_true(r, call_function(r, f, v, args));
}

/* ---- global functions ---------------------------------------------------------------------------------------- */

static struct value global_raise_exception(struct render *r, struct value self, const struct value *argv)
{
    struct value message = value_to_string(r, argv[0]);
    return fail(r, "%.*s", (int)message.n, message.s);
}

static struct value global_strftime_now(struct render *r, struct value self, const struct value *argv)
{
    enum { MAX_DATE = 4096 };
    struct span format;
    struct tm now;
    time_t seconds = time(NULL);
    if (!arg_text(r, argv[0], &format) || format.n > MAX_DATE / 4)
        return fail(r, "strftime_now needs a format of at most %d bytes", MAX_DATE / 4);
    struct value with_end = value_copy_string(r, format.s, format.n); /* ended by NUL */
    char *date = render_alloc(r, MAX_DATE);
    if (!date)
        return with_end;
    localtime_r(&seconds, &now);
    return value_string((struct span){date, strftime(date, MAX_DATE, with_end.s, &now)});
}

static struct value global_range(struct render *r, struct value self, const struct arguments *args)
{
    int64_t bounds[3] = {0, 0, 1}, n_items = 0;
    if (args->n < 1 || args->n > 3 || args->n_named)
        return fail(r, "range takes one to three integers");
    for (uint32_t i = 0; i < args->n; i++)
        if (!arg_int(r, args->items[i], 0, &bounds[args->n == 1 ? 1 : i]))
            return value_none();
    int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    if (step == 0)
        return fail(r, "range() arg 3 must not be zero");
    if (step > 0 ? start < stop : start > stop) {
        uint64_t width = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
        uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
        uint64_t n = (width - 1) / stride + 1;
        if (n > TMPL_MAX_RANGE)
            return fail(r, "range too big: at most %d numbers are allowed", TMPL_MAX_RANGE);
        n_items = (int64_t)n;
    }
    struct value range = value_seq(r, V_RANGE, (uint32_t)n_items);
    for (int64_t i = 0, at = start; i < n_items && value_push(r, range, value_int(at)); i++)
        __builtin_add_overflow(at, step, &at); /* behind the last one, and not used, if it does */
    if (r->code == ERR_OK) {
        range.seq->start = start;
        range.seq->stop = stop;
        range.seq->step = step;
    }
    return range;
}

/* dict(mapping or pairs, name=value, ...), and namespace() the same. */
static struct value make_dict(struct render *r, const struct arguments *args, enum value_kind kind)
{
    struct value dict = value_dict(r, kind), pair, parts[2], more;
    struct iterator it, in_pair;
    if (args->n > 1)
        return fail(r, "dict expected at most 1 argument, got %u", args->n);
    if (args->n && args->items[0].kind == V_DICT) {
        for (uint32_t i = 0; i < args->items[0].dict->n && r->code == ERR_OK; i++)
            dict_set(r, dict.dict, args->items[0].dict->keys[i], args->items[0].dict->values[i]);
    } else if (args->n && iterator_open(r, &it, args->items[0])) {
        while (iterator_next(r, &it, &pair)) {
            bool two = iterator_open(r, &in_pair, pair) && iterator_next(r, &in_pair, &parts[0]) &&
                       iterator_next(r, &in_pair, &parts[1]) && !iterator_next(r, &in_pair, &more);
            if (!two)
                return fail(r, "dict() needs pairs");
            dict_set(r, dict.dict, parts[0], parts[1]);
        }
    }
    for (uint32_t i = 0; i < args->n_named && r->code == ERR_OK; i++)
        dict_set(r, dict.dict, value_string(args->named[i].name), args->named[i].value);
    return dict;
}

static struct value global_dict(struct render *r, struct value self, const struct arguments *args)
{
    return make_dict(r, args, V_DICT);
}

static struct value global_namespace(struct render *r, struct value self, const struct arguments *args)
{
    return make_dict(r, args, V_NAMESPACE);
}

static struct value global_cycler(struct render *r, struct value self, const struct arguments *args)
{
    if (args->n == 0)
        return fail(r, "at least one item has to be provided");
    struct value cycler = value_seq(r, V_LIST, args->n);
    for (uint32_t i = 0; i < args->n; i++)
        value_push(r, cycler, args->items[i]);
    cycler.kind = r->code == ERR_OK ? V_CYCLER : cycler.kind;
    return cycler;
}

static struct value global_joiner(struct render *r, struct value self, const struct value *argv)
{
    struct joiner *j = render_alloc(r, sizeof *j);
    if (!j)
        return value_none();
    *j = (struct joiner){.separator = SPAN(", ")};
    if (argv[0].kind != V_MISSING)
        j->separator = value_span(value_to_string(r, argv[0]));
    return (struct value){.kind = V_JOINER, .joiner = j};
}

const struct function *find_global(struct span name)
{
    static const struct function globals[] = {
        {"cycler", NULL, global_cycler, {0}, 0},
        {"dict", NULL, global_dict, {0}, 0},
        {"joiner", global_joiner, NULL, {"sep"}, 0},
        {"namespace", NULL, global_namespace, {0}, 0},
        {"raise_exception", global_raise_exception, NULL, {"message"}, 1},
        {"range", NULL, global_range, {0}, 0},
        {"strftime_now", global_strftime_now, NULL, {"format"}, 1},
    };
    return find_function(globals, sizeof globals / sizeof *globals, name);
}

/* ---- methods of lists, dictionaries and cyclers -------------------------------------------------------------- */

static struct value dict_get(struct render *r, struct value self, const struct value *argv)
{
    const struct value *v = value_check_key(r, argv[0]) ? dict_find(r, self.dict, argv[0]) : NULL;
    return v ? *v : argv[1].kind == V_MISSING ? value_none() : argv[1];
}

static struct value view(struct render *r, struct value self, char what)
{
    struct value list = value_seq(r, V_VIEW, self.dict->n);
    for (uint32_t i = 0; i < self.dict->n && r->code == ERR_OK; i++) {
        struct value pair = what == 'k' ? self.dict->keys[i] : self.dict->values[i];
        if (what == 'i') {
            pair = value_seq(r, V_TUPLE, 2);
            value_push(r, pair, self.dict->keys[i]);
            value_push(r, pair, self.dict->values[i]);
        }
        value_push(r, list, pair);
    }
    if (r->code == ERR_OK)
        list.seq->view = what;
    return list;
}

static struct value dict_keys(struct render *r, struct value self, const struct value *argv)
{
    return view(r, self, 'k');
}

static struct value dict_values(struct render *r, struct value self, const struct value *argv)
{
    return view(r, self, 'v');
}

static struct value dict_items(struct render *r, struct value self, const struct value *argv)
{
    return view(r, self, 'i');
}

static struct value dict_copy(struct render *r, struct value self, const struct value *argv)
{
    return self; /* nothing can change either of the two */
}

static struct value list_copy(struct render *r, struct value self, const struct value *argv)
{
    return value_list_of(r, self);
}

static struct value list_append(struct render *r, struct value self, const struct value *argv)
{
    value_push(r, self, argv[0]);
    return value_none();
}

static struct value list_count(struct render *r, struct value self, const struct value *argv)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < self.seq->n && r->code == ERR_OK; i++)
        n += value_equal(r, self.seq->items[i], argv[0]);
    return value_int(n);
}

static struct value list_index(struct render *r, struct value self, const struct value *argv)
{
    int64_t from, to;
    if (!arg_int(r, argv[1], 0, &from) || !arg_int(r, argv[2], self.seq->n, &to))
        return self;
    from = from < 0 ? from + self.seq->n : from;
    to = to < 0 ? to + self.seq->n : to;
    for (int64_t i = from < 0 ? 0 : from; i < to && i < self.seq->n && r->code == ERR_OK; i++)
        if (value_equal(r, self.seq->items[i], argv[0]))
            return value_int(i);
    return fail(r, "the value is not in the list");
}

static struct value cycler_next(struct render *r, struct value self, const struct value *argv)
{
    struct value v = self.seq->items[self.seq->at];
    self.seq->at = (self.seq->at + 1) % self.seq->n;
    return v;
}

static struct value cycler_reset(struct render *r, struct value self, const struct value *argv)
{
    self.seq->at = 0;
    return value_none();
}

const struct function *find_method(struct value self, struct span name, bool *hidden)
{
    static const struct function of_dicts[] = {
        {"get", dict_get, NULL, {"key", "default"}, 1},
        {"items", dict_items, NULL, {0}, 0},
        {"keys", dict_keys, NULL, {0}, 0},
        {"values", dict_values, NULL, {0}, 0},
        {"copy", dict_copy, NULL, {0}, 0},
    };
    static const struct function of_tuples[] = {
        {"count", list_count, NULL, {"value"}, 1},
        {"index", list_index, NULL, {"value", "start", "stop"}, 1},
    };
    static const struct function of_lists[] = {
        {"count", list_count, NULL, {"value"}, 1},
        {"index", list_index, NULL, {"value", "start", "stop"}, 1},
        {"copy", list_copy, NULL, {0}, 0},
        {"append", list_append, NULL, {"object"}, 1},
    };
    static const struct function of_cyclers[] = {
        {"next", cycler_next, NULL, {0}, 0},
        {"reset", cycler_reset, NULL, {0}, 0},
    };
    static const char *const changing_dicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static const char *const changing_lists[] = {"clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
    *hidden = false;
    for (size_t i = 0; self.kind == V_DICT && i < sizeof changing_dicts / sizeof *changing_dicts; i++)
        *hidden = *hidden || span_is(name, changing_dicts[i]);
    for (size_t i = 0; self.kind == V_LIST && i < sizeof changing_lists / sizeof *changing_lists; i++)
        *hidden = *hidden || span_is(name, changing_lists[i]);
    switch ((enum value_kind)self.kind) {
    case V_STRING: return find_text_method(name);
    case V_DICT: return find_function(of_dicts, sizeof of_dicts / sizeof *of_dicts, name);
    case V_LIST: return find_function(of_lists, sizeof of_lists / sizeof *of_lists, name);
    case V_TUPLE:
    case V_RANGE: return find_function(of_tuples, sizeof of_tuples / sizeof *of_tuples, name);
    case V_CYCLER: return find_function(of_cyclers, sizeof of_cyclers / sizeof *of_cyclers, name);
    default: return NULL;
    }
}

/* ---- loop ---------------------------------------------------------------------------------------------------- */

static struct value loop_cycle(struct render *r, struct value self, const struct arguments *args)
{
    if (args->n == 0)
        return fail(r, "no items for cycling given");
    return args->items[self.loop->index0 % args->n];
}

static struct value loop_changed(struct render *r, struct value self, const struct arguments *args)
{
    struct value now = value_seq(r, V_TUPLE, args->n);
    for (uint32_t i = 0; i < args->n; i++)
        value_push(r, now, args->items[i]);
    bool same = r->code == ERR_OK && self.loop->changed.kind != V_MISSING && value_equal(r, self.loop->changed, now);
    self.loop->changed = now;
    return value_bool(!same);
}

struct value loop_attribute(struct render *r, struct loop *l, struct span name)
{
    static const struct function methods[] = {
        {"cycle", NULL, loop_cycle, {0}, 0},
        {"changed", NULL, loop_changed, {0}, 0},
    };
    int64_t i = l->index0;
    if (span_is(name, "index"))
        return value_int(i + 1);
    if (span_is(name, "index0"))
        return value_int(i);
    if (span_is(name, "first"))
        return value_bool(i == 0);
    if (span_is(name, "depth"))
        return value_int(l->depth0 + 1);
    if (span_is(name, "depth0"))
        return value_int(l->depth0);
    if (span_is(name, "previtem"))
        return i > 0 ? l->items->items[i - 1] : value_undefined_sentence("there is no previous item");
    if (span_is(name, "last") || span_is(name, "nextitem")) {
        loop_fetch(r, l, i + 1);
        bool last = i + 1 >= l->items->n;
        if (span_is(name, "last"))
            return value_bool(last);
        return last ? value_undefined_sentence("there is no next item") : l->items->items[i + 1];
    }
    bool from_end = span_is(name, "revindex") || span_is(name, "revindex0");
    if (from_end || span_is(name, "length")) {
        loop_fetch(r, l, INT64_MAX);
        int64_t n = l->items->n;
        return value_int(!from_end ? n : span_is(name, "revindex") ? n - i : n - i - 1);
    }
    const struct function *f = find_function(methods, sizeof methods / sizeof *methods, name);
    return f ? value_method(r, f, (struct value){.kind = V_LOOP, .loop = l}) : (struct value){.kind = V_MISSING};
}
