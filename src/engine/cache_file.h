/* Small files that one run leaves for the next in the user's cache directory: $XDG_CACHE_HOME/moebius or, where that is
 * not set, $HOME/.cache/moebius. */
#ifndef ENGINE_CACHE_FILE_H
#define ENGINE_CACHE_FILE_H

#include <stddef.h>

#include "base/err.h"
#include "base/log.h"

/* The path of a file of that name, owned by the caller (mem_free); NULL where neither variable is an absolute path. */
MUST_USE err_code cache_file_path(const char *name, char **out, struct err *e);
/* Makes those folders of a path that are missing. The path is changed meanwhile, and afterwards what it was. */
MUST_USE err_code cache_file_make_folders(char *path, struct err *e);
/* Reads a whole file: *text [*n], not NUL-terminated, owned by the caller (mem_free). *text is NULL when there is no
 * such file, and after a failure. */
MUST_USE err_code cache_file_read(const char *path, char **text, size_t *n, struct err *e);
/* Renames a damaged file to PATH.damaged, and logs a warning with the sentence in *e, which says what is wrong with
 * the file. */
MUST_USE err_code cache_file_set_aside(const char *path, const struct log *log, struct err *e);

#endif
