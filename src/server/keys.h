/* API keys, from the command line and from a file, which can be read again while the server runs. Thread-safe. */
#ifndef SERVER_KEYS_H
#define SERVER_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct keys;

/* The keys are `given` (NULL: none) and the lines of the file at `path` (NULL: none), except blank ones and those that
 * begin with #. Both strings are borrowed. A file without keys is ERR_USAGE, because otherwise everybody would be let
 * in. */
MUST_USE err_code keys_open(struct keys **out, const char *given, const char *path, struct err *e);
void keys_close(struct keys **keys);
/* Reads the file again. After a failure the keys are what they were. */
MUST_USE err_code keys_reload(struct keys *k, struct err *e);

bool keys_are_wanted(struct keys *k); /* whether clients need a key */
/* Whether `key` is one of the keys; *which: its number, from 1 on. The time that this takes reveals nothing about the
 * keys but their lengths. */
bool keys_have(struct keys *k, const char *key, uint64_t *which);

#endif
