#define _POSIX_C_SOURCE 200809L
#include "ranks/siblings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_stopped(int process)
{
    char path[64], line[512], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *f = fopen(path, "re");
    if (f && fgets(line, sizeof line, f)) {
        const char *end = strrchr(line, ')'); /* of the name, which may have spaces */
        state = end && end[1] ? end[2] : '?';
    }
    if (f)
        fclose(f);
    return state == 'T';
}

/* The rank that Open MPI has told the process to be; -1: it was not started as one. */
static int rank_of(int process)
{
    static const char name[] = "OMPI_COMM_WORLD_RANK=";
    char path[64], word[64];
    size_t n = 0;
    int rank = -1, c;
    snprintf(path, sizeof path, "/proc/%d/environ", process);
    FILE *f = fopen(path, "re");
    while (f && rank < 0 && (c = getc(f)) != EOF) {
        word[n] = (char)c; /* of a long one the end is written over its last byte */
        n += n + 1 < sizeof word;
        if (c == '\0' && !strncmp(word, name, sizeof name - 1))
            rank = (int)strtol(word + sizeof name - 1, NULL, 10);
        n = c == '\0' ? 0 : n;
    }
    if (f)
        fclose(f);
    return rank;
}

bool siblings_find_stopped(struct sibling *out)
{
    char path[64];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)getppid(), (int)getppid());
    FILE *f = fopen(path, "re");
    while (f && !found && fscanf(f, "%d", &out->process) == 1)
        found = is_stopped(out->process) && (out->rank = rank_of(out->process)) >= 0;
    if (f)
        fclose(f);
    return found;
}
