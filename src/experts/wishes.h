/* Experts that were wanted and stood in for: which of them to read when the drive has nothing better to do. Those with
 * the highest scores first, and the past fades: a score halves every 16 tokens. A list of a fixed length; what is
 * wished for least falls out. */
#ifndef EXPERTS_WISHES_H
#define EXPERTS_WISHES_H

#include <stdbool.h>
#include <stdint.h>

enum { WISHES_MAX = 64 };

struct wish {
    int layer;
    int32_t expert;
    float score; /* of all times that it was wished for, aged */
};

struct wishes {
    struct wish list[WISHES_MAX];
    int n;
};

void wishes_add(struct wishes *w, int layer, int32_t expert, float score);

/* A token has passed. */
void wishes_age(struct wishes *w);

/* Takes the one with the highest score out, among equals the oldest; false: there is none. */
bool wishes_pop(struct wishes *w, struct wish *out);

#endif
