#include "cli/stats.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/output_file.h"
#include "base/units_text.h"
#include "cli/place_stats.h"

int64_t stats_peak_bytes(void)
{
    char line[128];
    long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

static double percent(uint64_t part, uint64_t all)
{
    return all ? 100 * (double)part / (double)all : 0;
}

/* Prints what cache-aware routing did for tokens that were computed one by one. */
static void print_substitutes(FILE *f, const moebius_counters *c, const moebius_counters *b)
{
    uint64_t n = c->n_substituted - b->n_substituted, hit = c->n_decode_hit - b->n_decode_hit;
    uint64_t all = hit + c->n_decode_miss - b->n_decode_miss;
    fprintf(f, "%.1f%% substituted at %.3f of the score, %.1f%% found, %.1f%% without", percent(n, all),
            (c->substitute_ratio_sum - b->substitute_ratio_sum) / (double)n, percent(hit, all),
            percent(hit - (uint64_t)(c->n_spared - b->n_spared), all));
    if (c->n_backfilled > b->n_backfilled)
        fprintf(f, ", %" PRIu64 " backfilled", c->n_backfilled - b->n_backfilled);
}

void stats_print(const moebius_engine *engine, const moebius_counters *before)
{
    moebius_counters c = moebius_engine_counters(engine), b = before ? *before : (moebius_counters){0};
    uint64_t hit = c.n_expert_hit - b.n_expert_hit, miss = c.n_expert_miss - b.n_expert_miss;
    fprintf(stderr,
            "experts: %s of %s in memory | %.1f%% of %" PRIu64 " found | %" PRIu64 " read, %s | %" PRIu64
            " evicted | waited %.3f s, arrivals %.3f s",
            units_size((uint64_t)c.expert_bytes).s, units_size((uint64_t)c.expert_all_bytes).s,
            percent(hit, hit + miss), hit + miss, c.n_expert_read - b.n_expert_read,
            units_size(c.n_expert_read_bytes - b.n_expert_read_bytes).s, c.n_expert_evicted - b.n_expert_evicted,
            (double)(c.stall_ns - b.stall_ns) / 1e9, (double)(c.arrival_ns - b.arrival_ns) / 1e9);
    if (c.n_prefetched > b.n_prefetched)
        fprintf(stderr, " | %" PRIu64 " of %" PRIu64 " prefetched experts used", c.n_prefetch_used - b.n_prefetch_used,
                c.n_prefetched - b.n_prefetched);
    if (c.n_gpu_submit > b.n_gpu_submit)
        fprintf(stderr, " | GPU: %" PRIu64 " dispatches, %" PRIu64 " barriers, %" PRIu64 " submissions",
                c.n_gpu_dispatch - b.n_gpu_dispatch, c.n_gpu_barrier - b.n_gpu_barrier,
                c.n_gpu_submit - b.n_gpu_submit);
    if (c.n_substituted > b.n_substituted) {
        fprintf(stderr, " | decode: ");
        print_substitutes(stderr, &c, &b);
    }
}

void stats_print_car(const moebius_engine *engine, FILE *f)
{
    moebius_counters c = moebius_engine_counters(engine);
    if (c.n_substituted == 0)
        return;
    fprintf(f, "cache-aware routing: ");
    print_substitutes(f, &c, &(moebius_counters){0});
    fprintf(f, "\n");
}

static double seconds(int64_t ns)
{
    return (double)ns / 1e9;
}

double stats_drive_rate(const moebius_counters *c)
{
    return c->many_read_ns >= STATS_MIN_READ_NS ? (double)c->n_many_read_bytes / seconds(c->many_read_ns) : 0;
}

static double mean_ratio(const moebius_counters *c)
{
    return c->n_substituted ? c->substitute_ratio_sum / (double)c->n_substituted : 0;
}

/* The figures of each device, as JSON; NULL: no memory. */
static json_t *devices(const moebius_engine *engine)
{
    json_t *all = json_array();
    moebius_device d;
    for (int i = 0; all && moebius_engine_device(engine, i, &d); i++) {
        json_t *one = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "name", d.name, "weight_bytes",
                                (json_int_t)d.weight_bytes, "expert_bytes", (json_int_t)d.expert_bytes, "context_bytes",
                                (json_int_t)d.context_bytes, "work_bytes", (json_int_t)d.work_bytes, "first_layer",
                                (json_int_t)d.first_layer, "n_layer", (json_int_t)d.n_layer);
        if (json_array_append_new(all, one) != 0) {
            json_decref(all);
            all = NULL;
        }
    }
    return all;
}

static json_t *object(const moebius_engine *engine, const struct run_times *t)
{
    moebius_counters c = moebius_engine_counters(engine);
    return json_pack(
        "{s:f, s:{s:I, s:I, s:f}, s:{s:I, s:f}, s:i, s:{s:I, s:I},"
        " s:{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f},"
        " s:{s:I, s:f, s:I, s:I}, s:{s:I, s:I, s:I, s:I, s:I}, s:o, s:o, s:{s:I, s:I, s:I}}",
        "load_s", seconds(t->load_ns), "prefill", "n_tok", (json_int_t)t->n_prefill, "chunk", (json_int_t)t->n_chunk,
        "s", seconds(t->prefill_ns), "decode", "n_tok", (json_int_t)t->n_decoded, "s", seconds(t->decode_ns),
        "n_threads", moebius_n_threads(engine), "moe_layers", "n_direct", (json_int_t)c.n_direct, "n_sorted",
        (json_int_t)c.n_sorted, "experts", "reader", moebius_expert_reader(engine), "memory_bytes",
        (json_int_t)c.expert_bytes, "all_bytes", (json_int_t)c.expert_all_bytes, "n_hit", (json_int_t)c.n_expert_hit,
        "n_miss", (json_int_t)c.n_expert_miss, "n_decode_hit", (json_int_t)c.n_decode_hit, "n_decode_miss",
        (json_int_t)c.n_decode_miss, "n_read", (json_int_t)c.n_expert_read, "read_bytes",
        (json_int_t)c.n_expert_read_bytes, "n_evicted", (json_int_t)c.n_expert_evicted, "n_prefetched",
        (json_int_t)c.n_prefetched, "n_prefetch_used", (json_int_t)c.n_prefetch_used, "stall_s", seconds(c.stall_ns),
        "arrival_s", seconds(c.arrival_ns), "drive_bytes_per_s", stats_drive_rate(&c), "car", "n_substituted",
        (json_int_t)c.n_substituted, "mean_ratio", mean_ratio(&c), "n_decode_hit_without",
        (json_int_t)c.n_decode_hit - c.n_spared, "n_backfilled", (json_int_t)c.n_backfilled, "memory", "weight_bytes",
        (json_int_t)c.weight_bytes, "expert_bytes", (json_int_t)c.expert_bytes, "context_bytes",
        (json_int_t)c.context_bytes, "work_bytes", (json_int_t)c.work_bytes, "peak_bytes",
        (json_int_t)stats_peak_bytes(), "places", place_stats_json(engine), "devices", devices(engine), "gpu",
        "n_dispatch", (json_int_t)c.n_gpu_dispatch, "n_barrier", (json_int_t)c.n_gpu_barrier, "n_submit",
        (json_int_t)c.n_gpu_submit);
}

err_code stats_write_json(const char *path, const moebius_engine *engine, const struct run_times *t, struct err *e)
{
    struct output_file f;
    json_t *all = object(engine, t);
    if (!all)
        return err_nomem(e, 4096, "statistics");
    err_code code = output_file_open(&f, path, e);
    if (code == ERR_OK) {
        json_dumpf(all, f.stream, JSON_INDENT(2));
        fprintf(f.stream, "\n");
        code = output_file_finish(&f, e);
    }
    json_decref(all);
    return code;
}
