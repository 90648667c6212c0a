/* Downloads one file: whole and verified, or a part of it that a later run continues.
 *
 * The part is PATH.incomplete. It is always a beginning of the file, as the Hub's own programs write and continue it; a
 * table of checksums of its pieces lies beside it (piece_table.h). Bytes are hashed as they arrive. If the checksum of
 * the whole is not the one that the server states, single pieces are fetched again: first those that have changed on
 * the drive since they arrived, then one after the other until one arrives differently the second time. */
#ifndef HUB_DOWNLOAD_H
#define HUB_DOWNLOAD_H

#include <stdint.h>

#include "hub/http_client.h"

struct download {
    const char *url, *path; /* source and destination */
    const char *name;       /* for messages and lists */
    const char *lock;       /* file that is locked during the download, as the Hub's own programs do */
    uint64_t n_bytes;
    const char *digest; /* as in struct hub_file; NULL: the server states none */
    const char *etag;   /* identifies the file's version where there is no digest; "": nothing does */
};

struct download_hooks {
    void (*progress)(void *user, uint64_t n_there, uint64_t n_bytes); /* of this file; called often */
    void (*say)(void *user, const char *line);                        /* a line for the user; called rarely */
    void *user;
};

/* Downloads what is missing of the first n_first bytes. UINT64_MAX: all bytes, after which the verified part is renamed
 * to the file. */
MUST_USE err_code download_run(const struct download *d, uint64_t n_first, struct http_client *c,
                               const struct download_hooks *hooks, struct err *e);

/* Asks a server for the size and ETag of a URL without downloading it. ERR_UNSUPPORTED: it does not say the size. */
MUST_USE err_code download_probe(struct http_client *c, const char *url, uint64_t *n_bytes, char etag[130],
                                 struct err *e);

#endif
