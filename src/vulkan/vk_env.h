/* Variables of the environment that make devices other than they are, for tests (docs/vulkan.md has examples). They are
 * read once, when devices are listed or one is opened. */
#ifndef VULKAN_VK_ENV_H
#define VULKAN_VK_ENV_H

#include <stdbool.h>
#include <stdint.h>

/* The variables are MOEBIUS_VULKAN_PRODUCTS and so on. */
struct vk_env {
    char products[16]; /* PRODUCTS: "float" or "integer", the definition of products; "": it is measured */
    char tiles[16];    /* TILES: "0", "1" or "matrix", the tiles of many rows; "": it is measured */
    char without[512]; /* WITHOUT: names of what devices are to lack, with commas between them */
    char kind[16];     /* KIND: "discrete", "integrated" or "software", which all devices are; "": as they say */
    uint32_t n_copy;   /* COPIES: how often devices are listed, at least once */
    uint64_t allocation_bytes; /* ALLOCATION, in MiB: nothing larger is allocated at once; 0: as the driver has it */
    uint64_t heap_bytes;       /* HEAP, in MiB: the driver refuses more than this; UINT64_MAX: it does not */
    uint64_t work;             /* WORK, times 2^20: the work of a submission (struct vk_limits); 0: the usual */
    uint64_t lost_at;          /* LOSE: the submission that fails as if the device were lost; UINT64_MAX: none */
    uint64_t full_at;  /* FULL: that of operations which is refused once as if there were no memory; UINT64_MAX: none */
    bool begins_early; /* SUBMIT=early: drivers that compute on the processor begin while the host records, too */
    /* ORDER=backwards: dispatches between two barriers run in the opposite order. A GPU may run them in any; a driver
     * that runs one after the other would never show that a barrier is missing. */
    bool is_backwards;
    /* FILL=1: memory holds NaNs when it is taken and once it is given back. Software drivers give zeros, GPUs what was
     * there before. */
    bool fills;
    bool uploads_apart; /* UPLOADS=apart: uploads are ordered as if they had a queue of their own */
};

struct vk_env vk_env_read(void);

/* Whether devices are to lack what has such a name. */
bool vk_env_lacks(const struct vk_env *env, const char *name);

/* BUDGET, in MiB: what the driver says that this process may have; 0: as it does say. A budget changes while a device
 * is open: this alone is read whenever the driver is asked. */
uint64_t vk_env_budget(void);

#endif
