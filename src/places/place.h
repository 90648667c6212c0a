/* Places: where routed experts are computed.
 *
 * Place 0 is the device that runs the layers; moe/ drives its experts itself. Every other place is a device of this
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

/* Rows for a place to compute. A row is one token's input to one of its experts. Everything is borrowed until
 * place_finish. */
struct place_call {
    int layer;                   /* counts MoE layers only */
    int64_t n_tok;               /* tokens that have at least one expert here, 1 or more */
    int64_t n_used;              /* experts of each token, here and elsewhere */
    int64_t n_embd;              /* elements of a row */
    const float *x;              /* [n_tok][n_embd] */
    const int32_t *ids;          /* [n_tok][n_used] experts; -1: computed elsewhere */
    const float *weights;        /* [n_tok][n_used] factors of gate's and up's products; NULL: none */
    int64_t n_row;               /* rows: entries of ids that are not -1 */
    int64_t n_replica_row;       /* of these, rows of experts that other places have, too */
    float *y;                    /* [n_row][n_embd] results, ordered by token, then rank */
    int64_t sort_cutoff;         /* as in OP_EXPERTS */
    bool is_decode;              /* the tokens were sampled; they are counted apart */
    const struct cancel *cancel; /* asked by place 0's thread while it waits in place_finish, and by the place between
                                    waves; may be NULL */
};

/* What a place did in one layer, since it was opened. */
struct place_layer_stats {
    uint64_t n_call;        /* calls */
    uint64_t n_row;         /* rows computed */
    uint64_t n_replica_row; /* of these, rows of experts that other places have, too */
    uint64_t n_found;       /* experts that were in slots when a call asked for them */
    uint64_t n_read;        /* experts that had to be read */
    uint64_t n_missed;      /* of a cache: experts that were not in its slots, and that other places computed */
    uint64_t n_moved;       /* of a cache: experts that moved into its slots */
    int64_t move_ns;        /* of a cache: time that these moves took between passes */
    int64_t compute_ns;     /* time that the place spent computing */
    int64_t read_wait_ns;   /* time that the place spent waiting for reads with nothing to compute */
    int64_t finish_wait_ns; /* time that place 0 spent waiting in place_finish */
    uint64_t n_to_bytes;    /* bytes of inputs and ids that went to the place */
    uint64_t n_from_bytes;  /* bytes of results that came back */
};

/* What a place is. */
struct place_facts {
    const char *name;   /* "place 1 (cpu:1)", "rank 1 (host)"; borrowed until the place is closed */
    uint64_t n_expert;  /* experts that it may be asked for, over all layers */
    size_t open_bytes;  /* bytes of its open slots */
    size_t all_bytes;   /* bytes of slots for all its experts */
    double bytes_per_s; /* measured speed of computing experts that are in slots; 0: not known */
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
    int64_t compute_ns; /* time that the place spent computing the call that was finished last; 0: not known */
};

/* "Within a call" means between place_begin and place_finish. */

/* Starts a call and returns at once; one call at a time. place_finish must follow, whatever happens meanwhile. */
void place_begin(struct place *p, const struct place_call *c);
/* Waits for the results of the call, and returns its error. ERR_CANCELLED: it was cancelled. */
MUST_USE err_code place_finish(struct place *p, struct err *e);
/* Says that nobody wants the results of the present call any more; it may then end soon with ERR_CANCELLED. */
void place_cancel(struct place *p);

/* Gives the work space of calls back, opens slots until only spare_bytes are left below the limit on memory, and fills
 * them with the experts that earlier runs used most (past NULL: not known). Not within a call. */
MUST_USE err_code place_open(struct place *p, size_t spare_bytes, const struct usage *past, struct err *e);

/* As experts_prefetch; experts of other places may be among ids. Not within a call. */
void place_predict(struct place *p, int layer, const int32_t *ids, int64_t n, bool is_likely);

/* Finds an expert's bytes in this process's memory. They stay valid until the place is asked for something else. False:
 * they are not there. Not within a call. */
bool place_lend(struct place *p, int layer, int32_t expert, struct expert_bytes *out);

/* Reads figures. Within a call, place_facts waits for the results, and place_layer_stats must not be called. Fails when
 * the place does not answer. */
MUST_USE err_code place_layer_stats(struct place *p, int layer, struct place_layer_stats *out, struct err *e);
MUST_USE err_code place_facts(struct place *p, struct place_facts *out, struct err *e);

/* If the place takes its memory from this process's limit: closes slots until n_bytes fit below it or no slot can be
 * spared. Within a call it waits for the results. */
void place_reclaim(struct place *p, size_t n_bytes);
/* As experts_forget. Not within a call. */
void place_forget(struct place *p);
void place_close(struct place **p); /* accepts NULL */

#endif
