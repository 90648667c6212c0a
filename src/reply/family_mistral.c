/* Mistral's forms:
 *
 * tokenizers v3 (Mistral Nemo, Mixtral):  [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id":
 *                                         "a1b2c3d4e"}]
 * v11 (Mistral Small 3.2):                [TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Paris"}
 * v13 (Devstral, Ministral 3):            [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}
 *
 * The newer ones repeat it for each call. Documented in the models' chat templates and in mistral-common. */
#include "reply/reply_internal.h"

enum { OPEN, NAME, ID, ARGS, END, LIST, LIST_NEXT };

const struct reply_family reply_family_mistral = {
    .name = "mistral",
    .signs = {"[TOOL_CALLS]"},
    .triggers = {{"[TOOL_CALLS]", OPEN, 0}},
    .states =
        {
            [OPEN] = {READ_MARK, true, 0, {{"[", LIST, 0}, {"{", LIST, WAY_KEEPS}, {"", NAME, 0}}},
            [NAME] = {READ_NAME, true, 0, {{"[ARGS]", ARGS, 0}, {"[CALL_ID]", ID, 0}, {"{", ARGS, WAY_KEEPS}}},
            [ID] = {READ_ID, false, 0, {{"[ARGS]", ARGS, 0}}},
            [ARGS] = {READ_ARGS, true, ARGS_JSON, {{"", END, 0}}},
            [END] = {READ_MARK, true, 0, {{"[TOOL_CALLS]", OPEN, 0}, {"", TO_TEXT, 0}}},
            [LIST] = {READ_CALL, true, 0, {{"", LIST_NEXT, 0}}},
            [LIST_NEXT] = {READ_MARK, true, 0, {{",", LIST, WAY_CLOSES}, {"]", END, WAY_CLOSES}}},
        },
    .shapes =
        {
            {
                .sign = "[CALL_ID]",
                .trigger = "[TOOL_CALLS]",
                .call = "[TOOL_CALLS]$N[CALL_ID]$R[ARGS]$A",
                .between = "",
            },
            {
                .sign = "[ARGS]",
                .trigger = "[TOOL_CALLS]",
                .call = "[TOOL_CALLS]$N[ARGS]$A",
                .between = "",
            },
            {
                .trigger = "[TOOL_CALLS]",
                .open = "[TOOL_CALLS][",
                .close = "]",
                .call = "{\"name\": \"$N\", \"arguments\": $A, \"id\": \"$R\"}",
                .between = ", ",
            },
        },
};
