/* The last tokens of a text, and those penalties that only ask which they are and how often they come.
 *
 * Repetition penalty (Keskar et al. 2019, arXiv 1909.05858; negative logits are multiplied): each token of the window
 * pays once. Presence and frequency penalties (OpenAI's API reference): logit -= presence + frequency * count. */
#ifndef SAMPLE_HISTORY_H
#define SAMPLE_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct history {
    int32_t *ids; /* [capacity], a ring; owned */
    int capacity; /* how many tokens are remembered */
    int n;        /* how many there are */
    int next;     /* where the next one goes */
};

/* False: no memory. Close it after a failure, too. */
bool history_open(struct history *h, int capacity);
void history_close(struct history *h);
void history_push(struct history *h, int32_t id);
void history_forget(struct history *h);
/* The token that so many others follow, age < n. */
int32_t history_at(const struct history *h, int age);

struct token_count {
    int32_t id;
    int32_t n; /* how often it is in the window */
};

/* The tokens of a window at the end of a history. */
struct token_counts {
    struct token_count *seen; /* [n_seen], in no order; owned */
    int32_t n_seen;
    int32_t *place; /* [n_vocab], one more than a token's place in `seen`; 0: it has none; owned */
    int window;     /* the most tokens that count */
};

bool token_counts_open(struct token_counts *t, int window, int32_t n_vocab);
void token_counts_close(struct token_counts *t);
/* To be called before the token is pushed to the history, which remembers a window at least. */
void token_counts_push(struct token_counts *t, const struct history *h, int32_t id);
void token_counts_forget(struct token_counts *t);

/* Changes the logits of the tokens that were seen; `repeat` is the repetition penalty. */
void token_counts_penalise(const struct token_counts *t, float repeat, float presence, float frequency, float *logits);

#endif
