/* Parts of the forward pass that multi-token prediction uses, too. */
#ifndef MODEL_FORWARD_INTERNAL_H
#define MODEL_FORWARD_INTERNAL_H

#include "model/layer_blocks.h"

/* Makes the pass use the device and the work space of a stage. */
void pass_enter(struct pass *p, int stage);
/* Writes the ids and positions of the batch's tokens, and the page tables of their texts, to the stage's device. */
void pass_write_positions(struct pass *p);
void pass_write_page_tables(const struct pass *p);
/* Writes a list of n numbers, one for each token or result, from host_rows. Returns the list in device memory. */
struct tensor pass_write_list(const struct pass *p, const struct tensor *list, int64_t n);
/* Computes the angles of the batch's positions (ROPE_TABLE). */
void pass_rope_tables(struct pass *p);
/* The ubatch that begins at token `first` of a batch. */
struct pass pass_ubatch(const struct pass *p, int64_t first);
/* Runs layer i over the residual stream of a batch. */
MUST_USE err_code pass_layer(struct pass *p, int64_t i, struct err *e);
/* y = the logits of normed results h, by the output matrix `output`. */
void pass_logits(const struct pass *p, struct weight *output, const struct tensor *h, const struct tensor *y);

/* ---- multi-token prediction (mtp.c), in a stage that has it ----------------------------------------------------- */

/* Writes, for each token, the index of the result of the token before it, which may be of an earlier batch. */
void mtp_begin(struct pass *p);
/* Keeps the batch's results on the device, normed if need be, and puts the keys and values of its tokens into the cache
 * of MTP's layer. */
void mtp_store(struct pass *p);
/* Reads the results that later predictions of the texts may need, once the batch is computed. */
MUST_USE err_code mtp_keep(const struct pass *p, struct err *e);

#endif
