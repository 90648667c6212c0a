#include "grammar/regex.h"

#include <string.h>

struct parser {
    struct exprs x;
    const char *s;
    size_t n, at;
    int depth;
    LIST(uint32_t) stack;           /* nodes of open lists */
    LIST(struct char_range) ranges; /* of the class that is being read */
    struct err *e;
};

static const struct char_range digits[] = {{'0', '9'}};
static const struct char_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct char_range spaces[] = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
                                           {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                                           {0x3000, 0x3000}, {0xfeff, 0xfeff}};
static const struct char_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

static err_code bad(struct parser *p, err_code code, const char *what)
{
    return err_set(p->e, code, "regular expression, byte %zu: %s", p->at, what);
}

static err_code no_memory(struct parser *p)
{
    return err_nomem(p->e, p->n, "a regular expression");
}

static bool next_is(const struct parser *p, const char *text)
{
    size_t n = strlen(text);
    return p->n - p->at >= n && !memcmp(p->s + p->at, text, n);
}

static bool take(struct parser *p, const char *text)
{
    bool found = next_is(p, text);
    p->at += found ? strlen(text) : 0;
    return found;
}

/* ---- characters and classes ------------------------------------------------------------------------------------ */

static err_code add_range(struct parser *p, uint32_t lo, uint32_t hi)
{
    return lo > hi || LIST_PUSH(&p->ranges, (struct char_range){lo, hi}) ? ERR_OK : no_memory(p);
}

/* A named class, or all that is not in it. */
static err_code add_class(struct parser *p, const struct char_range *r, size_t n, bool negated)
{
    uint32_t next = 0;
    for (size_t i = 0; i < n; i++) {
        if (!negated)
            TRY(add_range(p, r[i].lo, r[i].hi));
        else if (r[i].lo > 0)
            TRY(add_range(p, next, r[i].lo - 1));
        next = r[i].hi + 1;
    }
    return negated ? add_range(p, next, 0x10ffff) : ERR_OK;
}

/* The class of an escape's letter; *found: there is one. */
static err_code add_named(struct parser *p, char letter, bool *found)
{
    *found = true;
    switch (letter) {
    case 'd':
    case 'D': return add_class(p, digits, 1, letter == 'D');
    case 'w':
    case 'W': return add_class(p, words, sizeof words / sizeof *words, letter == 'W');
    case 's':
    case 'S': return add_class(p, spaces, sizeof spaces / sizeof *spaces, letter == 'S');
    default: *found = false; return ERR_OK;
    }
}

static err_code read_char(struct parser *p, uint32_t *code)
{
    unsigned length;
    *code = nfa_read_char(p->s + p->at, p->n - p->at, &length);
    p->at += length;
    return *code != NFA_NO_CHAR ? ERR_OK : bad(p, ERR_FORMAT, "expected UTF-8");
}

static bool read_hex(struct parser *p, int n_min, int n_max, uint32_t *code)
{
    int n = 0;
    *code = 0;
    for (; n < n_max && p->at < p->n && hex_value(p->s[p->at]) >= 0; n++)
        *code = *code * 16 + (uint32_t)hex_value(p->s[p->at++]);
    return n >= n_min && *code <= 0x10ffff;
}

/* \u1234, \u{1f600}, or a pair of surrogates. */
static err_code read_unicode(struct parser *p, uint32_t *code)
{
    uint32_t low;
    if (take(p, "{"))
        return read_hex(p, 1, 6, code) && take(p, "}") ? ERR_OK : bad(p, ERR_FORMAT, "expected \\u{HEX}");
    if (!read_hex(p, 4, 4, code))
        return bad(p, ERR_FORMAT, "expected \\u and four hexadecimal digits");
    size_t at = p->at;
    if (*code >= 0xd800 && *code < 0xdc00 && take(p, "\\u") && read_hex(p, 4, 4, &low) && low >= 0xdc00 && low < 0xe000)
        *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    else
        p->at = at;
    return ERR_OK;
}

/* What stands behind a backslash, as a character. */
static err_code read_escape(struct parser *p, bool in_class, uint32_t *code)
{
    static const char letters[] = "tnrfv", values[] = "\t\n\r\f\v";
    if (p->at == p->n)
        return bad(p, ERR_FORMAT, "a backslash at the end");
    char c = p->s[p->at];
    const char *letter = memchr(letters, c, sizeof letters - 1);
    if ((c >= '1' && c <= '9') || c == 'k')
        return bad(p, ERR_UNSUPPORTED, "references to groups can't be enforced");
    if ((c == 'b' && !in_class) || c == 'B')
        return bad(p, ERR_UNSUPPORTED, "word boundaries can't be enforced");
    if (c == 'p' || c == 'P')
        return bad(p, ERR_UNSUPPORTED, "classes by Unicode property can't be enforced");
    if (c == 'A' || c == 'Z' || c == 'z' || c == 'G' || c == 'Q' || c == 'E' || c == 'h' || c == 'R' || c == 'K' ||
        c == 'X')
        return bad(p, ERR_UNSUPPORTED, "this escape is not of ECMA's regular expressions");
    TRY(read_char(p, code));
    if (letter)
        *code = (uint8_t)values[letter - letters];
    else if (c == 'b')
        *code = '\b';
    else if (c == '0')
        *code = 0;
    else if (c == 'x')
        return read_hex(p, 2, 2, code) ? ERR_OK : bad(p, ERR_FORMAT, "expected \\x and two hexadecimal digits");
    else if (c == 'u')
        return read_unicode(p, code);
    else if (c == 'c' && p->at < p->n)
        *code = (uint8_t)p->s[p->at++] & 0x1f;
    return ERR_OK;
}

/* One end of a range in [...]; *is_class: it was a class, which is added already. */
static err_code read_class_item(struct parser *p, uint32_t *code, bool *is_class)
{
    *is_class = false;
    if (next_is(p, "[:"))
        return bad(p, ERR_UNSUPPORTED, "[:...:] is not of ECMA's regular expressions");
    if (!take(p, "\\"))
        return read_char(p, code);
    if (p->at < p->n) {
        TRY(add_named(p, p->s[p->at], is_class));
        p->at += *is_class;
    }
    return *is_class ? ERR_OK : read_escape(p, true, code);
}

static err_code parse_class(struct parser *p, uint32_t *node)
{
    bool negated = take(p, "^"), is_class, hi_is_class;
    uint32_t lo, hi;
    p->ranges.n = 0;
    while (!take(p, "]")) {
        if (p->at == p->n)
            return bad(p, ERR_FORMAT, "a class without its ]");
        TRY(read_class_item(p, &lo, &is_class));
        if (is_class)
            continue;
        hi = lo;
        size_t at = p->at;
        if (take(p, "-") && p->at < p->n && !next_is(p, "]")) {
            uint32_t n_range = p->ranges.n;
            TRY(read_class_item(p, &hi, &hi_is_class));
            if (hi_is_class) { /* [a-\d] is a, -, \d */
                p->ranges.n = n_range;
                p->at = at;
                hi = lo;
            } else if (hi < lo)
                return bad(p, ERR_FORMAT, "a range that ends before it begins");
        } else
            p->at = at;
        TRY(add_range(p, lo, hi));
    }
    *node = expr_class(&p->x, p->ranges.at, p->ranges.n, negated);
    return ERR_OK;
}

/* ---- expressions ----------------------------------------------------------------------------------------------- */

static err_code parse_or(struct parser *p, uint32_t *node);

static err_code parse_group(struct parser *p, uint32_t *node)
{
    if (next_is(p, "?=") || next_is(p, "?!") || next_is(p, "?<=") || next_is(p, "?<!"))
        return bad(p, ERR_UNSUPPORTED, "looking ahead or behind can be enforced at the pattern's begin only");
    if (take(p, "?<") || take(p, "?P<")) {
        while (p->at < p->n && p->s[p->at] != '>')
            p->at++;
        if (!take(p, ">"))
            return bad(p, ERR_FORMAT, "a group's name without its >");
    } else if (next_is(p, "?") && !take(p, "?:"))
        return bad(p, ERR_UNSUPPORTED, "this kind of group can't be enforced");
    if (++p->depth > REGEX_MAX_NESTING)
        return bad(p, ERR_LIMIT, "groups are nested too deeply");
    TRY(parse_or(p, node));
    p->depth--;
    return take(p, ")") ? ERR_OK : bad(p, ERR_FORMAT, "a group without its )");
}

static err_code parse_atom(struct parser *p, uint32_t *node)
{
    uint32_t code;
    bool is_class = false;
    if (take(p, "("))
        return parse_group(p, node);
    if (take(p, "["))
        return parse_class(p, node);
    p->ranges.n = 0;
    if (take(p, "^") || take(p, "$")) {
        *node = expr_node(&p->x, p->s[p->at - 1] == '^' ? EXPR_BEGIN : EXPR_FINISH, 0, 0, 0);
        return ERR_OK;
    }
    if (next_is(p, "*") || next_is(p, "+") || next_is(p, "?"))
        return bad(p, ERR_FORMAT, "nothing to repeat");
    if (take(p, "."))
        TRY(add_class(p, line_ends, sizeof line_ends / sizeof *line_ends, true));
    else if (take(p, "\\")) {
        if (p->at < p->n)
            TRY(add_named(p, p->s[p->at], &is_class));
        p->at += is_class;
        if (!is_class) {
            TRY(read_escape(p, false, &code));
            TRY(add_range(p, code, code));
        }
    } else {
        TRY(read_char(p, &code));
        TRY(add_range(p, code, code));
    }
    *node = expr_class(&p->x, p->ranges.at, p->ranges.n, false);
    return ERR_OK;
}

/* {2}, {2,}, {2,4}: false where it is none, and then text. */
static bool read_counts(struct parser *p, uint32_t *min, uint32_t *max)
{
    size_t at = p->at;
    if (take(p, "{") && expr_read_count(p->s, p->n, &p->at, min)) {
        *max = *min;
        if (take(p, ",") && !expr_read_count(p->s, p->n, &p->at, max))
            *max = EXPR_MANY;
        if (take(p, "}"))
            return true;
    }
    p->at = at;
    return false;
}

static err_code parse_repeated(struct parser *p, uint32_t *node)
{
    uint32_t min, max;
    TRY(parse_atom(p, node));
    for (bool again = false;; again = true) {
        if (take(p, "*"))
            min = 0, max = EXPR_MANY;
        else if (take(p, "+"))
            min = 1, max = EXPR_MANY;
        else if (take(p, "?"))
            min = 0, max = 1;
        else if (!read_counts(p, &min, &max))
            return ERR_OK;
        if (again || next_is(p, "+"))
            return bad(p, ERR_FORMAT, "a repetition of a repetition");
        if (min > max)
            return bad(p, ERR_FORMAT, "a repetition whose least number is above its greatest");
        if (min > EXPR_MAX_REPEAT || (max > EXPR_MAX_REPEAT && max != EXPR_MANY))
            return bad(p, ERR_LIMIT, "too many repetitions");
        take(p, "?"); /* which match is preferred makes no difference */
        *node = expr_node(&p->x, EXPR_REPEAT, *node, min, max);
    }
}

static err_code parse_cat(struct parser *p, uint32_t *node)
{
    uint32_t from = p->stack.n, one = 0;
    while (p->at < p->n && !next_is(p, "|") && !next_is(p, ")")) {
        TRY(parse_repeated(p, &one));
        if (!LIST_PUSH(&p->stack, one))
            return no_memory(p);
    }
    *node = expr_list(&p->x, EXPR_CAT, LIST_FROM(&p->stack, from), p->stack.n - from);
    p->stack.n = from;
    return ERR_OK;
}

static err_code parse_or(struct parser *p, uint32_t *node)
{
    uint32_t from = p->stack.n, one = 0;
    do {
        TRY(parse_cat(p, &one));
        if (!LIST_PUSH(&p->stack, one))
            return no_memory(p);
    } while (take(p, "|"));
    *node = expr_list(&p->x, EXPR_OR, LIST_FROM(&p->stack, from), p->stack.n - from);
    p->stack.n = from;
    return ERR_OK;
}

/* ---- automata -------------------------------------------------------------------------------------------------- */

/* Whether a match can begin nowhere but at the text's begin. */
static bool begins_at_begin(const struct exprs *x, uint32_t node)
{
    const struct expr *p = &x->nodes.at[node];
    switch (p->kind) {
    case EXPR_BEGIN: return true;
    case EXPR_CAT: return p->n > 0 && begins_at_begin(x, x->kids.at[p->first]);
    case EXPR_REPEAT: return p->min > 0 && begins_at_begin(x, p->first);
    case EXPR_OR:
        for (uint32_t i = 0; i < p->n; i++)
            if (!begins_at_begin(x, x->kids.at[p->first + i]))
                return false;
        return p->n > 0;
    default: return false;
    }
}

/* The automaton of a node that matches somewhere: alternatives that may begin late are behind a loop over characters.
 */
static err_code emit_search(struct parser *p, struct nfa *nfa, uint32_t node, uint32_t *begin)
{
    struct expr top = p->x.nodes.at[node];
    uint32_t all = nfa_add(nfa, NFA_ALL, 0, 0, 0), search = INTERN_NONE, early = INTERN_NONE, one, any;
    struct char_range every = {0, 0x10ffff};
    uint32_t n = top.kind == EXPR_OR ? top.n : 1;
    if (all == INTERN_NONE)
        return nfa_full(nfa, p->e);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t kid = top.kind == EXPR_OR ? p->x.kids.at[top.first + i] : node;
        uint32_t *list = begins_at_begin(&p->x, kid) ? &early : &search;
        TRY(nfa_emit(nfa, &p->x, kid, NULL, all, &one, p->e));
        if (*list != INTERN_NONE) {
            uint32_t a = nfa->code.at[one].n_left, b = nfa->code.at[*list].n_left;
            one = nfa_add(nfa, NFA_SPLIT, one, *list, a < b ? a : b);
        }
        if (one == INTERN_NONE)
            return nfa_full(nfa, p->e);
        *list = one;
    }
    if (search != INTERN_NONE) {
        uint32_t loop = nfa_add(nfa, NFA_SEARCH, search, 0, nfa->code.at[search].n_left);
        any = expr_class(&p->x, &every, 1, false);
        if (loop == INTERN_NONE)
            return nfa_full(nfa, p->e);
        TRY(nfa_emit(nfa, &p->x, any, NULL, loop, &one, p->e));
        nfa->code.at[loop].b = one;
        search = loop;
    }
    *begin = early == INTERN_NONE ? search : search == INTERN_NONE ? early : nfa_add(nfa, NFA_SPLIT, early, search, 0);
    return *begin == INTERN_NONE ? nfa_full(nfa, p->e) : ERR_OK;
}

/* ^(?!...)(?=...) at the begin: each a part that matches from the begin on. */
static err_code parse_looks(struct parser *p, struct nfa *nfa, struct regex_parts *parts)
{
    size_t from = p->at;
    bool at_begin = take(p, "^");
    uint32_t node, kids[2];
    while (next_is(p, "(?!") || next_is(p, "(?=")) {
        bool negated = next_is(p, "(?!");
        if (!at_begin)
            return bad(p, ERR_UNSUPPORTED, "looking ahead can be enforced behind ^ at the pattern's begin only");
        if (parts->n == REGEX_MAX_PART - 1)
            return bad(p, ERR_UNSUPPORTED, "it looks ahead too often to be enforced");
        p->at += 3;
        TRY(parse_or(p, &node));
        if (!take(p, ")"))
            return bad(p, ERR_FORMAT, "a group without its )");
        kids[0] = expr_node(&p->x, EXPR_BEGIN, 0, 0, 0);
        kids[1] = node;
        TRY(emit_search(p, nfa, expr_list(&p->x, EXPR_CAT, kids, 2), &parts->begin[parts->n]));
        parts->negated[parts->n++] = negated;
    }
    if (parts->n == 0)
        p->at = from;
    return ERR_OK;
}

static err_code compile(struct parser *p, struct nfa *nfa, bool whole, struct regex_parts *parts)
{
    uint32_t node, end, kids[2];
    parts->n = 0;
    if (!whole)
        TRY(parse_looks(p, nfa, parts));
    TRY(parse_or(p, &node));
    if (p->at < p->n)
        return bad(p, ERR_FORMAT, "a ) without its group");
    if (parts->n > 0) { /* the ^ before them is the rest's, too */
        if (p->x.nodes.at[node].kind == EXPR_OR)
            return bad(p, ERR_UNSUPPORTED, "looking ahead in one of several alternatives can't be enforced");
        kids[0] = expr_node(&p->x, EXPR_BEGIN, 0, 0, 0);
        kids[1] = node;
        node = expr_list(&p->x, EXPR_CAT, kids, 2);
    }
    if (p->x.n_failed)
        return no_memory(p);
    parts->negated[parts->n] = false;
    if (!whole)
        return emit_search(p, nfa, node, &parts->begin[parts->n++]);
    end = nfa_add(nfa, NFA_END, 0, 0, 0);
    return end == INTERN_NONE ? nfa_full(nfa, p->e)
                              : nfa_emit(nfa, &p->x, node, NULL, end, &parts->begin[parts->n++], p->e);
}

err_code regex_compile(struct nfa *nfa, const char *text, size_t n, bool whole, struct regex_parts *parts,
                       struct err *e)
{
    struct parser p = {.s = text, .n = n, .e = e};
    err_code code = compile(&p, nfa, whole, parts);
    exprs_close(&p.x);
    LIST_CLOSE(&p.stack);
    LIST_CLOSE(&p.ranges);
    return code;
}
