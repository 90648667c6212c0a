/* Operators, attributes, indexes and slices, with Python's rules. */
#include <math.h>
#include <string.h>

#include "template/tmpl_unicode.h"
#include "template/tmpl_value.h"

static struct value fail_operands(struct render *r, const char *op, struct value a, struct value b)
{
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED)
        return fail_undefined(r, a.kind == V_UNDEFINED ? a : b);
    return fail(r, "unsupported operand types for %s: '%s' and '%s'", op, value_type_name(a), value_type_name(b));
}

static struct value fail_overflow(struct render *r)
{
    return fail(r, "integer overflow: the result does not fit 64 bits");
}

/* ---- arithmetic ---------------------------------------------------------------------------------------------- */

static struct value power_int(struct render *r, int64_t base, int64_t exponent)
{
    int64_t result = 1;
    if (exponent < 0)
        return base ? value_float(pow((double)base, (double)exponent)) : fail(r, "zero to a negative power");
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            return fail_overflow(r);
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
            return fail_overflow(r);
    }
    return value_int(result);
}

static struct value integers(struct render *r, enum binary_op op, int64_t a, int64_t b)
{
    int64_t c = 0;
    bool overflow = false;
    switch (op) {
    case OP_ADD: overflow = __builtin_add_overflow(a, b, &c); break;
    case OP_SUB: overflow = __builtin_sub_overflow(a, b, &c); break;
    case OP_MUL: overflow = __builtin_mul_overflow(a, b, &c); break;
    case OP_POW: return power_int(r, a, b);
    default:
        if (b == 0)
            return fail(r, "division by zero");
        if (op == OP_DIV)
            return value_float((double)a / (double)b);
        if (b == -1) { /* INT64_MIN / -1 is the one that does not fit */
            overflow = op == OP_FLOORDIV && __builtin_sub_overflow(0, a, &c);
        } else {
            int64_t quotient = a / b, rest = a % b;
            bool down = rest != 0 && (rest < 0) != (b < 0);
            c = op == OP_FLOORDIV ? quotient - down : down ? rest + b : rest;
        }
    }
    return overflow ? fail_overflow(r) : value_int(c);
}

static struct value floats(struct render *r, enum binary_op op, double a, double b)
{
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        return fail(r, "division by zero");
    switch (op) {
    case OP_ADD: return value_float(a + b);
    case OP_SUB: return value_float(a - b);
    case OP_MUL: return value_float(a * b);
    case OP_DIV: return value_float(a / b);
    case OP_POW:
        if ((a == 0 && b < 0) || (a < 0 && b != floor(b)))
            return fail(r, "this power is not a real number");
        double power = pow(a, b);
        return isinf(power) && isfinite(a) && isfinite(b) ? fail(r, "float overflow") : value_float(power);
    default: break;
    }
    double rest = fmod(a, b);
    double quotient = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
        quotient -= 1;
    } else if (rest == 0) {
        rest = copysign(0, b);
    }
    if (op == OP_MOD)
        return value_float(rest);
    double whole = quotient != 0 ? floor(quotient) : copysign(0, a / b);
    return value_float(quotient - whole > 0.5 ? whole + 1 : whole);
}

static struct value repeat(struct render *r, struct value v, int64_t times)
{
    if (v.kind == V_STRING) {
        struct text_builder t = {0};
        text_add_fill(r, &t, value_span(v), times);
        struct value s = text_value(t);
        s.markup = v.markup;
        return s;
    }
    struct value list = value_seq(r, (enum value_kind)v.kind, 0);
    for (; times > 0 && v.seq->n && r->code == ERR_OK; times--)
        for (uint32_t i = 0; i < v.seq->n; i++)
            value_push(r, list, v.seq->items[i]);
    return list;
}

/* Text behind text; where one of them is marked as safe, the other is escaped. */
static struct value add_strings(struct render *r, struct value a, struct value b)
{
    if (a.markup == b.markup) {
        struct value s = join_strings(r, a, b);
        s.markup = a.markup;
        return s;
    }
    struct text_builder t = {0};
    for (int i = 0; i < 2; i++) {
        struct value part = i ? b : a;
        if (part.markup)
            text_add_span(r, &t, value_span(part));
        else
            text_add_escaped(r, &t, value_span(part));
    }
    struct value s = text_value(t);
    s.markup = true;
    return s;
}

static struct value add_seqs(struct render *r, struct value a, struct value b)
{
    struct value list = value_seq(r, (enum value_kind)a.kind, 0);
    for (uint32_t i = 0; i < a.seq->n && r->code == ERR_OK; i++)
        value_push(r, list, a.seq->items[i]);
    for (uint32_t i = 0; i < b.seq->n && r->code == ERR_OK; i++)
        value_push(r, list, b.seq->items[i]);
    return list;
}

struct value op_binary(struct render *r, enum binary_op op, struct value a, struct value b)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};
    int64_t i, j;
    if (op == OP_MOD && a.kind == V_STRING)
        return format_percent(r, a, b);
    if (value_as_int(a, &i) && value_as_int(b, &j))
        return integers(r, op, i, j);
    if (is_number(a) && is_number(b))
        return floats(r, op, value_as_float(a), value_as_float(b));
    if (op == OP_ADD && a.kind == V_STRING && b.kind == V_STRING)
        return add_strings(r, a, b);
    if (op == OP_ADD && a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE))
        return add_seqs(r, a, b);
    bool a_repeats = a.kind == V_STRING || a.kind == V_LIST || a.kind == V_TUPLE;
    bool b_repeats = b.kind == V_STRING || b.kind == V_LIST || b.kind == V_TUPLE;
    if (op == OP_MUL && a_repeats && value_as_int(b, &i))
        return repeat(r, a, i);
    if (op == OP_MUL && b_repeats && value_as_int(a, &i))
        return repeat(r, b, i);
    return fail_operands(r, signs[op], a, b);
}

struct value op_negate(struct render *r, struct value v, bool minus)
{
    int64_t i;
    if (v.kind == V_FLOAT)
        return value_float(minus ? -v.real : v.real);
    if (v.kind == V_UNDEFINED)
        return fail_undefined(r, v);
    if (!value_as_int(v, &i))
        return fail(r, "bad operand type for unary %c: '%s'", minus ? '-' : '+', value_type_name(v));
    if (minus && __builtin_sub_overflow(0, i, &i))
        return fail_overflow(r);
    return value_int(i);
}

struct value op_compare(struct render *r, enum compare_op op, struct value a, struct value b)
{
    switch (op) {
    case CMP_EQ: return value_bool(value_equal(r, a, b));
    case CMP_NE: return value_bool(!value_equal(r, a, b));
    case CMP_LT: return value_bool(value_less(r, a, b));
    case CMP_GT: return value_bool(value_less(r, b, a));
    case CMP_LE: return value_bool(value_less(r, a, b) || (r->code == ERR_OK && value_equal(r, a, b)));
    case CMP_GE: return value_bool(value_less(r, b, a) || (r->code == ERR_OK && value_equal(r, a, b)));
    case CMP_IN: return value_bool(value_in(r, a, b));
    case CMP_NOT_IN: return value_bool(!value_in(r, a, b));
    }
    return value_none();
}

/* ---- attributes and indexes ---------------------------------------------------------------------------------- */

/* What Python's getattr() finds: methods and the attributes of our own objects. V_MISSING: nothing. */
struct value op_own_attribute(struct render *r, struct value object, struct span name)
{
    const struct value missing = {.kind = V_MISSING};
    if (object.kind == V_NAMESPACE) {
        const struct value *v = dict_find_text(r, object.dict, name);
        return v ? *v : missing;
    }
    if (object.kind == V_LOOP)
        return loop_attribute(r, object.loop, name);
    if (object.kind == V_MACRO && span_is(name, "name"))
        return value_string(object.macro->node->text);
    if (object.kind == V_CYCLER && span_is(name, "current"))
        return object.seq->items[object.seq->at];
    bool hidden = false;
    const struct function *f = find_method(object, name, &hidden);
    if (hidden) /* the sandbox: there, but of no use */
        return value_undefined_sentence(
            "methods that change a list or dict, but for append, are not allowed in templates");
    return f ? value_method(r, f, object) : missing;
}

/* object[index] for an integer; V_MISSING beyond the ends. */
static struct value at_index(struct render *r, struct value object, int64_t i)
{
    const struct value missing = {.kind = V_MISSING};
    int64_t n = value_length(r, object);
    if (i < 0)
        i += n;
    if (i < 0 || i >= n)
        return missing;
    if (object.kind != V_STRING)
        return object.seq->items[i];
    struct span s = value_span(object);
    size_t from = s.n == (size_t)n ? (size_t)i : code_offset(s, (size_t)i);
    uint32_t code;
    struct value c = value_string(span_part(s, from, code_next(s.s + from, s.n - from, &code)));
    c.markup = object.markup;
    return c;
}

/* What Python's object[index] finds. V_MISSING: nothing. */
static struct value own_item(struct render *r, struct value object, struct value index)
{
    int64_t i;
    if (object.kind == V_DICT) {
        const struct value *v = index.kind == V_STRING ? dict_find_text(r, object.dict, value_span(index))
                                                       : dict_find(r, object.dict, index);
        return v ? *v : (struct value){.kind = V_MISSING};
    }
    bool indexed = object.kind == V_STRING || object.kind == V_LIST || object.kind == V_TUPLE || object.kind == V_RANGE;
    if (indexed && value_as_int(index, &i))
        return at_index(r, object, i);
    return (struct value){.kind = V_MISSING};
}

struct value op_item(struct render *r, struct value object, struct value index)
{
    if (object.kind == V_UNDEFINED)
        return fail_undefined(r, object);
    if (!charge(r, 0))
        return object;
    struct value v = own_item(r, object, index);
    if (v.kind == V_MISSING && index.kind == V_STRING)
        v = op_own_attribute(r, object, value_span(index));
    if (v.kind != V_MISSING)
        return v;
    if (index.kind == V_STRING)
        return value_undefined_attribute(object, value_span(index));
    struct text_builder t = {0};
    text_add_string(r, &t, value_type_name(object));
    text_add_string(r, &t, " object has no element ");
    text_add_repr(r, &t, index);
    text_add(r, &t, "", 1);
    return r->code == ERR_OK ? value_undefined_sentence(t.s) : value_none();
}

struct value op_attribute(struct render *r, struct value object, struct span name)
{
    if (object.kind == V_UNDEFINED)
        return fail_undefined(r, object);
    if (!charge(r, 0))
        return object;
    struct value v = op_own_attribute(r, object, name);
    if (v.kind == V_MISSING)
        v = own_item(r, object, value_string(name));
    return v.kind == V_MISSING ? value_undefined_attribute(object, name) : v;
}

/* ---- slices -------------------------------------------------------------------------------------------------- */

struct bounds {
    int64_t start, step, n; /* n items: start, start + step, ... */
};

static bool slice_bound(struct render *r, struct value v, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (v.kind == V_NONE)
        return true;
    if (!value_as_int(v, out))
        fail(r, "slice indices must be integers or None, not %s", value_type_name(v));
    return r->code == ERR_OK;
}

static bool slice_bounds(struct render *r, const struct value given[3], int64_t n, struct bounds *b)
{
    int64_t start, stop, step;
    if (!slice_bound(r, given[2], 1, &step))
        return false;
    if (step == 0) {
        fail(r, "slice step cannot be zero");
        return false;
    }
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n; /* how far a bound may go */
    if (!slice_bound(r, given[0], step < 0 ? high : low, &start) ||
        !slice_bound(r, given[1], step < 0 ? low - n : high, &stop))
        return false;
    int64_t *ends[] = {&start, &stop};
    for (int i = 0; i < 2; i++) {
        if (*ends[i] < 0)
            *ends[i] = *ends[i] + n < low ? low : *ends[i] + n;
        if (*ends[i] > high)
            *ends[i] = high;
    }
    uint64_t width =
        step > 0 ? (start < stop ? (uint64_t)(stop - start) : 0) : (stop < start ? (uint64_t)(start - stop) : 0);
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    *b = (struct bounds){start, step, (int64_t)((width + stride - 1) / stride)};
    if (b->n <= 1)
        b->step = 1; /* not used; a huge one would overflow */
    return true;
}

static struct value slice_text(struct render *r, struct value v, struct bounds b)
{
    struct span s = value_span(v);
    struct value out;
    if (b.n == 0)
        return value_string(SPAN(""));
    if (b.step == 1) {
        size_t from = code_offset(s, (size_t)b.start);
        struct span rest = span_part(s, from, s.n - from);
        out = value_string(span_part(rest, 0, code_offset(rest, (size_t)b.n)));
    } else {
        struct text_builder t = {0};
        size_t count = utf8_count(s.s, s.n);
        uint32_t *offsets = render_alloc(r, count * sizeof *offsets), code;
        if (!offsets)
            return v;
        for (size_t i = 0, at = 0; i < count; i++, at += code_next(s.s + at, s.n - at, &code))
            offsets[i] = (uint32_t)at;
        for (int64_t i = 0; i < b.n; i++) {
            size_t at = offsets[b.start + i * b.step];
            text_add_span(r, &t, span_part(s, at, code_next(s.s + at, s.n - at, &code)));
        }
        out = text_value(t);
    }
    out.markup = v.markup;
    return out;
}

struct value op_slice(struct render *r, struct value object, const struct value given[3])
{
    struct bounds b;
    bool sliced = object.kind == V_STRING || object.kind == V_LIST || object.kind == V_TUPLE || object.kind == V_RANGE;
    if (object.kind == V_UNDEFINED)
        return fail_undefined(r, object);
    if (!sliced)
        return fail(r, "'%s' object can't be sliced", value_type_name(object));
    if (!slice_bounds(r, given, value_length(r, object), &b))
        return value_none();
    if (object.kind == V_STRING)
        return slice_text(r, object, b);
    struct value list = value_seq(r, (enum value_kind)object.kind, 0);
    for (int64_t i = 0; i < b.n && r->code == ERR_OK; i++)
        value_push(r, list, object.seq->items[b.start + i * b.step]);
    if (r->code == ERR_OK && object.kind == V_RANGE) {
        struct seq *to = list.seq;
        int64_t before, width;
        if (__builtin_mul_overflow(b.start, object.seq->step, &before) ||
            __builtin_add_overflow(object.seq->start, before, &to->start) ||
            __builtin_mul_overflow(object.seq->step, b.step, &to->step) ||
            __builtin_mul_overflow(b.n, to->step, &width) || __builtin_add_overflow(to->start, width, &to->stop))
            return fail_overflow(r);
    }
    return list;
}
