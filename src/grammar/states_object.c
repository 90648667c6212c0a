/* Objects: their properties come in any order, each name once. */
#include "grammar/states_object.h"

#include <stdlib.h>
#include <string.h>

/* ---- shapes ---------------------------------------------------------------------------------------------------- */

void shape_close(struct shape *h)
{
    if (!h)
        return;
    mem_free(h->vars);
    mem_free(h->tree.nodes);
    mem_free(h->names);
    mem_free(h->required);
    mem_free(h->patterns);
    mem_free(h);
}

struct named {
    struct text_ref text; /* first: text_ref_compare sorts these */
    uint32_t name;
};

typedef LIST(struct named) named_list;

static bool add_named(const struct states *s, named_list *list, uint32_t name)
{
    return LIST_PUSH(list, (struct named){s->p->names.at[name], name});
}

static bool add_pattern(struct shape *h, uint32_t *capacity, uint32_t number)
{
    for (uint32_t i = 0; i < h->n_pattern; i++)
        if (h->patterns[i] == number)
            return true;
    if (h->n_pattern == *capacity) {
        void *larger = list_enlarge(h->patterns, capacity, h->n_pattern + 1, sizeof *h->patterns);
        if (!larger)
            return false;
        h->patterns = larger;
    }
    h->patterns[h->n_pattern++] = number;
    return true;
}

/* All names and patterns of a shape's variables. */
static bool collect(const struct states *s, struct shape *h, named_list *list)
{
    const struct program *p = s->p;
    uint32_t capacity = 0;
    bool ok = true;
    for (uint32_t i = 0; i < h->n_var; i++) {
        if (term_kind(h->vars[i]) == TERM_PRESENT) {
            ok &= add_named(s, list, term_number(h->vars[i]));
            continue;
        }
        const struct schema *c = &p->schemas.at[term_number(h->vars[i])];
        for (uint32_t k = 0; ok && k < c->n_prop; k++)
            ok = add_named(s, list, p->props.at[c->props + k].name);
        for (uint32_t k = 0; ok && k < c->n_required; k++)
            ok = add_named(s, list, p->ids.at[c->required + k]);
        for (uint32_t k = 0; ok && k < c->n_pattern; k++) {
            const struct schema_pattern *pattern = &p->patterns.at[c->patterns + k];
            for (uint32_t t = 0; ok && t < pattern->n; t++)
                ok = add_pattern(h, &capacity, term_number(p->terms.at[pattern->first + t].term));
        }
    }
    return ok;
}

static uint32_t find_name(const struct shape *h, const struct program *p, uint32_t name)
{
    uint32_t lo = 0, hi = h->n_name;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (text_ref_compare(&p->names.at[h->names[mid]], &p->names.at[name]) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void mark_required(const struct states *s, struct shape *h)
{
    const struct program *p = s->p;
    for (uint32_t i = 0; i < h->n_var; i++) {
        uint32_t number = term_number(h->vars[i]), *bits = h->required + (size_t)i * h->n_word, one = number;
        const struct schema *c = &p->schemas.at[number];
        bool present = term_kind(h->vars[i]) == TERM_PRESENT;
        for (uint32_t k = 0; k < (present ? 1 : c->n_required); k++) {
            uint32_t at = find_name(h, p, present ? one : p->ids.at[c->required + k]);
            bits[at / 32] |= 1u << at % 32;
        }
    }
}

static bool fill_shape(const struct states *s, struct shape *h, const uint32_t *vars)
{
    named_list list = {0};
    struct text_ref *texts = NULL;
    bool ok = (h->vars = mem_calloc(h->n_var, sizeof *vars)) != NULL;
    if (ok)
        memcpy(h->vars, vars, h->n_var * sizeof *vars);
    ok = ok && collect(s, h, &list);
    if (ok && list.n)
        qsort(list.at, list.n, sizeof *list.at, text_ref_compare);
    ok = ok && (h->names = mem_calloc(list.n + 1, sizeof *h->names)) && (texts = mem_calloc(list.n + 1, sizeof *texts));
    for (uint32_t i = 0; ok && i < list.n; i++)
        if (i == 0 || list.at[i].name != list.at[i - 1].name) {
            texts[h->n_name] = list.at[i].text;
            h->names[h->n_name++] = list.at[i].name;
        }
    h->n_word = (h->n_name + 31) / 32;
    ok = ok && tree_build(&h->tree, texts, h->n_name) &&
         (h->required = mem_calloc((size_t)h->n_var * h->n_word + 1, sizeof *h->required));
    if (ok)
        mark_required(s, h);
    mem_free(texts);
    LIST_CLOSE(&list);
    return ok;
}

const struct shape *object_shape(const struct states *s, const struct view *v)
{
    return s->shapes.at[v->extra[0]];
}

static uint32_t shape_number(struct states *s, const uint32_t *vars, uint32_t n)
{
    uint32_t number = intern_add(&s->shape_keys, vars, n);
    if (number == INTERN_NONE) {
        states_fail(s, ERR_NOMEM);
        return 0;
    }
    if (number < s->shapes.n)
        return number;
    struct shape *h = mem_calloc(1, sizeof *h);
    if (h)
        h->n_var = n;
    if (!h || !fill_shape(s, h, vars) || !LIST_PUSH(&s->shapes, h)) {
        shape_close(h);
        states_fail(s, ERR_NOMEM);
        return 0;
    }
    return number;
}

/* ---- objects --------------------------------------------------------------------------------------------------- */

static bool is_about_names(uint32_t t)
{
    return term_kind(t) == TERM_PROPS || term_kind(t) == TERM_PRESENT;
}

bool object_begin(struct states *s, struct view *v)
{
    uint32_t vars[VIEW_VARS], n = 0;
    for (uint32_t i = 0; i < v->n_var; i++)
        if (is_about_names(v->var[i].term))
            vars[n++] = v->var[i].term;
    v->extra[0] = n ? shape_number(s, vars, n) : 0;
    v->n_extra = 1;
    const struct shape *h = object_shape(s, v);
    if (n && !h)
        return false;
    if (h && 1 + h->n_word + VIEW_VARS + 1 > VIEW_EXTRA) {
        states_fail(s, ERR_LIMIT);
        return false;
    }
    for (uint32_t i = 0; h && i < h->n_word; i++)
        v->extra[v->n_extra++] = 0;
    return true;
}

enum truth object_truth(struct states *s, const struct view *v, const struct view_var *var, bool at_end)
{
    const struct shape *h = object_shape(s, v);
    uint32_t i = 0;
    while (h->vars[i] != var->term)
        i++;
    const uint32_t *required = h->required + (size_t)i * h->n_word;
    bool all = true;
    for (uint32_t w = 0; w < h->n_word; w++)
        all &= (required[w] & ~v->extra[1 + w]) == 0;
    if (term_kind(var->term) == TERM_PRESENT)
        return all ? YES : at_end ? NO : OPEN;
    return !at_end ? OPEN : all ? YES : NO;
}

/* The state that an object without variables has: what was seen does not matter. */
static uint32_t settle(struct states *s, struct view *v)
{
    if (!view_reduce(s, v))
        return 0;
    if (v->n_var == 0) {
        v->extra[0] = 0;
        v->n_extra = 1;
    }
    return view_store(s, v);
}

static uint32_t n_fixed(const struct states *s, const struct view *v)
{
    const struct shape *h = object_shape(s, v);
    return 1 + (h ? h->n_word : 0);
}

/* A name begins: its state goes above the object's. */
static struct state_out begin_name(struct states *s, struct view *v, uint8_t flags)
{
    v->phase = OBJECT_NAME;
    uint32_t own = settle(s, v), child = own ? name_begin(s, own, v) : 0;
    if (!child || !name_possible(s, v, child))
        return (struct state_out){STATE_REFUSE, 0, 0, 0};
    return (struct state_out){STATE_PUSH, flags, own, child};
}

struct state_out object_step(struct states *s, uint32_t state, uint8_t byte)
{
    struct view v;
    struct state_out out = {STATE_REFUSE, 0, 0, 0};
    view_load(s, state, &v);
    if (is_space(byte))
        return (struct state_out){STATE_STAY, STATE_SPACE, state, 0};
    if (byte == '}' && (v.phase == OBJECT_BEGIN || v.phase == OBJECT_NEXT))
        return (struct state_out){STATE_POP, 0, view_end(s, &v), 0};
    if (byte == '"' && (v.phase == OBJECT_BEGIN || v.phase == OBJECT_MORE))
        return begin_name(s, &v, v.phase == OBJECT_BEGIN ? STATE_COUNT : 0);
    if (byte == ',' && v.phase == OBJECT_NEXT) {
        out = begin_name(s, &v, 0); /* whether a name can come at all */
        if (out.op == STATE_REFUSE)
            return out;
        v.phase = OBJECT_MORE;
        return (struct state_out){STATE_STAY, STATE_COUNT, settle(s, &v), 0};
    }
    if (byte == ':' && v.phase == OBJECT_COLON) {
        uint32_t child = v.extra[--v.n_extra];
        v.phase = OBJECT_VALUE;
        return (struct state_out){STATE_PUSH, 0, view_store(s, &v), child};
    }
    return out;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

struct value_roots {
    uint32_t schemas[VIEW_ROOTS], n;
    uint32_t all[VIEW_ROOTS], n_all; /* of one variable */
};

static void add_schema(struct states *s, struct value_roots *r, uint32_t schema)
{
    uint32_t i = 0;
    if (schema != SCHEMA_ANY && schema != SCHEMA_NEVER) {
        while (i < r->n && r->schemas[i] != schema)
            i++;
    }
    if (i == VIEW_ROOTS || r->n_all == VIEW_ROOTS) {
        states_fail(s, ERR_LIMIT);
        return;
    }
    if (schema == SCHEMA_ANY || schema == SCHEMA_NEVER) {
        r->all[r->n_all++] = schema == SCHEMA_ANY ? FORMULA_TRUE : FORMULA_FALSE;
        return;
    }
    if (i == r->n)
        r->schemas[r->n++] = schema;
    r->all[r->n_all++] = formula_var(&s->formulas, term(TERM_ROOT, i));
}

static bool pattern_matches(const struct states *s, const struct shape *h, const struct schema_pattern *pattern,
                            const uint32_t *matches)
{
    for (uint32_t t = 0; t < pattern->n; t++) {
        const struct schema_term *one = &s->p->terms.at[pattern->first + t];
        uint32_t i = 0;
        while (h->patterns[i] != term_number(one->term))
            i++;
        if (!matches[i] == !one->negated)
            return false;
    }
    return true;
}

/* What a property must be for the schema of one variable: roots of the value, all of which must hold. */
static uint32_t property_formula(struct states *s, const struct shape *h, uint32_t schema,
                                 const struct name_verdict *verdict, struct value_roots *r)
{
    const struct program *p = s->p;
    const struct schema *c = &p->schemas.at[schema];
    bool known = false;
    r->n_all = 0;
    if (verdict->name != UINT32_MAX && c->n_prop) {
        struct schema_prop key = {h->names[verdict->name], 0};
        const struct schema_prop *prop =
            bsearch(&key, p->props.at + c->props, c->n_prop, sizeof key, schema_prop_compare);
        known = prop != NULL;
        if (prop)
            add_schema(s, r, prop->schema);
    }
    for (uint32_t i = 0; i < c->n_pattern; i++) {
        const struct schema_pattern *pattern = &p->patterns.at[c->patterns + i];
        if (pattern_matches(s, h, pattern, verdict->patterns)) {
            known = true;
            add_schema(s, r, pattern->schema);
        }
    }
    if (!known)
        add_schema(s, r, c->additional);
    return formula_list(&s->formulas, FORMULA_AND, r->all, r->n_all);
}

struct property_map {
    const struct view *v;
    const uint32_t *formulas; /* [n_var] */
};

static uint32_t map_property(void *user, uint32_t t)
{
    const struct property_map *m = user;
    for (uint32_t i = 0; i < m->v->n_var; i++)
        if (m->v->var[i].term == t)
            return m->formulas[i];
    return FORMULA_TRUE;
}

/* The verdict of a schema on the name; those that look at names have one each, in the order of variables. */
static bool name_holds(const struct states *s, const struct view *v, uint32_t t, const uint32_t *roots)
{
    for (uint32_t i = 0, at = 0; i < v->n_var; i++) {
        bool looks = term_kind(v->var[i].term) == TERM_PROPS &&
                     s->p->schemas.at[term_number(v->var[i].term)].names != SCHEMA_ANY;
        if (looks && v->var[i].term == t)
            return roots[at];
        at += looks;
    }
    return true;
}

uint32_t object_value(struct states *s, struct view *v, const struct name_verdict *verdict, uint32_t from)
{
    const struct shape *h = object_shape(s, v);
    struct value_roots r;
    r.n = 0;
    for (uint32_t i = 0; i < v->n_var; i++) {
        uint32_t t = v->var[i].term, *out = &v->extra[from + i];
        *out = FORMULA_TRUE;
        if (term_kind(t) != TERM_PROPS)
            continue;
        if (name_holds(s, verdict->at_begin ? verdict->at_begin : v, t, verdict->roots))
            *out = property_formula(s, h, term_number(t), verdict, &r);
        else
            *out = FORMULA_FALSE;
    }
    struct property_map map = {v, v->extra + from};
    uint32_t goal = view_hope(s, v, map_property, &map);
    return goal == FORMULA_FALSE ? 0 : value_state(s, r.schemas, r.n, goal);
}

/* The name has ended: words of the result are [name + 1, state of the object, verdicts, matches]. */
static uint32_t after_name(struct states *s, struct view *v, const uint32_t *words)
{
    const struct shape *h = object_shape(s, v);
    struct view begin;
    struct name_verdict verdict = {words[1] - 1, words + 4, words + 4 + words[3], &begin};
    view_load(s, words[2], &begin);
    if (h && verdict.name != UINT32_MAX) {
        if (bit_at(v->extra + 1, verdict.name))
            return 0;
        v->extra[1 + verdict.name / 32] |= 1u << verdict.name % 32;
    }
    if (!view_reduce(s, v))
        return 0;
    uint32_t from = n_fixed(s, v), child = object_value(s, v, &verdict, from);
    v->phase = OBJECT_COLON;
    v->n_extra = from + v->n_var + 1;
    v->extra[v->n_extra - 1] = child;
    return child ? view_store(s, v) : 0;
}

static uint32_t after_value(struct states *s, struct view *v, const uint32_t *result)
{
    const uint32_t *formulas = v->extra + n_fixed(s, v);
    bool broken[VIEW_VARS];
    for (uint32_t i = 0; i < v->n_var; i++)
        broken[i] = !result_holds(s, result, formulas[i]);
    view_break(s, v, broken);
    v->phase = OBJECT_NEXT;
    v->n_extra = n_fixed(s, v);
    return settle(s, v);
}

uint32_t object_after(struct states *s, uint32_t state, uint32_t result)
{
    uint32_t n, words[4 + VIEW_ROOTS + VIEW_EXTRA];
    struct view v;
    const uint32_t *w = intern_words(&s->contents, result, &n);
    memcpy(words, w, n * sizeof *w);
    view_load(s, state, &v);
    return v.phase == OBJECT_NAME ? after_name(s, &v, words) : after_value(s, &v, words);
}
