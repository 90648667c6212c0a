/* What the files of the scheduler share: texts.c is its door, join.c gives texts their sessions, pass.c computes,
 * and disk.c loads and saves. */
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

    pthread_mutex_t lock; /* of this and what follows up to `stats` */
    pthread_cond_t wake;  /* there is a new text, texts_poke, or texts_stop */
    bool is_poked;
    struct text *live; /* all texts, the last one first */
    size_t n_live;
    struct text *inbox; /* those that the driving thread has not seen, the last one first */
    uint64_t n_ids;
    struct texts_stats told; /* `stats` after the last step, and what submitting counts */

    struct texts_stats stats; /* this and what follows are the driving thread's */
    struct turns waiting;
    struct text **running; /* [n_running], of options.n_texts */
    size_t n_running;
    size_t n_room;       /* texts that there seems to be memory for */
    size_t n_since_full; /* texts that have ended since there was none */
    struct prefix_index index;
    struct kept kept;
    struct prefix_files *files; /* NULL: nothing is kept on disk */
    bool is_disk_turn;          /* a part was read or written before the pass in hand */
    struct pace pace;
    struct draft_costs costs;
    bool has_mtp;              /* the engine guesses, too, and guesses are wanted */
    int64_t mtp_ns;            /* what its guesses for the pass in hand took */
    moebius_batch_item *items; /* [n_items] of the pass in hand, of options.n_texts */
    struct text **in_pass;     /* [n_items] whose they are */
    size_t n_items;
};

/* ---- texts.c ------------------------------------------------------------------------------------------------- */

/* A text ends: tells its sink and frees it; what was computed of it is kept. It may be running, else it waits no
 * more. */
void texts_end(struct texts *x, struct text *t, enum text_end why, const struct err *error);
/* A text is not one of those that run any more. */
void texts_take_out(struct texts *x, const struct text *t);
/* Whether experts are read when they are needed. */
bool texts_is_streaming(const struct texts *x);

/* ---- join.c -------------------------------------------------------------------------------------------------- */

/* Whether a failure is one for which giving memory back may help. */
bool texts_is_short(err_code code);
/* Texts that wait get sessions, as long as there is memory. */
void texts_join(struct texts *x);
/* A pass found no memory: somebody gives some back, or the only text fails. */
void texts_make_room(struct texts *x, const struct err *why);
/* Lets kept texts go until there is some room for those that run. */
void texts_trim(struct texts *x);

/* ---- disk.c -------------------------------------------------------------------------------------------------- */

/* Whether a text can have more from disk than its first n tokens. like: any session. */
bool texts_disk_has_more(const struct texts *x, const struct text *t, const moebius_session *like, size_t n);
/* Before a pass: reads the next part of texts that are loading, or writes one of a text that is not on disk. False:
 * there is none, or it is the prompts' turn. */
bool texts_use_disk(struct texts *x);

/* ---- pass.c -------------------------------------------------------------------------------------------------- */

/* Running texts that wait for their next token; whether some have more to be computed. */
size_t texts_n_answers(const struct texts *x);
bool texts_has_prompts(const struct texts *x);
/* Computes what texts lack, as far as it fits one pass, and lets those that have all choose their next tokens. */
MUST_USE err_code texts_pass(struct texts *x, struct err *e);

#endif
