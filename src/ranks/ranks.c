#include "ranks/ranks.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/mem.h"
#include "ranks/rank_messages.h"

bool ranks_are_wanted(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}; /* Open MPI's, and other starters' */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *n = getenv(names[i]);
        if (n && strtol(n, NULL, 10) > 1)
            return true;
    }
    return false;
}

/* ---- meeting ------------------------------------------------------------------------------------------------- */

/* The levels that this process may use: those of the machine up to the best one, or the one that MOEBIUS_CPU names. */
static uint32_t usable_levels(enum cpu_level best)
{
    uint32_t levels = 0;
    for (int i = 0; i <= (int)best; i++)
        levels |= cpu_has_level((enum cpu_level)i) ? UINT32_C(1) << i : 0;
    return levels;
}

static void fill_card(struct link_card *c)
{
    struct err e = {0};
    struct utsname u;
    enum cpu_level best = CPU_SCALAR;
    c->code = (int32_t)cpu_level_detect(&best, &e);
    memcpy(c->text, e.text, sizeof c->text);
    c->levels = usable_levels(best);
    snprintf(c->version, sizeof c->version, "%s", MOEBIUS_VERSION);
    snprintf(c->processor, sizeof c->processor, "%.15s", uname(&u) == 0 ? u.machine : "unknown");
}

/* Everybody looks at the same cards, and so comes to the same end. */
static err_code check_cards(struct ranks *r, struct err *e)
{
    const struct link_card *first = link_card(r->link, 0);
    uint32_t levels = UINT32_MAX;
    for (int i = 0; i < link_n_rank(r->link); i++) {
        const struct link_card *c = link_card(r->link, i);
        if (c->protocol != first->protocol || strncmp(c->version, first->version, sizeof c->version) != 0)
            return err_set(e, ERR_UNSUPPORTED, "%s: moebius %.31s with protocol %u: expected %.31s with %u, as rank 0",
                           link_name(r->link, i), c->version, (unsigned)c->protocol, first->version,
                           (unsigned)first->protocol);
        if (strncmp(c->processor, first->processor, sizeof c->processor) != 0)
            return err_set(e, ERR_UNSUPPORTED, "%s: a processor of kind %.15s: expected %.15s, as rank 0",
                           link_name(r->link, i), c->processor, first->processor);
        if (c->code != ERR_OK)
            return err_set(e, (err_code)c->code, "%s: %s", link_name(r->link, i), c->text);
        levels &= c->levels;
    }
    r->level = CPU_N_LEVEL - 1;
    while (r->level > CPU_SCALAR && !(levels >> r->level & 1))
        r->level--;
    return ERR_OK;
}

/* How long a rank that loads the model may stand still: as the user says, else minutes, as a drive that spins up or a
 * file server that is busy can't be told from one that never answers. */
static err_code choose_patience(int64_t *ns, struct err *e)
{
    enum { LOAD_S = 600, MOST_S = 1000000 };
    const char *asked = getenv("MOEBIUS_RANK_PATIENCE");
    char *end;
    long s = asked ? strtol(asked, &end, 10) : LOAD_S;
    if (s < 1 || s > MOST_S || (asked && *end))
        return err_set(e, ERR_USAGE, "MOEBIUS_RANK_PATIENCE is %s: expected seconds, 1 to %d", asked, MOST_S);
    *ns = (int64_t)s * 1000 * 1000 * 1000;
    return ERR_OK;
}

/* Other ranks count each step that they take from now on. */
static bool is_never_excused(void *user)
{
    return false;
}

static void expect(struct ranks *r, int rank, void *body, size_t body_bytes)
{
    r->answers[rank] = (struct answer){0}; /* a shorter one is none */
    link_expect(r->link, rank, &r->answers[rank], sizeof *r->answers, body, body_bytes, r->patience_ns);
}

err_code ranks_open(struct ranks **out, const struct ranks_params *params, struct err *e)
{
    struct link_card card = {0};
    const struct link_params link = {params->lost, params->user};
    struct ranks *r = *out = mem_calloc(1, sizeof *r);
    if (!r)
        return err_nomem(e, sizeof *r, "the ranks");
    fill_card(&card);
    err_code code = link_open(&r->link, &card, &link, e);
    size_t n = code == ERR_OK ? (size_t)link_n_rank(r->link) : 0;
    if (code == ERR_OK) {
        r->n_request = mem_calloc(n, sizeof *r->n_request);
        r->answers = mem_calloc(n, sizeof *r->answers);
        r->offers = mem_calloc(n, sizeof *r->offers);
        bool has_all = r->n_request && r->answers && r->offers;
        code = has_all ? check_cards(r, e) : err_nomem(e, n * sizeof *r->answers, "the ranks");
    }
    if (code == ERR_OK && ranks_self(r) == 0)
        code = choose_patience(&r->patience_ns, e);
    else if (code == ERR_OK)
        link_watch(r->link, is_never_excused, NULL);
    /* From here on somebody waits for them, and so notices a rank that hangs. */
    for (int i = 1; code == ERR_OK && ranks_self(r) == 0 && i < ranks_n(r); i++)
        expect(r, i, &r->offers[i], sizeof r->offers[i]);
    if (code != ERR_OK)
        ranks_close(out);
    return code;
}

void ranks_close(struct ranks **ranks)
{
    struct ranks *r = *ranks;
    if (!r)
        return;
    link_close(&r->link);
    mem_free(r->n_request);
    mem_free(r->answers);
    mem_free(r->offers);
    mem_free(r);
    *ranks = NULL;
}

int ranks_self(const struct ranks *r)
{
    return link_rank(r->link);
}

int ranks_n(const struct ranks *r)
{
    return link_n_rank(r->link);
}

const char *ranks_name(const struct ranks *r, int rank)
{
    return link_name(r->link, rank);
}

int ranks_n_here(const struct ranks *r)
{
    int n = 0;
    const struct link_card *mine = link_card(r->link, ranks_self(r));
    for (int i = 0; i < ranks_n(r); i++)
        n += !strcmp(link_card(r->link, i)->machine, mine->machine);
    return n;
}

enum cpu_level ranks_level(const struct ranks *r)
{
    return r->level;
}

struct rank_link ranks_link(const struct ranks *r, int rank)
{
    return (struct rank_link){link_round_trip_ns(r->link, rank), link_bytes_per_s(r->link, rank)};
}

/* ---- questions of rank 0 ------------------------------------------------------------------------------------- */

void ranks_ask(struct ranks *r, int rank, size_t n_bytes, void *body, size_t body_bytes)
{
    expect(r, rank, body, body_bytes);
    link_send(r->link, rank, n_bytes);
}

err_code ranks_answer(struct ranks *r, int rank, const struct cancel *c, size_t body_bytes, struct err *e)
{
    size_t n;
    TRY(link_wait(r->link, rank, c, &n, e));
    return rank_check_answer(ranks_name(r, rank), &r->answers[rank], r->n_request[rank], n, body_bytes, e);
}

err_code ranks_ask_wait(struct ranks *r, int rank, const struct request *q, void *body, size_t body_bytes,
                        struct err *e)
{
    void *room;
    TRY(link_room(r->link, rank, sizeof *q, &room, e));
    memcpy(room, q, sizeof *q);
    ((struct request *)room)->number = ++r->n_request[rank];
    ranks_ask(r, rank, sizeof *q, body, body_bytes);
    return ranks_answer(r, rank, NULL, body_bytes, e);
}

err_code ranks_offers(struct ranks *r, const struct rank_offer *own, const struct rank_offer **offers, struct err *e)
{
    r->offers[0] = *own;
    for (int i = 1; i < ranks_n(r); i++) {
        TRY(ranks_answer(r, i, NULL, sizeof r->offers[i], e));
        TRY(rank_check_offer(ranks_name(r, i), &r->offers[i], own, e));
    }
    *offers = r->offers;
    return ERR_OK;
}

err_code ranks_divide(struct ranks *r, const struct division *d, struct err *e)
{
    const struct division_head head = {d->n_place, d->n_layer, d->n_expert};
    size_t n_holders = (size_t)(d->n_layer * d->n_expert) * sizeof *d->holders;
    for (int i = 1; i < ranks_n(r); i++) {
        char *room;
        struct request q = {.kind = REQUEST_DIVISION, .number = ++r->n_request[i]};
        TRY(link_room(r->link, i, sizeof q + sizeof head + n_holders, (void **)&room, e));
        memcpy(room, &q, sizeof q);
        memcpy(room + sizeof q, &head, sizeof head);
        memcpy(room + sizeof q + sizeof head, d->holders, n_holders);
        ranks_ask(r, i, sizeof q + sizeof head + n_holders, NULL, 0);
    }
    return ERR_OK;
}

err_code ranks_wait_ready(struct ranks *r, struct err *e)
{
    for (int i = 1; i < ranks_n(r); i++)
        TRY(ranks_answer(r, i, NULL, 0, e));
    r->patience_ns = LINK_SILENCE_NS;
    return ERR_OK;
}

void ranks_step(struct ranks *r)
{
    link_step(r->link);
}
