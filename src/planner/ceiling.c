#include "planner/ceiling.h"

#include <string.h>

static const char *const names[REGIME_N] = {"ram", "stream", "vram", "offload", "tiered", "ranks"};

const char *regime_name(enum regime r)
{
    return names[r];
}

int regime_find(const char *name)
{
    for (int i = 0; i < REGIME_N; i++)
        if (!strcmp(name, names[i]))
            return i;
    return -1;
}
