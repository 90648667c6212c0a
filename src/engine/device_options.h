/* What --devices and --split ask for: which devices there are to be, and how the experts are divided among them. */
#ifndef ENGINE_DEVICE_OPTIONS_H
#define ENGINE_DEVICE_OPTIONS_H

#include "places/division.h"

enum { ENGINE_MAX_DEVICE = 8 };

struct device_options {
    int n_device;
    int n_threads[ENGINE_MAX_DEVICE]; /* of each device */
    int n_place;                      /* that the experts are divided among: devices, or ranks of one device each */
    struct split split;
    double shares[DIVISION_MAX_PLACE]; /* [n_share] of the places, where the split names them */
    int n_share;
};

/* devices: "cpu:4,cpu:2"; NULL: one of n_threads threads. n_rank: processes that share the experts, 1: this one alone;
 * of several each has one device. split: as split_parse takes it; NULL: "experts". ERR_USAGE says what was expected. */
MUST_USE err_code device_options_parse(struct device_options *out, const char *devices, int n_threads, int n_rank,
                                       const char *split, struct err *e);

/* The devices as places that the experts are divided among: places [n_device]. They share the process's memory, each
 * takes of it what its experts need, so that rooms have no bound; speeds go by threads. */
void device_options_places(const struct device_options *o, struct division_place *places);

#endif
