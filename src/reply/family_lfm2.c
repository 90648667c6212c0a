/* The form of LFM2 and LFM2.5:
 *
 *     <|tool_call_start|>[get_weather(city="Paris"), get_time()]<|tool_call_end|>
 *
 * calls as Python writes them. Documented in the models' cards and chat templates. */
#include "reply/reply_internal.h"

enum { OPEN, NAME, ARGS, NEXT, END };

const struct reply_family reply_family_lfm2 = {
    .name = "lfm2",
    .signs = {"<|tool_call_start|>", "List of tools: [", "<|tool_list_start|>"}, /* older templates show no call */
    .triggers = {{"<|tool_call_start|>", OPEN}},
    .states =
        {
            [OPEN] = {READ_MARK, {{"[", NAME}}},
            [NAME] = {READ_NAME, {{"(", ARGS}}},
            [ARGS] = {READ_ARGS, {{"", NEXT}}, ARGS_CALL},
            [NEXT] = {READ_MARK, {{",", NAME, WAY_CLOSES}, {"]", END, WAY_CLOSES}}},
            [END] = {READ_MARK, {{"<|tool_call_end|>", TO_TEXT, WAY_CLOSES}}},
        },
    .shapes = {{
        .trigger = "<|tool_call_start|>",
        .open = "<|tool_call_start|>[",
        .close = "]<|tool_call_end|>",
        .call = "$N($A)",
        .between = ", ",
        .notation = ARGS_CALL,
    }},
};
