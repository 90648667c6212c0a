/* Parses --devices and --split: which devices to open, and how to divide the experts among them. */
#ifndef ENGINE_DEVICE_OPTIONS_H
#define ENGINE_DEVICE_OPTIONS_H

#include "places/division.h"

enum { ENGINE_MAX_DEVICE = 8 };

struct asked_device {
    bool is_vulkan;
    int number;         /* of a Vulkan device */
    int n_threads;      /* of a CPU device; of a Vulkan device: threads that load and pack its weights */
    double bytes_per_s; /* measured speed of its products, weights a second; 0: not measured */
};

/* Writes "cpu:4" or "vulkan:0" into `out`, and returns it. */
enum { DEVICE_NAME_BYTES = 20 };
const char *device_options_name(const struct asked_device *d, char out[DEVICE_NAME_BYTES]);

struct device_options {
    int n_device;
    struct asked_device devices[ENGINE_MAX_DEVICE];
    int n_place; /* places that the experts are divided among: devices, or ranks of one device each */
    struct split split;
    double shares[DIVISION_MAX_PLACE]; /* [n_share] of the places; none if the split names no shares */
    int n_share;
};

/* devices: "cpu:4,vulkan:0"; NULL: one CPU device of n_threads threads. n_rank: processes that share the experts, 1 if
 * this one is alone; if there are several, each has one device. split: as split_parse takes it; NULL: "experts".
 * ERR_USAGE says what was expected. */
MUST_USE err_code device_options_parse(struct device_options *out, const char *devices, int n_threads, int n_rank,
                                       const char *split, struct err *e);

/* Fills places [n_device], among which the experts are divided. Their rooms have no bound, as devices share the
 * process's memory and each takes what its experts need. Their speeds are those measured or, if not measured, their
 * numbers of threads; a GPU then counts as all processors. */
void device_options_places(const struct device_options *o, struct division_place *places);

#endif
