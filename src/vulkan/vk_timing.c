/* Measures how long operations take on the device, with a timestamp when commands begin and one behind each dispatch. A
 * dispatch's time counts from the end of the one before. */
#include "vulkan/vk_internal.h"

bool vulkan_time_operations(struct backend *b)
{
    struct vk *v = vk_of(b);
    struct vk_timing *t = &v->timing;
    VkQueueFamilyProperties families[VK_MAX_FAMILY];
    uint32_t n = VK_MAX_FAMILY;
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    const VkQueryPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                        .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                        .queryCount = VK_N_COMMANDS * VK_MAX_STAMP};
    if (t->pool)
        return true;
    v->api.fn.GetPhysicalDeviceQueueFamilyProperties(v->physical, &n, families);
    v->api.fn.GetPhysicalDeviceProperties2(v->physical, &p);
    uint32_t bits = families[v->limits.queue_family].timestampValidBits;
    if (bits == 0 || vk_env_lacks(&v->api.env, "timestamps") ||
        v->api.fn.CreateQueryPool(v->device, &info, NULL, &t->pool) != VK_SUCCESS)
        return false;
    t->mask = bits >= 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    t->tick_ns = (double)p.properties.limits.timestampPeriod;
    return true;
}

void vk_timing_close(struct vk *v)
{
    if (v->timing.pool)
        v->api.fn.DestroyQueryPool(v->device, v->timing.pool, NULL);
}

/* The timestamps of the command buffer with this serial. */
static struct vk_stamps *stamps_of(struct vk *v, uint64_t serial)
{
    return &v->timing.stamps[serial % VK_N_COMMANDS];
}

static uint32_t first_query(uint64_t serial)
{
    return (uint32_t)(serial % VK_N_COMMANDS) * VK_MAX_STAMP;
}

void vk_timing_count(struct vk *v, uint64_t serial)
{
    struct vk_stamps *s = stamps_of(v, serial);
    uint64_t at[VK_MAX_STAMP];
    uint32_t n = s->n;
    s->n = 0;
    if (n < 2 || v->api.fn.GetQueryPoolResults(v->device, v->timing.pool, first_query(serial), n, n * sizeof *at, at,
                                               sizeof *at, VK_QUERY_RESULT_64_BIT) != VK_SUCCESS)
        return;
    for (uint32_t i = 1; i < n; i++)
        v->counters.op[s->kind[i]].n_ns +=
            (uint64_t)((double)((at[i] - at[i - 1]) & v->timing.mask) * v->timing.tick_ns);
}

static void stamp(struct vk *v, VkCommandBuffer c, VkPipelineStageFlagBits stage)
{
    struct vk_stamps *s = stamps_of(v, v->queue.serial);
    s->kind[s->n] = (uint8_t)v->running;
    v->api.fn.CmdWriteTimestamp(c, stage, v->timing.pool, first_query(v->queue.serial) + s->n++);
}

void vk_timing_begin(struct vk *v, VkCommandBuffer c)
{
    if (!v->timing.pool)
        return;
    v->api.fn.CmdResetQueryPool(c, v->timing.pool, first_query(v->queue.serial), VK_MAX_STAMP);
    stamp(v, c, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT);
}

void vk_timing_stamp(struct vk *v, VkCommandBuffer c)
{
    uint32_t n = stamps_of(v, v->queue.serial)->n;
    if (n > 0 && n < VK_MAX_STAMP)
        stamp(v, c, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT);
}
