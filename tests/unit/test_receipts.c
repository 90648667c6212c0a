#define _GNU_SOURCE
/* Receipts: their lines, their file, and what they say of other runs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "jobs/bench_import.h"
#include "engine/receipts_file.h"
#include "temp_folder.h"

static int n_warning;
static char warning[512];

static void note(void *user, enum log_level level, const char *line)
{
    n_warning++;
    snprintf(warning, sizeof warning, "%s", line);
}

static const struct log log_ = {.sink = note};

static struct receipt some(double share, double at, enum regime regime)
{
    struct receipt r = {.time_s = 1000000,
                        .machine = "here",
                        .model = "a \"model\"\n.gguf",
                        .arch = "qwen3moe",
                        .fingerprint = 0xfedcba9876543210,
                        .method = "bench",
                        .regime = regime,
                        .at = at,
                        .n_threads = 2,
                        .n_texts = 1,
                        .n_ctx = 100,
                        .n_prompt = 50,
                        .peak_bytes = 1,
                        .hit_bytes = 2,
                        .read_bytes = 3,
                        .planned_bytes = 4,
                        .floor = 0.5,
                        .settings = "--kv f16"};
    for (int i = 0; i < SPEED_N; i++) {
        r.ceiling[i] = 64;
        r.measured[i] = 64 * share;
        r.forecast_low[i] = 10;
        r.forecast_high[i] = 50;
    }
    return r;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void a_line_is_read_as_it_was_written(void **state)
{
    struct receipt r = some(0.5, 0.25, REGIME_OFFLOAD), back;
    struct err e;
    char *line;
    r.rates[MACHINE_MEMORY] = 3.5e10;
    r.rates[MACHINE_UNITS] = 4e11;
    r.rates[MACHINE_DRIVE] = 2e9;
    for (int i = 0; i < PART_N; i++)
        r.part[SPEED_DECODE][i] = r.part[SPEED_PREFILL][PART_N - 1 - i] = 64 << i;
    assert_int_equal(receipt_write(&r, &line, &e), ERR_OK);
    assert_null(strchr(line, '\n'));
    assert_int_equal(receipt_parse(&back, line, strlen(line), "x", &e), ERR_OK);
    assert_memory_equal(&r, &back, sizeof r);
    mem_free(line);
    r = (struct receipt){.method = "x", .regime = REGIME_RANKS};
    assert_int_equal(receipt_write(&r, &line, &e), ERR_OK);
    assert_int_equal(receipt_parse(&back, line, strlen(line), "x", &e), ERR_OK);
    assert_memory_equal(&r, &back, sizeof r);
    mem_free(line);
}

static void what_is_no_receipt_is_refused_with_its_key(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "JSON object"},
        {"[]", "JSON object"},
        {"{\"regime\": \"ram\"", "JSON object"},
        {"{\"method\": \"x\"}", "\"regime\""},
        {"{\"regime\": \"warp\", \"method\": \"x\"}", "\"regime\""},
        {"{\"regime\": \"ram\"}", "\"method\""},
        {"{\"regime\": \"ram\", \"method\": \"x\", \"decode\": \"fast\"}", "\"decode\""},
        {"{\"regime\": \"ram\", \"method\": \"x\", \"decode\": -1}", "\"decode\""},
        {"{\"regime\": \"ram\", \"method\": \"x\", \"at\": 1.5}", "\"at\""},
        {"{\"regime\": \"ram\", \"method\": \"x\", \"threads\": 1.5}", "\"threads\""},
        {"{\"regime\": \"ram\", \"method\": \"x\", \"fingerprint\": \"12\"}", "\"fingerprint\""},
        {"{\"regime\": \"ram\", \"method\": \"x\", \"method\": \"y\"}", "JSON object"},
        {"{\"regime\": \"ram\", \"method\": \"012345678901234567890123456789012\"}", "\"method\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct receipt r;
        struct err e;
        assert_int_equal(receipt_parse(&r, cases[i].text, strlen(cases[i].text), "FILE, line 7", &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "FILE, line 7"));
        assert_non_null(strstr(e.text, cases[i].says));
    }
}

static void keys_of_later_versions_are_passed_over(void **state)
{
    static const char text[] = "{\"regime\": \"ram\", \"method\": \"x\", \"colour\": [1], \"decode\": 5}";
    struct receipt r;
    struct err e;
    assert_int_equal(receipt_parse(&r, text, strlen(text), "x", &e), ERR_OK);
    assert_true(r.measured[SPEED_DECODE] == 5);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static void append_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void add(const char *path, const struct receipt *r)
{
    struct err e;
    if (receipts_add(path, r, 1, &log_, &e) != ERR_OK)
        fail_msg("%s", e.text);
}

static size_t count(const char *path, struct receipt **list)
{
    struct err e;
    size_t n;
    if (receipts_load(path, list, &n, &log_, &e) != ERR_OK)
        fail_msg("%s", e.text);
    return n;
}

static void processes_that_add_at_once_lose_none(void **state)
{
    enum { N_PROCESS = 6, N_EACH = 20 };
    struct temp_path p = temp_path(&folder, "shared.jsonl");
    struct receipt *list;
    bool seen[N_PROCESS * N_EACH + 1] = {false};
    for (int i = 0; i < N_PROCESS; i++)
        if (fork() == 0) {
            struct err e;
            bool ok = true;
            for (int k = 0; k < N_EACH; k++) {
                struct receipt r = some(0.5, 0, REGIME_RAM);
                r.n_ctx = 1 + i * N_EACH + k;
                ok = receipts_add(p.s, &r, 1, NULL, &e) == ERR_OK && ok;
            }
            _exit(!ok);
        }
    for (int i = 0, status; i < N_PROCESS; i++) {
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(count(p.s, &list), N_PROCESS * N_EACH);
    for (int i = 0; i < N_PROCESS * N_EACH; i++) {
        assert_false(seen[list[i].n_ctx]);
        seen[list[i].n_ctx] = true;
    }
    mem_free(list);
}

static void the_oldest_go_when_there_are_many(void **state)
{
    enum { MORE = 7 };
    struct temp_path p = temp_path(&folder, "many.jsonl");
    struct receipt *many = mem_calloc(RECEIPTS_MAX, sizeof *many), *list;
    struct err e;
    for (int i = 0; i < RECEIPTS_MAX; i++) {
        many[i] = some(0.5, 0, REGIME_RAM);
        many[i].n_ctx = i + 1;
    }
    assert_int_equal(receipts_add(p.s, many, RECEIPTS_MAX, NULL, &e), ERR_OK);
    assert_int_equal(receipts_add(p.s, many, MORE, NULL, &e), ERR_OK);
    assert_int_equal(count(p.s, &list), RECEIPTS_MAX);
    assert_int_equal(list[0].n_ctx, MORE + 1);
    assert_int_equal(list[RECEIPTS_MAX - 1].n_ctx, MORE);
    mem_free(list);
    mem_free(many);
}

static void damaged_lines_are_set_aside_and_all_others_stay(void **state)
{
    struct temp_path p = temp_path(&folder, "torn.jsonl"), aside = temp_path(&folder, "torn.jsonl.damaged");
    struct receipt r = some(0.5, 0, REGIME_RAM), *list;
    static const char later[] = "{\"regime\":\"ram\",\"method\":\"later\",\"more\":1}\n";
    char text[4096] = "";
    n_warning = 0;
    add(p.s, &r);
    append_text(p.s, later);
    append_text(p.s, "{\"regime\":\"ram\",\"meth");
    assert_int_equal(count(p.s, &list), 2); /* reading changes nothing */
    mem_free(list);
    assert_int_equal(n_warning, 1);
    assert_non_null(strstr(warning, "line 3"));
    assert_int_equal(access(aside.s, F_OK), -1);
    add(p.s, &r);
    assert_int_equal(n_warning, 2);
    assert_non_null(strstr(warning, "torn.jsonl.damaged"));
    assert_int_equal(count(p.s, &list), 3);
    assert_int_equal(n_warning, 2);
    mem_free(list);
    FILE *f = fopen(aside.s, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_string_equal(text, "{\"regime\":\"ram\",\"meth\n");
    f = fopen(p.s, "r");
    assert_non_null(fgets(text, sizeof text, f));
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_string_equal(text, later); /* with the key that this version does not know */
}

/* ---- calibration ------------------------------------------------------------------------------------------------- */

static const struct calibration_query here = {.of = SPEED_DECODE,
                                              .regime = REGIME_RAM,
                                              .n_texts = 1,
                                              .machine = "here",
                                              .fingerprint = 0xfedcba9876543210,
                                              .time = {1.0 / 64, {1.0 / 64}}};

static struct calibration calibrate(const struct receipt *list, size_t n, struct calibration_query q)
{
    struct calibration c;
    assert_true(receipts_calibrate(list, n, &q, &c));
    assert_true(0 < c.low && c.low <= c.share && c.share <= c.high && c.high <= 1);
    return c;
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) < 1e-6))
        fail_msg("%g, expected %g", a, b);
}

/* Of two with other shares and weights, least squares over times. */
static double mean_share(double w, double share, double v, double other)
{
    return (w * share * share + v * other * other) / (w * share + v * other);
}

static void without_receipts_of_the_regime_nothing_is_said(void **state)
{
    struct receipt list[] = {some(0.5, 0, REGIME_STREAM), some(0.5, 0, REGIME_RAM)};
    struct calibration c;
    list[1].ceiling[SPEED_DECODE] = 0;
    assert_false(receipts_calibrate(list, 2, &here, &c));
    assert_false(receipts_calibrate(NULL, 0, &here, &c));
}

static void more_that_agree_narrow_the_band(void **state)
{
    struct receipt list[] = {some(0.60, 0, REGIME_RAM), some(0.61, 0, REGIME_RAM), some(0.59, 0, REGIME_RAM)};
    struct calibration one = calibrate(list, 1, here), three = calibrate(list, 3, here);
    assert_near(one.share, 0.60);
    assert_true(fabs(three.share - 0.60) < 0.001);
    assert_int_equal(three.n_used, 3);
    assert_true(three.high - three.low < one.high - one.low);
    assert_false(three.is_outside);
    list[2] = some(0.40, 0, REGIME_RAM);
    struct calibration apart = calibrate(list, 3, here);
    assert_true(apart.high - apart.low > three.high - three.low);
    assert_true(apart.high <= 1.2 * apart.share + 1e-9);
}

static void nearer_places_of_a_regime_count_more_and_outside_the_band_is_wider(void **state)
{
    struct receipt list[] = {some(0.8, 0.2, REGIME_OFFLOAD), some(0.4, 0.6, REGIME_OFFLOAD)};
    struct calibration_query q = here;
    q.regime = REGIME_OFFLOAD;
    q.at = 0.3;
    struct calibration c = calibrate(list, 2, q);
    assert_true(0.4 < c.share && c.share < 0.8);
    assert_false(c.is_outside);
    q.at = 0.35;
    assert_true(calibrate(list, 2, q).share < c.share);
    q.at = 0.9;
    struct calibration out = calibrate(list, 2, q);
    assert_true(fabs(out.share - 0.4) < 0.01);
    assert_true(out.is_outside);
    q.at = 0.6;
    c = calibrate(list, 2, q);
    assert_true(fabs(c.share - 0.4) < 0.01);
    assert_true(out.high / out.share > c.high / c.share);
}

/* A run whose parts take so many milliseconds for a token at least, and are each slower by a factor. */
static struct receipt of_parts(enum regime regime, const double ms[PART_N], const double factor[PART_N])
{
    struct receipt r = some(0, 0.3, regime);
    double least = 0, took = 0;
    for (int p = 0; p < PART_N; p++) {
        least = p == PART_READS ? fmax(least, ms[p]) : least + ms[p];
        took += ms[p] * factor[p];
    }
    for (int i = 0; i < SPEED_N; i++) {
        r.ceiling[i] = 1e3 / least;
        r.measured[i] = 1e3 / took;
        for (int p = 0; p < PART_N; p++)
            r.part[i][p] = ms[p] > 0 ? 1e3 / ms[p] : 0;
    }
    return r;
}

static struct calibration_query asked(const struct receipt *r)
{
    struct calibration_query q = here;
    q.regime = r->regime;
    q.time.least_s = 1 / r->ceiling[SPEED_DECODE];
    for (int p = 0; p < PART_N; p++)
        q.time.part_s[p] = r->part[SPEED_DECODE][p] > 0 ? 1 / r->part[SPEED_DECODE][p] : 0;
    return q;
}

static const double slow[PART_N] = {1.25, 2, 1.75, 0.9}; /* reads partly beside the rest */

/* Runs in memory and runs that read tell of each other, as far as each has the parts. */
static void a_run_is_forecast_from_its_parts(void **state)
{
    const double memory[] = {10, 1, 0, 0}, deep[] = {10, 6, 0, 0}, reads[] = {10, 1, 0, 40}, other[] = {7, 4, 0, 12};
    struct receipt list[] = {of_parts(REGIME_RAM, memory, slow), of_parts(REGIME_RAM, deep, slow),
                             of_parts(REGIME_STREAM, reads, slow)};
    const struct receipt asks = of_parts(REGIME_STREAM, other, slow);
    struct calibration c = calibrate(list, 3, asked(&asks));
    assert_true(fabs(c.share / receipt_share(&asks, SPEED_DECODE) - 1) < 0.03);
    assert_int_equal(c.n_used, 3);
    assert_false(c.is_outside);
    struct calibration less;
    const struct calibration_query q = asked(&asks);
    assert_false(receipts_calibrate(list, 2, &q, &less)); /* nothing is known of reads */
    less = calibrate(list + 2, 1, q);                     /* and here nothing of one part alone */
    assert_true(less.high / less.share > c.high / c.share);
    struct calibration_query in_memory = asked(&list[0]);
    const double mostly[] = {10, 1, 0, 160};
    const struct receipt read = of_parts(REGIME_STREAM, mostly, slow); /* says little of anything else */
    assert_false(receipts_calibrate(&read, 1, &in_memory, &less));
    list[2].measured[SPEED_DECODE] *= 0.5;
    assert_true(calibrate(list, 3, q).share < 0.75 * c.share);
    list[2].machine[0] = 'w'; /* another machine's drives, where this one's are not known */
    assert_true(calibrate(list, 3, q).is_outside);
}

/* A GPU with all experts says nothing of a processor beside it, and both together say all. */
static void parts_beside_a_gpu_are_told_by_runs_that_have_them(void **state)
{
    const double all[] = {2, 0.5, 0, 0}, half[] = {1.5, 0.5, 12, 0}, most[] = {1, 0.5, 24, 0};
    const struct receipt list[] = {of_parts(REGIME_VRAM, all, slow), of_parts(REGIME_OFFLOAD, half, slow)},
                         asks = of_parts(REGIME_OFFLOAD, most, slow), on_cpu = of_parts(REGIME_RAM, all, slow);
    const struct calibration_query q = asked(&asks), cpu = asked(&on_cpu);
    struct calibration c;
    assert_false(receipts_calibrate(list, 1, &q, &c));
    assert_false(receipts_calibrate(list, 2, &cpu, &c));
    assert_true(fabs(calibrate(list, 2, q).share / receipt_share(&asks, SPEED_DECODE) - 1) < 0.02);
}

static void own_machine_and_model_come_before_others(void **state)
{
    struct receipt list[] = {some(0.3, 0, REGIME_RAM), some(0.6, 0, REGIME_RAM), some(0.5, 0, REGIME_RAM)};
    strcpy(list[0].machine, "elsewhere");
    list[2].fingerprint = 1;
    assert_near(calibrate(list, 3, here).share, 0.6);
    struct calibration_query q = here;
    q.fingerprint = 2;
    struct calibration other = calibrate(list, 3, q), own = calibrate(list, 3, here);
    assert_near(other.share, mean_share(1, 0.6, 1, 0.5));
    assert_true(other.is_outside && !own.is_outside);
    q.machine = "nowhere";
    struct calibration foreign = calibrate(list, 3, q);
    assert_true(foreign.is_outside && foreign.high / foreign.share > own.high / own.share);
}

/* Two kinds of runs, which are fitted exactly together, and from which neither is told without the other. */
static void models_that_the_others_do_not_tell_of_widen_the_band(void **state)
{
    static const double products[PART_N] = {10, 1}, attention[PART_N] = {1, 10}, both[PART_N] = {5, 5};
    static const double factor[PART_N] = {1.25, 1.5, 1, 1};
    enum { N = 8 };
    struct receipt list[N];
    struct receipt other = of_parts(REGIME_RAM, both, factor);
    struct calibration_query q = asked(&other);
    q.fingerprint = 1;
    for (int i = 0; i < N; i++)
        list[i] = of_parts(REGIME_RAM, i % 2 ? products : attention, factor);
    struct calibration of_one = calibrate(list, N, q);
    for (int i = 0; i < N; i += 2)
        list[i].fingerprint--;
    struct calibration of_two = calibrate(list, N, q);
    assert_near(of_two.share, of_one.share);
    assert_true(of_two.high - of_two.low > 1.2 * (of_one.high - of_one.low));
    assert_true(of_two.low >= 0.8 * of_two.share - 1e-9);
}

static void the_old_is_forgotten(void **state)
{
    struct receipt list[] = {some(0.3, 0, REGIME_RAM), some(0.6, 0, REGIME_RAM)};
    list[1].time_s += 60 * 86400;
    assert_near(calibrate(list, 2, here).share, mean_share(1, 0.6, 0.5, 0.3));
    list[1].time_s += 365 * 86400;
    assert_near(calibrate(list, 2, here).share, 0.6);
    assert_near(calibrate(list, 1, here).share, 0.3); /* nothing newer is there */
}

static void runs_of_as_many_texts_count_more(void **state)
{
    struct receipt list[] = {some(0.3, 0, REGIME_RAM), some(0.6, 0, REGIME_RAM)};
    list[0].n_texts = 8;
    assert_true(calibrate(list, 2, here).share > 0.5);
    struct calibration_query q = here;
    q.n_texts = 8;
    assert_true(calibrate(list, 2, q).share < 0.4);
}

static void runs_with_as_many_threads_and_tokens_count_more(void **state)
{
    struct receipt list[] = {some(0.3, 0, REGIME_RAM), some(0.6, 0, REGIME_RAM)};
    struct calibration_query q = here;
    list[0].n_threads = 1;
    list[1].n_threads = 8;
    assert_near(calibrate(list, 2, here).share, mean_share(1, 0.3, 1, 0.6)); /* nobody asks for a number */
    q.n_threads = 2;
    assert_near(calibrate(list, 2, q).share, mean_share(4, 0.3, 1, 0.6)); /* 2^-2 and 2^-4 */
    q.n_threads = 0;
    list[0].n_ctx = 1024;
    list[1].n_ctx = 31 * 1024;
    q.n_tok = 7 * 1024; /* two doublings from each */
    assert_near(calibrate(list, 2, q).share, mean_share(1, 0.3, 1, 0.6));
    q.n_tok = 15 * 1024;
    assert_near(calibrate(list, 2, q).share, mean_share(1, 0.3, 4, 0.6));
    q.of = SPEED_PREFILL;
    list[0].measured[SPEED_PREFILL] = 0.3 * list[0].ceiling[SPEED_PREFILL];
    list[1].measured[SPEED_PREFILL] = 0.6 * list[1].ceiling[SPEED_PREFILL];
    list[0].n_threads = list[1].n_threads = 0;
    list[0].n_prompt = 128;
    list[1].n_prompt = 2048;
    q.n_tok = 512;
    assert_near(calibrate(list, 2, q).share, mean_share(1, 0.3, 1, 0.6));
    q.n_tok = 1024;
    assert_near(calibrate(list, 2, q).share, mean_share(1, 0.3, 4, 0.6));
}

static void above_the_ceiling_is_told_and_does_not_count(void **state)
{
    struct receipt list[] = {some(0.5, 0, REGIME_RAM), some(1.3, 0, REGIME_RAM), some(1.2, 0, REGIME_RAM)};
    struct calibration c = calibrate(list, 3, here);
    assert_near(c.share, 0.5);
    assert_int_equal(c.n_above, 2);
    assert_false(receipts_calibrate(list + 1, 1, &here, &c));
    assert_int_equal(c.n_above, 1);
    assert_near(receipt_share(&list[1], SPEED_PREFILL), 1.3);
    assert_false(receipt_is_inside(&list[1], SPEED_DECODE));
    assert_true(receipt_is_inside(&list[0], SPEED_DECODE));
}

/* Qwen3-30B-A3B on an RTX 5090, measured by others with 24 and 48 of 48 layers' experts on the CPU. */
static void published_offloading_is_forecast_from_the_other_one(void **state)
{
    static const char text[] =
        "[{\"cpu_info\": \"A\", \"gpu_info\": \"RTX 5090\", \"model_filename\": \"/m/Q.gguf\", \"n_threads\": 16, "
        "\"n_gpu_layers\": 99, \"n_cpu_moe\": %d, \"n_prompt\": 0, \"n_gen\": 128, \"avg_ts\": %g, "
        "\"test_time\": \"2026-11-01T12:00:00Z\"}]";
    static const struct {
        int n;
        double measured, ceiling, share;
    } runs[] = {{24, 41.9, 69, 0.61}, {48, 20.4, 36, 0.56}, {0, 302.4, 738, 0.41}};
    struct receipt list[3];
    struct err e;
    for (int i = 0; i < 3; i++) {
        const struct bench_import in = {.n_layer = 48, .ceiling = {[SPEED_DECODE] = runs[i].ceiling}};
        char file[512];
        struct receipt *got;
        size_t n;
        snprintf(file, sizeof file, text, runs[i].n, runs[i].measured);
        assert_int_equal(bench_import_read(&in, file, strlen(file), "x.json", &got, &n, &e), ERR_OK);
        assert_int_equal(n, 1);
        list[i] = got[0];
        assert_int_equal(got[0].regime, runs[i].n ? REGIME_OFFLOAD : REGIME_VRAM);
        assert_int_equal(got[0].time_s, 1793534400);
        assert_string_equal(got[0].model, "Q.gguf");
        assert_true(fabs(receipt_share(got, SPEED_DECODE) - runs[i].share) < 0.01);
        mem_free(got);
    }
    for (int i = 0; i < 2; i++) {
        struct calibration_query q = {.of = SPEED_DECODE,
                                      .regime = REGIME_OFFLOAD,
                                      .at = list[i].at,
                                      .n_texts = 1,
                                      .machine = "A",
                                      .time = here.time};
        struct receipt others[] = {list[!i], list[2]};
        struct calibration c = calibrate(others, 2, q);
        assert_true(c.low <= runs[i].share && runs[i].share <= c.high);
        assert_int_equal(c.n_used, 1); /* that with all experts in VRAM is of another regime */
    }
}

static void what_llama_bench_does_not_write_is_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{}", "array"},
        {"[1]", "entry 1: expected an object"},
        {"[]", "no entry"},
        {"[{\"n_prompt\": 5, \"n_gen\": 5, \"avg_ts\": 1}]", "no entry"},
        {"[{\"n_prompt\": 5, \"n_gen\": 0}]", "\"avg_ts\""},
        {"[{\"n_prompt\": \"5\", \"avg_ts\": 1}]", "\"n_prompt\""},
        {"[{\"n_gen\": 5, \"avg_ts\": 1, \"gpu_info\": \"G\", \"n_gpu_layers\": 9, \"n_cpu_moe\": 2}]", "--layers"},
        {"[{\"n_gen\": 5, \"avg_ts\": 1, \"n_prompt\": -1}]", "\"n_prompt\": expected a number of 0 or more"},
        {"[{\"n_gen\": 5, \"avg_ts\": 1, \"n_depth\": -1}]", "\"n_depth\""},
        {"[{\"n_gen\": 5, \"avg_ts\": 1, \"n_threads\": -1}]", "\"n_threads\""},
        {"[{\"n_gen\": 5, \"avg_ts\": 1, \"n_gpu_layers\": -2}]", "\"n_gpu_layers\": expected a number of -1 or more"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct receipt *list;
        size_t n;
        struct err e;
        const struct bench_import in = {0};
        assert_int_not_equal(bench_import_read(&in, cases[i].text, strlen(cases[i].text), "x.json", &list, &n, &e),
                             ERR_OK);
        assert_null(list);
        assert_non_null(strstr(e.text, "x.json"));
        assert_non_null(strstr(e.text, cases[i].says));
    }
}

/* What receipts say of a rate of which one thread has 10e9 and two have 20e9. */
static void expect_median(const struct machine *m, enum machine_rate rate)
{
    struct machine unknown = {.name = "here"};
    struct receipt list[4];
    int n;
    for (int i = 0; i < 4; i++) {
        list[i] = some(0.5, 0, REGIME_RAM);
        list[i].n_threads = 2;
    }
    assert_near(receipts_rate_factor(list, 4, m, rate, 2, &n), 1); /* none tells */
    assert_int_equal(n, 0);
    list[3].rates[rate] = 24e9;
    assert_near(receipts_rate_factor(list, 4, m, rate, 2, &n), 1.1); /* the probe's own counts as one */
    assert_int_equal(n, 1);
    list[2].rates[rate] = 26e9;
    assert_near(receipts_rate_factor(list, 4, m, rate, 2, &n), 1.2);
    assert_near(receipts_rate_factor(list, 4, m, rate, 1, &n), 1.2); /* those with others, as there are none with one */
    list[3].n_threads = 1;
    assert_near(receipts_rate_factor(list, 4, m, rate, 2, &n), 1.15); /* those with as many threads alone */
    assert_near(receipts_rate_factor(list, 4, m, rate, 1, &n), 1.7);
    list[1].rates[rate] = list[0].rates[rate] = 40e9;
    snprintf(list[1].machine, sizeof list[1].machine, "elsewhere");
    list[0].time_s -= 365 * 86400;
    assert_near(receipts_rate_factor(list, 4, m, rate, 2, &n), 1.15); /* another machine's, and old ones, don't count */
    assert_int_equal(n, 1);
    assert_near(receipts_rate_factor(list, 4, &unknown, rate, 2, &n), 1); /* over what is unknown */
    assert_near(receipts_rate_factor(NULL, 0, m, rate, 2, &n), 1);
}

static void rates_are_the_median_of_what_was_measured(void **state)
{
    const struct machine m = {.name = "here",
                              .n_thread = 2,
                              .n_memory = 2,
                              .memory = {{1, 10e9}, {2, 20e9}},
                              .int8_per_s = 20e9,
                              .thread_int8_per_s = 10e9};
    expect_median(&m, MACHINE_MEMORY);
    expect_median(&m, MACHINE_UNITS);
}

static void a_drive_gives_what_runs_of_any_threads_found(void **state)
{
    struct machine m = {
        .name = "here", .n_drive = 1, .drives = {{.reads = {{64 << 10, 4, 10e9}, {1 << 20, 4, 20e9}}, .n_read = 2}}};
    struct receipt list[2] = {some(0.5, 0, REGIME_RAM), some(0.5, 0, REGIME_STREAM)};
    int n;
    list[0].n_threads = 1;
    list[0].rates[MACHINE_DRIVE] = 24e9;
    list[1].rates[MACHINE_DRIVE] = 26e9;
    assert_near(receipts_rate_factor(list, 2, &m, MACHINE_DRIVE, 0, &n), 1.2);
    assert_int_equal(n, 2);
    m.n_drive = 2; /* receipts don't say which */
    m.drives[1] = m.drives[0];
    assert_near(receipts_rate_factor(list, 2, &m, MACHINE_DRIVE, 0, &n), 1);
    assert_int_equal(n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_read_as_it_was_written),
        cmocka_unit_test(what_is_no_receipt_is_refused_with_its_key),
        cmocka_unit_test(keys_of_later_versions_are_passed_over),
        cmocka_unit_test(processes_that_add_at_once_lose_none),
        cmocka_unit_test(the_oldest_go_when_there_are_many),
        cmocka_unit_test(damaged_lines_are_set_aside_and_all_others_stay),
        cmocka_unit_test(without_receipts_of_the_regime_nothing_is_said),
        cmocka_unit_test(more_that_agree_narrow_the_band),
        cmocka_unit_test(nearer_places_of_a_regime_count_more_and_outside_the_band_is_wider),
        cmocka_unit_test(a_run_is_forecast_from_its_parts),
        cmocka_unit_test(parts_beside_a_gpu_are_told_by_runs_that_have_them),
        cmocka_unit_test(own_machine_and_model_come_before_others),
        cmocka_unit_test(models_that_the_others_do_not_tell_of_widen_the_band),
        cmocka_unit_test(the_old_is_forgotten),
        cmocka_unit_test(runs_of_as_many_texts_count_more),
        cmocka_unit_test(runs_with_as_many_threads_and_tokens_count_more),
        cmocka_unit_test(above_the_ceiling_is_told_and_does_not_count),
        cmocka_unit_test(published_offloading_is_forecast_from_the_other_one),
        cmocka_unit_test(what_llama_bench_does_not_write_is_refused),
        cmocka_unit_test(rates_are_the_median_of_what_was_measured),
        cmocka_unit_test(a_drive_gives_what_runs_of_any_threads_found),
    };
    return cmocka_run_group_tests_name("receipts", tests, folder_setup, folder_teardown);
}
