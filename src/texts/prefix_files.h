/* Texts' beginnings on disk: a folder of parts of sessions (moebius_session_save_part), from which texts go on that
 * begin alike, in this run or a later one. The folder takes a bounded number of bytes; parts that were of no use for
 * longest go first, and none before those that go on from it.
 *
 * The folder may be lost, or the process killed, at any time: a part that is not whole, not there any more, or damaged
 * is left out, and so is what goes on from it. Tokens are compared before a part is used, so a text never goes on from
 * another one's state. Files of other names stay. One process at a time uses a folder; texts of several models may.
 * What is saved of texts are their tokens and what the model made of them: a new folder is its owner's alone.
 *
 * One thread, the one that drives the engines. */
#ifndef TEXTS_PREFIX_FILES_H
#define TEXTS_PREFIX_FILES_H

#include "base/log.h"
#include "moebius/moebius.h"

struct prefix_files;

/* Makes the folder if there is none, and looks what is in it, of which it keeps max_bytes. Fails where another process
 * uses it. `log` (may be NULL) is borrowed: it hears of files that are of no use. */
MUST_USE err_code prefix_files_open(struct prefix_files **out, const char *dir, uint64_t max_bytes,
                                    const struct log *log, struct err *e);
void prefix_files_close(struct prefix_files **f);

/* How many of the tokens ids[n] a session could take from the folder. `like`: any session of the same model and type
 * of caches. */
size_t prefix_files_find(const struct prefix_files *f, const moebius_session *like, const int32_t *ids, size_t n);
/* Appends the next part on the way there to a session, which is empty at first; to be called until it returns false:
 * then the session holds what it can have. Its tokens are always the first ones of ids. */
bool prefix_files_load(struct prefix_files *f, moebius_session *session, const int32_t *ids, size_t n);

/* Writes the next part that is not there yet of a session's first n tokens, PREFIX_PART_TOKENS or what else comes
 * nearest. False: there is nothing more to write, or it can't be written. */
enum { PREFIX_PART_TOKENS = 512, PREFIX_LEAST_TOKENS = 64 };
bool prefix_files_save(struct prefix_files *f, moebius_session *session, size_t n);

/* How many tokens a part should have at least, from what one has of one token and one of n. State that does not grow
 * with the tokens is written with each part: where it is larger than what n add, so many that they add as much, but no
 * more, as others wait while a part is read or written. INT64_MAX: as many as there are. */
int64_t prefix_part_tokens(int64_t one_bytes, int64_t n_bytes, int64_t n);

struct prefix_files_stats {
    uint64_t n_bytes; /* of all parts now */
    size_t n_parts;
    uint64_t n_read, n_written, n_dropped; /* parts since it was opened; dropped: to keep the bound */
};
struct prefix_files_stats prefix_files_stats(const struct prefix_files *f);

#endif
