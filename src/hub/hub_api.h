/* The Hub's API, whose JSON is not trusted: the commit that a revision of a repository is, and its files. */
#ifndef HUB_HUB_API_H
#define HUB_HUB_API_H

#include "hub/http_client.h"
#include "hub/model_name.h"
#include "hub/model_sets.h"

enum { HUB_COMMIT_BYTES = 41 }; /* 40 hexadecimal digits */

/* Asks which commit the name's revision is, and which models that has. */
MUST_USE err_code hub_api_models(struct http_client *c, const char *endpoint, const struct model_name *name,
                                 char commit[HUB_COMMIT_BYTES], struct model_sets *out, struct err *e);

/* Parse the two answers; `url` is for messages. A model whose path could lead out of its folder, or whose size or
 * checksum is invalid, is an error. */
MUST_USE err_code hub_api_read_commit(const char *text, size_t n, const char *url, char commit[HUB_COMMIT_BYTES],
                                      struct err *e);
MUST_USE err_code hub_api_read_tree(const char *text, size_t n, const char *url, struct model_sets *out, struct err *e);

/* The URL of a file, with special characters of the path escaped; owned by the caller (mem_free). NULL: no memory. */
char *hub_api_file_url(const char *endpoint, const char *repo, const char *commit, const char *path);

#endif
