/* An answer while it is generated: what its tokens say, and where it ends. It is a text that goes on or, with a
 * template, a message, whose reasoning is told apart. */
#ifndef TEXTS_ANSWER_H
#define TEXTS_ANSWER_H

#include "texts/text_stream.h"
#include "moebius/moebius.h"

struct answer_params {
    const moebius_vocab *vocab; /* borrowed */
    size_t max_piece;           /* of the vocabulary: answer_longest_piece */
    bool ignore_eos;            /* the answer goes on after a token that ends it */
    const char *const *stops;   /* [n_stops], the answer ends before these, of which reasoning has none; borrowed */
    size_t n_stops;
    const moebius_template *tmpl; /* borrowed; NULL: the text goes on */
    const char *prompt;           /* with a template: the prompt's end (answer_prompt_end), for answer_open alone */
    const char *tools;            /* JSON, for answer_open alone; NULL: none, and calls are content */
    moebius_reply_fn *fn; /* gets the text as it comes, of an answer without a template as content; may be NULL */
    void *user;
};

struct answer {
    struct answer_params params;
    struct text_stream stream; /* of the content */
    moebius_reply *reply;      /* NULL without a template */
};

/* The end of a prompt of n bytes, from behind its last zero byte on. That is enough to see whether the prompt begins
 * the answer's reasoning, and unlike the whole prompt, whose messages may hold zero bytes, it can be passed as a
 * string. Borrowed from the prompt, which must end with a zero byte. NULL for NULL. */
const char *answer_prompt_end(const char *prompt, size_t n);

/* The bytes of the longest token. */
size_t answer_longest_piece(const moebius_vocab *vocab);

/* The answer stays where it is in memory until it is closed. */
MUST_USE err_code answer_open(struct answer *a, const struct answer_params *params, struct err *e);
/* Takes one more token; *end: it ends the answer. Allocates nothing where there is no template. */
MUST_USE err_code answer_feed(struct answer *a, int32_t id, bool *end, struct err *e);
/* The stop string that ended it; NULL: none did. */
const char *answer_stop(const struct answer *a);
/* Whether what comes next is reasoning. */
bool answer_is_reasoning(const struct answer *a);
/* Whether a token begins, or goes on with, a mark that stands before the content or the reasoning. */
bool answer_is_mark(const struct answer *a, int32_t id);
/* Hands on what was held back: no token follows. */
void answer_finish(struct answer *a);
void answer_close(struct answer *a); /* accepts one that was never opened, if it is zero */

#endif
