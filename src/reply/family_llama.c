/* The forms of Llama 3.1 to 4:
 *
 *     {"name": "get_weather", "parameters": {"city": "Paris"}}      the whole answer, or behind <|python_tag|>
 *     <function=get_weather>{"city": "Paris"}</function>            also functionary's
 *     [get_weather(city="Paris"), get_time()]                       Llama 3.2 and 4 with a system prompt that asks for
 * it
 *     <|python_tag|>brave_search.call(query="Paris")                built-in tools
 *
 * Several JSON objects may follow each other with ; between them, or in an array. Documented in the models' chat
 * templates and in the prompt formats of meta-llama/llama-models. */
#include "reply/reply_internal.h"

enum {
    JSON,
    NEXT,
    LIST,
    LIST_JSON,
    LIST_NEXT,
    PYTHON,
    PYTHON_ARGS,
    TAG,
    BUILT_IN,
    BUILT_IN_ARGS,
    NAME,
    ARGS,
    FUNCTION_END
};

enum { AT_START = TRIGGER_KEEPS | TRIGGER_AT_START | TRIGGER_IS_SOFT };

const struct reply_family reply_family_llama =
    {
        .name = "llama",
        .signs = {"<|start_header_id|>", "<|header_start|>", "<|python_tag|>"},
        .triggers = {{"{", JSON, AT_START},
                     {"[", LIST, AT_START & ~TRIGGER_KEEPS},
                     {"<|python_tag|>", TAG, TRIGGER_IS_SOFT},
                     {"<function=", NAME, 0}},
        .states =
            {
                [JSON] = {READ_CALL, true, 0, {{"", NEXT, 0}}},
                [NEXT] = {READ_MARK, true, 0, {{";", JSON, WAY_CLOSES}, {"{", JSON, WAY_KEEPS}, {"", TO_TEXT, 0}}},
                [LIST] = {READ_MARK, true, 0, {{"{", LIST_JSON, WAY_KEEPS}, {"", PYTHON, 0}}},
                [LIST_JSON] = {READ_CALL, true, 0, {{"", LIST_NEXT, 0}}},
                [LIST_NEXT] = {READ_MARK, true, 0, {{",", LIST, WAY_CLOSES}, {"]", TO_TEXT, WAY_CLOSES}}},
                [PYTHON] = {READ_NAME, true, 0, {{"(", PYTHON_ARGS, 0}}},
                [PYTHON_ARGS] = {READ_ARGS, false, ARGS_CALL, {{"", LIST_NEXT, 0}}},
                [TAG] = {READ_MARK, true, 0, {{"{", JSON, WAY_KEEPS}, {"[", LIST, 0}, {"", BUILT_IN, 0}}},
                [BUILT_IN] = {READ_NAME, false, 0, {{".call(", BUILT_IN_ARGS, 0}, {"(", BUILT_IN_ARGS, 0}}},
                [BUILT_IN_ARGS] = {READ_ARGS, false, ARGS_CALL, {{"", NEXT, 0}}},
                [NAME] = {READ_NAME, false, 0, {{">", ARGS, 0}}},
                [ARGS] = {READ_ARGS, true, ARGS_JSON, {{"", FUNCTION_END, 0}}},
                [FUNCTION_END] = {READ_MARK, true, 0, {{"</function>", TO_TEXT, WAY_CLOSES}}},
            },
        .shapes = {{
            .trigger = "{\"name\": \"",
            .call = "{\"name\": \"$N\", \"parameters\": $A}",
        }},
};
