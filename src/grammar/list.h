/* Growable arrays, and interning: sequences of words that are each stored once and identified by a number. */
#ifndef GRAMMAR_LIST_H
#define GRAMMAR_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

/* A growable array of `type`; zeros: empty. Its elements move when it grows. */
#define LIST(type)                                                                                                     \
    struct {                                                                                                           \
        type *at;                                                                                                      \
        uint32_t n, capacity;                                                                                          \
        void *larger; /* LIST_ROOM's */                                                                                \
    }

void *list_enlarge(void *at, uint32_t *capacity, size_t need, size_t size); /* NULL: no memory, `at` is as it was */

/* Makes room for `more` elements; false: no memory. */
#define LIST_ROOM(l, more)                                                                                             \
    ((size_t)(l)->n + (more) <= (l)->capacity ||                                                                       \
     (((l)->larger = list_enlarge((l)->at, &(l)->capacity, (size_t)(l)->n + (more), sizeof *(l)->at)) &&               \
      ((l)->at = (l)->larger)))
#define LIST_PUSH(l, ...) (LIST_ROOM(l, 1) ? ((l)->at[(l)->n++] = (__VA_ARGS__), true) : false)
/* From element i on; NULL where nothing was ever added. */
#define LIST_FROM(l, i) ((l)->at ? (l)->at + (i) : NULL)
#define LIST_CLOSE(l)   (mem_free((l)->at), (l)->at = NULL, (l)->n = (l)->capacity = 0)

/* A table of sequences of words. Each is stored once and has a number, counted from 0. */
struct intern {
    LIST(uint32_t) words;
    struct intern_item {
        uint32_t at, n;
        uint32_t hash;
    } * items;                /* [n] */
    uint32_t n, capacity;     /* of items */
    uint32_t *table, n_table; /* a power of two of slots: number + 1, or 0 */
};
enum { INTERN_NONE = UINT32_MAX };

uint32_t intern_add(struct intern *t, const uint32_t *words, uint32_t n); /* INTERN_NONE: no memory */
/* The same for a text of n bytes. A table holds either texts or sequences of words. */
uint32_t intern_text(struct intern *t, const char *s, size_t n);
/* The words of a number; the pointer is valid until the next sequence is added. */
static inline const uint32_t *intern_words(const struct intern *t, uint32_t number, uint32_t *n)
{
    *n = t->items[number].n;
    return t->words.at + t->items[number].at;
}
size_t intern_bytes(const struct intern *t);
void intern_close(struct intern *t);

#endif
