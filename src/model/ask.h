/* Finds out whether a device can run a model before the model is loaded. */
#ifndef MODEL_ASK_H
#define MODEL_ASK_H

#include "gguf/gguf.h"
#include "model/model.h"

/* Enqueues the operations of the forward pass, for one token and for more than a ubatch, with all experts in slots, on
 * a device that runs nothing and asks p->device (backend_asking_open). No tensors are read. refusals [CACHE_TYPES],
 * which must be zeroed, gets an error for each type of caches with which the model can't run. ERR_UNSUPPORTED where it
 * can't run with any. */
MUST_USE err_code model_ask(const struct gguf *g, const struct model_load_params *p, struct err *refusals,
                            struct err *e);

#endif
