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
                           .scratch_bytes = 23 << 20,
                           .n_ctx = {512, 1024, 2048, 4096, 8192, 16384, 32768, 65536},
                           .n_n_ctx = 8};
    for (int i = 0; i < N_LAYER; i++) {
        double expert = 2 * matrix * q4 + matrix * (i % 2 ? q6 : q4);
        layers[i] = (struct plan_layer){N_EXPERT, N_USED, (uint64_t)expert + 12288, {expert, 3 * matrix, 0}};
        double qko = (double)N_EMBD * (4096 + 512 + 4096), v = (double)N_EMBD * 512, router = (double)N_EMBD * N_EXPERT;
        f.token.n_bytes += qko * q4 + v * (i % 2 ? q6 : q4) + router * 4;
        f.token.n_int8 += qko + v;
        f.token.n_float += router;
    }
    f.output = (struct plan_cost){(double)N_VOCAB * N_EMBD * q6, (double)N_VOCAB * N_EMBD, 0};
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

static char *read_text(const char *folder, const char *name, const char *suffix, size_t *n)
{
    char path[1024], *text = mem_calloc(1, 1 << 16);
    snprintf(path, sizeof path, "%s%s%s", folder, name, suffix);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s can't be read", path);
    *n = fread(text, 1, (1 << 16) - 1, f);
    fclose(f);
    return text;
}

static struct machine read_machine(const char *name)
{
    struct machine m;
    struct err e = {0};
    size_t n;
    char *text = read_text(MACHINES, name, ".json", &n);
    if (machine_parse(&m, text, n, name, &e) != ERR_OK)
        fail_msg("%s", e.text);
    mem_free(text);
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
        mem_free(text);
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
    mem_free(text);
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
        of[i] = (struct plan_layer){512, 10, (uint64_t)expert, {expert, expert / 4.5 * 8, 0}};
    f.token = (struct plan_cost){dense * 4.5 / 8, dense, 0};
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
