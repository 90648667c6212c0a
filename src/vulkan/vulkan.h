/* GPUs through Vulkan: what there is, and one of them as a device (backend/backend.h). docs/vulkan.md says how it
 * works.
 *
 * The loader is opened when a function of this room is first called, and nothing else of the program needs it. */
#ifndef VULKAN_VULKAN_H
#define VULKAN_VULKAN_H

#include <stdbool.h>

#include "backend/backend.h"

struct pool;
struct log;

enum { VULKAN_TEXT_BYTES = 256 };

/* A device that the loader lists. Its number, which vulkan_open takes, is its place in the list. */
struct vulkan_device {
    char name[VULKAN_TEXT_BYTES], driver[VULKAN_TEXT_BYTES];
    const char *kind;        /* "discrete", "integrated", "virtual", "software", "other" */
    uint64_t memory_bytes;   /* of the heap that weights lie in */
    uint64_t budget_bytes;   /* what the driver gives this process of it at present, or a share of it */
    unsigned api_version[3]; /* major, minor, patch */
    bool shares_memory;      /* that heap is the host's memory */
    bool has_upload_queue;   /* weights are uploaded, and on a queue of their own */
    bool is_usable;
    char why_not[VULKAN_TEXT_BYTES]; /* a sentence, when it is not usable */
};

/* Whether this build has the device at all. */
bool vulkan_is_built(void);

/* Lists the devices, *n of them; the list is the caller's (mem_free). Where there is no loader or no driver the list is
 * empty and `e` says so, with ERR_UNSUPPORTED. */
MUST_USE err_code vulkan_list(struct vulkan_device **out, int *n, struct err *e);

/* Opens device `index`. `pool` packs weights and is borrowed until the device is closed. ERR_UNSUPPORTED, with a
 * sentence, where it is not there or lacks something. */
MUST_USE err_code vulkan_open(struct backend **out, int index, struct pool *pool, struct err *e);

/* Tensors take no more of the device's memory than this; SIZE_MAX, as at first: no more than the driver gives. */
void vulkan_set_limit(struct backend *b, size_t n_bytes);

/* From now on operations are timed: op_counters.n_ns of backend_counters, where operations that share a dispatch count
 * as the first of them. It costs a timestamp a dispatch. Before anything is enqueued; false: the device has none. */
bool vulkan_time_operations(struct backend *b);

/* How many bytes a second go from the host's pinned memory to the device and back, the fastest of some copies. t, with
 * a buffer of its own, says how much, and what it holds afterwards is undefined. */
MUST_USE err_code vulkan_time_transfers(struct backend *b, const struct tensor *t, double *to_per_s, double *from_per_s,
                                        struct err *e);

/* Whether the driver has lost the device: all that is asked of it fails from then on. */
bool vulkan_is_lost(struct backend *b);

/* What a device's memory is used for at present. */
struct vulkan_memory {
    size_t limit_bytes;     /* what tensors may take; SIZE_MAX: no bound but the host's */
    size_t used_bytes;      /* what they take */
    size_t allocated_bytes; /* what was allocated for them */
    size_t elsewhere_bytes; /* of that, what the driver seems to keep in the host's memory; 0 where it does not say */
};
struct vulkan_memory vulkan_get_memory(struct backend *b);

/* What the driver has compiled, and which definitions of products were measured to be faster, so that a later run need
 * not wait for that and computes the same. save: bytes for a file, owned by the caller
 * (mem_free); NULL where nothing was compiled since the last use. use: before anything is enqueued; false when the
 * bytes are damaged, or another device's or driver's, and then nothing happens. */
MUST_USE err_code vulkan_save_pipelines(struct backend *b, void **bytes, size_t *n, struct err *e);
bool vulkan_use_pipelines(struct backend *b, const void *bytes, size_t n);
/* The name of a file for them: each device and driver has one of its own. */
enum { VULKAN_CACHE_NAME_BYTES = 64 };
void vulkan_cache_name(struct backend *b, char name[VULKAN_CACHE_NAME_BYTES]);

/* What a device that vulkan_open has opened was given to run since then. */
struct vulkan_counters {
    uint64_t n_dispatch, n_barrier, n_submit;
};
struct vulkan_counters vulkan_get_counters(struct backend *b);

#endif
