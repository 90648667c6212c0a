/* The form of LFM2 and LFM2.5:
 *
 *     <|tool_call_start|>[get_weather(city="Paris"), get_time()]<|tool_call_end|>
 *
 * calls as Python writes them. Documented in the models' cards and chat templates. */
#include "reply/reply_internal.h"

enum { OPEN, NAME, ARGS, NEXT, END };

const struct reply_family reply_family_lfm2 = {
    .name = "lfm2",
    .signs = {"<|tool_call_start|>"},
    .triggers = {{"<|tool_call_start|>", OPEN, 0}},
    .states =
        {
            [OPEN] = {READ_MARK, true, 0, {{"[", NAME, 0}}},
            [NAME] = {READ_NAME, true, 0, {{"(", ARGS, 0}}},
            [ARGS] = {READ_ARGS, false, ARGS_CALL, {{"", NEXT, 0}}},
            [NEXT] = {READ_MARK, true, 0, {{",", NAME, WAY_CLOSES}, {"]", END, WAY_CLOSES}}},
            [END] = {READ_MARK, true, 0, {{"<|tool_call_end|>", TO_TEXT, WAY_CLOSES}}},
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
