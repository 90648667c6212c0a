/* Commands: records them, orders them with barriers and submits them; writes, copies and reads.
 *
 * The command buffers of a ring are recorded one after the other. A command buffer is submitted when somebody waits for
 * it, when it has become so long that a driver's watchdog could take it for a hang, or when a GPU may be waiting for
 * work. Commands may overlap, unless one reads or writes what an earlier one has written, or writes what an earlier one
 * has read: only there is a barrier. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "vulkan/vk_internal.h"

/* A wait fails, as the device seems to hang, when nothing has happened for this long. A software driver compiles
 * shaders when they are first dispatched. */
#define WAIT_NS          ((uint64_t)60000000000)
#define SOFTWARE_WAIT_NS (10 * WAIT_NS)

/* The most bytes that CmdUpdateBuffer takes. */
enum { MAX_UPDATE = 65536, READ_AT = VK_N_COMMANDS * VK_STAGING_BYTES };

void vk_fail(struct vk *v, err_code code, const char *fmt, ...)
{
    char text[ERR_TEXT_BYTES];
    va_list args;
    if (v->error.code != ERR_OK)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    err_set(&v->error, code, "%s: %s", v->base.name, text);
}

static bool is_out_of_memory(VkResult result)
{
    return result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY;
}

/* A device that failed to run commands, or to accept them, is treated as lost. */
static bool check_result(struct vk *v, VkResult result, const char *what)
{
    v->is_lost = v->is_lost || result != VK_SUCCESS;
    if (result != VK_SUCCESS)
        vk_fail(v, is_out_of_memory(result) ? ERR_NOMEM : ERR_FAIL, "%s: %s", what, vk_result_text(result));
    return result == VK_SUCCESS;
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static VkResult open_commands(struct vk *v, uint32_t family, VkCommandPool *pool, VkCommandBuffer *commands, uint32_t n,
                              VkSemaphore *passed)
{
    const struct vk_functions *fn = &v->api.fn;
    const VkCommandPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = family};
    const VkSemaphoreTypeCreateInfo timeline = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                                .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &timeline};
    VkResult result = fn->CreateCommandPool(v->device, &info, NULL, pool);
    if (result != VK_SUCCESS)
        return result;
    const VkCommandBufferAllocateInfo buffers = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                 .commandPool = *pool,
                                                 .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                 .commandBufferCount = n};
    result = fn->AllocateCommandBuffers(v->device, &buffers, commands);
    return result == VK_SUCCESS ? fn->CreateSemaphore(v->device, &semaphore, NULL, passed) : result;
}

/* Has dispatches held back until the next barrier from now on (MOEBIUS_VULKAN_ORDER). */
static err_code hold_calls(struct vk_queue *q, struct err *e)
{
    q->held = mem_calloc(VK_MAX_ACCESS, sizeof *q->held);
    return q->held ? ERR_OK : err_nomem(e, VK_MAX_ACCESS * sizeof *q->held, "commands");
}

err_code vk_queue_open(struct vk *v, struct err *e)
{
    struct vk_queue *q = &v->queue;
    const struct vk_limits *l = &v->limits;
    q->begins_early = !v->is_software || v->api.env.begins_early;
    v->api.fn.GetDeviceQueue(v->device, l->queue_family, 0, &q->queue);
    v->api.fn.GetDeviceQueue(v->device, l->upload_family, l->upload_index, &v->upload.queue);
    VkResult result = open_commands(v, l->queue_family, &q->pool, q->commands, VK_N_COMMANDS, &q->passed);
    if (result == VK_SUCCESS)
        result = open_commands(v, l->upload_family, &v->upload.pool, &v->upload.commands, 1, &v->upload.passed);
    if (result != VK_SUCCESS)
        return err_set(e, ERR_UNSUPPORTED, "%s: commands: %s", v->base.name, vk_result_text(result));
    if (v->api.env.is_backwards)
        TRY(hold_calls(q, e));
    TRY(vk_piece_take(v, VK_FOR_HOST, READ_AT + VK_STAGING_BYTES, "staging", &q->staging, e));
    return l->is_mapped ? ERR_OK : vk_piece_take(v, VK_FOR_HOST, VK_STAGING_BYTES, "staging", &v->upload.staging, e);
}

void vk_queue_close(struct vk *v)
{
    const struct vk_functions *fn = &v->api.fn;
    struct vk_queue *q = &v->queue;
    if (q->passed)
        fn->DestroySemaphore(v->device, q->passed, NULL);
    if (q->pool)
        fn->DestroyCommandPool(v->device, q->pool, NULL);
    if (v->upload.passed)
        fn->DestroySemaphore(v->device, v->upload.passed, NULL);
    if (v->upload.pool)
        fn->DestroyCommandPool(v->device, v->upload.pool, NULL);
    mem_free(q->held);
    vk_piece_give(v, &q->staging);
    vk_piece_give(v, &v->upload.staging);
}

/* ---- submitting and waiting ------------------------------------------------------------------------------------ */

static VkResult wait_semaphore(struct vk *v, VkSemaphore semaphore, uint64_t serial)
{
    const VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                      .semaphoreCount = 1,
                                      .pSemaphores = &semaphore,
                                      .pValues = &serial};
    return v->api.fn.WaitSemaphores(v->device, &info, v->is_software ? SOFTWARE_WAIT_NS : WAIT_NS);
}

/* A serial of a timeline. */
struct point {
    VkSemaphore semaphore;
    uint64_t serial;
};

static VkResult try_submit(struct vk *v, VkQueue queue, const VkSubmitInfo *info)
{
    const bool is_one_queue = v->queue.queue == v->upload.queue;
    if (is_one_queue)
        pthread_mutex_lock(&v->queue.mutex);
    VkResult result = v->api.fn.QueueSubmit(queue, 1, info, VK_NULL_HANDLE);
    if (is_one_queue)
        pthread_mutex_unlock(&v->queue.mutex);
    return result;
}

/* Submits commands, which wait for `ended` and signal `passed`. ended: the last serial of the other queue that the host
 * has waited for (0: none). The host's waits already order the commands, as operations are enqueued after the uploads
 * that they read, and slots filled after the operations that read them. But only a semaphore that the device waits for
 * makes what one queue has written visible to the other; this one has been signalled by then. If the driver is out of
 * memory the commands are submitted once more after the earlier ones have ended; if that fails, too, these have ended
 * in any case. */
static VkResult submit_commands(struct vk *v, VkQueue queue, VkCommandBuffer commands, struct point ended,
                                struct point passed)
{
    const VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const uint32_t n_wait = v->limits.has_upload_queue && ended.serial > 0;
    const VkTimelineSemaphoreSubmitInfo timeline = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                    .waitSemaphoreValueCount = n_wait,
                                                    .pWaitSemaphoreValues = &ended.serial,
                                                    .signalSemaphoreValueCount = 1,
                                                    .pSignalSemaphoreValues = &passed.serial};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = &timeline,
                               .waitSemaphoreCount = n_wait,
                               .pWaitSemaphores = &ended.semaphore,
                               .pWaitDstStageMask = &all,
                               .commandBufferCount = 1,
                               .pCommandBuffers = &commands,
                               .signalSemaphoreCount = 1,
                               .pSignalSemaphores = &passed.semaphore};
    const bool is_refused = passed.semaphore == v->queue.passed && v->recorded.n_submit == v->api.env.full_at;
    VkResult result = v->api.fn.EndCommandBuffer(commands);
    if (result != VK_SUCCESS)
        return result;
    result = is_refused ? VK_ERROR_OUT_OF_HOST_MEMORY : try_submit(v, queue, &info);
    if (!is_out_of_memory(result))
        return result;
    (void)wait_semaphore(v, passed.semaphore, passed.serial - 1);
    return try_submit(v, queue, &info);
}

static void record_call(struct vk *v, VkCommandBuffer c, const struct vk_recorded_dispatch *call)
{
    const struct vk_functions *fn = &v->api.fn;
    fn->CmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, call->pipeline);
    fn->CmdPushConstants(c, v->pipelines.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, call->push_bytes, call->push);
    if (call->y0 || call->z0)
        fn->CmdDispatchBase(c, 0, call->y0, call->z0, call->x, call->y, call->z);
    else
        fn->CmdDispatch(c, call->x, call->y, call->z);
}

void vk_record_dispatch(struct vk *v, VkCommandBuffer c, const struct vk_recorded_dispatch *call)
{
    v->queue.n_dispatch++;
    if (v->queue.held) {
        v->queue.held[v->queue.n_held++] = *call;
        return;
    }
    record_call(v, c, call);
    vk_timing_stamp(v, c);
}

static void record_held(struct vk *v, VkCommandBuffer c)
{
    while (v->queue.n_held > 0)
        record_call(v, c, &v->queue.held[--v->queue.n_held]);
}

static void full_barrier(struct vk *v, VkCommandBuffer c, VkPipelineStageFlags to, VkAccessFlags access)
{
    enum { STAGES = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT };
    const VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                                     .dstAccessMask = access};
    v->api.fn.CmdPipelineBarrier(c, STAGES, to, 0, 1, &barrier, 0, NULL, 0, NULL);
}

static void submit(struct vk *v)
{
    struct vk_queue *q = &v->queue;
    if (!q->is_recording)
        return;
    q->is_recording = false;
    VkCommandBuffer c = q->commands[q->serial % VK_N_COMMANDS];
    const struct point uploads = {v->upload.passed, atomic_load(&v->upload.ended)};
    record_held(v, c);
    v->recorded.n_submit++;
    VkResult result = v->recorded.n_submit == v->api.env.lost_at
                          ? VK_ERROR_DEVICE_LOST
                          : submit_commands(v, q->queue, c, uploads, (struct point){q->passed, q->serial});
    check_result(v, result, "a submission");
}

static void wait_for(struct vk *v, uint64_t serial)
{
    if (v->is_lost || serial == 0)
        return;
    if (check_result(v, wait_semaphore(v, v->queue.passed, serial), "waiting") && serial > atomic_load(&v->queue.ended))
        atomic_store(&v->queue.ended, serial);
}

static void wait_for_all(struct vk *v)
{
    submit(v);
    wait_for(v, v->queue.serial);
    v->queue.n_early = 0;
}

void vk_drain(struct vk *v)
{
    vk_flush(v);
    wait_for_all(v);
}

/* Whether the recorded commands should be submitted before the next one is recorded: they would become too long, or are
 * enough for a GPU to begin while the host records further ones. Each such submission has twice the dispatches of the
 * one before. */
static bool is_full(const struct vk *v, uint64_t work)
{
    enum { FIRST_PART = 8, MAX_DOUBLING = 16 };
    const struct vk_queue *q = &v->queue;
    uint32_t n = q->n_early < MAX_DOUBLING ? q->n_early : MAX_DOUBLING;
    return q->work + work > (uint64_t)v->limits.work || (q->begins_early && q->n_dispatch >= (uint32_t)FIRST_PART << n);
}

static void order_all(struct vk *v, VkCommandBuffer c)
{
    record_held(v, c);
    full_barrier(v, c, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                 VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                     VK_ACCESS_TRANSFER_WRITE_BIT);
    v->queue.n_access = 0;
    v->queue.stage++;
}

VkCommandBuffer vk_record(struct vk *v, uint64_t work)
{
    struct vk_queue *q = &v->queue;
    if (q->is_recording && is_full(v, work)) {
        submit(v);
        q->n_early++;
    }
    if (v->is_lost)
        vk_fail(v, ERR_FAIL, "the device was lost");
    if (v->error.code != ERR_OK)
        return NULL;
    if (!q->is_recording) {
        const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                                .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
        if (q->serial >= VK_N_COMMANDS)
            wait_for(v, q->serial + 1 - VK_N_COMMANDS);
        if (v->error.code != ERR_OK)
            return NULL;
        VkCommandBuffer c = q->commands[(q->serial + 1) % VK_N_COMMANDS];
        if (!check_result(v, v->api.fn.BeginCommandBuffer(c, &begin), "recording"))
            return NULL;
        q->serial++;
        q->read_back.serial = 0;
        q->is_recording = true;
        q->work = q->n_dispatch = 0;
        q->staging_used = 0;
        vk_timing_count(v, q->serial);
        vk_timing_begin(v, c);
        order_all(v, c);
    }
    q->work += work;
    return q->commands[q->serial % VK_N_COMMANDS];
}

/* ---- order ----------------------------------------------------------------------------------------------------- */

/* Each buffer has a range of 2^44 numbers, below those of tables. (Accesses to two buffers with the same id would only
 * be ordered without need.) */
enum { ID_SHIFT = 44 };
_Static_assert((VK_MAX_BUFFER_ID + UINT64_C(1)) << ID_SHIFT == UINT64_C(1) << 63, "ids and numbers fill 63 bits");

struct vk_access vk_access_buffer(const struct buffer *buf, bool is_write)
{
    return (struct vk_access){buf->id << ID_SHIFT, (buf->id + 1) << ID_SHIFT, is_write};
}

struct vk_access vk_access_tensor(const struct tensor *t, bool is_write)
{
    uint64_t from = (t->buffer->id << ID_SHIFT) + t->off_bytes;
    return (struct vk_access){from, from + tensor_bytes(t), is_write};
}

static bool meets(const struct vk_access *a, const struct vk_access *b)
{
    return (a->is_write || b->is_write) && a->from < b->end && b->from < a->end;
}

void vk_order(struct vk *v, const struct vk_access *access, int n)
{
    struct vk_queue *q = &v->queue;
    bool is_needed = q->n_access + n > VK_MAX_ACCESS;
    assert(n <= VK_MAX_ACCESS);
    if (!q->is_recording)
        return;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < q->n_access && !is_needed; j++)
            is_needed = meets(&access[i], &q->access[j]);
    if (is_needed) {
        order_all(v, q->commands[q->serial % VK_N_COMMANDS]);
        v->recorded.n_barrier++;
    }
    memcpy(q->access + q->n_access, access, (size_t)n * sizeof *access);
    q->n_access += n;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

/* Takes up to VK_STAGING_BYTES of staging memory for the commands that are being recorded. */
static char *stage(struct vk *v, size_t n, size_t *off)
{
    struct vk_queue *q = &v->queue;
    if (q->staging_used + n > VK_STAGING_BYTES)
        submit(v);
    if (!vk_record(v, n))
        return NULL;
    size_t at = q->serial % VK_N_COMMANDS * VK_STAGING_BYTES + q->staging_used;
    q->staging_used += (n + 15) & ~(size_t)15;
    *off = q->staging.off + at;
    return vk_piece_mapped(&q->staging) + at;
}

/* Records a write into a piece, which the caller has ordered. */
static void record_write(struct vk *v, const struct vk_piece *p, size_t off, const char *src, size_t n_bytes,
                         const struct vk_access *access)
{
    const struct vk_functions *fn = &v->api.fn;
    for (size_t n; n_bytes > 0; off += n, src += n, n_bytes -= n) {
        size_t from = 0;
        if (n_bytes <= MAX_UPDATE && n_bytes % 4 == 0 && (p->off + off) % 4 == 0) {
            n = n_bytes;
            VkCommandBuffer c = vk_record(v, n);
            vk_order(v, access, 1);
            if (!c)
                return;
            fn->CmdUpdateBuffer(c, p->block->buffer, p->off + off, n, src);
            continue;
        }
        n = n_bytes < VK_STAGING_BYTES ? n_bytes : VK_STAGING_BYTES;
        char *at = stage(v, n, &from);
        if (!at)
            return;
        memcpy(at, src, n);
        vk_order(v, access, 1);
        fn->CmdCopyBuffer(v->queue.commands[v->queue.serial % VK_N_COMMANDS], v->queue.staging.block->buffer,
                          p->block->buffer, 1, &(VkBufferCopy){from, p->off + off, n});
    }
}

/* Pieces that are in no buffer, such as tables, are identified by their addresses; bit 63 tells them apart from
 * buffers. */
struct vk_access vk_access_piece(const struct vk_piece *p, bool is_write)
{
    uint64_t from = ((uint64_t)1 << 63) | vk_piece_address(p);
    return (struct vk_access){from, from + p->n_bytes, is_write};
}

void vk_write_bytes(struct vk *v, const struct vk_piece *p, size_t off, const void *src, size_t n_bytes)
{
    const struct vk_access a = vk_access_piece(p, true);
    record_write(v, p, off, src, n_bytes, &a);
}

/* Operations don't list the tables that they read, so a write to a table is ordered between two barriers. */
void vk_table_flush(struct vk *v, struct vk_table *t)
{
    size_t from = t->dirty_from, n = t->dirty_end - from;
    if (n == 0 || v->error.code != ERR_OK) /* after an error nothing is recorded: it is written once that is reported */
        return;
    t->dirty_from = t->dirty_end = 0;
    const struct vk_access all = {0, UINT64_MAX, true};
    record_write(v, &t->piece, from * sizeof *t->host, (const char *)(t->host + from), n * sizeof *t->host, &all);
}

/* A run of a tensor's bytes that lies in one piece. */
struct run {
    const struct vk_piece *piece;
    size_t off, n; /* in the piece, in bytes */
};

/* The run that begins `done` bytes into a tensor. */
static struct run run_at(const struct tensor *t, size_t done)
{
    const struct buffer *buf = t->buffer;
    size_t off = t->off_bytes + done, left = tensor_bytes(t) - done;
    assert(t->off_bytes + tensor_bytes(t) <= buf->n_bytes);
    if (!buf->unit_bytes)
        return (struct run){&buf->piece, off, left};
    size_t in_unit = off % buf->unit_bytes, room = buf->unit_bytes - in_unit;
    const struct vk_piece *p = &buf->units[off / buf->unit_bytes];
    assert(p->block);
    return (struct run){p, in_unit, left < room ? left : room};
}

/* Operations access a layer's part of all pages of a reserved buffer, so writes, reads and copies of it count as
 * accesses to the whole buffer. */
static struct vk_access transfer_access(const struct tensor *t, bool is_write)
{
    return t->buffer->unit_bytes ? vk_access_buffer(t->buffer, is_write) : vk_access_tensor(t, is_write);
}

void vk_write(struct backend *b, const struct tensor *t, const void *src)
{
    struct vk *v = vk_of(b);
    const struct vk_access a = transfer_access(t, true);
    struct run r;
    vk_flush(v);
    for (size_t done = 0; done < tensor_bytes(t); done += r.n) {
        r = run_at(t, done);
        record_write(v, r.piece, r.off, (const char *)src + done, r.n, &a);
    }
}

void vk_clear(struct backend *b, const struct tensor *t)
{
    struct vk *v = vk_of(b);
    const struct vk_access a = transfer_access(t, true);
    static const char zeros[4];
    struct run r;
    vk_flush(v);
    for (size_t done = 0; done < tensor_bytes(t); done += r.n) {
        r = run_at(t, done);
        size_t from = r.piece->off + r.off, whole = r.n & ~(size_t)3;
        assert(from % 4 == 0);
        VkCommandBuffer c = vk_record(v, r.n);
        vk_order(v, &a, 1);
        if (c && whole)
            v->api.fn.CmdFillBuffer(c, r.piece->block->buffer, from, whole, 0);
        if (r.n > whole)
            record_write(v, r.piece, r.off + whole, zeros, r.n - whole, &a);
    }
}

void vk_copy(struct backend *b, const struct tensor *from, const struct tensor *to)
{
    struct vk *v = vk_of(b);
    const struct vk_access a[2] = {transfer_access(from, false), transfer_access(to, true)};
    vk_flush(v);
    for (size_t done = 0, n; done < tensor_bytes(from); done += n) {
        const struct run x = run_at(from, done), y = run_at(to, done);
        n = x.n < y.n ? x.n : y.n;
        VkCommandBuffer c = vk_record(v, n);
        vk_order(v, a, 2);
        if (c)
            v->api.fn.CmdCopyBuffer(c, x.piece->block->buffer, y.piece->block->buffer, 1,
                                    &(VkBufferCopy){x.piece->off + x.off, y.piece->off + y.off, n});
    }
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* Records a copy of up to VK_STAGING_BYTES to memory that the host can read. */
static bool record_read(struct vk *v, const struct vk_piece *p, size_t off, size_t n, const struct vk_access *access)
{
    struct vk_queue *q = &v->queue;
    VkCommandBuffer c = vk_record(v, n);
    vk_order(v, access, 1);
    if (!c)
        return false;
    v->api.fn.CmdCopyBuffer(c, p->block->buffer, q->staging.block->buffer, 1,
                            &(VkBufferCopy){p->off + off, q->staging.off + READ_AT, n});
    full_barrier(v, c, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
    return true;
}

void vk_forget_read(struct vk *v, const struct buffer *buf)
{
    const struct vk_access all = vk_access_buffer(buf, true);
    if (meets(&all, &v->queue.read_back.what))
        v->queue.read_back = (struct vk_read_back){0};
}

/* Remembers what was read, as it will probably be read again (struct vk_read_back). */
static void read_again(struct vk *v)
{
    struct vk_read_back *r = &v->queue.read_back;
    if (v->queue.is_recording && r->n && record_read(v, &r->piece, r->off, r->n, &r->what))
        r->serial = v->queue.serial;
}

/* Reads up to VK_STAGING_BYTES. (Mapped memory of a card is slow to read: what the host reads is copied to its own.) */
static void read_some(struct vk *v, const struct vk_piece *p, size_t off, char *dst, size_t n,
                      const struct vk_access *access)
{
    struct vk_queue *q = &v->queue;
    const struct vk_read_back asked = {*access, *p, off, n, 0}, *last = &q->read_back;
    bool is_same = last->piece.block == p->block && last->piece.off == p->off && last->off == off && last->n == n;
    bool is_there = last->serial && is_same && !q->is_recording;
    if (!is_there && !record_read(v, p, off, n, access))
        return;
    vk_drain(v);
    if (v->error.code == ERR_OK)
        memcpy(dst, vk_piece_mapped(&q->staging) + READ_AT, n);
    if (!is_there)
        q->read_back = asked;
}

static void read_run(struct vk *v, const struct run *r, char *dst, const struct vk_access *access)
{
    for (size_t done = 0, n; done < r->n && v->error.code == ERR_OK; done += n) {
        n = r->n - done < VK_STAGING_BYTES ? r->n - done : VK_STAGING_BYTES;
        read_some(v, r->piece, r->off + done, dst + done, n, access);
    }
}

err_code vk_read(struct backend *b, const struct tensor *t, void *dst, struct err *e)
{
    struct vk *v = vk_of(b);
    const struct vk_access a = transfer_access(t, false);
    struct run r;
    vk_flush(v);
    for (size_t done = 0; done < tensor_bytes(t) && v->error.code == ERR_OK; done += r.n) {
        r = run_at(t, done);
        read_run(v, &r, (char *)dst + done, &a);
    }
    return backend_report(&v->error, e);
}

uint64_t vk_fence(struct backend *b)
{
    vk_flush(vk_of(b));
    return vk_of(b)->queue.serial;
}

void vk_start(struct backend *b)
{
    vk_flush(vk_of(b));
    submit(vk_of(b));
}

err_code vk_wait(struct backend *b, uint64_t fence, struct err *e)
{
    struct vk *v = vk_of(b);
    assert(fence <= v->queue.serial);
    vk_flush(v);
    if (fence == v->queue.serial) {
        read_again(v);
        wait_for_all(v);
    }
    wait_for(v, fence);
    return backend_report(&v->error, e);
}

/* ---- uploads --------------------------------------------------------------------------------------------------- */

/* Through the staging of uploads, which the caller has locked. */
static VkResult upload_some(struct vk *v, const struct vk_piece *p, size_t off, const char *src, size_t n)
{
    struct vk_upload_lane *u = &v->upload;
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    memcpy(vk_piece_mapped(&u->staging), src, n);
    VkResult result = v->api.fn.BeginCommandBuffer(u->commands, &begin);
    if (result != VK_SUCCESS)
        return result;
    v->api.fn.CmdCopyBuffer(u->commands, u->staging.block->buffer, p->block->buffer, 1,
                            &(VkBufferCopy){u->staging.off, p->off + off, n});
    const struct point operations = {v->queue.passed, atomic_load(&v->queue.ended)};
    result = submit_commands(v, u->queue, u->commands, operations, (struct point){u->passed, ++u->serial});
    if (result == VK_SUCCESS)
        result = wait_semaphore(v, u->passed, u->serial);
    if (result == VK_SUCCESS)
        atomic_store(&u->ended, u->serial);
    return result;
}

err_code vk_upload(struct vk *v, const struct vk_piece *p, size_t off, const void *src, size_t n_bytes, struct err *e)
{
    VkResult result = VK_SUCCESS;
    if (vk_piece_mapped(p)) {
        memcpy(vk_piece_mapped(p) + off, src, n_bytes);
        return ERR_OK;
    }
    pthread_mutex_lock(&v->upload.mutex);
    for (size_t done = 0, n; done < n_bytes && result == VK_SUCCESS; done += n) {
        n = n_bytes - done < VK_STAGING_BYTES ? n_bytes - done : VK_STAGING_BYTES;
        result = upload_some(v, p, off + done, (const char *)src + done, n);
    }
    pthread_mutex_unlock(&v->upload.mutex);
    return result == VK_SUCCESS
               ? ERR_OK
               : err_set(e, ERR_FAIL, "%s: an upload of %zu bytes: %s", v->base.name, n_bytes, vk_result_text(result));
}
