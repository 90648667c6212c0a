#define _DEFAULT_SOURCE /* struct winsize */
#include "cli/terminal_text.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

static int least(int a, int b)
{
    return a < b ? a : b;
}

int terminal_text_columns(FILE *out)
{
    enum { LEAST = 20, ELSEWHERE = 80 };
    struct winsize size;
    if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return ELSEWHERE;
    return size.ws_col < LEAST ? LEAST : size.ws_col;
}

void terminal_text_open(struct terminal_text *t, FILE *out, int n_columns)
{
    *t = (struct terminal_text){.out = out, .width = n_columns - 1, .base = "", .at_start = true, .before = ' '};
}

/* ---- characters ---------------------------------------------------------------------------------------------- */

static uint32_t code_point(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80)
        return u[0];
    if (u[0] < 0xe0)
        return (u[0] & 0x1fU) << 6 | (u[1] & 0x3fU);
    if (u[0] < 0xf0)
        return (u[0] & 0x0fU) << 12 | (u[1] & 0x3fU) << 6 | (u[2] & 0x3fU);
    return (u[0] & 0x07U) << 18 | (u[1] & 0x3fU) << 12 | (u[2] & 0x3fU) << 6 | (u[3] & 0x3fU);
}

struct code_range {
    uint32_t first, last;
};

static bool is_in(const struct code_range *ranges, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n; i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return true;
    return false;
}

/* The number of columns that a character takes on terminals: by East Asian width and combining characters. */
static int character_columns(const char *character)
{
    static const struct code_range none[] = {{0x300, 0x36f}, {0x200b, 0x200f}, {0xfe00, 0xfe0f}, {0x1f3fb, 0x1f3ff}};
    static const struct code_range two[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},
                                            {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},
                                            {0xff00, 0xff60},   {0xffe0, 0xffe6},   {0x1f300, 0x1f64f},
                                            {0x1f680, 0x1f6ff}, {0x1f900, 0x1faff}, {0x20000, 0x3fffd}};
    if (character[0] == '\\') /* a byte that is spelled out, or itself */
        return (int)strlen(character);
    uint32_t c = code_point(character);
    return is_in(none, sizeof none / sizeof *none, c) ? 0 : is_in(two, sizeof two / sizeof *two, c) ? 2 : 1;
}

/* ---- lines --------------------------------------------------------------------------------------------------- */

static void write_newline(struct terminal_text *t)
{
    fputs(t->has_status ? "\n\033[K" : "\n", t->out);
    t->has_status = false;
    t->column = 0;
}

static void write_spaces(struct terminal_text *t, int n)
{
    fprintf(t->out, "%*s", n, "");
    t->column += n;
}

static void flush_word(struct terminal_text *t)
{
    if (t->word_columns && t->column + t->n_space + t->word_columns > t->width && t->column > t->indent) {
        write_newline(t);
        write_spaces(t, t->indent);
    } else if (t->word_columns) {
        write_spaces(t, t->column < t->width ? least(t->n_space, t->width - t->column) : 0);
    }
    if (t->word_columns)
        t->n_space = 0;
    fwrite(t->word, 1, (size_t)t->n_word, t->out);
    t->column += t->word_columns;
    t->n_word = t->word_columns = 0;
}

/* Appends a character or a style to the word. */
static void add_to_word(struct terminal_text *t, const char *s, int n_columns)
{
    enum { STYLES_BYTES = 64 };
    int n = (int)strlen(s);
    if (t->n_word + n > TERMINAL_WORD_BYTES - STYLES_BYTES ||
        (n_columns && t->word_columns + n_columns > t->width - t->indent))
        flush_word(t);
    memcpy(t->word + t->n_word, s, (size_t)n);
    t->n_word += n;
    t->word_columns += n_columns;
}

static void set_style(struct terminal_text *t)
{
    add_to_word(t, "\033[0m", 0);
    add_to_word(t, t->base, 0);
    if (t->is_bold || t->is_heading)
        add_to_word(t, "\033[1m", 0);
    if (t->is_italic)
        add_to_word(t, "\033[3m", 0);
    if (t->is_quote)
        add_to_word(t, "\033[2m", 0);
    if (t->is_code || t->in_fence)
        add_to_word(t, "\033[36m", 0);
}

static void put_plain(struct terminal_text *t, const char *character)
{
    int n = character_columns(character);
    if (character[0] == ' ' || character[0] == '\t') {
        flush_word(t);
        t->n_space += character[0] == '\t' ? 4 : 1;
        return;
    }
    add_to_word(t, character, n);
    if (n == 2) /* scripts with wide characters break anywhere */
        flush_word(t);
}

/* A character of fenced code, where spaces are kept and long lines continue at the edge. */
static void put_code(struct terminal_text *t, const char *character)
{
    bool tab = character[0] == '\t';
    const char *s = tab ? "    " : character;
    int n = tab ? 4 : character_columns(character);
    if (t->column + n > t->width)
        write_newline(t);
    fputs(s, t->out);
    t->column += n;
}

/* ---- *, _ and ` ---------------------------------------------------------------------------------------------- */

/* Whether an open emphasis may end, or a new one begin, before the character `next`. */
static bool may_change(const struct terminal_text *t, bool is_on, char next)
{
    bool space_before = isspace((unsigned char)t->before), space_next = isspace((unsigned char)next);
    if (t->mark != '_')
        return is_on ? !space_before : !space_next;
    return is_on ? !space_before && !isalnum((unsigned char)next) : !isalnum((unsigned char)t->before) && !space_next;
}

/* Decides what a run of marks means, once the character after it is known. */
static void end_marks(struct terminal_text *t, char next)
{
    char mark[2] = {t->mark, 0};
    int n = t->n_mark;
    if (n == 0)
        return;
    t->n_mark = 0;
    bool bold = n >= 2, italic = n % 2 == 1;
    if (t->mark == '`' && n == 1) {
        t->is_code = !t->is_code;
        set_style(t);
    } else if (t->mark != '`' && n <= 3 && (!bold || may_change(t, t->is_bold, next)) &&
               (!italic || may_change(t, t->is_italic, next))) {
        t->is_bold ^= bold;
        t->is_italic ^= italic;
        set_style(t);
    } else {
        for (int i = 0; i < n; i++)
            put_plain(t, mark);
    }
    t->before = t->mark;
}

static void put_inline(struct terminal_text *t, const char *character)
{
    char c = character[0];
    bool is_mark = c == '`' || ((c == '*' || c == '_') && !t->is_code);
    if (t->n_mark && c != t->mark)
        end_marks(t, c);
    if (is_mark && !character[1]) {
        t->mark = c;
        t->n_mark++;
        return;
    }
    put_plain(t, character);
    t->before = c;
}

/* ---- the beginning of a line ----------------------------------------------------------------------------------- */

enum line_start { START_MORE, START_TEXT, START_HEADING, START_BULLET, START_NUMBER, START_QUOTE, START_FENCE };

static enum line_start classify_run(const char *s, char c, int most)
{
    int n = 0;
    while (s[n] == c)
        n++;
    if (c == '`')
        return n >= 3 ? START_FENCE : s[n] ? START_TEXT : START_MORE;
    if (!s[n])
        return n <= most ? START_MORE : START_TEXT;
    if (s[n] != ' ')
        return START_TEXT;
    return c == '#' ? START_HEADING : n == 1 ? START_BULLET : START_TEXT;
}

/* What kind of line it is, as far as its beginning shows. */
static enum line_start classify(const struct terminal_text *t)
{
    const char *s = t->start + strspn(t->start, " ");
    if (t->n_start == TERMINAL_START_BYTES - 1)
        return START_TEXT;
    if (!*s)
        return START_MORE;
    if (t->in_fence || *s == '`')
        return *s == '`' ? classify_run(s, '`', 3) : START_TEXT;
    if (*s == '#' || *s == '-' || *s == '*' || *s == '+')
        return classify_run(s, *s, 6);
    if (*s == '>')
        return s[1] ? START_QUOTE : START_MORE;
    size_t n = strspn(s, "0123456789");
    if (n == 0 || n > 3)
        return START_TEXT;
    if (!s[n] || ((s[n] == '.' || s[n] == ')') && !s[n + 1]))
        return START_MORE;
    return (s[n] == '.' || s[n] == ')') && s[n + 1] == ' ' ? START_NUMBER : START_TEXT;
}

static bool is_rule(const char *s)
{
    size_t n = strspn(s, "-");
    return n >= 3 && !s[n];
}

/* The beginning of the line is no mark, but text. */
static void put_start(struct terminal_text *t, const char *s)
{
    for (; *s; s++) {
        char one[2] = {*s, 0};
        if (t->in_fence)
            put_code(t, one);
        else
            put_inline(t, one);
    }
}

static void end_start(struct terminal_text *t, enum line_start kind)
{
    const char *s = t->start + strspn(t->start, " ");
    int n_indent = (int)(s - t->start);
    t->at_start = false;
    switch (kind) {
    case START_HEADING:
        t->is_heading = true;
        set_style(t);
        break;
    case START_BULLET:
        write_spaces(t, n_indent);
        fputs("\u2022 ", t->out);
        t->column += 2;
        break;
    case START_NUMBER:
        write_spaces(t, n_indent);
        fputs(s, t->out);
        t->column += (int)strlen(s);
        break;
    case START_QUOTE:
        t->is_quote = true;
        fputs("\u2502 ", t->out);
        t->column += 2;
        set_style(t);
        put_start(t, s + 1 + (s[1] == ' '));
        break;
    case START_FENCE:
        t->in_fence = !t->in_fence;
        t->in_info = true;
        set_style(t);
        flush_word(t);
        break;
    default:
        if (!t->in_fence && *s)
            write_spaces(t, n_indent);
        put_start(t, t->in_fence ? t->start : s);
    }
    if (kind == START_BULLET || kind == START_NUMBER || kind == START_QUOTE || (n_indent && !t->in_fence))
        t->indent = least(kind == START_TEXT ? n_indent : t->column, t->width / 2);
    t->n_start = 0;
    t->start[0] = '\0';
}

static void end_line(struct terminal_text *t)
{
    if (t->at_start && is_rule(t->start)) {
        for (t->column = 0; t->column < least(t->width, 40); t->column++)
            fputs("\u2500", t->out);
        t->at_start = false;
        t->n_start = 0;
        t->start[0] = '\0';
    }
    if (t->at_start)
        end_start(t, START_TEXT);
    end_marks(t, '\n');
    bool has_style = t->is_bold || t->is_italic || t->is_code || t->is_heading || t->is_quote;
    t->is_bold = t->is_italic = t->is_code = t->is_heading = t->is_quote = false;
    if (has_style)
        set_style(t);
    flush_word(t);
    t->n_space = 0;
    t->indent = 0;
    t->before = ' ';
    t->at_start = true;
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

void terminal_text_put(struct terminal_text *t, const char *character)
{
    if (character[0] == '\n') {
        bool was_fence = t->in_info; /* the line of a fence is not shown */
        t->in_info = false;
        end_line(t);
        if (!was_fence)
            write_newline(t);
    } else if (t->in_info) {
        return;
    } else if (t->has_markdown && t->at_start) {
        bool short_one = !character[1] && character[0] != '\t';
        if (short_one) {
            t->start[t->n_start++] = character[0];
            t->start[t->n_start] = '\0';
        }
        enum line_start kind = short_one ? classify(t) : START_TEXT;
        if (kind != START_MORE)
            end_start(t, kind);
        if (!short_one)
            terminal_text_put(t, character);
    } else if (t->in_fence) {
        put_code(t, character);
    } else if (t->has_markdown) {
        put_inline(t, character);
    } else {
        put_plain(t, character);
    }
}

void terminal_text_end(struct terminal_text *t)
{
    end_line(t);
    if (t->in_fence || *t->base)
        fputs("\033[0m", t->out);
    t->in_fence = t->in_info = false;
}

void terminal_text_part(struct terminal_text *t, const char *base, bool has_markdown)
{
    terminal_text_end(t);
    if (t->column > 0)
        write_newline(t);
    t->base = base;
    t->has_markdown = has_markdown;
    fputs(base, t->out);
}

void terminal_text_status(struct terminal_text *t, const char *status)
{
    if (!status && !t->has_status)
        return;
    fputs("\n\033[1A\r", t->out); /* makes sure that there is a line below, by scrolling if need be */
    if (t->column)
        fprintf(t->out, "\033[%dC", t->column);
    fputs("\0337\n\r\033[K", t->out); /* saves cursor and style */
    if (status)
        fprintf(t->out, "\033[0m\033[2m%.*s", t->width, status);
    fputs("\0338", t->out);
    t->has_status = status != NULL;
}
