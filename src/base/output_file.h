/* A file that appears under its name only when it is complete. The bytes go to a new file beside it, NAME.RANDOM.tmp,
 * which is synced and renamed. Of a run that was killed such a file may stay; nobody reads it or waits for it, and it
 * can be removed.
 *
 * A link is followed: the file that it means is replaced, as `cp` does. A file that exists keeps its permissions, and
 * one that may not be written is not replaced. What is no plain file (a device, a FIFO) is written straight to, and so
 * is what standard output or standard error goes to, through that stream. */
#ifndef BASE_OUTPUT_FILE_H
#define BASE_OUTPUT_FILE_H

#include "base/err.h"

struct output_file {
    void *stream;            /* FILE *, to be written to */
    struct output_sink *own; /* of the stream; NULL: it is stdout or stderr */
    char *path;              /* as it was named */
    char *target, *tmp_path; /* the second is renamed to the first; NULL: the bytes go straight to `path` */
};

/* Errors name `path`. */
MUST_USE err_code output_file_open(struct output_file *f, const char *path, struct err *e);
/* The same for a file that several processes read, change and write: no other one opens it so before this one finishes
 * or abandons it, and each sees what the one before has written. The new file is `path`.lock, and of a killed run the
 * next one takes it over. Fails when another process takes longer than 10 s. */
MUST_USE err_code output_file_open_shared(struct output_file *f, const char *path, struct err *e);
/* Reports any failure to write since it was opened, then too; closes in any case. */
MUST_USE err_code output_file_finish(struct output_file *f, struct err *e);
/* The same without waiting for the drive: where the system crashes the file may then be there with other contents, as
 * only its reader can tell. For what is kept to save time. */
MUST_USE err_code output_file_finish_unsynced(struct output_file *f, struct err *e);
/* Removes what was written; accepts what was finished or never opened. */
void output_file_abandon(struct output_file *f);

/* Whether output_file_open would succeed now: to be asked before work that takes long. NULL is no file, and fine. */
MUST_USE err_code output_file_check(const char *path, struct err *e);

/* Where the bytes of `path` end up: the file that a link means, else `path`. NULL in *target when that is no plain
 * file. Owned by the caller (mem_free). */
MUST_USE err_code output_file_target(const char *path, char **target, struct err *e);

/* Makes a rename to `path` last: syncs the folder. */
void output_file_sync_folder(const char *path);

#endif
