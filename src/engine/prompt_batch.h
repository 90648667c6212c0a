/* Chooses how many tokens of a prompt make a batch when not all experts are in memory.
 *
 * A batch of hundreds of tokens needs nearly all experts of each layer, so every batch reads all that have no slot.
 * With larger batches there are fewer of them; but their work space takes memory from the slots, and after the prompt
 * the experts that lost their slots must be read again. The batch is chosen for which the fewest bytes are read. */
#ifndef ENGINE_PROMPT_BATCH_H
#define ENGINE_PROMPT_BATCH_H

#include <stddef.h>
#include <stdint.h>

struct prompt_batch_facts {
    int64_t n_batch;     /* tokens that there is work space for now */
    size_t token_bytes;  /* work space of one more token */
    size_t slot_bytes;   /* memory that routed experts have */
    size_t expert_bytes; /* memory that all of them would need */
};

/* The batch for a prompt of n tokens: n_batch, or a larger multiple of 64. Work space takes at most half of the slots'
 * memory, so that the experts that are used most stay. It counts in the same way if only the experts' memory is
 * bounded. */
int64_t prompt_batch_choose(const struct prompt_batch_facts *f, int64_t n);

#endif
