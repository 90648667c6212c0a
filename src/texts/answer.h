/* An answer while it is generated: turns its tokens into text, and finds its end. Without a template it is plain text;
 * with one it is a message, and reasoning is kept apart from content. */
#ifndef TEXTS_ANSWER_H
#define TEXTS_ANSWER_H

#include "texts/text_stream.h"
#include "moebius/moebius.h"

struct answer_params {
    const moebius_vocab *vocab; /* borrowed */
    size_t max_piece;           /* of the vocabulary: answer_longest_piece */
    bool ignore_eos;            /* the answer continues after a token that would end it */
    const char *const *stops;   /* [n_stops] the answer ends before these, except in reasoning; borrowed */
    size_t n_stops;
    const moebius_template *tmpl; /* borrowed; NULL: the answer is plain text */
    const char *prompt;           /* with a template: the prompt's end (answer_prompt_end), for answer_open alone */
    const char *tools;            /* JSON, for answer_open alone; NULL: none, and calls are content */
    moebius_reply_fn *fn;         /* gets the text while it is generated; plain text counts as content. May be NULL */
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

/* The bytes of the vocabulary's longest token. */
size_t answer_longest_piece(const moebius_vocab *vocab);

/* *a must not move in memory until it is closed. */
MUST_USE err_code answer_open(struct answer *a, const struct answer_params *params, struct err *e);
/* Adds a token. *end: whether it ends the answer. Without a template this allocates nothing. */
MUST_USE err_code answer_feed(struct answer *a, int32_t id, bool *end, struct err *e);
/* The stop string that has ended the answer; NULL: none has. */
const char *answer_stop(const struct answer *a);
/* Whether the next token would be reasoning. */
bool answer_is_reasoning(const struct answer *a);
/* Whether a token begins or continues a mark that comes before content or reasoning. */
bool answer_is_mark(const struct answer *a, int32_t id);
/* Ends the answer, and passes on the text that was held back. */
void answer_finish(struct answer *a);
void answer_close(struct answer *a); /* accepts zeros */

#endif
