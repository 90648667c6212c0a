/* Statistics of the places that compute routed experts, for --stats and --stats-json: in total, by layer, and by token.
 * A place that does not answer is shown with its error. */
#ifndef CLI_PLACE_STATS_H
#define CLI_PLACE_STATS_H

#include <jansson.h>
#include <stdio.h>

#include "base/err.h"
#include "moebius/moebius.h"

/* Prints a line for each place if there are several. */
void place_stats_print(const moebius_engine *engine, FILE *f);

/* A new array with an object for each place; NULL: no memory. */
json_t *place_stats_json(const moebius_engine *engine);

/* What each place did in each layer since the last print. Must be closed even after a failure. */
struct layer_stats {
    const moebius_engine *engine; /* borrowed */
    int n_place, n_layer;
    moebius_place_stats *before; /* [n_place][n_layer], owned */
};
MUST_USE err_code layer_stats_open(struct layer_stats *s, const moebius_engine *engine, struct err *e);
void layer_stats_close(struct layer_stats *s);
/* Prints `what` as a heading, then a line for each layer. */
void layer_stats_print(struct layer_stats *s, const char *what, FILE *f);

#endif
