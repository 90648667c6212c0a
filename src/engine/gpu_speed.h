/* Measures how fast a GPU copies within its memory and starts a dispatch. */
#ifndef ENGINE_GPU_SPEED_H
#define ENGINE_GPU_SPEED_H

#include "backend/backend.h"

/* Bytes a second, reads and writes added up, of copies between two tensors of equal size. The time that submitting
 * takes is left out. The tensors' contents are undefined afterwards. */
MUST_USE err_code gpu_time_copies(struct backend *b, const struct tensor t[2], double *bytes_per_s, struct err *e);

/* Seconds that a dispatch takes which does next to nothing, in a row of dispatches that wait for each other. */
MUST_USE err_code gpu_time_dispatches(struct backend *b, double *s, struct err *e);

#endif
