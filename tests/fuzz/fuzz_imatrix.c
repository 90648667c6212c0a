/* Any bytes as an importance matrix, asked for the importances of every tensor that it names. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "jobs/imatrix.h"

/* As if the model had NAME in the shape of NAME.in_sum2, with n_2 times n_3 matrices. */
static void ask(struct imatrix *m, const struct gguf_tensor *sums, uint64_t n_2, uint64_t n_3)
{
    char name[256];
    snprintf(name, sizeof name, "%.*s", (int)(strlen(sums->name) - strlen(".in_sum2")), sums->name);
    struct gguf_tensor weight = *sums;
    weight.name = name;
    weight.ne[1] = 1;
    weight.ne[2] = n_2;
    weight.ne[3] = n_3;
    struct err e = {0};
    float *importance;
    uint64_t n = 0, n_poor = 0;
    if (imatrix_importance(m, &weight, &importance, &n, &n_poor, &e) != ERR_OK) {
        assert(!importance && strstr(e.text, "/proc/self/fd"));
        return;
    }
    assert(importance && (n == 1 || n == n_2 * n_3) && n_poor <= n);
    for (uint64_t i = 0; i < n * weight.ne[0]; i++)
        assert(importance[i] >= 0);
    mem_free(importance);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct imatrix *m;
    struct gguf *g = NULL;
    struct err e = {0};
    char path[64];
    if (gguf_open_memory(&g, data, size, "fuzz", &e) != ERR_OK)
        return 0;
    int fd = memfd_create("imatrix", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (imatrix_open(&m, path, &e) == ERR_OK)
        for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
            const struct gguf_tensor *t = gguf_tensor_at(g, i);
            const char *end = strstr(t->name, ".in_sum2");
            if (!end || end[strlen(".in_sum2")])
                continue;
            ask(m, t, t->ne[1], 1);
            ask(m, t, 2, 1);
            ask(m, t, 2, 2);
        }
    imatrix_close(&m);
    gguf_close(&g);
    close(fd);
    return 0;
}
