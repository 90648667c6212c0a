/* Tunings decide speed alone: with any of them the logits are the same to the bit. What a user meets who names one, and
 * what becomes of a damaged one. usage: test_tuning GOLDEN_DIRECTORY */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../unit/temp_folder.h"
#include "engine/tuning.h"
#include "moebius/moebius.h"

static const char *golden;

enum { N_PROMPT = 70, N_DECODE = 6, MAX_VOCAB = 4096 };

/* The lines of a log, one behind the other. */
struct lines {
    char text[4096];
};

static void note_line(void *user, enum moebius_log_level level, const char *line)
{
    struct lines *l = user;
    size_t n = strlen(l->text);
    snprintf(l->text + n, sizeof l->text - n, "%d: %s\n", (int)level, line);
}

static moebius_status open_engine(const char *name, int n_threads, const char *tuning, struct lines *lines,
                                  moebius_engine **out, moebius_error *error)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.gguf", golden, name);
    return moebius_engine_open(
        out, path,
        &(moebius_engine_options){
            .n_threads = n_threads, .tuning = tuning, .log = lines ? note_line : NULL, .user = lines},
        error);
}

/* The logits after a prompt and of each token that is decoded after it. Returns how many there are of each. */
static int compute(const char *name, int n_threads, const char *tuning, float logits[N_DECODE + 1][MAX_VOCAB])
{
    moebius_error error;
    moebius_engine *g;
    moebius_session *s;
    int32_t ids[N_PROMPT + N_DECODE];
    if (open_engine(name, n_threads, tuning, NULL, &g, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    int n_vocab = moebius_n_vocab(g);
    assert_in_range(n_vocab, 1, MAX_VOCAB);
    for (int i = 0; i < N_PROMPT + N_DECODE; i++)
        ids[i] = (i * 37 + i / 11 * 5) % n_vocab;
    if (moebius_session_open(&s, g, &(moebius_session_options){.n_ctx = 128}, &error) != MOEBIUS_OK)
        fail_msg("%s", error.text);
    for (int i = 0, n = N_PROMPT; i <= N_DECODE; i++, n = 1) {
        assert_int_equal(moebius_session_eval(s, ids + (i ? N_PROMPT + i - 1 : 0), (size_t)n, &error), MOEBIUS_OK);
        memcpy(logits[i], moebius_session_logits(s), (size_t)n_vocab * sizeof **logits);
    }
    moebius_session_close(&s);
    moebius_engine_close(&g);
    return n_vocab;
}

static struct temp_path write_text(const char *name, const char *text)
{
    struct temp_path p = temp_path(&folder, name);
    write_text_file(p.s, text);
    return p;
}

#define HEAD                    "moebius tuning 7\nmachine nowhere\nbuild never\n"
#define TYPE(name, ahead, from) name " " ahead " " from "\n" /* from: of several, tiles, panels */
#define ALL(ahead, from)                                                                                               \
    "prefetch_several " ahead "\nproducts 7\n" TYPE("Q4_K", ahead, from) TYPE("Q6_K", ahead, from)                     \
        TYPE("Q8_0", ahead, from) TYPE("F32", ahead, from) TYPE("F16", ahead, from) TYPE("MXFP4", ahead, from)         \
            TYPE("Q4_0", ahead, from)

static void no_tuning_changes_a_bit(void **state)
{
    static const char *const models[] = {"qwen3moe", "q_q4_0", "gpt_oss", "qwen3next", "deepseek2"};
    static const char *const absurd[] = {
        HEAD "task_weights 4096\nspins 0\n" ALL("0 L1", "2 0 0") "sort_cutoff 0\n",
        HEAD "task_weights 1073741824\nspins 1048576\n" ALL("1048576 NTA", "5 1 1") "sort_cutoff 0\n",
        HEAD "task_weights 5000\nspins 1\n" ALL("3 L2", "1048576 5 0") "sort_cutoff 0\n",
    };
    static float plain[N_DECODE + 1][MAX_VOCAB], tuned[N_DECODE + 1][MAX_VOCAB];
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
            struct temp_path p = write_text("absurd", absurd[i]);
            int n_vocab = compute(models[m], 1, NULL, plain);
            compute(models[m], 1 + (int)i, p.s, tuned);
            for (int t = 0; t <= N_DECODE; t++)
                assert_memory_equal(plain[t], tuned[t], (size_t)n_vocab * sizeof **plain);
        }
}

static void a_tuning_that_the_user_named_is_used_or_an_error(void **state)
{
    struct lines lines = {{0}};
    moebius_error error;
    moebius_engine *g;
    struct temp_path good = write_text("good", HEAD "task_weights 4096\nspins 9\nprefetch_several 0 L1\nproducts 0\n"
                                                    "sort_cutoff 0\n");
    struct temp_path bad = write_text("bad", HEAD "task_weights 1"), none = temp_path(&folder, "none");
    assert_int_equal(open_engine("qwen3moe", 1, good.s, &lines, &g, &error), MOEBIUS_OK);
    assert_non_null(strstr(lines.text, "another machine or build: nowhere; build never"));
    assert_int_equal(engine_tuning(g)->cpu.n_spin, 9);
    moebius_engine_close(&g);
    assert_int_equal(open_engine("qwen3moe", 1, bad.s, NULL, &g, &error), MOEBIUS_FORMAT);
    assert_non_null(strstr(error.text, "bad, line 4"));
    assert_int_equal(open_engine("qwen3moe", 1, none.s, NULL, &g, &error), MOEBIUS_IO);
    assert_non_null(strstr(error.text, "none: there is no such file"));
}

static void a_damaged_file_of_the_cache_is_a_warning_once(void **state)
{
    struct lines first = {{0}}, second = {{0}};
    struct err e;
    moebius_error error;
    moebius_engine *g;
    char *path, aside[1024];
    assert_int_equal(open_engine("qwen3moe", 1, NULL, NULL, &g, &error), MOEBIUS_OK);
    assert_int_equal(engine_save_tuning(g, NULL, &path, &e), ERR_OK);
    moebius_engine_close(&g);
    FILE *f = fopen(path, "a");
    fputs("more", f);
    fclose(f);
    assert_int_equal(open_engine("qwen3moe", 1, NULL, &first, &g, &error), MOEBIUS_OK);
    moebius_engine_close(&g);
    snprintf(aside, sizeof aside, "%s.damaged", path);
    assert_non_null(strstr(first.text, "found \"more\", expected the end of the file; it is now "));
    assert_int_equal(access(aside, F_OK), 0);
    assert_int_equal(open_engine("qwen3moe", 1, NULL, &second, &g, &error), MOEBIUS_OK);
    moebius_engine_close(&g);
    assert_string_equal(second.text, "");
    moebius_free(path);
}

static int make_folder(void **state)
{
    return temp_folder_make(&folder) || setenv("XDG_CACHE_HOME", folder.path, 1);
}

static int remove_folder(void **state)
{
    temp_folder_remove(&folder);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_tuning_changes_a_bit),
        cmocka_unit_test(a_tuning_that_the_user_named_is_used_or_an_error),
        cmocka_unit_test(a_damaged_file_of_the_cache_is_a_warning_once),
    };
    golden = argc > 1 ? argv[1] : "";
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
