/* What a person sees of a model that is being fetched: lines, and on a terminal how far it is, how fast, and how long
 * it will take. */
#ifndef CLI_PULL_VIEW_H
#define CLI_PULL_VIEW_H

#include "hub/hub.h"

enum { PULL_RETRIES = 8 };

struct pull_view {
    bool is_terminal;
    int64_t shown_ns;
    uint64_t n_shown; /* bytes that were there then */
    double rate;      /* bytes a second, lately; 0: not known */
};

/* Catches interrupts until pull_view_end, which clears the line of progress. */
struct pull_options pull_view_begin(struct pull_view *v, const struct hub_places *p, int n_retry);
void pull_view_end(void);

#endif
