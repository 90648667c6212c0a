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

/* What a GPU gets of a model. */
enum gpu_part {
    GPU_NOTHING, /* nothing: the CPU computes */
    GPU_LAYERS,  /* all layers, and as many experts as there is room for; the CPU has the other experts */
    GPU_STAGE,   /* some of the layers; other GPUs have the rest */
    GPU_ALL      /* the whole model */
};

struct gpu_choice {
    int number;          /* of the GPU, as the driver lists it; -1: there is none to choose */
    enum gpu_part part;  /* what it gets */
    uint64_t room_bytes; /* its memory for this process */
};

/* Which of n GPUs "auto" takes: cards with memory of their own come before others, and of those the one with most
 * memory; never a driver that computes on the processor. -1: none. */
int gpu_choose(const struct vulkan_device *all, int n);

/* What GPU `number` gets of a model. max_bytes: what this process may take of its memory; host_bytes: the host's free
 * memory, for GPUs that work in it. */
struct gpu_choice gpu_place(const struct vulkan_device *all, int number, const struct gpu_need *need,
                            uint64_t max_bytes, uint64_t host_bytes);

/* The fewest cards with memory of their own that together have room for a model, when each gets some of its layers.
 * Cards are tried in the order in which gpu_choose prefers them. layer_bytes: of the model's largest layer, as layers
 * are not divided; max_bytes: what this process may take of each card. cards [most] gets their numbers; returns how
 * many, or 0 if all together have too little. */
int gpu_gather(const struct vulkan_device *all, int n, const struct gpu_need *need, uint64_t layer_bytes,
               uint64_t max_bytes, int *cards, int most);

/* The part of a GPU's memory that weights leave to the texts' state and to work space. */
uint64_t gpu_reserve_bytes(uint64_t room_bytes);

#endif
