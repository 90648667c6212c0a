/* Within the room: what is in a snapshot. */
#ifndef HUB_HUB_CACHE_INTERNAL_H
#define HUB_HUB_CACHE_INTERNAL_H

#include "hub/hub_cache.h"

/* CACHE/models--OWNER--REPO and what follows, into char [HUB_PLACE_BYTES]. */
MUST_USE err_code hub_cache_repo(const struct hub_places *p, const char *repo, const char *below, char *out,
                                 struct err *e);
/* "OWNER/REPO" of a folder's name; false: it is none of a model. */
bool hub_cache_repo_name(const char *folder, char out[HUB_REPO_BYTES]);
/* The models in a snapshot's folder; files that are not whole are left out. */
MUST_USE err_code hub_cache_snapshot(const char *folder, struct model_sets *out, struct err *e);
/* The commit of a revision, "" where none is known. */
void hub_cache_commit(const struct hub_places *p, const char *repo, const char *revision, char out[HUB_COMMIT_BYTES]);
/* The name of the file that a snapshot's link leads to, into char [HUB_PLACE_BYTES]; "": it is no such link. */
void hub_cache_blob_of(const char *link, char *out);

#endif
