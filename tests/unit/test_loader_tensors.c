/* How loaders find keys and tensors in a file: names, shapes, rows, heads, tables, and what they say of what is wrong.
 * What model families do with them is for the golden models. */
#define _GNU_SOURCE /* memmem */
#include "device_fixture.h"
#include "gguf/gguf_writer.h"
#include "model/loader.h"
#include "store_fake.h"

enum { MAX_WEIGHT = 64 };

struct loader_fixture {
    struct fixture *f;
    struct gguf_writer *w;
    void *bytes;
    size_t n_bytes;
    struct gguf *g;
    struct store_fake_file file;
    struct store *store;
    struct model_load_params params;
    struct model m;
    struct loader l;
    uint64_t progress;
    struct err e;
};

static int open_loader(void **state)
{
    struct loader_fixture *t = calloc(1, sizeof *t);
    *state = t;
    return open_cpu((void **)&t->f) || gguf_writer_create(&t->w, &t->e);
}

static void keep_progress(void *user, uint64_t done_bytes)
{
    struct loader_fixture *t = user;
    t->progress = done_bytes;
}

/* A loader over what was written so far, of architecture "test". */
static void begin(struct loader_fixture *t)
{
    assert_int_equal(gguf_writer_to_memory(t->w, &t->bytes, &t->n_bytes, &t->e), ERR_OK);
    assert_int_equal(gguf_open_memory(&t->g, t->bytes, t->n_bytes, "test.gguf", &t->e), ERR_OK);
    t->file = (struct store_fake_file){"test.gguf", t->bytes, t->n_bytes};
    assert_int_equal(store_open_fake(&t->store, &t->file, 1, &t->e), ERR_OK);
    t->params = (struct model_load_params){
        .device = t->f->device, .pool = t->f->pool, .store = t->store, .progress = keep_progress, .user = t};
    t->m = (struct model){.arch = "test", .device = t->f->device, .n_layer = 4, .weights_capacity = MAX_WEIGHT};
    t->m.n_stage = 1;
    t->m.stages[0] = (struct model_stage){.device = t->f->device, .end = t->m.n_layer};
    t->m.weights = arena_calloc(&t->m.arena, MAX_WEIGHT, sizeof *t->m.weights);
    t->m.buffers = arena_calloc(&t->m.arena, MAX_WEIGHT, sizeof *t->m.buffers);
    t->l.g = t->g;
    t->l.p = &t->params;
    t->l.m = &t->m;
    t->l.n_block = 4;
    t->l.used = calloc((size_t)gguf_n_tensors(t->g) + 1, sizeof *t->l.used);
}

static int close_loader(void **state)
{
    struct loader_fixture *t = *state;
    void *f = t->f;
    for (size_t i = 0; i < t->m.n_weights; i++)
        backend_weight_close(t->m.weights[i].device, &t->m.weights[i].weight);
    for (size_t i = 0; i < t->m.n_buffers; i++)
        backend_buffer_close(t->m.buffers[i].device, &t->m.buffers[i].buffer);
    arena_close(&t->m.arena);
    store_close(&t->store);
    gguf_close(&t->g);
    gguf_writer_close(&t->w);
    mem_free(t->bytes);
    free(t->l.used);
    free(t);
    return close_cpu(&f);
}

static void add_f32(struct loader_fixture *t, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                    const float *values)
{
    const uint64_t ne[3] = {ne0, ne1, ne2};
    gguf_writer_add_tensor(t->w, name, ne2 > 1 ? 3 : ne1 > 1 ? 2 : 1, ne, QUANT_F32, values);
}

static void expect_error(const struct loader_fixture *t, const char *text)
{
    if (!strstr(t->e.text, text))
        fail_msg("\"%s\" lacks \"%s\"", t->e.text, text);
}

/* ---- keys ---------------------------------------------------------------------------------------------------- */

static void keys_belong_to_the_architecture(void **state)
{
    struct loader_fixture *t = *state;
    int64_t n = 7;
    bool b = true;
    gguf_writer_add_u32(t->w, "test.width", 12);
    gguf_writer_add_f32(t->w, "test.scale", 0.5f);
    gguf_writer_add_bool(t->w, "test.flag", false);
    gguf_writer_add_u32(t->w, "other.height", 9);
    begin(t);
    assert_int_equal(load_u32(&t->l, "width", &n, &t->e), ERR_OK);
    assert_int_equal(n, 12);
    assert_int_equal(load_u32_opt(&t->l, "height", &n, &t->e), ERR_OK);
    assert_int_equal(n, 12); /* as it was */
    assert_int_equal(load_bool_opt(&t->l, "flag", &b, &t->e), ERR_OK);
    assert_false(b);
    assert_true(load_has_key(&t->l, "width"));
    assert_false(load_has_key(&t->l, "height"));
    assert_int_equal(load_u32(&t->l, "height", &n, &t->e), ERR_FORMAT);
    expect_error(t, "test.gguf");
    expect_error(t, "\"test.height\"");
    assert_int_equal(load_u32_opt(&t->l, "scale", &n, &t->e), ERR_FORMAT); /* of another type */
    expect_error(t, "\"test.scale\"");
}

static void a_number_may_be_one_for_all_layers_or_one_for_each(void **state)
{
    static const uint32_t each[4] = {5, 6, 7, 8};
    struct loader_fixture *t = *state;
    int64_t n = 3;
    gguf_writer_add_u32(t->w, "test.all", 12);
    gguf_writer_add_array(t->w, "test.each", GGUF_U32, each, 4);
    gguf_writer_add_array(t->w, "test.few", GGUF_U32, each, 3);
    begin(t);
    assert_int_equal(load_layer_u32_opt(&t->l, "absent", 2, &n, &t->e), ERR_OK);
    assert_int_equal(n, 3);
    assert_int_equal(load_layer_u32_opt(&t->l, "all", 2, &n, &t->e), ERR_OK);
    assert_int_equal(n, 12);
    for (int64_t i = 0; i < 4; i++) {
        assert_int_equal(load_layer_u32_opt(&t->l, "each", i, &n, &t->e), ERR_OK);
        assert_int_equal(n, each[i]);
    }
    assert_int_equal(load_layer_u32_opt(&t->l, "few", 0, &n, &t->e), ERR_FORMAT);
    expect_error(t, "\"test.few\" has 3 elements, expected one for each of 4 layers");
}

static void a_flag_for_each_layer_may_be_a_number(void **state)
{
    static const uint8_t flags[4] = {1, 0, 0, 1};
    static const int32_t numbers[4] = {0, 1, 2, 0};
    struct loader_fixture *t = *state;
    gguf_writer_add_array(t->w, "test.flags", GGUF_BOOL, flags, 4);
    gguf_writer_add_array(t->w, "test.numbers", GGUF_I32, numbers, 4);
    gguf_writer_add_array(t->w, "test.few", GGUF_BOOL, flags, 2);
    gguf_writer_add_u32(t->w, "test.scalar", 1);
    begin(t);
    for (int64_t i = 0; i < 4; i++) {
        bool a = !flags[i], b = !numbers[i], kept = i % 2;
        assert_int_equal(load_layer_flag_opt(&t->l, "flags", i, &a, &t->e), ERR_OK);
        assert_int_equal(a, flags[i]);
        assert_int_equal(load_layer_flag_opt(&t->l, "numbers", i, &b, &t->e), ERR_OK);
        assert_int_equal(b, numbers[i] != 0);
        assert_int_equal(load_layer_flag_opt(&t->l, "absent", i, &kept, &t->e), ERR_OK);
        assert_int_equal(load_layer_flag_opt(&t->l, "scalar", i, &kept, &t->e), ERR_OK);
        assert_int_equal(kept, i % 2);
        assert_int_equal(load_layer_flag_opt(&t->l, "few", i, &kept, &t->e), ERR_FORMAT);
        expect_error(t, "test.few has 2 elements, expected one for each of 4 layers");
    }
}

/* Which of the four layers are windowed, as digits, and how wide. */
static int windowed(struct loader_fixture *t, int64_t period)
{
    int mask = 0;
    for (int64_t i = 0; i < 4; i++) {
        int64_t window = -1;
        assert_int_equal(load_window(&t->l, i, period, false, &window, &t->e), ERR_OK);
        assert_true(window == 0 || window == 128);
        mask = 10 * mask + (window != 0);
    }
    return mask;
}

static void windows_follow_the_family_or_the_file(void **state)
{
    struct loader_fixture *t = *state;
    gguf_writer_add_u32(t->w, "test.attention.sliding_window", 128);
    begin(t);
    assert_int_equal(windowed(t, 2), 1010);
    assert_int_equal(windowed(t, 4), 1110);
    assert_int_equal(windowed(t, 1), 0);
}

static void a_pattern_of_windows_may_be_a_number(void **state)
{
    struct loader_fixture *t = *state;
    gguf_writer_add_u32(t->w, "test.attention.sliding_window", 128);
    gguf_writer_add_u32(t->w, "test.attention.sliding_window_pattern", 3);
    begin(t);
    assert_int_equal(windowed(t, 2), 1101);
}

static void a_pattern_of_windows_may_name_each_layer(void **state)
{
    static const uint8_t pattern[4] = {0, 1, 1, 0};
    struct loader_fixture *t = *state;
    gguf_writer_add_u32(t->w, "test.attention.sliding_window", 128);
    gguf_writer_add_array(t->w, "test.attention.sliding_window_pattern", GGUF_BOOL, pattern, 4);
    begin(t);
    assert_int_equal(windowed(t, 2), 110);
}

static void a_window_without_a_width_is_refused(void **state)
{
    struct loader_fixture *t = *state;
    int64_t window;
    begin(t);
    assert_int_equal(load_window(&t->l, 0, 2, false, &window, &t->e), ERR_FORMAT);
    expect_error(t, "\"test.attention.sliding_window\"");
    assert_int_equal(load_window(&t->l, 1, 2, false, &window, &t->e), ERR_OK); /* attends to everything */
}

/* ---- tensors: what is wrong with them ------------------------------------------------------------------------- */

enum { K = 32, N_ROW = 12 };

static void errors_name_the_tensor_and_both_shapes(void **state)
{
    static const float values[K * N_ROW];
    struct loader_fixture *t = *state;
    struct weight *w = NULL;
    struct tensor v = {0};
    add_f32(t, "blk.3.attn_q.weight", K, N_ROW, 1, values);
    begin(t);
    assert_int_equal(load_weight(&t->l, 2, "attn_q.weight", K, N_ROW, &w, &t->e), ERR_FORMAT);
    expect_error(t, "test.gguf: tensor blk.2.attn_q.weight is missing");
    assert_int_equal(load_weight(&t->l, -1, "attn_q.weight", K, N_ROW, &w, &t->e), ERR_FORMAT);
    expect_error(t, "tensor attn_q.weight is missing");
    assert_int_equal(load_weight(&t->l, 3, "attn_q.weight", N_ROW, K, &w, &t->e), ERR_FORMAT);
    expect_error(t, "tensor blk.3.attn_q.weight has shape [32, 12, 1], expected [12, 32, 1]");
    assert_int_equal(load_vector(&t->l, 3, "attn_q.weight", K, true, &v, &t->e), ERR_FORMAT);
    expect_error(t, "has shape [32, 12, 1], expected [32, 1, 1]");
    const int64_t shape[3] = {K, N_ROW / 2, 2};
    const struct head_rows rows = {.k = K, .n_row = N_ROW / 2, .stride = N_ROW / 2};
    assert_int_equal(load_head_weight(&t->l, 3, "attn_q.weight", shape, &rows, 2, &w, &t->e), ERR_FORMAT);
    expect_error(t, "expected [32, 6, 2]");
    assert_null(w);
    assert_null(v.buffer);
    assert_int_equal(t->m.n_weights + t->m.n_buffers, 0);
    assert_false(t->l.used[0]); /* so that it is warned about */
    assert_int_equal(load_weight(&t->l, 3, "attn_q.weight", K, N_ROW, &w, &t->e), ERR_OK);
    assert_true(t->l.used[0]);
}

static void a_type_that_is_not_known_is_refused_with_its_number(void **state)
{
    static const float values[K * N_ROW];
    struct loader_fixture *t = *state;
    struct weight *w;
    struct gguf *g;
    add_f32(t, "a.weight", K, N_ROW, 1, values);
    begin(t);
    /* behind the name: number of dimensions, two of them, type */
    char *name = memmem(t->bytes, t->n_bytes, "a.weight", 8);
    const uint32_t type = 99;
    memcpy(name + 8 + 4 + 2 * 8, &type, sizeof type);
    assert_int_equal(gguf_open_memory(&g, t->bytes, t->n_bytes, "test.gguf", &t->e), ERR_OK);
    t->l.g = g;
    assert_int_equal(load_weight(&t->l, -1, "a.weight", K, N_ROW, &w, &t->e), ERR_UNSUPPORTED);
    expect_error(t, "tensor a.weight has type 99");
    gguf_close(&g);
}

static void a_failed_read_names_the_tensor(void **state)
{
    static const float values[K * N_ROW];
    struct loader_fixture *t = *state;
    struct weight *w = NULL;
    struct tensor v = {0};
    add_f32(t, "blk.1.ffn_up.weight", K, N_ROW, 1, values);
    add_f32(t, "blk.1.ffn_norm.weight", K, 1, 1, values);
    begin(t);
    for (uint64_t i = 0; i < 2; i++)
        store_fake_add_fault(t->store, (struct store_fault){.kind = STORE_FAULT_ERROR,
                                                            .offset = gguf_tensor_at(t->g, i)->offset,
                                                            .n_times = UINT64_MAX});
    assert_int_equal(load_weight(&t->l, 1, "ffn_up.weight", K, N_ROW, &w, &t->e), ERR_IO);
    expect_error(t, "tensor blk.1.ffn_up.weight");
    assert_int_equal(load_vector(&t->l, 1, "ffn_norm.weight", K, true, &v, &t->e), ERR_IO);
    expect_error(t, "tensor blk.1.ffn_norm.weight");
}

/* ---- tensors: their numbers ----------------------------------------------------------------------------------- */

/* All rows of a matrix on the device. Owned by the caller (free). */
static float *matrix_of(struct loader_fixture *t, struct weight *w, int64_t k, int64_t n_row)
{
    int32_t *ids = malloc((size_t)n_row * sizeof *ids);
    float *values = malloc((size_t)(k * n_row) * sizeof *values);
    for (int32_t i = 0; i < n_row; i++)
        ids[i] = i;
    struct tensor tids = tensor_i32(t->f, n_row, 1, ids), out = tensor_f32(t->f, k, n_row, 1, NULL);
    backend_enqueue(t->f->device,
                    &(struct op){.kind = OP_EMBED, .in = {tids}, .out = {out}, .weight = {w}, .scale = 1});
    read_back(t->f, &out, values);
    backend_buffer_close(t->f->device, &tids.buffer);
    backend_buffer_close(t->f->device, &out.buffer);
    free(ids);
    return values;
}

static void expect_row(const float *got, const float *want, int64_t n)
{
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
}

static void a_matrix_has_the_files_rows(void **state)
{
    struct loader_fixture *t = *state;
    struct weight *w;
    float values[K * 37];
    fill(t->f, values, K * 37);
    add_f32(t, "a.weight", K, 37, 1, values);
    begin(t);
    assert_int_equal(load_weight(&t->l, -1, "a.weight", K, 37, &w, &t->e), ERR_OK);
    float *got = matrix_of(t, w, K, 37);
    expect_row(got, values, K * 37);
    assert_int_equal(t->progress, sizeof values);
    assert_ptr_equal(t->m.weights[0].weight, w); /* the model's to close */
    free(got);
}

static void runs_of_rows_follow_each_other(void **state)
{
    enum { N = 60 };
    /* blocks of 3 rows, 10 apart, from row 2 on; 4 rows on end; and one alone */
    static const struct row_run runs[] = {{.n_row = 18, .block = 3, .stride = 10, .first = 2},
                                          {.n_row = 4, .block = 4, .stride = 4, .first = 40},
                                          {.n_row = 1, .block = 1, .stride = 1, .first = 0}};
    struct loader_fixture *t = *state;
    struct weight *w;
    float values[K * N];
    fill(t->f, values, K * N);
    add_f32(t, "blk.0.a.weight", K, N, 1, values);
    begin(t);
    const struct file_matrix from = {0, "a.weight", K, N};
    assert_int_equal(load_weight_rows(&t->l, &from, runs, 3, &w, &t->e), ERR_OK);
    float *got = matrix_of(t, w, K, 23);
    for (int i = 0; i < 23; i++) {
        int row = i < 18 ? i / 3 * 10 + i % 3 + 2 : i < 22 ? 40 + i - 18 : 0;
        expect_row(got + i * K, values + row * K, K);
    }
    free(got);
}

/* Three heads in a tensor of 3 * 20 rows: of each, rows 4 to 10, filled up to 16 with zeros. */
static void heads_are_filled_up_with_zeros(void **state)
{
    enum { N_HEAD = 3, STRIDE = 20, FIRST = 4, N = 7, PADDED = 16 };
    static const struct head_rows rows = {.k = K, .n_row = N, .stride = STRIDE, .first = FIRST};
    static const int64_t shape[3] = {K, STRIDE, N_HEAD};
    static const float zeros[K];
    struct loader_fixture *t = *state;
    struct weight *w;
    float values[K * STRIDE * N_HEAD];
    fill(t->f, values, K * STRIDE * N_HEAD);
    add_f32(t, "blk.0.a.weight", K, STRIDE, N_HEAD, values);
    begin(t);
    assert_int_equal(load_head_weight(&t->l, 0, "a.weight", shape, &rows, N_HEAD, &w, &t->e), ERR_OK);
    float *got = matrix_of(t, w, K, N_HEAD * PADDED);
    for (int i = 0; i < N_HEAD * PADDED; i++) {
        int head = i / PADDED, row = i % PADDED;
        expect_row(got + i * K, row < N ? values + (head * STRIDE + FIRST + row) * K : zeros, K);
    }
    free(got);
}

/* Heads that lie transposed: [N_OUT][K] each, from a file that has [K][N_OUT] of them behind 5 other rows. */
static void transposed_heads_are_turned(void **state)
{
    enum { N_HEAD = 2, N_IN = 24, N_OUT = 32, OTHERS = 5, STRIDE = N_IN + OTHERS };
    static const struct head_rows rows = {
        .k = N_IN, .n_row = N_OUT, .stride = STRIDE, .first = OTHERS, .transposed = true};
    static const int64_t shape[3] = {N_OUT, N_HEAD * STRIDE, 1};
    struct loader_fixture *t = *state;
    struct weight *w;
    float values[N_OUT * N_HEAD * STRIDE];
    fill(t->f, values, N_OUT * N_HEAD * STRIDE);
    add_f32(t, "blk.0.a.weight", N_OUT, N_HEAD * STRIDE, 1, values);
    begin(t);
    assert_int_equal(load_head_weight(&t->l, 0, "a.weight", shape, &rows, N_HEAD, &w, &t->e), ERR_OK);
    float *got = matrix_of(t, w, N_IN, N_HEAD * N_OUT);
    for (int head = 0; head < N_HEAD; head++)
        for (int i = 0; i < N_OUT; i++)
            for (int c = 0; c < N_IN; c++)
                assert_true(got[(head * N_OUT + i) * N_IN + c] == values[(head * STRIDE + OTHERS + c) * N_OUT + i]);
    free(got);
}

static void tables_are_decoded_to_floats(void **state)
{
    enum { N = 10, ROWS = 3 };
    static const uint64_t ne[2] = {N, ROWS};
    struct loader_fixture *t = *state;
    uint16_t halves[N * ROWS];
    float got[N * ROWS];
    struct tensor table, absent = {0};
    for (int i = 0; i < N * ROWS; i++)
        halves[i] = quant_float_to_half((float)i / 8 - 1);
    gguf_writer_add_tensor(t->w, "blk.0.a.bias", 2, ne, QUANT_F16, halves);
    begin(t);
    assert_int_equal(load_table(&t->l, 0, "a.bias", N, ROWS, true, &table, &t->e), ERR_OK);
    read_back(t->f, &table, got);
    for (int i = 0; i < N * ROWS; i++)
        assert_true(got[i] == (float)i / 8 - 1);
    assert_int_equal(load_vector(&t->l, 0, "b.bias", N, false, &absent, &t->e), ERR_OK);
    assert_null(absent.buffer);
    assert_int_equal(load_vector(&t->l, 0, "b.bias", N, true, &absent, &t->e), ERR_FORMAT);
    expect_error(t, "tensor blk.0.b.bias is missing");
    assert_int_equal(load_table(&t->l, 0, "a.bias", N, ROWS + 1, false, &absent, &t->e), ERR_FORMAT);
    expect_error(t, "expected [10, 4, 1]");
}

static void a_description_reads_nothing(void **state)
{
    static const float values[K * N_ROW];
    struct loader_fixture *t = *state;
    struct backend *null;
    struct weight *w;
    struct tensor v;
    add_f32(t, "a.weight", K, N_ROW, 1, values);
    add_f32(t, "b.weight", K, 1, 1, values);
    begin(t);
    assert_int_equal(backend_null_open(&null, &t->e), ERR_OK);
    t->m.device = t->m.stages[0].device = null;
    t->params.store = NULL;
    assert_int_equal(load_weight(&t->l, -1, "a.weight", K, N_ROW, &w, &t->e), ERR_OK);
    assert_int_equal(load_vector(&t->l, -1, "b.weight", K, true, &v, &t->e), ERR_OK);
    assert_int_equal(load_weight(&t->l, -1, "a.weight", K, N_ROW + 1, &w, &t->e), ERR_FORMAT); /* as checked as ever */
    assert_int_equal(store_get_counters(t->store).n_reads, 0);
    backend_weight_close(null, &t->m.weights[0].weight);
    backend_buffer_close(null, &t->m.buffers[0].buffer);
    t->m.n_buffers = 0;
    backend_close(&null);
}

/* ---- rope ----------------------------------------------------------------------------------------------------- */

static err_code rope(struct loader_fixture *t, struct rope_angles *a)
{
    int index = -1;
    err_code code = load_rope(&t->l, "rope.freq_base", 64, NULL, &index, &t->e);
    if (code == ERR_OK)
        *a = t->m.ropes[index].angles;
    return code;
}

static void without_keys_positions_are_not_scaled(void **state)
{
    struct loader_fixture *t = *state;
    struct rope_angles a = {0};
    begin(t);
    assert_int_equal(rope(t, &a), ERR_OK);
    assert_true(a.freq_base == 10000 && a.freq_scale == 1 && a.magnitude == 1 && !a.yarn && a.temperature == 0);
    assert_int_equal(t->m.n_rope, 1);
    assert_int_equal(t->m.ropes[0].n_rot, 64);
}

static void linear_scaling_divides_positions(void **state)
{
    struct loader_fixture *t = *state;
    struct rope_angles a = {0};
    gguf_writer_add_f32(t->w, "test.rope.freq_base", 500000);
    gguf_writer_add_f32(t->w, "test.rope.scaling.factor", 8);
    begin(t);
    assert_int_equal(rope(t, &a), ERR_OK);
    assert_true(a.freq_base == 500000 && a.freq_scale == 0.125f && a.magnitude == 1 && !a.yarn);
}

static void a_factor_counts_for_nothing_where_the_file_says_none(void **state)
{
    struct loader_fixture *t = *state;
    struct rope_angles a = {0};
    gguf_writer_add_string(t->w, "test.rope.scaling.type", "none");
    gguf_writer_add_f32(t->w, "test.rope.scaling.factor", 8);
    begin(t);
    assert_int_equal(rope(t, &a), ERR_OK);
    assert_true(a.freq_scale == 1);
}

static void yarn_scales_slow_pairs_and_raises_magnitudes(void **state)
{
    struct loader_fixture *t = *state;
    struct rope_angles a = {0};
    gguf_writer_add_string(t->w, "test.rope.scaling.type", "yarn");
    gguf_writer_add_f32(t->w, "test.rope.scaling.factor", 32);
    gguf_writer_add_u32(t->w, "test.rope.scaling.original_context_length", 4096);
    gguf_writer_add_f32(t->w, "test.rope.freq_base", 150000);
    begin(t);
    assert_int_equal(rope(t, &a), ERR_OK);
    assert_true(a.yarn && a.freq_scale == 1.0f / 32);
    /* 64 * ln(4096 / (turns * 2 pi)) / (2 * ln(150000)): 8.09 for 32 turns, 17.40 for one */
    assert_true(a.yarn_low == 8 && a.yarn_high == 18);
    assert_true(a.magnitude > 1.34657f && a.magnitude < 1.34658f); /* 1 + 0.1 * ln(32) */
}

static void a_scaling_that_is_not_known_is_refused(void **state)
{
    struct loader_fixture *t = *state;
    struct rope_angles a = {0};
    gguf_writer_add_string(t->w, "test.rope.scaling.type", "spiral");
    begin(t);
    assert_int_equal(rope(t, &a), ERR_UNSUPPORTED);
    expect_error(t, "test.rope.scaling.type is \"spiral\"");
    assert_int_equal(t->m.n_rope, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_loader, close_loader)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(keys_belong_to_the_architecture),
        TEST(a_number_may_be_one_for_all_layers_or_one_for_each),
        TEST(a_flag_for_each_layer_may_be_a_number),
        TEST(windows_follow_the_family_or_the_file),
        TEST(a_pattern_of_windows_may_be_a_number),
        TEST(a_pattern_of_windows_may_name_each_layer),
        TEST(a_window_without_a_width_is_refused),
        TEST(errors_name_the_tensor_and_both_shapes),
        TEST(a_type_that_is_not_known_is_refused_with_its_number),
        TEST(a_failed_read_names_the_tensor),
        TEST(a_matrix_has_the_files_rows),
        TEST(runs_of_rows_follow_each_other),
        TEST(heads_are_filled_up_with_zeros),
        TEST(transposed_heads_are_turned),
        TEST(tables_are_decoded_to_floats),
        TEST(a_description_reads_nothing),
        TEST(without_keys_positions_are_not_scaled),
        TEST(linear_scaling_divides_positions),
        TEST(a_factor_counts_for_nothing_where_the_file_says_none),
        TEST(yarn_scales_slow_pairs_and_raises_magnitudes),
        TEST(a_scaling_that_is_not_known_is_refused),
    };
    return cmocka_run_group_tests_name("loader tensors", tests, NULL, NULL);
}
