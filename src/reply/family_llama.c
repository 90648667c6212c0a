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

const struct reply_family reply_family_llama = {
    .name = "llama",
    .signs = {"<|start_header_id|>", "<|header_start|>", "<|python_tag|>"},
    .triggers = {{"{", JSON, AT_START},
                 {"[", LIST, AT_START & ~TRIGGER_KEEPS},
                 {"<|python_tag|>", TAG, TRIGGER_IS_SOFT},
                 {"<function=", NAME}},
    .states =
        {
            [JSON] = {READ_CALL, {{"", NEXT}}},
            [NEXT] = {READ_MARK, {{";", JSON, WAY_CLOSES}, {"{", JSON, WAY_KEEPS}, {"", TO_TEXT}}},
            [LIST] = {READ_MARK, {{"{", LIST_JSON, WAY_KEEPS}, {"", PYTHON}}},
            [LIST_JSON] = {READ_CALL, {{"", LIST_NEXT}}},
            [LIST_NEXT] = {READ_MARK, {{",", LIST, WAY_CLOSES}, {"]", TO_TEXT, WAY_CLOSES}}},
            [PYTHON] = {READ_NAME, {{"(", PYTHON_ARGS}}},
            [PYTHON_ARGS] = {READ_ARGS, {{"", LIST_NEXT}}, ARGS_CALL},
            [TAG] = {READ_MARK, {{"{", JSON, WAY_KEEPS}, {"[", LIST}, {"", BUILT_IN}}},
            [BUILT_IN] = {READ_NAME, {{".call(", BUILT_IN_ARGS}, {"(", BUILT_IN_ARGS}}},
            [BUILT_IN_ARGS] = {READ_ARGS, {{"", NEXT}}, ARGS_CALL},
            [NAME] = {READ_NAME, {{">", ARGS}}},
            [ARGS] = {READ_ARGS, {{"", FUNCTION_END}}},
            [FUNCTION_END] = {READ_MARK, {{"</function>", TO_TEXT, WAY_CLOSES}}},
        },
    .shapes = {{
        .trigger = "{\"name\": \"",
        .call = "{\"name\": \"$N\", \"parameters\": $A}",
    }},
};
