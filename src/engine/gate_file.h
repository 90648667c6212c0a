/* What moebius profile --gate has measured of a model, kept in the cache directory: with it the engine decides between
 * slots for single experts and whole layers (planner/gate.h). */
#ifndef ENGINE_GATE_FILE_H
#define ENGINE_GATE_FILE_H

#include "planner/gate.h"

/* *is_there false: nothing is kept of that model. ERR_FORMAT: the file is damaged, or another model's. */
MUST_USE err_code gate_file_read(struct gate_curve *c, uint64_t fingerprint, bool *is_there, struct err *e);
/* Keeps it in place of what is there. *path: where, owned by the caller (mem_free); NULL: there is no such folder. */
MUST_USE err_code gate_file_save(const struct gate_curve *c, char **path, struct err *e);

#endif
