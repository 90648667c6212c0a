#define _GNU_SOURCE
/* Grammars of calls: texts drawn from them are read back as calls, without a note, for every family and shape. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "reply/reply.h"
#include "base/bytes.h"
#include "reply/reply_tools.h"
#include "reply_samples.h"

/* ---- drawing texts from GBNF ------------------------------------------------------------------------------------- */

struct drawing {
    const char *grammar;
    struct random random;
    struct bytes out;
};

static void draw_rule(struct drawing *d, const char *name, size_t n);

static size_t below(struct drawing *d, size_t n)
{
    return random_u32(&d->random) % n;
}

/* The end of what stands at s: "...", [...], (...) or a word with its %json{...}. */
static const char *item_end(const char *s)
{
    int depth = 0;
    if (*s == '"' || *s == '[') {
        char end = *s == '"' ? '"' : ']';
        for (s++; *s != end; s++)
            s += *s == '\\';
        return s + 1;
    }
    if (*s != '(' && *s != '%')
        return s + strcspn(s, " \n)?*+{");
    s += strcspn(s, "({");
    do {
        depth += *s == '(' || *s == '{';
        depth -= *s == ')' || *s == '}';
        s = *s == '"' || *s == '[' ? item_end(s) : s + 1;
    } while (depth);
    return s;
}

static char unescape(const char **s)
{
    char c = *(*s)++;
    if (c != '\\')
        return c;
    c = *(*s)++;
    if (c == 'x') {
        const char digits[] = {(*s)[0], (*s)[1], 0};
        *s += 2;
        return (char)strtol(digits, NULL, 16);
    }
    return c == 'n' ? '\n' : c;
}

static void draw_class(struct drawing *d, const char *s, const char *end)
{
    static const char others[] = "ab1 {\"'<\n.:,";
    bool is_other = *++s == '^', holds[128] = {0};
    s += is_other;
    while (s < end - 1) {
        unsigned char first = (unsigned char)unescape(&s), last = first;
        if (*s == '-' && s + 1 < end - 1) {
            s++;
            last = (unsigned char)unescape(&s);
        }
        for (; first <= last && first < 128; first++)
            holds[first] = true;
    }
    for (int tries = 0; tries < 1000; tries++) {
        char c = is_other ? others[below(d, sizeof others - 1)] : (char)(9 + below(d, 118));
        if (holds[(unsigned char)c] == is_other)
            continue;
        bytes_put_char(&d->out, c);
        return;
    }
    fail_msg("nothing fits %.*s", (int)(end - s), s);
}

static json_t *draw_json(struct drawing *d, const json_t *schema, const json_t *root)
{
    const char *type = json_string_value(json_object_get(schema, "type")), *key;
    const json_t *values = json_object_get(schema, "enum");
    json_t *j, *child;
    if (json_object_get(schema, "$ref"))
        schema = json_object_get(json_object_get(root, "$defs"), "path"), type = "string";
    if (values)
        return json_incref(json_array_get(values, below(d, json_array_size(values))));
    if (!type || !strcmp(type, "integer"))
        return json_integer((json_int_t)below(d, 1000) - 500);
    if (!strcmp(type, "string"))
        return json_string(below(d, 2) ? "a \"b\"\n\\ \303\274<" : "");
    if (!strcmp(type, "boolean"))
        return json_boolean(below(d, 2));
    if (!strcmp(type, "array"))
        return json_pack("[s, {s:n}, f]", "x", "y", 2.5);
    j = json_object();
    json_object_foreach(json_object_get(schema, "properties"), key, child)
        json_object_set_new(j, key, draw_json(d, child, root));
    return j;
}

static void draw_item(struct drawing *d, const char *s, const char *end);

/* One of the alternatives between s and end. In rules for text up to a mark mostly the one that goes on with it. */
static void draw_alternatives(struct drawing *d, const char *s, const char *end, const char *rule, size_t n_rule)
{
    const char *starts[64];
    size_t n = 1, k;
    int number, state;
    char name[64], next[64] = "";
    starts[0] = s;
    for (const char *at = s; at < end;) {
        if (*at == '|')
            starts[n++] = at + 1;
        at = strchr(" |\n", *at)  ? at + 1
             : strchr("?*+", *at) ? at + 1
             : *at == '{'         ? strchr(at, '}') + 1
                                  : item_end(at);
        assert_true(n < 64);
    }
    snprintf(name, sizeof name, "%.*s", (int)n_rule, rule);
    if (sscanf(name, "until-%d-%d", &number, &state) == 2)
        snprintf(next, sizeof next, "until-%d-%d ", number, state + 1);
    k = below(d, n);
    for (size_t i = 0; *next && below(d, 16) && i < n; i++) {
        const char *last = i + 1 < n ? starts[i + 1] : end;
        bool goes_on = memmem(starts[i], (size_t)(last - starts[i]), next, strlen(next)) ||
                       !memmem(starts[i], (size_t)(last - starts[i]), "until", 5);
        if (goes_on) {
            k = i;
            break;
        }
    }
    s = starts[k];
    end = k + 1 < n ? starts[k + 1] - 1 : end;
    while (s < end) {
        if (*s == ' ' || *s == '\n') {
            s++;
            continue;
        }
        const char *item = s;
        size_t least = 1, most = 1;
        s = item_end(s);
        const char *behind = s;
        if (*s == '?' || *s == '*' || *s == '+') {
            least = *s == '+';
            most = *s == '?' ? 1 : 2;
            s++;
        } else if (*s == '{') {
            least = strtoul(s + 1, (char **)&s, 10);
            most = *s == ',' ? strtoul(s + 1, (char **)&s, 10) : least;
            most = most > least + 2 ? least + 2 : most;
            s++;
        }
        for (size_t i = least + below(d, most - least + 1); i > 0; i--)
            draw_item(d, item, behind);
    }
}

static void draw_item(struct drawing *d, const char *s, const char *end)
{
    if (*s == '"') {
        for (s++; s < end - 1;)
            bytes_put_char(&d->out, unescape(&s));
    } else if (*s == '[') {
        draw_class(d, s, end);
    } else if (*s == '(') {
        draw_alternatives(d, s + 1, end - 1, "", 0);
    } else if (*s == '%') {
        json_error_t error;
        json_t *schema = json_loadb(s + 5, (size_t)(end - s - 5), 0, &error);
        assert_non_null(schema);
        json_t *j = draw_json(d, schema, schema);
        char *text = json_dumps(j, JSON_ENCODE_ANY | (below(d, 2) ? JSON_COMPACT : 0));
        bytes_put_text(&d->out, text);
        free(text);
        json_decref(j);
        json_decref(schema);
    } else {
        draw_rule(d, s, (size_t)(end - s));
    }
}

static void draw_rule(struct drawing *d, const char *name, size_t n)
{
    const char *s = d->grammar;
    while (strncmp(s, name, n) != 0 || strncmp(s + n, " ::= ", 5) != 0) {
        s = strchr(s, '\n');
        if (!s || !*++s)
            fail_msg("no rule %.*s in\n%s", (int)n, name, d->grammar);
    }
    s += n + 5;
    draw_alternatives(d, s, strchr(s, '\n'), name, n);
}

/* ---- reading them back ------------------------------------------------------------------------------------------- */

struct told {
    int n_calls, n_ends;
    bool is_reasoned, may_say; /* content is allowed: */
    struct bytes content;      /* owned */
};

static void collect(void *user, enum reply_part part, const char *text, size_t n)
{
    struct told *t = user;
    if (part == REPLY_NOTE || (part == REPLY_CONTENT && !t->may_say))
        fail_msg("%s: %.*s", part == REPLY_NOTE ? "note" : "content", (int)n, text);
    if (part == REPLY_CONTENT)
        bytes_put(&t->content, text, n);
    t->n_calls += part == REPLY_CALL;
    t->n_ends += part == REPLY_CALL_END;
    t->is_reasoned |= part == REPLY_REASONING;
}

/* A template of each shape. */
static const char *const sources[] = {HERMES,
                                      QWEN3_CODER,
                                      QWEN3_CODER " <seed:tool_call>",
                                      GLM4,
                                      GLM4 "<tool_call>{function-name}<arg_key>",
                                      GLM4 " laguna_glm_thinking",
                                      DEEPSEEK_V3,
                                      DEEPSEEK_V3 " ```json",
                                      DEEPSEEK_V3_2,
                                      "<think> <" DSML "tool_calls>",
                                      GPT_OSS,
                                      LLAMA,
                                      MISTRAL,
                                      MISTRAL " [ARGS]",
                                      MISTRAL " [CALL_ID] [ARGS]",
                                      MINIMAX_M2,
                                      KIMI_K2,
                                      KIMI_K3,
                                      GEMMA4,
                                      LFM2,
                                      LISTS,
                                      "<tool_calls>",
                                      "<|START_ACTION|> <|START_THINKING|>",
                                      HY3,
                                      SOLAR,
                                      GRANITE,
                                      GIGACHAT,
                                      GIGACHAT_3_0,
                                      GENERIC};

/* Draws an answer from the grammar, which calls tools, unless there is a schema: then it may be JSON instead. */
static struct told draw_and_tell(const char *source, const struct reply_tools *tools,
                                 const struct reply_grammar_options *options, uint64_t seed)
{
    struct reply_style style = reply_style_of(source);
    const char *trigger;
    char *grammar;
    struct err e;
    assert_int_equal(reply_call_grammar(style, tools, options, &grammar, &trigger, &e), ERR_OK);
    struct drawing d = {.grammar = grammar, .random = random_seed(seed)};
    draw_rule(&d, "root", 4);
    if (!options->is_required && !options->schema)
        assert_memory_equal(d.out.s, trigger, strlen(trigger));
    struct told t = {.may_say = options->schema && !options->is_required};
    struct reply *r;
    assert_int_equal(reply_open(&r, style, options->prompt ? options->prompt : "", collect, &t, &e), ERR_OK);
    reply_set_tools(r, tools);
    assert_int_equal(reply_feed(r, d.out.s, d.out.n, &e), ERR_OK);
    assert_int_equal(reply_finish(r, false, &e), ERR_OK);
    reply_close(&r);
    if ((t.n_calls == 0 && !t.may_say) || t.n_calls != t.n_ends || (options->is_single && t.n_calls > 1))
        fail_msg("%d calls, %d ends in\n%s", t.n_calls, t.n_ends, d.out.s);
    bytes_close(&d.out);
    mem_free(grammar);
    return t;
}

static void draw_and_read(const char *source, const struct reply_tools *tools,
                          const struct reply_grammar_options *options, uint64_t seed)
{
    struct told t = draw_and_tell(source, tools, options, seed);
    bytes_close(&t.content);
}

static void what_a_grammar_allows_is_read_as_calls(void **state)
{
    struct reply_tools tools;
    struct err e;
    assert_int_equal(reply_tools_open(&tools, sample_tools, &e), ERR_OK);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        for (uint64_t seed = 0; seed < 200; seed++) {
            const struct reply_grammar_options options = {
                .name = seed % 8 == 1 ? "write-file" : NULL, .is_required = seed % 2, .is_single = seed % 3 == 0};
            draw_and_read(sources[i], &tools, &options, seed);
        }
    const struct reply_grammar_options reasoning = {.is_required = true, .prompt = "<think>\n"};
    draw_and_read(HERMES, &tools, &reasoning, 1);
    reply_tools_close(&tools);
}

static void an_answer_is_calls_or_json_of_the_schema(void **state)
{
    static const char schema[] = "{\"type\": \"object\", \"properties\": {\"form\": {\"enum\": [\"fits\"]}}}";
    struct reply_tools tools;
    struct err e;
    assert_int_equal(reply_tools_open(&tools, sample_tools, &e), ERR_OK);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        size_t n_content = 0;
        for (uint64_t seed = 0; seed < 60; seed++) {
            const struct reply_grammar_options options = {.schema = schema, .is_required = seed % 8 == 0};
            struct told t = draw_and_tell(sources[i], &tools, &options, seed);
            json_t *j = t.content.n ? json_loadb(t.content.s, t.content.n, 0, NULL) : NULL;
            if (t.n_calls ? t.content.n > 0 : strcmp(json_string_value(json_object_get(j, "form")), "fits") != 0)
                fail_msg("%s: %s", sources[i], bytes_text(&t.content));
            n_content += t.n_calls == 0;
            json_decref(j);
            bytes_close(&t.content);
        }
        assert_in_range(n_content, 5, 50);
    }
    reply_tools_close(&tools);
}

static void tools_that_say_little_are_enough(void **state)
{
    struct reply_tools tools;
    struct err e;
    const struct reply_grammar_options options = {0};
    assert_int_equal(reply_tools_open(&tools, "[{\"name\": \"a\"}, {\"name\": \"b\", \"parameters\": {}}]", &e),
                     ERR_OK);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        for (uint64_t seed = 0; seed < 50; seed++)
            draw_and_read(sources[i], &tools, &options, seed);
    reply_tools_close(&tools);
}

/* References from the root of a tool's schema lead there from a parameter's, too; those in a ring end. */
static void references_lead_where_the_tool_says(void **state)
{
    static const char *const json[] = {
        "[{\"name\": \"a\", \"parameters\": {\"properties\": {\"from\": {\"type\": \"object\"}, \"to\": {\"$ref\": "
        "\"#/properties/from\"}}}}]",
        "[{\"name\": \"a\", \"parameters\": {\"$defs\": {\"A\": {\"anyOf\": [{\"anyOf\": [{\"anyOf\": [{\"anyOf\": "
        "[{\"$ref\": \"#/$defs/A\"}]}]}]}]}}, \"properties\": {\"x\": {\"$ref\": \"#/$defs/A\"}}}}]",
    };
    const struct reply_grammar_options options = {.is_required = true};
    for (int i = 0; i < 2; i++) {
        struct reply_tools tools;
        struct err e;
        const char *trigger;
        char *text;
        assert_int_equal(reply_tools_open(&tools, json[i], &e), ERR_OK);
        assert_int_equal(reply_call_grammar(reply_style_of(QWEN3_CODER), &tools, &options, &text, &trigger, &e),
                         ERR_OK);
        assert_int_equal(strstr(text, "#/$defs/moebius-whole/properties/from") != NULL, i == 0);
        assert_null(strstr(text, "\"#/properties/from\""));
        mem_free(text);
        reply_tools_close(&tools);
    }
}

/* Kimi K3 writes names and keys as attributes, Laguna no line breaks. */
static void names_are_written_as_the_family_does(void **state)
{
    static const char json[] = "[{\"name\": \"f&g\", \"parameters\": {\"type\": \"object\", \"properties\": {"
                               "\"k\\\"l\": {\"type\": \"string\"}}, \"required\": [\"k\\\"l\"]}}]";
    const struct reply_grammar_options options = {.is_required = true};
    struct reply_tools tools;
    struct err e;
    const char *trigger;
    char *text;
    assert_int_equal(reply_tools_open(&tools, json, &e), ERR_OK);
    for (uint64_t seed = 0; seed < 20; seed++)
        draw_and_read(KIMI_K3, &tools, &options, seed);
    assert_int_equal(reply_call_grammar(reply_style_of(KIMI_K3), &tools, &options, &text, &trigger, &e), ERR_OK);
    assert_non_null(strstr(text, "tool=\\\"f&amp;g\\\""));
    assert_non_null(strstr(text, "key=\\\"k&quot;l\\\""));
    mem_free(text);
    assert_int_equal(
        reply_call_grammar(reply_style_of(GLM4 " laguna_glm_thinking"), &tools, &options, &text, &trigger, &e), ERR_OK);
    assert_non_null(strstr(text, "<arg_key>k\\\"l</arg_key><arg_value>"));
    mem_free(text);
    reply_tools_close(&tools);
}

static void bad_tools_are_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "{}",
                                      "[1]",
                                      "[{}]",
                                      "[{\"name\": \"a b\"}]",
                                      "[{\"name\": \"\"}]",
                                      "[{\"name\": \"a\"}, {\"name\": \"a\"}]",
                                      "[{\"name\": \"a\", \"parameters\": []}]",
                                      "[{\"type\": \"function\"}]"};
    struct reply_tools tools;
    struct err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e.text[0] = '\0';
        assert_int_equal(reply_tools_open(&tools, bad[i], &e), ERR_FORMAT);
        assert_true(strstr(e.text, "tools"));
        reply_tools_close(&tools);
    }
    struct reply_style style = reply_style_of(HERMES);
    struct reply_grammar_options options = {0};
    const char *trigger;
    char *text;
    assert_int_equal(reply_tools_open(&tools, "[{\"type\": \"web_search\"}]", &e), ERR_OK);
    assert_int_equal(reply_call_grammar(style, &tools, &options, &text, &trigger, &e), ERR_USAGE);
    options.name = "x";
    assert_int_equal(reply_call_grammar(style, &tools, &options, &text, &trigger, &e), ERR_USAGE);
    assert_true(strstr(e.text, "\"x\""));
    assert_null(text);
    reply_tools_close(&tools);
}

/* Each parameter has the definitions beside it that it may refer to. */
static void definitions_are_not_repeated_without_bound(void **state)
{
    enum { N_PARAMETER = 3000, N_DEFINITION = 100000 };
    const struct reply_grammar_options options = {.is_required = true};
    struct reply_tools tools;
    struct bytes json = {0};
    struct err e;
    const char *trigger;
    char *text;
    bytes_put_text(&json, "[{\"name\": \"a\", \"parameters\": {\"$defs\": {\"d\": {\"description\": \"");
    for (int i = 0; i < N_DEFINITION; i++)
        bytes_put_char(&json, 'x');
    bytes_put_text(&json, "\"}}, \"properties\": {");
    for (int i = 0; i < N_PARAMETER; i++)
        assert_int_equal(bytes_print(&json, &e, "%s\"p%d\": {\"type\": \"integer\"}", i ? ", " : "", i), ERR_OK);
    bytes_put_text(&json, "}}}]");
    assert_int_equal(reply_tools_open(&tools, bytes_text(&json), &e), ERR_OK);
    assert_int_equal(reply_call_grammar(reply_style_of(QWEN3_CODER), &tools, &options, &text, &trigger, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "has more than"));
    assert_null(text);
    reply_tools_close(&tools);
    bytes_close(&json);
}

/* References that fan out lead to the same schemas, and their values, again and again. */
static void few_schemas_are_looked_at_for_a_parameter(void **state)
{
    enum { N_REF = 16, N_VALUE = 40 };
    static const char *const names[] = {"a", "b", "c"};
    struct reply_tools tools;
    struct bytes json = {0};
    struct err e;
    bytes_put_text(&json, "[{\"name\": \"t\", \"parameters\": {\"$defs\": {");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(bytes_print(&json, &e, "\"%s\": {\"anyOf\": [", names[i]), ERR_OK);
        for (int k = 0; k < N_REF; k++)
            assert_int_equal(bytes_print(&json, &e, "%s{\"$ref\": \"#/$defs/%s\"}", k ? ", " : "", names[i + 1]),
                             ERR_OK);
        bytes_put_text(&json, "]}, ");
    }
    bytes_put_text(&json, "\"c\": {\"enum\": [");
    for (int i = 0; i < N_VALUE; i++)
        assert_int_equal(bytes_print(&json, &e, "%s\"v%d\"", i ? ", " : "", i), ERR_OK);
    bytes_put_text(&json, "]}}, \"properties\": {");
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            bytes_print(&json, &e, "%s\"%s\": {\"$ref\": \"#/$defs/%s\"}", i ? ", " : "", names[i], names[i]), ERR_OK);
    bytes_put_text(&json, "}}}]");
    assert_int_equal(reply_tools_open(&tools, bytes_text(&json), &e), ERR_OK);
    assert_int_equal(reply_tool_kind(tools.tools, "c"), REPLY_KIND_STRING);
    assert_int_equal(reply_tool_kind(tools.tools, "b"), REPLY_KIND_STRING);
    assert_int_equal(reply_tool_kind(tools.tools, "a"), REPLY_KIND_ANY);
    reply_tools_close(&tools);
    bytes_close(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_grammar_allows_is_read_as_calls),
        cmocka_unit_test(an_answer_is_calls_or_json_of_the_schema),
        cmocka_unit_test(tools_that_say_little_are_enough),
        cmocka_unit_test(references_lead_where_the_tool_says),
        cmocka_unit_test(names_are_written_as_the_family_does),
        cmocka_unit_test(bad_tools_are_refused),
        cmocka_unit_test(definitions_are_not_repeated_without_bound),
        cmocka_unit_test(few_schemas_are_looked_at_for_a_parameter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
