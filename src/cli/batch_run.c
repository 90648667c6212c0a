#include "cli/batch_run.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"

enum {
    PROMPT_TOKENS = 512,      /* of prompts in a pass, where nothing says otherwise */
    LEAST_PROMPT_TOKENS = 64, /* beside however many answers */
    CTX_UNIT = 512,           /* contexts are multiples of this, so that texts can fork each other */
    LEAST_SHARED = 64,        /* tokens for which forking is worth while: a page */
};

/* ---- slots --------------------------------------------------------------------------------------------------- */

static bool is_running(const struct batch_slot *s)
{
    return s->is_used && s->text.session;
}

static size_t n_running(const struct batch *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n_slots; i++)
        n += is_running(&b->slots[i]);
    return n;
}

static size_t n_used(const struct batch *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n_slots; i++)
        n += b->slots[i].is_used;
    return n;
}

/* The text has ended: its session stays for the next one. */
static void leave(struct batch *b, struct batch_slot *s)
{
    moebius_session_close(&s->old);
    s->old = s->text.session;
    s->text.session = NULL;
    batch_text_close(&s->text);
    s->is_used = false;
    if (++b->n_since_full >= b->n_room && b->n_room < b->n_slots) {
        b->n_since_full = 0;
        b->n_room++;
    }
}

static err_code finish(struct batch *b, struct batch_slot *s, struct err *e)
{
    const struct batch_text *t = &s->text;
    TRY(batch_queue_answer(&b->queue, batch_text_answer(t), e));
    b->n_cached += (int64_t)t->n_cached;
    leave(b, s);
    return ERR_OK;
}

static err_code fail(struct batch *b, struct batch_slot *s, const struct err *why, struct err *e)
{
    TRY(batch_queue_fail(&b->queue, &s->text.request, why, e));
    leave(b, s);
    return ERR_OK;
}

/* Gives a request its slot; a text that can't be begun leaves it again. */
static err_code take_request(struct batch *b, struct batch_slot *s, struct batch_request *r, struct err *e)
{
    struct err why = {0};
    s->is_used = true;
    s->order = b->order++;
    err_code code = batch_text_open(&s->text, &b->setup, r, &why);
    if (code == ERR_NOMEM)
        return err_set(e, code, "%s", why.text);
    return code != ERR_OK ? fail(b, s, &why, e) : s->text.finish_reason ? finish(b, s, e) : ERR_OK;
}

/* Fills the slots that are free. */
static err_code take_requests(struct batch *b, struct err *e)
{
    for (size_t i = 0; i < b->n_slots; i++)
        while (!b->slots[i].is_used) {
            struct batch_request r = {0};
            bool is_there;
            TRY(batch_queue_next(&b->queue, n_used(b) == 0, &r, &is_there, e));
            if (!is_there)
                return ERR_OK;
            TRY(take_request(b, &b->slots[i], &r, e));
        }
    return ERR_OK;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static bool is_short_of_memory(err_code code)
{
    return code == ERR_LIMIT || code == ERR_NOMEM;
}

/* Closes the sessions of texts that have ended; whether there were any. */
static bool drop_old(struct batch *b)
{
    bool any = false;
    for (size_t i = 0; i < b->n_slots; i++) {
        any |= b->slots[i].old != NULL;
        moebius_session_close(&b->slots[i].old);
    }
    return any;
}

/* The running text that came last; NULL: there is none. */
static struct batch_slot *last_running(struct batch *b)
{
    struct batch_slot *last = NULL;
    for (size_t i = 0; i < b->n_slots; i++)
        if (is_running(&b->slots[i]) && (!last || b->slots[i].order > last->order))
            last = &b->slots[i];
    return last;
}

/* The waiting text that came first; NULL: there is none. */
static struct batch_slot *first_waiting(struct batch *b)
{
    struct batch_slot *first = NULL;
    for (size_t i = 0; i < b->n_slots; i++)
        if (b->slots[i].is_used && !b->slots[i].text.session && (!first || b->slots[i].order < first->order))
            first = &b->slots[i];
    return first;
}

static void note_full(struct batch *b)
{
    size_t n = n_running(b);
    b->n_room = n ? n : 1;
    b->n_since_full = 0;
}

/* A text has too little memory though there is no other one: it may be too long for what there is, but where the system
 * has no more, nothing goes on. */
static err_code fail_alone(struct batch *b, struct batch_slot *s, const struct err *why, struct err *e)
{
    return why->code == ERR_LIMIT ? fail(b, s, why, e) : err_set(e, why->code, "%s", why->text);
}

/* A pass found no memory: somebody gives some back. */
static err_code make_room(struct batch *b, const struct err *why, struct err *e)
{
    struct batch_slot *last = last_running(b);
    if (drop_old(b))
        return ERR_OK;
    if (n_running(b) == 1)
        return fail_alone(b, last, why, e);
    moebius_session_close(&last->text.session);
    b->n_suspended++;
    note_full(b);
    return ERR_OK;
}

/* ---- joining ------------------------------------------------------------------------------------------------- */

/* The context that a text needs. */
static int64_t context_of(const struct batch_text *t)
{
    int64_t n_more = t->request.max_tokens, need = (int64_t)t->n_prompt + n_more;
    if (n_more < 0 || need > t->n_ctx)
        need = t->n_ctx;
    return (need + CTX_UNIT - 1) / CTX_UNIT * CTX_UNIT;
}

/* A session whose beginning a text can take over. */
struct donor {
    moebius_session *session; /* NULL: none */
    size_t n;                 /* tokens that are the same */
    bool is_better_soon;      /* a text that runs is about to compute more of them */
};

/* How many of a text's tokens but the last are the first of these. */
static size_t n_same(const struct batch_text *t, const int32_t *ids, size_t n)
{
    size_t same = 0;
    while (same < n && same + 1 < t->n_ids && ids[same] == t->ids[same])
        same++;
    return same;
}

static void try_donor(const struct batch_text *t, moebius_session *s, struct donor *best)
{
    if (!s || moebius_session_n_ctx(s) < context_of(t))
        return;
    size_t n = n_same(t, moebius_session_tokens(s), (size_t)moebius_session_pos(s));
    if (n > best->n)
        *best = (struct donor){.session = s, .n = n};
}

/* The session that has most of a text's beginning, of at least a page. */
static struct donor find_donor(const struct batch *b, const struct batch_text *t)
{
    struct donor best = {.n = LEAST_SHARED - 1};
    for (size_t i = 0; i < b->n_slots && !b->can_not_go_back; i++) {
        try_donor(t, b->slots[i].old, &best);
        try_donor(t, b->slots[i].is_used ? b->slots[i].text.session : NULL, &best);
    }
    for (size_t i = 0; i < b->n_slots && !b->can_not_go_back; i++) {
        const struct batch_text *other = &b->slots[i].text;
        if (is_running(&b->slots[i]) && moebius_session_n_ctx(other->session) >= context_of(t))
            best.is_better_soon |= n_same(t, other->ids, other->n_ids) >= best.n + LEAST_SHARED;
    }
    return best;
}

/* Forks the donor and goes back to where the texts part. No session where that fails. */
static void fork_donor(struct batch *b, struct batch_text *t, const struct donor *d)
{
    moebius_error error;
    if (!d->session || moebius_session_fork(&t->session, d->session, &error) != MOEBIUS_OK)
        return;
    int64_t n = moebius_session_truncate(t->session, (int64_t)d->n);
    if (n < LEAST_SHARED) {
        moebius_session_close(&t->session);
        b->can_not_go_back = true;
    } else if (t->n_ids == t->n_prompt) {
        t->n_cached = (size_t)n;
    }
}

static err_code open_session(const struct batch *b, struct batch_text *t, struct err *e)
{
    struct opened opened = {.engine = b->setup.engine};
    err_code code = cli_open_session(b->setup.model, context_of(t), &opened, e);
    t->session = opened.session;
    return code;
}

/* Gives a waiting text its session. It goes on waiting where there is no memory for it, or *waits is set. */
static err_code join(struct batch *b, struct batch_slot *s, bool *waits, struct err *e)
{
    struct err why = {0};
    struct donor d = find_donor(b, &s->text);
    err_code code = ERR_OK;
    *waits = d.is_better_soon;
    if (*waits)
        return ERR_OK;
    fork_donor(b, &s->text, &d);
    if (!s->text.session)
        code = open_session(b, &s->text, &why);
    if (is_short_of_memory(code) && drop_old(b))
        code = open_session(b, &s->text, &why);
    moebius_session_close(&s->old);
    if (code == ERR_OK)
        return ERR_OK;
    if (!is_short_of_memory(code))
        return err_set(e, code, "%s", why.text);
    *waits = n_running(b) > 0;
    if (!*waits)
        return fail_alone(b, s, &why, e);
    note_full(b);
    return ERR_OK;
}

/* Texts join in the order in which they came, as long as there is memory. */
static err_code join_waiting(struct batch *b, struct err *e)
{
    struct batch_slot *s;
    bool waits = false;
    while (!waits && n_running(b) < b->n_room && (s = first_waiting(b)) != NULL)
        TRY(join(b, s, &waits, e));
    b->n_most = max_i64(b->n_most, (int64_t)n_running(b));
    return ERR_OK;
}

/* ---- passes -------------------------------------------------------------------------------------------------- */

/* How many tokens of prompts a pass may take beside n_decode others. */
static size_t prompt_room(const struct batch *b, size_t n_decode)
{
    int64_t room = b->setup.model->n_batch ? b->setup.model->n_batch : PROMPT_TOKENS;
    for (size_t i = 0; i < b->n_slots; i++)
        if (is_running(&b->slots[i])) {
            const struct batch_text *t = &b->slots[i].text;
            room = max_i64(room, moebius_session_batch(t->session, batch_text_n_missing(t)));
        }
    return (size_t)max_i64(room - (int64_t)n_decode, LEAST_PROMPT_TOKENS);
}

static size_t n_decode(const struct batch *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n_slots; i++)
        n += is_running(&b->slots[i]) && batch_text_n_missing(&b->slots[i].text) == 1;
    return n;
}

/* Fills the items of a pass, and returns how many there are. */
static size_t fill_pass(struct batch *b, size_t *n_prompt)
{
    size_t n_items = 0, room = prompt_room(b, n_decode(b));
    *n_prompt = 0;
    for (size_t i = 0; i < b->n_slots; i++) {
        const struct batch_text *t = &b->slots[i].text;
        size_t missing = is_running(&b->slots[i]) ? batch_text_n_missing(t) : 0;
        size_t n = missing > 1 && missing > room ? room : missing;
        if (n == 0)
            continue;
        room -= missing > 1 ? n : 0;
        *n_prompt += missing > 1 || t->n_ids == t->n_prompt ? n : 0;
        b->items[n_items++] = (moebius_batch_item){
            .session = t->session, .ids = t->ids + moebius_session_pos(t->session), .n = n, .no_logits = n < missing};
    }
    return n_items;
}

static err_code pass(struct batch *b, struct err *e)
{
    struct err why = {0};
    size_t n_prompt, n_items = fill_pass(b, &n_prompt);
    int64_t start_ns = clock_ns();
    if (n_items == 0)
        return ERR_OK;
    err_code code = cli_eval_batch(b->setup.engine, b->items, n_items, &why);
    *(n_prompt ? &b->times.prefill_ns : &b->times.decode_ns) += clock_ns() - start_ns;
    if (is_short_of_memory(code))
        return make_room(b, &why, e);
    if (code != ERR_OK)
        return err_set(e, code, "%s", why.text);
    b->times.n_prefill += (int64_t)n_prompt;
    return ERR_OK;
}

/* Each text whose session has all of its tokens gets the next one, or ends. */
static err_code next_tokens(struct batch *b, struct err *e)
{
    for (size_t i = 0; i < b->n_slots; i++) {
        struct batch_slot *s = &b->slots[i];
        if (!is_running(s) || batch_text_n_missing(&s->text) > 0)
            continue;
        TRY(batch_text_next(&s->text, e));
        b->times.n_decoded++;
        if (s->text.finish_reason)
            TRY(finish(b, s, e));
    }
    return ERR_OK;
}

static err_code open_run(struct batch *b, struct err *e)
{
    b->slots = mem_calloc(b->n_slots, sizeof *b->slots);
    b->items = mem_calloc(b->n_slots, sizeof *b->items);
    b->n_room = b->n_slots;
    if (!b->slots || !b->items)
        return err_nomem(e, b->n_slots * sizeof *b->slots, "texts");
    return batch_queue_open(&b->queue, e);
}

err_code batch_run(struct batch *b, struct err *e)
{
    TRY(open_run(b, e));
    for (;;) {
        if (cli_interrupted())
            return err_set(e, ERR_CANCELLED, "interrupted");
        TRY(take_requests(b, e));
        TRY(join_waiting(b, e));
        if (n_used(b) == 0 && b->queue.is_read)
            return ERR_OK;
        TRY(pass(b, e));
        TRY(next_tokens(b, e));
        b->progress(b->user);
    }
}

void batch_close(struct batch *b)
{
    for (size_t i = 0; b->slots && i < b->n_slots; i++) {
        moebius_session_close(&b->slots[i].old);
        batch_text_close(&b->slots[i].text);
    }
    mem_free(b->slots);
    mem_free(b->items);
    batch_queue_close(&b->queue);
}
