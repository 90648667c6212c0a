#include "grammar/nfa.h"

#include <stdlib.h>
#include <string.h>

uint32_t nfa_read_char(const char *s, size_t n, unsigned *length)
{
    uint32_t code = NFA_NO_CHAR;
    *length = utf8_decode(s, n, &code);
    *length = *length ? *length : 1;
    return code;
}

/* ---- expressions ----------------------------------------------------------------------------------------------- */

void exprs_close(struct exprs *x)
{
    LIST_CLOSE(&x->nodes);
    LIST_CLOSE(&x->kids);
    LIST_CLOSE(&x->ranges);
    LIST_CLOSE(&x->text);
}

static uint32_t add_node(struct exprs *x, struct expr node)
{
    if (LIST_PUSH(&x->nodes, node))
        return x->nodes.n - 1;
    x->n_failed++;
    return 0;
}

uint32_t expr_bytes(struct exprs *x, const char *bytes, uint32_t n)
{
    uint32_t first = x->text.n;
    if (!LIST_ROOM(&x->text, n + 1)) {
        x->n_failed++;
        return 0;
    }
    if (n)
        memcpy(x->text.at + first, bytes, n);
    x->text.n += n;
    return add_node(x, (struct expr){EXPR_BYTES, first, n, 0, 0});
}

static int compare_ranges(const void *a, const void *b)
{
    const struct char_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static bool add_range(struct exprs *x, uint32_t lo, uint32_t hi)
{
    if (lo > hi || LIST_PUSH(&x->ranges, (struct char_range){lo, hi}))
        return true;
    x->n_failed++;
    return false;
}

uint32_t expr_class(struct exprs *x, struct char_range *ranges, uint32_t n, bool negated)
{
    uint32_t first = x->ranges.n, next = 0; /* next: the first character that is not dealt with */
    if (n)
        qsort(ranges, n, sizeof *ranges, compare_ranges);
    for (uint32_t i = 0; i < n;) {
        struct char_range r = ranges[i++];
        while (i < n && ranges[i].lo <= r.hi + 1) {
            r.hi = ranges[i].hi > r.hi ? ranges[i].hi : r.hi;
            i++;
        }
        if (negated && r.lo > 0)
            add_range(x, next, r.lo - 1);
        else if (!negated)
            add_range(x, r.lo, r.hi);
        next = r.hi + 1;
    }
    if (negated)
        add_range(x, next, 0x10ffff);
    return add_node(x, (struct expr){EXPR_CLASS, first, x->ranges.n - first, 0, 0});
}

uint32_t expr_list(struct exprs *x, enum expr_kind kind, const uint32_t *kids, uint32_t n)
{
    uint32_t first = x->kids.n;
    if (n == 1)
        return kids[0];
    if (!LIST_ROOM(&x->kids, n + 1)) {
        x->n_failed++;
        return 0;
    }
    if (n)
        memcpy(x->kids.at + first, kids, n * sizeof *kids);
    x->kids.n += n;
    return add_node(x, (struct expr){kind, first, n, 0, 0});
}

uint32_t expr_node(struct exprs *x, enum expr_kind kind, uint32_t first, uint32_t min, uint32_t max)
{
    return add_node(x, (struct expr){kind, first, 0, min, max});
}

/* ---- instructions ---------------------------------------------------------------------------------------------- */

void nfa_close(struct nfa *a)
{
    LIST_CLOSE(&a->code);
    LIST_CLOSE(&a->sets);
}

uint32_t nfa_add(struct nfa *a, enum nfa_op op, uint32_t x, uint32_t y, uint32_t n_left)
{
    if (a->code.n >= NFA_MAX_CODE || !LIST_PUSH(&a->code, (struct nfa_instr){op, x, y, n_left}))
        return INTERN_NONE;
    return a->code.n - 1;
}

err_code nfa_full(const struct nfa *a, struct err *e)
{
    if (a->code.n < NFA_MAX_CODE)
        return err_nomem(e, a->code.n * sizeof *a->code.at, "a grammar");
    return err_set(e, ERR_LIMIT,
                   "the expression is too large: with its repetitions written out it has more than %d parts",
                   NFA_MAX_CODE);
}

struct emitter {
    struct nfa *nfa;
    const struct exprs *x;
    const uint32_t *rules;
    bool failed;
};

static uint32_t add(struct emitter *m, enum nfa_op op, uint32_t a, uint32_t b, uint32_t n_left)
{
    uint32_t at = m->failed ? 0 : nfa_add(m->nfa, op, a, b, n_left);
    if (at != INTERN_NONE)
        return at;
    m->failed = true;
    return 0;
}

static uint32_t left(const struct emitter *m, uint32_t at)
{
    return m->failed ? 0 : m->nfa->code.at[at].n_left;
}

static uint32_t emit_split(struct emitter *m, uint32_t a, uint32_t b)
{
    return add(m, NFA_SPLIT, a, b, left(m, a) < left(m, b) ? left(m, a) : left(m, b));
}

/* A set of bytes. Sets repeat: the last few are looked at. */
static uint32_t emit_set(struct emitter *m, const struct byte_set *set, bool is_lead, uint32_t next)
{
    uint32_t n = m->nfa->sets.n, i = n;
    while (i > 0 && n - i < 32 && memcmp(&m->nfa->sets.at[i - 1], set, sizeof *set) != 0)
        i--;
    if (i == 0 || n - i >= 32) {
        if (!LIST_PUSH(&m->nfa->sets, *set))
            m->failed = true;
        i = n + 1;
    }
    return add(m, NFA_BYTES, i - 1, next, left(m, next) + is_lead);
}

static uint32_t emit_range(struct emitter *m, uint8_t lo, uint8_t hi, uint32_t next)
{
    struct byte_set set = {{0}};
    for (unsigned b = lo; b <= hi; b++)
        set.bits[b >> 6] |= (uint64_t)1 << (b & 63);
    return emit_set(m, &set, !utf8_is_tail((char)lo), next);
}

/* Adds to *all what reads a character of lo..hi, all of the same length and beyond ASCII: ranges are cut until all
 * bytes but those at the front of both ends run through everything that may continue a character. */
static void emit_characters(struct emitter *m, uint32_t lo, uint32_t hi, uint32_t next, uint32_t *all)
{
    uint8_t a[4] = {0}, b[4] = {0};
    for (unsigned i = 1; i <= 3; i++) {
        uint32_t low = ((uint32_t)1 << 6 * i) - 1;
        if ((lo & ~low) == (hi & ~low))
            continue;
        if (lo & low) {
            emit_characters(m, lo, lo | low, next, all);
            emit_characters(m, (lo | low) + 1, hi, next, all);
            return;
        }
        if ((hi & low) != low) {
            emit_characters(m, lo, (hi & ~low) - 1, next, all);
            emit_characters(m, hi & ~low, hi, next, all);
            return;
        }
    }
    unsigned n = utf8_encode(lo, a);
    utf8_encode(hi, b);
    for (unsigned i = n; i-- > 0;)
        next = emit_range(m, a[i], b[i], next);
    *all = *all == INTERN_NONE ? next : emit_split(m, next, *all);
}

static uint32_t emit_class(struct emitter *m, const struct expr *node, uint32_t next)
{
    static const struct char_range lengths[] = {{0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    struct byte_set ascii = {{0}};
    uint32_t all = INTERN_NONE;
    for (uint32_t i = 0; i < node->n && !m->failed; i++) {
        struct char_range r = m->x->ranges.at[node->first + i];
        for (uint32_t c = r.lo; c <= r.hi && c < 0x80; c++)
            ascii.bits[c >> 6] |= (uint64_t)1 << (c & 63);
        for (unsigned k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            uint32_t lo = r.lo > lengths[k].lo ? r.lo : lengths[k].lo, hi = r.hi < lengths[k].hi ? r.hi : lengths[k].hi;
            if (lo <= hi)
                emit_characters(m, lo, hi, next, &all);
        }
    }
    if (all != INTERN_NONE && !ascii.bits[0] && !ascii.bits[1])
        return all;
    uint32_t begin = emit_set(m, &ascii, true, next); /* an empty class: a set of no bytes */
    return all == INTERN_NONE ? begin : emit_split(m, begin, all);
}

static uint32_t emit(struct emitter *m, uint32_t node, uint32_t next);

/* x{2,4} is x x (x (x)?)?, x{2,} is x x x*. */
static uint32_t emit_repeat(struct emitter *m, const struct expr *node, uint32_t next)
{
    uint32_t begin = next;
    if (node->max == EXPR_MANY) {
        begin = add(m, NFA_SPLIT, next, next, left(m, next));
        uint32_t body = emit(m, node->first, begin);
        if (!m->failed)
            m->nfa->code.at[begin].a = body;
    } else {
        for (uint32_t i = node->min; i < node->max && !m->failed; i++)
            begin = emit_split(m, emit(m, node->first, begin), next);
    }
    for (uint32_t i = 0; i < node->min && !m->failed; i++) {
        uint32_t behind = begin;
        begin = emit(m, node->first, begin);
        if (begin == behind) /* it reads nothing, however often */
            break;
    }
    return begin;
}

static uint32_t emit(struct emitter *m, uint32_t at, uint32_t next)
{
    const struct expr *node = &m->x->nodes.at[at];
    const uint32_t *kids = LIST_FROM(&m->x->kids, node->first);
    uint32_t begin = next;
    if (m->failed)
        return 0;
    switch (node->kind) {
    case EXPR_BYTES:
        for (uint32_t i = node->n; i-- > 0;) {
            uint8_t byte = (uint8_t)m->x->text.at[node->first + i];
            begin = emit_range(m, byte, byte, begin);
        }
        return begin;
    case EXPR_CLASS: return emit_class(m, node, next);
    case EXPR_CAT:
        for (uint32_t i = node->n; i-- > 0;)
            begin = emit(m, kids[i], begin);
        return begin;
    case EXPR_OR:
        for (uint32_t i = node->n; i-- > 0;) {
            uint32_t one = emit(m, kids[i], next);
            begin = i + 1 == node->n ? one : emit_split(m, one, begin);
        }
        return begin;
    case EXPR_REPEAT: return emit_repeat(m, node, next);
    case EXPR_BEGIN: return add(m, NFA_BEGIN, next, 0, left(m, next));
    case EXPR_FINISH: return add(m, NFA_FINISH, next, 0, 0);
    case EXPR_RULE: return add(m, NFA_CALL, m->rules[node->first], next, 0);
    case EXPR_JSON: return add(m, NFA_JSON, node->first, next, 0);
    }
    return begin;
}

err_code nfa_emit(struct nfa *a, const struct exprs *x, uint32_t node, const uint32_t *rules, uint32_t next,
                  uint32_t *begin, struct err *e)
{
    struct emitter m = {a, x, rules, x->n_failed > 0};
    *begin = emit(&m, node, next);
    return m.failed ? nfa_full(a, e) : ERR_OK;
}

bool expr_read_count(const char *s, size_t n, size_t *at, uint32_t *count)
{
    size_t begin = *at;
    for (*count = 0; *at < n && s[*at] >= '0' && s[*at] <= '9'; ++*at)
        if (*count <= EXPR_MAX_REPEAT)
            *count = *count * 10 + (uint32_t)(s[*at] - '0');
    return *at > begin;
}
