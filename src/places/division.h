/* Divides the experts among the places: pure arithmetic over how much memory the places have and how fast they are.
 *
 * Each expert has one home place. Of each layer the hottest experts are assigned first, each to the place that would
 * finish its part of the layer soonest; so the fastest place has the hottest. If all memory together is too small, some
 * experts must be read again and again. Each place then has what it has room for, and a part of the rest in proportion
 * to the speed of its reads; if that is not known, its part of all experts is its part of all memory.
 *
 * If replicas are asked for and memory is left over, the hottest experts get further places, and each call chooses
 * which of them computes such an expert, so that all places finish at the same time as far as possible.
 *
 * If the first place is a cache, the others have all experts, divided as above, and the cache computes what it has in
 * its slots.
 *
 * Thread-safety: division_choose may be called by one thread at a time; everything else only reads. */
#ifndef PLACES_DIVISION_H
#define PLACES_DIVISION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "experts/experts.h"
#include "experts/usage.h"

enum { DIVISION_MAX_PLACE = 64 };

struct division_place {
    size_t room_bytes;    /* memory for slots; SIZE_MAX: no bound */
    double bytes_per_s;   /* speed of computing experts that are in slots; 0: not known, and taken for the slowest */
    double share;         /* of the experts, if the user named shares; all 0: memory decides */
    size_t replica_bytes; /* the most memory for replicas, within room_bytes; SIZE_MAX: no further bound */
    double reads_per_s;   /* bytes of experts a second from its own drives; 0: not known, or drives are shared */
};

enum split_kind {
    SPLIT_EXPERTS, /* each layer's experts are divided */
    SPLIT_LAYERS,  /* all experts of a layer have the same place */
    SPLIT_LAST,    /* the last layers' experts go to the last place, all others to the first */
    SPLIT_RANDOM,  /* each expert goes to a random place, whatever the places' memory: for tests */
    SPLIT_CACHE,   /* as SPLIT_EXPERTS among all places but the first, which is a cache of what they have */
    SPLIT_GATE,    /* SPLIT_CACHE or SPLIT_LAST, for two places: the caller decides before division_make */
    SPLIT_STAGES   /* devices have layers of their own, with all their experts: division_make is not called */
};

struct split {
    enum split_kind kind;
    uint64_t seed;      /* of SPLIT_RANDOM */
    int n_last;         /* of SPLIT_LAST: the number of layers; more than there are means all */
    double cache_share; /* of SPLIT_CACHE and SPLIT_GATE: the cache's slots as a share of all experts; 0: its memory
                           decides */
    /* Bytes of replicas in all places together, or these as a share of all experts' bytes; both 0: there are none. With
     * SPLIT_RANDOM only the share counts: each expert gets a replica with this probability. */
    size_t replica_bytes;
    double replica_share;
};

struct division {
    int n_place, n_layer;
    int64_t n_expert;              /* of the layer with most */
    bool has_cache;                /* place 0 is a cache; it is no holder */
    double cache_share;            /* as in struct split */
    uint64_t *holders;             /* [n_layer][n_expert], bit i: place i has the expert; owned */
    uint8_t *home;                 /* [n_layer][n_expert] the expert's home; owned */
    size_t replica_bytes;          /* bytes of all replicas */
    int32_t *n_row;                /* [n_expert] work space of division_choose, 0 between calls; owned */
    struct division_load *movable; /* [n_expert] work space of division_choose; owned */
};

/* past (how often earlier runs used each expert) may be NULL: then all experts count as equally hot. slot_bytes
 * [n_layer]: of one expert. ERR_LIMIT when a place has too little memory for the top-k experts of a layer of which it
 * has some. division_close accepts a zeroed one. */
MUST_USE err_code division_make(struct division *out, const struct expert_layer *layers, const size_t *slot_bytes,
                                int n_layer, const struct division_place *places, int n_place,
                                const struct split *split, const struct usage *past, struct err *e);
void division_close(struct division *d);

/* Which experts of a layer a place has (a cache: may have): is_here [d->n_expert]. */
void division_is_here(const struct division *d, int place, int layer, bool *is_here);

/* The places that have an expert: bit i is place i. */
uint64_t division_holders(const struct division *d, int layer, int32_t expert);

bool division_has_replicas(const struct division *d, int layer, int32_t expert);

/* The places' speeds relative to each other: speed [n_place], above 0. A speed that is not known is that of the slowest
 * place. */
void division_speeds(const struct division_place *places, int n_place, double *speed);

/* Chooses which place computes each of the chosen experts: place [n] for ids [n] of a layer; within a call an expert
 * has only one place. Experts with most rows are placed first, each with the holder that would finish its rows soonest
 * (among equals the lowest); but if all would finish sooner at the experts' homes, they go there. speed [n_place] above
 * 0. No id may be -1. */
void division_choose(const struct division *d, const double *speed, int layer, const int32_t *ids, int64_t n,
                     uint8_t *place);

/* Parses the value of --split: "experts", "layers" or "stages", each with or without shares of the places (":A,B,...");
 * "last:N" layers; "random" or "random:SEED"; "cache" or "gate", each with or without ":N%" of all experts. shares
 * [DIVISION_MAX_PLACE]; *n_share: how many were given. ERR_USAGE says what was expected. */
MUST_USE err_code split_parse(const char *text, struct split *out, double *shares, int *n_share, struct err *e);

#endif
