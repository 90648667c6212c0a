/* How many tokens of prompts go into a pass over the model, so that answers beside them don't wait much longer for
 * their next token than they would without: from what earlier passes took.
 *
 * A pass with prompts shall take at most `most_ns`, or, where that is 0, PACE_FACTOR times what one without takes for
 * as many answers. What n tokens of prompts cost is not in proportion to n (few of them already touch most experts), so
 * that the number is corrected after each pass by the ratio of what was to be had and what was taken. */
#ifndef TEXTS_PACE_H
#define TEXTS_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PACE_FACTOR = 2,
    PACE_LEAST_NS = 4 * 1000 * 1000, /* nobody notices less */
    PACE_LEAST_TOKENS = 8,           /* of prompts, whatever they cost: they come to an end, too */
    PACE_FIRST_TOKENS = 64,          /* as nothing is known */
    PACE_GROWTH = 8,                 /* one part in so many of what would have fitted beside is added a pass */
    PACE_BARE_EVERY = 32,            /* so often a pass takes no prompts, to see what one costs */
};

struct pace {
    int64_t most_ns;  /* 0: see above; less than 0: there is no bound */
    int64_t *bare_ns; /* [n_texts + 1] what a pass without prompts took for so many answers; 0: not known. Owned */
    size_t n_texts;   /* answers at once at most */
    double n_tokens;  /* of prompts that fit at the last count */
    int n_mixed;      /* passes with prompts since the last without */
    int64_t owed_ns;  /* streaming engines: what passes with prompts took, less what those without had since */
};

/* False: there is no memory. */
bool pace_open(struct pace *p, size_t n_texts, int64_t most_ns);
void pace_close(struct pace *p);

/* How many tokens of prompts a pass takes beside n_answers others, 0 or more. n_batch: as many as pay where nobody
 * waits. is_streaming: experts are read from the drive, which small numbers of tokens make no cheaper; then passes take
 * all or nothing in turns, such that prompts have half of the time. */
size_t pace_tokens(const struct pace *p, size_t n_answers, size_t n_batch, bool is_streaming);
/* What a pass took. */
void pace_note(struct pace *p, size_t n_answers, size_t n_prompt, int64_t took_ns, bool is_streaming);

#endif
