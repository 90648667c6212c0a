/* File names of models that are split into several files: NAME-00001-of-00003.gguf, NAME-00002-of-00003.gguf and so
 * on. */
#ifndef BASE_SPLIT_SET_H
#define BASE_SPLIT_SET_H

#include <stdbool.h>
#include <stddef.h>

enum { SPLIT_SET_SUFFIX_BYTES = sizeof "-00001-of-00003.gguf" - 1, SPLIT_SET_MAX_PART = 99999 };

struct split_set {
    size_t n_name;    /* bytes before the suffix */
    int part, n_part; /* which part of how many the file is, counted from 1 */
};

/* Whether the n bytes of `path` name a part of a split set. *out is set only if they do. */
bool split_set_parse(struct split_set *out, const char *path, size_t n);

/* Writes the suffix of a part, 1 <= part <= n_part <= SPLIT_SET_MAX_PART. */
void split_set_suffix(char out[SPLIT_SET_SUFFIX_BYTES + 1], int part, int n_part);

#endif
