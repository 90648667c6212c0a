#include "jobs/forecast.h"

#include "base/random.h"

enum { N_DRAW = 2000, MAX_TOK = 64, N_MESSAGE = 3 /* a request, and an answer in two */ };

/* What one rank is asked in a layer. */
struct part {
    int64_t n_tok, n_row;
};

/* The rank that a choice falls on. */
static int draw_rank(const struct forecast_params *p, struct random *r)
{
    double x = random_unit(r);
    int i = 0;
    for (; i + 1 < p->n_rank && x >= p->ranks[i].share; i++)
        x -= p->ranks[i].share;
    return i;
}

static void draw_token(const struct forecast_params *p, struct random *r, struct part *parts)
{
    uint64_t has = 0;
    for (int64_t i = 0; i < p->n_used; i++) {
        int rank = draw_rank(p, r);
        parts[rank].n_row++;
        parts[rank].n_tok += !(has >> rank & 1);
        has |= UINT64_C(1) << rank;
    }
}

/* Of large batches as many tokens are drawn as tell, and stand for the others. */
static void add_layer(const struct forecast_params *p, struct random *r, struct forecast *f)
{
    struct part parts[FORECAST_MAX_RANK] = {{0}};
    int64_t n_tok = p->n_tok < MAX_TOK ? p->n_tok : MAX_TOK;
    double scale = (double)p->n_tok / (double)n_tok, slowest_s = 0;
    for (int64_t i = 0; i < n_tok; i++)
        draw_token(p, r, parts);
    for (int i = 0; i < p->n_rank; i++) {
        const struct forecast_rank *rank = &p->ranks[i];
        double n_row = (double)parts[i].n_row * scale, s = n_row * rank->row_s;
        double n_asked = (double)parts[i].n_tok * scale;
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
