#include "texts/turns.h"

#include <assert.h>

static size_t group_of(const struct text *t)
{
    uint64_t x = t->request.group * 0x9e3779b97f4a7c15u; /* Fibonacci hashing: any ids spread */
    return x >> 54;
}

void turns_add(struct turns *w, struct text *t)
{
    struct text **at = &w->first;
    size_t g = group_of(t);
    assert(g < TURNS_GROUPS && !t->next);
    if (w->groups[g].n++ == 0)
        w->groups[g].turn = ++w->n_turns;
    while (*at && !t->was_running)
        at = &(*at)->next;
    t->next = *at;
    *at = t;
    w->n++;
}

void turns_remove(struct turns *w, struct text *t)
{
    struct text **at = &w->first;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    t->next = NULL;
    w->n--;
    w->groups[group_of(t)].n--;
}

/* Whether it is rather a's turn than b's. */
static bool is_before(const struct turns *w, const struct text *a, const struct text *b)
{
    uint64_t turn_a = w->groups[group_of(a)].turn, turn_b = w->groups[group_of(b)].turn;
    if (a->was_running != b->was_running)
        return a->was_running;
    if (!a->was_running && turn_a != turn_b)
        return turn_a < turn_b;
    return a->id < b->id;
}

struct text *turns_next(const struct turns *w)
{
    struct text *next = NULL;
    for (struct text *t = w->first; t; t = t->next)
        if (!t->is_passed && (!next || is_before(w, t, next)))
            next = t;
    return next;
}

void turns_take(struct turns *w, struct text *t)
{
    turns_remove(w, t);
    w->groups[group_of(t)].turn = ++w->n_turns;
}
