/* The form of MiniMax M3, in which all marks have a token before them, NS:
 *
 *     NS<tool_call>
 *     NS<invoke name="get_weather">NS<city>ParisNS</city>NS<tags>NS<item>aNS</item>NS</tags>NS</invoke>
 *     NS</tool_call>
 *
 * with all calls in one block. Strings are as they are, objects and arrays elements in elements, other values JSON.
 * Documented in the model's chat template. */
#include "reply/reply_internal.h"

#define NS "]<]minimax[>["

enum { CALLS, NAME, PARAMETERS, KEY, VALUE, VALUE_END };

const struct reply_family reply_family_minimax_m3 = {
    .name = "minimax-m3",
    .signs = {NS},
    .triggers = {{NS "<tool_call>", CALLS}},
    .states =
        {
            [CALLS] = {READ_MARK, {{NS "<invoke name=\"", NAME}, {NS "</tool_call>", TO_TEXT, WAY_CLOSES}}},
            [NAME] = {READ_NAME, {{"\">", PARAMETERS}}},
            [PARAMETERS] = {READ_MARK, {{NS "<", KEY}, {NS "</invoke>", CALLS, WAY_ENDS | WAY_CLOSES}}},
            [KEY] = {READ_KEY, {{">", VALUE}}},
            [VALUE] = {READ_VALUE, {{NS "</", VALUE_END, WAY_CLOSES}, {NS "<", VALUE, WAY_NESTS}}},
            [VALUE_END] = {READ_KEY, {{">", PARAMETERS, WAY_CLOSES}}},
        },
    .shapes = {{
        .trigger = NS "<tool_call>",
        .open = NS "<tool_call>\n",
        .close = "\n" NS "</tool_call>",
        .call = NS "<invoke name=\"$N\">$A" NS "</invoke>",
        .between = "\n",
        .parameter = NS "<$K>",
        .parameter_end = NS "</",
        .parameter_close = "$K>",
    }},
};
