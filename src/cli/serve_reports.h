/* What `moebius serve` tells of plans and receipts (struct server_reports). */
#ifndef CLI_SERVE_REPORTS_H
#define CLI_SERVE_REPORTS_H

#include "cli/model_options.h"
#include "server/server.h"

struct report_settings {
    const struct model_options *model; /* as engines are opened; borrowed */
    int64_t n_texts;                   /* at once at most */
};

/* A plan of these texts, each as long as --ctx says, beside nothing else in memory; `user` is a report_settings. */
MUST_USE err_code serve_report_plan(void *user, const char *path, json_t **out, struct err *e);
/* The receipts that are kept, an array of what `moebius receipts export` prints. */
MUST_USE err_code serve_report_receipts(void *user, json_t **out, struct err *e);

#endif
