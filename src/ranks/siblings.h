/* The other processes of this machine that the same parent (mpirun, or its daemon) started. */
#ifndef RANKS_SIBLINGS_H
#define RANKS_SIBLINGS_H

#include <stdbool.h>

struct sibling {
    int rank, process;
};

/* Finds one that has been stopped (SIGSTOP), if there is one. */
bool siblings_find_stopped(struct sibling *out);

#endif
