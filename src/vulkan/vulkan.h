/* GPUs through Vulkan: lists them, and opens one as a device (backend/backend.h). docs/vulkan.md says how it works.
 *
 * The Vulkan loader is opened when one of these functions is first called; nothing else of the program needs it. */
#ifndef VULKAN_VULKAN_H
#define VULKAN_VULKAN_H

#include <stdbool.h>

#include "backend/backend.h"

struct pool;
struct log;

enum { VULKAN_TEXT_BYTES = 256 };

/* A device that the loader lists. vulkan_open takes its index in the list. */
struct vulkan_device {
    char name[VULKAN_TEXT_BYTES], driver[VULKAN_TEXT_BYTES];
    const char *kind;        /* "discrete", "integrated", "virtual", "software", "other" */
    uint64_t memory_bytes;   /* size of the heap that weights lie in */
    uint64_t budget_bytes;   /* how much of it the driver gives this process now; a share of it where it doesn't say */
    unsigned api_version[3]; /* major, minor, patch */
    bool shares_memory;      /* that heap is the host's memory */
    bool has_upload_queue;   /* weights are uploaded on a queue of their own */
    bool is_usable;
    char why_not[VULKAN_TEXT_BYTES]; /* a sentence, where the device is not usable */
};

/* Whether this build supports Vulkan at all. */
bool vulkan_is_built(void);

/* Lists the devices, *n of them; the caller owns the list (mem_free). Where there is no loader or no driver the list is
 * empty and the error is ERR_UNSUPPORTED. */
MUST_USE err_code vulkan_list(struct vulkan_device **out, int *n, struct err *e);

/* Opens device `index`. `pool` packs weights and is borrowed until the device is closed. ERR_UNSUPPORTED, with a
 * sentence, where there is no such device or it lacks something. */
MUST_USE err_code vulkan_open(struct backend **out, int index, struct pool *pool, struct err *e);

/* Limits the device memory that tensors take; SIZE_MAX, as at first: only the driver limits it. */
void vulkan_set_limit(struct backend *b, size_t n_bytes);

/* From now on operations are timed: op_counters.n_ns of backend_counters. Operations that share a dispatch count as the
 * first of them. Costs a timestamp for each dispatch. To be called before anything is enqueued; false: the device has
 * no timestamps. */
bool vulkan_time_operations(struct backend *b);

/* Measures the bytes per second from the host's pinned memory to the device and back: those of the fastest of several
 * copies of the size of t, which must have a buffer of its own and has undefined contents afterwards. */
MUST_USE err_code vulkan_time_transfers(struct backend *b, const struct tensor *t, double *to_per_s, double *from_per_s,
                                        struct err *e);

/* Whether the driver has lost the device, after which all operations on it fail. */
bool vulkan_is_lost(struct backend *b);

/* How much of a device's memory is in use now. */
struct vulkan_memory {
    size_t limit_bytes;     /* the most that tensors may take; SIZE_MAX: only the host's limit holds */
    size_t used_bytes;      /* what tensors take */
    size_t allocated_bytes; /* what has been allocated for them */
    size_t elsewhere_bytes; /* part of it that the driver seems to keep in the host's memory; 0 where it doesn't say */
};
struct vulkan_memory vulkan_get_memory(struct backend *b);

/* The pipelines that the driver has compiled, and which ways to compute products were measured to be faster. With these
 * a later run needn't compile and measure again, and computes the same results. vulkan_save_pipelines: bytes for a
 * file, owned by the caller (mem_free); NULL where nothing was compiled since they were last used or saved.
 * vulkan_use_pipelines: to be called before anything is enqueued; false, and without effect, where the bytes are
 * damaged, or are those of another device or driver. */
MUST_USE err_code vulkan_save_pipelines(struct backend *b, void **bytes, size_t *n, struct err *e);
bool vulkan_use_pipelines(struct backend *b, const void *bytes, size_t n);
/* The name of a file for them, which is different for each device and driver. */
enum { VULKAN_CACHE_NAME_BYTES = 64 };
void vulkan_cache_name(struct backend *b, char name[VULKAN_CACHE_NAME_BYTES]);

/* What has been recorded for a device since vulkan_open. */
struct vulkan_counters {
    uint64_t n_dispatch, n_barrier, n_submit;
};
struct vulkan_counters vulkan_get_counters(struct backend *b);

#endif
