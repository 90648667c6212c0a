/* Models by name wherever a command takes a file: "hf:OWNER/REPO:Q4_K_M", an address, or a name that the user gave
 * (moebius alias). Each becomes the path of a file before the command enters its sandbox; what is not here yet is
 * fetched by a process of its own, in a sandbox of its own, which reaches the network and the folders of models alone.
 */
#ifndef CLI_MODEL_NAMES_H
#define CLI_MODEL_NAMES_H

#include "cli/options.h"
#include "hub/hub.h"

/* Puts paths in the place of names among options and operands that are models. A file of that name goes first. Paths
 * are kept until model_names_end. Before the first thread. */
MUST_USE err_code model_names_resolve(const struct command *c, const struct option *options, int n_option, int argc,
                                      char **argv, bool no_sandbox, struct err *e);
void model_names_end(void);

/* What `text` means, through the user's own names: `out`, and the text behind them, owned by the caller (mem_free).
 * `text` itself where it is no such name. */
MUST_USE err_code model_names_parse(const struct hub_places *p, const char *text, struct model_name *out, char **meant,
                                    struct err *e);

#endif
