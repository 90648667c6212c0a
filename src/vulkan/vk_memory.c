/* Memory of the device: allocations within its limit, which are divided into pieces; buffers; tables of addresses. */
#include <assert.h>
#include <string.h>

#include "vulkan/vk_internal.h"

/* Pieces of up to half of a block share blocks, which become larger the more memory there is, so that drivers' limits
 * on the number of allocations are not reached; larger pieces have a block each. */
enum { MIN_BLOCK_BYTES = 16 << 20, MAX_BLOCK_BYTES = 256 << 20, BLOCK_SHARE = 8, PIECE_ALIGN = 256 };

/* ---- how much there may be ------------------------------------------------------------------------------------- */

/* The budget includes what the driver itself and this process's other devices use. */
static size_t budget_bytes(struct vk *v)
{
    const struct vk_heap h = vk_heap_get(&v->api, v->physical, &v->limits);
    size_t have = atomic_load(&v->allocated_bytes[VK_FOR_DEVICE]);
    if (!h.usage_bytes)
        return h.budget_bytes;
    return h.budget_bytes > h.usage_bytes ? have + (size_t)(h.budget_bytes - h.usage_bytes) : have;
}

/* How much of the device's memory tensors may take now, including what they have: the least of the limit that
 * vulkan_set_limit has set, the driver's budget, and the amount at which the driver has refused memory. SIZE_MAX: only
 * the host's limit holds. */
static size_t vk_limit_bytes(struct vk *v)
{
    size_t limit = atomic_load(&v->asked_bytes), found = atomic_load(&v->found_bytes);
    limit = found < limit ? found : limit;
    if (v->is_software && v->limits.shares_memory) /* its budget would only repeat the limit on the host's memory */
        return limit;
    size_t budget = budget_bytes(v);
    return budget < limit ? budget : limit;
}

static size_t own_room(struct vk *v)
{
    size_t limit = vk_limit_bytes(v), used = atomic_load(&v->used_bytes[VK_FOR_DEVICE]);
    return limit == SIZE_MAX ? SIZE_MAX : limit > used ? limit - used : 0;
}

size_t vk_own_bytes(struct backend *b)
{
    struct vk *v = vk_of(b);
    return v->limits.shares_memory ? 0 : (size_t)vk_heap_get(&v->api, v->physical, &v->limits).n_bytes;
}

size_t vk_room_bytes(struct backend *b)
{
    struct vk *v = vk_of(b);
    size_t own = own_room(v), host = v->limits.shares_memory ? mem_room_bytes() : SIZE_MAX;
    return own < host ? own : host;
}

void vk_set_reclaim(struct backend *b, mem_reclaim_fn *reclaim, void *user)
{
    vk_of(b)->reclaim = reclaim;
    vk_of(b)->reclaim_user = user;
}

void vulkan_set_limit(struct backend *b, size_t n_bytes)
{
    atomic_store(&vk_of(b)->asked_bytes, n_bytes);
}

struct vulkan_memory vulkan_get_memory(struct backend *b)
{
    struct vk *v = vk_of(b);
    const struct vk_heap h = vk_heap_get(&v->api, v->physical, &v->limits);
    size_t have = atomic_load(&v->allocated_bytes[VK_FOR_DEVICE]);
    return (struct vulkan_memory){.limit_bytes = vk_limit_bytes(v),
                                  .used_bytes = atomic_load(&v->used_bytes[VK_FOR_DEVICE]),
                                  .allocated_bytes = have,
                                  .elsewhere_bytes =
                                      h.usage_bytes && h.usage_bytes < have ? have - (size_t)h.usage_bytes : 0};
}

static bool has_room(struct vk *v, size_t n_bytes);

/* Reclaims repeatedly, as memory that becomes free in several places has no room for one large piece. */
bool vk_make_room(struct backend *b, size_t n_bytes)
{
    struct vk *v = vk_of(b);
    size_t room = own_room(v), before = SIZE_MAX;
    if (v->limits.shares_memory && !mem_make_room(n_bytes))
        return false;
    while (!has_room(v, n_bytes) && v->reclaim && room != before) {
        before = room;
        v->reclaim(v->reclaim_user, (room < n_bytes ? 0 : room) + n_bytes);
        room = own_room(v);
    }
    return has_room(v, n_bytes);
}

static err_code no_room(struct vk *v, size_t n_bytes, const char *what, struct err *e)
{
    size_t limit = vk_limit_bytes(v), used = atomic_load(&v->used_bytes[VK_FOR_DEVICE]);
    return err_set(e, ERR_LIMIT,
                   "%s: %.1f MiB for %s: of the %.1f MiB of its memory that may be used %.1f are free: expected a "
                   "smaller context, or more memory for the GPU",
                   v->base.name, (double)n_bytes / (1 << 20), what, (double)limit / (1 << 20),
                   (double)(limit > used ? limit - used : 0) / (1 << 20));
}

/* ---- ledgers --------------------------------------------------------------------------------------------------- */

bool vk_try_count(struct vk *v, size_t n_bytes, enum mem_tag tag)
{
    if (own_room(v) < n_bytes || (v->limits.shares_memory && !mem_commit(n_bytes, tag)))
        return false;
    atomic_fetch_add(&v->held_bytes[tag], n_bytes);
    return true;
}

err_code vk_count(struct vk *v, size_t n_bytes, enum mem_tag tag, const char *what, struct err *e)
{
    if (vk_make_room(&v->base, n_bytes) && vk_try_count(v, n_bytes, tag))
        return ERR_OK;
    return own_room(v) < n_bytes ? no_room(v, n_bytes, what, e) : err_nomem(e, n_bytes, what);
}

void vk_uncount(struct vk *v, size_t n_bytes, enum mem_tag tag)
{
    if (v->limits.shares_memory)
        mem_uncommit(n_bytes, tag);
    atomic_fetch_sub(&v->held_bytes[tag], n_bytes);
}

size_t vk_held_bytes(struct backend *b, enum mem_tag tag)
{
    return atomic_load(&vk_of(b)->held_bytes[tag]);
}

/* ---- blocks ---------------------------------------------------------------------------------------------------- */

static void block_close(struct vk *v, struct vk_block *b)
{
    const struct vk_functions *fn = &v->api.fn;
    if (b->buffer)
        fn->DestroyBuffer(v->device, b->buffer, NULL);
    if (b->memory)
        fn->FreeMemory(v->device, b->memory, NULL);
    mem_free(b->used.from);
    mem_free(b->used.end);
    mem_free(b);
}

static VkResult create_buffer(struct vk *v, size_t n_bytes, VkBuffer *out)
{
    const uint32_t families[] = {v->limits.queue_family, v->limits.upload_family};
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = n_bytes,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT,
        .sharingMode = families[0] == families[1] ? VK_SHARING_MODE_EXCLUSIVE : VK_SHARING_MODE_CONCURRENT,
        .queueFamilyIndexCount = 2,
        .pQueueFamilyIndices = families};
    return v->api.fn.CreateBuffer(v->device, &info, NULL, out);
}

static VkResult allocate(struct vk *v, struct vk_block *b, enum vk_memory_kind kind)
{
    const struct vk_functions *fn = &v->api.fn;
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkMemoryRequirements needs;
    VkResult result = create_buffer(v, b->n_bytes, &b->buffer);
    if (result != VK_SUCCESS)
        return result;
    fn->GetBufferMemoryRequirements(v->device, b->buffer, &needs);
    const VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                         .pNext = &flags,
                                         .allocationSize = needs.size,
                                         .memoryTypeIndex =
                                             kind == VK_FOR_DEVICE ? v->limits.device_type : v->limits.host_type};
    result = fn->AllocateMemory(v->device, &memory, NULL, &b->memory);
    if (result == VK_SUCCESS)
        result = fn->BindBufferMemory(v->device, b->buffer, b->memory, 0);
    if (result == VK_SUCCESS && (kind == VK_FOR_HOST || v->limits.is_mapped))
        result = fn->MapMemory(v->device, b->memory, 0, VK_WHOLE_SIZE, 0, (void **)&b->mapped);
    if (result != VK_SUCCESS)
        return result;
    b->address = fn->GetBufferDeviceAddress(
        v->device,
        &(VkBufferDeviceAddressInfo){.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = b->buffer});
    return VK_SUCCESS;
}

static bool is_refused(struct vk *v, size_t n_bytes)
{
    return atomic_load(&v->allocated_bytes[VK_FOR_DEVICE]) + n_bytes > v->api.env.heap_bytes;
}

/* Sets ERR_LIMIT: there is no more memory for tensors. */
static err_code refused(const struct vk *v, enum vk_memory_kind kind, size_t n_bytes, const char *what, VkResult result,
                        struct err *e)
{
    bool is_full = kind == VK_FOR_DEVICE && result == VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return err_set(e, is_full ? ERR_LIMIT : ERR_NOMEM, "%s: no %zu bytes of device memory for %s: %s", v->base.name,
                   n_bytes, what, vk_result_text(result));
}

static err_code block_open(struct vk *v, enum vk_memory_kind kind, size_t n_bytes, const char *what,
                           struct vk_block **out, struct err *e)
{
    struct vk_block *b = mem_calloc(1, sizeof *b);
    if (!b)
        return err_nomem(e, sizeof *b, what);
    b->n_bytes = n_bytes;
    b->kind = kind;
    VkResult result =
        kind == VK_FOR_DEVICE && is_refused(v, n_bytes) ? VK_ERROR_OUT_OF_DEVICE_MEMORY : allocate(v, b, kind);
    if (result != VK_SUCCESS) {
        block_close(v, b);
        return refused(v, kind, n_bytes, what, result, e);
    }
    b->next = v->blocks[kind];
    v->blocks[kind] = b;
    atomic_fetch_add(&v->allocated_bytes[kind], n_bytes);
    *out = b;
    return ERR_OK;
}

/* Allocates a block for a piece of n bytes: with room for other pieces, unless there is only enough memory for this
 * one. */
static err_code open_block_for(struct vk *v, enum vk_memory_kind kind, size_t n, const char *what,
                               struct vk_block **out, struct err *e)
{
    size_t have = atomic_load(&v->allocated_bytes[kind]), shared = have / BLOCK_SHARE;
    size_t limit = kind == VK_FOR_DEVICE ? vk_limit_bytes(v) : SIZE_MAX, room = limit > have ? limit - have : 0;
    struct err why;
    shared = shared < MIN_BLOCK_BYTES ? MIN_BLOCK_BYTES : shared < MAX_BLOCK_BYTES ? shared : MAX_BLOCK_BYTES;
    shared = shared < v->limits.allocation_bytes ? shared : (size_t)v->limits.allocation_bytes;
    for (shared = shared / PIECE_ALIGN * PIECE_ALIGN; shared / 2 >= n; shared = shared / 2 / PIECE_ALIGN * PIECE_ALIGN)
        if (shared <= room && block_open(v, kind, shared, what, out, &why) == ERR_OK)
            return ERR_OK;
    if (n > room)
        return no_room(v, n, what, e);
    err_code code = block_open(v, kind, n, what, out, e);
    if (code == ERR_LIMIT) /* the driver has no more memory */
        atomic_store(&v->found_bytes, have);
    return code;
}

/* Finds room for n bytes in a block: *off is where it begins, *at its index among the ranges in use. */
static bool find_room(const struct vk_block *b, size_t n, size_t *at, size_t *off)
{
    size_t end = 0;
    for (size_t i = 0; i <= b->used.n; i++) {
        size_t next = i < b->used.n ? b->used.from[i] : b->n_bytes;
        if (next - end >= n) {
            *at = i;
            *off = end;
            return true;
        }
        end = i < b->used.n ? b->used.end[i] : end;
    }
    return false;
}

/* Whether a piece of n bytes for tensors could be taken. */
static bool has_room(struct vk *v, size_t n)
{
    size_t at, off, limit = vk_limit_bytes(v), have = atomic_load(&v->allocated_bytes[VK_FOR_DEVICE]);
    n = (n + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    if (limit >= have && limit - have >= n)
        return true;
    pthread_mutex_lock(&v->memory_mutex);
    const struct vk_block *b = v->blocks[VK_FOR_DEVICE];
    while (b && !find_room(b, n, &at, &off))
        b = b->next;
    pthread_mutex_unlock(&v->memory_mutex);
    return b && own_room(v) >= n;
}

static bool note_used(struct vk_block *b, size_t at, size_t from, size_t end)
{
    struct vk_piece_list *u = &b->used;
    if (u->n == u->room) {
        size_t room = u->room ? 2 * u->room : 16;
        size_t *f = mem_resize(u->from, room, sizeof *f);
        u->from = f ? f : u->from;
        size_t *t = f ? mem_resize(u->end, room, sizeof *t) : NULL;
        u->end = t ? t : u->end;
        if (!t)
            return false;
        u->room = room;
    }
    memmove(u->from + at + 1, u->from + at, (u->n - at) * sizeof *u->from);
    memmove(u->end + at + 1, u->end + at, (u->n - at) * sizeof *u->end);
    u->from[at] = from;
    u->end[at] = end;
    u->n++;
    return true;
}

static err_code take(struct vk *v, enum vk_memory_kind kind, size_t n, const char *what, struct vk_piece *out,
                     struct err *e)
{
    size_t at = 0, off = 0;
    struct vk_block *b = v->blocks[kind];
    while (b && !find_room(b, n, &at, &off))
        b = b->next;
    if (!b)
        TRY(open_block_for(v, kind, n, what, &b, e));
    assert(b);
    if (!note_used(b, at, off, off + n))
        return err_nomem(e, 2 * b->used.room * sizeof(size_t), what);
    atomic_fetch_add(&v->used_bytes[kind], n);
    *out = (struct vk_piece){b, off, n};
    return ERR_OK;
}

static void fill(const struct vk *v, const struct vk_piece *p)
{
    if (v->api.env.fills && vk_piece_mapped(p))
        memset(vk_piece_mapped(p), 0xff, p->n_bytes);
}

err_code vk_piece_take(struct vk *v, enum vk_memory_kind kind, size_t n_bytes, const char *what, struct vk_piece *out,
                       struct err *e)
{
    size_t n = (n_bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    *out = (struct vk_piece){0};
    if (n > v->limits.allocation_bytes || n < n_bytes)
        return err_set(e, ERR_LIMIT, "%s: %zu bytes for %s: the driver allocates %llu at most", v->base.name, n_bytes,
                       what, (unsigned long long)v->limits.allocation_bytes);
    pthread_mutex_lock(&v->memory_mutex);
    err_code code = take(v, kind, n ? n : PIECE_ALIGN, what, out, e);
    pthread_mutex_unlock(&v->memory_mutex);
    if (code == ERR_OK)
        fill(v, out);
    return code;
}

/* Removes a block that has no pieces left from its list. */
static void drop(struct vk *v, struct vk_block *b)
{
    struct vk_block **at = &v->blocks[b->kind];
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    atomic_fetch_sub(&v->allocated_bytes[b->kind], b->n_bytes);
    block_close(v, b);
}

void vk_piece_give(struct vk *v, struct vk_piece *p)
{
    if (!p->block)
        return;
    fill(v, p);
    pthread_mutex_lock(&v->memory_mutex);
    struct vk_piece_list *u = &p->block->used;
    size_t i = 0;
    atomic_fetch_sub(&v->used_bytes[p->block->kind], p->n_bytes);
    while (u->from[i] != p->off)
        i++;
    u->n--;
    memmove(u->from + i, u->from + i + 1, (u->n - i) * sizeof *u->from);
    memmove(u->end + i, u->end + i + 1, (u->n - i) * sizeof *u->end);
    if (u->n == 0)
        drop(v, p->block);
    pthread_mutex_unlock(&v->memory_mutex);
    *p = (struct vk_piece){0};
}

VkDeviceAddress vk_piece_address(const struct vk_piece *p)
{
    return p->block->address + p->off;
}

char *vk_piece_mapped(const struct vk_piece *p)
{
    return p->block->mapped ? p->block->mapped + p->off : NULL;
}

err_code vk_memory_open(struct vk *v, struct err *e)
{
    VkMemoryRequirements needs;
    VkBuffer any;
    VkResult result = create_buffer(v, PIECE_ALIGN, &any);
    if (result != VK_SUCCESS)
        return err_set(e, ERR_UNSUPPORTED, "%s: a buffer: %s", v->base.name, vk_result_text(result));
    v->api.fn.GetBufferMemoryRequirements(v->device, any, &needs);
    v->api.fn.DestroyBuffer(v->device, any, NULL);
    v->limits.allocation_bytes -= v->limits.allocation_bytes % PIECE_ALIGN;
    return vk_limits_choose_memory(&v->api, v->physical, needs.memoryTypeBits, &v->limits, e);
}

void vk_memory_close(struct vk *v)
{
    for (int kind = 0; kind < 2; kind++)
        while (v->blocks[kind])
            drop(v, v->blocks[kind]);
}

/* ---- buffers --------------------------------------------------------------------------------------------------- */

static struct buffer *new_buffer(struct vk *v, size_t n_bytes, enum mem_tag tag)
{
    struct buffer *buf = mem_calloc(1, sizeof *buf);
    if (buf)
        *buf = (struct buffer){.n_bytes = n_bytes, .tag = tag, .id = ++v->n_buffer & VK_MAX_BUFFER_ID};
    return buf;
}

err_code vk_buffer_create(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag, struct buffer **out,
                          struct err *e)
{
    struct vk *v = vk_of(b);
    struct buffer *buf = new_buffer(v, n_bytes ? n_bytes : 1, tag);
    if (!buf)
        return err_nomem(e, sizeof *buf, "a buffer");
    err_code code = vk_count(v, mem_length(buf->n_bytes), tag, mem_tag_name(tag), e);
    if (code != ERR_OK) {
        mem_free(buf);
        return code;
    }
    code = vk_piece_take(v, VK_FOR_DEVICE, buf->n_bytes, mem_tag_name(tag), &buf->piece, e);
    if (code != ERR_OK) {
        vk_uncount(v, mem_length(buf->n_bytes), tag);
        mem_free(buf);
        return code;
    }
    const struct vk_access all = vk_access_buffer(buf, true);
    VkCommandBuffer c = vk_record(v, buf->piece.n_bytes);
    vk_order(v, &all, 1);
    if (!c) { /* there was an error, which has not been reported yet */
        vk_buffer_close(b, buf);
        return backend_report(&v->error, e);
    }
    v->api.fn.CmdFillBuffer(c, buf->piece.block->buffer, buf->piece.off, buf->piece.n_bytes, 0);
    *out = buf;
    return ERR_OK;
}

err_code vk_buffer_reserve(struct backend *b, size_t n_bytes, size_t unit_bytes, int64_t n_part, enum mem_tag tag,
                           struct buffer **out, struct err *e)
{
    struct vk *v = vk_of(b);
    struct buffer *buf = new_buffer(v, n_bytes, tag);
    if (!buf)
        return err_nomem(e, sizeof *buf, "a buffer");
    assert(unit_bytes && unit_bytes % BUFFER_ALIGN == 0);
    buf->unit_bytes = unit_bytes;
    buf->n_unit = (n_bytes + unit_bytes - 1) / unit_bytes;
    buf->units = mem_calloc(buf->n_unit, sizeof *buf->units);
    err_code code = buf->units ? vk_table_open(v, buf->n_unit, &buf->table, e)
                               : err_nomem(e, buf->n_unit * sizeof *buf->units, mem_tag_name(tag));
    if (code != ERR_OK) {
        vk_buffer_close(b, buf);
        return code;
    }
    *out = buf;
    return ERR_OK;
}

bool vk_buffer_commit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    struct vk *v = vk_of(b);
    struct err e;
    size_t unit = buf->unit_bytes;
    assert(unit && off_bytes % unit == 0 && n_bytes % unit == 0 && off_bytes + n_bytes <= buf->n_bytes);
    for (size_t done = 0; done < n_bytes; done += unit) {
        size_t i = (off_bytes + done) / unit;
        bool is_counted = vk_try_count(v, unit, buf->tag);
        if (!is_counted ||
            vk_piece_take(v, VK_FOR_DEVICE, unit, mem_tag_name(buf->tag), &buf->units[i], &e) != ERR_OK) {
            if (is_counted)
                vk_uncount(v, unit, buf->tag);
            vk_buffer_decommit(b, buf, off_bytes, done);
            return false;
        }
        vk_table_set(buf->table, i, vk_piece_address(&buf->units[i]));
    }
    return true;
}

void vk_buffer_decommit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes)
{
    struct vk *v = vk_of(b);
    if (n_bytes)
        vk_drain(v);
    vk_forget_read(v, buf);
    for (size_t i = off_bytes / buf->unit_bytes; i < (off_bytes + n_bytes) / buf->unit_bytes; i++) {
        vk_piece_give(v, &buf->units[i]);
        vk_uncount(v, buf->unit_bytes, buf->tag);
    }
}

/* Forgets the tables of angles that were made from a buffer's numbers. */
static void forget_turns(struct vk *v, const struct buffer *buf)
{
    int n = 0;
    for (int i = 0; i < v->n_turns; i++)
        if (v->turns[i].divisors == buf)
            vk_piece_give(v, &v->turns[i].piece);
        else
            v->turns[n++] = v->turns[i];
    v->n_turns = n;
}

void vk_buffer_close(struct backend *b, struct buffer *buf)
{
    struct vk *v = vk_of(b);
    vk_drain(v);
    vk_forget_read(v, buf);
    forget_turns(v, buf);
    if (buf->piece.block)
        vk_uncount(v, mem_length(buf->n_bytes), buf->tag);
    vk_piece_give(v, &buf->piece);
    for (size_t i = 0; buf->units && i < buf->n_unit; i++)
        if (buf->units[i].block) {
            vk_piece_give(v, &buf->units[i]);
            vk_uncount(v, buf->unit_bytes, buf->tag);
        }
    mem_free(buf->units);
    vk_table_close(v, &buf->table);
    mem_free(buf);
}

size_t vk_buffer_bytes(struct backend *b, const struct buffer *buf)
{
    return buf->n_bytes;
}

/* ---- tables ---------------------------------------------------------------------------------------------------- */

err_code vk_table_open(struct vk *v, size_t n, struct vk_table **out, struct err *e)
{
    struct vk_table *t = *out = mem_calloc(1, sizeof *t);
    if (!t)
        return err_nomem(e, sizeof *t, "a table of addresses");
    t->n = n;
    t->host = mem_calloc(n, sizeof *t->host);
    if (!t->host)
        return err_nomem(e, n * sizeof *t->host, "a table of addresses");
    if (!vk_make_room(&v->base, n * sizeof *t->host))
        return no_room(v, n * sizeof *t->host, "a table of addresses", e);
    return vk_piece_take(v, VK_FOR_DEVICE, n * sizeof *t->host, "a table of addresses", &t->piece, e);
}

void vk_table_close(struct vk *v, struct vk_table **t)
{
    if (!*t)
        return;
    vk_piece_give(v, &(*t)->piece);
    mem_free((*t)->host);
    mem_free(*t);
    *t = NULL;
}

void vk_table_set(struct vk_table *t, size_t i, VkDeviceAddress address)
{
    bool is_clean = t->dirty_from == t->dirty_end;
    assert(i < t->n);
    t->host[i] = address;
    t->dirty_from = is_clean || i < t->dirty_from ? i : t->dirty_from;
    t->dirty_end = is_clean || i >= t->dirty_end ? i + 1 : t->dirty_end;
}
