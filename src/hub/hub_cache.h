/* The Hub's cache of models, in the layout that its own programs have:
 *
 *   models--OWNER--REPO/blobs/DIGEST                 the bytes of files, DIGEST.incomplete while they arrive
 *   models--OWNER--REPO/snapshots/COMMIT/PATH        links to them
 *   models--OWNER--REPO/refs/REVISION                the commit that a revision was
 *   .locks/models--OWNER--REPO/DIGEST.lock           locked while a file is fetched
 *
 * Other programs write it, too, and names in it came from servers: what can't be meant is passed over. Models from
 * other addresses lie in a folder of their own, as HOST/PATH. */
#ifndef HUB_HUB_CACHE_H
#define HUB_HUB_CACHE_H

#include "hub/hub_api.h"
#include "hub/hub_places.h"
#include "hub/model_name.h"
#include "hub/model_sets.h"

/* ---- places of things; paths are char [HUB_PLACE_BYTES]
 * ---------------------------------------------------------------- */

MUST_USE err_code hub_cache_blob(const struct hub_places *p, const char *repo, const char *digest, char *out,
                                 struct err *e);
MUST_USE err_code hub_cache_lock(const struct hub_places *p, const char *repo, const char *digest, char *out,
                                 struct err *e);
MUST_USE err_code hub_cache_link(const struct hub_places *p, const char *repo, const char *commit, const char *path,
                                 char *out, struct err *e);
/* Of a model from another address: where it lies. ERR_USAGE: its path could lead elsewhere, or is no GGUF file's. */
MUST_USE err_code hub_cache_download(const struct hub_places *p, const char *url, char *out, struct err *e);

/* ---- writing --------------------------------------------------------------------------------------------------- */

/* Makes the folders that lead to a file. */
MUST_USE err_code hub_cache_make_folders(const char *path, struct err *e);
/* The link from a snapshot to a file that is there. */
MUST_USE err_code hub_cache_put_link(const struct hub_places *p, const char *repo, const char *commit,
                                     const struct hub_file *f, struct err *e);
/* What the name's revision is. */
MUST_USE err_code hub_cache_put_ref(const struct hub_places *p, const struct model_name *name, const char *commit,
                                    struct err *e);

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* The model's first file, if all of its files are there; "": they are not. An error: the name means several.
 * *by_words: it was found by words of its path alone, and the repository may have one that is meant better. */
MUST_USE err_code hub_cache_find(const struct hub_places *p, const struct model_name *name, const char *text, char *out,
                                 bool *by_words, struct err *e);

/* A model that is there, or a part of one. */
struct cached_model {
    const char *name; /* as the user may write it */
    const char *path; /* of its first file; of a part: what it will be */
    uint64_t n_bytes, n_there;
    int n_parts, n_whole; /* files, and those of them that are whole */
};

struct cached_models {
    struct cached_model *models;
    size_t n;
    struct arena arena; /* owns all of it */
};

/* All of them, by name. */
MUST_USE err_code hub_cache_list(const struct hub_places *p, struct cached_models *out, struct err *e);
void cached_models_close(struct cached_models *m);

/* ---- removing -------------------------------------------------------------------------------------------------- */

/* What the name means, with parts of it: all revisions where it names none. With `really` it is removed; files that
 * another snapshot has, too, stay. *n_models, *n_bytes: how much it is. */
MUST_USE err_code hub_cache_remove(const struct hub_places *p, const struct model_name *name, bool really,
                                   size_t *n_models, uint64_t *n_bytes, struct err *e);

#endif
