#include "grammar/matcher.h"

#include <string.h>

#include "grammar/states_view.h"

/* ---- threads --------------------------------------------------------------------------------------------------- */

static uint32_t add_frame(struct grammar_matcher *m, struct frame f)
{
    if (LIST_PUSH(&m->frames, f))
        return m->frames.n - 1;
    states_fail(m->s, ERR_NOMEM);
    return 0;
}

static bool same_thread(const struct grammar_matcher *m, const struct thread *a, const struct thread *b)
{
    if (a->state != b->state || a->reg != b->reg || a->depth != b->depth || a->n_space != b->n_space)
        return false;
    const struct frame *x = &m->frames.at[a->below], *y = &m->frames.at[b->below];
    return a->below == b->below || (x->state == y->state && x->reg == y->reg && x->below == y->below);
}

static void push_thread(struct grammar_matcher *m, uint32_t first, struct thread t)
{
    for (uint32_t i = first; i < m->threads.n; i++)
        if (same_thread(m, &m->threads.at[i], &t))
            return;
    if (m->threads.n - first >= MATCHER_MAX_THREADS)
        states_fail(m->s, ERR_LIMIT);
    else if (!LIST_PUSH(&m->threads, t))
        states_fail(m->s, ERR_NOMEM);
}

/* Adds a thread to the set that begins at `first`: text is joined with the text that is there, and its JSON values
 * become threads of their own. */
static void add_thread(struct grammar_matcher *m, uint32_t first, struct thread t)
{
    uint32_t i = first, value, below;
    if (state_kind(m->s, t.state) != STATE_TEXT) {
        push_thread(m, first, t);
        return;
    }
    while (i < m->threads.n && state_kind(m->s, m->threads.at[i].state) != STATE_TEXT)
        i++;
    if (m->s->records.at[t.state].flags & (TEXT_ENDS | TEXT_HAS_BYTES)) {
        if (i < m->threads.n)
            m->threads.at[i].state = states_union(m->s, m->threads.at[i].state, t.state);
        else
            push_thread(m, first, (struct thread){.state = t.state});
    }
    if (!(m->s->records.at[t.state].flags & TEXT_HAS_JSON))
        return;
    for (i = 0; states_json(m->s, t.state, i, &value, &below); i++)
        if (value)
            push_thread(m, first, (struct thread){value, 0, add_frame(m, (struct frame){below, 0, 0}), 1, 0});
}

/* The register counts one more; false: that is one too many. */
static bool count(struct grammar_matcher *m, uint32_t *state, uint32_t *reg)
{
    if (++*reg >= m->s->records.at[*state].threshold)
        *state = states_bump(m->s, *state);
    return *state != 0;
}

/* One more byte of white space; false: that is too much. */
static bool add_space(struct thread *t, uint8_t byte)
{
    bool new_line = t->n_space & MATCHER_NEW_LINE;
    if (byte == '\n') {
        t->n_space = MATCHER_NEW_LINE;
        return !new_line;
    }
    return (++t->n_space & (MATCHER_NEW_LINE - 1)) <= (new_line ? MATCHER_INDENT * t->depth : MATCHER_SPACES);
}

/* What a state that stays in place makes of its thread. */
static bool stay(struct grammar_matcher *m, struct thread *t, struct state_out out, uint8_t byte)
{
    bool root = t->depth == 1 && state_kind(m->s, t->state) == STATE_VALUE;
    t->state = out.next;
    if (!(out.flags & STATE_SPACE))
        t->n_space = 0;
    else if (root || !add_space(t, byte))
        return false;
    if (out.flags & STATE_COUNT && !count(m, &t->state, &t->reg))
        return false;
    const struct state_record *r = &m->s->records.at[t->state];
    return r->kind != STATE_STRING || r->limit == NO_THRESHOLD || (uint64_t)t->reg + r->n_left <= r->limit;
}

/* The value on top has ended: its thread goes on with the state below. */
static bool pop(struct grammar_matcher *m, struct thread *t, uint32_t result)
{
    struct frame f = m->frames.at[t->below];
    struct state_out out = states_after(m->s, f.state, result);
    *t = (struct thread){out.next, f.reg, f.below, t->depth - 1, 0};
    return out.op == STATE_STAY;
}

static void feed(struct grammar_matcher *m, struct thread t, uint8_t byte, uint32_t first);

/* A byte that the value before it did not use up, in a text. */
static void feed_text(struct grammar_matcher *m, struct thread t, uint8_t byte, uint32_t first)
{
    struct thread tried[MATCHER_MAX_THREADS];
    uint32_t from = m->threads.n;
    add_thread(m, from, t);
    uint32_t n = m->threads.n - from;
    if (n)
        memcpy(tried, m->threads.at + from, n * sizeof *tried);
    m->threads.n = from;
    for (uint32_t i = 0; i < n; i++)
        feed(m, tried[i], byte, first);
}

/* Adds to the set that begins at `first` what a thread becomes with a byte. */
static void feed(struct grammar_matcher *m, struct thread t, uint8_t byte, uint32_t first)
{
    for (;;) {
        bool is_name = state_kind(m->s, t.state) == STATE_NAME;
        struct state_out out =
            is_name ? states_step_name(m->s, t.state, &t.reg, byte) : states_step(m->s, t.state, byte);
        if (out.op == STATE_REFUSE)
            return;
        if (out.op == STATE_POP ? !pop(m, &t, out.next) : !stay(m, &t, out, byte))
            return;
        if (out.op == STATE_PUSH) {
            if (t.depth >= MATCHER_MAX_DEPTH)
                return;
            t = (struct thread){out.child, 0, add_frame(m, (struct frame){t.state, t.reg, t.below}), t.depth + 1, 0};
        }
        if (!(out.flags & STATE_UNREAD)) {
            add_thread(m, first, t);
            return;
        }
        if (state_kind(m->s, t.state) == STATE_TEXT) {
            feed_text(m, t, byte, first);
            return;
        }
    }
}

struct thread_set matcher_step(struct grammar_matcher *m, struct thread_set from, uint8_t byte)
{
    struct thread_set to = {m->threads.n, 0};
    for (uint32_t i = 0; i < from.n; i++)
        feed(m, m->threads.at[from.first + i], byte, to.first);
    if (!states_good(m->s))
        m->threads.n = to.first;
    to.n = m->threads.n - to.first;
    return to;
}

struct thread_set matcher_pop(struct grammar_matcher *m, struct thread t, uint32_t result)
{
    struct thread_set to = {m->threads.n, 0};
    if (pop(m, &t, result))
        add_thread(m, to.first, t);
    to.n = m->threads.n - to.first;
    return to;
}

static bool matcher_may_end(struct grammar_matcher *m, struct thread_set at)
{
    for (uint32_t i = 0; i < at.n; i++) {
        struct thread t = m->threads.at[at.first + i];
        uint32_t result;
        if (t.depth == 1 && states_may_end(m->s, t.state, &result) && !pop(m, &t, result))
            continue;
        if (state_kind(m->s, t.state) == STATE_TEXT && m->s->records.at[t.state].flags & TEXT_ENDS)
            return true;
    }
    return false;
}

/* ---- the text -------------------------------------------------------------------------------------------------- */

static struct thread_set here(const struct grammar_matcher *m)
{
    return (struct thread_set){0, m->n_thread};
}

/* Forgets what was tried. */
static void forget(struct grammar_matcher *m, uint32_t n_frame)
{
    m->threads.n = m->n_thread;
    m->frames.n = n_frame;
}

/* Copies a frame and those below it; a chain's frames are in order, the lowest first. */
static uint32_t keep_frames(struct grammar_matcher *m, uint32_t at)
{
    uint32_t depth = 0, last = 0;
    for (uint32_t i = at; i; i = m->frames.at[i].below)
        depth++;
    uint32_t first = m->spare.n;
    if (!LIST_ROOM(&m->spare, depth)) {
        states_fail(m->s, ERR_NOMEM);
        return 0;
    }
    m->spare.n += depth;
    for (uint32_t i = at, k = depth; k-- > 0; i = m->frames.at[i].below) {
        m->spare.at[first + k] = m->frames.at[i];
        m->spare.at[first + k].below = k ? first + k - 1 : 0;
        last = first + depth - 1;
    }
    return last;
}

/* The text is where the set `at` is. */
static void move_to(struct grammar_matcher *m, struct thread_set at)
{
    m->spare.n = 0;
    if (!LIST_PUSH(&m->spare, (struct frame){0}))
        states_fail(m->s, ERR_NOMEM);
    for (uint32_t i = 0; i < at.n; i++) {
        struct thread t = m->threads.at[at.first + i];
        t.below = keep_frames(m, t.below);
        m->threads.at[i] = t;
    }
    m->threads.n = m->n_thread = at.n;
    void *frames = m->frames.at;
    uint32_t capacity = m->frames.capacity;
    m->frames.at = m->spare.at;
    m->frames.n = m->spare.n;
    m->frames.capacity = m->spare.capacity;
    m->spare.at = frames;
    m->spare.capacity = capacity;
}

/* The set after bytes, as far as they fit. */
static struct thread_set run(struct grammar_matcher *m, const uint8_t *bytes, size_t n, size_t *n_fit)
{
    struct thread_set at = here(m);
    for (*n_fit = 0; *n_fit < n; ++*n_fit) {
        struct thread_set next = matcher_step(m, at, bytes[*n_fit]);
        if (next.n == 0)
            break;
        if (at.first > 0) { /* what came before it is not needed any more */
            memmove(m->threads.at + at.first, m->threads.at + next.first, next.n * sizeof *m->threads.at);
            m->threads.n = at.first + next.n;
            next.first = at.first;
        }
        at = next;
    }
    return at;
}

/* ---- states that have failed ---------------------------------------------------------------------------------------
 */

/* The grammar's states, at least one of which is new where those that it had have failed. */
static err_code take_states(struct grammar_matcher *m, struct err *e)
{
    struct grammar *g = m->g;
    if (!states_good(g->states)) {
        struct states *fresh;
        TRY(states_open(&fresh, &g->program, g->max_states, e));
        states_close(&g->states);
        g->states = fresh;
    }
    states_close(&m->s);
    m->s = states_share(g->states);
    return ERR_OK;
}

/* At the text's begin. */
static void start(struct grammar_matcher *m)
{
    m->threads.n = m->n_thread = 0;
    m->frames.n = 1;
    if (m->s->start)
        add_thread(m, 0, (struct thread){.state = m->s->start});
    m->n_thread = m->threads.n;
}

/* Reads the text again, with states that have not failed. */
static void renew(struct grammar_matcher *m)
{
    size_t n_fit = 0;
    m->failed = take_states(m, NULL) != ERR_OK;
    if (m->failed)
        return;
    start(m);
    move_to(m, run(m, m->text.at, m->text.n, &n_fit));
    m->failed = !states_good(m->s);
}

/* Before something is asked of the matcher; ends with unlock. False: it has failed. */
static bool lock(struct grammar_matcher *m)
{
    pthread_mutex_lock(&m->g->mutex);
    if (!states_good(m->s) && !m->failed)
        renew(m);
    return !m->failed;
}

static void unlock(const struct grammar_matcher *m)
{
    pthread_mutex_unlock(&m->g->mutex);
}

/* Whether what was asked is to be asked again, as the states failed on the way; once. */
static bool asks_again(struct grammar_matcher *m, int *n_asked)
{
    if (states_good(m->s) || m->failed)
        return false;
    if (++*n_asked == 1)
        renew(m);
    else
        m->failed = true;
    return !m->failed;
}

/* ---- what is asked -------------------------------------------------------------------------------------------------
 */

/* The text goes on with these bytes, which have led to the set. */
static void go_on(struct grammar_matcher *m, const uint8_t *bytes, size_t n, struct thread_set at)
{
    if (n > UINT32_MAX - m->text.n || !LIST_ROOM(&m->text, (uint32_t)n)) {
        m->failed = true;
        return;
    }
    if (n)
        memcpy(m->text.at + m->text.n, bytes, n);
    m->text.n += (uint32_t)n;
    move_to(m, at);
}

static bool try_token(struct grammar_matcher *m, int32_t token, bool moves)
{
    const struct grammar_vocab *v = m->v;
    if (!v || token < 0 || token >= v->n_token || m->ended)
        return false;
    if (v->kinds[token] == GRAMMAR_TOKEN_END && matcher_may_end(m, here(m))) {
        m->ended |= moves;
        return true;
    }
    size_t n = v->offsets[token + 1] - v->offsets[token], n_fit;
    uint32_t n_frame = m->frames.n;
    struct thread_set at = run(m, v->bytes + v->offsets[token], n, &n_fit);
    bool fits = n > 0 && n <= TRIE_MAX_DEPTH && n_fit == n && states_good(m->s);
    if (fits && moves)
        go_on(m, v->bytes + v->offsets[token], n, at);
    else
        forget(m, n_frame);
    return fits;
}

static bool ask_token(struct grammar_matcher *m, int32_t token, bool moves)
{
    int n_asked = 0;
    bool fits = false;
    if (lock(m))
        do
            fits = try_token(m, token, moves);
        while (!fits && asks_again(m, &n_asked));
    unlock(m);
    return fits;
}

bool grammar_matcher_accept(struct grammar_matcher *m, int32_t token)
{
    return ask_token(m, token, true);
}

bool grammar_matcher_allows(struct grammar_matcher *m, int32_t token)
{
    return ask_token(m, token, false);
}

bool grammar_matcher_feed(struct grammar_matcher *m, const char *bytes, size_t n, size_t *n_fit)
{
    int n_asked = 0;
    *n_fit = 0;
    if (lock(m) && !m->ended) {
        uint32_t n_frame = m->frames.n;
        struct thread_set at = run(m, (const uint8_t *)bytes, n, n_fit);
        while (asks_again(m, &n_asked)) {
            n_frame = m->frames.n;
            at = run(m, (const uint8_t *)bytes, n, n_fit);
        }
        if (m->failed)
            forget(m, n_frame);
        else
            go_on(m, (const uint8_t *)bytes, *n_fit, at);
    }
    unlock(m);
    return *n_fit == n;
}

static void fill(struct grammar_matcher *m, uint64_t *bits)
{
    uint32_t n_frame = m->frames.n;
    memset(bits, 0, m->v->n_word * sizeof *bits);
    matcher_fill_mask(m, bits);
    bool ends = matcher_may_end(m, here(m));
    for (uint32_t i = 0; ends && i < m->v->n_end; i++)
        bits[m->v->ends[i] / 64] |= (uint64_t)1 << m->v->ends[i] % 64;
    forget(m, n_frame);
}

void grammar_matcher_mask(struct grammar_matcher *m, uint64_t *bits)
{
    int n_asked = 0;
    if (!m->v)
        return;
    memset(bits, 0, m->v->n_word * sizeof *bits);
    if (lock(m) && !m->ended)
        do
            fill(m, bits);
        while (asks_again(m, &n_asked));
    if (m->failed)
        memset(bits, 0, m->v->n_word * sizeof *bits);
    unlock(m);
}

bool grammar_matcher_may_end(struct grammar_matcher *m)
{
    int n_asked = 0;
    bool may = false;
    if (lock(m) && !m->ended)
        do
            may = matcher_may_end(m, here(m));
        while (asks_again(m, &n_asked));
    unlock(m);
    return may && !m->failed;
}

/* How many bytes may come next, two meaning more than one; *byte: the last of them. */
static int next_bytes(struct grammar_matcher *m, struct thread_set at, uint8_t *byte, struct thread_set *next)
{
    uint32_t n_thread = m->threads.n, n_frame = m->frames.n;
    int n = 0;
    for (unsigned b = 0; b < 256 && n < 2; b++) {
        if (matcher_step(m, at, (uint8_t)b).n) {
            n++;
            *byte = (uint8_t)b;
        }
        m->threads.n = n_thread;
        m->frames.n = n_frame;
    }
    if (n == 1)
        *next = matcher_step(m, at, *byte);
    return n;
}

bool grammar_matcher_must_end(struct grammar_matcher *m)
{
    int n_asked = 0;
    bool must = true;
    if (lock(m) && !m->ended)
        do {
            uint8_t byte;
            struct thread_set next;
            uint32_t n_frame = m->frames.n;
            must = next_bytes(m, here(m), &byte, &next) == 0;
            forget(m, n_frame);
        } while (asks_again(m, &n_asked));
    unlock(m);
    return must;
}

/* Where the states fail on the way, what was found so far is certain still. */
size_t grammar_matcher_forced(struct grammar_matcher *m, char *bytes, size_t n)
{
    size_t n_forced = 0;
    if (lock(m)) {
        struct thread_set at = here(m), next;
        uint32_t n_frame = m->frames.n;
        uint8_t byte;
        while (!m->ended && n_forced < n && !matcher_may_end(m, at) && next_bytes(m, at, &byte, &next) == 1 &&
               states_good(m->s)) {
            if (byte == NFA_TOKEN_MARK) /* a special token is no text */
                break;
            bytes[n_forced++] = (char)byte;
            at = next;
        }
        forget(m, n_frame);
    }
    unlock(m);
    return n_forced;
}

err_code grammar_matcher_error(const struct grammar_matcher *m, struct err *e)
{
    pthread_mutex_lock(&m->g->mutex);
    err_code code = m->failed ? states_error(m->s, e) : ERR_OK;
    if (m->failed && code == ERR_OK)
        code = err_nomem(e, sizeof *m->s, "the states of a grammar");
    unlock(m);
    return code;
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

/* Without states; a half-made one can be closed. */
static struct grammar_matcher *make(struct grammar *g, const struct grammar_vocab *vocab)
{
    struct grammar_matcher *m = mem_calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->g = g;
    m->v = vocab;
    if (LIST_PUSH(&m->frames, (struct frame){0}))
        return m;
    mem_free(m);
    return NULL;
}

err_code grammar_matcher_open(struct grammar_matcher **out, struct grammar *g, const struct grammar_vocab *vocab,
                              struct err *e)
{
    struct grammar_matcher *m = *out = make(g, vocab);
    if (!m)
        return err_nomem(e, sizeof *m, "a matcher");
    pthread_mutex_lock(&g->mutex);
    err_code code = take_states(m, e);
    if (code == ERR_OK) {
        start(m);
        code = states_error(m->s, e);
    }
    unlock(m);
    if (code != ERR_OK)
        grammar_matcher_close(out);
    return code;
}

static bool copy_place(struct grammar_matcher *copy, const struct grammar_matcher *m)
{
    if (!LIST_ROOM(&copy->threads, m->n_thread + 1) || !LIST_ROOM(&copy->frames, m->frames.n) ||
        !LIST_ROOM(&copy->text, m->text.n))
        return false;
    if (m->n_thread)
        memcpy(copy->threads.at, m->threads.at, m->n_thread * sizeof *m->threads.at);
    if (m->text.n)
        memcpy(copy->text.at, m->text.at, m->text.n);
    memcpy(copy->frames.at, m->frames.at, m->frames.n * sizeof *m->frames.at);
    copy->threads.n = copy->n_thread = m->n_thread;
    copy->frames.n = m->frames.n;
    copy->text.n = m->text.n;
    copy->ended = m->ended;
    copy->failed = m->failed;
    return true;
}

err_code grammar_matcher_clone(struct grammar_matcher **out, const struct grammar_matcher *m, struct err *e)
{
    struct grammar_matcher *copy = *out = make(m->g, m->v);
    if (copy) {
        pthread_mutex_lock(&m->g->mutex);
        copy->s = states_share(m->s);
        unlock(m);
    }
    if (copy && copy_place(copy, m))
        return ERR_OK;
    grammar_matcher_close(out);
    return err_nomem(e, m->frames.n * sizeof *m->frames.at, "a matcher");
}

int32_t grammar_matcher_n_vocab(const struct grammar_matcher *m)
{
    return m->v ? m->v->n_token : 0;
}

void grammar_matcher_close(struct grammar_matcher **matcher)
{
    struct grammar_matcher *m = *matcher;
    if (!m)
        return;
    pthread_mutex_lock(&m->g->mutex);
    states_close(&m->s);
    unlock(m);
    LIST_CLOSE(&m->threads);
    LIST_CLOSE(&m->frames);
    LIST_CLOSE(&m->spare);
    LIST_CLOSE(&m->text);
    mem_free(m);
    *matcher = NULL;
}
