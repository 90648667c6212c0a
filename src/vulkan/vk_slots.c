/* Slot pools: slots of one size, and a table of their addresses on the device. */
#include <assert.h>
#include <string.h>

#include "vulkan/vk_internal.h"

enum { ROWS = LAYOUT_R16_ROWS };

/* How an expert lies in a slot. */
static struct layout_image slot_image(const struct slot_pool_desc *d)
{
    struct layout_image image = {0};
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        size_t groups = (size_t)((slot_matrix_rows(d, i) + ROWS - 1) / ROWS);
        image.layout[i] = layout_supports(LAYOUT_R16, d->type[i]) ? LAYOUT_R16 : LAYOUT_ROWS;
        image.off[i] = image.n_bytes;
        image.n_bytes +=
            (groups * vk_group_bytes(d->type[i], slot_matrix_k(d, i)) + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    }
    return image;
}

/* Quantised experts have the layout of the CPU device, so that one prepared store serves both. Floats are packed when
 * they are uploaded. */
bool vk_slot_pool_image(struct backend *b, const struct slot_pool_desc *d, struct layout_image *out)
{
    *out = (struct layout_image){0};
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        size_t n = 0;
        out->layout[i] = layout_supports(LAYOUT_R16, d->type[i]) ? LAYOUT_R16 : LAYOUT_ROWS;
        out->off[i] = out->n_bytes;
        if (!layout_bytes(out->layout[i], d->type[i], (uint64_t)slot_matrix_rows(d, i), (uint64_t)slot_matrix_k(d, i),
                          &n))
            return false;
        out->n_bytes += (n + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    }
    return true;
}

size_t vk_slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d)
{
    return slot_image(d).n_bytes;
}

struct slot_pool_desc vk_slot_pool_shape(struct backend *b, const struct slot_pool *s)
{
    return s->d;
}

static void close_slot(struct vk *v, struct slot_pool *s, int64_t slot)
{
    if (s->slots[slot].block)
        vk_uncount(v, s->image.n_bytes, MEM_EXPERTS);
    vk_piece_give(v, &s->slots[slot]);
}

void vk_slot_pool_close(struct backend *b, struct slot_pool *s)
{
    struct vk *v = vk_of(b);
    vk_drain(v);
    for (int64_t i = 0; s->slots && i < s->d.n_slot; i++)
        close_slot(v, s, i);
    vk_table_close(v, &s->table);
    mem_free(s->slots);
    mem_free(s);
}

err_code vk_slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out, struct err *e)
{
    struct vk *v = vk_of(b);
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        if (!vk_type_supported(v, d->type[i]))
            return err_set(e, ERR_UNSUPPORTED, "%s: routed experts are of type %s, which this device has no shader for",
                           v->base.name, d->type[i]->name);
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        vk_choose(v, d->type[i]);
    struct slot_pool *s = mem_calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s, "a slot pool");
    *s = (struct slot_pool){.d = *d, .image = slot_image(d)};
    s->slots = mem_calloc((size_t)d->n_slot, sizeof *s->slots);
    err_code code = s->slots ? vk_table_open(v, (size_t)d->n_slot, &s->table, e)
                             : err_nomem(e, (size_t)d->n_slot * sizeof *s->slots, "a slot pool");
    if (code != ERR_OK) {
        vk_slot_pool_close(b, s);
        return code;
    }
    *out = s;
    return ERR_OK;
}

bool vk_slot_open(struct backend *b, struct slot_pool *s, int64_t slot)
{
    struct vk *v = vk_of(b);
    struct err e;
    assert(slot < s->d.n_slot && !s->slots[slot].block);
    if (!vk_try_count(v, s->image.n_bytes, MEM_EXPERTS))
        return false;
    if (vk_piece_take(v, VK_FOR_DEVICE, s->image.n_bytes, "routed experts", &s->slots[slot], &e) != ERR_OK) {
        vk_uncount(v, s->image.n_bytes, MEM_EXPERTS);
        return false;
    }
    vk_table_set(s->table, (size_t)slot, vk_piece_address(&s->slots[slot]));
    return true;
}

/* Waits for all enqueued operations, so that the slot can be opened and filled again at once. Slots must not be closed
 * while operations are being recorded, as the rest of these could not be waited for. */
void vk_slot_close(struct backend *b, struct slot_pool *s, int64_t slot)
{
    struct vk *v = vk_of(b);
    assert(!v->is_flushing);
    vk_drain(v);
    close_slot(v, s, slot);
}

/* Packs and uploads rows in GGUF's order, as many groups at a time as fit into one upload. */
static err_code fill_groups(struct vk *v, const struct vk_piece *p, size_t off, const struct quant_info *type,
                            int64_t k, const struct slot_rows *rows, struct err *e)
{
    size_t group = vk_group_bytes(type, k), row = 0, n_group = (size_t)((rows->n_row + ROWS - 1) / ROWS);
    size_t most = VK_STAGING_BYTES / group > 0 ? VK_STAGING_BYTES / group : 1;
    most = n_group < most ? n_group : most;
    bool ok = quant_row_bytes(type, (uint64_t)k, &row);
    char *packed = mem_alloc(most * group);
    err_code code = packed && ok ? ERR_OK : err_nomem(e, most * group, "packing an expert");
    for (size_t i = 0, n; i < n_group && code == ERR_OK; i += n) {
        n = n_group - i < most ? n_group - i : most;
        for (size_t j = 0; j < n; j++) {
            int64_t r = (int64_t)(i + j) * ROWS;
            vk_pack_group(type, k, packed + j * group, (const char *)rows->src + (size_t)r * row,
                          rows->n_row - r < ROWS ? rows->n_row - r : ROWS);
        }
        code = vk_upload(v, p, off + ((size_t)(rows->row0 / ROWS) + i) * group, packed, n * group, e);
    }
    mem_free(packed);
    return code;
}

err_code vk_slot_fill(struct backend *b, struct slot_pool *s, int64_t slot, const struct slot_rows *rows, struct err *e)
{
    struct vk *v = vk_of(b);
    const struct quant_info *type = s->d.type[rows->matrix];
    int64_t k = slot_matrix_k(&s->d, rows->matrix);
    const struct vk_piece *p = &s->slots[slot];
    size_t off = s->image.off[rows->matrix];
    if (!rows->is_packed || s->image.layout[rows->matrix] == LAYOUT_ROWS)
        return fill_groups(v, p, off, type, k, rows, e);
    size_t group = vk_group_bytes(type, k);
    return vk_upload(v, p, off + (size_t)(rows->row0 / ROWS) * group, rows->src,
                     (size_t)((rows->n_row + ROWS - 1) / ROWS) * group, e);
}
