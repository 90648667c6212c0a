/* Statements, and what both parts of the parser share. After a failure the stream stands at its end, so that every
 * loop ends by itself, and new nodes are all `nowhere`. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "template/tmpl_syntax.h"

/* ---- shared -------------------------------------------------------------------------------------------------- */

void parser_fail(struct parser *p, size_t pos, const char *fmt, ...)
{
    if (p->code != ERR_OK)
        return;
    char sentence[ERR_TEXT_BYTES / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    p->code = tmpl_error(p->e, ERR_FORMAT, p->t->source, pos, "%s", sentence);
    p->end = (struct token){TOK_END, (uint32_t)pos, {"", 0}};
    p->tok = &p->end;
}

static void fail_memory(struct parser *p, size_t n_bytes)
{
    parser_fail(p, 0, "-");
    p->code = err_nomem(p->e, n_bytes, "a template");
}

void parser_fail_unexpected(struct parser *p, const char *expected)
{
    const struct token *t = p->tok;
    if (t->kind == TOK_END)
        parser_fail(p, t->pos, "the template ends here: expected %s", expected);
    else
        parser_fail(p, t->pos, "\"%.*s\": expected %s", t->text.n < 40 ? (int)t->text.n : 40, t->text.s, expected);
}

struct node *parser_node(struct parser *p, enum node_kind kind, size_t pos)
{
    struct node *n = p->code == ERR_OK ? arena_alloc(&p->t->arena, sizeof *n) : &p->nowhere;
    if (!n) {
        fail_memory(p, sizeof *n);
        n = &p->nowhere;
    }
    *n = (struct node){.kind = (uint8_t)kind, .pos = (uint32_t)pos};
    return n;
}

bool parser_deeper(struct parser *p)
{
    if (++p->nesting > TMPL_MAX_NESTING)
        parser_fail(p, p->tok->pos, "nested too deeply: at most %d levels are allowed", TMPL_MAX_NESTING);
    return p->code == ERR_OK;
}

static uint32_t hash(struct span s)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char)s.s[i]) * 16777619u;
    return h;
}

static bool grow_symbols(struct parser *p)
{
    struct tmpl_symbols *s = &p->t->symbols, old = *s;
    s->table_size = old.table_size ? 4 * old.table_size : 256;
    s->table = arena_calloc(&p->t->arena, s->table_size, sizeof *s->table);
    s->names = arena_calloc(&p->t->arena, s->table_size / 2, sizeof *s->names);
    if (!s->table || !s->names) {
        fail_memory(p, s->table_size * sizeof *s->table);
        return false;
    }
    for (int32_t i = 0; i < old.n; i++) {
        uint32_t slot = hash(old.names[i]) & (s->table_size - 1);
        while (s->table[slot])
            slot = (slot + 1) & (s->table_size - 1);
        s->table[slot] = (uint32_t)i + 1;
        s->names[i] = old.names[i];
    }
    return true;
}

int32_t parser_symbol(struct parser *p, struct span name)
{
    struct tmpl_symbols *s = &p->t->symbols;
    if ((uint32_t)s->n == s->table_size / 2 && !grow_symbols(p))
        return 0;
    uint32_t slot = hash(name) & (s->table_size - 1);
    for (; s->table[slot]; slot = (slot + 1) & (s->table_size - 1))
        if (span_equal(s->names[s->table[slot] - 1], name))
            return (int32_t)s->table[slot] - 1;
    if (s->n == TMPL_MAX_NAMES)
        parser_fail(p, p->tok->pos, "the template has too many names: at most %d are allowed", TMPL_MAX_NAMES);
    if (p->code != ERR_OK)
        return 0;
    s->names[s->n] = name;
    s->table[slot] = (uint32_t)++s->n;
    return s->n - 1;
}

void parser_next(struct parser *p)
{
    if (p->tok->kind != TOK_END)
        p->tok++;
}

bool parser_is_op(const struct parser *p, const char *op)
{
    return p->tok->kind == TOK_OPERATOR && span_is(p->tok->text, op);
}

bool parser_is_name(const struct parser *p, const char *name)
{
    return p->tok->kind == TOK_NAME && span_is(p->tok->text, name);
}

bool parser_skip_op(struct parser *p, const char *op)
{
    bool is = parser_is_op(p, op);
    if (is)
        parser_next(p);
    return is;
}

bool parser_skip_name(struct parser *p, const char *name)
{
    bool is = parser_is_name(p, name);
    if (is)
        parser_next(p);
    return is;
}

void parser_expect_op(struct parser *p, const char *op)
{
    if (!parser_skip_op(p, op))
        parser_fail_unexpected(p, op);
}

struct span parser_expect_name(struct parser *p)
{
    struct span name = p->tok->text;
    if (p->tok->kind != TOK_NAME)
        parser_fail_unexpected(p, "a name");
    parser_next(p);
    return name;
}

/* ---- statements ---------------------------------------------------------------------------------------------- */

static struct node *parse_body(struct parser *p, const char *const *ends);

static void expect_block_end(struct parser *p)
{
    if (p->tok->kind != TOK_BLOCK_END)
        parser_fail_unexpected(p, "%}");
    parser_next(p);
}

/* The rest of a tag, then statements up to one of the tags in `ends`, whose name is left as the current token. */
static struct node *parse_block(struct parser *p, const char *const *ends)
{
    parser_skip_op(p, ":");
    expect_block_end(p);
    return parse_body(p, ends);
}

/* The same with one end, which is stepped over. */
static struct node *parse_whole_block(struct parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct node *body = parse_block(p, ends);
    parser_next(p);
    return body;
}

static struct node *parse_if(struct parser *p, size_t pos)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *first = parser_node(p, NODE_IF, pos), *n = first;
    for (;;) {
        n->a = parse_tuple(p, false);
        n->b = parse_block(p, ends);
        if (!parser_is_name(p, "elif"))
            break;
        n->c = parser_node(p, NODE_IF, p->tok->pos);
        n = n->c;
        parser_next(p);
    }
    if (parser_skip_name(p, "else"))
        n->c = parse_whole_block(p, "endif");
    else
        parser_next(p);
    return first;
}

static struct node *parse_for(struct parser *p, size_t pos)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct node *n = parser_node(p, NODE_FOR, pos);
    n->a = parse_target(p, false);
    if (!parser_skip_name(p, "in"))
        parser_fail_unexpected(p, "in");
    n->b = parse_tuple(p, false);
    if (parser_skip_name(p, "if"))
        n->e = parse_expression(p);
    n->flag = parser_skip_name(p, "recursive");
    p->loops++;
    n->c = parse_block(p, ends);
    p->loops--;
    if (parser_skip_name(p, "else"))
        n->d = parse_whole_block(p, "endfor");
    else
        parser_next(p);
    return n;
}

static struct node *parse_set(struct parser *p, size_t pos)
{
    struct node *target = parse_target(p, true);
    struct node *n = parser_node(p, parser_skip_op(p, "=") ? NODE_SET : NODE_SET_BODY, pos);
    n->a = target;
    if (n->kind == NODE_SET) {
        n->b = parse_tuple(p, true);
        return n;
    }
    if (parser_is_op(p, "|"))
        n->c = parse_filters(p, parser_node(p, NODE_BODY, pos), false);
    n->b = parse_whole_block(p, "endset");
    return n;
}

static struct node *parse_with(struct parser *p, size_t pos)
{
    struct node *n = parser_node(p, NODE_WITH, pos), **end = &n->a;
    while (p->code == ERR_OK && p->tok->kind != TOK_BLOCK_END) {
        if (n->a)
            parser_expect_op(p, ",");
        struct node *set = parser_node(p, NODE_SET, p->tok->pos);
        set->a = parse_target(p, false);
        parser_expect_op(p, "=");
        set->b = parse_expression(p);
        *end = set;
        end = &set->next;
    }
    n->b = parse_whole_block(p, "endwith");
    return n;
}

/* (a, b=1): NODE_NAMEs, those with a default have it in `a`. */
static struct node *parse_parameters(struct parser *p)
{
    struct node *first = NULL, **end = &first;
    bool defaults = false;
    parser_expect_op(p, "(");
    while (p->code == ERR_OK && !parser_is_op(p, ")")) {
        if (first)
            parser_expect_op(p, ",");
        struct node *n = parser_node(p, NODE_NAME, p->tok->pos);
        n->text = parser_expect_name(p);
        n->symbol = parser_symbol(p, n->text);
        if (parser_skip_op(p, "=")) {
            defaults = true;
            n->a = parse_expression(p);
        } else if (defaults) {
            parser_fail(p, n->pos, "a parameter without a default follows one that has one");
        }
        *end = n;
        end = &n->next;
    }
    parser_expect_op(p, ")");
    return first;
}

/* The body of a macro: what it uses of caller, varargs and kwargs is noted, and loops outside can't be left. */
static void parse_macro_body(struct parser *p, struct node *macro, const char *end)
{
    unsigned outer_uses = p->uses;
    int outer_loops = p->loops;
    p->uses = 0;
    p->loops = 0;
    macro->b = parse_whole_block(p, end);
    macro->op = (uint8_t)p->uses;
    p->uses |= outer_uses;
    p->loops = outer_loops;
}

static struct node *parse_macro(struct parser *p, size_t pos)
{
    struct node *n = parser_node(p, NODE_MACRO, pos);
    n->text = parser_expect_name(p);
    n->symbol = parser_symbol(p, n->text);
    n->a = parse_parameters(p);
    parse_macro_body(p, n, "endmacro");
    return n;
}

static struct node *parse_call_body(struct parser *p, size_t pos)
{
    struct node *n = parser_node(p, NODE_CALL_BODY, pos);
    n->a = parser_node(p, NODE_MACRO, pos);
    n->a->text = SPAN("caller");
    n->a->a = parser_is_op(p, "(") ? parse_parameters(p) : NULL;
    n->b = parse_expression(p);
    if (n->b->kind != NODE_CALL)
        parser_fail(p, n->b->pos, "expected a call, such as name(...)");
    parse_macro_body(p, n->a, "endcall");
    return n;
}

static struct node *parse_filter_body(struct parser *p, size_t pos)
{
    struct node *n = parser_node(p, NODE_FILTER_BODY, pos);
    n->c = parse_filters(p, parser_node(p, NODE_BODY, pos), true);
    n->b = parse_whole_block(p, "endfilter");
    return n;
}

/* {% block name %} and {% generation %}: the body as it stands, with names of its own. */
static struct node *parse_scope(struct parser *p, size_t pos, bool named)
{
    struct node *n = parser_node(p, NODE_SCOPE, pos);
    struct span name = named ? parser_expect_name(p) : SPAN("");
    if (named) {
        parser_skip_name(p, "scoped");
        parser_skip_name(p, "required");
    }
    int outer_loops = p->loops;
    p->loops = 0;
    n->b = parse_whole_block(p, named ? "endblock" : "endgeneration");
    p->loops = outer_loops;
    if (named && p->tok->kind == TOK_NAME && span_equal(p->tok->text, name))
        parser_next(p);
    return n;
}

static struct node *parse_print(struct parser *p, size_t pos)
{
    struct node *first = NULL, **end = &first;
    while (p->code == ERR_OK && p->tok->kind != TOK_BLOCK_END) {
        if (first)
            parser_expect_op(p, ",");
        struct node *n = parser_node(p, NODE_OUTPUT, pos);
        n->a = parse_expression(p);
        *end = n;
        end = &n->next;
    }
    return first;
}

static struct node *parse_jump(struct parser *p, enum node_kind kind, size_t pos)
{
    if (p->loops == 0)
        parser_fail(p, pos, "there is no loop around this");
    return parser_node(p, kind, pos);
}

static struct node *parse_statement(struct parser *p)
{
    const struct token *tag = p->tok;
    struct span name = parser_expect_name(p);
    size_t pos = tag->pos;
    if (span_is(name, "if"))
        return parse_if(p, pos);
    if (span_is(name, "for"))
        return parse_for(p, pos);
    if (span_is(name, "set"))
        return parse_set(p, pos);
    if (span_is(name, "macro"))
        return parse_macro(p, pos);
    if (span_is(name, "call"))
        return parse_call_body(p, pos);
    if (span_is(name, "filter"))
        return parse_filter_body(p, pos);
    if (span_is(name, "with"))
        return parse_with(p, pos);
    if (span_is(name, "print"))
        return parse_print(p, pos);
    if (span_is(name, "block") || span_is(name, "generation"))
        return parse_scope(p, pos, span_is(name, "block"));
    if (span_is(name, "break"))
        return parse_jump(p, NODE_BREAK, pos);
    if (span_is(name, "continue"))
        return parse_jump(p, NODE_CONTINUE, pos);
    parser_fail(p, pos, "there is no tag \"%.*s\"%s", name.n < 40 ? (int)name.n : 40, name.s,
                name.n > 3 && !memcmp(name.s, "end", 3) ? " to be closed here" : "");
    return &p->nowhere;
}

static bool is_end(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (parser_is_name(p, *ends))
            return true;
    return false;
}

/* Statements up to one of the tags `ends` (NULL: the end of the template), whose name is left as the current token. */
static struct node *parse_body(struct parser *p, const char *const *ends)
{
    struct node *first = NULL, **end = &first;
    if (!parser_deeper(p))
        return NULL;
    size_t begin = p->tok->pos;
    while (p->tok->kind != TOK_END) {
        struct node *n = NULL;
        if (p->tok->kind == TOK_TEXT) {
            n = parser_node(p, NODE_TEXT, p->tok->pos);
            n->text = p->tok->text;
            n->text.trusted = p->t->source.trusted;
            parser_next(p);
        } else if (p->tok->kind == TOK_OUTPUT_BEGIN) {
            n = parser_node(p, NODE_OUTPUT, p->tok->pos);
            parser_next(p);
            n->a = parse_tuple(p, true);
            if (p->tok->kind != TOK_OUTPUT_END)
                parser_fail_unexpected(p, "}}");
            parser_next(p);
        } else {
            parser_next(p); /* what else there is begins a block */
            if (is_end(p, ends)) {
                p->nesting--;
                return first;
            }
            n = parse_statement(p);
            expect_block_end(p);
        }
        if (p->code != ERR_OK)
            return first;
        *end = n;
        while (*end) /* {% print a, b %} is several */
            end = &(*end)->next;
    }
    p->nesting--;
    if (ends)
        parser_fail(p, begin, "this block has no end: expected {%% %s %%}", ends[0]);
    return first;
}

err_code tmpl_parse(struct template *t, const struct token_stream *stream, struct err *e)
{
    struct parser p = {.t = t, .tok = stream->tokens, .e = e};
    t->source = stream->source;
    t->sym_loop = parser_symbol(&p, SPAN("loop"));
    t->sym_caller = parser_symbol(&p, SPAN("caller"));
    t->sym_varargs = parser_symbol(&p, SPAN("varargs"));
    t->sym_kwargs = parser_symbol(&p, SPAN("kwargs"));
    t->body = parse_body(&p, NULL);
    return p.code;
}
