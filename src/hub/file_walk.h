/* All files below a folder. */
#ifndef HUB_FILE_WALK_H
#define HUB_FILE_WALK_H

#include <stdbool.h>

#include "base/err.h"

/* What is no folder, links to folders too: `path` as it may be opened, `below` without the folder before it. */
typedef err_code file_visit(void *user, const char *path, const char *below, struct err *e);

/* Visits them in no order; folders that can't be read, or lie deeper than 16, are passed over. */
MUST_USE err_code file_walk(const char *folder, file_visit *visit, void *user, struct err *e);

/* The same for what is in the folder itself: folders' names (true) or files'. */
MUST_USE err_code file_walk_names(const char *folder, bool folders, file_visit *visit, void *user, struct err *e);

/* Removes folders that are empty, from the innermost up to this one. */
void file_walk_prune(const char *folder);

#endif
