/* Opens and closes the device; the table of its functions. */
#include <stdio.h>
#include <string.h>

#include "vulkan/vk_internal.h"
#include "vulkan/vulkan.h"

static void vk_trim(struct backend *b)
{
    for (int i = 0; i < VK_N_SCRATCH; i++)
        backend_buffer_close(b, &vk_of(b)->scratch[i]);
}

/* Doesn't wait for a device whose operations are not timed. */
static uint64_t vk_op_ns(struct backend *b, enum op_kind kind)
{
    return vk_of(b)->timing.pool ? vk_get_counters(b).op[kind].n_ns : 0;
}

static void vk_close(struct backend *b)
{
    struct vk *v = vk_of(b);
    if (v->device) {
        vk_trim(b);
        vk_counters_close(v);
        v->api.fn.DeviceWaitIdle(v->device);
        for (int i = 0; i < v->n_turns; i++)
            vk_piece_give(v, &v->turns[i].piece);
        vk_timing_close(v);
        vk_pipelines_close(v);
        vk_grids_close(v);
        vk_queue_close(v);
        vk_memory_close(v);
        v->api.fn.DestroyDevice(v->device, NULL);
    }
    vk_instance_close(&v->api);
    pthread_mutex_destroy(&v->memory_mutex);
    pthread_mutex_destroy(&v->queue.mutex);
    pthread_mutex_destroy(&v->upload.mutex);
    mem_free(v);
}

static err_code open_device(struct vk *v, struct err *e)
{
    const float priorities[2] = {1, 1};
    const struct vk_limits *l = &v->limits;
    const char *extensions[4];
    uint32_t n_extension = 0;
    VkPhysicalDeviceSubgroupSizeControlFeatures subgroups = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES, .computeFullSubgroups = VK_TRUE};
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
        .pNext = &subgroups,
        .cooperativeMatrix = VK_TRUE};
    VkPhysicalDeviceShaderIntegerDotProductFeatures dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES,
        .shaderIntegerDotProduct = VK_TRUE};
    const VkDeviceQueueCreateInfo queues[2] = {{.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                                .queueFamilyIndex = l->queue_family,
                                                .queueCount = 1 + l->upload_index,
                                                .pQueuePriorities = priorities},
                                               {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                                .queueFamilyIndex = l->upload_family,
                                                .queueCount = 1,
                                                .pQueuePriorities = priorities}};
    VkPhysicalDeviceVulkan12Features v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                            .bufferDeviceAddress = VK_TRUE,
                                            .timelineSemaphore = VK_TRUE};
    if (l->has_portability)
        extensions[n_extension++] = "VK_KHR_portability_subset";
    if (l->has_dot) {
        extensions[n_extension++] = VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME;
        v12.pNext = &dot;
    }
    if (l->matrix[0]) {
        extensions[n_extension++] = VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME;
        extensions[n_extension++] = VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME;
        subgroups.pNext = v12.pNext;
        v12.pNext = &matrix;
        v12.vulkanMemoryModel = v12.vulkanMemoryModelDeviceScope = v12.shaderInt8 = VK_TRUE;
    }
    const VkPhysicalDeviceFeatures features = {.shaderInt64 = l->has_int64};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &v12,
                                     .queueCreateInfoCount = l->upload_family == l->queue_family ? 1 : 2,
                                     .pQueueCreateInfos = queues,
                                     .enabledExtensionCount = n_extension,
                                     .ppEnabledExtensionNames = extensions,
                                     .pEnabledFeatures = &features};
    VkResult result = v->api.fn.CreateDevice(v->physical, &info, NULL, &v->device);
    if (result != VK_SUCCESS)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s", v->base.name, vk_result_text(result));
    return vk_load_device(&v->api.fn, v->device, e);
}

/* The physical device of this number. */
static err_code find_physical(struct vk *v, int index, struct err *e)
{
    VkPhysicalDevice *all;
    uint32_t n;
    TRY(vk_physical_list(&v->api, &all, &n, e));
    err_code code =
        index >= 0 && (uint32_t)index < n
            ? ERR_OK
            : err_set(e, ERR_UNSUPPORTED,
                      "there is no Vulkan device %d: expected one of the %u that moebius devices lists", index, n);
    if (code == ERR_OK)
        v->physical = all[index];
    mem_free(all);
    TRY(code);
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    v->api.fn.GetPhysicalDeviceProperties2(v->physical, &p);
    snprintf(v->name, sizeof v->name, "vulkan:%d (%.100s)", index, p.properties.deviceName);
    v->is_software = p.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    code = vk_limits_get(&v->api, v->physical, &v->limits, e);
    return code == ERR_OK ? ERR_OK : err_prefix(e, "%s", v->name);
}

static err_code open_all(struct vk *v, int index, struct err *e)
{
    TRY(vk_instance_open(&v->api, e));
    TRY(find_physical(v, index, e));
    TRY(open_device(v, e));
    vk_choices_open(v);
    TRY(vk_memory_open(v, e));
    TRY(vk_queue_open(v, e));
    TRY(vk_grids_open(v, e));
    TRY(vk_pipelines_open(v, e));
    return vk_counters_open(v, e);
}

struct vulkan_counters vulkan_get_counters(struct backend *b)
{
    vk_flush(vk_of(b));
    return vk_of(b)->recorded;
}

bool vulkan_is_lost(struct backend *b)
{
    return vk_of(b)->is_lost;
}

err_code vulkan_open(struct backend **out, int index, struct pool *pool, struct err *e)
{
    static const struct backend_vtable vtable = {
        .buffer_bytes = vk_buffer_bytes,
        .weight_shape = vk_weight_shape,
        .slot_pool_shape = vk_slot_pool_shape,
        .buffer_create = vk_buffer_create,
        .buffer_reserve = vk_buffer_reserve,
        .buffer_commit = vk_buffer_commit,
        .buffer_decommit = vk_buffer_decommit,
        .buffer_close = vk_buffer_close,
        .write = vk_write,
        .copy = vk_copy,
        .clear = vk_clear,
        .read = vk_read,
        .weight_load = vk_weight_load,
        .weight_close = vk_weight_close,
        .slot_pool_create = vk_slot_pool_create,
        .slot_pool_close = vk_slot_pool_close,
        .slot_pool_slot_bytes = vk_slot_pool_slot_bytes,
        .slot_pool_image = vk_slot_pool_image,
        .slot_open = vk_slot_open,
        .slot_close = vk_slot_close,
        .slot_fill = vk_slot_fill,
        .enqueue = vk_enqueue,
        .supports = vk_supports,
        .fence = vk_fence,
        .start = vk_start,
        .wait = vk_wait,
        .trim = vk_trim,
        .counters = vk_get_counters,
        .op_ns = vk_op_ns,
        .held_bytes = vk_held_bytes,
        .own_bytes = vk_own_bytes,
        .room_bytes = vk_room_bytes,
        .make_room = vk_make_room,
        .set_reclaim = vk_set_reclaim,
        .close = vk_close,
    };
    *out = NULL;
    struct vk *v = mem_calloc(1, sizeof *v);
    if (!v)
        return err_nomem(e, sizeof *v, "a Vulkan device");
    v->base = (struct backend){.v = &vtable, .name = v->name};
    v->pool = pool;
    atomic_init(&v->asked_bytes, SIZE_MAX);
    atomic_init(&v->found_bytes, SIZE_MAX);
    pthread_mutex_init(&v->memory_mutex, NULL);
    pthread_mutex_init(&v->queue.mutex, NULL);
    pthread_mutex_init(&v->upload.mutex, NULL);
    err_code code = open_all(v, index, e);
    if (code != ERR_OK) {
        vk_close(&v->base);
        return code;
    }
    *out = &v->base;
    return ERR_OK;
}
