/* How long it takes at least to load a model: the time to read its files into fresh memory, with as many threads. */
#ifndef JOBS_READ_FILE_H
#define JOBS_READ_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Reads all files of the model at `path` once, with n_threads (0: one for each processor), into fresh huge pages, which
 * are freed. *seconds: how long that took; *n_bytes: how many bytes it was. hugetlb: the huge pages are those that the
 * system has set aside; an error when these are too few. */
MUST_USE err_code read_file_time(const char *path, int n_threads, bool hugetlb, double *seconds, uint64_t *n_bytes,
                                 struct err *e);

#endif
