/* The form of Solar Open:
 *
 *     <|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris"}
 *     <|tool_call:end|><|calls|>
 *
 * without the line break, an id of ten letters and digits in front of each name. Reasoning, content and calls are
 * messages of their own. Documented in the model's chat template. */
#include "reply/reply_internal.h"

enum { CALLS, ID, NAME, ARGS, END };

const struct reply_family reply_family_solar = {
    .name = "solar",
    .signs = {"<|tool_call:begin|>"},
    .triggers = {{"<|tool_calls|>", CALLS}},
    .states =
        {
            [CALLS] = {READ_MARK, {{"<|tool_call:begin|>", ID}, {"<|calls|>", TO_TEXT, WAY_CLOSES}}},
            [ID] = {READ_ID, {{"<|tool_call:name|>", NAME}}},
            [NAME] = {READ_NAME, {{"<|tool_call:args|>", ARGS}}},
            [ARGS] = {READ_ARGS, {{"", END}}},
            [END] = {READ_MARK, {{"<|tool_call:end|>", CALLS, WAY_CLOSES}}},
        },
    .shapes = {{
        .trigger = "<|tool_calls|>",
        .open = "<|tool_calls|>",
        .close = "<|calls|>",
        .call = "<|tool_call:begin|>$R0<|tool_call:name|>$N<|tool_call:args|>$A<|tool_call:end|>",
        .between = "",
        .before = "<|begin|>assistant",
        .content = "<|content|>",
    }},
};
