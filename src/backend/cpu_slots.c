/* Slot pools of the CPU device. */
#include <string.h>

#include "backend/cpu_device_internal.h"
#include "backend/cpu_slots_internal.h"

/* Computes the image of an expert with n_ff rows of gate and up and n_embd rows of down. */
static struct layout_image slot_image(const struct cpu *c, const struct slot_pool_desc *d, int64_t n_ff, int64_t n_embd)
{
    struct layout_image image = {0};
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        size_t n = cpu_packed_bytes(c, d->type[i], i == EXPERT_DOWN ? n_embd : n_ff, slot_matrix_k(d, i));
        image.layout[i] = c->kernels->layout[d->type[i]->type];
        image.off[i] = image.n_bytes;
        image.n_bytes += (n + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    }
    return image;
}

static struct layout_image part_image(const struct cpu *c, const struct slot_pool_desc *d, int node)
{
    return slot_image(c, d, cpu_node_row(c, node + 1, d->n_ff) - cpu_node_row(c, node, d->n_ff),
                      cpu_node_row(c, node + 1, d->n_embd) - cpu_node_row(c, node, d->n_embd));
}

bool cpu_slot_pool_image(struct backend *b, const struct slot_pool_desc *d, struct layout_image *out)
{
    *out = slot_image(cpu_of(b), d, d->n_ff, d->n_embd);
    return true;
}

/* Slots that lie on one node can be read into directly. The bytes of a matrix may then begin anywhere in their first
 * block of SLOT_ALIGN, so each matrix has room for one block more than in the image. A slot consists of whole pages, as
 * each is closed by itself. */
static size_t part_slot_bytes(const struct cpu *c, const struct slot_pool_desc *d, int node)
{
    size_t page = mem_page_bytes(), n = part_image(c, d, node).n_bytes;
    n += pool_n_node(c->pool) == 1 ? EXPERT_N_MATRIX * SLOT_ALIGN : 0;
    return (n + page - 1) / page * page;
}

size_t cpu_slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d)
{
    size_t n = 0;
    for (int i = 0; i < pool_n_node(cpu_of(b)->pool); i++)
        n += part_slot_bytes(cpu_of(b), d, i);
    return n;
}

struct slot_pool_desc cpu_slot_pool_shape(struct backend *b, const struct slot_pool *slot_pool)
{
    return slot_pool->d;
}

void cpu_slot_pool_close(struct backend *b, struct slot_pool *slot_pool)
{
    cpu_unreserve(cpu_of(b), slot_pool->data, slot_pool->n_bytes, (size_t)slot_pool->n_open * slot_pool->slot_bytes,
                  MEM_EXPERTS);
    mem_free(slot_pool->slots);
    mem_free(slot_pool);
}

err_code cpu_slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out, struct err *e)
{
    struct cpu *c = cpu_of(b);
    int n_node = pool_n_node(c->pool);
    struct slot_pool *slot_pool = mem_calloc(1, sizeof *slot_pool);
    if (!slot_pool)
        return err_nomem(e, sizeof *slot_pool, "a slot pool");
    *slot_pool = (struct slot_pool){.d = *d, .slot_bytes = cpu_slot_pool_slot_bytes(b, d)};
    for (int i = 0; i < n_node; i++) {
        slot_pool->part[i].image = part_image(c, d, i);
        slot_pool->part[i].slot_bytes = part_slot_bytes(c, d, i);
        slot_pool->n_bytes += mem_length(slot_pool->part[i].slot_bytes * (size_t)d->n_slot);
    }
    slot_pool->slots = mem_calloc((size_t)d->n_slot, sizeof *slot_pool->slots);
    slot_pool->data = mem_reserve(slot_pool->n_bytes);
    if (!slot_pool->data || !slot_pool->slots) {
        size_t n = slot_pool->n_bytes;
        cpu_slot_pool_close(b, slot_pool);
        return err_nomem(e, n, "routed experts");
    }
    char *data = slot_pool->data;
    for (int i = 0; i < n_node; i++) {
        size_t n = mem_length(slot_pool->part[i].slot_bytes * (size_t)d->n_slot);
        slot_pool->part[i].data = data;
        topology_bind_memory(pool_topology(c->pool), data, n, i);
        data += n;
    }
    *out = slot_pool;
    return ERR_OK;
}

bool cpu_slot_open(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    if (!cpu_commit(cpu_of(b), slot_pool->slot_bytes, MEM_EXPERTS))
        return false;
    slot_pool->n_open++;
    return true;
}

void cpu_slot_touch(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    for (int i = 0; i < pool_n_node(cpu_of(b)->pool); i++)
        mem_populate(slot_data(slot_pool, i, slot), slot_pool->part[i].slot_bytes);
}

void cpu_slot_close(struct backend *b, struct slot_pool *slot_pool, int64_t slot)
{
    for (int i = 0; i < pool_n_node(cpu_of(b)->pool); i++)
        cpu_decommit(cpu_of(b), slot_data(slot_pool, i, slot), slot_pool->part[i].slot_bytes, MEM_EXPERTS);
    slot_pool->n_open--;
}

void *cpu_slot_room(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                    bool is_packed)
{
    if (pool_n_node(cpu_of(b)->pool) > 1)
        return NULL;
    return slot_data(slot_pool, 0, slot) + slot_pool->part[0].image.off[matrix] + (is_packed ? 0 : matrix * SLOT_ALIGN);
}

void cpu_slot_adopt(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                    const void *bytes, bool is_packed)
{
    const struct layout_image *image = &slot_pool->part[0].image;
    slot_pool->slots[slot][matrix] = (struct slot_matrix){
        .shift = (size_t)((const char *)bytes - (slot_data(slot_pool, 0, slot) + image->off[matrix])),
        .is_raw = !is_packed && image->layout[matrix] != LAYOUT_ROWS,
    };
}

err_code cpu_slot_fill(struct backend *b, struct slot_pool *slot_pool, int64_t slot, const struct slot_rows *rows,
                       struct err *e)
{
    const struct cpu *c = cpu_of(b);
    const struct slot_pool_desc *d = &slot_pool->d;
    const struct quant_info *type = d->type[rows->matrix];
    int64_t n_all = slot_matrix_rows(d, rows->matrix), k = slot_matrix_k(d, rows->matrix);
    if (rows->row0 == 0 && rows->n_row > 0) /* if several threads fill the matrix, the one with row 0 notes its place */
        slot_pool->slots[slot][rows->matrix] = (struct slot_matrix){0};
    for (int i = 0; i < pool_n_node(c->pool); i++) {
        int64_t first = cpu_node_row(c, i, n_all), end = cpu_node_row(c, i + 1, n_all), row1 = rows->row0 + rows->n_row;
        int64_t from = rows->row0 > first ? rows->row0 : first, to = row1 < end ? row1 : end;
        const struct layout_image *image = &slot_pool->part[i].image;
        char *dst = slot_data(slot_pool, i, slot) + image->off[rows->matrix];
        if (from >= to)
            continue;
        /* rows are as many bytes packed as unpacked */
        const char *src = (const char *)rows->src + cpu_packed_bytes(c, type, from - rows->row0, k);
        if (rows->is_packed)
            memcpy(dst + cpu_packed_bytes(c, type, from - first, k), src, cpu_packed_bytes(c, type, to - from, k));
        else
            layout_pack(
                &(struct layout_matrix){image->layout[rows->matrix], type, (uint64_t)(end - first), (uint64_t)k}, dst,
                src, (uint64_t)(from - first), (uint64_t)(to - from), c->kernels->r16_put);
    }
    return ERR_OK;
}

const void *cpu_slot_bytes(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                           bool *is_packed)
{
    if (pool_n_node(cpu_of(b)->pool) > 1)
        return NULL;
    *is_packed = !slot_pool->slots[slot][matrix].is_raw;
    return slot_matrix_data(slot_pool, 0, slot, matrix);
}

void slot_pack_rows(const struct cpu *c, const struct slot_pool *s, int64_t slot, enum expert_matrix matrix,
                    int64_t row0, int64_t row1, char *tile)
{
    const struct layout_matrix m = {s->part[0].image.layout[matrix], s->d.type[matrix],
                                    (uint64_t)slot_matrix_rows(&s->d, matrix), (uint64_t)slot_matrix_k(&s->d, matrix)};
    if (s->slots[slot][matrix].is_raw)
        layout_pack_in_place(&m, slot_matrix_data(s, 0, slot, matrix), (uint64_t)row0, (uint64_t)(row1 - row0),
                             c->kernels->r16_put, tile);
}

size_t slot_tile_bytes(const struct slot_pool *s)
{
    size_t most = 0;
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        size_t n = 0;
        quant_row_bytes(s->d.type[i], (uint64_t)slot_matrix_k(&s->d, i), &n);
        n = align64(n * LAYOUT_R16_ROWS);
        most = n > most ? n : most;
    }
    return most;
}
