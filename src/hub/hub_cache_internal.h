/* What the files of the cache share. */
#ifndef HUB_HUB_CACHE_INTERNAL_H
#define HUB_HUB_CACHE_INTERNAL_H

#include "hub/hub_cache.h"

/* Writes the path CACHE/models--OWNER--REPO/BELOW into out [HUB_PLACE_BYTES]. */
MUST_USE err_code hub_cache_repo(const struct hub_places *p, const char *repo, const char *below, char *out,
                                 struct err *e);
/* "OWNER/REPO" from a folder's name; false: it is not the folder of a model. */
bool hub_cache_repo_name(const char *folder, char out[HUB_REPO_BYTES]);
/* Finds the models in a snapshot's folder; files that are not whole are skipped. */
MUST_USE err_code hub_cache_snapshot(const char *folder, struct model_sets *out, struct err *e);
/* The commit of a revision; "": not known. */
void hub_cache_commit(const struct hub_places *p, const char *repo, const char *revision, char out[HUB_COMMIT_BYTES]);
/* Writes the name of the file that a snapshot's link points to into out [HUB_PLACE_BYTES]; "": it is no such link. */
void hub_cache_blob_of(const char *link, char *out);

#endif
