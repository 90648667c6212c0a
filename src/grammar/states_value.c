/* Before a value, and null, true and false: schemas become formulas for the kind of value that a first byte says. */
#include <string.h>

#include "grammar/states_view.h"

/* ---- schemas as formulas --------------------------------------------------------------------------------------- */

static void push(struct states *s, uint32_t x)
{
    if (!LIST_PUSH(&s->formulas.stack, x))
        s->formulas.failed = true;
}

/* The list of what was pushed since `from`, which is taken off. */
static uint32_t pop_list(struct states *s, enum formula_op op, uint32_t from)
{
    struct formulas *f = &s->formulas;
    uint32_t n = f->stack.n - from;
    if (f->failed || !LIST_ROOM(&f->stack, n + 1)) {
        f->failed = true;
        return FORMULA_FALSE;
    }
    uint32_t x = formula_list(f, op, LIST_FROM(&f->stack, from), n);
    f->stack.n = from;
    return x;
}

static uint32_t pair(struct states *s, enum formula_op op, uint32_t a, uint32_t b)
{
    uint32_t xs[2] = {a, b};
    return formula_list(&s->formulas, op, xs, 2);
}

static uint32_t group_formula(struct states *s, const struct schema_group *g, enum json_kind kind)
{
    struct formulas *f = &s->formulas;
    const uint32_t *ids = LIST_FROM(&s->p->ids, g->first);
    uint32_t from = f->stack.n, x;
    switch (g->kind) {
    case GROUP_NOT: return formula_not(f, schema_formula(s, ids[0], kind));
    case GROUP_IF:
        x = schema_formula(s, ids[0], kind);
        return pair(s, FORMULA_AND, pair(s, FORMULA_OR, formula_not(f, x), schema_formula(s, ids[1], kind)),
                    pair(s, FORMULA_OR, x, schema_formula(s, ids[2], kind)));
    case GROUP_PRESENT:
        return pair(s, FORMULA_OR, formula_not(f, formula_var(f, term(TERM_PRESENT, g->name))),
                    schema_formula(s, ids[0], kind));
    default: break;
    }
    for (uint32_t i = 0; i < g->n; i++)
        push(s, schema_formula(s, ids[i], kind));
    return pop_list(s, g->kind == GROUP_ALL ? FORMULA_AND : g->kind == GROUP_ANY ? FORMULA_OR : FORMULA_ONE, from);
}

static uint32_t make_formula(struct states *s, uint32_t schema, enum json_kind kind)
{
    const struct schema *c = &s->p->schemas.at[schema];
    struct formulas *f = &s->formulas;
    uint32_t from = f->stack.n;
    if (!(c->types >> kind & 1))
        return FORMULA_FALSE;
    for (uint32_t i = 0; i < c->n_term; i++) {
        const struct schema_term *t = &s->p->terms.at[c->terms + i];
        if (t->types >> kind & 1)
            push(s, t->negated ? formula_not(f, formula_var(f, t->term)) : formula_var(f, t->term));
    }
    if (kind == KIND_ARRAY && c->has_items)
        push(s, formula_var(f, term(TERM_ITEMS, schema)));
    if (kind == KIND_ARRAY && c->has_contains)
        push(s, formula_var(f, term(TERM_CONTAINS, schema)));
    if (kind == KIND_OBJECT && c->has_props)
        push(s, formula_var(f, term(TERM_PROPS, schema)));
    for (uint32_t i = 0; i < c->n_group; i++) {
        const struct schema_group *g = &s->p->groups.at[c->groups + i];
        if (g->types >> kind & 1)
            push(s, group_formula(s, g, kind));
    }
    return pop_list(s, FORMULA_AND, from);
}

uint32_t schema_formula(struct states *s, uint32_t schema, enum json_kind kind)
{
    uint32_t *known = &s->schema_formulas[(size_t)schema * N_KIND + kind];
    if (*known == 0)
        *known = make_formula(s, schema, kind) + 1;
    return *known - 1;
}

/* ---- before a value -------------------------------------------------------------------------------------------- */

/* The view of a value of this kind, before its first byte; v: of the STATE_VALUE. */
static void begin_kind(struct states *s, struct view *v, enum json_kind kind, enum state_kind state)
{
    v->kind = state;
    v->phase = v->n_extra = 0;
    for (uint32_t i = 0; i < v->n_root; i++)
        v->root[i] = schema_formula(s, v->root[i], kind);
    view_add_vars(s, v);
}

uint32_t value_state(struct states *s, const uint32_t *schemas, uint32_t n, uint32_t goal)
{
    struct view v = {.kind = STATE_VALUE, .goal = goal, .n_root = n};
    bool possible = false;
    if (n > VIEW_ROOTS) {
        states_fail(s, ERR_LIMIT);
        return 0;
    }
    for (enum json_kind kind = KIND_NULL; kind < KIND_NAME && !possible; kind++) {
        for (uint32_t i = 0; i < n; i++)
            v.root[i] = schema_formula(s, schemas[i], kind);
        possible = view_hope(s, &v, formula_map_true, NULL) != FORMULA_FALSE;
    }
    for (uint32_t i = 0; i < n; i++)
        v.root[i] = schemas[i];
    return possible ? view_store(s, &v) : 0;
}

static const struct {
    const char *text;
    enum json_kind kind;
} literals[] = {{"null", KIND_NULL}, {"false", KIND_FALSE}, {"true", KIND_TRUE}};

static uint32_t begin_literal(struct states *s, struct view *v, uint32_t which)
{
    begin_kind(s, v, literals[which].kind, STATE_LITERAL);
    uint32_t words[3] = {STATE_LITERAL, which << 8 | 1, view_end(s, v)};
    return words[2] ? state_add(s, words, 3) : 0;
}

struct state_out value_step(struct states *s, uint32_t state, uint8_t byte)
{
    struct view v;
    struct state_out out = {STATE_STAY, 0, 0, 0};
    if (is_space(byte))
        return (struct state_out){STATE_STAY, STATE_SPACE, state, 0};
    view_load(s, state, &v);
    switch (byte) {
    case 'n': out.next = begin_literal(s, &v, 0); break;
    case 'f': out.next = begin_literal(s, &v, 1); break;
    case 't': out.next = begin_literal(s, &v, 2); break;
    case '"':
        begin_kind(s, &v, KIND_STRING, STATE_STRING);
        out.next = view_settle(s, &v);
        break;
    case '[':
        begin_kind(s, &v, KIND_ARRAY, STATE_ARRAY);
        out.next = view_settle(s, &v);
        break;
    case '{':
        begin_kind(s, &v, KIND_OBJECT, STATE_OBJECT);
        out.next = object_begin(s, &v) ? view_settle(s, &v) : 0;
        break;
    default:
        if (byte != '-' && (byte < '0' || byte > '9'))
            break;
        begin_kind(s, &v, KIND_NUMBER, STATE_NUMBER);
        out.next = view_settle(s, &v);
        return out.next ? number_step(s, out.next, byte) : out;
    }
    return out;
}

struct state_out literal_step(struct states *s, uint32_t state, uint8_t byte)
{
    uint32_t n;
    const uint32_t *w = intern_words(&s->contents, state, &n);
    const char *text = literals[w[1] >> 8].text;
    uint32_t at = w[1] & 0xff, words[3] = {STATE_LITERAL, w[1] + 1, w[2]};
    if (byte != (uint8_t)text[at])
        return (struct state_out){STATE_REFUSE, 0, 0, 0};
    if (text[at + 1] == '\0')
        return (struct state_out){STATE_POP, 0, words[2], 0};
    return (struct state_out){STATE_STAY, 0, state_add(s, words, 3), 0};
}
