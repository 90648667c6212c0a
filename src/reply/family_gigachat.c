/* The form of GigaChat 3.1: one call, a JSON object behind a mark.
 *
 *     <|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}
 *
 * Documented in the model's chat template. */
#include "reply/reply_internal.h"

enum { CALL };

const struct reply_family reply_family_gigachat = {
    .name = "gigachat",
    .signs = {"<|function_call|>"},
    .triggers = {{"<|function_call|>", CALL}},
    .states = {[CALL] = {READ_CALL, {{"", TO_TEXT}}}},
    .shapes = {{
        .trigger = "<|function_call|>",
        .call = "<|function_call|>{\"name\": \"$N\", \"arguments\": $A}",
    }},
};
