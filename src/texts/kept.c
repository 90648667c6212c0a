#include "texts/kept.h"

#include <string.h>

#include "base/mem.h"

enum { KEPT_MAX = 256 };

/* Whether one session can stand for another: it begins with the other's tokens, and can go back to their end. */
static bool covers(const moebius_session *a, const moebius_session *b)
{
    int64_t n = moebius_session_pos(b);
    return moebius_session_pos(a) >= n &&
           !memcmp(moebius_session_tokens(a), moebius_session_tokens(b), (size_t)n * sizeof(int32_t)) &&
           moebius_session_way_back(a, n) == n;
}

static bool is_covered(const struct kept *k, const moebius_session *session)
{
    for (size_t i = 0; i < k->n; i++)
        if (covers(k->texts[i]->session, session))
            return true;
    return false;
}

static bool make_room(struct kept *k)
{
    if (k->n == KEPT_MAX)
        return kept_drop_least(k);
    return mem_grow(&k->texts, &k->capacity, k->n + 1, sizeof *k->texts, "kept texts", NULL) == ERR_OK;
}

void kept_add(struct kept *k, moebius_session **session)
{
    moebius_session *s = *session;
    struct kept_text *t = NULL;
    *session = NULL;
    if (!s || moebius_session_pos(s) < PREFIX_BLOCK || is_covered(k, s) || !make_room(k) ||
        !(t = mem_calloc(1, sizeof *t))) {
        moebius_session_close(&s);
        return;
    }
    for (size_t i = k->n; i-- > 0;)
        if (covers(s, k->texts[i]->session))
            kept_drop(k, k->texts[i]);
    t->session = s;
    t->entry.owner = t;
    t->entry.is_kept = true;
    prefix_set(k->index, &t->entry, moebius_session_tokens(s), (size_t)moebius_session_pos(s));
    prefix_list(k->index, &t->entry);
    k->texts[k->n++] = t;
    kept_use(k, t);
}

void kept_use(struct kept *k, struct kept_text *t)
{
    t->tick = ++k->tick;
}

void kept_drop(struct kept *k, struct kept_text *t)
{
    size_t i = 0;
    while (k->texts[i] != t)
        i++;
    k->texts[i] = k->texts[--k->n];
    prefix_entry_close(k->index, &t->entry);
    moebius_session_close(&t->session);
    mem_free(t);
}

/* The tokens that it saves for each byte of state and of logits, less the longer it was of no use. */
static double worth(const struct kept *k, const struct kept_text *t)
{
    double n_bytes = (double)(moebius_session_state_bytes(t->session) + k->logits_bytes);
    return (double)t->entry.n / n_bytes / (double)(k->tick - t->tick + 1);
}

bool kept_drop_least(struct kept *k)
{
    struct kept_text *least = k->n ? k->texts[0] : NULL;
    for (size_t i = 1; i < k->n; i++)
        if (worth(k, k->texts[i]) < worth(k, least))
            least = k->texts[i];
    if (least)
        kept_drop(k, least);
    return least != NULL;
}

void kept_close(struct kept *k)
{
    while (kept_drop_least(k))
        ;
    mem_free(k->texts);
    *k = (struct kept){.index = k->index, .logits_bytes = k->logits_bytes};
}

uint64_t kept_bytes(const struct kept *k)
{
    uint64_t n = 0;
    for (size_t i = 0; i < k->n; i++)
        n += moebius_session_state_bytes(k->texts[i]->session);
    return n;
}
