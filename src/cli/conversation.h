/* A conversation with a model: its messages, and a session that keeps as much of the rendered prompt as can be reused.
 */
#ifndef CLI_CONVERSATION_H
#define CLI_CONVERSATION_H

#include <jansson.h>

#include "cli/open_model.h"
#include "texts/constraint.h"
#include "texts/look_ahead.h"

struct conversation_stats {
    int64_t n_answer;              /* answers */
    int64_t n_prompt, n_reused;    /* prompt tokens that were evaluated, and that the session had already */
    int64_t n_said;                /* tokens of answers */
    int64_t n_decoded;             /* tokens of answers that were evaluated: all but the last one of each answer */
    int64_t prefill_ns, decode_ns; /* time for n_prompt and for n_decoded */
};

struct conversation {
    const struct model_options *model; /* borrowed, as are the next three */
    struct opened *opened;             /* the engine and a session */
    const moebius_template *tmpl;
    const moebius_template_var *vars;
    size_t n_vars;
    moebius_sampler *sampler; /* borrowed */
    moebius_grammar *grammar; /* that answers follow; borrowed; NULL: none */
    struct look_ahead ahead;
    struct constraint form; /* makes the content of the current answer follow the grammar */
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

/* Adds a message of the user and the model's answer, which is passed to `fn` while it is generated. After a failure, or
 * an interrupt before the answer began, the conversation is unchanged, except for old messages that were dropped. */
MUST_USE err_code conversation_say(struct conversation *c, const char *text, moebius_reply_fn *fn, void *user,
                                   struct conversation_turn *turn, struct err *e);

/* Removes the user's last message and the answer to it. *text: the message, owned by the caller (mem_free); NULL: there
 * is none, or its content is no string. */
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
