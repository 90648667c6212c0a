/* Shows the download of a model: messages, and on a terminal how much is done, the speed, and the time left. */
#ifndef CLI_PULL_VIEW_H
#define CLI_PULL_VIEW_H

#include "hub/hub.h"

enum { PULL_RETRIES = 8 };

struct pull_view {
    bool is_terminal;
    int64_t shown_ns; /* when progress was last shown */
    uint64_t n_shown; /* bytes downloaded at that time */
    double rate;      /* recent bytes a second; 0: not known */
};

/* Catches interrupts until pull_view_end, which clears the line of progress. */
struct pull_options pull_view_begin(struct pull_view *v, const struct hub_places *p, int n_retry);
void pull_view_end(void);

#endif
