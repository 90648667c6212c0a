/* The keys that clients must know, from the command line and from a file that can be read again while the server runs.
 * Thread-safe. */
#ifndef SERVER_KEYS_H
#define SERVER_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct keys;

/* `given` (NULL: none) and the lines of the file at `path` (NULL: none), of which blank ones and those that begin with
 * # count for nothing. Both are borrowed. ERR_USAGE where a file has no key: else everybody would be let in. */
MUST_USE err_code keys_open(struct keys **out, const char *given, const char *path, struct err *e);
void keys_close(struct keys **keys);
/* Reads the file again. After a failure the keys are what they were. */
MUST_USE err_code keys_reload(struct keys *k, struct err *e);

bool keys_are_wanted(struct keys *k);
/* Whether `key` is one of them, and which (from 1 on), in a time that tells nothing about them but their lengths. */
bool keys_have(struct keys *k, const char *key, uint64_t *which);

#endif
