/* Names of properties. Their state has as roots what schemas say about names (propertyNames), and as `extra` the state
 * of the object and, for each pattern of its shape, the pattern and how far it matched. Where the name is among those
 * that the object knows is a register beside the state: a place in the shape's tree. */
#include <string.h>

#include "grammar/states_object.h"

enum { NAME_OTHER = 1 /* flag of a record: a name that the object does not know may still become of it */ };

void names_info_close(struct names_info *info)
{
    mem_free(info);
}

static uint32_t lex_phase(const struct states *s, uint32_t state)
{
    uint32_t n;
    return intern_words(&s->contents, state, &n)[1];
}

static uint32_t object_of(const struct states *s, uint32_t state)
{
    uint32_t n;
    const uint32_t *w = intern_words(&s->contents, state, &n);
    return w[6 + w[3] + 2 * w[4]];
}

struct name_map {
    struct states *s;
    uint32_t n_root;
    uint32_t *roots;
};

static uint32_t map_name(void *user, uint32_t t)
{
    struct name_map *m = user;
    if (term_kind(t) != TERM_PROPS)
        return FORMULA_TRUE;
    for (uint32_t i = 0; i < m->n_root; i++)
        if (m->roots[i] == t)
            return formula_var(&m->s->formulas, term(TERM_ROOT, i));
    return FORMULA_TRUE;
}

static void name_view(struct states *s, uint32_t state, const struct view *object, struct view *v)
{
    uint32_t terms[VIEW_VARS];
    const struct shape *h = object_shape(s, object);
    struct name_map map = {s, 0, terms};
    v->kind = STATE_NAME;
    v->phase = LEX_PLAIN;
    v->n_root = 0;
    for (uint32_t i = 0; i < object->n_var; i++) {
        uint32_t t = object->var[i].term;
        if (term_kind(t) != TERM_PROPS || s->p->schemas.at[term_number(t)].names == SCHEMA_ANY)
            continue;
        if (v->n_root == VIEW_ROOTS) {
            states_fail(s, ERR_LIMIT);
            break;
        }
        terms[v->n_root] = t;
        v->root[v->n_root++] = schema_formula(s, s->p->schemas.at[term_number(t)].names, KIND_NAME);
    }
    map.n_root = v->n_root;
    v->goal = view_hope(s, object, map_name, &map);
    view_add_vars(s, v);
    v->extra[0] = state;
    v->n_extra = 1;
    for (uint32_t i = 0; h && i < h->n_pattern && v->n_extra + 2 < VIEW_EXTRA; i++) {
        v->extra[v->n_extra++] = h->patterns[i];
        v->extra[v->n_extra++] = text_start(s, h->patterns[i], 0, true);
    }
}

uint32_t name_begin(struct states *s, uint32_t state, const struct view *object)
{
    struct view v;
    name_view(s, state, object, &v);
    return view_settle(s, &v);
}

/* ---- which names may come -------------------------------------------------------------------------------------- */

/* Verdicts on a name that the object knows, as if it had been read; fills roots and patterns. */
static void judge_known(struct states *s, const struct view *begin, struct text_ref name, uint32_t *roots,
                        uint32_t *patterns)
{
    struct view v;
    uint32_t n_char = (uint32_t)utf8_count(name.s, name.n);
    const uint8_t *bytes = (const uint8_t *)name.s;
    view_copy(&v, begin);
    string_feed(s, &v, bytes, name.n);
    for (uint32_t i = 0; i < v.n_var; i++)
        v.var[i].state += term_kind(v.var[i].term) == TERM_COUNT ? n_char : 0;
    v.goal = FORMULA_TRUE; /* the verdicts are wanted whatever they are */
    uint32_t n, result = view_end(s, &v);
    memcpy(roots, intern_words(&s->contents, result, &n) + 1, v.n_root * sizeof *roots);
    for (uint32_t i = 1; i + 1 < v.n_extra; i += 2) {
        uint32_t state = v.extra[i + 1];
        for (uint32_t k = 0; k < name.n && state; k++)
            state = states_step(s, state, bytes[k]).next;
        patterns[i / 2] = state && s->records.at[state].flags & TEXT_ENDS;
    }
}

static struct names_info *make_info(struct states *s, uint32_t object_state, const struct view *object)
{
    const struct shape *h = object_shape(s, object);
    struct view begin, copy;
    struct names_info *info = mem_calloc(1, sizeof *info + h->n_word * sizeof *info->possible);
    if (!info) {
        states_fail(s, ERR_NOMEM);
        return NULL;
    }
    s->n_bytes += sizeof *info + h->n_word * sizeof *info->possible;
    info->n_word = h->n_word;
    name_view(s, object_state, object, &begin);
    for (uint32_t i = 0; i < h->n_name && states_good(s); i++) {
        uint32_t roots[VIEW_ROOTS], patterns[VIEW_EXTRA / 2];
        struct name_verdict verdict = {i, roots, patterns, NULL};
        if (begin.n_root || h->n_pattern)
            judge_known(s, &begin, s->p->names.at[h->names[i]], roots, patterns);
        view_copy(&copy, object);
        if (object_value(s, &copy, &verdict, 1 + h->n_word))
            info->possible[i / 32] |= 1u << i % 32;
    }
    return info;
}

/* The info of an object, kept with a state that stands for all that differ from it only in what was seen. */
static const struct names_info *info_of(struct states *s, uint32_t object_state)
{
    struct view v;
    view_load(s, object_state, &v);
    const struct shape *h = object_shape(s, &v);
    for (uint32_t i = 0; i < h->n_word; i++)
        v.extra[1 + i] = 0;
    v.phase = OBJECT_NAME;
    v.n_extra = 1 + h->n_word;
    uint32_t stands_for = view_store(s, &v);
    if (!stands_for)
        return NULL;
    if (!s->records.at[stands_for].names) {
        struct names_info *info = make_info(s, stands_for, &v);
        s->records.at[stands_for].names = info;
    }
    return s->records.at[stands_for].names;
}

/* Whether a name below a place in the tree may come: it is possible and was not seen. */
static bool any_known(struct states *s, uint32_t object_state, uint32_t node)
{
    uint32_t n;
    const uint32_t *w = intern_words(&s->contents, object_state, &n);
    const struct shape *h = s->shapes.at[w[6 + w[3] + 2 * w[4]]];
    if (!h || node == TREE_NONE)
        return false;
    const struct names_info *info = info_of(s, object_state);
    w = intern_words(&s->contents, object_state, &n);
    const uint32_t *seen = w + 7 + w[3] + 2 * w[4];
    for (uint32_t i = h->tree.nodes[node].lo; info && i < h->tree.nodes[node].hi; i++)
        if (bit_at(info->possible, i) && !bit_at(seen, i))
            return true;
    return false;
}

bool name_possible(struct states *s, const struct view *object, uint32_t name_state)
{
    return s->records.at[name_state].flags & NAME_OTHER || any_known(s, object_of(s, name_state), 0);
}

/* Whether a name that the object doesn't know leads to a value if these patterns match. */
static bool try_other(struct states *s, const struct view *object, const uint32_t *matches)
{
    uint32_t roots[VIEW_ROOTS];
    struct view copy;
    const struct shape *h = object_shape(s, object);
    view_copy(&copy, object);
    struct name_verdict verdict = {UINT32_MAX, roots, matches, NULL};
    for (uint32_t i = 0; i < VIEW_ROOTS; i++)
        roots[i] = FORMULA_TRUE; /* they are looked at by the state's own goal */
    return object_value(s, &copy, &verdict, 1 + (h ? h->n_word : 0)) != 0;
}

void name_describe(struct states *s, uint32_t state, struct state_record *r)
{
    struct view v, object;
    uint32_t matches[VIEW_EXTRA / 2], open[VIEW_EXTRA / 2], n_open = 0;
    view_load(s, state, &v);
    view_load(s, v.extra[0], &object);
    for (uint32_t i = 1; i + 1 < v.n_extra; i += 2) {
        bool all = v.extra[i + 1] && s->records.at[v.extra[i + 1]].flags & TEXT_TAKES_ALL;
        matches[i / 2] = all;
        if (v.extra[i + 1] && !all)
            open[n_open++] = i / 2;
    }
    bool none = try_other(s, &object, matches), any = none, every = none;
    for (uint32_t i = 0; i < n_open; i++) {
        matches[open[i]] = 1;
        bool one = try_other(s, &object, matches);
        any |= one;
        every &= one;
        matches[open[i]] = 0;
    }
    for (uint32_t i = 0; i < n_open; i++)
        matches[open[i]] = 1;
    if (n_open > 1) {
        bool all = try_other(s, &object, matches);
        any |= all;
        every &= all;
    }
    r->flags = any ? NAME_OTHER : 0;
    r->free_chars = every && v.n_var == 0 && v.phase == LEX_PLAIN;
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

static uint32_t end_name(struct states *s, uint32_t state, uint32_t node)
{
    uint32_t words[4 + VIEW_ROOTS + VIEW_EXTRA / 2] = {STATE_RESULT}, n = 4, n_result;
    struct view v, object;
    view_load(s, state, &v);
    view_load(s, v.extra[0], &object);
    const struct shape *h = object_shape(s, &object);
    words[1] = h && node != TREE_NONE ? (uint32_t)(h->tree.nodes[node].string + 1) : 0;
    words[2] = v.extra[0];
    words[3] = v.n_root;
    uint32_t result = view_end(s, &v);
    if (!result)
        return 0;
    memcpy(words + n, intern_words(&s->contents, result, &n_result) + 1, v.n_root * sizeof *words);
    n += v.n_root;
    for (uint32_t i = 1; i + 1 < v.n_extra; i += 2)
        words[n++] = v.extra[i + 1] && s->records.at[v.extra[i + 1]].flags & TEXT_ENDS;
    return state_add(s, words, n);
}

struct name_trial {
    struct states *s;
    uint32_t object, node;
};

static uint32_t walk(const struct shape *h, uint32_t node, const uint8_t *bytes, unsigned n)
{
    for (unsigned i = 0; i < n && node != TREE_NONE; i++)
        node = tree_child(&h->tree, node, bytes[i]);
    return node;
}

static bool try_known(void *user, const uint8_t *bytes, unsigned n)
{
    struct name_trial *t = user;
    uint32_t n_word;
    const uint32_t *w = intern_words(&t->s->contents, t->object, &n_word);
    const struct shape *h = t->s->shapes.at[w[6 + w[3] + 2 * w[4]]];
    return h && any_known(t->s, t->object, walk(h, t->node, bytes, n));
}

struct state_out states_step_name(struct states *s, uint32_t state, uint32_t *node, uint8_t byte)
{
    const struct state_out refuse = {STATE_REFUSE, 0, 0, 0};
    struct lexed lex;
    if (!lex_string(lex_phase(s, state), byte, &lex))
        return refuse;
    if (lex.ends) {
        uint32_t result = end_name(s, state, *node);
        return result ? (struct state_out){STATE_POP, 0, result, 0} : refuse;
    }
    struct state_out out = states_step(s, state, byte);
    if (out.op == STATE_REFUSE)
        return refuse;
    uint32_t n, object = object_of(s, state);
    const uint32_t *w = intern_words(&s->contents, object, &n);
    const struct shape *h = s->shapes.at[w[6 + w[3] + 2 * w[4]]];
    *node = h ? walk(h, *node, lex.bytes, lex.n) : TREE_NONE;
    if (s->records.at[out.next].flags & NAME_OTHER)
        return out;
    struct name_trial trial = {s, object, *node};
    return any_known(s, object, *node) && lex_may_finish(lex.next, try_known, &trial) ? out : refuse;
}
