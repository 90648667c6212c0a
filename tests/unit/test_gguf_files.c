#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <cmocka.h>

#include "base/mem.h"
#include "gguf/gguf_facts.h"
#include "gguf/gguf_internal.h"
#include "gguf/gguf_writer.h"
#include "temp_folder.h"

/* Files on disk: how the writer saves them, and models in several parts. */

static err_code fill_rows(void *user, uint64_t offset, void *dst, size_t n, struct err *e)
{
    size_t *n_calls = user;
    ++*n_calls;
    assert_int_equal(offset % 4096, 0);
    assert_int_equal(n % 4096, 0);
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)dst)[i] = (uint8_t)((offset + i) * 31 >> 3);
    return ERR_OK;
}

static err_code fill_fails(void *user, uint64_t offset, void *dst, size_t n, struct err *e)
{
    memset(dst, 0, n);
    return offset == 0 ? ERR_OK : err_set(e, ERR_CHECK, "no more rows");
}

static void filled_tensors_are_written_in_pieces(void **state)
{
    struct gguf_writer *w;
    struct gguf *g;
    struct err e = {0};
    size_t n_calls = 0;
    struct temp_path path = temp_path(&folder, "filled.gguf");
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_add_tensor_fn(w, "t", 2, (const uint64_t[]){1024, 2500}, QUANT_F32, fill_rows, &n_calls);
    assert_int_equal(gguf_writer_save(w, path.s, &e), ERR_OK);
    gguf_writer_close(&w);
    assert_true(n_calls > 1);
    assert_int_equal(gguf_open(&g, path.s, &e), ERR_OK);
    const struct gguf_tensor *t = gguf_tensor_at(g, 0);
    FILE *f = fopen(path.s, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)t->offset, SEEK_SET), 0);
    for (uint64_t i = 0; i < t->n_bytes; i++)
        if (fgetc(f) != (uint8_t)(i * 31 >> 3))
            fail_msg("byte %u differs", (unsigned)i);
    fclose(f);
    gguf_close(&g);
}

static void the_writer_reports_its_first_mistake(void **state)
{
    struct gguf_writer *w;
    struct err e = {0};
    static const float x[64];
    void *p;
    size_t n;
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_add_u32(w, "k", 1);
    gguf_writer_add_u32(w, "k", 2);
    gguf_writer_add_tensor(w, "t", 1, (const uint64_t[]){33}, QUANT_Q8_0, x);
    assert_int_equal(gguf_writer_to_memory(w, &p, &n, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "\"k\" is added twice"));
    assert_null(p);
    gguf_writer_close(&w);
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_add_tensor(w, "t", 1, (const uint64_t[]){33}, QUANT_Q8_0, x);
    assert_int_equal(gguf_writer_to_memory(w, &p, &n, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "\"t\": rows of 33 do not fit type Q8_0"));
    gguf_writer_close(&w);
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_set_alignment(w, 48);
    assert_int_equal(gguf_writer_to_memory(w, &p, &n, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "alignment 48"));
    gguf_writer_close(&w);
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_set_alignment(w, 4);
    assert_int_equal(gguf_writer_to_memory(w, &p, &n, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "alignment 4: expected a power of two from 8"));
    gguf_writer_close(&w);
}

/* Whoever writes the data himself gets the file that the writer would make. */
static void head_and_places_make_the_same_file(void **state)
{
    struct gguf_writer *w[2];
    struct err e = {0};
    static const float x[3][40] = {{1, 2, 3}, {4}, {5, 6}};
    void *whole, *head;
    size_t n_whole, n_head;
    uint64_t place[3];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gguf_writer_create(&w[i], &e), ERR_OK);
        gguf_writer_set_alignment(w[i], 64);
        gguf_writer_add_u32(w[i], "k", 1);
        for (uint64_t k = 0; k < 3; k++) {
            char name[2] = {(char)('a' + k), 0};
            const uint64_t ne[1] = {40 - 7 * k};
            if (i == 0)
                gguf_writer_add_tensor(w[i], name, 1, ne, QUANT_F32, x[k]);
            else
                place[k] = gguf_writer_place_tensor(w[i], name, 1, ne, QUANT_F32);
        }
    }
    assert_int_equal(gguf_writer_to_memory(w[0], &whole, &n_whole, &e), ERR_OK);
    assert_int_equal(gguf_writer_head(w[1], &head, &n_head, &e), ERR_OK);
    assert_int_equal(n_whole, n_head + gguf_writer_data_bytes(w[1]));
    assert_memory_equal(whole, head, n_head);
    for (size_t k = 0; k < 3; k++)
        assert_memory_equal((char *)whole + n_head + place[k], x[k], (40 - 7 * k) * sizeof(float));
    mem_free(whole);
    mem_free(head);
    gguf_writer_add_u32(w[1], "k", 2);
    assert_int_equal(gguf_writer_head(w[1], &head, &n_head, &e), ERR_USAGE);
    assert_null(head);
    gguf_writer_close(&w[0]);
    gguf_writer_close(&w[1]);
}

static void a_file_cut_off_before_its_tensors_has_a_header(void **state)
{
    struct gguf_writer *w;
    struct gguf *g;
    struct err e = {0};
    static const float x[1000];
    bool is_header;
    struct temp_path path = temp_path(&folder, "cut.gguf");
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_add_tensor(w, "t", 1, (const uint64_t[]){1000}, QUANT_F32, x);
    assert_int_equal(gguf_writer_save(w, path.s, &e), ERR_OK);
    gguf_writer_close(&w);
    assert_int_equal(gguf_open_header(&g, path.s, &is_header, &e), ERR_OK);
    assert_false(is_header);
    uint64_t n_bytes = gguf_file_bytes(g, 0);
    gguf_close(&g);
    assert_int_equal(truncate(path.s, (off_t)(n_bytes - sizeof x)), 0);
    assert_int_equal(gguf_open_header(&g, path.s, &is_header, &e), ERR_OK);
    assert_true(is_header);
    assert_int_equal(gguf_file_bytes(g, 0), n_bytes);
    gguf_close(&g);
    assert_int_equal(gguf_open(&g, path.s, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "tensor \"t\""));
}

static void a_failed_save_leaves_the_old_file(void **state)
{
    struct gguf_writer *w;
    struct gguf *g;
    struct err e = {0};
    size_t n_calls = 0;
    struct temp_path path = temp_path(&folder, "kept.gguf"), tmp = temp_path(&folder, "kept.gguf.tmp");
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_add_u32(w, "old", 1);
    assert_int_equal(gguf_writer_save(w, path.s, &e), ERR_OK);
    gguf_writer_close(&w);

    /* The limit on file sizes stands for a full disk: writes fail halfway. */
    struct rlimit old, small = {.rlim_cur = 1 << 20};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_add_tensor_fn(w, "t", 2, (const uint64_t[]){1024, 2500}, QUANT_F32, fill_rows, &n_calls);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    err_code code = gguf_writer_save(w, path.s, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(code, ERR_IO);
    assert_non_null(strstr(e.text, "kept.gguf: writing at byte"));
    gguf_writer_close(&w);

    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    gguf_writer_add_tensor_fn(w, "t", 2, (const uint64_t[]){1024, 2500}, QUANT_F32, fill_fails, NULL);
    assert_int_equal(gguf_writer_save(w, path.s, &e), ERR_CHECK);
    assert_string_equal(e.text, "no more rows");
    gguf_writer_close(&w);

    assert_int_not_equal(access(tmp.s, F_OK), 0);
    assert_int_equal(gguf_open(&g, path.s, &e), ERR_OK);
    assert_non_null(gguf_find(g, "old"));
    gguf_close(&g);
}

static void a_save_into_a_missing_folder_is_an_error(void **state)
{
    struct gguf_writer *w;
    struct err e = {0};
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    assert_int_equal(gguf_writer_save(w, temp_path(&folder, "none/x.gguf").s, &e), ERR_IO);
    assert_non_null(strstr(e.text, "none/x.gguf: no file can be made there: No such file"));
    gguf_writer_close(&w);
}

struct part {
    const char *tensor;
    uint32_t no, count, n_tensors;
};

static void write_part(const char *file, struct part p)
{
    struct gguf_writer *w;
    struct err e = {0};
    static const float x[1];
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    if (p.no == 0)
        gguf_writer_add_string(w, "general.architecture", "split");
    gguf_writer_add_value(w, "split.no", &(struct gguf_value){.type = GGUF_U16, .u = p.no});
    gguf_writer_add_value(w, "split.count", &(struct gguf_value){.type = GGUF_U16, .u = p.count});
    gguf_writer_add_value(w, "split.tensors.count", &(struct gguf_value){.type = GGUF_I32, .i = p.n_tensors});
    gguf_writer_add_tensor(w, p.tensor, 1, (const uint64_t[]){1}, QUANT_F32, x);
    assert_int_equal(gguf_writer_save(w, temp_path(&folder, file).s, &e), ERR_OK);
    gguf_writer_close(&w);
}

static void assert_open_fails(const char *file, const char *words)
{
    struct gguf *g;
    struct err e = {0};
    assert_int_not_equal(gguf_open(&g, temp_path(&folder, file).s, &e), ERR_OK);
    assert_null(g);
    if (!strstr(e.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, e.text);
}

static void a_split_set_opens_from_any_part(void **state)
{
    static const char *const files[] = {"set-00001-of-00003.gguf", "set-00002-of-00003.gguf",
                                        "set-00003-of-00003.gguf"};
    static const char *const tensors[] = {"a", "b", "c"};
    for (uint32_t i = 0; i < 3; i++)
        write_part(files[i], (struct part){tensors[i], i, 3, 3});
    for (int i = 0; i < 3; i++) {
        struct gguf *g;
        struct err e = {0};
        assert_int_equal(gguf_open(&g, temp_path(&folder, files[i]).s, &e), ERR_OK);
        assert_int_equal(gguf_n_files(g), 3);
        assert_int_equal(gguf_n_tensors(g), 3);
        assert_non_null(gguf_find(g, "general.architecture"));
        for (int k = 0; k < 3; k++) {
            assert_int_equal(gguf_tensor_find(g, tensors[k])->file, k);
            assert_string_equal(gguf_file_path(g, k), temp_path(&folder, files[k]).s);
        }
        gguf_close(&g);
    }
    assert_int_equal(unlink(temp_path(&folder, files[1]).s), 0);
    assert_open_fails(files[0], "part 2 of 3 is missing: ");
    assert_open_fails(files[0], files[1]);
}

static void a_part_with_another_name_is_refused(void **state)
{
    write_part("odd.gguf", (struct part){"a", 0, 2, 2});
    assert_open_fails("odd.gguf", "ends in \"-00001-of-00002.gguf\"");
}

static void parts_that_disagree_are_refused(void **state)
{
    write_part("dis-00001-of-00002.gguf", (struct part){"a", 0, 2, 2});
    write_part("dis-00002-of-00002.gguf", (struct part){"b", 0, 2, 2});
    assert_open_fails("dis-00001-of-00002.gguf", "says part 1 of 2, expected part 2 of 2");
    write_part("dis-00002-of-00002.gguf", (struct part){"b", 1, 3, 2});
    assert_open_fails("dis-00001-of-00002.gguf", "says part 2 of 3, expected part 2 of 2");
    write_part("dis-00002-of-00002.gguf", (struct part){"a", 1, 2, 2});
    assert_open_fails("dis-00001-of-00002.gguf", "tensor \"a\" occurs twice");
    write_part("dis-00002-of-00002.gguf", (struct part){"b", 1, 2, 2});
    write_part("dis-00001-of-00002.gguf", (struct part){"a", 0, 2, 5});
    assert_open_fails("dis-00001-of-00002.gguf", "\"split.tensors.count\" says 5 tensors, but the 2 files have 2");
}

static void a_part_number_beyond_the_parts_is_refused(void **state)
{
    write_part("beyond-00003-of-00002.gguf", (struct part){"a", 2, 2, 2});
    assert_open_fails("beyond-00003-of-00002.gguf", "\"split.no\" is 2, expected less than the 2 parts");
}

/* ---- absurd files ------------------------------------------------------------------------------------------------ */

static void put(FILE *f, const void *bytes, size_t n)
{
    assert_int_equal(fwrite(bytes, 1, n, f), n);
}

static void put_u32(FILE *f, uint32_t v)
{
    put(f, &v, sizeof v);
}

static void put_u64(FILE *f, uint64_t v)
{
    put(f, &v, sizeof v);
}

static void put_name(FILE *f, const char *name)
{
    put_u64(f, strlen(name));
    put(f, name, strlen(name));
}

/* Header and keys of part `no` of n, and the begin of an array: its elements are to follow. */
static FILE *begin_array(const char *file, uint32_t no, uint32_t n, uint32_t type, uint64_t n_elem)
{
    FILE *f = fopen(temp_path(&folder, file).s, "wb");
    assert_non_null(f);
    put(f, "GGUF", 4);
    put_u32(f, 3);
    put_u64(f, 0);
    put_u64(f, 3);
    put_name(f, "split.no");
    put_u32(f, GGUF_U32);
    put_u32(f, no);
    put_name(f, "split.count");
    put_u32(f, GGUF_U32);
    put_u32(f, n);
    put_name(f, "k");
    put_u32(f, GGUF_ARRAY);
    put_u32(f, type);
    put_u64(f, n_elem);
    return f;
}

/* An array of empty texts, which are eight zeros each: the file takes no place on the drive. */
static void write_empty_texts(const char *file, uint32_t no, uint32_t n, uint64_t n_text)
{
    FILE *f = begin_array(file, no, n, GGUF_STRING, n_text);
    assert_int_equal(fflush(f), 0);
    assert_int_equal(ftruncate(fileno(f), ftell(f) + (long)n_text * 8 + 64), 0);
    assert_int_equal(fclose(f), 0);
}

static void millions_of_empty_texts_are_refused(void **state)
{
    write_empty_texts("texts.gguf", 0, 1, 32 << 20);
    assert_open_fails("texts.gguf", "key \"k\" says 33554432 strings; more than 4194304 of a model are refused");
}

static void the_parts_of_a_model_share_the_limits(void **state)
{
    write_empty_texts("many-00001-of-00002.gguf", 0, 2, 3 << 20);
    write_empty_texts("many-00002-of-00002.gguf", 1, 2, 3 << 20);
    assert_open_fails("many-00001-of-00002.gguf",
                      "many-00002-of-00002.gguf: key \"k\" says 3145728 strings; more than");
    write_empty_texts("many-00002-of-00002.gguf", 1, 2, 1 << 20);
    struct gguf *g;
    struct err e = {0};
    assert_int_equal(gguf_open(&g, temp_path(&folder, "many-00001-of-00002.gguf").s, &e), ERR_OK);
    gguf_close(&g);
}

static void metadata_that_goes_on_forever_is_refused(void **state)
{
    FILE *f = begin_array("long.gguf", 0, 1, GGUF_U8, 100 << 20);
    assert_int_equal(fflush(f), 0);
    assert_int_equal(ftruncate(fileno(f), 101 << 20), 0);
    assert_int_equal(fclose(f), 0);
    assert_open_fails("long.gguf", "metadata of more than 67108864 bytes");
}

static void arrays_of_a_byte_each_take_little_and_end(void **state)
{
    enum { MANY = 1 << 16 };
    for (uint64_t n = MANY; n <= MANY + 1; n++) {
        FILE *f = begin_array("nested.gguf", 0, 1, GGUF_ARRAY, n);
        for (uint64_t i = 0; i < n; i++) {
            put_u32(f, GGUF_U8);
            put_u64(f, 1);
            put(f, "x", 1);
        }
        assert_int_equal(fclose(f), 0);
        struct gguf *g;
        struct err e = {0};
        if (n > MANY) {
            assert_open_fails("nested.gguf", "says 65537 arrays; more than 65536 of a model are refused");
            break;
        }
        assert_int_equal(gguf_open(&g, temp_path(&folder, "nested.gguf").s, &e), ERR_OK);
        assert_in_range(g->arena.n_bytes, 1, 64 * MANY); /* of which 32 are the array's own fields */
        gguf_close(&g);
    }
}

/* A tensor of each of n types that nobody knows. */
static void write_types(const char *file, uint32_t n)
{
    FILE *f = fopen(temp_path(&folder, file).s, "wb");
    assert_non_null(f);
    put(f, "GGUF", 4);
    put_u32(f, 3);
    put_u64(f, n);
    put_u64(f, 0);
    for (uint32_t i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", (unsigned)i);
        put_name(f, name);
        put_u32(f, 1);
        put_u64(f, 1000 + i);
        put_u32(f, 0x41414141 + i);
        put_u64(f, 0);
    }
    put(f, (char[64]){0}, 64);
    assert_int_equal(fclose(f), 0);
}

static void more_types_than_there_can_be_are_refused(void **state)
{
    struct gguf *g;
    struct model_facts facts;
    struct err e = {0};
    for (uint32_t n = 256; n <= 1700; n += 1700 - 256) {
        write_types("types.gguf", n);
        assert_int_equal(gguf_open(&g, temp_path(&folder, "types.gguf").s, &e), ERR_OK);
        assert_int_equal(gguf_facts_compute(&facts, g, &e), n == 256 ? ERR_OK : ERR_LIMIT);
        assert_int_equal(facts.n_types, n == 256 ? 256 : 0);
        gguf_facts_close(&facts);
        gguf_close(&g);
    }
    assert_non_null(strstr(e.text, "tensor \"t256\" has type 1094795841; more than 256 types are refused"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filled_tensors_are_written_in_pieces),
        cmocka_unit_test(the_writer_reports_its_first_mistake),
        cmocka_unit_test(head_and_places_make_the_same_file),
        cmocka_unit_test(a_file_cut_off_before_its_tensors_has_a_header),
        cmocka_unit_test(a_failed_save_leaves_the_old_file),
        cmocka_unit_test(a_save_into_a_missing_folder_is_an_error),
        cmocka_unit_test(a_split_set_opens_from_any_part),
        cmocka_unit_test(a_part_with_another_name_is_refused),
        cmocka_unit_test(parts_that_disagree_are_refused),
        cmocka_unit_test(a_part_number_beyond_the_parts_is_refused),
        cmocka_unit_test(millions_of_empty_texts_are_refused),
        cmocka_unit_test(the_parts_of_a_model_share_the_limits),
        cmocka_unit_test(metadata_that_goes_on_forever_is_refused),
        cmocka_unit_test(arrays_of_a_byte_each_take_little_and_end),
        cmocka_unit_test(more_types_than_there_can_be_are_refused),
    };
    return cmocka_run_group_tests_name("gguf_files", tests, folder_setup, folder_teardown);
}
