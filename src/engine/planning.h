/* What plans are made of: the facts of a model's files and of this machine, gathered for planner/. */
#ifndef ENGINE_PLANNING_H
#define ENGINE_PLANNING_H

#include "gguf/gguf.h"
#include "planner/plan.h"

/* Tokens of a text, and prompt tokens computed together, where nothing is said, as sessions have them. */
enum { PLANNING_CTX = 4096, PLANNING_BATCH = 512 };
/* Rows of logits computed at a time when many are wanted. */
enum { PLANNING_LOGITS_ROWS = 32 };
/* Tokens of a pass that takes little memory beside one of n_batch: those of texts that decode, or of a draft. */
int64_t planning_few_tokens(int64_t n_batch);

/* What is asked of the facts. */
struct planning_facts_params {
    int64_t n_ctx, n_batch;
    bool mtp;                      /* with multi-token prediction */
    const char *usage;             /* as in moebius_plan_options */
    uint64_t process_bytes;        /* of the program with the file's vocabulary; 0: as it is now */
    const char *const *store_dirs; /* of a prepared store, [n_store_dirs]: refused where it is none of the model */
    int n_store_dirs;
};

/* Fills facts, whose arrays are to be freed by planning_facts_close, after a failure, too. */
MUST_USE err_code planning_facts_read(struct plan_facts *f, const char *path, const struct planning_facts_params *p,
                                      struct err *e);
/* The same of a model whose description was read: whole files, which messages call `path`. */
MUST_USE err_code planning_facts_describe(struct plan_facts *f, const struct gguf *g, const char *path,
                                          const struct planning_facts_params *p, struct err *e);
void planning_facts_close(struct plan_facts *f);

/* This machine's threads and memory: what is known without measuring. */
void planning_machine_look(struct machine *m);
/* From a file; NULL: what was kept of this machine in the cache directory, or else planning_machine_look. */
MUST_USE err_code planning_machine_read(struct machine *m, const char *path, struct err *e);
/* To a file; NULL: to the cache directory. */
MUST_USE err_code planning_machine_save(const struct machine *m, const char *path, struct err *e);

#endif
