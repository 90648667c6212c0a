/* Whether a device can run a model, asked before the model is loaded. */
#ifndef MODEL_ASK_H
#define MODEL_ASK_H

#include "gguf/gguf.h"
#include "model/model.h"

/* Enqueues what the forward pass enqueues, for one token and for more than a ubatch, with all experts in slots, on a
 * device that runs nothing and asks p->device (backend_asking_open); nothing of the tensors is read. refusals
 * [CACHE_TYPES], zeroed, gets for each type of caches why the model can't run with these. ERR_UNSUPPORTED where that is
 * so with all. */
MUST_USE err_code model_ask(const struct gguf *g, const struct model_load_params *p, struct err *refusals,
                            struct err *e);

#endif
