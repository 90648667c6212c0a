/* Tokens, white-space control and string escapes as jinja2's lexer has them. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "template/tmpl_syntax.h"
#include "template/tmpl_unicode.h"

bool span_is(struct span a, const char *text)
{
    return strlen(text) == a.n && !memcmp(a.s, text, a.n);
}

bool span_equal(struct span a, struct span b)
{
    return a.n == b.n && (a.n == 0 || !memcmp(a.s, b.s, a.n));
}

err_code tmpl_error(struct err *e, err_code code, struct span source, size_t pos, const char *fmt, ...)
{
    char sentence[ERR_TEXT_BYTES / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    size_t line = 1, column = 1;
    for (size_t i = 0; i < pos && i < source.n; i++) {
        if (source.s[i] == '\n') {
            line++;
            column = 1;
        } else if (!utf8_is_tail(source.s[i])) {
            column++;
        }
    }
    return err_set(e, code, "line %zu, column %zu: %s", line, column, sentence);
}

struct lexer {
    struct token_stream *out;
    struct arena *arena;
    struct err *e;
    const char *s;               /* the source */
    size_t n, pos;               /* its length and where we are */
    bool line_start;             /* the last token ended with a newline: what follows begins a line */
    char open[TMPL_MAX_NESTING]; /* brackets to be closed */
    int n_open;
};

static err_code fail_at(struct lexer *x, size_t pos, const char *sentence)
{
    return tmpl_error(x->e, ERR_FORMAT, x->out->source, pos, "%s", sentence);
}

static err_code add(struct lexer *x, enum token_kind kind, size_t pos, const char *s, size_t n)
{
    struct token_stream *t = x->out;
    if (t->n == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 256;
        struct token *more = arena_calloc(x->arena, capacity, sizeof *more);
        if (!more)
            return err_nomem(x->e, capacity * sizeof *more, "a template's tokens");
        if (t->n)
            memcpy(more, t->tokens, t->n * sizeof *more);
        t->tokens = more;
        t->capacity = capacity;
    }
    t->tokens[t->n++] = (struct token){kind, (uint32_t)pos, {s, n}};
    return ERR_OK;
}

static bool at(const struct lexer *x, size_t pos, const char *text)
{
    size_t n = strlen(text);
    return x->n - pos >= n && !memcmp(x->s + pos, text, n);
}

static size_t skip_space(const struct lexer *x, size_t pos)
{
    while (pos < x->n) {
        uint32_t code;
        unsigned n = code_next(x->s + pos, x->n - pos, &code);
        if (!code_is_space(code))
            break;
        pos += n;
    }
    return pos;
}

/* Steps over the end of a tag at x->pos, `close` being "%}" or "}}" or "#}": what its sign or a following newline
 * takes with it. A sign was checked by the caller. */
static void skip_close(struct lexer *x, const char *close)
{
    char sign = x->s[x->pos];
    bool signed_close = sign == '-' || sign == '+';
    x->pos += 2 + (size_t)signed_close;
    if (signed_close && sign == '-')
        x->pos = skip_space(x, x->pos);
    else if (!signed_close && close[0] != '}' && x->pos < x->n && x->s[x->pos] == '\n')
        x->pos++;
    x->line_start = x->s[x->pos - 1] == '\n';
}

/* Whether the end of a tag is at pos, with or without a sign; "}}" takes no plus. */
static bool is_close(const struct lexer *x, size_t pos, const char *close)
{
    if (at(x, pos, close))
        return true;
    return pos < x->n && (x->s[pos] == '-' || (x->s[pos] == '+' && close[0] != '}')) && at(x, pos + 1, close);
}

/* The text from `from` up to a tag at `to` whose sign (0: none) trims it; `block`: lstrip_blocks applies. */
static err_code add_text(struct lexer *x, size_t from, size_t to, char sign, bool block)
{
    size_t end = to;
    if (sign == '-') {
        end = from + span_rstrip_space((struct span){x->s + from, to - from}).n;
    } else if (sign != '+' && block) {
        size_t line = to;
        while (line > from && x->s[line - 1] != '\n')
            line--;
        if ((line > from || x->line_start) && skip_space(x, line) >= to)
            end = line;
    }
    return end > from ? add(x, TOK_TEXT, from, x->s + from, end - from) : ERR_OK;
}

static char sign_at(const struct lexer *x, size_t pos)
{
    return pos < x->n && (x->s[pos] == '-' || x->s[pos] == '+') ? x->s[pos] : 0;
}

/* {% raw %} at pos (where "{%" is): the offset behind it, or 0 when this is another tag. */
static size_t raw_begin(const struct lexer *x, size_t pos)
{
    size_t p = skip_space(x, pos + 2 + (sign_at(x, pos + 2) != 0));
    if (!at(x, p, "raw"))
        return 0;
    p = skip_space(x, p + 3);
    if (at(x, p, "-%}"))
        return skip_space(x, p + 3);
    return at(x, p, "%}") ? p + 2 : 0;
}

static err_code lex_raw(struct lexer *x, size_t from)
{
    size_t begin = x->pos;
    x->line_start = x->s[from - 1] == '\n';
    for (size_t p = from; p + 2 <= x->n; p++) {
        if (!at(x, p, "{%"))
            continue;
        char sign = sign_at(x, p + 2);
        size_t q = skip_space(x, p + 2 + (sign != 0));
        if (!at(x, q, "endraw"))
            continue;
        q = skip_space(x, q + 6);
        if (!is_close(x, q, "%}"))
            continue;
        TRY(add_text(x, from, p, sign, true));
        x->pos = q;
        skip_close(x, "%}");
        return ERR_OK;
    }
    return fail_at(x, begin, "this raw block has no end: expected {% endraw %}");
}

static err_code lex_comment(struct lexer *x)
{
    size_t begin = x->pos;
    for (x->pos += 2 + (sign_at(x, x->pos + 2) != 0); x->pos < x->n; x->pos++)
        if (is_close(x, x->pos, "#}")) {
            skip_close(x, "#}");
            return ERR_OK;
        }
    return fail_at(x, begin, "this comment has no end: expected #}");
}

/* ---- inside tags --------------------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) || (unsigned char)c >= 0x80;
}

static bool is_base_digit(char c, int base)
{
    char low = (char)(c | 0x20);
    return base == 16 ? is_digit(c) || (low >= 'a' && low <= 'f') : c >= '0' && c < '0' + base;
}

/* The end of digits with single underscores between them from pos on; pos when there are none. */
static size_t skip_digits(const struct lexer *x, size_t pos, int base, bool underscore_first)
{
    size_t p = pos;
    while (p < x->n) {
        size_t q = p + (x->s[p] == '_' && (p > pos || underscore_first));
        if (q >= x->n || !is_base_digit(x->s[q], base))
            break;
        p = q + 1;
    }
    return p;
}

static err_code lex_number(struct lexer *x)
{
    size_t start = x->pos, p = skip_digits(x, start, 10, false);
    bool is_float = false;
    if (start == 0 || x->s[start - 1] != '.') {
        size_t q = p;
        if (q + 1 < x->n && x->s[q] == '.' && is_digit(x->s[q + 1])) {
            q = skip_digits(x, q + 1, 10, false);
            is_float = true;
        }
        if (q < x->n && (x->s[q] | 0x20) == 'e') {
            size_t r = q + 1 + (q + 1 < x->n && (x->s[q + 1] == '-' || x->s[q + 1] == '+'));
            if (r < x->n && is_digit(x->s[r])) {
                q = skip_digits(x, r, 10, false);
                is_float = true;
            }
        }
        if (is_float)
            p = q;
    }
    if (!is_float && x->s[start] == '0') {
        char kind = start + 1 < x->n ? (char)(x->s[start + 1] | 0x20) : 0;
        int base = kind == 'b' ? 2 : kind == 'o' ? 8 : kind == 'x' ? 16 : 0;
        size_t q = base ? skip_digits(x, start + 2, base, true) : start;
        if (base && q > start + 2)
            p = q;
        else /* a zero and digits behind it are two numbers */
            for (p = start + 1; p < x->n && (x->s[p] == '0' || (x->s[p] == '_' && at(x, p, "_0"))); p++)
                ;
    }
    x->pos = p;
    return add(x, is_float ? TOK_FLOAT : TOK_INT, start, x->s + start, p - start);
}

static err_code lex_string(struct lexer *x)
{
    size_t start = x->pos;
    char quote = x->s[start];
    for (size_t p = start + 1; p < x->n; p++) {
        if (x->s[p] == '\\') {
            p++;
        } else if (x->s[p] == quote) {
            x->pos = p + 1;
            return add(x, TOK_STRING, start, x->s + start + 1, p - start - 1);
        }
    }
    return fail_at(x, start, "this string has no end");
}

static err_code lex_operator(struct lexer *x)
{
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        const char *op = operators[i];
        if (!at(x, x->pos, op))
            continue;
        if (*op == '(' || *op == '[' || *op == '{') {
            if (x->n_open == TMPL_MAX_NESTING)
                return fail_at(x, x->pos, "brackets are nested too deeply");
            x->open[x->n_open++] = *op == '(' ? ')' : *op == '[' ? ']' : '}';
        } else if (*op == ')' || *op == ']' || *op == '}') {
            if (x->n_open == 0 || x->open[--x->n_open] != *op)
                return fail_at(x, x->pos, "this bracket closes none that is open");
        }
        size_t pos = x->pos;
        x->pos += strlen(op);
        return add(x, TOK_OPERATOR, pos, x->s + pos, x->pos - pos);
    }
    return fail_at(x, x->pos, "this character means nothing here");
}

static err_code lex_tag(struct lexer *x, bool block)
{
    const char *close = block ? "%}" : "}}";
    size_t begin = x->pos;
    TRY(add(x, block ? TOK_BLOCK_BEGIN : TOK_OUTPUT_BEGIN, begin, x->s + begin, 2));
    x->pos += 2 + (sign_at(x, x->pos + 2) != 0);
    x->n_open = 0;
    while (x->pos < x->n) {
        if (x->n_open == 0 && is_close(x, x->pos, close)) {
            TRY(add(x, block ? TOK_BLOCK_END : TOK_OUTPUT_END, x->pos, close, 2));
            skip_close(x, close);
            return ERR_OK;
        }
        size_t after_space = skip_space(x, x->pos);
        char c = x->s[x->pos];
        if (after_space > x->pos) {
            x->pos = after_space;
        } else if (is_digit(c)) {
            TRY(lex_number(x));
        } else if (is_name_char(c)) {
            size_t start = x->pos;
            while (x->pos < x->n && is_name_char(x->s[x->pos]) && skip_space(x, x->pos) == x->pos)
                x->pos++;
            TRY(add(x, TOK_NAME, start, x->s + start, x->pos - start));
        } else if (c == '"' || c == '\'') {
            TRY(lex_string(x));
        } else {
            TRY(lex_operator(x));
        }
    }
    return fail_at(x, begin, block ? "this tag has no end: expected %}" : "this tag has no end: expected }}");
}

/* From one tag to the next. */
static err_code lex_all(struct lexer *x)
{
    while (x->pos < x->n) {
        size_t from = x->pos, p = from;
        while (p < x->n && !(x->s[p] == '{' && p + 1 < x->n && strchr("{%#", x->s[p + 1])))
            p++;
        if (p == x->n)
            return add(x, TOK_TEXT, from, x->s + from, x->n - from);
        char kind = x->s[p + 1];
        size_t raw = kind == '%' ? raw_begin(x, p) : 0;
        TRY(add_text(x, from, p, sign_at(x, p + 2), kind != '{'));
        x->pos = p;
        if (raw)
            TRY(lex_raw(x, raw));
        else if (kind == '#')
            TRY(lex_comment(x));
        else
            TRY(lex_tag(x, kind == '%'));
    }
    return ERR_OK;
}

/* CR LF and CR become LF; one newline at the very end is dropped. */
static void normalise(struct span *out, char *to, const char *from, size_t n)
{
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        if (from[i] == '\r') {
            to[length++] = '\n';
            i += i + 1 < n && from[i + 1] == '\n';
        } else {
            to[length++] = from[i];
        }
    }
    if (length && to[length - 1] == '\n')
        length--;
    *out = (struct span){to, length};
}

err_code tmpl_lex(struct token_stream *out, const char *source, size_t n, struct arena *arena, struct err *e)
{
    *out = (struct token_stream){0};
    if (n > TMPL_MAX_SOURCE)
        return err_set(e, ERR_LIMIT, "the template has %zu bytes: expected at most %d", n, TMPL_MAX_SOURCE);
    char *copy = arena_alloc(arena, 2 * (n + 1));
    if (!copy)
        return err_nomem(e, n, "a template");
    normalise(&out->source, copy, source, n);
    out->source.trusted = n + 1;
    memset(copy + n + 1, 1, n + 1);
    size_t bad = utf8_valid(out->source.s, out->source.n);
    if (bad < out->source.n)
        return tmpl_error(e, ERR_FORMAT, out->source, bad, "this byte is not UTF-8");
    struct lexer x = {.out = out, .arena = arena, .e = e, .s = copy, .n = out->source.n, .line_start = true};
    TRY(lex_all(&x));
    return add(&x, TOK_END, x.n, "", 0);
}
