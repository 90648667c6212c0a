/* Downloads models: from the Hub into its cache, or from another address into a folder of our own. */
#ifndef HUB_PULL_H
#define HUB_PULL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "hub/hub_places.h"
#include "hub/model_name.h"

struct pull_options {
    const struct hub_places *places; /* borrowed */
    int n_retry;                     /* further tries after one that brought no byte, before giving up */
    bool (*goes_on)(void *user);     /* called often; false ends with ERR_CANCELLED */
    void (*progress)(void *user, uint64_t n_there, uint64_t n_bytes); /* of all files together; called often */
    void (*say)(void *user, const char *line);                        /* a line for the user; called rarely */
    void *user;
};

/* A model that can be downloaded. */
struct pull;

/* Asks the server for the files of a model; `text` is what the user wrote. ERR_UNSUPPORTED: this build has no libcurl.
 */
MUST_USE err_code pull_open(struct pull **out, const struct model_name *name, const char *text,
                            const struct pull_options *o, struct err *e);
void pull_close(struct pull **p);

int pull_n_files(const struct pull *p);
uint64_t pull_bytes(const struct pull *p);       /* size of all files */
uint64_t pull_there_bytes(const struct pull *p); /* how many of these bytes are here already */
/* The last part of a file's path, and its size. */
const char *pull_file_name(const struct pull *p, int i);
uint64_t pull_file_bytes(const struct pull *p, int i);

/* Downloads what is missing of a file's first n bytes. `path` [HUB_PLACE_BYTES]: set to the file that has them. */
MUST_USE err_code pull_beginning(struct pull *p, int i, uint64_t n, char *path, struct err *e);

/* Downloads all that is missing, if there is room for it. `path` [HUB_PLACE_BYTES]: set to the path of the first file.
 */
MUST_USE err_code pull_run(struct pull *p, char *path, struct err *e);

/* "libcurl 7.88.1", or a text that says there is none. */
const char *pull_library(void);

#endif
