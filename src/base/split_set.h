/* Names of split sets: NAME-00001-of-00003.gguf, NAME-00002-of-00003.gguf and so on are one model. */
#ifndef BASE_SPLIT_SET_H
#define BASE_SPLIT_SET_H

#include <stdbool.h>
#include <stddef.h>

enum { SPLIT_SET_SUFFIX_BYTES = sizeof "-00001-of-00003.gguf" - 1, SPLIT_SET_MAX_PART = 99999 };

struct split_set {
    size_t n_name;    /* bytes before the suffix */
    int part, n_part; /* the part that is named, 1 to n_part */
};

/* Whether the n bytes of `path` name a part of a split set; *out is set in that case alone. */
bool split_set_parse(struct split_set *out, const char *path, size_t n);

/* The suffix of a part, 1 to n_part, of which there are SPLIT_SET_MAX_PART at most. */
void split_set_suffix(char out[SPLIT_SET_SUFFIX_BYTES + 1], int part, int n_part);

#endif
