/* The disk cache of prefixes: a folder with parts of sessions (moebius_session_save_part), which texts with the same
 * beginning can load in this run or a later one. The folder's size is bounded: the least recently used parts are
 * removed first, but never before the parts that continue them.
 *
 * The folder may be deleted, or the process killed, at any time: a part that is incomplete, missing or damaged is
 * ignored, and so are those that continue it. Tokens are compared before a part is used, so a text never continues the
 * state of another one. Other files in the folder are left alone. Only one process at a time may use a folder, with any
 * number of models. Parts contain the tokens of texts and the model's state, so a new folder is readable by its owner
 * alone.
 *
 * For one thread, the one that drives the engines. */
#ifndef TEXTS_PREFIX_FILES_H
#define TEXTS_PREFIX_FILES_H

#include "base/log.h"
#include "moebius/moebius.h"

struct prefix_files;

/* Creates the folder if it is missing, reads which parts it has, and removes what exceeds max_bytes. Fails if another
 * process uses it. log (borrowed, may be NULL) gets warnings about files that can't be used. */
MUST_USE err_code prefix_files_open(struct prefix_files **out, const char *dir, uint64_t max_bytes,
                                    const struct log *log, struct err *e);
void prefix_files_close(struct prefix_files **f);

/* How many of the tokens ids[n] a session could load. like: any session of the same model with caches of the same type.
 */
size_t prefix_files_find(const struct prefix_files *f, const moebius_session *like, const int32_t *ids, size_t n);
/* Appends the next part for the tokens ids[n] to a session, which is empty at first. Must be called until it returns
 * false; then the session has all it can. Its tokens are always a prefix of ids. */
bool prefix_files_load(struct prefix_files *f, moebius_session *session, const int32_t *ids, size_t n);

/* Writes the next missing part of a session's first n tokens, of about PREFIX_PART_TOKENS. False: nothing is missing,
 * or it can't be written. */
enum { PREFIX_PART_TOKENS = 512, PREFIX_LEAST_TOKENS = 64 };
bool prefix_files_save(struct prefix_files *f, moebius_session *session, size_t n);

/* How many tokens a part should have at least, given the bytes of a part of one token and of n. Each part also contains
 * state that does not grow with its tokens. If that is more than what n tokens add, a part should have as many tokens
 * as add the same; not more, because others wait while it is read or written. INT64_MAX: as many as there are. */
int64_t prefix_part_tokens(int64_t one_bytes, int64_t n_bytes, int64_t n);

struct prefix_files_stats {
    uint64_t n_bytes; /* of all parts at present */
    size_t n_parts;
    uint64_t n_read, n_written,
        n_dropped; /* parts since the cache was opened; dropped: removed to stay within the bound */
};
struct prefix_files_stats prefix_files_stats(const struct prefix_files *f);

#endif
