/* Texts get their sessions: new ones, or forks of others that begin alike; and give them back when memory is short. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "texts/texts_internal.h"

bool texts_is_short(err_code code)
{
    return code == ERR_LIMIT || code == ERR_NOMEM;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

enum {
    FREE_SHARE = 8,   /* one part in so many of the memory for state is left to texts that run */
    EXPERT_SHARE = 8, /* kept texts take one part in so many of the memory of experts that are read when needed */
};

/* How much state there may be with kept texts, which must not cost experts their memory. */
static uint64_t most_bytes(const moebius_counters *c, uint64_t n_kept_bytes)
{
    uint64_t room = mem_room_bytes(), most = c->state_max_bytes;
    uint64_t running = c->state_bytes > n_kept_bytes ? c->state_bytes - n_kept_bytes : 0;
    if (c->expert_bytes < c->expert_all_bytes)
        return running + c->expert_bytes / EXPERT_SHARE < most ? running + c->expert_bytes / EXPERT_SHARE : most;
    if (room < most && c->state_bytes + room < most)
        most = c->state_bytes + room;
    return most - most / FREE_SHARE;
}

void texts_trim(struct texts *x)
{
    for (;;) {
        moebius_counters c = moebius_engine_counters(x->setup.engine);
        if (x->kept.n == 0 || c.state_bytes <= most_bytes(&c, kept_bytes(&x->kept)))
            return;
        kept_drop_least(&x->kept);
    }
}

/* Kept texts go, the least useful first, until that has freed something worth while; false: there were none. */
static bool drop_kept(struct texts *x)
{
    enum { WORTH_SHARE = 16 };
    moebius_counters c = moebius_engine_counters(x->setup.engine);
    uint64_t least = c.state_bytes - c.state_bytes / WORTH_SHARE;
    bool any = false;
    while (kept_drop_least(&x->kept)) {
        any = true;
        if (moebius_engine_counters(x->setup.engine).state_bytes <= least)
            return true;
    }
    return any;
}

static void note_full(struct texts *x)
{
    x->n_room = x->n_running ? x->n_running : 1;
    x->n_since_full = 0;
}

/* Takes a running text's session away. */
static void suspend(struct texts *x, struct text *t)
{
    texts_take_out(x, t);
    prefix_set(&x->index, &t->entry, t->ids, t->n_ids); /* guesses may have come true before the pass failed */
    prefix_unlist(&x->index, &t->entry);
    moebius_session_close(&t->session);
    turns_add(&x->waiting, t);
    x->stats.n_suspended++;
    note_full(x);
}

void texts_make_room(struct texts *x, const struct err *why)
{
    struct text *last = x->running[0];
    if (drop_kept(x))
        return;
    for (size_t i = 1; i < x->n_running; i++)
        last = x->running[i]->id > last->id ? x->running[i] : last;
    if (x->n_running == 1)
        texts_end(x, last, TEXT_END_FAILED, why);
    else
        suspend(x, last);
}

/* ---- texts that begin alike ---------------------------------------------------------------------------------- */

enum { WORTH_WAITING = 16 }; /* tokens that another text is about to compute */

/* What a text can begin with. */
struct donor {
    const struct text *t;      /* which begins */
    struct prefix_entry *from; /* whose tokens it takes over; NULL: nobody's */
    size_t n;                  /* so many */
    struct text *soon;         /* a text that is about to compute more of them; NULL: none */
    size_t n_soon;             /* so many */
    size_t n_same;             /* the most that any text has the same */
};

static moebius_session *session_of(const struct prefix_entry *x)
{
    return x->is_kept ? ((struct kept_text *)x->owner)->session : ((struct text *)x->owner)->session;
}

static const struct scores *scores_of(const struct prefix_entry *x)
{
    return x->is_kept ? &((struct kept_text *)x->owner)->scores : &((struct text *)x->owner)->scores;
}

/* How many of the first n tokens, which are the same, a fork of a session can have. The last token of all is computed
 * unless the session has the logits after it. */
static size_t n_usable(const struct text *t, const moebius_session *s, size_t n)
{
    size_t pos = (size_t)moebius_session_pos(s);
    n = n < pos ? n : pos;
    if (n == t->n_ids && (n < pos || !moebius_session_logits(s)))
        n--;
    return n == pos ? n : (size_t)moebius_session_way_back(s, (int64_t)n);
}

/* The same, once a running text has computed its prompt as far as that. */
static size_t n_usable_soon(const struct text *t, const struct text *other, size_t n)
{
    return n == t->n_ids && n < other->n_ids ? n - 1 : n;
}

static size_t see_donor(void *user, struct prefix_entry *from, size_t n)
{
    struct donor *d = user;
    struct text *other = from->is_kept ? NULL : from->owner;
    const struct scores *mine = &d->t->scores, *theirs = scores_of(from);
    size_t usable = n_usable(d->t, session_of(from), scores_usable(mine, theirs, theirs->n, n));
    size_t later = scores_usable(mine, theirs, theirs->n_tok, n);
    d->n_same = max_size(d->n_same, later);
    if (usable >= PREFIX_BLOCK && usable > d->n &&
        prefix_is_same(&d->t->entry, from, usable + scores_are_missing(mine))) {
        d->from = from;
        d->n = usable;
    }
    if (other && text_n_missing(other) > 1 && n_usable_soon(d->t, other, later) > d->n_soon) {
        d->soon = other;
        d->n_soon = n_usable_soon(d->t, other, later);
    }
    return d->n;
}

static struct donor find_donor(const struct texts *x, const struct text *t)
{
    struct donor d = {.t = t};
    prefix_find(&x->index, &t->entry, see_donor, &d);
    if (d.n_soon < d.n + WORTH_WAITING)
        d.soon = NULL;
    return d;
}

/* Forks the donor at the place where the texts part. No session where that fails. */
static void take_over(struct texts *x, struct text *t, const struct donor *d)
{
    moebius_error error;
    if (!d->from || moebius_session_fork(&t->session, session_of(d->from), &error) != MOEBIUS_OK)
        return;
    int64_t n = (int64_t)d->n;
    if (moebius_session_pos(t->session) > n)
        n = moebius_session_truncate(t->session, n);
    if (n < PREFIX_BLOCK || moebius_session_grow(t->session, text_context(t), &error) != MOEBIUS_OK) {
        moebius_session_close(&t->session);
        return;
    }
    scores_take(&t->scores, scores_of(d->from), (size_t)n + 1);
    if (!t->was_running)
        t->n_cached = (size_t)n < t->n_prompt ? (size_t)n : t->n_prompt;
    if (!d->from->is_kept)
        return;
    struct kept_text *k = d->from->owner;
    if (k->entry.n == (size_t)n)
        kept_drop(&x->kept, k); /* the text has all of it, and may go back there */
    else
        kept_use(&x->kept, k);
}

/* ---- joining ------------------------------------------------------------------------------------------------- */

static err_code open_session(const struct texts *x, struct text *t, struct err *e)
{
    moebius_error error;
    moebius_session_options options = x->options.session;
    options.n_ctx = text_context(t);
    options.n_batch = x->options.n_batch;
    return moebius_session_open(&t->session, x->setup.engine, &options, &error) == MOEBIUS_OK ? ERR_OK
                                                                                              : err_adopt(e, &error);
}

/* The text has its session. */
static void begin(struct texts *x, struct text *t)
{
    turns_take(&x->waiting, t);
    x->running[x->n_running++] = t;
    x->stats.n_most = x->n_running > x->stats.n_most ? x->n_running : x->stats.n_most;
    prefix_list(&x->index, &t->entry);
    if (t->was_running)
        return;
    t->was_running = true;
    t->begin_ns = clock_ns();
    t->n_substituted_before = moebius_engine_counters(x->setup.engine).n_substituted;
    x->stats.n_cached += t->n_cached;
    text_tell_prompt(t);
}

/* Where a prompt stops on its way, for texts that begin so. With layers that can't go back everywhere that is also
 * shortly before its end, as the next turn of a conversation often has all but what asks for the answer; but not where
 * a few tokens more cost as much as many. */
static void choose_stops(const struct texts *x, struct text *t, const struct donor *d)
{
    enum { TURN_TOKENS = 32 };
    bool is_long = t->n_prompt >= PREFIX_BLOCK + TURN_TOKENS;
    bool may_gain = !moebius_session_goes_back(t->session) && !texts_is_streaming(x);
    t->parting = d->n_same;
    t->near_end = is_long && may_gain ? t->n_prompt - TURN_TOKENS : 0;
}

/* Gives a waiting text its session; false: there is no memory for it before others have ended. */
static bool join(struct texts *x, struct text *t, const struct donor *d)
{
    struct err why = {0};
    err_code code = ERR_OK;
    if (!d->from || !texts_disk_has_more(x, t, session_of(d->from), d->n))
        take_over(x, t, d);
    bool is_new = !t->session;
    if (is_new)
        code = open_session(x, t, &why);
    while (texts_is_short(code) && drop_kept(x))
        code = open_session(x, t, &why);
    if (code == ERR_OK) {
        t->is_loading = is_new && texts_disk_has_more(x, t, t->session, 0);
        choose_stops(x, t, d);
        begin(x, t);
    } else if (texts_is_short(code) && x->n_running) {
        note_full(x);
        return false;
    } else {
        texts_end(x, t, TEXT_END_FAILED, &why);
    }
    return true;
}

/* A text that waits for another's prompt leaves its turn to those behind it, but keeps its place among those that
 * run. */
void texts_join(struct texts *x)
{
    struct text *t;
    size_t n_passed = 0;
    for (size_t i = 0; i < x->n_running; i++)
        x->running[i]->branch = 0;
    while (x->n_running + n_passed < x->n_room && (t = turns_next(&x->waiting)) != NULL) {
        struct donor d = find_donor(x, t);
        if (d.soon) {
            size_t *branch = &d.soon->branch;
            *branch = *branch && *branch < d.n_soon ? *branch : d.n_soon;
            t->is_passed = true;
            n_passed++;
        } else if (!join(x, t, &d)) {
            break;
        }
    }
    for (t = x->waiting.first; t && n_passed; t = t->next) {
        n_passed -= t->is_passed;
        t->is_passed = false;
    }
}
