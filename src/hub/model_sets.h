/* The models among a repository's files: a GGUF file, or a split set NAME-00001-of-00003.gguf of such, is one model.
 * Files that only accompany models (projectors of images, importance matrices) are none. Choosing among several by what
 * the user wrote: the file's path, or a quantisation in its name. */
#ifndef HUB_MODEL_SETS_H
#define HUB_MODEL_SETS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

enum { HUB_SHA256_DIGITS = 64, HUB_GIT_DIGITS = 40 };

#define HUB_MOST_BYTES ((int64_t)1 << 44) /* of a file */

struct hub_file {
    const char *path; /* within the repository, "/" between parts; safe (hub_path_is_safe) */
    uint64_t n_bytes;
    /* SHA-256 in 64 hexadecimal digits of lower case or, of a file outside LFS, what Git knows it by in 40: SHA-1 of
     * "blob BYTES\0" and the file. NULL: not known. */
    const char *digest;
    bool is_there; /* in the cache, whole */
};

/* The files of one model are neighbours in the list. */
struct model_set {
    const struct hub_file *files; /* [n], the first part first; parts that are missing are left out */
    int n, n_parts;               /* n < n_parts: some are missing */
    uint64_t n_bytes;
    char label[64]; /* the quantisation in its name, as the user may write it; "": none */
};

struct model_sets {
    struct hub_file *files;
    struct model_set *sets;
    size_t n_files, n;
    struct arena arena; /* owns all of it, and what it points to */
};

/* Adds a file of any kind; what is no model is passed over. Strings are copied. */
MUST_USE err_code model_sets_add(struct model_sets *s, const struct hub_file *f, struct err *e);
/* After the last of them: sorts the files and finds the sets. */
MUST_USE err_code model_sets_group(struct model_sets *s, struct err *e);
void model_sets_close(struct model_sets *s);

/* How well `what` means this set, in letters of any case: 3 by the path of one of its files, with or without ".gguf", 2
 * by its quantisation alone, 1 by words of its path, 0 not at all. "" means each by 1. */
int model_set_fitness(const struct model_set *set, const char *what);

/* The one that is meant. `name` is what the user wrote, for the sentence that lists what there is where none is meant,
 * or several are. */
MUST_USE err_code model_sets_choose(const struct model_sets *s, const char *what, const char *name,
                                    const struct model_set **out, struct err *e);

#endif
