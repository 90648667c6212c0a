/* The sandbox (base/sandbox.h) that a command enters as soon as it has parsed its options. Inside, it may reach only
 * what its options and operands name, and what the program needs of the system:
 *
 *   reads   the model with all its parts and checksums, stores, inputs; the folders of models, if it serves all models
 *           that have names; /proc, /sys, the system's libraries and time zones, the settings of the terminal
 *   writes  the folders of its outputs, and everything below them; if it runs a model, the folder of files that are
 * kept from run to run (engine/cache_file.h) network only commands that fetch models have it; these reach no files but
 * the folders of models (hub/hub_places.h)
 *
 * The kinds of a command's options (cli/options.h) determine what it may reach, so an option that names a file works if
 * it has the right kind. --no-sandbox turns all of this off. */
#ifndef CLI_CONFINE_H
#define CLI_CONFINE_H

#include "cli/options.h"

/* A row for the tables of commands that open files. */
#define SANDBOX_OPTION(no_sandbox)                                                                                     \
    {                                                                                                                  \
        "--no-sandbox", OPT_FLAG, &(no_sandbox), "",                                                                   \
            "run without the sandbox (which allows only the files that options name)", 0, 0, 0, GROUP_CHECKS           \
    }

/* Parses the options (options_parse), finds named models, and enters the sandbox. */
MUST_USE err_code cli_begin(const struct command *c, const struct option *options, int n_option, int *argc, char **argv,
                            struct err *e);

/* Enters the sandbox of a process that only does this with models. */
MUST_USE err_code cli_confine_hub(enum hub_use use, bool no_sandbox, struct err *e);

/* Replaces the names of models by their paths (model_names_resolve). Errors about other files are reported before a
 * model is fetched. */
MUST_USE err_code cli_find_models(const struct command *c, const struct option *options, int n_option, int argc,
                                  char **argv, struct err *e);

/* Enters the sandbox for options that were parsed. output: one more file or folder that may be written; NULL: none. */
MUST_USE err_code cli_confine(const struct command *c, const struct option *options, int n_option, int argc,
                              char **argv, const char *output, struct err *e);

#endif
