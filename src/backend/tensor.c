/* Functions that need no device: sizes and parts of tensors, names of operations. */
#include <assert.h>

#include "backend/backend.h"

size_t elem_row_bytes(enum elem_type type, int64_t n)
{
    const struct quant_info *q8_0 = quant_info(QUANT_Q8_0);
    assert(type != ELEM_Q8_0 || n % q8_0->block_len == 0);
    if (type == ELEM_Q8_0)
        return (size_t)(n / q8_0->block_len) * (size_t)q8_0->block_bytes;
    return (size_t)n * (type == ELEM_F16 ? 2 : 4);
}

int64_t tensor_n_elem(const struct tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2];
}

size_t tensor_bytes(const struct tensor *t)
{
    return elem_row_bytes(t->type, t->ne[0]) * (size_t)(t->ne[1] * t->ne[2]);
}

struct tensor tensor_rows(struct tensor t, int64_t row0, int64_t n)
{
    assert(row0 >= 0 && n >= 0 && row0 + n <= t.ne[1] && t.ne[2] == 1);
    t.off_bytes += (size_t)row0 * elem_row_bytes(t.type, t.ne[0]);
    t.ne[1] = n;
    return t;
}

struct tensor paged_part(const struct paged *s, int64_t page, int64_t part)
{
    struct tensor t = s->page;
    assert(page >= 0 && part >= 0 && part < t.ne[2]);
    t.off_bytes += (size_t)page * s->page_bytes + (size_t)part * s->part_bytes;
    t.ne[2] = 1;
    return t;
}

const char *op_name(enum op_kind kind)
{
    static const char *const names[OP_N_KIND] = {
#define OP(name, text) #name,
        OP_LIST(OP)
#undef OP
    };
    return names[kind];
}
