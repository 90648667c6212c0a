/* What ranks say to each other. All are builds of one version for one kind of processor, so structs go as they are. */
#ifndef RANKS_RANK_MESSAGES_H
#define RANKS_RANK_MESSAGES_H

#include "ranks/link.h"
#include "ranks/ranks.h"

enum request_kind {
    REQUEST_DIVISION, /* division_head, then the holders; answered once the experts are there */
    REQUEST_RUN,      /* ids, weights where there are some, rows; answered with results */
    REQUEST_PREDICT,  /* ids [n_tok]; not answered */
    REQUEST_OPEN,     /* counts of usage [n_tok][n_row] (layers, experts); an empty answer */
    REQUEST_STATS,    /* of a layer: struct place_layer_stats */
    REQUEST_FACTS,    /* struct rank_figures */
    REQUEST_FORGET    /* an empty answer */
};

struct request {
    uint32_t kind, number; /* number: counts requests that are answered */
    int32_t layer;
    uint32_t is_decode, has_weights, is_likely;
    int64_t n_tok, n_used, n_embd, n_row, sort_cutoff; /* as in struct place_call */
    int64_t n_spare_bytes;                             /* of REQUEST_OPEN */
};

/* The offer, number 0, is an answer without a request. */
struct answer {
    int64_t compute_ns; /* of REQUEST_RUN: that computing took */
    uint32_t number;    /* the request's */
    int32_t layer;
    int32_t code; /* an err_code, with its sentence */
    char text[ERR_TEXT_BYTES];
};

struct division_head {
    int64_t n_place, n_layer, n_expert;
};

struct rank_figures {
    uint64_t n_expert, open_bytes, all_bytes;
};

/* The bytes of a request of kind REQUEST_RUN. */
size_t run_bytes(const struct request *q);

/* rank_check.c: what has come, before anything of it is used. ERR_FAIL names the field, and what was expected. */
/* On other ranks: a request, which has n_bytes, sizeof *q or more. */
MUST_USE err_code rank_check_request(const struct rank_service *s, const struct request *q, size_t n_bytes,
                                     struct err *e);
/* The division, which must be of this form; division_close it. */
MUST_USE err_code rank_read_division(const struct request *q, size_t n_bytes, const struct division_head *agreed,
                                     struct division *out, struct err *e);
/* On rank 0, of the rank of that name: the answer to a request, of which n_bytes followed. The rank's own error, if it
 * is one. */
MUST_USE err_code rank_check_answer(const char *rank, struct answer *a, uint32_t number, size_t n_bytes,
                                    size_t expected, struct err *e);
MUST_USE err_code rank_check_offer(const char *rank, const struct rank_offer *o, const struct rank_offer *mine,
                                   struct err *e);

struct ranks {
    struct link *link;
    enum cpu_level level;
    uint32_t *n_request;       /* [n_rank], on rank 0: answered requests so far */
    struct answer *answers;    /* [n_rank], on rank 0: where they go */
    struct rank_offer *offers; /* [n_rank], on rank 0 */
    int64_t patience_ns;       /* on rank 0: so long another rank may stand still now */
    uint32_t n_answer;         /* on other ranks: the number and layer of the request in hand, */
    int32_t layer;
    int64_t compute_ns; /* and what computing it took */
};

/* On rank 0: sends the request that lies in link_room, and awaits the answer's body. */
void ranks_ask(struct ranks *r, int rank, size_t n_bytes, void *body, size_t body_bytes);
/* Waits for it: body_bytes must come. */
MUST_USE err_code ranks_answer(struct ranks *r, int rank, const struct cancel *c, size_t body_bytes, struct err *e);
/* Both, for a request without anything behind its head. */
MUST_USE err_code ranks_ask_wait(struct ranks *r, int rank, const struct request *q, void *body, size_t body_bytes,
                                 struct err *e);

#endif
