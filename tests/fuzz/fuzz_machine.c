/* Any bytes as a machine's facts and as a receipt, and plans for what they say. */
#include "fuzz.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "planner/plan.h"

/* A layer with experts, and a text that needs some memory. */
static void plan_for(const struct machine *m)
{
    static const struct plan_layer layer = {16, 4, 1 << 20, {1e6, 0, {{QUANT_Q4_K, 1e6}}, 1}};
    struct plan_facts f = {
        .name = "fuzz", .layers = &layer, .n_moe = 1, .weight_bytes = 1 << 24, .n_ctx = {4096}, .n_n_ctx = 1};
    f.kv[0] = (struct plan_kv){.name = "f16", .works = true, .n_cache = 1, .caches = {{0, 4096, 8192}}};
    f.token = (struct plan_cost){1e7, 0, {{QUANT_Q4_K, 1e7}, {QUANT_F32, 1e5}}, 2};
    const struct plan_inputs in = {.machine = m,
                                   .facts = &f,
                                   .settings = {.n_ctx = 4096,
                                                .n_depth = 4096,
                                                .n_texts = 2,
                                                .n_batch = 512,
                                                .n_threads = m->n_thread ? m->n_thread : 1,
                                                .uses_gpu = m->n_gpu > 0,
                                                .n_cpu_moe = -1}};
    struct plan p;
    struct err e;
    char *text;
    plan_make(&p, &in);
    assert(p.decode.ceiling >= 0 && p.miss >= 0 && p.miss <= 1);
    if (plan_text(&p, &in, &text, &e) == ERR_OK)
        mem_free(text);
    if (plan_json(&p, &in, &text, &e) == ERR_OK)
        mem_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct machine m, again;
    struct receipt r;
    struct err e;
    char *text;
    if (machine_parse(&m, (const char *)data, size, "fuzz", &e) == ERR_OK && machine_write(&m, &text, &e) == ERR_OK) {
        err_code code = machine_parse(&again, text, strlen(text), "written", &e);
        assert(code == ERR_OK);
        mem_free(text);
        plan_for(&m);
    }
    if (receipt_parse(&r, (const char *)data, size, "fuzz", &e) == ERR_OK)
        assert(receipt_share(&r, SPEED_DECODE) >= 0);
    return 0;
}
