/* Hermes' form, of Hermes 2 and 3, Qwen 2.5, QwQ, Qwen3 and its MoEs, MiMo, SmolLM3, Granite 4 and many more:
 *
 *     <tool_call>
 *     {"name": "get_weather", "arguments": {"city": "Paris"}}
 *     </tool_call>
 *
 * one block for each call. Documented in the models' chat templates and in NousResearch/Hermes-Function-Calling. */
#include "reply/reply_internal.h"

enum { CALL, END };

const struct reply_family reply_family_hermes = {
    .name = "hermes",
    .signs = {"<tool_call>"},
    .triggers = {{"<tool_call>", CALL}},
    .states =
        {
            [CALL] = {READ_CALL, {{"", END}}},
            [END] = {READ_MARK, {{"</tool_call>", TO_TEXT, WAY_CLOSES}}},
        },
    .shapes = {{
        .trigger = "<tool_call>",
        .call = "<tool_call>\n{\"name\": \"$N\", \"arguments\": $A}\n</tool_call>",
        .between = "\n",
    }},
};
