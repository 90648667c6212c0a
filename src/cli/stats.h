/* Figures of a run, for --stats and --stats-json. */
#ifndef CLI_STATS_H
#define CLI_STATS_H

#include <stdio.h>

#include "cli/options.h"
#include "moebius/moebius.h"

struct run_times {
    int64_t load_ns, prefill_ns, decode_ns;
    int64_t n_prefill; /* tokens of the prompt */
    int64_t n_chunk;   /* tokens of its first batch */
    int64_t n_decoded; /* tokens after it */
};

/* A line about memory and reads since `before`, on standard error. */
void stats_print(const moebius_engine *engine, const moebius_counters *before);

/* A line about what cache-aware routing did, if it did something. */
void stats_print_car(const moebius_engine *engine, FILE *f);

/* What drives gave, in bytes a second, while experts were read for several tokens at once; 0: too little was read. */
enum { STATS_MIN_READ_NS = 100 * 1000 * 1000 };
double stats_drive_rate(const moebius_counters *c);

/* Writes all figures as one JSON object. */
MUST_USE err_code stats_write_json(const char *path, const moebius_engine *engine, const struct run_times *t,
                                   struct err *e);

/* The process's peak resident memory, bytes; 0 when the system doesn't tell. */
int64_t stats_peak_bytes(void);

#endif
