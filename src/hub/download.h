/* One file from a server, whole and verified, or as a part that a later run goes on with.
 *
 * The part is PATH.incomplete: always the file's beginning, as the Hub's own programs leave and continue it, with what
 * is known of its pieces beside it (piece_table.h). Bytes are hashed as they arrive. Where in the end the whole is not
 * what the server states, single pieces are fetched again, and nothing else: first those that the drive holds otherwise
 * than they arrived, then one after the other until the one is found that arrives differently the second time. */
#ifndef HUB_DOWNLOAD_H
#define HUB_DOWNLOAD_H

#include <stdint.h>

#include "hub/http_client.h"

struct download {
    const char *url, *path; /* from, to */
    const char *name;       /* for messages and lists */
    const char *lock;       /* a file to lock meanwhile, as the Hub's own programs do */
    uint64_t n_bytes;
    const char *digest; /* as a hub_file's; NULL: the server states none */
    const char *etag;   /* what the file is known by where there is no checksum; "": nothing */
};

struct download_hooks {
    void (*progress)(void *user, uint64_t n_there, uint64_t n_bytes); /* of this file; often */
    void (*say)(void *user, const char *line);                        /* what a person should know; rare */
    void *user;
};

/* Fetches what is missing of the first n_first bytes (UINT64_MAX: all of them, then the part becomes the file). */
MUST_USE err_code download_run(const struct download *d, uint64_t n_first, struct http_client *c,
                               const struct download_hooks *hooks, struct err *e);

/* What a server says about an address before anything is fetched. ERR_UNSUPPORTED: not how long the file is. */
MUST_USE err_code download_probe(struct http_client *c, const char *url, uint64_t *n_bytes, char etag[130],
                                 struct err *e);

#endif
