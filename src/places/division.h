/* Which place has which experts: pure arithmetic over what the places have room for and how fast they are.
 *
 * Each expert has one place, its home. Of each layer the hottest experts are given away first, each to the place that
 * would be through with the layer soonest: the fastest one has the hottest. Where all rooms together are too small,
 * places read some again and again. Then each has what it has room for, and of the rest as much as it reads fast; where
 * that is not known, the same part of all experts as of all room.
 *
 * Where it is asked for and memory is left over, the hottest have other places, too (replicas), and each call chooses
 * who computes these, so that all places are through with it at the same time, as far as that is possible.
 *
 * Where the first place is a cache, the others have all experts, divided as said, and what the cache has in its slots
 * may be asked of it, too.
 *
 * Thread-safety: one thread at a time calls division_choose of a division; the rest may be read by any. */
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
    size_t room_bytes;    /* for slots; SIZE_MAX: no bound */
    double bytes_per_s;   /* at which it computes experts that are in slots; 0: not known, then as the slowest */
    double share;         /* of the experts that it is asked to have; all 0: by room */
    size_t replica_bytes; /* of replicas at most, within room_bytes; SIZE_MAX: no other bound */
    double reads_per_s; /* bytes a second of experts that its own drives give it; 0: not known, or drives are shared */
};

enum split_kind {
    SPLIT_EXPERTS, /* each layer's experts are divided */
    SPLIT_LAYERS,  /* a layer's experts stay together */
    SPLIT_LAST,    /* the last layers' experts are the last place's, all others the first one's */
    SPLIT_RANDOM,  /* each expert goes anywhere, by a seed, whatever the rooms: for tests */
    SPLIT_CACHE,   /* as SPLIT_EXPERTS among all places but the first, which is a cache of what they have */
    SPLIT_GATE,    /* of two places, SPLIT_CACHE or SPLIT_LAST: somebody decides before division_make */
    SPLIT_STAGES   /* devices have layers of their own, with all their experts: division_make is not called */
};

struct split {
    enum split_kind kind;
    uint64_t seed;      /* of SPLIT_RANDOM */
    int n_last;         /* of SPLIT_LAST: so many layers; as many as there are at most */
    double cache_share; /* of SPLIT_CACHE and SPLIT_GATE: of all experts, those that the cache has slots for; 0: as
                           there is room */
    /* Bytes of replicas, of all places together, or as a share of the bytes of all experts; both 0: there are none. Of
     * SPLIT_RANDOM the share alone counts: each expert gets a replica with this probability. */
    size_t replica_bytes;
    double replica_share;
};

struct division {
    int n_place, n_layer;
    int64_t n_expert;              /* of the layer with most */
    bool has_cache;                /* place 0 is a cache, and no holder */
    double cache_share;            /* as in struct split */
    uint64_t *holders;             /* [n_layer][n_expert], bit i: place i has it; owned */
    uint8_t *home;                 /* [n_layer][n_expert] the place that it has without replicas; owned */
    size_t replica_bytes;          /* of all replicas */
    int32_t *n_row;                /* [n_expert] work space of division_choose, 0 between calls; owned */
    struct division_load *movable; /* [n_expert] the same; owned */
};

/* `past` (what earlier runs used) may be NULL: then all experts are alike. slot_bytes [n_layer]: of one expert.
 * ERR_LIMIT when a place has no room for the top-k experts of a layer that it is given. division_close accepts a zeroed
 * one. */
MUST_USE err_code division_make(struct division *out, const struct expert_layer *layers, const size_t *slot_bytes,
                                int n_layer, const struct division_place *places, int n_place,
                                const struct split *split, const struct usage *past, struct err *e);
void division_close(struct division *d);

/* Which experts of a layer a place has, or may have if it is a cache: is_here [n_expert]. */
void division_is_here(const struct division *d, int place, int layer, bool *is_here);

/* The places that have an expert: bit i is place i. */
uint64_t division_holders(const struct division *d, int layer, int32_t expert);

bool division_has_replicas(const struct division *d, int layer, int32_t expert);

/* Speeds of the places in proportion to each other: speed [n_place]. One that is not known is as low as any. */
void division_speeds(const struct division_place *places, int n_place, double *speed);

/* Chooses the place of each chosen expert: place [n] for ids [n] of a layer, the same place for the same expert within
 * a call. Those with most rows come first, each to that of its holders that would be through with its rows soonest, of
 * equal ones the lowest; all go home where that is over sooner. speed [n_place] above 0. All ids are experts. */
void division_choose(const struct division *d, const double *speed, int layer, const int32_t *ids, int64_t n,
                     uint8_t *place);

/* Reads "experts", "layers", "stages", "last", "random", "cache" or "gate", as --split has it: the first three with
 * ":A,B,..." shares of the places, or without; last with ":N" layers; random with ":SEED"; cache with ":N%", or
 * without. shares [DIVISION_MAX_PLACE]; *n_share: how many were given. ERR_USAGE says what was expected. */
MUST_USE err_code split_parse(const char *text, struct split *out, double *shares, int *n_share, struct err *e);

#endif
