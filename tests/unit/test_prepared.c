/* A prepared store, made by the job and read through queues: the right bytes, from whichever drive is left. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/crc32c.h"
#include "base/mem.h"
#include "base/pool.h"
#include "engine/expert_images.h"
#include "experts/experts.h"
#include "gguf/gguf_writer.h"
#include "jobs/prepare.h"
#include "kernels/kernels.h"
#include "store/manifest.h"
#include "temp_folder.h"

enum { EMBD = 64, FF = 48, N_EXPERT = 20, N_FLOAT = EMBD * FF, N_READ = 6 };

/* Two layers: experts in layer 1 only, F32, each float its own number. */
static struct temp_path write_model(const char *name, float first)
{
    static const char *const names[EXPERT_N_MATRIX] = {"gate", "up", "down"};
    static float data[EXPERT_N_MATRIX][N_EXPERT * N_FLOAT];
    struct gguf_writer *w;
    struct err e = {0};
    struct temp_path path = temp_path(&folder, name);
    assert_int_equal(gguf_writer_create(&w, &e), ERR_OK);
    for (int p = 0; p < EXPERT_N_MATRIX; p++) {
        char tensor[64];
        snprintf(tensor, sizeof tensor, "blk.1.ffn_%s_exps.weight", names[p]);
        for (int i = 0; i < N_EXPERT * N_FLOAT; i++)
            data[p][i] = first + (float)(p * N_EXPERT * N_FLOAT + i);
        const uint64_t ne[2][3] = {{EMBD, FF, N_EXPERT}, {FF, EMBD, N_EXPERT}};
        gguf_writer_add_tensor(w, tensor, 3, ne[p == EXPERT_DOWN], QUANT_F32, data[p]);
    }
    assert_int_equal(gguf_writer_save(w, path.s, &e), ERR_OK);
    gguf_writer_close(&w);
    return path;
}

struct fixture {
    struct pool *pool;
    struct backend *device;
    struct gguf *g;
    struct store *s;
    struct store_queue *q;
    struct layout_image *images;
    struct log log;
    char said[4096];
    struct store_read reads[EXPERT_N_MATRIX];
    struct err e;
};

static void remember(void *user, enum log_level level, const char *line)
{
    struct fixture *f = user;
    strncat(f->said, line, sizeof f->said - strlen(f->said) - 1);
    strncat(f->said, "\n", sizeof f->said - strlen(f->said) - 1);
}

static void open_raw(struct fixture *f, const char *model)
{
    *f = (struct fixture){.log = {remember, f}};
    if (pool_create(&f->pool, 1, &f->e) || backend_cpu_open(&f->device, f->pool, kernels_for(CPU_SCALAR), &f->e) ||
        gguf_open(&f->g, model, &f->e) || store_open_gguf(&f->s, f->g, &f->e) ||
        expert_images(f->device, f->s, &f->images, &f->e))
        fail_msg("%s", f->e.text);
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        f->reads[i].buf = mem_map(f->images[1].n_bytes + STORE_ALIGN, MEM_SCRATCH);
}

static void close_all(struct fixture *f)
{
    store_queue_close(&f->q);
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        mem_unmap(f->reads[i].buf, f->images[1].n_bytes + STORE_ALIGN, MEM_SCRATCH);
    mem_free(f->images);
    store_close(&f->s);
    gguf_close(&f->g);
    backend_close(&f->device);
    pool_close(&f->pool);
}

static void prepare(const char *model, const char *const *dirs, int n_dirs, bool mirror)
{
    struct err e = {0};
    struct prepare_result r;
    const struct prepare_params p = {.model = model, .dirs = dirs, .n_dirs = n_dirs, .mirror = mirror, .n_threads = 2};
    if (prepare_run(&p, &r, &e) != ERR_OK)
        fail_msg("%s", e.text);
}

/* One expert as a tier reads it, other copies included; which copy it came from in the end. */
static int read_expert(struct fixture *f, int expert)
{
    struct store_blob b;
    err_code code;
    do {
        struct store_read *reads[EXPERT_N_MATRIX], *done;
        store_expert_blob(f->s, 1, expert, &b);
        for (int i = 0; i < EXPERT_N_MATRIX; i++) {
            f->reads[i].file = b.part[i].file;
            f->reads[i].offset = b.part[i].offset;
            f->reads[i].n_bytes = b.part[i].n_bytes;
            reads[i] = &f->reads[i];
        }
        store_queue_submit(f->q, reads, EXPERT_N_MATRIX);
        for (int i = 0; i < EXPERT_N_MATRIX; i++)
            assert_int_equal(store_queue_collect(f->q, &done, 1, true), 1);
        code = ERR_OK;
        for (int i = 0; i < EXPERT_N_MATRIX && code == ERR_OK; i++)
            code = f->reads[i].failure ? store_read_error(f->s, &f->reads[i], &f->e)
                                       : store_blob_check(f->s, 1, expert, &b, i, f->reads[i].bytes, &f->e);
    } while (code != ERR_OK && store_expert_retry(f->s, 1, expert, &b, &f->e));
    assert_int_equal(code, ERR_OK);
    assert_int_equal(b.packed, b.copy >= 0);
    for (int p = 0; p < EXPERT_N_MATRIX; p++) { /* scalar kernels take rows, so a part begins as the GGUF has it */
        float first;
        memcpy(&first, f->reads[p].bytes, sizeof first);
        assert_true(first == (float)((p * N_EXPERT + expert) * N_FLOAT));
    }
    return b.copy;
}

/* Scalar kernels keep float weights in rows; so do all others. */
static void experts_come_from_drives_until_none_is_left(void **state)
{
    struct fixture f;
    struct temp_path model = write_model("model.gguf", 0);
    const struct temp_path paths[] = {temp_path(&folder, "mirror0"), temp_path(&folder, "mirror1")};
    const struct temp_path data[] = {temp_path(&folder, "mirror0/" MANIFEST_DATA),
                                     temp_path(&folder, "mirror1/" MANIFEST_DATA)};
    const char *dirs[2] = {paths[0].s, paths[1].s};
    prepare(model.s, dirs, 2, true);
    for (int engine = STORE_ENGINE_AUTO; engine <= STORE_ENGINE_PREAD; engine += STORE_ENGINE_PREAD) {
        int n[3] = {0};
        open_raw(&f, model.s);
        assert_int_equal(store_attach(f.s, dirs, 2, f.images, &f.log, &f.e), ERR_OK);
        const struct store_queue_params params = {.depth = N_READ, .engine = (enum store_engine)engine};
        store_set_queue_params(f.s, &params);
        assert_int_equal(store_queue_open(&f.q, f.s, NULL, &f.e), ERR_OK);
        for (int i = 0; i < 2 * N_EXPERT; i++)
            n[read_expert(&f, i % N_EXPERT) + 1]++;
        assert_true(n[0] == 0 && n[1] > 0 && n[2] > 0);
        assert_string_equal(f.said, "");
        struct store_place place;
        for (int i = 1; i <= 2; i++) {
            assert_true(store_get_place(f.s, i, &place));
            assert_string_equal(place.path, dirs[i - 1]);
            assert_int_equal(place.n_reads, EXPERT_N_MATRIX * n[i]);
            assert_int_equal(place.n_bytes, (uint64_t)n[i] * f.images[1].n_bytes);
        }
        assert_false(store_get_place(f.s, 3, &place));
        close_all(&f);
    }
    /* a drive vanishes while the model runs, and then the other */
    open_raw(&f, model.s);
    assert_int_equal(store_attach(f.s, dirs, 2, f.images, &f.log, &f.e), ERR_OK);
    assert_int_equal(store_queue_open(&f.q, f.s, NULL, &f.e), ERR_OK);
    for (int gone = 0; gone < 2; gone++) {
        assert_int_equal(truncate(data[gone].s, 0), 0);
        int n[3] = {0};
        for (int i = 0; i < N_EXPERT; i++)
            n[read_expert(&f, i) + 1]++;
        assert_int_equal(n[1], 0);
        assert_true(gone ? n[0] == N_EXPERT : n[2] == N_EXPERT);
        struct store_place place;
        assert_true(store_get_place(f.s, gone + 1, &place) && place.is_gone);
        assert_non_null(strstr(f.said, data[gone].s));
        assert_non_null(strstr(f.said, paths[gone].s));
        assert_non_null(strstr(f.said, "nothing more is read from there"));
        f.said[0] = 0;
    }
    close_all(&f);
}

static void a_partial_store_leaves_the_rest_to_the_gguf(void **state)
{
    struct fixture f;
    struct temp_path model = write_model("partial.gguf", 0), a = temp_path(&folder, "a"), b = temp_path(&folder, "b");
    const char *both[] = {a.s, b.s};
    prepare(model.s, both, 2, false);
    int n[3] = {0};
    open_raw(&f, model.s);
    assert_int_equal(store_attach(f.s, both, 1, f.images, NULL, &f.e), ERR_OK);
    assert_int_equal(store_queue_open(&f.q, f.s, NULL, &f.e), ERR_OK);
    for (int i = 0; i < N_EXPERT; i++)
        n[read_expert(&f, i) + 1]++;
    assert_int_equal(n[0], N_EXPERT / 2); /* two directories of one file system are one drive to a stripe */
    assert_int_equal(n[1], N_EXPERT / 2);
    close_all(&f);
}

/* An expert that is loaded comes whole from one of two copies, so that the drive looks ahead for what is then read. */
static void a_resident_expert_comes_from_one_drive(void **state)
{
    struct fixture f;
    const bool is_here[N_EXPERT] = {true};
    const struct quant_info *q = quant_info(QUANT_F32);
    const struct expert_layer layer = {1, N_EXPERT, 1, {.type = {q, q, q}, .n_embd = EMBD, .n_ff = FF}, is_here};
    struct temp_path model = write_model("resident.gguf", 0), a = temp_path(&folder, "r0"),
                     b = temp_path(&folder, "r1");
    const char *dirs[] = {a.s, b.s};
    struct experts *experts;
    struct store_place place[2];
    prepare(model.s, dirs, 2, true);
    open_raw(&f, model.s);
    assert_int_equal(store_attach(f.s, dirs, 2, f.images, NULL, &f.e), ERR_OK);
    const struct experts_params p = {.device = f.device, .store = f.s, .pool = f.pool};
    assert_int_equal(experts_create(&experts, &p, &layer, 1, &f.e), ERR_OK);
    assert_int_equal(experts_load(experts, NULL, NULL, &f.e), ERR_OK);
    for (int i = 0; i < 2; i++)
        assert_true(store_get_place(f.s, i + 1, &place[i]));
    assert_int_equal(place[0].n_reads + place[1].n_reads, EXPERT_N_MATRIX);
    assert_true(place[0].n_reads == 0 || place[1].n_reads == 0);
    experts_close(&experts);
    close_all(&f);
}

static void what_does_not_fit_is_refused(void **state)
{
    struct fixture f;
    struct temp_path model = write_model("fit.gguf", 0), other = write_model("other.gguf", 1),
                     dir = temp_path(&folder, "fit");
    const char *dirs[] = {dir.s};
    prepare(model.s, dirs, 1, false);
    open_raw(&f, other.s); /* the same shapes, other weights */
    assert_int_equal(store_attach(f.s, dirs, 1, f.images, NULL, &f.e), ERR_FORMAT);
    assert_non_null(strstr(f.e.text, "prepared from another model"));
    close_all(&f);
    open_raw(&f, model.s);
    f.images[1].layout[EXPERT_UP] = LAYOUT_R16;
    assert_int_equal(store_attach(f.s, dirs, 1, f.images, NULL, &f.e), ERR_FORMAT);
    assert_non_null(strstr(f.e.text, "layer 1 is in layout rows"));
    close_all(&f);
    open_raw(&f, model.s);
    f.images[1].off[EXPERT_UP] += 64;
    assert_int_equal(store_attach(f.s, dirs, 1, f.images, NULL, &f.e), ERR_FORMAT);
    close_all(&f);
    open_raw(&f, model.s);
    assert_int_equal(store_attach(f.s, dirs, 0, f.images, NULL, &f.e), ERR_USAGE);
    close_all(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_come_from_drives_until_none_is_left),
        cmocka_unit_test(a_partial_store_leaves_the_rest_to_the_gguf),
        cmocka_unit_test(a_resident_expert_comes_from_one_drive),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests_name("prepared stores", tests, folder_setup, folder_teardown);
}
