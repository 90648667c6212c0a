/* The form of Hy3:
 *
 *     <tool_calls:opensource>
 *     <tool_call:opensource>get_weather<tool_sep:opensource>
 *     <arg_key:opensource>city</arg_key:opensource>
 *     <arg_value:opensource>Paris</arg_value:opensource>
 *     </tool_call:opensource>
 *     </tool_calls:opensource>
 *
 * with all calls in one block. Strings are as they are, other values JSON. Documented in the model's chat template. */
#include "reply/reply_internal.h"

#define OPEN(s)  "<" s ":opensource>"
#define CLOSE(s) "</" s ":opensource>"

enum { CALLS, NAME, PARAMETERS, KEY, BEFORE_VALUE, VALUE };

const struct reply_family reply_family_hy3 = {
    .name = "hy3",
    .signs = {"':opensource'"},
    .triggers = {{OPEN("tool_calls"), CALLS}},
    .states =
        {
            [CALLS] = {READ_MARK, {{OPEN("tool_call"), NAME}, {CLOSE("tool_calls"), TO_TEXT, WAY_CLOSES}}},
            [NAME] = {READ_NAME, {{OPEN("tool_sep"), PARAMETERS}}},
            [PARAMETERS] = {READ_MARK, {{OPEN("arg_key"), KEY}, {CLOSE("tool_call"), CALLS, WAY_ENDS | WAY_CLOSES}}},
            [KEY] = {READ_KEY, {{CLOSE("arg_key"), BEFORE_VALUE}}},
            [BEFORE_VALUE] = {READ_MARK, {{OPEN("arg_value"), VALUE}}},
            [VALUE] = {READ_VALUE, {{CLOSE("arg_value"), PARAMETERS, WAY_CLOSES}}},
        },
    .shapes = {{
        .trigger = OPEN("tool_calls"),
        .open = OPEN("tool_calls") "\n",
        .close = CLOSE("tool_calls"),
        .call = OPEN("tool_call") "$N" OPEN("tool_sep") "\n$A" CLOSE("tool_call") "\n",
        .between = "",
        .parameter = OPEN("arg_key") "$K" CLOSE("arg_key") "\n" OPEN("arg_value"),
        .parameter_end = CLOSE("arg_value") "\n",
        .before = "",
    }},
};
