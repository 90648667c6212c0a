/* The form of Kimi K2 and Kimi K2 Thinking:
 *
 *     <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city":
 *     "Paris"}<|tool_call_end|><|tool_calls_section_end|>
 *
 * functions.NAME:N is the call's id as well, N counting the calls of the conversation. A section may begin within
 * reasoning, which it ends. Documented in docs/tool_call_guidance.md of the models' repositories. */
#include "reply/reply_internal.h"

enum { CALLS, NAME, ARGS, END };

const struct reply_family reply_family_kimi_k2 = {
    .name = "kimi-k2",
    .signs = {"<|tool_calls_section_begin|>"},
    .has_id_in_name = true,
    .triggers = {{"<|tool_calls_section_begin|>", CALLS, TRIGGER_IN_REASONING}, {"<|tool_call_begin|>", NAME}},
    .states =
        {
            [CALLS] = {READ_MARK, {{"<|tool_call_begin|>", NAME}, {"<|tool_calls_section_end|>", TO_TEXT, WAY_CLOSES}}},
            [NAME] = {READ_NAME, {{"<|tool_call_argument_begin|>", ARGS}}},
            [ARGS] = {READ_ARGS, {{"", END}}},
            [END] = {READ_MARK, {{"<|tool_call_end|>", CALLS, WAY_CLOSES}}},
        },
    .shapes = {{
        .trigger = "<|tool_calls_section_begin|>",
        .open = "<|tool_calls_section_begin|>",
        .close = "<|tool_calls_section_end|>",
        .call = "<|tool_call_begin|>functions.$N:$I<|tool_call_argument_begin|>$A<|tool_call_end|>",
        .between = "",
    }},
};
