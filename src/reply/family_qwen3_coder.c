/* The form of Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5 and Seed-OSS (with its own outer mark):
 *
 *     <tool_call>
 *     <function=get_weather>
 *     <parameter=city>
 *     Paris
 *     </parameter>
 *     </function>
 *     </tool_call>
 *
 * A line break on each side of a value belongs to the marks. Objects and arrays are JSON, and other values as Python
 * prints them. Documented in the models' chat templates. The models tend to leave the outer mark out. */
#include "reply/reply_internal.h"

enum { OPEN, NAME, PARAMETERS, KEY, VALUE, END };

const struct reply_family reply_family_qwen3_coder = {
    .name = "qwen3-coder",
    .signs = {"<parameter="},
    .triggers = {{"<tool_call>", OPEN}, {"<seed:tool_call>", OPEN}, {"<function=", NAME}},
    .states =
        {
            [OPEN] = {READ_MARK, {{"<function=", NAME}}},
            [NAME] = {READ_NAME, {{">", PARAMETERS}}},
            [PARAMETERS] = {READ_MARK,
                            {{"<parameter=", KEY},
                             {"</function>", END, WAY_ENDS | WAY_CLOSES},
                             {"</tool_call>", TO_TEXT, WAY_ENDS | WAY_CLOSES},
                             {"</seed:tool_call>", TO_TEXT, WAY_ENDS | WAY_CLOSES}}},
            [KEY] = {READ_KEY, {{">\n", VALUE}, {">", VALUE}}},
            [VALUE] = {READ_VALUE,
                       {{"\n</parameter>", PARAMETERS, WAY_CLOSES}, {"</parameter>", PARAMETERS, WAY_CLOSES}}},
            [END] = {READ_MARK,
                     {{"</tool_call>", TO_TEXT, WAY_CLOSES},
                      {"</seed:tool_call>", TO_TEXT, WAY_CLOSES},
                      {"<function=", NAME},
                      {"", TO_TEXT}}},
        },
    .shapes =
        {
            {
                .sign = "<seed:tool_call>",
                .trigger = "<seed:tool_call>",
                .call = "<seed:tool_call>\n<function=$N>\n$A</function>\n</seed:tool_call>",
                .between = "\n",
                .parameter = "<parameter=$K>",
                .parameter_end = "</parameter>\n",
            },
            {
                .trigger = "<tool_call>",
                .call = "<tool_call>\n<function=$N>\n$A</function>\n</tool_call>",
                .between = "\n",
                .parameter = "<parameter=$K>\n",
                .parameter_end = "\n</parameter>\n",
            },
        },
};
