#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/mem.h"
#include "gguf/gguf_facts.h"
#include "gguf/gguf_writer.h"
#include "jobs/inspect.h"
#include "temp_folder.h"

static float zeros[64 * 64 * 4];

static void add(struct gguf_writer *w, const char *name, enum quant_type type, uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t ne[] = {a, b, c};
    gguf_writer_add_tensor(w, name, c ? 3 : b ? 2 : 1, ne, type, zeros);
}

static struct gguf_writer *new_writer(void)
{
    struct gguf_writer *w;
    struct err e = {0};
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    return w;
}

static struct temp_path save(struct gguf_writer *w, const char *name)
{
    struct err e = {0};
    struct temp_path path = temp_path(&folder, name);
    if (gguf_writer_save(w, path.s, &e) != ERR_OK)
        fail_msg("%s", e.text);
    gguf_writer_close(&w);
    return path;
}

static void add_metadata(struct gguf_writer *w)
{
    gguf_writer_add_string(w, "general.architecture", "x");
    gguf_writer_add_string(w, "general.name", "caf\xc3\xa9 \xff\x1b[2J");
    gguf_writer_add_u32(w, "x.block_count", 4);
    gguf_writer_add_u32(w, "x.embedding_length", 32);
    gguf_writer_add_u32(w, "x.context_length", 2048);
    gguf_writer_add_u32(w, "x.expert_count", 4);
    gguf_writer_add_u32(w, "x.expert_used_count", 2);
    gguf_writer_add_u32(w, "x.expert_shared_count", 1);
    gguf_writer_add_u32(w, "x.nextn_predict_layers", 1);
}

/* Layer 0 is dense; 1 has float experts with a bias and a shared expert; 2 has 8-bit ones, gate and up in one
 * tensor, with a scale for each; 3 predicts further tokens. The embedding is also the output matrix. */
static struct temp_path write_model(void)
{
    struct gguf_writer *w = new_writer();
    add_metadata(w);
    add(w, "token_embd.weight", QUANT_F32, 32, 10, 0);
    add(w, "output_norm.weight", QUANT_F32, 32, 0, 0);
    add(w, "blk.0.attn_norm.weight", QUANT_F32, 32, 0, 0);
    add(w, "blk.0.attn_q.weight", QUANT_F32, 32, 32, 0);
    add(w, "blk.0.ffn_up.weight", QUANT_F32, 32, 64, 0);
    add(w, "blk.1.attn_q.weight", QUANT_F32, 32, 32, 0);
    add(w, "blk.1.ffn_gate_inp.weight", QUANT_F32, 32, 4, 0);
    add(w, "blk.1.ffn_gate_exps.weight", QUANT_F32, 32, 32, 4);
    add(w, "blk.1.ffn_up_exps.weight", QUANT_F32, 32, 32, 4);
    add(w, "blk.1.ffn_down_exps.weight", QUANT_F32, 32, 32, 4);
    add(w, "blk.1.ffn_down_exps.bias", QUANT_F32, 32, 4, 0);
    add(w, "blk.1.ffn_up_shexp.weight", QUANT_F32, 32, 48, 0);
    add(w, "blk.1.ffn_down_shexp.weight", QUANT_F32, 48, 32, 0);
    add(w, "blk.2.attn_q.weight", QUANT_F32, 32, 32, 0);
    add(w, "blk.2.ffn_norm.weight", QUANT_F32, 32, 0, 0);
    add(w, "blk.2.ffn_gate_inp.weight", QUANT_F32, 32, 4, 0);
    add(w, "blk.2.ffn_gate_up_exps.weight", QUANT_Q8_0, 32, 64, 4);
    add(w, "blk.2.ffn_down_exps.weight", QUANT_Q8_0, 32, 32, 4);
    add(w, "blk.2.ffn_down_exps.scale", QUANT_F32, 4, 0, 0);
    add(w, "blk.3.attn_q.weight", QUANT_F32, 32, 32, 0);
    add(w, "blk.3.ffn_down_exps.weight", QUANT_F32, 32, 32, 4);
    add(w, "blk.3.nextn.eh_proj.weight", QUANT_F32, 64, 32, 0);
    return save(w, "model.gguf");
}

static void compute(struct model_facts *f, struct gguf **g, const char *path)
{
    struct err e = {0};
    if (gguf_open(g, path, &e) != ERR_OK || gguf_facts_compute(f, *g, &e) != ERR_OK)
        fail_msg("%s", e.text);
}

static void facts_count_layers_and_experts(void **state)
{
    struct model_facts f;
    struct gguf *g;
    compute(&f, &g, write_model().s);
    assert_string_equal(f.architecture.s, "x");
    assert_true(f.n_layer == 4 && f.n_layer_dense == 1 && f.n_layer_moe == 2 && f.n_layer_nextn == 1);
    assert_true(f.n_expert == 4 && f.n_expert_used == 2 && f.n_expert_shared == 1);
    assert_true(f.n_embd == 32 && f.n_ctx_train == 2048 && f.n_vocab == 10 && f.is_tied);
    assert_true(f.n_ff_exp_min == 32 && f.n_ff_exp_max == 32);
    assert_true(f.n_ff_shexp_min == 48 && f.n_ff_shexp_max == 48);
    assert_true(f.layers[0].n_expert == 0 && f.layers[1].n_expert == 4 && f.layers[3].is_nextn);
    assert_true(f.layers[1].n_ff_shexp == 48 && f.layers[2].n_ff_shexp == 0);
    assert_int_equal(f.layers[2].routed_bytes, (256 + 128) * 34 + 16);
    assert_int_equal(f.layers[1].other_bytes, 4096 + 512 + 6144 + 6144);
    gguf_facts_close(&f);
    gguf_close(&g);
}

/* Of the small experts beside routed ones a token reads as many as of these. */
static void facts_count_small_experts_as_they_are_used(void **state)
{
    enum { ONE = 3 * 12 * 32 * 2, N_LAYER = 3, N_SMALL = 4, N_USED = 3 };
    struct model_facts f;
    struct gguf *g;
    compute(&f, &g, GOLDEN "/grovemoe.gguf");
    assert_int_equal(f.use_bytes[GGUF_USE_SHARED_EXPERT], N_LAYER * N_SMALL * ONE);
    assert_int_equal(f.token_use_bytes[GGUF_USE_SHARED_EXPERT], N_LAYER * N_USED * ONE);
    assert_int_equal(f.use_bytes[GGUF_USE_ROUTED_EXPERT], N_LAYER * 8 * 3 * 16 * 32 * 2);
    gguf_facts_close(&f);
    gguf_close(&g);
}

static void facts_add_up_bytes(void **state)
{
    struct model_facts f;
    struct gguf *g;
    compute(&f, &g, write_model().s);
    assert_int_equal(f.expert_bytes_max, 3 * 32 * 32 * 4 + 32 * 4);
    assert_int_equal(f.expert_bytes_min, 96 * 34 + 4);
    assert_int_equal(f.use_bytes[GGUF_USE_EMBEDDING], 1280);
    assert_int_equal(f.use_bytes[GGUF_USE_OUTPUT], 128);
    assert_int_equal(f.use_bytes[GGUF_USE_ATTENTION], 3 * 4096 + 128);
    assert_int_equal(f.use_bytes[GGUF_USE_DENSE_FFN], 8192);
    assert_int_equal(f.use_bytes[GGUF_USE_ROUTER], 1024);
    assert_int_equal(f.use_bytes[GGUF_USE_SHARED_EXPERT], 12288);
    assert_int_equal(f.use_bytes[GGUF_USE_ROUTED_EXPERT], 4 * (12416 + 3268));
    assert_int_equal(f.use_bytes[GGUF_USE_NEXTN], 4096 + 16384 + 8192);
    assert_int_equal(f.use_bytes[GGUF_USE_OTHER], 128);
    uint64_t sum = 0;
    for (int u = 0; u < GGUF_N_USE; u++)
        sum += f.use_bytes[u];
    assert_int_equal(f.n_bytes, sum);
    assert_int_equal(f.resident_bytes, 35456);
    assert_int_equal(f.token_use_bytes[GGUF_USE_ROUTED_EXPERT], 2 * (12416 + 3268));
    assert_int_equal(f.token_use_bytes[GGUF_USE_NEXTN], 0);
    /* one row of the embedding, and all of it once more as the output matrix */
    assert_int_equal(f.token_use_bytes[GGUF_USE_EMBEDDING], 128);
    assert_int_equal(f.token_use_bytes[GGUF_USE_OUTPUT], 128 + 1280);
    assert_int_equal(f.token_bytes, 35456 - 1280 + 128 + 1280 + 2 * (12416 + 3268));
    gguf_facts_close(&f);
    gguf_close(&g);
}

static void facts_list_types_by_bytes(void **state)
{
    struct model_facts f;
    struct gguf *g;
    compute(&f, &g, write_model().s);
    assert_int_equal(f.n_types, 2);
    assert_true(f.types[0].type_id == QUANT_F32 && f.types[1].type_id == QUANT_Q8_0);
    assert_true(f.types[1].n_tensors == 2 && f.types[1].n_weights == 96 * 32 * 4);
    assert_int_equal(f.types[1].n_bytes, 96 * 4 * 34);
    assert_int_equal(f.types[0].n_bytes + f.types[1].n_bytes, f.n_bytes);
    gguf_facts_close(&f);
    gguf_close(&g);
}

static void assert_facts_fail(struct gguf_writer *w, const char *words)
{
    struct model_facts f;
    struct gguf *g;
    struct err e = {0};
    assert_int_equal(gguf_open(&g, save(w, "bad.gguf").s, &e), ERR_OK);
    assert_int_not_equal(gguf_facts_compute(&f, g, &e), ERR_OK);
    if (!strstr(e.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, e.text);
    assert_null(f.layers);
    gguf_close(&g);
}

static void facts_refuse_contradictions(void **state)
{
    struct gguf_writer *w = new_writer();
    add_metadata(w);
    add(w, "blk.1.ffn_up_exps.weight", QUANT_F32, 32, 32, 3);
    assert_facts_fail(w, "tensor \"blk.1.ffn_up_exps.weight\": its last dimension is 3, expected 4");
    w = new_writer();
    gguf_writer_add_string(w, "general.architecture", "x");
    gguf_writer_add_u32(w, "x.block_count", 4000000000u);
    assert_facts_fail(w, "\"x.block_count\" is 4000000000, expected at most");
    w = new_writer();
    gguf_writer_add_string(w, "general.architecture", "x");
    gguf_writer_add_u32(w, "x.block_count", 1);
    gguf_writer_add_u32(w, "x.nextn_predict_layers", 2);
    assert_facts_fail(w, "\"x.nextn_predict_layers\" is 2, expected at most the 1 layers");
}

static void facts_of_no_language_model_are_zero(void **state)
{
    struct model_facts f;
    struct gguf *g;
    struct gguf_writer *w = new_writer();
    add(w, "blk.7.ffn_up_exps.weight", QUANT_F32, 32, 32, 3);
    compute(&f, &g, save(w, "none.gguf").s);
    assert_true(f.n_layer == 0 && f.n_expert == 0 && f.architecture.n == 0);
    assert_int_equal(f.use_bytes[GGUF_USE_OTHER], f.n_bytes);
    gguf_facts_close(&f);
    gguf_close(&g);
}

static err_code print(char **text, const char *path, bool json, const char *tensor, struct err *e)
{
    size_t n;
    FILE *f = open_memstream(text, &n);
    assert_non_null(f);
    err_code code = inspect_print(f, path, &(struct inspect_params){.json = json, .tensor_name = tensor}, e);
    fclose(f);
    return code;
}

static void assert_prints(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("\"%s\" is not in\n%s", words, text);
}

static void layers_without_a_feed_forward_part_are_no_dense_ones(void **state)
{
    struct gguf_writer *w = new_writer();
    char *text;
    struct err e = {0};
    add_metadata(w);
    add(w, "token_embd.weight", QUANT_F32, 32, 10, 0);
    add(w, "blk.0.attn_q.weight", QUANT_F32, 32, 32, 0);
    add(w, "blk.1.ffn_up.weight", QUANT_F32, 32, 64, 0);
    add(w, "blk.2.ffn_up_exps.weight", QUANT_F32, 32, 32, 4);
    add(w, "blk.2.ffn_down_exps.weight", QUANT_F32, 32, 32, 4);
    assert_int_equal(print(&text, save(w, "mixing.gguf").s, false, NULL, &e), ERR_OK);
    assert_prints(text, "4 (1 dense, 1 MoE, 1 without a feed-forward part, 1 nextn: for multi-token prediction)");
    free(text);
}

static void text_shows_metadata_types_and_facts(void **state)
{
    char *text;
    struct err e = {0};
    assert_int_equal(print(&text, write_model().s, false, NULL, &e), ERR_OK);
    assert_prints(text, "GGUF version 3, alignment 32, 9 metadata entries, 22 tensors");
    assert_prints(text, "x.expert_used_count     u32             2\n");
    assert_prints(text, "\"caf\xc3\xa9 \\xff\\x1b[2J\"");
    assert_null(strchr(text, '\x1b'));
    assert_prints(text, "4 (1 dense, 2 MoE, 1 nextn: for multi-token prediction)");
    assert_prints(text, "4 a layer, 2 used for each token");
    assert_prints(text, "tied: the embedding is read as one");
    assert_prints(text, "12,416 bytes");
    assert_prints(text, "routed, 2 of 4            30.63 KiB                31,368 bytes\n");
    assert_prints(text, "8.5000");
    free(text);
}

static uint64_t json_u64(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v))
        fail_msg("\"%s\" is no integer", key);
    return (uint64_t)json_integer_value(v);
}

static void json_gives_the_same_facts(void **state)
{
    char *text;
    struct err e = {0};
    assert_int_equal(print(&text, write_model().s, true, NULL, &e), ERR_OK);
    json_error_t je;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        fail_msg("line %d: %s", je.line, je.text);
    const json_t *model = json_object_get(root, "model"), *use = json_object_get(model, "bytes_by_use");
    assert_int_equal(json_u64(model, "experts"), 4);
    assert_int_equal(json_u64(model, "layers_nextn"), 1);
    assert_int_equal(json_u64(model, "expert_bytes_max"), 12416);
    assert_int_equal(json_u64(model, "resident_bytes"), 35456);
    assert_int_equal(json_u64(use, "routed_experts"), 4 * (12416 + 3268));
    assert_int_equal(json_array_size(json_object_get(root, "tensors")), 22);
    assert_int_equal(json_array_size(json_object_get(model, "by_layer")), 4);
    const json_t *name = json_object_get(json_object_get(root, "metadata"), "general.name");
    assert_string_equal(json_string_value(json_object_get(name, "value")), "caf\xc3\xa9 \xef\xbf\xbd\x1b[2J");
    json_decref(root);
    free(text);
}

static void odd_metadata_does_not_break_the_json(void **state)
{
    char *text;
    struct err e = {0};
    double reals[40] = {1.5, HUGE_VAL, -HUGE_VAL};
    reals[3] = nan("");
    const struct gguf_value inner[] = {{.type = GGUF_ARRAY, .arr = {GGUF_F64, 4, reals}}};
    struct gguf_writer *w = new_writer();
    gguf_writer_add_value(w, "key\xff\x01", &(struct gguf_value){.type = GGUF_U64, .u = UINT64_MAX});
    gguf_writer_add_value(w, "nul", &(struct gguf_value){.type = GGUF_STRING, .str = {"a\0b", 3}});
    gguf_writer_add_value(w, "surrogate", &(struct gguf_value){.type = GGUF_STRING, .str = {"\xed\xa0\x80", 3}});
    gguf_writer_add_value(w, "cut", &(struct gguf_value){.type = GGUF_STRING, .str = {"\xf0\x9f\x98", 3}});
    gguf_writer_add_value(w, "huge", &(struct gguf_value){.type = GGUF_F64, .f = HUGE_VAL});
    gguf_writer_add_array(w, "reals", GGUF_F64, reals, 40);
    gguf_writer_add_array(w, "nested", GGUF_ARRAY, inner, 1);
    struct temp_path path = save(w, "odd.gguf");
    assert_int_equal(print(&text, path.s, true, NULL, &e), ERR_OK);
    json_t *root = json_loads(text, JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    const json_t *m = json_object_get(root, "metadata"), *reals_json = json_object_get(m, "reals");
    assert_int_equal(json_u64(reals_json, "count"), 40);
    assert_int_equal(json_array_size(json_object_get(reals_json, "values")), 16);
    assert_true(json_is_null(json_array_get(json_object_get(reals_json, "values"), 3)));
    assert_true(json_is_null(json_object_get(json_object_get(m, "huge"), "value")));
    assert_string_equal(json_string_value(json_object_get(json_object_get(m, "key\xef\xbf\xbd\x01"), "value")),
                        "18446744073709551615");
    assert_int_equal(json_string_length(json_object_get(json_object_get(m, "nul"), "value")), 3);
    json_decref(root);
    free(text);
    assert_int_equal(print(&text, path.s, false, NULL, &e), ERR_OK);
    assert_prints(text, "f64[40]");
    assert_prints(text, "[1.5, inf, -inf, nan, 0, 0, ...]");
    free(text);
}

/* Writes one float tensor of n values and gives its statistics as JSON. */
static json_t *stats_of(const float *x, uint64_t n)
{
    struct gguf_writer *w = new_writer();
    char *text;
    struct err e = {0};
    gguf_writer_add_tensor(w, "t", 1, &n, QUANT_F32, x);
    if (print(&text, save(w, "stats.gguf").s, true, "t", &e) != ERR_OK)
        fail_msg("%s", e.text);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    free(text);
    return root;
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void a_tensor_is_measured(void **state)
{
    const float x[] = {3, 1, NAN, -2, INFINITY, 6, -INFINITY};
    json_t *o = stats_of(x, 7);
    assert_int_equal(json_u64(o, "values"), 7);
    assert_int_equal(json_u64(o, "nan"), 1);
    assert_int_equal(json_u64(o, "inf"), 2);
    assert_true(number(o, "min") == -2 && number(o, "max") == 6 && number(o, "mean") == 2);
    assert_true(fabs(number(o, "std") - sqrt(8.5)) < 1e-7);
    assert_int_equal(json_array_size(json_object_get(o, "first_values")), 7);
    assert_true(json_is_null(json_array_get(json_object_get(o, "first_values"), 2)));
    json_decref(o);
    const float nothing[] = {NAN, NAN};
    o = stats_of(nothing, 2);
    assert_true(json_is_null(json_object_get(o, "min")) && json_is_null(json_object_get(o, "std")));
    json_decref(o);
}

static void statistics_over_many_pieces_are_exact(void **state)
{
    enum { N = 300001 };
    float *x = mem_calloc(N, sizeof *x);
    for (int i = 0; i < N; i++)
        x[i] = 1000 + (float)(i % 3 - 1); /* mean 1000 - tiny, spread around 0.8165 */
    json_t *o = stats_of(x, N);
    assert_int_equal(json_u64(o, "values"), N);
    assert_true(fabs(number(o, "mean") - 1000) < 1e-4);
    assert_true(fabs(number(o, "std") - sqrt(2.0 / 3)) < 1e-5);
    assert_int_equal(json_array_size(json_object_get(o, "first_values")), 8);
    json_decref(o);
    for (int i = 0; i < N; i++)
        x[i] = i < N / 2 ? 999 : 1001; /* pieces whose means differ */
    o = stats_of(x, N);
    assert_true(fabs(number(o, "mean") - 1000) < 1e-4);
    assert_true(fabs(number(o, "std") - 1) < 1e-5);
    json_decref(o);
    mem_free(x);
}

static void a_quantised_tensor_is_decoded(void **state)
{
    uint8_t block[34] = {0x00, 0x3c}; /* Q8_0: scale 1 (half), then 32 int8 */
    for (int i = 0; i < 32; i++)
        block[2 + i] = (uint8_t)(int8_t)(i - 16);
    struct gguf_writer *w = new_writer();
    struct err e = {0};
    char *text;
    gguf_writer_add_tensor(w, "q", 1, (const uint64_t[]){32}, QUANT_Q8_0, block);
    assert_int_equal(print(&text, save(w, "q.gguf").s, false, "q", &e), ERR_OK);
    assert_prints(text, "Q8_0");
    assert_prints(text, "-16  -15  -14  -13  -12  -11  -10  -9\n");
    assert_prints(text, "-16, 15\n");
    assert_prints(text, "-0.5, ");
    free(text);
}

static void a_missing_tensor_or_file_is_an_error(void **state)
{
    char *text;
    struct err e = {0};
    struct temp_path path = write_model();
    assert_int_equal(print(&text, path.s, false, "nope", &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "no tensor is named \"nope\""));
    assert_string_equal(text, "");
    free(text);
    assert_int_equal(print(&text, temp_path(&folder, "absent").s, true, NULL, &e), ERR_IO);
    assert_string_equal(text, "");
    free(text);
}

/* The writer writes known types only: the id in the directory is patched. */
static void an_unknown_type_is_shown_as_such(void **state)
{
    struct gguf_writer *w = new_writer();
    struct err e = {0};
    char *text;
    void *p;
    size_t n;
    static const uint8_t entry[] = {'t', '1', 1, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0};
    add(w, "t1", QUANT_F32, 4, 0, 0);
    assert_int_equal(gguf_writer_to_memory(w, &p, &n, &e), ERR_OK);
    gguf_writer_close(&w);
    uint8_t *at = memmem(p, n, entry, sizeof entry);
    assert_non_null(at);
    at[sizeof entry] = 158;
    struct temp_path path = temp_path(&folder, "unknown.gguf");
    write_file(path.s, p, n);
    mem_free(p);
    assert_int_equal(print(&text, path.s, false, NULL, &e), ERR_OK);
    assert_prints(text, "type 158 (unknown)");
    assert_prints(text, "1 tensor is of unknown types");
    free(text);
    for (int json = 0; json < 2; json++) {
        assert_int_equal(print(&text, path.s, json, "t1", &e), ERR_OK);
        assert_prints(text, "type 158 (unknown)");
        free(text);
    }
}

static void a_full_disk_is_an_error(void **state)
{
    FILE *f = fopen("/dev/full", "w");
    struct err e = {0};
    if (!f)
        skip();
    assert_int_equal(inspect_print(f, write_model().s, &(struct inspect_params){0}, &e), ERR_IO);
    assert_non_null(strstr(e.text, "No space left"));
    fclose(f);
}

/* The layout of a golden model, as far as the sizes. */
static void assert_layout(const char *name, const char *want)
{
    char path[1024], *text;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s.gguf", GOLDEN, name);
    assert_int_equal(print(&text, path, false, NULL, &e), ERR_OK);
    char *layout = strstr(text, "\nLayout\n"), *end = strstr(text, "\nBytes\n");
    assert_true(layout && end);
    *end = 0;
    assert_string_equal(layout + strlen("\nLayout\n"), want);
    free(text);
}

static void layout_tells_attention_from_recurrence(void **state)
{
    assert_layout("qwen35moe",
                  "  mixing, 4 layers (0-2, 4)\n"
                  "    recurrent, a gated delta net: 2 key heads of 16, 6 value heads of 16\n"
                  "    after a convolution over 4 tokens\n"
                  "  mixing, layer 3\n"
                  "    attention: 4 heads of 32 over 2 KV heads\n"
                  "    rope on 16 of 32 dimensions, norms of q and k over each head, a gate on the output\n"
                  "  feed-forward, all 5 layers\n"
                  "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                  "    router: softmax over all; the best 3; weights divided by their sum\n"
                  "    shared expert 24 wide, behind a gate\n");
}

static void layout_tells_windows_and_sinks(void **state)
{
    assert_layout("gpt_oss", "  mixing, 2 layers (0, 2)\n"
                             "    attention: 6 heads of 16 over 2 KV heads, over the last 12 positions\n"
                             "    rope (YaRN by 32), biases, sinks\n"
                             "  mixing, 2 layers (1, 3)\n"
                             "    attention: 6 heads of 16 over 2 KV heads\n"
                             "    rope (YaRN by 32), biases, sinks\n"
                             "  feed-forward, all 4 layers\n"
                             "    sparse: 6 experts 24 wide, clamped SwiGLU, 3 for each token\n"
                             "    router: the best 3; softmax over them\n");
}

static void layout_tells_chunks_and_layers_without_rope(void **state)
{
    assert_layout("llama4", "  mixing, 4 layers (0-2, 4)\n"
                            "    attention: 4 heads of 8 over 2 KV heads, in chunks of 8192 positions\n"
                            "    rope, norms of q and k over each head after rope\n"
                            "  mixing, layer 3\n"
                            "    attention: 4 heads of 8 over 2 KV heads\n"
                            "    no rope, queries that grow with the position\n"
                            "  feed-forward, 3 layers (0, 2, 4)\n"
                            "    dense: 48 wide, SwiGLU\n"
                            "  feed-forward, 2 layers (1, 3)\n"
                            "    sparse: 8 experts 16 wide, SwiGLU, 1 for each token\n"
                            "    router: sigmoid of each; the best 1; weights multiply what goes in\n"
                            "    shared expert 16 wide\n");
}

static void layout_tells_parallel_branches_and_what_is_around(void **state)
{
    assert_layout("gemma4",
                  "  mixing, 4 layers (0-1, 3-4)\n"
                  "    attention: 4 heads of 16 over 2 KV heads, over the last 12 positions\n"
                  "    rope, norms of q and k over each head\n"
                  "  mixing, 2 layers (2, 5)\n"
                  "    attention: 4 heads of 32 over 1 KV head\n"
                  "    rope, norms of q and k over each head, keys serve as values\n"
                  "  feed-forward, all 6 layers\n"
                  "    dense: 32 wide, GEGLU, side by side with\n"
                  "    sparse: 7 experts 16 wide, GEGLU, 3 for each token\n"
                  "    router: softmax over all; the best 3; weights divided by their sum; each expert with a "
                  "factor of its own\n"
                  "  around the layers\n"
                  "    embeddings times 6.9282, logits capped at 30\n");
    assert_layout("arctic", "  mixing, all 3 layers\n"
                            "    attention: 4 heads of 8 over 2 KV heads\n"
                            "    rope\n"
                            "  feed-forward, all 3 layers\n"
                            "    dense: 32 wide, SwiGLU, side by side with\n"
                            "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                            "    router: softmax over all; the best 3; weights divided by their sum\n"
                            "    router and experts see what goes into the layer, behind a norm of their own\n");
    assert_layout("grovemoe", "  mixing, all 3 layers\n"
                              "    attention: 4 heads of 8 over 2 KV heads\n"
                              "    rope, norms of q and k over each head\n"
                              "  feed-forward, all 3 layers\n"
                              "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                              "    router: softmax over all; the best 3; weights divided by their sum\n"
                              "    beside them 4 small experts 12 wide, each for 2 of them, times 0.4\n");
    assert_layout("granitemoe", "  mixing, all 3 layers\n"
                                "    attention: 4 heads of 8 over 2 KV heads\n"
                                "    rope\n"
                                "  feed-forward, all 3 layers\n"
                                "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                                "    router: softmax over all; the best 3; weights divided by their sum\n"
                                "    shared expert 16 wide\n"
                                "  around the layers\n"
                                "    embeddings times 3, what a layer adds times 0.7, logits times 2\n");
}

static void layout_tells_latent_attention_and_routing_by_groups(void **state)
{
    assert_layout(
        "deepseek2",
        "  mixing, all 4 layers\n"
        "    latent attention: 4 heads of 24, of which 8 are rotated, values of 12\n"
        "    one latent vector of 32 and 8 rotated for all heads; queries through a rank of 24\n"
        "    rope (YaRN by 40)\n"
        "  feed-forward, layer 0\n"
        "    dense: 64 wide, SwiGLU\n"
        "  feed-forward, 3 layers (1-3)\n"
        "    sparse: 16 experts 16 wide, SwiGLU, 4 for each token\n"
        "    router: sigmoid of each; the best 4, chosen with a correction bias, from the best 2 of 4 groups; "
        "weights divided by their sum, times 2.5\n"
        "    shared expert 16 wide\n");
    assert_layout("glm_dsa", "  mixing, 2 layers (0, 2)\n"
                             "    latent attention: 4 heads of 12, of which 4 are rotated, values of 8\n"
                             "    one latent vector of 16 and 4 rotated for all heads; queries through a rank of 24\n"
                             "    to 16 positions at most, chosen by 12 heads of 64\n"
                             "    rope\n"
                             "  mixing, 2 layers (1, 3)\n"
                             "    latent attention: 4 heads of 12, of which 4 are rotated, values of 8\n"
                             "    one latent vector of 16 and 4 rotated for all heads; queries through a rank of 24\n"
                             "    to 16 positions at most, which a layer before chose\n"
                             "    rope\n"
                             "  feed-forward, layer 0\n"
                             "    dense: 48 wide, SwiGLU\n"
                             "  feed-forward, 3 layers (1-3)\n"
                             "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                             "    router: sigmoid of each; the best 3, chosen with a correction bias; weights divided "
                             "by their sum, times 2.5\n"
                             "    shared expert 16 wide\n");
}

static void layout_tells_blocks_that_are_chosen(void **state)
{
    assert_layout(
        "minimax_m3",
        "  mixing, layer 0\n"
        "    attention: 4 heads of 32 over 2 KV heads\n"
        "    rope on 8 of 32 dimensions, norms of q and k over each head\n"
        "  mixing, 3 layers (1-3)\n"
        "    attention: 4 heads of 32 over 2 KV heads\n"
        "    rope on 8 of 32 dimensions, norms of q and k over each head\n"
        "    to 2 blocks of 64 positions at most with each KV head, the last in any case, the others chosen by a head "
        "of 32\n"
        "  feed-forward, layer 0\n"
        "    dense: 48 wide, clamped SwiGLU\n"
        "  feed-forward, 3 layers (1-3)\n"
        "    sparse: 8 experts 16 wide, clamped SwiGLU, 3 for each token\n"
        "    router: sigmoid of each; the best 3, chosen with a correction bias; weights divided by their sum, times "
        "2\n"
        "    shared expert 16 wide\n");
}

static void layout_tells_compressed_caches_and_streams(void **state)
{
    assert_layout(
        "deepseek4",
        "  mixing, 2 layers (0, 4)\n"
        "    attention: 4 heads of 32 over 1 KV head, over the last 9 positions\n"
        "    rope on 8 of 32 dimensions, sinks\n"
        "    keys are values, too; queries through a rank of 24, results of 2 groups of heads through one of 12\n"
        "  mixing, 2 layers (1, 3)\n"
        "    attention: 4 heads of 32 over 1 KV head, over the last 9 positions\n"
        "    rope on 8 of 32 dimensions (YaRN by 4), sinks\n"
        "    keys are values, too; queries through a rank of 24, results of 2 groups of heads through one of 12\n"
        "    to a compressed cache of an entry for 4 positions, 16 entries at most, chosen by 12 heads of 64\n"
        "  mixing, layer 2\n"
        "    attention: 4 heads of 32 over 1 KV head, over the last 9 positions\n"
        "    rope on 8 of 32 dimensions (YaRN by 4), sinks\n"
        "    keys are values, too; queries through a rank of 24, results of 2 groups of heads through one of 12\n"
        "    to a compressed cache of an entry for 128 positions\n"
        "  feed-forward, layer 0\n"
        "    sparse: 8 experts 16 wide, SwiGLU clamped to 1.5, 3 for each token\n"
        "    router: root of softplus of each; the token's own 3; weights divided by their sum, times 1.5\n"
        "    shared expert 16 wide\n"
        "  feed-forward, layer 1\n"
        "    sparse: 8 experts 16 wide, SwiGLU clamped to 0.5, 3 for each token\n"
        "    router: root of softplus of each; the token's own 3; weights divided by their sum, times 1.5\n"
        "    shared expert 16 wide\n"
        "  feed-forward, layer 2\n"
        "    sparse: 8 experts 16 wide, SwiGLU clamped to 2, 3 for each token\n"
        "    router: root of softplus of each; the best 3, chosen with a correction bias; weights divided by "
        "their sum, times 1.5\n"
        "    shared expert 16 wide\n"
        "  feed-forward, layer 3\n"
        "    sparse: 8 experts 16 wide, SwiGLU clamped to 0.8, 3 for each token\n"
        "    router: root of softplus of each; the best 3, chosen with a correction bias; weights divided by "
        "their sum, times 1.5\n"
        "    shared expert 16 wide\n"
        "  feed-forward, layer 4\n"
        "    sparse: 8 experts 16 wide, SwiGLU clamped to 1.2, 3 for each token\n"
        "    router: root of softplus of each; the best 3, chosen with a correction bias; weights divided by "
        "their sum, times 1.5\n"
        "    shared expert 16 wide\n"
        "  around the layers\n"
        "    4 residual streams, mixed around each part\n");
}

static void layout_tells_gates_and_windows(void **state)
{
    assert_layout("laguna",
                  "  mixing, 2 layers (0, 4)\n"
                  "    attention: 4 heads of 8 over 2 KV heads\n"
                  "    rope on 4 of 8 dimensions (YaRN by 4), norms of q and k over each head, a gate on each "
                  "head's output\n"
                  "  mixing, 4 layers (1-3, 5)\n"
                  "    attention: 6 heads of 8 over 2 KV heads, over the last 9 positions\n"
                  "    rope, norms of q and k over each head, a gate on each head's output\n"
                  "  feed-forward, layer 0\n"
                  "    dense: 48 wide, SwiGLU\n"
                  "  feed-forward, 5 layers (1-5)\n"
                  "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                  "    router: sigmoid of each; the best 3, chosen with a correction bias; weights divided by "
                  "their sum, times 2.5\n"
                  "    shared expert 16 wide\n");
}

static void layout_tells_limits_of_activations(void **state)
{
#define ROUTER                                                                                                         \
    "    router: sigmoid of each; the best 3, chosen with a correction bias; weights divided by their sum, times "     \
    "2.5\n"
    assert_layout("step35",
                  "  mixing, 2 layers (0, 3)\n"
                  "    attention: 4 heads of 8 over 2 KV heads\n"
                  "    rope on 4 of 8 dimensions, norms of q and k over each head, a gate on each head's output\n"
                  "  mixing, 3 layers (1-2, 4)\n"
                  "    attention: 6 heads of 8 over 2 KV heads, over the last 9 positions\n"
                  "    rope, norms of q and k over each head, a gate on each head's output\n"
                  "  feed-forward, layer 0\n"
                  "    dense: 48 wide, SwiGLU clamped to 0.9\n"
                  "  feed-forward, layer 1\n"
                  "    sparse: 8 experts 16 wide, SwiGLU clamped to 0.5, 3 for each token\n" ROUTER
                  "    shared expert 16 wide, SwiGLU\n"
                  "  feed-forward, layer 2\n"
                  "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n" ROUTER
                  "    shared expert 16 wide, SwiGLU clamped to 0.6\n"
                  "  feed-forward, layer 3\n"
                  "    sparse: 8 experts 16 wide, SwiGLU clamped to 0.8, 3 for each token\n" ROUTER
                  "    shared expert 16 wide, SwiGLU clamped to 1.1\n"
                  "  feed-forward, layer 4\n"
                  "    sparse: 8 experts 16 wide, SwiGLU clamped to 1.2, 3 for each token\n" ROUTER
                  "    shared expert 16 wide, SwiGLU clamped to 0.4\n");
#undef ROUTER
}

static void layout_tells_what_routers_see(void **state)
{
    assert_layout("smallthinker", "  mixing, 2 layers (0, 4)\n"
                                  "    attention: 4 heads of 8 over 2 KV heads\n"
                                  "    no rope\n"
                                  "  mixing, 3 layers (1-3)\n"
                                  "    attention: 4 heads of 8 over 2 KV heads, over the last 4096 positions\n"
                                  "    rope\n"
                                  "  feed-forward, all 5 layers\n"
                                  "    sparse: 8 experts 16 wide, ReGLU, 3 for each token\n"
                                  "    router: sigmoid of each; the best 3; weights divided by their sum\n"
                                  "    the router sees what goes into the layer\n");
}

static void layout_tells_bounds_and_factors(void **state)
{
    assert_layout("grok", "  mixing, all 3 layers\n"
                          "    attention: 4 heads of 8 over 2 KV heads\n"
                          "    rope (YaRN by 4), scores capped at 4\n"
                          "  feed-forward, all 3 layers\n"
                          "    dense: 24 wide, GEGLU, side by side with\n"
                          "    sparse: 8 experts 16 wide, GEGLU, 3 for each token\n"
                          "    router: softmax over all; the best 3; weights divided by their sum\n"
                          "    its output times 0.707107\n"
                          "  around the layers\n"
                          "    embeddings times 1.5, logits times 0.7, logits capped at 9\n");
}

static void layout_tells_layer_norms_and_limits_of_q_k_and_v(void **state)
{
    assert_layout("dbrx", "  mixing, all 3 layers\n"
                          "    attention: 4 heads of 8 over 2 KV heads\n"
                          "    rope, q, k and v within 1.5\n"
                          "  feed-forward, all 3 layers\n"
                          "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                          "    router: softmax over all; the best 3; weights divided by their sum\n"
                          "  around the layers\n"
                          "    layer norms\n");
}

static void layout_tells_what_stands_beside_attention(void **state)
{
    assert_layout("cohere2moe", "  mixing, layer 0\n"
                                "    attention: 4 heads of 8 over 2 KV heads\n"
                                "    rope\n"
                                "  mixing, 3 layers (1-3)\n"
                                "    attention: 4 heads of 8 over 2 KV heads, over the last 9 positions\n"
                                "    rope\n"
                                "  mixing, layer 4\n"
                                "    attention: 4 heads of 8 over 2 KV heads\n"
                                "    no rope\n"
                                "  feed-forward, layer 0\n"
                                "    dense: 48 wide, SwiGLU\n"
                                "    beside attention, behind the same norm\n"
                                "  feed-forward, 4 layers (1-4)\n"
                                "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                                "    router: sigmoid of each; the best 3; weights divided by their sum\n"
                                "    shared expert 16 wide\n"
                                "    beside attention, behind the same norm\n"
                                "    its output times 0.5\n"
                                "  around the layers\n"
                                "    logits times 0.6, layer norms\n");
}

static void layout_tells_what_is_recurrent(void **state)
{
    assert_layout("granitehybrid", "  mixing, 3 layers (0-1, 3)\n"
                                   "    recurrent, a state space: 2 key heads of 16, 8 value heads of 8\n"
                                   "    after a convolution over 4 tokens\n"
                                   "  mixing, layer 2\n"
                                   "    attention: 4 heads of 8 over 2 KV heads\n"
                                   "    no rope\n"
                                   "  feed-forward, all 4 layers\n"
                                   "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                                   "    router: softmax over all; the best 3; weights divided by their sum\n"
                                   "    shared expert 16 wide\n"
                                   "  around the layers\n"
                                   "    embeddings times 3, what a layer adds times 0.7, logits times 2\n");
    assert_layout("jamba",
                  "  mixing, 5 layers (0-1, 3-4, 6)\n"
                  "    recurrent, a selective state space: 64 channels of 24, their steps through a rank of 6\n"
                  "    after a convolution over 4 tokens\n"
                  "  mixing, 2 layers (2, 5)\n"
                  "    attention: 4 heads of 8 over 2 KV heads\n"
                  "    no rope\n"
                  "  feed-forward, 4 layers (0, 2, 4, 6)\n"
                  "    dense: 16 wide, SwiGLU\n"
                  "  feed-forward, 3 layers (1, 3, 5)\n"
                  "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                  "    router: softmax over all; the best 3\n");
    assert_layout("minimax_01",
                  "  mixing, 4 layers (0-1, 3-4)\n"
                  "    recurrent, linear attention with fixed decays: 4 key heads of 12, 4 value heads of 12\n"
                  "  mixing, layer 2\n"
                  "    attention: 4 heads of 12 over 2 KV heads\n"
                  "    rope on 6 of 12 dimensions\n"
                  "  feed-forward, all 5 layers\n"
                  "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                  "    router: softmax over all; the best 3; weights divided by their sum\n"
                  "  around the layers\n"
                  "    what layers see is what they add to, times 1.7\n");
    assert_layout("nemotron_h_moe", "  mixing, 3 layers (0, 2, 6)\n"
                                    "    recurrent, a state space: 2 key heads of 16, 8 value heads of 8\n"
                                    "    after a convolution over 4 tokens\n"
                                    "  mixing, 3 layers (1, 3, 5)\n"
                                    "    none\n"
                                    "  mixing, layer 4\n"
                                    "    attention: 4 heads of 8 over 2 KV heads\n"
                                    "    no rope\n"
                                    "  feed-forward, 4 layers (0, 2, 4, 6)\n"
                                    "    none\n"
                                    "  feed-forward, 3 layers (1, 3, 5)\n"
                                    "    sparse: 8 experts 40 wide, squared ReLU, 3 for each token\n"
                                    "    router: sigmoid of each; the best 3, chosen with a correction bias; weights "
                                    "divided by their sum, times 2.5\n"
                                    "    shared expert 40 wide\n");
    assert_layout("lfm2", "  mixing, 3 layers (0-1, 3)\n"
                          "    recurrent, a gated convolution over 3 tokens\n"
                          "  mixing, layer 2\n"
                          "    attention: 4 heads of 8 over 2 KV heads\n"
                          "    rope, norms of q and k over each head\n"
                          "  feed-forward, all 4 layers\n"
                          "    dense: 48 wide, SwiGLU\n");
}

static void layout_tells_decays_by_dimension(void **state)
{
    assert_layout("kimi_linear",
                  "  mixing, 4 layers (0-1, 3-4)\n"
                  "    recurrent, a gated delta net: 4 key heads of 24, 4 value heads of 24\n"
                  "    a decay for each key dimension, after a convolution over 4 tokens\n"
                  "  mixing, layer 2\n"
                  "    latent attention: 4 heads of 12, of which 4 are shared, values of 8\n"
                  "    one latent vector of 16 and 4 shared for all heads\n"
                  "    no rope\n"
                  "  feed-forward, layer 0\n"
                  "    dense: 48 wide, SwiGLU\n"
                  "  feed-forward, 4 layers (1-4)\n"
                  "    sparse: 8 experts 16 wide, SwiGLU, 3 for each token\n"
                  "    router: sigmoid of each; the best 3, chosen with a correction bias; weights divided by their "
                  "sum, times 2.5\n"
                  "    shared expert 16 wide\n");
}

static void layout_tells_bounds_of_decays_and_gates(void **state)
{
    char *text;
    struct err e = {0};
    assert_int_equal(print(&text, GOLDEN "/bailingmoe3.gguf", false, NULL, &e), ERR_OK);
    assert_non_null(strstr(text, "a decay for each key dimension, at least e^-5, after a convolution"));
    assert_non_null(strstr(text, "    rope, a gate on each head's output\n"));
    free(text);
    assert_int_equal(print(&text, GOLDEN "/dots3note.gguf", false, NULL, &e), ERR_OK);
    assert_non_null(strstr(text, "6 heads of 16, of which 4 are rotated, values of 12, over the last 9 positions\n"));
    assert_non_null(strstr(text, "    rope, a norm of what keys share, a gate on each head's output\n"));
    free(text);
    assert_int_equal(print(&text, GOLDEN "/hy_v4.gguf", false, NULL, &e), ERR_OK);
    assert_non_null(strstr(text, "    rope, sinks, a gate on the output\n"));
    assert_non_null(strstr(text, "4 residual streams, weighed around each part"));
    free(text);
    assert_int_equal(print(&text, GOLDEN "/kimi_k3.gguf", false, NULL, &e), ERR_OK);
    assert_non_null(strstr(text, "a decay for each key dimension, at least e^-5, after a convolution"));
    assert_non_null(strstr(text, "    no rope, a gate on the output\n"));
    assert_non_null(strstr(text, "    dense: 48 wide, SiTU within 2 times up within 1.5\n"));
    assert_non_null(
        strstr(text, "    sparse: 8 experts 16 wide, SiTU within 2 times up within 1.5, 3 for each token\n"));
    assert_non_null(strstr(text, "    routed experts work in a space of 20, their sum is normed\n"));
    assert_non_null(strstr(text, "attention over residuals, which are banked every 2 layers"));
    free(text);
    assert_int_equal(print(&text, GOLDEN "/glm5next.gguf", false, NULL, &e), ERR_OK);
    assert_non_null(strstr(text,
                           "    latent attention: 4 heads of 12, values of 8\n    one latent vector of 16 for all "
                           "heads; queries through a rank of 24\n    to 3 runs of 4 positions at most, and those "
                           "behind the last whole one, chosen by 12 heads of 64\n    no rope\n"));
    free(text);
    assert_int_equal(print(&text, GOLDEN "/qwen4exp.gguf", false, NULL, &e), ERR_OK);
    assert_non_null(
        strstr(text, "    to 4 runs of 4 positions at most, and those behind the last whole one, chosen by 3"));
    assert_non_null(strstr(text, "    in front of it embeddings of up to 3 tokens in 4 rows of 8\n"));
    assert_non_null(strstr(text, "4 residual streams, gated around each part"));
    assert_non_null(strstr(text, "n-grams, stay in file"));
    free(text);
}

/* A table of n-grams is counted by itself, and of a token's bytes its rows. */
static void json_counts_a_table_of_ngrams_by_itself(void **state)
{
    enum { TABLE = 97 * 8 * 2, EMBEDDING = 99 * 32 * 2, ROW = 8 * 2 };
    char *text;
    struct err e = {0};
    assert_int_equal(print(&text, GOLDEN "/qwen4exp.gguf", true, NULL, &e), ERR_OK);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const json_t *model = json_object_get(root, "model");
    const json_t *use = json_object_get(model, "bytes_by_use");
    assert_int_equal(json_u64(model, "ngram_table_bytes"), TABLE);
    assert_int_equal(json_u64(use, "embedding"), EMBEDDING);
    assert_int_equal(json_u64(json_object_get(model, "token_bytes_by_use"), "embedding"), 32 * 2 + 4 * ROW);
    assert_int_equal(json_u64(model, "resident_bytes"),
                     json_u64(model, "bytes") - json_u64(use, "routed_experts") - TABLE);
    json_decref(root);
    free(text);
}

static void json_has_the_layout_and_what_a_token_reads(void **state)
{
    char *text;
    struct err e = {0};
    assert_int_equal(print(&text, GOLDEN "/qwen35moe.gguf", true, NULL, &e), ERR_OK);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const json_t *layout = json_object_get(root, "layout"), *mixing = json_object_get(layout, "mixing");
    const json_t *moe = json_array_get(json_object_get(layout, "feed_forward"), 0);
    const json_t *use = json_object_get(json_object_get(root, "model"), "token_bytes_by_use");
    assert_int_equal(json_array_size(mixing), 2);
    assert_int_equal(json_array_size(json_object_get(json_array_get(mixing, 0), "layers")), 4);
    assert_int_equal(json_u64(json_array_get(mixing, 1), "rotated"), 16);
    assert_int_equal(json_u64(moe, "experts_used"), 3);
    assert_string_equal(json_string_value(json_object_get(moe, "scores")), "softmax");
    /* one layer of attention: 2 KV heads of 32, keys and values of 2 bytes; 4 of delta nets: 3 inputs of
     * 2 * 2 * 16 + 6 * 16 channels, and 6 states of 16 x 16, of 4 bytes */
    assert_int_equal(json_u64(layout, "kv_bytes_per_position"), 2 * 32 * 2 * 2);
    assert_int_equal(json_u64(layout, "recurrent_state_bytes"), 4 * (3 * 160 + 6 * 16 * 16) * 4);
    assert_int_equal(json_u64(use, "routed_experts"), 5 * 3 * 3 * 16 * 48 * 2);
    json_decref(root);
    free(text);
    assert_int_equal(print(&text, write_model().s, true, NULL, &e), ERR_OK);
    root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const char *error = json_string_value(json_object_get(json_object_get(root, "layout"), "error"));
    assert_non_null(strstr(error, "architecture \"x\" is not known"));
    json_decref(root);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_count_layers_and_experts),
        cmocka_unit_test(facts_add_up_bytes),
        cmocka_unit_test(facts_count_small_experts_as_they_are_used),
        cmocka_unit_test(facts_list_types_by_bytes),
        cmocka_unit_test(facts_refuse_contradictions),
        cmocka_unit_test(facts_of_no_language_model_are_zero),
        cmocka_unit_test(layers_without_a_feed_forward_part_are_no_dense_ones),
        cmocka_unit_test(text_shows_metadata_types_and_facts),
        cmocka_unit_test(json_gives_the_same_facts),
        cmocka_unit_test(odd_metadata_does_not_break_the_json),
        cmocka_unit_test(a_tensor_is_measured),
        cmocka_unit_test(statistics_over_many_pieces_are_exact),
        cmocka_unit_test(a_quantised_tensor_is_decoded),
        cmocka_unit_test(a_missing_tensor_or_file_is_an_error),
        cmocka_unit_test(an_unknown_type_is_shown_as_such),
        cmocka_unit_test(a_full_disk_is_an_error),
        cmocka_unit_test(layout_tells_attention_from_recurrence),
        cmocka_unit_test(layout_tells_windows_and_sinks),
        cmocka_unit_test(layout_tells_chunks_and_layers_without_rope),
        cmocka_unit_test(layout_tells_parallel_branches_and_what_is_around),
        cmocka_unit_test(layout_tells_latent_attention_and_routing_by_groups),
        cmocka_unit_test(layout_tells_blocks_that_are_chosen),
        cmocka_unit_test(layout_tells_compressed_caches_and_streams),
        cmocka_unit_test(layout_tells_gates_and_windows),
        cmocka_unit_test(layout_tells_limits_of_activations),
        cmocka_unit_test(layout_tells_what_routers_see),
        cmocka_unit_test(layout_tells_bounds_and_factors),
        cmocka_unit_test(layout_tells_layer_norms_and_limits_of_q_k_and_v),
        cmocka_unit_test(layout_tells_what_stands_beside_attention),
        cmocka_unit_test(layout_tells_what_is_recurrent),
        cmocka_unit_test(layout_tells_decays_by_dimension),
        cmocka_unit_test(layout_tells_bounds_of_decays_and_gates),
        cmocka_unit_test(json_has_the_layout_and_what_a_token_reads),
        cmocka_unit_test(json_counts_a_table_of_ngrams_by_itself),
    };
    return cmocka_run_group_tests_name("inspect", tests, folder_setup, folder_teardown);
}
