/* The concentration gate's measurements (planner/gate.h), from a text's routing. */
#ifndef JOBS_GATE_RUN_H
#define JOBS_GATE_RUN_H

#include "experts/trace.h"
#include "experts/usage.h"
#include "planner/gate.h"

struct gate_job {
    const struct trace *trace;
    const struct usage *usage; /* of the trace */
    uint64_t fingerprint;      /* of the model */
    enum policy_kind policy;   /* in use */
    double share;              /* for which is decided: a point of the curve of its own */
    const struct machine *machine;
    int n_first_thread, n_other_thread; /* as gate_costs takes them */
};

/* Measures and decides. ERR_LIMIT: the share is less than a layer's top-k experts. */
MUST_USE err_code gate_run(const struct gate_job *job, struct gate_curve *curve, struct gate *out, struct err *e);

#endif
