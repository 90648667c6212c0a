/* The form of Granite 3: a list of JSON objects, which nothing closes:
 *
 *     <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]
 *
 * Documented in the models' chat templates. */
#include "reply/reply_internal.h"

enum { OPEN, CALL, NEXT };

const struct reply_family reply_family_granite = {
    .name = "granite",
    .signs = {"<|tool_call|>"},
    .triggers = {{"<|tool_call|>", OPEN}},
    .states =
        {
            [OPEN] = {READ_MARK, {{"[", CALL}, {"{", CALL, WAY_KEEPS}}},
            [CALL] = {READ_CALL, {{"", NEXT}}},
            [NEXT] = {READ_MARK, {{",", CALL, WAY_CLOSES}, {"]", TO_TEXT, WAY_CLOSES}, {"", TO_TEXT}}},
        },
    .shapes = {{
        .trigger = "<|tool_call|>",
        .open = "<|tool_call|>[",
        .close = "]",
        .call = "{\"name\": \"$N\", \"arguments\": $A}",
        .between = ", ",
    }},
};
