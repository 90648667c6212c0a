/* States outside of JSON: sets of places in the automaton, each with the rules that it is in. */
#include <stdlib.h>
#include <string.h>

#include "grammar/states_view.h"

static bool seen_before(struct states *s, uint64_t key)
{
    enum { SIZE = 2 * STATES_MAX_CLOSURE };
    uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 40) & (SIZE - 1);
    for (; s->seen_stamp[at] == s->stamp; at = (at + 1) & (SIZE - 1))
        if (s->seen_keys[at] == key)
            return true;
    if (++s->n_seen > STATES_MAX_CLOSURE) {
        states_fail(s, ERR_LIMIT);
        return true;
    }
    s->seen_stamp[at] = s->stamp;
    s->seen_keys[at] = key;
    return false;
}

static void add_todo(struct states *s, uint32_t instr, uint32_t rule)
{
    uint64_t key = (uint64_t)instr << 32 | rule;
    if (!seen_before(s, key) && !LIST_PUSH(&s->todo, key))
        states_fail(s, ERR_NOMEM);
}

/* What is known of an instruction: whether the text may end there without any more bytes. */
enum finish { FINISH_UNKNOWN, FINISH_YES, FINISH_NO, FINISH_REACHED };

/* What else is reached without a byte, at most two: their number. */
static int n_next(const struct nfa_instr *i)
{
    return i->op == NFA_FINISH ? 1 : i->op == NFA_SPLIT ? 2 : 0;
}

static bool ends_here(const struct states *s, const struct nfa_instr *i)
{
    int n = n_next(i);
    return i->op == NFA_END || i->op == NFA_ALL || (n > 0 && s->finish[i->a] == FINISH_YES) ||
           (n > 1 && s->finish[i->b] == FINISH_YES);
}

static bool reach(struct states *s, uint32_t instr)
{
    if (s->finish[instr] == FINISH_UNKNOWN) {
        if (!LIST_PUSH(&s->reached, instr))
            return false;
        s->finish[instr] = FINISH_REACHED;
    }
    return true;
}

/* Lists what an instruction reaches and then, from the last one on, what the text may end at. */
static bool may_finish(struct states *s, uint32_t instr)
{
    bool ends = false, ok;
    if (!s->finish && !(s->finish = mem_calloc(s->p->nfa.code.n, 1))) {
        states_fail(s, ERR_NOMEM);
        return false;
    }
    s->reached.n = 0;
    ok = reach(s, instr);
    for (uint32_t k = 0; k < s->reached.n && ok; k++) {
        const struct nfa_instr *i = &s->p->nfa.code.at[s->reached.at[k]];
        ends |= ends_here(s, i);
        ok = (n_next(i) < 1 || reach(s, i->a)) && (n_next(i) < 2 || reach(s, i->b));
    }
    for (uint32_t k = s->reached.n; k-- > 0;) {
        uint32_t at = s->reached.at[k];
        s->finish[at] = ends_here(s, &s->p->nfa.code.at[at]) ? FINISH_YES : ends ? FINISH_UNKNOWN : FINISH_NO;
    }
    if (!ok)
        states_fail(s, ERR_NOMEM);
    else if (ends && s->reached.n > 0)
        s->finish[instr] = FINISH_YES;
    return s->finish[instr] == FINISH_YES;
}

/* Follows what reads no bytes and calls no rule; what is left is added to items and calls. */
static void follow_here(struct states *s, bool at_begin)
{
    while (s->todo.n > 0 && states_good(s)) {
        uint64_t key = s->todo.at[--s->todo.n];
        uint32_t instr = (uint32_t)(key >> 32), rule = (uint32_t)key, n;
        struct nfa_instr i = s->p->nfa.code.at[instr];
        bool keep = false;
        switch ((enum nfa_op)i.op) {
        case NFA_SEARCH: keep = true; /* fall through */
        case NFA_SPLIT:
            add_todo(s, i.a, rule);
            add_todo(s, i.b, rule);
            break;
        case NFA_BEGIN:
            if (at_begin)
                add_todo(s, i.a, rule);
            break;
        case NFA_FINISH: keep = may_finish(s, i.a); break;
        case NFA_CALL:
            if (s->p->nfa.code.at[i.b].op == NFA_RETURN) /* nothing is left to do in this rule */
                add_todo(s, i.a, rule);
            else if (!LIST_PUSH(&s->calls, (struct text_call){i.a, i.b, rule}))
                states_fail(s, ERR_NOMEM);
            break;
        case NFA_RETURN:
            for (uint32_t k = 1; intern_words(&s->contents, rule, &n), k < n; k += 2) {
                const uint32_t *words = intern_words(&s->contents, rule, &n);
                add_todo(s, words[k], words[k + 1]);
            }
            break;
        default: keep = true; break;
        }
        if (keep && !LIST_PUSH(&s->items, key))
            states_fail(s, ERR_NOMEM);
    }
    s->todo.n = 0;
}

static int compare_calls(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct text_call));
}

/* Enters the rules that were called: one that is called from several places is read once for all of them. */
static void enter_rules(struct states *s)
{
    LIST(uint32_t) words = {0};
    if (s->calls.n)
        qsort(s->calls.at, s->calls.n, sizeof *s->calls.at, compare_calls);
    for (uint32_t i = 0; i < s->calls.n && states_good(s);) {
        uint32_t target = s->calls.at[i].target;
        words.n = 0;
        bool ok = LIST_PUSH(&words, STATE_RULE);
        for (; ok && i < s->calls.n && s->calls.at[i].target == target; i++)
            ok = LIST_PUSH(&words, s->calls.at[i].ret) && LIST_PUSH(&words, s->calls.at[i].rule);
        if (ok)
            add_todo(s, target, state_add(s, words.at, words.n));
        else
            states_fail(s, ERR_NOMEM);
    }
    LIST_CLOSE(&words);
    s->calls.n = 0;
}

/* The same with rules. */
static void follow(struct states *s, bool at_begin)
{
    do {
        follow_here(s, at_begin);
        enter_rules(s);
    } while (s->todo.n > 0 && states_good(s));
}

static void begin_closure(struct states *s)
{
    s->stamp++;
    s->n_seen = 0;
    s->todo.n = s->items.n = s->calls.n = 0;
}

static int compare_items(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t store_items(struct states *s)
{
    LIST(uint32_t) words = {0};
    uint32_t state = 0;
    if (s->items.n == 0 || !states_good(s))
        return 0;
    qsort(s->items.at, s->items.n, sizeof *s->items.at, compare_items);
    for (uint32_t i = 0; i < s->items.n; i++)
        if (s->p->nfa.code.at[s->items.at[i] >> 32].op == NFA_ALL) { /* it takes what any other would */
            s->items.at[0] = s->items.at[i];
            s->items.n = 1;
        }
    if (LIST_ROOM(&words, 1 + 2 * s->items.n)) {
        words.at[words.n++] = STATE_TEXT;
        for (uint32_t i = 0; i < s->items.n; i++) {
            words.at[words.n++] = (uint32_t)(s->items.at[i] >> 32);
            words.at[words.n++] = (uint32_t)s->items.at[i];
        }
        state = state_add(s, words.at, words.n);
    } else
        states_fail(s, ERR_NOMEM);
    LIST_CLOSE(&words);
    return state;
}

uint32_t text_start(struct states *s, uint32_t instr, uint32_t rule, bool at_begin)
{
    begin_closure(s);
    add_todo(s, instr, rule);
    follow(s, at_begin);
    return store_items(s);
}

struct state_out text_step(struct states *s, uint32_t state, uint8_t byte)
{
    uint32_t n;
    begin_closure(s);
    intern_words(&s->contents, state, &n);
    for (uint32_t i = 1; i < n; i += 2) {
        const uint32_t *w = intern_words(&s->contents, state, &n);
        struct nfa_instr instr = s->p->nfa.code.at[w[i]];
        if (instr.op == NFA_ALL)
            return (struct state_out){STATE_STAY, 0, state, 0};
        if (instr.op == NFA_BYTES && byte_set_has(&s->p->nfa.sets.at[instr.a], byte)) {
            add_todo(s, instr.b, w[i + 1]);
        }
    }
    follow(s, false);
    uint32_t next = store_items(s);
    return (struct state_out){next ? STATE_STAY : STATE_REFUSE, 0, next, 0};
}

void text_describe(struct states *s, uint32_t state, struct state_record *r)
{
    uint32_t n;
    const uint32_t *w = intern_words(&s->contents, state, &n);
    for (uint32_t i = 1; i < n; i += 2) {
        uint32_t op = s->p->nfa.code.at[w[i]].op;
        if (op == NFA_END || op == NFA_FINISH || op == NFA_ALL)
            r->flags |= TEXT_ENDS;
        if (op == NFA_BYTES || op == NFA_ALL)
            r->flags |= TEXT_HAS_BYTES;
        if (op == NFA_JSON)
            r->flags |= TEXT_HAS_JSON;
        if (op == NFA_ALL)
            r->flags |= TEXT_TAKES_ALL;
    }
}

uint32_t text_n_left(const struct states *s, uint32_t state)
{
    uint32_t n, least = UINT32_MAX;
    const uint32_t *w = intern_words(&s->contents, state, &n);
    for (uint32_t i = 1; i < n; i += 2)
        if (s->p->nfa.code.at[w[i]].n_left < least)
            least = s->p->nfa.code.at[w[i]].n_left;
    return least;
}

bool text_searches(const struct states *s, uint32_t state)
{
    uint32_t n;
    const uint32_t *w = intern_words(&s->contents, state, &n);
    for (uint32_t i = 1; i < n; i += 2)
        if (s->p->nfa.code.at[w[i]].op == NFA_SEARCH || s->p->nfa.code.at[w[i]].op == NFA_ALL)
            return true;
    return false;
}

bool states_json(struct states *s, uint32_t text, uint32_t i, uint32_t *value, uint32_t *below)
{
    uint32_t n;
    const uint32_t *w = intern_words(&s->contents, text, &n);
    for (uint32_t k = 1; k < n; k += 2) {
        struct nfa_instr instr = s->p->nfa.code.at[w[k]];
        if (instr.op != NFA_JSON || i-- > 0)
            continue;
        uint32_t words[3] = {STATE_AFTER, instr.b, w[k + 1]};
        uint32_t must = formula_var(&s->formulas, term(TERM_ROOT, 0));
        *below = state_add(s, words, 3);
        *value = value_state(s, &instr.a, 1, must);
        return true;
    }
    return false;
}
