/* The cache of models, in the layout of the Hub's own programs:
 *
 *   models--OWNER--REPO/blobs/DIGEST                 the bytes of files, DIGEST.incomplete while they arrive
 *   models--OWNER--REPO/snapshots/COMMIT/PATH        links to them
 *   models--OWNER--REPO/refs/REVISION                the commit that a revision was when it was last asked for
 *   .locks/models--OWNER--REPO/DIGEST.lock           locked while a file is downloaded
 *
 * Other programs write to the cache, too, and names in it come from servers: invalid ones are skipped. Models from
 * other addresses than the Hub are kept in a folder of their own, as HOST/PATH. */
#ifndef HUB_HUB_CACHE_H
#define HUB_HUB_CACHE_H

#include "hub/hub_api.h"
#include "hub/hub_places.h"
#include "hub/model_name.h"
#include "hub/model_sets.h"

/* ---- paths; `out` is char [HUB_PLACE_BYTES] --------------------------------------------------------------------- */

MUST_USE err_code hub_cache_blob(const struct hub_places *p, const char *repo, const char *digest, char *out,
                                 struct err *e);
MUST_USE err_code hub_cache_lock(const struct hub_places *p, const char *repo, const char *digest, char *out,
                                 struct err *e);
MUST_USE err_code hub_cache_link(const struct hub_places *p, const char *repo, const char *commit, const char *path,
                                 char *out, struct err *e);
/* Where a model from another address is kept. ERR_USAGE: the path in the URL could lead out of the folder, or is not
 * that of a GGUF file. */
MUST_USE err_code hub_cache_download(const struct hub_places *p, const char *url, char *out, struct err *e);

/* ---- writing --------------------------------------------------------------------------------------------------- */

/* Creates the folders of a file's path. */
MUST_USE err_code hub_cache_make_folders(const char *path, struct err *e);
/* Creates the link from a snapshot to a file that is in the cache. */
MUST_USE err_code hub_cache_put_link(const struct hub_places *p, const char *repo, const char *commit,
                                     const struct hub_file *f, struct err *e);
/* Writes down which commit the name's revision is. */
MUST_USE err_code hub_cache_put_ref(const struct hub_places *p, const struct model_name *name, const char *commit,
                                    struct err *e);

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* The path of the model's first file, if all of its files are there; "": they are not. It is an error if the name
 * matches several models. *by_words: the name matched only words of the path, and the repository may have a better
 * match. */
MUST_USE err_code hub_cache_find(const struct hub_places *p, const struct model_name *name, const char *text, char *out,
                                 bool *by_words, struct err *e);

/* A model in the cache, whole or in part. */
struct cached_model {
    const char *name;          /* a name by which the user can call it */
    const char *path;          /* of its first file, or the path that this file will have */
    uint64_t n_bytes, n_there; /* bytes of all files, and how many of them are there */
    int n_parts, n_whole;      /* files, and how many of them are whole */
};

struct cached_models {
    struct cached_model *models;
    size_t n;
    struct arena arena; /* owns all of it */
};

/* Lists all models, sorted by name. */
MUST_USE err_code hub_cache_list(const struct hub_places *p, struct cached_models *out, struct err *e);
void cached_models_close(struct cached_models *m);

/* ---- removing -------------------------------------------------------------------------------------------------- */

/* Finds all models that the name matches, whole or in part, and counts them in *n_models and *n_bytes; in all revisions
 * if it names none. With `really` they are removed, but not files that another snapshot has, too. */
MUST_USE err_code hub_cache_remove(const struct hub_places *p, const struct model_name *name, bool really,
                                   size_t *n_models, uint64_t *n_bytes, struct err *e);

#endif
