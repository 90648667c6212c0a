#include "tokenizer/merge.h"

#include "base/mem.h"
#include "tokenizer/symbols.h"

void heap_close(struct heap *h)
{
    mem_free(h->items);
    *h = (struct heap){0};
}

static bool item_before(const struct heap_item *a, const struct heap_item *b)
{
    return a->key < b->key || (a->key == b->key && a->at < b->at);
}

err_code heap_push(struct heap *h, struct heap_item item, struct err *e)
{
    TRY(mem_grow(&h->items, &h->capacity, h->n + 1, sizeof *h->items, "tokenising", e));
    size_t i = h->n++;
    for (; i > 0 && item_before(&item, &h->items[(i - 1) / 2]); i = (i - 1) / 2)
        h->items[i] = h->items[(i - 1) / 2];
    h->items[i] = item;
    return ERR_OK;
}

struct heap_item heap_pop(struct heap *h)
{
    struct heap_item top = h->items[0], last = h->items[--h->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n)
            break;
        if (child + 1 < h->n && item_before(&h->items[child + 1], &h->items[child]))
            child++;
        if (!item_before(&h->items[child], &last))
            break;
        h->items[i] = h->items[child];
        i = child;
    }
    h->items[i] = last;
    return top;
}

void merge_work_close(struct merge_work *w)
{
    mem_free(w->nodes);
    heap_close(&w->heap);
    *w = (struct merge_work){0};
}

void merge_start(struct merge_work *w)
{
    w->n = 0;
}

err_code merge_append(struct merge_work *w, size_t off, size_t n_bytes, uint32_t symbol, struct err *e)
{
    if (w->n == MERGE_END)
        return err_set(e, ERR_LIMIT, "a word of the text has more than %u characters", MERGE_END);
    TRY(mem_grow(&w->nodes, &w->capacity, w->n + 1, sizeof *w->nodes, "tokenising", e));
    uint32_t i = (uint32_t)w->n++;
    if (i > 0)
        w->nodes[i - 1].next = i;
    w->nodes[i] = (struct merge_node){
        .off = off, .n_bytes = n_bytes, .symbol = symbol, .prev = i > 0 ? i - 1 : MERGE_END, .next = MERGE_END};
    return ERR_OK;
}

static err_code pair_push(struct merge_work *w, uint32_t left, uint32_t right, merge_pair_fn *pair, const void *user,
                          const char *text, struct err *e)
{
    if (left == MERGE_END || right == MERGE_END)
        return ERR_OK;
    const struct merge_node *l = &w->nodes[left], *r = &w->nodes[right];
    uint32_t rank, merged;
    if (!pair(user, text, l, r, &rank, &merged))
        return ERR_OK;
    struct heap_item item = {.key = (uint64_t)rank << 32 | left,
                             .at = left,
                             .right = right,
                             .left_symbol = l->symbol,
                             .right_symbol = r->symbol,
                             .merged = merged};
    return heap_push(&w->heap, item, e);
}

err_code merge_run(struct merge_work *w, merge_pair_fn *pair, const void *user, const char *text, struct err *e)
{
    w->heap.n = 0;
    for (size_t i = 1; i < w->n; i++)
        TRY(pair_push(w, (uint32_t)i - 1, (uint32_t)i, pair, user, text, e));
    while (w->heap.n > 0) {
        struct heap_item item = heap_pop(&w->heap);
        struct merge_node *l = &w->nodes[item.at], *r = &w->nodes[item.right];
        /* A node that grew since has another symbol; one that was swallowed has no bytes. */
        if (l->n_bytes == 0 || r->n_bytes == 0 || l->next != item.right || l->symbol != item.left_symbol ||
            r->symbol != item.right_symbol)
            continue;
        l->n_bytes += r->n_bytes;
        r->n_bytes = 0;
        l->symbol = item.merged;
        l->next = r->next;
        if (l->next != MERGE_END)
            w->nodes[l->next].prev = (uint32_t)item.at;
        TRY(pair_push(w, l->prev, (uint32_t)item.at, pair, user, text, e));
        TRY(pair_push(w, (uint32_t)item.at, l->next, pair, user, text, e));
    }
    return ERR_OK;
}
