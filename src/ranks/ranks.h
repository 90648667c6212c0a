/* Places in other processes, on this machine or others, that mpirun started together with this one.
 *
 * Rank 0 has the text and runs the layers; every other rank has experts alone and computes what rank 0 asks for. They
 * meet in this order: ranks_open by all; then each rank offers its room (ranks_offer) and rank 0 takes the offers
 * (ranks_offers), divides the experts and says so (ranks_divide), which is what ranks_offer returns; all read their
 * experts, and say that they are ready; then ranks_serve, and on rank 0 a place (places/place.h) for each rank. A rank
 * that can't go on says why (ranks_fail), and rank 0's next wait for it returns that sentence with the rank's name.
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
    /* Told once, by any thread, when a rank is lost (link.h); need not return. May be NULL. */
    void (*lost)(void *user, const char *sentence);
    void *user;
};

/* Meets the others. What one of them lacks is the same error on all. To be called before the process makes threads or
 * enters a sandbox. */
MUST_USE err_code ranks_open(struct ranks **out, const struct ranks_params *params, struct err *e);
/* Says goodbye: on rank 0 it ends all others, which wait in ranks_close, ranks_offer or ranks_serve. Accepts NULL. */
void ranks_close(struct ranks **r);

int ranks_self(const struct ranks *r);                   /* the number of this process */
int ranks_n(const struct ranks *r);                      /* how many there are, 2 or more */
const char *ranks_name(const struct ranks *r, int rank); /* "rank 1 (host)"; borrowed */
int ranks_n_here(const struct ranks *r);                 /* how many are on this machine */
enum cpu_level ranks_level(const struct ranks *r);       /* the best that all have and may use */

/* The way to a rank, as rank 0 timed it. */
struct rank_link {
    int64_t round_trip_ns; /* of a few bytes, there and back */
    double bytes_per_s;
};
struct rank_link ranks_link(const struct ranks *r, int rank);

/* What a rank brings. Numbers of the same file must be equal. */
struct rank_offer {
    uint64_t fingerprint;  /* of the model */
    uint64_t n_file_bytes; /* of its files */
    uint64_t room_bytes;   /* for experts; SIZE_MAX: no bound */
    double bytes_per_s;    /* at which it reads weights from memory, of all its threads */
    double reads_per_s;    /* bytes a second of experts that its drives give it; 0: not measured */
    uint32_t is_reference; /* it computes with the reference kernels */
    uint32_t n_threads;
};

/* On rank 0: waits for all offers, [ranks_n], and fills in this process's own as the first. Borrowed. */
MUST_USE err_code ranks_offers(struct ranks *r, const struct rank_offer *own, const struct rank_offer **offers,
                               struct err *e);
MUST_USE err_code ranks_divide(struct ranks *r, const struct division *d, struct err *e);
/* Waits until all other ranks have read their experts. */
MUST_USE err_code ranks_wait_ready(struct ranks *r, struct err *e);
/* A rank as a place; `ranks` is borrowed until place_close. n_layer: MoE layers. */
MUST_USE err_code ranks_place(struct place **out, struct ranks *r, int rank, int n_layer, double bytes_per_s,
                              struct err *e);

/* On other ranks: offers, and waits for the division of these layers and experts (of the layer with most), which is the
 * caller's to close. ERR_CANCELLED: rank 0 has ended. */
MUST_USE err_code ranks_offer(struct ranks *r, const struct rank_offer *offer, int n_layer, int64_t n_expert,
                              struct division *out, struct err *e);
/* While it loads: it has gone on. A rank that has not for minutes (MOEBIUS_RANK_PATIENCE) is lost. Any thread. */
void ranks_step(struct ranks *r);
/* Computes what rank 0 asks for until it ends. Begins with saying that this rank is ready. */
struct rank_service {
    struct compute *compute; /* these are borrowed */
    struct experts *experts;
    struct pool *pool;
    const struct expert_rules *rules; /* [n_layer] */
    const struct division *division;  /* that ranks_offer brought */
    int n_layer, rank;
    uint64_t n_expert; /* that it has */
};
MUST_USE err_code ranks_serve(struct ranks *r, const struct rank_service *s, struct err *e);
/* Says to rank 0, in place of the next answer, why this rank can't go on. */
void ranks_fail(struct ranks *r, const struct err *why);

#endif
