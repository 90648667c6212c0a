/* Fetching a model: from the Hub into its cache, or from another address into a folder of ours. */
#ifndef HUB_PULL_H
#define HUB_PULL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "hub/hub_places.h"
#include "hub/model_name.h"

struct pull_options {
    const struct hub_places *places; /* borrowed */
    int n_retry;                     /* tries without a byte before giving up, less one */
    bool (*goes_on)(void *user);     /* asked often; false ends with ERR_CANCELLED */
    void (*progress)(void *user, uint64_t n_there, uint64_t n_bytes); /* of all files together; often */
    void (*say)(void *user, const char *line);                        /* what a person should know; rare */
    void *user;
};

/* A model that somebody has and we may fetch. */
struct pull;

/* Asks for the name's files; `text` is what the user wrote. ERR_UNSUPPORTED: this build has no libcurl. */
MUST_USE err_code pull_open(struct pull **out, const struct model_name *name, const char *text,
                            const struct pull_options *o, struct err *e);
void pull_close(struct pull **p);

int pull_n_files(const struct pull *p);
uint64_t pull_bytes(const struct pull *p);       /* of all files */
uint64_t pull_there_bytes(const struct pull *p); /* of them, how many are here */
/* A file's name, as it ends the path, and its size. */
const char *pull_file_name(const struct pull *p, int i);
uint64_t pull_file_bytes(const struct pull *p, int i);

/* Fetches a file's first n bytes, as far as they are missing. `path` [HUB_PLACE_BYTES]: where they are. */
MUST_USE err_code pull_beginning(struct pull *p, int i, uint64_t n, char *path, struct err *e);

/* Fetches what is missing, if there is room for it. `path` [HUB_PLACE_BYTES]: of the first file. */
MUST_USE err_code pull_run(struct pull *p, char *path, struct err *e);

/* "libcurl 7.88.1", or that there is none. */
const char *pull_library(void);

#endif
