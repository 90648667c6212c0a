#include "planner/plan_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/units_text.h"

/* Tokens of a cached prompt that are computed nevertheless. */
enum { UNCACHED_TOK = 64 };

static const int64_t prompt_lengths[PLAN_N_PROMPT] = {1000, 2000, 4000, 8000, 20000, 40000};

void plan_say(struct plan_lines *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (l->n < PLAN_MAX_LINE)
        vsnprintf(l->text[l->n++], PLAN_LINE_BYTES, fmt, args);
    va_end(args);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

uint64_t plan_text_bytes(const struct plan_facts *f, const struct plan_kv *kv, int64_t n_ctx)
{
    for (int i = 0; i < f->n_n_ctx; i++)
        if (f->n_ctx[i] >= n_ctx)
            return kv->text_bytes[i];
    return f->n_n_ctx ? kv->text_bytes[f->n_n_ctx - 1] : 0;
}

/* The tokens and logits of one text. */
uint64_t plan_host_bytes(const struct plan_facts *f, int64_t n_ctx)
{
    return (uint64_t)(n_ctx + f->n_vocab) * 4;
}

static uint64_t texts_bytes(const struct plan_facts *f, const struct plan_kv *kv, int64_t n_ctx, int64_t n_texts)
{
    return (uint64_t)n_texts * (plan_text_bytes(f, kv, n_ctx) + plan_host_bytes(f, n_ctx));
}

uint64_t plan_expert_bytes(const struct plan_facts *f, int from, int to)
{
    uint64_t n = 0;
    for (int i = from; i < to; i++)
        n += (uint64_t)f->layers[i].n_expert * f->layers[i].slot_bytes;
    return n;
}

/* With several ranks, the part of n_bytes of experts that this rank keeps. */
static uint64_t expert_part(const struct making *k, uint64_t n_bytes)
{
    return k->m->n_rank > 1 ? (uint64_t)((double)n_bytes * k->s->rank_part) : n_bytes;
}

uint64_t plan_memory_limit(uint64_t own_bytes, uint64_t free_bytes)
{
    return own_bytes + free_bytes - free_bytes / PLAN_FREE_SHARE;
}

uint64_t plan_ram_limit(const struct making *k)
{
    uint64_t free_bytes = k->m->free_bytes ? k->m->free_bytes : k->m->ram_bytes;
    if (k->s->ram_bytes || !free_bytes)
        return k->s->ram_bytes;
    return plan_memory_limit(k->s->own_bytes, free_bytes);
}

uint64_t plan_spare_bytes(uint64_t session_bytes, uint64_t scratch_bytes)
{
    uint64_t half = session_bytes / 2, with_experts = session_bytes / 4 + scratch_bytes;
    return half > with_experts ? half : with_experts;
}

/* Everything but the experts and activations. */
static uint64_t fixed_bytes(const struct making *k, const struct plan_kv *kv, int64_t n_ctx, int64_t n_texts)
{
    const struct plan_facts *f = k->f;
    return f->process_bytes + f->weight_bytes + texts_bytes(f, kv, n_ctx, n_texts);
}

/* What is set aside for operations, as when a session is opened. */
static uint64_t spare_bytes(const struct making *k, const struct plan_kv *kv, int64_t n_ctx)
{
    return plan_spare_bytes(k->f->work_bytes + texts_bytes(k->f, kv, n_ctx, 1), k->f->scratch_bytes) +
           k->s->place_bytes;
}

static uint64_t least_with(const struct making *k, const struct plan_kv *kv, int64_t n_ctx, int64_t n_texts)
{
    return fixed_bytes(k, kv, n_ctx, n_texts) + k->f->work_bytes + spare_bytes(k, kv, n_ctx) + PLAN_MARGIN_BYTES +
           k->f->least_slot_bytes;
}

/* Activations and what is set aside for operations while texts decode and experts are read. */
static uint64_t few_bytes(const struct making *k, uint64_t spare)
{
    if (k->s->n_texts > k->f->n_few)
        return k->f->work_bytes + spare;
    return k->f->work_few_bytes + spare / PLAN_FEW_PART;
}

/* The memory with which all experts have slots while texts decode. */
static uint64_t with_all_bytes(const struct making *k, int64_t n_ctx)
{
    return fixed_bytes(k, k->kv, n_ctx, k->s->n_texts) + few_bytes(k, spare_bytes(k, k->kv, n_ctx)) +
           PLAN_MARGIN_BYTES + expert_part(k, plan_expert_bytes(k->f, 0, k->f->n_moe));
}

void plan_add_row(struct making *k, const char *what, const char *tier, uint64_t n_bytes)
{
    struct plan *p = k->p;
    if (!n_bytes)
        return;
    p->rows[p->n_row++] = (struct plan_row){what, tier, n_bytes};
    if (!strcmp(tier, "vram"))
        p->vram_bytes += n_bytes;
    else if (!strcmp(tier, "ram"))
        p->ram_bytes += n_bytes;
}

void plan_add_program(struct making *k)
{
    plan_add_row(k, "program", "ram", k->f->process_bytes + PLAN_GROWTH_BYTES);
    k->p->reserve_bytes = PLAN_MARGIN_BYTES - PLAN_GROWTH_BYTES;
}

int64_t plan_n_experts(const struct plan_facts *f)
{
    int64_t n = 0;
    for (int i = 0; i < f->n_moe; i++)
        n += f->layers[i].n_expert;
    return n;
}

static uint64_t most_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* How many slots fit into a budget. The sizes of layers differ little, so it is the budget's share of all bytes. */
static int64_t slots_of(const struct plan *p, uint64_t budget, uint64_t all)
{
    return budget >= all ? p->n_expert : (int64_t)((double)p->n_expert * ((double)budget / (double)all));
}

/* Sets the slots: n_many bytes of experts while prompts are computed, n_few while texts decode. */
static void give_slots(struct making *k, uint64_t n_many, uint64_t n_few, uint64_t all)
{
    struct plan *p = k->p;
    p->n_expert = (int64_t)expert_part(k, (uint64_t)plan_n_experts(k->f));
    p->n_prompt_slot = slots_of(p, n_many, all);
    p->n_slot = slots_of(p, n_few, all);
    plan_add_row(k, "experts", "ram", least_of(n_few, all));
    plan_add_row(k, "experts", "drive", less(all, n_few));
}

uint64_t plan_allowed_bytes(const struct making *k, uint64_t all)
{
    if (k->s->expert_bytes)
        return least_of(k->s->expert_bytes, all);
    return k->s->expert_share > 0 ? (uint64_t)(k->s->expert_share * (double)all) : all;
}

/* The most memory for all texts' state. */
static uint64_t state_limit(const struct making *k)
{
    return k->s->state_bytes ? k->s->state_bytes : k->m->ram_bytes / PLAN_STATE_SHARE;
}

uint64_t plan_checkpoint_bytes(const struct making *k, uint64_t room)
{
    uint64_t each = (uint64_t)(k->s->n_ctx / PLAN_CHECKPOINT_TOK + 1) * k->f->checkpoint_bytes;
    uint64_t n_bytes = least_of((uint64_t)k->s->n_texts * each, room);
    return state_limit(k) ? least_of(n_bytes, state_limit(k) / PLAN_CHECKPOINT_SHARE) : n_bytes;
}

/* If memory for state was given, kept prompts take what texts and checkpoints leave of it. */
static uint64_t kept_bytes(const struct making *k, uint64_t checkpoints, uint64_t room)
{
    uint64_t taken = texts_bytes(k->f, k->kv, k->s->n_ctx, k->s->n_texts) + checkpoints;
    return least_of(less(k->s->state_bytes, taken), room);
}

/* Adds checkpoints and kept prompts, as far as the memory beyond the least that works has room for them. */
static uint64_t add_kept(struct making *k)
{
    uint64_t room = UINT64_MAX, checkpoints, kept;
    if (k->p->ram_limit)
        room = less(k->p->ram_limit, k->p->least_bytes);
    checkpoints = plan_checkpoint_bytes(k, room);
    kept = kept_bytes(k, checkpoints, room - checkpoints);
    plan_add_row(k, "checkpoints", "ram", checkpoints);
    plan_add_row(k, "prompt cache", "ram", kept);
    return checkpoints + kept;
}

/* Memory of rows of logits that these texts never use. */
static uint64_t idle_bytes(const struct making *k)
{
    return less((uint64_t)k->f->n_logits, (uint64_t)k->s->n_texts) * (uint64_t)k->f->n_vocab * sizeof(float);
}

/* How many bytes of experts there is room for beside `others`. */
static uint64_t room_for_experts(const struct making *k, uint64_t others, uint64_t most)
{
    return k->p->ram_limit ? least_of(less(k->p->ram_limit, others + PLAN_MARGIN_BYTES), most) : most;
}

/* Maps the memory of a run on processors. Texts that decode need little of what a prompt needs for its activations, and
 * leave the rest to experts, if these are read from drives. */
static void map_memory(struct making *k)
{
    struct plan *p = k->p;
    const struct plan_facts *f = k->f;
    uint64_t all = expert_part(k, plan_expert_bytes(f, 0, f->n_moe)), spare = spare_bytes(k, k->kv, k->s->n_ctx);
    uint64_t most = plan_allowed_bytes(k, all), n_many, n_few;
    uint64_t others = fixed_bytes(k, k->kv, k->s->n_ctx, k->s->n_texts), work = f->work_bytes + f->scratch_bytes;
    p->ram_limit = plan_ram_limit(k);
    p->least_bytes = most_of(least_with(k, k->kv, k->s->n_ctx, k->s->n_texts), k->s->least_bytes);
    plan_add_program(k);
    plan_add_row(k, "weights", "ram", f->weight_bytes);
    plan_add_row(k, "texts", "ram", texts_bytes(f, k->kv, k->s->n_ctx, k->s->n_texts));
    others += add_kept(k);
    n_many = n_few = room_for_experts(k, others + f->work_bytes + spare, most);
    p->reserve_bytes += idle_bytes(k);
    if (n_many < most) {
        work = few_bytes(k, spare);
        n_few = room_for_experts(k, others + work, most);
    } else {
        p->reserve_bytes += spare - f->scratch_bytes;
    }
    plan_add_row(k, "activations", "ram", less(work, idle_bytes(k)));
    give_slots(k, n_many, n_few, all);
}

/* ---- the context ------------------------------------------------------------------------------------------------- */

static bool plan_is_gpu(const struct making *k)
{
    return k->s->uses_gpu && k->m->n_gpu > 0;
}

static bool is_within(uint64_t n_bytes, uint64_t limit)
{
    return !limit || n_bytes <= limit;
}

/* Whether the model works with this context at all. */
static bool works(const struct making *k, int64_t n_ctx)
{
    int n_cpu_moe = k->s->n_cpu_moe >= 0 ? k->s->n_cpu_moe : k->f->n_moe;
    if (!is_within(plan_text_bytes(k->f, k->kv, n_ctx), k->s->state_bytes))
        return false;
    if (plan_is_gpu(k))
        return is_within(plan_vram_with(k, n_cpu_moe, n_ctx), plan_vram_limit(k));
    return is_within(least_with(k, k->kv, n_ctx, k->s->n_texts), plan_ram_limit(k));
}

/* Whether it leaves room for all experts where they are fastest. */
static bool has_room_for_all(const struct making *k, int64_t n_ctx)
{
    uint64_t n_bytes = plan_is_gpu(k) ? plan_vram_with(k, 0, n_ctx) : with_all_bytes(k, n_ctx);
    return works(k, n_ctx) && is_within(n_bytes, plan_is_gpu(k) ? plan_vram_limit(k) : plan_ram_limit(k));
}

/* Whether texts take at most a quarter of the memory that they share with the experts. */
static bool leaves_most(const struct making *k, int64_t n_ctx)
{
    enum { PART = 4 };
    uint64_t limit = plan_is_gpu(k) ? plan_vram_limit(k) : plan_ram_limit(k);
    uint64_t without =
        plan_is_gpu(k) ? plan_vram_with(k, k->f->n_moe, 0) : fixed_bytes(k, k->kv, 0, 0) + k->f->work_bytes;
    return works(k, n_ctx) && limit > without &&
           texts_bytes(k->f, k->kv, n_ctx, k->s->n_texts) <= (limit - without) / PART;
}

/* The longest context of at most n_most tokens, among those that were sized, that is good; 0: none is. */
static int64_t longest(const struct making *k, int64_t n_most, bool (*is_good)(const struct making *k, int64_t n_ctx))
{
    for (int i = k->f->n_n_ctx - 1; i >= 0; i--)
        if (k->f->n_ctx[i] <= n_most && is_good(k, k->f->n_ctx[i]))
            return k->f->n_ctx[i];
    return 0;
}

/* Prefers speed to length, as long as the context is useful. */
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

/* Whether a run with these settings would be admitted, even if the program is a little larger at its start. */
static bool is_safe(const struct making *k, const struct plan_kv *kv, int64_t n_ctx, int64_t n_texts)
{
    return least_with(k, kv, n_ctx, n_texts) + PLAN_VARIES_BYTES <= k->p->ram_limit;
}

/* Bytes in MiB, the option's unit, with what the program's size may vary by. */
static uint64_t safe_mib(uint64_t n_bytes)
{
    return ((n_bytes + PLAN_VARIES_BYTES) >> 20) + 1;
}

/* The longest context that works with this type of caches and n_texts texts; 0: none. */
static int64_t longest_context(const struct making *k, const struct plan_kv *kv, int64_t n_texts)
{
    for (int i = k->f->n_n_ctx - 1; i >= 0; i--)
        if (k->f->n_ctx[i] <= k->s->n_ctx && is_safe(k, kv, k->f->n_ctx[i], n_texts))
            return k->f->n_ctx[i];
    return 0;
}

/* The type whose caches take least memory. */
static const struct plan_kv *least_kv(const struct making *k)
{
    const struct plan_kv *best = k->kv;
    for (int i = 0; i < FACTS_N_KV; i++)
        if (k->f->kv[i].works &&
            plan_text_bytes(k->f, &k->f->kv[i], k->s->n_ctx) < plan_text_bytes(k->f, best, k->s->n_ctx))
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
             "%s of memory are needed at least, and there are %s: %s more than there is room for",
             units_size(p->least_bytes).s, units_size(p->ram_limit).s, units_size(p->least_bytes - p->ram_limit).s);
    if (small != k->kv && is_safe(k, small, s->n_ctx, n_texts))
        plan_say(&p->nearest, "--kv %s, all else as asked for", small->name);
    if (n_ctx)
        plan_say(&p->nearest, "--ctx %" PRId64 ", all else as asked for", n_ctx);
    while (n_texts > 1 && !is_safe(k, k->kv, s->n_ctx, n_texts))
        n_texts--;
    if (n_texts < s->n_texts && is_safe(k, k->kv, s->n_ctx, n_texts))
        plan_say(&p->nearest, "--texts %" PRId64 ", all else as asked for", n_texts);
    if (p->nearest.n == 0 && longest_context(k, small, 1))
        plan_say(&p->nearest, "--kv %s --ctx %" PRId64 " --texts 1", small->name, longest_context(k, small, 1));
    plan_say(&p->nearest, "--ram %" PRIu64 "M, on a machine that has as much free", safe_mib(p->least_bytes));
}

void plan_refuse_speed(struct making *k)
{
    struct plan *p = k->p;
    if (p->is_refused || !(k->s->floor > 0) || !(p->decode.ceiling > 0) || p->decode.ceiling >= k->s->floor)
        return;
    p->is_refused = true;
    snprintf(p->refusal, sizeof p->refusal,
             "the ceiling of decode is %.2f tokens/s, below the floor of %.2f that was asked for", p->decode.ceiling,
             k->s->floor);
    plan_say(&p->nearest, "--floor %.2f, which the hardware may reach at best", p->decode.ceiling);
    if (p->miss > 0)
        plan_say(&p->nearest, "--ram %" PRIu64 "M, with which no expert is read from a drive",
                 safe_mib(with_all_bytes(k, k->s->n_ctx)));
}

/* ---- speed ------------------------------------------------------------------------------------------------------- */

/* The drive from which experts are read fastest; -1: none is known. */
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

/* The speed of all drives of a prepared store together; 0: one of them was not measured. */
static double drives_speed(const struct making *k, double n_bytes)
{
    double sum = 0;
    for (int i = 0; i < k->s->n_drive; i++) {
        int drive = k->s->drives[i];
        double speed = drive >= 0 && drive < k->m->n_drive ? machine_drive_speed(&k->m->drives[drive], n_bytes) : 0;
        if (!(speed > 0))
            return 0;
        sum += speed;
    }
    return sum;
}

/* How often a byte from a drive passes through memory before a product reads it: once when the drive writes it, and
 * twice more if it must be packed for the products. */
enum { PASSES_PREPARED = 1, PASSES_PACKED = 3 };

void plan_find_drives(struct making *k, struct ceiling_params *c)
{
    double expert = k->f->n_moe ? k->f->layers[0].expert.n_bytes : 0;
    double one_read = k->s->is_prepared ? expert : expert / 3; /* else a matrix is a read */
    k->p->drive = -1;
    c->n_pass = k->s->is_prepared ? PASSES_PREPARED : PASSES_PACKED;
    if (k->s->n_drive == 0)
        k->p->drive = best_drive(k, one_read, &c->drive_per_s);
    else
        c->drive_per_s = drives_speed(k, one_read);
    if (c->drive_per_s > 0 && k->s->n_drive)
        k->p->drive = k->s->drives[0];
}

/* The peak of multiply-adds on bytes, of the fastest unit. */
static double int8_peak(const struct machine *m, int n_threads)
{
    double vectors = machine_peak(m, m->int8_per_s, m->thread_int8_per_s, n_threads);
    double tiles = machine_peak(m, m->amx_per_s, 0, n_threads);
    return tiles > vectors ? tiles : vectors;
}

/* Sets the rates of n_threads for attention and for all types that were measured with one thread: they grow with
 * threads as the peak does. */
static void find_rates(const struct machine *m, int n_threads, struct ceiling_params *c)
{
    double n_int8 = int8_peak(m, n_threads) / int8_peak(m, 1);
    double n_float = machine_peak(m, m->float_per_s, m->thread_float_per_s, n_threads) /
                     machine_peak(m, m->float_per_s, m->thread_float_per_s, 1);
    if (n_float > 0 && n_float < INFINITY)
        c->attention = (struct ceiling_rate){n_float * m->attention_one_per_s, n_float * m->attention_many_per_s};
    for (int i = 0; i < m->n_product; i++) {
        const struct machine_product *p = &m->products[i];
        const struct quant_info *q = quant_find(p->type);
        double n = q && q->act == QUANT_ACT_FLOAT ? n_float : n_int8;
        if (q && n > 0 && n < INFINITY)
            c->product[q->type] = (struct ceiling_rate){n * p->one_per_s, n * p->many_per_s};
    }
}

/* Bytes of experts that have no slot; of all experts if shares were given (--found). */
static double missing_bytes(const struct making *k, int64_t n_slot)
{
    double all = 0;
    for (int i = 0; i < k->f->n_moe; i++)
        all += (double)k->f->layers[i].n_expert * k->f->layers[i].expert.n_bytes;
    return plan_is_found(k) ? all : all * ceiling_prompt_miss(n_slot, k->p->n_expert);
}

/* Whether the last-level cache keeps a good part of the weights from token to token, so that the speed of memory is no
 * bound. */
static bool is_cached(const struct making *k)
{
    uint64_t n_bytes = k->f->weight_bytes + expert_part(k, plan_expert_bytes(k->f, 0, k->f->n_moe));
    return n_bytes < 2 * k->m->l3_bytes;
}

static struct ceiling_params cpu_params(struct making *k)
{
    const struct machine *m = k->m;
    int n = k->s->n_threads;
    struct ceiling_params c = {.facts = k->f,
                               .kv = k->kv,
                               .read_per_s = is_cached(k) ? INFINITY : machine_memory_speed(m, n),
                               .int8_per_s = int8_peak(m, n),
                               .float_per_s = machine_peak(m, m->float_per_s, m->thread_float_per_s, n),
                               .miss = k->p->miss,
                               .missing_bytes = missing_bytes(k, k->p->n_slot),
                               .rank_most = m->n_rank > 1 ? k->s->rank_most : 0,
                               .rank_round_trip_s = m->rank_round_trip_s};
    find_rates(m, n, &c);
    plan_find_drives(k, &c);
    return c;
}

struct plan_speed plan_forecast(const struct making *k, struct calibration_query q, int64_t n)
{
    struct calibration c;
    struct plan_speed s = {.ceiling = plan_rate((double)n, q.time.least_s)};
    q.n_threads = k->s->n_threads;
    q.machine = k->m->name;
    q.fingerprint = k->f->fingerprint;
    for (int i = 0; i < PART_N; i++)
        s.part[i] = plan_rate((double)n, q.time.part_s[i]);
    s.is_forecast = s.ceiling > 0 && k->in->calibrate && k->in->calibrate(k->in->user, &q, &c);
    if (s.is_forecast) {
        s.low = s.ceiling * c.low;
        s.mid = s.ceiling * c.share;
        s.high = s.ceiling * c.high;
    }
    return s;
}

/* The query for a forecast with the plan's settings. n_tok: as in struct calibration_query. */
static struct calibration_query query(const struct making *k, enum speed_of of, int64_t n_texts, int64_t n_tok,
                                      struct ceiling_time time)
{
    return (struct calibration_query){
        .of = of, .regime = k->p->regime, .at = k->p->at, .n_texts = n_texts, .n_tok = n_tok, .time = time};
}

static struct plan_speed forecast_decode(const struct making *k, const struct ceiling_params *c, int64_t n_texts)
{
    const struct ceiling_time t = ceiling_step(c, n_texts, k->s->n_depth);
    return plan_forecast(k, query(k, SPEED_DECODE, n_texts, k->s->n_depth, t), n_texts);
}

static struct plan_speed forecast_prefill(const struct making *k, int64_t n, struct ceiling_time t)
{
    return plan_forecast(k, query(k, SPEED_PREFILL, 1, n, t), n);
}

double plan_rate(double n, double s)
{
    return s > 0 ? n / s : 0;
}

void plan_find_speeds(struct making *k, const struct ceiling_params *c)
{
    struct plan *p = k->p;
    const struct plan_settings *s = k->s;
    struct ceiling_params one_by_one = *c, many = *c; /* cache-aware routing does not apply to prompts */
    one_by_one.miss *= 1 - p->gives_way;
    many.miss = p->prompt_miss;
    if (!plan_is_gpu(k))
        many.missing_bytes = missing_bytes(k, p->n_prompt_slot);
    p->decode = forecast_decode(k, &one_by_one, s->n_texts);
    p->decode_one = forecast_decode(k, &one_by_one, 1);
    p->prefill = forecast_prefill(k, s->n_prompt,
                                  ceiling_prompt(&many, s->prompt_from, s->prompt_from + s->n_prompt, s->n_batch));
    for (int i = 0; i < PLAN_N_PROMPT; i++) {
        int64_t n = prompt_lengths[i];
        const struct ceiling_time t = ceiling_prompt(&many, 0, n, s->n_batch);
        p->prompts[i] = (struct plan_prompt){.n_tok = n,
                                             .s = t.least_s,
                                             .cached_s = ceiling_prompt(&many, n - UNCACHED_TOK, n, s->n_batch).least_s,
                                             .speed = forecast_prefill(k, n, t)};
    }
}

/* ---- what somebody measured of choices --------------------------------------------------------------------------- */

bool plan_is_found(const struct making *k)
{
    return k->s->found_vram > 0 || k->s->found_ram > 0 || k->s->found_drive > 0;
}

double plan_found_gpu(const struct making *k)
{
    double at_hand = k->s->found_vram + k->s->found_ram;
    return at_hand > 0 ? (1 - k->s->found_drive) * k->s->found_vram / at_hand : 0;
}

/* ---- processors alone -------------------------------------------------------------------------------------------- */

/* A rate that earlier runs have corrected. */
static void assume_rate(struct making *k, enum machine_rate rate, const char *what, int n_decimal, const char *unit)
{
    if (k->in->n_run[rate])
        plan_say(&k->p->assumptions, "%s %.*f %s: the median of the probe's and of %d runs'", what, n_decimal,
                 machine_rate_of(k->m, rate, k->s->n_threads) * 1e-9, unit, k->in->n_run[rate]);
}

/* How often a token's experts are at hand. */
static void assume_choices(struct making *k)
{
    struct plan_lines *l = &k->p->assumptions;
    const struct plan_settings *s = k->s;
    if (plan_is_found(k))
        plan_say(l, "of a token's choices %g%% are found on the GPU, %g%% in memory and %g%% on drives (--found)%s",
                 100 * s->found_vram, 100 * s->found_ram, 100 * s->found_drive,
                 s->found_vram + s->found_ram + s->found_drive < 1 - 1e-9
                     ? "; the others give way to experts that are at hand"
                     : "");
    else if (k->p->miss > 0 && k->f->curve)
        plan_say(l, "slots find of a text what moebius profile --gate measured, and of prompts their share of all");
    else if (k->p->miss > 0 && k->f->mass)
        plan_say(l, "experts are chosen as in earlier runs, and the slots have those chosen most");
    else if (k->p->miss > 0)
        plan_say(l, "all experts are chosen equally often: real texts repeat themselves, so that fewer are read");
}

/* What experts without a slot are read from, and which of them are not read. */
static void assume_reads(struct making *k)
{
    struct plan_lines *l = &k->p->assumptions;
    if (k->p->miss > 0 && k->s->is_prepared && k->f->n_unprepared)
        plan_say(l, "experts come whole from the prepared store (--store), which lacks %" PRId64 " of %" PRId64,
                 k->f->n_unprepared, k->p->n_expert);
    else if (k->p->miss > 0 && k->s->is_prepared)
        plan_say(l, "experts come whole from the prepared store (--store)");
    if (k->p->miss > 0 && k->p->drive < 0)
        plan_say(l, "%s measured, so that the speed of reading experts is unknown: moebius probe measures it",
                 k->s->is_prepared ? "not all drives of the store were" : "no drive was");
    if (k->p->gives_way > 0)
        plan_say(l,
                 "of %.1f%% of choices that would be read, %.0f%% give way to experts in memory (--car), as with the "
                 "bundled model: the text is not the model's own",
                 100 * k->p->miss, 100 * k->p->gives_way);
    if (k->s->car > 0 && !(k->p->gives_way > 0))
        plan_say(l, "--car has nothing to do: no expert is read");
}

static void assume_ranks(struct making *k)
{
    struct plan_lines *l = &k->p->assumptions;
    if (k->m->n_rank > 1 && k->s->rank_most * k->m->n_rank > 1 + 1e-9)
        plan_say(l, "of %d machines one computes %.0f%% of the experts, and layers wait for it", k->m->n_rank,
                 100 * k->s->rank_most);
    else if (k->m->n_rank > 1)
        plan_say(l, "each of %d machines has as many experts, and a layer's fall evenly on them", k->m->n_rank);
}

void plan_assume(struct making *k)
{
    struct plan_lines *l = &k->p->assumptions;
    plan_say(l, "decode with %" PRId64 " tokens in each context; experts of several texts chosen independently",
             k->s->n_depth);
    assume_rate(k, MACHINE_MEMORY, "memory reads", 1, "GB/s");
    assume_rate(k, MACHINE_UNITS, "units multiply", 0, "G/s");
    if (k->p->miss > 0)
        assume_rate(k, MACHINE_DRIVE, "the drive gives", 2, "GB/s");
    if (!plan_is_gpu(k) && is_cached(k))
        plan_say(l, "the processor's last cache has weights from token to token, and what it gives bounds nothing");
    if (!k->s->ram_bytes && !k->m->free_bytes)
        plan_say(l, k->m->ram_bytes ? "nothing else takes memory: what is free was not measured"
                                    : "there is memory enough: how much the machine has is unknown");
    assume_choices(k);
    assume_reads(k);
    if (k->s->sort_cutoff)
        plan_say(l, "runs go by what moebius tune kept of the model on this machine with --threads %d",
                 k->s->n_threads);
    if (k->f->is_header)
        plan_say(l, "the file is as its header says: its tensors are not all there");
    assume_ranks(k);
}

void plan_add_ram_flag(struct making *k)
{
    size_t n = strlen(k->p->flags);
    if (k->p->miss > 0 || k->s->ram_bytes)
        snprintf(k->p->flags + n, sizeof k->p->flags - n, " --ram %" PRIu64 "M", k->p->ram_limit >> 20);
}

static void write_flags(struct making *k)
{
    const struct plan_settings *s = k->s;
    char *out = k->p->flags;
    size_t n = sizeof k->p->flags;
    snprintf(out, n, "--threads %d --ctx %" PRId64 " --kv %s", s->n_threads, s->n_ctx, k->kv->name);
    plan_add_ram_flag(k);
    if (k->p->gives_way > 0)
        snprintf(out + strlen(out), n - strlen(out), " --car %g", s->car);
    if (s->n_batch != 512)
        snprintf(out + strlen(out), n - strlen(out), " --batch %" PRId64, s->n_batch);
    if (s->sort_cutoff)
        snprintf(out + strlen(out), n - strlen(out), " --sort-cutoff %" PRId64, s->sort_cutoff);
}

static void plan_cpu(struct making *k)
{
    struct plan *p = k->p;
    map_memory(k);
    p->prompt_miss = ceiling_prompt_miss(p->n_prompt_slot, p->n_expert);
    p->miss = plan_is_found(k) ? k->s->found_drive : ceiling_decode_miss(k->f, p->n_slot, p->n_expert);
    if (p->miss > 0 && !plan_is_found(k)) /* cache-aware routing does not apply to prompts */
        p->gives_way = ceiling_gives_way(k->s->car, (double)p->n_slot / (double)p->n_expert);
    p->regime = k->m->n_rank > 1 ? REGIME_RANKS : p->miss > 0 ? REGIME_STREAM : REGIME_RAM;
    p->at = p->regime == REGIME_STREAM ? p->miss * (1 - p->gives_way) : 0;
    const struct ceiling_params c = cpu_params(k);
    if (p->ram_limit && p->least_bytes > p->ram_limit)
        refuse_memory(k);
    else
        plan_find_speeds(k, &c);
    plan_refuse_speed(k);
    plan_assume(k);
    write_flags(k);
}

void plan_make(struct plan *out, const struct plan_inputs *in)
{
    struct making k = {out, in, in->machine, in->facts, &out->settings, &in->facts->kv[in->settings.kv]};
    *out = (struct plan){.settings = in->settings, .drive = -1, .gpu_chosen = -1};
    if (in->machine->n_rank > 1 && !(out->settings.rank_most > 0))
        out->settings.rank_part = out->settings.rank_most = 1.0 / in->machine->n_rank;
    if (!out->settings.n_ctx)
        out->settings.n_ctx = choose_context(&k);
    if (!out->settings.n_depth || out->settings.n_depth > out->settings.n_ctx)
        out->settings.n_depth = out->settings.n_ctx;
    if (plan_is_gpu(&k))
        plan_make_gpu(&k);
    else
        plan_cpu(&k);
}
