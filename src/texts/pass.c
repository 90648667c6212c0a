/* Passes over the model: which tokens they take, and what becomes of them. */
#include "base/clock.h"
#include "base/minmax.h"
#include "texts/texts_internal.h"

enum {
    PROMPT_TOKENS = 512,      /* of prompts in a pass, where nothing says otherwise */
    LEAST_PROMPT_TOKENS = 64, /* beside however many answers, where there is no bound on time */
};

/* ---- what a pass takes --------------------------------------------------------------------------------------- */

static bool is_prompt(const struct text *t)
{
    return text_n_missing(t) > 1 && !t->is_loading;
}

static bool is_answer(const struct text *t)
{
    return text_n_missing(t) == 1 && !t->is_loading;
}

size_t texts_n_answers(const struct texts *x)
{
    size_t n = 0;
    for (size_t i = 0; i < x->n_running; i++)
        n += is_answer(x->running[i]);
    return n;
}

/* How many tokens of prompts pay beside n_answer others. */
static size_t batch_room(const struct texts *x, size_t n_answer)
{
    int64_t room = x->options.n_batch ? x->options.n_batch : PROMPT_TOKENS;
    for (size_t i = 0; i < x->n_running; i++)
        if (is_prompt(x->running[i]))
            room = max_i64(room, moebius_session_batch(x->running[i]->session, text_n_missing(x->running[i])));
    return (size_t)max_i64(room - (int64_t)n_answer, LEAST_PROMPT_TOKENS);
}

/* How many more tokens a prompt could have in this pass: up to where another text goes on from it, or may do so. */
static size_t n_wanted(const struct text *t)
{
    const size_t stops[] = {t->branch, t->parting, t->near_end};
    size_t pos = (size_t)moebius_session_pos(t->session), end = t->n_ids;
    for (int i = 0; i < 3; i++)
        end = stops[i] > pos && stops[i] < end ? stops[i] : end;
    return end - pos - t->chunk;
}

/* Whether a session is to have logits after n tokens of a text: for the next one, or as that makes a checkpoint. */
static bool has_logits(const struct text *t, size_t n)
{
    return n == t->n_ids || n == t->parting || n == t->near_end;
}

static void give(struct text *t, size_t n, size_t *room)
{
    size_t wanted = n_wanted(t);
    n = n < *room ? n : *room;
    n = n < wanted ? n : wanted;
    t->chunk += n;
    *room -= n;
}

/* The prompt that came first, or of those that have nothing yet the one that lacks least; NULL: there is none. */
static struct text *choose_prompt(const struct texts *x, bool is_first)
{
    struct text *best = NULL;
    for (size_t i = 0; i < x->n_running; i++) {
        struct text *t = x->running[i];
        if (is_prompt(t) && (is_first || t->chunk == 0) &&
            (!best || (is_first ? t->id < best->id : text_n_missing(t) < text_n_missing(best))))
            best = t;
    }
    return best;
}

bool texts_has_prompts(const struct texts *x)
{
    return choose_prompt(x, true) != NULL;
}

/* Shares `room` among prompts: half of it for the one that came first, so that it gets on, and the rest for those that
 * are soon done. */
static void share_room(struct texts *x, size_t room)
{
    struct text *first = choose_prompt(x, true), *t;
    for (size_t i = 0; i < x->n_running; i++)
        x->running[i]->chunk = is_answer(x->running[i]);
    if (!first)
        return;
    size_t half = (room + 1) / 2, rest = room - half;
    give(first, half, &half);
    rest += half;
    while (rest > 0 && (t = choose_prompt(x, false)) != NULL)
        give(t, rest, &rest);
    give(first, rest, &rest);
}

/* ---- guesses ------------------------------------------------------------------------------------------------- */

/* Tokens of a pass with guesses at most. */
static int64_t most_rows(const struct texts *x)
{
    return min_i64(DRAFT_MOST_ROWS, x->options.n_batch ? x->options.n_batch : DRAFT_MOST_ROWS);
}

/* How many guesses there may be of a text that waits for its next token. */
static size_t most_guesses(const struct texts *x, const struct text *t, size_t n_rows)
{
    int64_t most = min_i64(x->options.n_draft, DRAFT_MOST), n_answer = (int64_t)(t->n_ids - t->n_prompt);
    if (!is_answer(t) || t->has_ended || n_answer == 0) /* 0: all of the prompt is there but one token */
        return 0;
    most = min_i64(most, most_rows(x) - (int64_t)n_rows);
    most = min_i64(most, moebius_session_n_ctx(t->session) - (int64_t)t->n_ids);
    most = min_i64(most, t->n_ctx - (int64_t)t->n_ids);
    if (t->request.max_tokens >= 0)
        most = min_i64(most, t->request.max_tokens - n_answer - 1); /* a token is chosen in any case */
    return most > 0 ? (size_t)most : 0;
}

/* The pass that guesses are added to: its tokens, and how many of them texts will have gone on by. */
struct guessed_pass {
    size_t n_rows;
    double n_tok;
};

/* Begins the guesses of a text, which may come to be none. */
static void begin_guess(const struct texts *x, struct text *t, size_t n, size_t match)
{
    t->guess = (struct text_guess){.n = n, .n_planned = n, .match = match, .n_ids = t->n_ids, .setup = &x->setup};
    t->guess.ids[0] = t->ids[t->n_ids - 1];
}

/* Adds as many guesses of a text as pay, where it goes on as it did before, unless MTP guesses and is more often right.
 */
static void guess(struct texts *x, struct text *t, bool by_mtp, struct guessed_pass *p)
{
    size_t next = 0, most = most_guesses(x, t, p->n_rows);
    bool always = x->options.always_draft;
    size_t match = most ? draft_match(t->ids, t->n_ids, always, &next) : 0;
    if (match && by_mtp && draft_share(&t->odds, match) < draft_share(&t->odds, DRAFT_MTP))
        return;
    size_t best = draft_choose(&x->costs, &t->odds, match, most, p->n_rows, p->n_tok, always);
    if (match && !best)
        draft_pass_over(&x->costs, &t->odds, match, p->n_rows);
    if (!best)
        return;
    begin_guess(x, t, best, match);
    draft_fill(t->guess.ids + 1, best, t->ids, t->n_ids, next);
    p->n_rows += best;
    p->n_tok += draft_expected(&t->odds, match, best);
}

/* The texts that MTP is to guess. */
struct mtp_texts {
    struct text *text[DRAFT_MOST_ROWS]; /* [n] */
    const struct draft_odds *odds[DRAFT_MOST_ROWS];
    size_t most[DRAFT_MOST_ROWS];
    moebius_guess_item items[DRAFT_MOST_ROWS];
    size_t n;
};

/* Finds texts without guesses that may have some. */
static void find_mtp_texts(const struct texts *x, size_t n_rows, struct mtp_texts *m)
{
    m->n = 0;
    for (size_t i = 0; i < x->n_running && m->n < DRAFT_MOST_ROWS; i++) {
        struct text *t = x->running[i];
        size_t most = t->guess.n ? 0 : most_guesses(x, t, n_rows);
        if (most == 0)
            continue;
        m->text[m->n] = t;
        m->odds[m->n] = &t->odds;
        m->most[m->n++] = most;
    }
    for (size_t i = 0; i < m->n; i++) /* they share the room */
        m->most[i] = min_size(m->most[i], ((size_t)most_rows(x) - n_rows) / m->n);
}

/* Has MTP guess n tokens of each text, or as many as there may be. Where it fails there are none. */
static void make_guesses(struct texts *x, struct mtp_texts *m, size_t n, double least)
{
    size_t n_item = 0, n_step = 0;
    for (size_t i = 0; i < m->n; i++) {
        struct text *t = m->text[i];
        size_t some = min_size(n, m->most[i]);
        if (some == 0)
            continue;
        begin_guess(x, t, some, DRAFT_MTP);
        m->text[n_item] = t;
        m->items[n_item++] = (moebius_guess_item){.session = t->session,
                                                  .id = t->guess.ids[0],
                                                  .most = some,
                                                  .least = (float)least,
                                                  .ids = t->guess.ids + 1,
                                                  .n = &t->guess.n};
    }
    int64_t start_ns = clock_ns();
    bool ok = n_item > 0 && moebius_guess_batch(x->setup.engine, m->items, n_item, NULL) == MOEBIUS_OK;
    x->mtp_ns = clock_ns() - start_ns;
    for (size_t i = 0; i < n_item; i++) {
        struct text_guess *g = &m->text[i]->guess;
        g->n = ok ? g->n : 0;
        n_step = max_size(n_step, min_size(g->n + 1, g->n_planned));
        if (g->n == 0)
            draft_note(&m->text[i]->odds, DRAFT_MTP, g->n_planned, 0);
    }
    if (n_step)
        draft_note_mtp(&x->costs, n_step, x->mtp_ns);
}

/* Adds MTP's guesses or, where none pay, those of texts that go on as they did before. */
static void guess_mtp(struct texts *x, struct guessed_pass *p)
{
    struct mtp_texts m;
    bool always = x->options.always_draft;
    find_mtp_texts(x, p->n_rows, &m);
    size_t n = draft_choose_mtp(&x->costs, m.odds, m.most, m.n, p->n_rows, p->n_tok, always);
    if (n) {
        make_guesses(x, &m, n, always ? 0 : draft_least(&x->costs, p->n_rows, p->n_tok));
        return;
    }
    for (size_t i = 0; i < m.n; i++) {
        draft_pass_over(i ? NULL : &x->costs, &m.text[i]->odds, DRAFT_MTP, p->n_rows);
        guess(x, m.text[i], false, p);
    }
}

/* Guesses for a pass of answers alone, once it is known what such a pass takes. While prompts wait there are none: what
 * passes of answers take is measured for their pace. */
static void guess_all(struct texts *x)
{
    struct guessed_pass p = {0};
    x->mtp_ns = 0;
    for (size_t i = 0; i < x->n_running; i++) {
        x->running[i]->guess.n = 0;
        p.n_rows += x->running[i]->chunk;
    }
    p.n_tok = (double)p.n_rows;
    if (!x->options.n_draft || texts_has_prompts(x) || p.n_rows > DRAFT_MOST_ROWS ||
        draft_pass_ns(&x->costs, p.n_rows) <= 0)
        return;
    for (size_t i = 0; i < x->n_running; i++)
        guess(x, x->running[i], x->has_mtp, &p);
    if (x->has_mtp)
        guess_mtp(x, &p);
}

static moebius_batch_item item_of(struct text *t)
{
    size_t pos = (size_t)moebius_session_pos(t->session), end = pos + t->chunk;
    if (t->guess.n)
        return (moebius_batch_item){.session = t->session,
                                    .ids = t->guess.ids,
                                    .n = 1 + t->guess.n,
                                    .is_draft = true,
                                    .logits = text_see_logits,
                                    .user = t};
    moebius_batch_item item = {.session = t->session, .ids = t->ids + pos, .n = t->chunk};
    if (scores_are_missing(&t->scores) && t->scores.n <= end) {
        item.logits = text_see_scores;
        item.user = t;
        item.first = t->scores.n - 1 - pos;
    }
    item.no_logits = !item.logits && !has_logits(t, end);
    return item;
}

/* Fills the items of a pass. */
static void fill_items(struct texts *x)
{
    x->n_items = 0;
    for (size_t i = 0; i < x->n_running; i++)
        if (x->running[i]->chunk > 0) {
            x->in_pass[x->n_items] = x->running[i];
            x->items[x->n_items++] = item_of(x->running[i]);
        }
}

/* ---- computing ----------------------------------------------------------------------------------------------- */

/* Whether nobody wants what the pass in hand computes. */
static bool is_unwanted(void *user)
{
    const struct texts *x = user;
    bool all = true;
    if (atomic_load(&x->is_stopped) || (x->options.is_interrupted && x->options.is_interrupted(x->options.user)))
        return true;
    for (size_t i = 0; i < x->n_items && all; i++)
        all = atomic_load(&x->in_pass[i]->is_cancelled);
    return all;
}

static err_code eval(struct texts *x, struct err *e)
{
    moebius_error error;
    moebius_session *asks = x->items[0].session; /* one that is asked is enough */
    moebius_session_set_cancel(asks, is_unwanted, x);
    moebius_status status = moebius_eval_batch(x->setup.engine, x->items, x->n_items, &error);
    moebius_session_set_cancel(asks, NULL, NULL);
    return status == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}

/* Whether a pass that was interrupted was so by this room itself. */
static bool was_unwanted(struct texts *x)
{
    bool is_interrupted = x->options.is_interrupted && x->options.is_interrupted(x->options.user);
    return !is_interrupted && is_unwanted(x);
}

/* The pass is done. */
static void take_stock(struct texts *x, size_t n_answer, int64_t took_ns, bool is_streaming)
{
    size_t n_chunk = 0, n_guess = 0, n_right = 0;
    for (size_t i = 0; i < x->n_items; i++) {
        struct text *t = x->in_pass[i];
        bool of_prompt = t->chunk > 1 || t->n_ids == t->n_prompt;
        n_chunk += t->chunk == 1 && !x->items[i].no_logits ? 0 : t->chunk;
        n_guess += t->guess.n;
        n_right += t->guess.n ? t->guess.n_right : 0;
        x->stats.n_prompt += of_prompt ? t->chunk : 0;
        if (t->n_ids == t->n_prompt)
            text_tell_prompt(t);
    }
    if (n_guess == 0) /* else it took longer than one of answers */
        pace_note(&x->pace, n_answer, n_chunk, took_ns, is_streaming);
    if (n_chunk == 0)
        draft_note_pass(&x->costs, x->n_items + n_guess, took_ns);
    *(n_chunk ? &x->stats.prefill_ns : &x->stats.decode_ns) += took_ns + x->mtp_ns;
    x->stats.n_pass++;
    x->stats.n_decode_pass += n_chunk == 0;
    x->stats.n_decoded += n_chunk ? 0 : x->n_items + n_right;
    x->stats.n_guess += n_guess;
    x->stats.n_guess_right += n_right;
}

static err_code compute(struct texts *x, struct err *e)
{
    struct err why = {0};
    bool is_streaming = texts_is_streaming(x);
    size_t n_answer = texts_n_answers(x);
    bool has_room = n_answer == 0 || !x->is_disk_turn;
    share_room(x, has_room ? pace_tokens(&x->pace, n_answer, batch_room(x, n_answer), is_streaming) : 0);
    guess_all(x);
    fill_items(x);
    if (x->n_items == 0)
        return ERR_OK;
    int64_t start_ns = clock_ns();
    err_code code = eval(x, &why);
    int64_t took_ns = clock_ns() - start_ns;
    for (size_t i = 0; i < x->n_items; i++) {
        text_settle_scores(x->in_pass[i]);
        if (x->in_pass[i]->guess.n)
            text_settle(x->in_pass[i]);
    }
    if (code == ERR_OK)
        take_stock(x, n_answer, took_ns, is_streaming);
    else if (texts_is_short(code))
        texts_make_room(x, &why);
    else if (code != ERR_CANCELLED || !was_unwanted(x))
        return err_set(e, code, "%s", why.text);
    return ERR_OK;
}

/* ---- tokens -------------------------------------------------------------------------------------------------- */

/* Each text whose session has all of its tokens gets the next one, or ends. */
static void next_tokens(struct texts *x)
{
    struct err why = {0};
    for (size_t i = x->n_running; i-- > 0;) { /* backwards, as texts leave */
        struct text *t = x->running[i];
        if (atomic_load(&t->is_cancelled)) {
            texts_end(x, t, TEXT_END_CANCELLED, NULL);
            continue;
        }
        size_t n_before = t->guess.n ? t->guess.n_ids : t->n_ids;
        err_code code = t->guess.n ? t->guess.code : ERR_OK;
        if (code != ERR_OK)
            why = t->guess.error;
        t->guess.n = 0;
        if (code == ERR_OK && !t->has_ended && t->n_ids == n_before) {
            if (text_n_missing(t) > 0)
                continue;
            code = text_next(t, &x->setup, &why);
        }
        x->stats.n_answer += t->n_ids - n_before;
        prefix_set(&x->index, &t->entry, t->ids, t->n_ids);
        if (code != ERR_OK || t->has_ended)
            texts_end(x, t, code != ERR_OK ? TEXT_END_FAILED : t->end, &why);
    }
}

err_code texts_pass(struct texts *x, struct err *e)
{
    TRY(compute(x, e));
    next_tokens(x);
    texts_trim(x);
    return ERR_OK;
}
