/* Masks: the vocabulary's tree is walked with the threads, and whatever a byte ends is left out with all below it. Within
 * strings whose characters are free, the tokens that stay in the string are known beforehand; only those that leave it
 * are walked. */
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
        while (i >= levels[d].end)
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
    uint32_t n_frame = m->frames.n, n_thread = m->threads.n, set = limit < v->n_free ? limit : v->n_free - 1;
    const uint64_t *free_chars = v->free_chars + (size_t)set * v->n_word;
    struct thread t = m->threads.at[at.first];
    uint32_t n;
    bool same = intern_words(&m->s->contents, t.state, &n)[4] == 0 && state_kind(m->s, t.state) == STATE_STRING;
    struct thread_set closed = same ? matcher_step(m, at, '"') : at; /* no conditions: it ends the same anywhere */
    for (uint32_t i = 0; i < v->n_word; i++)
        w->bits[i] |= free_chars[i];
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
    uint32_t limit = r->limit == NO_THRESHOLD ? UINT32_MAX : r->limit - t.reg;
    if (r->free_chars && (limit < m->v->n_free || m->v->free_all || limit == UINT32_MAX))
        mask_string(w, at, limit);
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
