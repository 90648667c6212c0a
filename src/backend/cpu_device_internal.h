/* The functions in the CPU device's table (vtable.h) that are not in cpu_device.c. */
#ifndef BACKEND_CPU_DEVICE_INTERNAL_H
#define BACKEND_CPU_DEVICE_INTERNAL_H

#include "backend/cpu_internal.h"

/* cpu_weights.c */
MUST_USE err_code cpu_weight_load(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                                  struct weight **out, struct err *e);
void cpu_weight_close(struct backend *b, struct weight *w);
size_t cpu_weight_bytes(struct backend *b, const struct weight_desc *d);
struct weight_shape cpu_weight_shape(struct backend *b, const struct weight *w);

/* cpu_slots.c */
MUST_USE err_code cpu_slot_pool_create(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out,
                                       struct err *e);
void cpu_slot_pool_close(struct backend *b, struct slot_pool *slot_pool);
struct slot_pool_desc cpu_slot_pool_shape(struct backend *b, const struct slot_pool *slot_pool);
size_t cpu_slot_pool_slot_bytes(struct backend *b, const struct slot_pool_desc *d);
bool cpu_slot_pool_image(struct backend *b, const struct slot_pool_desc *d, struct layout_image *out);
bool cpu_slot_open(struct backend *b, struct slot_pool *slot_pool, int64_t slot);
void cpu_slot_touch(struct backend *b, struct slot_pool *slot_pool, int64_t slot);
void cpu_slot_close(struct backend *b, struct slot_pool *slot_pool, int64_t slot);
void *cpu_slot_room(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                    bool is_packed);
void cpu_slot_adopt(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                    const void *bytes, bool is_packed);
const void *cpu_slot_bytes(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                           bool *is_packed);
MUST_USE err_code cpu_slot_fill(struct backend *b, struct slot_pool *slot_pool, int64_t slot,
                                const struct slot_rows *rows, struct err *e);

/* cpu_ops.c */
void cpu_enqueue(struct backend *b, const struct op *op);
bool cpu_supports(struct backend *b, const struct op *op, const struct op_shapes *s);

#endif
