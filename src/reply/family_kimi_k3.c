/* The form of Kimi K3:
 *
 *     <|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city"
 * type="string"<|sep|> Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>
 *
 * without line breaks, with all calls in one block. What is not of type string is JSON. A call may have all its
 * arguments in one JSON object instead. In attributes & is &amp; and " is &quot;. Documented in the model's chat
 * template. */
#include "reply/reply_internal.h"

#define SEP      "<|sep|>"
#define OPEN(s)  "<|open|>" s
#define CLOSE(s) "<|close|>" s SEP

enum { CALLS, NAME, INDEX, PARAMETERS, KEY, STRING, OTHER, ARGS, ARGS_END, CALL_END };

const struct reply_family reply_family_kimi_k3 = {
    .name = "kimi-k3",
    .signs = {"<|open|>"},
    .has_attributes = true,
    .triggers = {{OPEN("tools") SEP, CALLS}},
    .states =
        {
            [CALLS] = {READ_MARK, {{OPEN("call tool=\""), NAME}, {CLOSE("tools"), TO_TEXT, WAY_CLOSES}}},
            [NAME] = {READ_NAME, {{"\" index=\"", INDEX}, {"\"" SEP, PARAMETERS}}},
            [INDEX] = {READ_KEY, {{"\"" SEP, PARAMETERS}}}, /* nobody asks for it */
            [PARAMETERS] = {READ_MARK,
                            {{OPEN("argument key=\""), KEY},
                             {OPEN("json type=\"object\"") SEP, ARGS},
                             {CLOSE("call"), CALLS, WAY_ENDS | WAY_CLOSES}}},
            [KEY] = {READ_KEY,
                     {{"\" type=\"string\"" SEP, STRING},
                      {"\" type=\"number\"" SEP, OTHER},
                      {"\" type=\"boolean\"" SEP, OTHER},
                      {"\" type=\"object\"" SEP, OTHER},
                      {"\" type=\"array\"" SEP, OTHER},
                      {"\" type=\"null\"" SEP, OTHER}}},
            [STRING] = {READ_STRING, {{CLOSE("argument"), PARAMETERS, WAY_CLOSES}}},
            [OTHER] = {READ_OTHER, {{CLOSE("argument"), PARAMETERS, WAY_CLOSES}}},
            [ARGS] = {READ_ARGS, {{"", ARGS_END}}},
            [ARGS_END] = {READ_MARK, {{CLOSE("json"), CALL_END, WAY_CLOSES}}},
            [CALL_END] = {READ_MARK, {{CLOSE("call"), CALLS, WAY_CLOSES}}},
        },
    .shapes = {{
        .trigger = OPEN("tools") SEP,
        .open = OPEN("tools") SEP,
        .close = CLOSE("tools"),
        .call = OPEN("call tool=\"$N\" index=\"$I\"") SEP "$A" CLOSE("call"),
        .between = "",
        .parameter = OPEN("argument key=\"$K\" type=\"$T\"") SEP,
        .parameter_end = CLOSE("argument"),
        .before = "",
        .content = OPEN("response") SEP,
    }},
};
