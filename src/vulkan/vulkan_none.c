/* A build without the Vulkan device. */
#include "vulkan/vulkan.h"

bool vulkan_is_built(void)
{
    return false;
}

err_code vulkan_list(struct vulkan_device **out, int *n, struct err *e)
{
    *out = NULL;
    *n = 0;
    return err_set(e, ERR_UNSUPPORTED, "this build of moebius has no Vulkan device");
}

err_code vulkan_save_pipelines(struct backend *b, void **bytes, size_t *n, struct err *e)
{
    *bytes = NULL;
    *n = 0;
    return ERR_OK;
}

bool vulkan_use_pipelines(struct backend *b, const void *bytes, size_t n)
{
    return false;
}

void vulkan_cache_name(struct backend *b, char name[VULKAN_CACHE_NAME_BYTES])
{
    name[0] = '\0';
}

void vulkan_set_limit(struct backend *b, size_t n_bytes)
{
}

bool vulkan_time_operations(struct backend *b)
{
    return false;
}

err_code vulkan_time_transfers(struct backend *b, const struct tensor *t, double *to_per_s, double *from_per_s,
                               struct err *e)
{
    *to_per_s = *from_per_s = 0;
    return err_set(e, ERR_UNSUPPORTED, "this build of moebius has no Vulkan device");
}

bool vulkan_is_lost(struct backend *b)
{
    return false;
}

struct vulkan_memory vulkan_get_memory(struct backend *b)
{
    return (struct vulkan_memory){0};
}

struct vulkan_counters vulkan_get_counters(struct backend *b)
{
    return (struct vulkan_counters){0};
}

err_code vulkan_open(struct backend **out, int index, struct pool *pool, struct err *e)
{
    *out = NULL;
    return err_set(e, ERR_UNSUPPORTED, "this build of moebius has no Vulkan device");
}
