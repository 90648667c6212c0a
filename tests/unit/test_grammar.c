/* Grammars: what texts they accept, byte by byte and token by token, and what masks allow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/random.h"
#include "grammar/formula.h"
#include "grammar/matcher.h"
#include "grammar_vocab.h"

enum { MASK_WORDS = GRAMMAR_N_TOKEN / 64 + 1 };

static struct grammar_vocab *vocab;

static struct grammar *open_grammar(enum grammar_kind kind, const char *text, bool lenient)
{
    struct grammar *g;
    struct err e = {0};
    if (grammar_open(&g, vocab, kind, text, strlen(text), lenient, &e) != ERR_OK)
        fail_msg("%s: %s", text, e.text);
    return g;
}

static struct grammar_matcher *open_matcher(struct grammar *g)
{
    struct grammar_matcher *m;
    struct err e;
    assert_int_equal(grammar_matcher_open(&m, g, vocab, &e), ERR_OK);
    return m;
}

static bool accepts(struct grammar *g, const char *text)
{
    struct grammar_matcher *m = open_matcher(g);
    size_t n_fit;
    bool ok = grammar_matcher_feed(m, text, strlen(text), &n_fit) && grammar_matcher_may_end(m);
    grammar_matcher_close(&m);
    return ok;
}

/* Texts that are accepted, then NULL, then texts that are not, then NULL. */
struct text_case {
    const char *grammar, *texts[14];
};

static void check_cases(enum grammar_kind kind, const struct text_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct grammar *g = open_grammar(kind, cases[i].grammar, false);
        bool wanted = true;
        for (const char *const *t = cases[i].texts; *t || wanted; t++) {
            if (!*t)
                wanted = false;
            else if (accepts(g, *t) != wanted)
                fail_msg("%s: %s must be %s", cases[i].grammar, *t, wanted ? "accepted" : "refused");
        }
        grammar_close(&g);
    }
}

#define ZEROS_60 "000000000000000000000000000000000000000000000000000000000000"

static const struct text_case schemas[] = {
    {"true", {"1", "{}", "[1, {\"a\": null}]", "\"x\"", "-0.5e+3", NULL, "", "01", "[1,]", "{\"a\"}", "tru", NULL}},
    {"{\"type\": \"object\"}", {"{}", "{ }", "{\n  \"a\": 1\n}", NULL, "[]", "{\n\n}", "{    }", " {}", "{} ", NULL}},
    {"{\"enum\": [1, 0]}", {"1", "0", NULL, "1.0", "1.", "1.000", "1e0", "10", "-1", "-0", "0.0", NULL}},
    {"{\"const\": 1.0}", {"1", "1.0", NULL, "1.00", "1." ZEROS_60, "10", NULL}},
    {"{\"const\": -1.50}", {"-1.5", NULL, "-1.50", "1.5", "-1", NULL}},
    {"{\"const\": [1, {\"a\": 2}]}", {"[1, {\"a\": 2}]", NULL, "[1.0, {\"a\": 2}]", "[1, {\"a\": 2.0}]", NULL}},
    {"{\"not\": {\"const\": 1}}", {"2", "2.0", "1.05", "-1", NULL, "1", "1.0", "1.000", NULL}},
    {"{\"anyOf\": [{\"const\": 1}, {\"type\": \"number\"}]}", {"1", "1.0", "1.5", NULL, "\"1\"", NULL}},
    {"{\"type\": \"integer\", \"minimum\": 5}", {"5", "123456789012345678901234567890", NULL, "4", "1" ZEROS_60, NULL}},
    {"{\"type\": \"integer\", \"minimum\": null, \"enum\": null, \"required\": null, \"$ref\": null}",
     {"0", NULL, "1.5", "null", NULL}},
    {"{\"const\": null, \"maxLength\": 18446744073709551615}", {"null", NULL, "0", NULL}},
    {"{\"type\": \"integer\"}", {"0", "-7", NULL, "1.0", "1e+16", "1.5", "1e-1", "\"1\"", NULL}},
    {"{\"type\": \"integer\", \"$schema\": \"http://json-schema.org/draft-04/schema#\"}", {"1", NULL, "1.0", NULL}},
    {"{\"minimum\": 5, \"maximum\": 7.5}",
     {"5", "7.5", "7.50", "6.999", "\"x\"", NULL, "4.9", "7.51", "12", "-6", NULL}},
    {"{\"exclusiveMinimum\": -2, \"exclusiveMaximum\": 2}", {"-1.99", "0", "-0", "1", NULL, "-2", "2", "2.0", NULL}},
    {"{\"multipleOf\": 0.01}", {"1", "1.25", "19.990", NULL, "1.255", NULL}},
    {"{\"type\": \"number\", \"minimum\": 10, \"maximum\": 99, \"multipleOf\": 7}",
     {"14", "98", NULL, "7", "15", "99", NULL}},
    {"{\"minLength\": 2, \"maxLength\": 3}",
     {"\"ab\"", "\"\\u00e9\xc3\xa9z\"", "\"\\ud83d\\ude00a\"", NULL, "\"a\"", "\"abcd\"", NULL}},
    {"{\"type\": \"string\"}",
     {"\"\xf0\x9f\x98\x80\"", NULL, "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\\ud800\"", "\"\n\"", "\"\\x\"", NULL}},
    {"{\"type\": \"string\", \"pattern\": \"b+c\"}", {"\"abbcd\"", "\"\\u0062c\"", NULL, "\"ac\"", NULL}},
    {"{\"type\": \"string\", \"pattern\": \"^a(?:b|c)?$\", \"maxLength\": 2}",
     {"\"a\"", "\"ac\"", NULL, "\"ad\"", "\"abc\"", NULL}},
    {"{\"type\": \"string\", \"pattern\": \".a+b?$\", \"maxLength\": 4}",
     {"\"aab\"", "\"caca\"", NULL, "\"caac\"", "\"cacba\"", NULL}},
    {"{\"type\": \"string\", \"pattern\": \"^(?!foo)[a-z]+$\"}",
     {"\"fo\"", "\"bar\"", NULL, "\"foo\"", "\"food\"", NULL}},
    {"{\"format\": \"date-time\"}",
     {"\"2026-02-28T23:59:60Z\"", "\"2024-02-29T00:00:00.5+01:00\"", NULL, "\"2026-02-29T00:00:00Z\"", "\"x\"", NULL}},
    {"{\"format\": \"ipv6\"}", {"\"::1\"", "\"2001:db8::ff00:42:8329\"", NULL, "\"1:2:3\"", "\":::\"", NULL}},
    {"{\"format\": \"something\"}", {"\"x\"", NULL, NULL}},
    {"{\"enum\": [\"a\", \"ab\", 1, null, {\"x\": [1]}]}",
     {"\"a\"", "\"ab\"", "1", "null", "{\"x\": [1]}", NULL, "1.0", "\"b\"", "true", "{\"x\": [2]}", "{}", NULL}},
    {"{\"const\": {\"b\": 1, \"a\": \"\xc3\xa9\"}}",
     {"{\"a\": \"\\u00e9\", \"b\": 1}", "{\"b\":1,\"a\":\"\xc3\xa9\"}", NULL, "{\"b\": 1}", NULL}},
    {"{\"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"null\"}}, \"required\": [\"a\"], "
     "\"additionalProperties\": false}",
     {"{\"b\": null, \"a\": 1}", "{\"a\": 1}", "[]", NULL, "{}", "{\"a\": 1, \"a\": 2}", "{\"a\": 1, \"c\": 2}",
      "{\"a\": \"x\"}", NULL}},
    {"{\"type\": \"object\", \"patternProperties\": {\"^x-\": {\"type\": \"integer\"}}, \"additionalProperties\": "
     "{\"type\": \"string\"}}",
     {"{\"x-a\": 1, \"y\": \"s\"}", NULL, "{\"x-a\": \"s\"}", "{\"y\": 1}", NULL}},
    {"{\"type\": \"object\", \"propertyNames\": {\"maxLength\": 2, \"pattern\": \"^[a-c]\"}}",
     {"{\"ab\": 1}", NULL, "{\"abc\": 1}", "{\"d\": 1}", NULL}},
    {"{\"type\": \"object\", \"minProperties\": 1, \"maxProperties\": 2}",
     {"{\"a\": 1}", NULL, "{}", "{\"a\": 1, \"b\": 1, \"c\": 1}", NULL}},
    {"{\"type\": \"object\", \"dependentRequired\": {\"a\": [\"b\"]}}",
     {"{\"b\": 1}", "{\"b\": 1, \"a\": 1}", NULL, "{\"a\": 1}", NULL}},
    {"{\"prefixItems\": [{\"type\": \"null\"}], \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 3}",
     {"[null]", "[null, 1, 2]", NULL, "[]", "[1]", "[null, null]", "[null, 1, 2, 3]", NULL}},
    {"{\"type\": \"array\", \"contains\": {\"const\": 1}, \"maxContains\": 2}",
     {"[1]", "[2, 1, 1]", NULL, "[]", "[2]", "[1, 1, 1]", NULL}},
    {"{\"oneOf\": [{\"multipleOf\": 2}, {\"multipleOf\": 3}]}", {"2", "9", NULL, "6", "1", NULL}},
    {"{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"k\": {\"const\": \"a\"}, \"v\": {\"type\": \"integer\"}}, "
     "\"required\": [\"k\"]}, "
     "{\"type\": \"object\", \"properties\": {\"k\": {\"const\": \"b\"}, \"v\": {\"type\": \"string\"}}, \"required\": "
     "[\"k\"]}]}",
     {"{\"v\": 1, \"k\": \"a\"}", "{\"v\": \"s\", \"k\": \"b\"}", NULL, "{\"v\": 1, \"k\": \"b\"}", "{\"v\": 1}",
      NULL}},
    {"{\"not\": {\"type\": \"string\"}}", {"1", NULL, "\"x\"", NULL}},
    {"{\"not\": {\"required\": [\"a\"]}, \"type\": \"object\"}", {"{\"b\": 1}", NULL, "{\"a\": 1}", NULL}},
    {"{\"if\": {\"properties\": {\"a\": {\"const\": 1}}, \"required\": [\"a\"]}, \"then\": {\"required\": [\"b\"]}, "
     "\"else\": {\"required\": [\"c\"]}}",
     {"{\"a\": 1, \"b\": 1}", "{\"c\": 1}", NULL, "{\"a\": 1}", "{\"a\": 2, \"b\": 1}", NULL}},
    {"{\"$defs\": {\"t\": {\"type\": \"object\", \"properties\": {\"next\": {\"$ref\": \"#/$defs/t\"}}, "
     "\"additionalProperties\": false}}, \"$ref\": \"#/$defs/t\"}",
     {"{\"next\": {\"next\": {}}}", NULL, "{\"next\": {\"next\": 1}}", NULL}},
    {"{\"allOf\": [{\"properties\": {\"a\": {\"minimum\": 3}}}, {\"properties\": {\"a\": {\"type\": \"integer\", "
     "\"maximum\": 4}}}]}",
     {"{\"a\": 3}", "{\"a\": 4}", NULL, "{\"a\": 2}", "{\"a\": 5}", "{\"a\": 3.5}", NULL}},
    {"{\"$defs\": {\"x\": {\"$anchor\": \"count\", \"type\": \"integer\"}}, \"items\": {\"$ref\": \"#count\"}, "
     "\"type\": \"array\"}",
     {"[1, 2]", NULL, "[true]", NULL}},
    {"{\"type\": [\"string\", \"null\"]}", {"null", "\"\"", NULL, "1", NULL}},
};

static void schemas_accept_their_instances_alone(void **state)
{
    check_cases(GRAMMAR_SCHEMA, schemas, sizeof schemas / sizeof *schemas);
}

static const struct text_case gbnfs[] = {
    {"root ::= \"a\" | b\nb ::= [x-z]{2,3} # comment\n", {"a", "xy", "zzz", NULL, "x", "xxxx", "ab", NULL}},
    {"root ::= (\"a\" | \"b\")* \"\\n\" [^\\x00-\\x1f]?", {"\n", "abba\n\xc3\xa9", NULL, "a", "\n\n", NULL}},
    {"root ::= \"(\" root \")\" | \"\"", {"", "(())", NULL, "(()", ")", NULL}},
    {"root ::= e (\"+\" e)*\ne ::= \"n\" | \"(\" root \")\"", {"n+(n+n)", NULL, "n+", "(n", NULL}},
    {"root ::= \"call \" %json{\"type\": \"object\", \"required\": [\"}\"]} \";\" | \"no\"",
     {"call {\"}\": 1};", "no", NULL, "call {};", NULL}},
    {"root ::= %json{\"type\": \"integer\"} \"0\"? | [0-9]+ \"x\"", {"12", "12x", NULL, "x", "01", NULL}},
    {"root ::= \"(\" root \")x\" | \"(\" root \")y\" | \"\"", /* as many ways as there are halves of it */
     {"(((((((((((((((((((((((((((((("
      ")x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x)x",
      NULL, "(((((((((((((((((((((((((((((()y", NULL}},
    {"root ::= \"a\" + b ? \"c\" {2}\nb ::= \"b\"", {"abcc", "aacc", NULL, "bcc", "abbcc", "ac", NULL}},
    {"root ::= a | a \"b\"\na ::= \"x\"+", {"xx", "xxb", NULL, "b", NULL}},
};

static const struct text_case regexes[] = {
    {"(ab|c)+\\d{2}", {"ab12", "cab00", NULL, "ab1", "ab123", NULL}},
    {"[^\\n]*", {"", "x\xe2\x82\xac", NULL, "a\nb", "\xe2\x82", NULL}},
    {"\\u0041\\u{1f600}\\ud83d\\ude00[\\u00e0-\\u00e9]",
     {"A\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xc3\xa9", NULL, "u0041", "A\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xc3\xaa", NULL}},
    {"^a$", {"a", NULL, "aa", NULL}},
};

static void grammars_accept_what_their_rules_say(void **state)
{
    check_cases(GRAMMAR_GBNF, gbnfs, sizeof gbnfs / sizeof *gbnfs);
    check_cases(GRAMMAR_REGEX, regexes, sizeof regexes / sizeof *regexes);
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

/* Wherever random walks lead: the mask is what allows says, a token fits exactly if its bytes do, and a place that is
 * no end has a way on. */
static void walk(struct grammar *g, struct random *random, const char *shown)
{
    struct grammar_matcher *m = open_matcher(g), *copy;
    struct err e;
    for (int step = 0; step < 40; step++) {
        uint64_t mask[MASK_WORDS];
        int32_t allowed[GRAMMAR_N_TOKEN];
        uint32_t n = 0;
        grammar_matcher_mask(m, mask);
        for (int32_t id = 0; id < GRAMMAR_N_TOKEN; id++) {
            bool in_mask = mask[id / 64] >> id % 64 & 1;
            if (in_mask != grammar_matcher_allows(m, id))
                fail_msg("%s: step %d: token %d: the mask says %d", shown, step, (int)id, in_mask);
            if (id < 256 + GRAMMAR_N_TEXT) {
                char byte = (char)id;
                const char *text = id < 256 ? &byte : grammar_texts[id - 256];
                size_t n_fit, n_text = id < 256 ? 1 : strlen(text);
                assert_int_equal(grammar_matcher_clone(&copy, m, &e), ERR_OK);
                assert_int_equal(grammar_matcher_feed(copy, text, n_text, &n_fit), in_mask);
                grammar_matcher_close(&copy);
            }
            if (in_mask && id != GRAMMAR_END)
                allowed[n++] = id;
        }
        assert_int_equal(mask[GRAMMAR_END / 64] >> GRAMMAR_END % 64 & 1, grammar_matcher_may_end(m));
        assert_int_equal(grammar_matcher_must_end(m), n == 0);
        if (n == 0) {
            assert_true(grammar_matcher_may_end(m));
            break;
        }
        assert_true(grammar_matcher_accept(m, allowed[random_u32(random) % n]));
    }
    grammar_matcher_close(&m);
}

static void masks_agree_with_bytes_everywhere(void **state)
{
    struct random random = random_seed(7);
    static const struct {
        enum grammar_kind kind;
        const struct text_case *cases;
        size_t n;
    } all[] = {{GRAMMAR_SCHEMA, schemas, sizeof schemas / sizeof *schemas},
               {GRAMMAR_GBNF, gbnfs, sizeof gbnfs / sizeof *gbnfs},
               {GRAMMAR_REGEX, regexes, sizeof regexes / sizeof *regexes}};
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < all[k].n; i++) {
            struct grammar *g = open_grammar(all[k].kind, all[k].cases[i].grammar, false);
            for (int again = 0; again < 5; again++)
                walk(g, &random, all[k].cases[i].grammar);
            grammar_close(&g);
        }
}

static void special_tokens_come_where_they_are_named(void **state)
{
    struct grammar *g = open_grammar(GRAMMAR_GBNF, "root ::= \"a\" %token\"<|call|>\" \"b\"", false);
    struct grammar_matcher *m = open_matcher(g);
    assert_false(grammar_matcher_allows(m, GRAMMAR_CALL));
    assert_true(grammar_matcher_accept(m, 'a'));
    assert_false(grammar_matcher_accept(m, '<'));
    assert_true(grammar_matcher_accept(m, GRAMMAR_CALL));
    assert_true(grammar_matcher_accept(m, 'b'));
    assert_true(grammar_matcher_accept(m, GRAMMAR_END));
    assert_false(grammar_matcher_allows(m, 'b'));
    grammar_matcher_close(&m);
    grammar_close(&g);
}

/* A name with brackets is a token, special or not. */
static void tokens_can_be_named_as_elsewhere(void **state)
{
    struct grammar *g = open_grammar(GRAMMAR_GBNF, "root ::= <|call|> <b> | <b>+", false);
    struct grammar_matcher *m = open_matcher(g);
    assert_true(grammar_matcher_accept(m, GRAMMAR_CALL));
    assert_true(grammar_matcher_accept(m, '<'));
    assert_true(grammar_matcher_accept(m, 'b'));
    assert_true(grammar_matcher_accept(m, '>'));
    assert_true(grammar_matcher_must_end(m));
    grammar_matcher_close(&m);
    assert_true(accepts(g, "<b><b>"));
    grammar_close(&g);
}

/* A special one is that token and no text; others are their bytes. Without a vocabulary it is not known which. */
static void tokens_can_be_named_by_number(void **state)
{
    char text[100];
    snprintf(text, sizeof text, "root ::= <[%d]> <[98]>{2} # <[x]>\n | <[%d]> \"c\"", GRAMMAR_CALL, GRAMMAR_END);
    struct grammar *g = open_grammar(GRAMMAR_GBNF, text, false), *bare;
    struct grammar_matcher *m = open_matcher(g);
    struct err e;
    assert_false(grammar_matcher_allows(m, '<'));
    assert_true(grammar_matcher_allows(m, GRAMMAR_END));
    assert_true(grammar_matcher_accept(m, GRAMMAR_CALL));
    assert_false(grammar_matcher_allows(m, GRAMMAR_CALL));
    assert_true(grammar_matcher_accept(m, 'b'));
    assert_true(grammar_matcher_accept(m, 'b'));
    assert_true(grammar_matcher_must_end(m));
    grammar_matcher_close(&m);
    grammar_close(&g);
    assert_int_equal(grammar_open(&bare, NULL, GRAMMAR_GBNF, text, strlen(text), false, &e), ERR_OK);
    assert_false(accepts(bare, "bb"));
    grammar_close(&bare);
}

static void bytes_that_must_come_are_known(void **state)
{
    struct grammar *g = open_grammar(GRAMMAR_SCHEMA, "{\"enum\": [\"apple pie\", \"apple tart\"]}", false);
    struct grammar_matcher *m = open_matcher(g);
    char bytes[32];
    size_t n = grammar_matcher_forced(m, bytes, sizeof bytes), n_fit;
    assert_int_equal(n, 1); /* characters may be written as escapes */
    assert_true(grammar_matcher_feed(m, "\"apple p", 8, &n_fit));
    grammar_matcher_close(&m);
    grammar_close(&g);
    g = open_grammar(GRAMMAR_GBNF, "root ::= \"name: \" [a-z]", false);
    m = open_matcher(g);
    n = grammar_matcher_forced(m, bytes, sizeof bytes);
    assert_int_equal(n, 6);
    assert_memory_equal(bytes, "name: ", 6);
    assert_int_equal(grammar_matcher_forced(m, bytes, 3), 3);
    grammar_matcher_close(&m);
    grammar_close(&g);
}

/* ---- states --------------------------------------------------------------------------------------------------------
 */

static void set_max_states(struct grammar *g, uint32_t n)
{
    g->max_states = g->states->max = n;
}

/* Both are at the same place of the same text. */
static void assert_same(struct grammar_matcher *a, struct grammar_matcher *b)
{
    uint64_t x[MASK_WORDS], y[MASK_WORDS];
    grammar_matcher_mask(a, x);
    grammar_matcher_mask(b, y);
    assert_memory_equal(x, y, sizeof x);
    assert_int_equal(grammar_matcher_may_end(a), grammar_matcher_may_end(b));
    assert_int_equal(grammar_matcher_must_end(a), grammar_matcher_must_end(b));
}

/* 1,024 states, of which 300 are kept: enough for a text, and not for all. */
static void texts_go_on_where_there_are_too_many_states(void **state)
{
    static const char regex[] = "(?:a|b)*a(?:a|b){9}";
    struct grammar *all = open_grammar(GRAMMAR_REGEX, regex, false), *few = open_grammar(GRAMMAR_REGEX, regex, false);
    struct grammar_matcher *a[3], *b[3];
    struct random random = random_seed(1);
    struct err e = {0};
    int n_renewed = 0;
    set_max_states(few, 300);
    for (int k = 0; k < 2; k++) {
        a[k] = open_matcher(all);
        b[k] = open_matcher(few);
    }
    const struct states *first = few->states;
    for (int i = 0; i < 2000; i++) {
        int32_t byte = random_u32(&random) % 2 ? 'a' : 'b';
        int k = (int)(random_u32(&random) % 2);
        if (i % 40 == 0) {
            grammar_matcher_close(&a[k]);
            grammar_matcher_close(&b[k]);
            a[k] = open_matcher(all);
            b[k] = open_matcher(few);
        }
        assert_true(grammar_matcher_accept(a[k], byte));
        assert_true(grammar_matcher_accept(b[k], byte));
        if (i % 10 == 0)
            assert_same(a[k], b[k]);
        n_renewed += few->states != first;
        first = few->states;
    }
    assert_true(n_renewed > 5);
    assert_int_equal(grammar_matcher_clone(&a[2], a[0], &e), ERR_OK);
    assert_int_equal(grammar_matcher_clone(&b[2], b[0], &e), ERR_OK);
    assert_same(a[2], b[2]);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(grammar_matcher_error(b[k], &e), ERR_OK);
        grammar_matcher_close(&a[k]);
        grammar_matcher_close(&b[k]);
    }
    grammar_close(&all);
    grammar_close(&few);
}

/* One text has no room even alone; that is no matter to others. */
static void a_text_that_needs_too_many_states_fails_alone(void **state)
{
    struct grammar *g = open_grammar(GRAMMAR_REGEX, "(?:a|b)*a(?:a|b){9}|c+", false);
    struct grammar_matcher *bad = open_matcher(g), *good = open_matcher(g);
    struct random random = random_seed(1);
    struct err e = {0};
    uint64_t mask[MASK_WORDS];
    assert_true(grammar_matcher_accept(good, 'c'));
    set_max_states(g, 40);
    for (int i = 0; i < 200; i++)
        (void)grammar_matcher_accept(bad, random_u32(&random) % 2 ? 'a' : 'b');
    assert_int_equal(grammar_matcher_error(bad, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "more states than are kept"));
    grammar_matcher_mask(bad, mask);
    for (size_t i = 0; i < MASK_WORDS; i++)
        assert_int_equal(mask[i], 0);
    assert_false(grammar_matcher_may_end(bad));
    assert_true(grammar_matcher_accept(good, 'c'));
    assert_true(grammar_matcher_may_end(good));
    assert_int_equal(grammar_matcher_error(good, &e), ERR_OK);
    assert_true(accepts(g, "ccc"));
    grammar_matcher_close(&bad);
    grammar_matcher_close(&good);
    grammar_close(&g);
}

/* ---- what is wrong, and what can't be enforced ----------------------------------------------------------------- */

static void what_is_wrong_is_said(void **state)
{
    static const struct {
        enum grammar_kind kind;
        const char *text, *part;
        err_code code;
    } cases[] = {
        {GRAMMAR_SCHEMA, "{", "line 1", ERR_FORMAT},
        {GRAMMAR_SCHEMA, "{\"properties\": {\"a/b\": {\"type\": 5}}}", "/properties/a~1b: type", ERR_FORMAT},
        {GRAMMAR_SCHEMA, "{\"$ref\": \"#/nowhere\"}", "not there", ERR_FORMAT},
        {GRAMMAR_SCHEMA, "{\"$ref\": \"#\"}", "leads back", ERR_FORMAT},
        {GRAMMAR_SCHEMA, "{\"items\": {\"uniqueItems\": true}}", "/items: uniqueItems", ERR_UNSUPPORTED},
        {GRAMMAR_SCHEMA, "{\"pattern\": \"\\\\bx\"}", "pattern", ERR_UNSUPPORTED},
        {GRAMMAR_GBNF, "root ::= a", "no rule a", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= root \"a\" | \"b\"", "begins with itself", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= \"a\" root", "ever ends", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= \"a\"\nx ::= (\"b\"", "line 2", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= %json{\"type\": 5}", "line 1: schema", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= \"a\"\n <[5000]>", "line 2: there is no token 5000; the vocabulary has 0 to",
         ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= <[99999999999999999999]>", "there is no token 99999999999999999999", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= <[]>", "expected a token's number, <[ID]>", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= <[-1]>", "expected a token's number, <[ID]>", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= <[12", "expected a token's number, <[ID]>", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= !<think>", "must not come", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= <think\n", "without its >", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= \"a\"+++++++++", "too many repetitions of repetitions", ERR_FORMAT},
        {GRAMMAR_REGEX, "a(b", "without its )", ERR_FORMAT},
        {GRAMMAR_REGEX, "a\xff", "expected UTF-8", ERR_FORMAT},
        {GRAMMAR_REGEX, "a\\\xff", "expected UTF-8", ERR_FORMAT},
        {GRAMMAR_REGEX, "[\\\xff]", "expected UTF-8", ERR_FORMAT},
        {GRAMMAR_REGEX, "(a{1000}){1000}", "too large", ERR_LIMIT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g;
        struct err e = {0};
        assert_int_equal(grammar_open(&g, vocab, cases[i].kind, cases[i].text, strlen(cases[i].text), false, &e),
                         cases[i].code);
        assert_null(g);
        if (!strstr(e.text, cases[i].part))
            fail_msg("%s: %s", cases[i].text, e.text);
    }
}

/* Rules of groups in each other, 1000 deep in all: no stack holds that. */
static void rules_that_begin_with_too_many_others_are_refused(void **state)
{
    enum { N_RULE = 500, N_GROUP = 195 };
    struct bytes b = {0};
    struct grammar *g;
    struct err e = {0};
    for (int i = 0; i < N_RULE; i++) {
        assert_int_equal(bytes_print(&b, &e, "%s%d ::= ", i ? "r" : "root ::= r0\nr", i), ERR_OK);
        for (int k = 0; k < N_GROUP; k++)
            bytes_put_text(&b, "(");
        assert_int_equal(bytes_print(&b, &e, "r%d ", i + 1), ERR_OK);
        for (int k = 0; k < N_GROUP; k++)
            bytes_put_text(&b, "\"x\"|\"y\")");
        bytes_put_text(&b, "\n");
    }
    assert_int_equal(bytes_print(&b, &e, "r%d ::= \"z\"\n", N_RULE), ERR_OK);
    assert_int_equal(grammar_open(&g, vocab, GRAMMAR_GBNF, bytes_text(&b), b.n, false, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "begins with too many others"));
    bytes_close(&b);
}

/* Within rules, too, which need room of their own. */
static void a_pattern_that_is_too_large_takes_no_room_from_others(void **state)
{
    static const char text[] = "root ::= %json{\"required\": [\"a\", \"b\"], \"additionalProperties\": false, "
                               "\"properties\": {\"a\": {\"pattern\": \"^[\\\\s\\\\S]{1,65535}$\"}, "
                               "\"b\": {\"pattern\": \"^x+$\"}}} \"!\"";
    struct grammar *g = open_grammar(GRAMMAR_GBNF, text, true);
    const char *keyword, *pointer;
    assert_true(grammar_unenforced(g, 0, &keyword, &pointer));
    assert_string_equal(pointer, "/properties/a/pattern");
    assert_false(grammar_unenforced(g, 1, &keyword, &pointer));
    assert_true(accepts(g, "{\"a\": \"\", \"b\": \"xx\"}!"));
    assert_false(accepts(g, "{\"a\": \"\", \"b\": \"y\"}!"));
    grammar_close(&g);
}

static void what_cannot_be_enforced_is_listed_and_the_rest_is_enforced(void **state)
{
    struct grammar *g =
        open_grammar(GRAMMAR_SCHEMA,
                     "{\"properties\": {\"a\": {\"type\": \"array\", \"uniqueItems\": true, \"maxItems\": 2}}, "
                     "\"not\": {\"properties\": {\"a\": {\"uniqueItems\": true}}}, \"$ref\": \"#/nowhere\"}",
                     true);
    const char *keyword, *pointer;
    assert_true(grammar_unenforced(g, 0, &keyword, &pointer));
    assert_string_equal(keyword, "$ref");
    assert_true(grammar_unenforced(g, 1, &keyword, &pointer));
    assert_string_equal(keyword, "uniqueItems");
    assert_string_equal(pointer, "/properties/a/uniqueItems");
    assert_true(grammar_unenforced(g, 2, &keyword, &pointer));
    assert_false(grammar_unenforced(g, 3, &keyword, &pointer));
    assert_true(accepts(g, "{\"a\": [1, 1]}")); /* and so is the not, which would refuse too much */
    assert_false(accepts(g, "{\"a\": [1, 1, 1]}"));
    assert_false(accepts(g, "{\"a\": 1}"));
    grammar_close(&g);
}

/* Opens a grammar of n lines between a first and a last one, and closes it. In a line %d is its number, from 0 on, and
 * %n that of the next line. */
static void open_large(enum grammar_kind kind, const char *first, const char *line, int n, const char *last)
{
    struct bytes b = {0};
    struct grammar *g;
    struct err e = {0};
    bytes_put_text(&b, first);
    for (int i = 0; i < n; i++)
        for (const char *s = line; *s; s++)
            if (*s != '%' || (s[1] != 'd' && s[1] != 'n'))
                bytes_put_char(&b, *s);
            else
                assert_int_equal(bytes_print(&b, &e, "%d", *++s == 'n' ? i + 1 : i), ERR_OK);
    bytes_put_text(&b, last);
    assert_false(b.is_short);
    if (grammar_open(&g, vocab, kind, b.s, b.n, true, &e) != ERR_OK)
        fail_msg("%s: %s", line, e.text);
    grammar_close(&g);
    bytes_close(&b);
}

/* Each of these takes minutes where something is searched for, or everything looked at, once for each line. */
static void large_grammars_are_compiled_in_time(void **state)
{
    open_large(GRAMMAR_GBNF, "root ::= r0\n", "r%d ::= \"a\" r%n\n", 60000, "r60000 ::= \"a\"\n");
    open_large(GRAMMAR_GBNF, "root ::=", " %json{\"properties\": {\"n%d\": true}}", 60000, "\n");
    open_large(GRAMMAR_SCHEMA, "{\"properties\": {", "\"p%d\": {\"pattern\": \"(a{999}){999}\"}, ", 20000,
               "\"x\": true}}");
    open_large(GRAMMAR_SCHEMA, "{\"properties\": {", "\"p%d\": {\"$ref\": \"#z\"}, ", 60000,
               "\"x\": {\"$anchor\": \"z\"}}}");
    open_large(GRAMMAR_SCHEMA, "{\"properties\": {\"p0\": {\"uniqueItems\": true}, ",
               "\"p%n\": {\"items\": {\"$ref\": \"#/properties/p%d\"}}, ", 60000, "\"x\": true}}");
}

/* So do so many alternatives, in the order in which sorting them takes longest. */
static void many_alternatives_are_sorted_in_time(void **state)
{
    enum { N = 1000000 };
    struct formulas f = {0};
    uint32_t *xs = mem_alloc(N * sizeof *xs);
    assert_true(xs && formulas_open(&f));
    for (uint32_t i = 0; i < N; i++)
        xs[N - 1 - i] = formula_var(&f, i);
    uint32_t falling = formula_list(&f, FORMULA_OR, xs, N);
    for (uint32_t i = 0; i < N; i++)
        xs[i] = formula_var(&f, i);
    assert_int_equal(falling, formula_list(&f, FORMULA_OR, xs, N));
    assert_false(f.failed);
    formulas_close(&f);
    mem_free(xs);
}

/* A schema's place is kept for each schema within it, and may have names of any length. */
static void a_place_below_a_long_name_is_cut(void **state)
{
    enum { N_NAME = 100000 };
    struct bytes b = {0};
    const char *keyword, *pointer;
    bytes_put_text(&b, "{\"properties\": {\"");
    for (int i = 0; i < N_NAME; i++)
        bytes_put_char(&b, 'k');
    bytes_put_text(&b, "\": {\"properties\": {\"a\": {\"uniqueItems\": true}}}}}");
    struct grammar *g = open_grammar(GRAMMAR_SCHEMA, bytes_text(&b), true);
    assert_true(grammar_unenforced(g, 0, &keyword, &pointer));
    assert_string_equal(keyword, "uniqueItems");
    assert_string_equal(pointer, "/properties/...");
    grammar_close(&g);
    bytes_close(&b);
}

static int open_all(void **state)
{
    vocab = grammar_vocab_make();
    return vocab == NULL;
}

static int close_all(void **state)
{
    grammar_vocab_close(&vocab);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemas_accept_their_instances_alone),
        cmocka_unit_test(grammars_accept_what_their_rules_say),
        cmocka_unit_test(masks_agree_with_bytes_everywhere),
        cmocka_unit_test(special_tokens_come_where_they_are_named),
        cmocka_unit_test(tokens_can_be_named_as_elsewhere),
        cmocka_unit_test(tokens_can_be_named_by_number),
        cmocka_unit_test(bytes_that_must_come_are_known),
        cmocka_unit_test(texts_go_on_where_there_are_too_many_states),
        cmocka_unit_test(a_text_that_needs_too_many_states_fails_alone),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(rules_that_begin_with_too_many_others_are_refused),
        cmocka_unit_test(a_pattern_that_is_too_large_takes_no_room_from_others),
        cmocka_unit_test(what_cannot_be_enforced_is_listed_and_the_rest_is_enforced),
        cmocka_unit_test(large_grammars_are_compiled_in_time),
        cmocka_unit_test(many_alternatives_are_sorted_in_time),
        cmocka_unit_test(a_place_below_a_long_name_is_cut),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
