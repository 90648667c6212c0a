/* Plans are pure functions of facts: published cases, plans for the machines that are shipped as text, and what must
 * hold for any machine. MOEBIUS_WRITE_PLANS=1 writes the texts anew. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/random.h"
#include "planner/gate.h"
#include "planner/plan.h"
#include "whole_files.h"

/* ---- a model: Qwen3-30B-A3B in Q4_K_M, as its tensors are ------------------------------------------------------ */

enum { N_LAYER = 48, N_EXPERT = 128, N_USED = 8, N_EMBD = 2048, N_FF = 768, N_VOCAB = 151936 };

static struct plan_layer layers[N_LAYER];

/* Q4_K has 4.5 bits a weight, Q6_K, in which half of the down and value matrices are, 6.5625. */
static struct plan_facts qwen3(void)
{
    const double q4 = 4.5 / 8, q6 = 6.5625 / 8, matrix = (double)N_EMBD * N_FF;
    struct plan_facts f = {.name = "Qwen3-30B-A3B-Q4_K_M",
                           .arch = "qwen3moe",
                           .fingerprint = 1,
                           .file_bytes = UINT64_C(18556686912),
                           .n_file = 1,
                           .n_layer = N_LAYER,
                           .n_vocab = N_VOCAB,
                           .n_ctx_train = 40960,
                           .layers = layers,
                           .n_moe = N_LAYER,
                           .process_bytes = 64 << 20,
                           .work_bytes = 95 << 20,
                           .work_few_bytes = 47 << 20,
                           .n_few = 64,
                           .n_logits = 32,
                           .scratch_bytes = 23 << 20,
                           .n_ctx = {512, 1024, 2048, 4096, 8192, 16384, 32768, 65536},
                           .n_n_ctx = 8};
    f.token.products[0].type = QUANT_Q4_K;
    f.token.products[1].type = QUANT_F32;
    f.token.n_product = 2;
    for (int i = 0; i < N_LAYER; i++) {
        double expert = 2 * matrix * q4 + matrix * (i % 2 ? q6 : q4);
        layers[i] =
            (struct plan_layer){N_EXPERT, N_USED, (uint64_t)expert + 12288, {expert, 0, {{QUANT_Q4_K, 3 * matrix}}, 1}};
        double qko = (double)N_EMBD * (4096 + 512 + 4096), v = (double)N_EMBD * 512, router = (double)N_EMBD * N_EXPERT;
        f.token.n_bytes += qko * q4 + v * (i % 2 ? q6 : q4) + router * 4;
        f.token.products[0].n += qko + v;
        f.token.products[1].n += router;
    }
    f.output = (struct plan_cost){(double)N_VOCAB * N_EMBD * q6, 0, {{QUANT_Q6_K, (double)N_VOCAB * N_EMBD}}, 1};
    f.weight_bytes = (uint64_t)(f.token.n_bytes + f.output.n_bytes + (double)N_VOCAB * N_EMBD * q4);
    f.least_slot_bytes = (uint64_t)N_USED * (layers[0].slot_bytes + layers[1].slot_bytes);
    const struct {
        const char *name;
        double bytes;
    } kv[FACTS_N_KV] = {{"f16", 2}, {"f32", 4}, {"q8_0", 34.0 / 32}};
    for (int k = 0; k < FACTS_N_KV; k++) {
        f.kv[k] = (struct plan_kv){.name = kv[k].name, .works = true, .n_cache = 1};
        f.kv[k].caches[0] = (struct plan_cache){0, N_LAYER * 2 * 512 * kv[k].bytes, N_LAYER * 32 * 256};
        for (int i = 0; i < f.n_n_ctx; i++)
            f.kv[k].text_bytes[i] = (uint64_t)((double)f.n_ctx[i] * f.kv[k].caches[0].n_bytes);
    }
    return f;
}

static struct plan_settings usual(const struct machine *m)
{
    return (struct plan_settings){.n_ctx = 4096,
                                  .n_depth = 4096,
                                  .n_texts = 1,
                                  .n_batch = 512,
                                  .n_prompt = 512,
                                  .n_threads = m->n_thread,
                                  .uses_gpu = m->n_gpu > 0,
                                  .n_cpu_moe = -1};
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

#define MACHINES GOLDEN "/../../dist/machines/"
#define PLANS    GOLDEN "/../unit/plans/"

static const char *const shipped[] = {"fomoe-desktop", "laptop", "rtx5090", "amx-server", "four-ranks"};
enum { N_SHIPPED = sizeof shipped / sizeof *shipped };

static char *read_text(const char *in, const char *name, const char *suffix, size_t *n)
{
    char path[1024];
    snprintf(path, sizeof path, "%s%s%s", in, name, suffix);
    return read_file(path, n);
}

static struct machine read_machine(const char *name)
{
    struct machine m;
    struct err e = {0};
    size_t n;
    char *text = read_text(MACHINES, name, ".json", &n);
    if (machine_parse(&m, text, n, name, &e) != ERR_OK)
        fail_msg("%s", e.text);
    free(text);
    return m;
}

static void shipped_machines_are_read_and_written_alike(void **state)
{
    for (int i = 0; i < N_SHIPPED; i++) {
        const struct machine m = read_machine(shipped[i]);
        struct machine again;
        struct err e;
        char *text;
        assert_int_equal(machine_write(&m, &text, &e), ERR_OK);
        assert_int_equal(machine_parse(&again, text, strlen(text), "again", &e), ERR_OK);
        assert_memory_equal(&m, &again, sizeof m);
        free(text);
    }
}

static void assert_refused(const char *text, const char *says)
{
    struct machine m;
    struct err e = {0};
    assert_int_equal(machine_parse(&m, text, strlen(text), "m.json", &e), ERR_FORMAT);
    if (!strstr(e.text, says) || !strstr(e.text, "m.json"))
        fail_msg("\"%s\" says nothing of %s", e.text, says);
}

static void damaged_machines_are_refused_by_key(void **state)
{
    assert_refused("", "JSON");
    assert_refused("[1]", "object");
    assert_refused("{\"threads\": 1, \"threads\": 2}", "duplicate");
    assert_refused("{\"thread\": 1}", "\"thread\" is not known");
    assert_refused("{\"threads\": -1}", "\"threads\": expected an integer");
    assert_refused("{\"threads\": 1.5}", "\"threads\"");
    assert_refused("{\"ram_bytes\": 1e30}", "\"ram_bytes\"");
    assert_refused("{\"int8_per_s\": \"fast\"}", "\"int8_per_s\": expected a number");
    assert_refused("{\"products\": [{\"type\": \"Q4_K\"}, {\"type\": \"Q4\"}]}",
                   "\"products[1].type\": expected a type");
    assert_refused("{\"name\": null}", "\"name\": expected a text");
    assert_refused("{\"memory\": [{\"threads\": 2, \"bytes_per_s\": 1}, {\"threads\": 2}]}", "memory[1].threads");
    assert_refused("{\"drives\": [{\"random_reads\": [{\"bytes\": 4096}]}]}", "drives[0].random_reads[0]");
    assert_refused("{\"gpus\": [{\"name\": \"x\", \"speed\": 1}]}", "gpus[0].speed");
    assert_refused("{\"drives\": {}}", "\"drives\": expected a list");
}

/* Whatever happens to a file's bytes, it is refused with its name or read as a machine. */
static void damaged_bytes_are_refused_or_read(void **state)
{
    struct random r = random_seed(7);
    size_t n;
    char *text = read_text(MACHINES, "laptop", ".json", &n);
    int n_refused = 0;
    for (int i = 0; i < 3000; i++) {
        char *copy = mem_alloc(n);
        struct machine m;
        struct err e = {0};
        memcpy(copy, text, n);
        for (int k = 0; k < 3; k++)
            copy[random_u32(&r) % n] = (char)random_u32(&r);
        size_t n_cut = random_u32(&r) % 4 ? n : random_u32(&r) % n;
        err_code code = machine_parse(&m, copy, n_cut, "damaged", &e);
        assert_true(code == ERR_OK || (code == ERR_FORMAT && strstr(e.text, "damaged")));
        n_refused += code != ERR_OK;
        mem_free(copy);
    }
    assert_in_range(n_refused, 1000, 3000);
    free(text);
}

/* ---- published cases --------------------------------------------------------------------------------------------- */

static void assert_within(double x, double expected, double part)
{
    if (fabs(x - expected) > part * expected)
        fail_msg("%g, expected %g", x, expected);
}

/* Qwen3-30B-A3B Q4_K_M on an RTX 5090, context 4,096, with 0, 24 and 48 layers' experts on the CPU: published ceilings
 * and what was measured (gpu-container's calibration). */
static const int published_n[] = {0, 24, 48};
static const double published_ceiling[] = {738, 69, 36}, published[] = {302.4, 41.9, 20.4};

static void ceilings_of_the_rtx_5090_are_the_published_ones(void **state)
{
    const struct machine m = read_machine("rtx5090");
    const struct plan_facts f = qwen3();
    const struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p;
    plan_make(&p, &in);
    assert_int_equal(p.n_gpu, N_LAYER + 1);
    for (int i = 0; i < 3; i++)
        assert_within(p.gpu[published_n[i]].decode.ceiling, published_ceiling[i], 0.05);
    assert_false(p.is_refused);
    assert_int_equal(p.gpu_chosen, 0);
}

/* The three runs as receipts, with the ceilings as published. */
static void list_published(struct receipt r[3])
{
    for (int i = 0; i < 3; i++) {
        r[i] = (struct receipt){.regime = i ? REGIME_OFFLOAD : REGIME_VRAM,
                                .at = (double)published_n[i] / N_LAYER,
                                .fingerprint = 1,
                                .n_texts = 1};
        snprintf(r[i].machine, sizeof r[i].machine, "a box with an RTX 5090");
        r[i].ceiling[SPEED_DECODE] = published_ceiling[i];
        r[i].measured[SPEED_DECODE] = published[i];
    }
}

struct receipts {
    const struct receipt *list;
    size_t n;
};

static bool calibrate(void *user, const struct calibration_query *q, struct calibration *out)
{
    const struct receipts *r = user;
    return receipts_calibrate(r->list, r->n, q, out);
}

static void published_runs_are_forecast_from_each_other(void **state)
{
    static const double shares[] = {0.41, 0.61, 0.56};
    const struct machine m = read_machine("rtx5090");
    const struct plan_facts f = qwen3();
    struct receipt all[3];
    struct plan p;
    list_published(all);
    for (int i = 0; i < 3; i++) {
        struct receipts other = {&all[i], 1};
        struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m), calibrate, &other};
        plan_make(&p, &in);
        const struct plan_speed *own = &p.gpu[published_n[i]].decode;
        assert_within(own->mid / own->ceiling, shares[i], 0.02);
        if (i == 0) {
            assert_false(p.gpu[24].decode.is_forecast); /* of another regime it says nothing */
            continue;
        }
        const struct plan_speed *row = &p.gpu[published_n[3 - i]].decode;
        assert_true(row->is_forecast && row->low <= published[3 - i] && published[3 - i] <= row->high);
    }
}

/* FOMOE's table for a model of 397B on two GPUs, memory and three drives: the shares of choices that it found in each,
 * exact, and with 42% of them given to other experts; and tokens a second. */
static const struct {
    double vram, ram, drive, measured;
} fomoe[] = {{0.60, 0.12, 0.28, 5.1}, {0.46, 0.06, 0.06, 8.8}};

/* 60 layers of 512 experts, 10 for a token, each of 7,077,888 bytes: matrices of 4,096 by 1,024 in 4.5 bits. What is
 * dense is taken for 9.5 billion weights of as many bits. */
static struct plan_facts model_of_397b(struct plan_layer of[60])
{
    const double expert = 7077888, dense = 9.5e9;
    struct plan_facts f = qwen3();
    f.n_moe = f.n_layer = 60;
    f.layers = of;
    for (int i = 0; i < 60; i++)
        of[i] = (struct plan_layer){512, 10, (uint64_t)expert, {expert, 0, {{QUANT_Q4_K, expert / 4.5 * 8}}, 1}};
    f.token = (struct plan_cost){dense * 4.5 / 8, 0, {{QUANT_Q4_K, dense}}, 1};
    f.weight_bytes = (uint64_t)f.token.n_bytes + (UINT64_C(1) << 30);
    f.least_slot_bytes = 60 * 10 * (uint64_t)expert;
    return f;
}

static struct plan plan_fomoe(const struct machine *m, const struct plan_facts *f, int i, const struct receipts *r)
{
    struct plan_inputs in = {.machine = m, .facts = f, .settings = usual(m)};
    struct plan p;
    in.settings.split = PLAN_SPLIT_CACHE;
    in.settings.vram_bytes = UINT64_C(30) << 30; /* of both GPUs, one of which computes at a time */
    in.settings.found_vram = fomoe[i].vram;
    in.settings.found_ram = fomoe[i].ram;
    in.settings.found_drive = fomoe[i].drive;
    in.calibrate = r ? calibrate : NULL;
    in.user = (void *)r;
    plan_make(&p, &in);
    assert_false(p.is_refused);
    assert_true(p.regime == REGIME_TIERED && p.miss == fomoe[i].drive);
    return p;
}

/* Both together, as receipts of three tiers. From one alone the other is not inside the band: there the link brings
 * what is in memory to the GPU, and here the processor computes it. */
static void published_tiers_are_below_their_ceilings_and_inside_the_band(void **state)
{
    struct plan_layer of[60];
    const struct plan_facts f = model_of_397b(of);
    const struct machine m = read_machine("fomoe-desktop");
    struct receipt runs[2];
    const struct receipts both = {runs, 2};
    for (int i = 0; i < 2; i++) {
        const struct plan p = plan_fomoe(&m, &f, i, NULL);
        assert_true(p.decode.ceiling > fomoe[i].measured && p.decode.ceiling < 10 * fomoe[i].measured);
        runs[i] = (struct receipt){.regime = REGIME_TIERED, .at = p.miss, .fingerprint = f.fingerprint, .n_texts = 1};
        snprintf(runs[i].machine, sizeof runs[i].machine, "%s", m.name);
        runs[i].ceiling[SPEED_DECODE] = p.decode.ceiling;
        runs[i].measured[SPEED_DECODE] = fomoe[i].measured;
        memcpy(runs[i].part[SPEED_DECODE], p.decode.part, sizeof p.decode.part);
    }
    for (int i = 0; i < 2; i++) {
        const struct plan_speed s = plan_fomoe(&m, &f, i, &both).decode;
        assert_true(s.is_forecast && s.low <= fomoe[i].measured && fomoe[i].measured <= s.high);
    }
}

/* What lacks of all choices gives way to experts at hand, and a share that was measured goes before any other. */
static void measured_shares_of_choices_go_before_what_a_plan_finds(void **state)
{
    const struct machine m = read_machine("laptop");
    const struct plan_facts f = qwen3();
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p, q;
    in.settings.ram_bytes = UINT64_C(9) << 30;
    plan_make(&p, &in);
    in.settings.found_ram = 1 - p.miss;
    in.settings.found_drive = p.miss;
    plan_make(&q, &in);
    assert_within(q.decode.ceiling, p.decode.ceiling, 1e-9);
    assert_within(q.prefill.ceiling, p.prefill.ceiling, 1e-9); /* whose passes find their share of slots */
    in.settings.found_drive = p.miss / 2;
    plan_make(&q, &in);
    assert_within(q.decode.part[PART_READS], 2 * p.decode.part[PART_READS], 1e-9);
    assert_within(q.decode.part[PART_PRODUCTS], p.decode.part[PART_PRODUCTS], 1e-9);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void check_text(const char *name, const char *text)
{
    char path[1024];
    size_t n;
    if (getenv("MOEBIUS_WRITE_PLANS")) {
        snprintf(path, sizeof path, "%s%s.txt", PLANS, name);
        write_text_file(path, text);
    }
    char *expected = read_text(PLANS, name, ".txt", &n);
    if (strcmp(text, expected) != 0)
        fail_msg("the plan for %s is another:\n%s", name, text);
    free(expected);
}

static void plans_for_shipped_machines_are_these_texts(void **state)
{
    const struct plan_facts f = qwen3();
    for (int i = 0; i < N_SHIPPED; i++) {
        const struct machine m = read_machine(shipped[i]);
        const struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
        struct plan p;
        struct err e;
        char *text;
        plan_make(&p, &in);
        assert_int_equal(plan_text(&p, &in, &text, &e), ERR_OK);
        check_text(shipped[i], text);
        free(text);
        assert_int_equal(plan_json(&p, &in, &text, &e), ERR_OK);
        free(text);
    }
}

static void only_unknown_speeds_are_null(void **state)
{
    const struct plan_facts f = qwen3();
    const struct machine m = read_machine(shipped[0]);
    const struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p;
    struct err e;
    char *text;
    plan_make(&p, &in);
    p.decode.ceiling = 0.5;
    p.decode_one.ceiling = 0;
    assert_int_equal(plan_json(&p, &in, &text, &e), ERR_OK);
    const char *ceiling = strstr(text, "\"ceiling\": {");
    assert_non_null(ceiling);
    assert_in_range(strstr(ceiling, "\"decode\": 0.5") - ceiling, 1, 20);
    assert_in_range(strstr(ceiling, "\"decode_one\": null") - ceiling, 20, 60);
    free(text);
}

static uint64_t sum_rows(const struct plan *p, const char *tier)
{
    uint64_t n = 0;
    for (int i = 0; i < p->n_row; i++)
        n += strcmp(p->rows[i].tier, tier) ? 0 : p->rows[i].n_bytes;
    return n;
}

/* The first of each: a GPU whose memory has no room for all experts, as a cache and divided; experts from a prepared
 * store with cache-aware routing and memory for kept prompts. With its picture, which has the title in full. */
static void plans_of_other_divisions_are_these_texts(void **state)
{
    static const char *const names[] = {"cache", "shared", "store"};
    struct plan_facts f = qwen3();
    snprintf(f.name, sizeof f.name,
             "Qwen3-30B-A3B-Q4_K_M with <a name> & more, which is too long for a single line "
             "of a picture's title");
    f.checkpoint_bytes = 3 << 20;
    for (int i = 0; i < 3; i++) {
        const struct machine m = read_machine(i < 2 ? "rtx5090" : "laptop");
        struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
        struct plan p;
        struct err e;
        char *text;
        in.settings.split = i == 0 ? PLAN_SPLIT_CACHE : i == 1 ? PLAN_SPLIT_SHARE : PLAN_SPLIT_LAST;
        in.settings.gpu_share = i == 1 ? 0.5 : 0;
        in.settings.vram_bytes = i < 2 ? UINT64_C(12) << 30 : 0;
        in.settings.ram_bytes = i == 2 ? UINT64_C(8) << 30 : 0;
        in.settings.state_bytes = i == 2 ? UINT64_C(1) << 30 : 0;
        in.settings.car = i == 2 ? 0.5 : 0;
        in.settings.n_drive = i == 2;
        in.settings.is_prepared = i == 2;
        plan_make(&p, &in);
        assert_int_equal(plan_text(&p, &in, &text, &e), ERR_OK);
        check_text(names[i], text);
        free(text);
        assert_int_equal(plan_svg(&p, &in, &text, &e), ERR_OK);
        assert_non_null(strstr(text, "&lt;a name&gt; &amp; more"));
        assert_non_null(strstr(text, "title on ")); /* the end of a long name, in a line of its own */
        check_text(i == 0 ? "cache.svg" : i == 1 ? "shared.svg" : "store.svg", text);
        free(text);
    }
}

static struct plan with_cards(const struct machine *m, const struct plan_facts *f, int n_gpu, uint64_t vram_bytes,
                              struct plan_inputs *in)
{
    struct plan p;
    *in = (struct plan_inputs){.machine = m, .facts = f, .settings = usual(m)};
    in->settings.split = PLAN_SPLIT_STAGES;
    in->settings.n_gpu = n_gpu;
    in->settings.vram_bytes = vram_bytes;
    plan_make(&p, in);
    return p;
}

/* Cards that divide the layers hold what one can't, and each token takes as long as on one card that holds all. What
 * they lack is read, and more of them never reads more. */
static void cards_that_divide_layers_are_planned_together(void **state)
{
    const struct plan_facts f = qwen3();
    const uint64_t gib = UINT64_C(1) << 30;
    struct machine m = read_machine("fomoe-desktop");
    struct plan_inputs in;
    struct err e;
    char *text;
    struct plan p = with_cards(&m, &f, 2, 0, &in);
    assert_int_equal(plan_text(&p, &in, &text, &e), ERR_OK);
    check_text("stages", text);
    free(text);
    assert_true(!p.is_refused && p.miss == 0 && p.regime == REGIME_VRAM);
    assert_non_null(strstr(p.flags, "--devices vulkan:0,vulkan:1 --split stages"));
    assert_true(sum_rows(&p, "vram") == p.vram_bytes && p.vram_bytes <= p.vram_limit && sum_rows(&p, "drive") == 0);
    m.gpus[0].memory_bytes = 64 * gib;
    const struct plan one = with_cards(&m, &f, 1, 0, &in);
    assert_within(p.decode.ceiling, one.decode.ceiling, 1e-9);
    m.gpus[1].bytes_per_s /= 2; /* the second card has a fifth of the memory, and takes twice as long for it */
    assert_within(with_cards(&m, &f, 2, 0, &in).decode.ceiling, one.decode.ceiling / 1.2, 1e-6);
    m.gpus[1].bytes_per_s = 0;
    assert_true(with_cards(&m, &f, 2, 0, &in).decode.ceiling == 0);
    m.gpus[1] = m.gpus[0];
    m.gpus[2] = m.gpus[0];
    m.n_gpu = 3;
    struct plan before = with_cards(&m, &f, 1, 7 * gib, &in);
    assert_true(before.miss > 0.5 && before.regime == REGIME_TIERED && before.at == before.miss);
    for (int n = 2; n <= 3; n++) {
        p = with_cards(&m, &f, n, 7 * gib, &in);
        assert_true(p.miss < before.miss && p.decode.ceiling > before.decode.ceiling);
        assert_true(sum_rows(&p, "vram") == p.vram_bytes && p.vram_bytes <= p.vram_limit);
        before = p;
    }
    p = with_cards(&m, &f, 2, 3 * gib / 2, &in);
    assert_true(p.is_refused && strstr(p.refusal, "of VRAM are needed"));
}

/* More of the choices on the GPU is never slower, and cache-aware routing never reads more. */
static void shares_and_thresholds_have_their_direction(void **state)
{
    const struct machine gpu = read_machine("rtx5090"), laptop = read_machine("laptop");
    const struct plan_facts f = qwen3();
    struct plan_inputs in = {.machine = &gpu, .facts = &f, .settings = usual(&gpu)};
    double before = 0;
    struct plan p;
    in.settings.split = PLAN_SPLIT_SHARE;
    for (int i = 1; i <= 9; i++) {
        in.settings.gpu_share = i / 10.0;
        plan_make(&p, &in);
        assert_true(!p.is_refused && p.decode.ceiling >= before);
        before = p.decode.ceiling;
    }
    in = (struct plan_inputs){.machine = &laptop, .facts = &f, .settings = usual(&laptop)};
    in.settings.ram_bytes = UINT64_C(8) << 30;
    plan_make(&p, &in);
    before = p.decode.ceiling;
    double prefill = p.prefill.ceiling, miss = p.miss;
    for (int i = 20; i >= 6; i--) {
        in.settings.car = i / 20.0;
        plan_make(&p, &in);
        assert_true(p.decode.ceiling >= before && p.prefill.ceiling == prefill && p.miss == miss);
        before = p.decode.ceiling;
    }
    assert_true(p.gives_way > 0.6 && p.gives_way < 0.8);
    assert_true(ceiling_gives_way(1, 0.5) == 0 && ceiling_gives_way(0, 0.5) == 0);
    assert_within(ceiling_gives_way(0.5, 0.25), 0.53, 1e-9);
    assert_within(ceiling_gives_way(0.5, 0.9), 0.77, 1e-9);
}

/* A box with a GPU and a drive, some memory, and a way to divide a model. */
static struct plan with_tiers(const struct plan_facts *f, uint64_t vram_bytes, uint64_t ram_bytes,
                              enum plan_split split)
{
    struct machine m = read_machine("rtx5090");
    struct plan_inputs in = {.machine = &m, .facts = f, .settings = usual(&m)};
    struct plan p;
    m.drives[m.n_drive++] = read_machine("laptop").drives[0];
    in.settings.vram_bytes = vram_bytes;
    in.settings.ram_bytes = ram_bytes;
    in.settings.split = split;
    in.settings.gpu_share = split == PLAN_SPLIT_SHARE ? 0.3 : 0;
    plan_make(&p, &in);
    return p;
}

/* What neither VRAM nor memory has room for is read, as a run does it, and nothing that works is refused. */
static void experts_lie_in_three_tiers(void **state)
{
    const struct plan_facts f = qwen3();
    const uint64_t gib = UINT64_C(1) << 30, vram = 8 * gib;
    for (enum plan_split split = PLAN_SPLIT_LAST; split <= PLAN_SPLIT_CACHE; split++) {
        const struct plan whole = with_tiers(&f, vram, 64 * gib, split);
        struct plan before = whole;
        assert_true(!whole.is_refused && whole.miss == 0 && whole.regime == REGIME_OFFLOAD);
        for (uint64_t ram = 20; ram >= 2; ram -= 2) {
            const struct plan p = with_tiers(&f, vram, ram * gib, split);
            assert_false(p.is_refused);
            assert_true(p.ram_bytes + p.reserve_bytes <= ram * gib && p.decode.ceiling > 0);
            assert_true(p.miss >= before.miss && p.decode.ceiling <= before.decode.ceiling * (1 + 1e-9));
            assert_true((p.miss > 0) == (p.regime == REGIME_TIERED) && p.gpu_hit + p.miss <= 1 + 1e-9);
            if (p.miss > 0)
                assert_true(p.at == p.miss && p.drive >= 0 && sum_rows(&p, "drive") > 0 && p.n_slot < p.n_expert &&
                            strstr(p.flags, "--ram") && !p.decode.is_forecast);
            before = p;
        }
        assert_true(before.miss > 0.2);
        assert_false(with_tiers(&f, vram, before.least_bytes, split).is_refused);
        const struct plan none = with_tiers(&f, vram, before.least_bytes - 1, split);
        assert_true(none.is_refused && strstr(none.refusal, "of memory"));
    }
}

/* Experts of a quarter of the bytes on the GPU, of a half in memory: a quarter of the choices is read. */
static void a_share_that_is_read_is_of_what_the_processor_has(void **state)
{
    const struct plan_facts f = qwen3();
    double slots = 0, expert = (layers[0].expert.n_bytes + layers[1].expert.n_bytes) / 2;
    struct machine m = read_machine("rtx5090");
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p;
    m.drives[m.n_drive++] = read_machine("laptop").drives[0];
    in.settings.split = PLAN_SPLIT_SHARE;
    in.settings.gpu_share = 0.25;
    for (int i = 0; i < N_LAYER; i++)
        slots += (double)N_EXPERT * (double)layers[i].slot_bytes;
    plan_make(&p, &in);
    in.settings.ram_bytes = p.ram_bytes + p.reserve_bytes - (uint64_t)(0.25 * slots);
    plan_make(&p, &in);
    assert_within(p.miss, 0.25, 1e-3);
    double rate = machine_drive_speed(&m.drives[0], layers[0].expert.n_bytes / 3);
    rate = 1 / (1 / rate + 3 / machine_memory_speed(&m, in.settings.n_threads)); /* written, read, written as packed */
    assert_within(p.decode.part[PART_READS], rate / (0.25 * N_LAYER * N_USED * expert), 0.01);
}

/* Checkpoints and kept prompts take what is left, never what a run needs. */
static void what_is_kept_takes_no_room_that_is_needed(void **state)
{
    const struct machine m = read_machine("laptop");
    struct plan_facts f = qwen3();
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p;
    f.checkpoint_bytes = 64 << 20;
    in.settings.state_bytes = UINT64_C(4) << 30;
    plan_make(&p, &in);
    uint64_t least = p.least_bytes, kept = 0, checkpoints = 0;
    for (int i = 0; i < p.n_row; i++) {
        kept += strcmp(p.rows[i].what, "prompt cache") ? 0 : p.rows[i].n_bytes;
        checkpoints += strcmp(p.rows[i].what, "checkpoints") ? 0 : p.rows[i].n_bytes;
    }
    assert_int_equal(checkpoints, in.settings.state_bytes / PLAN_CHECKPOINT_SHARE);
    assert_int_equal(kept + checkpoints + f.kv[0].text_bytes[3] + 4 * (4096 + N_VOCAB), in.settings.state_bytes);
    in.settings.ram_bytes = least;
    plan_make(&p, &in);
    assert_true(!p.is_refused && p.n_slot >= N_USED && sum_rows(&p, "ram") + p.reserve_bytes <= least);
}

/* Where nothing is said the plan chooses the context, and a run says so in a line. */
static void lines_of_runs_on_shipped_machines_are_these(void **state)
{
    const struct plan_facts f = qwen3();
    struct bytes all = {0};
    struct err e;
    for (int i = 0; i < N_SHIPPED; i++) {
        const struct machine m = read_machine(shipped[i]);
        for (int k = 0; k < 3; k++) {
            struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
            struct plan p;
            char *line;
            in.settings.n_ctx = in.settings.n_depth = 0;
            in.settings.n_ctx_most = 65536;
            in.settings.n_texts_most = k ? 8 : 0;
            in.settings.ram_bytes = k == 2 ? UINT64_C(6) << 30 : 0;
            plan_make(&p, &in);
            assert_int_equal(plan_line(&p, &in, &line, &e), ERR_OK);
            assert_int_equal(bytes_print(&all, &e, "%s: %s\n", shipped[i], line), ERR_OK);
            mem_free(line);
        }
    }
    check_text("lines", all.s);
    bytes_close(&all);
}

/* ---- the context ------------------------------------------------------------------------------------------------- */

static struct plan with_ram(const struct machine *m, const struct plan_facts *f, uint64_t ram_bytes, int64_t n_ctx)
{
    struct plan_inputs in = {.machine = m, .facts = f, .settings = usual(m)};
    struct plan p;
    in.settings.n_ctx = n_ctx;
    in.settings.n_ctx_most = 40960;
    in.settings.ram_bytes = ram_bytes;
    plan_make(&p, &in);
    return p;
}

/* A chosen context is never refused where any is not, keeps experts in memory where a useful one can, and with more
 * memory never is shorter, but where that gives all experts slots. */
static void the_chosen_context_works_and_costs_no_expert_its_slot(void **state)
{
    const struct machine m = read_machine("laptop");
    const struct plan_facts f = qwen3();
    int64_t before = 0;
    bool had_all = false;
    int n_worked = 0;
    for (uint64_t ram = UINT64_C(1) << 30; ram < UINT64_C(32) << 30; ram += UINT64_C(128) << 20) {
        const struct plan p = with_ram(&m, &f, ram, 0), least = with_ram(&m, &f, ram, 512),
                          useful = with_ram(&m, &f, ram, 4096);
        assert_int_equal(p.is_refused, least.is_refused);
        if (p.is_refused)
            continue;
        n_worked++;
        assert_true(p.settings.n_ctx >= 512 && p.settings.n_ctx <= 40960);
        if (!useful.is_refused && useful.n_slot == useful.n_expert) {
            assert_int_equal(p.n_slot, p.n_expert);
            assert_true(p.settings.n_ctx >= 4096);
        }
        bool has_all = p.n_slot == p.n_expert;
        assert_true(p.settings.n_ctx >= before || has_all != had_all);
        before = p.settings.n_ctx;
        had_all = has_all;
    }
    assert_true(n_worked > 100);
    assert_int_equal(before, 32768); /* the longest that was sized */
}

static void memory_for_state_bounds_the_chosen_context(void **state)
{
    const struct machine m = read_machine("laptop");
    const struct plan_facts f = qwen3();
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p;
    in.settings.n_ctx = 0;
    in.settings.n_ctx_most = 65536;
    in.settings.state_bytes = f.kv[0].text_bytes[2];
    plan_make(&p, &in);
    assert_int_equal(p.settings.n_ctx, f.n_ctx[2]);
    in.settings.state_bytes--;
    plan_make(&p, &in);
    assert_int_equal(p.settings.n_ctx, f.n_ctx[1]);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static bool has_line(const struct plan_lines *l, const char *part)
{
    for (int i = 0; i < l->n; i++)
        if (strstr(l->text[i], part))
            return true;
    return false;
}

static void what_just_works_is_not_refused_and_a_byte_less_is(void **state)
{
    const struct machine m = read_machine("laptop");
    const struct plan_facts f = qwen3();
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p;
    plan_make(&p, &in);
    assert_false(p.is_refused);
    uint64_t least = p.least_bytes;
    in.settings.ram_bytes = least;
    plan_make(&p, &in);
    assert_false(p.is_refused);
    assert_true(p.n_slot >= N_USED);
    in.settings.ram_bytes = least - 1;
    plan_make(&p, &in);
    assert_true(p.is_refused);
    assert_true(has_line(&p.nearest, "--kv q8_0") && has_line(&p.nearest, "--ctx 2048") &&
                has_line(&p.nearest, "--ram"));
}

/* Each way out that a refusal names works. */
static void what_a_refusal_names_works(void **state)
{
    const struct machine m = read_machine("laptop");
    const struct plan_facts f = qwen3();
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p;
    in.settings.ram_bytes = UINT64_C(4) << 30;
    in.settings.n_ctx = 32768;
    in.settings.n_texts = 2;
    plan_make(&p, &in);
    assert_true(p.is_refused);
    int64_t n_ctx = 0;
    for (int i = 0; i < p.nearest.n; i++) {
        long long x;
        if (sscanf(p.nearest.text[i], "--ctx %lld", &x) == 1)
            n_ctx = x;
    }
    assert_true(n_ctx > 0 && n_ctx < 32768);
    in.settings.n_ctx = n_ctx;
    plan_make(&p, &in);
    assert_false(p.is_refused);
    in.settings.n_ctx = n_ctx * 2;
    plan_make(&p, &in);
    assert_true(p.is_refused);
}

static void a_floor_above_the_ceiling_is_refused(void **state)
{
    const struct machine m = read_machine("laptop");
    const struct plan_facts f = qwen3();
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p;
    plan_make(&p, &in);
    double ceiling = p.decode.ceiling;
    assert_true(ceiling > 1);
    in.settings.floor = ceiling * 0.999;
    plan_make(&p, &in);
    assert_false(p.is_refused);
    in.settings.floor = ceiling * 1.001;
    plan_make(&p, &in);
    assert_true(p.is_refused && strstr(p.refusal, "floor"));
}

static void the_memory_that_a_low_speed_lacks_is_enough(void **state)
{
    const struct machine m = read_machine("laptop");
    const struct plan_facts f = qwen3();
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p;
    unsigned long long mib = 0;
    in.settings.ram_bytes = UINT64_C(4) << 30;
    in.settings.floor = 20;
    plan_make(&p, &in);
    assert_true(p.is_refused && p.miss > 0);
    for (int i = 0; i < p.nearest.n; i++)
        sscanf(p.nearest.text[i], "--ram %lluM", &mib);
    in.settings.ram_bytes = (uint64_t)mib << 20;
    plan_make(&p, &in);
    assert_true(!p.is_refused && p.miss == 0);
}

/* Nothing is refused because it is unknown. */
static void an_unknown_machine_refuses_nothing(void **state)
{
    const struct machine m = {.n_thread = 1};
    const struct plan_facts f = qwen3();
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p;
    in.settings.floor = 1e6;
    plan_make(&p, &in);
    assert_false(p.is_refused);
    assert_true(p.decode.ceiling == 0 && p.prompts[0].s == 0);
    in.settings.ram_bytes = UINT64_C(8) << 30; /* and no drive that is known */
    plan_make(&p, &in);
    assert_false(p.is_refused);
    assert_true(p.miss > 0 && p.decode.ceiling == 0 && p.drive == -1);
}

/* ---- what holds for any machine ---------------------------------------------------------------------------------- */

static double any(struct random *r, double from, double to)
{
    return from * pow(to / from, random_unit(r));
}

static struct machine any_machine(struct random *r)
{
    struct machine m = {.n_thread = 8, .n_memory = 1, .n_drive = 1};
    m.ram_bytes = (uint64_t)any(r, 3e9, 6e10);
    m.memory[0] = (struct machine_memory){8, any(r, 5e9, 5e11)};
    m.int8_per_s = any(r, 1e11, 1e14);
    m.float_per_s = any(r, 1e10, 1e13);
    m.drives[0].n_read = 2;
    m.drives[0].reads[0] = (struct machine_read){1 << 16, 16, any(r, 1e8, 1e10)};
    m.drives[0].reads[1] = (struct machine_read){1 << 20, 16, m.drives[0].reads[0].bytes_per_s * any(r, 1, 4)};
    if (random_u32(r) % 2) {
        m.n_gpu = 1;
        m.gpus[0] = (struct machine_gpu){.memory_bytes = (uint64_t)any(r, 4e9, 6e10),
                                         .bytes_per_s = any(r, 1e11, 3e12),
                                         .int8_per_s = any(r, 1e13, 1e15)};
    }
    return m;
}

static struct plan_settings any_settings(struct random *r, const struct machine *m)
{
    struct plan_settings s = usual(m);
    s.n_ctx = 512 << random_u32(r) % 7;
    s.n_depth = s.n_ctx / (1 + random_u32(r) % 4);
    s.n_texts = 1 + random_u32(r) % 8;
    s.kv = (int)(random_u32(r) % FACTS_N_KV);
    return s;
}

static void check_sums(const struct plan *p, const struct plan_facts *f)
{
    uint64_t experts = 0, all = 0;
    for (int i = 0; i < f->n_moe; i++)
        all += (uint64_t)f->layers[i].n_expert * f->layers[i].slot_bytes;
    for (int i = 0; i < p->n_row; i++)
        experts += strcmp(p->rows[i].what, "experts") ? 0 : p->rows[i].n_bytes;
    assert_true(sum_rows(p, "ram") == p->ram_bytes && sum_rows(p, "vram") == p->vram_bytes && experts == all);
    if (p->n_gpu == 0 && !p->is_refused)
        assert_true(p->ram_bytes + p->reserve_bytes <= p->ram_limit);
}

/* As if receipts had said so: what computes realises more than drives do. */
static bool fixed_shares(void *user, const struct calibration_query *q, struct calibration *out)
{
    static const struct calibration in_memory = {.share = 0.8, .low = 0.7, .high = 0.9},
                                    drives = {.share = 0.6, .low = 0.5, .high = 0.7};
    *out = q->regime == REGIME_STREAM ? drives : in_memory;
    return q->regime == REGIME_STREAM || q->regime == REGIME_RAM;
}

static void assert_faster(double a, double b, const char *because)
{
    if (b < a * (1 - 1e-9))
        fail_msg("%s: a forecast of %g tokens/s after %g", because, b, a);
}

/* b is never worse than a. */
static void assert_no_slower(const struct plan *a, const struct plan *b, const char *because)
{
    if (!a->is_refused && a->decode.is_forecast && b->decode.is_forecast) {
        assert_faster(a->decode.low, b->decode.low, because);
        assert_faster(a->decode.mid, b->decode.mid, because);
        assert_faster(a->prefill.mid, b->prefill.mid, because);
    }
    bool worse = !a->is_refused && (b->is_refused || b->decode.ceiling < a->decode.ceiling * (1 - 1e-9));
    worse |= !a->is_refused && a->prompts[3].s > 0 && b->prompts[3].s > a->prompts[3].s * (1 + 1e-9);
    if (worse)
        fail_msg("%s: %g tokens/s after %g, %g s after %g", because, b->decode.ceiling, a->decode.ceiling,
                 b->prompts[3].s, a->prompts[3].s);
}

static void better_machines_are_never_slower(void **state)
{
    struct random r = random_seed(28);
    const struct plan_facts f = qwen3();
    int n_worked = 0, n_streamed = 0, n_forecast = 0;
    for (int i = 0; i < 2000; i++) {
        const struct machine m = any_machine(&r);
        struct plan_inputs in = {
            .machine = &m, .facts = &f, .settings = any_settings(&r, &m), .calibrate = fixed_shares};
        struct plan a, b;
        plan_make(&a, &in);
        check_sums(&a, &f);
        n_worked += !a.is_refused;
        n_forecast += a.decode.is_forecast && a.miss > 0;
        n_streamed += !a.is_refused && a.miss > 0;
        struct machine more = m, faster = m, drive = m, gpu = m;
        more.ram_bytes += (uint64_t)any(&r, 1e6, 1e10);
        faster.memory[0].bytes_per_s *= any(&r, 1, 3);
        faster.int8_per_s *= any(&r, 1, 3);
        drive.drives[0].reads[random_u32(&r) % 2].bytes_per_s *= any(&r, 1, 3);
        gpu.gpus[0].bytes_per_s *= 1.5;
        gpu.gpus[0].memory_bytes += UINT64_C(1) << 30;
        const struct machine *const better[] = {&more, &faster, &drive, &gpu};
        static const char *const why[] = {"more memory", "faster memory", "a faster drive", "a better GPU"};
        for (int k = 0; k < 4; k++) {
            in.machine = better[k];
            plan_make(&b, &in);
            assert_no_slower(&a, &b, why[k]);
        }
    }
    assert_true(n_worked > 500 && n_streamed > 100 && n_forecast > 100);
}

/* A run like one that was measured is forecast as it was, and nothing is faster than the ceiling. */
static void where_experts_are_read_a_forecast_is_the_sum_of_parts(void **state)
{
    const struct machine m = read_machine("laptop");
    const struct plan_facts f = qwen3();
    struct receipt once = {.regime = REGIME_STREAM, .n_texts = 1, .method = "x"};
    struct receipts alone = {&once, 1};
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m), .calibrate = calibrate, .user = &alone};
    struct plan p;
    double sum = 0;
    in.settings.ram_bytes = UINT64_C(9) << 30;
    plan_make(&p, &in);
    assert_true(p.regime == REGIME_STREAM && !p.decode.is_forecast && p.decode.part[PART_BESIDE] == 0);
    for (int i = 0; i < PART_N; i++)
        sum += p.decode.part[i] > 0 ? 1 / p.decode.part[i] : 0;
    double reads = 1 / p.decode.part[PART_READS];
    double drive = machine_drive_speed(&m.drives[0], layers[0].expert.n_bytes / 3);
    double drives_s = reads / (1 + 3 * drive / machine_memory_speed(&m, in.settings.n_threads));
    assert_within(p.decode.ceiling, 1 / fmax(drives_s, sum - reads), 1e-9);
    memcpy(once.part[SPEED_DECODE], p.decode.part, sizeof p.decode.part);
    once.ceiling[SPEED_DECODE] = p.decode.ceiling;
    once.measured[SPEED_DECODE] = 0.5 * p.decode.ceiling;
    plan_make(&p, &in);
    assert_within(p.decode.mid, once.measured[SPEED_DECODE], 1e-9);
    assert_false(p.prefill.is_forecast);
    once.measured[SPEED_DECODE] = 0.99 * p.decode.ceiling;
    plan_make(&p, &in);
    assert_true(p.decode.high <= p.decode.ceiling);
}

/* Several texts together are faster than one, and no more than so many times. */
static void texts_share_what_they_read(void **state)
{
    const struct machine m = read_machine("amx-server");
    const struct plan_facts f = qwen3();
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan p;
    in.settings.n_depth = 1;
    in.settings.n_texts = 8;
    plan_make(&p, &in);
    double gain = p.decode.ceiling / p.decode_one.ceiling;
    assert_within(gain, 1.88, 0.05); /* even routing, bound by bytes */
    assert_within(ceiling_distinct(128, 8, 8), 128 * (1 - pow(0.9375, 8)), 1e-9);
    assert_true(ceiling_distinct(128, 8, 1) == 8 && ceiling_distinct(8, 8, 5) == 8);
}

static void what_goes_with_a_rate_changes_with_it(void **state)
{
    struct machine m = {.n_thread = 2,
                        .n_memory = 2,
                        .memory = {{1, 10e9}, {2, 16e9}},
                        .int8_per_s = 400e9,
                        .thread_int8_per_s = 220e9,
                        .float_per_s = 100e9,
                        .amx_per_s = 800e9,
                        .n_product = 1,
                        .products = {{"Q4_K", 30e9, 60e9}},
                        .attention_one_per_s = 20e9,
                        .attention_many_per_s = 40e9,
                        .n_drive = 1,
                        .drives = {{.reads = {{64 << 10, 4, 1e9}, {1 << 20, 4, 2e9}}, .n_read = 2}}};
    machine_set_rate(&m, MACHINE_MEMORY, 1, 5e9);
    assert_within(machine_memory_speed(&m, 2), 8e9, 1e-9);
    assert_within(m.int8_per_s, 400e9, 1e-9);
    machine_set_rate(&m, MACHINE_UNITS, 2, 300e9);
    assert_within(m.int8_per_s, 300e9, 1e-9);
    assert_within(m.thread_int8_per_s, 165e9, 1e-9);
    assert_within(m.float_per_s, 75e9, 1e-9);
    assert_within(m.amx_per_s, 600e9, 1e-9);
    assert_within(m.products[0].one_per_s, 22.5e9, 1e-9);
    assert_within(m.products[0].many_per_s, 45e9, 1e-9);
    assert_within(m.attention_one_per_s, 15e9, 1e-9);
    assert_within(m.attention_many_per_s, 30e9, 1e-9);
    assert_within(machine_memory_speed(&m, 2), 8e9, 1e-9);
    machine_set_rate(&m, MACHINE_DRIVE, 0, 3e9);
    assert_within(machine_drive_speed(&m.drives[0], 1 << 20), 3e9, 1e-9);
    assert_within(machine_drive_speed(&m.drives[0], 64 << 10), 1.5e9, 1e-9);
    assert_within(m.int8_per_s, 300e9, 1e-9);
    struct machine unknown = {0};
    machine_set_rate(&unknown, MACHINE_MEMORY, 2, 20e9);
    machine_set_rate(&unknown, MACHINE_UNITS, 2, 300e9);
    machine_set_rate(&unknown, MACHINE_DRIVE, 0, 3e9);
    assert_within(machine_memory_speed(&unknown, 2), 20e9, 1e-9);
    assert_true(unknown.int8_per_s == 0 && unknown.n_drive == 0);
}

static void rates_between_measurements_are_read_off(void **state)
{
    const struct machine m = read_machine("laptop");
    assert_within(machine_memory_speed(&m, 1), 22e9, 1e-9);
    assert_within(machine_memory_speed(&m, 2), 22e9 + 38e9 / 3, 1e-9);
    assert_within(machine_memory_speed(&m, 64), 65e9, 1e-9);
    const struct machine eight = {.n_thread = 8};
    assert_within(machine_peak(&eight, 800, 0, 2), 200, 1e-9);   /* one alone was not measured */
    assert_within(machine_peak(&eight, 800, 180, 2), 360, 1e-9); /* two on cores of their own */
    assert_within(machine_peak(&eight, 800, 180, 6), 800, 1e-9);
    assert_within(machine_peak(&eight, 800, 180, 64), 800, 1e-9);
    assert_true(machine_memory_speed(&(struct machine){0}, 4) == 0);
    const struct machine_drive *d = &m.drives[0];
    assert_within(machine_drive_speed(d, 65536), 3.06e9, 1e-9);
    assert_within(machine_drive_speed(d, 131072), (3.06e9 + 5.22e9) / 2, 1e-9);
    assert_within(machine_drive_speed(d, 1e7), 5.22e9, 1e-9);
    assert_within(machine_drive_speed(d, 4096), 3.06e9 / 16, 1e-9);
    assert_true(machine_drive_speed(&(struct machine_drive){0}, 4096) == 0);
    const struct machine_drive disturbed = {.n_read = 3,
                                            .reads = {{65536, 4, 2e8}, {1 << 20, 1, 1e9}, {4 << 20, 1, 1e8}}};
    assert_within(machine_drive_speed(&disturbed, 2e6), 1e9, 1e-9);
    assert_within(machine_drive_speed(&disturbed, 1 << 22), 1e9, 1e-9);
}

static void misses_follow_counts_of_earlier_runs(void **state)
{
    static const double mass[] = {0.5, 0.75, 0.9, 1};
    struct plan_facts f = {.mass = mass, .n_mass = 4};
    assert_within(ceiling_decode_miss(&f, 2, 4), 0.25, 1e-9);
    assert_within(ceiling_prompt_miss(2, 4), 0.5, 1e-9);
    assert_true(ceiling_decode_miss(&f, 4, 4) == 0 && ceiling_decode_miss(&f, 0, 4) == 1);
    assert_within(ceiling_copies_hit(&f, 2, 4), 0.75, 1e-9);
    f.mass = NULL;
    assert_within(ceiling_decode_miss(&f, 1, 4), 0.75, 1e-9);
    assert_within(ceiling_copies_hit(&f, 1, 4), 0.25, 1e-9);
    const struct gate_curve c = {.points = {{0.25, 0.4, 1, 0.6}, {0.5, 0.6, 1, 0.8}}, .n_point = 2};
    f.curve = &c; /* what a text showed goes before counts */
    f.mass = mass;
    assert_within(ceiling_decode_miss(&f, 1, 4), 0.4, 1e-9);
    assert_within(ceiling_copies_hit(&f, 1, 4), 0.4, 1e-9);
    assert_within(ceiling_decode_miss(&f, 3, 8), 0.3, 1e-9);
    assert_true(ceiling_decode_miss(&f, 4, 4) == 0 && ceiling_decode_miss(&f, 0, 4) == 1);
}

/* Many tokens and one take as long as products of their type do, and a ceiling stays where the peak has it. */
static void products_are_as_fast_as_those_of_their_type(void **state)
{
    const struct plan_layer layer = {
        .n_expert = 8,
        .n_used = 2,
        .expert = {.n_bytes = 10, .products = {{QUANT_Q4_K, 1000}, {QUANT_Q8_0, 500}}, .n_product = 2}};
    const struct plan_facts f = {.layers = &layer, .n_moe = 1};
    const struct plan_kv kv = {0};
    struct ceiling_params p = {.facts = &f, .kv = &kv, .read_per_s = 1e6, .int8_per_s = 1e6, .float_per_s = 1e6};
    const struct ceiling_time peak = ceiling_step(&p, 100, 0);
    assert_within(peak.part_s[PART_PRODUCTS], 100 * 2 * 1.5e-3, 1e-9);
    p.product[QUANT_Q8_0].many_per_s = 0.25e6;
    const struct ceiling_time slower = ceiling_step(&p, 100, 0);
    assert_within(slower.part_s[PART_PRODUCTS], 100 * 2 * (1e-3 + 2e-3), 1e-9);
    assert_within(slower.least_s, peak.least_s, 1e-12);
    p.product[QUANT_Q4_K].one_per_s = 1e5; /* one token costs as much as ten of many */
    assert_within(ceiling_step(&p, 1, 0).part_s[PART_PRODUCTS], 2 * (1e-2 + 2e-3), 1e-9);
    double each_s = (MACHINE_MANY * 1e-3 - 1e-2) / (MACHINE_MANY - 1); /* and what it takes for each further token */
    assert_within(ceiling_step(&p, 100, 0).part_s[PART_PRODUCTS], 8 * (1e-2 - each_s) + 200 * (each_s + 2e-3), 1e-9);
    assert_within(ceiling_step(&p, 4 * MACHINE_MANY, 0).part_s[PART_PRODUCTS], 8 * MACHINE_MANY * (1e-3 + 2e-3), 1e-9);
}

/* The same of attention: a token, or a prompt's tokens, to positions of a cache. */
static void attention_is_as_fast_as_it_was_measured(void **state)
{
    const struct plan_facts f = {0};
    const struct plan_kv kv = {.n_cache = 1, .caches = {{0, 1, 100}}};
    struct ceiling_params p = {.facts = &f, .kv = &kv, .read_per_s = 1e9, .int8_per_s = 1e6, .float_per_s = 1e6};
    const struct ceiling_time peak = ceiling_step(&p, 3, 10);
    assert_within(peak.part_s[PART_STATE], 3 * 11 * 1e-4, 1e-9);
    p.attention = (struct ceiling_rate){.one_per_s = 0.25e6, .many_per_s = 0.5e6};
    const struct ceiling_time slower = ceiling_step(&p, 3, 10), prompt = ceiling_prompt(&p, 0, 4, 4);
    assert_within(slower.part_s[PART_STATE], 4 * peak.part_s[PART_STATE], 1e-9);
    assert_within(slower.least_s, peak.least_s, 1e-12);
    assert_within(prompt.part_s[PART_STATE], 2 * 10 * 1e-4, 1e-9);
    assert_within(prompt.least_s, 10 * 1e-4, 1e-9);
    p.attention.one_per_s = 0;
    assert_within(ceiling_step(&p, 3, 10).part_s[PART_STATE], 2 * peak.part_s[PART_STATE], 1e-9);
    p.read_per_s = 1e3; /* memory is slower */
    assert_within(ceiling_step(&p, 3, 10).part_s[PART_STATE], 3 * 11 * 1e-3, 1e-9);
}

/* A pass of a prompt computes the last layer's experts for the token alone whose logits are wanted, and passes before
 * the last one not at all. */
static void the_last_layer_goes_on_with_one_token(void **state)
{
    const struct plan_layer two[2] = {
        {.n_expert = 8, .n_used = 2, .expert = {.n_bytes = 100, .products = {{QUANT_Q4_K, 1000}}, .n_product = 1}},
        {.n_expert = 8, .n_used = 2, .expert = {.n_bytes = 100, .products = {{QUANT_Q4_K, 1000}}, .n_product = 1}}};
    const struct plan_facts f = {.layers = two, .n_moe = 2};
    const struct plan_kv kv = {0};
    struct ceiling_params p = {.facts = &f,
                               .kv = &kv,
                               .read_per_s = 1e3,
                               .int8_per_s = 1e6,
                               .float_per_s = 1e6,
                               .miss = 0.5,
                               .missing_bytes = 1e9,
                               .drive_per_s = 100};
    const struct ceiling_time t = ceiling_prompt(&p, 0, 2000, 1000);
    assert_within(t.part_s[PART_PRODUCTS], 2 * 2.0 + 0.2, 1e-9); /* 1,000 tokens of 2 experts; 2 experts to be read */
    assert_within(t.part_s[PART_READS], 2 * 4.0 + 1.0, 1e-9);    /* halves of 8, 8 and 2 experts */
    p.n_pass = 3;                                                /* of 900 bytes through memory */
    const struct ceiling_time packed = ceiling_prompt(&p, 0, 2000, 1000);
    assert_within(packed.part_s[PART_READS], 9.0 + 2.7, 1e-9);
    assert_within(packed.least_s, t.least_s, 1e-9); /* beside computing, or not */
}

/* Of 2,000 tokens the first 100 see 1 to 100 positions, the others 100, in however many passes. */
static void tokens_see_no_more_than_their_window(void **state)
{
    const struct plan_facts f = {0};
    const struct plan_kv kv = {.caches = {{.window = 100, .n_bytes = 1, .n_float = 1}}, .n_cache = 1};
    const struct ceiling_params p = {.facts = &f, .kv = &kv, .read_per_s = 1e9, .int8_per_s = 1e6, .float_per_s = 1e3};
    for (int64_t n_pass = 50; n_pass <= 2000; n_pass *= 2)
        assert_within(ceiling_prompt(&p, 0, 2000, n_pass).part_s[PART_STATE], 5.05 + 190, 1e-4);
}

/* A layer's reads go on beside the one before; two layers' part of the shorter of both times is not hidden. */
static void computing_hides_reads_of_prompts(void **state)
{
    enum { N_MOE = 8 };
    struct plan_layer eight[N_MOE];
    for (int i = 0; i < N_MOE; i++)
        eight[i] = (struct plan_layer){
            .n_expert = 8, .n_used = 2, .expert = {.n_bytes = 100, .products = {{QUANT_Q4_K, 1000}}, .n_product = 1}};
    const struct plan_facts f = {.layers = eight, .n_moe = N_MOE};
    const struct plan_kv kv = {0};
    struct ceiling_params p = {.facts = &f,
                               .kv = &kv,
                               .read_per_s = 1e9,
                               .int8_per_s = 1e6,
                               .float_per_s = 1e6,
                               .miss = 0.5,
                               .missing_bytes = 1e9,
                               .drive_per_s = 1000};
    const double compute_s = 7 * 2.0 + 2e-3, reads_s = 7 * 0.4 + 0.1; /* the last layer's for one token */
    const struct ceiling_time fast = ceiling_prompt(&p, 0, 1000, 1000);
    assert_within(fast.part_s[PART_PRODUCTS], compute_s, 1e-9);
    assert_within(fast.part_s[PART_READS], reads_s * 2 / N_MOE, 1e-6);
    assert_within(fast.least_s, compute_s, 1e-9);
    p.drive_per_s = 100;
    const struct ceiling_time slow = ceiling_prompt(&p, 0, 1000, 1000);
    assert_within(slow.part_s[PART_READS], 10 * reads_s - compute_s + compute_s * 2 / N_MOE, 1e-6);
    assert_within(slow.least_s, 10 * reads_s, 1e-9);
    const struct ceiling_time step = ceiling_step(&p, 1, 0); /* whose choice nobody knows before */
    assert_within(step.part_s[PART_READS], N_MOE * 1.0, 1e-6);
}

/* All wait for the rank with most of the experts, and for the message. */
static void ranks_wait_for_the_one_with_most(void **state)
{
    const struct plan_layer layer = {
        .n_expert = 8, .n_used = 2, .expert = {.n_bytes = 100, .products = {{QUANT_Q4_K, 1000}}, .n_product = 1}};
    const struct plan_facts f = {.layers = &layer, .n_moe = 1};
    const struct plan_kv kv = {0};
    struct ceiling_params p = {.facts = &f, .kv = &kv, .read_per_s = 1e3, .int8_per_s = 1e6, .float_per_s = 1e6};
    assert_within(ceiling_step(&p, 1, 0).least_s, 0.2, 1e-9); /* 200 bytes */
    p.rank_most = 0.75;
    assert_true(ceiling_step(&p, 1, 0).least_s == 0); /* how long messages take is unknown */
    p.rank_round_trip_s = 0.01;
    assert_within(ceiling_step(&p, 1, 0).least_s, 0.15 + 0.01, 1e-9);
}

/* Memory bounds no model that stays in the last cache; the units still do. */
static void caches_spare_memory(void **state)
{
    struct machine m = read_machine("amx-server");
    const struct plan_facts f = qwen3();
    const struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    static struct plan p;
    plan_make(&p, &in);
    double from_memory = p.decode.ceiling;
    m.l3_bytes = UINT64_C(1) << 40;
    plan_make(&p, &in);
    double cached = p.decode.ceiling;
    assert_true(p.miss == 0 && from_memory > 0 && cached > from_memory);
    for (int i = 0; i < m.n_memory; i++)
        m.memory[i].bytes_per_s *= 2;
    plan_make(&p, &in);
    assert_within(p.decode.ceiling, cached, 1e-9);
}

/* ---- the gate ---------------------------------------------------------------------------------------------------- */

static struct gate_curve a_curve(double hit_of_quarter)
{
    return (struct gate_curve){
        .fingerprint = 0x1234,
        .policy = "lfru",
        .n_tok = 1000,
        .n_layer = 48,
        .n_used = 8,
        .expert_bytes = 2.7e6,
        .share_of_90 = 0.6,
        .entropy = 0.9,
        .points = {{0.1, hit_of_quarter / 2, 1, 0.5}, {0.25, hit_of_quarter, 2, 0.75}, {0.5, 0.8, 1, 1}},
        .n_point = 3,
        .counts = {{2, 0.9, 0.8}, {8, 0.8, 0.5}},
        .n_count = 2};
}

static void curves_are_read_off_between_points(void **state)
{
    const struct gate_curve c = a_curve(0.6);
    double hit, moved;
    gate_read_off(&c, 0.25, &hit, &moved);
    assert_true(hit == 0.6 && moved == 2);
    gate_read_off(&c, 0.375, &hit, &moved);
    assert_true(fabs(hit - 0.7) < 1e-9 && fabs(moved - 1.5) < 1e-9);
    gate_read_off(&c, 0.05, &hit, &moved);
    assert_true(fabs(hit - 0.15) < 1e-9);
    gate_read_off(&c, 1, &hit, &moved);
    assert_true(hit == 1 && moved == 0);
}

static void tokens_share_experts_as_a_text_showed(void **state)
{
    const struct gate_curve c = a_curve(0.6);
    assert_within(gate_distinct(&c, 1, true), 1, 1e-9);
    assert_within(gate_distinct(&c, 2, true), 0.8, 1e-9);
    assert_within(gate_distinct(&c, 5, false), 0.85, 1e-9);
    assert_within(gate_distinct(&c, 500, true), 0.5, 1e-9);
    assert_within(gate_distinct(&(struct gate_curve){0}, 8, true), 1, 1e-9);
}

/* Eight texts, and a prompt, of a model whose tokens choose alike, read less than even choices would. */
static void plans_read_the_experts_that_a_text_showed(void **state)
{
    const struct machine m = read_machine("amx-server");
    struct plan_facts f = qwen3();
    struct plan_inputs in = {.machine = &m, .facts = &f, .settings = usual(&m)};
    struct plan even, alike;
    in.settings.n_depth = 1;
    in.settings.n_texts = 8;
    plan_make(&even, &in);
    const struct gate_curve c = a_curve(0.6);
    f.curve = &c;
    plan_make(&alike, &in);
    assert_within(alike.decode_one.ceiling, even.decode_one.ceiling, 1e-9);
    assert_true(alike.decode.ceiling > 1.1 * even.decode.ceiling);
    assert_true(alike.decode.ceiling < even.decode.ceiling / 0.8);
    assert_true(alike.prefill.ceiling >= even.prefill.ceiling);
}

/* On a fast link slots pay where text repeats itself, whatever the skew; where it does not, or where waiting for a
 * second device in each layer costs more than they save, whole layers do. */
static void the_gate_goes_by_hits_and_costs(void **state)
{
    struct machine m = read_machine("rtx5090");
    const struct gate_curve repeats = a_curve(0.7), even = a_curve(0.25);
    struct gate g;
    m.gpus[0].dispatch_s = 10e-6;
    m.gpus[0].to_bytes_per_s = 50e9;
    struct gate_costs c = gate_costs(&m, repeats.expert_bytes, 0, m.n_thread);
    assert_true(c.first_s > 0 && c.other_s > 10 * c.first_s && c.wait_s == 20e-6 && c.move_s > c.first_s);
    gate_decide(&g, &repeats, 0.25, &c);
    assert_true(g.passes && g.slots_s < g.layers_s && g.layer_share == 0.25);
    c.wait_s = 2e-3;
    gate_decide(&g, &repeats, 0.25, &c);
    assert_true(!g.passes && strstr(g.reason, "12 of 48 layers whole"));
    c = (struct gate_costs){0};
    gate_decide(&g, &repeats, 0.25, &c);
    assert_true(g.passes && strstr(g.reason, "not known") && g.slots_s == 0);
    gate_decide(&g, &even, 0.25, &c);
    assert_false(g.passes);
}

static void curves_are_written_and_read_alike_and_damaged_ones_refused(void **state)
{
    static const char *const wrong[][3] = {{"\"gate\": 3", "\"gate\": 2", "\"gate\""},
                                           {"\"slots_hit\"", "\"slots\"", "\"slots_hit\""},
                                           {"\"tokens\": 1000", "\"tokens\": 0", "\"tokens\""},
                                           {"0000000000001234", "123", "\"model\""},
                                           {"\"lfru\"", "7", "\"policy\""},
                                           {"\"hit\": 0.6", "\"hit\": 6.0", "\"hit\""},
                                           {"\"share\": 0.25", "\"share\": 0.05", "ascend"},
                                           {"\"entropy\"", "\"entropie\"", "\"entropy\""},
                                           {"\"distinct\"", "\"distant\"", "\"distinct\""},
                                           {"\"in_row\": 0.8", "\"in_row\": -1", "\"in_row\""},
                                           {"\"tokens\": 8", "\"tokens\": 2", "ascend"},
                                           {"{", "[", "JSON"}};
    const struct gate_curve c = a_curve(0.6);
    struct gate_curve again;
    struct err e = {0};
    char *text;
    assert_int_equal(gate_write(&c, &text, &e), ERR_OK);
    assert_int_equal(gate_parse(&again, text, strlen(text), "g.json", &e), ERR_OK);
    assert_int_equal(again.n_point, 3);
    assert_true(again.fingerprint == 0x1234 && again.points[1].hit == 0.6 && again.n_used == 8);
    assert_true(again.points[1].slots_hit == 0.75);
    assert_true(again.n_count == 2 && again.counts[1].n == 8 && again.counts[1].apart == 0.8);
    assert_true(again.counts[1].in_row == 0.5);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct bytes b = {0};
        const char *at = strstr(text, wrong[i][0]);
        assert_non_null(at);
        assert_int_equal(bytes_print(&b, &e, "%.*s%s%s", (int)(at - text), text, wrong[i][1], at + strlen(wrong[i][0])),
                         ERR_OK);
        assert_int_equal(gate_parse(&again, b.s, strlen(b.s), "g.json", &e), ERR_FORMAT);
        if (!strstr(e.text, wrong[i][2]) || !strstr(e.text, "g.json"))
            fail_msg("\"%s\" says nothing of %s", e.text, wrong[i][2]);
        bytes_close(&b);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_machines_are_read_and_written_alike),
        cmocka_unit_test(damaged_machines_are_refused_by_key),
        cmocka_unit_test(damaged_bytes_are_refused_or_read),
        cmocka_unit_test(ceilings_of_the_rtx_5090_are_the_published_ones),
        cmocka_unit_test(published_runs_are_forecast_from_each_other),
        cmocka_unit_test(published_tiers_are_below_their_ceilings_and_inside_the_band),
        cmocka_unit_test(measured_shares_of_choices_go_before_what_a_plan_finds),
        cmocka_unit_test(plans_for_shipped_machines_are_these_texts),
        cmocka_unit_test(only_unknown_speeds_are_null),
        cmocka_unit_test(plans_of_other_divisions_are_these_texts),
        cmocka_unit_test(cards_that_divide_layers_are_planned_together),
        cmocka_unit_test(shares_and_thresholds_have_their_direction),
        cmocka_unit_test(experts_lie_in_three_tiers),
        cmocka_unit_test(a_share_that_is_read_is_of_what_the_processor_has),
        cmocka_unit_test(what_is_kept_takes_no_room_that_is_needed),
        cmocka_unit_test(lines_of_runs_on_shipped_machines_are_these),
        cmocka_unit_test(the_chosen_context_works_and_costs_no_expert_its_slot),
        cmocka_unit_test(memory_for_state_bounds_the_chosen_context),
        cmocka_unit_test(what_just_works_is_not_refused_and_a_byte_less_is),
        cmocka_unit_test(what_a_refusal_names_works),
        cmocka_unit_test(a_floor_above_the_ceiling_is_refused),
        cmocka_unit_test(the_memory_that_a_low_speed_lacks_is_enough),
        cmocka_unit_test(an_unknown_machine_refuses_nothing),
        cmocka_unit_test(better_machines_are_never_slower),
        cmocka_unit_test(where_experts_are_read_a_forecast_is_the_sum_of_parts),
        cmocka_unit_test(texts_share_what_they_read),
        cmocka_unit_test(what_goes_with_a_rate_changes_with_it),
        cmocka_unit_test(rates_between_measurements_are_read_off),
        cmocka_unit_test(misses_follow_counts_of_earlier_runs),
        cmocka_unit_test(products_are_as_fast_as_those_of_their_type),
        cmocka_unit_test(attention_is_as_fast_as_it_was_measured),
        cmocka_unit_test(the_last_layer_goes_on_with_one_token),
        cmocka_unit_test(tokens_see_no_more_than_their_window),
        cmocka_unit_test(computing_hides_reads_of_prompts),
        cmocka_unit_test(ranks_wait_for_the_one_with_most),
        cmocka_unit_test(caches_spare_memory),
        cmocka_unit_test(curves_are_read_off_between_points),
        cmocka_unit_test(tokens_share_experts_as_a_text_showed),
        cmocka_unit_test(plans_read_the_experts_that_a_text_showed),
        cmocka_unit_test(the_gate_goes_by_hits_and_costs),
        cmocka_unit_test(curves_are_written_and_read_alike_and_damaged_ones_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
