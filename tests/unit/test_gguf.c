#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "gguf/gguf_internal.h"
#include "gguf/gguf_writer.h"
#include "temp_folder.h"

/* A file built byte by byte, so that it can be wrong. */
struct raw {
    uint8_t b[4096];
    size_t n;
};

static void raw_bytes(struct raw *r, const void *p, size_t n)
{
    assert_true(n <= sizeof r->b - r->n);
    memcpy(r->b + r->n, p, n);
    r->n += n;
}

static void raw_u32(struct raw *r, uint32_t v)
{
    raw_bytes(r, &v, sizeof v);
}

static void raw_u64(struct raw *r, uint64_t v)
{
    raw_bytes(r, &v, sizeof v);
}

static void raw_str(struct raw *r, const char *s)
{
    raw_u64(r, strlen(s));
    raw_bytes(r, s, strlen(s));
}

static struct raw raw_head(uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    struct raw r = {0};
    raw_bytes(&r, "GGUF", 4);
    raw_u32(&r, version);
    raw_u64(&r, n_tensors);
    raw_u64(&r, n_kv);
    return r;
}

static void raw_kv_u32(struct raw *r, const char *key, uint32_t v)
{
    raw_str(r, key);
    raw_u32(r, GGUF_U32);
    raw_u32(r, v);
}

static void raw_tensor(struct raw *r, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                       uint64_t offset)
{
    raw_str(r, name);
    raw_u32(r, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        raw_u64(r, ne[d]);
    raw_u32(r, type);
    raw_u64(r, offset);
}

/* Zeros up to the data section and n_data bytes of it. */
static void raw_data(struct raw *r, size_t n_data)
{
    static const uint8_t zeros[1024];
    raw_bytes(r, zeros, (32 - r->n % 32) % 32);
    raw_bytes(r, zeros, n_data);
}

static struct gguf *open_raw(const struct raw *r)
{
    struct gguf *g;
    struct err e = {0};
    if (gguf_open_memory(&g, r->b, r->n, "raw", &e) != ERR_OK)
        fail_msg("%s", e.text);
    return g;
}

/* The bytes are copied to a block of their very size, so that the address sanitizer sees any read past the
 * end. */
static void assert_refused(const struct raw *r, err_code code, const char *const *words)
{
    struct gguf *g;
    struct err e = {0};
    void *exact = mem_alloc(r->n);
    memcpy(exact, r->b, r->n);
    assert_int_equal(gguf_open_memory(&g, exact, r->n, "raw.gguf", &e), code);
    mem_free(exact);
    assert_null(g);
    assert_int_equal(e.code, code);
    for (; *words; words++)
        if (!strstr(e.text, *words))
            fail_msg("\"%s\" is not in \"%s\"", *words, e.text);
}

#define REFUSED(r, code, ...) assert_refused(r, code, (const char *const[]){"raw.gguf", __VA_ARGS__, NULL})

/* A file with one of everything, in memory. */
static void *make_sample(size_t *n)
{
    struct gguf_writer *w;
    struct err e = {0};
    static const uint32_t layers[] = {1, 2, 3};
    static const char *const tokens[] = {"<s>", "", "hello", "\xff\xfe"};
    static const uint8_t bools[] = {1, 0, 1};
    static const float x[64] = {1, 2, 3};
    static const struct gguf_string nested_strings[] = {{"a", 1}, {"bc", 2}};
    const struct gguf_value nested[] = {
        {.type = GGUF_ARRAY, .arr = {GGUF_U32, 3, layers}},
        {.type = GGUF_ARRAY, .arr = {GGUF_STRING, 2, nested_strings}},
        {.type = GGUF_ARRAY, .arr = {GGUF_F64, 0, NULL}},
    };
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_add_string(w, "general.architecture", "test");
    gguf_writer_add_value(w, "v.u8", &(struct gguf_value){.type = GGUF_U8, .u = 255});
    gguf_writer_add_value(w, "v.i8", &(struct gguf_value){.type = GGUF_I8, .i = -128});
    gguf_writer_add_value(w, "v.u16", &(struct gguf_value){.type = GGUF_U16, .u = 65535});
    gguf_writer_add_value(w, "v.i16", &(struct gguf_value){.type = GGUF_I16, .i = -32768});
    gguf_writer_add_u32(w, "v.u32", UINT32_MAX);
    gguf_writer_add_value(w, "v.i32", &(struct gguf_value){.type = GGUF_I32, .i = INT32_MIN});
    gguf_writer_add_value(w, "v.u64", &(struct gguf_value){.type = GGUF_U64, .u = UINT64_MAX});
    gguf_writer_add_value(w, "v.i64", &(struct gguf_value){.type = GGUF_I64, .i = INT64_MIN});
    gguf_writer_add_f32(w, "v.f32", 0.1f);
    gguf_writer_add_value(w, "v.f64", &(struct gguf_value){.type = GGUF_F64, .f = 0.1});
    gguf_writer_add_bool(w, "v.bool", true);
    gguf_writer_add_value(w, "v.binary", &(struct gguf_value){.type = GGUF_STRING, .str = {"a\0b\xff", 4}});
    gguf_writer_add_strings(w, "a.strings", tokens, 4);
    gguf_writer_add_array(w, "a.u32", GGUF_U32, layers, 3);
    gguf_writer_add_array(w, "a.bool", GGUF_BOOL, bools, 3);
    gguf_writer_add_array(w, "a.empty", GGUF_I64, NULL, 0);
    gguf_writer_add_array(w, "a.f32", GGUF_F32, x + 3, 3); /* zeros */
    gguf_writer_add_array(w, "a.nested", GGUF_ARRAY, nested, 3);
    gguf_writer_add_tensor(w, "one", 1, (const uint64_t[]){5}, QUANT_F32, x);
    gguf_writer_add_tensor(w, "two", 3, (const uint64_t[]){32, 2, 3}, QUANT_Q8_0, x);
    void *p;
    assert_int_equal(gguf_writer_to_memory(w, &p, n, &e), ERR_OK);
    gguf_writer_close(&w);
    assert_null(w);
    return p;
}

static void each_value_type_survives_a_round_trip(void **state)
{
    size_t n;
    void *p = make_sample(&n);
    struct gguf *g;
    struct err e = {0};
    assert_int_equal(gguf_open_memory(&g, p, n, "sample", &e), ERR_OK);
    memset(p, 0xee, n); /* the view must not look at the caller's bytes any more */
    mem_free(p);
    assert_int_equal(gguf_version(g), 3);
    assert_int_equal(gguf_n_files(g), 1);
    assert_int_equal(gguf_file_bytes(g, 0), n);
    assert_int_equal(gguf_alignment(g), 32);
    assert_int_equal(gguf_n_kv(g), 19);
    assert_string_equal(gguf_kv_at(g, 1)->key.s, "v.u8");
    assert_true(gguf_find(g, "v.u8")->type == GGUF_U8 && gguf_find(g, "v.u8")->u == 255);
    assert_true(gguf_find(g, "v.i8")->type == GGUF_I8 && gguf_find(g, "v.i8")->i == -128);
    assert_true(gguf_find(g, "v.u16")->type == GGUF_U16 && gguf_find(g, "v.u16")->u == 65535);
    assert_true(gguf_find(g, "v.i16")->type == GGUF_I16 && gguf_find(g, "v.i16")->i == -32768);
    assert_true(gguf_find(g, "v.u32")->type == GGUF_U32 && gguf_find(g, "v.u32")->u == UINT32_MAX);
    assert_true(gguf_find(g, "v.i32")->type == GGUF_I32 && gguf_find(g, "v.i32")->i == INT32_MIN);
    assert_true(gguf_find(g, "v.u64")->type == GGUF_U64 && gguf_find(g, "v.u64")->u == UINT64_MAX);
    assert_true(gguf_find(g, "v.i64")->type == GGUF_I64 && gguf_find(g, "v.i64")->i == INT64_MIN);
    assert_true(gguf_find(g, "v.f32")->type == GGUF_F32 && gguf_find(g, "v.f32")->f == (double)0.1f);
    assert_true(gguf_find(g, "v.f64")->type == GGUF_F64 && gguf_find(g, "v.f64")->f == 0.1);
    assert_true(gguf_find(g, "v.bool")->type == GGUF_BOOL && gguf_find(g, "v.bool")->u == 1);
    const struct gguf_value *v = gguf_find(g, "v.binary");
    assert_int_equal(v->str.n, 4);
    assert_memory_equal(v->str.s, "a\0b\xff", 5); /* and its NUL */
    assert_null(gguf_find(g, "v"));
    gguf_close(&g);
    assert_null(g);
    gguf_close(&g);
}

static void arrays_survive_a_round_trip(void **state)
{
    size_t n;
    void *p = make_sample(&n);
    struct gguf *g;
    struct err e = {0};
    assert_int_equal(gguf_open_memory(&g, p, n, "sample", &e), ERR_OK);
    mem_free(p);
    const void *data;
    uint64_t count;
    assert_int_equal(gguf_opt_array(g, "a.strings", GGUF_STRING, &data, &count, &e), ERR_OK);
    const struct gguf_string *s = data;
    assert_int_equal(count, 4);
    assert_string_equal(s[0].s, "<s>");
    assert_int_equal(s[1].n, 0);
    assert_string_equal(s[1].s, "");
    assert_string_equal(s[2].s, "hello");
    assert_string_equal(s[3].s, "\xff\xfe");
    assert_int_equal(gguf_opt_array(g, "a.bool", GGUF_BOOL, &data, &count, &e), ERR_OK);
    assert_int_equal(count, 3);
    assert_memory_equal(data, "\1\0\1", 3);
    assert_int_equal(gguf_opt_array(g, "a.empty", GGUF_I64, &data, &count, &e), ERR_OK);
    assert_int_equal(count, 0);
    assert_int_equal(gguf_opt_array(g, "absent", GGUF_I64, &data, &count, &e), ERR_OK);
    assert_null(data);
    assert_int_equal(gguf_opt_array(g, "a.bool", GGUF_I32, &data, &count, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "\"a.bool\" is of type array of bool, expected array of i32"));
    const struct gguf_value *v = gguf_find(g, "a.nested"), *inner = v->arr.data;
    assert_true(v->arr.type == GGUF_ARRAY && v->arr.n == 3);
    assert_true(inner[0].type == GGUF_ARRAY && inner[0].arr.type == GGUF_U32 && inner[0].arr.n == 3);
    assert_int_equal(((const uint32_t *)inner[0].arr.data)[2], 3);
    assert_string_equal(((const struct gguf_string *)inner[1].arr.data)[1].s, "bc");
    assert_true(inner[2].arr.type == GGUF_F64 && inner[2].arr.n == 0);
    gguf_close(&g);
}

static void tensors_of_whole_numbers_have_a_size(void **state)
{
    static const int32_t numbers[6] = {1, -2, 3};
    static const uint64_t ne[2] = {3, 2};
    struct gguf_writer *w;
    struct gguf *g;
    struct err e = {0};
    void *bytes;
    size_t n;
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_add_tensor(w, "numbers", 2, ne, GGUF_TENSOR_I32, numbers);
    assert_int_equal(gguf_writer_to_memory(w, &bytes, &n, &e), ERR_OK);
    gguf_writer_close(&w);
    assert_int_equal(gguf_open_memory(&g, bytes, n, "numbers", &e), ERR_OK);
    const struct gguf_tensor *t = gguf_tensor_at(g, 0);
    assert_true(!t->info && t->type_id == GGUF_TENSOR_I32 && t->n_bytes == sizeof numbers);
    assert_memory_equal((const char *)bytes + t->offset, numbers, sizeof numbers);
    uint64_t end = t->offset + sizeof numbers;
    gguf_close(&g);
    assert_int_equal(gguf_open_memory(&g, bytes, end - 1, "cut", &e), ERR_FORMAT);
    mem_free(bytes);
}

static void tensors_are_listed_with_their_places(void **state)
{
    size_t n;
    uint8_t *p = make_sample(&n);
    struct gguf *g;
    struct err e = {0};
    assert_int_equal(gguf_open_memory(&g, p, n, "sample", &e), ERR_OK);
    assert_int_equal(gguf_n_tensors(g), 2);
    const struct gguf_tensor *one = gguf_tensor_find(g, "one"), *two = gguf_tensor_find(g, "two");
    assert_ptr_equal(one, gguf_tensor_at(g, 0));
    assert_ptr_equal(two, gguf_tensor_at(g, 1));
    assert_null(gguf_tensor_find(g, "three"));
    assert_true(one->n_dims == 1 && one->ne[0] == 5 && one->ne[1] == 1 && one->ne[3] == 1 && one->n_bytes == 20);
    assert_true(two->n_dims == 3 && two->ne[0] == 32 && two->ne[1] == 2 && two->ne[2] == 3);
    assert_int_equal(two->n_bytes, 6 * 34);
    assert_string_equal(two->info->name, "Q8_0");
    assert_int_equal(one->offset % 32, 0);
    assert_int_equal(two->offset, one->offset + 32);
    float x[3];
    memcpy(x, p + one->offset, sizeof x);
    assert_true(x[0] == 1 && x[1] == 2 && x[2] == 3);
    gguf_close(&g);
    mem_free(p);
}

static void typed_getters_convert_and_refuse(void **state)
{
    size_t n;
    void *p = make_sample(&n);
    struct gguf *g;
    struct err e = {0};
    uint32_t u = 7;
    float f = 7;
    bool b = false;
    struct gguf_string s = {0};
    assert_int_equal(gguf_open_memory(&g, p, n, "sample", &e), ERR_OK);
    mem_free(p);
    assert_int_equal(gguf_need_u32(g, "v.u8", &u, &e), ERR_OK);
    assert_int_equal(u, 255);
    assert_int_equal(gguf_opt_u32(g, "absent", &u, &e), ERR_OK);
    assert_int_equal(u, 255);
    assert_int_equal(gguf_need_u32(g, "absent", &u, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "sample: key \"absent\" is missing"));
    assert_int_equal(gguf_opt_u32(g, "v.i8", &u, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "\"v.i8\" is -128"));
    assert_int_equal(gguf_opt_u32(g, "v.u64", &u, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "18446744073709551615"));
    assert_int_equal(gguf_opt_u32(g, "v.f32", &u, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "\"v.f32\" is of type f32, expected an integer"));
    assert_int_equal(u, 255);
    assert_int_equal(gguf_need_f32(g, "v.f64", &f, &e), ERR_OK);
    assert_true(f == 0.1f);
    assert_int_equal(gguf_need_f32(g, "absent", &f, &e), ERR_FORMAT);
    assert_int_equal(gguf_opt_f32(g, "v.u8", &f, &e), ERR_OK);
    assert_true(f == 255);
    assert_int_equal(gguf_opt_f32(g, "v.i8", &f, &e), ERR_OK);
    assert_true(f == -128);
    assert_int_equal(gguf_opt_f32(g, "v.bool", &f, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "\"v.bool\" is of type bool, expected a number"));
    assert_int_equal(gguf_opt_bool(g, "v.bool", &b, &e), ERR_OK);
    assert_true(b);
    assert_int_equal(gguf_opt_bool(g, "v.u8", &b, &e), ERR_FORMAT);
    assert_int_equal(gguf_need_string(g, "general.architecture", &s, &e), ERR_OK);
    assert_string_equal(s.s, "test");
    assert_int_equal(gguf_need_string(g, "absent", &s, &e), ERR_FORMAT);
    assert_int_equal(gguf_opt_string(g, "v.u8", &s, &e), ERR_FORMAT);
    gguf_close(&g);
}

/* Opens the sample with an override. */
static err_code override_sample(struct gguf **g, const char *text, struct err *e)
{
    size_t n;
    void *p = make_sample(&n);
    assert_int_equal(gguf_open_memory(g, p, n, "sample", e), ERR_OK);
    mem_free(p);
    return gguf_override(*g, &text, 1, e);
}

static void overrides_take_the_type_of_what_they_replace(void **state)
{
    static const char *const texts[] = {
        "v.u8=3",        "v.f32=2",       "v.bool=false",      "general.architecture=7", "a.u32=5",     "new.int=-8",
        "new.float=1e3", "new.bool=true", "new.text=of=words", "new.str=str:12",         "v.u16=int:9", "v.u8=4"};
    size_t n;
    void *p = make_sample(&n);
    struct gguf *g;
    struct err e = {0};
    uint32_t u = 0, layers[2];
    float f = 0;
    bool b = true;
    struct gguf_string s;
    assert_int_equal(gguf_open_memory(&g, p, n, "sample", &e), ERR_OK);
    mem_free(p);
    const uint64_t before = gguf_fingerprint(g), n_kv = gguf_n_kv(g);
    assert_int_equal(gguf_override(g, texts, sizeof texts / sizeof *texts - 1, &e), ERR_OK);
    assert_int_equal(gguf_override(g, texts + sizeof texts / sizeof *texts - 1, 1, &e), ERR_OK);
    assert_int_equal(gguf_n_kv(g), n_kv + 5);
    assert_int_equal(gguf_need_u32(g, "v.u8", &u, &e), ERR_OK);
    assert_int_equal(u, 4);
    assert_int_equal(gguf_need_f32(g, "v.f32", &f, &e), ERR_OK);
    assert_true(f == 2);
    assert_int_equal(gguf_opt_bool(g, "v.bool", &b, &e), ERR_OK);
    assert_false(b);
    assert_int_equal(gguf_need_string(g, "general.architecture", &s, &e), ERR_OK);
    assert_string_equal(s.s, "7");
    assert_int_equal(gguf_layer_u32(g, "a.u32", layers, 2, true, &e), ERR_OK);
    assert_true(layers[0] == 5 && layers[1] == 5);
    assert_int_equal(gguf_find(g, "new.int")->i, -8);
    assert_int_equal(gguf_need_f32(g, "new.float", &f, &e), ERR_OK);
    assert_true(f == 1000);
    assert_int_equal(gguf_opt_bool(g, "new.bool", &b, &e), ERR_OK);
    assert_true(b);
    assert_int_equal(gguf_need_string(g, "new.text", &s, &e), ERR_OK);
    assert_string_equal(s.s, "of=words");
    assert_int_equal(gguf_need_string(g, "new.str", &s, &e), ERR_OK);
    assert_string_equal(s.s, "12");
    assert_int_equal(gguf_check_overrides(g, &e), ERR_USAGE); /* one was not read */
    assert_non_null(strstr(e.text, "\"v.u16\": the model sample has no use for it"));
    assert_int_equal(gguf_need_u32(g, "v.u16", &u, &e), ERR_OK);
    assert_int_equal(u, 9);
    assert_int_equal(gguf_check_overrides(g, &e), ERR_OK);
    assert_true(gguf_file_fingerprint(g) == before);
    gguf_close(&g);
}

static void overrides_of_the_architecture_are_another_model(void **state)
{
    struct gguf *g;
    struct err e = {0};
    assert_int_equal(override_sample(&g, "test.layers=3", &e), ERR_OK);
    assert_true(gguf_fingerprint(g) != gguf_file_fingerprint(g));
    gguf_close(&g);
}

static void overrides_without_sense_are_refused(void **state)
{
    struct gguf *sample;
    struct err error = {0};
    assert_int_equal(override_sample(&sample, "v.u8=1", &error), ERR_OK);
    assert_int_equal(gguf_override(sample, NULL, -1, &error), ERR_USAGE);
    gguf_close(&sample);
    static const struct {
        const char *text, *says;
    } cases[] = {{"v.u8", "\"v.u8\": expected KEY=VALUE"},
                 {"=1", "expected KEY=VALUE"},
                 {"v.u8=many", "\"v.u8=many\": expected a value of type int"},
                 {"v.u8=", "expected a value of type int"},
                 {"v.u8=99999999999999999999", "expected a value of type int"},
                 {"v.f32=int:1.5", "expected a value of type int"},
                 {"v.f32=inf", "expected a value of type float"},
                 {"v.bool=1", "expected a value of type bool, which is true or false"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf *g;
        struct err e = {0};
        assert_int_equal(override_sample(&g, cases[i].text, &e), ERR_USAGE);
        assert_non_null(strstr(e.text, cases[i].says));
        gguf_close(&g);
    }
}

static void a_layer_number_is_one_for_all_or_one_each(void **state)
{
    size_t n;
    void *p = make_sample(&n);
    struct gguf *g;
    struct err e = {0};
    uint32_t u[3] = {9, 9, 9};
    assert_int_equal(gguf_open_memory(&g, p, n, "sample", &e), ERR_OK);
    mem_free(p);
    assert_int_equal(gguf_layer_u32(g, "a.u32", u, 3, true, &e), ERR_OK);
    assert_true(u[0] == 1 && u[1] == 2 && u[2] == 3);
    assert_int_equal(gguf_layer_u32(g, "v.u8", u, 3, true, &e), ERR_OK);
    assert_true(u[0] == 255 && u[2] == 255);
    assert_int_equal(gguf_layer_u32(g, "a.bool", u, 3, true, &e), ERR_OK);
    assert_true(u[0] == 1 && u[1] == 0 && u[2] == 1);
    assert_int_equal(gguf_layer_u32(g, "absent", u, 3, false, &e), ERR_OK);
    assert_int_equal(gguf_layer_u32(g, "absent", u, 3, true, &e), ERR_FORMAT);
    assert_int_equal(gguf_layer_u32(g, "a.u32", u, 2, true, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "\"a.u32\" has 3 elements, expected one for each of 2 layers"));
    assert_int_equal(gguf_layer_u32(g, "a.strings", u, 4, true, &e), ERR_FORMAT);
    assert_int_equal(gguf_layer_u32(g, "a.f32", u, 3, true, &e), ERR_FORMAT);
    assert_int_equal(gguf_layer_u32(g, "v.f32", u, 3, true, &e), ERR_FORMAT);
    gguf_close(&g);
}

static void version_2_is_read(void **state)
{
    struct raw r = raw_head(2, 1, 1);
    raw_kv_u32(&r, "k", 5);
    raw_tensor(&r, "t", 1, (const uint64_t[]){4}, QUANT_F32, 0);
    raw_data(&r, 16);
    struct gguf *g = open_raw(&r);
    assert_int_equal(gguf_version(g), 2);
    assert_int_equal(gguf_find(g, "k")->u, 5);
    assert_int_equal(gguf_tensor_find(g, "t")->offset, r.n - 16);
    gguf_close(&g);
}

static void an_alignment_of_64_is_kept(void **state)
{
    struct gguf_writer *w;
    struct gguf *g;
    struct err e = {0};
    static const float x[8];
    void *p;
    size_t n;
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_set_alignment(w, 64);
    gguf_writer_add_tensor(w, "a", 1, (const uint64_t[]){1}, QUANT_F32, x);
    gguf_writer_add_tensor(w, "b", 1, (const uint64_t[]){1}, QUANT_F32, x);
    assert_int_equal(gguf_writer_to_memory(w, &p, &n, &e), ERR_OK);
    gguf_writer_close(&w);
    assert_int_equal(gguf_open_memory(&g, p, n, "aligned", &e), ERR_OK);
    mem_free(p);
    assert_int_equal(gguf_alignment(g), 64);
    assert_int_equal(gguf_tensor_at(g, 0)->offset % 64, 0);
    assert_int_equal(gguf_tensor_at(g, 1)->offset, gguf_tensor_at(g, 0)->offset + 64);
    gguf_close(&g);
}

static void a_tensor_of_unknown_type_is_listed(void **state)
{
    struct raw r = raw_head(3, 1, 0);
    raw_tensor(&r, "t", 2, (const uint64_t[]){4, 2}, 158, 0);
    raw_data(&r, 16);
    struct gguf *g = open_raw(&r);
    const struct gguf_tensor *t = gguf_tensor_find(g, "t");
    assert_null(t->info);
    assert_int_equal(t->type_id, 158);
    assert_int_equal(t->n_bytes, 0);
    assert_int_equal(t->ne[1], 2);
    gguf_close(&g);
}

static void names_are_found_among_thousands(void **state)
{
    struct gguf_writer *w;
    struct gguf *g;
    struct err e = {0};
    static const float x[1] = {1};
    void *p;
    size_t n;
    char name[32];
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    for (uint32_t i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "key.%u", i);
        gguf_writer_add_u32(w, name, i);
        snprintf(name, sizeof name, "blk.%u.t", i);
        gguf_writer_add_tensor(w, name, 1, (const uint64_t[]){1}, QUANT_F32, x);
    }
    assert_int_equal(gguf_writer_to_memory(w, &p, &n, &e), ERR_OK);
    gguf_writer_close(&w);
    assert_int_equal(gguf_open_memory(&g, p, n, "many", &e), ERR_OK);
    mem_free(p);
    for (uint32_t i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "key.%u", i);
        assert_int_equal(gguf_find(g, name)->u, i);
        snprintf(name, sizeof name, "blk.%u.t", i);
        assert_ptr_equal(gguf_tensor_find(g, name), gguf_tensor_at(g, i));
    }
    assert_null(gguf_find(g, "key.3000"));
    assert_null(gguf_tensor_find(g, "blk.3000.t"));
    gguf_close(&g);
}

/* Several times the parser's read window, with strings of many lengths across its edges. */
static void a_large_vocabulary_is_read_from_a_file(void **state)
{
    enum { N = 60000 };
    struct gguf_writer *w;
    struct gguf *g;
    struct err e = {0};
    char(*text)[40] = mem_calloc(N, sizeof *text);
    const char **tokens = mem_calloc(N, sizeof *tokens);
    float *scores = mem_calloc(N * 4, sizeof *scores);
    char *longest = mem_calloc(1, 700001);
    memset(longest, 'x', 700000);
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof text[i], "%d%.*s", i, i % 30, "abcdefghijklmnopqrstuvwxyz0123456789");
        tokens[i] = i == N / 2 ? longest : text[i];
    }
    for (int i = 0; i < N * 4; i++)
        scores[i] = (float)i;
    struct temp_path path = temp_path(&folder, "vocabulary.gguf");
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_add_strings(w, "tokens", tokens, N);
    gguf_writer_add_array(w, "scores", GGUF_F32, scores, N * 4);
    assert_int_equal(gguf_writer_save(w, path.s, &e), ERR_OK);
    gguf_writer_close(&w);
    assert_int_equal(gguf_open(&g, path.s, &e), ERR_OK);
    const struct gguf_string *s = gguf_find(g, "tokens")->arr.data;
    for (int i = 0; i < N; i++)
        if (s[i].n != strlen(tokens[i]) || memcmp(s[i].s, tokens[i], s[i].n + 1) != 0)
            fail_msg("token %d differs", i);
    assert_memory_equal(gguf_find(g, "scores")->arr.data, scores, N * 4 * sizeof *scores);
    gguf_close(&g);
    mem_free(text);
    mem_free(tokens);
    mem_free(scores);
    mem_free(longest);
}

/* ---- refusals: each names the file, the field and what was expected ------------------------------------------ */

static void another_magic_is_refused(void **state)
{
    struct raw r = raw_head(3, 0, 0);
    r.b[0] = 'X';
    REFUSED(&r, ERR_FORMAT, "not a GGUF file", "58 47 55 46");
}

static void an_empty_file_is_refused(void **state)
{
    struct raw r = {0};
    REFUSED(&r, ERR_FORMAT, "the header", "only 0 are left");
}

static void version_1_is_refused(void **state)
{
    struct raw r = raw_head(1, 0, 0);
    REFUSED(&r, ERR_UNSUPPORTED, "version 1", "2 and 3");
}

static void version_4_is_refused(void **state)
{
    struct raw r = raw_head(4, 0, 0);
    REFUSED(&r, ERR_UNSUPPORTED, "version 4");
}

static void a_big_endian_file_is_refused(void **state)
{
    struct raw r = raw_head(0x03000000, 0, 0);
    REFUSED(&r, ERR_UNSUPPORTED, "big-endian");
}

static void impossible_tensor_counts_are_refused(void **state)
{
    struct raw r = raw_head(3, (uint64_t)1 << 60, 0);
    REFUSED(&r, ERR_FORMAT, "1152921504606846976 tensors", "only 0 bytes are left");
}

static void impossible_metadata_counts_are_refused(void **state)
{
    struct raw r = raw_head(3, 0, UINT64_MAX);
    REFUSED(&r, ERR_FORMAT, "18446744073709551615 metadata entries");
}

static void an_impossible_string_length_is_refused(void **state)
{
    struct raw r = raw_head(3, 0, 1);
    raw_str(&r, "k");
    raw_u32(&r, GGUF_STRING);
    raw_u64(&r, UINT64_MAX - 3);
    REFUSED(&r, ERR_FORMAT, "key \"k\"", "needs 18446744073709551612 bytes, but only 0 are left");
}

static void an_impossible_array_length_is_refused(void **state)
{
    for (uint32_t type = 0; type < GGUF_N_VALUE_TYPE; type++) {
        struct raw r = raw_head(3, 0, 1);
        raw_str(&r, "k");
        raw_u32(&r, GGUF_ARRAY);
        raw_u32(&r, type);
        raw_u64(&r, (uint64_t)1 << 61);
        raw_u64(&r, 0);
        REFUSED(&r, ERR_FORMAT, "key \"k\"", "says 2305843009213693952");
    }
}

static void an_empty_key_is_refused(void **state)
{
    struct raw r = raw_head(3, 0, 1);
    raw_kv_u32(&r, "", 1);
    REFUSED(&r, ERR_FORMAT, "the key of metadata entry 0", "expected 1 to 65535");
}

static void a_key_with_a_nul_is_refused(void **state)
{
    struct raw r = raw_head(3, 0, 1);
    raw_u64(&r, 3);
    raw_bytes(&r, "a\0b", 3);
    raw_u32(&r, GGUF_U8);
    raw_u32(&r, 0);
    REFUSED(&r, ERR_FORMAT, "the key of metadata entry 0", "NUL");
}

static void an_overlong_key_is_refused(void **state)
{
    size_t n = 4 + 4 + 8 + 8 + 8 + 70000;
    uint8_t *b = mem_calloc(1, n + 8);
    struct raw r = raw_head(3, 0, 1);
    raw_u64(&r, 70000);
    memset(b, 'k', n);
    memcpy(b, r.b, r.n);
    struct gguf *g;
    struct err e = {0};
    assert_int_equal(gguf_open_memory(&g, b, n + 8, "raw.gguf", &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "has 70000 bytes, expected 1 to 65535"));
    mem_free(b);
}

static void a_key_twice_is_refused(void **state)
{
    struct raw r = raw_head(3, 0, 2);
    raw_kv_u32(&r, "some.key", 1);
    raw_kv_u32(&r, "some.key", 1);
    REFUSED(&r, ERR_FORMAT, "key \"some.key\"", "twice");
}

static void an_unknown_value_type_is_refused(void **state)
{
    struct raw r = raw_head(3, 0, 1);
    raw_str(&r, "k");
    raw_u32(&r, 13);
    raw_u64(&r, 0);
    REFUSED(&r, ERR_FORMAT, "key \"k\"", "value type 13", "expected 0 to 12");
}

static void an_unknown_array_element_type_is_refused(void **state)
{
    struct raw r = raw_head(3, 0, 1);
    raw_str(&r, "k");
    raw_u32(&r, GGUF_ARRAY);
    raw_u32(&r, 99);
    raw_u64(&r, 0);
    REFUSED(&r, ERR_FORMAT, "key \"k\"", "value type 99");
}

static void a_bool_of_2_is_refused(void **state)
{
    struct raw r = raw_head(3, 0, 1);
    raw_str(&r, "k");
    raw_u32(&r, GGUF_BOOL);
    raw_bytes(&r, "\2", 1);
    REFUSED(&r, ERR_FORMAT, "key \"k\"", "byte 37 is 2, expected a bool");
}

static void a_bool_of_2_in_an_array_is_refused(void **state)
{
    struct raw r = raw_head(3, 0, 1);
    raw_str(&r, "k");
    raw_u32(&r, GGUF_ARRAY);
    raw_u32(&r, GGUF_BOOL);
    raw_u64(&r, 3);
    raw_bytes(&r, "\0\1\2", 3);
    REFUSED(&r, ERR_FORMAT, "key \"k\"", "byte 51 is 2, expected a bool");
}

static void arrays_nested_too_deep_are_refused(void **state)
{
    struct raw r = raw_head(3, 0, 1);
    raw_str(&r, "k");
    raw_u32(&r, GGUF_ARRAY);
    for (int i = 0; i < 200; i++) {
        raw_u32(&r, GGUF_ARRAY);
        raw_u64(&r, 1);
    }
    REFUSED(&r, ERR_LIMIT, "key \"k\"", "nested");
}

static void an_alignment_that_is_no_power_of_two_is_refused(void **state)
{
    static const uint32_t bad[] = {0, 3, 33, 48, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct raw r = raw_head(3, 0, 1);
        raw_kv_u32(&r, "general.alignment", bad[i]);
        REFUSED(&r, ERR_FORMAT, "\"general.alignment\"", "power of two");
    }
}

static void an_alignment_that_is_no_integer_is_refused(void **state)
{
    struct raw r = raw_head(3, 0, 1);
    raw_str(&r, "general.alignment");
    raw_u32(&r, GGUF_F32);
    raw_u32(&r, 0x42000000);
    REFUSED(&r, ERR_FORMAT, "\"general.alignment\"", "power of two");
}

static struct raw one_tensor(const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset)
{
    struct raw r = raw_head(3, 1, 0);
    raw_tensor(&r, name, n_dims, ne, type, offset);
    raw_data(&r, 256);
    return r;
}

static void a_tensor_without_dimensions_is_refused(void **state)
{
    struct raw r = one_tensor("t", 0, NULL, QUANT_F32, 0);
    REFUSED(&r, ERR_FORMAT, "tensor \"t\"", "0 dimensions", "expected 1 to 4");
}

static void a_tensor_of_five_dimensions_is_refused(void **state)
{
    struct raw r = one_tensor("t", 5, (const uint64_t[]){1, 1, 1, 1, 1}, QUANT_F32, 0);
    REFUSED(&r, ERR_FORMAT, "tensor \"t\"", "5 dimensions", "expected 1 to 4");
}

static void a_dimension_of_zero_is_refused(void **state)
{
    struct raw r = one_tensor("t", 2, (const uint64_t[]){4, 0}, QUANT_F32, 0);
    REFUSED(&r, ERR_FORMAT, "tensor \"t\"", "dimension 1 is 0");
}

static void dimensions_that_overflow_are_refused(void **state)
{
    struct raw r = one_tensor("t", 4, (const uint64_t[]){4, 1u << 31, 1u << 31, 1}, QUANT_F32, 0);
    REFUSED(&r, ERR_FORMAT, "tensor \"t\"", "dimension 2", "product below 2^63");
}

static void a_size_that_overflows_is_refused(void **state)
{
    struct raw r = one_tensor("t", 2, (const uint64_t[]){1u << 31, (uint64_t)1 << 30}, QUANT_F32, 0);
    REFUSED(&r, ERR_FORMAT, "tensor \"t\"", "end beyond");
    r = one_tensor("t", 2, (const uint64_t[]){1u << 31, (uint64_t)1 << 31}, QUANT_F32, 0);
    REFUSED(&r, ERR_FORMAT, "tensor \"t\"", "overflows 64 bits");
}

static void a_row_of_broken_blocks_is_refused(void **state)
{
    struct raw r = one_tensor("t", 2, (const uint64_t[]){48, 1}, QUANT_Q8_0, 0);
    REFUSED(&r, ERR_FORMAT, "tensor \"t\"", "dimension 0 is 48, expected a multiple of 32", "Q8_0");
}

static void a_misaligned_tensor_is_refused(void **state)
{
    struct raw r = one_tensor("t", 1, (const uint64_t[]){1}, QUANT_F32, 16);
    REFUSED(&r, ERR_FORMAT, "tensor \"t\"", "offset 16", "alignment 32");
}

static void a_tensor_beyond_the_end_is_refused(void **state)
{
    struct raw r = one_tensor("t", 1, (const uint64_t[]){65}, QUANT_F32, 0);
    REFUSED(&r, ERR_FORMAT, "tensor \"t\"", "260 bytes", "end beyond");
    r = one_tensor("t", 1, (const uint64_t[]){64}, QUANT_F32, 32);
    REFUSED(&r, ERR_FORMAT, "tensor \"t\"", "end beyond");
    r = one_tensor("t", 1, (const uint64_t[]){64}, QUANT_F32, (uint64_t)-32);
    REFUSED(&r, ERR_FORMAT, "tensor \"t\"", "end beyond");
    r = one_tensor("t", 1, (const uint64_t[]){64}, QUANT_F32, 0);
    struct gguf *g = open_raw(&r); /* and just at the end it is not */
    gguf_close(&g);
}

static void a_tensor_without_a_name_is_refused(void **state)
{
    struct raw r = one_tensor("", 1, (const uint64_t[]){1}, QUANT_F32, 0);
    REFUSED(&r, ERR_FORMAT, "the name of tensor 0", "expected 1 to 255");
}

static void a_tensor_twice_is_refused(void **state)
{
    struct raw r = raw_head(3, 2, 0);
    raw_tensor(&r, "same", 1, (const uint64_t[]){1}, QUANT_F32, 0);
    raw_tensor(&r, "same", 1, (const uint64_t[]){1}, QUANT_F32, 32);
    raw_data(&r, 64);
    REFUSED(&r, ERR_FORMAT, "tensor \"same\"", "twice");
}

static void a_part_of_a_set_in_memory_is_refused(void **state)
{
    struct raw r = raw_head(3, 0, 1);
    raw_kv_u32(&r, "split.count", 2);
    REFUSED(&r, ERR_UNSUPPORTED, "\"split.count\" says 2");
}

static void hostile_names_are_made_printable(void **state)
{
    struct raw r = raw_head(3, 0, 1);
    raw_str(&r, "k \x1b[2J\n");
    raw_u32(&r, 77);
    raw_u64(&r, 0);
    REFUSED(&r, ERR_FORMAT, "key \"k ?[2J?\"");
}

static void what_is_no_regular_file_is_refused(void **state)
{
    struct gguf *g;
    struct err e = {0};
    assert_int_equal(gguf_open(&g, folder.path, &e), ERR_IO);
    assert_non_null(strstr(e.text, "regular file"));
    assert_int_equal(mkfifo(temp_path(&folder, "pipe").s, 0600), 0); /* without anybody at the other end */
    assert_int_equal(gguf_open(&g, temp_path(&folder, "pipe").s, &e), ERR_IO);
    assert_non_null(strstr(e.text, "regular file"));
    assert_int_equal(gguf_open(&g, temp_path(&folder, "absent.gguf").s, &e), ERR_IO);
    assert_non_null(strstr(e.text, "absent.gguf: No such file"));
    assert_null(g);
}

/* ---- damage -------------------------------------------------------------------------------------------------- */

static void walk(const struct gguf *g)
{
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++)
        assert_non_null(gguf_tensor_find(g, gguf_tensor_at(g, i)->name));
    for (uint64_t i = 0; i < gguf_n_kv(g); i++)
        assert_non_null(gguf_find(g, gguf_kv_at(g, i)->key.s));
}

static void truncated_files_are_refused(void **state)
{
    size_t n;
    uint8_t *p = make_sample(&n);
    for (size_t i = 0; i < 300; i++) {
        size_t length = n * i / 300;
        uint8_t *cut = mem_alloc(length);
        memcpy(cut, p, length);
        struct gguf *g;
        struct err e = {0};
        err_code code = gguf_open_memory(&g, cut, length, "cut", &e);
        mem_free(cut);
        /* the padding after the last tensor may go */
        assert_true(code == ERR_FORMAT || (code == ERR_OK && n - length < 32));
        assert_true(code == ERR_OK || strncmp(e.text, "cut: ", 5) == 0);
        gguf_close(&g);
    }
    mem_free(p);
}

static void flipped_bytes_do_no_harm(void **state)
{
    size_t n;
    uint8_t *p = make_sample(&n);
    struct random r = random_seed(20240601);
    int n_refused = 0;
    for (int i = 0; i < 1000; i++) {
        uint8_t *bad = mem_alloc(n);
        memcpy(bad, p, n);
        for (int k = 0; k <= i % 3; k++)
            bad[random_u32(&r) % n] ^= (uint8_t)(1 + random_u32(&r) % 255);
        struct gguf *g;
        struct err e = {0};
        err_code code = gguf_open_memory(&g, bad, n, "flipped", &e);
        mem_free(bad);
        if (code == ERR_OK)
            walk(g);
        else
            assert_true(strncmp(e.text, "flipped: ", 9) == 0);
        n_refused += code != ERR_OK;
        gguf_close(&g);
    }
    assert_true(n_refused > 200 && n_refused < 1000);
    mem_free(p);
}

/* What hashes alike in one set does not in another. */
static void each_set_of_names_has_its_own_key(void **state)
{
    struct gguf_index a = {0}, b = {0};
    struct err e = {0};
    int64_t old;
    assert_int_equal(gguf_index_add(&a, "x", 1, 7, &old, &e), ERR_OK);
    assert_int_equal(gguf_index_add(&b, "x", 1, 8, &old, &e), ERR_OK);
    assert_memory_not_equal(&a.key, &b.key, sizeof a.key);
    const struct siphash_key key = a.key;
    for (int64_t i = 0; i < 1000; i++) { /* which grows it */
        static char names[1000][8];
        int n = snprintf(names[i], sizeof names[i], "n%d", (int)i);
        assert_int_equal(gguf_index_add(&a, names[i], (size_t)n, i, &old, &e), ERR_OK);
        assert_int_equal(old, GGUF_INDEX_NONE);
    }
    assert_memory_equal(&a.key, &key, sizeof key);
    assert_int_equal(gguf_index_find(&a, "x", 1), 7);
    assert_int_equal(gguf_index_find(&a, "n999", 4), 999);
    assert_int_equal(gguf_index_find(&a, "n1000", 5), GGUF_INDEX_NONE);
    gguf_index_close(&a);
    gguf_index_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_value_type_survives_a_round_trip),
        cmocka_unit_test(arrays_survive_a_round_trip),
        cmocka_unit_test(tensors_of_whole_numbers_have_a_size),
        cmocka_unit_test(tensors_are_listed_with_their_places),
        cmocka_unit_test(typed_getters_convert_and_refuse),
        cmocka_unit_test(overrides_take_the_type_of_what_they_replace),
        cmocka_unit_test(overrides_of_the_architecture_are_another_model),
        cmocka_unit_test(overrides_without_sense_are_refused),
        cmocka_unit_test(a_layer_number_is_one_for_all_or_one_each),
        cmocka_unit_test(version_2_is_read),
        cmocka_unit_test(an_alignment_of_64_is_kept),
        cmocka_unit_test(a_tensor_of_unknown_type_is_listed),
        cmocka_unit_test(names_are_found_among_thousands),
        cmocka_unit_test(a_large_vocabulary_is_read_from_a_file),
        cmocka_unit_test(another_magic_is_refused),
        cmocka_unit_test(an_empty_file_is_refused),
        cmocka_unit_test(version_1_is_refused),
        cmocka_unit_test(version_4_is_refused),
        cmocka_unit_test(a_big_endian_file_is_refused),
        cmocka_unit_test(impossible_tensor_counts_are_refused),
        cmocka_unit_test(impossible_metadata_counts_are_refused),
        cmocka_unit_test(an_impossible_string_length_is_refused),
        cmocka_unit_test(an_impossible_array_length_is_refused),
        cmocka_unit_test(an_empty_key_is_refused),
        cmocka_unit_test(a_key_with_a_nul_is_refused),
        cmocka_unit_test(an_overlong_key_is_refused),
        cmocka_unit_test(a_key_twice_is_refused),
        cmocka_unit_test(an_unknown_value_type_is_refused),
        cmocka_unit_test(an_unknown_array_element_type_is_refused),
        cmocka_unit_test(a_bool_of_2_is_refused),
        cmocka_unit_test(a_bool_of_2_in_an_array_is_refused),
        cmocka_unit_test(arrays_nested_too_deep_are_refused),
        cmocka_unit_test(an_alignment_that_is_no_power_of_two_is_refused),
        cmocka_unit_test(an_alignment_that_is_no_integer_is_refused),
        cmocka_unit_test(a_tensor_without_dimensions_is_refused),
        cmocka_unit_test(a_tensor_of_five_dimensions_is_refused),
        cmocka_unit_test(a_dimension_of_zero_is_refused),
        cmocka_unit_test(dimensions_that_overflow_are_refused),
        cmocka_unit_test(a_size_that_overflows_is_refused),
        cmocka_unit_test(a_row_of_broken_blocks_is_refused),
        cmocka_unit_test(a_misaligned_tensor_is_refused),
        cmocka_unit_test(a_tensor_beyond_the_end_is_refused),
        cmocka_unit_test(a_tensor_without_a_name_is_refused),
        cmocka_unit_test(a_tensor_twice_is_refused),
        cmocka_unit_test(a_part_of_a_set_in_memory_is_refused),
        cmocka_unit_test(hostile_names_are_made_printable),
        cmocka_unit_test(what_is_no_regular_file_is_refused),
        cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(flipped_bytes_do_no_harm),
        cmocka_unit_test(each_set_of_names_has_its_own_key),
    };
    return cmocka_run_group_tests_name("gguf", tests, folder_setup, folder_teardown);
}
