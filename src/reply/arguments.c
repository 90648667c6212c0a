#include "reply/arguments.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum state {
    AT_VALUE,    /* a value must come, or the ] of an array */
    AT_KEY,      /* a key must come, or the end of the object */
    AT_COLON,    /* what stands between key and value */
    AFTER_VALUE, /* a comma or the end of what is open */
    IN_STRING,   /* between quotes */
    IN_TEXT,     /* text that no quote ends: args_string_begin */
    IN_WORD,     /* a number, true, false or null */
    IN_BARE_KEY, /* a key without quotes */
    IN_MARK,     /* the first bytes of <|"|> before a string */
    AT_END,      /* the value is whole */
};

static const char gemma_quote[] = "<|\"|>";
static const char replacement[] = UTF8_REPLACEMENT;

static enum args_result take(struct args_reader *a, char c, struct bytes *out);

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool in_object(const struct args_reader *a)
{
    return a->depth > 0 && a->is_object[a->depth - 1];
}

/* Between the parentheses of a call: keys are names, and = stands behind them. */
static bool in_call(const struct args_reader *a)
{
    return a->notation == ARGS_CALL && a->depth == 1;
}

static bool is_python(const struct args_reader *a)
{
    return a->notation == ARGS_PYTHON || a->notation == ARGS_CALL;
}

/* ---- strings ------------------------------------------------------------------------------------------------- */

/* One ASCII character of a string. */
static void write_char(struct bytes *to, char c)
{
    static const char from[] = "\"\\\n\r\t\f\b", by[] = "\"\\nrtfb";
    const char *simple = c ? strchr(from, c) : NULL;
    char escape[8];
    if (simple) {
        bytes_put_char(to, '\\');
        bytes_put_char(to, by[simple - from]);
    } else if ((unsigned char)c < 0x20) {
        snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
        bytes_put_text(to, escape);
    } else {
        bytes_put_char(to, c);
    }
}

/* The number that n hexadecimal digits write; -1: they are none. */
static long hex(const char *s, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    long value = 0;
    for (size_t i = 0; i < n; i++) {
        const char *digit = s[i] ? strchr(digits, s[i] | 0x20) : NULL;
        if (!digit)
            return -1;
        value = 16 * value + (digit - digits);
    }
    return value;
}

/* Whether n bytes could begin \uXXXX; *code: its number where all are there, else -1. */
static bool is_u_escape(const char *s, size_t n, long *code)
{
    *code = n >= 6 ? hex(s + 2, 4) : -1;
    return s[0] == '\\' && (n < 2 || s[1] == 'u') && (n < 3 || hex(s + 2, (n < 6 ? n : 6) - 2) >= 0);
}

/* \uXXXX, or two for a character beyond U+FFFF. Returns what it takes of n bytes, and 0 while more are needed. */
static size_t write_u_escape(struct bytes *to, const char *s, size_t n)
{
    long first, second;
    if (!is_u_escape(s, n, &first)) {
        bytes_put_text(to, "\\\\");
        return 1;
    }
    bool is_high = first >= 0xd800 && first < 0xdc00, could_pair = n == 6;
    if (is_high && n > 6)
        could_pair = is_u_escape(s + 6, n - 6, &second) && (second < 0 || (second >= 0xdc00 && second < 0xe000));
    if (first < 0 || (is_high && could_pair && n < 12))
        return 0;
    bool is_pair = is_high && could_pair;
    if (is_pair || !utf8_is_surrogate((uint32_t)first))
        bytes_put(to, s, is_pair ? 12 : 6);
    else
        bytes_put_text(to, replacement);
    return is_pair ? 12 : 6;
}

/* An escape of n bytes so far, of JSON or Python. Returns what it takes of them, and 0 while more are needed. A
 * backslash that begins no escape stands for itself. */
static size_t write_escape(struct bytes *to, const char *s, size_t n, bool is_python)
{
    static const char from[] = "\"\\/bfnrt'", by[] = "\"\\/\b\f\n\r\t'", python_from[] = "av", python_by[] = "\a\v";
    if (n < 2)
        return 0;
    const char *simple = s[1] ? strchr(from, s[1]) : NULL, *more = s[1] ? strchr(python_from, s[1]) : NULL;
    if (simple)
        write_char(to, by[simple - from]);
    else if (s[1] == 'u')
        return write_u_escape(to, s, n);
    else if (is_python && more)
        write_char(to, python_by[more - python_from]);
    else if (is_python && s[1] == 'x' && (n < 3 || hex(s + 2, n - 2) >= 0)) {
        if (n < 4)
            return 0;
        bytes_put_text(to, "\\u00");
        bytes_put(to, s + 2, 2);
        return 4;
    } else if (!is_python || s[1] != '\n') { /* which joins two lines */
        bytes_put_text(to, "\\\\");
        return 1;
    }
    return 2;
}

/* A character of n bytes so far. Returns what it takes of them, and 0 while more are needed. */
static size_t write_character(struct bytes *to, const char *s, size_t n)
{
    size_t length = utf8_length(s, n);
    if (length == 0 && utf8_unfinished(s, n) == n)
        return 0;
    bytes_put(to, length ? s : replacement, length ? length : sizeof replacement - 1);
    return length ? length : 1;
}

/* The same for what may be the end of one of Gemma's strings: what it takes is text. The whole quote is not for here.
 */
static size_t write_unless_quote(struct bytes *to, const char *s, size_t n)
{
    if (!memcmp(s, gemma_quote, n))
        return 0;
    write_char(to, s[0]);
    return 1;
}

/* One byte of a string. Returns whether it ends it. */
static bool take_string_byte(struct args_reader *a, char c, struct bytes *to)
{
    bool is_special = a->token.n || (unsigned char)c >= 0x80 || (c == '\\' && (a->quote == '"' || a->quote == '\'')) ||
                      (a->quote == '<' && c == '<');
    if (!is_special) {
        if (a->quote && c == a->quote)
            return true;
        write_char(to, c);
        return false;
    }
    bytes_put_char(&a->token, c);
    size_t n = a->token.n, used;
    char s[16];
    assert(n < sizeof s);
    if (n == 0) /* there was no memory */
        return false;
    memcpy(s, a->token.s, n);
    if (a->quote == '<' && n == sizeof gemma_quote - 1 && !memcmp(s, gemma_quote, n)) {
        bytes_clear(&a->token);
        return true;
    }
    if ((unsigned char)s[0] >= 0x80)
        used = write_character(to, s, n);
    else if (s[0] == '<')
        used = write_unless_quote(to, s, n);
    else
        used = write_escape(to, s, n, is_python(a));
    bool is_end = false;
    if (used)
        bytes_clear(&a->token);
    for (size_t i = used; used && i < n; i++) /* only the last byte can be a quote */
        is_end = take_string_byte(a, s[i], to);
    return is_end;
}

/* The bytes of an unfinished character or escape at the end of text without quotes. */
static void flush_token(struct args_reader *a, struct bytes *to)
{
    for (size_t i = 0; i < a->token.n; i++)
        bytes_put_text(to, replacement);
    bytes_clear(&a->token);
}

void args_string_begin(struct args_reader *a, struct bytes *out)
{
    a->state = IN_TEXT;
    a->quote = '\0';
    bytes_clear(&a->token);
    bytes_put_char(out, '"');
}

void args_string_add(struct args_reader *a, char c, struct bytes *out)
{
    take_string_byte(a, c, out);
}

void args_string_end(struct args_reader *a, struct bytes *out)
{
    flush_token(a, out);
    bytes_put_char(out, '"');
    a->state = AT_END;
}

void args_string(const char *s, size_t n, struct bytes *out)
{
    struct args_reader a = {0};
    args_string_begin(&a, out);
    for (size_t i = 0; i < n; i++)
        args_string_add(&a, s[i], out);
    args_string_end(&a, out);
    args_close(&a);
}

/* ---- words --------------------------------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static const char *skip_digits(const char *s)
{
    while (is_digit(*s))
        s++;
    return s;
}

/* RFC 8259, section 6. */
static bool is_number(const char *s)
{
    s += *s == '-';
    if (!is_digit(*s))
        return false;
    s = *s == '0' ? s + 1 : skip_digits(s);
    if (*s == '.') {
        if (!is_digit(*++s))
            return false;
        s = skip_digits(s);
    }
    if (*s == 'e' || *s == 'E') {
        s += s[1] == '+' || s[1] == '-' ? 2 : 1;
        if (!is_digit(*s))
            return false;
        s = skip_digits(s);
    }
    return *s == '\0';
}

/* The word as JSON, or NULL. */
static const char *word_value(const char *s)
{
    static const char *const words[][2] = {{"true", "true"},   {"True", "true"}, {"false", "false"},
                                           {"False", "false"}, {"null", "null"}, {"None", "null"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(s, words[i][0]))
            return words[i][1];
    return is_number(s) ? s : NULL;
}

static bool is_word_byte(const struct args_reader *a, char c)
{
    if (a->notation == ARGS_GEMMA && a->depth > 0) /* where a string may lack its quotes, too */
        return !strchr(",{}[]<\"", c) && ((unsigned char)c >= 0x20);
    return c && (is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || strchr("+-.", c));
}

static void write_comma(struct args_reader *a, struct bytes *out)
{
    if (a->has_comma)
        bytes_put_char(out, ',');
    a->has_comma = false;
}

/* The word that has ended. False: it is no value. */
static bool write_word(struct args_reader *a, struct bytes *out)
{
    while (a->token.n && is_space(a->token.s[a->token.n - 1]))
        a->token.s[--a->token.n] = '\0';
    bool has_nul = memchr(bytes_text(&a->token), '\0', a->token.n);
    const char *value = has_nul ? NULL : word_value(bytes_text(&a->token));
    if (!value && a->notation != ARGS_GEMMA)
        return false;
    write_comma(a, out);
    if (value) {
        bytes_put_text(out, value);
        bytes_clear(&a->token);
        return true;
    }
    args_string(bytes_text(&a->token), a->token.n, out);
    bytes_clear(&a->token);
    return true;
}

/* ---- objects and arrays -------------------------------------------------------------------------------------- */

static enum args_result end_value(struct args_reader *a)
{
    a->state = a->depth ? AFTER_VALUE : AT_END;
    return a->depth ? ARGS_MORE : ARGS_WHOLE;
}

static enum args_result open_nested(struct args_reader *a, bool is_object, struct bytes *out)
{
    if (a->depth == ARGS_MAX_DEPTH)
        return ARGS_WRONG;
    write_comma(a, out);
    a->is_object[a->depth++] = is_object;
    bytes_put_char(out, is_object ? '{' : '[');
    a->state = is_object ? AT_KEY : AT_VALUE;
    return ARGS_MORE;
}

static bool is_closing(const struct args_reader *a, char c)
{
    return a->depth > 0 && c == (in_call(a) ? ')' : in_object(a) ? '}' : ']');
}

static enum args_result close_nested(struct args_reader *a, struct bytes *out)
{
    bytes_put_char(out, in_object(a) ? '}' : ']');
    a->depth--;
    a->has_comma = false;
    return end_value(a);
}

static void begin_string(struct args_reader *a, char quote, bool is_key, struct bytes *out)
{
    if (!is_key)
        write_comma(a, out);
    bytes_put_char(is_key ? &a->key : out, '"');
    a->quote = quote;
    a->is_key = is_key;
    a->state = IN_STRING;
}

static enum args_result take_first_of_value(struct args_reader *a, char c, struct bytes *out)
{
    if (c == ']' && is_closing(a, c))
        return close_nested(a, out);
    if (c == '{' || c == '[')
        return open_nested(a, c == '{', out);
    if (c == '"' || (c == '\'' && is_python(a))) {
        begin_string(a, c, false, out);
        return ARGS_MORE;
    }
    bool is_mark = c == '<' && a->notation == ARGS_GEMMA;
    if (!is_mark && !is_word_byte(a, c))
        return ARGS_WRONG;
    a->state = is_mark ? IN_MARK : IN_WORD;
    a->is_key = false;
    bytes_put_char(&a->token, c);
    return ARGS_MORE;
}

static bool is_bare_key_byte(const struct args_reader *a, char c)
{
    return (unsigned char)c > 0x20 && !strchr(a->notation == ARGS_GEMMA ? ":,{}[]<\"" : ":,{}[]<\"'=()", c);
}

static enum args_result take_first_of_key(struct args_reader *a, char c, struct bytes *out)
{
    bool is_bare = in_call(a) || a->notation == ARGS_GEMMA;
    if (is_closing(a, c))
        return close_nested(a, out);
    if (!in_call(a) && (c == '"' || (c == '\'' && is_python(a)))) {
        begin_string(a, c, true, out);
    } else if (c == '<' && a->notation == ARGS_GEMMA) {
        a->state = IN_MARK;
        a->is_key = true;
        bytes_put_char(&a->token, c);
    } else if (is_bare && is_bare_key_byte(a, c)) {
        begin_string(a, '\0', true, out);
        a->state = IN_BARE_KEY;
        take_string_byte(a, c, &a->key);
    } else {
        return ARGS_WRONG;
    }
    return ARGS_MORE;
}

static enum args_result take_mark(struct args_reader *a, char c, struct bytes *out)
{
    if (c != gemma_quote[a->token.n])
        return ARGS_WRONG;
    bytes_put_char(&a->token, c);
    if (a->token.n == sizeof gemma_quote - 1) {
        bytes_clear(&a->token);
        begin_string(a, '<', a->is_key, out);
    }
    return ARGS_MORE;
}

static enum args_result take_bare_key(struct args_reader *a, char c, struct bytes *out)
{
    if (is_bare_key_byte(a, c)) {
        take_string_byte(a, c, &a->key);
        return ARGS_MORE;
    }
    flush_token(a, &a->key);
    bytes_put_char(&a->key, '"');
    a->state = AT_COLON;
    return take(a, c, out);
}

static enum args_result take_colon(struct args_reader *a, char c, struct bytes *out)
{
    if (c != (in_call(a) ? '=' : ':'))
        return ARGS_WRONG;
    write_comma(a, out);
    bytes_put(out, a->key.s, a->key.n);
    bytes_put_char(out, ':');
    bytes_clear(&a->key);
    a->state = AT_VALUE;
    return ARGS_MORE;
}

static enum args_result take_after_value(struct args_reader *a, char c, struct bytes *out)
{
    if (is_closing(a, c))
        return close_nested(a, out);
    if (c != ',')
        return ARGS_WRONG;
    a->has_comma = true;
    a->state = in_object(a) ? AT_KEY : AT_VALUE;
    return ARGS_MORE;
}

static enum args_result take_word(struct args_reader *a, char c, struct bytes *out)
{
    if (is_word_byte(a, c)) {
        bytes_put_char(&a->token, c);
        return ARGS_MORE;
    }
    if (!write_word(a, out))
        return ARGS_WRONG;
    return end_value(a) == ARGS_WHOLE ? ARGS_BEFORE : take(a, c, out);
}

static enum args_result take(struct args_reader *a, char c, struct bytes *out)
{
    if (a->state <= AFTER_VALUE && is_space(c))
        return ARGS_MORE;
    switch ((enum state)a->state) {
    case AT_VALUE: return take_first_of_value(a, c, out);
    case AT_KEY: return take_first_of_key(a, c, out);
    case AT_COLON: return take_colon(a, c, out);
    case AFTER_VALUE: return take_after_value(a, c, out);
    case IN_WORD: return take_word(a, c, out);
    case IN_BARE_KEY: return take_bare_key(a, c, out);
    case IN_MARK: return take_mark(a, c, out);
    case IN_STRING: break;
    case IN_TEXT:
    case AT_END: return ARGS_WRONG;
    }
    if (!take_string_byte(a, c, a->is_key ? &a->key : out))
        return ARGS_MORE;
    bytes_put_char(a->is_key ? &a->key : out, '"');
    if (!a->is_key)
        return end_value(a);
    a->state = AT_COLON;
    return ARGS_MORE;
}

void args_begin(struct args_reader *a, enum args_notation notation, struct bytes *out)
{
    a->notation = notation;
    a->state = AT_VALUE;
    a->depth = 0;
    a->has_comma = false;
    bytes_clear(&a->token);
    bytes_clear(&a->key);
    if (notation == ARGS_CALL || notation == ARGS_GEMMA)
        open_nested(a, true, out);
}

enum args_result args_take(struct args_reader *a, char c, struct bytes *out)
{
    return take(a, c, out);
}

bool args_is_settled(const struct args_reader *a)
{
    return a->token.n == 0 && a->key.n == 0;
}

void args_end(struct args_reader *a, struct bytes *out)
{
    bool has_value = a->state == IN_WORD && write_word(a, out), is_key = a->state == IN_MARK && a->is_key;
    bool lacks_value = a->state == AT_VALUE || a->state == IN_WORD || a->state == IN_MARK;
    if (a->state == IN_STRING && !a->is_key)
        bytes_put_char(out, '"');
    else if (in_object(a) && lacks_value && !has_value && !is_key)
        bytes_put_text(out, "null");
    while (a->depth > 0)
        close_nested(a, out);
    bytes_clear(&a->token);
    bytes_clear(&a->key);
    a->state = AT_END;
}

void args_close(struct args_reader *a)
{
    bytes_close(&a->token);
    bytes_close(&a->key);
}

bool args_convert(const char *text, size_t n, enum args_notation notation, struct bytes *out)
{
    struct args_reader a = {0};
    struct bytes json = {0};
    enum args_result result = ARGS_MORE;
    size_t i = 0;
    while (n && is_space(text[n - 1]))
        n--;
    args_begin(&a, notation, &json);
    while (i < n && result == ARGS_MORE)
        result = args_take(&a, text[i++], &json);
    bool is_whole = (result == ARGS_WHOLE && i == n) ||
                    (result == ARGS_MORE && a.state == IN_WORD && a.depth == 0 && write_word(&a, &json));
    if (is_whole)
        bytes_put(out, json.s, json.n);
    out->is_short |= json.is_short;
    bytes_close(&json);
    args_close(&a);
    return is_whole;
}
