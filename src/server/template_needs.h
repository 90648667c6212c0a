/* What a model's chat template can't take, found out by probes when the model is loaded, and conversations made fit for
 * it: what the client sent is not at fault. */
#ifndef SERVER_TEMPLATE_NEEDS_H
#define SERVER_TEMPLATE_NEEDS_H

#include "server/request.h"

struct template_needs {
    bool no_system;      /* no system message: the user's first message begins with it (Gemma 2) */
    bool one_user;       /* no messages of the user in a row: they become one (Mistral) */
    bool user_in_result; /* no message of the user behind results of tools: the last result ends with it (Mistral) */
    bool text_arguments; /* calls' arguments are a text of JSON, not an object (DeepSeek R1) */
    bool short_ids;      /* calls' ids have nine letters and digits (Mistral) */
    bool null_content;   /* messages with calls have content null: a text becomes a message before (DeepSeek R1) */
    const char *reasoning_field;   /* how a message's reasoning is called; NULL: reasoning_content */
    bool text_in_reasoning;        /* a text beside reasoning and calls is the reasoning's end (gpt-oss) */
    bool one_call;                 /* messages have one call at most, and its result follows (Llama 3 and 4) */
    const char *efforts[N_EFFORT]; /* what reasoning_effort is then; NULL: as the request has it (Hy3 has no medium,
                                      calls none no_think and means it where nothing is said; DeepSeek V4 knows max) */
};

/* Takes some milliseconds. Of what a template can't take in any form nothing is said. */
struct template_needs template_needs_find(const moebius_template *tmpl);

/* Whether a message that calls tools becomes several. */
bool template_needs_splits(const struct template_needs *needs, const json_t *message);

/* The request's messages, made fit; owned by the caller. NULL: there is no memory. */
json_t *template_needs_apply(const struct template_needs *needs, const struct server_request *r);

#endif
