/* Removes unreachable code from shaders. They contain the code for all types of weights and all ways to compute a
 * product, of which the values of their specialization constants select a part. Drivers parse, inline and optimize a
 * whole module before they drop the rest; a pruned module contains the selected part only, and is compiled faster. */
#ifndef VULKAN_SPIRV_PRUNE_H
#define VULKAN_SPIRV_PRUNE_H

#include <stddef.h>
#include <stdint.h>

/* Returns a copy of a SPIR-V module of n_words without the blocks that no thread reaches if specialization constant i
 * is constant[i] for all i below n_constant, and others have their defaults. The module still declares its constants:
 * the driver must be given the same values. The copy has *n_out words and is owned by the caller (mem_free); NULL when
 * out of memory. `code` must be a valid module for shaders. Thread-safe. */
uint32_t *spirv_prune(const uint32_t *code, size_t n_words, const uint32_t *constant, int n_constant, size_t *n_out);

#endif
