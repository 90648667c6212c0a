/* Kernel tester: every table this machine can run against the scalar one (to the bit) and the scalar one
 * against double-precision references, over types, shapes and extreme values, between guard pages.
 *
 *   check_kernels            all checks
 *   check_kernels --bench [TYPE]   speed of the products on one thread
 *   check_kernels --curve [TYPE]   their time with 1 to 16 tokens */
#define _GNU_SOURCE
#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, CANARY = 0xa5, CANARY_BYTES = 256, MAX_REPORTS = 3 };

void group_begin(struct check *c)
{
    c->n_pass = c->n_fail = 0;
}

void group_end(struct check *c, const char *name)
{
    printf("%-28s %8ld passed %6ld failed\n", name, c->n_pass, c->n_fail);
    fflush(stdout);
    c->total_fail += c->n_fail;
}

bool expect(struct check *c, bool ok, const char *fmt, ...)
{
    if (ok) {
        c->n_pass++;
        return true;
    }
    if (c->n_fail++ < MAX_REPORTS) {
        va_list args;
        va_start(args, fmt);
        printf("FAIL ");
        vprintf(fmt, args);
        printf("\n");
        va_end(args);
    }
    return false;
}

/* Mappings that are free: the system takes longer to make one than most checks last. */
static struct guard spare[256];

static unsigned char *guard_map(size_t map_bytes)
{
    for (size_t i = 0; i < sizeof spare / sizeof *spare; i++)
        if (spare[i].map && spare[i].map_bytes == map_bytes) {
            unsigned char *map = spare[i].map;
            spare[i].map = NULL;
            return map;
        }
    void *map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect((char *)map + map_bytes - PAGE, PAGE, PROT_NONE) != 0) {
        perror("guard_alloc");
        exit(2);
    }
    return map;
}

struct guard guard_alloc(size_t n_bytes)
{
    size_t body = (n_bytes + CANARY_BYTES + PAGE - 1) / PAGE * PAGE;
    struct guard g = {.map = guard_map(body + PAGE), .map_bytes = body + PAGE, .n_bytes = n_bytes};
    g.p = g.map + body - n_bytes;
    memset(g.map, CANARY, body);
    return g;
}

bool guard_intact(const struct guard *g)
{
    for (int i = 1; i <= CANARY_BYTES; i++)
        if (g->p[-i] != CANARY)
            return false;
    return true;
}

void guard_free(struct guard *g)
{
    for (size_t i = 0; i < sizeof spare / sizeof *spare; i++)
        if (!spare[i].map) {
            spare[i] = *g;
            return;
        }
    munmap(g->map, g->map_bytes);
}

bool same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

bool same_floats(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!same_float(a[i], b[i]))
            return false;
    return true;
}

float random_normal(struct random *r)
{
    double u = random_unit(r), v = random_unit(r);
    return (float)(sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v));
}

void random_floats(struct random *r, float *x, int64_t n, int kind)
{
    for (int64_t i = 0; i < n; i++)
        switch (kind % 6) {
        case 1: x[i] = 3.5f; break;                      /* every quant at its maximum, one sign */
        case 2: x[i] = i / 256 % 2 ? 0 : -1.0f; break;   /* whole blocks of zeros */
        case 3: x[i] = random_normal(r) * 1e-41f; break; /* subnormal */
        case 4: x[i] = ldexpf(random_normal(r), (int)(random_u32(r) % 60) - 30); break;
        case 5: x[i] = i % 7 ? random_normal(r) * 0.01f : random_normal(r) * 50; break;
        default: x[i] = random_normal(r); break;
        }
}

int main(int argc, char **argv)
{
    struct check c = {.rng = random_seed(2024)};
    enum cpu_level best;
    struct err e;
    if (cpu_level_detect(&best, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 2;
    }
    for (int level = 0; level <= (int)best; level++)
        if (cpu_has_level((enum cpu_level)level))
            c.tables[c.n_table++] = kernels_for((enum cpu_level)level);
    bool curve = argc > 1 && !strcmp(argv[1], "--curve");
    if (curve || (argc > 1 && !strcmp(argv[1], "--bench"))) {
        bench_products(&c, argc > 2 ? argv[2] : NULL, curve);
        return 0;
    }
    printf("tables:");
    for (int i = 0; i < c.n_table; i++)
        printf(" %s", c.tables[i]->name);
    printf("\n");
    check_layouts(&c);
    check_products(&c);
    check_row_kernels(&c);
    check_attention(&c);
    check_recurrent(&c);
    printf("%s\n", c.total_fail ? "FAILED" : "all passed");
    return c.total_fail ? 1 : 0;
}
