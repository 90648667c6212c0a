#include "cli/rank_forecast.h"

#include <string.h>

#include "cli/rank_run.h"
#include "jobs/forecast.h"

/* The time of rank 0's operations without experts, over all rounds. */
static double other_s(const struct bench_result *r)
{
    double ns = 0;
    for (int i = 0; i < r->n_op; i++)
        if (strcmp(r->decode.ops[i].did.name, "EXPERTS") != 0)
            ns += (double)r->decode.ops[i].did.n_ns;
    return ns / 1e9;
}

/* n_row: rows of all ranks, of experts without replicas. */
static void fill_rank(struct forecast_rank *to, int rank, const moebius_place_stats *did, uint64_t n_row)
{
    double own = (double)(did->n_row - did->n_replica_row);
    double ns = (double)(did->compute_ns + did->read_wait_ns);
    *to = (struct forecast_rank){.share = n_row ? own / (double)n_row : 0,
                                 .row_s = did->n_row ? ns / 1e9 / (double)did->n_row : 0,
                                 .round_trip_s = rank ? moebius_rank_round_trip_s(rank_run_ranks(), rank) : 0,
                                 .bytes_per_s = rank ? moebius_rank_bytes_per_s(rank_run_ranks(), rank) : 1};
}

/* Tokens a second. */
static double make(const moebius_engine *engine, const struct bench_params *p, const struct bench_result *r,
                   struct forecast *out)
{
    const double n_batch = (double)(r->decode.n_tok * r->n_round) / (double)p->n_texts;
    struct forecast_params f = {.n_rank = moebius_n_place(engine),
                                .n_layer = moebius_n_moe_layer(engine),
                                .n_embd = moebius_n_embd(engine),
                                .n_used = moebius_moe_layer_at(engine, 0).n_used,
                                .n_tok = p->n_texts,
                                .other_s = other_s(r) / n_batch};
    uint64_t n_row = 0, n_replica_row = 0;
    for (int i = 0; i < f.n_rank; i++) {
        n_row += r->decode.places[i].n_row;
        n_replica_row += r->decode.places[i].n_replica_row;
    }
    for (int i = 0; i < f.n_rank; i++)
        fill_rank(&f.ranks[i], i, &r->decode.places[i], n_row - n_replica_row);
    f.replica_share = n_row ? (double)n_replica_row / (double)n_row : 0;
    *out = forecast_make(&f);
    return (double)p->n_texts / out->batch_s;
}

void rank_forecast_print(const moebius_engine *engine, const struct bench_params *p, const struct bench_result *r,
                         FILE *f)
{
    struct forecast c;
    if (!rank_run_ranks() || r->decode.n_tok == 0)
        return;
    for (int i = 1; i < moebius_n_rank(rank_run_ranks()); i++)
        fprintf(f, "rank %d: %.1f us there and back, %.2f GB/s\n", i,
                moebius_rank_round_trip_s(rank_run_ranks(), i) * 1e6,
                moebius_rank_bytes_per_s(rank_run_ranks(), i) / 1e9);
    double tok_per_s = make(engine, p, r, &c);
    fprintf(f,
            "decode: %.1f kB in %.1f messages a token between ranks; forecast of these links and of what the ranks "
            "took: %.2f tokens/s, %.2f of which were reached\n",
            c.n_bytes / 1e3 / (double)p->n_texts, c.n_message / (double)p->n_texts, tok_per_s,
            r->decode.tok_per_s.median / tok_per_s);
}

void rank_forecast_print_json(const moebius_engine *engine, const struct bench_params *p, const struct bench_result *r,
                              FILE *f)
{
    struct forecast c;
    if (!rank_run_ranks() || r->decode.n_tok == 0)
        return;
    double tok_per_s = make(engine, p, r, &c);
    fprintf(f, ", \"ranks\": {\"forecast_tok_per_s\": %.4f, \"bytes_per_tok\": %.0f, \"messages_per_tok\": %.2f",
            tok_per_s, c.n_bytes / (double)p->n_texts, c.n_message / (double)p->n_texts);
    for (int i = 1; i < moebius_n_rank(rank_run_ranks()); i++)
        fprintf(f, "%s{\"round_trip_s\": %.9f, \"bytes_per_s\": %.0f}", i == 1 ? ", \"links\": [" : ", ",
                moebius_rank_round_trip_s(rank_run_ranks(), i), moebius_rank_bytes_per_s(rank_run_ranks(), i));
    fprintf(f, "]}");
}
