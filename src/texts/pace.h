/* Decides how many prompt tokens go into a pass over the model, by how long earlier passes took, so that answers in the
 * same pass do not wait much longer for their next token.
 *
 * A pass with prompt tokens should take at most `most_ns` or, if that is 0, PACE_FACTOR times as long as one without
 * for the same number of answers. The cost of n prompt tokens is not proportional to n, because a few of them already
 * need most experts. So after each pass the number is corrected by the ratio of the available time to the time it took.
 */
#ifndef TEXTS_PACE_H
#define TEXTS_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PACE_FACTOR = 2,
    PACE_LEAST_NS = 4 * 1000 * 1000, /* a pass may take this long in any case: nobody notices */
    PACE_LEAST_TOKENS = 8,           /* prompt tokens that a pass takes in any case, so that prompts make progress */
    PACE_FIRST_TOKENS = 64,          /* the number to begin with */
    PACE_GROWTH = 8,                 /* after each pass one n-th of the tokens that would still have fitted is added */
    PACE_BARE_EVERY = 32,            /* after so many passes with prompts, one without measures what that takes */
};

struct pace {
    int64_t most_ns;  /* 0: see above; negative: no bound */
    int64_t *bare_ns; /* [n_texts + 1] time of a pass without prompts, by its number of answers; 0: not known. Owned */
    size_t n_texts;   /* the most answers at once */
    double n_tokens;  /* prompt tokens that fit into a pass, by the last estimate */
    int n_mixed;      /* passes with prompts since the last one without */
    int64_t owed_ns;  /* streaming engines: time of passes with prompts, less that of passes without since then */
};

/* False: no memory. */
bool pace_open(struct pace *p, size_t n_texts, int64_t most_ns);
void pace_close(struct pace *p);

/* How many prompt tokens a pass takes beside n_answers tokens of answers. n_batch: the best number if nobody waits.
 * is_streaming: experts are read from the drive, which costs as much for few tokens as for many; then passes take
 * either n_batch or none, such that prompts get half of the time. */
size_t pace_tokens(const struct pace *p, size_t n_answers, size_t n_batch, bool is_streaming);
/* Notes how long a pass took. */
void pace_note(struct pace *p, size_t n_answers, size_t n_prompt, int64_t took_ns, bool is_streaming);

#endif
