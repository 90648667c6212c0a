/* What a machine can do: its memory, processor, drives and GPUs, as `moebius probe` measured them or as somebody wrote
 * them down, and the JSON file that says so (docs/planner.md). A rate or size of 0 was not measured: it is unknown, is
 * null or absent in the file, and nothing stands in for it.
 *
 * Pure: text in, struct out. Refused, with the key and what was expected: text that is no JSON object, keys that are
 * not known or occur twice, values of another type, negative or absurd ones. Thread-safe. */
#ifndef PLANNER_MACHINE_H
#define PLANNER_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    MACHINE_NAME_BYTES = 128,
    MACHINE_PATH_BYTES = 256,
    MACHINE_TYPE_BYTES = 16,
    MACHINE_MAX_PRODUCT = 64,
    MACHINE_MAX_READ = 32,
    MACHINE_MAX_DRIVE = 8,
    MACHINE_MAX_GPU = 16,
    MACHINE_MAX_RANK = 64,
    MACHINE_MANY = 32 /* tokens of a product that was measured with many */
};

/* How fast n_threads read from memory together. */
struct machine_memory {
    int n_threads;
    double bytes_per_s;
};

/* Multiply-adds a second of one thread in products with weights of one type, which are in a cache. */
struct machine_product {
    char type[MACHINE_TYPE_BYTES]; /* "Q4_K" */
    double one_per_s, many_per_s;  /* where each weight meets one token, and where it meets MACHINE_MANY */
};

/* Random reads of one size, `depth` of them in flight at once. */
struct machine_read {
    int64_t n_bytes;
    int depth;
    double bytes_per_s; /* of all together */
};

struct machine_drive {
    char name[MACHINE_PATH_BYTES];               /* the folder that was measured, or what it is called */
    struct machine_read reads[MACHINE_MAX_READ]; /* [n_read] */
    int n_read;
};

struct machine_gpu {
    char name[MACHINE_NAME_BYTES];
    uint64_t memory_bytes, free_bytes;             /* all of its memory; what other processes have left */
    double bytes_per_s;                            /* reads from its own memory */
    double int8_per_s;                             /* multiply-adds on bytes */
    double to_bytes_per_s, from_bytes_per_s;       /* copies to the GPU and back, with pinned memory of the machine */
    double to_pageable_per_s, from_pageable_per_s; /* the same with memory that is not pinned */
    double dispatch_s;                             /* time of an empty dispatch that is waited for */
};

struct machine {
    char name[MACHINE_NAME_BYTES];                  /* the processor's, or what somebody called it */
    int n_thread;                                   /* processors that a process may use */
    int n_node;                                     /* memory nodes with processors */
    int n_socket, n_core;                           /* sockets and cores that a process may use */
    uint64_t l2_bytes, l3_bytes;                    /* of all caches of that level */
    uint64_t ram_bytes, free_bytes;                 /* all memory; what a process may still take */
    struct machine_memory memory[MACHINE_MAX_READ]; /* [n_memory], threads ascending */
    int n_memory;
    double small_page_per_s;                              /* as the last of memory, in pages of 4 KiB */
    double int8_per_s, float_per_s;                       /* multiply-adds on bytes and on floats, all threads */
    double thread_int8_per_s, thread_float_per_s;         /* the same of one thread alone; 0: as its part of all */
    double amx_per_s;                                     /* multiply-adds on bytes in AMX's tiles, all threads */
    struct machine_product products[MACHINE_MAX_PRODUCT]; /* [n_product] */
    int n_product;
    /* Multiply-adds a second of one thread in attention: one token, of which eight query heads share a KV head in F16,
     * and many tokens. */
    double attention_one_per_s, attention_many_per_s;
    struct machine_drive drives[MACHINE_MAX_DRIVE]; /* [n_drive] */
    int n_drive;
    struct machine_gpu gpus[MACHINE_MAX_GPU]; /* [n_gpu] */
    int n_gpu;
    int n_rank; /* equal machines that share a model's experts; 1 or unknown (0): alone */
    double rank_round_trip_s, rank_bytes_per_s; /* from the first one to another */
};

/* Rates of a machine that vary as other users of the same hardware take their part. */
enum machine_rate { MACHINE_MEMORY, MACHINE_UNITS, MACHINE_DRIVE, MACHINE_N_RATE };

/* Parses n bytes; `name` is what messages call them. */
MUST_USE err_code machine_parse(struct machine *m, const char *text, size_t n, const char *name, struct err *e);
/* The file's text, NUL-terminated, owned by the caller (mem_free). */
MUST_USE err_code machine_write(const struct machine *m, char **text, struct err *e);

/* Bytes/s that n_threads read from memory: interpolated linearly between two measurements, and beyond the last one
 * constant; 0: unknown. */
double machine_memory_speed(const struct machine *m, int n_threads);
/* The peak of n_threads, where all threads together reach `all` and one alone `one` (0: unknown). 0: unknown. */
double machine_peak(const struct machine *m, double all, double one, int n_threads);
/* A rate with n_threads: bytes/s read from memory, multiply-adds/s on bytes of vector units, or bytes/s read from the
 * drive 1 MiB at a time, whatever the threads. 0: unknown, or there are several drives. */
double machine_rate_of(const struct machine *m, enum machine_rate rate, int n_threads);
/* Multiplies by `factor` all figures that vary with the rate: those of memory, of peaks and products, or of drives. */
void machine_scale_rate(struct machine *m, enum machine_rate rate, double factor);
/* Sets the rate of n_threads to per_s, and scales all figures that vary with it. Units and drives that are unknown stay
 * so. */
void machine_set_rate(struct machine *m, enum machine_rate rate, int n_threads, double per_s);
/* The best bytes/s that a drive reached with reads of n_bytes: interpolated between two sizes by their logarithms,
 * proportional to the size below the smallest, and constant above the largest. 0: unknown. */
double machine_drive_speed(const struct machine_drive *d, double n_bytes);

#endif
