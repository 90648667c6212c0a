/* Finds the models among a repository's files: a GGUF file, or a split set of them (NAME-00001-of-00003.gguf), is one
 * model. Files that accompany models (image projectors, importance matrices) don't count. The user chooses among
 * several models by a file's path or by the quantisation in its name. */
#ifndef HUB_MODEL_SETS_H
#define HUB_MODEL_SETS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

enum { HUB_SHA256_DIGITS = 64, HUB_GIT_DIGITS = 40 };

#define HUB_MOST_BYTES ((int64_t)1 << 44) /* largest size of a file that is accepted */

struct hub_file {
    const char *path; /* within the repository, "/" between parts; safe (hub_path_is_safe) */
    uint64_t n_bytes;
    /* SHA-256 in 64 lower-case hexadecimal digits or, of a file outside LFS, its Git object name in 40: SHA-1 of
     * "blob BYTES\0" and the file. NULL: not known. */
    const char *digest;
    bool is_there; /* the whole file is in the cache */
};

/* The files of one model are neighbours in the list. */
struct model_set {
    const struct hub_file *files; /* [n], the first part first; parts that are missing are left out */
    int n, n_parts;               /* files that there are, and that belong to the model */
    uint64_t n_bytes;
    char label[64]; /* the quantisation in its name, by which the user can choose it; "": none */
};

struct model_sets {
    struct hub_file *files;
    struct model_set *sets;
    size_t n_files, n;
    struct arena arena; /* owns all of it, and what it points to */
};

/* Adds a file; files that are no models are ignored. Strings are copied. */
MUST_USE err_code model_sets_add(struct model_sets *s, const struct hub_file *f, struct err *e);
/* Sorts the files and finds the models. To be called after the last file was added. */
MUST_USE err_code model_sets_group(struct model_sets *s, struct err *e);
void model_sets_close(struct model_sets *s);

/* How well `what` matches this model, ignoring case. 3: it is the path of one of its files, with or without ".gguf"; 2:
 * it is its quantisation; 1: it is words of its path, or ""; 0: it does not match. */
int model_set_fitness(const struct model_set *set, const char *what);

/* Chooses the model that matches `what` best. If none does, or several do, the error lists the models; `name` is what
 * the user wrote, for that message. */
MUST_USE err_code model_sets_choose(const struct model_sets *s, const char *what, const char *name,
                                    const struct model_set **out, struct err *e);

#endif
