#define _GNU_SOURCE
/* Names of models, and choosing among a repository's files. What needs a server is in tests/e2e/test_pull.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "hub/hub.h"
#include "hub/hub_api.h"
#include "hub/piece_table.h"
#include "temp_folder.h"

static const char endpoint[] = "https://hub.example";

static struct model_name parse(const char *text)
{
    struct model_name name;
    struct err e = {0};
    assert_int_equal(model_name_parse(&name, text, endpoint, &e), ERR_OK);
    return name;
}

static void names_have_a_repository_a_revision_and_what_is_meant(void **state)
{
    static const struct {
        const char *text, *repo, *revision, *what;
    } cases[] = {
        {"hf:a/b", "a/b", "main", ""},
        {"hf:a/b:Q4_K_M", "a/b", "main", "Q4_K_M"},
        {"hf:a/b.c-d_e:sub/f-00001-of-00002.gguf", "a/b.c-d_e", "main", "sub/f-00001-of-00002.gguf"},
        {"hf:a/b@refs/pr/1:Q8_0", "a/b", "refs/pr/1", "Q8_0"},
        {"https://hub.example/a/b/resolve/v1/sub/f.gguf", "a/b", "v1", "sub/f.gguf"},
        {"https://hub.example/a/b/blob/main/f.gguf#top", "a/b", "main", "f.gguf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct model_name name = parse(cases[i].text);
        assert_int_equal(name.kind, MODEL_NAME_HUB);
        assert_string_equal(name.repo, cases[i].repo);
        assert_string_equal(name.revision, cases[i].revision);
        assert_string_equal(name.what, cases[i].what);
        assert_true(model_name_is_remote(cases[i].text));
    }
}

static void other_addresses_and_files_are_told_apart(void **state)
{
    static const char *const urls[] = {
        "https://x.example/f.gguf", "HTTP://x/f.gguf", "https://hub.example.evil/a/b/resolve/main/f.gguf",
        "https://hub.example/a/b/resolve/main/../f.gguf", "https://hub.example/a/b/resolve/main/%2e%2e/f.gguf"};
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++)
        assert_int_equal(parse(urls[i]).kind, MODEL_NAME_URL);
    assert_int_equal(parse("model.gguf").kind, MODEL_NAME_FILE);
    assert_int_equal(parse("hf/model.gguf").kind, MODEL_NAME_FILE);
    assert_false(model_name_is_remote("./hf:x"));
}

static void names_that_lead_elsewhere_are_refused(void **state)
{
    static const char *const bad[] = {"hf:",
                                      "hf:a",
                                      "hf:a/",
                                      "hf:a/b/c",
                                      "hf:../b",
                                      "hf:a/..",
                                      "hf:a--x/b",
                                      "hf:a/-b",
                                      "hf:a/b:../c",
                                      "hf:a/b:/c",
                                      "hf:a/b@..",
                                      "hf:a/b@x/../y",
                                      "hf:a/b@:Q4",
                                      "hf:a/b:",
                                      "hf:a/b:c\x1b[2J",
                                      "hf:a/b c",
                                      "hf:a\n/b",
                                      "http://a\nb",
                                      "https://\xff/f.gguf"};
    struct model_name name;
    struct err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(model_name_parse(&name, bad[i], endpoint, &e), ERR_USAGE);
}

/* ---- sets ------------------------------------------------------------------------------------------------------ */

static struct model_sets make_sets(const char *const *paths, size_t n)
{
    struct model_sets s = {0};
    struct err e;
    for (size_t i = 0; i < n; i++)
        assert_int_equal(model_sets_add(&s, &(struct hub_file){.path = paths[i], .n_bytes = 10 + i}, &e), ERR_OK);
    assert_int_equal(model_sets_group(&s, &e), ERR_OK);
    return s;
}

static void split_files_are_one_model_and_companions_none(void **state)
{
    static const char *const paths[] = {"m-Q8_0-00002-of-00002.gguf",
                                        "m-Q8_0-00001-of-00002.gguf",
                                        "mmproj-F16.gguf",
                                        "m-imatrix.gguf",
                                        "README.md",
                                        "x/m-BF16.gguf",
                                        "m-Q8_0-00001-of-00003.gguf",
                                        "x/m-BF16.gguf"};
    struct model_sets s = make_sets(paths, sizeof paths / sizeof *paths);
    assert_int_equal(s.n, 3);
    assert_string_equal(s.sets[0].files[0].path, paths[1]);
    assert_int_equal(s.sets[0].n, 2);
    assert_int_equal(s.sets[0].n_bytes, 10 + 11);
    assert_int_equal(s.sets[1].n, 1);
    assert_int_equal(s.sets[1].n_parts, 3);
    assert_string_equal(s.sets[2].label, "BF16");
    model_sets_close(&s);
}

static void quantisations_are_read_from_names(void **state)
{
    static const struct {
        const char *path, *label;
    } cases[] = {
        {"Qwen3-30B-A3B-Q4_K_M.gguf", "Q4_K_M"},
        {"m.IQ2_XXS.gguf", "IQ2_XXS"},
        {"m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"},
        {"m=UD-Q4_K_M.gguf", "Q4_K_M"}, /* no word of its own */
        {"UD-Q4_K_M.gguf", "UD-Q4_K_M"},
        {"gpt-oss-20b-MXFP4.gguf", "MXFP4"},
        {"m-TQ1_0.gguf", "TQ1_0"},
        {"f16/m-f16.gguf", "f16"},
        {"Q8_0/m-00001-of-00002.gguf", "Q8_0"},
        {"model.gguf", ""},
        {"Qwen3-Q.gguf", ""},
        {"Q4_K_M/m-Q4_K_M.gguf", "Q4_K_M"},
        {"m-mxfp4_moe.gguf", "mxfp4_moe"},
        {"m-q4_0.gguf", "q4_0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_sets s = make_sets(&cases[i].path, 1);
        assert_string_equal(s.sets[0].label, cases[i].label);
        model_sets_close(&s);
    }
}

static void the_best_fit_is_chosen_and_ambiguity_is_said(void **state)
{
    static const char *const paths[] = {"a-Q4_K_M.gguf", "a-UD-Q4_K_M.gguf", "a-Q8_0.gguf", "b-Q8_0.gguf",
                                        "sub/c-F16.gguf"};
    static const struct {
        const char *what;
        int chosen; /* index in paths; -1: none */
    } cases[] = {{"Q4_K_M", 0}, {"ud-q4_k_m", 1}, {"a-Q8_0", 2}, {"b-Q8_0.gguf", 3}, {"sub", 4},
                 {"c", 4},      {"Q8_0", -1},     {"", -1},      {"Q4_K", -1},       {"Q4", -1}};
    struct model_sets s = make_sets(paths, sizeof paths / sizeof *paths);
    struct err e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct model_set *set = NULL;
        err_code code = model_sets_choose(&s, cases[i].what, "hf:a/b", &set, &e);
        assert_int_equal(code, cases[i].chosen < 0 ? ERR_USAGE : ERR_OK);
        if (code == ERR_OK)
            assert_string_equal(set->files[0].path, paths[cases[i].chosen]);
    }
    model_sets_close(&s);
}

/* ---- what is kept ---------------------------------------------------------------------------------------------- */

static void a_table_keeps_pieces_and_begins_again_for_another_file(void **state)
{
    struct piece_table t;
    struct piece_label label;
    struct err e;
    assert_int_equal(temp_folder_make(&folder), 0);
    const struct temp_path path = temp_path(&folder, "x.pieces");
    const uint64_t n_bytes = 2 * (uint64_t)PIECE_BYTES + 1;
    assert_false(piece_table_label(path.s, &label));
    assert_int_equal(piece_table_open(&t, path.s, n_bytes, "tag", "name", &e), ERR_OK);
    assert_int_equal(t.n, 3);
    assert_int_equal(piece_table_put(&t, 1, (struct piece){7, PIECE_RECEIVED}, &e), ERR_OK);
    piece_table_close(&t);
    assert_int_equal(truncate(path.s, (off_t)(sizeof(struct piece_label) + 8 + 8 + 16 + 3)), 0); /* torn */
    assert_int_equal(piece_table_open(&t, path.s, n_bytes, "tag", "name", &e), ERR_OK);
    assert_int_equal(t.pieces[1].crc, 7);
    assert_int_equal(t.pieces[2].state, PIECE_UNKNOWN);
    piece_table_close(&t);
    assert_true(piece_table_label(path.s, &label));
    assert_string_equal(label.name, "name");
    assert_int_equal(piece_table_open(&t, path.s, n_bytes, "other", "name", &e), ERR_OK);
    assert_int_equal(t.pieces[1].state, PIECE_UNKNOWN);
    piece_table_close(&t);
    temp_folder_remove(&folder);
}

static void aliases_are_put_replaced_and_taken_away(void **state)
{
    struct aliases a;
    struct err e;
    assert_int_equal(temp_folder_make(&folder), 0);
    const struct temp_path path = temp_path(&folder, "below/aliases");
    assert_int_equal(aliases_put(path.s, "b", "hf:a/b", &e), ERR_OK);
    assert_int_equal(aliases_put(path.s, "a", "/x y.gguf", &e), ERR_OK);
    assert_int_equal(aliases_put(path.s, "b", "hf:c/d", &e), ERR_OK);
    assert_int_equal(aliases_read(path.s, &a, &e), ERR_OK);
    assert_int_equal(a.n, 2);
    assert_string_equal(aliases_find(&a, "a"), "/x y.gguf");
    assert_string_equal(aliases_find(&a, "b"), "hf:c/d");
    assert_null(aliases_find(&a, "c"));
    aliases_close(&a);
    assert_int_equal(aliases_put(path.s, "b", NULL, &e), ERR_OK);
    assert_int_equal(aliases_put(path.s, "b", NULL, &e), ERR_USAGE);
    assert_int_equal(aliases_put(path.s, "c", "two\nlines", &e), ERR_USAGE);
    assert_int_equal(aliases_put(path.s, "-c", "x", &e), ERR_USAGE);
    temp_folder_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_have_a_repository_a_revision_and_what_is_meant),
        cmocka_unit_test(other_addresses_and_files_are_told_apart),
        cmocka_unit_test(names_that_lead_elsewhere_are_refused),
        cmocka_unit_test(split_files_are_one_model_and_companions_none),
        cmocka_unit_test(quantisations_are_read_from_names),
        cmocka_unit_test(the_best_fit_is_chosen_and_ambiguity_is_said),
        cmocka_unit_test(a_table_keeps_pieces_and_begins_again_for_another_file),
        cmocka_unit_test(aliases_are_put_replaced_and_taken_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
