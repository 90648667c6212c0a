/* What is wrong with the files that options name, before a command begins with what may take long. An output that is
 * one of the files which the same command reads (the model, one of its parts, a text) would be gone once it is written
 * to; so would the one of two outputs that are the same file. And a folder that is not there is rather mistyped than to
 * be made. */
#ifndef CLI_OUTPUT_CHECK_H
#define CLI_OUTPUT_CHECK_H

#include "cli/options.h"

/* ERR_USAGE where an option names such an output, ERR_IO where its folder is missing. Files are compared, not names:
 * links lead to what they mean. Devices, FIFOs and standard streams may be named as often as somebody likes. */
MUST_USE err_code cli_check_outputs(const struct option *options, int n_option, struct err *e);

/* ERR_IO where a file that is to be read can't be. */
MUST_USE err_code cli_check_inputs(const struct option *options, int n_option, struct err *e);

/* Whether a file that is there is the model, or a part of it. */
bool cli_is_of_model(const char *model, const char *path);

#endif
