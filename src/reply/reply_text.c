/* Text: reasoning and content, the marks between them, and where calls begin. */
#include "reply/reply.h"

#include <stdarg.h>
#include <string.h>

#include "base/mem.h"
#include "base/printable.h"
#include "reply/reply_internal.h"

enum { MAX_SPACE = 256 }; /* bytes of white space that are held back, as a call or content's end may follow */

bool reply_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* ---- telling ------------------------------------------------------------------------------------------------- */

static void flush_text(struct reply *r)
{
    if (r->text.n && r->fn)
        r->fn(r->user, r->text_part, r->text.s, r->text.n);
    bytes_clear(&r->text);
}

static void flush_arguments(struct reply *r)
{
    struct reply_call *c = &r->call;
    if (!c->is_begun)
        return;
    if (c->json.n && r->fn)
        r->fn(r->user, REPLY_ARGUMENTS, c->json.s, c->json.n);
    bytes_clear(&c->json);
}

void reply_tell(struct reply *r, enum reply_part part, const char *s, size_t n)
{
    bool is_text = part == REPLY_CONTENT || part == REPLY_REASONING || part == REPLY_SYNTAX;
    if (is_text && n == 0)
        return;
    if (r->text_part != part)
        flush_text(r);
    if (part != REPLY_SYNTAX)
        flush_arguments(r);
    r->text_part = part;
    r->has_content |= part == REPLY_CONTENT;
    if (is_text)
        bytes_put(&r->text, s, n);
    else if (r->fn)
        r->fn(r->user, part, s, n);
}

void reply_note(struct reply *r, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    printable_format(text, sizeof text, fmt, args);
    va_end(args);
    reply_tell(r, REPLY_NOTE, text, strlen(text));
}

void reply_go_on(struct reply *r, enum reply_part part)
{
    r->part = part;
    r->is_trimming = true;
}

/* The first n held bytes belong to the part that is on. */
static void release(struct reply *r, size_t n)
{
    size_t n_space = 0;
    while (r->is_trimming && n_space < n && reply_is_space(r->held.s[n_space]))
        n_space++;
    reply_tell(r, REPLY_SYNTAX, r->held.s, n_space);
    if (n_space < n) {
        r->is_trimming = false;
        reply_tell(r, r->part, r->held.s + n_space, n - n_space);
    }
    bytes_drop(&r->held, n);
}

/* ---- marks --------------------------------------------------------------------------------------------------- */

int reply_match(const struct reply *r, size_t at, const char *text)
{
    size_t n = text ? strlen(text) : 0, left = r->held.n - at;
    if (n == 0 || (left && memcmp(r->held.s + at, text, n < left ? n : left) != 0))
        return 0;
    return n <= left ? 2 : 1;
}

/* What was found in the text. */
struct hit {
    int match; /* as of reply_match */
    const char *mark;
    const struct reply_trigger *trigger; /* NULL: a mark that is only left out, or */
    bool is_turn;                        /* one between reasoning and content */
};

/* The whole mark counts before one that is not whole yet. */
static void look_for(const struct reply *r, size_t at, struct hit found, struct hit *best)
{
    found.match = reply_match(r, at, found.mark);
    if (found.match > best->match)
        *best = found;
}

static bool is_possible(const struct reply *r, const struct reply_trigger *t)
{
    return t->text && (r->tools || t->flags & TRIGGER_ALWAYS) &&
           (r->part == REPLY_CONTENT || t->flags & TRIGGER_IN_REASONING) &&
           (!(t->flags & TRIGGER_AT_START) || (r->part == REPLY_CONTENT && !r->has_content));
}

/* Marks that would have closed a call. Those that are no tags, such as , and ], are common in other text, too. */
static void look_for_closing(const struct reply *r, size_t at, struct hit *best)
{
    for (int i = 0; i < REPLY_MAX_STATES; i++)
        for (int w = 0; w < REPLY_MAX_WAYS; w++) {
            const struct reply_way *way = &r->style.family->states[i].ways[w];
            if (way->text && way->flags & WAY_CLOSES && way->text[0] == '<')
                look_for(r, at, (struct hit){.mark = way->text}, best);
        }
}

/* The mark that turns what is read to reasoning or back; NULL: none does. Reasoning comes before content alone, as
 * content may be about these very marks. */
static const char *turn_mark(const struct reply *r)
{
    const struct reply_marks *m = r->style.marks;
    return r->part == REPLY_REASONING ? m->close : r->has_content ? NULL : m->open;
}

/* Whether the held bytes from `at` on are what content ends with, and white space: 1: as far as they go, 2: whole. */
static int look_for_end(const struct reply *r, size_t at)
{
    const char *end = r->style.marks->end;
    int match = r->part == REPLY_CONTENT ? reply_match(r, at, end) : 0;
    for (size_t i = match == 2 ? at + strlen(end) : r->held.n; i < r->held.n; i++)
        match = reply_is_space(r->held.s[i]) ? match : 0;
    return match;
}

static struct hit look(const struct reply *r, size_t at)
{
    const struct reply_marks *m = r->style.marks;
    bool in_reasoning = r->part == REPLY_REASONING;
    struct hit best = {0};
    for (int i = 0; i < REPLY_MAX_TRIGGERS; i++) {
        const struct reply_trigger *t = &r->style.family->triggers[i];
        if (is_possible(r, t))
            look_for(r, at, (struct hit){.mark = t->text, .trigger = t}, &best);
    }
    look_for(r, at, (struct hit){.mark = turn_mark(r), .is_turn = true}, &best);
    for (int i = 0; i < REPLY_MAX_SKIP && !in_reasoning; i++)
        look_for(r, at, (struct hit){.mark = m->skip[i]}, &best);
    if (!in_reasoning && !r->has_content) /* models say so that they don't reason (MiniMax M3) */
        look_for(r, at, (struct hit){.mark = m->close}, &best);
    if (!in_reasoning && !r->has_content)
        look_for(r, at, (struct hit){.mark = m->begin}, &best);
    if (best.match == 0 && look_for_end(r, at))
        best.match = 1;
    if (r->had_fault)
        look_for_closing(r, at, &best);
    return best;
}

/* Reads some of the held bytes as text. False: more are needed. */
static bool advance_text(struct reply *r)
{
    size_t n_space = 0;
    bool holds_space = r->tools || r->style.marks->end;
    while (holds_space && n_space < r->held.n && n_space < MAX_SPACE && reply_is_space(r->held.s[n_space]))
        n_space++;
    if (r->held.n == 0 || (n_space == r->held.n && n_space < MAX_SPACE && !r->is_trimming))
        return false;
    struct hit hit = look(r, n_space);
    if (hit.match == 1 && n_space < r->held.n)
        return false;
    if (hit.match < 2) {
        release(r, n_space < r->held.n ? n_space + 1 : n_space);
    } else if (hit.trigger) {
        reply_call_begin(r, hit.trigger, n_space);
    } else {
        release(r, n_space);
        reply_tell(r, REPLY_SYNTAX, r->held.s, strlen(hit.mark));
        bytes_drop(&r->held, strlen(hit.mark));
        bool to_reasoning = hit.is_turn && r->part == REPLY_CONTENT;
        reply_go_on(r, hit.is_turn && !to_reasoning ? REPLY_CONTENT : to_reasoning ? REPLY_REASONING : r->part);
    }
    return true;
}

/* ---- the door ------------------------------------------------------------------------------------------------ */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), n_end = strlen(end);
    while (n && reply_is_space(s[n - 1]))
        n--;
    return n >= n_end && !memcmp(s + n - n_end, end, n_end);
}

enum reply_part reply_part_after(struct reply_style style, const char *prompt)
{
    return prompt && ends_with(prompt, style.marks->open) ? REPLY_REASONING : REPLY_CONTENT;
}

err_code reply_open(struct reply **out, struct reply_style style, const char *prompt, reply_fn *fn, void *user,
                    struct err *e)
{
    struct reply *r = *out = mem_calloc(1, sizeof *r);
    if (!r)
        return err_nomem(e, sizeof *r, "an answer");
    r->style = style;
    r->fn = fn;
    r->user = user;
    reply_go_on(r, reply_part_after(style, prompt));
    return ERR_OK;
}

void reply_close(struct reply **r)
{
    if (!*r)
        return;
    bytes_close(&(*r)->held);
    bytes_close(&(*r)->text);
    reply_call_close(&(*r)->call);
    mem_free(*r);
    *r = NULL;
}

void reply_set_tools(struct reply *r, const struct reply_tools *tools)
{
    r->tools = tools;
}

static err_code check_memory(const struct reply *r, struct err *e)
{
    const struct reply_call *c = &r->call;
    bool is_short = r->held.is_short || r->text.is_short || c->raw.is_short || c->name.is_short || c->id.is_short ||
                    c->key.is_short || c->json.is_short || c->value.is_short || c->args.token.is_short ||
                    c->args.key.is_short || c->skip.token.is_short || c->skip.key.is_short;
    return is_short ? err_nomem(e, r->held.n + c->raw.n, "an answer") : ERR_OK;
}

err_code reply_feed(struct reply *r, const char *s, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++) { /* one by one, so that nothing depends on how they arrive */
        bytes_put_char(&r->held, s[i]);
        while (r->call.state ? reply_call_advance(r) : advance_text(r))
            ;
    }
    flush_text(r);
    flush_arguments(r);
    return check_memory(r, e);
}

void reply_drop_held(struct reply *r)
{
    reply_tell(r, REPLY_SYNTAX, r->held.s, r->held.n);
    bytes_clear(&r->held);
}

/* What content ended with is none of it. */
static void drop_end(struct reply *r)
{
    size_t n = 0;
    while (n < r->held.n && reply_is_space(r->held.s[n]))
        n++;
    if (look_for_end(r, n) == 2)
        reply_drop_held(r);
}

err_code reply_finish(struct reply *r, bool is_cut, struct err *e)
{
    if (r->call.state)
        reply_call_finish(r, is_cut);
    drop_end(r);
    release(r, r->held.n);
    flush_text(r);
    return check_memory(r, e);
}

/* Whether one of two texts begins with the other. */
static bool begin_alike(const char *mark, const char *s, size_t n)
{
    size_t n_mark = mark ? strlen(mark) : 0;
    return n_mark && n && !memcmp(mark, s, n < n_mark ? n : n_mark);
}

bool reply_is_mark(const struct reply *r, const char *s, size_t n)
{
    const struct reply_marks *m = r->style.marks;
    struct bytes text = {0};
    bytes_put(&text, r->held.s, r->held.n);
    bytes_put(&text, s, n);
    bool is_mark = begin_alike(turn_mark(r), bytes_text(&text), text.n) ||
                   (!r->has_content && (begin_alike(m->close, bytes_text(&text), text.n) ||
                                        begin_alike(m->begin, bytes_text(&text), text.n)));
    for (int i = 0; i < REPLY_MAX_SKIP && r->part == REPLY_CONTENT; i++)
        is_mark = is_mark || begin_alike(m->skip[i], bytes_text(&text), text.n);
    bytes_close(&text);
    return is_mark && !r->call.state;
}

bool reply_begins_call(const struct reply *r, const char *s, size_t n, bool *is_whole)
{
    struct bytes text = {0};
    size_t n_space = 0;
    bool begins = false;
    *is_whole = false;
    bytes_put(&text, r->held.s, r->held.n);
    bytes_put(&text, s, n);
    while (n_space < text.n && reply_is_space(text.s[n_space]))
        n_space++;
    for (int i = 0; i < REPLY_MAX_TRIGGERS && !r->call.state && !r->call.has_called; i++) {
        const struct reply_trigger *t = &r->style.family->triggers[i];
        if (is_possible(r, t) && begin_alike(t->text, bytes_text(&text) + n_space, text.n - n_space)) {
            begins = true;
            *is_whole = text.n - n_space >= strlen(t->text);
        }
    }
    bytes_close(&text);
    return begins;
}

bool reply_is_reasoning(const struct reply *r, const char **mark)
{
    if (mark)
        *mark = r->style.marks->close;
    return r->part == REPLY_REASONING && !r->call.state;
}

bool reply_reads(const struct reply *r, const char *token, size_t n)
{
    char text[64];
    if (n == 0 || n >= sizeof text)
        return false;
    memcpy(text, token, n);
    text[n] = '\0';
    return reply_style_has(&r->style, text, r->tools != NULL);
}
