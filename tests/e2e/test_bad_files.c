/* Damaged and incomplete models, through the public interface as a user would meet them: a clear error or a clean
 * run, and for each kind of mistake its own sentence. usage: test_bad_files GOLDEN_DIRECTORY */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../unit/temp_folder.h"
#include "base/mem.h"
#include "base/random.h"
#include "gguf/gguf_writer.h"
#include "jobs/inspect.h"
#include "moebius/moebius.h"
#include "store/store.h"

static const char *golden;

static struct temp_path write_named(const char *name, const char *bytes, size_t n)
{
    struct temp_path p = temp_path(&folder, name);
    write_file(p.s, bytes, n);
    return p;
}

/* Opens a model and runs a few tokens; an error must come with a sentence. */
static moebius_status try_model(const char *path, moebius_error *error)
{
    moebius_engine *engine = NULL;
    moebius_session *session = NULL;
    const moebius_engine_options options = {.n_threads = 1};
    const moebius_session_options session_options = {.n_ctx = 64};
    const int32_t ids[] = {1, 2, 3};
    *error = (moebius_error){0};
    moebius_status status = moebius_engine_open(&engine, path, &options, error);
    if (status == MOEBIUS_OK)
        status = moebius_session_open(&session, engine, &session_options, error);
    if (status == MOEBIUS_OK)
        status = moebius_session_eval(session, ids, 3, error);
    moebius_session_close(&session);
    moebius_engine_close(&engine);
    assert_int_equal(status, error->status);
    assert_true((status == MOEBIUS_OK) == (error->text[0] == '\0'));
    return status;
}

static char *valid_model(size_t *n)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/llama_moe.gguf", golden);
    return read_file(path, n);
}

static void truncated_files_are_refused(void **state)
{
    enum { N = 300 };
    size_t n;
    char *bytes = valid_model(&n);
    moebius_error error;
    for (size_t i = 0; i < N; i++) {
        /* half of the cuts in the metadata, half anywhere */
        size_t at = i % 2 ? n / N * i : i * i / 4;
        struct temp_path p = write_named("cut.gguf", bytes, at);
        assert_int_not_equal(try_model(p.s, &error), MOEBIUS_OK);
        assert_non_null(strstr(error.text, "cut.gguf"));
    }
    free(bytes);
}

static void flipped_bytes_give_an_error_or_a_clean_run(void **state)
{
    enum { N = 1000 };
    size_t n;
    int n_refused = 0;
    char *bytes = valid_model(&n);
    moebius_error error;
    struct random r = random_seed(7);
    for (int i = 0; i < N; i++) {
        size_t at = i % 4 ? random_u32(&r) % 40000 : random_u32(&r) % n; /* most of them in the metadata */
        char flip = (char)(1 + random_u32(&r) % 255);
        bytes[at] ^= flip;
        struct temp_path p = write_named("flip.gguf", bytes, n);
        n_refused += try_model(p.s, &error) != MOEBIUS_OK;
        bytes[at] ^= flip;
    }
    assert_true(n_refused > 50 && n_refused < N);
    free(bytes);
}

/* ---- one mistake at a time ----------------------------------------------------------------------------------- */

/* A copy of a golden model with one thing changed. */
struct edit {
    const char *drop_key, *drop_tensor;
    const char *set_u32;
    uint32_t u32;
    const char *set_string, *string;
    const char *rename, *to; /* this tensor gets another name */
    const char *reshape;     /* this tensor loses its last row */
    const char *retype;      /* this tensor's type id becomes one that nobody knows */
    int n_drop_tokens;       /* the vocabulary ends so much earlier */
};

static void copy_keys(struct gguf_writer *w, const struct gguf *g, const struct edit *edit)
{
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        struct gguf_value v = kv->value;
        if (edit->drop_key && !strcmp(kv->key.s, edit->drop_key))
            continue;
        if (edit->set_u32 && !strcmp(kv->key.s, edit->set_u32))
            v.u = edit->u32;
        if (edit->set_string && !strcmp(kv->key.s, edit->set_string))
            v.str = (struct gguf_string){edit->string, strlen(edit->string)};
        if (v.type == GGUF_ARRAY && !strncmp(kv->key.s, "tokenizer.", 10))
            v.arr.n -= (uint64_t)edit->n_drop_tokens;
        gguf_writer_add_value(w, kv->key.s, &v);
    }
}

static struct temp_path edited(const struct edit *edit)
{
    struct err e = {0};
    struct gguf *g;
    struct store *store;
    struct gguf_writer *w;
    char path[1024];
    snprintf(path, sizeof path, "%s/llama_moe.gguf", golden);
    assert_int_equal(gguf_open(&g, path, &e), ERR_OK);
    assert_int_equal(store_open_gguf(&store, g, &e), ERR_OK);
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    copy_keys(w, g, edit);
    struct arena data = {0};
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (edit->drop_tensor && !strcmp(t->name, edit->drop_tensor))
            continue;
        struct store_range range = store_tensor_range(t, arena_alloc(&data, t->n_bytes));
        assert_int_equal(store_read(store, &range, 1, &e), ERR_OK);
        uint64_t ne[GGUF_MAX_DIMS];
        memcpy(ne, t->ne, sizeof ne);
        if (edit->reshape && !strcmp(t->name, edit->reshape))
            ne[t->n_dims - 1]--;
        bool renamed = edit->rename && !strcmp(t->name, edit->rename);
        gguf_writer_add_tensor(w, renamed ? edit->to : t->name, t->n_dims, ne, t->type_id, range.dst);
    }
    void *bytes;
    size_t n;
    assert_int_equal(gguf_writer_to_memory(w, &bytes, &n, &e), ERR_OK);
    if (edit->retype) { /* name, then n_dims (4 bytes), dims (8 each), type (4) */
        char *at = memmem(bytes, n, edit->retype, strlen(edit->retype));
        assert_non_null(at);
        at += strlen(edit->retype);
        uint32_t n_dims, type = 4711;
        memcpy(&n_dims, at, 4);
        memcpy(at + 4 + 8 * n_dims, &type, 4);
    }
    struct temp_path p = write_named("edited.gguf", bytes, n);
    mem_free(bytes);
    arena_close(&data);
    gguf_writer_close(&w);
    store_close(&store);
    gguf_close(&g);
    return p;
}

static void refused(struct edit edit, moebius_status status, const char *a, const char *b)
{
    moebius_error error;
    struct temp_path p = edited(&edit);
    assert_int_equal(try_model(p.s, &error), status);
    if (!strstr(error.text, a) || !strstr(error.text, b) || !strstr(error.text, "edited.gguf"))
        fail_msg("\"%s\" should name the file, %s and %s", error.text, a, b);
}

static void unedited_copy_runs(void **state)
{
    moebius_error error;
    struct temp_path p = edited(&(struct edit){0});
    assert_int_equal(try_model(p.s, &error), MOEBIUS_OK);
}

static void missing_keys_are_named(void **state)
{
    static const char *const keys[] = {
        "general.architecture",       "llama.block_count",       "llama.embedding_length",
        "llama.context_length",       "llama.expert_used_count", "llama.attention.layer_norm_rms_epsilon",
        "llama.attention.head_count", "tokenizer.ggml.tokens",   "tokenizer.ggml.model",
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        refused((struct edit){.drop_key = keys[i]}, MOEBIUS_FORMAT, keys[i], "");
}

static void missing_tensors_are_named(void **state)
{
    static const char *const tensors[] = {"token_embd.weight", "output_norm.weight", "blk.2.attn_q.weight",
                                          "blk.3.ffn_down_exps.weight", "blk.1.ffn_norm.weight"};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        refused((struct edit){.drop_tensor = tensors[i]}, MOEBIUS_FORMAT, tensors[i], "missing");
}

static void wrong_shapes_are_named(void **state)
{
    refused((struct edit){.reshape = "blk.0.attn_k.weight"}, MOEBIUS_FORMAT, "blk.0.attn_k.weight", "expected");
    refused((struct edit){.reshape = "blk.1.ffn_gate_exps.weight"}, MOEBIUS_FORMAT, "blk.1.ffn_gate_exps.weight",
            "expected");
    refused((struct edit){.reshape = "blk.1.ffn_gate_inp.weight"}, MOEBIUS_FORMAT, "blk.1.ffn_gate_inp.weight",
            "expected");
    refused((struct edit){.set_u32 = "llama.expert_used_count", .u32 = 9}, MOEBIUS_FORMAT, "expert_used_count", "9");
    refused((struct edit){.set_u32 = "llama.attention.head_count_kv", .u32 = 3}, MOEBIUS_FORMAT, "KV heads", "3");
}

static void unknown_architectures_and_types_are_named(void **state)
{
    refused((struct edit){.set_string = "general.architecture", .string = "perceptron"}, MOEBIUS_UNSUPPORTED,
            "perceptron", "moebius list --known");
    refused((struct edit){.set_string = "tokenizer.ggml.model", .string = "abacus"}, MOEBIUS_UNSUPPORTED, "abacus", "");
    refused((struct edit){.retype = "blk.2.attn_q.weight"}, MOEBIUS_UNSUPPORTED, "blk.2.attn_q.weight", "4711");
}

static void a_tensor_for_each_expert_is_named(void **state)
{
    refused((struct edit){.rename = "blk.1.ffn_down_exps.weight", .to = "blk.1.ffn_down.0.weight"}, MOEBIUS_UNSUPPORTED,
            "layer 1", "ffn_down_exps.weight");
}

static void inspect_says_what_running_would(void **state)
{
    static const struct edit edits[] = {
        {.set_string = "general.architecture", .string = "perceptron"},
        {.drop_key = "llama.attention.head_count"},
        {.drop_tensor = "blk.3.ffn_up_exps.weight"},
        {.reshape = "blk.1.ffn_gate_inp.weight"},
        {.retype = "blk.2.attn_q.weight"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        moebius_error error;
        struct err e = {0};
        struct temp_path p = edited(&edits[i]);
        char *text;
        size_t n;
        FILE *f = open_memstream(&text, &n);
        assert_non_null(f);
        assert_int_not_equal(try_model(p.s, &error), MOEBIUS_OK);
        assert_int_equal(inspect_print(f, p.s, &(struct inspect_params){0}, &e), ERR_OK);
        fclose(f);
        if (!strstr(text, error.text) || !strstr(text, "\nBytes\n"))
            fail_msg("inspect should say \"%s\" among the facts:\n%s", error.text, text);
        free(text);
    }
}

static void vocabulary_must_match_the_model(void **state)
{
    refused((struct edit){.n_drop_tokens = 3}, MOEBIUS_FORMAT, "token_embd.weight", "509");
}

static void missing_and_foreign_files_are_named(void **state)
{
    moebius_error error;
    assert_int_equal(try_model("no-such-file.gguf", &error), MOEBIUS_IO);
    assert_non_null(strstr(error.text, "no-such-file.gguf"));
    struct temp_path p = write_named("foreign.gguf", "PK\3\4 this is not a model at all", 30);
    assert_int_equal(try_model(p.s, &error), MOEBIUS_FORMAT);
    assert_non_null(strstr(error.text, "foreign.gguf"));
    assert_int_equal(try_model(folder.path, &error), MOEBIUS_IO);
}

static void session_refuses_what_does_not_fit(void **state)
{
    moebius_engine *engine;
    moebius_session *session;
    moebius_error error;
    struct temp_path p = edited(&(struct edit){0});
    const moebius_session_options options = {.n_ctx = 8};
    assert_int_equal(moebius_engine_open(&engine, p.s, NULL, &error), MOEBIUS_OK);
    assert_int_equal(moebius_session_open(&session, engine, &options, &error), MOEBIUS_OK);
    const int32_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, bad[2] = {1, 512};
    assert_int_equal(moebius_session_eval(session, nine, 9, &error), MOEBIUS_LIMIT);
    assert_int_equal(moebius_session_eval(session, bad, 2, &error), MOEBIUS_USAGE);
    assert_int_equal(moebius_session_eval(session, nine, 0, &error), MOEBIUS_USAGE);
    assert_int_equal(moebius_session_pos(session), 0);
    assert_int_equal(moebius_session_eval(session, nine, 8, &error), MOEBIUS_OK);
    assert_int_equal(moebius_session_eval(session, nine, 1, &error), MOEBIUS_LIMIT);
    moebius_session_truncate(session, 7);
    assert_int_equal(moebius_session_eval(session, nine, 1, &error), MOEBIUS_OK);
    moebius_session_close(&session);
    moebius_engine_close(&engine);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 1;
    golden = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unedited_copy_runs),
        cmocka_unit_test(missing_keys_are_named),
        cmocka_unit_test(missing_tensors_are_named),
        cmocka_unit_test(wrong_shapes_are_named),
        cmocka_unit_test(unknown_architectures_and_types_are_named),
        cmocka_unit_test(a_tensor_for_each_expert_is_named),
        cmocka_unit_test(inspect_says_what_running_would),
        cmocka_unit_test(vocabulary_must_match_the_model),
        cmocka_unit_test(missing_and_foreign_files_are_named),
        cmocka_unit_test(session_refuses_what_does_not_fit),
        cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(flipped_bytes_give_an_error_or_a_clean_run),
    };
    return cmocka_run_group_tests_name("bad files", tests, folder_setup, folder_teardown);
}
