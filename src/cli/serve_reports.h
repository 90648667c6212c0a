/* The reports of `moebius serve` about plans and receipts (struct server_reports). */
#ifndef CLI_SERVE_REPORTS_H
#define CLI_SERVE_REPORTS_H

#include "cli/model_options.h"
#include "server/server.h"

struct report_settings {
    const struct model_options *model; /* with which engines are opened; borrowed */
    int64_t n_texts;                   /* the most texts at once */
};

/* The plan for so many texts of --ctx tokens each, if nothing else used memory. user: a struct report_settings. */
MUST_USE err_code serve_report_plan(void *user, const char *path, json_t **out, struct err *e);
/* The kept receipts: an array of the objects that `moebius receipts export` prints. */
MUST_USE err_code serve_report_receipts(void *user, json_t **out, struct err *e);

#endif
