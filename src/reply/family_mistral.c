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
    .triggers = {{"[TOOL_CALLS]", OPEN}},
    .states =
        {
            [OPEN] = {READ_MARK, {{"[", LIST}, {"{", LIST, WAY_KEEPS}, {"", NAME}}},
            [NAME] = {READ_NAME, {{"[ARGS]", ARGS}, {"[CALL_ID]", ID}, {"{", ARGS, WAY_KEEPS}}},
            [ID] = {READ_ID, {{"[ARGS]", ARGS}}},
            [ARGS] = {READ_ARGS, {{"", END}}},
            [END] = {READ_MARK, {{"[TOOL_CALLS]", OPEN}, {"", TO_TEXT}}},
            [LIST] = {READ_CALL, {{"", LIST_NEXT}}},
            [LIST_NEXT] = {READ_MARK, {{",", LIST, WAY_CLOSES}, {"]", END, WAY_CLOSES}}},
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
