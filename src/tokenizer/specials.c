#include "tokenizer/specials.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int special_compare(const void *a, const void *b)
{
    const struct special *x = a, *y = b;
    size_t n = x->text.n < y->text.n ? x->text.n : y->text.n;
    int c = memcmp(x->text.s, y->text.s, n);
    if (c != 0)
        return c;
    if (x->text.n != y->text.n)
        return x->text.n < y->text.n ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

struct order_item {
    size_t n;
    int32_t id;
    uint32_t index;
};

static int order_compare(const void *a, const void *b)
{
    const struct order_item *x = a, *y = b;
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static err_code orders_fill(struct specials *s, struct err *e)
{
    struct order_item *items = mem_resize(NULL, s->n, sizeof *items);
    if (!items)
        return err_nomem(e, s->n * sizeof *items, "special tokens");
    for (uint32_t i = 0; i < s->n; i++)
        items[i] = (struct order_item){.n = s->sorted[i].text.n, .id = s->sorted[i].id, .index = i};
    qsort(items, s->n, sizeof *items, order_compare);
    for (uint32_t i = 0; i < s->n; i++)
        s->sorted[items[i].index].order = i;
    mem_free(items);
    return ERR_OK;
}

static bool is_prefix(struct text a, struct text b)
{
    return a.n < b.n && memcmp(a.s, b.s, a.n) == 0;
}

static bool is_frame(struct text t)
{
    static const char *const ends[][2] = {{"<|", "|>"}, {"<\uff5c", "\uff5c>"}};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(ends[i][0]);
        if (t.n > 2 * n && !memcmp(t.s, ends[i][0], n) && !memcmp(t.s + t.n - n, ends[i][1], n))
            return true;
    }
    return false;
}

err_code specials_open(struct specials *s, const struct vocab *v, struct err *e)
{
    *s = (struct specials){0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        n += (v->attrs[i] & TOKEN_IN_TEXT) != 0;
    if (n == 0)
        return ERR_OK;
    s->sorted = mem_calloc(n, sizeof *s->sorted);
    if (!s->sorted)
        return err_nomem(e, n * sizeof *s->sorted, "special tokens");
    n = 0;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (v->attrs[i] & TOKEN_IN_TEXT)
            s->sorted[n++] = (struct special){.text = v->symbols.texts[i],
                                              .id = (int32_t)i,
                                              .user_defined = (v->attrs[i] & TOKEN_SPECIAL) == 0,
                                              .is_frame = is_frame(v->symbols.texts[i])};
    qsort(s->sorted, n, sizeof *s->sorted, special_compare);
    for (uint32_t i = 0; i < n; i++) {
        struct special *last = s->n > 0 ? &s->sorted[s->n - 1] : NULL, *next = &s->sorted[i];
        if (last && last->text.n == next->text.n && !memcmp(last->text.s, next->text.s, next->text.n)) {
            last->user_defined |= next->user_defined;
            continue;
        }
        /* Prefixes of a text sort before it and are prefixes of each other: they form a chain. */
        uint32_t shorter = last ? s->n - 1 : SYMBOL_NONE;
        while (shorter != SYMBOL_NONE && !is_prefix(s->sorted[shorter].text, next->text))
            shorter = s->sorted[shorter].shorter;
        s->starts[(unsigned char)next->text.s[0]] = true;
        s->starts_user_defined[(unsigned char)next->text.s[0]] |= next->user_defined;
        s->sorted[s->n] = *next;
        s->sorted[s->n++].shorter = shorter;
    }
    return orders_fill(s, e);
}

void specials_close(struct specials *s)
{
    mem_free(s->sorted);
    *s = (struct specials){0};
}

void special_work_close(struct special_work *w)
{
    mem_free(w->hits);
    heap_close(&w->heap);
    *w = (struct special_work){0};
}

/* The first of sorted[lo..hi), which share their first `depth` bytes, whose next byte is c or more. */
static uint32_t bound(const struct specials *s, uint32_t lo, uint32_t hi, size_t depth, unsigned c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        struct text t = s->sorted[mid].text;
        if (t.n > depth && (unsigned char)t.s[depth] >= c)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* The longest special that the text starts with, or SYMBOL_NONE. */
static uint32_t longest_at(const struct specials *s, const char *text, size_t n)
{
    uint32_t lo = 0, hi = s->n, longest = SYMBOL_NONE;
    for (size_t depth = 0; depth < n && lo < hi; depth++) {
        unsigned c = (unsigned char)text[depth];
        lo = bound(s, lo, hi, depth, c);
        hi = bound(s, lo, hi, depth, c + 1);
        if (lo < hi && s->sorted[lo].text.n == depth + 1)
            longest = lo;
    }
    return longest;
}

/* How many of the n bytes from `at` on may be in a token that is not found anywhere. */
static size_t n_trusted(const struct special_text *t, size_t at, size_t n)
{
    if (!t->parse)
        return 0;
    const char *end = t->trusted ? memchr(t->trusted + at, 0, n) : NULL;
    return end ? (size_t)(end - t->trusted) - at : n;
}

/* The longest eligible one of i and its prefixes that fits into the n bytes from `at` on. */
static uint32_t fitting(const struct specials *s, uint32_t i, const struct special_text *t, size_t at, size_t n)
{
    if (i == SYMBOL_NONE)
        return i;
    size_t n_control = n_trusted(t, at, s->sorted[i].text.n < n ? s->sorted[i].text.n : n);
    for (; i != SYMBOL_NONE; i = s->sorted[i].shorter) {
        const struct special *special = &s->sorted[i];
        bool anywhere = special->user_defined && !(t->trusted && special->is_frame);
        if (special->text.n <= (anywhere ? n : n_control))
            break;
    }
    return i;
}

static err_code candidate_push(const struct specials *s, struct special_work *w, uint32_t i, size_t at, struct err *e)
{
    if (i == SYMBOL_NONE)
        return ERR_OK;
    return heap_push(&w->heap, (struct heap_item){.key = s->sorted[i].order, .at = at, .merged = i}, e);
}

static err_code hit_append(struct special_work *w, struct special_hit hit, struct err *e)
{
    TRY(mem_grow(&w->hits, &w->capacity, w->n + 1, sizeof *w->hits, "special tokens of a text", e));
    w->hits[w->n++] = hit;
    return ERR_OK;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Accepts the candidates, best first, where no better one took the bytes. taken: one flag a byte of text. */
static err_code candidates_accept(const struct specials *s, const struct vocab *v, struct special_work *w,
                                  const struct special_text *t, char *taken, struct err *e)
{
    while (w->heap.n > 0) {
        struct heap_item item = heap_pop(&w->heap);
        const struct special *special = &s->sorted[item.merged];
        size_t start = (size_t)item.at, len = special->text.n;
        if (taken[start])
            continue;
        const char *blocked = memchr(taken + start, 1, len);
        if (blocked) {
            size_t room = (size_t)(blocked - taken) - start;
            TRY(candidate_push(s, w, fitting(s, special->shorter, t, start, room), start, e));
            continue;
        }
        size_t end = start + len;
        if (v->attrs[special->id] & TOKEN_RSTRIP)
            while (end < t->n && !taken[end] && is_space(t->s[end]))
                end++;
        memset(taken + start, 1, end - start);
        TRY(hit_append(w, (struct special_hit){.start = start, .end = end, .id = special->id}, e));
    }
    return ERR_OK;
}

static int hit_compare(const void *a, const void *b)
{
    const struct special_hit *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

err_code specials_find(const struct specials *s, const struct vocab *v, struct special_work *w,
                       const struct special_text *t, struct err *e)
{
    const bool *starts = t->parse ? s->starts : s->starts_user_defined;
    w->n = 0;
    w->heap.n = 0;
    for (size_t i = 0; i < t->n; i++)
        if (starts[(unsigned char)t->s[i]])
            TRY(candidate_push(s, w, fitting(s, longest_at(s, t->s + i, t->n - i), t, i, t->n - i), i, e));
    if (w->heap.n == 0)
        return ERR_OK;
    char *taken = mem_calloc(t->n, 1);
    if (!taken)
        return err_nomem(e, t->n, "special tokens of a text");
    err_code code = candidates_accept(s, v, w, t, taken, e);
    mem_free(taken);
    if (code == ERR_OK && w->n > 1)
        qsort(w->hits, w->n, sizeof *w->hits, hit_compare);
    return code;
}
