/* What turns.py says to an engine and hears from it, a line each on standard input and output: "prompt N" computes N
 * random tokens from an empty context in one go, "decode N" N more one by one; the answer is the seconds that took.
 * That of "memory" is the memory's speed in GB/s as the engine's threads read it, or 0 from an engine that can't tell.
 */
#ifndef TURNS_PLAYER_H
#define TURNS_PLAYER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_TOK = 16384, FIRST_ID = 300, N_ID = 2700 }; /* ordinary tokens of any vocabulary */

struct engine;
struct engine *engine_open(const char *path, int n_threads, int n_ctx); /* exits with a sentence on failure */
void engine_reset(struct engine *e);
void engine_eval(struct engine *e, int32_t *ids, int n);
double engine_memory(struct engine *e);

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL THREADS CONTEXT\n", argv[0]);
        return 2;
    }
    static int32_t ids[MAX_TOK];
    char line[64], what[16];
    struct engine *e = engine_open(argv[1], atoi(argv[2]), atoi(argv[3]));
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int n = 0;
        if (sscanf(line, "%15s %d", what, &n) < 1 || n < 0 || n > MAX_TOK)
            return 2;
        for (int i = 0; i < n; i++)
            ids[i] = FIRST_ID + rand() % N_ID;
        if (!strcmp(what, "memory")) {
            printf("%.1f\n", engine_memory(e));
        } else {
            int step = !strcmp(what, "prompt") ? n : 1;
            if (step == n)
                engine_reset(e);
            double begin = seconds();
            for (int i = 0; i < n; i += step)
                engine_eval(e, ids + i, step);
            printf("%.6f\n", seconds() - begin);
        }
        fflush(stdout);
    }
    return 0;
}

#endif
