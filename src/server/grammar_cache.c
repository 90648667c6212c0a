#include "server/grammar_cache.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_KEPT = 32, MAX_KEPT_BYTES = 128 << 20 }; /* of grammars that nobody uses */

struct grammar_cache {
    const moebius_vocab *vocab;
    pthread_mutex_t lock;
    struct kept_grammar *first; /* a list, most recently used first */
};

err_code grammar_cache_open(struct grammar_cache **out, const moebius_vocab *vocab, struct err *e)
{
    struct grammar_cache *c = *out = mem_calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, sizeof *c, "grammars");
    c->vocab = vocab;
    pthread_mutex_init(&c->lock, NULL);
    return ERR_OK;
}

static void free_kept(struct kept_grammar *k)
{
    moebius_grammar_close(&k->grammar);
    mem_free(k->text);
    mem_free(k);
}

void grammar_cache_close(struct grammar_cache **cache)
{
    struct grammar_cache *c = *cache;
    if (!c)
        return;
    *cache = NULL;
    for (struct kept_grammar *k = c->first, *next; k; k = next) {
        next = k->next;
        free_kept(k);
    }
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

/* Finds the grammar of the same source, and moves it to the front. NULL: there is none. The lock is held. */
static struct kept_grammar *find(struct grammar_cache *c, const struct kept_grammar *like)
{
    for (struct kept_grammar **at = &c->first; *at; at = &(*at)->next) {
        struct kept_grammar *k = *at;
        if (k->n != like->n || k->kind != like->kind || k->flags != like->flags ||
            memcmp(k->text, like->text, k->n) != 0)
            continue;
        *at = k->next;
        k->next = c->first;
        c->first = k;
        k->n_users++;
        return k;
    }
    return NULL;
}

static moebius_status compile(const struct grammar_cache *c, const struct kept_grammar *like, struct kept_grammar **out,
                              moebius_error *error)
{
    struct kept_grammar *k = *out = mem_calloc(1, sizeof *k);
    char *text = mem_alloc(like->n + 1);
    if (!k || !text) {
        mem_free(k);
        mem_free(text);
        *error = (moebius_error){.status = MOEBIUS_NOMEM};
        snprintf(error->text, sizeof error->text, "there is no memory for a grammar");
        return MOEBIUS_NOMEM;
    }
    memcpy(text, like->text, like->n);
    text[like->n] = '\0';
    *k = *like;
    k->text = text;
    k->n_users = 1;
    moebius_status status = moebius_grammar_open(&k->grammar, c->vocab, k->kind, k->text, k->n, k->flags, error);
    if (status != MOEBIUS_OK)
        free_kept(k);
    return status;
}

moebius_status grammar_cache_take(struct grammar_cache *cache, moebius_grammar_kind kind, const char *text, size_t n,
                                  unsigned flags, struct kept_grammar **out, moebius_error *error)
{
    const struct kept_grammar like = {.text = (char *)text, .n = n, .kind = kind, .flags = flags};
    pthread_mutex_lock(&cache->lock);
    *out = find(cache, &like);
    pthread_mutex_unlock(&cache->lock);
    if (*out)
        return MOEBIUS_OK;
    moebius_status status = compile(
        cache, &like, out, error); /* without the lock, so that others need not wait; two may compile the same */
    if (status != MOEBIUS_OK) {
        *out = NULL;
        return status;
    }
    pthread_mutex_lock(&cache->lock);
    (*out)->next = cache->first;
    cache->first = *out;
    pthread_mutex_unlock(&cache->lock);
    return MOEBIUS_OK;
}

/* Unlinks unused grammars beyond the bounds, least recently used first, and returns them. The lock is held. */
static struct kept_grammar *take_surplus(struct grammar_cache *c)
{
    struct kept_grammar *surplus = NULL;
    size_t n = 0, n_bytes = 0;
    for (struct kept_grammar **at = &c->first; *at;) {
        struct kept_grammar *k = *at;
        if (k->n_users == 0) {
            n++;
            n_bytes += k->n + moebius_grammar_bytes(k->grammar);
        }
        if (k->n_users > 0 || (n <= MAX_KEPT && n_bytes <= MAX_KEPT_BYTES)) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        k->next = surplus;
        surplus = k;
    }
    return surplus;
}

void grammar_cache_give_back(struct grammar_cache *cache, struct kept_grammar *kept)
{
    pthread_mutex_lock(&cache->lock);
    kept->n_users--;
    struct kept_grammar *surplus = take_surplus(cache);
    pthread_mutex_unlock(&cache->lock);
    for (struct kept_grammar *next; surplus; surplus = next) {
        next = surplus->next;
        free_kept(surplus);
    }
}
