/* Short names that the user gave to models: a text file with a line "NAME TARGET" for each. */
#ifndef HUB_ALIASES_H
#define HUB_ALIASES_H

#include <stdbool.h>

#include "base/mem.h"

struct alias {
    const char *name, *target;
};

struct aliases {
    struct alias *list; /* [n], by name */
    size_t n;
    struct arena arena; /* owns all of it */
};

/* No file is no aliases. Errors name file and line. */
MUST_USE err_code aliases_read(const char *path, struct aliases *out, struct err *e);
void aliases_close(struct aliases *a);
const char *aliases_find(const struct aliases *a, const char *name); /* the target; NULL: there is none */

/* Gives a name to a target, or takes it away (target NULL), with the file locked meanwhile. ERR_USAGE: no name that may
 * be given, or none that there is. */
MUST_USE err_code aliases_put(const char *path, const char *name, const char *target, struct err *e);

/* Letters, digits, '-', '_', '.' and ':', up to 100; it doesn't begin with '-' or '.', and is no name of the Hub. */
bool alias_is_name(const char *name);

#endif
