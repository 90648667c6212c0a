/* Masks: the vocabulary's tree is walked with the threads, and whatever a byte ends is left out with all below it.
 * Within strings whose characters are free, the tokens that stay in the string are known beforehand; only those that
 * leave it are walked. */
#include <string.h>

#include "grammar/matcher.h"
#include "grammar/states_view.h"

struct walk {
    struct grammar_matcher *m;
    uint64_t *bits;
};

static void set_token(const struct walk *w, uint32_t token)
{
    for (int32_t t = (int32_t)token - 1; t >= 0; t = w->m->v->twins[t])
        w->bits[t / 64] |= (uint64_t)1 << t % 64;
}

/* Walks the nodes of a subtree, its root left out, with the threads that stand at its root. */
static void walk_tree(const struct walk *w, uint32_t root, struct thread_set at)
{
    struct grammar_matcher *m = w->m;
    const struct trie_node *nodes = m->v->nodes;
    struct level {
        struct thread_set at;
        uint32_t n_frame, end;
    } levels[TRIE_MAX_DEPTH + 1];
    uint32_t d = 0, end = root + nodes[root].size;
    levels[0] = (struct level){at, m->frames.n, end};
    for (uint32_t i = root + 1; i < end;) {
        while (d > 0 && i >= levels[d].end)
            d--;
        m->threads.n = levels[d].at.first + levels[d].at.n;
        m->frames.n = levels[d].n_frame;
        struct thread_set next = matcher_step(m, levels[d].at, (uint8_t)nodes[i].byte);
        if (next.n == 0) {
            i += nodes[i].size;
            continue;
        }
        if (nodes[i].token)
            set_token(w, nodes[i].token);
        if (nodes[i].size > 1)
            levels[++d] = (struct level){next, m->frames.n, i + nodes[i].size};
        i++;
    }
    m->threads.n = at.first + at.n;
    m->frames.n = levels[0].n_frame;
}

/* The set after the bytes that lead to an exit from a string. */
static struct thread_set run_exit(const struct walk *w, struct thread_set at, const struct trie_exit *x)
{
    const uint8_t *bytes = w->m->v->bytes + w->m->v->offsets[x->token];
    for (uint32_t i = 0; i < x->n_byte && at.n; i++)
        at = matcher_step(w->m, at, bytes[i]);
    return at;
}

/* limit: how many characters may still come. */
static void mask_string(const struct walk *w, struct thread_set at, uint32_t limit)
{
    struct grammar_matcher *m = w->m;
    const struct grammar_vocab *v = m->v;
    uint32_t n_frame = m->frames.n, n_thread = m->threads.n, set = limit < TRIE_MAX_CHARS ? limit : TRIE_MAX_CHARS - 1;
    const uint64_t *free_chars = v->free_chars + (size_t)set * v->n_word;
    struct thread t = m->threads.at[at.first];
    uint32_t n;
    bool same = intern_words(&m->s->contents, t.state, &n)[4] == 0 && state_kind(m->s, t.state) == STATE_STRING;
    struct thread_set closed = same ? matcher_step(m, at, '"') : at; /* no conditions: it ends the same anywhere */
    for (uint32_t i = 0; i < v->n_word; i++)
        w->bits[i] |= free_chars[i];
    for (uint32_t i = 0; i < v->n_long; i++)
        if (v->longs[i].n_char <= limit)
            w->bits[v->longs[i].token / 64] |= (uint64_t)1 << v->longs[i].token % 64;
    for (uint32_t i = 0; i < v->n_exit; i++) {
        const struct trie_exit *x = &v->exits[i];
        if (x->n_char > limit)
            continue;
        struct thread_set after = same ? closed : run_exit(w, at, x);
        if (after.n) {
            if (v->nodes[x->node].token)
                set_token(w, v->nodes[x->node].token);
            walk_tree(w, x->node, after);
        }
        if (!same) {
            m->threads.n = n_thread;
            m->frames.n = n_frame;
        }
    }
}

/* ---- strings with conditions ----------------------------------------------------------------------------------- */

/* What tokens do in a string whose state no register changes: the same wherever it stands, and so kept with the state.
 */
struct string_mask {
    const struct grammar_vocab *vocab;
    uint32_t n_exit, capacity;
    struct string_exit {
        uint32_t node, result; /* where the string ends, and with what verdicts */
    } * exits;
    uint64_t bits[]; /* [n_word] tokens that stay in the string */
};

void mask_close(void *mask)
{
    struct string_mask *k = mask;
    if (k)
        mem_free(k->exits);
    mem_free(k);
}

static bool add_exit(struct string_mask *k, uint32_t node, uint32_t result)
{
    if (k->n_exit == k->capacity) {
        void *larger = list_enlarge(k->exits, &k->capacity, k->n_exit + 1, sizeof *k->exits);
        if (!larger)
            return false;
        k->exits = larger;
    }
    k->exits[k->n_exit++] = (struct string_exit){node, result};
    return true;
}

static struct string_mask *make_mask(struct states *s, const struct grammar_vocab *v, uint32_t state)
{
    struct string_mask *k = mem_calloc(1, sizeof *k + v->n_word * sizeof *k->bits);
    uint32_t at[TRIE_MAX_DEPTH + 1] = {state}, end[TRIE_MAX_DEPTH + 1] = {v->n_node}, d = 0;
    bool ok = k != NULL;
    for (uint32_t i = 1; ok && i < v->n_node;) {
        const struct trie_node *node = &v->nodes[i];
        while (d > 0 && i >= end[d])
            d--;
        struct state_out out = states_step(s, at[d], (uint8_t)node->byte);
        if (out.op == STATE_POP)
            ok = add_exit(k, i, out.next);
        if (out.op != STATE_STAY) {
            i += node->size;
            continue;
        }
        for (int32_t t = (int32_t)node->token - 1; t >= 0; t = v->twins[t])
            k->bits[t / 64] |= (uint64_t)1 << t % 64;
        at[++d] = out.next;
        end[d] = i++ + node->size;
    }
    if (!ok || !states_good(s)) {
        states_fail(s, ERR_NOMEM);
        mask_close(k);
        return NULL;
    }
    k->vocab = v;
    s->n_bytes += sizeof *k + v->n_word * sizeof *k->bits + k->capacity * sizeof *k->exits;
    return k;
}

/* The thread `at` is in such a string. */
static void mask_kept(const struct walk *w, struct thread_set at)
{
    struct grammar_matcher *m = w->m;
    struct thread t = m->threads.at[at.first];
    uint32_t n_frame = m->frames.n, n_thread = m->threads.n;
    struct string_mask *k = m->s->records.at[t.state].mask;
    if (k && k->vocab != m->v) {
        mask_close(k);
        k = NULL;
    }
    if (!k) {
        k = make_mask(m->s, m->v, t.state);
        m->s->records.at[t.state].mask = k;
    }
    if (!k)
        return;
    for (uint32_t i = 0; i < m->v->n_word; i++)
        w->bits[i] |= k->bits[i];
    for (uint32_t i = 0; i < k->n_exit; i++) {
        struct thread_set after = matcher_pop(m, t, k->exits[i].result);
        if (after.n) {
            if (m->v->nodes[k->exits[i].node].token)
                set_token(w, m->v->nodes[k->exits[i].node].token);
            walk_tree(w, k->exits[i].node, after);
        }
        m->threads.n = n_thread;
        m->frames.n = n_frame;
    }
}

static void mask_thread(const struct walk *w, uint32_t i)
{
    struct grammar_matcher *m = w->m;
    struct thread_set at = {m->threads.n, 1};
    struct thread t = m->threads.at[i];
    const struct state_record *r = &m->s->records.at[t.state];
    if (!LIST_PUSH(&m->threads, t)) {
        states_fail(m->s, ERR_NOMEM);
        return;
    }
    if (r->free_chars)
        mask_string(w, at, r->limit == NO_THRESHOLD ? UINT32_MAX : r->limit - t.reg);
    else if (r->kind == STATE_STRING && r->limit == NO_THRESHOLD && r->threshold == NO_THRESHOLD)
        mask_kept(w, at);
    else
        walk_tree(w, 0, at);
}

void matcher_fill_mask(struct grammar_matcher *m, uint64_t *bits)
{
    struct walk w = {m, bits};
    uint32_t n_frame = m->frames.n;
    for (uint32_t i = 0; i < m->n_thread; i++) {
        mask_thread(&w, i);
        m->threads.n = m->n_thread;
        m->frames.n = n_frame;
    }
}
