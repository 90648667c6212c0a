/* Lists devices, and finds out what each of them offers. */
#include <stdio.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include "base/free_memory.h"
#include "vulkan/vk_internal.h"
#include "vulkan/vulkan.h"

/* The first memory type of a set (bits) that has all of the properties; -1: there is none. */
static int find_type(const VkPhysicalDeviceMemoryProperties *m, uint32_t type_bits, VkMemoryPropertyFlags wanted)
{
    for (uint32_t i = 0; i < m->memoryTypeCount; i++)
        if (type_bits >> i & 1 && (m->memoryTypes[i].propertyFlags & wanted) == wanted)
            return (int)i;
    return -1;
}

static VkPhysicalDeviceType device_kind(const struct vk_env *env, const VkPhysicalDeviceProperties *p)
{
    const char *kind = env->kind;
    if (!*kind)
        return p->deviceType;
    return !strcmp(kind, "discrete")     ? VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU
           : !strcmp(kind, "integrated") ? VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU
                                         : VK_PHYSICAL_DEVICE_TYPE_CPU;
}

static VkDeviceSize heap_bytes(const VkPhysicalDeviceMemoryProperties *m, uint32_t type)
{
    return m->memoryHeaps[m->memoryTypes[type].heapIndex].size;
}

/* Chooses the memory type for tensors: the device's own memory, and of a type that the host can write if it can reach
 * all of it. Some drivers let the host reach only 256 MiB. */
err_code vk_limits_choose_memory(const struct vk_instance *api, VkPhysicalDevice device, uint32_t type_bits,
                                 struct vk_limits *l, struct err *e)
{
    enum { COHERENT = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT };
    VkPhysicalDeviceMemoryProperties2 memory = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    const VkPhysicalDeviceMemoryProperties *m = &memory.memoryProperties;
    api->fn.GetPhysicalDeviceMemoryProperties2(device, &memory);
    int local = find_type(m, type_bits, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    int mapped = find_type(m, type_bits, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | COHERENT);
    int host = find_type(m, type_bits, COHERENT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT);
    if (host < 0)
        host = find_type(m, type_bits, COHERENT);
    if (local < 0 || host < 0 || vk_env_lacks(&api->env, "hostMemory"))
        return err_set(e, ERR_UNSUPPORTED, "it has no memory of its own, or none that the host can write");
    l->is_mapped = mapped >= 0 && heap_bytes(m, (uint32_t)mapped) >= heap_bytes(m, (uint32_t)local) &&
                   !vk_env_lacks(&api->env, "mapped");
    l->device_type = (uint32_t)(l->is_mapped ? mapped : local);
    l->host_type = (uint32_t)host;
    return ERR_OK;
}

/* Chooses the queue for uploads: one that can only transfer (the DMA engines of cards), else a second queue of the
 * family that computes, else the queue of operations itself. */
static void choose_upload_queue(const struct vk_env *env, const VkQueueFamilyProperties *all, uint32_t n,
                                struct vk_limits *out)
{
    enum { ANY = VK_QUEUE_SPARSE_BINDING_BIT | VK_QUEUE_PROTECTED_BIT };
    uint32_t i = 0;
    while (i < n && (all[i].queueFlags & ~(VkQueueFlags)ANY) != VK_QUEUE_TRANSFER_BIT)
        i++;
    bool has_family = i < n && !vk_env_lacks(env, "transferQueue");
    bool has_second = all[out->queue_family].queueCount > 1 && !vk_env_lacks(env, "secondQueue");
    out->upload_family = has_family ? i : out->queue_family;
    out->upload_index = !has_family && has_second;
    out->has_upload_queue = has_family || has_second || env->uploads_apart;
}

/* Chooses the queue family for operations: the first one that computes, preferably one without graphics. */
static bool choose_queues(const struct vk_instance *api, VkPhysicalDevice device, struct vk_limits *out)
{
    VkQueueFamilyProperties all[VK_MAX_FAMILY];
    uint32_t n = VK_MAX_FAMILY;
    int best = -1;
    api->fn.GetPhysicalDeviceQueueFamilyProperties(device, &n, all);
    for (uint32_t i = 0; i < n; i++) {
        bool is_alone = !(all[i].queueFlags & VK_QUEUE_GRAPHICS_BIT);
        if (all[i].queueFlags & VK_QUEUE_COMPUTE_BIT &&
            (best < 0 || (is_alone && all[best].queueFlags & VK_QUEUE_GRAPHICS_BIT)))
            best = (int)i;
    }
    if (best < 0 || vk_env_lacks(&api->env, "computeQueue"))
        return false;
    out->queue_family = (uint32_t)best;
    choose_upload_queue(&api->env, all, n, out);
    return true;
}

static bool has_extension(const struct vk_instance *api, VkPhysicalDevice device, const char *name)
{
    uint32_t n = 0;
    bool found = false;
    if (vk_env_lacks(&api->env, name))
        return false;
    api->fn.EnumerateDeviceExtensionProperties(device, NULL, &n, NULL);
    VkExtensionProperties *all = mem_calloc(n, sizeof *all);
    if (all && api->fn.EnumerateDeviceExtensionProperties(device, NULL, &n, all) >= VK_SUCCESS)
        for (uint32_t i = 0; i < n; i++)
            found = found || !strcmp(all[i].extensionName, name);
    mem_free(all);
    return found;
}

/* Whether shaders/matrix.glsl can use cooperative matrices with these properties: signed bytes, in a subgroup, whose
 * sides divide those of half a tile and whose depth divides that of a sum. */
static bool is_usable(const VkCooperativeMatrixPropertiesKHR *p)
{
    enum { ROWS = 128, COLUMNS = 16, DEEP = 32 };
    bool has_types = p->AType == VK_COMPONENT_TYPE_SINT8_KHR && p->BType == VK_COMPONENT_TYPE_SINT8_KHR &&
                     p->CType == VK_COMPONENT_TYPE_SINT32_KHR && p->ResultType == VK_COMPONENT_TYPE_SINT32_KHR;
    return has_types && p->scope == VK_SCOPE_SUBGROUP_KHR && !p->saturatingAccumulation && p->MSize && p->NSize &&
           p->MSize % 4 == 0 && p->KSize && p->KSize % 4 == 0 && ROWS % p->MSize == 0 && COLUMNS % p->NSize == 0 &&
           DEEP % p->KSize == 0;
}

/* Chooses the largest usable cooperative matrices. */
static void choose_matrix(const struct vk_functions *fn, VkPhysicalDevice device, struct vk_limits *out)
{
    uint32_t n = 0, best = 0;
    if (!fn->GetPhysicalDeviceCooperativeMatrixPropertiesKHR || !vk_has_matrix_shaders() ||
        fn->GetPhysicalDeviceCooperativeMatrixPropertiesKHR(device, &n, NULL) != VK_SUCCESS)
        return;
    VkCooperativeMatrixPropertiesKHR *all = mem_calloc(n, sizeof *all);
    for (uint32_t i = 0; all && i < n; i++)
        all[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    if (all && fn->GetPhysicalDeviceCooperativeMatrixPropertiesKHR(device, &n, all) >= VK_SUCCESS)
        for (uint32_t i = 0; i < n; i++) {
            uint32_t size = all[i].MSize * all[i].NSize * all[i].KSize;
            if (!is_usable(&all[i]) || size <= best)
                continue;
            best = size;
            memcpy(out->matrix, (uint32_t[]){all[i].MSize, all[i].NSize, all[i].KSize}, sizeof out->matrix);
        }
    mem_free(all);
}

static err_code check_features(const struct vk_instance *api, VkPhysicalDevice device, struct vk_limits *out,
                               struct err *e)
{
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR};
    VkPhysicalDeviceSubgroupSizeControlFeatures subgroups = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES};
    VkPhysicalDeviceShaderIntegerDotProductFeatures dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES};
    VkPhysicalDeviceVulkan12Features v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &v12};
    if (has_extension(api, device, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME))
        v12.pNext = &dot;
    bool has_matrix = has_extension(api, device, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME) &&
                      has_extension(api, device, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    if (has_matrix) {
        subgroups.pNext = v12.pNext;
        matrix.pNext = &subgroups;
        v12.pNext = &matrix;
    }
    api->fn.GetPhysicalDeviceFeatures2(device, &features);
    if (!v12.bufferDeviceAddress || vk_env_lacks(&api->env, "bufferDeviceAddress"))
        return err_set(e, ERR_UNSUPPORTED, "its driver has no addresses of buffers (bufferDeviceAddress)");
    if (!v12.timelineSemaphore || vk_env_lacks(&api->env, "timelineSemaphore"))
        return err_set(e, ERR_UNSUPPORTED, "its driver has no timeline semaphores");
    out->has_dot = dot.shaderIntegerDotProduct;
    out->has_int64 = features.features.shaderInt64 && !vk_env_lacks(&api->env, "shaderInt64");
    bool has_memory_model = v12.vulkanMemoryModel && v12.vulkanMemoryModelDeviceScope;
    if (matrix.cooperativeMatrix && subgroups.computeFullSubgroups && has_memory_model && v12.shaderInt8 &&
        out->has_int64)
        choose_matrix(&api->fn, device, out);
    return ERR_OK;
}

/* Checks that the device has what the shaders need. Vulkan guarantees all of it but the shared memory for large
 * attention heads and routers, which vk_supports checks. */
static err_code check_limits(const struct vk_instance *api, VkPhysicalDevice device, struct vk_limits *out,
                             struct err *e)
{
    VkPhysicalDeviceMaintenance4Properties m4 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES};
    VkPhysicalDeviceMaintenance3Properties m3 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &m3};
    api->fn.GetPhysicalDeviceProperties2(device, &p);
    if (p.properties.apiVersion < VK_API_VERSION_1_2 || vk_env_lacks(&api->env, "Vulkan 1.2"))
        return err_set(e, ERR_UNSUPPORTED, "its driver has Vulkan %u.%u, expected 1.2",
                       VK_API_VERSION_MAJOR(p.properties.apiVersion), VK_API_VERSION_MINOR(p.properties.apiVersion));
    if (p.properties.apiVersion >= VK_API_VERSION_1_3) {
        m3.pNext = &m4;
        api->fn.GetPhysicalDeviceProperties2(device, &p);
    }
    const VkPhysicalDeviceLimits *l = &p.properties.limits;
    if (l->maxComputeWorkGroupInvocations < VK_MOST_THREADS || l->maxPushConstantsSize < VK_PUSH_BYTES ||
        vk_env_lacks(&api->env, "maxComputeWorkGroupInvocations"))
        return err_set(e, ERR_UNSUPPORTED,
                       "its workgroups have at most %u threads and %u bytes of push constants, expected %d and %d",
                       l->maxComputeWorkGroupInvocations, l->maxPushConstantsSize, VK_MOST_THREADS, VK_PUSH_BYTES);
    out->allocation_bytes = m3.maxMemoryAllocationSize;
    if (m4.maxBufferSize && m4.maxBufferSize < out->allocation_bytes)
        out->allocation_bytes = m4.maxBufferSize;
    if (api->env.allocation_bytes && api->env.allocation_bytes < out->allocation_bytes)
        out->allocation_bytes = api->env.allocation_bytes;
    out->work = api->env.work ? (int64_t)api->env.work : (int64_t)1 << 34;
    out->n_workgroup_x = l->maxComputeWorkGroupCount[0];
    out->n_workgroup_y = l->maxComputeWorkGroupCount[1];
    out->n_workgroup_z = l->maxComputeWorkGroupCount[2];
    out->shared_bytes = l->maxComputeSharedMemorySize;
    out->n_thread = l->maxComputeWorkGroupInvocations < l->maxComputeWorkGroupSize[0]
                        ? l->maxComputeWorkGroupInvocations
                        : l->maxComputeWorkGroupSize[0];
    VkPhysicalDeviceType kind = device_kind(&api->env, &p.properties);
    out->shares_memory = kind == VK_PHYSICAL_DEVICE_TYPE_CPU || kind == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    return ERR_OK;
}

err_code vk_limits_get(const struct vk_instance *api, VkPhysicalDevice device, struct vk_limits *out, struct err *e)
{
    *out = (struct vk_limits){0};
    TRY(check_limits(api, device, out, e));
    TRY(check_features(api, device, out, e));
    TRY(vk_limits_choose_memory(api, device, UINT32_MAX, out, e));
    size_t machine = machine_memory_bytes();
    if (machine && vk_heap_get(api, device, out).n_bytes > machine) /* the firmware has reserved memory for the GPU */
        out->shares_memory = false;
    if (!choose_queues(api, device, out))
        return err_set(e, ERR_UNSUPPORTED, "it has no queue that computes");
    out->has_portability = has_extension(api, device, "VK_KHR_portability_subset");
    out->has_budget = has_extension(api, device, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    return ERR_OK;
}

struct vk_heap vk_heap_get(const struct vk_instance *api, VkPhysicalDevice device, const struct vk_limits *limits)
{
    enum { OTHERS_SHARE = 8 }; /* 1/8 is left for other programs where the driver states no budget */
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 m = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
                                           .pNext = limits->has_budget ? &budget : NULL};
    api->fn.GetPhysicalDeviceMemoryProperties2(device, &m);
    uint32_t heap = m.memoryProperties.memoryTypes[limits->device_type].heapIndex;
    struct vk_heap h = {.n_bytes = m.memoryProperties.memoryHeaps[heap].size};
    h.budget_bytes = limits->has_budget ? budget.heapBudget[heap] : h.n_bytes - h.n_bytes / OTHERS_SHARE;
    h.usage_bytes = limits->has_budget ? budget.heapUsage[heap] : 0;
    uint64_t tested = vk_env_budget();
    if (tested) {
        h.budget_bytes = tested;
        h.usage_bytes = 0;
    }
    return h;
}

/* Memory that a driver allocates at the first call and leaks when it is unloaded (Mesa's on AMD processors) is not our
 * leak: LeakSanitizer ignores it. */
static VkResult enumerate(const struct vk_instance *i, uint32_t *n, VkPhysicalDevice *out)
{
#if defined(__SANITIZE_ADDRESS__)
    __lsan_disable();
#endif
    VkResult result = i->fn.EnumeratePhysicalDevices(i->instance, n, out);
#if defined(__SANITIZE_ADDRESS__)
    __lsan_enable();
#endif
    return result;
}

err_code vk_physical_list(const struct vk_instance *i, VkPhysicalDevice **out, uint32_t *n, struct err *e)
{
    *out = NULL;
    *n = 0;
    VkResult result = enumerate(i, n, NULL);
    if (result != VK_SUCCESS || *n == 0)
        return err_set(e, ERR_UNSUPPORTED, "Vulkan lists no device: no driver is installed, or none has found one");
    const uint32_t n_copy = i->env.n_copy;
    *out = mem_calloc((size_t)*n * n_copy, sizeof **out);
    if (!*out)
        return err_nomem(e, (size_t)*n * n_copy * sizeof **out, "the list of devices");
    if (enumerate(i, n, *out) < VK_SUCCESS) {
        mem_free(*out);
        *out = NULL;
        return err_set(e, ERR_UNSUPPORTED, "Vulkan does not list its devices");
    }
    for (uint32_t k = 1; k < n_copy; k++)
        memcpy(*out + (size_t)k * *n, *out, *n * sizeof **out);
    *n *= n_copy;
    return ERR_OK;
}

static const char *kind_name(VkPhysicalDeviceType type)
{
    switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return "discrete";
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return "integrated";
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return "virtual";
    case VK_PHYSICAL_DEVICE_TYPE_CPU: return "software";
    default: return "other";
    }
}

static void describe(const struct vk_instance *api, VkPhysicalDevice device, struct vulkan_device *out)
{
    VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &driver};
    struct vk_limits limits;
    struct err e = {0};
    api->fn.GetPhysicalDeviceProperties2(device, &p);
    snprintf(out->name, sizeof out->name, "%s", p.properties.deviceName);
    snprintf(out->driver, sizeof out->driver, "%.100s%s%.100s", driver.driverName, *driver.driverInfo ? " " : "",
             driver.driverInfo);
    out->kind = kind_name(device_kind(&api->env, &p.properties));
    out->api_version[0] = VK_API_VERSION_MAJOR(p.properties.apiVersion);
    out->api_version[1] = VK_API_VERSION_MINOR(p.properties.apiVersion);
    out->api_version[2] = VK_API_VERSION_PATCH(p.properties.apiVersion);
    out->is_usable = vk_limits_get(api, device, &limits, &e) == ERR_OK;
    snprintf(out->why_not, sizeof out->why_not, "%.*s", VULKAN_TEXT_BYTES - 1, e.text);
    if (!out->is_usable)
        return;
    const struct vk_heap heap = vk_heap_get(api, device, &limits);
    out->memory_bytes = heap.n_bytes;
    out->budget_bytes = heap.budget_bytes > heap.usage_bytes ? heap.budget_bytes - heap.usage_bytes : 0;
    out->shares_memory = limits.shares_memory;
    out->has_upload_queue = limits.has_upload_queue && !limits.is_mapped;
}

err_code vulkan_list(struct vulkan_device **out, int *n, struct err *e)
{
    struct vk_instance api;
    VkPhysicalDevice *devices = NULL;
    uint32_t n_device = 0;
    *out = NULL;
    *n = 0;
    TRY(vk_instance_open(&api, e));
    err_code code = vk_physical_list(&api, &devices, &n_device, e);
    if (code == ERR_OK) {
        *out = mem_calloc(n_device, sizeof **out);
        code = *out ? ERR_OK : err_nomem(e, n_device * sizeof **out, "the list of devices");
    }
    for (uint32_t i = 0; code == ERR_OK && i < n_device; i++)
        describe(&api, devices[i], &(*out)[i]);
    *n = code == ERR_OK ? (int)n_device : 0;
    mem_free(devices);
    vk_instance_close(&api);
    return code;
}

bool vulkan_is_built(void)
{
    return true;
}
