/* Lets models be named wherever a command takes a model file: "hf:OWNER/REPO:Q4_K_M", a URL, or a name that the user
 * has given (moebius alias). Names are replaced by paths before the command enters its sandbox. A model that is missing
 * is downloaded by a separate process in a sandbox of its own, which can reach only the network and the folders of
 * models.
 */
#ifndef CLI_MODEL_NAMES_H
#define CLI_MODEL_NAMES_H

#include "cli/options.h"
#include "hub/hub.h"

/* Replaces names in the options and operands that are models by paths. If a file has that name, the file is meant. The
 * paths are valid until model_names_end. Must be called before the process starts threads. */
MUST_USE err_code model_names_resolve(const struct command *c, const struct option *options, int n_option, int argc,
                                      char **argv, bool no_sandbox, struct err *e);
void model_names_end(void);

/* Parses a name, after replacing one that the user has given by what it stands for. *meant: the text that was parsed,
 * owned by the caller (mem_free). */
MUST_USE err_code model_names_parse(const struct hub_places *p, const char *text, struct model_name *out, char **meant,
                                    struct err *e);

#endif
