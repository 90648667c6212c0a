/* What --devices and --split ask for: which devices there are to be, and how the experts are divided among them. */
#ifndef ENGINE_DEVICE_OPTIONS_H
#define ENGINE_DEVICE_OPTIONS_H

#include "places/division.h"

enum { ENGINE_MAX_DEVICE = 8 };

struct asked_device {
    bool is_vulkan;
    int number;         /* of a Vulkan device */
    int n_threads;      /* of a CPU device; those that load and pack for another one */
    double bytes_per_s; /* that were measured; 0: speeds go by threads */
};

/* "cpu:4" or "vulkan:0", in `out`. */
enum { DEVICE_NAME_BYTES = 20 };
const char *device_options_name(const struct asked_device *d, char out[DEVICE_NAME_BYTES]);

struct device_options {
    int n_device;
    struct asked_device devices[ENGINE_MAX_DEVICE];
    int n_place; /* that the experts are divided among: devices, or ranks of one device each */
    struct split split;
    double shares[DIVISION_MAX_PLACE]; /* [n_share] of the places, where the split names them */
    int n_share;
};

/* devices: "cpu:4,vulkan:0"; NULL: one of n_threads threads. n_rank: processes that share the experts, 1: this one
 * alone; of several each has one device. split: as split_parse takes it; NULL: "experts". ERR_USAGE says what was
 * expected. */
MUST_USE err_code device_options_parse(struct device_options *out, const char *devices, int n_threads, int n_rank,
                                       const char *split, struct err *e);

/* The devices as places that the experts are divided among: places [n_device]. They share the process's memory, each
 * takes of it what its experts need, so that rooms have no bound; speeds are those that were
 * measured, or else go by threads, and a GPU is taken for all processors. */
void device_options_places(const struct device_options *o, struct division_place *places);

#endif
