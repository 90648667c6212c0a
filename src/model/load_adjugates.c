/* Adjugates, small experts that a few routed ones share (GroveMoE). All of them are in slots from the beginning. */
#include "gguf/gguf.h"
#include "model/loader.h"

/* How many there are. */
static err_code load_number(struct loader *l, const struct moe_layer *y, int64_t *n, struct err *e)
{
    int64_t share = 0;
    TRY(load_u32(l, "experts_per_group", &share, e));
    if (share < 1 || y->n_expert % share)
        return err_set(e, ERR_FORMAT, "%s: %s.experts_per_group is %lld, expected a divisor of the %lld experts",
                       gguf_file_path(l->g, 0), l->m->arch, (long long)share, (long long)y->n_expert);
    *n = y->n_expert / share;
    return ERR_OK;
}

/* Reads a matrix of all adjugates into their slots. */
static err_code fill(struct loader *l, const struct model_adjugates *x, const struct gguf_tensor *t,
                     enum expert_matrix matrix, struct err *e)
{
    size_t n_bytes = t->n_bytes / (size_t)x->shape.n_slot;
    char *bytes = mem_alloc(n_bytes);
    const struct slot_rows rows = {.matrix = matrix, .src = bytes, .n_row = slot_matrix_rows(&x->shape, matrix)};
    err_code code = bytes ? ERR_OK : err_nomem(e, n_bytes, t->name);
    for (int64_t i = 0; i < x->shape.n_slot && code == ERR_OK; i++) {
        code = load_read(l, t, (uint64_t)i * n_bytes, n_bytes, bytes, e);
        if (code == ERR_OK)
            code = backend_slot_fill(x->device, x->slots, i, &rows, e);
    }
    mem_free(bytes);
    return code;
}

/* Fills the slots, and says of each routed expert which one it shares. */
static err_code fill_all(struct loader *l, const struct model_adjugates *x, const struct gguf_tensor *const *t,
                         const struct moe_layer *y, struct err *e)
{
    bool is_passed;
    size_t n_bytes = tensor_bytes(&y->adjugate_slots);
    for (int64_t i = 0; i < x->shape.n_slot; i++)
        if (!backend_slot_open(x->device, x->slots, i))
            return err_nomem(e, backend_slot_pool_slot_bytes(x->device, &x->shape), t[EXPERT_GATE]->name);
    for (int i = 0; i < EXPERT_N_MATRIX; i++)
        TRY(fill(l, x, t[i], (enum expert_matrix)i, e));
    TRY(backend_upload_poll(x->device, backend_upload_fence(x->device), true, &is_passed, e));
    int32_t *slots = mem_alloc(n_bytes);
    if (!slots)
        return err_nomem(e, n_bytes, "slots");
    for (int64_t i = 0; i < y->n_expert; i++)
        slots[i] = (int32_t)(i / (y->n_expert / x->shape.n_slot));
    backend_write(x->device, &y->adjugate_slots, slots);
    mem_free(slots);
    return ERR_OK;
}

err_code load_adjugates(struct loader *l, int64_t layer, struct moe_layer *y, struct err *e)
{
    static const char *const names[EXPERT_N_MATRIX] = {[EXPERT_GATE] = "ffn_gate_chexps.weight",
                                                       [EXPERT_UP] = "ffn_up_chexps.weight",
                                                       [EXPERT_DOWN] = "ffn_down_chexps.weight"};
    struct model *m = l->m;
    struct model_adjugates *x = &m->adjugates[m->n_adjugates];
    const struct gguf_tensor *t[EXPERT_N_MATRIX], *down = load_find(l, layer, names[EXPERT_DOWN]);
    struct slot_pool_desc shape = {.n_embd = m->n_embd, .n_ff = down ? (int64_t)down->ne[0] : 0};
    TRY(load_number(l, y, &shape.n_slot, e));
    TRY(load_f32(l, "expert_group_scale", &load_factor_range, &y->adjugate_scale, e));
    TRY(load_u32_opt(l, "expert_chunk_feed_forward_length", &shape.n_ff, e));
    for (int i = 0; i < EXPERT_N_MATRIX; i++) {
        enum expert_matrix matrix = (enum expert_matrix)i;
        TRY(load_need(l, layer, names[i], slot_matrix_k(&shape, matrix), slot_matrix_rows(&shape, matrix), shape.n_slot,
                      &t[i], e));
        TRY(load_name(l, t[i], &y->adjugate_tensors[i], e));
        shape.type[i] = t[i]->info;
    }
    *x = (struct model_adjugates){.device = load_device(l, layer), .shape = shape, .n_used = y->n_used};
    TRY(backend_slot_pool_create(x->device, &shape, &x->slots, e));
    m->n_adjugates++;
    y->adjugates = x->slots;
    y->n_adjugate = shape.n_slot;
    y->n_ff_adjugate = shape.n_ff;
    TRY(backend_tensor_create(x->device, ELEM_I32, y->n_expert, 1, 1, MEM_WEIGHTS, &y->adjugate_slots, e));
    m->buffers[m->n_buffers++] = (struct model_buffer){x->device, y->adjugate_slots.buffer};
    bool holds_any = backend_slot_pool_slot_bytes(x->device, &shape) > 0; /* else the device only describes layers */
    return l->p->store && holds_any ? fill_all(l, x, t, y, e) : ERR_OK;
}
