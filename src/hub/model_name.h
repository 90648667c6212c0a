/* What a user may name a model by: a file, a repository of the Hub, or an address.
 *
 *   hf:OWNER/REPO[@REVISION][:WHAT]   WHAT is a quantisation such as Q4_K_M, or a file of the repository; hf.co/ and
 *                                     huggingface.co/ mean the same as hf:
 *   https://HOST/PATH/FILE.gguf       an address; one of the Hub's own files means the same as hf:
 *
 * Everything else is a file. Names are the user's own, but end up in paths and addresses: what could lead out of a
 * folder is refused. */
#ifndef HUB_MODEL_NAME_H
#define HUB_MODEL_NAME_H

#include <stdbool.h>

#include "base/err.h"

enum { HUB_PLACE_BYTES = 4096 }; /* of a path on this machine */
enum { HUB_REPO_BYTES = 200, HUB_REVISION_BYTES = 200, HUB_PATH_BYTES = 1024, HUB_URL_BYTES = 4096 };

enum model_name_kind { MODEL_NAME_FILE, MODEL_NAME_HUB, MODEL_NAME_URL };

struct model_name {
    enum model_name_kind kind;
    char repo[HUB_REPO_BYTES];         /* "OWNER/REPO"; HUB alone, as the next two */
    char revision[HUB_REVISION_BYTES]; /* "main" where none was given */
    char what[HUB_PATH_BYTES];         /* "": none was given */
    char url[HUB_URL_BYTES];           /* URL alone, without a fragment */
};

/* `endpoint`: the Hub's address, without a slash at its end. */
MUST_USE err_code model_name_parse(struct model_name *out, const char *text, const char *endpoint, struct err *e);

/* Whether a text is no file but a name that model_name_parse knows. */
bool model_name_is_remote(const char *text);

/* Whether a path that somebody else wrote stays within the folder that it is put to: parts that are neither empty nor
 * "." nor "..", printable, without backslashes, of at most 255 bytes, less than HUB_PATH_BYTES in all. */
bool hub_path_is_safe(const char *path);

/* Whether n bytes are hexadecimal digits in lower case. */
bool hub_is_hex(const char *text, size_t n);

#endif
