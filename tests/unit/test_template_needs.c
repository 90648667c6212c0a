/* What templates can't take, with small templates that behave as those of real families do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "server/protocol.h"
#include "server/template_needs.h"

/* The names of the needs that probes find. */
static void check(const char *source, const char *expected)
{
    char text[200];
    moebius_template *tmpl;
    assert_int_equal(moebius_template_open(&tmpl, source, strlen(source), NULL, NULL), MOEBIUS_OK);
    struct template_needs n = template_needs_find(tmpl);
    moebius_template_close(&tmpl);
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s%s%s", n.no_system ? " no_system" : "", n.one_user ? " one_user" : "",
             n.user_in_result ? " user_in_result" : "", n.text_arguments ? " text_arguments" : "",
             n.short_ids ? " short_ids" : "", n.null_content ? " null_content" : "", n.one_call ? " one_call" : "",
             n.reasoning_field ? " " : "", n.reasoning_field ? n.reasoning_field : "");
    if (n.text_in_reasoning)
        strcat(text, " text_in_reasoning");
    assert_string_equal(text, expected);
}

#define EACH(calls)                                                                                                    \
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{{ m.reasoning_content }}{% for c in m.tool_calls or [] %}" \
    "{{ c.function.name }}" calls "{% endfor %}{% endfor %}"
#define RAISE(condition) "{% if " condition " %}{{ raise_exception('it is so') }}{% endif %}"

static void probes_tell_what_a_template_takes(void **state)
{
    check(EACH("{{ c.function.arguments | tojson }}"), "");
    check(EACH("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"), "");
    check(EACH("{{ c.function.arguments }}"), " text_arguments"); /* Python's form of an object */
    check(EACH("{{ '```json' + c.function.arguments + '```' }}"), " text_arguments");
    check(EACH("{{ c.function.arguments | tojson }}" RAISE("c.id | length != 9")), " short_ids");
    check(EACH("{{ c.function.arguments | tojson }}" RAISE("m.content is not none")), " null_content");
    check(EACH("{{ c.function.arguments | tojson }}" RAISE("m.tool_calls | length > 1")), " one_call");
    check("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.thinking }}{% if m.tool_calls %}"
          "{{ m.tool_calls[0].function | tojson }}" RAISE("m.content and m.thinking") "{% endif %}{% endfor %}",
          " one_call thinking text_in_reasoning"); /* gpt-oss */
    check(EACH("{{ c.function | tojson }}") "{% for m in messages %}" RAISE(
              "m.role == 'user' and not loop.first and loop.previtem.role in ['user', 'tool']") "{% endfor %}",
          " one_user user_in_result"); /* Mistral */
    check(RAISE("messages[0].role == 'system'") "{% for m in messages %}{{ m.content }}{% endfor %}", " no_system");
    check("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", " no_system");
    check("{{ raise_exception('always') }}", "");
}

/* The words for how much to reason that probes find: for none, any, medium and max. */
static void check_efforts(const char *source, const char *none, const char *any, const char *medium, const char *max)
{
    const char *const expected[N_EFFORT] = {
        [EFFORT_NONE] = none, [EFFORT_ANY] = any, [EFFORT_MEDIUM] = medium, [EFFORT_MAX] = max};
    moebius_template *tmpl;
    assert_int_equal(moebius_template_open(&tmpl, source, strlen(source), NULL, NULL), MOEBIUS_OK);
    struct template_needs n = template_needs_find(tmpl);
    moebius_template_close(&tmpl);
    for (int i = 0; i < N_EFFORT; i++) {
        assert_int_equal(!n.efforts[i], !expected[i]);
        if (expected[i])
            assert_string_equal(n.efforts[i], expected[i]);
    }
}

static void probes_tell_a_template_s_words_for_reasoning(void **state)
{
    check_efforts("{{ messages[0].content }}", NULL, NULL, NULL, NULL);
    check_efforts("{{ 'Reasoning: ' + (reasoning_effort or 'medium') }}", NULL, NULL, NULL, NULL); /* gpt-oss */
    check_efforts("{{ messages[0].content }}" RAISE("(reasoning_effort or 'no_think') not in ['no_think', 'low', "
                                                    "'high']") "{{ reasoning_effort or 'no_think' }}",
                  "no_think", "high", "high", NULL); /* Hy3 */
    check_efforts("{% if thinking and reasoning_effort == 'max' %}{{ 'Think!' }}{% endif %}", NULL, NULL, NULL,
                  "max"); /* DeepSeek V4 */
    check_efforts("{{ reasoning_effort }}{% if reasoning_effort | lower == 'none' %}{{ '!' }}{% endif %}", "none", NULL,
                  NULL, NULL); /* North */
    check_efforts("{{ raise_exception('always') }}", NULL, NULL, NULL, NULL);
}

static void check_messages(const struct template_needs *needs, const char *messages, const char *expected)
{
    struct server_request r;
    struct err e;
    server_request_init(&r);
    json_t *body = json_pack("{s:o}", "messages", json_loads(messages, 0, NULL));
    assert_int_equal(protocol_chat.parse(&r, body, &e), ERR_OK);
    json_t *before = json_deep_copy(r.messages), *wanted = json_loads(expected, 0, NULL);
    json_t *made = template_needs_apply(needs, &r);
    char *text = json_dumps(made, 0);
    if (!json_equal(made, wanted))
        fail_msg("%s", text);
    assert_true(json_equal(before, r.messages)); /* the request's own stay */
    free(text);
    json_decref(made);
    json_decref(before);
    json_decref(wanted);
    server_request_close(&r);
}

static void messages_are_made_fit(void **state)
{
    static const char calls[] =
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
        "{\"id\":\"call_long_x\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"n\\\":1.0}\"}}"
        ","
        "{\"id\":\"y\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"y\",\"content\":\"r\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"call_long_x\",\"content\":\"s\"}]";
    static const char reasoned[] =
        "[{\"role\":\"assistant\",\"content\":\"b\",\"reasoning\":\"a\"},"
        "{\"role\":\"assistant\",\"content\":\"d\",\"reasoning_content\":\"c\",\"tool_calls\":["
        "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"content\":\"e\"},{\"role\":\"user\",\"content\":\"g\"}]";
    static const char users[] = "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},"
                                "{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"assistant\",\"content\":\"c\"},"
                                "{\"role\":\"user\",\"content\":\"d\"}]";
    check_messages(
        &(struct template_needs){.text_arguments = true, .short_ids = true}, calls,
        "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
        "{\"id\":\"call00000\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"n\\\":1.0}\"}},"
        "{\"id\":\"call00001\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"call00001\",\"name\":\"f\",\"content\":\"r\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"call00000\",\"name\":\"f\",\"content\":\"s\"}]");
    check_messages(&(struct template_needs){.text_arguments = true, .short_ids = true},
                   "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
                   "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
                   "{\"role\":\"tool\",\"content\":\"r\"}]", /* Ollama's clients */
                   "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
                   "{\"id\":\"call00000\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
                   "{\"role\":\"tool\",\"tool_call_id\":\"call00000\",\"content\":\"r\"}]");
    check_messages(&(struct template_needs){.no_system = true, .one_user = true}, users,
                   "[{\"role\":\"user\",\"content\":\"s\\n\\na\\n\\nb\"},{\"role\":\"assistant\",\"content\":\"c\"},"
                   "{\"role\":\"user\",\"content\":\"d\"}]");
    check_messages(&(struct template_needs){.one_call = true, .null_content = true}, calls,
                   "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
                   "{\"id\":\"call_long_x\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                   "\"arguments\":{\"n\":1.0}}}]},"
                   "{\"role\":\"tool\",\"tool_call_id\":\"call_long_x\",\"name\":\"f\",\"content\":\"s\"},"
                   "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
                   "{\"id\":\"y\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
                   "{\"role\":\"tool\",\"tool_call_id\":\"y\",\"name\":\"f\",\"content\":\"r\"}]");
    check_messages(&(struct template_needs){.reasoning_field = "thinking", .text_in_reasoning = true}, reasoned,
                   "[{\"role\":\"assistant\",\"content\":\"b\",\"thinking\":\"a\"},"
                   "{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"c\\n\\nd\",\"tool_calls\":["
                   "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
                   "{\"role\":\"tool\",\"content\":\"e\"},{\"role\":\"user\",\"content\":\"g\"}]");
    check_messages(&(struct template_needs){.user_in_result = true, .null_content = true}, reasoned,
                   "[{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"a\"},"
                   "{\"role\":\"assistant\",\"content\":\"d\"},"
                   "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"c\",\"tool_calls\":["
                   "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
                   "{\"role\":\"tool\",\"content\":\"e\\n\\ng\"}]");
    check_messages(&(struct template_needs){.no_system = true}, "[{\"role\":\"system\",\"content\":\"s\"}]",
                   "[{\"role\":\"user\",\"content\":\"s\"}]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(probes_tell_what_a_template_takes),
                                       cmocka_unit_test(probes_tell_a_template_s_words_for_reasoning),
                                       cmocka_unit_test(messages_are_made_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
