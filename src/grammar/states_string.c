/* Within strings: characters, escapes, and what schemas say about the text. */
#include <string.h>

#include "grammar/states_view.h"

/* ---- characters ------------------------------------------------------------------------------------------------ */

/* A phase is a kind, the number of hexadecimal digits read, their value, and above these ten bits of a surrogate. */
enum lex_kind {
    LEX_ESCAPE = 1, /* behind a backslash */
    LEX_HEX,        /* behind \u */
    LEX_LOW_ESCAPE, /* behind a high surrogate: \ must follow */
    LEX_LOW_U,      /* then u */
    LEX_LOW_HEX,
    LEX_MORE_1, /* bytes 80..bf that a character still needs */
    LEX_MORE_2,
    LEX_MORE_3,
    LEX_AFTER_E0, /* a0..bf, then one more */
    LEX_AFTER_ED, /* 80..9f, then one more */
    LEX_AFTER_F0, /* 90..bf, then two more */
    LEX_AFTER_F4, /* 80..8f, then two more */
};

static uint32_t phase(enum lex_kind kind, uint32_t n_digit, uint32_t value, uint32_t high)
{
    return kind | n_digit << 4 | value << 6 | high << 22;
}

static bool lex_hex(uint32_t from, uint8_t byte, struct lexed *out)
{
    uint32_t n = (from >> 4 & 3) + 1, value = (from >> 6 & 0xffff) << 4, high = from >> 22;
    bool low = (from & 15) == LEX_LOW_HEX;
    if (hex_value((char)byte) < 0)
        return false;
    value |= (uint32_t)hex_value((char)byte);
    out->next = phase((enum lex_kind)(from & 15), n & 3, value & 0xffff, high);
    if (low && ((n == 1 && value != 0xd) || (n == 2 && value < 0xdc)))
        return false;
    if (n < 4)
        return true;
    out->next = LEX_PLAIN;
    if (low)
        out->n = utf8_encode(0x10000 + (high << 10) + (value & 0x3ff), out->bytes);
    else if (value >= 0xd800 && value < 0xdc00)
        out->next = phase(LEX_LOW_ESCAPE, 0, 0, value - 0xd800);
    else if (value >= 0xdc00 && value < 0xe000)
        return false;
    else
        out->n = utf8_encode(value, out->bytes);
    return true;
}

static bool lex_more(uint32_t from, uint8_t byte, struct lexed *out)
{
    static const struct {
        uint8_t lo, hi, next;
    } more[] = {{0x80, 0xbf, LEX_PLAIN},  {0x80, 0xbf, LEX_MORE_1}, {0x80, 0xbf, LEX_MORE_2}, {0xa0, 0xbf, LEX_MORE_1},
                {0x80, 0x9f, LEX_MORE_1}, {0x90, 0xbf, LEX_MORE_2}, {0x80, 0x8f, LEX_MORE_2}};
    unsigned i = (from & 15) - LEX_MORE_1;
    out->next = more[i].next;
    return byte >= more[i].lo && byte <= more[i].hi;
}

static bool lex_lead(uint8_t byte, struct lexed *out)
{
    out->begins = true;
    if (byte < 0x20 || (byte >= 0x80 && byte < 0xc2) || byte > 0xf4)
        return false;
    out->next = byte < 0x80   ? LEX_PLAIN
                : byte < 0xe0 ? LEX_MORE_1
                : byte < 0xf0 ? (byte == 0xe0   ? LEX_AFTER_E0
                                 : byte == 0xed ? LEX_AFTER_ED
                                                : LEX_MORE_2)
                              : (byte == 0xf0   ? LEX_AFTER_F0
                                 : byte == 0xf4 ? LEX_AFTER_F4
                                                : LEX_MORE_3);
    return true;
}

bool lex_string(uint32_t from, uint8_t byte, struct lexed *out)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    *out = (struct lexed){.bytes = {byte}, .n = 1};
    switch (from & 15) {
    case LEX_PLAIN:
        if (byte == '"' || byte == '\\') {
            out->n = 0;
            out->ends = byte == '"';
            out->begins = byte == '\\';
            out->next = byte == '"' ? LEX_PLAIN : LEX_ESCAPE;
            return true;
        }
        return lex_lead(byte, out);
    case LEX_ESCAPE: {
        const char *letter = byte ? memchr(letters, byte, sizeof letters - 1) : NULL;
        if (letter)
            out->bytes[0] = (uint8_t)values[letter - letters];
        else {
            out->n = 0;
            out->next = LEX_HEX;
        }
        return letter || byte == 'u';
    }
    case LEX_LOW_ESCAPE:
    case LEX_LOW_U:
        out->n = 0;
        out->next = (from & ~15u) | ((from & 15) + 1);
        return byte == ((from & 15) == LEX_LOW_U ? 'u' : '\\');
    case LEX_HEX:
    case LEX_LOW_HEX: out->n = 0; return lex_hex(from, byte, out);
    default: return lex_more(from, byte, out);
    }
}

/* Whether a character of lo..hi fits. Where its first bytes don't, all others that begin so are left out. */
static bool any_fits(uint32_t lo, uint32_t hi, try_bytes_fn *try_bytes, void *user)
{
    for (uint32_t code = lo; code <= hi;) {
        uint8_t bytes[4];
        unsigned n = utf8_encode(code, bytes), fits = 0;
        while (fits < n && try_bytes(user, bytes, fits + 1))
            fits++;
        if (fits == n)
            return true;
        uint32_t step = (uint32_t)1 << 6 * (n - 1 - fits); /* as many have the same bytes so far */
        code = (code / step + 1) * step;
        if (utf8_is_surrogate(code))
            code = 0xe000;
    }
    return false;
}

bool lex_may_finish(uint32_t from, try_bytes_fn *try_bytes, void *user)
{
    static const uint8_t short_escapes[] = "\"\\/\b\f\n\r\t";
    uint32_t n = from >> 4 & 3, value = from >> 6 & 0xffff, high = from >> 22, free_bits = 4 * (4 - n);
    uint32_t lo = value << free_bits, hi = lo + ((uint32_t)1 << free_bits) - 1;
    switch (from & 15) {
    case LEX_ESCAPE:
        for (unsigned i = 0; i < 8; i++)
            if (try_bytes(user, &short_escapes[i], 1))
                return true;
        return any_fits(0, 0xffff, try_bytes, user) || any_fits(0x10000, 0x10ffff, try_bytes, user);
    case LEX_HEX:
        if (lo < 0xd800 || hi >= 0xe000)
            if (any_fits(lo, hi, try_bytes, user))
                return true;
        if (hi < 0xd800 || lo >= 0xdc00)
            return false;
        lo = lo < 0xd800 ? 0xd800 : lo;
        hi = hi > 0xdbff ? 0xdbff : hi;
        return any_fits(0x10000 + ((lo - 0xd800) << 10), 0x10000 + ((hi - 0xd800) << 10) + 0x3ff, try_bytes, user);
    case LEX_LOW_ESCAPE:
    case LEX_LOW_U: n = value = 0; /* fall through */
    case LEX_LOW_HEX:
        free_bits = 4 * (4 - n);
        lo = value << free_bits;
        hi = lo + ((uint32_t)1 << free_bits) - 1;
        lo = lo < 0xdc00 ? 0xdc00 : lo;
        hi = hi > 0xdfff ? 0xdfff : hi;
        return lo <= hi &&
               any_fits(0x10000 + (high << 10) + (lo & 0x3ff), 0x10000 + (high << 10) + (hi & 0x3ff), try_bytes, user);
    default: return true; /* whole bytes were tried already */
    }
}

/* ---- variables ------------------------------------------------------------------------------------------------- */

void string_feed(struct states *s, struct view *v, const uint8_t *bytes, unsigned n)
{
    for (uint32_t i = 0; i < v->n_var; i++) {
        struct view_var *var = &v->var[i];
        for (unsigned k = 0; k < n; k++) {
            if (term_kind(var->term) == TERM_REGEX && var->state)
                var->state = states_step(s, var->state, bytes[k]).next;
            else if (term_kind(var->term) == TERM_SET && var->state != TREE_NONE)
                var->state = tree_child(&s->p->sets.at[term_number(var->term)], var->state, bytes[k]);
        }
    }
}

/* Characters that are tried in a string. Most lead to what others have led to, where they need not be looked at. */
struct trial {
    struct states *s;
    const struct view *v;
    struct intern views;   /* that some bytes led to, with how many more of them the character needs */
    LIST(uint32_t) led_by; /* [views.n] these bytes */
};

static unsigned lead_length(uint8_t lead)
{
    return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Whether other bytes led to the same view, and what may follow them was tried: bytes 80..bf, except behind some leads,
 * of which the last ones may also be tried in parts. */
static bool was_tried(struct trial *t, const struct view *v, const uint8_t *bytes, unsigned n)
{
    uint32_t words[2 + VIEW_ROOTS + 2 * VIEW_VARS], n_word = 0, led_by = 0;
    unsigned n_more = lead_length(bytes[0]) - n;
    if (n == 1 && (bytes[0] == 0xe0 || bytes[0] == 0xed || bytes[0] >= 0xf0))
        return false;
    for (unsigned i = 0; i < n; i++)
        led_by = led_by << 8 | bytes[i];
    words[n_word++] = n_more;
    words[n_word++] = v->n_root;
    for (uint32_t i = 0; i < v->n_root; i++)
        words[n_word++] = v->root[i];
    for (uint32_t i = 0; i < v->n_var; i++) {
        words[n_word++] = v->var[i].term;
        words[n_word++] = v->var[i].state;
    }
    uint32_t number = intern_add(&t->views, words, n_word);
    if (number == INTERN_NONE || number < t->led_by.n)
        return number != INTERN_NONE && (n_more == 0 || t->led_by.at[number] != led_by);
    if (!LIST_PUSH(&t->led_by, led_by))
        states_fail(t->s, ERR_NOMEM);
    return false;
}

/* *copy: the string after more bytes of text; false: the goal is out of reach then, or other bytes led there. */
static bool feed_copy(struct trial *t, struct view *copy, const uint8_t *bytes, unsigned n)
{
    view_copy(copy, t->v);
    copy->phase = copy->n_extra = 0;
    string_feed(t->s, copy, bytes, n);
    return view_reduce(t->s, copy) && !was_tried(t, copy, bytes, n);
}

/* As lex_may_finish, of a trial that is over then. */
static bool try_all(struct trial *t, try_bytes_fn *try_bytes, void *user)
{
    bool may = lex_may_finish(t->v->phase, try_bytes, user);
    intern_close(&t->views);
    LIST_CLOSE(&t->led_by);
    return may;
}

static bool try_in_string(void *user, const uint8_t *bytes, unsigned n)
{
    struct view copy;
    return feed_copy(user, &copy, bytes, n);
}

/* Of a property's name, too: what its names and patterns say is for states_step_name to look at. */
struct state_out string_step(struct states *s, uint32_t state, uint8_t byte)
{
    struct state_out out = {STATE_STAY, 0, 0, 0};
    struct lexed lex;
    struct view v;
    view_load(s, state, &v);
    if (!lex_string(v.phase, byte, &lex))
        return (struct state_out){STATE_REFUSE, 0, 0, 0};
    if (lex.ends) {
        out.op = STATE_POP;
        out.next = v.kind == STATE_STRING ? view_end(s, &v) : 0;
        return out;
    }
    out.flags = lex.begins && v.kind == STATE_STRING ? STATE_COUNT : 0;
    v.phase = lex.next;
    string_feed(s, &v, lex.bytes, lex.n);
    if (v.kind == STATE_NAME) {
        for (uint32_t i = 0; i < v.n_var && lex.begins; i++)
            v.var[i].state += term_kind(v.var[i].term) == TERM_COUNT;
        for (uint32_t i = 1; i + 1 < v.n_extra; i += 2) /* the object's patterns */
            for (unsigned k = 0; k < lex.n && v.extra[i + 1]; k++)
                v.extra[i + 1] = states_step(s, v.extra[i + 1], lex.bytes[k]).next;
    }
    if (!view_reduce(s, &v))
        return (struct state_out){STATE_REFUSE, 0, 0, 0};
    struct trial t = {.s = s, .v = &v};
    if (v.n_var > 0 && v.phase != LEX_PLAIN && !try_all(&t, try_in_string, &t))
        return (struct state_out){STATE_REFUSE, 0, 0, 0};
    out.next = view_store(s, &v);
    return out;
}

/* ---- what masks and counts want to know ------------------------------------------------------------------------ */

struct without {
    struct states *s;
    const struct view *v;
    uint32_t term; /* that variable is false and all others are true; UINT32_MAX: all are false but what any further
                      characters leave possible: counts without a maximum, and */
    bool limited;  /* counts with a maximum; else patterns that search, which below a maximum need room */
};

static bool has_limit(const struct states *s, uint32_t t)
{
    return term_kind(t) == TERM_COUNT && s->p->counts.at[term_number(t)].max != COUNT_MANY;
}

static uint32_t map_without(void *user, uint32_t t)
{
    struct without *w = user;
    if (w->term != UINT32_MAX)
        return t == w->term ? FORMULA_FALSE : FORMULA_TRUE;
    if (term_kind(t) == TERM_COUNT)
        return w->limited || !has_limit(w->s, t) ? FORMULA_TRUE : FORMULA_FALSE;
    for (uint32_t i = 0; i < w->v->n_var && !w->limited; i++)
        if (w->v->var[i].term == t && term_kind(t) == TERM_REGEX && w->v->var[i].state &&
            text_searches(w->s, w->v->var[i].state))
            return FORMULA_TRUE;
    return FORMULA_FALSE;
}

static void see_negated(void *user, uint32_t t, bool negated)
{
    *(bool *)user |= negated;
}

/* Whether the goal is out of reach without the i-th variable. */
static bool must_hold(struct states *s, const struct view *v, uint32_t i)
{
    struct without w = {.s = s, .v = v, .term = v->var[i].term};
    return view_hope(s, v, map_without, &w) == FORMULA_FALSE;
}

/* limit: of the counts that must hold, the least maximum. Returns how many counts have a maximum. */
static uint32_t describe_limit(struct states *s, const struct view *v, struct state_record *r)
{
    uint32_t n_limit = 0;
    for (uint32_t i = 0; i < v->n_var; i++) {
        if (!has_limit(s, v->var[i].term))
            continue;
        uint32_t max = s->p->counts.at[term_number(v->var[i].term)].max;
        n_limit++;
        if (max < r->limit && must_hold(s, v, i))
            r->limit = max;
    }
    return n_limit;
}

/* Of the patterns that must hold, what the farthest from its end still needs. */
static uint32_t count_left(struct states *s, const struct view *v)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < v->n_var; i++) {
        uint32_t left = term_kind(v->var[i].term) == TERM_REGEX ? text_n_left(s, v->var[i].state) : 0;
        if (left > most && must_hold(s, v, i))
            most = left;
    }
    return most;
}

struct shortest {
    struct trial trial;
    uint32_t least; /* what is left after the best character so far */
    uint32_t bound; /* no character leaves less */
};

/* Whether it is known with these bytes of a character that nothing leaves less. */
static bool try_shorter(void *user, const uint8_t *bytes, unsigned n)
{
    struct shortest *x = user;
    struct view copy;
    if (!feed_copy(&x->trial, &copy, bytes, n))
        return false;
    uint32_t left = count_left(x->trial.s, &copy);
    if (left >= x->least || n < lead_length(bytes[0]))
        return left < x->least;
    x->least = left;
    return left == x->bound;
}

/* Counts what is left after the character that is being read, which is counted: within an escape, after the one of
 * those it may become that leaves least. */
static uint32_t count_left_after(struct states *s, const struct view *v)
{
    uint32_t left = count_left(s, v);
    unsigned lex = v->phase & 15;
    if (lex < LEX_ESCAPE || lex > LEX_LOW_HEX)
        return left;
    struct shortest x = {{.s = s, .v = v}, UINT32_MAX, left - (left > 0)};
    (void)try_all(&x.trial, try_shorter, &x);
    return x.least;
}

void string_describe(struct states *s, uint32_t state, struct state_record *r)
{
    struct view v;
    bool negated = false;
    view_load(s, state, &v);
    uint32_t n_limit = describe_limit(s, &v, r);
    r->n_left = r->limit == NO_THRESHOLD ? 0 : count_left_after(s, &v);
    for (uint32_t i = 0; i < v.n_root; i++)
        formula_each_var(&s->formulas, v.root[i], false, see_negated, &negated);
    if (negated || v.phase != LEX_PLAIN)
        return;
    struct without w = {.s = s, .v = &v, .term = UINT32_MAX};
    if (view_hope(s, &v, map_without, &w) != FORMULA_FALSE) {
        r->free_chars = r->limit == NO_THRESHOLD;
        return;
    }
    w.limited = true;
    r->free_chars = n_limit == 1 && r->limit != NO_THRESHOLD && view_hope(s, &v, map_without, &w) != FORMULA_FALSE;
}
