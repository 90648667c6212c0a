/* A file that appears under its name only when it is complete: the bytes go to PATH.tmp, which is synced and renamed.
 */
#ifndef BASE_OUTPUT_FILE_H
#define BASE_OUTPUT_FILE_H

#include "base/err.h"

struct output_file {
    void *stream; /* FILE *, to be written to */
    char *path, *tmp_path;
};

MUST_USE err_code output_file_open(struct output_file *f, const char *path, struct err *e);
/* Reports any failure to write since it was opened, then too; closes in any case. */
MUST_USE err_code output_file_finish(struct output_file *f, struct err *e);
void output_file_abandon(
    struct output_file *f); /* removes what was written; accepts what was finished or never opened */

/* Makes a rename to `path` last: syncs the folder. */
void output_file_sync_folder(const char *path);

#endif
