/* Names by which a user can call a model: a file, a repository of the Hub, or a URL.
 *
 *   hf:OWNER/REPO[@REVISION][:WHAT]   WHAT is a quantisation such as Q4_K_M, or a file of the repository; hf.co/ and
 *                                     huggingface.co/ mean the same as hf:
 *   https://HOST/PATH/FILE.gguf       an address; one of the Hub's own files means the same as hf:
 *
 * Everything else is a file. Names are written by the user, but become parts of paths and URLs: a name that could lead
 * out of a folder is refused. */
#ifndef HUB_MODEL_NAME_H
#define HUB_MODEL_NAME_H

#include <stdbool.h>

#include "base/err.h"

enum { HUB_PLACE_BYTES = 4096 }; /* most bytes of a path on this machine, with its NUL */
enum { HUB_REPO_BYTES = 200, HUB_REVISION_BYTES = 200, HUB_PATH_BYTES = 1024, HUB_URL_BYTES = 4096 };

enum model_name_kind { MODEL_NAME_FILE, MODEL_NAME_HUB, MODEL_NAME_URL };

struct model_name {
    enum model_name_kind kind;
    char repo[HUB_REPO_BYTES];         /* HUB: "OWNER/REPO" */
    char revision[HUB_REVISION_BYTES]; /* HUB: "main" if none was given */
    char what[HUB_PATH_BYTES];         /* HUB: "" if none was given */
    char url[HUB_URL_BYTES];           /* URL: without a fragment */
};

/* `endpoint`: the Hub's address, without a slash at its end. */
MUST_USE err_code model_name_parse(struct model_name *out, const char *text, const char *endpoint, struct err *e);

/* Whether model_name_parse would take a text for something other than a file. */
bool model_name_is_remote(const char *text);

/* Whether a relative path from an untrusted source stays within its folder: its parts are neither empty nor "." nor
 * "..", printable, without backslashes and of at most 255 bytes, and it has less than HUB_PATH_BYTES. */
bool hub_path_is_safe(const char *path);

/* Whether the text is n lower-case hexadecimal digits. */
bool hub_is_hex(const char *text, size_t n);

#endif
