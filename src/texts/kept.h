/* Sessions of texts that have ended, kept for those that begin alike, as long as there is memory. When it gets short
 * the least useful goes first: by recency, and by the tokens that it saves for each byte. One thread. */
#ifndef TEXTS_KEPT_H
#define TEXTS_KEPT_H

#include "moebius/moebius.h"
#include "texts/prefix.h"
#include "texts/scores.h"

struct kept_text {
    moebius_session *session;  /* owned */
    struct scores scores;      /* of the first tokens */
    struct prefix_entry entry; /* its tokens; listed, with this text as owner */
    uint64_t tick;             /* when it was used last */
    bool is_saved;             /* all of it is on disk, or can't be (disk.c) */
};

struct kept {
    struct prefix_index *index; /* borrowed */
    size_t logits_bytes;        /* that a session has beside its state */
    struct kept_text **texts;   /* [n], owned */
    size_t n, capacity;
    uint64_t tick; /* uses so far */
};

/* Takes over a session and its scores, which are closed instead where it has less than a block of tokens, where others
 * hold them as well, or where there is no memory to note it. */
void kept_add(struct kept *k, moebius_session **session, struct scores *scores);
/* The text was of use. */
void kept_use(struct kept *k, struct kept_text *t);
void kept_drop(struct kept *k, struct kept_text *t);
/* Closes the least useful one; false: there is none. */
bool kept_drop_least(struct kept *k);
void kept_close(struct kept *k);
/* Bytes of the texts' state. Pages that several texts share are counted for each. */
uint64_t kept_bytes(const struct kept *k);

#endif
