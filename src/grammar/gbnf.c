#include "grammar/gbnf.h"

#include <string.h>

#include "grammar/schema.h"
#include "grammar/vocab_trie.h"

enum {
    GBNF_MAX_NESTING = 200,
    GBNF_MAX_REPEATS = 8, /* of one atom: ((x*)+)? without its parentheses has three */
    GBNF_MAX_NAME = 200,
    GBNF_MAX_LEFT = 4000, /* groups, repetitions and rules */
    GBNF_MAX_PASSES = 64, /* over all rules, until what is known of them changes no more */
};

struct rule {
    struct text_ref name;
    uint32_t body; /* a node, once it is defined */
    int line;      /* where it is defined, or else used */
    bool defined, nullable, ends;
    uint8_t seen; /* by the search for circles */
};

struct parser {
    struct program *program;
    const struct grammar_vocab *vocab; /* NULL: bytes only */
    struct exprs x;
    LIST(struct rule) rules;
    struct intern rule_numbers; /* the number of each rule's name */
    LIST(uint32_t) stack;
    LIST(struct char_range) ranges;
    LIST(char) text; /* of the literal that is being read */
    const char *s;
    size_t n, at;
    int line, depth;
    bool lenient;
    struct err *e;
};

static err_code bad(struct parser *p, const char *what)
{
    return err_set(p->e, ERR_FORMAT, "grammar, line %d: %s", p->line, what);
}

static err_code no_memory(struct parser *p)
{
    return err_nomem(p->e, p->n, "a grammar");
}

/* ---- words ----------------------------------------------------------------------------------------------------- */

static void skip_space(struct parser *p)
{
    for (; p->at < p->n; p->at++) {
        char c = p->s[p->at];
        if (c == '#')
            while (p->at + 1 < p->n && p->s[p->at + 1] != '\n')
                p->at++;
        else if (c == '\n')
            p->line++;
        else if (c != ' ' && c != '\t' && c != '\r')
            return;
    }
}

static bool take(struct parser *p, const char *text)
{
    size_t n = strlen(text);
    bool found = p->n - p->at >= n && !memcmp(p->s + p->at, text, n);
    p->at += found ? n : 0;
    return found;
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static struct text_ref read_name(struct parser *p)
{
    struct text_ref name = {p->s + p->at, 0};
    while (p->at < p->n && is_name_char(p->s[p->at])) {
        p->at++;
        name.n++;
    }
    return name;
}

/* Whether a rule's definition begins here; stays. */
static bool at_definition(struct parser *p)
{
    size_t at = p->at;
    int line = p->line;
    struct text_ref name = read_name(p);
    skip_space(p);
    bool found = name.n > 0 && take(p, "::=");
    p->at = at;
    p->line = line;
    return found;
}

static err_code rule_number(struct parser *p, struct text_ref name, uint32_t *number)
{
    if (name.n > GBNF_MAX_NAME)
        return bad(p, "a rule's name is too long");
    *number = intern_text(&p->rule_numbers, name.s, name.n);
    if (*number < p->rules.n)
        return ERR_OK;
    bool is_added = *number != INTERN_NONE && LIST_PUSH(&p->rules, (struct rule){.name = name, .line = p->line});
    return is_added ? ERR_OK : no_memory(p);
}

/* ---- literals and classes -------------------------------------------------------------------------------------- */

static err_code read_hex(struct parser *p, int n_digit, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < n_digit; i++, p->at++) {
        char c = p->at < p->n ? p->s[p->at] : '\0';
        int digit = hex_value(c);
        if (digit < 0)
            return bad(p, "an escape has too few hexadecimal digits");
        *code = *code << 4 | (uint32_t)digit;
    }
    return utf8_is_character(*code) ? ERR_OK : bad(p, "an escape is no character");
}

static err_code read_char(struct parser *p, uint32_t *code)
{
    static const char letters[] = "\"\\[]nrt-^", values[] = "\"\\[]\n\r\t-^";
    unsigned length;
    if (p->at >= p->n)
        return bad(p, "a literal or class does not end");
    if (!take(p, "\\")) {
        *code = nfa_read_char(p->s + p->at, p->n - p->at, &length);
        p->line += *code == '\n';
        p->at += length;
        return *code != NFA_NO_CHAR ? ERR_OK : bad(p, "expected UTF-8");
    }
    if (take(p, "x"))
        return read_hex(p, 2, code);
    if (take(p, "u"))
        return read_hex(p, 4, code);
    if (take(p, "U"))
        return read_hex(p, 8, code);
    const char *letter = p->at < p->n && p->s[p->at] ? memchr(letters, p->s[p->at], sizeof letters - 1) : NULL;
    if (!letter)
        return bad(p, "an escape that is not known; there are \\\" \\\\ \\[ \\] \\n \\r \\t \\xHH \\uHHHH \\UHHHHHHHH");
    *code = (uint8_t)values[letter - letters];
    p->at++;
    return ERR_OK;
}

/* Behind the opening quotation mark. mark: a byte to begin with, or 0. */
static err_code parse_literal(struct parser *p, uint8_t mark, uint32_t *node)
{
    uint32_t code;
    uint8_t bytes[4];
    p->text.n = 0;
    if (mark && !LIST_PUSH(&p->text, (char)mark))
        return no_memory(p);
    while (!take(p, "\"")) {
        TRY(read_char(p, &code));
        unsigned n = utf8_encode(code, bytes);
        if (!LIST_ROOM(&p->text, n))
            return no_memory(p);
        memcpy(p->text.at + p->text.n, bytes, n);
        p->text.n += n;
    }
    *node = expr_bytes(&p->x, p->text.at, p->text.n);
    return ERR_OK;
}

static err_code parse_class(struct parser *p, uint32_t *node)
{
    bool negated = take(p, "^");
    p->ranges.n = 0;
    while (!take(p, "]")) {
        struct char_range r;
        TRY(read_char(p, &r.lo));
        r.hi = r.lo;
        if (p->at + 1 < p->n && p->s[p->at] == '-' && p->s[p->at + 1] != ']') {
            p->at++;
            TRY(read_char(p, &r.hi));
        }
        if (r.hi < r.lo)
            return bad(p, "a range that ends before it begins");
        if (!LIST_PUSH(&p->ranges, r))
            return no_memory(p);
    }
    *node = expr_class(&p->x, p->ranges.at, p->ranges.n, negated);
    return ERR_OK;
}

/* %json and the schema behind it, as far as its braces go. */
static err_code parse_json(struct parser *p, uint32_t *node)
{
    uint32_t schema;
    skip_space(p);
    size_t from = p->at;
    int depth = 0, line = p->line;
    bool in_string = false;
    if (p->at == p->n || p->s[p->at] != '{')
        return bad(p, "expected a schema in braces behind %json");
    do {
        if (p->at == p->n)
            return bad(p, "a schema whose braces do not close");
        char c = p->s[p->at++];
        line += c == '\n';
        if (in_string) {
            p->at += c == '\\' && p->at < p->n;
            in_string = c != '"';
        } else {
            in_string = c == '"';
            depth += (c == '{') - (c == '}');
        }
    } while (depth > 0);
    err_code code = schema_compile(p->program, p->s + from, p->at - from, p->lenient, &schema, p->e);
    if (code != ERR_OK)
        return p->e ? err_prefix(p->e, "grammar, line %d", p->line) : code;
    p->line = line;
    *node = expr_node(&p->x, EXPR_JSON, schema, 0, 0);
    return ERR_OK;
}

/* <[ID]>, behind the [: the bytes of that token, among them the mark of a special one. Without a vocabulary they are
 * not known, and no text has what stands for them. */
static err_code parse_token_id(struct parser *p, uint32_t *node)
{
    static const char unknown = (char)NFA_TOKEN_MARK;
    const struct grammar_vocab *v = p->vocab;
    int64_t id = 0;
    size_t from = p->at;
    for (; p->at < p->n && p->s[p->at] >= '0' && p->s[p->at] <= '9'; p->at++)
        id = id > INT32_MAX ? id : id * 10 + (p->s[p->at] - '0');
    int n_digit = (int)(p->at - from);
    if (n_digit == 0 || !take(p, "]>"))
        return bad(p, "expected a token's number, <[ID]>");
    if (v && id >= v->n_token)
        return err_set(p->e, ERR_FORMAT, "grammar, line %d: there is no token %.*s; the vocabulary has 0 to %d",
                       p->line, n_digit, p->s + from, v->n_token - 1);
    uint32_t n = v ? v->offsets[id + 1] - v->offsets[id] : 1;
    if (n == 0 || n > TRIE_MAX_DEPTH)
        return err_set(p->e, ERR_FORMAT, "grammar, line %d: the token %.*s has %s", p->line, n_digit, p->s + from,
                       n ? "too many bytes" : "no text");
    *node = expr_bytes(&p->x, v ? (const char *)v->bytes + v->offsets[id] : &unknown, n);
    return ERR_OK;
}

/* <TEXT>, behind the <: the token of that text, its brackets included. Which of them a vocabulary takes for special
 * ones is not known here, so it may come as text, too. */
static err_code parse_token(struct parser *p, uint32_t *node)
{
    static const char mark = (char)NFA_TOKEN_MARK;
    size_t from = p->at - 1;
    uint32_t kids[2], n;
    if (take(p, "["))
        return parse_token_id(p, node);
    while (p->at < p->n && p->s[p->at] != '>' && p->s[p->at] != '\n')
        p->at++;
    if (!take(p, ">"))
        return bad(p, "a token's text without its >");
    n = (uint32_t)(p->at - from);
    kids[0] = expr_bytes(&p->x, p->s + from, n);
    kids[1] = expr_bytes(&p->x, &mark, 1);
    kids[1] = expr_list(&p->x, EXPR_CAT, (uint32_t[]){kids[1], kids[0]}, 2);
    *node = expr_list(&p->x, EXPR_OR, kids, 2);
    return ERR_OK;
}

/* ---- expressions ----------------------------------------------------------------------------------------------- */

static err_code parse_or(struct parser *p, uint32_t *node);

static err_code parse_atom(struct parser *p, uint32_t *node)
{
    struct char_range every = {0, 0x10ffff};
    uint32_t number;
    if (take(p, "\""))
        return parse_literal(p, 0, node);
    if (take(p, "["))
        return parse_class(p, node);
    if (take(p, "%json"))
        return parse_json(p, node);
    if (take(p, "%token")) {
        skip_space(p);
        return take(p, "\"") ? parse_literal(p, NFA_TOKEN_MARK, node) : bad(p, "expected a quoted text behind %token");
    }
    if (take(p, "<"))
        return parse_token(p, node);
    if (take(p, "!<"))
        return bad(p, "a token that must not come, !<...>, can't be enforced");
    if (take(p, ".")) {
        *node = expr_class(&p->x, &every, 1, false);
        return ERR_OK;
    }
    if (take(p, "(")) {
        if (++p->depth > GBNF_MAX_NESTING)
            return bad(p, "groups are nested too deeply");
        TRY(parse_or(p, node));
        p->depth--;
        return take(p, ")") ? ERR_OK : bad(p, "expected )");
    }
    struct text_ref name = read_name(p);
    if (name.n == 0)
        return bad(p, "expected a literal, a class, a group or a rule's name");
    TRY(rule_number(p, name, &number));
    *node = expr_node(&p->x, EXPR_RULE, number, 0, 0);
    return ERR_OK;
}

/* {2}, {2,}, {,4}, {2,4} behind the brace. */
static err_code read_counts(struct parser *p, uint32_t *min, uint32_t *max)
{
    skip_space(p);
    bool has_min = expr_read_count(p->s, p->n, &p->at, min);
    *max = *min;
    skip_space(p);
    if (take(p, ",")) {
        skip_space(p);
        if (!expr_read_count(p->s, p->n, &p->at, max))
            *max = EXPR_MANY;
        skip_space(p);
    } else if (!has_min)
        return bad(p, "expected a number of repetitions");
    return take(p, "}") ? ERR_OK : bad(p, "expected } behind a number of repetitions");
}

static err_code parse_repeated(struct parser *p, uint32_t *node)
{
    uint32_t min, max;
    TRY(parse_atom(p, node));
    for (int n = 0; n <= GBNF_MAX_REPEATS; n++) {
        skip_space(p);
        if (take(p, "*"))
            min = 0, max = EXPR_MANY;
        else if (take(p, "+"))
            min = 1, max = EXPR_MANY;
        else if (take(p, "?"))
            min = 0, max = 1;
        else if (take(p, "{"))
            TRY(read_counts(p, &min, &max));
        else
            return ERR_OK;
        if (min > max || min > EXPR_MAX_REPEAT || (max > EXPR_MAX_REPEAT && max != EXPR_MANY))
            return bad(p, "these repetitions can't be");
        *node = expr_node(&p->x, EXPR_REPEAT, *node, min, max);
    }
    return bad(p, "too many repetitions of repetitions");
}

static bool at_end(struct parser *p)
{
    skip_space(p);
    return p->at == p->n || p->s[p->at] == '|' || p->s[p->at] == ')' || at_definition(p);
}

static err_code parse_or(struct parser *p, uint32_t *node)
{
    uint32_t from = p->stack.n, one = 0;
    do {
        uint32_t first = p->stack.n;
        while (!at_end(p)) {
            TRY(parse_repeated(p, &one));
            if (!LIST_PUSH(&p->stack, one))
                return no_memory(p);
        }
        one = expr_list(&p->x, EXPR_CAT, LIST_FROM(&p->stack, first), p->stack.n - first);
        p->stack.n = first;
        if (!LIST_PUSH(&p->stack, one))
            return no_memory(p);
    } while (take(p, "|"));
    *node = expr_list(&p->x, EXPR_OR, LIST_FROM(&p->stack, from), p->stack.n - from);
    p->stack.n = from;
    return ERR_OK;
}

static err_code parse_rules(struct parser *p)
{
    for (skip_space(p); p->at < p->n; skip_space(p)) {
        uint32_t number, body;
        if (!at_definition(p))
            return bad(p, "expected a rule: NAME ::= ...");
        TRY(rule_number(p, read_name(p), &number));
        skip_space(p);
        take(p, "::=");
        if (p->rules.at[number].defined)
            return bad(p, "this rule is defined already");
        int line = p->line;
        TRY(parse_or(p, &body));
        p->rules.at[number].body = body;
        p->rules.at[number].defined = true;
        p->rules.at[number].line = line;
        if (p->at < p->n && p->s[p->at] == ')')
            return bad(p, "a ) without its (");
    }
    return p->x.n_failed ? no_memory(p) : ERR_OK;
}

/* ---- what rules can be ----------------------------------------------------------------------------------------- */

static bool is_nullable(const struct parser *p, uint32_t node)
{
    const struct expr *x = &p->x.nodes.at[node];
    switch (x->kind) {
    case EXPR_BYTES: return x->n == 0;
    case EXPR_REPEAT: return x->min == 0 || is_nullable(p, x->first);
    case EXPR_RULE: return p->rules.at[x->first].nullable;
    case EXPR_CAT:
    case EXPR_OR:
        for (uint32_t i = 0; i < x->n; i++)
            if (is_nullable(p, p->x.kids.at[x->first + i]) == (x->kind == EXPR_OR))
                return x->kind == EXPR_OR;
        return x->kind == EXPR_CAT;
    default: return false;
    }
}

/* Whether some text of it is finite. */
static bool can_end(const struct parser *p, uint32_t node)
{
    const struct expr *x = &p->x.nodes.at[node];
    switch (x->kind) {
    case EXPR_CLASS: return x->n > 0;
    case EXPR_REPEAT: return x->min == 0 || can_end(p, x->first);
    case EXPR_RULE: return p->rules.at[x->first].ends;
    case EXPR_CAT:
    case EXPR_OR:
        for (uint32_t i = 0; i < x->n; i++)
            if (can_end(p, p->x.kids.at[x->first + i]) == (x->kind == EXPR_OR))
                return x->kind == EXPR_OR;
        return x->kind == EXPR_CAT;
    default: return true;
    }
}

static err_code check_left(struct parser *p, uint32_t rule, int depth);

/* Looks at the rules that a node may begin with. */
static err_code check_left_node(struct parser *p, uint32_t node, int depth)
{
    const struct expr x = p->x.nodes.at[node];
    switch (x.kind) {
    case EXPR_RULE: return check_left(p, x.first, depth);
    case EXPR_REPEAT: return check_left_node(p, x.first, depth + 1);
    case EXPR_CAT:
    case EXPR_OR:
        for (uint32_t i = 0; i < x.n; i++) {
            uint32_t kid = p->x.kids.at[x.first + i];
            TRY(check_left_node(p, kid, depth + 1));
            if (x.kind == EXPR_CAT && !is_nullable(p, kid))
                break;
        }
        return ERR_OK;
    default: return ERR_OK;
    }
}

static err_code check_left(struct parser *p, uint32_t rule, int depth)
{
    struct rule *r = &p->rules.at[rule];
    if (r->seen == 2)
        return ERR_OK;
    if (r->seen == 1 || depth > GBNF_MAX_LEFT)
        return err_set(p->e, r->seen == 1 ? ERR_FORMAT : ERR_LIMIT,
                       r->seen == 1 ? "grammar, line %d: the rule %.*s begins with itself; write it as a repetition"
                                    : "grammar, line %d: the rule %.*s begins with too many others in each other",
                       r->line, (int)r->name.n, r->name.s);
    r->seen = 1;
    TRY(check_left_node(p, r->body, depth + 1));
    p->rules.at[rule].seen = 2;
    return ERR_OK;
}

/* Finds out again whether a rule's text may be empty, and whether it may end. Returns whether that has changed. */
static bool update_rule(struct parser *p, uint32_t rule)
{
    struct rule *r = &p->rules.at[rule];
    bool nullable = is_nullable(p, r->body), ends = can_end(p, r->body);
    bool has_changed = nullable != r->nullable || ends != r->ends;
    r->nullable = nullable;
    r->ends = ends;
    return has_changed;
}

/* Rules mostly use those that come after them, so the first pass goes backwards. */
static err_code update_rules(struct parser *p, uint32_t n)
{
    bool again = true;
    for (int pass = 0; again && pass < GBNF_MAX_PASSES; pass++) {
        again = false;
        for (uint32_t i = 0; i < n; i++)
            again |= update_rule(p, pass % 2 ? i : n - 1 - i);
    }
    return !again
               ? ERR_OK
               : err_set(p->e, ERR_LIMIT,
                         "grammar: its rules use each other back and forth too often; put each rule before those that "
                         "it uses");
}

static err_code check_rules(struct parser *p, uint32_t *root)
{
    struct text_ref root_name = {"root", 4};
    for (uint32_t i = 0; i < p->rules.n; i++)
        if (!p->rules.at[i].defined)
            return err_set(p->e, ERR_FORMAT, "grammar, line %d: there is no rule %.*s", p->rules.at[i].line,
                           (int)p->rules.at[i].name.n, p->rules.at[i].name.s);
    uint32_t n = p->rules.n;
    TRY(rule_number(p, root_name, root));
    if (*root == n)
        return err_set(p->e, ERR_FORMAT, "grammar: there is no rule root");
    TRY(update_rules(p, n));
    for (uint32_t i = 0; i < n; i++) {
        if (!p->rules.at[i].ends)
            return err_set(p->e, ERR_FORMAT, "grammar, line %d: no text of the rule %.*s ever ends",
                           p->rules.at[i].line, (int)p->rules.at[i].name.n, p->rules.at[i].name.s);
        TRY(check_left(p, i, 0));
    }
    return ERR_OK;
}

static err_code emit_rules(struct parser *p, uint32_t root)
{
    struct nfa *nfa = &p->program->nfa;
    uint32_t n = p->rules.n, *begins = mem_calloc(n, sizeof *begins), ret = nfa_add(nfa, NFA_RETURN, 0, 0, 0), body;
    uint32_t end = nfa_add(nfa, NFA_END, 0, 0, 0);
    bool ok = begins && ret != INTERN_NONE && end != INTERN_NONE;
    err_code code = ERR_OK;
    for (uint32_t i = 0; ok && i < n; i++)
        ok = (begins[i] = nfa_add(nfa, NFA_SPLIT, 0, 0, 0)) != INTERN_NONE;
    for (uint32_t i = 0; ok && code == ERR_OK && i < n; i++) {
        code = nfa_emit(nfa, &p->x, p->rules.at[i].body, begins, ret, &body, p->e);
        if (code == ERR_OK)
            nfa->code.at[begins[i]].a = nfa->code.at[begins[i]].b = body;
    }
    if (ok && code == ERR_OK)
        ok = (p->program->start = nfa_add(nfa, NFA_CALL, begins[root], end, 0)) != INTERN_NONE;
    if (code == ERR_OK && !ok)
        code = begins ? nfa_full(nfa, p->e) : no_memory(p);
    mem_free(begins);
    return code;
}

err_code gbnf_compile(struct program *program, const struct grammar_vocab *vocab, const char *text, size_t n,
                      bool lenient, struct err *e)
{
    struct parser p = {.program = program, .vocab = vocab, .s = text, .n = n, .line = 1, .lenient = lenient, .e = e};
    uint32_t root = 0;
    err_code code = parse_rules(&p);
    if (code == ERR_OK)
        code = check_rules(&p, &root);
    if (code == ERR_OK)
        code = emit_rules(&p, root);
    exprs_close(&p.x);
    LIST_CLOSE(&p.rules);
    intern_close(&p.rule_numbers);
    LIST_CLOSE(&p.stack);
    LIST_CLOSE(&p.ranges);
    LIST_CLOSE(&p.text);
    return code;
}
