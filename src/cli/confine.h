/* The sandbox (base/sandbox.h) that commands enter as soon as they know what they are to do. A command may reach what
 * its options and operands name, and what the program needs of the system:
 *
 *   reads   a model with its other parts and checksums, stores, inputs; where all models by name are served, their
 *           folders; /proc, /sys, the system's libraries and time zones, the settings of the terminal
 *   writes  the folders of its outputs, with all below them; if it runs a model, the folder that keeps files from run
 *           to run (engine/cache_file.h)
 *   network commands that fetch models alone, which reach nothing but the folders of models (hub/hub_places.h)
 *
 * What a command reaches is told by the kinds of its options (cli/options.h), so that an option that names a file
 * works as soon as it has the right kind. --no-sandbox does without all of it. */
#ifndef CLI_CONFINE_H
#define CLI_CONFINE_H

#include "cli/options.h"

/* A row for the tables of commands that open files. */
#define SANDBOX_OPTION(no_sandbox)                                                                                     \
    {                                                                                                                  \
        "--no-sandbox", OPT_FLAG, &(no_sandbox), "",                                                                   \
            "run without the sandbox (which allows only the files that options name)", 0, 0, 0, GROUP_CHECKS           \
    }

/* options_parse, and the sandbox for what it found. */
MUST_USE err_code cli_begin(const struct command *c, const struct option *options, int n_option, int *argc, char **argv,
                            struct err *e);

/* The sandbox of a process that does this with models and nothing else. */
MUST_USE err_code cli_confine_hub(enum hub_use use, bool no_sandbox, struct err *e);

/* Puts paths in the place of models' names (model_names_resolve); what is wrong with other files is said before a model
 * is fetched. */
MUST_USE err_code cli_find_models(const struct command *c, const struct option *options, int n_option, int argc,
                                  char **argv, struct err *e);

/* The second half of it alone. `output`: one more file or folder that may be written; NULL: none. */
MUST_USE err_code cli_confine(const struct command *c, const struct option *options, int n_option, int argc,
                              char **argv, const char *output, struct err *e);

#endif
