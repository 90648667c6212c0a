/* How fast a device multiplies: what GPUs are compared by, with the processor and with each other. */
#ifndef ENGINE_PRODUCT_SPEED_H
#define ENGINE_PRODUCT_SPEED_H

#include "backend/backend.h"

/* Rows of the matrix that is multiplied where there is so much room; 0: there is too little. */
int64_t product_speed_rows(uint64_t room_bytes);
/* Bytes of weights a second in products of such a matrix with a single token; 0: it has no rows. */
MUST_USE err_code product_speed(struct backend *b, int64_t n_row, double *bytes_per_s, struct err *e);

#endif
