#include "engine/gpu_choice.h"

#include <string.h>

/* How much "auto" prefers a kind of GPU; 0: it never takes it. */
static int rank_of(const struct vulkan_device *d)
{
    static const char *const kinds[] = {"discrete", "virtual", "integrated"}; /* the best first */
    enum { N = sizeof kinds / sizeof *kinds };
    for (int i = 0; i < N && d->is_usable; i++)
        if (!strcmp(d->kind, kinds[i]))
            return N - i;
    return 0;
}

/* The best of those that are not among `taken`. */
static int choose_beside(const struct vulkan_device *all, int n, const int *taken, int n_taken)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        int rank = rank_of(&all[i]), best_rank = best < 0 ? 0 : rank_of(&all[best]);
        bool is_taken = false;
        for (int k = 0; k < n_taken; k++)
            is_taken |= taken[k] == i;
        if (!is_taken &&
            (rank > best_rank || (rank && rank == best_rank && all[i].budget_bytes > all[best].budget_bytes)))
            best = i;
    }
    return best;
}

int gpu_choose(const struct vulkan_device *all, int n)
{
    return choose_beside(all, n, NULL, 0);
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

int gpu_gather(const struct vulkan_device *all, int n, const struct gpu_need *need, uint64_t layer_bytes,
               uint64_t max_bytes, int *cards, int most)
{
    uint64_t sum = 0;
    for (int k = 0; k < most; k++) {
        int i = cards[k] = choose_beside(all, n, cards, k);
        if (i < 0 || all[i].shares_memory)
            return 0;
        uint64_t room = all[i].budget_bytes < max_bytes ? all[i].budget_bytes : max_bytes;
        room -= gpu_reserve_bytes(room);
        if (room < layer_bytes)
            return 0;
        sum += room - layer_bytes; /* a layer that is not divided leaves some of it */
        if (sum >= need->layers + need->all_experts)
            return k + 1;
    }
    return 0;
}
