/* Items of answers that later requests refer to by their ids, in place of sending them back, as clients of OpenAI's
 * responses do that may suppose that the server stores them. The last ones are kept, in memory alone. Their ids are
 * random, so that nobody comes upon another one's. Thread-safe. */
#ifndef SERVER_KEPT_ITEMS_H
#define SERVER_KEPT_ITEMS_H

#include <jansson.h>
#include <pthread.h>

enum { KEPT_ITEMS_MAX = 4096, KEPT_ITEMS_BYTES = 16 << 20 /* of their texts */ };

struct kept_items {
    pthread_mutex_t lock;
    struct kept_item {
        char *id, *text;     /* of JSON; owned, NULL: there is none */
        size_t n;            /* bytes of the text */
    } items[KEPT_ITEMS_MAX]; /* a ring */
    size_t next;             /* where the next one goes */
    size_t n_bytes;          /* of all texts */
};

void kept_items_open(struct kept_items *k);
void kept_items_close(struct kept_items *k);
/* Keeps a copy, and forgets the oldest ones that it leaves no room for. One less where memory is short. */
void kept_items_add(struct kept_items *k, const json_t *item);
json_t *kept_items_find(struct kept_items *k, const char *id); /* the caller's; NULL: it is not there */

#endif
