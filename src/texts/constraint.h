/* Makes an answer follow a grammar while its tokens are sampled: from its beginning, from the beginning of its content,
 * or each time that it contains a certain text, the trigger. */
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
    moebius_matcher *matcher; /* the place in the grammar; NULL: it does not apply now. Owned */
    struct bytes said;        /* the end of the answer so far, which may contain the beginning of the trigger */
    struct bytes said_ids;    /* the tokens of `said`, int32_t each */
};

/* Must be closed even after a failure. */
MUST_USE err_code constraint_open(struct constraint *c, const struct text_request *request, moebius_sampler *sampler,
                                  struct err *e);
void constraint_close(struct constraint *c); /* accepts one that is zero */

/* Samples the next token. *id -1: the grammar's text has ended, but the vocabulary has no token that ends texts. */
MUST_USE err_code constraint_pick(struct constraint *c, const struct answer *answer, const float *logits, int32_t *id,
                                  struct err *e);
/* Notes a token that was appended. Called after the sampler has accepted the token, and before the answer gets it. */
MUST_USE err_code constraint_note(struct constraint *c, const struct answer *answer, int32_t id, struct err *e);

/* The next tokens if the grammar leaves no choice about them, and there are enough of them to be worth it. *ids [*n],
 * often empty, is owned by the caller (moebius_free). */
MUST_USE err_code constraint_forced(const struct constraint *c, const struct answer *answer, int32_t **ids, size_t *n,
                                    struct err *e);

#endif
