#include "grammar/states.h"

#include <string.h>

#include "grammar/states_view.h"

/* ---- storing --------------------------------------------------------------------------------------------------- */

void states_fail(struct states *s, err_code code)
{
    if (s->failed == ERR_OK)
        s->failed = code;
}

/* Where the register changes the state: at the next bound of any count. */
static void describe_counts(struct states *s, uint32_t state, struct state_record *r)
{
    struct view v;
    view_load(s, state, &v);
    for (uint32_t i = 0; i < v.n_var; i++) {
        if (term_kind(v.var[i].term) != TERM_COUNT)
            continue;
        struct count_range c = s->p->counts.at[term_number(v.var[i].term)];
        uint32_t at = v.var[i].state == 0 ? c.min : c.max == COUNT_MANY ? NO_THRESHOLD : c.max + 1;
        r->threshold = at < r->threshold ? at : r->threshold;
    }
}

static void describe(struct states *s, uint32_t state, const uint32_t *words)
{
    struct state_record r = {.kind = (uint8_t)words[0], .threshold = NO_THRESHOLD, .limit = NO_THRESHOLD};
    s->records.at[state] = r;
    switch ((enum state_kind)r.kind) {
    case STATE_TEXT: text_describe(s, state, &r); break;
    case STATE_STRING:
        describe_counts(s, state, &r);
        string_describe(s, state, &r);
        break;
    case STATE_ARRAY:
    case STATE_OBJECT: describe_counts(s, state, &r); break;
    case STATE_NAME: name_describe(s, state, &r); break;
    default: break;
    }
    s->records.at[state] = r;
}

uint32_t state_add(struct states *s, const uint32_t *words, uint32_t n)
{
    if (!states_good(s))
        return 0;
    uint32_t state = intern_add(&s->contents, words, n), kind = words[0] & 0xff;
    if (state == INTERN_NONE || (state == s->records.n && !LIST_PUSH(&s->records, (struct state_record){0}))) {
        states_fail(s, ERR_NOMEM);
        return 0;
    }
    if (state + 1 < s->records.n || s->records.at[state].kind)
        return state;
    describe(s, state, &kind);
    if (s->contents.n > s->max || states_bytes(s) > STATES_MAX_BYTES)
        states_fail(s, ERR_LIMIT);
    return state;
}

void view_load(const struct states *s, uint32_t state, struct view *v)
{
    uint32_t n;
    const uint32_t *w = intern_words(&s->contents, state, &n);
    v->kind = (enum state_kind)(w[0] & 0xff);
    v->phase = w[1];
    v->goal = w[2];
    v->n_root = w[3];
    v->n_var = w[4];
    v->n_extra = w[5];
    w += 6;
    memcpy(v->root, w, v->n_root * sizeof *w);
    memcpy(v->var, w + v->n_root, v->n_var * sizeof *v->var);
    memcpy(v->extra, w + v->n_root + 2 * v->n_var, v->n_extra * sizeof *w);
}

uint32_t view_store(struct states *s, const struct view *v)
{
    uint32_t w[6 + VIEW_ROOTS + 2 * VIEW_VARS + VIEW_EXTRA];
    w[0] = v->kind;
    w[1] = v->phase;
    w[2] = v->goal;
    w[3] = v->n_root;
    w[4] = v->n_var;
    w[5] = v->n_extra;
    memcpy(w + 6, v->root, v->n_root * sizeof *w);
    memcpy(w + 6 + v->n_root, v->var, v->n_var * sizeof *v->var);
    memcpy(w + 6 + v->n_root + 2 * v->n_var, v->extra, v->n_extra * sizeof *w);
    return state_add(s, w, 6 + v->n_root + 2 * v->n_var + v->n_extra);
}

/* ---- formulas and variables ------------------------------------------------------------------------------------ */

enum truth var_truth(struct states *s, const struct view *v, const struct view_var *var, bool at_end)
{
    switch (term_kind(var->term)) {
    case TERM_REGEX:
        if (var->state == 0)
            return NO;
        if (at_end)
            return s->records.at[var->state].flags & TEXT_ENDS ? YES : NO;
        return s->records.at[var->state].flags & TEXT_TAKES_ALL ? YES : OPEN;
    case TERM_SET:
        if (var->state == TREE_NONE)
            return NO;
        return !at_end ? OPEN : s->p->sets.at[term_number(var->term)].nodes[var->state].string >= 0 ? YES : NO;
    case TERM_COUNT: {
        struct count_range r = s->p->counts.at[term_number(var->term)];
        if (v->kind == STATE_NAME) /* counted in the state itself */
            return var->state > r.max              ? NO
                   : var->state < r.min            ? (at_end ? NO : OPEN)
                   : at_end || r.max == COUNT_MANY ? YES
                                                   : OPEN;
        return var->state > 1                  ? NO
               : var->state == 0               ? (at_end ? NO : OPEN)
               : at_end || r.max == COUNT_MANY ? YES
                                               : OPEN;
    }
    case TERM_BOUND:
    case TERM_MULTIPLE:
    case TERM_INTEGER: return number_truth(s, v, var, at_end);
    case TERM_CONTAINS: {
        struct count_range r = s->p->schemas.at[term_number(var->term)].n_contains;
        return var->state > r.max              ? NO
               : var->state < r.min            ? (at_end ? NO : OPEN)
               : at_end || r.max == COUNT_MANY ? YES
                                               : OPEN;
    }
    case TERM_ITEMS: return at_end ? YES : OPEN;
    case TERM_PROPS:
    case TERM_PRESENT: return object_truth(s, v, var, at_end);
    case TERM_ROOT: break;
    }
    return OPEN;
}

struct decided {
    struct states *s;
    const struct view *v;
    uint8_t *truth; /* [n_var] */
    bool *used;     /* [n_var] */
};

/* Variables are few: they are looked for one by one. */
static uint32_t find_var(const struct view *v, uint32_t t)
{
    uint32_t i = 0;
    while (i < v->n_var && v->var[i].term != t)
        i++;
    return i;
}

static uint32_t map_decided(void *user, uint32_t t)
{
    struct decided *d = user;
    uint32_t i = find_var(d->v, t);
    return d->truth[i] == OPEN ? formula_var(&d->s->formulas, t) : d->truth[i] == YES ? FORMULA_TRUE : FORMULA_FALSE;
}

static void see_used(void *user, uint32_t t, bool negated)
{
    struct decided *d = user;
    d->used[find_var(d->v, t)] = true;
}

struct hope {
    struct states *s;
    const struct view *v;
    formula_map_fn *map;
    void *user;
};

static uint32_t map_root(void *user, uint32_t t)
{
    const struct hope *h = user;
    return formula_map(&h->s->formulas, h->v->root[term_number(t)], true, h->map, h->user);
}

uint32_t view_hope(struct states *s, const struct view *v, formula_map_fn *map, void *user)
{
    struct hope h = {s, v, map, user};
    return formula_map(&s->formulas, v->goal, true, map_root, &h);
}

uint32_t formula_map_true(void *user, uint32_t t)
{
    return FORMULA_TRUE;
}

bool view_reduce(struct states *s, struct view *v)
{
    uint8_t truth[VIEW_VARS];
    bool used[VIEW_VARS] = {0}, any = false, waits = v->kind == STATE_ARRAY && v->n_extra > 0;
    struct decided d = {s, v, truth, used};
    for (uint32_t i = 0; i < v->n_var; i++)
        any |= (truth[i] = (uint8_t)var_truth(s, v, &v->var[i], false)) != OPEN;
    for (uint32_t i = 0; i < v->n_root; i++) {
        if (any)
            v->root[i] = formula_map(&s->formulas, v->root[i], false, map_decided, &d);
        formula_each_var(&s->formulas, v->root[i], false, see_used, &d);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < v->n_var; i++) {
        if (!used[i])
            continue;
        if (waits) /* what waits for an item stands beside its variable */
            v->extra[kept] = v->extra[i];
        v->var[kept++] = v->var[i];
    }
    if (waits)
        v->n_extra = kept;
    v->n_var = kept;
    return view_hope(s, v, formula_map_true, NULL) != FORMULA_FALSE;
}

uint32_t view_settle(struct states *s, struct view *v)
{
    return view_reduce(s, v) ? view_store(s, v) : 0;
}

static uint32_t map_result(void *user, uint32_t t)
{
    const uint32_t *result = user;
    return result[1 + term_number(t)];
}

bool result_holds(struct states *s, const uint32_t *result, uint32_t formula)
{
    return formula_map(&s->formulas, formula, false, map_result, (void *)result) == FORMULA_TRUE;
}

struct broken {
    struct states *s;
    const struct view *v;
    const bool *broken;
};

static uint32_t map_broken(void *user, uint32_t t)
{
    const struct broken *b = user;
    return b->broken[find_var(b->v, t)] ? FORMULA_FALSE : formula_var(&b->s->formulas, t);
}

void view_break(struct states *s, struct view *v, const bool *broken)
{
    struct broken b = {s, v, broken};
    for (uint32_t i = 0; i < v->n_root; i++)
        v->root[i] = formula_map(&s->formulas, v->root[i], false, map_broken, &b);
}

uint32_t view_end(struct states *s, const struct view *v)
{
    uint8_t truth[VIEW_VARS];
    uint32_t result[1 + VIEW_ROOTS] = {STATE_RESULT};
    struct decided d = {s, v, truth, NULL};
    for (uint32_t i = 0; i < v->n_var; i++)
        truth[i] = (uint8_t)var_truth(s, v, &v->var[i], true);
    for (uint32_t i = 0; i < v->n_root; i++)
        result[1 + i] = formula_map(&s->formulas, v->root[i], false, map_decided, &d);
    if (formula_map(&s->formulas, v->goal, true, map_result, result) == FORMULA_FALSE)
        return 0;
    return state_add(s, result, 1 + v->n_root);
}

static void see_new(void *user, uint32_t t, bool negated)
{
    struct decided *d = user;
    struct view *v = (struct view *)d->v;
    if (find_var(v, t) < v->n_var)
        return;
    if (v->n_var == VIEW_VARS) {
        states_fail(d->s, ERR_LIMIT);
        return;
    }
    v->var[v->n_var++] = (struct view_var){t, 0};
}

void view_add_vars(struct states *s, struct view *v)
{
    struct decided d = {s, v, NULL, NULL};
    v->n_var = 0;
    for (uint32_t i = 0; i < v->n_root; i++)
        formula_each_var(&s->formulas, v->root[i], false, see_new, &d);
    for (uint32_t i = 0; i < v->n_var; i++) {
        uint32_t t = v->var[i].term;
        if (term_kind(t) == TERM_REGEX)
            v->var[i].state = text_start(s, term_number(t), 0, true);
        else if (term_kind(t) == TERM_COUNT && v->kind != STATE_NAME) /* 0: below its least, 1: above; then too many */
            v->var[i].state = s->p->counts.at[term_number(t)].min == 0;
    }
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

static size_t memo_slot(const struct states *s, uint64_t key)
{
    uint64_t h = (key ^ key >> 31) * 0x9e3779b97f4a7c15u;
    size_t at = (h >> 20) & (s->memo_size - 1);
    while (s->memo[at].key && s->memo[at].key != key)
        at = (at + 1) & (s->memo_size - 1);
    return at;
}

static void memo_put(struct states *s, uint64_t key, struct state_out out)
{
    if ((s->n_memo + 1) * 2 > s->memo_size) {
        struct memo_entry *old = s->memo;
        size_t n = s->memo_size;
        struct memo_entry *larger = mem_calloc(n * 2, sizeof *larger);
        if (!larger) {
            states_fail(s, ERR_NOMEM);
            return;
        }
        s->memo = larger;
        s->memo_size = n * 2;
        for (size_t i = 0; i < n; i++)
            if (old[i].key)
                s->memo[memo_slot(s, old[i].key)] = old[i];
        mem_free(old);
    }
    s->memo[memo_slot(s, key)] = (struct memo_entry){key, out};
    s->n_memo++;
}

static struct state_out compute(struct states *s, uint32_t state, uint8_t byte)
{
    switch (state_kind(s, state)) {
    case STATE_TEXT: return text_step(s, state, byte);
    case STATE_VALUE: return value_step(s, state, byte);
    case STATE_LITERAL: return literal_step(s, state, byte);
    case STATE_STRING:
    case STATE_NAME: return string_step(s, state, byte);
    case STATE_NUMBER: return number_step(s, state, byte);
    case STATE_ARRAY: return array_step(s, state, byte);
    case STATE_OBJECT: return object_step(s, state, byte);
    default: return (struct state_out){STATE_REFUSE, 0, 0, 0};
    }
}

enum { ROW_AFTER = 48, ROW_UNKNOWN = 0xff };
/* What a state is asked beside bytes: with a result, with another state, with a register at its threshold. */
static const uint32_t SYM_AFTER = 0x80000000, SYM_UNION = 0x40000000, SYM_BUMP = 256;

static struct state_out *make_row(struct states *s)
{
    struct state_out *row = mem_alloc(256 * sizeof *row);
    for (unsigned i = 0; row && i < 256; i++)
        row[i] = (struct state_out){ROW_UNKNOWN, 0, 0, 0};
    s->n_bytes += row ? 256 * sizeof *row : 0;
    return row;
}

struct state_out states_step(struct states *s, uint32_t state, uint8_t byte)
{
    struct state_record *r = &s->records.at[state];
    if (r->row && r->row[byte].op != ROW_UNKNOWN)
        return r->row[byte];
    uint64_t key = (uint64_t)state << 32 | byte;
    const struct memo_entry *entry = &s->memo[memo_slot(s, key)];
    struct state_out out = entry->out;
    if (entry->key == 0) {
        out = compute(s, state, byte);
        if (out.op != STATE_REFUSE && out.next == 0)
            out = (struct state_out){STATE_REFUSE, 0, 0, 0};
        if (!states_good(s))
            return (struct state_out){STATE_REFUSE, 0, 0, 0};
        memo_put(s, key, out);
    }
    r = &s->records.at[state];
    if (!r->row && r->n_step++ >= ROW_AFTER)
        r->row = make_row(s);
    if (r->row)
        r->row[byte] = out;
    return out;
}

struct state_out states_after(struct states *s, uint32_t state, uint32_t result)
{
    uint64_t key = (uint64_t)state << 32 | SYM_AFTER | result;
    const struct memo_entry *entry = &s->memo[memo_slot(s, key)];
    if (entry->key)
        return entry->out;
    struct state_out out = {STATE_STAY, 0, 0, 0};
    uint32_t n;
    const uint32_t *w = intern_words(&s->contents, state, &n);
    switch (state_kind(s, state)) {
    case STATE_AFTER: out.next = text_start(s, w[1], w[2], false); break;
    case STATE_ARRAY: out.next = array_after(s, state, result); break;
    case STATE_OBJECT: out.next = object_after(s, state, result); break;
    default: break;
    }
    out.op = out.next ? STATE_STAY : STATE_REFUSE;
    if (states_good(s))
        memo_put(s, key, out);
    return out;
}

/* Each count whose bound the register has reached is one class further. */
static uint32_t bump(struct states *s, uint32_t state)
{
    struct view v;
    uint32_t threshold = s->records.at[state].threshold;
    view_load(s, state, &v);
    for (uint32_t i = 0; i < v.n_var; i++) {
        if (term_kind(v.var[i].term) != TERM_COUNT)
            continue;
        struct count_range r = s->p->counts.at[term_number(v.var[i].term)];
        if (v.var[i].state == 0 && r.min == threshold)
            v.var[i].state = 1;
        else if (v.var[i].state == 1 && r.max + 1 == threshold)
            v.var[i].state = 2;
    }
    return view_settle(s, &v);
}

uint32_t states_bump(struct states *s, uint32_t state)
{
    uint64_t key = (uint64_t)state << 32 | SYM_BUMP;
    const struct memo_entry *entry = &s->memo[memo_slot(s, key)];
    if (entry->key)
        return entry->out.next;
    struct state_out out = {STATE_STAY, 0, bump(s, state), 0};
    if (states_good(s))
        memo_put(s, key, out);
    return out.next;
}

uint32_t states_union(struct states *s, uint32_t a, uint32_t b)
{
    if (!a || !b || a == b)
        return a ? a : b;
    uint64_t key = (uint64_t)a << 32 | SYM_UNION | b;
    const struct memo_entry *entry = &s->memo[memo_slot(s, key)];
    if (entry->key)
        return entry->out.next;
    uint32_t n_a, n_b;
    const uint32_t *x = intern_words(&s->contents, a, &n_a), *y = intern_words(&s->contents, b, &n_b);
    uint32_t *words = mem_calloc((size_t)n_a + n_b, sizeof *words), n = 0;
    struct state_out out = {STATE_STAY, 0, 0, 0};
    if (!words) {
        states_fail(s, ERR_NOMEM);
        return 0;
    }
    words[n++] = STATE_TEXT;
    for (uint32_t i = 1, j = 1; i < n_a || j < n_b;) { /* pairs, sorted: what both have comes once */
        uint64_t p = i < n_a ? (uint64_t)x[i] << 32 | x[i + 1] : UINT64_MAX;
        uint64_t q = j < n_b ? (uint64_t)y[j] << 32 | y[j + 1] : UINT64_MAX;
        uint64_t least = p < q ? p : q;
        words[n++] = (uint32_t)(least >> 32);
        words[n++] = (uint32_t)least;
        i += p == least ? 2 : 0;
        j += q == least ? 2 : 0;
    }
    out.next = state_add(s, words, n);
    mem_free(words);
    if (states_good(s))
        memo_put(s, key, out);
    return out.next;
}

bool states_may_end(struct states *s, uint32_t state, uint32_t *result)
{
    return state_kind(s, state) == STATE_NUMBER && number_end(s, state, result);
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

size_t states_bytes(const struct states *s)
{
    return sizeof *s + intern_bytes(&s->contents) + s->records.capacity * sizeof *s->records.at +
           intern_bytes(&s->formulas.terms) + s->memo_size * sizeof *s->memo + s->n_bytes;
}

err_code states_error(const struct states *s, struct err *e)
{
    if (s->failed == ERR_NOMEM || (s->failed == ERR_OK && s->formulas.failed))
        return err_nomem(e, states_bytes(s), "the states of a grammar");
    if (s->failed != ERR_OK)
        return err_set(e, ERR_LIMIT,
                       "the grammar has more states than are kept (%u, %zu MB), or too many ways to read a "
                       "text at once",
                       s->contents.n, states_bytes(s) >> 20);
    return ERR_OK;
}

err_code states_open(struct states **out, const struct program *p, uint32_t max, struct err *e)
{
    struct states *s = *out = mem_calloc(1, sizeof *s);
    uint32_t none = STATE_NONE;
    if (!s)
        return err_nomem(e, sizeof *s, "the states of a grammar");
    s->p = p;
    s->max = max;
    s->n_use = 1;
    s->memo_size = 1024;
    s->memo = mem_calloc(s->memo_size, sizeof *s->memo);
    s->schema_formulas = mem_calloc((size_t)p->schemas.n * N_KIND, sizeof *s->schema_formulas);
    bool ok = s->memo && s->schema_formulas && formulas_open(&s->formulas) && intern_add(&s->contents, &none, 1) == 0 &&
              LIST_PUSH(&s->records, (struct state_record){0}) && LIST_PUSH(&s->shapes, NULL) &&
              intern_add(&s->shape_keys, &none, 1) == 0;
    if (ok)
        s->start = text_start(s, p->start, 0, true);
    if (!ok || !states_good(s)) {
        err_code code = ok ? states_error(s, e) : err_nomem(e, sizeof *s, "the states of a grammar");
        states_close(out);
        return code;
    }
    return ERR_OK;
}

struct states *states_share(struct states *s)
{
    s->n_use++;
    return s;
}

void states_close(struct states **states)
{
    struct states *s = *states;
    *states = NULL;
    if (!s || --s->n_use > 0)
        return;
    for (uint32_t i = 0; i < s->records.n; i++) {
        mem_free(s->records.at[i].row);
        mask_close(s->records.at[i].mask);
        names_info_close(s->records.at[i].names);
    }
    for (uint32_t i = 0; i < s->shapes.n; i++)
        shape_close(s->shapes.at[i]);
    LIST_CLOSE(&s->shapes);
    LIST_CLOSE(&s->records);
    LIST_CLOSE(&s->todo);
    LIST_CLOSE(&s->items);
    LIST_CLOSE(&s->calls);
    LIST_CLOSE(&s->reached);
    intern_close(&s->contents);
    intern_close(&s->shape_keys);
    formulas_close(&s->formulas);
    mem_free(s->finish);
    mem_free(s->schema_formulas);
    mem_free(s->memo);
    mem_free(s);
}
