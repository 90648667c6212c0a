/* An answer while it is generated: splits reasoning from what is said, by the marks that the model's template uses. */
#include <stdio.h>
#include <string.h>

#include "engine/engine_internal.h"

enum { MAX_SKIP = 4 };

/* How families mark reasoning. Marks may be tokens or plain text, whole or in pieces. */
struct marks {
    const char *sign; /* what their templates hold */
    const char *open, *close;
    const char *skip[MAX_SKIP]; /* marks of the rest, which nobody wants to read */
};

static const struct marks families[] = {
    {"<|channel|>analysis",
     "<|channel|>analysis<|message|>",
     "<|end|>",
     {"<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>"}},
    {"<|channel>thought", "<|channel>thought", "<channel|>", {0}},
    {"<|START_THINKING|>",
     "<|START_THINKING|>",
     "<|END_THINKING|>",
     {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"}},
    {"[THINK]", "[THINK]", "[/THINK]", {0}},
    {"<seed:think>", "<seed:think>", "</seed:think>", {0}},
    {"<mm:think>", "<mm:think>", "</mm:think>", {0}},
    {"<|inner_prefix|>", "<|inner_prefix|>", "<|inner_suffix|>", {0}},
    {"\342\227\201think\342\226\267", "\342\227\201think\342\226\267", "\342\227\201/think\342\226\267", {0}},
    {"<think>", "<think>", "</think>", {0}}, /* by far the commonest, and the one that others are taken for */
};

struct reply_buffer {
    char *s;
    size_t n, capacity;
};

struct moebius_reply {
    const moebius_template *tmpl;
    const struct marks *marks;
    moebius_reply_part part;  /* where new text belongs */
    bool trimming;            /* white space between a mark and the text is not shown */
    struct reply_buffer held; /* may yet become a mark */
    struct reply_buffer texts[MOEBIUS_REPLY_N];
    moebius_reply_fn *fn;
    void *user;
};

static err_code append(struct reply_buffer *b, const char *s, size_t n, struct err *e)
{
    if (b->capacity - b->n < n + 1) {
        size_t capacity = 2 * (b->n + n) + 256;
        char *more = mem_resize(b->s, capacity, 1);
        if (!more)
            return err_nomem(e, capacity, "an answer");
        b->s = more;
        b->capacity = capacity;
    }
    memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = '\0';
    return ERR_OK;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* The first n held bytes belong to the part that is on. */
static err_code release(moebius_reply *r, size_t n, struct err *e)
{
    size_t skip = 0;
    while (r->trimming && skip < n && is_space(r->held.s[skip]))
        skip++;
    if (skip < n) {
        r->trimming = false;
        TRY(append(&r->texts[r->part], r->held.s + skip, n - skip, e));
        if (r->fn)
            r->fn(r->user, r->part, r->held.s + skip, n - skip);
    }
    r->held.n -= n;
    memmove(r->held.s, r->held.s + n, r->held.n + 1);
    return ERR_OK;
}

/* Whether the held bytes from `at` on begin with the mark (2), could become it (1), or neither (0). */
static int match(const moebius_reply *r, size_t at, const char *mark)
{
    size_t n = mark ? strlen(mark) : 0, left = r->held.n - at;
    if (n == 0 || memcmp(r->held.s + at, mark, n < left ? n : left) != 0)
        return 0;
    return n <= left ? 2 : 1;
}

/* Sends out what is certain; acts on marks that are whole. */
static err_code settle(moebius_reply *r, struct err *e)
{
    for (size_t at = 0; at < r->held.n;) {
        bool reasoning = r->part == MOEBIUS_REPLY_REASONING;
        const char *turn = reasoning ? r->marks->close : r->marks->open, *whole = NULL;
        int best = match(r, at, turn);
        whole = best == 2 ? turn : NULL;
        for (int i = 0; i < MAX_SKIP && !reasoning && best < 2; i++) {
            int found = match(r, at, r->marks->skip[i]);
            best = found > best ? found : best;
            whole = found == 2 ? r->marks->skip[i] : whole;
        }
        if (best == 0) {
            at++;
            continue;
        }
        TRY(release(r, at, e));
        if (!whole)
            return ERR_OK;
        size_t n = strlen(whole);
        r->held.n -= n;
        memmove(r->held.s, r->held.s + n, r->held.n + 1);
        if (whole == turn)
            r->part = reasoning ? MOEBIUS_REPLY_CONTENT : MOEBIUS_REPLY_REASONING;
        r->trimming = true;
        at = 0;
    }
    return release(r, r->held.n, e);
}

/* A mark's own control tokens are read as text; others say nothing. */
static bool is_in_marks(const struct marks *m, const char *piece, size_t n)
{
    char text[64];
    if (n == 0 || n >= sizeof text)
        return false;
    memcpy(text, piece, n);
    text[n] = '\0';
    bool in = strstr(m->open, text) || strstr(m->close, text);
    for (int i = 0; i < MAX_SKIP; i++)
        in = in || (m->skip[i] && strstr(m->skip[i], text));
    return in;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), n_end = strlen(end);
    while (n && is_space(s[n - 1]))
        n--;
    return n >= n_end && !memcmp(s + n - n_end, end, n_end);
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
    *r = (moebius_reply){.tmpl = tmpl, .fn = fn, .user = user, .trimming = true};
    size_t n = sizeof families / sizeof *families, i = 0;
    while (i < n - 1 && !strstr(tmpl->source, families[i].sign))
        i++;
    r->marks = &families[i];
    r->part = ends_with(prompt, r->marks->open) ? MOEBIUS_REPLY_REASONING : MOEBIUS_REPLY_CONTENT;
    err_code code = ERR_OK;
    for (int part = 0; part < MOEBIUS_REPLY_N && code == ERR_OK; part++)
        code = append(&r->texts[part], "", 0, &e);
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
        mem_free((*reply)->texts[part].s);
    mem_free((*reply)->held.s);
    mem_free(*reply);
    *reply = NULL;
}

moebius_status moebius_reply_feed(moebius_reply *reply, int32_t id, bool *end, moebius_error *error)
{
    const struct tokenizer *t = reply->tmpl->vocab->tokenizer;
    struct err e = {0};
    size_t n;
    *end = tokenizer_is_end(t, id) || id == reply->tmpl->end;
    if (*end)
        return engine_status(ERR_OK, &e, error);
    const char *piece = tokenizer_piece(t, id, false, &n);
    if (n == 0) {
        piece = tokenizer_piece(t, id, true, &n);
        if (!is_in_marks(reply->marks, piece, n))
            n = 0;
    }
    err_code code = n ? append(&reply->held, piece, n, &e) : ERR_OK;
    if (code == ERR_OK && n)
        code = settle(reply, &e);
    return engine_status(code, &e, error);
}

bool moebius_reply_is_reasoning(const moebius_reply *reply, const char **mark)
{
    if (mark)
        *mark = reply->marks->close;
    return reply->part == MOEBIUS_REPLY_REASONING;
}

void moebius_reply_finish(moebius_reply *reply)
{
    struct err e;
    if (reply->held.n)
        (void)!release(reply, reply->held.n, &e); /* a few bytes that there is room for */
}

const char *moebius_reply_text(const moebius_reply *reply, moebius_reply_part part, size_t *n)
{
    *n = reply->texts[part].n;
    return reply->texts[part].s;
}
