/* Arguments that are elements in elements. */
#include <string.h>

#include "reply/arguments.h"

struct elements {
    const char *at, *end;     /* what is left of the text */
    const char *open, *close; /* the marks; `open` may be how `close` begins */
    struct bytes *out;
};

static bool begins_with(const struct elements *x, const char *mark)
{
    size_t n = strlen(mark);
    return (size_t)(x->end - x->at) >= n && !memcmp(x->at, mark, n);
}

static bool at_open(const struct elements *x)
{
    return begins_with(x, x->open) && !begins_with(x, x->close);
}

static void skip_space(struct elements *x)
{
    while (x->at < x->end && memchr(" \n\r\t", *x->at, 4))
        x->at++;
}

/* A mark and the name behind it, up to >. False: they are not there. */
static bool take_tag(struct elements *x, const char *mark, const char **name, size_t *n)
{
    if (!begins_with(x, mark))
        return false;
    *name = x->at + strlen(mark);
    const char *end = memchr(*name, '>', (size_t)(x->end - *name));
    if (!end)
        return false;
    *n = (size_t)(end - *name);
    x->at = end + 1;
    return true;
}

/* Text up to the next mark. */
static void put_leaf(struct elements *x)
{
    const char *from = x->at;
    while (x->at < x->end && !begins_with(x, x->open) && !begins_with(x, x->close))
        x->at++;
    size_t n = (size_t)(x->at - from);
    if (!args_convert(from, n, ARGS_JSON, x->out))
        args_string(from, n, x->out);
}

static bool put_elements(struct elements *x, int depth);

static bool put_element(struct elements *x, int depth, bool in_array)
{
    const char *name, *again;
    size_t n, n_again;
    if (!take_tag(x, x->open, &name, &n))
        return false;
    if (!in_array) {
        args_string(name, n, x->out);
        bytes_put_char(x->out, ':');
    }
    const char *from = x->at;
    skip_space(x);
    if (at_open(x)) {
        if (!put_elements(x, depth + 1))
            return false;
    } else {
        x->at = from; /* white space is a string's own */
        put_leaf(x);
    }
    return take_tag(x, x->close, &again, &n_again) && n == n_again && !memcmp(name, again, n);
}

/* Elements that follow each other, of which the first is there. */
static bool put_elements(struct elements *x, int depth)
{
    static const char item[] = "item>";
    size_t n_mark = strlen(x->open), n = (size_t)(x->end - x->at) - n_mark;
    bool in_array = n >= sizeof item - 1 && !memcmp(x->at + n_mark, item, sizeof item - 1);
    if (depth == ARGS_MAX_DEPTH)
        return false;
    bytes_put_char(x->out, in_array ? '[' : '{');
    for (bool is_first = true; at_open(x); is_first = false) {
        if (!is_first)
            bytes_put_char(x->out, ',');
        if (!put_element(x, depth, in_array))
            return false;
        skip_space(x);
    }
    bytes_put_char(x->out, in_array ? ']' : '}');
    return true;
}

bool args_convert_nested(const char *text, size_t n, const char *open, const char *close, struct bytes *out)
{
    struct bytes json = {0};
    struct elements x = {text, text + n, open, close, &json};
    skip_space(&x);
    bool is_whole = at_open(&x) && put_elements(&x, 0) && x.at == x.end;
    if (is_whole)
        bytes_put(out, json.s, json.n);
    out->is_short |= json.is_short;
    bytes_close(&json);
    return is_whole;
}
