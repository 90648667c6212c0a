/* Measures how fast a device multiplies, to compare GPUs with each other and with the processor. */
#ifndef ENGINE_PRODUCT_SPEED_H
#define ENGINE_PRODUCT_SPEED_H

#include "backend/backend.h"

/* How many rows the matrix to multiply may have in room_bytes of memory; 0: there is too little. */
int64_t product_speed_rows(uint64_t room_bytes);
/* Bytes of weights a second in products of such a matrix with a single token; 0 if n_row is 0. */
MUST_USE err_code product_speed(struct backend *b, int64_t n_row, double *bytes_per_s, struct err *e);

#endif
