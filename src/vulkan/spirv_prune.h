/* Shaders hold code for all types of weights and all ways of a product, of which the values of their constants select a
 * part. Drivers read, inline and optimize all of a module before they drop the rest; pruned modules have the selected
 * part alone. */
#ifndef VULKAN_SPIRV_PRUNE_H
#define VULKAN_SPIRV_PRUNE_H

#include <stddef.h>
#include <stdint.h>

/* SPIR-V of n_words without the blocks that no thread reaches where specialization constant i is constant[i], of
 * n_constant; others have their defaults. The constants stay what they are, so that the driver must be given the same
 * values. The words are the caller's (mem_free), *n_out of them; NULL where there is no memory. code: a valid module
 * for shaders. Thread-safe. */
uint32_t *spirv_prune(const uint32_t *code, size_t n_words, const uint32_t *constant, int n_constant, size_t *n_out);

#endif
