#include "server/kept_items.h"

#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"

void kept_items_open(struct kept_items *k)
{
    *k = (struct kept_items){0};
    pthread_mutex_init(&k->lock, NULL);
}

static void forget(struct kept_items *k, struct kept_item *i)
{
    k->n_bytes -= i->n;
    mem_free(i->id);
    mem_free(i->text);
    *i = (struct kept_item){0};
}

void kept_items_close(struct kept_items *k)
{
    for (size_t i = 0; i < KEPT_ITEMS_MAX; i++)
        forget(k, &k->items[i]);
    pthread_mutex_destroy(&k->lock);
}

void kept_items_add(struct kept_items *k, const json_t *item)
{
    const char *id = json_string_value(json_object_get(item, "id"));
    struct kept_item new = {.id = id ? mem_strdup(id) : NULL};
    new.text = new.id ? json_write(item, JSON_COMPACT, &new.n) : NULL;
    if (!new.text || new.n > KEPT_ITEMS_BYTES) {
        mem_free(new.id);
        mem_free(new.text);
        return;
    }
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < KEPT_ITEMS_MAX && (i == 0 || k->n_bytes + new.n > KEPT_ITEMS_BYTES); i++)
        forget(k, &k->items[(k->next + i) % KEPT_ITEMS_MAX]);
    k->items[k->next] = new;
    k->next = (k->next + 1) % KEPT_ITEMS_MAX;
    k->n_bytes += new.n;
    pthread_mutex_unlock(&k->lock);
}

json_t *kept_items_find(struct kept_items *k, const char *id, size_t *n_bytes)
{
    json_t *found = NULL;
    json_error_t error;
    *n_bytes = 0;
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < KEPT_ITEMS_MAX && !found; i++)
        if (k->items[i].id && !strcmp(k->items[i].id, id)) {
            found = json_read(k->items[i].text, k->items[i].n, JSON_ALLOW_NUL, &error);
            *n_bytes = k->items[i].n;
        }
    pthread_mutex_unlock(&k->lock);
    return found;
}
