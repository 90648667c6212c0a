/* The answers of `moebius batch`, a line of JSON each. A plain file is added to and locked meanwhile: what an earlier
 * run has left in it is done, but for the last line if that run was killed while it wrote it, which is cut off. To
 * anything else, such as a pipe, lines are written and nothing is remembered. */
#ifndef CLI_BATCH_OUTPUT_H
#define CLI_BATCH_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/output_file.h"

struct batch_output {
    char *path;              /* of the plain file; NULL: it is none. Owned */
    int fd;                  /* of it */
    int64_t n_bytes;         /* of its whole lines */
    json_t *done;            /* keys of what earlier runs wrote: of an answer, or of a failure and its line */
    int64_t n_done;          /* their number */
    struct output_file file; /* what is no plain file */
};

MUST_USE err_code batch_output_open(struct batch_output *o, const char *path, struct err *e);
/* Whether an earlier run has answered the request with this key (batch_request_key), or has said why it could not
 * answer the one with this key on this line. */
bool batch_output_has_answer(const struct batch_output *o, const char *key);
bool batch_output_has_failure(const struct batch_output *o, const char *key, int64_t line);
/* Adds a line. After a failure to write the file ends with its last whole line. */
MUST_USE err_code batch_output_write(struct batch_output *o, const json_t *answer, struct err *e);
/* Ends the output; what was written must have arrived. Closes in any case. */
MUST_USE err_code batch_output_finish(struct batch_output *o, struct err *e);
void batch_output_close(struct batch_output *o); /* accepts one that is zero or finished */

#endif
