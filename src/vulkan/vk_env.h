/* Environment variables that change what devices seem to be and do, for tests (docs/vulkan.md has examples). They are
 * read once, when devices are listed or one is opened. */
#ifndef VULKAN_VK_ENV_H
#define VULKAN_VK_ENV_H

#include <stdbool.h>
#include <stdint.h>

/* The variables are MOEBIUS_VULKAN_PRODUCTS and so on. */
struct vk_env {
    char products[16]; /* PRODUCTS: "float" or "integer", the definition of products; "": it is measured */
    char tiles[16];    /* TILES: "0", "1" or "matrix", the tiles of many rows; "": it is measured */
    char without[512]; /* WITHOUT: the names of features that devices shall lack, separated by commas */
    char kind[16];     /* KIND: the kind of all devices, "discrete", "integrated" or "software"; "": the real one */
    uint32_t n_copy;   /* COPIES: how many times each device is listed, at least 1 */
    uint64_t allocation_bytes; /* ALLOCATION, in MiB: the largest allocation; 0: the driver's limit */
    uint64_t heap_bytes;       /* HEAP, in MiB: the driver refuses more memory than this; UINT64_MAX: no such limit */
    uint64_t work;             /* WORK, times 2^20: the work of a submission (struct vk_limits); 0: the default */
    uint64_t lost_at;          /* LOSE: which submission fails as if the device were lost; UINT64_MAX: none */
    uint64_t full_at;  /* FULL: which submission of operations fails once as if out of memory; UINT64_MAX: none */
    bool begins_early; /* SUBMIT=early: software drivers, too, begin while the host still records */
    /* ORDER=backwards: dispatches between two barriers run in reverse order. A GPU may run them in any order; with a
     * software driver, which runs them one after the other, a missing barrier would never show. */
    bool is_backwards;
    /* FILL=1: memory is filled with NaNs when it is taken and when it is given back. Software drivers give zeros, GPUs
     * the previous contents. */
    bool fills;
    bool uploads_apart; /* UPLOADS=apart: uploads are ordered as if they had a queue of their own */
};

struct vk_env vk_env_read(void);

/* Whether devices shall lack the feature of this name. */
bool vk_env_lacks(const struct vk_env *env, const char *name);

/* BUDGET, in MiB, here in bytes: the memory budget that the driver states for this process; 0: the real one. As a
 * budget changes while a device is open, this variable is read each time that the driver is asked. */
uint64_t vk_env_budget(void);

#endif
