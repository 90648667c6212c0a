/* Where routed experts are computed beside the device that runs the layers.
 *
 * Place 0 is the device that runs the layers: moe/ drives its experts itself. Every other place is a device of this
 * process with a thread of its own (worker.h), or a process on this machine or another one (ranks/). Each has its own
 * slots, policy, budget and reads. A layer tells all places at once which rows to compute, computes its own share,
 * and takes the results; which place computes an expert never changes a bit of the result.
 *
 * Thread-safety: one thread, the one that runs the layers. */
#ifndef PLACES_PLACE_H
#define PLACES_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/err.h"
#include "experts/experts.h"
#include "experts/usage.h"

/* Rows that a place computes. Everything is borrowed until place_finish. */
struct place_call {
    int layer;                   /* MoE layers alone are counted */
    int64_t n_tok;               /* tokens that have at least one expert here, 1 or more */
    int64_t n_used;              /* ranks of each */
    int64_t n_embd;              /* elements of a row */
    const float *x;              /* [n_tok][n_embd] */
    const int32_t *ids;          /* [n_tok][n_used] experts; -1: computed elsewhere */
    const float *weights;        /* [n_tok][n_used] that multiply what gate and up give; NULL: none do */
    int64_t n_row;               /* entries of ids that are not -1 */
    int64_t n_replica_row;       /* of these, of experts that other places have, too */
    float *y;                    /* [n_row][n_embd] results, by token, then rank */
    int64_t sort_cutoff;         /* as in OP_EXPERTS */
    bool is_decode;              /* the tokens were sampled: counted as such */
    const struct cancel *cancel; /* asked by the thread that has the call: that of place 0 while it waits in
                                    place_finish, and compute's between waves; may be NULL */
};

/* What a place did in one layer, since it was opened. */
struct place_layer_stats {
    uint64_t n_call;          /* calls */
    uint64_t n_row;           /* rows computed */
    uint64_t n_replica_row;   /* of these, of experts that other places have, too */
    uint64_t n_found, n_read; /* experts that were in slots when they were asked for, and that had to be read */
    uint64_t n_missed;        /* of a cache: experts that calls asked for and that other places computed */
    uint64_t n_moved;         /* of a cache: experts that moved into slots */
    int64_t move_ns;          /* of a cache: that these took of the time between passes */
    int64_t compute_ns;       /* of the place, computing */
    int64_t read_wait_ns;     /* of the place, waiting for reads with nothing to compute */
    int64_t finish_wait_ns;   /* of place 0, waiting in place_finish */
    uint64_t n_to_bytes, n_from_bytes; /* of rows and ids that went there, of results that came back */
};

/* What a place is. */
struct place_facts {
    const char *name;   /* "place 1 (cpu:1)", "rank 1 (host)"; borrowed until it is closed */
    uint64_t n_expert;  /* experts that it may be asked for, over all layers */
    size_t open_bytes;  /* of its slots now */
    size_t all_bytes;   /* that slots for all its experts take */
    double bytes_per_s; /* at which it computes experts that are in slots, measured; 0: not known */
};

struct place;
struct place_vtable {
    void (*begin)(struct place *p, const struct place_call *c);
    err_code (*finish)(struct place *p, struct err *e);
    void (*cancel)(struct place *p);
    void (*predict)(struct place *p, int layer, const int32_t *ids, int64_t n, bool is_likely);
    bool (*lend)(struct place *p, int layer, int32_t expert, struct expert_bytes *out); /* NULL: it lends nothing */
    err_code (*open)(struct place *p, size_t spare_bytes, const struct usage *past, struct err *e);
    err_code (*layer_stats)(struct place *p, int layer, struct place_layer_stats *out, struct err *e);
    err_code (*facts)(struct place *p, struct place_facts *out, struct err *e);
    void (*reclaim)(struct place *p, size_t n_bytes);
    void (*forget)(struct place *p);
    void (*close)(struct place *p);
};
struct place {
    const struct place_vtable *v;
    int64_t compute_ns; /* that the place computed for the call that was finished last; 0: it did not say */
};

/* Starts a call and returns at once; one call at a time. What goes wrong comes back from place_finish, which waits for
 * the results and must follow, whatever happens meanwhile. ERR_CANCELLED when the call's cancel ended it. */
void place_begin(struct place *p, const struct place_call *c);
MUST_USE err_code place_finish(struct place *p, struct err *e);
/* Says that nobody wants the results of the call in hand, which may then end soon with ERR_CANCELLED. */
void place_cancel(struct place *p);

/* Gives the work space of calls back, opens slots until no more than spare_bytes are left below the limit on memory,
 * and fills them with what earlier runs used most (NULL: not known). Not within a call. */
MUST_USE err_code place_open(struct place *p, size_t spare_bytes, const struct usage *past, struct err *e);

/* experts_prefetch of the experts that are here; those of other places are -1. Not within a call. */
void place_predict(struct place *p, int layer, const int32_t *ids, int64_t n, bool is_likely);

/* Where an expert lies in this process's memory, until the place is asked for something else. False: nowhere. Not
 * within a call. */
bool place_lend(struct place *p, int layer, int32_t expert, struct expert_bytes *out);

/* Figures; place_facts waits for the results of a call in hand, the other is not for within one. An error is that of a
 * place that does not answer. */
MUST_USE err_code place_layer_stats(struct place *p, int layer, struct place_layer_stats *out, struct err *e);
MUST_USE err_code place_facts(struct place *p, struct place_facts *out, struct err *e);

/* Closes slots until n_bytes more fit under this process's limit on memory or none can be spared, if the place takes
 * its memory from there. Within a call it waits for the results. */
void place_reclaim(struct place *p, size_t n_bytes);
/* As experts_forget. Not within a call. */
void place_forget(struct place *p);
void place_close(struct place **p); /* accepts NULL */

#endif
