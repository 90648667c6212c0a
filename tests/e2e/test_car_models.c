/* Cache-aware routing on whole models: off means off, what is on can be repeated, and who stands in is no accident.
 * Linked with --wrap=car_substitute, so that a control can choose other substitutes. usage: test_car_models MODEL
 * GOLDEN_DIR
 */
#define _DEFAULT_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/pool.h"
#include "base/random.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "moebius/moebius.h"
#include "store_fake.h"
#include "../unit/whole_files.h"

static const char text[] =
    "Once upon a time there was a little girl called Mia who lived in a small house at the edge of a big forest. Every "
    "morning she went to the river with her brother to look for round stones. One day they found a stone that was blue "
    "and warm. Mia held it in her hand and it began to glow. Her brother was afraid and wanted to go home, but Mia "
    "said "
    "that they should show it to their grandmother. The old woman looked at the stone for a long time. Then she smiled "
    "and told them that it was the egg of a small dragon. They must keep it warm and tell it a story every night. So "
    "Mia "
    "made a bed for the egg beside the fire, and her brother told it stories about the sun and the moon. After seven "
    "days "
    "the egg broke, and a tiny dragon looked out. It was very hungry. They gave it bread and milk, and it flew around "
    "the "
    "room and sang. From that day on the three of them were best friends, and nobody in the village was ever cold "
    "again.";

enum { N_PROMPT = 64, MOST_TOK = 512 };

static const char *demo, *golden;
static int32_t ids[MOST_TOK];
static size_t n_ids;

/* ---- the control: as many substitutes, but anybody anywhere ---------------------------------------------------- */

static double random_share; /* of the misses that get a substitute at random; 0: the real thing */
static struct random dice;
static uint64_t n_missed;

int64_t __real_car_substitute(const struct car *c, const float *scores, const bool *at_hand, int64_t n_expert,
                              int64_t n_used, int32_t *chosen, float *value, float *ratio);
int64_t __wrap_car_substitute(const struct car *c, const float *scores, const bool *at_hand, int64_t n_expert,
                              int64_t n_used, int32_t *chosen, float *value, float *ratio);

/* An expert at hand that is not chosen, any; -1: there is none. */
static int32_t anybody(const bool *at_hand, const int32_t *chosen, int64_t n_used, int64_t n_expert)
{
    int32_t first = (int32_t)(random_u32(&dice) % (uint32_t)n_expert);
    for (int32_t j = 0; j < n_expert; j++) {
        int32_t expert = (int32_t)((first + j) % n_expert);
        bool is_free = at_hand[expert];
        for (int64_t i = 0; i < n_used; i++)
            is_free = is_free && chosen[i] != expert;
        if (is_free)
            return expert;
    }
    return -1;
}

int64_t __wrap_car_substitute(const struct car *c, const float *scores, const bool *at_hand, int64_t n_expert,
                              int64_t n_used, int32_t *chosen, float *value, float *ratio)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_used; i++)
        n_missed += !at_hand[chosen[i]];
    if (random_share == 0)
        return __real_car_substitute(c, scores, at_hand, n_expert, n_used, chosen, value, ratio);
    for (int64_t i = 0; i < n_used; i++) {
        bool here = at_hand[chosen[i]];
        int32_t other = here || random_unit(&dice) >= random_share ? -1 : anybody(at_hand, chosen, n_used, n_expert);
        chosen[i] = other < 0 ? chosen[i] : other;
        value[i] = scores[chosen[i]];
        ratio[i] = 1;
        n += other >= 0;
    }
    return n;
}

/* ---- runs through the public interface ----------------------------------------------------------------------------
 */

struct run {
    float *logits;
    size_t n_logits, n_vocab;
    moebius_counters counters;
};

static double nll_of(const float *logits, int32_t n_vocab, int32_t target)
{
    double max = logits[0], sum = 0;
    for (int32_t i = 1; i < n_vocab; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max; /* gcc 12 for Arm can't compile a loop of fmax */
    for (int32_t i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum) - (double)logits[target];
}

/* A prompt at once and the rest token by token; r->logits is freed by the caller. */
static struct run run(const char *path, const moebius_engine_options *o, const moebius_car *car, const int32_t *tokens,
                      size_t n)
{
    moebius_error error;
    moebius_engine *g;
    moebius_session *s;
    struct run r = {0};
    if (moebius_engine_open(&g, path, o, &error) != MOEBIUS_OK ||
        moebius_session_open(&s, g, &(moebius_session_options){.n_ctx = (int64_t)n, .car = *car}, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    size_t n_vocab = (size_t)moebius_n_vocab(g), n_prompt = n / 3 < N_PROMPT ? n / 3 : N_PROMPT;
    r.logits = calloc((n - n_prompt) * n_vocab, sizeof *r.logits);
    for (size_t i = n_prompt - 1; i + 1 < n; i++) {
        bool first = i == n_prompt - 1;
        if (moebius_session_eval(s, first ? tokens : tokens + i, first ? n_prompt : 1, &error) != MOEBIUS_OK)
            fail_msg("%s", error.text);
        memcpy(r.logits + r.n_logits, moebius_session_logits(s), n_vocab * sizeof *r.logits);
        r.n_logits += n_vocab;
    }
    r.n_vocab = n_vocab;
    r.counters = moebius_engine_counters(g);
    moebius_session_close(&s);
    moebius_engine_close(&g);
    return r;
}

static const moebius_engine_options quarter = {.n_threads = 1, .expert_ram_share = 0.25, .deterministic = true};

static void off_is_off_to_the_bit(void **state)
{
    static const moebius_car off[] = {{.threshold = 1, .n_backfill = 4},
                                      {.threshold = 2},
                                      {.threshold = 0.3f, .n_warmup = MOST_TOK},
                                      {.threshold = 0.3f, .n_protect = 3}};
    struct run want = run(demo, &(moebius_engine_options){.n_threads = 1}, &(moebius_car){0}, ids, n_ids);
    for (int i = 0; i < 4; i++) {
        struct run got = run(demo, &quarter, &off[i], ids, n_ids);
        assert_memory_equal(got.logits, want.logits, want.n_logits * sizeof *want.logits);
        assert_int_equal(got.counters.n_substituted, 0);
        assert_true(got.counters.n_decode_miss > 0);
        free(got.logits);
    }
    free(want.logits);
}

static void substitutes_spare_misses_and_are_counted(void **state)
{
    struct run off = run(demo, &quarter, &(moebius_car){0}, ids, n_ids);
    double before = 0;
    for (int i = 0; i < 3; i++) {
        const moebius_car car = {.threshold = (float[]){0.9f, 0.5f, 0.2f}[i]};
        struct run got = run(demo, &quarter, &car, ids, n_ids);
        const moebius_counters *c = &got.counters;
        uint64_t n_choice = off.counters.n_decode_hit + off.counters.n_decode_miss;
        double mean = c->substitute_ratio_sum / (double)c->n_substituted;
        assert_int_equal(c->n_decode_hit + c->n_decode_miss, n_choice);
        assert_true(c->n_decode_hit > off.counters.n_decode_hit);
        assert_true(mean >= car.threshold && mean <= 1);
        assert_true((double)c->n_substituted > before);
        assert_true(c->n_expert_read < off.counters.n_expert_read);
        before = (double)c->n_substituted;
        free(got.logits);
    }
    free(off.logits);
}

/* The mean Kullback-Leibler divergence of b's predictions from a's. */
static double divergence(const struct run *a, const struct run *b)
{
    double sum = 0;
    for (size_t i = 0; i < a->n_logits; i += a->n_vocab) {
        const float *p = a->logits + i, *q = b->logits + i;
        int32_t n = (int32_t)a->n_vocab;
        double log_sum = nll_of(p, n, 0) + (double)p[0], shift = log_sum - nll_of(q, n, 0) - (double)q[0];
        for (int32_t j = 0; j < n; j++)
            sum += exp((double)p[j] - log_sum) * ((double)p[j] - (double)q[j] - shift);
    }
    return sum / (double)(a->n_logits / a->n_vocab);
}

static void random_substitutes_are_clearly_worse(void **state)
{
    const moebius_car car = {.threshold = 0.35f};
    struct run exact = run(demo, &quarter, &(moebius_car){0}, ids, n_ids);
    n_missed = 0;
    struct run best = run(demo, &quarter, &car, ids, n_ids);
    double cost = divergence(&exact, &best), worse = 0;
    random_share = (double)best.counters.n_substituted / (double)n_missed;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        dice = random_seed(seed);
        struct run other = run(demo, &quarter, &car, ids, n_ids);
        double rate = (double)other.counters.n_substituted / (double)best.counters.n_substituted;
        assert_true(rate > 0.8 && rate < 1.25);
        worse += divergence(&exact, &other) / 3;
        free(other.logits);
    }
    random_share = 0;
    print_message("divergence %.4f, with random substitutes %.4f\n", cost, worse);
    assert_true(cost > 0 && worse > 5 * cost);
    free(exact.logits);
    free(best.logits);
}

/* Families with each kind of router; the reference checks every operation. */
static void every_kind_of_router_can_do_it(void **state)
{
    static const char *const names[] = {"qwen3moe",         "olmoe",      "gpt_oss",   "deepseek2",
                                        "deepseek2_latent", "glm4moe",    "llama4",    "gemma4",
                                        "bailingmoe2",      "granitemoe", "qwen3next", "afmoe"};
    const moebius_car car = {.threshold = 0.05f, .damp = true, .n_backfill = 1};
    moebius_engine_options o = {.n_threads = 1, .deterministic = true};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024];
        int32_t tokens[48];
        for (int t = 0; t < 48; t++)
            tokens[t] = (t * 37 + t / 11 * 5) % 96 + 3;
        snprintf(path, sizeof path, "%s/%s.gguf", golden, names[i]);
        o.expert_ram_share = 0.51;
        o.check_ops = true;
        struct run a = run(path, &o, &car, tokens, 48);
        o.check_ops = false;
        o.n_threads = 2;
        struct run b = run(path, &o, &car, tokens, 48);
        if (a.counters.n_substituted == 0)
            fail_msg("%s: nobody stood in", names[i]);
        for (size_t j = 0; j < a.n_logits; j++)
            assert_true(isfinite(a.logits[j]));
        assert_memory_equal(a.logits, b.logits, a.n_logits * sizeof *a.logits);
        free(a.logits);
        free(b.logits);
    }
}

static void options_that_make_no_sense_are_refused(void **state)
{
    static const moebius_car bad[] = {{.threshold = -1},
                                      {.threshold = NAN},
                                      {.threshold = 0.5f, .n_warmup = -1},
                                      {.threshold = 0.5f, .n_protect = -1},
                                      {.threshold = 0.5f, .n_backfill = 65}};
    moebius_error error;
    moebius_engine *g;
    moebius_session *s;
    assert_int_equal(moebius_engine_open(&g, demo, &quarter, &error), MOEBIUS_OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(moebius_session_open(&s, g, &(moebius_session_options){.n_ctx = 64, .car = bad[i]}, &error),
                         MOEBIUS_USAGE);
    moebius_engine_close(&g);
    const moebius_engine_options o = {.deterministic = true, .ram_bytes = 1 << 30};
    assert_int_equal(moebius_engine_open(&g, demo, &o, &error), MOEBIUS_USAGE);
}

/* ---- on a fake drive --------------------------------------------------------------------------------------------- */

/* A model whose experts come from memory, as fast as the drive is said to be. */
struct rig {
    struct gguf *gguf;
    struct pool *pool;
    struct backend *device;
    struct store *files, *fake;
    struct store_fake_file file;
    struct model *model;
    struct state_pool *states;
    struct model_state *state;
    struct model_work *work;
};

static void read_demo(struct rig *r)
{
    size_t n;
    char *bytes = read_file(demo, &n);
    r->file = (struct store_fake_file){"demo.gguf", bytes, n};
}

static void open_rig(struct rig *r, int n_threads, struct store_fake_drive drive)
{
    struct err e;
    read_demo(r);
    if (gguf_open(&r->gguf, demo, &e) || store_open_gguf(&r->files, r->gguf, &e) ||
        store_open_fake(&r->fake, &r->file, 1, &e) || pool_create(&r->pool, n_threads, &e) ||
        backend_cpu_open(&r->device, r->pool, kernels_for(CPU_SCALAR), &e))
        fail_msg("%s", e.text);
    store_fake_set_layers(r->fake, store_get_layer(r->files, 0), store_n_layers(r->files));
    const struct model_load_params p = {
        .device = r->device, .pool = r->pool, .store = r->fake, .expert_budget_share = 0.4, .deterministic = true};
    const struct state_pool_params states = {.type = ELEM_F16, .max_bytes = 64 << 20};
    if (model_load(&r->model, r->gguf, &p, &e) || state_pool_create(&r->states, r->model, &states, &e) ||
        model_state_create(&r->state, r->states, MOST_TOK, &e) || model_work_create(&r->work, r->model, 64, 1, &e))
        fail_msg("%s", e.text);
    assert_int_equal(experts_open(r->model->experts, 0, &e), ERR_OK);
    store_fake_set_drive(r->fake, drive);
}

static void close_rig(struct rig *r)
{
    model_work_close(&r->work);
    model_state_close(&r->state);
    state_pool_close(&r->states);
    model_close(&r->model);
    backend_close(&r->device);
    pool_close(&r->pool);
    store_close(&r->fake);
    store_close(&r->files);
    gguf_close(&r->gguf);
    free((void *)r->file.bytes);
}

/* The negative log-likelihood of a few tokens after a prompt, all its digits. */
static double rig_nll(struct rig *r, struct experts_counters *c)
{
    enum { N = 60 };
    const struct model_forward_params p = {.sort_cutoff = 1};
    float *logits = calloc((size_t)r->model->n_vocab, sizeof *logits);
    double nll = 0;
    struct err e;
    for (int i = N_PROMPT - 1; i < N_PROMPT - 1 + N; i++) {
        bool first = i == N_PROMPT - 1;
        const struct model_rows row = {.state = r->state,
                                       .ids = first ? ids : ids + i,
                                       .n = first ? N_PROMPT : 1,
                                       .n_out = 1,
                                       .is_decode = !first,
                                       .car = {.threshold = 0.4f, .n_backfill = 2}};
        if (model_forward(r->model, r->work, &p, &row, 1, &e))
            fail_msg("%s", e.text);
        model_logits(r->model, r->work, 0, 1);
        if (model_logits_row(r->work, 0, logits, &e))
            fail_msg("%s", e.text);
        nll += nll_of(logits, (int32_t)r->model->n_vocab, ids[i + 1]);
    }
    *c = experts_counters(r->model->experts);
    free(logits);
    return nll;
}

static void deterministic_runs_agree_to_the_last_digit(void **state)
{
    static const struct {
        int n_threads;
        struct store_fake_drive drive;
    } how[] = {
        {1, {0, 0}},          {1, {0, 1000000000}},     {1, {1000000, 100000000}},
        {2, {0, 1000000000}}, {3, {100000, 300000000}}, {4, {0, 0}},
    };
    double want = 0;
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        struct rig r = {0};
        struct experts_counters c;
        open_rig(&r, how[i].n_threads, how[i].drive);
        double got = rig_nll(&r, &c);
        close_rig(&r);
        assert_true(c.n_substituted > 20 && c.n_backfilled > 0);
        want = i == 0 ? got : want;
        if (got != want)
            fail_msg("run %zu: %.17g is not %.17g", i, got, want);
    }
}

static void after_forgetting_a_text_gives_the_same_again(void **state)
{
    struct rig r = {0};
    struct experts_counters c;
    open_rig(&r, 2, (struct store_fake_drive){0, 0});
    double first = rig_nll(&r, &c), second, third;
    model_state_truncate(r.state, 0);
    second = rig_nll(&r, &c);
    experts_forget(r.model->experts);
    model_state_truncate(r.state, 0);
    third = rig_nll(&r, &c);
    assert_true(first != second);
    assert_true(first == third);
    close_rig(&r);
}

int main(int argc, char **argv)
{
    moebius_vocab *vocab;
    moebius_error error;
    int32_t *list;
    if (argc < 3)
        return 2;
    demo = argv[1];
    golden = argv[2];
    if (moebius_vocab_open(&vocab, demo, &error) ||
        moebius_tokenize(vocab, text, sizeof text - 1, true, false, &list, &n_ids, &error) || n_ids > MOST_TOK)
        return 2;
    memcpy(ids, list, n_ids * sizeof *ids);
    moebius_free(list);
    moebius_vocab_close(&vocab);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(off_is_off_to_the_bit),
        cmocka_unit_test(substitutes_spare_misses_and_are_counted),
        cmocka_unit_test(random_substitutes_are_clearly_worse),
        cmocka_unit_test(every_kind_of_router_can_do_it),
        cmocka_unit_test(options_that_make_no_sense_are_refused),
        cmocka_unit_test(deterministic_runs_agree_to_the_last_digit),
        cmocka_unit_test(after_forgetting_a_text_gives_the_same_again),
    };
    return cmocka_run_group_tests_name("car", tests, NULL, NULL);
}
