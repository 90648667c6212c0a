/* How fast a GPU is at what every run needs: moving bytes in its memory, and beginning a dispatch. */
#ifndef ENGINE_GPU_SPEED_H
#define ENGINE_GPU_SPEED_H

#include "backend/backend.h"

/* Bytes a second, read and written, of copies between two tensors of as many bytes. The time that it takes to submit
 * them is not in it. What they hold afterwards is undefined. */
MUST_USE err_code gpu_time_copies(struct backend *b, const struct tensor t[2], double *bytes_per_s, struct err *e);

/* Seconds of a dispatch that does next to nothing and waits for the one before, in a row of them. */
MUST_USE err_code gpu_time_dispatches(struct backend *b, double *s, struct err *e);

#endif
