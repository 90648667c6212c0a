/* How many tokens of a prompt are computed together when not all experts are in memory.
 *
 * A chunk of hundreds of tokens needs nearly all experts of each layer, so every chunk reads what has no slot. The
 * larger the chunks the fewer there are, but the work space of a larger chunk takes memory from the slots, and after
 * the prompt the slots that gave way must be filled again. All of that is bytes to be read; the chunk is the one for
 * which they are least. */
#ifndef ENGINE_PROMPT_BATCH_H
#define ENGINE_PROMPT_BATCH_H

#include <stddef.h>
#include <stdint.h>

struct prompt_batch_facts {
    int64_t n_batch;     /* tokens that there is work space for now */
    size_t token_bytes;  /* work space of one more */
    size_t slot_bytes;   /* memory that routed experts have */
    size_t expert_bytes; /* that all would need */
};

/* For a prompt of n tokens: n_batch, or more of them in a multiple of 64. Work space takes at most half of the slots'
 * memory, so that the half that is used most stays. Where only the memory of experts is bounded it is weighed in the
 * same way. */
int64_t prompt_batch_choose(const struct prompt_batch_facts *f, int64_t n);

#endif
