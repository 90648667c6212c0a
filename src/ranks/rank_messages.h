/* The messages between ranks. All ranks are builds of one version for one kind of processor, so structs are sent as
 * they are. */
#ifndef RANKS_RANK_MESSAGES_H
#define RANKS_RANK_MESSAGES_H

#include "ranks/link.h"
#include "ranks/ranks.h"

enum request_kind {
    REQUEST_DIVISION, /* struct division_head, then the holders; answered, without a body, once the experts are loaded
                       */
    REQUEST_RUN,      /* ids, weights if has_weights, rows; answered with results */
    REQUEST_PREDICT,  /* ids [n_tok]; not answered */
    REQUEST_OPEN,     /* usage counts [n_tok][n_row] (layers, experts), or none; answered without a body */
    REQUEST_STATS,    /* of a layer; answered with struct place_layer_stats */
    REQUEST_FACTS,    /* answered with struct rank_figures */
    REQUEST_FORGET    /* answered without a body */
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

/* The length of a request of kind REQUEST_RUN. */
size_t run_bytes(const struct request *q);

/* ---- rank_check.c: checks what has been received, before any of it is used. ERR_FAIL names the field, what was found
 * and what was expected. */

/* On other ranks: checks a request of n_bytes, which are at least sizeof *q. */
MUST_USE err_code rank_check_request(const struct rank_service *s, const struct request *q, size_t n_bytes,
                                     struct err *e);
/* Reads the division, whose head must equal `agreed`. The caller closes it. */
MUST_USE err_code rank_read_division(const struct request *q, size_t n_bytes, const struct division_head *agreed,
                                     struct division *out, struct err *e);
/* On rank 0: checks the answer of the rank named `rank` to request `number`, with a body of n_bytes. If the answer is
 * an error of the rank, that is returned. */
MUST_USE err_code rank_check_answer(const char *rank, struct answer *a, uint32_t number, size_t n_bytes,
                                    size_t expected, struct err *e);
MUST_USE err_code rank_check_offer(const char *rank, const struct rank_offer *o, const struct rank_offer *mine,
                                   struct err *e);

struct ranks {
    struct link *link;
    enum cpu_level level;
    uint32_t *n_request;       /* [n_rank], on rank 0: requests so far that are answered */
    struct answer *answers;    /* [n_rank], on rank 0: the heads of the answers */
    struct rank_offer *offers; /* [n_rank], on rank 0 */
    int64_t patience_ns;       /* on rank 0: how long another rank may make no progress at present */
    uint32_t n_answer;         /* on other ranks: the number of the present request */
    int32_t layer;             /* on other ranks: its layer */
    int64_t compute_ns;        /* on other ranks: the time that computing it took */
};

/* On rank 0: sends the request of n_bytes that lies in link_room. The answer's body will go to `body`. */
void ranks_ask(struct ranks *r, int rank, size_t n_bytes, void *body, size_t body_bytes);
/* Waits for the answer, whose body must have body_bytes. */
MUST_USE err_code ranks_answer(struct ranks *r, int rank, const struct cancel *c, size_t body_bytes, struct err *e);
/* Both, for a request that is only a head. */
MUST_USE err_code ranks_ask_wait(struct ranks *r, int rank, const struct request *q, void *body, size_t body_bytes,
                                 struct err *e);

#endif
