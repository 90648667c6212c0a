#include "engine/gpu_choice.h"

#include <string.h>

static int rank_of(const struct vulkan_device *d)
{
    static const char *const kinds[] = {"discrete", "virtual", "integrated"}; /* the best first */
    enum { N = sizeof kinds / sizeof *kinds };
    for (int i = 0; i < N && d->is_usable; i++)
        if (!strcmp(d->kind, kinds[i]))
            return N - i;
    return 0;
}

int gpu_choose(const struct vulkan_device *all, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        int rank = rank_of(&all[i]), best_rank = best < 0 ? 0 : rank_of(&all[best]);
        if (rank > best_rank || (rank && rank == best_rank && all[i].budget_bytes > all[best].budget_bytes))
            best = i;
    }
    return best;
}

uint64_t gpu_reserve_bytes(uint64_t room_bytes)
{
    enum { SHARE = 8 };
    static const uint64_t most = (uint64_t)2 << 30;
    return room_bytes / SHARE < most ? room_bytes / SHARE : most;
}

struct gpu_choice gpu_place(const struct vulkan_device *all, int number, const struct gpu_need *need,
                            uint64_t max_bytes, uint64_t host_bytes)
{
    const struct vulkan_device *d = &all[number];
    struct gpu_choice c = {.number = number, .room_bytes = d->budget_bytes};
    if (d->shares_memory && host_bytes < c.room_bytes)
        c.room_bytes = host_bytes;
    if (max_bytes < c.room_bytes)
        c.room_bytes = max_bytes;
    uint64_t left = c.room_bytes - gpu_reserve_bytes(c.room_bytes);
    if (need->layers + need->all_experts <= left)
        c.part = GPU_ALL;
    else if (!d->shares_memory && need->all_experts && need->layers + need->least_experts <= left)
        c.part = GPU_LAYERS;
    return c;
}
