/* The parts of prepare: a directory that becomes a store, and a drive's speed. */
#ifndef JOBS_PREPARE_INTERNAL_H
#define JOBS_PREPARE_INTERNAL_H

#include <sys/types.h>

#include "store/manifest.h"

struct target {
    const char *dir;        /* borrowed */
    char *path;             /* of the manifest */
    char *part_path;        /* of the manifest while the store is being made */
    char *data_path;        /* of the experts' bytes */
    int fd;                 /* of the data, locked; -1: not open */
    dev_t file_system;      /* where the data lie */
    struct manifest m;      /* the experts that are safely there */
    uint64_t *planned;      /* [n_experts], the places of those to be written, or MANIFEST_ABSENT; damaged ones keep
                               theirs */
    uint64_t end;           /* the data's length with all that is planned */
    uint64_t n_planned;     /* experts that are planned */
    uint64_t planned_bytes; /* their bytes */
    double share;           /* of a striped store's bytes that go here */
    double credit;          /* bytes that it was due and not given */
    bool is_changed;        /* experts were written and are in the manifest */
};

/* Makes the directory if it is missing, locks it, and finds out what it holds. wanted: what it is to become. Close it
 * after a failure, too. */
MUST_USE err_code target_open(struct target *t, const char *dir, const struct manifest *wanted, struct err *e);
void target_close(struct target *t);

void target_plan(struct target *t, size_t index, size_t n_bytes);
/* An error when the file systems have no room for what is planned. */
MUST_USE err_code targets_check_space(const struct target *targets, int n, struct err *e);
MUST_USE err_code target_write(const struct target *t, size_t index, const void *image, size_t n_bytes, struct err *e);
/* Syncs what was planned and written of experts [first, first + n) to the disk, and notes them in the manifest. crc: of
 * all experts, as in the manifest. */
MUST_USE err_code target_commit(struct target *t, size_t first, size_t n, const uint32_t *crc, struct err *e);
/* Makes the directory a store: its manifest gets its name. */
MUST_USE err_code target_finish(struct target *t, struct err *e);

/* Bytes a second that the drive below a directory reads; 0 when that can't be measured. Writes a file of some
 * megabytes and removes it. */
double measure_drive(const char *dir);

#endif
