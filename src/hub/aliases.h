/* Short names that the user gave to models, in a text file with one line "NAME TARGET" for each. */
#ifndef HUB_ALIASES_H
#define HUB_ALIASES_H

#include <stdbool.h>

#include "base/mem.h"

struct alias {
    const char *name, *target;
};

struct aliases {
    struct alias *list; /* [n], sorted by name */
    size_t n;
    struct arena arena; /* owns all of it */
};

/* If there is no file, there are no aliases. Errors name file and line. */
MUST_USE err_code aliases_read(const char *path, struct aliases *out, struct err *e);
void aliases_close(struct aliases *a);
const char *aliases_find(const struct aliases *a, const char *name); /* the target; NULL: there is none */

/* Sets the target of a name, or removes the name (target NULL); the file is locked meanwhile. ERR_USAGE: the name is
 * not allowed, or the name to be removed does not exist. */
MUST_USE err_code aliases_put(const char *path, const char *name, const char *target, struct err *e);

/* Whether a name is allowed: up to 100 letters, digits, '-', '_', '.' and ':', not beginning with '-' or '.', and no
 * name of a model on the Hub. */
bool alias_is_name(const char *name);

#endif
