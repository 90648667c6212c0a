#include "jobs/forecast.h"

#include "base/random.h"

enum { N_DRAW = 2000, MAX_TOK = 64, MAX_CHOICE = 64 * MAX_TOK, N_MESSAGE = 3 /* a request, and an answer in two */ };

/* The work of one rank in a layer. */
struct part {
    int64_t n_tok, n_row;
};

/* The choices of a layer's tokens. */
struct draw {
    struct part parts[FORECAST_MAX_RANK];
    uint64_t has[MAX_TOK];   /* bit i: rank i has a choice of the token */
    int64_t n_movable;       /* choices that any rank may compute */
    int movable[MAX_CHOICE]; /* their tokens */
};

/* The rank that has to compute a choice. */
static int draw_rank(const struct forecast_params *p, struct random *r)
{
    double x = random_unit(r);
    int i = 0;
    for (; i + 1 < p->n_rank && x >= p->ranks[i].share; i++)
        x -= p->ranks[i].share;
    return i;
}

static void give(struct draw *d, int rank, int64_t token)
{
    d->parts[rank].n_row++;
    d->parts[rank].n_tok += !(d->has[token] >> rank & 1);
    d->has[token] |= UINT64_C(1) << rank;
}

static void draw_token(const struct forecast_params *p, struct random *r, int64_t token, struct draw *d)
{
    for (int64_t i = 0; i < p->n_used; i++)
        if (p->replica_share > 0 && d->n_movable < MAX_CHOICE && random_unit(r) < p->replica_share)
            d->movable[d->n_movable++] = (int)token;
        else
            give(d, draw_rank(p, r), token);
}

/* The rank that would finish first with one more choice. */
static int soonest(const struct forecast_params *p, const struct draw *d)
{
    int best = 0;
    for (int i = 1; i < p->n_rank; i++)
        if ((double)(d->parts[i].n_row + 1) * p->ranks[i].row_s <
            (double)(d->parts[best].n_row + 1) * p->ranks[best].row_s)
            best = i;
    return best;
}

/* Only a sample of the tokens of a large batch is drawn, and stands for all of them. */
static void add_layer(const struct forecast_params *p, struct random *r, struct forecast *f)
{
    struct draw d = {0};
    int64_t n_tok = p->n_tok < MAX_TOK ? p->n_tok : MAX_TOK;
    double scale = (double)p->n_tok / (double)n_tok, slowest_s = 0;
    for (int64_t i = 0; i < n_tok; i++)
        draw_token(p, r, i, &d);
    for (int64_t i = 0; i < d.n_movable; i++)
        give(&d, soonest(p, &d), d.movable[i]);
    for (int i = 0; i < p->n_rank; i++) {
        const struct forecast_rank *rank = &p->ranks[i];
        double n_row = (double)d.parts[i].n_row * scale, s = n_row * rank->row_s;
        double n_asked = (double)d.parts[i].n_tok * scale;
        double n_bytes = 4 * ((n_asked + n_row) * (double)p->n_embd + n_asked * (double)p->n_used);
        if (i > 0 && n_row > 0) {
            s += rank->round_trip_s + n_bytes / rank->bytes_per_s;
            f->n_bytes += n_bytes;
            f->n_message += N_MESSAGE;
        }
        slowest_s = s > slowest_s ? s : slowest_s;
    }
    f->batch_s += slowest_s;
}

struct forecast forecast_make(const struct forecast_params *p)
{
    struct random r = random_seed(1);
    struct forecast f = {0};
    for (int i = 0; i < N_DRAW; i++)
        add_layer(p, &r, &f);
    double n = (double)p->n_layer / N_DRAW;
    return (struct forecast){f.batch_s * n + p->other_s, f.n_bytes * n, f.n_message * n};
}
