/* The form of Gemma 4:
 *
 *     <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>
 *
 * with a notation of its own (arguments.h), one block for each call. Documented in the models' chat templates and in
 * ai.google.dev/gemma/docs/capabilities/text/function-calling-gemma4. */
#include "reply/reply_internal.h"

enum { OPEN, NAME, ARGS, END };

const struct reply_family reply_family_gemma4 = {
    .name = "gemma4",
    .signs = {"<|tool_call>call:"},
    .triggers = {{"<|tool_call>", OPEN}},
    .states =
        {
            [OPEN] = {READ_MARK, {{"call:", NAME}}},
            [NAME] = {READ_NAME, {{"{", ARGS}}},
            [ARGS] = {READ_ARGS, {{"", END}}, ARGS_GEMMA},
            [END] = {READ_MARK, {{"<tool_call|>", TO_TEXT, WAY_CLOSES}}},
        },
    .shapes = {{
        .trigger = "<|tool_call>",
        .call = "<|tool_call>call:$N{$A}<tool_call|>",
        .between = "",
        .notation = ARGS_GEMMA,
    }},
};
