/* Harmony, the form of gpt-oss. An answer is a row of messages, each with a header:
 *
 *     <|channel|>analysis<|message|>Need the weather.<|end|>
 *     <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":
 *     "Paris"}<|call|>
 *
 * The recipient may stand before the channel, and the first header begins behind <|start|>assistant, which is the
 * prompt's. Analysis is reasoning; final, and commentary without a recipient, are content. Documented in the model's
 * chat template and in openai/harmony, docs/format.md. */
#include <string.h>

#include "reply/reply_internal.h"

enum { HEADER, ARGS, END };

const struct reply_family reply_family_gpt_oss = {
    .name = "gpt-oss",
    .signs = {"<|channel|>analysis"},
    .triggers = {{"<|channel|>", HEADER, TRIGGER_IS_SOFT | TRIGGER_ALWAYS | TRIGGER_IN_REASONING},
                 {"<|start|>", HEADER, TRIGGER_IS_SOFT | TRIGGER_ALWAYS | TRIGGER_IN_REASONING},
                 {"to=", HEADER, TRIGGER_IS_SOFT | TRIGGER_AT_START}},
    .states =
        {
            /* what a header may hold: reply_harmony_header says where it leads */
            [HEADER] = {READ_HEADER, {{"<|message|>", TO_TEXT}, {"<|constrain|>", TO_TEXT}}},
            [ARGS] = {READ_ARGS, {{"", END}}},
            [END] = {READ_MARK, {{"<|call|>", TO_TEXT, WAY_CLOSES}, {"<|end|>", TO_TEXT, WAY_CLOSES}, {"", TO_TEXT}}},
        },
    .shapes = {{
        .trigger = "<|channel|>commentary to=functions.",
        .call = "<|channel|>commentary to=functions.$N <|constrain|>json<|message|>$A<|call|>",
        .before = "<|start|>assistant",
        .content = "<|channel|>final<|message|>",
    }},
};

/* The recipient that the header names goes to the call's name. */
static bool read_recipient(struct reply_call *c, const char *header)
{
    const char *to = strstr(header, "to=");
    size_t n = to ? strcspn(to + 3, " <\n\t") : 0;
    bytes_clear(&c->name);
    bytes_put(&c->name, to ? to + 3 : "", n);
    return n > 0;
}

void reply_harmony_header(struct reply *r)
{
    struct reply_call *c = &r->call;
    const char *header = bytes_text(&c->raw);
    bool is_analysis = strstr(header, "<|channel|>analysis") != NULL;
    if (read_recipient(c, header)) {
        r->part = REPLY_CONTENT; /* where what is no call goes */
        if (r->tools) {
            c->is_soft = false;
            if (reply_call_know_tool(r))
                c->state = &r->style.family->states[ARGS];
        } else {
            reply_call_fail(r, NULL);
        }
        return;
    }
    reply_call_commit(r);
    c->state = NULL;
    reply_go_on(r, is_analysis ? REPLY_REASONING : REPLY_CONTENT);
}
