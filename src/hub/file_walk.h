/* Walks through the files below a folder. */
#ifndef HUB_FILE_WALK_H
#define HUB_FILE_WALK_H

#include <stdbool.h>

#include "base/err.h"

/* Called for everything but folders; links to folders count as files. `path` can be opened, `below` is the path
 * relative to the folder of the walk. */
typedef err_code file_visit(void *user, const char *path, const char *below, struct err *e);

/* Visits all files in no particular order. Folders that can't be read, or lie deeper than 16, are skipped. */
MUST_USE err_code file_walk(const char *folder, file_visit *visit, void *user, struct err *e);

/* Visits only what lies in the folder itself: its folders (true) or its files. */
MUST_USE err_code file_walk_names(const char *folder, bool folders, file_visit *visit, void *user, struct err *e);

/* Removes empty folders, from the innermost up to this one. */
void file_walk_prune(const char *folder);

#endif
