#include "cli/place_stats.h"

#include <inttypes.h>

#include "base/mem.h"
#include "base/units_text.h"
#include "cli/open_model.h"

static double milliseconds(int64_t ns)
{
    return (double)ns / 1e6;
}

/* Microseconds for each expert that the place computed; 0: not known. */
static double expert_us(const moebius_place_stats *s)
{
    uint64_t n = s->n_found + s->n_read;
    return n ? (double)s->compute_ns / 1e3 / (double)n : 0;
}

/* A description of what the slots of a cache are used for. */
static const char *cache_use(const moebius_place *p)
{
    if (p->is_off_decode && p->is_off_prompts)
        return "off";
    return p->is_off_decode ? "off for decoding" : p->is_off_prompts ? "off for prompts" : "on";
}

/* Prints how many of a place's experts other places have, too, and the share of its rows that are of these experts. */
static void print_replicas(const moebius_place *p, const moebius_place_stats *s, FILE *f)
{
    fprintf(f, " | %" PRIu64 " are replicas, %.1f%% of rows", p->n_replica,
            s->n_row ? 100 * (double)s->n_replica_row / (double)s->n_row : 0);
}

static void print_cache(const moebius_place *p, const moebius_place_stats *s, FILE *f)
{
    uint64_t n = s->n_found + s->n_missed;
    fprintf(f, " | cache %s, %.1f%% of %" PRIu64 " found | %" PRIu64 " moved, %.1f MB, %.3f s", cache_use(p),
            n ? 100 * (double)s->n_found / (double)n : 0, n, s->n_moved, (double)s->moved_bytes / 1e6,
            (double)s->move_ns / 1e9);
}

static void print_place(const moebius_engine *engine, int i, FILE *f)
{
    moebius_error error;
    moebius_place p;
    moebius_place_stats s;
    if (moebius_place_at(engine, i, &p, &error) != MOEBIUS_OK ||
        moebius_place_did(engine, i, -1, &s, &error) != MOEBIUS_OK) {
        fprintf(f, "place %d: %s\n", i, error.text);
        return;
    }
    fprintf(f,
            "%s: %" PRIu64 " experts, %s of %s in memory | %" PRIu64 " calls, %" PRIu64 " rows | %" PRIu64
            " found, %" PRIu64 " read | computed %.3f s, %.1f us an expert | waited %.3f s",
            p.name, p.n_expert, units_size((uint64_t)p.bytes).s, units_size((uint64_t)p.all_bytes).s, s.n_call, s.n_row,
            s.n_found, s.n_read, (double)s.compute_ns / 1e9, expert_us(&s), (double)s.read_wait_ns / 1e9);
    if (p.n_replica)
        print_replicas(&p, &s, f);
    if (p.is_cache)
        print_cache(&p, &s, f);
    if (i > 0)
        fprintf(f, ", was waited for %.3f s | %s there, %s back", (double)s.finish_wait_ns / 1e9,
                units_size((uint64_t)s.to_bytes).s, units_size((uint64_t)s.from_bytes).s);
    fprintf(f, "\n");
}

/* Prints what each device has, if several divide the layers. */
static void print_stages(const moebius_engine *engine, FILE *f)
{
    moebius_device d;
    for (int i = 0; cli_has_stages(engine) && moebius_engine_device(engine, i, &d); i++)
        fprintf(f,
                "%s: layers %" PRId64 " to %" PRId64 " | %s of weights, %s of experts, %s of contexts, %s of work "
                "space\n",
                d.name, d.first_layer, d.first_layer + d.n_layer - 1, units_size(d.weight_bytes).s,
                units_size(d.expert_bytes).s, units_size(d.context_bytes).s, units_size(d.work_bytes).s);
}

void place_stats_print(const moebius_engine *engine, FILE *f)
{
    int n = moebius_n_place(engine);
    print_stages(engine, f);
    for (int i = 0; n > 1 && i < n; i++)
        print_place(engine, i, f);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static json_t *figures(const moebius_engine *engine, int place, int layer)
{
    moebius_error error;
    moebius_place_stats s;
    if (moebius_place_did(engine, place, layer, &s, &error) != MOEBIUS_OK)
        return json_pack("{s:s}", "error", error.text);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:f}", "n_call",
                     (json_int_t)s.n_call, "n_row", (json_int_t)s.n_row, "n_replica_row", (json_int_t)s.n_replica_row,
                     "n_found", (json_int_t)s.n_found, "n_read", (json_int_t)s.n_read, "n_substituted",
                     (json_int_t)s.n_substituted, "compute_s", (double)s.compute_ns / 1e9, "expert_us", expert_us(&s),
                     "read_wait_s", (double)s.read_wait_ns / 1e9, "finish_wait_s", (double)s.finish_wait_ns / 1e9,
                     "to_bytes", (json_int_t)s.to_bytes, "from_bytes", (json_int_t)s.from_bytes, "n_missed",
                     (json_int_t)s.n_missed, "n_moved", (json_int_t)s.n_moved, "moved_bytes", (json_int_t)s.moved_bytes,
                     "move_s", (double)s.move_ns / 1e9);
}

static json_t *layers(const moebius_engine *engine, int place)
{
    json_t *all = json_array();
    for (int i = 0; i < moebius_n_moe_layer(engine); i++)
        if (json_array_append_new(all, figures(engine, place, i)) != 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

static json_t *place(const moebius_engine *engine, int i)
{
    moebius_error error;
    moebius_place p;
    if (moebius_place_at(engine, i, &p, &error) != MOEBIUS_OK)
        return json_pack("{s:s}", "error", error.text);
    const char *cache = p.is_cache ? cache_use(&p) : NULL;
    return json_pack("{s:s, s:s?, s:I, s:I, s:I, s:I, s:f, s:o, s:o}", "name", p.name, "cache", cache, "n_expert",
                     (json_int_t)p.n_expert, "n_replica", (json_int_t)p.n_replica, "memory_bytes", (json_int_t)p.bytes,
                     "all_bytes", (json_int_t)p.all_bytes, "bytes_per_s", p.bytes_per_s, "all_layers",
                     figures(engine, i, -1), "layers", layers(engine, i));
}

json_t *place_stats_json(const moebius_engine *engine)
{
    json_t *all = json_array();
    for (int i = 0; i < moebius_n_place(engine); i++)
        if (json_array_append_new(all, place(engine, i)) != 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

/* ---- layer by layer --------------------------------------------------------------------------------------------- */

err_code layer_stats_open(struct layer_stats *s, const moebius_engine *engine, struct err *e)
{
    *s = (struct layer_stats){engine, moebius_n_place(engine), moebius_n_moe_layer(engine), NULL};
    size_t n = (size_t)s->n_place * (size_t)s->n_layer;
    s->before = mem_calloc(n ? n : 1, sizeof *s->before);
    return s->before ? ERR_OK : err_nomem(e, n * sizeof *s->before, "statistics");
}

void layer_stats_close(struct layer_stats *s)
{
    mem_free(s->before);
    *s = (struct layer_stats){0};
}

static void print_layer_of(struct layer_stats *s, int place, int layer, FILE *f)
{
    moebius_error error;
    moebius_place_stats now, *b = &s->before[place * s->n_layer + layer];
    if (moebius_place_did(s->engine, place, layer, &now, &error) != MOEBIUS_OK) {
        fprintf(f, " | place %d: %s", place, error.text);
        return;
    }
    const moebius_place_stats did = {.n_found = now.n_found - b->n_found,
                                     .n_read = now.n_read - b->n_read,
                                     .compute_ns = now.compute_ns - b->compute_ns};
    fprintf(f, " | place %d: %" PRIu64 " found, %" PRIu64 " read", place, did.n_found, did.n_read);
    if (now.n_row > b->n_row)
        fprintf(f, ", %" PRIu64 " rows", now.n_row - b->n_row);
    if (now.n_replica_row > b->n_replica_row)
        fprintf(f, ", %" PRIu64 " of replicas", now.n_replica_row - b->n_replica_row);
    if (now.n_missed > b->n_missed)
        fprintf(f, ", %" PRIu64 " missed", now.n_missed - b->n_missed);
    if (now.n_moved > b->n_moved)
        fprintf(f, ", %" PRIu64 " moved", now.n_moved - b->n_moved);
    if (now.n_substituted > b->n_substituted)
        fprintf(f, ", %" PRIu64 " substituted", now.n_substituted - b->n_substituted);
    if (now.compute_ns > b->compute_ns)
        fprintf(f, ", computed %.3f ms, %.1f us an expert", milliseconds(did.compute_ns), expert_us(&did));
    if (now.read_wait_ns > b->read_wait_ns)
        fprintf(f, ", waited %.3f ms", milliseconds(now.read_wait_ns - b->read_wait_ns));
    if (now.finish_wait_ns > b->finish_wait_ns)
        fprintf(f, ", was waited for %.3f ms", milliseconds(now.finish_wait_ns - b->finish_wait_ns));
    if (now.to_bytes > b->to_bytes)
        fprintf(f, ", %s there, %s back", units_size(now.to_bytes - b->to_bytes).s,
                units_size(now.from_bytes - b->from_bytes).s);
    *b = now;
}

void layer_stats_print(struct layer_stats *s, const char *what, FILE *f)
{
    fprintf(f, "%s\n", what);
    for (int l = 0; l < s->n_layer; l++) {
        fprintf(f, "  MoE layer %d", l);
        for (int i = 0; i < s->n_place; i++)
            print_layer_of(s, i, l, f);
        fprintf(f, "\n");
    }
}
