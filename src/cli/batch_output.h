/* The output of `moebius batch`: a line of JSON for each answer. A regular file is locked and appended to. Requests
 * whose answers are in it from an earlier run count as done; a last line that was only half written, because that run
 * was killed, is cut off. To anything else, such as a pipe, lines are just written. */
#ifndef CLI_BATCH_OUTPUT_H
#define CLI_BATCH_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/output_file.h"

struct batch_output {
    char *path;              /* of the regular file; NULL: the output is none. Owned */
    int fd;                  /* of the regular file */
    int64_t n_bytes;         /* of its complete lines */
    json_t *done;            /* keys of answers, and of failures with their lines, that earlier runs wrote */
    int64_t n_done;          /* the number of these keys */
    struct output_file file; /* any other output */
};

MUST_USE err_code batch_output_open(struct batch_output *o, const char *path, struct err *e);
/* Whether an earlier run has answered the request with this key (batch_request_key); or has failed to answer the
 * request with this key on this line. */
bool batch_output_has_answer(const struct batch_output *o, const char *key);
bool batch_output_has_failure(const struct batch_output *o, const char *key, int64_t line);
/* Appends a line. If that fails, the file ends with its last complete line. */
MUST_USE err_code batch_output_write(struct batch_output *o, const json_t *answer, struct err *e);
/* Makes sure that everything was written, and closes the output even after a failure. */
MUST_USE err_code batch_output_finish(struct batch_output *o, struct err *e);
void batch_output_close(struct batch_output *o); /* accepts one that is zero or finished */

#endif
