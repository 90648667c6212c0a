/* Receipts: what share of their ceilings earlier runs reached, and what that says about other runs.
 *
 * A receipt is one measured run, with the least time that each part of it can take (planner/ceiling.h). Calibration
 * finds by how much each part is slower than that in runs on the same devices, by weighted least squares over their
 * times, and forecasts from it what share of its ceiling a run will reach. A receipt with the ceiling of the whole
 * alone, such as one of another program, is taken as equally slow in all parts, and counts in its own regime only.
 * Pure: reading and writing files is left to callers. Thread-safe. */
#ifndef PLANNER_RECEIPTS_H
#define PLANNER_RECEIPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "planner/ceiling.h"
#include "planner/machine.h"

enum { RECEIPT_NAME_BYTES = 128, RECEIPT_SETTINGS_BYTES = 256 };

/* One measured run, or one that somebody else measured. Rates are in tokens a second, of all texts together; 0: not
 * measured, or not known. */
struct receipt {
    int64_t time_s;                   /* when, seconds since 1970 */
    char machine[RECEIPT_NAME_BYTES]; /* as struct machine names it */
    char model[RECEIPT_NAME_BYTES];   /* for people */
    char arch[RECEIPT_NAME_BYTES];    /* general.architecture */
    uint64_t fingerprint;             /* of the model's files; 0: not known */
    char method[32];                  /* "generate", "bench", "llama-bench", ... */
    enum regime regime;
    double at;                    /* place in the regime, 0 to 1: the share of misses in STREAM and TIERED, of
                                     layers whose experts are not on the GPU in OFFLOAD; 0 in the others */
    int64_t n_threads, n_texts;   /* threads that computed; texts that decoded together, at least 1 */
    int64_t n_ctx;                /* tokens in the context while decoding, on average */
    int64_t n_prompt;             /* tokens of the prompt that was measured */
    int64_t prompt_from;          /* tokens in the context before it */
    double ceiling[SPEED_N];      /* of decode and prefill with these settings */
    double part[SPEED_N][PART_N]; /* the ceiling of each part alone; 0: it takes no time, or is not known */
    double measured[SPEED_N];
    double rates[MACHINE_N_RATE]; /* rates of n_threads, measured beside the run; 0: not known */
    double forecast_low[SPEED_N], forecast_high[SPEED_N]; /* the band that was forecast */
    double floor;                                         /* the option --floor; 0: not given */
    uint64_t planned_bytes, peak_bytes;                   /* resident memory */
    uint64_t hit_bytes, read_bytes;                       /* bytes of experts found in memory, and read from drives */
    char settings[RECEIPT_SETTINGS_BYTES];                /* the flags that decide speed, for people */
};

/* Writes a line of JSON, NUL-terminated, without a newline, owned by the caller (mem_free); and parses n bytes of it,
 * `name` for messages. Unknown keys are ignored, as later versions may write more. Errors: text that is no object, a
 * missing regime or method, values of other types, negative or absurd ones. */
MUST_USE err_code receipt_write(const struct receipt *r, char **line, struct err *e);
MUST_USE err_code receipt_parse(struct receipt *r, const char *text, size_t n, const char *name, struct err *e);

/* The share of its ceiling that a run reached; 0: one of the two is not known. */
double receipt_share(const struct receipt *r, enum speed_of of);
/* Whether the speed was inside the forecast band; true where there was no forecast. */
bool receipt_is_inside(const struct receipt *r, enum speed_of of);

/* The usual rate of n_threads, as a factor of what `m` says. On a shared machine neighbours make memory, units and
 * drives slower or faster by a third, so this is the median of m's own rate and those measured beside runs on the
 * machine of that name; *n is set to the number of runs. Runs with as many threads count (0: all runs), or all if there
 * are none. list: in the order of time. */
double receipts_rate_factor(const struct receipt *list, size_t n_receipt, const struct machine *m,
                            enum machine_rate rate, int n_threads, int *n);

/* The run to be forecast. */
struct calibration_query {
    enum speed_of of;
    enum regime regime;
    double at;
    int64_t n_threads;        /* 0: any */
    int64_t n_texts;          /* texts that decode together; 1 for prefill */
    int64_t n_tok;            /* tokens in the context (decode) or in the prompt (prefill); 0: any */
    const char *machine;      /* receipts of this machine count most; NULL: any */
    uint64_t fingerprint;     /* receipts of this model count most; 0: any */
    struct ceiling_time time; /* least time of the run and of its parts */
};

/* Shares of the ceiling, 0 to 1; low <= share <= high. */
struct calibration {
    double share, low, high;
    int n_used;      /* receipts that were used */
    bool is_outside; /* the run is unlike all that were measured, so the band is wider */
    int n_above;     /* receipts above their own ceiling: they show an error of the speed model, and are not used */
};

/* False: no receipt is of such a run, or none covers one of its devices. */
bool receipts_calibrate(const struct receipt *list, size_t n, const struct calibration_query *q,
                        struct calibration *out);

#endif
