/* Chat templates: what jinja2 makes of them (template_cases.json, by tools/gen_template_cases.py), limits, errors. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "template/template.h"
#include "template/tmpl_syntax.h"

static const char *cases_path;

static err_code render(const char *source, const struct template_var *vars, int n_var, char **text, struct err *e)
{
    struct template *t;
    const char *trusted;
    size_t n;
    *text = NULL;
    err_code code = template_parse(&t, source, strlen(source), e);
    if (code == ERR_OK)
        code = template_render(t, vars, n_var, text, &trusted, &n, e);
    template_close(&t);
    return code;
}

static void equals_jinja2_on_its_cases(void **state)
{
    json_error_t error;
    json_t *cases = json_load_file(cases_path, 0, &error);
    assert_non_null(cases);
    struct template_var vars[32];
    int n_var = 0;
    const char *name;
    json_t *value;
    json_object_foreach(json_array_get(cases, 0), name, value) vars[n_var++] =
        (struct template_var){.name = name, .json = json_dumps(value, JSON_ENCODE_ANY)};
    int n_own = n_var;
    vars[n_var++] = (struct template_var){.name = "add_generation_prompt", .json = "true"};
    vars[n_var++] = (struct template_var){.name = "eos_token", .text = "</s>"};
    assert_true(json_array_size(cases) > 150);
    int n_bad = 0;
    for (size_t i = 1; i < json_array_size(cases); i++) {
        const char *source = json_string_value(json_object_get(json_array_get(cases, i), "template"));
        const char *wanted = json_string_value(json_object_get(json_array_get(cases, i), "text"));
        struct err e = {0};
        char *text;
        err_code code = render(source, vars, n_var, &text, &e);
        if (wanted ? code != ERR_OK || strcmp(text, wanted) != 0 : code != ERR_FORMAT) {
            n_bad++;
            print_error("%s\n  expected %s\n  got      %s\n", source, wanted ? wanted : "an error",
                        text ? text : e.text);
        }
        if (!wanted && code != ERR_OK && !strstr(e.text, "line ")) {
            n_bad++;
            print_error("%s\n  no line in: %s\n", source, e.text);
        }
        mem_free(text);
    }
    for (int i = 0; i < n_own; i++)
        free((char *)vars[i].json);
    json_decref(cases);
    assert_int_equal(n_bad, 0);
}

static void fails_with(const char *source, err_code code, const char *says)
{
    struct err e = {0};
    char *text;
    err_code got = render(source, NULL, 0, &text, &e);
    if (got != code || !strstr(e.text, says))
        fail_msg("%.200s\n  expected error %d with \"%s\", got %d: %s", source, code, says, got, e.text);
    mem_free(text);
}

static void errors_name_line_and_column(void **state)
{
    fails_with("a\n{{ x }}\n  {{ x.y }}", ERR_FORMAT, "line 3, column 7: 'x' is undefined");
    fails_with("\xc3\xa9 {{ 'ok' }}{{ 1 + }}", ERR_FORMAT, "line 1, column 20: \"}}\": expected an expression");
    fails_with("{% if x %}\n", ERR_FORMAT, "expected {% elif %}");
    fails_with("{{ raise_exception('Roles must alternate') }}", ERR_FORMAT, "line 1, column 4: Roles must alternate");
    fails_with("{{ {}.update }}{{ [].insert(1) }}", ERR_FORMAT, "not allowed in templates");
    fails_with("a\xff", ERR_FORMAT, "line 1, column 2: this byte is not UTF-8");
}

static void renders(const char *source, const char *wanted)
{
    struct err e = {0};
    char *text;
    assert_int_equal(render(source, NULL, 0, &text, &e), ERR_OK);
    assert_string_equal(text, wanted);
    mem_free(text);
}

static void the_largest_integers_are_bounds_and_widths(void **state)
{
    renders("{{ 'a'.zfill(-9223372036854775807 - 1) }}", "a");
    renders("{{ range(-9223372036854775807 - 1, 9223372036854775807, 9223372036854775807)|list }}",
            "[-9223372036854775808, -1, 9223372036854775806]");
    fails_with("{{ range(0, 9223372036854775807, 4611686018427387904)[:] }}", ERR_FORMAT, "64 bits");
    fails_with("{{ 'a'.zfill(9223372036854775807) }}", ERR_LIMIT, "too long");
}

static void integers_that_do_not_fit_are_errors(void **state)
{
    fails_with("{{ 9223372036854775807 + 1 }}", ERR_FORMAT, "64 bits");
    fails_with("{{ -9223372036854775807 - 2 }}", ERR_FORMAT, "64 bits");
    fails_with("{{ 4611686018427387904 * 2 }}", ERR_FORMAT, "64 bits");
    fails_with("{{ 9 ** 99 }}", ERR_FORMAT, "64 bits");
    fails_with("{{ (-9223372036854775807 - 1) // -1 }}", ERR_FORMAT, "64 bits");
    fails_with("{{ 99999999999999999999 }}", ERR_FORMAT, "64 bits");
    fails_with("{{ '99999999999999999999'|int }}", ERR_FORMAT, "64 bits");
    fails_with("{{ 1e300|int }}", ERR_FORMAT, "64 bits");
}

/* The source `part` n times between two others; freed by the caller. */
static char *repeat(const char *before, const char *part, size_t n, const char *after)
{
    size_t n_part = strlen(part), at = strlen(before);
    char *s = malloc(at + n * n_part + strlen(after) + 1);
    memcpy(s, before, at);
    for (size_t i = 0; i < n; i++, at += n_part)
        memcpy(s + at, part, n_part);
    strcpy(s + at, after);
    return s;
}

/* A text of a million bytes, and an expression often enough to take minutes if it were for nothing. */
#define LONG_A           "{% set a = 'a' * 1000000 %}"
#define LOOP(expression) "{% for i in range(99999) %}{% if " expression " %}{% endif %}{% endfor %}"

static void hostile_templates_end_soon(void **state)
{
    static const struct {
        const char *source;
        err_code code;
        const char *says;
    } hostile[] = {
        {"{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", ERR_LIMIT, "steps"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", ERR_LIMIT, "macro that calls itself"},
        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", ERR_LIMIT, "nested too deeply"},
        {"{{ 'a' * 999999999999 }}", ERR_LIMIT, "too long"},
        {"{{ [1] * 999999999999 }}", ERR_LIMIT, ""},
        {"{{ 'a'.center(999999999999) }}", ERR_LIMIT, "too long"},
        {"{{ '%999999999d' % 1 }}", ERR_LIMIT, ""},
        {"{{ '%.999999999f' % 1.5 }}", ERR_FORMAT, "precision"},
        {"{{ '{:999999999}'.format('x') }}", ERR_FORMAT, "invalid format"},
        {"{% set ns = namespace(s='aaaa') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
         ERR_LIMIT, "memory"},
        {"{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
         ERR_LIMIT, "nested too deeply"},
        {"{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson }}",
         ERR_LIMIT, "nested too deeply"},
        {"{% set n = namespace() %}{% set n.n = n %}{{ n }}", ERR_LIMIT, "nested too deeply"},
        {"{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", ERR_LIMIT, "nested too deeply"},
        {"{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}", ERR_LIMIT, "nested too deeply"},
        {"{% set a = [] %}{% set b = [] %}{% set _ = a.append(a) %}{% set _ = b.append(b) %}{{ a == b }}", ERR_LIMIT,
         "nested too deeply"},
        {"{% set a = [] %}{% set _ = a.append(a) %}{% set _ = a.append(a) %}{{ a|tojson }}", ERR_LIMIT, ""},
        {"{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}", ERR_LIMIT, ""},
        {"{% set s = 'a ' * 1000000 %}{% for i in range(999) %}{{ s.split()|length }}{% endfor %}", ERR_LIMIT, ""},
        {"{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s.find('b') }}{% endfor %}", ERR_LIMIT, "steps"},
        {"{{ ('\\n' * 1000000)|indent(1000, blank=true) }}", ERR_LIMIT, ""},
        {"{{ range(99999)|list|tojson(indent=1000000) }}", ERR_LIMIT, ""},
        {"{% set ns = namespace(x=(1,)) %}{% for i in range(64) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
         "{{ {ns.x: 1} }}",
         ERR_LIMIT, "steps"},
        {"{% set ns = namespace(x=(1,)) %}{% for i in range(9999) %}{% set ns.x = (ns.x,) %}{% endfor %}"
         "{{ {ns.x: 1} }}",
         ERR_LIMIT, "nested too deeply"},
        {"{{ 'a'|map(*(['map'] * 9999)) }}", ERR_LIMIT, "nested too deeply"},
        {LONG_A "{{ a.rfind(a[:500000] ~ 'b') }}", ERR_LIMIT, "steps"},
        {LONG_A "{{ a.rpartition(a[:500000] ~ 'b') }}", ERR_LIMIT, "steps"},
        {LONG_A "{{ a.rsplit(a[:500000] ~ 'b') }}", ERR_LIMIT, "steps"},
        {"{% if ([[]] * 99999)|map('select', *(['x'] * 99999)) %}{% endif %}", ERR_LIMIT, "steps"},
        {LONG_A LOOP("a|wordcount"), ERR_LIMIT, "steps"},
        {LONG_A LOOP("a is upper"), ERR_LIMIT, "steps"},
        {LONG_A LOOP("a is lower"), ERR_LIMIT, "steps"},
        {LONG_A LOOP("a.splitlines()"), ERR_LIMIT, "steps"},
        {LONG_A LOOP("a.removeprefix(a)"), ERR_LIMIT, "steps"},
        {LONG_A LOOP("a.removesuffix(a)"), ERR_LIMIT, "steps"},
        {LONG_A LOOP("a.startswith((a, a, a))"), ERR_LIMIT, "steps"},
        {LONG_A LOOP("a.count('a')"), ERR_LIMIT, "steps"},
        {"{% set a = '\\u3000' * 1000000 %}" LOOP("a|trim"), ERR_LIMIT, "steps"},
        {LONG_A "{% set d = {a ~ 1: 1, a ~ 2: 1, a ~ 3: 1} %}{% set k = a ~ 4 %}" LOOP("d[k]"), ERR_LIMIT, "steps"},
    };
    int64_t slowest = 0;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        int64_t start = clock_ns();
        fails_with(hostile[i].source, hostile[i].code, hostile[i].says);
        int64_t ns = clock_ns() - start;
        slowest = ns > slowest ? ns : slowest;
    }
    char *sources[] = {
        repeat("{{ ", "(", 9999, ""),      repeat("{{ ", "not ", 9999, "1 }}"), repeat("{{ ", "-", 9999, "1 }}"),
        repeat("", "{% if 1 %}", 999, ""), repeat("{{ 1", "+1", 9999, " }}"),   repeat("{{ ", "[", 999, ""),
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        struct err e = {0};
        char *text;
        assert_int_not_equal(render(sources[i], NULL, 0, &text, &e), ERR_OK);
        assert_non_null(strstr(e.text, "nested too deeply"));
        free(sources[i]);
    }
    char *names = malloc(TMPL_MAX_NAMES * 12), *end = names;
    for (int i = 0; i < TMPL_MAX_NAMES; i++)
        end += sprintf(end, "{{ n%d }}", i);
    fails_with(names, ERR_FORMAT, "too many names");
    free(names);
    char *long_source = repeat("", "text ", 60000, "");
    fails_with(long_source, ERR_LIMIT, "300000 bytes");
    free(long_source);
    assert_true(slowest < (int64_t)5e9); /* a release build takes less than one, sanitizers a little more */
}

static void hostile_json_is_refused(void **state)
{
    char *deep = repeat("", "[", 1000, ""), *wide = repeat("[0", ",0", 400000, "]"), *closed;
    closed = repeat(deep, "]", 1000, "");
    const char *bad[] = {deep, closed, wide, "[1,", "{\"a\": 1e999}", "[\"\xff\"]", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        char *text;
        struct template_var var = {.name = "messages", .json = bad[i]};
        assert_int_not_equal(render("{{ messages }}", &var, 1, &text, &e), ERR_OK);
        assert_non_null(strstr(e.text, i == 1 ? "nested too deeply" : "messages: "));
    }
    free(deep);
    free(wide);
    free(closed);
}

/* Renders with m, the messages; bytes that aren't trusted must be those in braces of `wanted`. */
static void trusts(const char *source, const char *wanted)
{
    static const struct template_var vars[] = {
        {.name = "m",
         .json = "[{\"role\": \"user\", \"content\": \"<s> Hi\\n\", \"n\": 7, \"<k>\": [\"<a>\"]},"
                 "{\"role\": \"ghost\", \"content\": \"user\"}]"},
        {.name = "bos_token", .text = "<s>"},
    };
    struct template *t;
    struct err e;
    char *text, shown[400];
    const char *trusted;
    size_t n, at = 0;
    bool inside = false;
    assert_int_equal(template_parse(&t, source, strlen(source), &e), ERR_OK);
    if (template_render(t, vars, 2, &text, &trusted, &n, &e) != ERR_OK)
        fail_msg("%s\n  %s", source, e.text);
    for (size_t i = 0; i <= n; i++) {
        bool given = i < n && !trusted[i];
        if (given != inside)
            shown[at++] = given ? '{' : '}';
        inside = given;
        shown[at++] = text[i];
    }
    if (strcmp(shown, wanted) != 0)
        fail_msg("%s\n  expected %s\n  got      %s", source, wanted, shown);
    mem_free(text);
    template_close(&t);
}

static void every_byte_of_a_text_is_the_templates_or_not(void **state)
{
    trusts("a{{ m[0].content }}b", "a{<s> Hi\n}b");
    trusts("{% raw %}{{{% endraw %}{{ 'x\\u00e9' }}{{ bos_token }}", "{{x\u00e9<s>");
    trusts("{{ '<|' + m[0].role + '|>' + m[1].role }}", "<|user|>{ghost}");
    trusts("{{ '<|' ~ m[1].content ~ '|>' }}", "<|{user}|>");
    trusts("{% for x in m %}<{{ x.content|trim }}>{% endfor %}", "<{<s> Hi}><{user}>");
    trusts("{{ (m[0].content ~ '<e>')|trim }}{{ ('<e>' ~ m[0].content)[2:4] }}", "{<s> Hi\n}<e>>{<}");
    trusts("{{ (m[0].content ~ '<e>')[::-1] }}{{ (m[0].content ~ '<e>')|reverse }}", ">e<{\niH >s<}>e<{\niH >s<}");
    trusts("{{ ('<e>' ~ m[0].content).split('>')|join('|') }}", "<e|{<s}|{ Hi\n}");
    trusts("{{ (m[0].content ~ '<e>').rsplit('<', 1)|join('.') }}", "{<s> Hi\n}.e>");
    trusts("{{ m[0].content.split()|join('<b>') }}{{ ' '.join(m[0].content.rsplit()) }}", "{<s>}<b>{Hi<s>} {Hi}");
    trusts("{{ m[0].content.partition('<s>')|join('') }}{{ 'a<s>'.rpartition('<s>')|join('') }}", "{<s> Hi\n}a<s>");
    trusts("{{ m[0].content|replace('<s>', '<e>') }}{{ 'a-b'|replace('-', m[1].content) }}", "<e>{ Hi\n}a{user}b");
    trusts("{{ 'ab'.replace('', m[1].role) }}", "{ghost}a{ghost}b{ghost}");
    trusts("{{ ('<e>' ~ m[1].content)|upper }}{{ ('<e>' ~ m[1].content)|title }}", "<E>{USER}<E>{user}");
    trusts("{{ ('<e>' ~ m[1].content).swapcase() }}{{ m[0].role|capitalize }}", "<E>{USER}User");
    trusts("{{ m|map(attribute='content')|join(',') }}{{ m|length }}{{ m[0].n }}", "{<s> Hi\n},{user}27");
    trusts("{{ '<|%s_%d|>' % (m[1].content, 7) }}{{ m[0].content % () }}", "<|{user}_7|>{<s> Hi\n}");
    trusts("{{ '{}<{:04d}>{:*^6}'.format(m[1].content, -7, 'ab') }}", "{user}<-007>**ab**");
    trusts("{{ '%05.1f' % 1.25 }}{{ '%-4s|' % 'a' }}{{ '%%' % () }}", "001.2a{   }|%");
    trusts("{{ m[0]['<k>']|tojson }}{{ {'<e>': m[1].content}|tojson }}", "{[\"<a>\"]{\"}<e>{\": \"user\"}}");
    trusts("{{ [m[1].content, '<e>'] }}{{ ['<e>', 1, none] }}", "{['user', '}<e>{']['}<e>{', }1{, None]}");
    trusts("{{ m[0].content|escape }}{{ '<'|escape }}", "{&lt;s&gt; Hi\n&lt;}");
    trusts("{{ (m[1].content ~ '\\n<e>')|indent(2, true) }}", "{  user\n  }<e>");
    trusts("{{ m[0].content|truncate(5, true, '<e>', 0) }}", "{<s}<e>");
    trusts("{{ m[1].content.center(8) }}{{ '<e>'.ljust(5, '.') }}{{ '7'.zfill(2) }}", "{  user  }<e>..{0}7");
    trusts("{{ m[0].content.removeprefix('<s>') }}{{ '<s>x'.removeprefix('<s>') }}", "{ Hi\n}x");
    trusts("{{ (m[0].content ~ '<e>').splitlines()|join('') }}", "{<s> Hi}<e>");
    trusts("{% set t %}<e>{{ m[1].content }}{% endset %}{{ t }}", "<e>{user}");
    trusts("{% macro f(x) %}<e>{{ x }}{{ caller() }}{% endmacro %}{% call f(m[1].role) %}!{% endcall %}",
           "<e>{ghost}!");
    trusts("{% filter upper %}<e>{{ m[1].content }}{% endfilter %}", "<E>{USER}");
    trusts("{% for k, v in m[1].items() %}{{ k }}{% endfor %}{% for c in '<e>' %}{{ c }}{% endfor %}",
           "{rolecontent}<e>");
    trusts(
        "{% set n = namespace(t='<e>') %}{% for x in m %}{% set n.t = n.t + x.content + '<e>' %}{% endfor %}{{ n.t }}",
        "<e>{<s> Hi\n}<e>{user}<e>");
    trusts("{% set n = namespace(t=m[1].content) %}{% for x in m %}{% set n.t = n.t + '<e>' %}{% endfor %}{{ n.t }}",
           "{user}<e><e>");
    trusts("{% set a = m[1].role + '.' %}{{ a + m[1].role }}{{ a + '<e>' }}{{ a }}",
           "{ghost}.{ghostghost}.<e>{ghost}.");
    trusts("{{ '<e>'|safe + m[0].content }}{{ ('<e>' ~ m[1].role)[0] }}{{ '<e>' * 2 }}", "<e>{&lt;s&gt; Hi\n}<<e><e>");
}

static void long_conversations_fit(void **state)
{
    char *messages =
        repeat("[{\"role\": \"user\", \"content\": \"\"}",
               ",{\"role\": \"user\", \"content\": \"Some words, and \\n then some more of them.\"}", 5000, "]");
    struct template_var var = {.name = "messages", .json = messages};
    struct err e = {0};
    char *text;
    const char source[] =
        "{% set ns = namespace(all='') %}{% for m in messages %}{% set ns.all = ns.all + '<|' + m.role + '|>' "
        "~ m.content | trim ~ '\\n' %}{% endfor %}{{ ns.all }}";
    assert_int_equal(render(source, &var, 1, &text, &e), ERR_OK);
    assert_true(strlen(text) > 5000 * 50);
    mem_free(text);
    free(messages);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_jinja2_on_its_cases),
        cmocka_unit_test(errors_name_line_and_column),
        cmocka_unit_test(integers_that_do_not_fit_are_errors),
        cmocka_unit_test(the_largest_integers_are_bounds_and_widths),
        cmocka_unit_test(hostile_templates_end_soon),
        cmocka_unit_test(hostile_json_is_refused),
        cmocka_unit_test(every_byte_of_a_text_is_the_templates_or_not),
        cmocka_unit_test(long_conversations_fit),
    };
    cases_path = argc > 1 ? argv[1] : "template_cases.json";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
