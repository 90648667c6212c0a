/* A file that appears under its name only when it is complete. The bytes go to a new file beside it, NAME.RANDOM.tmp,
 * which is synced and renamed. A process that is killed may leave such a file behind; nothing reads it or waits for it,
 * and it can be removed.
 *
 * A symbolic link is followed, and the file that it points to is replaced, as by `cp`. A file that exists keeps its
 * permissions, and one that may not be written is not replaced. Anything but a plain file (a device, a FIFO) is written
 * to directly. So is the file that standard output or standard error goes to, through that stream. */
#ifndef BASE_OUTPUT_FILE_H
#define BASE_OUTPUT_FILE_H

#include <stdbool.h>

#include "base/err.h"

struct output_file {
    void *stream;            /* FILE *, for the caller to write to */
    struct output_sink *own; /* what the stream writes through; NULL: it is stdout or stderr */
    char *path;              /* as the caller gave it */
    char *target;            /* the file that is replaced at the end; NULL: the bytes go directly to `path` */
    char *tmp_path;          /* the new file, renamed to `target` at the end; NULL as `target` */
    bool is_listed;          /* output_files_remove would remove `tmp_path` */
};

/* Errors name `path`. */
MUST_USE err_code output_file_open(struct output_file *f, const char *path, struct err *e);
/* The same for a file that several processes read, change and write: the next one can open it only when this one has
 * finished or abandoned it, and then sees what this one has written. The new file is named `path`.lock; where a run was
 * killed the next one takes it over. Fails when another process takes longer than 10 s. */
MUST_USE err_code output_file_open_shared(struct output_file *f, const char *path, struct err *e);
/* Reports any failure to write since the file was opened. Closes it in any case. */
MUST_USE err_code output_file_finish(struct output_file *f, struct err *e);
/* The same without waiting for the drive: after a crash of the system the file may have wrong contents, which its
 * reader has to detect. For caches. */
MUST_USE err_code output_file_finish_unsynced(struct output_file *f, struct err *e);
/* Removes what was written. Does nothing to a file that was finished or never opened. */
void output_file_abandon(struct output_file *f);
/* Removes the new files of all that are open, when the process is about to end. A signal's handler may call it, and so
 * may any thread while others write; what they do with their files then fails. */
void output_files_remove(void);

/* Whether output_file_open would succeed now, to be asked before work that takes long. NULL stands for no file: OK. */
MUST_USE err_code output_file_check(const char *path, struct err *e);

/* The file that `path` names after following symbolic links; NULL in *target when that isn't a plain file. Owned by the
 * caller (mem_free). */
MUST_USE err_code output_file_target(const char *path, char **target, struct err *e);

/* Makes a rename to `path` durable: syncs its folder. */
void output_file_sync_folder(const char *path);

#endif
