/* What templates can't take, with small templates that behave as those of real families do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "server/protocol.h"
#include "server/template_needs.h"

static struct template_needs find(const char *source)
{
    moebius_template *tmpl;
    assert_int_equal(moebius_template_open(&tmpl, source, strlen(source), NULL, NULL), MOEBIUS_OK);
    struct template_needs needs = template_needs_find(tmpl);
    moebius_template_close(&tmpl);
    return needs;
}

static void check(const char *source, bool text_arguments, bool short_ids, bool no_system, bool one_user)
{
    struct template_needs needs = find(source);
    assert_int_equal(needs.text_arguments, text_arguments);
    assert_int_equal(needs.short_ids, short_ids);
    assert_int_equal(needs.no_system, no_system);
    assert_int_equal(needs.one_user, one_user);
}

#define CALLS(arguments)                                                                                               \
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% for c in m.tool_calls or [] %}{{ c.function.name }}"     \
    "{{ " arguments " }}{% endfor %}{% endfor %}"

static void probes_tell_what_a_template_takes(void **state)
{
    check(CALLS("c.function.arguments | tojson"), false, false, false, false);
    check(CALLS("c.function.arguments"), true, false, false, false); /* Python's form of an object */
    check(CALLS("'```json\n' + c.function.arguments + '```'"), true, false, false, false); /* DeepSeek */
    check(CALLS("c.function.arguments.items() | list | tojson"), false, false, false, false);
    check("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
          "{{ raise_exception('ids') }}{% endif %}{{ c.function | tojson }}{% endfor %}"
          "{% if m.role == 'user' and not loop.first and loop.previtem.role == 'user' %}{{ raise_exception('user') }}"
          "{% endif %}{% endfor %}",
          false, true, false, true); /* Mistral */
    check("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
          "{% for m in messages %}{{ m.content }}{% endfor %}",
          false, false, true, false); /* Gemma 2; it knows no calls */
    check("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", false, false, true, false);
    check("{{ raise_exception('always') }}", false, false, false, false);
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
    check_messages(&(struct template_needs){.no_system = true, .one_user = true}, users,
                   "[{\"role\":\"user\",\"content\":\"s\\n\\na\\n\\nb\"},{\"role\":\"assistant\",\"content\":\"c\"},"
                   "{\"role\":\"user\",\"content\":\"d\"}]");
    check_messages(&(struct template_needs){.no_system = true}, "[{\"role\":\"system\",\"content\":\"s\"}]",
                   "[{\"role\":\"user\",\"content\":\"s\"}]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(probes_tell_what_a_template_takes),
                                       cmocka_unit_test(messages_are_made_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
