/* What loading a model can't do without: its files' bytes read by as many threads into memory that nobody used before.
 */
#ifndef JOBS_READ_FILE_H
#define JOBS_READ_FILE_H

#include <stdint.h>

#include "base/err.h"

/* Reads all files of the model at `path` once, with n_threads (0: one for each processor), into fresh huge pages that
 * are given back: how long that took, and how many bytes it was. */
MUST_USE err_code read_file_time(const char *path, int n_threads, double *seconds, uint64_t *n_bytes, struct err *e);

#endif
