/* From text to tree: tokens, nodes, and a parsed template. */
#ifndef TEMPLATE_TMPL_SYNTAX_H
#define TEMPLATE_TMPL_SYNTAX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

enum {
    TMPL_MAX_SOURCE = 256 << 10, /* bytes; the longest real ones have 20 KiB */
    TMPL_MAX_NESTING = 150,      /* of expressions and blocks in the source */
    TMPL_MAX_NAMES = 4096,       /* different ones; real templates have some 100 */
};

/* A string with a length, not NUL-terminated. The marks of trusted bytes (template.h) lie `trusted` bytes behind the
 * bytes: s[i + trusted] is 1 where s[i] is trusted. `trusted` 0: no byte is. So a part of a string has the same
 * `trusted` as the whole, and a string that is made without marks is not trusted. */
struct span {
    const char *s;
    size_t n, trusted;
};
#define SPAN(literal) ((struct span){literal, sizeof(literal) - 1})
static inline struct span span_part(struct span s, size_t from, size_t n)
{
    return (struct span){s.s + from, n, s.trusted};
}
bool span_is(struct span a, const char *text);
bool span_equal(struct span a, struct span b);

/* ---- tokens -------------------------------------------------------------------------------------------------- */

enum token_kind {
    TOK_END,
    TOK_TEXT, /* between tags */
    TOK_OUTPUT_BEGIN,
    TOK_OUTPUT_END,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_NAME,
    TOK_STRING, /* its escapes still in it, without the quotes */
    TOK_INT,
    TOK_FLOAT,
    TOK_OPERATOR,
};

struct token {
    enum token_kind kind;
    uint32_t pos; /* offset in the source */
    struct span text;
};

/* A source, whose line ends are converted to \n and whose last line end is dropped, and its tokens, the last one
 * TOK_END. The source is trusted. All of it is owned by the arena. */
struct token_stream {
    struct span source;
    struct token *tokens;
    size_t n, capacity;
};
MUST_USE err_code tmpl_lex(struct token_stream *out, const char *source, size_t n, struct arena *arena, struct err *e);

/* Sets an error whose message begins with the line and column of an offset. */
err_code tmpl_error(struct err *e, err_code code, struct span source, size_t pos, const char *fmt, ...)
    PRINTF_LIKE(5, 6);

/* ---- tree ---------------------------------------------------------------------------------------------------- */

enum node_kind {
    /* statements */
    NODE_TEXT,        /* text */
    NODE_OUTPUT,      /* a: expression */
    NODE_IF,          /* a: condition, b: body, c: else (maybe one NODE_IF) */
    NODE_FOR,         /* a: target, b: iterable, c: body, d: else, e: condition; flag: recursive */
    NODE_SET,         /* a: target, b: expression */
    NODE_SET_BODY,    /* a: target, b: body, c: filters applied to NODE_BODY or NULL */
    NODE_FILTER_BODY, /* b: body, c: filters */
    NODE_WITH,        /* a: list of NODE_SET, b: body */
    NODE_SCOPE,       /* b: body with its own scope: block, generation */
    NODE_MACRO,       /* text: name, a: parameters (NODE_NAME, its default in a), b: body; op: enum macro_uses */
    NODE_CALL_BODY,   /* a: the macro of the body, b: NODE_CALL */
    NODE_BREAK,
    NODE_CONTINUE,
    /* expressions */
    NODE_BODY, /* what the surrounding block captured */
    NODE_NONE,
    NODE_BOOL,   /* flag */
    NODE_INT,    /* integer */
    NODE_FLOAT,  /* real */
    NODE_STRING, /* text */
    NODE_NAME,   /* text, symbol */
    NODE_LIST,   /* a: items */
    NODE_TUPLE,  /* a: items */
    NODE_DICT,   /* a: keys, each with its value in a NODE_PAIR: a, b */
    NODE_PAIR,
    NODE_ATTRIBUTE, /* a, text; as a target: of the namespace `symbol` */
    NODE_ITEM,      /* a, b: the index */
    NODE_SLICE,     /* a: object; b, c, d: start, stop, step or NULL */
    NODE_CALL,      /* a: function, b: arguments */
    NODE_FILTER,    /* a: value, text: name, b: arguments */
    NODE_TEST,      /* a: value, text: name, b: arguments */
    NODE_ARG,       /* a: value; text: the keyword or empty; op: '*' or 'k' for *a and **a */
    NODE_NOT,       /* a */
    NODE_AND,       /* a, b */
    NODE_OR,
    NODE_UNARY,   /* a; op: - + */
    NODE_BINARY,  /* a, b; op: enum binary_op */
    NODE_COMPARE, /* a, then b: list of NODE_COMPARE_TO with op: enum compare_op and a */
    NODE_COMPARE_TO,
    NODE_CONCAT, /* a: list of operands */
    NODE_CHOICE, /* a: condition, b: then, c: else or NULL */
};

enum binary_op { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW };
enum compare_op { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOT_IN };
enum macro_uses { USES_CALLER = 1, USES_VARARGS = 2, USES_KWARGS = 4 };

struct node {
    uint8_t kind, op;
    bool flag;
    uint32_t pos;
    int32_t symbol; /* of a NODE_NAME and others with a name: equal names have equal numbers */
    union {
        struct span text;
        int64_t integer;
        double real;
    };
    struct node *a, *b, *c, *d, *e;
    struct node *next; /* in a list */
};

struct tmpl_symbols {
    struct span *names; /* owned by the arena, as is the hash table of their numbers + 1 */
    uint32_t *table;
    int32_t n;
    uint32_t table_size; /* a power of two */
};

struct template
{
    struct arena arena;
    struct span source;
    struct tmpl_symbols symbols;
    struct node *body;
    int32_t sym_loop, sym_caller, sym_varargs, sym_kwargs;
};

/* Fills an empty template from its tokens. */
MUST_USE err_code tmpl_parse(struct template *t, const struct token_stream *stream, struct err *e);

/* What the parser's two files share. After a failure `code` is set, and the parser sees the end of the stream. */
struct parser {
    struct template *t;
    const struct token *tok; /* the current one */
    struct err *e;
    err_code code;
    int nesting, loops;  /* nesting depth in the source; number of loops that break can leave */
    unsigned uses;       /* enum macro_uses seen in the macro that is being parsed */
    struct token end;    /* the current token after a failure */
    struct node nowhere; /* what parser_node returns after a failure */
};
void parser_fail(struct parser *p, size_t pos, const char *fmt, ...) PRINTF_LIKE(3, 4);
void parser_fail_unexpected(struct parser *p, const char *expected);
struct node *parser_node(struct parser *p, enum node_kind kind, size_t pos); /* never NULL */
bool parser_deeper(struct parser *p); /* false, and a failure, when nested too deeply; undone by --p->nesting */
int32_t parser_symbol(struct parser *p, struct span name);
void parser_next(struct parser *p);
bool parser_is_op(const struct parser *p, const char *op);
bool parser_is_name(const struct parser *p, const char *name);
bool parser_skip_op(struct parser *p, const char *op);
bool parser_skip_name(struct parser *p, const char *name);
void parser_expect_op(struct parser *p, const char *op);
struct span parser_expect_name(struct parser *p);

struct node *parse_expression(struct parser *p);          /* a single expression, no tuple */
struct node *parse_tuple(struct parser *p, bool choices); /* with commas a tuple; choices: `a if b` is allowed */
struct node *parse_target(struct parser *p, bool with_attribute);
struct node *parse_filters(struct parser *p, struct node *value, bool first_named); /* | name(...) | ... */

#endif
