#include <assert.h>
#include <string.h>

#include "backend/cpu_experts_internal.h"
#include "backend/cpu_matmul_internal.h"
#include "base/minmax.h"

static int64_t n_pair_at_most(const struct expert_choice *choice)
{
    return choice->n_tok * choice->n_used;
}

static size_t items_bytes(const struct expert_choice *choice)
{
    return align64((size_t)n_pair_at_most(choice) * sizeof(struct expert_item));
}

static size_t pairs_bytes(const struct expert_choice *choice)
{
    return align64((size_t)n_pair_at_most(choice) * sizeof(int32_t));
}

size_t expert_plan_bytes(const struct expert_choice *choice)
{
    size_t by_expert_bytes = align64((size_t)(choice->n_expert + 1) * sizeof(int32_t));
    return items_bytes(choice) + pairs_bytes(choice) + by_expert_bytes;
}

/* The slot of a pair's expert; -1: the pair is not computed. */
static int32_t slot_of(const struct expert_choice *choice, int64_t pair)
{
    int32_t expert = choice->ids[pair];
    return expert < 0 ? -1 : choice->slots[expert];
}

/* Direct: one item for each pair whose expert has a slot, by token and rank. seen: [n_expert], work space */
static void plan_direct(struct expert_plan *p, const struct expert_choice *choice, int32_t *seen)
{
    memset(seen, 0, (size_t)choice->n_expert * sizeof *seen);
    for (int64_t pair = 0; pair < n_pair_at_most(choice); pair++) {
        int32_t expert = choice->ids[pair], slot = slot_of(choice, pair);
        if (slot < 0)
            continue;
        p->pair_of_row[p->n_item] = (int32_t)pair;
        p->items[p->n_item] = (struct expert_item){
            .slot = slot, .expert = expert, .is_again = seen[expert]++, .row0 = (int32_t)p->n_item, .n = 1};
        p->n_item++;
    }
    p->n_pair = p->n_item;
}

/* Sorted: one item for each expert that has pairs, by counting sort. first: [n_expert + 1], work space */
static void plan_sorted(struct expert_plan *p, const struct expert_choice *choice, int32_t *first)
{
    const int32_t *ids = choice->ids, *slots = choice->slots;
    memset(first, 0, (size_t)(choice->n_expert + 1) * sizeof *first);
    for (int64_t pair = 0; pair < n_pair_at_most(choice); pair++)
        if (slot_of(choice, pair) >= 0)
            first[ids[pair] + 1]++;
    for (int64_t e = 0; e < choice->n_expert; e++) {
        if (first[e + 1])
            p->items[p->n_item++] =
                (struct expert_item){.slot = slots[e], .expert = (int32_t)e, .row0 = first[e], .n = first[e + 1]};
        first[e + 1] += first[e];
    }
    p->n_pair = first[choice->n_expert];
    for (int64_t pair = 0; pair < n_pair_at_most(choice); pair++)
        if (slot_of(choice, pair) >= 0)
            p->pair_of_row[first[ids[pair]]++] = (int32_t)pair;
#ifndef NDEBUG
    for (int64_t i = 0; i < p->n_item; i++) /* the contract with the kernels: an item's rows are its expert's */
        for (int32_t r = 0; r < p->items[i].n; r++)
            assert(slots[ids[p->pair_of_row[p->items[i].row0 + r]]] == p->items[i].slot);
#endif
}

void expert_plan_make(struct expert_plan *p, const struct expert_choice *choice, bool is_sorted, void *memory)
{
    char *pairs = (char *)memory + items_bytes(choice), *by_expert = pairs + pairs_bytes(choice);
    *p = (struct expert_plan){
        .is_sorted = is_sorted, .n_used = choice->n_used, .items = memory, .pair_of_row = (int32_t *)(void *)pairs};
    (is_sorted ? plan_sorted : plan_direct)(p, choice, (int32_t *)(void *)by_expert);
}

void expert_cut_make(struct expert_cut *cut, const struct cpu *c, const struct expert_plan *p, int64_t n_row, int64_t k,
                     int n_walked)
{
    int n_node = pool_n_node(c->pool);
    int64_t n_chunk = 0, n_tok = p->is_sorted && p->n_pair > 1 ? max_i64(2, p->n_pair / p->n_item) : 1; /* an item's */
    cut->n_walked = n_walked;
    cut->chunk_rows = cpu_chunk_rows(c, n_row * p->n_item, k, n_tok);
    if (cut->chunk_rows > n_row)
        cut->chunk_rows = (n_row + LAYOUT_R16_ROWS - 1) / LAYOUT_R16_ROWS * LAYOUT_R16_ROWS;
    for (int i = 0; i < n_node; i++) {
        int64_t row0 = cpu_node_row(c, i, n_row), row1 = cpu_node_row(c, i + 1, n_row);
        cut->node[i].row0 = row0;
        cut->node[i].row1 = row1;
        cut->node[i].n_chunk = (row1 - row0 + cut->chunk_rows - 1) / cut->chunk_rows;
        cut->first_task[i] = (size_t)(p->n_item * n_chunk);
        n_chunk += n_walked * cut->node[i].n_chunk;
    }
    cut->first_task[n_node] = (size_t)(p->n_item * n_chunk);
}

int64_t expert_cut_n_chunk(const struct expert_cut *cut, const struct cpu *c)
{
    int64_t n = 0;
    for (int i = 0; i < pool_n_node(c->pool); i++)
        n += cut->n_walked * cut->node[i].n_chunk;
    return n;
}

struct expert_task expert_cut_task(const struct expert_cut *cut, const struct cpu *c, size_t task)
{
    int node = pool_n_node(c->pool) - 1;
    while (task < cut->first_task[node])
        node--;
    int64_t n_chunk = cut->node[node].n_chunk, row1 = cut->node[node].row1;
    int64_t i = (int64_t)(task - cut->first_task[node]), n_item_chunk = cut->n_walked * n_chunk;
    struct expert_task t = {.node = node, .walked = (int)(i % n_item_chunk / n_chunk), .item = i / n_item_chunk};
    t.row0 = cut->node[node].row0 + i % n_chunk * cut->chunk_rows;
    t.row1 = t.row0 + cut->chunk_rows < row1 ? t.row0 + cut->chunk_rows : row1;
    return t;
}
