/* Which experts each token of a text chose, in each layer: recorded once, and replayed with any budget and policy.
 *
 * A text file:
 *
 *   moebius trace 1
 *   model 0123456789abcdef        fingerprint of the GGUF
 *   layers 5 tokens 6402
 *   24 2 786432 0                 a line for each layer: experts, chosen by a token, bytes of a slot, group of slots
 *   3 17 0 5 ...                  a line for each token: the experts of all layers, best first
 *
 * Refused with a sentence: other formats and versions, impossible numbers, more than model_limits.h allows, experts
 * chosen twice. */
#ifndef EXPERTS_TRACE_H
#define EXPERTS_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "experts/policy.h"

struct trace_layer {
    int64_t n_expert, n_used;
    uint64_t slot_bytes;
    int group;       /* layers of one group share slots; numbered from 0 in order of appearance */
    int64_t first;   /* where its choices begin among a token's */
    int64_t n_added; /* tokens that it has from trace_add */
};

struct trace {
    int n_layer;
    struct trace_layer *layers;
    int64_t n_choice; /* of a token, in all layers */
    int64_t n_tok, capacity;
    int32_t *ids; /* [n_tok][n_choice] */
};

/* layers: n_expert, n_used, slot_bytes and group of each are copied. Close in any state. */
MUST_USE err_code trace_create(struct trace *t, const struct trace_layer *layers, int n_layer, struct err *e);
void trace_close(struct trace *t);

/* Appends what n_tok more tokens chose in one layer: ids[t * n_used + rank]. The layers are called in order; a token
 * counts in t->n_tok when the last layer has it. */
MUST_USE err_code trace_add(struct trace *t, int layer, const int32_t *ids, int64_t n_tok, struct err *e);

MUST_USE err_code trace_parse(struct trace *t, const char *text, size_t n, const char *name, uint64_t *fingerprint,
                              struct err *e);
void trace_print(const struct trace *t, uint64_t fingerprint, FILE *f);

/* Which share of a layer's experts n tokens choose together, where each is `step` tokens after the one before: the mean
 * over the layers and over up to 64 evenly spread places of the text. n and step are at least 1, and the text is long
 * enough for n such tokens. */
MUST_USE err_code trace_distinct(const struct trace *t, int64_t n, int64_t step, double *share, struct err *e);

/* ---- replay ---------------------------------------------------------------------------------------------------- */

struct replay {
    uint64_t n_hit, n_all;   /* choices that were in slots, and all choices */
    uint64_t n_missed_bytes; /* bytes that were read */
    uint64_t n_moved;        /* by trace_replay_cache: experts that came into slots */
};

/* Replays a trace, one token after the other, with slots for a share of all experts. ERR_LIMIT: the share is below the
 * minimum. */
MUST_USE err_code trace_replay(const struct trace *t, enum policy_kind policy, double share, struct replay *out,
                               struct err *e);
/* The same with slots that are a cache of what another device has: that device computes what is missed, and after each
 * token at most `most_moves` experts move into slots, as experts_cache_wants says. */
MUST_USE err_code trace_replay_cache(const struct trace *t, enum policy_kind policy, double share, int64_t most_moves,
                                     struct replay *out, struct err *e);
/* The same for the offline optimum. */
MUST_USE err_code trace_replay_best(const struct trace *t, double share, struct replay *out, struct err *e);

#endif
