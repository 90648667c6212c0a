#include "vulkan/vk_env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_text(const char *name, char *out, size_t n)
{
    const char *text = getenv(name);
    snprintf(out, n, "%s", text ? text : "");
}

static bool is_set_to(const char *name, const char *value)
{
    const char *text = getenv(name);
    return text && !strcmp(text, value);
}

static uint64_t read_number(const char *name, uint64_t absent)
{
    const char *text = getenv(name);
    return text ? (uint64_t)strtoull(text, NULL, 10) : absent;
}

static uint64_t read_mib(const char *name, uint64_t absent)
{
    return getenv(name) ? read_number(name, 0) << 20 : absent;
}

struct vk_env vk_env_read(void)
{
    enum { MOST_COPIES = 99 };
    uint64_t n_copy = read_number("MOEBIUS_VULKAN_COPIES", 1);
    struct vk_env env = {.n_copy = n_copy > 1 && n_copy <= MOST_COPIES ? (uint32_t)n_copy : 1,
                         .allocation_bytes = read_mib("MOEBIUS_VULKAN_ALLOCATION", 0),
                         .heap_bytes = read_mib("MOEBIUS_VULKAN_HEAP", UINT64_MAX),
                         .work = read_mib("MOEBIUS_VULKAN_WORK", 0),
                         .lost_at = read_number("MOEBIUS_VULKAN_LOSE", UINT64_MAX),
                         .full_at = read_number("MOEBIUS_VULKAN_FULL", UINT64_MAX),
                         .begins_early = is_set_to("MOEBIUS_VULKAN_SUBMIT", "early"),
                         .is_backwards = is_set_to("MOEBIUS_VULKAN_ORDER", "backwards"),
                         .fills = is_set_to("MOEBIUS_VULKAN_FILL", "1"),
                         .uploads_apart = is_set_to("MOEBIUS_VULKAN_UPLOADS", "apart")};
    read_text("MOEBIUS_VULKAN_PRODUCTS", env.products, sizeof env.products);
    read_text("MOEBIUS_VULKAN_TILES", env.tiles, sizeof env.tiles);
    read_text("MOEBIUS_VULKAN_WITHOUT", env.without, sizeof env.without);
    read_text("MOEBIUS_VULKAN_KIND", env.kind, sizeof env.kind);
    return env;
}

bool vk_env_lacks(const struct vk_env *env, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = env->without; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && !strncmp(at, name, n))
            return true;
    return false;
}

uint64_t vk_env_budget(void)
{
    return read_mib("MOEBIUS_VULKAN_BUDGET", 0);
}
