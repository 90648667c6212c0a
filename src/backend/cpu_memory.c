/* The device's ledger of memory, its scratch, and the rows of a matrix that lie on each memory node. */
#include <assert.h>

#include "backend/cpu_internal.h"

/* ---- the ledger ------------------------------------------------------------------------------------------------ */

static void *cpu_try_map(struct cpu *c, size_t n_bytes, enum mem_tag tag)
{
    void *p = mem_try_map(n_bytes, tag);
    if (p)
        atomic_fetch_add(&c->held_bytes[tag], mem_length(n_bytes));
    return p;
}

void *cpu_map(struct cpu *c, size_t n_bytes, enum mem_tag tag)
{
    return mem_make_room(n_bytes) ? cpu_try_map(c, n_bytes, tag) : NULL;
}

void cpu_unmap(struct cpu *c, void *p, size_t n_bytes, enum mem_tag tag)
{
    if (p)
        atomic_fetch_sub(&c->held_bytes[tag], mem_length(n_bytes));
    mem_unmap(p, n_bytes, tag);
}

bool cpu_commit(struct cpu *c, size_t n_bytes, enum mem_tag tag)
{
    if (!mem_commit(n_bytes, tag))
        return false;
    atomic_fetch_add(&c->held_bytes[tag], n_bytes);
    return true;
}

void cpu_decommit(struct cpu *c, void *p, size_t n_bytes, enum mem_tag tag)
{
    atomic_fetch_sub(&c->held_bytes[tag], n_bytes);
    mem_decommit(p, n_bytes, tag);
}

void cpu_unreserve(struct cpu *c, void *p, size_t n_bytes, size_t n_committed, enum mem_tag tag)
{
    atomic_fetch_sub(&c->held_bytes[tag], n_committed);
    mem_unreserve(p, n_bytes, n_committed, tag);
}

size_t cpu_held_bytes(struct backend *b, enum mem_tag tag)
{
    return atomic_load(&cpu_of(b)->held_bytes[tag]);
}

/* ---- scratch --------------------------------------------------------------------------------------------------- */

void *cpu_scratch(struct cpu *c, enum cpu_scratch id, size_t n_bytes)
{
    size_t has = c->scratch[id].n_bytes;
    if (mem_is_guarded() ? has == n_bytes : has >= n_bytes)
        return c->scratch[id].p;
    cpu_unmap(c, c->scratch[id].p, c->scratch[id].n_bytes, MEM_SCRATCH);
    c->scratch[id].n_bytes = 0;
    c->scratch[id].p = cpu_try_map(c, n_bytes, MEM_SCRATCH);
    if (c->scratch[id].p)
        c->scratch[id].n_bytes = n_bytes;
    else if (mem_room_bytes() < mem_length(n_bytes))
        c->missing_bytes = n_bytes;
    else if (c->error.code == ERR_OK)
        err_nomem(&c->error, n_bytes, "work space");
    return c->scratch[id].p;
}

void cpu_scratch_release(struct cpu *c)
{
    for (int i = 0; i < N_SCRATCH; i++) {
        cpu_unmap(c, c->scratch[i].p, c->scratch[i].n_bytes, MEM_SCRATCH);
        c->scratch[i].p = NULL;
        c->scratch[i].n_bytes = 0;
    }
}

/* ---- memory nodes ---------------------------------------------------------------------------------------------- */

int64_t cpu_node_row(const struct cpu *c, int node, int64_t n_row)
{
    int64_t n_group = (n_row + LAYOUT_R16_ROWS - 1) / LAYOUT_R16_ROWS;
    int64_t row = (int64_t)pool_node_first(c->pool, node, (size_t)n_group) * LAYOUT_R16_ROWS;
    return row < n_row ? row : n_row;
}

size_t cpu_packed_bytes(const struct cpu *c, const struct quant_info *type, int64_t n_row, int64_t k)
{
    size_t n = 0;
    bool ok = layout_bytes(c->kernels->layout[type->type], type, (uint64_t)n_row, (uint64_t)k, &n);
    assert(ok);
    return n;
}
