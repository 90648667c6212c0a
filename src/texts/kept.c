#include "texts/kept.h"

#include <string.h>

#include "base/mem.h"

enum { KEPT_MAX = 256 };

/* Whether one text can stand for another: its session begins with the other's tokens, and can go back to their end. */
static bool covers(const struct kept_text *a, const struct kept_text *b)
{
    int64_t n = moebius_session_pos(b->session);
    return moebius_session_pos(a->session) >= n &&
           !memcmp(moebius_session_tokens(a->session), moebius_session_tokens(b->session),
                   (size_t)n * sizeof(int32_t)) &&
           moebius_session_way_back(a->session, n) == n && scores_cover(&a->scores, &b->scores);
}

static bool is_covered(const struct kept *k, const struct kept_text *t)
{
    for (size_t i = 0; i < k->n; i++)
        if (covers(k->texts[i], t))
            return true;
    return false;
}

static bool make_room(struct kept *k)
{
    if (k->n == KEPT_MAX)
        return kept_drop_least(k);
    return mem_grow(&k->texts, &k->capacity, k->n + 1, sizeof *k->texts, "kept texts", NULL) == ERR_OK;
}

void kept_add(struct kept *k, moebius_session **session, struct scores *scores)
{
    struct kept_text new = {.session = *session, .scores = *scores}, *t = NULL;
    *session = NULL;
    *scores = (struct scores){0};
    if (!new.session || moebius_session_pos(new.session) < PREFIX_BLOCK || is_covered(k, &new) || !make_room(k) ||
        !(t = mem_calloc(1, sizeof *t))) {
        moebius_session_close(&new.session);
        scores_close(&new.scores);
        return;
    }
    for (size_t i = k->n; i-- > 0;)
        if (covers(&new, k->texts[i]))
            kept_drop(k, k->texts[i]);
    *t = new;
    t->entry.owner = t;
    t->entry.is_kept = true;
    prefix_set(k->index, &t->entry, moebius_session_tokens(t->session), (size_t)moebius_session_pos(t->session));
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
    scores_close(&t->scores);
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
