/* What is in a GGUF file, for people and for programs: metadata, tensor types, and the facts of its experts
 * (gguf/gguf_facts.h). Tensor bytes are read only when one tensor is asked about. */
#ifndef JOBS_INSPECT_H
#define JOBS_INSPECT_H

#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"

/* Prints the model at `path` (any part of a split set) to `out`, as text or as one JSON object. With
 * `tensor_name` (else NULL) only that tensor: its shape, first values and statistics. Strings are printable in the text
 * (base/printable.h); in JSON, U+FFFD stands for what is not UTF-8. */
MUST_USE err_code inspect_print(FILE *out, const char *path, bool json, const char *tensor_name, struct err *e);

#endif
