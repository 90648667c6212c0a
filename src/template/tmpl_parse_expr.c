/* Expressions, in the order of their binding: a if b else c; or; and; not; comparisons; + -; ~; * / // %; **; signs;
 * then what is behind a value: .name [index] (call), filters and tests. The order is jinja2's, which is not Python's:
 * ~ binds more tightly than +, and ** to the left. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "template/tmpl_syntax.h"
#include "template/tmpl_unicode.h"

static struct node *parse_or(struct parser *p);
static struct node *parse_unary(struct parser *p, bool with_filters);

/* ---- literals ------------------------------------------------------------------------------------------------ */

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* What the escape at s[1] (n > 1 bytes, s[0] a backslash) stands for, to `out`; returns the bytes it takes, and 0 when
 * it is broken. Unknown escapes stay as they are. */
static size_t unescape(const char *s, size_t n, char *out, size_t *n_out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s[1];
    const char *simple = c ? strchr(from, c) : NULL;
    *n_out = 0;
    if (c == '\n')
        return 2;
    if (simple) {
        out[(*n_out)++] = to[simple - from];
        return 2;
    }
    uint32_t code = 0;
    size_t i = 1;
    if (c >= '0' && c <= '7') {
        for (; i < n && i < 4 && s[i] >= '0' && s[i] <= '7'; i++)
            code = code * 8 + (uint32_t)(s[i] - '0');
    } else if (c == 'x' || c == 'u' || c == 'U') {
        size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        for (i = 2; i < 2 + digits; i++) {
            if (i >= n || hex_value(s[i]) < 0)
                return 0;
            code = code << 4 | (uint32_t)hex_value(s[i]);
        }
        if (!utf8_is_character(code))
            return 0;
    } else {
        out[(*n_out)++] = '\\';
        return 1;
    }
    *n_out = utf8_encode(code, out);
    return i;
}

/* The text of one or several strings in a row; trusted. */
static struct node *parse_string(struct parser *p)
{
    struct node *n = parser_node(p, NODE_STRING, p->tok->pos);
    size_t size = 4, length = 0;
    for (const struct token *t = p->tok; t->kind == TOK_STRING; t++)
        size += t->text.n;
    char *s = arena_alloc(&p->t->arena, 2 * size);
    if (!s) {
        parser_fail(p, n->pos, "out of memory");
        return n;
    }
    for (; p->tok->kind == TOK_STRING; parser_next(p)) {
        struct span t = p->tok->text;
        for (size_t i = 0; i < t.n;) {
            size_t taken = 1, made = 1;
            if (t.s[i] != '\\')
                s[length] = t.s[i];
            else
                taken = unescape(t.s + i, t.n - i, s + length, &made);
            if (taken == 0) {
                parser_fail(p, p->tok->pos, "\"%.2s\" is not a whole escape in this string", t.s + i);
                return n;
            }
            i += taken;
            length += made;
        }
    }
    memset(s + size, 1, length);
    n->text = (struct span){s, length, size};
    return n;
}

static struct node *parse_number(struct parser *p)
{
    const struct token *t = p->tok;
    struct node *n = parser_node(p, t->kind == TOK_INT ? NODE_INT : NODE_FLOAT, t->pos);
    char digits[400] = {0};
    size_t length = 0;
    for (size_t i = 0; i < t->text.n && length < sizeof digits - 1; i++)
        if (t->text.s[i] != '_')
            digits[length++] = t->text.s[i];
    parser_next(p);
    if (length == sizeof digits - 1) {
        parser_fail(p, t->pos, "this number is too long");
    } else if (t->kind == TOK_FLOAT) {
        n->real = strtod(digits, NULL);
    } else {
        char kind = (char)(digits[1] | 0x20);
        int base = *digits != '0' ? 10 : kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
        uint64_t value = 0;
        for (const char *d = digits + (base == 10 ? 0 : 2); *d; d++)
            if (__builtin_mul_overflow(value, (uint64_t)base, &value) ||
                __builtin_add_overflow(value, (uint64_t)hex_value(*d), &value) || value > INT64_MAX) {
                parser_fail(p, t->pos, "this number does not fit 64 bits");
                break;
            }
        n->integer = (int64_t)value;
    }
    return n;
}

static struct node *parse_name(struct parser *p)
{
    static const struct {
        const char *name;
        enum node_kind kind;
        bool flag;
    } constants[] = {
        {"true", NODE_BOOL, true},   {"True", NODE_BOOL, true},  {"false", NODE_BOOL, false},
        {"False", NODE_BOOL, false}, {"none", NODE_NONE, false}, {"None", NODE_NONE, false},
    };
    struct node *n = parser_node(p, NODE_NAME, p->tok->pos);
    struct span name = p->tok->text;
    parser_next(p);
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (span_is(name, constants[i].name)) {
            n->kind = (uint8_t)constants[i].kind;
            n->flag = constants[i].flag;
            return n;
        }
    n->text = name;
    n->symbol = parser_symbol(p, name);
    p->uses |= n->symbol == p->t->sym_caller    ? USES_CALLER
               : n->symbol == p->t->sym_varargs ? USES_VARARGS
               : n->symbol == p->t->sym_kwargs  ? USES_KWARGS
                                                : 0u;
    return n;
}

static struct node *parse_list(struct parser *p)
{
    struct node *n = parser_node(p, NODE_LIST, p->tok->pos), **end = &n->a;
    parser_next(p);
    while (p->code == ERR_OK && !parser_is_op(p, "]")) {
        if (n->a)
            parser_expect_op(p, ",");
        if (parser_is_op(p, "]"))
            break;
        *end = parse_expression(p);
        assert(*end);
        end = &(*end)->next;
    }
    parser_expect_op(p, "]");
    return n;
}

static struct node *parse_dict(struct parser *p)
{
    struct node *n = parser_node(p, NODE_DICT, p->tok->pos), **end = &n->a;
    parser_next(p);
    while (p->code == ERR_OK && !parser_is_op(p, "}")) {
        if (n->a)
            parser_expect_op(p, ",");
        if (parser_is_op(p, "}"))
            break;
        struct node *pair = parser_node(p, NODE_PAIR, p->tok->pos);
        pair->a = parse_expression(p);
        parser_expect_op(p, ":");
        pair->b = parse_expression(p);
        *end = pair;
        end = &pair->next;
    }
    parser_expect_op(p, "}");
    return n;
}

static bool is_tuple_end(const struct parser *p)
{
    return p->tok->kind == TOK_OUTPUT_END || p->tok->kind == TOK_BLOCK_END || parser_is_op(p, ")");
}

/* Items that `parse` reads, with commas between them. `in_brackets`: there may be none; `ends_in`: "in" or "recursive"
 * may follow. */
static struct node *parse_items(struct parser *p, struct node *(*parse)(struct parser *p), bool in_brackets,
                                const char *end_name)
{
    struct node *first = NULL, **end = &first;
    size_t pos = p->tok->pos;
    bool is_tuple = false;
    while (p->code == ERR_OK && !is_tuple_end(p) && !(end_name && parser_is_name(p, end_name))) {
        *end = parse(p);
        end = &(*end)->next;
        if (!parser_skip_op(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && first)
        return first;
    if (!is_tuple && !in_brackets)
        parser_fail_unexpected(p, "an expression");
    struct node *tuple = parser_node(p, NODE_TUPLE, pos);
    tuple->a = first;
    return tuple;
}

struct node *parse_tuple(struct parser *p, bool choices)
{
    return parse_items(p, choices ? parse_expression : parse_or, false, "recursive");
}

static struct node *parse_primary(struct parser *p)
{
    switch (p->tok->kind) {
    case TOK_NAME: return parse_name(p);
    case TOK_STRING: return parse_string(p);
    case TOK_INT:
    case TOK_FLOAT: return parse_number(p);
    default: break;
    }
    if (parser_is_op(p, "["))
        return parse_list(p);
    if (parser_is_op(p, "{"))
        return parse_dict(p);
    if (!parser_skip_op(p, "(")) {
        parser_fail_unexpected(p, "an expression");
        return &p->nowhere;
    }
    struct node *n = parse_items(p, parse_expression, true, NULL);
    parser_expect_op(p, ")");
    return n;
}

static bool is_target(const struct node *n)
{
    if (n->kind != NODE_TUPLE)
        return n->kind == NODE_NAME;
    for (const struct node *item = n->a; item; item = item->next)
        if (!is_target(item))
            return false;
    return true;
}

struct node *parse_target(struct parser *p, bool with_attribute)
{
    const struct token *t = p->tok;
    unsigned uses = p->uses;
    if (with_attribute && t->kind == TOK_NAME && t[1].kind == TOK_OPERATOR && span_is(t[1].text, ".")) {
        struct node *n = parser_node(p, NODE_ATTRIBUTE, t->pos);
        n->symbol = parser_symbol(p, t->text);
        parser_next(p);
        parser_next(p);
        n->text = parser_expect_name(p);
        return n;
    }
    struct node *n = parse_items(p, parse_primary, false, "in");
    if (p->code == ERR_OK && !is_target(n))
        parser_fail(p, t->pos, "this can't be assigned to: expected a name, or several in brackets");
    p->uses = uses;
    return n;
}

/* ---- behind a value ------------------------------------------------------------------------------------------ */

static struct node *parse_argument(struct parser *p, int *stars)
{
    struct node *n = parser_node(p, NODE_ARG, p->tok->pos);
    n->text = SPAN("");
    if (parser_is_op(p, "*") || parser_is_op(p, "**")) {
        bool dictionary = parser_is_op(p, "**");
        if (*stars > (dictionary ? 1 : 0))
            parser_fail_unexpected(p, "one such argument at most");
        *stars = dictionary ? 2 : 1;
        n->op = dictionary ? 'k' : '*';
        parser_next(p);
    } else if (p->tok->kind == TOK_NAME && p->tok[1].kind == TOK_OPERATOR && span_is(p->tok[1].text, "=")) {
        n->text = p->tok->text;
        parser_next(p);
        parser_next(p);
    }
    n->a = parse_expression(p);
    return n;
}

/* (a, b, name=c, *d, **e): a list of NODE_ARG. */
static struct node *parse_arguments(struct parser *p)
{
    struct node *first = NULL, **end = &first;
    int stars = 0;
    bool named = false;
    parser_expect_op(p, "(");
    while (p->code == ERR_OK && !parser_is_op(p, ")")) {
        if (first)
            parser_expect_op(p, ",");
        if (parser_is_op(p, ")"))
            break;
        struct node *n = parse_argument(p, &stars);
        bool positional = n->text.n == 0 && n->op == 0;
        if (positional && (named || stars))
            parser_fail(p, n->pos, "this argument needs a name, for one before it has one");
        if (n->text.n && stars == 2)
            parser_fail(p, n->pos, "nothing may follow a ** argument");
        named = named || n->text.n;
        *end = n;
        end = &n->next;
    }
    parser_expect_op(p, ")");
    return first;
}

static struct node *parse_call(struct parser *p, struct node *function)
{
    struct node *n = parser_node(p, NODE_CALL, function->pos);
    n->a = function;
    n->b = parse_arguments(p);
    return n;
}

/* [a], [a:b], [a:b:c], and [a, b], whose index is a tuple. */
static struct node *parse_index(struct parser *p, struct node *object)
{
    struct node *n = parser_node(p, NODE_ITEM, p->tok->pos);
    n->a = object;
    parser_next(p);
    if (!parser_is_op(p, ":"))
        n->b = parse_expression(p);
    if (parser_skip_op(p, ":")) {
        n->kind = NODE_SLICE;
        if (!parser_is_op(p, ":") && !parser_is_op(p, "]"))
            n->c = parse_expression(p);
        if (parser_skip_op(p, ":") && !parser_is_op(p, "]"))
            n->d = parse_expression(p);
    } else if (parser_is_op(p, ",")) {
        struct node *tuple = parser_node(p, NODE_TUPLE, n->pos), **end = &n->b->next;
        tuple->a = n->b;
        n->b = tuple;
        while (p->code == ERR_OK && parser_skip_op(p, ",") && !parser_is_op(p, "]")) {
            *end = parse_expression(p);
            end = &(*end)->next;
        }
    }
    parser_expect_op(p, "]");
    return n;
}

static struct node *parse_attribute(struct parser *p, struct node *object)
{
    struct node *n = parser_node(p, NODE_ATTRIBUTE, p->tok->pos);
    n->a = object;
    parser_next(p);
    if (p->tok->kind == TOK_INT) {
        n->kind = NODE_ITEM;
        n->b = parse_number(p);
    } else {
        n->text = parser_expect_name(p);
    }
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    while (p->code == ERR_OK) {
        if (parser_is_op(p, "."))
            n = parse_attribute(p, n);
        else if (parser_is_op(p, "["))
            n = parse_index(p, n);
        else if (parser_is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* name or name.name; the whole as one span. */
static struct span parse_dotted_name(struct parser *p)
{
    struct span name = parser_expect_name(p);
    while (parser_skip_op(p, ".")) {
        struct span more = parser_expect_name(p);
        if (p->code == ERR_OK)
            name.n = (size_t)(more.s + more.n - name.s);
    }
    return name;
}

struct node *parse_filters(struct parser *p, struct node *value, bool first_named)
{
    while (first_named || parser_skip_op(p, "|")) {
        first_named = false;
        struct node *n = parser_node(p, NODE_FILTER, p->tok->pos);
        n->a = value;
        n->text = parse_dotted_name(p);
        n->b = parser_is_op(p, "(") ? parse_arguments(p) : NULL;
        value = n;
    }
    return value;
}

/* is [not] name, with an argument in brackets or a plain one behind it. */
static struct node *parse_test(struct parser *p, struct node *value)
{
    size_t pos = p->tok->pos;
    parser_next(p);
    bool negated = parser_skip_name(p, "not");
    struct node *n = parser_node(p, NODE_TEST, p->tok->pos);
    n->a = value;
    n->text = parse_dotted_name(p);
    bool word =
        p->tok->kind == TOK_NAME && !parser_is_name(p, "else") && !parser_is_name(p, "or") && !parser_is_name(p, "and");
    if (parser_is_op(p, "(")) {
        n->b = parse_arguments(p);
    } else if (word || p->tok->kind == TOK_STRING || p->tok->kind == TOK_INT || p->tok->kind == TOK_FLOAT ||
               parser_is_op(p, "[") || parser_is_op(p, "{")) {
        if (parser_is_name(p, "is"))
            parser_fail(p, p->tok->pos, "a test of a test: put the first one in brackets");
        n->b = parser_node(p, NODE_ARG, p->tok->pos);
        n->b->text = SPAN("");
        n->b->a = parse_postfix(p, parse_primary(p));
    }
    if (!negated)
        return n;
    struct node *not = parser_node(p, NODE_NOT, pos);
    not ->a = n;
    return not ;
}

/* ---- operators ----------------------------------------------------------------------------------------------- */

static struct node *parse_unary(struct parser *p, bool with_filters)
{
    if (!parser_deeper(p))
        return &p->nowhere;
    struct node *n;
    if (parser_is_op(p, "-") || parser_is_op(p, "+")) {
        n = parser_node(p, NODE_UNARY, p->tok->pos);
        n->op = (uint8_t)*p->tok->text.s;
        parser_next(p);
        n->a = parse_unary(p, false);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (with_filters && p->code == ERR_OK) {
        if (parser_is_op(p, "|"))
            n = parse_filters(p, n, false);
        else if (parser_is_name(p, "is"))
            n = parse_test(p, n);
        else if (parser_is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    p->nesting--;
    return n;
}

static struct node *parse_operand(struct parser *p)
{
    return parse_unary(p, true);
}

struct operator
{
    const char *text;
    enum binary_op op;
};

/* operand (op operand)*, grouped from the left; `table` ends with NULL. */
static struct node *parse_binary(struct parser *p, struct node *(*operand)(struct parser *p),
                                 const struct operator* table)
{
    struct node *left = operand(p);
    while (p->code == ERR_OK) {
        const struct operator* o = table;
        while (o->text && !parser_is_op(p, o->text))
            o++;
        if (!o->text)
            break;
        struct node *n = parser_node(p, NODE_BINARY, p->tok->pos);
        parser_next(p);
        n->op = (uint8_t)o->op;
        n->a = left;
        n->b = operand(p);
        left = n;
    }
    return left;
}

static struct node *parse_power(struct parser *p)
{
    static const struct operator table[] = {{"**", OP_POW}, {0}};
    return parse_binary(p, parse_operand, table);
}

static struct node *parse_product(struct parser *p)
{
    static const struct operator table[] = {{"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOORDIV}, {"%", OP_MOD}, {0}};
    return parse_binary(p, parse_power, table);
}

static struct node *parse_concat(struct parser *p)
{
    struct node *first = parse_product(p);
    if (!parser_is_op(p, "~"))
        return first;
    struct node *n = parser_node(p, NODE_CONCAT, p->tok->pos), **end = &first->next;
    n->a = first;
    while (parser_skip_op(p, "~")) {
        *end = parse_product(p);
        end = &(*end)->next;
    }
    return n;
}

static struct node *parse_sum(struct parser *p)
{
    static const struct operator table[] = {{"+", OP_ADD}, {"-", OP_SUB}, {0}};
    return parse_binary(p, parse_concat, table);
}

static bool skip_comparison(struct parser *p, enum compare_op *op)
{
    static const char *const texts[] = {"==", "!=", "<", "<=", ">", ">="};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (parser_skip_op(p, texts[i])) {
            *op = (enum compare_op)i;
            return true;
        }
    if (parser_skip_name(p, "in")) {
        *op = CMP_IN;
        return true;
    }
    if (parser_is_name(p, "not") && p->tok[1].kind == TOK_NAME && span_is(p->tok[1].text, "in")) {
        parser_next(p);
        parser_next(p);
        *op = CMP_NOT_IN;
        return true;
    }
    return false;
}

static struct node *parse_comparison(struct parser *p)
{
    struct node *left = parse_sum(p), *n = NULL, **end = NULL;
    size_t pos = p->tok->pos;
    enum compare_op op;
    while (p->code == ERR_OK && skip_comparison(p, &op)) {
        if (!n) {
            n = parser_node(p, NODE_COMPARE, pos);
            n->a = left;
            end = &n->b;
        }
        struct node *to = parser_node(p, NODE_COMPARE_TO, p->tok->pos);
        to->op = (uint8_t)op;
        to->a = parse_sum(p);
        *end = to;
        end = &to->next;
    }
    return n ? n : left;
}

static struct node *parse_not(struct parser *p)
{
    if (!parser_is_name(p, "not"))
        return parse_comparison(p);
    if (!parser_deeper(p))
        return &p->nowhere;
    struct node *n = parser_node(p, NODE_NOT, p->tok->pos);
    parser_next(p);
    n->a = parse_not(p);
    p->nesting--;
    return n;
}

static struct node *parse_and(struct parser *p)
{
    struct node *left = parse_not(p);
    while (parser_is_name(p, "and")) {
        struct node *n = parser_node(p, NODE_AND, p->tok->pos);
        parser_next(p);
        n->a = left;
        n->b = parse_not(p);
        left = n;
    }
    return left;
}

static struct node *parse_or(struct parser *p)
{
    struct node *left = parse_and(p);
    while (parser_is_name(p, "or")) {
        struct node *n = parser_node(p, NODE_OR, p->tok->pos);
        parser_next(p);
        n->a = left;
        n->b = parse_and(p);
        left = n;
    }
    return left;
}

struct node *parse_expression(struct parser *p)
{
    if (!parser_deeper(p))
        return &p->nowhere;
    struct node *value = parse_or(p);
    while (parser_is_name(p, "if")) {
        struct node *n = parser_node(p, NODE_CHOICE, p->tok->pos);
        parser_next(p);
        n->b = value;
        n->a = parse_or(p);
        n->c = parser_skip_name(p, "else") ? parse_expression(p) : NULL;
        value = n;
    }
    p->nesting--;
    return value;
}
