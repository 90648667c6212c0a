/* Which GPU a model goes to, and how much of it: pure arithmetic over what there is. */
#ifndef ENGINE_GPU_CHOICE_H
#define ENGINE_GPU_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "vulkan/vulkan.h"

/* What a model takes, in bytes. */
struct gpu_need {
    uint64_t layers;        /* all weights but the routed experts */
    uint64_t least_experts; /* the experts of a token in a layer */
    uint64_t all_experts;   /* 0: it has none */
};

enum gpu_part {
    GPU_NOTHING, /* the CPU computes */
    GPU_LAYERS,  /* the layers, and what experts have room there; the CPU has the others */
    GPU_STAGE,   /* some of the layers; other GPUs have the rest */
    GPU_ALL
};

struct gpu_choice {
    int number; /* of the GPU; -1: there is none to choose */
    enum gpu_part part;
    uint64_t room_bytes; /* that it has for this process */
};

/* The GPU that "auto" takes of the n that there are: a card with memory of its own before others, then the one with
 * most room; never a driver that computes on the processor. -1: none. */
int gpu_choose(const struct vulkan_device *all, int n);

/* What of a model GPU `number` gets. max_bytes: what it may take at most; host_bytes: of the host's memory that is
 * free, for GPUs that work in that. */
struct gpu_choice gpu_place(const struct vulkan_device *all, int number, const struct gpu_need *need,
                            uint64_t max_bytes, uint64_t host_bytes);

/* The fewest cards with memory of their own that have room for a model together when each has some of its layers: those
 * first that `gpu_choose` would take. layer_bytes: what its largest layer takes, which is on one of them; max_bytes: of
 * each card. cards [most] gets their numbers; returns how many, or 0: all together have too little. */
int gpu_gather(const struct vulkan_device *all, int n, const struct gpu_need *need, uint64_t layer_bytes,
               uint64_t max_bytes, int *cards, int most);

/* Room that weights leave to texts' state and work space. */
uint64_t gpu_reserve_bytes(uint64_t room_bytes);

#endif
