/* The queue of waiting texts. Texts that were running before come first. The others are taken from their groups in
 * turn, from the group first that had no turn for longest, and within a group in the order in which they came. */
#ifndef TEXTS_TURNS_H
#define TEXTS_TURNS_H

#include "texts/one_text.h"

enum { TURNS_GROUPS = 1024 }; /* groups are hashed to so many, which take turns */

struct turns {
    struct text *first; /* in the order in which they came; those that were running before are at the front */
    size_t n;           /* waiting texts */
    uint64_t n_turns;   /* turns so far */
    struct {
        uint64_t turn; /* the number of the group's last turn, or of the turn at which it began to wait */
        size_t n;      /* its waiting texts */
    } groups[TURNS_GROUPS];
};

void turns_add(struct turns *w, struct text *t);
void turns_remove(struct turns *w, struct text *t); /* it no longer waits */
/* The next text, without those that are passed over (is_passed); NULL: there is none. */
struct text *turns_next(const struct turns *w);
/* Gives the turn to this text, and removes it from the queue. */
void turns_take(struct turns *w, struct text *t);

#endif
