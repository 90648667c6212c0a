/* The entries of compressed caches that a batch completes: lists of them, by the ratios that the model's layers have.
 */
#include "base/minmax.h"
#include "model/layer_blocks.h"

enum list { AT, INDEX, TABLE, FIRST };
_Static_assert((int)FIRST + 1 == (int)ENTRY_LISTS, "work space has room for each list");

/* The entries that the first n_token tokens of the batch complete. */
static int64_t count_entries(const struct pass *p, int64_t ratio, int64_t n_token)
{
    int64_t n = 0;
    for (int64_t r = 0; r < p->n_rows && n_token > 0; n_token -= p->rows[r++].n) {
        int64_t pos = p->rows[r].state->pos;
        n += (pos + min_i64(p->rows[r].n, n_token)) / ratio - pos / ratio;
    }
    return n;
}

/* Entry `index` of a text whose page tables begin at `table`, as a list has it. */
static int64_t value_of(enum list list, int64_t ratio, int64_t index, int64_t table)
{
    switch (list) {
    case AT: return (index + 1) * ratio - 1;
    case INDEX: return index;
    case TABLE: return table;
    case FIRST: return index * ratio;
    }
    return 0;
}

/* Room for a list of the i-th ratio. */
static struct tensor list_room(const struct pass *p, int i, enum list list, int64_t n)
{
    return list_part(p->w->entry_lists, (i * ENTRY_LISTS + (int64_t)list) * p->w->sizes.n_batch, n);
}

static struct tensor write_list(const struct pass *p, int i, enum list list, int64_t n)
{
    int32_t *out = p->w->host_rows;
    int64_t ratio = p->m->ratios[i], table = 0;
    const struct tensor t = list_room(p, i, list, n);
    for (int64_t r = 0; r < p->n_rows; r++) {
        int64_t pos = p->rows[r].state->pos, end = pos + p->rows[r].n;
        for (int64_t index = pos / ratio; index < end / ratio; index++)
            *out++ = (int32_t)value_of(list, ratio, index, table);
        table += n_blocks(end);
    }
    backend_write(p->b, &t, p->w->host_rows);
    return t;
}

void block_list_entries(struct pass *p)
{
    const struct rope_table *r = &p->m->ropes[p->m->entry_rope];
    for (int i = 0; i < p->m->n_ratio; i++) {
        struct entry_list *x = &p->entries[i];
        *x = (struct entry_list){.n = count_entries(p, p->m->ratios[i], p->n)};
        if (p->p->is_complete)
            x->n = max_i64(x->n, 1);
        if (x->n == 0)
            continue;
        x->at = write_list(p, i, AT, x->n);
        x->index = write_list(p, i, INDEX, x->n);
        x->table = write_list(p, i, TABLE, x->n);
        if (r->n_rot == 0)
            continue;
        x->first = write_list(p, i, FIRST, x->n);
        x->rope = p->w->entry_rope;
        x->rope.off_bytes += (size_t)(i * r->n_rot * p->w->sizes.n_batch) * sizeof(float);
        x->rope = tensor_shaped(x->rope, r->n_rot, x->n);
        backend_enqueue(p->b, &(struct op){.kind = OP_ROPE_TABLE,
                                           .in = {x->first},
                                           .out = {x->rope},
                                           .vec = {r->divisors},
                                           .rope_table = r->angles});
    }
}

void block_cut_entries(const struct pass *p, struct pass *ubatch)
{
    for (int i = 0; i < p->m->n_ratio; i++) {
        const struct entry_list *x = &p->entries[i];
        struct entry_list *y = &ubatch->entries[i];
        int64_t ratio = p->m->ratios[i], first = count_entries(p, ratio, ubatch->first);
        bool is_last = ubatch->first + ubatch->n == p->n;
        *y = (struct entry_list){.n = (is_last ? x->n : count_entries(p, ratio, ubatch->first + ubatch->n)) - first};
        if (y->n == 0)
            continue;
        y->at = list_part(x->at, first, y->n);
        y->index = list_part(x->index, first, y->n);
        y->table = list_part(x->table, first, y->n);
        if (x->rope.buffer)
            y->rope = tensor_rows(x->rope, first, y->n);
    }
}
