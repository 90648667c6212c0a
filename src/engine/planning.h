/* What plans are made of: the facts of a model's files and of this machine, gathered for planner/. */
#ifndef ENGINE_PLANNING_H
#define ENGINE_PLANNING_H

#include "gguf/gguf.h"
#include "planner/plan.h"

/* What is asked of the facts. */
struct planning_facts_params {
    int64_t n_ctx, n_batch;
    const char *usage; /* as in moebius_plan_options */
};

/* Fills facts, whose arrays are to be freed by planning_facts_close, after a failure, too. */
MUST_USE err_code planning_facts_read(struct plan_facts *f, const char *path, const struct planning_facts_params *p,
                                      struct err *e);
void planning_facts_close(struct plan_facts *f);

/* This machine's threads and memory: what is known without measuring. */
void planning_machine_look(struct machine *m);
/* From a file; NULL: what was kept of this machine in the cache directory, or else planning_machine_look. */
MUST_USE err_code planning_machine_read(struct machine *m, const char *path, struct err *e);
/* To a file; NULL: to the cache directory. */
MUST_USE err_code planning_machine_save(const struct machine *m, const char *path, struct err *e);

#endif
