/* The chat template that options name, and the variables that they give it. */
#ifndef CLI_TEMPLATE_OPTIONS_H
#define CLI_TEMPLATE_OPTIONS_H

#include "cli/options.h"
#include "moebius/moebius.h"

/* Opens the template in a file, or else (file NULL) the model's own, from `vocab`. `model` is the model's path, for
 * messages. */
MUST_USE err_code cli_open_template(const char *file, const char *model, const moebius_vocab *vocab,
                                    moebius_template **out, struct err *e);

/* --var NAME=JSON, as often as given: the names are copied. */
struct cli_vars {
    moebius_template_var vars[OPTION_LIST_MAX];
    char names[OPTION_LIST_MAX][64];
    size_t n;
};
MUST_USE err_code cli_parse_vars(const struct option_list *list, struct cli_vars *out, struct err *e);

#endif
