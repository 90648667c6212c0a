/* A matcher's position in a text, as a set of threads. A thread is one way to read the text so far: a stack of states.
 * Outside of JSON values one thread stands for all ways. */
#ifndef GRAMMAR_MATCHER_H
#define GRAMMAR_MATCHER_H

#include <pthread.h>

#include "grammar/grammar.h"
#include "grammar/states.h"
#include "grammar/vocab_trie.h"

enum {
    MATCHER_MAX_THREADS = 64,
    MATCHER_MAX_DEPTH = 512, /* of nested JSON values */
    /* White space between two parts of JSON may have MATCHER_SPACES bytes, one line end, and MATCHER_INDENT bytes more
     * for each level. */
    MATCHER_SPACES = 2,
    MATCHER_INDENT = 8,
    MATCHER_NEW_LINE = 1 << 16, /* bit of thread.n_space: the line end was there */
};

struct grammar {
    struct program program;
    struct states *states; /* the states met so far; replaced by new ones when they have failed */
    uint32_t max_states;
    pthread_mutex_t mutex; /* guards `states`, and older ones that matchers still hold */
    bool has_mutex;
};

struct frame { /* a state that waits for the value above it */
    uint32_t state, reg, below;
};

struct thread {
    uint32_t state, reg; /* the innermost open value's state, and its register */
    uint32_t below;      /* index of the frame around it; 0: none */
    uint32_t depth;      /* number of open JSON values */
    uint32_t n_space;    /* bytes of white space just read, and MATCHER_NEW_LINE */
};

struct grammar_matcher {
    struct grammar *g;
    struct states *s; /* the grammar's states, or older ones of it */
    const struct grammar_vocab *v;
    LIST(struct thread) threads; /* the first n_thread are the position; those after them are temporary */
    uint32_t n_thread;
    LIST(struct frame) frames, spare; /* frame 0 is none */
    LIST(uint8_t) text;               /* the text so far, to be read again when the states have failed */
    bool ended;                       /* a token that ends texts was accepted */
    bool failed;                      /* new states have failed, too: nothing is allowed any more */
};

/* A set of threads at the end of m->threads. */
struct thread_set {
    uint32_t first, n;
};

/* Adds the threads that a byte leads to; those of `from` are not changed. */
struct thread_set matcher_step(struct grammar_matcher *m, struct thread_set from, uint8_t byte);
/* The threads that follow when a thread's innermost value ends with the verdicts `result`. */
struct thread_set matcher_pop(struct grammar_matcher *m, struct thread t, uint32_t result);
void matcher_fill_mask(struct grammar_matcher *m, uint64_t *bits);

#endif
