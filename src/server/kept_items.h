/* Items of answers to OpenAI's responses API, kept so that a later request can refer to them by id instead of sending
 * them back, as clients do that assume the server stores them. Only the most recent items are kept, in memory. Their
 * ids are random, so no client can guess another one's. Thread-safe. */
#ifndef SERVER_KEPT_ITEMS_H
#define SERVER_KEPT_ITEMS_H

#include <jansson.h>
#include <pthread.h>

enum { KEPT_ITEMS_MAX = 4096, KEPT_ITEMS_BYTES = 16 << 20 /* of their texts */ };

struct kept_items {
    pthread_mutex_t lock;
    struct kept_item {
        char *id;            /* owned; NULL: the place is free */
        char *text;          /* the item as JSON, owned */
        size_t n;            /* bytes of the text */
    } items[KEPT_ITEMS_MAX]; /* a ring buffer */
    size_t next;             /* where the next item goes */
    size_t n_bytes;          /* of all texts */
};

void kept_items_open(struct kept_items *k);
void kept_items_close(struct kept_items *k);
/* Keeps a copy of the item, and forgets the oldest ones to make room for it. Without memory the item is not kept. */
void kept_items_add(struct kept_items *k, const json_t *item);
/* A copy of the item, owned by the caller, and the bytes of its text; NULL: it is not there. */
json_t *kept_items_find(struct kept_items *k, const char *id, size_t *n_bytes);

#endif
