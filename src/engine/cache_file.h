/* Small files that one run leaves for the next in the user's cache directory: $XDG_CACHE_HOME/moebius or, where that is
 * not set, $HOME/.cache/moebius. */
#ifndef ENGINE_CACHE_FILE_H
#define ENGINE_CACHE_FILE_H

#include <stddef.h>

#include "base/err.h"
#include "base/log.h"

/* The path of a file of that name, owned by the caller (mem_free); NULL where neither variable is set. */
MUST_USE err_code cache_file_path(const char *name, char **out, struct err *e);
/* Makes the folders of a path, as far as they are missing. */
MUST_USE err_code cache_file_make_folders(char *path, struct err *e);
/* The whole file, owned by the caller (mem_free); NULL when there is none. */
MUST_USE err_code cache_file_read(const char *path, char **text, size_t *n, struct err *e);
/* Renames a damaged file of ours to PATH.damaged, with a warning of what *e says about it. */
MUST_USE err_code cache_file_set_aside(const char *path, const struct log *log, struct err *e);

#endif
