/* The form of MiniMax M2:
 *
 *     <minimax:tool_call>
 *     <invoke name="get_weather">
 *     <parameter name="city">Paris</parameter>
 *     </invoke>
 *     </minimax:tool_call>
 *
 * with all calls in one block. Strings are as they are, other values JSON. Documented in the model's chat template. */
#include "reply/reply_internal.h"

enum { CALLS, NAME, PARAMETERS, KEY, VALUE };

const struct reply_family reply_family_minimax_m2 = {
    .name = "minimax-m2",
    .signs = {"<minimax:tool_call>"},
    .triggers = {{"<minimax:tool_call>", CALLS}},
    .states =
        {
            [CALLS] = {READ_MARK, {{"<invoke name=\"", NAME}, {"</minimax:tool_call>", TO_TEXT, WAY_CLOSES}}},
            [NAME] = {READ_NAME, {{"\">", PARAMETERS}}},
            [PARAMETERS] = {READ_MARK, {{"<parameter name=\"", KEY}, {"</invoke>", CALLS, WAY_ENDS | WAY_CLOSES}}},
            [KEY] = {READ_KEY, {{"\">", VALUE}}},
            [VALUE] = {READ_VALUE, {{"</parameter>", PARAMETERS, WAY_CLOSES}}},
        },
    .shapes = {{
        .trigger = "<minimax:tool_call>",
        .open = "<minimax:tool_call>\n",
        .close = "\n</minimax:tool_call>",
        .call = "<invoke name=\"$N\">\n$A</invoke>",
        .between = "\n",
        .parameter = "<parameter name=\"$K\">",
        .parameter_end = "</parameter>\n",
    }},
};
