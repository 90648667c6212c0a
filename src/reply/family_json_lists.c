/* A list of JSON objects between marks:
 *
 *     Nemotron Nano 2:    <TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>
 *     Apriel, MiniMax M1: <tool_calls>[...]</tool_calls>, or without the brackets, one object a line
 *     Command R7B, A:     <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {...}}]
 *                         <|END_ACTION|>
 *
 * Documented in the models' chat templates. */
#include "reply/reply_internal.h"

enum { OPEN, CALL, NEXT, END };

const struct reply_family reply_family_json_lists = {
    .name = "json-lists",
    .signs = {"<TOOLCALL>", "<tool_calls>", "<|START_ACTION|>"},
    .triggers = {{"<TOOLCALL>", OPEN}, {"<tool_calls>", OPEN}, {"<|START_ACTION|>", OPEN}},
    .states =
        {
            [OPEN] = {READ_MARK, {{"[", CALL}, {"{", CALL, WAY_KEEPS}}},
            [CALL] = {READ_CALL, {{"", NEXT}}},
            [NEXT] = {READ_MARK, {{",", CALL, WAY_CLOSES}, {"{", CALL, WAY_KEEPS}, {"]", END, WAY_CLOSES}, {"", END}}},
            [END] = {READ_MARK,
                     {{"</TOOLCALL>", TO_TEXT, WAY_CLOSES},
                      {"</tool_calls>", TO_TEXT, WAY_CLOSES},
                      {"<|END_ACTION|>", TO_TEXT, WAY_CLOSES}}},
        },
    .shapes =
        {
            {
                .sign = "<TOOLCALL>",
                .trigger = "<TOOLCALL>",
                .open = "<TOOLCALL>[",
                .close = "]</TOOLCALL>",
                .call = "{\"name\": \"$N\", \"arguments\": $A}",
                .between = ", ",
            },
            {
                .sign = "<tool_calls>[",
                .trigger = "<tool_calls>",
                .open = "<tool_calls>[",
                .close = "]</tool_calls>",
                .call = "{\"name\": \"$N\", \"arguments\": $A}",
                .between = ", ",
            },
            {
                .sign = "<tool_calls>",
                .trigger = "<tool_calls>",
                .open = "<tool_calls>\n",
                .close = "\n</tool_calls>",
                .call = "{\"name\": \"$N\", \"arguments\": $A}",
                .between = "\n",
            },
            {
                .trigger = "<|START_ACTION|>",
                .open = "<|START_ACTION|>[\n",
                .close = "\n]<|END_ACTION|>",
                .call = "    {\"tool_call_id\": \"$I\", \"tool_name\": \"$N\", \"parameters\": $A}",
                .between = ",\n",
            },
        },
};
