/* Models whose template shows no form of its own: Hermes' (family_hermes.c), or a JSON object with name and arguments,
 * bare at the beginning of the answer or in a fence of Markdown. */
#include "reply/reply_internal.h"

enum { CALL, END, FENCED, FENCED_CALL, FENCE_END, BARE };

const struct reply_family reply_family_generic = {
    .name = "generic",
    .triggers = {{"<tool_call>", CALL},
                 {"```json", FENCED, TRIGGER_IS_SOFT},
                 {"{", BARE, TRIGGER_KEEPS | TRIGGER_AT_START | TRIGGER_IS_SOFT}},
    .states =
        {
            [CALL] = {READ_CALL, {{"", END}}},
            [END] = {READ_MARK, {{"</tool_call>", TO_TEXT, WAY_CLOSES}}},
            [FENCED] = {READ_MARK, {{"{", FENCED_CALL, WAY_KEEPS}}},
            [FENCED_CALL] = {READ_CALL, {{"", FENCE_END}}},
            [FENCE_END] = {READ_MARK, {{"```", TO_TEXT, WAY_CLOSES}}},
            [BARE] = {READ_CALL, {{"", TO_TEXT}}},
        },
    .shapes = {{
        .trigger = "<tool_call>",
        .call = "<tool_call>\n{\"name\": \"$N\", \"arguments\": $A}\n</tool_call>",
        .between = "\n",
    }},
};
