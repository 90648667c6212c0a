/* A device that can't run some of a model's operations: the model is refused before anything of it is read. */
#include <stdio.h>

#include "backend/vtable.h"
#include "device_fixture.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "store/store.h"

/* A CPU device that refuses what a rule says. */
struct rule {
    enum op_kind kind;                 /* OP_N_KIND: of any kind */
    const struct quant_info *type;     /* weights of this type alone; NULL: of any, or none */
    int64_t least, most;               /* of so many rows */
    bool refuses_cache[ELEM_Q8_0 + 1]; /* caches of a type, whatever the operation */
};

struct ask_fixture {
    struct fixture *f;
    struct backend_vtable vtable; /* the device's own but for `supports` */
    struct gguf *g;
    struct store *store;
    struct model *m;
    struct err e;
};

static struct {
    bool (*supports)(struct backend *b, const struct op *op, const struct op_shapes *s); /* the device's own */
    struct rule rule;
    uint64_t n_asked[OP_N_KIND];
} refuser;

static bool has_type(const struct op_shapes *s, const struct quant_info *type)
{
    bool any = false;
    for (int i = 0; i < OP_MAX_OUT; i++)
        any |= s->weight[i].type == type;
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        any |= s->slot_pool.type[i] == type;
    return any;
}

/* Whether an operation that works on state works on a cache of a type that is refused. */
static bool refuses_cache(const struct op *op)
{
    return (op->kind == OP_KV_STORE || op->kind == OP_ATTENTION) && refuser.rule.refuses_cache[op->state[0].page.type];
}

static bool supports(struct backend *b, const struct op *op, const struct op_shapes *s)
{
    const struct rule *r = &refuser.rule;
    int64_t n = op->kind == OP_EMBED || op->kind == OP_ROPE_TABLE ? op->in[0].ne[0] : op->in[0].ne[1];
    refuser.n_asked[op->kind]++;
    assert_true(refuser.supports(b, op, s)); /* which knows nothing of the asking device's handles */
    return !refuses_cache(op) &&
           !(op->kind == r->kind && n >= r->least && n <= r->most && (!r->type || has_type(s, r->type)));
}

static int open_ask(void **state)
{
    struct ask_fixture *t = calloc(1, sizeof *t);
    *state = t;
    if (open_cpu((void **)&t->f))
        return -1;
    t->vtable = *t->f->device->v;
    refuser.supports = t->vtable.supports;
    t->vtable.supports = supports;
    t->f->device->v = &t->vtable;
    return 0;
}

static void close_model(struct ask_fixture *t)
{
    model_close(&t->m);
    store_close(&t->store);
    gguf_close(&t->g);
}

static int close_ask(void **state)
{
    struct ask_fixture *t = *state;
    void *f = t->f;
    close_model(t);
    int failure = close_cpu(&f);
    free(t);
    return failure;
}

/* Loads a golden model on a device that refuses what the rule says. */
static err_code load(struct ask_fixture *t, const char *name, const struct rule *rule)
{
    char path[512];
    close_model(t);
    snprintf(path, sizeof path, "%s/%s.gguf", GOLDEN, name);
    assert_int_equal(gguf_open(&t->g, path, &t->e), ERR_OK);
    assert_int_equal(store_open_gguf(&t->store, t->g, &t->e), ERR_OK);
    memset(refuser.n_asked, 0, sizeof refuser.n_asked);
    refuser.rule = *rule;
    const struct model_load_params p = {.device = t->f->device, .pool = t->f->pool, .store = t->store};
    return model_load(&t->m, t->g, &p, &t->e);
}

static void expect_refused(struct ask_fixture *t, const char *name, const struct rule *rule, const char *word)
{
    assert_int_equal(load(t, name, rule), ERR_UNSUPPORTED);
    if (!strstr(t->e.text, word) || !strstr(t->e.text, name))
        fail_msg("%s, and nothing of %s", t->e.text, word);
    assert_int_equal(store_get_counters(t->store).n_reads, 0);
    assert_null(t->m);
}

static void expect_loads(struct ask_fixture *t, const char *name, const struct rule *rule)
{
    if (load(t, name, rule) != ERR_OK)
        fail_msg("%s", t->e.text);
    assert_true(store_get_counters(t->store).n_reads > 0);
}

static const struct rule nothing = {.kind = OP_N_KIND};

static void what_a_device_can_not_run_is_refused_by_name(void **state)
{
    static const char *const models[] = {"llama",     "gpt_oss",       "gemma4_shared", "deepseek2_latent",
                                         "qwen35moe", "granitehybrid", "glm_dsa",       "kimi_linear",
                                         "dbrx",      "deepseek4",     "qwen4exp",      "kimi_k3",
                                         "glm5next",  "jamba",         "minimax_01"};
    struct ask_fixture *t = *state;
    bool any[OP_N_KIND] = {0};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        uint64_t n_asked[OP_N_KIND];
        expect_loads(t, models[i], &nothing);
        memcpy(n_asked, refuser.n_asked, sizeof n_asked);
        for (enum op_kind kind = 0; kind < OP_N_KIND; kind++) {
            const struct rule rule = {.kind = kind, .most = INT64_MAX};
            any[kind] |= n_asked[kind] > 0;
            if (n_asked[kind])
                expect_refused(t, models[i], &rule, op_name(kind));
            else
                expect_loads(t, models[i], &rule);
        }
    }
    for (enum op_kind kind = 0; kind < OP_N_KIND; kind++)
        if (!any[kind] && kind != OP_SCATTER) /* which results from other places need alone */
            fail_msg("no model has %s", op_name(kind));
}

static void the_sentence_names_weights_and_their_types(void **state)
{
    struct ask_fixture *t = *state;
    const struct rule matmul = {.kind = OP_MATMUL, .type = quant_info(QUANT_F32), .most = INT64_MAX};
    const struct rule experts = {.kind = OP_EXPERTS, .type = quant_info(QUANT_F32), .most = INT64_MAX};
    expect_refused(t, "qwen3moe", &matmul, "MATMUL of F32 [");
    assert_non_null(strstr(t->e.text, "blk.0.attn_q.weight (F32)"));
    assert_non_null(strstr(t->e.text, backend_name(t->f->device)));
    expect_refused(t, "qwen3moe", &experts, "EXPERTS of F32 [");
    assert_non_null(strstr(t->e.text, "ffn_gate_exps.weight (F32), blk.0.ffn_up_exps.weight (F32)"));
    expect_loads(t, "qwen3moe", &(struct rule){OP_MATMUL, quant_info(QUANT_Q4_K), .most = INT64_MAX});
}

static void one_token_and_many_are_asked_about(void **state)
{
    struct ask_fixture *t = *state;
    expect_refused(t, "qwen3moe", &(struct rule){.kind = OP_MATMUL, .least = 1, .most = 1}, "MATMUL");
    expect_refused(t, "qwen3moe", &(struct rule){.kind = OP_MATMUL, .least = 2, .most = INT64_MAX}, "MATMUL");
    expect_refused(t, "qwen3moe", &(struct rule){.kind = OP_EXPERTS, .least = MODEL_UBATCH + 1, .most = INT64_MAX},
                   "EXPERTS");
}

static void caches_are_refused_by_their_type(void **state)
{
    struct ask_fixture *t = *state;
    struct state_pool *pool;
    struct rule rule = nothing;
    struct state_pool_params p = {.type = ELEM_Q8_0, .max_bytes = 1 << 20};
    rule.refuses_cache[ELEM_Q8_0] = true;
    expect_loads(t, "q_q8_0", &rule);
    assert_int_equal(state_pool_create(&pool, t->m, &p, &t->e), ERR_UNSUPPORTED);
    assert_non_null(strstr(t->e.text, "KV_STORE"));
    assert_non_null(strstr(t->e.text, "Q8_0"));
    assert_null(pool);
    p.type = ELEM_F16;
    assert_int_equal(state_pool_create(&pool, t->m, &p, &t->e), ERR_OK);
    state_pool_close(&pool);
    rule.refuses_cache[ELEM_F16] = rule.refuses_cache[ELEM_F32] = true;
    expect_refused(t, "q_q8_0", &rule, "F16");
}

/* What a checking device can't run on one of its sides, it can't run. */
static void both_sides_of_a_checking_device_are_asked(void **state)
{
    struct ask_fixture *t = *state;
    struct backend *primary, *check, *own = t->f->device;
    assert_int_equal(backend_cpu_open(&primary, t->f->pool, kernels_reference(), &t->e), ERR_OK);
    assert_int_equal(backend_check_open(&check, primary, own, &t->e), ERR_OK);
    t->f->device = check;
    expect_refused(t, "llama", &(struct rule){.kind = OP_ROPE, .most = INT64_MAX}, "ROPE");
    expect_loads(t, "llama", &nothing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_a_device_can_not_run_is_refused_by_name, open_ask, close_ask),
        cmocka_unit_test_setup_teardown(the_sentence_names_weights_and_their_types, open_ask, close_ask),
        cmocka_unit_test_setup_teardown(one_token_and_many_are_asked_about, open_ask, close_ask),
        cmocka_unit_test_setup_teardown(caches_are_refused_by_their_type, open_ask, close_ask),
        cmocka_unit_test_setup_teardown(both_sides_of_a_checking_device_are_asked, open_ask, close_ask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
