/* The file in which moebius profile --gate keeps what it has measured of a model, in the cache directory. From it the
 * engine decides between slots for single experts and whole layers (planner/gate.h). */
#ifndef ENGINE_GATE_FILE_H
#define ENGINE_GATE_FILE_H

#include "planner/gate.h"

/* *is_there false: there is no file for that model. ERR_FORMAT: the file is damaged, or another model's. */
MUST_USE err_code gate_file_read(struct gate_curve *c, uint64_t fingerprint, bool *is_there, struct err *e);
/* Writes the file, in place of an earlier one. *path is its path, owned by the caller (mem_free); NULL: there is no
 * cache directory, and nothing was written. */
MUST_USE err_code gate_file_save(const struct gate_curve *c, char **path, struct err *e);

#endif
