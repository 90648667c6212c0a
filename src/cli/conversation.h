/* A conversation with a model: its messages, and a session that holds as much of the rendered prompt as can be used
 * again. */
#ifndef CLI_CONVERSATION_H
#define CLI_CONVERSATION_H

#include <jansson.h>

#include "cli/open_model.h"
#include "texts/constraint.h"
#include "texts/look_ahead.h"

struct conversation_stats {
    int64_t n_answer;              /* answers */
    int64_t n_prompt, n_reused;    /* prompt tokens that were evaluated; those that the session held already */
    int64_t n_said;                /* tokens of answers */
    int64_t n_decoded;             /* of them, those that were evaluated: not the last of an answer */
    int64_t prefill_ns, decode_ns; /* time for n_prompt and for n_decoded */
};

struct conversation {
    const struct model_options *model; /* borrowed, as are the next three */
    struct opened *opened;             /* with a session */
    const moebius_template *tmpl;
    const moebius_template_var *vars;
    size_t n_vars;
    moebius_sampler *sampler; /* borrowed */
    moebius_grammar *grammar; /* that answers follow; borrowed; NULL: none */
    struct look_ahead ahead;
    struct constraint form; /* of the answer that is given: its content follows the grammar */
    int64_t max_answer;     /* tokens; -1: up to the end of the context */
    json_t *messages;       /* an array */
    struct conversation_stats stats;
};

MUST_USE err_code conversation_open(struct conversation *c, struct err *e); /* the borrowed parts are set before */
void conversation_close(struct conversation *c);

/* How an answer ended. */
struct conversation_turn {
    bool interrupted;   /* by the user */
    bool out_of_tokens; /* max_answer was reached */
    size_t n_dropped;   /* old messages that were dropped because the context was full */
};

/* Adds a message of the user and the model's answer to it, which `fn` gets as it comes. After a failure, and when there
 * is no answer because of an interrupt, the conversation is as it was, but for messages that were dropped. */
MUST_USE err_code conversation_say(struct conversation *c, const char *text, moebius_reply_fn *fn, void *user,
                                   struct conversation_turn *turn, struct err *e);

/* Takes the last message of the user back, with the answer to it: its text, owned by the caller (mem_free); NULL where
 * there is none that is a text. */
MUST_USE err_code conversation_take_back(struct conversation *c, char **text, struct err *e);
void conversation_reset(struct conversation *c); /* keeps the system message */
MUST_USE err_code conversation_set_system(struct conversation *c, const char *text, struct err *e); /* "": none */
const char *conversation_system(const struct conversation *c);                                      /* NULL: none */
MUST_USE err_code conversation_save(const struct conversation *c, const char *path, struct err *e);
MUST_USE err_code conversation_load(struct conversation *c, const char *path, struct err *e);
/* The same from n bytes of text; `path` names it in messages. */
MUST_USE err_code conversation_parse(struct conversation *c, const char *text, size_t n, const char *path,
                                     struct err *e);

#endif
