/* The parts of prepare: a directory that becomes a store, and a drive's speed. */
#ifndef JOBS_PREPARE_INTERNAL_H
#define JOBS_PREPARE_INTERNAL_H

#include <sys/types.h>

#include "store/manifest.h"

struct target {
    const char *dir; /* borrowed */
    char *path, *part_path, *data_path;
    int fd;            /* of the data, locked; -1: not open */
    dev_t file_system; /* that the data lie on */
    struct manifest m; /* what is safely there */
    uint64_t *planned; /* [n_experts] where the others will be, or MANIFEST_ABSENT */
    uint64_t end;      /* of the data, with all that is planned */
    uint64_t n_planned, planned_bytes;
    double share; /* of the experts, in a striped store */
    double credit;
};

/* Makes the directory if need be, locks it, and finds out what it holds. wanted: what it is to become. Half-open after
 * a failure. */
MUST_USE err_code target_open(struct target *t, const char *dir, const struct manifest *wanted, struct err *e);
void target_close(struct target *t);

void target_plan(struct target *t, size_t index, size_t n_bytes);
/* Refuses when the file systems have no room for what is planned. */
MUST_USE err_code targets_check_space(const struct target *targets, int n, struct err *e);
MUST_USE err_code target_write(const struct target *t, size_t index, const void *image, size_t n_bytes, struct err *e);
/* What was planned and written of experts [first, first + n) is made safe and goes into the manifest. crc: of all, as
 * in the manifest. */
MUST_USE err_code target_commit(struct target *t, size_t first, size_t n, const uint32_t *crc, struct err *e);
/* The directory becomes a store. */
MUST_USE err_code target_finish(struct target *t, struct err *e);

/* Bytes a second that the drive below a directory reads; 0 when that can't be measured. Writes a file of some
 * megabytes and removes it. */
double measure_drive(const char *dir);

#endif
