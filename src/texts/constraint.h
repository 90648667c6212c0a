/* What an answer is held to while its tokens are chosen: a grammar, from the answer's beginning on, from where its
 * content begins, or each time that it says a certain text. */
#ifndef TEXTS_CONSTRAINT_H
#define TEXTS_CONSTRAINT_H

#include "base/bytes.h"
#include "texts/answer.h"
#include "texts/texts.h"

struct constraint {
    moebius_grammar *grammar; /* NULL: the answer is free. Borrowed */
    enum text_grammar_from from;
    char *trigger;            /* owned */
    moebius_sampler *sampler; /* borrowed */
    moebius_matcher *matcher; /* where the grammar holds; NULL: it doesn't now. Owned */
    struct bytes said;        /* the end of what was said, which may hold the beginning of the trigger: */
    struct bytes said_ids;    /* the tokens that it is, int32_t each */
};

/* Close after failures, too. */
MUST_USE err_code constraint_open(struct constraint *c, const struct text_request *request, moebius_sampler *sampler,
                                  struct err *e);
void constraint_close(struct constraint *c); /* accepts one that is zero */

/* Chooses the next token. *id -1: the grammar's text has ended, and the vocabulary has no token that says so. */
MUST_USE err_code constraint_pick(struct constraint *c, const struct answer *answer, const float *logits, int32_t *id,
                                  struct err *e);
/* The token was appended, and the sampler knows it; the answer does not. */
MUST_USE err_code constraint_note(struct constraint *c, const struct answer *answer, int32_t id, struct err *e);

/* The tokens that the grammar leaves no choice about, and whose number is worth while: *ids [*n] is owned by the caller
 * (moebius_free); often none. */
MUST_USE err_code constraint_forced(const struct constraint *c, const struct answer *answer, int32_t **ids, size_t *n,
                                    struct err *e);

#endif
