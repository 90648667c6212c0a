/* What runs realised of their ceilings, and what that says of others.
 *
 * A receipt is one measured run, with what each part of it takes at least (planner/ceiling.h). Calibration finds by how
 * much each part is slower than that in runs on the same devices, by weighted least squares over their times, and says
 * from it what share of its ceiling a run will realise. A receipt that knows only its whole ceiling, as one measured by
 * others, says the same of all parts, and counts in its own regime alone.
 * Pure: files of receipts are others' business. Thread-safe. */
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
    double at;                    /* where in the regime, 0 to 1: the share of misses in STREAM and TIERED, of
                                     layers whose experts are not on the GPU in OFFLOAD; 0 in the others */
    int64_t n_threads, n_texts;   /* that computed; texts that decoded together, at least 1 */
    int64_t n_ctx;                /* tokens in the context while decoding, in the mean */
    int64_t n_prompt;             /* tokens of the prompt that was measured */
    int64_t prompt_from;          /* tokens in the context before it */
    double ceiling[SPEED_N];      /* of decode and prefill with these settings */
    double part[SPEED_N][PART_N]; /* what each part alone permits; 0: it takes no time, or is not known */
    double measured[SPEED_N];
    double rates[MACHINE_N_RATE];                         /* of n_threads, as measured beside the run; 0: not known */
    double forecast_low[SPEED_N], forecast_high[SPEED_N]; /* the band that was forecast */
    double floor;                                         /* that was asked for */
    uint64_t planned_bytes, peak_bytes;                   /* resident memory */
    uint64_t hit_bytes, read_bytes;                       /* of experts: found in memory, read from drives */
    char settings[RECEIPT_SETTINGS_BYTES];                /* the flags that decide speed, for people */
};

/* A line of JSON with what is known, NUL-terminated, without a newline, owned by the caller (mem_free); and back: n
 * bytes of text, `name` for messages. Keys that are not known are passed over, as later versions may write more;
 * refused are text that is no object, a missing regime or method, values of other types, negative or absurd ones. */
MUST_USE err_code receipt_write(const struct receipt *r, char **line, struct err *e);
MUST_USE err_code receipt_parse(struct receipt *r, const char *text, size_t n, const char *name, struct err *e);

/* The share of its ceiling that a run realised; 0: one of the two is not known. */
double receipt_share(const struct receipt *r, enum speed_of of);
/* Whether it was inside the band that was forecast; true where none was. */
bool receipt_is_inside(const struct receipt *r, enum speed_of of);

/* A rate of n_threads as it usually is: over what `m` says, the median of what was measured beside runs on the machine
 * of that name, m's own among them; *n: how many runs. Those with as many threads count (0: all of them), or all
 * where there are none. list: in the order of time. Neighbours on a shared machine make memory, units and drives slower
 * and faster by a third. */
double receipts_rate_factor(const struct receipt *list, size_t n_receipt, const struct machine *m,
                            enum machine_rate rate, int n_threads, int *n);

/* What is to be forecast. */
struct calibration_query {
    enum speed_of of;
    enum regime regime;
    double at;
    int64_t n_threads;        /* 0: any */
    int64_t n_texts;          /* that decode together; of prefill 1 */
    int64_t n_tok;            /* of decode in the context, of prefill in the prompt; 0: any */
    const char *machine;      /* receipts of this one count most; NULL: any */
    uint64_t fingerprint;     /* and those of this model; 0: any */
    struct ceiling_time time; /* at least, of the whole and of its parts */
};

/* Shares of the ceiling, 0 to 1; low <= share <= high. */
struct calibration {
    double share, low, high;
    int n_used;      /* receipts that it rests on */
    bool is_outside; /* of what was measured: the band is wider */
    int n_above;     /* receipts above their own ceiling, which are a fault of the model of speed and do not count */
};

/* False: no receipt says anything about that, or none of one of its devices. */
bool receipts_calibrate(const struct receipt *list, size_t n, const struct calibration_query *q,
                        struct calibration *out);

#endif
