/* What a client asks for, the same whichever protocol it speaks. A protocol's parser fills it from the body's JSON and
 * checks all that can be checked without a model. */
#ifndef SERVER_REQUEST_H
#define SERVER_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "moebius/moebius.h"
#include "server/kept_items.h"

enum tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_REQUIRED, TOOL_CHOICE_NAMED };

/* What the answer's content must be. */
enum answer_format { FORMAT_TEXT, FORMAT_JSON_OBJECT, FORMAT_JSON_SCHEMA, FORMAT_GBNF, FORMAT_REGEX };

/* How much the model is to reason. Templates have words of their own for it (template_needs.h). */
enum effort {
    EFFORT_OWN, /* nobody said, or the client in chat_template_kwargs */
    EFFORT_NONE,
    EFFORT_ANY, /* it is to reason, however much */
    EFFORT_LOW,
    EFFORT_MEDIUM,
    EFFORT_HIGH,
    EFFORT_MAX
};
enum { N_EFFORT = EFFORT_MAX + 1 };

struct server_request {
    json_t *body;            /* the whole body, to which borrowed strings belong; owned */
    json_t *made;            /* an array of what the parser made, to which other borrowed strings belong; owned */
    const char *model;       /* as the client named it; NULL: it didn't */
    json_t *notes;           /* an array of sentences for the log: what was ignored; owned */
    struct kept_items *kept; /* of earlier answers, and where this one's go; NULL: nowhere. Borrowed */

    /* the prompt: one of these two; owned */
    json_t *messages; /* an array in the form that templates take (server/messages.h) */
    json_t *prompts;  /* an array of prompts that go on: strings, and arrays of token ids */

    const json_t *suffix; /* a string: the answer belongs between a prompt, which is text, and this; NULL: none */
    const json_t *extra;  /* other files for that: an array of {"text", "filename"}; NULL: none. Both are the body's */

    json_t *argument_texts; /* an array: the arguments of each call in `messages` as a text; owned */

    json_t *tools;         /* an array in the form that templates take; NULL: none. Owned */
    json_t *tool_kinds;    /* name in `tools` -> {"kind": "function"|"custom", "name", and where there are such:
                              "namespace", "format"}, as the client has it; NULL without tools. Owned */
    json_t *deferred;      /* name -> tool: those that the prompt is to show once a message refers to them; NULL: none.
                              Owned */
    json_t *loaded;        /* those of `deferred` to which one did; they can be called; NULL: none. Owned */
    const char *tool_name; /* TOOL_CHOICE_NAMED */
    enum tool_choice tool_choice;

    enum answer_format format;
    json_t *schema;      /* FORMAT_JSON_SCHEMA: an object; owned */
    const char *grammar; /* FORMAT_GBNF, FORMAT_REGEX: the text */

    json_t *template_vars;    /* an object: chat_template_kwargs, enable_thinking, reasoning_effort, ... Owned */
    enum effort effort;       /* what reasoning_effort there stands for, for whom the template has other words */
    int64_t reasoning_budget; /* tokens; -1: no bound */

    int64_t n_choices;                /* answers, 1 or more: as many to each prompt, those of the first one first */
    int64_t n_given;                  /* of those to each prompt, the likeliest that the client gets; 0: all */
    int64_t max_tokens;               /* -1: until it ends */
    int64_t max_answer_ms;            /* a text of several lines may take so long; 0 or less: no bound */
    json_t *stops;                    /* an array of strings without zero bytes; NULL: none. Owned */
    moebius_sampler_options sampling; /* its pointers go into what is below */
    moebius_logit_bias *biases;       /* [sampling.n_logit_biases], owned */
    const char **breakers;            /* [sampling.n_dry_breakers], owned array of borrowed strings */
    int n_logprob;                    /* -1: none */

    bool has_seed;          /* else each answer gets another one */
    bool ignore_eos;        /* goes on after a token that ends the answer */
    bool one_call;          /* no parallel calls */
    bool is_strict;         /* a schema that can't be enforced is refused */
    bool stream;            /* the answer comes piece by piece */
    bool stream_usage;      /* OpenAI's stream_options.include_usage */
    bool return_progress;   /* events that say how much of the prompt is done */
    bool return_ids;        /* the answer tells its tokens' ids: ANSWER_TOKEN is wanted even where n_logprob is -1 */
    bool echo;              /* the answer begins with the prompt: ANSWER_PROMPT is wanted */
    bool only_loads;        /* Ollama's way to have a model loaded: there is no prompt and no answer */
    bool hides_reasoning;   /* the client doesn't want to see it: the protocol leaves it out */
    bool continues_message; /* the last message is the assistant's, and the answer goes on with it */
};

/* Fills defaults, which may be changed before a body is parsed; to be closed in any case. */
void server_request_init(struct server_request *r);
void server_request_close(struct server_request *r);

/* How many prompts there are, and answers to each. */
int64_t server_request_n_prompts(const struct server_request *r);
int64_t server_request_n_each(const struct server_request *r);

/* Adds a sentence to notes, of which there is a bounded number. */
void server_request_note(struct server_request *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
