/* Commands that mpirun started several times: the processes share the model's experts. The first, rank 0, runs the
 * command; the others compute for it and end when it does. */
#ifndef CLI_RANK_RUN_H
#define CLI_RANK_RUN_H

#include "cli/model_options.h"

/* Meets the others, if there are some; once. Before the sandbox and the first thread. */
MUST_USE err_code rank_run_begin(struct err *e);
/* Whether this process runs the command; true for one that is alone. */
bool rank_run_is_first(void);
moebius_ranks *rank_run_ranks(void); /* NULL: this process is alone */
/* On other ranks: computes until rank 0 ends, and ends this process. */
void rank_run_serve(const struct model_options *o);
/* Says goodbye to the others. */
void rank_run_end(void);

#endif
