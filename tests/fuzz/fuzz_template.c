/* Any bytes as a chat template, and behind a zero byte as its messages in JSON. */
#include "fuzz.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "template/template.h"

static const char some_messages[] = "[{\"role\": \"system\", \"content\": \"Sys\"}, {\"role\": \"user\", \"content\": "
                                    "\"A <b> \\u00e9\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
                                    "[{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, true]}}}]}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct template *t = NULL;
    const char *zero = size ? memchr(data, 0, size) : NULL;
    size_t n_source = zero ? (size_t)(zero - (const char *)data) : size, n_rest = zero ? size - n_source - 1 : 0,
           n_text;
    err_code code = template_parse(&t, (const char *)data, n_source, &e);
    assert((code == ERR_OK) == (t != NULL) && (code == ERR_OK || e.text[0]));
    if (!t)
        return 0;
    char *messages = mem_calloc(n_rest + 1, 1), *text = NULL;
    const char *trusted;
    if (n_rest)
        memcpy(messages, zero + 1, n_rest);
    const struct template_var vars[] = {
        {.name = "messages", .json = zero ? messages : some_messages},
        {.name = "tools", .json = "null"},
        {.name = "add_generation_prompt", .json = "true"},
        {.name = "bos_token", .text = "<s>"},
    };
    code = template_render(t, vars, sizeof vars / sizeof *vars, &text, &trusted, &n_text, &e);
    assert((code == ERR_OK) == (text != NULL) && (code == ERR_OK || e.text[0]));
    assert(!text || text[n_text] == '\0');
    for (size_t i = 0; text && i < n_text; i++)
        assert(trusted[i] == 0 || trusted[i] == 1);
    mem_free(text);
    mem_free(messages);
    template_close(&t);
    return 0;
}
