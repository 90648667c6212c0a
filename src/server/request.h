/* What a client asks for, the same whichever protocol it speaks. A protocol's parser fills it from the body's JSON and
 * checks all that can be checked without a model. */
#ifndef SERVER_REQUEST_H
#define SERVER_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "moebius/moebius.h"

enum tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_REQUIRED, TOOL_CHOICE_NAMED };

/* What the answer's content must be. */
enum answer_format { FORMAT_TEXT, FORMAT_JSON_OBJECT, FORMAT_JSON_SCHEMA, FORMAT_GBNF, FORMAT_REGEX };

struct server_request {
    json_t *body;      /* the whole body, to which borrowed strings belong; owned */
    const char *model; /* as the client named it; NULL: it didn't */

    /* the prompt: one of these three */
    json_t *messages; /* an array in the form that templates take: role, content, reasoning_content, tool_calls, ... */
    json_t *text;     /* a string that goes on */
    json_t *ids;      /* an array of token ids that go on */

    json_t *tools;      /* an array in the form that templates take; NULL: none */
    json_t *tool_kinds; /* name in `tools` -> {"kind": "function"|"custom", "namespace", "name", "strict"}, as the
                           client has it; NULL with tools */
    enum tool_choice tool_choice;
    const char *tool_name; /* TOOL_CHOICE_NAMED */
    bool one_call;         /* no parallel calls */

    enum answer_format format;
    json_t *schema;      /* FORMAT_JSON_SCHEMA */
    bool is_strict;      /* a schema that can't be enforced is refused */
    const char *grammar; /* FORMAT_GBNF, FORMAT_REGEX: the text */

    bool stream;
    bool stream_usage;    /* OpenAI's stream_options.include_usage */
    bool return_progress; /* events that say how much of the prompt is done */
    bool echo;            /* completions: the prompt comes first */
    int64_t n_choices;    /* answers to one prompt, 1 or more */

    int64_t max_tokens; /* -1: until it ends */
    bool ignore_eos;
    json_t *stops;                    /* an array of strings; NULL: none */
    moebius_sampler_options sampling; /* its pointers go into what is below */
    bool has_seed;
    moebius_logit_bias *biases; /* [sampling.n_logit_biases], owned */
    const char **breakers;      /* [sampling.n_dry_breakers], owned array of borrowed strings */
    int n_logprob;              /* -1: none */

    json_t *template_vars;    /* an object: chat_template_kwargs, enable_thinking, reasoning_effort, ... */
    int64_t reasoning_budget; /* tokens; -1: no bound */
    bool hides_reasoning;     /* the client doesn't want to see it */
    bool continues_message;   /* the last message is the assistant's, and the answer goes on with it */

    json_t *notes; /* an array of sentences for the log: what was ignored */
};

/* Fills defaults; to be closed in any case. */
void server_request_init(struct server_request *r);
void server_request_close(struct server_request *r);

/* Adds a sentence to notes. */
void server_request_note(struct server_request *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
