#include "base/split_set.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { N_DIGIT = 5 };

/* Five digits; -1: they are none. */
static int read_digits(const char *s)
{
    int n = 0;
    for (int i = 0; i < N_DIGIT; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        n = 10 * n + (s[i] - '0');
    }
    return n;
}

bool split_set_parse(struct split_set *out, const char *path, size_t n)
{
    static const char of[] = "-of-", end[] = ".gguf";
    if (n < SPLIT_SET_SUFFIX_BYTES)
        return false;
    const char *part = path + n - SPLIT_SET_SUFFIX_BYTES + 1, *n_part = part + N_DIGIT + (sizeof of - 1);
    struct split_set s = {n - SPLIT_SET_SUFFIX_BYTES, read_digits(part), read_digits(n_part)};
    if (part[-1] != '-' || memcmp(part + N_DIGIT, of, sizeof of - 1) != 0 ||
        memcmp(n_part + N_DIGIT, end, sizeof end - 1) != 0 || s.part < 1 || s.part > s.n_part)
        return false;
    *out = s;
    return true;
}

void split_set_suffix(char out[SPLIT_SET_SUFFIX_BYTES + 1], int part, int n_part)
{
    assert(part >= 1 && part <= n_part && n_part <= SPLIT_SET_MAX_PART);
    snprintf(out, SPLIT_SET_SUFFIX_BYTES + 1, "-%05u-of-%05u.gguf", (unsigned)part % 100000, (unsigned)n_part % 100000);
}
