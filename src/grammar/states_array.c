/* Arrays. While an item is read, `extra` holds for each variable what the item must be: a formula over its roots. */
#include <string.h>

#include "grammar/states_view.h"

enum array_phase { ARRAY_BEGIN, ARRAY_ITEM, ARRAY_NEXT };

/* The roots of an item: schemas, each once. */
struct item_roots {
    uint32_t schemas[VIEW_ROOTS], n;
};

/* The formula that a schema of the item is. */
static uint32_t add_root(struct states *s, struct item_roots *r, uint32_t schema)
{
    uint32_t i = 0;
    if (schema == SCHEMA_ANY || schema == SCHEMA_NEVER)
        return schema == SCHEMA_ANY ? FORMULA_TRUE : FORMULA_FALSE;
    while (i < r->n && r->schemas[i] != schema)
        i++;
    if (i == VIEW_ROOTS) {
        states_fail(s, ERR_LIMIT);
        return FORMULA_FALSE;
    }
    if (i == r->n)
        r->schemas[r->n++] = schema;
    return formula_var(&s->formulas, term(TERM_ROOT, i));
}

static uint32_t map_item(void *user, uint32_t t)
{
    const struct view *v = ((void **)user)[1];
    for (uint32_t i = 0; i < v->n_var; i++)
        if (v->var[i].term == t && term_kind(t) == TERM_ITEMS)
            return v->extra[i];
    return FORMULA_TRUE;
}

/* The state below an item, and the one before the item. */
static struct state_out begin_item(struct states *s, struct view *v, uint8_t flags)
{
    struct item_roots roots;
    roots.n = 0;
    for (uint32_t i = 0; i < v->n_var; i++) {
        const struct schema *c = &s->p->schemas.at[term_number(v->var[i].term)];
        v->extra[i] = FORMULA_TRUE;
        if (term_kind(v->var[i].term) == TERM_CONTAINS)
            v->extra[i] = add_root(s, &roots, c->contains);
        else if (term_kind(v->var[i].term) == TERM_ITEMS) {
            uint32_t at = v->var[i].state; /* how many of the prefix were read */
            v->extra[i] = add_root(s, &roots, at < c->n_prefix ? s->p->ids.at[c->prefix + at] : c->items);
            v->var[i].state += at < c->n_prefix;
        }
    }
    void *user[2] = {s, v};
    uint32_t goal = view_hope(s, v, map_item, user);
    v->phase = ARRAY_ITEM;
    v->n_extra = v->n_var;
    uint32_t child = value_state(s, roots.schemas, roots.n, goal);
    uint32_t next = child ? view_settle(s, v) : 0;
    return (struct state_out){next ? STATE_PUSH : STATE_REFUSE, flags | STATE_COUNT, next, child};
}

struct state_out array_step(struct states *s, uint32_t state, uint8_t byte)
{
    struct view v;
    view_load(s, state, &v);
    if (is_space(byte))
        return (struct state_out){STATE_STAY, STATE_SPACE, state, 0};
    if (byte == ']')
        return (struct state_out){STATE_POP, 0, view_end(s, &v), 0};
    if (v.phase == ARRAY_BEGIN)
        return begin_item(s, &v, STATE_UNREAD);
    if (v.phase == ARRAY_NEXT && byte == ',')
        return begin_item(s, &v, 0);
    return (struct state_out){STATE_REFUSE, 0, 0, 0};
}

uint32_t array_after(struct states *s, uint32_t state, uint32_t result)
{
    uint32_t n, words[1 + VIEW_ROOTS];
    bool broken[VIEW_VARS];
    struct view v;
    const uint32_t *w = intern_words(&s->contents, result, &n);
    memcpy(words, w, n * sizeof *w);
    view_load(s, state, &v);
    for (uint32_t i = 0; i < v.n_var; i++) {
        bool holds = result_holds(s, words, v.extra[i]);
        broken[i] = term_kind(v.var[i].term) == TERM_ITEMS && !holds;
        if (term_kind(v.var[i].term) == TERM_CONTAINS && holds) {
            struct count_range r = s->p->schemas.at[term_number(v.var[i].term)].n_contains;
            uint32_t most = r.max == COUNT_MANY ? r.min : r.max + 1; /* more makes no difference */
            v.var[i].state += v.var[i].state < most;
        }
    }
    view_break(s, &v, broken);
    v.phase = ARRAY_NEXT;
    v.n_extra = 0;
    return view_settle(s, &v);
}
