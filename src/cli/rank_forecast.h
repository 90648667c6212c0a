/* What bench reports about several ranks: the traffic on the links, and how fast the model should be by the measured
 * speed of links and ranks. Prints nothing for a single process. */
#ifndef CLI_RANK_FORECAST_H
#define CLI_RANK_FORECAST_H

#include <stdio.h>

#include "jobs/bench.h"

/* Prints the report of the decode phase as text. */
void rank_forecast_print(const moebius_engine *engine, const struct bench_params *p, const struct bench_result *r,
                         FILE *f);
/* Prints it as a member of a JSON object, with a comma before it. */
void rank_forecast_print_json(const moebius_engine *engine, const struct bench_params *p, const struct bench_result *r,
                              FILE *f);

#endif
