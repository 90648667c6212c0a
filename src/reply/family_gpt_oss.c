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
            [HEADER] = {READ_HEADER, false, 0, {{"<|message|>", TO_TEXT, 0}, {"<|constrain|>", TO_TEXT, 0}}},
            [ARGS] = {READ_ARGS, true, ARGS_JSON, {{"", END, 0}}},
            [END] = {READ_MARK,
                     true,
                     0,
                     {{"<|call|>", TO_TEXT, WAY_CLOSES}, {"<|end|>", TO_TEXT, WAY_CLOSES}, {"", TO_TEXT, 0}}},
        },
    .shapes = {{
        .trigger = "<|channel|>commentary to=functions.",
        .call = "<|channel|>commentary to=functions.$N <|constrain|>json<|message|>$A<|call|>",
        .before = "<|start|>assistant",
    }},
};

/* The recipient that the header names goes to the call's name. */
static bool read_recipient(struct call *c, const char *header)
{
    const char *to = strstr(header, "to=");
    size_t n = to ? strcspn(to + 3, " <\n\t") : 0;
    reply_bytes_clear(&c->name);
    reply_bytes_add(&c->name, to ? to + 3 : "", n);
    return n > 0;
}

void harmony_read_header(struct reply *r)
{
    struct call *c = &r->call;
    const char *header = reply_bytes_text(&c->raw);
    bool is_analysis = strstr(header, "<|channel|>analysis") != NULL;
    if (read_recipient(c, header)) {
        r->part = REPLY_CONTENT; /* where what is no call goes */
        if (r->tools) {
            c->is_soft = false;
            if (call_know_tool(r))
                c->state = &r->style.family->states[ARGS];
        } else {
            call_fail(r, NULL);
        }
        return;
    }
    call_commit(r);
    c->state = NULL;
    reply_go_on(r, is_analysis ? REPLY_REASONING : REPLY_CONTENT);
}
