/* What plans are made of: the facts of a model's files and of this machine, gathered for planner/. */
#ifndef ENGINE_PLANNING_H
#define ENGINE_PLANNING_H

#include "gguf/gguf.h"
#include "model/overrides.h"
#include "planner/plan.h"

/* The context and the batch, in tokens, that plans and sessions have when the user names none. */
enum { PLANNING_CTX = 4096, PLANNING_BATCH = 512 };
/* Rows of logits computed at a time when many are wanted. */
enum { PLANNING_LOGITS_ROWS = 32 };
/* How many tokens a pass may have that counts as small: sampled tokens of some texts, or a draft. Its work space is
 * little beside that of a pass of n_batch tokens. */
int64_t planning_few_tokens(int64_t n_batch);

/* For which run the facts are wanted. */
struct planning_facts_params {
    int64_t n_ctx, n_batch;
    bool mtp;                      /* with multi-token prediction */
    const char *usage;             /* as in moebius_plan_options */
    uint64_t process_bytes;        /* memory of the program with the file's vocabulary; 0: what it has now */
    const char *const *store_dirs; /* [n_store_dirs] of a prepared store; that of another model is refused */
    int n_store_dirs;
    struct model_overrides overrides; /* of planning_facts_read */
};

/* Reads the facts from a model's files. They must be closed with planning_facts_close, even after a failure. */
MUST_USE err_code planning_facts_read(struct plan_facts *f, const char *path, const struct planning_facts_params *p,
                                      struct err *e);
/* The same for a model whose files are open, and whole. `path` is for messages. */
MUST_USE err_code planning_facts_describe(struct plan_facts *f, const struct gguf *g, const char *path,
                                          const struct planning_facts_params *p, struct err *e);
void planning_facts_close(struct plan_facts *f);

/* Fills in this machine's name, threads and memory, which are known without measuring. */
void planning_machine_look(struct machine *m);
/* Reads a machine's facts from a file. NULL: from the cache directory or, if it has none of this machine, as
 * planning_machine_look. */
MUST_USE err_code planning_machine_read(struct machine *m, const char *path, struct err *e);
/* Writes them to a file. NULL: to the cache directory. */
MUST_USE err_code planning_machine_save(const struct machine *m, const char *path, struct err *e);

#endif
