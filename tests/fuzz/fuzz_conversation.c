/* Any bytes as a saved conversation, on which chat goes on: what its commands do with it, and that it can be saved. */
#include "fuzz.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "cli/conversation.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct conversation c = {.messages = json_array()};
    struct err e = {0};
    err_code code = conversation_parse(&c, (const char *)data, size, "fuzz.json", &e);
    assert(json_is_array(c.messages) && (code == ERR_OK || (json_array_size(c.messages) == 0 && e.text[0])));
    char *saved = json_dumps(c.messages, JSON_INDENT(2));
    assert(saved);
    struct conversation again = {.messages = json_array()};
    code = conversation_parse(&again, saved, strlen(saved), "again.json", &e);
    assert(code == ERR_OK && json_equal(c.messages, again.messages));
    bool had_system = conversation_system(&c) != NULL;
    size_t n = json_array_size(c.messages);
    code = conversation_set_system(&c, "Be kind.", &e);
    assert(code == ERR_OK && !strcmp(conversation_system(&c), "Be kind."));
    assert(json_array_size(c.messages) == n || (!had_system && json_array_size(c.messages) == n + 1));
    conversation_reset(&c);
    assert(json_array_size(c.messages) == 1 && conversation_system(&c));
    code = conversation_set_system(&c, "", &e);
    assert(code == ERR_OK && json_array_size(c.messages) == 0);
    conversation_close(&again);
    conversation_close(&c);
    mem_free(saved);
    return 0;
}
