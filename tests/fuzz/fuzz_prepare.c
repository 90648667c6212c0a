/* Any bytes as the journal of an unfinished store, with which prepare goes on. The first byte says how many blocks of
 * data the run before has left. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../unit/temp_folder.h"
#include "jobs/prepare_internal.h"

enum { N_LAYER = 3, IMAGE_BYTES = EXPERT_N_MATRIX * STORE_ALIGN };

static void write_sparse(const char *path, const void *bytes, size_t n, off_t length)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n || ftruncate(fd, length) != 0)
        abort();
    close(fd);
}

static void must(err_code code)
{
    if (code != ERR_OK)
        abort();
}

/* Makes what the journal does not have, and reads the whole. */
static void finish(struct target *t, const struct manifest *wanted)
{
    static const char image[IMAGE_BYTES];
    struct err e;
    struct stat st;
    uint32_t crc[8 * EXPERT_N_MATRIX] = {0};
    if (fstat(t->fd, &st) != 0)
        abort();
    for (size_t i = 0; i < wanted->n_experts; i++) {
        uint64_t place = t->m.place[i];
        assert(place == MANIFEST_ABSENT || place + IMAGE_BYTES <= (uint64_t)st.st_size);
        if (place == MANIFEST_ABSENT) {
            target_plan(t, i, IMAGE_BYTES);
            must(target_write(t, i, image, IMAGE_BYTES, &e));
        }
    }
    for (int l = 0; l < N_LAYER; l++)
        must(target_commit(t, wanted->layers[l].first, (size_t)wanted->layers[l].n_expert, crc, &e));
    must(target_finish(t, &e));
    struct manifest m;
    must(manifest_load(&m, t->path, &e));
    must(manifest_check(&m, t->path, wanted, &e));
    for (size_t i = 0; i < m.n_experts; i++)
        assert(m.place[i] != MANIFEST_ABSENT);
    assert(fstat(t->fd, &st) == 0 && manifest_data_bytes(&m) <= (uint64_t)st.st_size);
    manifest_close(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct store_layer layers[N_LAYER] = {{.n_expert = 0}, {.n_expert = 3}, {.n_expert = 5}};
    struct layout_image images[N_LAYER] = {0};
    struct manifest wanted;
    struct target t;
    struct err e = {0};
    if (size == 0)
        return 0;
    for (int l = 0; l < N_LAYER; l++) {
        images[l].n_bytes = IMAGE_BYTES;
        for (int p = 0; p < EXPERT_N_MATRIX; p++)
            images[l].off[p] = (size_t)p * STORE_ALIGN;
    }
    must(manifest_create(&wanted, 0xfeed, layers, images, N_LAYER, &e));
    if (temp_folder_make(&folder) != 0)
        abort();
    write_sparse(temp_path(&folder, MANIFEST_PART).s, data + 1, size - 1, (off_t)size - 1);
    write_sparse(temp_path(&folder, MANIFEST_DATA).s, NULL, 0, (off_t)data[0] * STORE_ALIGN);
    err_code code = target_open(&t, folder.path, &wanted, &e);
    if (code == ERR_OK)
        finish(&t, &wanted);
    else
        assert(strstr(e.text, "holds a store that does not fit"));
    target_close(&t);
    manifest_close(&wanted);
    temp_folder_remove(&folder);
    return 0;
}
