/* How a device wants the experts of a store to lie in its slots: in a prepared store they must lie so. */
#ifndef ENGINE_EXPERT_IMAGES_H
#define ENGINE_EXPERT_IMAGES_H

#include "backend/backend.h"
#include "store/store.h"

/* An image for each layer of the store, owned by the caller (mem_free). ERR_USAGE when the device takes experts in no
 * form but the GGUF's. */
MUST_USE err_code expert_images(struct backend *device, const struct store *s, struct layout_image **out,
                                struct err *e);

#endif
