/* Checks the files that options name before a command begins work that may take long. An output must not be a file that
 * the command reads (the model, one of its parts, a text), which would be overwritten, and two outputs must not be the
 * same file. An output's folder must exist: a missing one is probably mistyped. */
#ifndef CLI_OUTPUT_CHECK_H
#define CLI_OUTPUT_CHECK_H

#include "cli/options.h"

/* ERR_USAGE: an output is such a file; ERR_IO: its folder is missing. Compares files rather than names, so links are
 * followed. Devices, FIFOs and standard streams may be named several times. */
MUST_USE err_code cli_check_outputs(const struct option *options, int n_option, struct err *e);

/* ERR_IO: an input can't be read. */
MUST_USE err_code cli_check_inputs(const struct option *options, int n_option, struct err *e);

/* Whether an existing file is the model or one of its parts. */
bool cli_is_of_model(const char *model, const char *path);

#endif
