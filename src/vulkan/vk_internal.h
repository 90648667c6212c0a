/* What the files of this room share. */
#ifndef VULKAN_VK_INTERNAL_H
#define VULKAN_VK_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/vtable.h"
#include "base/pool.h"
#include "vulkan/vk_loader.h"
#include "vulkan/vulkan.h"

struct vk;

/* ---- vk_list.c: what a device offers --------------------------------------------------------------------------- */

/* The properties of a device that matter to us. */
struct vk_limits {
    VkDeviceSize allocation_bytes;                        /* no allocation and no buffer is larger */
    uint32_t n_workgroup_x, n_workgroup_y, n_workgroup_z; /* the most workgroups of a dispatch */
    uint32_t n_thread, shared_bytes;                      /* the most threads and shared memory of a workgroup */
    /* The most work of a submission, as the sum of bytes of weights and state and of multiply-adds: so much that a slow
     * GPU does it in 0.2 s. */
    int64_t work;
    uint32_t queue_family;
    uint32_t upload_family, upload_index; /* the queue for uploads, which may be the queue for operations */
    bool has_upload_queue;                /* it is a queue of its own, or is ordered as if it were */
    uint32_t device_type, host_type;      /* memory types: for tensors; for transfers from and to the host */
    bool is_mapped;                       /* the host can write to the memory of tensors */
    bool shares_memory;                   /* tensors lie in the host's memory and count towards its limit */
    bool has_portability;                 /* the driver requires VK_KHR_portability_subset to be enabled */
    bool has_int64;                       /* shaders may use 64-bit integers */
    bool has_dot;    /* shaders may use dot products of bytes (VK_KHR_shader_integer_dot_product) */
    bool has_budget; /* the driver states a memory budget (VK_EXT_memory_budget) */
    /* Rows, columns and depth of the cooperative matrices of bytes that tiles consist of (VK_KHR_cooperative_matrix);
     * 0: shaders may not use them. */
    uint32_t matrix[3];
};

/* ERR_UNSUPPORTED, with a sentence, where the device can't be used. */
MUST_USE err_code vk_limits_get(const struct vk_instance *api, VkPhysicalDevice device, struct vk_limits *out,
                                struct err *e);
/* Chooses the memory types again, from those that buffers may use (a set of bits). */
MUST_USE err_code vk_limits_choose_memory(const struct vk_instance *api, VkPhysicalDevice device, uint32_t type_bits,
                                          struct vk_limits *l, struct err *e);

/* The present state of the heap that tensors lie in. */
struct vk_heap {
    uint64_t n_bytes;
    uint64_t budget_bytes; /* how much of it this process may have: as the driver says, or else a share of it */
    uint64_t usage_bytes;  /* how much of it this process has, as the driver says; 0: it doesn't say */
};
struct vk_heap vk_heap_get(const struct vk_instance *api, VkPhysicalDevice device, const struct vk_limits *limits);

/* The physical devices, *n of them; the caller owns the list (mem_free). */
MUST_USE err_code vk_physical_list(const struct vk_instance *i, VkPhysicalDevice **out, uint32_t *n, struct err *e);

/* ---- vk_memory.c ----------------------------------------------------------------------------------------------- */

enum vk_memory_kind { VK_FOR_DEVICE, VK_FOR_HOST };

/* An allocation, which is divided into pieces. */
struct vk_block {
    struct vk_block *next;
    enum vk_memory_kind kind;
    VkDeviceMemory memory;
    VkBuffer buffer;
    VkDeviceAddress address;
    char *mapped; /* NULL: the host can't reach it */
    size_t n_bytes;
    struct vk_piece_list {
        size_t *from, *end; /* [n] the ranges of bytes that are in use, ascending */
        size_t n, room;
    } used;
};

/* Memory of the device: a part of a block. */
struct vk_piece {
    struct vk_block *block; /* NULL: there is none */
    size_t off, n_bytes;
};

/* Takes n_bytes. Fails with ERR_NOMEM or ERR_LIMIT and a sentence that says what they were for (`what`).
 * Thread-safe. */
MUST_USE err_code vk_piece_take(struct vk *v, enum vk_memory_kind kind, size_t n_bytes, const char *what,
                                struct vk_piece *out, struct err *e);
void vk_piece_give(struct vk *v, struct vk_piece *p);
VkDeviceAddress vk_piece_address(const struct vk_piece *p);
char *vk_piece_mapped(const struct vk_piece *p); /* or NULL */
/* Finds out which memory buffers may lie in. To be called before anything is taken. */
MUST_USE err_code vk_memory_open(struct vk *v, struct err *e);
void vk_memory_close(struct vk *v);

/* Count bytes in the device's ledger and, where it shares the host's memory, in that of base/mem.h. ERR_LIMIT and
 * ERR_NOMEM say what the bytes were for. */
MUST_USE err_code vk_count(struct vk *v, size_t n_bytes, enum mem_tag tag, const char *what, struct err *e);
MUST_USE bool vk_try_count(struct vk *v, size_t n_bytes, enum mem_tag tag); /* reclaims nothing */
void vk_uncount(struct vk *v, size_t n_bytes, enum mem_tag tag);
size_t vk_held_bytes(struct backend *b, enum mem_tag tag);
size_t vk_own_bytes(struct backend *b); /* 0 where the device shares the host's memory */

size_t vk_room_bytes(struct backend *b);
bool vk_make_room(struct backend *b, size_t n_bytes);
void vk_set_reclaim(struct backend *b, mem_reclaim_fn *reclaim, void *user);

struct buffer {
    size_t n_bytes;
    enum mem_tag tag;
    uint64_t id;           /* tells its accesses apart from those of other buffers (struct vk_access) */
    struct vk_piece piece; /* its memory, unless it is reserved */
    /* A reserved buffer has a piece for each unit that is committed, and a table of their addresses on the device. */
    size_t unit_bytes; /* 0: it is not reserved */
    size_t n_unit;
    struct vk_piece *units; /* [n_unit] */
    struct vk_table *table;
};

MUST_USE err_code vk_buffer_create(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag,
                                   struct buffer **out, struct err *e);
MUST_USE err_code vk_buffer_reserve(struct backend *b, size_t n_bytes, size_t unit_bytes, int64_t n_part,
                                    enum mem_tag tag, struct buffer **out, struct err *e);
bool vk_buffer_commit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes);
void vk_buffer_decommit(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes);
void vk_buffer_close(struct backend *b, struct buffer *buf);
size_t vk_buffer_bytes(struct backend *b, const struct buffer *buf);

/* A table of addresses on the device. The host changes a copy of it; what has changed is written to the device before
 * the next operation that uses the table. */
struct vk_table {
    struct vk_piece piece;
    VkDeviceAddress *host; /* [n] the host's copy */
    size_t n;
    size_t dirty_from, dirty_end; /* the entries that have changed */
};

MUST_USE err_code vk_table_open(struct vk *v, size_t n, struct vk_table **out, struct err *e);
void vk_table_close(struct vk *v, struct vk_table **t); /* accepts a pointer to NULL */
void vk_table_set(struct vk_table *t, size_t i, VkDeviceAddress address);

/* ---- vk_queue.c ------------------------------------------------------------------------------------------------ */

enum { VK_N_COMMANDS = 4, VK_STAGING_BYTES = 1 << 20, VK_MAX_ACCESS = 96, VK_MAX_BUFFER_ID = (1 << 19) - 1 };
enum {
    VK_PUSH_BYTES = 128,  /* bytes of push constants, which every device has */
    VK_MOST_THREADS = 256 /* the most threads of our workgroups, which a device must support */
};

/* What a command reads or writes. Each buffer has a range of numbers of its own, one for each byte; the access is to
 * those in [from, end). */
struct vk_access {
    uint64_t from, end;
    bool is_write;
};

/* A dispatch, ready to be recorded. */
struct vk_recorded_dispatch {
    VkPipeline pipeline;
    uint32_t x, y, z, y0, z0; /* the numbers of workgroups, and the first ones in y and z */
    uint32_t push_bytes;
    char push[VK_PUSH_BYTES];
};

struct vk_queue {
    VkQueue queue;
    pthread_mutex_t mutex; /* of `queue`, where uploads use it, too */
    VkCommandPool pool;
    VkCommandBuffer commands[VK_N_COMMANDS];
    VkSemaphore passed;          /* a timeline semaphore: the last serial whose commands have run */
    uint64_t serial;             /* of the commands that are being recorded, or were recorded last */
    atomic_uint_least64_t ended; /* the last serial that has been waited for */
    bool is_recording;           /* false: all commands have been submitted */
    uint64_t work;               /* work of the commands that are being recorded, in bytes and multiply-adds */
    uint32_t n_dispatch;         /* dispatches in the commands that are being recorded */
    bool begins_early;           /* the device begins while the host still records */
    uint32_t n_early;            /* submissions since the host last waited for the end */
    struct vk_piece staging;     /* VK_STAGING_BYTES for each of the commands, and as many for reading back */
    size_t staging_used;         /* bytes of it that the commands that are being recorded use */
    struct vk_access access[VK_MAX_ACCESS]; /* accesses since the last barrier */
    int n_access;
    uint64_t stage; /* counts barriers and beginnings of submissions: commands of the same stage may overlap */
    struct vk_recorded_dispatch
        *held; /* [VK_MAX_ACCESS] owned; dispatches that wait for the next barrier; NULL: none ever do */
    int n_held;
    /* What was read back last will probably be read again. Commands that are waited for therefore copy it to the host
     * at their end, and reading it then needs no submission of its own. */
    struct vk_read_back {
        struct vk_access what; /* the buffer that it is a part of */
        struct vk_piece piece; /* the memory that it lies in */
        size_t off, n;         /* where in the piece it is; n 0: nothing was read */
        uint64_t serial;       /* of the commands that have copied it; 0: none, or others have been recorded since */
    } read_back;
};

MUST_USE err_code vk_queue_open(struct vk *v, struct err *e);
void vk_queue_close(struct vk *v);

/* The commands to record into. `work` is the cost of the next command: where the submission would become too long, it
 * is submitted first. */
VkCommandBuffer vk_record(struct vk *v, uint64_t work);

/* Records a dispatch, after the caller has called vk_order. */
void vk_record_dispatch(struct vk *v, VkCommandBuffer c, const struct vk_recorded_dispatch *call);

/* Orders the next command, which has n accesses, behind the commands that it depends on: records a barrier where one of
 * its accesses conflicts with an earlier one. */
void vk_order(struct vk *v, const struct vk_access *access, int n);

/* An access to all of a buffer, and to a tensor's part of it. */
struct vk_access vk_access_buffer(const struct buffer *buf, bool is_write);
struct vk_access vk_access_tensor(const struct tensor *t, bool is_write);
struct vk_access vk_access_piece(const struct vk_piece *p, bool is_write); /* of a piece that is in no buffer */

/* Submits what is recorded and waits for the end of all commands. To be called before memory is given back. */
void vk_drain(struct vk *v);

/* Copies bytes of the host to device memory at once, from any thread. No command may use that memory. */
MUST_USE err_code vk_upload(struct vk *v, const struct vk_piece *p, size_t off, const void *src, size_t n_bytes,
                            struct err *e);
/* The same in queue order. */
void vk_write_bytes(struct vk *v, const struct vk_piece *p, size_t off, const void *src, size_t n_bytes);
/* Writes the changed entries of a table to the device. */
void vk_table_flush(struct vk *v, struct vk_table *t);

void vk_write(struct backend *b, const struct tensor *t, const void *src);
void vk_copy(struct backend *b, const struct tensor *from, const struct tensor *to);
void vk_clear(struct backend *b, const struct tensor *t);
/* Stops copying what was read back from a buffer. To be called before memory of the buffer is given back. */
void vk_forget_read(struct vk *v, const struct buffer *buf);
err_code vk_read(struct backend *b, const struct tensor *t, void *dst, struct err *e);
uint64_t vk_fence(struct backend *b);
void vk_start(struct backend *b);
err_code vk_wait(struct backend *b, uint64_t fence, struct err *e);

/* Remembers an error for the next report, unless there is one already. */
void vk_fail(struct vk *v, err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* ---- vk_timing.c ----------------------------------------------------------------------------------------------- */

enum { VK_MAX_STAMP = 2048, VK_MAX_FAMILY = 16 }; /* timestamps of a command buffer; queue families that we look at */

struct vk_timing {
    VkQueryPool pool; /* VK_MAX_STAMP queries for each of the commands; VK_NULL_HANDLE: nothing is timed */
    uint64_t mask;    /* the bits of a timestamp that are valid */
    double tick_ns;
    struct vk_stamps {
        uint32_t n;                 /* timestamps that these commands write and that are not counted yet */
        uint8_t kind[VK_MAX_STAMP]; /* enum op_kind of the dispatch before each timestamp */
    } stamps[VK_N_COMMANDS];
};

void vk_timing_close(struct vk *v);
/* To be called when commands begin, and after each dispatch in them. */
void vk_timing_begin(struct vk *v, VkCommandBuffer c);
void vk_timing_stamp(struct vk *v, VkCommandBuffer c);
/* Adds the times of commands that have run to the counters of operations. */
void vk_timing_count(struct vk *v, uint64_t serial);

/* ---- vk_pipelines.c -------------------------------------------------------------------------------------------- */

enum vk_shader {
#define SHADER(name)        VK_SHADER_##name,
#define SHADER_WIDE(name)   VK_SHADER_##name,
#define SHADER_DOT(name)    VK_SHADER_##name,
#define SHADER_MATRIX(name) VK_SHADER_##name,
#include "vulkan/vk_shaders.def"
#undef SHADER
#undef SHADER_WIDE
#undef SHADER_DOT
#undef SHADER_MATRIX
    VK_N_SHADER
};

enum { VK_MAX_CONSTANT = 19 };

/* A shader with values for its specialization constants 0 to n - 1; the first is the size of a workgroup. */
struct vk_program {
    enum vk_shader shader;
    int n;
    uint32_t constant[VK_MAX_CONSTANT];
};

struct vk_pipelines {
    VkPipelineLayout layout;
    struct vk_pipeline {
        struct vk_program program;
        VkPipeline pipeline;
    } * all; /* [n] */
    size_t n, room;
    uint64_t bound_serial; /* serial of the commands that the descriptors were last bound in; 0: none */
    VkPipelineCache cache;
    size_t n_cached; /* pipelines that the cache held when it was last used or saved */
};

/* Whether shaders with cooperative matrices could be compiled when the program was built. */
bool vk_has_matrix_shaders(void);

MUST_USE err_code vk_pipelines_open(struct vk *v, struct err *e);
void vk_pipelines_close(struct vk *v);

/* A dispatch of x by y by z workgroups. */
struct vk_dispatch {
    struct vk_program program;
    const void *push;
    size_t push_bytes;
    uint32_t x, y, z;
    uint64_t work;
    const struct vk_access *access; /* [n_access] */
    int n_access;
};
void vk_dispatch(struct vk *v, const struct vk_dispatch *d);

/* ---- vk_grids.c ------------------------------------------------------------------------------------------------ */

/* The codebooks of some types (shaders/grids.glsl), and the only descriptor set. */
struct vk_grids {
    VkDescriptorSetLayout layout;
    VkDescriptorPool pool;
    VkDescriptorSet set; /* the pool's */
    struct vk_piece piece;
};

enum { VK_BINDING_GRIDS, VK_BINDING_COUNTERS, VK_N_BINDING };
/* Binds a piece of memory for the lifetime of the device. To be called before anything is recorded. */
void vk_bind_piece(struct vk *v, uint32_t binding, const struct vk_piece *p);

MUST_USE err_code vk_grids_open(struct vk *v, struct err *e);
void vk_grids_close(struct vk *v); /* to be called after a failure, too */

/* ---- vk_weights.c, vk_slots.c ---------------------------------------------------------------------------------- */

/* Whether the shaders support a type. */
bool vk_type_supported(const struct vk *v, const struct quant_info *type);
/* The bytes of a group of 16 packed rows of k weights. */
size_t vk_group_bytes(const struct quant_info *type, int64_t k);
/* A matrix may be in several parts, as allocations are limited: the most rows of a part. 0: not even a group of 16 rows
 * can be allocated. */
int64_t vk_part_rows(const struct vk *v, const struct quant_info *type, int64_t k);
/* Packs a group of 16 rows from n <= 16 rows in GGUF's order. */
void vk_pack_group(const struct quant_info *type, int64_t k, void *dst, const void *src, int64_t n);

/* ---- vk_choices.c: how products with each type of weights are computed ------------------------------------------- */

enum {
    VK_CHOSEN = 1,   /* the flags below hold; else nothing has been chosen for the type yet */
    VK_MEASURED = 2, /* they were chosen by measuring on this device */
    VK_INTEGER = 4,  /* products are of integers (docs/numerics.md), else of floats */
    VK_TILED = 8,    /* products of many rows use tiles in shared memory (shaders/tile.glsl), with the same results */
    VK_MATRIX = 16   /* tiles of integers use cooperative matrices (shaders/matrix.glsl), with the same results */
};

struct vk_choices {
    uint8_t of[QUANT_MAX_ID]; /* the flags above, or'ed, by type */
    bool stages_attention;    /* attention stages K and V in shared memory, and that of prompts uses tiles of queries;
                                 the results are the same */
    bool is_measuring;
};

bool vk_is_integer(const struct vk *v, enum quant_type type);
bool vk_is_tiled(const struct vk *v, enum quant_type type);
bool vk_has_matrices(const struct vk *v, enum quant_type type);
/* Chooses how to compute products with a type before weights of it are loaded, by measuring on this device unless the
 * choice is given. */
void vk_choose(struct vk *v, const struct quant_info *type);
/* Makes the choices that need no measurement. */
void vk_choices_open(struct vk *v);
/* Uses what an earlier run has measured. To be called before anything is chosen. */
void vk_recall_choices(struct vk *v, const uint8_t of[QUANT_MAX_ID]);

struct weight {
    const struct quant_info *type;
    int64_t k, n_row;
    int64_t part_rows; /* rows of each part but the last, a multiple of 16 */
    int64_t n_part;
    struct vk_piece *parts; /* [n_part] */
    struct vk_table *table; /* the addresses of the parts */
    size_t n_bytes;
    const char *observed; /* the tensor's name for observers; NULL: it is not to be observed */
};

err_code vk_weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                        struct weight **out, struct err *e);
void vk_weight_close(struct backend *b, struct weight *w);
struct weight_shape vk_weight_shape(struct backend *b, const struct weight *w);

struct slot_pool {
    struct slot_pool_desc d;
    struct layout_image image; /* how an expert lies in a slot */
    struct vk_piece *slots;    /* [d.n_slot]; closed slots have no memory */
    struct vk_table *table;    /* the address of each slot */
};

err_code vk_slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out, struct err *e);
void vk_slot_pool_close(struct backend *b, struct slot_pool *s);
size_t vk_slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d);
struct slot_pool_desc vk_slot_pool_shape(struct backend *b, const struct slot_pool *s);
bool vk_slot_pool_image(struct backend *b, const struct slot_pool_desc *d, struct layout_image *out);
bool vk_slot_open(struct backend *b, struct slot_pool *s, int64_t slot);
void vk_slot_close(struct backend *b, struct slot_pool *s, int64_t slot);
err_code vk_slot_fill(struct backend *b, struct slot_pool *s, int64_t slot, const struct slot_rows *rows,
                      struct err *e);

/* ---- vk_counters.c --------------------------------------------------------------------------------------------- */

/* What a counter in a shader stands for. It counts reads, each of n_bytes, and units of work, each of n_int8 and
 * n_float multiply-adds. EXPERTS reads experts, and its units of work are pairs of a token and an expert; ATTENTION
 * reads positions of all KV heads, and its units are positions of all query heads; for DELTA and SSM both are states.
 */
struct vk_unit {
    enum op_kind kind;
    uint64_t n_bytes, n_int8, n_float;
};

enum { VK_MAX_COUNTER = 64 };
struct vk_counters {
    struct buffer *buffer; /* the counters on the device (shaders/counters.glsl) */
    struct vk_unit units[VK_MAX_COUNTER];
    uint32_t n;
};

MUST_USE err_code vk_counters_open(struct vk *v, struct err *e);
void vk_counters_close(struct vk *v); /* to be called after a failure, too */
/* The index of a unit's counter, and its address on the device. */
uint32_t vk_counter(struct vk *v, const struct vk_unit *unit);
uint64_t vk_counter_address(struct vk *v, const struct vk_unit *unit);
/* Adds a matrix of weights to a unit. */
void vk_unit_add(const struct vk *v, struct vk_unit *to, const struct quant_info *type, int64_t n_row, int64_t k);
/* Counts what the host knows about an operation when it is enqueued. */
void vk_count_op(struct vk *v, const struct op *op);
struct backend_counters vk_get_counters(struct backend *b);

/* ---- operations ------------------------------------------------------------------------------------------------ */

/* Scratch memory that operations share: buffers that grow. */
enum vk_scratch {
    VK_SCRATCH_LOGITS,
    VK_SCRATCH_HIDDEN,
    VK_SCRATCH_SORT,
    VK_SCRATCH_BLOCKS,
    VK_SCRATCH_RANKS,
    VK_SCRATCH_RUNS, /* activations rounded to eight bits (shaders/integers.glsl) */
    VK_SCRATCH_DONE, /* counters of workgroups that are done (shaders/done.glsl): zero between dispatches */
    VK_N_SCRATCH
};

/* A table of frequencies for ROPE_TABLE (vk_rope.c). */
struct vk_turns {
    struct rope_angles angles;
    int64_t n_rot;
    const struct buffer *divisors; /* NULL: none */
    size_t divisors_off;
    struct vk_piece piece;
};
enum { VK_MAX_TURNS = 16 };

/* The last RMS_NORM that was left to the products that read its result, each of one row. */
struct vk_norm {
    struct tensor x, w, out; /* out absent: there is none */
    float eps;
    bool is_pending; /* out has not been written yet: the first product will do so */
    uint64_t stage;  /* the stage (struct vk_queue) of that product */
};

enum { VK_MAX_PENDING = 32 };

struct vk {
    struct backend base;
    char name[128];
    struct vk_instance api;
    VkPhysicalDevice physical;
    VkDevice device;
    struct vk_limits limits;
    struct pool *pool; /* borrowed */

    pthread_mutex_t memory_mutex;     /* protects `blocks` */
    struct vk_block *blocks[2];       /* by kind (enum vk_memory_kind) */
    atomic_size_t allocated_bytes[2]; /* bytes of the blocks, by kind */
    atomic_size_t used_bytes[2];      /* bytes of their pieces, by kind */
    atomic_size_t asked_bytes;        /* the limit that vulkan_set_limit has set; SIZE_MAX: none */
    atomic_size_t found_bytes;        /* the limit at which the driver has refused memory; SIZE_MAX: it has not */
    mem_reclaim_fn *reclaim;          /* may be NULL */
    void *reclaim_user;
    atomic_size_t held_bytes[MEM_N_TAG];
    uint64_t n_buffer; /* buffers that have ever been created; ids repeat after 2^19 of them */

    struct vk_queue queue;
    struct vk_upload_lane {
        pthread_mutex_t mutex; /* protects commands, serial and staging */
        VkQueue queue;         /* may be the queue of operations */
        VkCommandPool pool;
        VkCommandBuffer commands;
        VkSemaphore passed;
        uint64_t serial;
        atomic_uint_least64_t ended; /* the last serial that has been waited for */
        struct vk_piece staging;
    } upload;

    struct vk_grids grids;
    struct vk_choices choices;
    struct vk_pipelines pipelines;
    struct vk_timing timing;
    struct buffer *scratch[VK_N_SCRATCH];
    struct vk_counters work;
    struct vk_turns turns[VK_MAX_TURNS];
    int n_turns;

    /* Operations that have been enqueued but not recorded yet, as several may share a dispatch (vk_fuse.c). */
    struct op pending[VK_MAX_PENDING];
    int n_pending;
    bool is_flushing;     /* they are being recorded */
    enum op_kind running; /* the first operation of the dispatch that is being recorded */
    struct vk_norm norm;

    struct backend_counters counters;
    struct vulkan_counters recorded;
    struct err error; /* the first one since the last report */
    bool is_software; /* the driver computes on the processor */
    bool is_lost;     /* the device was lost: nothing can run any more */
};

static inline struct vk *vk_of(struct backend *b)
{
    return (struct vk *)b;
}

/* A scratch buffer of at least n_bytes. It grows when an operation is enqueued, so that it is large enough when the
 * operation is recorded. NULL after an error, which is remembered. */
struct buffer *vk_scratch(struct vk *v, enum vk_scratch which, size_t n_bytes);

void vk_enqueue(struct backend *b, const struct op *op);
/* Records the pending operations. */
void vk_flush(struct vk *v);
bool vk_supports(struct backend *b, const struct op *op, const struct op_shapes *s);

#endif
