/* Texts that wait for their turn: those that were running before come first, then groups take turns, that which had
 * none for longest first, and within a group who came first. */
#ifndef TEXTS_TURNS_H
#define TEXTS_TURNS_H

#include "texts/one_text.h"

enum { TURNS_GROUPS = 1024 }; /* groups beyond these share turns */

struct turns {
    struct text *first; /* by the order in which they came, as far as they were not running before */
    size_t n;
    uint64_t n_turns;
    struct {
        uint64_t turn; /* when the group had its last one, or began to wait */
        size_t n;      /* its texts */
    } groups[TURNS_GROUPS];
};

void turns_add(struct turns *w, struct text *t);
void turns_remove(struct turns *w, struct text *t); /* it waits no more */
/* Whose turn it is among those that are not passed over; NULL: nobody's. */
struct text *turns_next(const struct turns *w);
/* It is this text's turn: removes it. */
void turns_take(struct turns *w, struct text *t);

#endif
