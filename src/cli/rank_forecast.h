/* What bench says of several ranks: what goes over the links, and how fast the model would be by what these and the
 * ranks were measured to do. Nothing for one process. */
#ifndef CLI_RANK_FORECAST_H
#define CLI_RANK_FORECAST_H

#include <stdio.h>

#include "jobs/bench.h"

/* Lines for people; of the decode phase. */
void rank_forecast_print(const moebius_engine *engine, const struct bench_params *p, const struct bench_result *r,
                         FILE *f);
/* The same as a member of a JSON object, with a comma before it. */
void rank_forecast_print_json(const moebius_engine *engine, const struct bench_params *p, const struct bench_result *r,
                              FILE *f);

#endif
