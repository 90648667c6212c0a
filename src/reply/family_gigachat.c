/* The forms of GigaChat: one call, a JSON object behind a mark. That of 3.1 is a token of its own; in 3.0 the call is a
 * message, so that the mark begins with the token that also ends answers without a call.
 *
 *     <|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}
 *
 *     <|message_sep|>
 *
 *     function call<|role_sep|>
 *     {"name": "get_weather", "arguments": {"city": "Paris"}}
 *
 * Documented in the models' chat templates. */
#include "reply/reply_internal.h"

#define MESSAGE "<|message_sep|>\n\nfunction call<|role_sep|>\n"

enum { CALL };

const struct reply_family reply_family_gigachat = {
    .name = "gigachat",
    .signs = {"<|function_call|>", "<|role_sep|>"},
    .triggers = {{"<|function_call|>", CALL}, {MESSAGE, CALL}},
    .states = {[CALL] = {READ_CALL, {{"", TO_TEXT}}}},
    .shapes = {{
                   .sign = "<|function_call|>",
                   .trigger = "<|function_call|>",
                   .call = "<|function_call|>{\"name\": \"$N\", \"arguments\": $A}",
               },
               {
                   .trigger = MESSAGE,
                   .call = MESSAGE "{\"name\": \"$N\", \"arguments\": $A}",
               }},
};
