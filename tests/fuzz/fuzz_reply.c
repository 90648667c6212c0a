/* An answer's text, read with the tools of the first part of the input and by the family that its first byte names:
 * signs of a template, tools in JSON and the answer are separated by zero bytes. */
#include "fuzz.h"

#include <assert.h>
#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "reply/reply.h"
#include "base/bytes.h"
#include "reply/reply_tools.h"

static const char some_tools[] =
    "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{},\"c\":{\"type\":[\"string\","
    "\"null\"]}}}},{\"name\":\"get\"}]";

struct told {
    struct bytes parts[REPLY_SYNTAX]; /* all of each part */
    struct bytes answer;              /* content, reasoning and syntax */
    struct bytes args;                /* of the call that is open */
    bool is_open;
};

static void collect(void *user, enum reply_part part, const char *text, size_t n)
{
    struct told *t = user;
    json_error_t error;
    if (part < REPLY_SYNTAX) {
        bytes_put(&t->parts[part], text, n);
        if (part >= REPLY_CALL && part != REPLY_ARGUMENTS)
            bytes_put_char(&t->parts[part], '\n');
    }
    if (part == REPLY_CONTENT || part == REPLY_REASONING || part == REPLY_SYNTAX)
        bytes_put(&t->answer, text, n);
    assert(part != REPLY_ARGUMENTS || t->is_open);
    assert(part != REPLY_CALL || !t->is_open);
    assert(part != REPLY_CALL_END || t->is_open);
    if (part == REPLY_ARGUMENTS)
        bytes_put(&t->args, text, n);
    if (part == REPLY_CALL || part == REPLY_CALL_END)
        t->is_open = part == REPLY_CALL;
    if (part != REPLY_CALL_END)
        return;
    json_t *j = json_loadb(t->args.s, t->args.n, JSON_ALLOW_NUL, &error);
    assert(j ? json_is_object(j)
             : json_error_code(&error) == json_error_numeric_overflow ||
                   json_error_code(&error) == json_error_null_byte_in_key);
    json_decref(j);
    bytes_clear(&t->args);
}

static struct told read_answer(struct reply_style style, const struct reply_tools *tools, const char *s, size_t n,
                               size_t n_piece, bool is_cut)
{
    struct told t = {0};
    struct reply *r;
    struct err e;
    err_code code = reply_open(&r, style, "", collect, &t, &e);
    assert(code == ERR_OK);
    reply_set_tools(r, tools);
    for (size_t at = 0; at < n && code == ERR_OK; at += n_piece)
        code = reply_feed(r, s + at, n - at < n_piece ? n - at : n_piece, &e);
    assert(code == ERR_OK);
    code = reply_finish(r, is_cut, &e);
    assert(code == ERR_OK && (is_cut || !t.is_open));
    assert(t.answer.n == n && (n == 0 || !memcmp(t.answer.s, s, n)));
    reply_close(&r);
    return t;
}

static void close_told(struct told *t)
{
    for (int part = 0; part < REPLY_SYNTAX; part++)
        bytes_close(&t->parts[part]);
    bytes_close(&t->answer);
    bytes_close(&t->args);
}

/* A grammar is made for any tools. */
static void write_grammar(struct reply_style style, const struct reply_tools *tools)
{
    const struct reply_grammar_options options = {.is_required = true, .prompt = ""};
    const char *trigger;
    struct err e;
    char *text;
    err_code code = reply_call_grammar(style, tools, &options, &text, &trigger, &e);
    assert((code == ERR_OK) == (text != NULL) && (code == ERR_OK) == (tools->n > 0));
    assert(!text || !strncmp(text, "root ::=", 8));
    mem_free(text);
}

/* The part up to a zero byte, NUL-terminated and owned by the caller; what follows it stays. */
static char *take_part(const uint8_t **data, size_t *size)
{
    const uint8_t *zero = *size ? memchr(*data, 0, *size) : NULL;
    size_t n = zero ? (size_t)(zero - *data) : 0;
    char *part = mem_calloc(n + 1, 1);
    if (zero) {
        memcpy(part, *data, n);
        *data += n + 1;
        *size -= n + 1;
    }
    return part;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *source = take_part(&data, &size), *json = take_part(&data, &size);
    struct reply_tools tools;
    struct err e;
    struct reply_style style = reply_style_of(source);
    err_code code = reply_tools_open(&tools, *json ? json : some_tools, &e);
    assert(code == ERR_OK || e.text[0]);
    if (code == ERR_OK) {
        struct told whole = read_answer(style, &tools, (const char *)data, size, size ? size : 1, false);
        struct told bytes = read_answer(style, &tools, (const char *)data, size, 1, false);
        struct told cut = read_answer(style, &tools, (const char *)data, size, 1, true);
        for (int part = 0; part < REPLY_SYNTAX; part++)
            assert(!strcmp(bytes_text(&whole.parts[part]), bytes_text(&bytes.parts[part])));
        write_grammar(style, &tools);
        close_told(&whole);
        close_told(&bytes);
        close_told(&cut);
    }
    reply_tools_close(&tools);
    mem_free(source);
    mem_free(json);
    return 0;
}
