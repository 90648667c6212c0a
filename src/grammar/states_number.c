/* Within numbers. Where bounds or multiples are asked for, or nothing but whole numbers, digits are compared as they
 * come; exponents are read only where none of these matter. */
#include <string.h>

#include "grammar/states_view.h"

/* How a number is written. */
enum number_phase { NUM_START, NUM_MINUS, NUM_ZERO, NUM_INT, NUM_POINT, NUM_FRAC, NUM_E, NUM_E_SIGN, NUM_EXP };
enum { NUM_NEGATIVE = 16, NUM_MAX_DIGITS = 48, NUM_MAX_EXP = 4, NUM_DIGITS_SHIFT = 8 };

static enum number_phase syntax(uint32_t phase)
{
    return (enum number_phase)(phase & 15);
}

static bool is_complete(uint32_t phase)
{
    enum number_phase p = syntax(phase);
    return p == NUM_ZERO || p == NUM_INT || p == NUM_FRAC || p == NUM_EXP;
}

/* The place in the number after a byte; false: it can't stand there. */
static bool advance(enum number_phase *p, uint8_t byte)
{
    bool digit = byte >= '0' && byte <= '9', e = byte == 'e' || byte == 'E';
    switch (*p) {
    case NUM_START:
        if (byte == '-') {
            *p = NUM_MINUS;
            return true;
        } /* fall through */
    case NUM_MINUS: *p = byte == '0' ? NUM_ZERO : NUM_INT; return digit;
    case NUM_INT:
        if (digit)
            return true; /* fall through */
    case NUM_ZERO: *p = byte == '.' ? NUM_POINT : NUM_E; return byte == '.' || e;
    case NUM_POINT: *p = NUM_FRAC; return digit;
    case NUM_FRAC:
        if (digit)
            return true;
        *p = NUM_E;
        return e;
    case NUM_E: *p = digit ? NUM_EXP : NUM_E_SIGN; return digit || byte == '+' || byte == '-';
    case NUM_E_SIGN: *p = NUM_EXP; return digit;
    case NUM_EXP: return digit;
    }
    return false;
}

/* ---- conditions ------------------------------------------------------------------------------------------------ */

/* A comparison in a word. */
static uint32_t pack(struct decimal_compare c)
{
    return c.n_int | (uint32_t)c.n_frac << 8 | (uint32_t)(c.order + 1) << 16 | (uint32_t)c.zero << 18 | 1u << 19;
}

static struct decimal_compare unpack(uint32_t w)
{
    if (w == 0)
        return (struct decimal_compare){0};
    return (struct decimal_compare){(uint8_t)w, (uint8_t)(w >> 8), (int8_t)((int)(w >> 16 & 3) - 1), w >> 18 & 1};
}

/* A multiple's word: the remainder, the digits behind the point so far, and whether one was there beyond those that
 * count. */
enum { MULTIPLE_FRAC_SHIFT = 24 };
static const uint32_t MULTIPLE_BROKEN = 0x80000000;

static enum truth multiple_truth(const struct states *s, uint32_t number, uint32_t w, bool at_end)
{
    const struct multiple *m = &s->p->multiples.at[number];
    if (w & MULTIPLE_BROKEN)
        return NO;
    if (!at_end)
        return OPEN;
    uint64_t rest = w & 0xffffff;
    for (uint32_t i = w >> MULTIPLE_FRAC_SHIFT & 0x7f; i < m->n_frac; i++)
        rest = rest * 10 % m->of;
    return rest == 0 ? YES : NO;
}

static uint32_t multiple_digit(const struct states *s, uint32_t number, uint32_t w, bool behind_point, uint8_t digit)
{
    const struct multiple *m = &s->p->multiples.at[number];
    uint32_t n_frac = w >> MULTIPLE_FRAC_SHIFT & 0x7f;
    if (behind_point && n_frac == m->n_frac)
        return digit == '0' ? w : w | MULTIPLE_BROKEN;
    return (uint32_t)(((uint64_t)(w & 0xffffff) * 10 + (digit - '0')) % m->of) |
           (n_frac + behind_point) << MULTIPLE_FRAC_SHIFT | (w & MULTIPLE_BROKEN);
}

enum truth number_truth(struct states *s, const struct view *v, const struct view_var *var, bool at_end)
{
    enum number_phase p = syntax(v->phase);
    if (term_kind(var->term) == TERM_INTEGER) /* 1: it is none */
        return var->state ? NO : at_end ? YES : OPEN;
    if (term_kind(var->term) == TERM_MULTIPLE)
        return multiple_truth(s, term_number(var->term), var->state, at_end);
    const struct bound *b = &s->p->bounds.at[term_number(var->term)];
    struct decimal_compare c = unpack(var->state);
    bool int_done = at_end || (p != NUM_START && p != NUM_MINUS && p != NUM_INT);
    unsigned result = decimal_compare_result(&c, &b->value, v->phase & NUM_NEGATIVE, int_done, at_end);
    return (result & b->allowed) == 0 ? NO : (result & ~b->allowed) == 0 ? YES : OPEN;
}

static void feed(struct states *s, struct view *v, uint8_t byte)
{
    enum number_phase p = syntax(v->phase);
    bool digit = byte >= '0' && byte <= '9', behind = p == NUM_FRAC;
    for (uint32_t i = 0; i < v->n_var; i++) {
        struct view_var *var = &v->var[i];
        uint32_t number = term_number(var->term);
        if (term_kind(var->term) == TERM_INTEGER)
            var->state |= p == NUM_POINT || p == NUM_E;
        else if (!digit || p == NUM_EXP)
            continue;
        else if (term_kind(var->term) == TERM_MULTIPLE)
            var->state = multiple_digit(s, number, var->state, behind, byte);
        else {
            struct decimal_compare c = unpack(var->state);
            (behind ? decimal_compare_frac : decimal_compare_int)(&c, &s->p->bounds.at[number].value, (char)byte);
            var->state = pack(c);
        }
    }
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

static bool has_comparisons(const struct view *v)
{
    for (uint32_t i = 0; i < v->n_var; i++)
        if (term_kind(v->var[i].term) != TERM_INTEGER)
            return true;
    return false;
}

/* The state after a byte of the number, whether it can end well or not; 0: refused. counts: digits are counted
 * where there are comparisons, too, which may let them go on for ever, as zeros behind the point or above a minimum. */
static uint32_t step(struct states *s, uint32_t state, uint8_t byte, bool counts)
{
    struct view v;
    view_load(s, state, &v);
    enum number_phase p = syntax(v.phase), before = p;
    uint32_t n_digit = v.phase >> NUM_DIGITS_SHIFT, negative = v.phase & NUM_NEGATIVE;
    if (!advance(&p, byte))
        return 0;
    if (p == NUM_E && has_comparisons(&v))
        return 0;
    negative |= byte == '-' && p == NUM_MINUS ? NUM_NEGATIVE : 0;
    n_digit = p != before && p != NUM_FRAC ? 0 : n_digit + 1; /* of each part */
    if (n_digit >= (p == NUM_EXP ? NUM_MAX_EXP : NUM_MAX_DIGITS))
        return 0;
    bool is_counted = v.n_var > 0 || p == NUM_INT || p == NUM_FRAC || p == NUM_EXP;
    v.phase = p | negative | (is_counted ? n_digit << NUM_DIGITS_SHIFT : 0);
    feed(s, &v, byte);
    if (has_comparisons(&v) && !counts) /* states that differ in nothing else are one */
        v.phase &= (1u << NUM_DIGITS_SHIFT) - 1;
    return view_settle(s, &v);
}

/* Whether the number, which ends here, is none of the constants or written as that is: programs that look for 1 need
 * not know 1.0. A constant that has a point may go without it where only zeros follow. */
static bool is_as_constants(const struct states *s, const struct view *v)
{
    for (uint32_t i = 0; i < v->n_var; i++) {
        if (term_kind(v->var[i].term) != TERM_BOUND)
            continue;
        const struct bound *b = &s->p->bounds.at[term_number(v->var[i].term)];
        struct decimal_compare c = unpack(v->var[i].state);
        bool negative = v->phase & NUM_NEGATIVE;
        if (b->allowed != DECIMAL_EQUAL || decimal_compare_result(&c, &b->value, negative, true, true) != DECIMAL_EQUAL)
            continue;
        int n_zero = c.n_frac - b->value.n_frac, n_may_be = b->is_real && b->value.n_frac == 0;
        if (n_zero > n_may_be || negative != b->value.negative)
            return false;
    }
    return true;
}

bool number_end(struct states *s, uint32_t state, uint32_t *result)
{
    struct view v;
    view_load(s, state, &v);
    *result = is_complete(v.phase) && is_as_constants(s, &v) ? view_end(s, &v) : 0;
    return *result != 0;
}

enum { LIVE_UNKNOWN, LIVE_YES, LIVE_NO, LIVE_MAX_TRIED = 3000 };

/* Whether some digits lead to an end: bounds and multiples may leave none together. Depth first, over states whose
 * number is small as long as they don't count digits. */
static bool is_live(struct states *s, uint32_t state)
{
    static const char bytes[] = "0123456789.-";
    LIST(uint32_t) path = {0}, tried = {0};
    struct view v;
    uint32_t result;
    bool live = false;
    if (s->records.at[state].flags != LIVE_UNKNOWN)
        return s->records.at[state].flags == LIVE_YES;
    bool ok = LIST_PUSH(&path, state);
    while (ok && path.n > 0 && !live && tried.n < LIVE_MAX_TRIED) {
        uint32_t at = path.at[--path.n];
        if (s->records.at[at].flags != LIVE_UNKNOWN) {
            live = s->records.at[at].flags == LIVE_YES;
            continue;
        }
        s->records.at[at].flags = LIVE_NO; /* for now: it is on the list of those that were tried */
        ok = LIST_PUSH(&tried, at);
        view_load(s, at, &v);
        live = !has_comparisons(&v) || number_end(s, at, &result);
        for (unsigned i = 0; ok && !live && i < sizeof bytes - 1; i++) {
            uint32_t next = step(s, at, (uint8_t)bytes[i], false);
            ok = !next || LIST_PUSH(&path, next);
        }
    }
    live |= tried.n >= LIVE_MAX_TRIED || !ok;
    for (uint32_t i = 0; live && i < tried.n; i++)
        s->records.at[tried.at[i]].flags = LIVE_UNKNOWN;
    if (live)
        s->records.at[state].flags = LIVE_YES;
    LIST_CLOSE(&path);
    LIST_CLOSE(&tried);
    return live;
}

struct state_out number_step(struct states *s, uint32_t state, uint8_t byte)
{
    uint32_t result, next = step(s, state, byte, true);
    if (next)
        return (struct state_out){is_live(s, next) ? STATE_STAY : STATE_REFUSE, 0, next, 0};
    if (((byte >= '0' && byte <= '9') || byte == '.' || byte == '-' || byte == '+' || byte == 'e' || byte == 'E') ||
        !number_end(s, state, &result))
        return (struct state_out){STATE_REFUSE, 0, 0, 0};
    return (struct state_out){STATE_POP, STATE_UNREAD, result, 0};
}
