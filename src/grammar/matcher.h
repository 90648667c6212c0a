/* A place in a text, as threads: ways to read it, each a stack of states. Outside of JSON values there is one thread
 * for all ways. */
#ifndef GRAMMAR_MATCHER_H
#define GRAMMAR_MATCHER_H

#include <pthread.h>

#include "grammar/grammar.h"
#include "grammar/states.h"
#include "grammar/vocab_trie.h"

enum {
    MATCHER_MAX_THREADS = 64,
    MATCHER_MAX_DEPTH = 512, /* of JSON values in each other */
    /* White space between two parts of JSON: so many bytes, one line end, and for each level so many bytes more. */
    MATCHER_SPACES = 2,
    MATCHER_INDENT = 8,
    MATCHER_NEW_LINE = 1 << 16, /* of n_space: the line end was there */
};

struct grammar {
    struct program program;
    struct states *states; /* what its texts have met so far; others take their place when they have failed */
    uint32_t max_states;
    pthread_mutex_t mutex; /* over `states`, and all that matchers still have */
    bool has_mutex;
};

struct frame { /* a state that waits for the value above it */
    uint32_t state, reg, below;
};

struct thread {
    uint32_t state, reg; /* what is on top, with its register */
    uint32_t below;      /* a frame; 0: none */
    uint32_t depth, n_space;
};

struct grammar_matcher {
    struct grammar *g;
    struct states *s; /* the grammar's, or those that it had before */
    const struct grammar_vocab *v;
    LIST(struct thread) threads; /* the first n_thread are where the text is; others are tried */
    uint32_t n_thread;
    LIST(struct frame) frames, spare; /* frame 0 is none */
    LIST(uint8_t) text;               /* so far: it is read again where its states have failed */
    bool ended;                       /* by a token that ends texts */
    bool failed;                      /* also with new states: nothing is allowed any more */
};

/* A set of threads at the end of m->threads. */
struct thread_set {
    uint32_t first, n;
};

/* Adds the threads that a byte leads to, those of `from` as they are. */
struct thread_set matcher_step(struct grammar_matcher *m, struct thread_set from, uint8_t byte);
/* The set that a thread becomes when the value on top ends with these verdicts. */
struct thread_set matcher_pop(struct grammar_matcher *m, struct thread t, uint32_t result);
void matcher_fill_mask(struct grammar_matcher *m, uint64_t *bits);

#endif
