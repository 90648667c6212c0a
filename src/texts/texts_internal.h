/* What the scheduler's files share: texts.c has the public functions, join.c gives texts their sessions, pass.c
 * computes, and disk.c loads and saves prefixes. */
#ifndef TEXTS_TEXTS_INTERNAL_H
#define TEXTS_TEXTS_INTERNAL_H

#include <pthread.h>

#include "texts/kept.h"
#include "texts/pace.h"
#include "texts/prefix_files.h"
#include "texts/one_text.h"
#include "texts/turns.h"

struct texts {
    struct texts_options options;
    struct text_setup setup;
    atomic_bool is_stopped;

    pthread_mutex_t lock; /* protects what follows, up to `stats` */
    pthread_cond_t wake;  /* signalled by texts_submit, texts_poke and texts_stop */
    bool is_poked;        /* texts_poke was called */
    struct text *live;    /* all texts, newest first */
    size_t n_live;
    struct text *inbox;      /* texts that the driving thread has not seen yet, newest first */
    uint64_t n_ids;          /* texts so far: the id of the last one */
    struct texts_stats told; /* a copy of `stats` after the last step, with what submitting counts */

    struct texts_stats stats; /* this and all that follows belong to the driving thread */
    struct turns waiting;
    struct text **running; /* [n_running], of options.n_texts */
    size_t n_running;
    size_t n_room;       /* how many texts there seems to be memory for */
    size_t n_since_full; /* texts that have ended since memory was last too short */
    struct prefix_index index;
    struct kept kept;
    struct prefix_files *files; /* NULL: there is no disk cache */
    bool is_disk_turn;          /* a part was read or written before the current pass */
    struct pace pace;
    struct draft_costs costs;
    bool has_mtp;              /* guesses are wanted, and the engine can make them by MTP */
    int64_t mtp_ns;            /* how long MTP's guesses for the current pass took */
    moebius_batch_item *items; /* [n_items] of the current pass; room for options.n_texts */
    struct text **in_pass;     /* [n_items] the text of each item */
    size_t n_items;
};

/* ---- texts.c ------------------------------------------------------------------------------------------------- */

/* Ends a running or waiting text: keeps its session, calls its sink, and frees it. */
void texts_end(struct texts *x, struct text *t, enum text_end why, const struct err *error);
/* Removes a text from those that run. */
void texts_take_out(struct texts *x, const struct text *t);
/* Whether the engine streams: not all experts are in memory, and they are read when they are needed. */
bool texts_is_streaming(const struct texts *x);

/* ---- join.c -------------------------------------------------------------------------------------------------- */

/* Whether an error is about memory, so that freeing some may help. */
bool texts_is_short(err_code code);
/* Gives waiting texts sessions, as long as there is memory. */
void texts_join(struct texts *x);
/* Frees memory after a pass has found too little: drops kept texts, or suspends a text; if there is only one, it fails.
 */
void texts_make_room(struct texts *x, const struct err *why);
/* Drops kept texts until there is some room for those that run. */
void texts_trim(struct texts *x);

/* ---- disk.c -------------------------------------------------------------------------------------------------- */

/* Whether the disk cache has considerably more of a text than its first n tokens. like: any session. */
bool texts_disk_has_more(const struct texts *x, const struct text *t, const moebius_session *like, size_t n);
/* Called before a pass: reads the next part of texts that are loading, or writes a part that is not on disk yet. False:
 * there is nothing to do, or it is the turn of prompts. */
bool texts_use_disk(struct texts *x);

/* ---- pass.c -------------------------------------------------------------------------------------------------- */

/* How many running texts need one token computed; whether some need more than that. */
size_t texts_n_answers(const struct texts *x);
bool texts_has_prompts(const struct texts *x);
/* Runs a pass: computes missing tokens of texts, as far as they fit, and then samples the next token of each text that
 * is complete. */
MUST_USE err_code texts_pass(struct texts *x, struct err *e);

#endif
