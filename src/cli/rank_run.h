/* Commands under mpirun: several processes share the model's experts. Rank 0 runs the command; the others compute for
 * it, and end when it does. */
#ifndef CLI_RANK_RUN_H
#define CLI_RANK_RUN_H

#include "cli/model_options.h"

/* Connects to the other processes, if there are any. Called once, before the sandbox is entered and threads are
 * started. */
MUST_USE err_code rank_run_begin(struct err *e);
/* Whether this process runs the command, that is, it is rank 0 or alone. */
bool rank_run_is_first(void);
moebius_ranks *rank_run_ranks(void); /* NULL: this process is alone */
/* On other ranks: computes until rank 0 ends, and ends this process. */
void rank_run_serve(const struct model_options *o);
/* Disconnects from the other processes. */
void rank_run_end(void);

#endif
