#include "planner/plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Of a prompt that is in the prompt cache, what is computed all the same. */
enum { UNCACHED_TOK = 64 };

static const int64_t prompt_lengths[PLAN_N_PROMPT] = {1000, 2000, 4000, 8000, 20000, 40000};

static const double GIB = 1024.0 * 1024 * 1024;

static void say(struct plan_lines *l, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void say(struct plan_lines *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (l->n < PLAN_MAX_LINE)
        vsnprintf(l->text[l->n++], PLAN_LINE_BYTES, fmt, args);
    va_end(args);
}

/* A plan in the making. */
struct making {
    struct plan *p;
    const struct plan_inputs *in;
    const struct machine *m;
    const struct plan_facts *f;
    const struct plan_settings *s;
    const struct plan_kv *kv;
};

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static uint64_t text_bytes(const struct plan_facts *f, const struct plan_kv *kv, int64_t n_ctx)
{
    for (int i = 0; i < f->n_n_ctx; i++)
        if (f->n_ctx[i] >= n_ctx)
            return kv->text_bytes[i];
    return f->n_n_ctx ? kv->text_bytes[f->n_n_ctx - 1] : 0;
}

/* Of each text its tokens and logits. */
static uint64_t host_bytes(const struct plan_facts *f, int64_t n_ctx)
{
    return (uint64_t)(n_ctx + f->n_vocab) * 4;
}

static uint64_t texts_bytes(const struct plan_facts *f, const struct plan_kv *kv, int64_t n_ctx, int64_t n_texts)
{
    return (uint64_t)n_texts * (text_bytes(f, kv, n_ctx) + host_bytes(f, n_ctx));
}

/* All experts of layers [from, to). */
static uint64_t expert_bytes(const struct plan_facts *f, int from, int to)
{
    uint64_t n = 0;
    for (int i = from; i < to; i++)
        n += (uint64_t)f->layers[i].n_expert * f->layers[i].slot_bytes;
    return n;
}

/* A rank keeps its part of the experts. */
static uint64_t expert_part(const struct making *k, uint64_t n_bytes)
{
    return k->m->n_rank > 1 ? n_bytes / (uint64_t)k->m->n_rank : n_bytes;
}

uint64_t plan_memory_limit(uint64_t own_bytes, uint64_t free_bytes)
{
    return own_bytes + free_bytes - free_bytes / PLAN_FREE_SHARE;
}

static uint64_t limit_of(const struct making *k)
{
    uint64_t free_bytes = k->m->free_bytes ? k->m->free_bytes : k->m->ram_bytes;
    if (k->s->ram_bytes || !free_bytes)
        return k->s->ram_bytes;
    return plan_memory_limit(k->s->own_bytes, free_bytes);
}

/* Everything but the experts, and what is kept back beside it, as a session is admitted with half of itself to spare.
 */
static uint64_t fixed_bytes(const struct making *k, const struct plan_kv *kv, int64_t n_ctx, int64_t n_texts)
{
    const struct plan_facts *f = k->f;
    return f->process_bytes + f->weight_bytes + f->work_bytes + texts_bytes(f, kv, n_ctx, n_texts);
}

static uint64_t reserve_bytes(const struct making *k, const struct plan_kv *kv, int64_t n_ctx)
{
    return PLAN_MARGIN_BYTES + (k->f->work_bytes + texts_bytes(k->f, kv, n_ctx, 1)) / 2;
}

static uint64_t least_with(const struct making *k, const struct plan_kv *kv, int64_t n_ctx, int64_t n_texts)
{
    return fixed_bytes(k, kv, n_ctx, n_texts) + reserve_bytes(k, kv, n_ctx) + k->f->least_slot_bytes;
}

/* Memory with which all experts have slots. */
static uint64_t with_all_bytes(const struct making *k, int64_t n_ctx)
{
    return fixed_bytes(k, k->kv, n_ctx, k->s->n_texts) + reserve_bytes(k, k->kv, n_ctx) +
           expert_part(k, expert_bytes(k->f, 0, k->f->n_moe));
}

static void add_row(struct making *k, const char *what, const char *tier, uint64_t n_bytes)
{
    struct plan *p = k->p;
    if (!n_bytes)
        return;
    p->rows[p->n_row++] = (struct plan_row){what, tier, n_bytes};
    *(!strcmp(tier, "vram") ? &p->vram_bytes : !strcmp(tier, "ram") ? &p->ram_bytes : &(uint64_t){0}) += n_bytes;
}

static int64_t n_all_experts(const struct plan_facts *f)
{
    int64_t n = 0;
    for (int i = 0; i < f->n_moe; i++)
        n += f->layers[i].n_expert;
    return n;
}

/* Slots that a budget gives, as a share of the bytes of all: sizes of layers differ little. */
static void give_slots(struct making *k, uint64_t budget)
{
    struct plan *p = k->p;
    uint64_t all = expert_part(k, expert_bytes(k->f, 0, k->f->n_moe));
    if (k->s->expert_bytes && k->s->expert_bytes < budget)
        budget = k->s->expert_bytes;
    p->n_expert = n_all_experts(k->f);
    if (k->m->n_rank > 1)
        p->n_expert /= k->m->n_rank;
    p->n_slot = budget >= all ? p->n_expert : (int64_t)((double)p->n_expert * ((double)budget / (double)all));
    add_row(k, "experts", "ram", budget >= all ? all : budget);
    if (budget < all)
        add_row(k, "experts", "drive", all - budget);
}

static void map_memory(struct making *k)
{
    struct plan *p = k->p;
    const struct plan_facts *f = k->f;
    uint64_t all = expert_part(k, expert_bytes(f, 0, f->n_moe));
    uint64_t fixed = fixed_bytes(k, k->kv, k->s->n_ctx, k->s->n_texts);
    p->reserve_bytes = reserve_bytes(k, k->kv, k->s->n_ctx);
    p->ram_limit = limit_of(k);
    p->least_bytes = least_with(k, k->kv, k->s->n_ctx, k->s->n_texts);
    add_row(k, "program", "ram", f->process_bytes);
    add_row(k, "weights", "ram", f->weight_bytes);
    add_row(k, "texts", "ram", texts_bytes(f, k->kv, k->s->n_ctx, k->s->n_texts));
    add_row(k, "activations", "ram", f->work_bytes + f->scratch_bytes);
    uint64_t taken = fixed + p->reserve_bytes, budget = p->ram_limit > taken ? p->ram_limit - taken : 0;
    give_slots(k, p->ram_limit ? budget : all);
}

/* Of a GPU that runs the layers, with the experts of so many in the machine's memory. */
static uint64_t vram_with(const struct making *k, int n_cpu_moe, int64_t n_ctx)
{
    const struct plan_facts *f = k->f;
    return f->weight_bytes + f->work_bytes + f->scratch_bytes + expert_bytes(f, 0, f->n_moe - n_cpu_moe) +
           (uint64_t)k->s->n_texts * text_bytes(f, k->kv, n_ctx) + PLAN_VRAM_MARGIN_BYTES;
}

static uint64_t ram_with(const struct making *k, int n_cpu_moe)
{
    return k->f->process_bytes + expert_bytes(k->f, k->f->n_moe - n_cpu_moe, k->f->n_moe) + PLAN_MARGIN_BYTES +
           (uint64_t)k->s->n_texts * host_bytes(k->f, k->s->n_ctx);
}

/* ---- the context ------------------------------------------------------------------------------------------------- */

static uint64_t vram_limit_of(const struct making *k)
{
    const struct machine_gpu *g = &k->m->gpus[0];
    return k->s->vram_bytes ? k->s->vram_bytes : g->free_bytes ? g->free_bytes : g->memory_bytes;
}

static bool is_gpu_plan(const struct making *k)
{
    return k->s->uses_gpu && k->m->n_gpu > 0;
}

static bool is_within(uint64_t n_bytes, uint64_t limit)
{
    return !limit || n_bytes <= limit;
}

/* A context with which the model just works. */
static bool works(const struct making *k, int64_t n_ctx)
{
    int n_cpu_moe = k->s->n_cpu_moe >= 0 ? k->s->n_cpu_moe : k->f->n_moe;
    if (!is_within(text_bytes(k->f, k->kv, n_ctx), k->s->state_bytes))
        return false;
    if (is_gpu_plan(k))
        return is_within(vram_with(k, n_cpu_moe, n_ctx), vram_limit_of(k));
    return is_within(least_with(k, k->kv, n_ctx, k->s->n_texts), limit_of(k));
}

/* One that leaves all experts where they are fastest. */
static bool has_room_for_all(const struct making *k, int64_t n_ctx)
{
    uint64_t n_bytes = is_gpu_plan(k) ? vram_with(k, 0, n_ctx) : with_all_bytes(k, n_ctx);
    return works(k, n_ctx) && is_within(n_bytes, is_gpu_plan(k) ? vram_limit_of(k) : limit_of(k));
}

/* One whose texts take a quarter at most of what they share with the experts. */
static bool leaves_most(const struct making *k, int64_t n_ctx)
{
    enum { PART = 4 };
    uint64_t limit = is_gpu_plan(k) ? vram_limit_of(k) : limit_of(k);
    uint64_t without = is_gpu_plan(k) ? vram_with(k, k->f->n_moe, 0) : fixed_bytes(k, k->kv, 0, 0);
    return works(k, n_ctx) && limit > without &&
           texts_bytes(k->f, k->kv, n_ctx, k->s->n_texts) <= (limit - without) / PART;
}

/* The longest context of those that were sized, of at most n_most tokens; 0: none. */
static int64_t longest(const struct making *k, int64_t n_most, bool (*is_good)(const struct making *k, int64_t n_ctx))
{
    for (int i = k->f->n_n_ctx - 1; i >= 0; i--)
        if (k->f->n_ctx[i] <= n_most && is_good(k, k->f->n_ctx[i]))
            return k->f->n_ctx[i];
    return 0;
}

/* Speed before length, as long as the context is one of some use. */
static int64_t choose_context(const struct making *k)
{
    enum { USEFUL_CTX = 4096 };
    int64_t most = k->s->n_ctx_most, useful = most < USEFUL_CTX ? most : USEFUL_CTX;
    int64_t n = longest(k, most, has_room_for_all);
    if (n < useful)
        n = longest(k, most, leaves_most);
    if (n < useful)
        n = longest(k, useful, works);
    return n ? n : k->f->n_ctx[0];
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* The longest context that works, with this type of caches and so many texts; 0: none. */
static int64_t longest_context(const struct making *k, const struct plan_kv *kv, int64_t n_texts)
{
    for (int i = k->f->n_n_ctx - 1; i >= 0; i--)
        if (k->f->n_ctx[i] <= k->s->n_ctx && least_with(k, kv, k->f->n_ctx[i], n_texts) <= k->p->ram_limit)
            return k->f->n_ctx[i];
    return 0;
}

/* The type whose caches take least. */
static const struct plan_kv *least_kv(const struct making *k)
{
    const struct plan_kv *best = k->kv;
    for (int i = 0; i < FACTS_N_KV; i++)
        if (k->f->kv[i].works && text_bytes(k->f, &k->f->kv[i], k->s->n_ctx) < text_bytes(k->f, best, k->s->n_ctx))
            best = &k->f->kv[i];
    return best;
}

static void refuse_memory(struct making *k)
{
    struct plan *p = k->p;
    const struct plan_settings *s = k->s;
    const struct plan_kv *small = least_kv(k);
    int64_t n_texts = s->n_texts, n_ctx = longest_context(k, k->kv, n_texts);
    p->is_refused = true;
    snprintf(p->refusal, sizeof p->refusal,
             "%.2f GiB of memory are needed at least, and there are %.2f GiB: %.2f GiB more than there is room for",
             (double)p->least_bytes / GIB, (double)p->ram_limit / GIB, (double)(p->least_bytes - p->ram_limit) / GIB);
    if (small != k->kv && least_with(k, small, s->n_ctx, n_texts) <= p->ram_limit)
        say(&p->nearest, "--kv %s, all else as asked for", small->name);
    if (n_ctx)
        say(&p->nearest, "--ctx %" PRId64 ", all else as asked for", n_ctx);
    while (n_texts > 1 && least_with(k, k->kv, s->n_ctx, n_texts) > p->ram_limit)
        n_texts--;
    if (n_texts < s->n_texts && least_with(k, k->kv, s->n_ctx, n_texts) <= p->ram_limit)
        say(&p->nearest, "--texts %" PRId64 ", all else as asked for", n_texts);
    if (p->nearest.n == 0 && longest_context(k, small, 1))
        say(&p->nearest, "--kv %s --ctx %" PRId64 " --texts 1", small->name, longest_context(k, small, 1));
    say(&p->nearest, "--ram %" PRIu64 "M, on a machine that has as much free", (p->least_bytes >> 20) + 1);
}

static void refuse_speed(struct making *k)
{
    struct plan *p = k->p;
    if (p->is_refused || !(k->s->floor > 0) || !(p->decode.ceiling > 0) || p->decode.ceiling >= k->s->floor)
        return;
    p->is_refused = true;
    snprintf(p->refusal, sizeof p->refusal,
             "the ceiling of decode is %.2f tokens/s, below the floor of %.2f that was asked for", p->decode.ceiling,
             k->s->floor);
    say(&p->nearest, "--floor %.2f, which the hardware may reach at best", p->decode.ceiling);
    if (p->miss > 0)
        say(&p->nearest, "--ram %" PRIu64 "M, with which no expert is read from a drive",
            (with_all_bytes(k, k->s->n_ctx) >> 20) + 1);
}

/* ---- speed ------------------------------------------------------------------------------------------------------- */

/* The drive that gives experts fastest; -1: none is known. */
static int best_drive(const struct making *k, double n_bytes, double *bytes_per_s)
{
    int best = -1;
    *bytes_per_s = 0;
    for (int i = 0; i < k->m->n_drive; i++) {
        double speed = machine_drive_speed(&k->m->drives[i], n_bytes);
        if (speed > *bytes_per_s) {
            best = i;
            *bytes_per_s = speed;
        }
    }
    return best;
}

static struct ceiling_params cpu_params(struct making *k)
{
    const struct machine *m = k->m;
    double share = m->n_thread > 0 && k->s->n_threads < m->n_thread ? (double)k->s->n_threads / m->n_thread : 1;
    double one_expert = k->f->n_moe ? k->f->layers[0].expert.n_bytes : 0;
    struct ceiling_params c = {.facts = k->f,
                               .kv = k->kv,
                               .read_per_s = machine_memory_speed(m, k->s->n_threads),
                               .int8_per_s = m->int8_per_s * share,
                               .float_per_s = m->float_per_s * share,
                               .miss = k->p->miss,
                               .n_rank = m->n_rank > 1 ? m->n_rank : 1,
                               .rank_round_trip_s = m->rank_round_trip_s};
    for (int i = 0; i < k->f->n_moe; i++)
        c.missing_bytes += (double)k->f->layers[i].n_expert * k->f->layers[i].expert.n_bytes;
    c.missing_bytes *= k->p->n_expert ? 1 - (double)k->p->n_slot / (double)k->p->n_expert : 0;
    k->p->drive = best_drive(k, one_expert / 3, &c.drive_per_s); /* a matrix is a read */
    return c;
}

/* What receipts say of a ceiling. */
static bool calibrate(const struct making *k, enum speed_of of, enum regime regime, double at, int64_t n_texts,
                      double ceiling, double *low, double *mid, double *high)
{
    const struct calibration_query q = {.of = of,
                                        .regime = regime,
                                        .at = at,
                                        .n_texts = n_texts,
                                        .machine = k->m->name,
                                        .fingerprint = k->f->fingerprint};
    struct calibration c;
    if (!(ceiling > 0) || !k->in->calibrate || !k->in->calibrate(k->in->user, &q, &c))
        return false;
    *low = ceiling * c.low;
    *mid = ceiling * c.share;
    *high = ceiling * c.high;
    return true;
}

static struct plan_speed forecast(const struct making *k, enum speed_of of, int64_t n_texts, double ceiling)
{
    struct plan_speed s = {.ceiling = ceiling};
    s.is_forecast = calibrate(k, of, k->p->regime, k->p->at, n_texts, ceiling, &s.low, &s.mid, &s.high);
    return s;
}

static double rate(double n, double s)
{
    return s > 0 ? n / s : 0;
}

static void find_speeds(struct making *k, const struct ceiling_params *c)
{
    struct plan *p = k->p;
    const struct plan_settings *s = k->s;
    p->decode =
        forecast(k, SPEED_DECODE, s->n_texts, rate((double)s->n_texts, ceiling_step_s(c, s->n_texts, s->n_depth)));
    p->decode_one = forecast(k, SPEED_DECODE, 1, rate(1, ceiling_step_s(c, 1, s->n_depth)));
    p->prefill =
        forecast(k, SPEED_PREFILL, 1, rate((double)s->n_batch, ceiling_prompt_s(c, 0, s->n_batch, s->n_batch)));
    for (int i = 0; i < PLAN_N_PROMPT; i++) {
        int64_t n = prompt_lengths[i];
        struct plan_prompt *r = &p->prompts[i];
        *r = (struct plan_prompt){.n_tok = n,
                                  .s = ceiling_prompt_s(c, 0, n, s->n_batch),
                                  .cached_s = ceiling_prompt_s(c, n - UNCACHED_TOK, n, s->n_batch)};
        r->speed = forecast(k, SPEED_PREFILL, 1, rate((double)n, r->s));
    }
}

/* ---- processors alone -------------------------------------------------------------------------------------------- */

static void assume(struct making *k)
{
    struct plan_lines *l = &k->p->assumptions;
    say(l, "decode with %" PRId64 " tokens in each context; experts of several texts chosen independently",
        k->s->n_depth);
    if (!k->s->ram_bytes && !k->m->free_bytes && k->m->ram_bytes)
        say(l, "nothing else takes memory: what is free was not measured");
    if (!k->m->ram_bytes && !k->s->ram_bytes && !k->m->free_bytes)
        say(l, "there is memory enough: how much the machine has is unknown");
    if (k->p->miss > 0 && k->f->mass)
        say(l, "experts are chosen as in earlier runs, and the slots have those chosen most");
    else if (k->p->miss > 0)
        say(l, "all experts are chosen equally often: real texts repeat themselves, so that fewer are read");
    if (k->p->miss > 0 && k->p->drive < 0)
        say(l, "no drive was measured, so that the speed of reading experts is unknown: moebius probe measures it");
    if (k->f->is_header)
        say(l, "the file is as its header says: its tensors are not all there");
    if (k->m->n_rank > 1)
        say(l, "each of %d machines has as many experts, and a layer's fall evenly on them", k->m->n_rank);
}

static void write_flags(struct making *k)
{
    const struct plan_settings *s = k->s;
    char *out = k->p->flags;
    size_t n = sizeof k->p->flags;
    snprintf(out, n, "--threads %d --ctx %" PRId64 " --kv %s", s->n_threads, s->n_ctx, k->kv->name);
    if (k->p->miss > 0 || s->ram_bytes)
        snprintf(out + strlen(out), n - strlen(out), " --ram %" PRIu64 "M", k->p->ram_limit >> 20);
    if (s->n_batch != 512)
        snprintf(out + strlen(out), n - strlen(out), " --batch %" PRId64, s->n_batch);
}

static void plan_cpu(struct making *k)
{
    struct plan *p = k->p;
    map_memory(k);
    p->miss = ceiling_miss(k->f, p->n_slot, p->n_expert);
    p->regime = k->m->n_rank > 1 ? REGIME_RANKS : p->miss > 0 ? REGIME_STREAM : REGIME_RAM;
    p->at = p->regime == REGIME_STREAM ? p->miss : 0;
    const struct ceiling_params c = cpu_params(k);
    if (p->ram_limit && p->least_bytes > p->ram_limit)
        refuse_memory(k);
    else
        find_speeds(k, &c);
    refuse_speed(k);
    assume(k);
    write_flags(k);
}

/* ---- a GPU ------------------------------------------------------------------------------------------------------- */

static struct ceiling_params gpu_params(const struct making *k, int n_cpu_moe)
{
    const struct machine_gpu *g = &k->m->gpus[0];
    return (struct ceiling_params){.facts = k->f,
                                   .kv = k->kv,
                                   .read_per_s = g->bytes_per_s,
                                   .int8_per_s = g->int8_per_s,
                                   .n_cpu_moe = n_cpu_moe,
                                   .cpu_read_per_s = machine_memory_speed(k->m, k->s->n_threads),
                                   .n_rank = 1};
}

static enum regime gpu_regime(int n_cpu_moe)
{
    return n_cpu_moe ? REGIME_OFFLOAD : REGIME_VRAM;
}

static double gpu_at(const struct making *k, int n_cpu_moe)
{
    return k->f->n_moe ? (double)n_cpu_moe / k->f->n_moe : 0;
}

static void add_gpu_row(struct making *k, int n)
{
    struct plan_gpu_row *r = &k->p->gpu[k->p->n_gpu++];
    const struct ceiling_params c = gpu_params(k, n);
    *r = (struct plan_gpu_row){.n_cpu_moe = n, .vram_bytes = vram_with(k, n, k->s->n_ctx), .ram_bytes = ram_with(k, n)};
    r->fits = (!k->p->vram_limit || r->vram_bytes <= k->p->vram_limit) &&
              (!k->p->ram_limit || r->ram_bytes <= k->p->ram_limit);
    r->ceiling = rate((double)k->s->n_texts, ceiling_step_s(&c, k->s->n_texts, k->s->n_depth));
    r->is_forecast =
        calibrate(k, SPEED_DECODE, gpu_regime(n), gpu_at(k, n), k->s->n_texts, r->ceiling, &r->low, &r->mid, &r->high);
    if (r->fits && k->p->gpu_chosen < 0 && (k->s->n_cpu_moe < 0 || k->s->n_cpu_moe == n))
        k->p->gpu_chosen = k->p->n_gpu - 1;
}

static void map_gpu(struct making *k, int n)
{
    const struct plan_facts *f = k->f;
    const struct plan_settings *s = k->s;
    add_row(k, "weights", "vram", f->weight_bytes);
    add_row(k, "experts", "vram", expert_bytes(f, 0, f->n_moe - n));
    add_row(k, "texts", "vram", (uint64_t)s->n_texts * text_bytes(f, k->kv, s->n_ctx));
    add_row(k, "activations", "vram", f->work_bytes + f->scratch_bytes);
    add_row(k, "driver", "vram", PLAN_VRAM_MARGIN_BYTES);
    add_row(k, "program", "ram", f->process_bytes);
    add_row(k, "experts", "ram", expert_bytes(f, f->n_moe - n, f->n_moe));
    add_row(k, "texts", "ram", (uint64_t)s->n_texts * host_bytes(f, s->n_ctx));
    k->p->reserve_bytes = PLAN_MARGIN_BYTES;
    k->p->least_bytes = ram_with(k, n);
}

static void refuse_gpu(struct making *k, int n)
{
    struct plan *p = k->p;
    bool is_vram = p->vram_limit && vram_with(k, n, k->s->n_ctx) > p->vram_limit;
    int fits = -1;
    for (int i = 0; i < p->n_gpu; i++)
        if (p->gpu[i].fits)
            fits = i;
    p->is_refused = true;
    snprintf(
        p->refusal, sizeof p->refusal,
        "with the experts of %d of %d layers in the machine's memory %.2f GiB of %s are needed, and there are %.2f GiB",
        n, k->f->n_moe, (double)(is_vram ? vram_with(k, n, k->s->n_ctx) : ram_with(k, n)) / GIB,
        is_vram ? "VRAM" : "memory", (double)(is_vram ? p->vram_limit : p->ram_limit) / GIB);
    if (fits >= 0)
        say(&p->nearest, "--n-cpu-moe %d, all else as asked for", p->gpu[fits].n_cpu_moe);
    else
        say(&p->nearest, "without the GPU: see the plan for --devices cpu:%d", k->s->n_threads);
}

static void write_gpu_flags(struct making *k, int n)
{
    char *out = k->p->flags;
    size_t size = sizeof k->p->flags;
    snprintf(out, size, "--gpu 0 --threads %d --n-cpu-moe %d --ctx %" PRId64 " --kv %s", k->s->n_threads, n,
             k->s->n_ctx, k->kv->name);
}

static void plan_gpu(struct making *k)
{
    struct plan *p = k->p;
    p->vram_limit = vram_limit_of(k);
    p->ram_limit = limit_of(k);
    p->n_slot = p->n_expert = n_all_experts(k->f);
    for (int n = 0; n <= k->f->n_moe && p->n_gpu < PLAN_MAX_GPU_ROW; n++)
        add_gpu_row(k, n);
    int asked = k->s->n_cpu_moe >= 0 ? k->s->n_cpu_moe : k->f->n_moe;
    int n = p->gpu_chosen >= 0 ? p->gpu[p->gpu_chosen].n_cpu_moe : asked;
    map_gpu(k, n);
    p->regime = gpu_regime(n);
    p->at = gpu_at(k, n);
    const struct ceiling_params c = gpu_params(k, n);
    if (p->gpu_chosen < 0)
        refuse_gpu(k, n);
    else
        find_speeds(k, &c);
    refuse_speed(k);
    assume(k);
    say(&p->assumptions, "the last layers' experts stay in memory; the driver takes 1 GiB of VRAM");
    write_gpu_flags(k, n);
}

void plan_make(struct plan *out, const struct plan_inputs *in)
{
    struct making k = {out, in, in->machine, in->facts, &out->settings, &in->facts->kv[in->settings.kv]};
    *out = (struct plan){.settings = in->settings, .drive = -1, .gpu_chosen = -1};
    if (!out->settings.n_ctx)
        out->settings.n_ctx = choose_context(&k);
    if (!out->settings.n_depth || out->settings.n_depth > out->settings.n_ctx)
        out->settings.n_depth = out->settings.n_ctx;
    if (is_gpu_plan(&k))
        plan_gpu(&k);
    else
        plan_cpu(&k);
}
