/* The grammar of calls: what a family writes (struct reply_shape) for these tools, as GBNF.
 *
 * JSON is left to the terminal %json{SCHEMA}. Values that are no JSON are spelled out: text up to the mark that ends it
 * becomes rules of the automaton that looks for that mark (Knuth, Morris and Pratt 1977). Parameters come in the order
 * of the schema there, and of a string's schema only an enumeration is kept. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "reply/reply_internal.h"

enum {
    MAX_MARK = 64,
    MAX_UNTIL = 2,
    MAX_TEXT = 16 << 20, /* bytes, as many as the compiler of grammars reads. Each parameter repeats what is shared */
};

static const char gemma_quote[] = "<|\"|>";

struct span {
    const char *s; /* borrowed */
    size_t n;
};

struct writer {
    struct bytes out;
    const struct reply_shape *shape;
    bool has_attributes; /* the family's */
    const struct reply_grammar_options *options;
    json_t *required;             /* the names of the tool's parameters that must come, as keys; owned */
    struct span until[MAX_UNTIL]; /* marks whose rules are needed */
    size_t n_until;
    bool needs_values, needs_key, needs_any; /* whether rules for any value, key or text are */
};

static void add(struct writer *w, const char *s)
{
    bytes_put_text(&w->out, s);
}

/* Names of rules, with their numbers. */
static void addf(struct writer *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void addf(struct writer *w, const char *fmt, ...)
{
    char text[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add(w, text);
}

/* ---- terminals ----------------------------------------------------------------------------------------------- */

/* The text as it stands between quotes or brackets. */
static void add_escaped(struct writer *w, const char *s, size_t n, bool is_class)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\n') {
            add(w, "\\n");
        } else if ((unsigned char)s[i] < 0x20 || (is_class && (s[i] == '^' || s[i] == '-'))) {
            addf(w, "\\x%02x", (unsigned char)s[i]);
        } else {
            if (strchr(is_class ? "\\[]" : "\\\"", s[i]))
                bytes_put_char(&w->out, '\\');
            bytes_put_char(&w->out, s[i]);
        }
    }
}

/* Ordinary text, whatever it looks like. */
static void add_plain(struct writer *w, const char *s, size_t n)
{
    add(w, n ? " \"" : "");
    add_escaped(w, s, n, false);
    add(w, n ? "\"" : "");
}

static bool find_special(const struct writer *w, const char *s, size_t n, size_t *at, size_t *length)
{
    return w->options->find_special && w->options->find_special(w->options->user, s, n, at, length);
}

/* Text of the family's own, in which special tokens are such. */
static void add_literal(struct writer *w, const char *s, size_t n)
{
    size_t at, length;
    while (n && find_special(w, s, n, &at, &length)) {
        add_plain(w, s, at);
        add(w, " %token\"");
        add_escaped(w, s + at, length, false);
        add(w, "\"");
        s += at + length;
        n -= at + length;
    }
    add_plain(w, s, n);
}

static void add_text(struct writer *w, const char *s)
{
    add_literal(w, s, s ? strlen(s) : 0);
}

static void add_json(struct writer *w, const json_t *j)
{
    enum { FLAGS = JSON_COMPACT | JSON_ENCODE_ANY };
    size_t n = json_dumpb(j, NULL, 0, FLAGS);
    char *text = n ? mem_alloc(n) : NULL;
    if (text && json_dumpb(j, text, n, FLAGS) == n)
        bytes_put(&w->out, text, n);
    else
        w->out.is_short = true;
    mem_free(text);
}

/* Where a parameter's schema keeps the whole one of the tool. */
#define WHOLE "moebius-whole"

/* Whether a reference within leads to the document's root, or from there to elsewhere than what is shared. With `move`
 * those that begin at the root are changed, to begin where that is kept. */
static bool refers_to_root(json_t *j, bool move)
{
    bool found = false;
    const char *key;
    json_t *value;
    size_t i;
    json_array_foreach(j, i, value)
    {
        found |= refers_to_root(value, move);
    }
    json_object_foreach(j, key, value)
    {
        const char *to = strcmp(key, "$ref") ? NULL : json_string_value(value);
        bool is_pointer = to && to[0] == '#' && (!to[1] || to[1] == '/');
        bool is_shared = is_pointer && (!strncmp(to, "#/$defs/", 8) || !strncmp(to, "#/definitions/", 14));
        found |= is_pointer ? !is_shared : refers_to_root(value, move);
        if (is_pointer && move) /* the key stays, so that the loop may go on */
            json_object_set_new(j, key, json_sprintf("#/$defs/" WHOLE "%s", to + 1));
    }
    return found;
}

/* %json{} for a schema of the tool, which brings what it may refer to. */
static void add_schema(struct writer *w, const json_t *schema, const json_t *root, bool is_object)
{
    static const char *const shared[] = {"$defs", "definitions"};
    json_t *copy = json_is_object(schema) ? json_copy((json_t *)schema) : json_object();
    bool good = copy != NULL;
    for (size_t i = 0; i < sizeof shared / sizeof *shared && good; i++) {
        json_t *definitions = json_object_get(root, shared[i]);
        if (definitions && !json_object_get(copy, shared[i]))
            good = json_object_set(copy, shared[i], definitions) == 0;
    }
    if (good && root && refers_to_root(copy, false)) {
        json_t *whole = json_deep_copy(root), *inner = json_deep_copy(schema);
        json_decref(copy);
        (void)refers_to_root(whole, true);
        (void)refers_to_root(inner, true);
        copy = json_pack("{s:[o],s:{s:o}}", "allOf", inner, "$defs", WHOLE, whole);
        good = copy != NULL;
    }
    if (good && is_object && !json_object_get(copy, "type"))
        good = json_object_set_new(copy, "type", json_string("object")) == 0;
    add(w, " %json");
    if (good)
        add_json(w, copy);
    w->out.is_short = w->out.is_short || !good;
    json_decref(copy);
}

/* ---- text up to a mark --------------------------------------------------------------------------------------- */

/* A use of the rules for "any text, and then this", from where on what `end` holds besides line breaks: the text may
 * hold no such mark, and that a line break stands before it is not asked for. */
static void add_until(struct writer *w, const char *end)
{
    size_t i = 0, first = strspn(end, "\n"), n = strcspn(end + first, "\n"), at, length;
    const char *mark = end + first;
    if (find_special(w, mark, n, &at, &length) && at == 0) { /* no text holds a special token */
        add(w, " until-any");
        add_text(w, mark);
        w->needs_any = true;
        return;
    }
    while (i < w->n_until && (w->until[i].n != n || memcmp(w->until[i].s, mark, n) != 0))
        i++;
    assert(i < MAX_UNTIL);
    w->until[i] = (struct span){mark, n};
    w->n_until = i == w->n_until ? i + 1 : w->n_until;
    addf(w, " until-%zu-0", i);
    add_text(w, mark + n);
}

/* A mark as characters. */
struct mark {
    const char *at[MAX_MARK];
    size_t length[MAX_MARK];
    size_t n;
};

static bool is_same(const struct mark *m, size_t a, size_t b)
{
    return m->length[a] == m->length[b] && !memcmp(m->at[a], m->at[b], m->length[a]);
}

/* How many of the mark's characters have come when, behind the first i of them, its character c comes. */
static size_t next_state(const struct mark *m, size_t i, size_t c)
{
    for (size_t n = i + 1; n > 0; n--) {
        bool fits = is_same(m, n - 1, c);
        for (size_t k = 0; k + 1 < n && fits; k++)
            fits = is_same(m, k, i + 1 - n + k);
        if (fits)
            return n;
    }
    return 0;
}

/* One state: the characters that go on with the mark, or begin it anew, and all others. */
static void add_until_state(struct writer *w, const struct mark *m, size_t rule, size_t i)
{
    struct bytes others = {0};
    addf(w, "until-%zu-%zu ::=", rule, i);
    for (size_t c = 0; c < m->n; c++) {
        bool is_new = true;
        for (size_t k = 0; k < c; k++)
            is_new = is_new && !is_same(m, k, c);
        size_t to = next_state(m, i, c);
        if (!is_new || to == 0)
            continue;
        add_plain(w, m->at[c], m->length[c]);
        if (to < m->n)
            addf(w, " until-%zu-%zu", rule, to);
        add(w, " |");
        bytes_put(&others, m->at[c], m->length[c]);
    }
    add(w, " [^");
    add_escaped(w, bytes_text(&others), others.n, true);
    addf(w, "] until-%zu-0\n", rule);
    w->out.is_short = w->out.is_short || others.is_short;
    bytes_close(&others);
}

static void add_until_rules(struct writer *w)
{
    for (size_t rule = 0; rule < w->n_until; rule++) {
        const char *s = w->until[rule].s, *end = s + w->until[rule].n;
        struct mark m = {0};
        while (s < end && m.n < MAX_MARK) {
            m.at[m.n] = s;
            while (s == m.at[m.n] || (s < end && utf8_is_tail(*s)))
                s++;
            m.length[m.n] = (size_t)(s - m.at[m.n]);
            m.n++;
        }
        for (size_t i = 0; i < m.n; i++)
            add_until_state(w, &m, rule, i);
    }
}

/* ---- texts with holes ---------------------------------------------------------------------------------------- */

/* What the holes of a shape's text stand for; NULL: not in this one. */
struct holes {
    const char *name, *key, *is_string, *type;
    size_t tool; /* whose arguments */
};

/* A name or key as the family has it. */
static void put_name(const struct writer *w, const char *s, struct bytes *out)
{
    for (; *s; s++)
        if (w->has_attributes && (*s == '&' || *s == '"'))
            bytes_put_text(out, *s == '&' ? "&amp;" : "&quot;");
        else
            bytes_put_char(out, *s);
}

static void add_pattern(struct writer *w, const char *pattern, struct holes h)
{
    struct bytes literal = {0};
    for (const char *s = pattern; *s; s++) {
        const char *filled = *s != '$'     ? NULL
                             : s[1] == 'N' ? h.name
                             : s[1] == 'K' ? h.key
                             : s[1] == 'S' ? h.is_string
                             : s[1] == 'T' ? h.type
                                           : NULL;
        if (*s != '$') {
            bytes_put_char(&literal, *s);
            continue;
        }
        s++;
        if (filled) {
            put_name(w, filled, &literal);
            continue;
        }
        add_literal(w, bytes_text(&literal), literal.n);
        bytes_clear(&literal);
        w->needs_key = w->needs_key || *s == 'K';
        add(w, *s == 'I'   ? " [0-9]{1,4}"
               : *s == 'R' ? " [a-zA-Z0-9]{9}"
               : *s == 'K' ? " any-key"
               : *s == 'T' ? " ( \"number\" | \"boolean\" | \"object\" | \"array\" | \"null\" )"
                           : " ");
        if (*s == 'A')
            addf(w, "arguments-%zu", h.tool);
    }
    add_literal(w, bytes_text(&literal), literal.n);
    w->out.is_short = w->out.is_short || literal.is_short;
    bytes_close(&literal);
}

/* ---- values that are no JSON --------------------------------------------------------------------------------- */

/* The strings that an enumeration allows, each as `begin` TEXT `end`. False: it is none of strings alone. */
static bool add_enumeration(struct writer *w, const json_t *schema, const char *begin, const char *end)
{
    const json_t *values = json_object_get(schema, "enum");
    size_t i, n = json_array_size(values);
    json_t *value;
    json_array_foreach(values, i, value)
    {
        const char *text = json_string_value(value);
        if (!text || (begin && strpbrk(text, "\"\\\n"))) /* quoted strings would need escapes */
            return false;
    }
    add(w, n ? " (" : "");
    json_array_foreach(values, i, value)
    {
        add(w, i ? " |" : "");
        add_text(w, begin);
        add_plain(w, json_string_value(value), json_string_length(value));
        add_text(w, end);
    }
    add(w, n ? " )" : "");
    return n > 0;
}

static void add_value(struct writer *w, const json_t *schema, enum reply_kind kind)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    const char *quote = w->shape->notation == ARGS_GEMMA ? gemma_quote : "\"";
    bool is_string = kind == REPLY_KIND_STRING;
    if (is_string && add_enumeration(w, schema, quote, quote))
        return;
    add(w, is_string                          ? " value-string"
           : kind == REPLY_KIND_STRING_NULL   ? " ( value-string | value-null )"
           : type && !strcmp(type, "integer") ? " value-integer"
           : type && !strcmp(type, "number")  ? " value-number"
           : type && !strcmp(type, "boolean") ? " value-boolean"
           : type && !strcmp(type, "array")   ? " value-array"
           : type && !strcmp(type, "object")  ? " value-object"
                                              : " value");
}

/* Values in Gemma's notation or Python's. */
static void add_value_rules(struct writer *w)
{
    bool is_gemma = w->shape->notation == ARGS_GEMMA;
    add(w, "value ::= value-string | value-number | value-boolean | value-null | value-array | value-object\n"
           "value-array ::= \"[\" ( value ( value-comma value )* )? \"]\"\n"
           "value-object ::= \"{\" ( value-member ( value-comma value-member )* )? \"}\"\n"
           "value-pair ::= any-key value-is value\n"
           "value-pairs ::= ( value-pair ( value-comma value-pair )* )?\n"
           "value-integer ::= \"-\"? ( \"0\" | [1-9] [0-9]{0,15} )\n"
           "value-number ::= value-integer ( \".\" [0-9]{1,15} )?\n");
    add(w, is_gemma ? "value-boolean ::= \"true\" | \"false\"\n"
                      "value-null ::= \"null\"\n"
                      "value-comma ::= \",\"\n"
                      "value-is ::= \":\"\n"
                      "value-member ::= value-pair\n"
                      "value-string ::="
                    : "value-boolean ::= \"True\" | \"False\"\n"
                      "value-null ::= \"None\"\n"
                      "value-comma ::= \", \"\n"
                      "value-is ::= \"=\"\n"
                      "value-member ::= value-string \": \" value\n"
                      "value-string ::= \"\\\"\" ( [^\"\\\\\\n] | \"\\\\\" [nrt\"'\\\\] )* \"\\\"\"");
    if (is_gemma) {
        add_text(w, gemma_quote);
        add_until(w, gemma_quote);
    }
    add(w, "\n");
    w->needs_key = true;
}

static bool is_full(const struct writer *w)
{
    return w->out.n > MAX_TEXT;
}

/* Reads which of a tool's parameters must come. */
static void take_required(struct writer *w, const struct reply_tool *tool)
{
    size_t i;
    json_t *name;
    json_decref(w->required);
    w->required = json_object();
    json_array_foreach(json_object_get(tool->parameters, "required"), i, name)
    {
        if (json_is_string(name) && json_object_set_new(w->required, json_string_value(name), json_true()) != 0)
            w->out.is_short = true;
    }
}

static bool is_required(const struct writer *w, const char *key)
{
    return json_object_get(w->required, key) != NULL;
}

/* ---- arguments ----------------------------------------------------------------------------------------------- */

/* Whether the schema lets there be parameters that it does not name, and names none. */
static bool is_free(const struct reply_tool *tool)
{
    const json_t *properties = json_object_get(tool->parameters, "properties");
    return !properties && !json_is_false(json_object_get(tool->parameters, "additionalProperties"));
}

/* key: NULL: any. */
static void add_parameter_close(struct writer *w, const char *key)
{
    if (w->shape->parameter_close)
        add_pattern(w, w->shape->parameter_close, (struct holes){.key = key});
}

/* The type of a parameter's values, as JSON has it; NULL: of several, or not known. */
static const char *value_type(const json_t *schema)
{
    static const char *const types[] = {"number", "boolean", "object", "array", "null"};
    const char *type = json_string_value(json_object_get(schema, "type"));
    if (type && !strcmp(type, "integer"))
        return "number";
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i]))
            return types[i];
    return NULL;
}

static void add_parameter(struct writer *w, const struct reply_tool *tool, const char *key, const json_t *schema)
{
    enum reply_kind kind = reply_tool_kind(tool, key);
    bool is_json = kind == REPLY_KIND_ANY;
    const struct holes holes = {
        .key = key, .is_string = is_json ? "false" : "true", .type = is_json ? value_type(schema) : "string"};
    add_pattern(w, w->shape->parameter, holes);
    if (is_json)
        add_schema(w, schema, tool->parameters, false);
    if (is_json || add_enumeration(w, schema, NULL, NULL))
        add_text(w, w->shape->parameter_end);
    else
        add_until(w, w->shape->parameter_end);
    add_parameter_close(w, key);
}

static void add_parameters(struct writer *w, const struct reply_tool *tool)
{
    json_t *properties = json_object_get(tool->parameters, "properties"), *schema;
    const char *key;
    if (is_free(tool)) {
        add(w, " (");
        add_pattern(w, w->shape->parameter, (struct holes){.is_string = "true", .type = "string"});
        add_until(w, w->shape->parameter_end);
        add_parameter_close(w, NULL);
        add(w, " )*");
    }
    json_object_foreach(properties, key, schema)
    {
        add(w, " (");
        add_parameter(w, tool, key, schema);
        add(w, is_required(w, key) ? " )" : " )?");
        if (is_full(w))
            return;
    }
    if (json_is_object(properties) && json_object_size(properties) == 0)
        add(w, " \"\"");
    add(w, "\n");
}

/* Pairs of key and value, with commas between those that are there. Rule first-I-J: parameters from J on, and none
 * came before; later-I-J: some did. */
static void add_pairs(struct writer *w, const struct reply_tool *tool, size_t i)
{
    json_t *properties = json_object_get(tool->parameters, "properties"), *schema;
    const char *key;
    size_t j = 0;
    w->needs_values = true;
    if (is_free(tool)) {
        add(w, " value-pairs\n");
        return;
    }
    addf(w, " first-%zu-0\n", i);
    json_object_foreach(properties, key, schema)
    {
        for (int is_later = 0; is_later < 2; is_later++) {
            const char *rule = is_later ? "later" : "first";
            addf(w, "%s-%zu-%zu ::=%s", rule, i, j, is_later ? " value-comma" : "");
            add_text(w, key);
            add(w, " value-is");
            add_value(w, schema, reply_tool_kind(tool, key));
            addf(w, " later-%zu-%zu", i, j + 1);
            if (!is_required(w, key))
                addf(w, " | %s-%zu-%zu", rule, i, j + 1);
            add(w, "\n");
        }
        j++;
    }
    addf(w, "first-%zu-%zu ::= \"\"\nlater-%zu-%zu ::= \"\"\n", i, j, i, j);
}

static void add_tool(struct writer *w, const struct reply_tool *tool, size_t i)
{
    take_required(w, tool);
    addf(w, "call-%zu ::=", i);
    add_pattern(w, w->shape->call, (struct holes){.name = tool->name, .tool = i});
    add(w, "\n");
    addf(w, "arguments-%zu ::=", i);
    if (w->shape->parameter) {
        add_parameters(w, tool);
    } else if (w->shape->notation != ARGS_JSON) {
        add_pairs(w, tool, i);
    } else {
        add_schema(w, tool->parameters, NULL, true);
        add(w, "\n");
    }
}

/* ---- the whole ----------------------------------------------------------------------------------------------- */

/* Reasoning that was begun by the prompt or may come, and what follows it. */
static void add_reasoning(struct writer *w, const struct reply_style *style, const char *prompt)
{
    bool is_begun = reply_part_after(*style, prompt) == REPLY_REASONING;
    if (!is_begun && !style->has_reasoning)
        return;
    if (!is_begun) {
        add(w, " (");
        add_text(w, style->marks->open);
    }
    add_until(w, style->marks->close);
    add_text(w, w->shape->before);
    add(w, w->shape->before ? "" : " [ \\n]{0,4}");
    add(w, is_begun ? "" : " )?");
}

/* The marks that may stand around content. */
static void add_marks(struct writer *w, const struct reply_marks *marks)
{
    for (size_t i = 0; i < REPLY_MAX_SKIP && marks->skip[i]; i++) {
        add(w, i ? " |" : " (");
        add_text(w, marks->skip[i]);
    }
    add(w, marks->skip[0] ? " )?" : "");
}

/* An answer that calls nothing. */
static void add_content(struct writer *w, const struct reply_marks *marks)
{
    add_text(w, w->shape->content);
    if (!w->shape->content)
        add_marks(w, marks);
    add(w, " %json");
    add(w, w->options->schema);
    if (!w->shape->content)
        add_marks(w, marks);
}

static void add_calls(struct writer *w)
{
    const char *between = w->options->is_single ? NULL : w->shape->between;
    add_text(w, w->shape->open);
    add(w, " call");
    if (between) {
        add(w, " (");
        add_text(w, between);
        add(w, " call )*");
    }
    add_text(w, w->shape->close);
}

static void add_root(struct writer *w, const struct reply_style *style, const struct reply_grammar_options *options)
{
    bool or_content = options->schema && !options->is_required;
    add(w, "root ::=");
    if (options->is_required || or_content)
        add_reasoning(w, style, options->prompt);
    add(w, or_content ? " (" : "");
    add_calls(w);
    if (or_content) {
        add(w, " |");
        add_content(w, style->marks);
        add(w, " )");
    }
    add(w, "\n");
}

err_code reply_call_grammar(struct reply_style style, const struct reply_tools *tools,
                            const struct reply_grammar_options *options, char **text, const char **trigger,
                            struct err *e)
{
    const struct reply_tool *only = options->name ? reply_tools_find(tools, options->name) : NULL;
    struct writer w = {.shape = style.shape, .has_attributes = style.family->has_attributes, .options = options};
    *text = NULL;
    *trigger = style.shape->trigger;
    if (options->name && !only)
        return err_set(e, ERR_USAGE, "no tool is named \"%s\"", options->name);
    if (tools->n == 0)
        return err_set(e, ERR_USAGE, "there are no tools to call");
    add_root(&w, &style, options);
    size_t first = only ? (size_t)(only - tools->tools) : 0, end = only ? first + 1 : tools->n;
    add(&w, "call ::=");
    for (size_t i = first; i < end; i++) {
        addf(&w, "%s call-%zu", i > first ? " |" : "", i);
    }
    add(&w, "\n");
    for (size_t i = first; i < end && !is_full(&w); i++)
        add_tool(&w, &tools->tools[i], i);
    json_decref(w.required);
    if (w.needs_values)
        add_value_rules(&w);
    if (w.needs_key)
        add(&w, "any-key ::= [a-zA-Z0-9_.-]{1,64}\n");
    if (w.needs_any)
        add(&w, "until-any ::= .*\n");
    add_until_rules(&w);
    err_code code = w.out.is_short ? err_nomem(e, w.out.n, "a grammar")
                    : is_full(&w) ? err_set(e, ERR_LIMIT, "the grammar of their calls has more than %d bytes", MAX_TEXT)
                                  : ERR_OK;
    if (code == ERR_OK)
        *text = w.out.s;
    else
        bytes_close(&w.out);
    return code;
}
