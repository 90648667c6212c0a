/* DeepSeek's forms. | stands for U+FF5C and _ for U+2581 here.
 *
 * V3 and R1:  <|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>get_weather
 *             ```json
 *             {"city": "Paris"}
 *             ```<|tool_call_end|><|tool_calls_end|>
 * V3.1:       <|tool_calls_begin|><|tool_call_begin|>get_weather<|tool_sep|>{"city": "Paris"}<|tool_call_end|>...
 * V3.2, V4:   <|DSML|function_calls>
 *             <|DSML|invoke name="get_weather">
 *             <|DSML|parameter name="city" string="true">Paris</|DSML|parameter>
 *             </|DSML|invoke>
 *             </|DSML|function_calls>            in V4 tool_calls; string="false": the value is JSON
 *
 * Documented in the models' chat templates. */
#include "reply/reply_internal.h"

#define BAR         "\357\275\234"
#define LOW         "\342\226\201"
#define MARK(s)     "<" BAR s BAR ">"
#define CALLS_BEGIN MARK("tool" LOW "calls" LOW "begin")
#define CALLS_END   MARK("tool" LOW "calls" LOW "end")
#define CALL_BEGIN  MARK("tool" LOW "call" LOW "begin")
#define CALL_END    MARK("tool" LOW "call" LOW "end")
#define SEP         MARK("tool" LOW "sep")
#define DSML        BAR "DSML" BAR

enum { CALLS, NAME, AFTER_NAME, NAME_BEHIND, FENCE, ARGS, END, END_OF_CALL };

const struct reply_family reply_family_deepseek = {
    .name = "deepseek",
    .signs = {CALLS_BEGIN},
    .triggers = {{CALLS_BEGIN, CALLS}, {CALL_BEGIN, NAME}},
    .states =
        {
            [CALLS] = {READ_MARK, {{CALL_BEGIN, NAME}, {CALLS_END, TO_TEXT, WAY_CLOSES}}},
            [NAME] = {READ_NAME, {{SEP, AFTER_NAME}}},
            [AFTER_NAME] = {READ_MARK,
                            {{"{", ARGS, WAY_KEEPS}, {CALL_END, CALLS, WAY_ENDS | WAY_CLOSES}, {"", NAME_BEHIND}}},
            [NAME_BEHIND] = {READ_NAME, {{"\n", FENCE}}},
            [FENCE] = {READ_MARK, {{"```json", ARGS}, {"{", ARGS, WAY_KEEPS}}},
            [ARGS] = {READ_ARGS, {{"", END}}},
            [END] = {READ_MARK, {{CALL_END, CALLS, WAY_CLOSES}, {"```", END_OF_CALL, WAY_CLOSES}}},
            [END_OF_CALL] = {READ_MARK, {{CALL_END, CALLS, WAY_CLOSES}}},
        },
    .shapes =
        {
            {
                .sign = "```json",
                .trigger = CALLS_BEGIN,
                .open = CALLS_BEGIN,
                .close = CALLS_END,
                .call = CALL_BEGIN "function" SEP "$N\n```json\n$A\n```" CALL_END,
                .between = "\n",
            },
            {
                .trigger = CALLS_BEGIN,
                .open = CALLS_BEGIN,
                .close = CALLS_END,
                .call = CALL_BEGIN "$N" SEP "$A" CALL_END,
                .between = "",
            },
        },
};

enum { DSML_CALLS, DSML_NAME, DSML_PARAMETERS, DSML_KEY, DSML_STRING, DSML_OTHER, DSML_VALUE };

const struct reply_family reply_family_deepseek_dsml = {
    .name = "deepseek-dsml",
    .signs = {BAR "DSML" BAR},
    .triggers = {{"<" DSML "function_calls>", DSML_CALLS}, {"<" DSML "tool_calls>", DSML_CALLS}},
    .states =
        {
            [DSML_CALLS] = {READ_MARK,
                            {{"<" DSML "invoke name=\"", DSML_NAME},
                             {"</" DSML "function_calls>", TO_TEXT, WAY_CLOSES},
                             {"</" DSML "tool_calls>", TO_TEXT, WAY_CLOSES}}},
            [DSML_NAME] = {READ_NAME, {{"\">", DSML_PARAMETERS}}},
            [DSML_PARAMETERS] = {READ_MARK,
                                 {{"<" DSML "parameter name=\"", DSML_KEY},
                                  {"</" DSML "invoke>", DSML_CALLS, WAY_ENDS | WAY_CLOSES}}},
            [DSML_KEY] = {READ_KEY,
                          {{"\" string=\"true\">", DSML_STRING},
                           {"\" string=\"false\">", DSML_OTHER},
                           {"\">", DSML_VALUE}}},
            [DSML_STRING] = {READ_STRING, {{"</" DSML "parameter>", DSML_PARAMETERS, WAY_CLOSES}}},
            [DSML_OTHER] = {READ_OTHER, {{"</" DSML "parameter>", DSML_PARAMETERS, WAY_CLOSES}}},
            [DSML_VALUE] = {READ_VALUE, {{"</" DSML "parameter>", DSML_PARAMETERS, WAY_CLOSES}}},
        },
    .shapes =
        {
            {
                .sign = "tool_calls>",
                .trigger = "<" DSML "tool_calls>",
                .open = "<" DSML "tool_calls>\n",
                .close = "\n</" DSML "tool_calls>",
                .call = "<" DSML "invoke name=\"$N\">\n$A</" DSML "invoke>",
                .between = "\n",
                .parameter = "<" DSML "parameter name=\"$K\" string=\"$S\">",
                .parameter_end = "</" DSML "parameter>\n",
            },
            {
                .trigger = "<" DSML "function_calls>",
                .open = "<" DSML "function_calls>\n",
                .close = "\n</" DSML "function_calls>",
                .call = "<" DSML "invoke name=\"$N\">\n$A</" DSML "invoke>",
                .between = "\n",
                .parameter = "<" DSML "parameter name=\"$K\" string=\"$S\">",
                .parameter_end = "</" DSML "parameter>\n",
            },
        },
};
