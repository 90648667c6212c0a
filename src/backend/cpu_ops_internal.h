/* The CPU device's operations, a function for each kind. */
#ifndef BACKEND_CPU_OPS_INTERNAL_H
#define BACKEND_CPU_OPS_INTERNAL_H

#include "backend/cpu_internal.h"

/* Runs an operation, as backend.h defines its kind. One that finds no scratch ends early (cpu_scratch). */
typedef void cpu_op_fn(struct cpu *c, const struct op *op);

cpu_op_fn cpu_op_embed, cpu_op_rms_norm, cpu_op_rope_table, cpu_op_rope, cpu_op_act_mul, cpu_op_add, cpu_op_scale,
    cpu_op_softcap, cpu_op_clamp, cpu_op_slice, cpu_op_scatter, cpu_op_layer_norm; /* cpu_rows.c */
cpu_op_fn cpu_op_matmul, cpu_op_heads, cpu_op_kv_store, cpu_op_index, cpu_op_attention,
    cpu_op_compress;                                                                     /* cpu_NAME.c */
cpu_op_fn cpu_op_streams_in, cpu_op_streams_out, cpu_op_streams_match, cpu_op_residuals; /* cpu_streams.c */
cpu_op_fn cpu_op_conv, cpu_op_delta;                                                     /* cpu_recurrent.c */
cpu_op_fn cpu_op_route, cpu_op_experts, cpu_op_combine;                                  /* cpu_NAME.c */

#endif
