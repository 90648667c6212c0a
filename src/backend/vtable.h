/* What a device implements. Only devices include this. */
#ifndef BACKEND_VTABLE_H
#define BACKEND_VTABLE_H

#include "backend/backend.h"

/* A matrix of weights on any device. */
struct weight_shape {
    const struct quant_info *type;
    int64_t k, n_row;     /* elements of a row, and rows */
    const char *observed; /* the tensor's name for observers; NULL: it is not to be observed */
};

/* The shapes of an operation's weights and slot pool; zeros where it has none. */
struct op_shapes {
    struct weight_shape weight[OP_MAX_OUT];
    struct slot_pool_desc slot_pool;
};

/* The operation's handles must belong to `b`. */
struct op_shapes op_shapes(struct backend *b, const struct op *op);

/* The functions of backend.h without their checks. A comment says what NULL means; the others must not be NULL. */
struct backend_vtable {
    /* The shapes behind a device's handles, with which backend_enqueue checks operations. */
    size_t (*buffer_bytes)(struct backend *b, const struct buffer *buf);
    struct weight_shape (*weight_shape)(struct backend *b, const struct weight *w);
    struct slot_pool_desc (*slot_pool_shape)(struct backend *b, const struct slot_pool *slot_pool);
    err_code (*buffer_create)(struct backend *b, size_t n_bytes, int64_t n_part, enum mem_tag tag, struct buffer **out,
                              struct err *e);
    int (*n_node)(struct backend *b); /* NULL: one */
    err_code (*buffer_reserve)(struct backend *b, size_t n_bytes, size_t unit_bytes, int64_t n_part, enum mem_tag tag,
                               struct buffer **out, struct err *e);
    bool (*buffer_commit)(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes);
    void (*buffer_decommit)(struct backend *b, struct buffer *buf, size_t off_bytes, size_t n_bytes);
    void (*buffer_close)(struct backend *b, struct buffer *buf);
    void (*write)(struct backend *b, const struct tensor *t, const void *src);
    void (*copy)(struct backend *b, const struct tensor *from, const struct tensor *to);
    void (*clear)(struct backend *b, const struct tensor *t);
    err_code (*read)(struct backend *b, const struct tensor *t, void *dst, struct err *e);
    err_code (*weight_load)(struct backend *b, const struct weight_desc *d, const struct weight_source *src,
                            struct weight **out, struct err *e);
    void (*weight_close)(struct backend *b, struct weight *w);
    size_t (*weight_bytes)(struct backend *b, const struct weight_desc *d); /* NULL: as in the file */
    err_code (*slot_pool_create)(struct backend *b, const struct slot_pool_desc *d, struct slot_pool **out,
                                 struct err *e);
    void (*slot_pool_close)(struct backend *b, struct slot_pool *slot_pool);
    size_t (*slot_pool_slot_bytes)(struct backend *b, const struct slot_pool_desc *d);
    bool (*slot_open)(struct backend *b, struct slot_pool *slot_pool, int64_t slot);
    void (*slot_touch)(struct backend *b, struct slot_pool *slot_pool, int64_t slot); /* NULL: nothing to do */
    void (*slot_close)(struct backend *b, struct slot_pool *slot_pool, int64_t slot);
    bool (*slot_pool_image)(struct backend *b, const struct slot_pool_desc *d,
                            struct layout_image *out); /* NULL: none */
    void *(*slot_room)(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                       bool is_packed); /* NULL: none */
    void (*slot_adopt)(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                       const void *bytes, bool is_packed);
    err_code (*slot_fill)(struct backend *b, struct slot_pool *slot_pool, int64_t slot, const struct slot_rows *rows,
                          struct err *e);
    const void *(*slot_bytes)(struct backend *b, struct slot_pool *slot_pool, int64_t slot, enum expert_matrix matrix,
                              bool *is_packed);  /* NULL: it can't be had from this device */
    uint64_t (*upload_fence)(struct backend *b); /* NULL: slots are filled when slot_fill and slot_adopt return */
    err_code (*upload_poll)(struct backend *b, uint64_t fence, bool wait, bool *is_passed, struct err *e);
    void (*enqueue)(struct backend *b, const struct op *op);
    /* Must go by *s for shapes: the operation's handles may belong to another device. */
    bool (*supports)(struct backend *b, const struct op *op, const struct op_shapes *s);
    uint64_t (*fence)(struct backend *b);
    void (*start)(struct backend *b); /* NULL: the device puts nothing off */
    err_code (*wait)(struct backend *b, uint64_t fence, struct err *e);
    void (*trim)(struct backend *b); /* NULL: the device keeps no scratch */
    struct backend_counters (*counters)(struct backend *b);
    uint64_t (*op_ns)(struct backend *b, enum op_kind kind);   /* NULL: `counters` never waits */
    size_t (*held_bytes)(struct backend *b, enum mem_tag tag); /* NULL: none */
    size_t (*own_bytes)(struct backend *b);                    /* NULL: none */
    /* All three NULL: the device works in the host's memory */
    size_t (*room_bytes)(struct backend *b);
    bool (*make_room)(struct backend *b, size_t n_bytes);
    void (*set_reclaim)(struct backend *b, mem_reclaim_fn *reclaim, void *user);
    void (*close)(struct backend *b);
};

/* The head of every device's own struct. */
struct backend {
    const struct backend_vtable *v;
    const char *name;            /* for messages; borrowed */
    void (*between)(void *user); /* called after each enqueued operation (backend_set_between); or NULL */
    void *between_user;
    struct observing *observing; /* NULL: there is no observer (observe.c) */
};

/* Moves the error that a device has remembered, if there is one, to *e. */
MUST_USE err_code backend_report(struct err *pending, struct err *e);

/* Enqueues an operation and shows the observer what its weights are multiplied by. */
void observe_enqueue(struct backend *b, const struct op *op);
/* Moves the first error of observing, if there is one, to *e. */
MUST_USE err_code observe_report(struct backend *b, struct err *e);

#endif
