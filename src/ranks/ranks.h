/* Places in other processes, on this machine or others, that mpirun started together with this one.
 *
 * Rank 0 has the text and runs the layers; the other ranks have only experts and compute what rank 0 asks for. A run
 * begins like this: all call ranks_open. The other ranks send their offers (ranks_offer). Rank 0 collects these
 * (ranks_offers), divides the experts and sends the division (ranks_divide), which the others' ranks_offer returns. All
 * load their experts. The others then call ranks_serve, which tells rank 0 that they are ready, and rank 0 opens a
 * place (places/place.h) for each (ranks_wait_ready, ranks_place). A rank that can't go on says why (ranks_fail); rank
 * 0's next wait for it then returns that sentence with the rank's name.
 *
 * Refused, with the rank and what was expected: other versions of the program, other processors, another model. What a
 * rank that dies or falls silent does to the others is in link.h.
 *
 * Thread-safety: one thread, the one that computes. */
#ifndef RANKS_RANKS_H
#define RANKS_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/err.h"
#include "base/pool.h"
#include "places/compute.h"
#include "places/division.h"
#include "places/place.h"

struct ranks;

/* Whether this process is one of several that were started together. */
bool ranks_are_wanted(void);

struct ranks_params {
    /* Called once, by any thread, when a rank is lost (link.h); it need not return. May be NULL. */
    void (*lost)(void *user, const char *sentence);
    void *user;
};

/* Connects to the other processes. If one of them can't take part, all get the same error. To be called before the
 * process makes threads or enters a sandbox. */
MUST_USE err_code ranks_open(struct ranks **out, const struct ranks_params *params, struct err *e);
/* Disconnects. On rank 0 this ends all other ranks, whose ranks_offer or ranks_serve then returns. Accepts NULL. */
void ranks_close(struct ranks **r);

int ranks_self(const struct ranks *r);                   /* the number of this process */
int ranks_n(const struct ranks *r);                      /* how many there are, 2 or more */
const char *ranks_name(const struct ranks *r, int rank); /* "rank 1 (host)"; borrowed */
int ranks_n_here(const struct ranks *r);                 /* how many are on this machine */
enum cpu_level ranks_level(const struct ranks *r);       /* the best level that all ranks have and may use */

/* The connection to a rank, as rank 0 timed it. */
struct rank_link {
    int64_t round_trip_ns; /* of a few bytes, there and back */
    double bytes_per_s;
};
struct rank_link ranks_link(const struct ranks *r, int rank);

/* What a rank can contribute. The first two fields must be equal on all ranks. */
struct rank_offer {
    uint64_t fingerprint;  /* of the model */
    uint64_t n_file_bytes; /* length of the model's files */
    uint64_t room_bytes;   /* memory for experts; SIZE_MAX: no bound */
    double bytes_per_s;    /* speed at which all its threads together read memory; 0: not measured */
    double reads_per_s;    /* bytes of experts a second from its drives; 0: not measured */
    uint32_t is_reference; /* it computes with the reference kernels */
    uint32_t n_threads;
};

/* On rank 0: waits for all offers; *offers [ranks_n] begins with this process's own. Borrowed. */
MUST_USE err_code ranks_offers(struct ranks *r, const struct rank_offer *own, const struct rank_offer **offers,
                               struct err *e);
MUST_USE err_code ranks_divide(struct ranks *r, const struct division *d, struct err *e);
/* Waits until all other ranks have read their experts. */
MUST_USE err_code ranks_wait_ready(struct ranks *r, struct err *e);
/* Opens a rank as a place; r is borrowed until place_close. n_layer: MoE layers. */
MUST_USE err_code ranks_place(struct place **out, struct ranks *r, int rank, int n_layer, double bytes_per_s,
                              struct err *e);

/* On other ranks: sends the offer, and waits for the division, which must be of n_layer layers and n_expert experts (of
 * the layer with most). The caller closes it. ERR_CANCELLED: rank 0 has ended. */
MUST_USE err_code ranks_offer(struct ranks *r, const struct rank_offer *offer, int n_layer, int64_t n_expert,
                              struct division *out, struct err *e);
/* To be called now and then while the model is loaded, by any thread: a rank that makes no progress for minutes
 * (MOEBIUS_RANK_PATIENCE) is lost. */
void ranks_step(struct ranks *r);
/* What ranks_serve computes with. Everything is borrowed. */
struct rank_service {
    struct compute *compute;
    struct experts *experts;
    struct pool *pool;
    const struct expert_rules *rules; /* [n_layer] */
    const struct division *division;  /* as ranks_offer returned it */
    int n_layer, rank;
    uint64_t n_expert; /* experts that this rank has, over all layers */
};
/* Tells rank 0 that this rank is ready, and computes what rank 0 asks for until rank 0 ends. */
MUST_USE err_code ranks_serve(struct ranks *r, const struct rank_service *s, struct err *e);
/* Tells rank 0, in place of the next answer, why this rank can't go on. */
void ranks_fail(struct ranks *r, const struct err *why);

#endif
