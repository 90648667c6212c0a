/* The form of GLM 4.5, 4.6, 4.7, Ling 3 and Laguna:
 *
 *     <tool_call>get_weather
 *     <arg_key>city</arg_key>
 *     <arg_value>Paris</arg_value>
 *     </tool_call>
 *
 * without the line breaks since GLM 4.7, and in Laguna whatever its templates show. Strings are as they are, other
 * values JSON. Documented in the models' chat templates. */
#include "reply/reply_internal.h"

#define WITHOUT_BREAKS(template_sign)                                                                                  \
    {                                                                                                                  \
        .sign = template_sign, .trigger = "<tool_call>", .call = "<tool_call>$N$A</tool_call>", .between = "",         \
        .parameter = "<arg_key>$K</arg_key><arg_value>", .parameter_end = "</arg_value>"                               \
    }

enum { NAME, PARAMETERS, KEY, BEFORE_VALUE, VALUE };

const struct reply_family reply_family_glm4 = {
    .name = "glm4",
    .signs = {"<arg_key>"},
    .triggers = {{"<tool_call>", NAME}},
    .states =
        {
            [NAME] = {READ_NAME,
                      {{"<arg_key>", KEY}, {"\n", PARAMETERS}, {"</tool_call>", TO_TEXT, WAY_ENDS | WAY_CLOSES}}},
            [PARAMETERS] = {READ_MARK, {{"<arg_key>", KEY}, {"</tool_call>", TO_TEXT, WAY_ENDS | WAY_CLOSES}}},
            [KEY] = {READ_KEY, {{"</arg_key>", BEFORE_VALUE}}},
            [BEFORE_VALUE] = {READ_MARK, {{"<arg_value>", VALUE}}},
            [VALUE] = {READ_VALUE, {{"</arg_value>", PARAMETERS, WAY_CLOSES}}},
        },
    .shapes =
        {
            WITHOUT_BREAKS("<tool_call>{function-name}<arg_key>"),
            WITHOUT_BREAKS("laguna_glm_thinking"),
            {
                .trigger = "<tool_call>",
                .call = "<tool_call>$N\n$A</tool_call>",
                .between = "\n",
                .parameter = "<arg_key>$K</arg_key>\n<arg_value>",
                .parameter_end = "</arg_value>\n",
            },
        },
};
