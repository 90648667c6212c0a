#define _GNU_SOURCE /* memmem */
/* An answer while it is generated: tokens become the text that reply/ reads, and the tokens that end it do. Also how
 * its calls are to be written. */
#include <string.h>

#include "engine/engine_vocab.h"
#include "engine/sized.h"
#include "engine/status.h"
#include "base/bytes.h"
#include "reply/reply_tools.h"

struct moebius_reply {
    const moebius_template *tmpl; /* borrowed */
    struct reply *reader;
    struct reply_tools tools;
    struct bytes texts[MOEBIUS_REPLY_N];
    bool has_end;         /* the last token ends the answer */
    bool is_past_end;     /* a token has come that ends answers, unless the call follows that the reader holds back */
    moebius_reply_fn *fn; /* may be NULL */
    void *user;
};

static void on_part(void *user, enum reply_part part, const char *text, size_t n)
{
    static const moebius_reply_part public_parts[] = {
        [REPLY_CONTENT] = MOEBIUS_REPLY_CONTENT,   [REPLY_REASONING] = MOEBIUS_REPLY_REASONING,
        [REPLY_CALL] = MOEBIUS_REPLY_CALL,         [REPLY_ARGUMENTS] = MOEBIUS_REPLY_ARGUMENTS,
        [REPLY_CALL_END] = MOEBIUS_REPLY_CALL_END, [REPLY_NOTE] = MOEBIUS_REPLY_NOTE,
    };
    moebius_reply *r = user;
    if (part == REPLY_SYNTAX)
        return;
    moebius_reply_part shown = public_parts[part];
    if (shown < MOEBIUS_REPLY_N)
        bytes_put(&r->texts[shown], text, n);
    if (r->fn)
        r->fn(r->user, shown, text, n);
}

static err_code check_texts(const moebius_reply *r, struct err *e)
{
    for (int part = 0; part < MOEBIUS_REPLY_N; part++)
        if (r->texts[part].is_short)
            return err_nomem(e, r->texts[part].n, "an answer");
    return ERR_OK;
}

moebius_status moebius_reply_open(moebius_reply **out, const moebius_template *tmpl, const char *prompt,
                                  moebius_reply_fn *fn, void *user, moebius_error *error)
{
    struct err e = {0};
    *out = NULL;
    if (!tmpl->vocab)
        return engine_status(err_set(&e, ERR_USAGE, "this template was opened without a vocabulary"), &e, error);
    moebius_reply *r = mem_calloc(1, sizeof *r);
    if (!r)
        return engine_status(err_nomem(&e, sizeof *r, "an answer"), &e, error);
    *r = (moebius_reply){.tmpl = tmpl, .fn = fn, .user = user};
    err_code code = reply_open(&r->reader, tmpl->style, prompt, on_part, r, &e);
    if (code != ERR_OK)
        moebius_reply_close(&r);
    *out = r;
    return engine_status(code, &e, error);
}

void moebius_reply_close(moebius_reply **reply)
{
    if (!*reply)
        return;
    for (int part = 0; part < MOEBIUS_REPLY_N; part++)
        bytes_close(&(*reply)->texts[part]);
    reply_close(&(*reply)->reader);
    reply_tools_close(&(*reply)->tools);
    mem_free(*reply);
    *reply = NULL;
}

moebius_status moebius_reply_set_tools(moebius_reply *reply, const char *tools, moebius_error *error)
{
    struct err e = {0};
    reply_tools_close(&reply->tools);
    err_code code = reply_tools_open(&reply->tools, tools, &e);
    reply_set_tools(reply->reader, code == ERR_OK ? &reply->tools : NULL);
    return engine_status(code, &e, error);
}

/* Whether a token ends the answer. Where calls of the family begin with the token that ends answers, the next ones
 * say. */
static bool ends(moebius_reply *reply, int32_t id)
{
    const struct tokenizer *t = reply->tmpl->vocab->tokenizer;
    size_t n;
    bool is_whole;
    if (!tokenizer_is_end(t, id) && id != reply->tmpl->end && !reply->is_past_end)
        return false;
    const char *piece = tokenizer_piece(t, id, true, &n);
    bool begins_call = reply_begins_call(reply->reader, piece, n, &is_whole);
    if (!begins_call && reply->is_past_end)
        reply_drop_held(reply->reader);
    reply->is_past_end = begins_call && !is_whole;
    return !begins_call;
}

moebius_status moebius_reply_feed(moebius_reply *reply, int32_t id, bool *end, moebius_error *error)
{
    const struct tokenizer *t = reply->tmpl->vocab->tokenizer;
    struct err e = {0};
    size_t n;
    *end = reply->has_end = ends(reply, id);
    if (*end)
        return engine_status(ERR_OK, &e, error);
    const char *piece = tokenizer_piece(t, id, false, &n);
    if (n == 0) { /* control tokens are read where they are marks; others say nothing */
        piece = tokenizer_piece(t, id, true, &n);
        n = reply_reads(reply->reader, piece, n) ? n : 0;
    }
    err_code code = reply_feed(reply->reader, piece, n, &e);
    if (code == ERR_OK)
        code = check_texts(reply, &e);
    return engine_status(code, &e, error);
}

bool moebius_reply_is_reasoning(const moebius_reply *reply, const char **mark)
{
    return reply_is_reasoning(reply->reader, mark);
}

bool moebius_reply_is_mark(const moebius_reply *reply, int32_t id)
{
    size_t n;
    const char *piece = tokenizer_piece(reply->tmpl->vocab->tokenizer, id, true, &n);
    return reply_is_mark(reply->reader, piece, n);
}

void moebius_reply_finish(moebius_reply *reply)
{
    struct err e;
    if (reply->is_past_end)
        reply_drop_held(reply->reader);
    (void)!reply_finish(reply->reader, !reply->has_end, &e); /* a few bytes that there is room for */
}

const char *moebius_reply_text(const moebius_reply *reply, moebius_reply_part part, size_t *n)
{
    *n = reply->texts[part].n;
    return bytes_text(&reply->texts[part]);
}

/* ---- calls as they are to be written --------------------------------------------------------------------------- */

const char *moebius_template_family(const moebius_template *tmpl)
{
    return reply_style_name(&tmpl->style);
}

/* The special token that comes first in a text, and of those the longest. */
static bool find_first_special(void *user, const char *s, size_t n, size_t *at, size_t *length)
{
    const struct tokenizer *t = user;
    *at = n;
    *length = 0;
    for (int32_t id = 0; id < tokenizer_n_vocab(t); id++) {
        size_t n_piece;
        if (!tokenizer_is_special(t, id) && !tokenizer_is_end(t, id))
            continue;
        const char *piece = tokenizer_piece(t, id, true, &n_piece),
                   *found = n_piece ? memmem(s, n, piece, n_piece) : NULL;
        size_t from = found ? (size_t)(found - s) : n;
        if (found && (from < *at || (from == *at && n_piece > *length))) {
            *at = from;
            *length = n_piece;
        }
    }
    return *at < n;
}

moebius_status moebius_template_call_grammar_sized(const moebius_template *tmpl,
                                                   const moebius_call_grammar_input *input, size_t input_bytes,
                                                   char **grammar, const char **trigger, moebius_error *error)
{
    struct err e = {0};
    struct reply_tools tools = {0};
    moebius_call_grammar_input known = {0};
    *grammar = NULL;
    err_code code = sized_take(&known, sizeof known, input, input_bytes, "a call grammar's input", &e);
    const struct reply_grammar_options options = {.name = known.name,
                                                  .is_required = known.is_required,
                                                  .schema = known.schema,
                                                  .is_single = known.is_single,
                                                  .prompt = known.prompt,
                                                  .find_special = tmpl->vocab ? find_first_special : NULL,
                                                  .user = tmpl->vocab ? tmpl->vocab->tokenizer : NULL};
    if (code == ERR_OK)
        code = reply_tools_open(&tools, known.tools ? known.tools : "[]", &e);
    if (code == ERR_OK)
        code = reply_call_grammar(tmpl->style, &tools, &options, grammar, trigger, &e);
    if (code != ERR_OK) {
        mem_free(*grammar);
        *grammar = NULL;
    }
    reply_tools_close(&tools);
    return engine_status(code, &e, error);
}
